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

``by=rank`` puts tiles, rbf, fourier and poly on the coordinates' ranks among the visited states
(:class:`~policyrisk.features.Ranked`) instead of on the box: equal parts then hold as many states.

One number stands for all coordinates: ``tiles:10`` of two coordinates is ``tiles:10x10``. Options follow
after commas. Each kind takes ``dims=x+y``, the coordinates that it looks at, by name or by number from 0;
and, last of all, ``second=`` with another spelling: the features of the second moment (of the variance,
where it is estimated directly), as in ``poly:1,second=poly:2``.

Maps side by side (:class:`~policyrisk.features.Joint`) have a slash between them, as in
``tiles:10,dims=x/labels,dims=city``. ``labels`` of several coordinates are as many tables side by side.

``shrink=n`` pulls a label's values towards what they would be without it, as if n visits had been seen there:
the table's features are scaled by s = ε/√n, beside a constant where there is no other map, and the fit has
the ridge ε²/K for K episodes (:meth:`Spelling.ridge`), which is nothing, ε² = 1e-6 visits, for the others.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from policyrisk._core.arrays import Floats
from policyrisk._core.imports import is_name
from policyrisk.errors import InvalidInputError
from policyrisk.features import (
    Features,
    Fourier,
    FunctionFeatures,
    Joint,
    Labels,
    Polynomial,
    RadialBasis,
    Ranked,
    Tabular,
    TileCoding,
    from_sb3,
)
from policyrisk.passes.survey import VALUES, Survey

EXAMPLES = (
    "tiles:20x20",
    "tiles:8x8,tilings=4",
    "rbf:7x7",
    "fourier:3",
    "poly:2",
    "tabular",
    "labels",
    "auto",
)

_KINDS = {  # the options of each, and an example
    "tiles": (("tilings", "by", "dims"), "tiles:20x20,tilings=4"),
    "rbf": (("width", "by", "dims"), "rbf:7x7,width=0.2"),
    "fourier": (("total", "by", "dims"), "fourier:3"),
    "poly": (("by", "dims"), "poly:2"),
    "tabular": (("dims",), "tabular:30"),
    "labels": (("shrink", "dims"), "labels,dims=city,shrink=3"),
    "sb3": (("normalisation", "dims"), "sb3:model.zip,normalisation=stats.npz"),
}
_PATHS = re.compile(r"sb3:.*?\.zip(?=[,/]|$)|normalisation=.*?\.npz(?=[,/]|$)")  # a slash in one is its own
_SLASH = "\0"
_LARGEST = 10_000  # where one of the maps is dense: matrices of its square have to fit into memory
_LARGEST_SPARSE = 1_000_000  # tiles and tables: beyond LSTD's bound for dense sums these stay sparse
_SPARSE = {"tiles", "tabular", "labels"}
_SCALE = 1e-3  # ε


@dataclass(frozen=True)
class Spelling:
    """A feature map without its box.

    >>> spelling = Spelling.parse("tiles:10x5,tilings=2,dims=x+speed,second=poly:2")
    >>> spelling.kind, spelling.sizes, spelling.tilings, spelling.dims, str(spelling.second)
    ('tiles', (10, 5), 2, ('x', 'speed'), 'poly:2')
    >>> str(spelling)
    'tiles:10x5,tilings=2,dims=x+speed,second=poly:2'
    """

    kind: str
    sizes: tuple[int, ...] = ()  # tiles or centres per coordinate, order, degree, table size; one for all
    tilings: int = 1
    width: tuple[float, ...] = ()
    total: int | None = None
    by: str = ""  # "rank", or the box
    shrink: float = 0.0  # visits
    path: str = ""  # of a model
    normalisation: str = ""  # another path
    dims: tuple[str, ...] = ()
    others: tuple[Spelling, ...] = ()  # maps beside this one
    second: Spelling | None = None

    @classmethod
    def parse(cls, text: str) -> Spelling:
        """The spelling that a text stands for; anything else is an error that shows a right one."""
        first, found, rest = text.strip().partition(",second=")
        second = cls.parse(rest) if found else None
        if second is not None and second.second is not None:
            raise _wrong(text, "there can be one second= only", "poly:1,second=poly:2")
        maps = _PATHS.sub(lambda path: path[0].replace("/", _SLASH), first).split("/")
        one, *others = (cls._parse_one(part.replace(_SLASH, "/"), text) for part in maps)
        return replace(one, others=tuple(others), second=second)

    @classmethod
    def _parse_one(cls, part: str, text: str) -> Spelling:
        """One map of a text."""
        head, *options = part.strip().split(",")
        kind, colon, size = head.partition(":")
        if kind not in _KINDS and is_name(head):
            if options:
                raise _wrong(text, f"after a function stands nothing, not {options[0]!r}", head)
            return cls(kind=head)
        if kind not in _KINDS:
            raise InvalidInputError(
                f"features must be auto or one of {', '.join(_KINDS)}, or module:name of a function, got "
                f"{kind!r} in {text!r}; write for example {', '.join(EXAMPLES[:-1])}"
            )
        allowed, example = _KINDS[kind]
        values: dict[str, Any] = {}
        for option in options:
            name, equals, value = option.partition("=")
            if name not in allowed or not equals or not value or name in values:
                known = ", ".join(f"{known}=" for known in allowed)
                raise _wrong(text, f"after {kind} can stand each of {known} once, not {option!r}", example)
            values[name] = _value(name, value, text, example)
        if kind == "sb3":
            if not size.endswith(".zip"):
                raise _wrong(text, "sb3 needs the path of a model's zip file after a colon", example)
            return cls(kind=kind, path=size, **values)
        sizes = _counts(size, text, example) if colon else ()
        if not sizes and kind not in ("tabular", "labels"):
            raise _wrong(text, f"{kind} needs a size after a colon", example)
        if sizes and kind == "labels":
            raise _wrong(text, "labels take no size, they are as many as the data have", example)
        if len(sizes) > 1 and kind not in ("tiles", "rbf"):
            raise _wrong(text, f"{kind} takes one number", example)
        return cls(kind=kind, sizes=sizes, **values)

    def __str__(self) -> str:
        options = {
            "tilings": str(self.tilings) if self.tilings != 1 else "",
            "width": "x".join(f"{part:g}" for part in self.width),
            "total": "" if self.total is None else str(self.total),
            "by": self.by,
            "shrink": f"{self.shrink:g}" if self.shrink else "",
            "normalisation": self.normalisation,
            "dims": "+".join(self.dims),
        }
        size = self.path or "x".join(map(str, self.sizes))
        text = f"{self.kind}:{size}" if size else self.kind
        text += "".join(f",{name}={value}" for name, value in options.items() if value)
        text += "".join(f"/{other}" for other in self.others)
        return text if self.second is None else f"{text},second={self.second}"

    @property
    def maps(self) -> tuple[Spelling, ...]:
        """The maps that are side by side, one by one."""
        return replace(self, others=(), second=None), *self.others

    def normal(self, names: Sequence[str]) -> Spelling:
        """The one spelling of all that are the same map over states with these coordinate names.

        >>> spelled = "tiles:2", "tiles:2x2x2", "tiles:2,dims=0+y+z"
        >>> {str(Spelling.parse(text).normal(["x", "y", "z"])) for text in spelled}
        {'tiles:2x2x2'}
        """
        dims = self._dims(names)
        looked_at = tuple(range(len(names))) if dims is None else dims
        return replace(
            self,
            sizes=self._sizes(len(looked_at)) if self.kind in ("tiles", "rbf") else self.sizes,
            dims=() if looked_at == tuple(range(len(names))) else tuple(names[d] for d in looked_at),
            others=tuple(each.normal(names) for each in self.others),
            second=None if self.second is None else self.second.normal(names),
        )

    def ridge(self, episodes: int) -> float:
        """The ridge that the maps' ``shrink`` needs, in a fit to so many episodes; 0 where none has it."""
        maps = (*self.maps, *(() if self.second is None else self.second.maps))
        return _SCALE**2 / episodes if any(each.shrink for each in maps) else 0.0

    def check_functions(self) -> None:
        """Raise where a map is to be a function that cannot be imported."""
        for each in (*self.maps, *(() if self.second is None else self.second.maps)):
            if is_name(each.kind):
                each._function()

    def _function(self) -> FunctionFeatures:
        try:
            return FunctionFeatures.named(self.kind)
        except InvalidInputError as error:
            raise InvalidInputError(
                f"features must be auto or one of {', '.join(_KINDS)}, or module:name of a function, got "
                f"{self.kind!r} ({error}); correct it"
            ) from error

    def check_labels(self, names: Sequence[str], survey: Survey, labels: Iterable[int]) -> None:
        """Raise where a map takes the numbers of a label with more than two values for numbers.

        They are in no order that means anything. Tiles that leave every value a tile of its own are a table.
        """
        for each in (*self.maps, *(() if self.second is None else self.second.maps)):
            if each.kind in ("tabular", "labels") or is_name(each.kind):
                continue
            looked_at = list(range(len(names)) if (dims := each._dims(names)) is None else dims)
            for d in set(looked_at) & set(labels):
                values = survey.values[d]
                count = VALUES + 1 if values is None else values.size
                table = each.kind == "tiles" and each._sizes(len(looked_at))[looked_at.index(d)] >= count
                if count > 2 and not table:
                    others = tuple(names[k] for k in looked_at if k != d)
                    apart = f"{replace(each, dims=others)}/" if others and len(each.sizes) < 2 else ""
                    raise InvalidInputError(
                        f"features must not take {names[d]} for a number, which is a label whose numbers are "
                        f"in no order, got {str(each)!r}; give it a table of its own, as in "
                        f"{apart}labels,shrink=1,dims={names[d]}, or leave it out with dims="
                    )

    def build(
        self,
        names: Sequence[str],
        survey: Survey,
        low: Floats,
        high: Floats,
        beside: Spelling | None = None,
    ) -> Features:
        """The map over states with these coordinate names, in the box low to high (dim,) of them.

        ``beside`` is the other of two maps: where one of them is dense, so are the sums of both.
        """
        both = [each for each in (self, self.second, beside) if each is not None]
        kinds = {each.kind for spelling in both for each in spelling.maps}
        largest = _LARGEST_SPARSE if kinds <= _SPARSE else _LARGEST
        maps = [phi for each in self.maps for phi in each._build(names, survey, low, high, largest)]
        if any(each.shrink for each in self.maps) and all(each.kind == "labels" for each in self.maps):
            maps.insert(0, Polynomial(0, low, high))
        if len(maps) == 1:
            return maps[0]
        phi = Joint(maps)
        _check_size(phi.size, largest, self)
        return phi

    def _build(
        self, names: Sequence[str], survey: Survey, low: Floats, high: Floats, largest: int
    ) -> list[Features]:
        """One map, or a table for each label."""
        if is_name(self.kind):
            own = self._function()
            own(survey.visited[:1])  # for its size
            _check_size(own.size, largest, self)
            return [own]
        dims = self._dims(names)
        looked_at = list(range(len(names)) if dims is None else dims)
        count = len(looked_at)
        for what, given in (("sizes", self.sizes), ("widths", self.width)):
            if len(given) not in (0, 1, count):
                raise InvalidInputError(
                    f"features must have one of the {what} for each of the coordinates "
                    f"{', '.join(names[d] for d in looked_at)}, or one for all, got {len(given)} in "
                    f"{str(self)!r}; write for example {self.kind}:{'x'.join(['8'] * count)}, or choose "
                    "coordinates with dims="
                )
        if self.kind == "labels":
            scale = _SCALE / math.sqrt(self.shrink) if self.shrink else 1.0
            alone = len(names) == 1
            return [Labels(_values(survey, d, names), None if alone else (d,), scale) for d in looked_at]
        if self.kind == "sb3":
            network = from_sb3(self.path, normalisation=self.normalisation or None, dims=dims)
            return [network.whitened(survey.visited)]
        size = self.count(count) if self.sizes else _table_size(survey, looked_at[0], names, largest)
        _check_size(size, largest, self)
        if self.kind == "tabular":
            return [Tabular(size, dims)]
        box: dict[str, Any] = {"low": low[looked_at], "high": high[looked_at], "dims": dims}
        if self.by == "rank":
            unit = {"low": np.zeros(count), "high": np.ones(count), "dims": dims}
            states = np.vstack([survey.low, survey.visited, survey.high])  # which is a sample
            return [Ranked.of(self._on(unit), states, looked_at)]
        return [self._on(box)]

    def _on(self, box: dict[str, Any]) -> Features:
        """The map on a box: its low, high and dims."""
        sizes = self._sizes(len(box["low"]))
        if self.kind == "tiles":
            return TileCoding(bins=sizes, tilings=self.tilings, **box)
        if self.kind == "rbf":
            width = self.width if len(self.width) > 1 else self.width[0] if self.width else None
            return RadialBasis.grid(shape=sizes, width=width, **box)
        if self.kind == "fourier":
            return Fourier(order=sizes[0], total=self.total, **box)
        return Polynomial(degree=sizes[0], **box)

    def count(self, d: int) -> int:
        """How many features there are of d coordinates, or of cosines with a total at most."""
        sizes = self._sizes(d)
        if self.kind == "poly":
            return math.comb(sizes[0] + d, d)
        if self.kind == "fourier":
            cosines = math.prod(size + 1 for size in sizes)
            return cosines if self.total is None else min(cosines, math.comb(self.total + d, d))
        return self.tilings * math.prod(sizes)

    def _sizes(self, d: int) -> tuple[int, ...]:
        return self.sizes if len(self.sizes) > 1 else self.sizes * d

    def _dims(self, names: Sequence[str]) -> tuple[int, ...] | None:
        if not self.dims:
            if self.kind in ("tabular", "labels") and len(names) > 1:
                raise InvalidInputError(
                    f"{self.kind} must be told which coordinate, got {len(names)}: {', '.join(names)}; "
                    f"choose one, as in {self.kind},dims={names[0]}"
                )
            return None
        found = []
        for name in self.dims:
            if name in names:
                found.append(list(names).index(name))
            elif name.isdecimal() and int(name) < len(names):
                found.append(int(name))
            else:
                raise InvalidInputError(
                    f"dims must name coordinates of the state, {', '.join(names)}, got {name!r} in "
                    f"{str(self)!r}; write for example dims={'+'.join(names[:2])}"
                )
        if len(set(found)) < len(found) or (self.kind == "tabular" and len(found) > 1):
            alone = ", and one alone for tabular" if self.kind == "tabular" else ""
            raise InvalidInputError(
                f"dims must name each coordinate once{alone}, got "
                f"{'+'.join(self.dims)} in {str(self)!r}; write for example dims={names[0]}"
            )
        return tuple(found)


def data_box(survey: Survey) -> tuple[Floats, Floats, tuple[int, ...]]:
    """The box low, high (dim,) of the data, and the coordinates that never change.

    Where low = high there is nothing to divide, and the box begins there: u = 0, where a cosine is 1 and not
    a rounded 0 that would be taken for a feature.
    """
    constant = survey.low == survey.high
    high = np.where(constant, survey.high + np.maximum(1.0, np.abs(survey.high)), survey.high)
    return survey.low, high, tuple(np.flatnonzero(constant).tolist())


def _check_size(size: int, largest: int, spelling: Spelling) -> None:
    if size > largest:
        raise InvalidInputError(
            f"features must be at most {largest}, got {size} from {str(spelling)!r}, whose "
            "equations would not fit into memory; choose fewer, or fewer coordinates with dims="
        )


def _values(survey: Survey, d: int, names: Sequence[str]) -> Floats:
    values = survey.values[d]
    if values is None:
        why = f"more than {VALUES} of them" if survey.whole[d] else "not all of them whole"
        raise InvalidInputError(
            f"labels must be whole numbers or text, at most {VALUES} different ones, got {names[d]} from "
            f"{survey.low[d]:g} to {survey.reached[d]:g}, {why}; use tiles, as in tiles:20"
        )
    return values


def _table_size(survey: Survey, d: int, names: Sequence[str], largest: int) -> int:
    if not survey.whole[d] or survey.low[d] < 0 or survey.reached[d] >= largest:
        rest = "" if survey.whole[d] else ", not all of them whole"
        raise InvalidInputError(
            f"tabular must have states that are whole numbers from 0 to at most {largest - 1}, got "
            f"{names[d]} from {survey.low[d]:g} to {survey.reached[d]:g}{rest}; "
            "use tiles, as in tiles:20"
        )
    return int(survey.reached[d]) + 1


def _wrong(text: str, rule: str, example: str) -> InvalidInputError:
    return InvalidInputError(f"features are misspelled in {text!r}: {rule}; write for example {example}")


def _value(name: str, value: str, text: str, example: str) -> Any:
    if name == "dims":
        return tuple(value.split("+"))
    if name == "normalisation":
        return value
    if name == "by":
        if value != "rank":
            raise _wrong(text, f"by= takes rank, not {value!r}", example)
        return value
    if name == "width":
        try:
            widths = tuple(float(part) for part in value.split("x"))
        except ValueError:
            widths = ()
        if not widths or not all(0 < width < np.inf for width in widths):
            raise _wrong(text, f"width= takes positive numbers, not {value!r}", example)
        return widths
    if name == "shrink":
        try:
            shrink = float(value)
        except ValueError:
            shrink = 0.0
        if not 0 < shrink < np.inf:
            raise _wrong(text, f"shrink= takes a positive number of visits, not {value!r}", example)
        return shrink
    (number, *more) = _counts(value, text, example)
    if more:
        raise _wrong(text, f"{name}= takes one number, not {value!r}", example)
    return number


def _counts(text: str, whole: str, example: str) -> tuple[int, ...]:
    """Whole numbers from 1 with an x between them."""
    if not re.fullmatch(r"[1-9][0-9]{0,8}(x[1-9][0-9]{0,8})*", text, re.ASCII):
        raise _wrong(whole, f"sizes are whole numbers from 1 with an x between, not {text!r}", example)
    return tuple(int(part) for part in text.split("x"))
