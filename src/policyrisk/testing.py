"""Assertions about policies, for pytest and the like."""

from __future__ import annotations

from typing import Any

from policyrisk.criteria import Criterion
from policyrisk.evaluation.gate import Gate, gate

__all__ = ["assert_not_riskier"]


def assert_not_riskier(
    new: Any,
    baseline: Any,
    criterion: Criterion | str = "cvar:0.05",
    margin: float = 0.0,
    level: float = 0.95,
    *,
    decided: bool = False,
    **options: Any,
) -> Gate:
    """Fail if a new policy is worse than a baseline by more than a margin: :func:`policyrisk.gate`.

    Parameters
    ----------
    new, baseline, criterion, margin, level
        As those of the gate.
    decided
        Whether "undecided" fails as well.
    **options
        The gate's others, such as ``by="region"``.

    Returns
    -------
    Gate
        The gate's record.

    Raises
    ------
    AssertionError
        The new policy is worse; its text is the gate's line.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> old, new = rng.normal(10, 1, 300), rng.normal(11, 1, 300)
    >>> assert_not_riskier(new, old, criterion="mean").decision
    'passed'
    """
    found = gate(new, baseline, criterion, margin, level, **options)
    if found.decision == "worse" or (decided and found.decision == "undecided"):
        raise AssertionError(str(found))
    return found
