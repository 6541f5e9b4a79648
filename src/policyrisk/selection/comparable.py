"""What may be compared: policies by name, of one discount, that know the same state by the same names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from policyrisk._core.arrays import check_named, is_frame, name_some
from policyrisk._core.frames import Coordinates
from policyrisk.criteria import Criterion
from policyrisk.errors import InvalidInputError, MismatchError
from policyrisk.risk import RiskFunction


def checked_policies(policies: Mapping[str, Any], criterion: Criterion) -> Mapping[str, RiskFunction]:
    """RiskFunctions by name that a criterion can judge, of one discount."""
    check_named(policies, "policies", "RiskFunction", "LSTD(...).fit(data)")
    for name, risk in policies.items():
        if not isinstance(risk, RiskFunction):
            raise InvalidInputError(
                f"policies[{name!r}] must be a RiskFunction, got {type(risk).__name__}; "
                "pass what an estimator's fit gave"
            )
    if isinstance(criterion, type) or not hasattr(criterion, "assess"):
        raise InvalidInputError(
            f"criterion must be one such as Sharpe() or MeanMinusStd(1.0), got {criterion!r}; "
            "make an instance"
        )
    check_discounts({name: risk.provenance.discount for name, risk in policies.items()})
    return policies


def same_names(first: Sequence[str], second: Sequence[str]) -> bool:
    """Whether coordinates are called the same; ``state_0`` and so on are no names.

    >>> same_names(["x", "state_1"], ["x", "y"]), same_names(["x", "y"], ["y", "x"])
    (True, False)
    """
    pairs = enumerate(zip(first, second, strict=False))
    alike = all(a == b or {a, b} & {"state", f"state_{d}"} for d, (a, b) in pairs)
    return alike and len(first) == len(second)


def check_coordinates(policies: Mapping[str, Any], *states: Any) -> None:
    """Raise where an array of states would be one thing to one policy and another to the next."""
    if all(each is None or is_frame(each) for each in states):
        return
    known = {name: each.coordinates for name, each in policies.items() if each.coordinates is not None}
    for name, other in known.items():
        first = next(iter(known))
        mine = known[first]
        if not same_names(mine.names, other.names) or mine.labels != other.labels:
            raise MismatchError(
                "policies must know the state's coordinates by the same names to be compared from the same "
                f"states, got {_told(mine)} in {first} and {_told(other)} in {name}; pass the states as a "
                "data frame, or none, or evaluate data that have the same names"
            )


def _told(coordinates: Coordinates) -> str:
    """Coordinates in words, with what labels stand for."""
    labels = coordinates.labels
    return ", ".join(
        f"{name} ({name_some(labels[name], 5)})" if name in labels else name for name in coordinates.names
    )


def check_discounts(discounts: Mapping[str, float]) -> None:
    """Raise where returns are not of one kind."""
    if len(set(discounts.values())) > 1:
        raise MismatchError(
            f"policies must agree on the discount to be compared, got {discounts}; estimate them with one"
        )
