"""The columns of a table: those that the caller names, and those found by their usual names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from inspect import Parameter, signature
from typing import Any, Literal, TypeAlias, TypedDict, TypeVar, get_args

from policyrisk._core.arrays import as_list, check_choice, check_kind, is_utf8
from policyrisk._core.keywords import check_options, taking
from policyrisk.errors import InvalidInputError

Missing = Literal["refuse", "drop", "last"]  # what is done about missing values
LabelNames: TypeAlias = Mapping[str, tuple[str, ...]]  # of each column of text, in the order of their numbers

T = TypeVar("T", bound=Callable[..., Any])

BATCH_ROWS = 1 << 16  # states in a batch: some MB, and enough that Python's share of the time is small
_LISTED = 200  # columns that a message names
_OPTIONAL = ("terminated", "truncated", "step")  # a table without a column of that name may have none
USUAL = ("episode", "reward", *_OPTIONAL)
_OF_EPISODES = ("cluster", "time")  # read where they are named, from each episode's first row
# Found on their own, where nothing else is read from them; of actions also action_0, action_1, …
ACTIONS, PROPENSITIES = ("action", "actions"), ("propensity", "action_probability")


@dataclass(frozen=True)
class Columns:
    """The names of a table's columns, checked: the options that all readers of tables share.

    :func:`policyrisk.read_parquet` documents them. :meth:`matched` finds them in one table.

    >>> Columns(state="x").matched(["x", "episode", "reward", "terminated", "action"], "log").used()
    ['x', 'episode', 'reward', 'terminated', 'action']
    """

    state: str | Sequence[str] | None = None
    episode: str = "episode"
    reward: str | Sequence[str] = "reward"  # several: what is earned of other kinds as well
    terminated: str | None = "terminated"
    truncated: str | None = "truncated"
    step: str | None = "step"
    action: str | Sequence[str] | None = "action"  # several: the coordinates of a continuous one
    propensity: str | None = "propensity"
    codes: Mapping[str, Sequence[str]] | None = None
    missing: Missing = "refuse"
    cluster: str | None = None
    time: str | None = None  # of the episode, by which episodes are ordered
    text: frozenset[str] = frozenset()  # those of the state and the action that hold names: no option

    def __post_init__(self) -> None:
        given = [self.state] if isinstance(self.state, str) else self.state
        states = None if given is None else tuple(as_list(given, "state", "names of columns"))
        if states is not None and not (states and all(isinstance(name, str) for name in states)):
            raise InvalidInputError(
                f"state must be a column's name or a list of names, got {self.state!r}; pass for example "
                "['x', 'y']"
            )
        if states is not None and len(set(states)) < len(states):
            raise InvalidInputError(
                f"state must name each column once, got {list(states)}; remove the second"
            )
        reward: Any = tuple(self.reward) if isinstance(self.reward, list | tuple) else self.reward
        kinds = _each(reward)
        if not (kinds and len(set(kinds)) == len(kinds) and all(isinstance(name, str) for name in kinds)):
            raise InvalidInputError(
                f"reward must be a column's name, got {self.reward!r}; pass a string, or a list of different "
                "ones, as ['profit', 'cost']"
            )
        for argument in (*(each for each in USUAL if each != "reward"), "propensity", *_OF_EPISODES):
            name = getattr(self, argument)
            may_lack = argument in (*_OPTIONAL, "propensity", *_OF_EPISODES)
            if not (isinstance(name, str) or (name is None and may_lack)):
                raise InvalidInputError(f"{argument} must be a column's name, got {name!r}; pass a string")
        action: Any = tuple(self.action) if isinstance(self.action, list | tuple) else self.action
        names = _each(action)
        if (self.action is not None and not names) or not all(isinstance(name, str) for name in names):
            raise InvalidInputError(
                "action must be a column's name, or a list of names for a continuous action, got "
                f"{self.action!r}; pass for example 'action' or ['force_x', 'force_y']"
            )
        object.__setattr__(self, "state", states)
        object.__setattr__(self, "action", action)
        object.__setattr__(self, "reward", reward)
        object.__setattr__(self, "codes", as_codes(self.codes))
        check_choice(self.missing, "missing", get_args(Missing))
        for name in self.used():
            if not is_utf8(name):
                raise InvalidInputError(f"names of columns must be text in UTF-8, got {name!r}; correct it")

    @classmethod
    def asked(cls, reader: Callable[..., Any], state: Any, columns: Mapping[str, Any]) -> Columns:
        """What a reader was called with; an unknown option is an error that names the nearest one."""
        check_options(columns, options_of(reader), reader.__name__)
        return cls(state, **columns)

    @property
    def states(self) -> tuple[str, ...]:
        """The state's columns; none where they are not known yet."""
        return _each(self.state)

    @property
    def rewards(self) -> tuple[str, ...]:
        """The columns of the reward and of other kinds of it."""
        return _each(self.reward)

    @property
    def actions(self) -> tuple[str, ...]:
        """The action's columns."""
        return _each(self.action)

    def used(self) -> list[str]:
        """All columns that are read, once each."""
        usual = (name for argument in USUAL for name in _each(getattr(self, argument)))
        names = (*self.states, *usual, *self.actions, self.propensity, self.cluster, self.time)
        return list(dict.fromkeys(name for name in names if name is not None))

    @classmethod
    def of_text(cls, names: Iterable[str]) -> Columns:
        """These columns alone, to find out the names in them."""
        first, *_ = states = tuple(names)
        return cls(states, first, first, None, None, None, None, None, text=frozenset(states))

    def matched(self, names: Sequence[str], file: str) -> Columns:
        """With only the columns that a table has; a missing one is an error that lists them all."""
        listed = ", ".join(names[:_LISTED]) + (f", … ({len(names)} in all)" if len(names) > _LISTED else "")
        there = f"got the columns {listed or '(none)'} in {file}"
        counts = Counter(names)  # tables of a hundred thousand columns exist

        def has(name: str, argument: str) -> str:
            if name not in counts:
                raise InvalidInputError(
                    f"{argument} must name a column, got {name!r}, but {there}; "
                    f"pass {argument}=... with the column that you mean"
                )
            if counts[name] > 1:
                raise InvalidInputError(
                    f"{argument} must name one column, {there}, {name} more than once; rename one of them"
                )
            return name

        usual = ("state",) if "state" in counts else _numbered("state", counts)
        if not (self.states or usual):
            raise InvalidInputError(
                f"state must name the columns of the state, {there}; pass for example state=['x', 'y']"
            )
        found: dict[str, Any] = {"state": [has(name, "state") for name in self.states or usual]}
        for argument in ("episode", *_OPTIONAL, *_OF_EPISODES):
            name = getattr(self, argument)
            optional = name == argument and argument in _OPTIONAL
            lacking = name is None or (optional and name not in counts)
            found[argument] = None if lacking else has(name, argument)
        found["reward"] = tuple(has(name, "reward") for name in self.rewards)
        if found["terminated"] is None and found["truncated"] is None:
            raise InvalidInputError(
                f"terminated or truncated must name a column of booleans, {there}; add one that says in each "
                "episode's last row whether it ended there or was cut off"
            )
        others = (name for argument in (*USUAL, *_OF_EPISODES) for name in _each(found[argument]))
        free = counts.keys() - {*found["state"], *others}
        action, propensity = self.action, self.propensity
        if action == ACTIONS[0]:
            action = _first(ACTIONS, free) or _numbered(ACTIONS[0], free) or None
        for name in self.actions if self.action != ACTIONS[0] else ():
            has(name, "action")
        if propensity == PROPENSITIES[0]:
            propensity = _first(PROPENSITIES, free) if action is not None else None
        elif propensity is not None and has(propensity, "propensity") and action is None:
            raise InvalidInputError(
                f"propensity must come with a column of the action that it belongs to, {there}; pass "
                "action=... with it"
            )
        return replace(self, **found, action=action, propensity=propensity)

    def given_codes(self) -> LabelNames:
        """The names that the caller gave for columns of text, once it is known which these are."""
        found = as_codes(self.codes)
        for name, names in found.items():
            different = len(set(names)) == len(names) and all(isinstance(each, str) for each in names)
            if name not in self.text or not different:
                raise InvalidInputError(
                    f"codes must give different names for columns of text that are read, which are "
                    f"{', '.join(sorted(self.text)) or 'none'}, got {name}={list(names)!r}; leave it out"
                )
        return found


class TableOptions(TypedDict, total=False):
    """The columns of tables, for functions that pass them on (:func:`policyrisk.read_parquet`)."""

    episode: str
    reward: str | Sequence[str]
    terminated: str | None
    truncated: str | None
    step: str | None
    action: str | Sequence[str] | None
    propensity: str | None
    codes: Mapping[str, Sequence[str]] | None
    missing: Missing
    cluster: str | None
    time: str | None


class ReaderOptions(TableOptions, total=False):
    """All that readers of tables take."""

    state: str | Sequence[str] | None
    batch_rows: int


class AnyReaderOptions(ReaderOptions, total=False):
    """Those of all readers: of Parquet files and of Minari's datasets too."""

    row_groups: tuple[int, int] | None
    project: Any


OPTIONS = tuple(each.name for each in fields(Columns) if each.name != "text")
_DEFAULTS = {each.name: each.default for each in fields(Columns)} | {"batch_rows": BATCH_ROWS}


def reading(options: type) -> Callable[[T], T]:
    """A function whose signature shows the options that it passes on to a reader."""
    texts = {name: getattr(kind, "__forward_arg__", kind) for name, kind in options.__annotations__.items()}
    in_order = sorted(texts, key="state".__ne__)  # the state first
    return taking(
        *(
            Parameter(name, Parameter.KEYWORD_ONLY, default=_DEFAULTS.get(name), annotation=texts[name])
            for name in in_order
        )
    )


def options_of(reader: Callable[..., Any]) -> list[str]:
    """The names of a reader's options; ``**`` takes all those of columns."""
    own = list(signature(reader).parameters.values())[1:]
    more = OPTIONS if any(each.kind is each.VAR_KEYWORD for each in own) else ()
    return list(dict.fromkeys([*(each.name for each in own if each.kind is not each.VAR_KEYWORD), *more]))


def as_codes(codes: Mapping[str, Sequence[str]] | None) -> LabelNames:
    """A caller's names of columns of text, checked."""
    given = {} if codes is None else codes
    check_kind(given, "codes", Mapping, "pass for example {'shop': ['a', 'b']}")
    return {name: tuple(as_list(names, "codes", "names of each column")) for name, names in given.items()}


def _each(names: Any) -> tuple[Any, ...]:
    """Several names, or a single one, as a tuple."""
    return names if isinstance(names, tuple) else () if names is None else (names,)


def _first(usual: Sequence[str], names: Container[str]) -> str | None:
    return next((name for name in usual if name in names), None)


def _numbered(stem: str, names: Container[str]) -> tuple[str, ...]:
    """stem_0, stem_1, … as far as there are columns of these names."""
    numbered: list[str] = []
    while f"{stem}_{len(numbered)}" in names:
        numbered.append(f"{stem}_{len(numbered)}")
    return tuple(numbered)
