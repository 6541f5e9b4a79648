"""A decision process under a policy: every action's matrix and rewards, checked and mixed into branches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from policyrisk._core.arrays import Floats, as_array, as_floats, name_some
from policyrisk.errors import InvalidInputError
from policyrisk.markov.branches import (
    ActionBranches,
    Branches,
    Sparse,
    as_rewards,
    as_transition_matrix,
    from_matrix,
)


def under_policy(
    P: object,
    r: object,
    policy: object,
    terminal_rewards: object,
    name: str = "r",
    at_end: str = "terminal_rewards",
) -> Branches:
    """The branches of a policy's chain; the arguments are those of :func:`MarkovChain.from_mdp`."""
    parts = by_action(P, r, terminal_rewards, name, at_end)
    return ActionBranches.of(parts).under(as_policy(policy, parts[0].n, len(parts)))


def by_action(
    P: object, r: object, terminal_rewards: object, name: str = "r", at_end: str = "terminal_rewards"
) -> list[Branches]:
    """The branches of every action."""
    matrices = [as_transition_matrix(Pa, f"P[{a}]") for a, Pa in enumerate(_as_sequence(P))]
    n, actions = matrices[0].shape[0], len(matrices)
    for a, matrix in enumerate(matrices):
        if matrix.shape[0] != n:
            raise InvalidInputError(
                f"P[{a}] must have shape ({n}, {n}) like P[0], got {matrix.shape}; "
                "give every action a matrix over the same states"
            )
    return [
        from_matrix(matrix, rewards, terminal_rewards, at_end)
        for matrix, rewards in zip(matrices, _rewards_by_action(r, n, actions, name), strict=True)
    ]


def _as_sequence(P: object) -> Sequence[Any]:
    if sp.issparse(P) or not isinstance(P, Sequence | np.ndarray):
        raise InvalidInputError(
            f"P must be (actions, n, n) or a sequence of matrices, one per action, got {type(P).__name__}; "
            "use MarkovChain(P, r) for a chain without actions"
        )
    if (isinstance(P, np.ndarray) and P.ndim != 3) or len(P) == 0:
        raise InvalidInputError(
            f"P must be (actions, n, n) with at least one action, got {np.shape(P)}; "
            "use MarkovChain(P, r) for a chain without actions"
        )
    shapes = _dense_shapes(list(P))
    if len(shapes) == 1 and len(shape := shapes.pop()) == 2 and shape[0] != shape[1] == len(P):
        n, actions = len(P), shape[0]
        raise InvalidInputError(
            f"P must be (actions, n, n), got ({n}, {actions}, {n}), whose axes are swapped: (x, a, y), as "
            "QuantEcon has them; pass numpy.swapaxes(P, 0, 1)"
        )
    return list(P)


def _dense_shapes(P: Sequence[Any] | npt.NDArray[Any]) -> set[tuple[int, ...]]:
    """The different shapes of the parts; none where one of them is sparse or ragged."""
    try:
        return set() if any(sp.issparse(part) for part in P) else {np.shape(part) for part in P}
    except Exception:
        return set()  # which is said elsewhere


def _rewards_by_action(r: Any, n: int, actions: int, name: str) -> list[Floats | Sparse]:
    """One (n,) or (n, n) reward array per action."""
    if isinstance(r, list | tuple) and len(r) and all(sp.issparse(part) for part in r):
        if len(r) != actions:
            raise InvalidInputError(
                f"{name} must hold {actions} matrices, one per action, got {len(r)}; add some"
            )
        return [as_rewards(part, n, name) for part in r]
    if not sp.issparse(r):
        r = as_array(
            r, name, f"numbers of shape ({n},), ({n}, {actions}), ({actions}, {n}, {n}) or ({n}, {n})"
        )
    shape = r.shape
    if len(shape) == 3:
        table = as_floats(r, name, (actions, n, n))
        return [table[a] for a in range(actions)]
    if shape == (n, actions) and actions != n:
        table = as_floats(r, name, (n, actions))
        return [np.ascontiguousarray(table[:, a]) for a in range(actions)]
    if shape == (n, n) and actions == n:
        raise InvalidInputError(
            f"{name} of shape ({n}, {n}) is ambiguous with {actions} actions: (x, a) or (x, y); "
            "pass (x, y) as (actions, n, n)"
        )
    if shape not in ((n,), (n, n)):
        raise InvalidInputError(
            f"{name} must have shape ({n},), ({n}, {actions}), ({actions}, {n}, {n}) or ({n}, {n}), got "
            f"{shape}; put states first and actions second in (x, a)"
        )
    return [as_rewards(r, n, name)] * actions


def as_policy(policy: Any, n: int, actions: int) -> Floats:
    """The policy as probabilities (n, actions)."""
    array = as_array(policy, "policy", f"probabilities of shape ({n}, {actions}) or {n} ints")
    if array.ndim == 1:
        if (
            array.dtype.kind not in "iu"
            or array.shape != (n,)
            or not np.isin(array, np.arange(actions)).all()
        ):
            raise InvalidInputError(
                f"policy must hold {n} actions from 0 to {actions - 1} as ints, got {array.dtype} of shape "
                f"{array.shape}: {name_some(array, 4)}; give one action per state"
            )
        one_hot: Floats = np.eye(actions)[array]
        return one_hot
    table = as_floats(policy, "policy", (n, actions))
    wrong = np.flatnonzero((table < 0).any(axis=1) | (np.abs(table.sum(axis=1) - 1.0) > 1e-9))
    if wrong.size:
        raise InvalidInputError(
            f"policy's rows must be distributions over {actions} actions, got {table[wrong[0]].tolist()} in "
            f"row {name_some(wrong)}; make every entry at least 0 and every row sum to 1"
        )
    return table
