"""Feature maps spelled as text.

    tiles:50x50             TileCoding, 50 by 50 tiles           tilings=4: that many shifted grids
    rbf:9x9                 RadialBasis.grid, 9 by 9 centres     width=0.2 (or 0.1x0.3), parts of the box
    fourier:3               Fourier of order 3                   total=4: at most that in sum
    poly:2                  Polynomial of degree 2
    tabular, tabular:30     Tabular of whole-numbered states 0, …, 29 (of as many as the data have)
    labels                  Labels, a table of the numbers seen  shrink=3: towards the mean, see below
    sb3:model.zip           the value network's last hidden layer of a Stable-Baselines3 model, whitened
                            (:func:`~policyrisk.features.from_sb3`)   normalisation=stats.npz: VecNormalize's

    my_module:edges         a function of states (n, dim) that is imported, FunctionFeatures.named

The grammar is ``name:size,option=…``, and the rest is the maps' own. A registered class with an example of
its spelling can be spelled (and says in ``describes`` what that is, for people). The example shows the form
of each part. In ``spelled = "mine:20x20,sharp=0.5,path=a.npz"`` stands 20x20 for whole numbers, one for all
coordinates or one for each, where 20 would stand for one number; 0.5 for a positive number, and a.npz for
the path of such a file. Options may be left out, and so may what is in brackets, as in ``tabular[:30]``.
The class is called with them by its arguments' names, the size being the first, and with ``low``, ``high``
(the data's box) and ``dims`` if it takes them; or it has a class method ``over``, which is called with the
:class:`Space`, the size and the options, and gives a map or a list of them.

``by=rank`` puts maps that have a box on the coordinates' ranks among the visited states
(:class:`~policyrisk.features.Ranked`) instead: equal parts then hold as many states.

One number stands for all coordinates: ``tiles:10`` of two coordinates is ``tiles:10x10``. Options follow
after commas. Each kind takes ``dims=x+y``, the coordinates that it looks at, by name or by number from 0. A
name with one of ``" , + / : =`` in it is in quotes, as JSON writes it: ``dims="speed m/s"+y``. Last of all
may stand ``second=`` with another spelling: the features of the second moment (of the variance, where it is
estimated directly), as in ``poly:1,second=poly:2``.

Maps side by side (:class:`~policyrisk.features.Joint`) have a slash between them, as in
``tiles:10,dims=x/labels,dims=city``. ``labels`` of several coordinates are as many tables side by side.

``shrink=n`` pulls a label's values towards what they would be without it, as if n visits had been seen there:
the table's features are scaled by s = ε/√n, beside a constant where there is no other map, and the fit has
the ridge ε²/K for K episodes (:meth:`Spelling.ridge`), which is nothing, ε² = 1e-6 visits, for the others.

Only what a user wrote is ever parsed. The program's own spellings know coordinates by their numbers, and
names are put in where people read them (:meth:`Spelling.text`).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from policyrisk._core.arrays import Floats
from policyrisk._core.imports import is_name
from policyrisk._core.text import QUOTED, pieces, quoted, unquoted
from policyrisk.errors import InvalidInputError
from policyrisk.features.composed import Joint, Ranked
from policyrisk.features.function import FunctionFeatures
from policyrisk.features.lattice import Polynomial
from policyrisk.features.protocol import Features, registered
from policyrisk.features.tables import SHRUNK, Labels

if TYPE_CHECKING:
    from policyrisk.passes.survey import Survey

_LARGEST = 10_000  # where one of the maps is dense: matrices of its square have to fit into memory
_LARGEST_SPARSE = 1_000_000  # tiles and tables: beyond LSTD's bound for dense sums these stay sparse
_UNIT = ("low", "high", "dims")


@dataclass(frozen=True)
class Space:
    """The states that a map is made for."""

    names: Sequence[str]  # of the coordinates
    sample: Survey
    low: Floats  # (dim,), of the box
    high: Floats  # (dim,)
    dims: tuple[int, ...] | None  # the coordinates that the map looks at; None for all
    largest: int  # features that it may have

    @property
    def looked_at(self) -> tuple[int, ...]:
        """The coordinates that the map looks at."""
        return tuple(range(len(self.names))) if self.dims is None else self.dims

    def chosen(self, name: str) -> tuple[int, ...]:
        """The same for a map of single coordinates, which ``dims`` must choose where there are several."""
        if self.dims is None and len(self.names) > 1:
            raise InvalidInputError(
                f"{name} must be told which coordinate, got {len(self.names)}: {', '.join(self.names)}; "
                f"choose one, as in {name},dims={quoted(self.names[0])}"
            )
        return self.looked_at


class Kind:
    """How a registered class is spelled."""

    def __init__(self, made: Any) -> None:
        self.made = made
        self.example: str = re.sub(r"[\[\]]", "", made.spelled)
        head, *options = self.example.split(",")
        self.name, _, self.size = head.partition(":")
        self.bare = not self.size or "[" in made.spelled  # whether the name may stand alone
        self.options: dict[str, str] = dict(option.split("=") for option in options)
        self.over = getattr(made, "over", None)
        self.arguments = inspect.signature(self.over or made).parameters
        self.boxed = self.over is None and {"low", "high"} <= self.arguments.keys()
        own = ["by"] * self.boxed + ["dims"] * (self.over is not None or "dims" in self.arguments)
        self.known = (*self.options, *own)

    def default(self, option: str) -> Any:
        """What stands for an option that is left out."""
        return self.arguments[option].default if option in self.arguments else None

    def make(self, space: Space, size: Any, options: Mapping[str, Any], ranked: bool) -> list[Features]:
        """The map, or several of them."""
        if self.over is not None:
            made = self.over(space, *([] if size is None else [size]), **options)
            return made if isinstance(made, list) else [made]
        given, dims = dict(options), list(space.looked_at)
        if size is not None:
            given[next(name for name in self.arguments if name not in _UNIT)] = size
        if "dims" in self.arguments:
            given["dims"] = space.dims
        if ranked:
            inner = self.made(**given, low=np.zeros(len(dims)), high=np.ones(len(dims)))
            states = np.vstack([space.sample.low, space.sample.visited, space.sample.high])
            return [Ranked.of(inner, states, dims)]
        if self.boxed:
            given |= {"low": space.low[dims], "high": space.high[dims]}
        return [self.made(**given)]


_kind = cache(Kind)


def kinds() -> dict[str, Kind]:
    """What can be spelled, by its name.

    >>> print(*kinds())
    tiles tabular sb3 rbf poly labels fourier
    """
    found = [_kind(made) for made in registered() if hasattr(made, "spelled")]
    return {each.name: each for each in sorted(found, key=lambda each: each.name, reverse=True)}


def examples() -> dict[str, str]:
    """A right spelling of each kind, and what it is."""
    return {each.example: getattr(each.made, "describes", "") for each in kinds().values()}


@dataclass(frozen=True, init=False)
class Spelling:
    """A feature map without its box.

    >>> spelling = Spelling.parse("tiles:10x5,tilings=2,dims=x+speed,second=poly:2")
    >>> spelling.kind, spelling.size, spelling.options, spelling.dims, str(spelling.second)
    ('tiles', (10, 5), (('tilings', 2),), ('x', 'speed'), 'poly:2')
    >>> str(spelling)
    'tiles:10x5,tilings=2,dims=x+speed,second=poly:2'
    >>> spelling == Spelling("tiles", (10, 5), dims=("x", "speed"), second=Spelling("poly", (2,)), tilings=2)
    True
    """

    kind: str
    size: tuple[int, ...] | str  # numbers, one for all coordinates or one for each, or a path
    options: tuple[tuple[str, Any], ...]  # the kind's own, but those that say what is so anyway
    by: str  # "rank", or the box
    dims: tuple[int | str, ...]  # numbers of coordinates, or what somebody wrote for them
    others: tuple[Spelling, ...]  # further maps, side by side with this one
    second: Spelling | None

    def __init__(
        self,
        kind: str,
        size: tuple[int, ...] | str = (),
        options: Iterable[tuple[str, Any]] = (),
        by: str = "",
        dims: tuple[int | str, ...] = (),
        others: tuple[Spelling, ...] = (),
        second: Spelling | None = None,
        **more: Any,
    ) -> None:
        given = {**dict(options), **more}
        if given:
            default = kinds()[kind].default
            given = {name: value for name, value in given.items() if value != default(name)}
        values = {"kind": kind, "size": size, "options": tuple(given.items())}
        for name, value in (values | {"by": by, "dims": dims, "others": others, "second": second}).items():
            object.__setattr__(self, name, value)

    @classmethod
    def parse(cls, text: str) -> Spelling:
        """The spelling that a text stands for; anything else is an error that shows a right one."""
        known = kinds()
        whole = _whole(known.values())
        parts = pieces(text.strip(), ",", whole)
        at = next((i for i, part in enumerate(parts) if i and part.startswith("second=")), len(parts))
        rest = ",".join(parts[at:]).removeprefix("second=")
        second = cls.parse(rest) if parts[at:] else None
        if second is not None and second.second is not None:
            raise _wrong(text, "there can be one second= only", "poly:1,second=poly:2")
        maps = pieces(",".join(parts[:at]), "/", whole)
        one, *others = (cls._parse_one(pieces(each.strip(), ",", whole), text, known) for each in maps)
        return replace(one, others=tuple(others), second=second)

    @classmethod
    def _parse_one(cls, parts: Sequence[str], text: str, known: Mapping[str, Kind]) -> Spelling:
        """One map of a text."""
        head, *options = parts
        name, colon, size = head.partition(":")
        kind = known.get(name)
        if kind is None and is_name(head):
            if options:
                raise _wrong(text, f"after a function stands nothing, not {options[0]!r}", head)
            return cls(head)
        if kind is None:
            examples = ", ".join(each.example.partition(",")[0] for each in known.values())
            raise InvalidInputError(f"{_rule(known)}, got {name!r} in {text!r}; write for example {examples}")
        if not colon and not kind.bare:
            raise _wrong(text, f"{name} needs a size after a colon", kind.example)
        if colon and not kind.size:
            raise _wrong(text, f"{name} takes no size", kind.example)
        written: dict[str, str] = {}
        for option in options:
            what, equals, value = option.partition("=")
            if what not in kind.known or not equals or not value or what in written:
                each = ", ".join(f"{option}=" for option in kind.known)
                rule = f"after {name} can stand each of {each} once, not {option!r}"
                raise _wrong(text, rule, kind.example)
            written[what] = value
        dims = tuple(pieces(written.pop("dims"), "+")) if "dims" in written else ()
        for coordinate in dims:
            unquoted(coordinate)  # raises where the quotes are not in order
        by = written.pop("by", "")
        if by not in ("", "rank"):
            raise _wrong(text, f"by= takes rank, not {by!r}", kind.example)
        numbers = _read(name, size, kind.size, text, kind.example) if colon else ()
        values = {
            option: _read(f"{option}=", value, kind.options[option], text, kind.example)
            for option, value in written.items()
        }
        return cls(name, numbers, ((option, _one(value)) for option, value in values.items()), by, dims)

    def __str__(self) -> str:
        options = [*self.options, ("by", self.by), ("dims", "+".join(map(str, self.dims)))]
        size = _written(self.size)
        text = f"{self.kind}:{size}" if size else self.kind
        text += "".join(f",{name}={_written(value)}" for name, value in options if value)
        text += "".join(f"/{other}" for other in self.others)
        return text if self.second is None else f"{text},second={self.second}"

    def text(self, names: Sequence[str]) -> str:
        """The spelling with the coordinates' names, as a user would write it.

        >>> Spelling("poly", (1,), dims=(0, 2)).text(["x", "y", "speed m/s"])
        'poly:1,dims=x+"speed m/s"'
        """
        return str(self._named(names))

    def _named(self, names: Sequence[str]) -> Spelling:
        return replace(
            self,
            dims=tuple(quoted(names[d]) if isinstance(d, int) else d for d in self.dims),
            others=tuple(each._named(names) for each in self.others),
            second=None if self.second is None else self.second._named(names),
        )

    @property
    def maps(self) -> tuple[Spelling, ...]:
        """The maps that are side by side, one by one."""
        return replace(self, others=(), second=None), *self.others

    @property
    def _all(self) -> tuple[Spelling, ...]:
        return (*self.maps, *(() if self.second is None else self.second.maps))

    def normal(self, names: Sequence[str]) -> Spelling:
        """The one spelling of all that are the same map over states with these coordinate names.

        >>> spelled = "tiles:2", "tiles:2x2x2", "tiles:2,dims=0+y+z"
        >>> {str(Spelling.parse(text).normal(["x", "y", "z"])) for text in spelled}
        {'tiles:2x2x2'}
        """
        everything = tuple(range(len(names)))
        looked_at = self._dims(names) or everything
        each = not is_name(self.kind) and "x" in kinds()[self.kind].size
        return replace(
            self,
            size=self.size * len(looked_at) if each and len(self.size) == 1 else self.size,
            dims=() if looked_at == everything else looked_at,
            others=tuple(each.normal(names) for each in self.others),
            second=None if self.second is None else self.second.normal(names),
        )

    def ridge(self, episodes: int) -> float:
        """The ridge that the maps' ``shrink`` needs, in a fit to so many episodes; 0 where none has it."""
        return SHRUNK**2 / episodes if any("shrink" in dict(each.options) for each in self._all) else 0.0

    def check_functions(self) -> None:
        """Raise where a map is to be a function that cannot be imported."""
        for each in self._all:
            each._function()

    def _function(self) -> FunctionFeatures | None:
        """The function that the map is, None where it is none."""
        known = kinds()
        if self.kind in known:
            return None
        try:
            return FunctionFeatures.named(self.kind)
        except InvalidInputError as error:
            raise InvalidInputError(f"{_rule(known)}, got {self.kind!r} ({error}); correct it") from error

    def check_labels(self, names: Sequence[str], sample: Survey, labels: Iterable[int]) -> None:
        """Raise where a map takes the numbers of a label with more than two values for numbers.

        They are in no order that means anything. Tiles that leave every value a tile of its own are a table.
        """
        known = kinds()
        for each in self._all:
            if each.kind not in known:  # a function, which may know
                continue
            is_table = getattr(known[each.kind].made, "is_table", lambda values, size: False)
            looked_at = each._dims(names) or tuple(range(len(names)))
            for d in set(looked_at) & set(labels):
                values = sample.values[d]
                count = np.inf if values is None else values.size
                sizes = each.size if len(each.size) > 1 else each.size * len(looked_at)
                if count > 2 and not is_table(count, sizes[looked_at.index(d)] if sizes else None):
                    others = replace(each, dims=tuple(k for k in looked_at if k != d))
                    rest = f"{others.text(names)}/" if others.dims and len(each.size) < 2 else ""
                    raise InvalidInputError(
                        f"features must not take {names[d]} for a number, which is a label whose numbers are "
                        f"in no order, got {each.text(names)!r}; give it a table of its own, as in "
                        f"{rest}labels,shrink=1,dims={quoted(names[d])}, or leave it out with dims="
                    )

    def build(
        self,
        names: Sequence[str],
        sample: Survey,
        low: Floats,
        high: Floats,
        beside: Spelling | None = None,
    ) -> Features:
        """The map over states with these coordinate names, in the box low to high (dim,) of them.

        ``beside`` is the other of two maps: where one of them is dense, so are the sums of both.
        """
        known = kinds()
        both = (*self._all, *(() if beside is None else beside._all))
        sparse = all(each.kind in known and getattr(known[each.kind].made, "sparse", False) for each in both)
        space = Space(names, sample, low, high, None, _LARGEST_SPARSE if sparse else _LARGEST)
        maps = [phi for each in self.maps for phi in each._build(space, known)]
        if any("shrink" in dict(each.options) for each in self.maps) and all(
            isinstance(phi, Labels) for phi in maps
        ):
            maps.insert(0, Polynomial(0, low, high))
        phi = maps[0] if len(maps) == 1 else Joint(maps)
        if phi.size > space.largest:
            raise InvalidInputError(
                f"features must be at most {space.largest}, got {phi.size} from {str(self)!r}, whose "
                "equations would not fit into memory; choose fewer, or fewer coordinates with dims="
            )
        return phi

    def _build(self, space: Space, known: Mapping[str, Kind]) -> list[Features]:
        """One map, or a table for each label."""
        if (own := self._function()) is not None:
            own(space.sample.visited[:1])  # for its size
            return [own]
        space = replace(space, dims=self._dims(space.names))
        names = [space.names[d] for d in space.looked_at]
        for what, given in (("size", self.size), *self.options):
            if isinstance(given, tuple) and len(given) not in (0, 1, len(names)):
                raise InvalidInputError(
                    f"features must have one of the {what}s for each of the coordinates {', '.join(names)}, "
                    f"or one for all, got {len(given)} in {self.text(space.names)!r}; write for example "
                    f"{self.kind}:{'x'.join(['8'] * len(names))}, or choose coordinates with dims="
                )
        size = None if self.size == () else _one(self.size)
        return known[self.kind].make(space, size, dict(self.options), self.by == "rank")

    def count(self, d: int) -> int:
        """How many features there are of d coordinates, of a kind that has a box."""
        box = np.zeros(d), np.ones(d)
        names = [str(k) for k in range(d)]
        space = Space(names, None, *box, None, _LARGEST)  # type: ignore[arg-type]
        (phi,) = kinds()[self.kind].make(space, _one(self.size), dict(self.options), ranked=False)
        return phi.size

    def _dims(self, names: Sequence[str]) -> tuple[int, ...] | None:
        """The coordinates looked at by number; None for all."""
        found = []
        for written in self.dims:
            if isinstance(written, int):
                found.append(written)
            elif (name := unquoted(written)) in names:
                found.append(list(names).index(name))
            elif written.isdecimal() and int(written) < len(names):
                found.append(int(written))
            else:
                raise InvalidInputError(
                    f"dims must name coordinates of the state, {', '.join(map(quoted, names))}, got {name!r} "
                    f"in {str(self)!r}; write for example dims={'+'.join(map(quoted, names[:2]))}"
                )
        if len(set(found)) < len(found):
            raise InvalidInputError(
                f"dims must name each coordinate once, got {self.text(names)!r}; "
                f"write for example dims={quoted(names[0])}"
            )
        return tuple(found) or None


def data_box(sample: Survey) -> tuple[Floats, Floats, tuple[int, ...]]:
    """The box low, high (dim,) of the data, and the coordinates that never change.

    Where low = high there is nothing to divide, and the box begins there: u = 0, where a cosine is 1 and not
    a rounded 0 that would be taken for a feature.
    """
    constant = sample.low == sample.high
    high = np.where(constant, sample.high + np.maximum(1.0, np.abs(sample.high)), sample.high)
    return sample.low, high, tuple(np.flatnonzero(constant).tolist())


def _read(what: str, written: str, like: str, text: str, example: str) -> tuple[Any, ...] | str:
    """What is written in a place that ``like`` is an example for: a path, or numbers."""
    if ending := _ending(like):
        if not written.endswith(ending):
            raise _wrong(text, f"{what} takes the path of a {ending} file, not {written!r}", example)
        return written
    parts = written.split("x")
    if "." in like:
        rule = "positive numbers" if "x" in like else "a positive number"
        try:
            numbers: tuple[Any, ...] = tuple(map(float, parts))
        except ValueError:
            numbers = (0.0,)
        right = all(0 < number < np.inf for number in numbers)
    else:
        rule = "whole numbers from 1 with an x between"
        right = re.fullmatch("[1-9][0-9]{0,8}(x[1-9][0-9]{0,8})*", written, re.ASCII) is not None
        numbers = tuple(map(int, parts)) if right else ()
    if right and len(numbers) > 1 and "x" not in like:
        right, rule = False, "one number"
    if not right:
        raise _wrong(text, f"{what} takes {rule}, not {written!r}", example)
    return numbers


def _ending(like: str) -> str:
    """``.zip`` of ``model.zip``; nothing of a number."""
    found = re.search(r"\.[a-z]+$", like)
    return found[0] if found else ""


def _whole(known: Iterable[Kind]) -> str:
    """A pattern of quoted names and of paths, whose commas and slashes are their own."""
    paths = [
        rf"{place}.*?\{ending}(?=[,/]|$)"
        for kind in known
        for place, like in ((f"{kind.name}:", kind.size), *((f"{o}=", v) for o, v in kind.options.items()))
        if (ending := _ending(like))
    ]
    return "|".join([QUOTED, *paths])


def _one(value: Any) -> Any:
    """A single number by itself."""
    return value[0] if isinstance(value, tuple) and len(value) == 1 else value


def _written(value: Any) -> str:
    if isinstance(value, tuple):
        return "x".join(map(_written, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _rule(known: Iterable[str]) -> str:
    return f"features must be auto or one of {', '.join(known)}, or module:name of a function"


def _wrong(text: str, rule: str, example: str) -> InvalidInputError:
    return InvalidInputError(f"features are misspelled in {text!r}: {rule}; write for example {example}")
