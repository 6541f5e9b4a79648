"""Feature maps from their description in plain values: the way back from ``spec()``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from policyrisk._core.records import makes_features
from policyrisk.errors import InvalidInputError
from policyrisk.features.fourier import Fourier
from policyrisk.features.function import FunctionFeatures
from policyrisk.features.joint import Joint
from policyrisk.features.labels import Labels
from policyrisk.features.leaves import Leaves
from policyrisk.features.network import TorchFeatures
from policyrisk.features.polynomial import Polynomial
from policyrisk.features.protocol import Features
from policyrisk.features.radial import RadialBasis
from policyrisk.features.ranked import Ranked
from policyrisk.features.tabular import Tabular
from policyrisk.features.target import PolicyFunction
from policyrisk.features.tilecoding import TileCoding

__all__ = ["from_spec", "register"]


def _joint(maps: Sequence[Mapping[str, Any]]) -> Joint:
    return Joint([from_spec(each) for each in maps])


_KINDS: dict[str, Callable[..., Features]] = {
    "Fourier": Fourier,
    "FunctionFeatures": FunctionFeatures.of_spec,
    "Joint": _joint,
    "Labels": Labels,
    "Leaves": Leaves,
    "PolicyFunction": PolicyFunction.of_spec,  # type: ignore[dict-item]
    "Polynomial": Polynomial,
    "RadialBasis": RadialBasis,
    "RadialBasis.grid": RadialBasis.grid,
    "Ranked": Ranked.of_spec,
    "Tabular": Tabular,
    "TileCoding": TileCoding,
    "TorchFeatures": TorchFeatures.of_spec,
}


@makes_features
def from_spec(spec: Mapping[str, Any]) -> Features:
    """The feature map that ``spec`` describes, equal to the one whose ``spec()`` it is.

    >>> phi = TileCoding(low=[0, 0], high=[1, 1], bins=[50, 50])
    >>> from_spec(phi.spec()) == phi
    True
    """
    if not isinstance(spec, Mapping) or not isinstance(spec.get("kind"), str):
        raise InvalidInputError(
            f"spec must be a dictionary with the feature map's kind, got {spec!r}; pass what its spec() gave"
        )
    arguments = {name: value for name, value in spec.items() if name != "kind"}
    make = _KINDS.get(spec["kind"])
    if make is None:
        raise InvalidInputError(
            f"spec's kind must be one of {', '.join(sorted(_KINDS))}, got {spec['kind']!r}; "
            "for a class of your own call policyrisk.features.register(kind, the class) first"
        )
    try:
        return make(**arguments)
    except TypeError as error:
        raise InvalidInputError(
            f"spec must hold the arguments of {spec['kind']}, got {sorted(arguments)} ({error}); "
            "pass what spec() of the same version gave"
        ) from error


def register(kind: str, make: Callable[..., Features]) -> None:
    """Let :func:`from_spec` make your own maps: ``make(**values)`` for a spec of this kind with those values.

    >>> class Halves:
    ...     size = 2
    ...     def __call__(self, states):
    ...         upper = np.asarray(states) > 0.5
    ...         return np.column_stack([~upper, upper]).astype(float)
    ...     def spec(self):
    ...         return {"kind": "Halves"}
    >>> import numpy as np
    >>> register("Halves", Halves)
    >>> from_spec(Halves().spec())([0.2, 0.7])
    array([[1., 0.],
           [0., 1.]])
    """
    if not isinstance(kind, str) or not callable(make):
        raise InvalidInputError(
            f"register needs a kind and the class that makes it, got {kind!r} and {make!r}; "
            'pass for example "Mine", Mine'
        )
    if _KINDS.get(kind, make) is not make:
        raise InvalidInputError(f"kind must be new, got {kind!r}, which is taken; choose another name")
    _KINDS[kind] = make
