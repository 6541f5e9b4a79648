"""Which columns of a table hold what: those that the caller names, and those found by their usual names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from policyrisk._core.arrays import as_list, is_utf8
from policyrisk.errors import InvalidInputError

_LISTED = 200  # columns that a message names
_OPTIONAL = ("terminated", "truncated", "step")  # a table without a column of that name may have none
USUAL = ("episode", "reward", *_OPTIONAL)
# Found on their own, where nothing else is read from them; of actions also action_0, action_1, …
ACTIONS, PROPENSITIES = ("action", "actions"), ("propensity", "action_probability")


@dataclass(frozen=True)
class Layout:
    """The columns' names. ``state`` None: ``state``, or ``state_0``, ``state_1``, … of the table."""

    state: tuple[str, ...] | None = None
    episode: str = "episode"
    reward: str = "reward"
    terminated: str | None = "terminated"
    truncated: str | None = "truncated"
    step: str | None = "step"
    action: str | tuple[str, ...] | None = None  # a tuple: the coordinates of a continuous one
    propensity: str | None = None
    text: frozenset[str] = frozenset()  # columns of the state, and of the action, that hold names

    @classmethod
    def of_text(cls, columns: Iterable[str]) -> Layout:
        """These columns alone, to find out their names."""
        first, *_ = names = tuple(columns)
        return cls(names, first, first, None, None, None, text=frozenset(names))

    @property
    def actions(self) -> tuple[str, ...]:
        """The action's columns."""
        return _each(self.action)

    def used(self) -> list[str]:
        """All columns that are read, once each."""
        usual = (getattr(self, argument) for argument in USUAL)
        names = (*(self.state or ()), *usual, *self.actions, self.propensity)
        return list(dict.fromkeys(name for name in names if name is not None))


def _each(names: Any) -> tuple[Any, ...]:
    """The names in a tuple, or the one that is none."""
    return names if isinstance(names, tuple) else () if names is None else (names,)


def as_layout(
    state: str | Sequence[str] | None,
    *columns: str | None,
    action: str | Sequence[str] | None = None,
    propensity: str | None = None,
) -> Layout:
    """A layout of a caller's arguments: the state's columns, those in the order of USUAL, the action's."""
    given = [state] if isinstance(state, str) else state
    names = None if given is None else tuple(as_list(given, "state", "names of columns"))
    if names is not None and (not names or not all(isinstance(name, str) for name in names)):
        raise InvalidInputError(
            f"state must be a column's name or a list of names, got {state!r}; pass for example ['x', 'y']"
        )
    if names is not None and len(set(names)) < len(names):
        raise InvalidInputError(f"state must name each column once, got {list(names)}; remove the second")
    for argument, name in zip(USUAL, columns, strict=True):
        if not (isinstance(name, str) or (name is None and argument in _OPTIONAL)):
            raise InvalidInputError(f"{argument} must be a column's name, got {name!r}; pass a string")
    coordinates: Any = tuple(action) if isinstance(action, list | tuple) else action
    if (isinstance(coordinates, tuple) and not coordinates) or not all(
        isinstance(name, str) for name in _each(coordinates)
    ):
        raise InvalidInputError(
            f"action must be a column's name, or a list of names for a continuous action, got {action!r}; "
            "pass for example 'action' or ['force_x', 'force_y']"
        )
    for name in (*(names or ()), *columns, *_each(coordinates), propensity):
        if isinstance(name, str) and not is_utf8(name):
            raise InvalidInputError(f"names of columns must be text in UTF-8, got {name!r}; correct it")
    if not isinstance(propensity, str | None):
        raise InvalidInputError(f"propensity must be a column's name, got {propensity!r}; pass a string")
    found = Layout(names, *columns)  # type: ignore[arg-type]  # checked above
    return replace(found, action=coordinates, propensity=propensity)


def match(layout: Layout, names: Sequence[str], file: str) -> Layout:
    """The layout with only the columns that a table has; a missing one is an error that lists them all."""
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

    state = tuple(has(name, "state") for name in layout.state or _usual_state(counts, there))
    found: dict[str, Any] = {}
    for argument in USUAL:
        name = getattr(layout, argument)
        lacking = name is None or (name == argument and name not in counts)
        found[argument] = None if lacking and argument in _OPTIONAL else has(name, argument)
    if found["terminated"] is None and found["truncated"] is None:
        raise InvalidInputError(
            f"terminated or truncated must name a column of booleans, {there}; add one that says in each "
            "episode's last row whether it ended there or was cut off"
        )
    free = counts.keys() - {*state, *found.values()}
    action, propensity = layout.action, layout.propensity
    if action == ACTIONS[0]:
        action = _first(ACTIONS, free) or _numbered(action, free) or None
    elif action is not None:
        for name in layout.actions:
            has(name, "action")
    if propensity == PROPENSITIES[0]:
        propensity = _first(PROPENSITIES, free) if action is not None else None
    elif propensity is not None:
        has(propensity, "propensity")
        if action is None:
            raise InvalidInputError(
                f"propensity must come with a column of the action that it belongs to, {there}; pass "
                "action=... with it"
            )
    return Layout(state, **found, action=action, propensity=propensity, text=layout.text)


def _first(usual: Sequence[str], names: Container[str]) -> str | None:
    return next((name for name in usual if name in names), None)


def _numbered(stem: str, names: Container[str]) -> tuple[str, ...]:
    """stem_0, stem_1, … as far as there are columns of these names."""
    numbered: list[str] = []
    while f"{stem}_{len(numbered)}" in names:
        numbered.append(f"{stem}_{len(numbered)}")
    return tuple(numbered)


def _usual_state(names: Container[str], there: str) -> tuple[str, ...]:
    if "state" in names:
        return ("state",)
    numbered = _numbered("state", names)
    if not numbered:
        raise InvalidInputError(
            f"state must name the columns of the state, {there}; pass for example state=['x', 'y']"
        )
    return numbered
