"""What may be compared: policies by name, of one discount, that know the same state by the same names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy.typing as npt

from policyrisk._core.arrays import is_frame, name_some
from policyrisk._core.frames import Coordinates
from policyrisk.criteria import Criterion, CVaR, Quantile, no_distribution
from policyrisk.errors import InvalidInputError, MismatchError
from policyrisk.returns import RecordedReturns
from policyrisk.returns.chain_tails import ChainTails
from policyrisk.returns.start_distribution import StartDistribution
from policyrisk.risk import RiskFunction


def risks_of(policies: Mapping[str, Any]) -> dict[str, RiskFunction]:
    """The risk functions of policies by name, which may be evaluations, of one discount."""
    risks = {name: _risk(each) for name, each in policies.items()}
    for name, risk in risks.items():
        if risk is None:
            raise InvalidInputError(
                f"policies[{name!r}] must be a RiskFunction or an Evaluation, got "
                f"{type(policies[name]).__name__}; pass what an estimator's fit or evaluate gave"
            )
    found = {name: risk for name, risk in risks.items() if risk is not None}
    check_discounts({name: risk.provenance.discount for name, risk in found.items()})
    return found


def tails_of(
    policies: Mapping[str, Any], starts: npt.ArrayLike | None, criterion: Quantile | CVaR
) -> dict[str, StartDistribution]:
    """The returns' distributions over starts; without starts over each one's own, by its returns if known."""
    found = {name: _tail(each, starts, criterion) for name, each in policies.items()}
    check_discounts({name: discount for name, (_, discount) in found.items()})
    return {name: distribution for name, (distribution, _) in found.items()}


def _tail(policy: Any, starts: npt.ArrayLike | None, criterion: Criterion) -> tuple[StartDistribution, float]:
    """The distribution of one, and its discount."""
    recorded = policy if isinstance(policy, RecordedReturns) else _recorded(policy)
    if starts is None and recorded is not None:
        return recorded, recorded.discount
    function = getattr(policy, "distribution", policy)
    if not hasattr(function, "over"):
        raise no_distribution(criterion, policy)
    if starts is None and not hasattr(policy, "survey"):
        raise InvalidInputError(f"{criterion!r} is compared over starts, got no starts; pass states")
    if starts is None and isinstance(function, ChainTails):
        return function.over(), function.discount
    return function.over(policy.survey.starts if starts is None else starts), function.discount


def _recorded(policy: Any) -> RecordedReturns | None:
    """The returns behind an estimate; None where they are not known, or where an episode was cut off."""
    risk = _risk(policy)
    done = None if risk is None else risk.completed
    if risk is None or done is None or done.cut_off or done.unknown or done.count < 2:
        return None
    discount = risk.provenance.discount
    clustered = done.clusters is not None  # the observed returns do not say which
    if done.observed is not None and not clustered:
        return RecordedReturns(done.observed[:, 0] * risk.unit, discount)
    if hasattr(policy, "survey") and policy.target is None:  # a uniform sample
        return RecordedReturns(policy.survey.returns[0], discount, policy.survey.clusters)
    return None


def _risk(policy: Any) -> RiskFunction | None:
    """The estimate that a policy is, or has; None where it has none."""
    found = getattr(policy, "risk", policy)
    return found if isinstance(found, RiskFunction) else None


def withdrawn(policy: Any) -> bool:
    """Whether an evaluation has withdrawn its intervals, since the log cannot tell."""
    risk = _risk(policy)
    return risk is not None and risk.error_bars is not None and risk.error_bars.withdrawn


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
