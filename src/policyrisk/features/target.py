"""A target policy π, and the features φ̄(x) = Σ_a π(a|x) φ(x, a) of states under it.

π is a table of probabilities (states, actions) for states 0, 1, …, a function from states (n, dim) to
probabilities (n, actions) or to actions (n,), by number or by name, or an object with
``sample(states, seed)`` for continuous actions. A sampled π is replaced by draws of weight 1/m at every
state, which depend on the state and the seed alone: whoever asks, and in whatever order, meets the same
actions.

An action is *covered* where its features have data. π is restricted to the covered actions and scaled to a
sum of 1; where no action is covered, φ̄ = 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

from policyrisk._core.arrays import (
    Bools,
    Floats,
    Matrix,
    as_actions,
    as_array,
    as_count,
    as_distributions,
    as_floats,
    as_states,
    name_some,
    readonly,
)
from policyrisk._core.records import record
from policyrisk.errors import InvalidInputError, MismatchError
from policyrisk.features.actions import ActionArray, ActionBlocks, ActionMap, ActionRows
from policyrisk.features.protocol import given_policy, name_of, register


@dataclass(frozen=True)
class PolicyFunction:
    """A policy that is a function of states, or has ``sample``; files hold its name alone."""

    function: Any
    name: str
    actions: tuple[str, ...] = ()  # the names that it may answer with, in the order of their numbers

    @classmethod
    def of(cls, function: Any, actions: Sequence[str] = ()) -> PolicyFunction:
        """A caller's policy with a name to know it by."""
        return cls(function, name_of(function), tuple(actions))

    def spec(self) -> dict[str, Any]:
        """Its name, and those of the actions."""
        return {
            "kind": "PolicyFunction",
            "name": self.name,
            **({"actions": [*self.actions]} if self.actions else {}),
        }

    @classmethod
    def of_spec(cls, name: str, actions: Sequence[str] = ()) -> PolicyFunction:
        """A saved policy, with its function if that is on offer; without it, it cannot be called."""
        policy = given_policy()
        if policy is None:
            return cls(None, name, tuple(actions))
        given = cls.of(policy, actions)
        if given.name != name:
            raise MismatchError(
                f"policy must be the one that was estimated, {name}, got {given.name}; pass that one"
            )
        return given

    def given(self) -> Any:
        """The function; an error where it has not been given again."""
        if self.function is None:
            raise InvalidInputError(
                f"policy must be given again, since the file holds no code but the name {self.name!r} alone; "
                "load it with RiskFunction.load(path, policy=...)"
            )
        return self.function


@record(policy="states actions: finite", maps="k", known="k")
@dataclass(frozen=True, eq=False)
class Target:
    """π, and which features of which maps have data behind them (all, where ``maps`` is empty)."""

    policy: Floats | PolicyFunction  # probabilities (states, actions), or a function
    actions: int  # how many there are; 0 where they are continuous
    draws: int = 0  # m, where they are continuous
    seed: int = 0  # of the draws
    maps: tuple[ActionMap, ...] = field(default=())
    known: tuple[Bools, ...] = field(default=())  # of each map, (size,)

    @classmethod
    def of(cls, policy: Any, actions: Any, draws: int, seed: int, names: Sequence[str] = ()) -> Target:
        """A caller's policy, checked as far as can be before it meets states; its actions may have names."""
        if isinstance(policy, Target):
            return policy
        if hasattr(policy, "sample") and not isinstance(policy, np.ndarray):
            if actions is not None:
                raise InvalidInputError(
                    f"actions must be None for a policy with sample, whose actions are continuous, got "
                    f"{actions!r}; leave it out, or pass a function that gives probabilities"
                )
            drawn, first = as_count(draws, "draws", 2), as_count(seed, "seed", 0, 2**63 - 1)
            return cls(PolicyFunction.of(policy), 0, drawn, first)
        if callable(policy):
            if actions is None:
                raise InvalidInputError(
                    "actions must be how many actions there are where policy is a function, got None; pass "
                    "actions=, the number of columns that it gives"
                )
            return cls(PolicyFunction.of(policy, names), as_count(actions, "actions", 1))
        table = _as_table(policy, None if actions is None else as_count(actions, "actions", 1))
        return cls(table, table.shape[1])

    @property
    def name(self) -> str:
        """What to call it."""
        if isinstance(self.policy, PolicyFunction):
            return self.policy.name
        return f"a table of {' × '.join(map(str, self.policy.shape))}"

    @property
    def _function(self) -> Any:
        """The policy itself, where it is a function."""
        if isinstance(self.policy, PolicyFunction):
            return self.policy.given()
        raise InvalidInputError(f"policy must be a function or have sample, got {self.name}; pass one")

    def covering(self, maps: Sequence[ActionMap], known: Sequence[Bools]) -> Target:
        """The same policy on the actions alone whose features are known in all the maps."""
        return replace(self, maps=tuple(maps), known=tuple(known))

    def candidates(self, states: npt.NDArray[Any]) -> ActionArray:
        """The actions that it may choose: (actions,), or (n, m, k) where they are continuous."""
        if self.actions:
            return np.arange(self.actions)
        policy, drawn = self._function, []
        for x in np.ascontiguousarray(states, dtype=np.float64) + 0.0:  # so that −0 is 0
            digest = blake2b(x.tobytes(), digest_size=7, key=self.seed.to_bytes(8, "little")).digest()
            drawn.append(policy.sample(np.tile(x, (self.draws, 1)), int.from_bytes(digest, "little")))
            if np.shape(drawn[-1])[:1] != (self.draws,) or np.ndim(drawn[-1]) != 2:
                raise InvalidInputError(
                    f"policy.sample must give an action (k,) for each of {self.draws} states, got shape "
                    f"{np.shape(drawn[-1])}; return an array of shape (n, k)"
                )
        return as_floats(drawn, "policy.sample's actions", (len(states), self.draws, None))

    def probabilities(self, states: npt.NDArray[Any]) -> Floats:
        """π at the candidates, of shape (n, m), whatever is covered."""
        n = len(states)
        if not self.actions:
            return np.full((n, self.draws), 1.0 / self.draws)
        if isinstance(self.policy, np.ndarray):
            index = np.asarray(states)[:, 0]
            wrong = (index != np.floor(index)) | (index < 0) | (index >= len(self.policy))
            if np.shape(states)[1] != 1 or wrong.any():
                some = index[wrong] if wrong.any() else index
                raise InvalidInputError(
                    f"states must be whole numbers from 0 to {len(self.policy) - 1} for a policy that is "
                    f"a table, got {name_some(some, 3)}; pass a function of states (n, dim) instead"
                )
            table: Floats = self.policy[index.astype(np.int64)]
            return table
        if n == 0:
            return np.zeros((0, self.actions))
        given = self._function(np.asarray(states, dtype=np.float64))
        chosen = chosen_actions(given, n, self.policy.actions)
        if chosen is None:
            return as_distributions(given, "policy(states)", (n, self.actions))
        one_hot: Floats = np.eye(self.actions)[as_actions(chosen, "policy(states)", n, self.actions)]
        return one_hot

    def weights(self, states: npt.NDArray[Any], candidates: ActionArray) -> tuple[Floats, Floats]:
        """π over what is covered, (n, m), of sum 1 or, where nothing is, 0; and π's share of it, (n,)."""
        pi = self.probabilities(states)
        if not self.known:
            return pi, np.ones(len(states))
        covered = np.ones(pi.shape, dtype=np.bool_)
        for each, known in zip(self.maps, self.known, strict=True):
            if not known.all():
                covered &= each.rows(states, candidates).known(known)
        return renormalised(pi, covered)

    def chance(self, states: npt.NDArray[Any], actions: ActionArray) -> Floats:
        """π(a_i|x_i), of shape (n,), for whole-numbered actions (n,)."""
        pi = self.probabilities(states)
        taken: Floats = pi[np.arange(len(states)), actions]
        return taken

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Target)
            and np.array_equal(np.asarray(self.policy), np.asarray(other.policy))
            and (self.actions, self.draws, self.seed) == (other.actions, other.draws, other.seed)
            and len(self.known) == len(other.known)
            and all(np.array_equal(a, b) for a, b in zip(self.known, other.known, strict=True))
        )

    def __hash__(self) -> int:
        return hash((self.actions, self.draws, self.seed))


def chosen_actions(answer: Any, n: int, names: Sequence[str]) -> Any:
    """The actions (n,) that a policy answers for n states, numbers in place of names; None where it does not.

    >>> chosen_actions(["sell", "buy"], 2, ["buy", "sell"]), chosen_actions([[0.5, 0.5]], 1, [])
    (array([1, 0]), None)
    """
    if np.shape(answer) != (n,):
        return None
    if not all(isinstance(each, str) for each in answer):
        return answer
    known = {name: k for k, name in enumerate(names)}
    unknown = next((each for each in answer if each not in known), None)
    if unknown is not None:
        rule = (
            f"be names of the log's actions, {', '.join(names)}" if names else "be numbers or probabilities"
        )
        raise InvalidInputError(f"policy(states) must {rule}, got {str(unknown)!r}; correct the function")
    return np.array([known[each] for each in answer], dtype=np.int64)


def renormalised(pi: Floats, covered: Bools) -> tuple[Floats, Floats]:
    """Probabilities (n, m) on what is covered alone, scaled to a sum of 1 again, and the share that it had.

    >>> renormalised(np.array([[0.5, 0.25, 0.25]]), np.array([[True, True, False]]))
    (array([[0.66666667, 0.33333333, 0.        ]]), array([0.75]))
    """
    left = np.where(covered, pi, 0.0)
    share, total = left.sum(axis=1), pi.sum(axis=1)
    scale = np.divide(total, share, out=np.zeros_like(share), where=share > 0)
    whole = (left == pi).all(axis=1)  # nothing is changed there, to the bit
    return np.where(whole[:, None], pi, left * scale[:, None]), np.where(whole, 1.0, share / total)


@record
@dataclass(frozen=True, eq=False)
class PolicyFeatures:
    """φ̄: features of states, the average of those of states and actions under the target.

    >>> from policyrisk.features import Tabular
    >>> pi = Target.of([[0.25, 0.75], [1.0, 0.0]], actions=None, draws=0, seed=0)
    >>> PolicyFeatures(ActionBlocks(Tabular(2), 2), pi)([0, 1]).toarray()
    array([[0.25, 0.  , 0.75, 0.  ],
           [0.  , 1.  , 0.  , 0.  ]])
    """

    map: ActionMap
    target: Target

    def __post_init__(self) -> None:
        if isinstance(self.map, ActionBlocks) and self.map.actions != self.target.actions:
            raise InvalidInputError(
                f"features must have a block for each of the policy's {self.target.actions or 'continuous'} "
                f"actions, got {self.map.actions}; pass the same number of actions to both"
            )

    @property
    def size(self) -> int:
        """The number of features."""
        return self.map.size

    def __call__(self, states: npt.ArrayLike) -> Matrix:
        """φ̄(states), of shape (n, size)."""
        array = as_states(states)
        rows, candidates = self.rows(array)
        return rows.combined(self.target.weights(array, candidates)[0])

    def rows(self, states: npt.NDArray[Any]) -> tuple[ActionRows, ActionArray]:
        """The features of all candidates at some states, and these."""
        candidates = self.target.candidates(states)
        return self.map.rows(states, candidates), candidates

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PolicyFeatures) and self.map == other.map and self.target == other.target

    def __hash__(self) -> int:
        return hash((self.map.size, self.target))

    def __repr__(self) -> str:
        return f"PolicyFeatures({self.map!r}, {self.target.name})"


def spread_about(weights: Floats, values: Floats) -> Floats:
    """weights_ij (Q_ij − Σ_j weights_ij Q_ij), of shape (n, m): Σ_j of it times Q_ij is Q's variance under π.

    >>> spread_about(np.array([[0.5, 0.5]]), np.array([[1.0, 3.0]]))
    array([[-0.5,  0.5]])
    """
    total = weights.sum(axis=1)
    mean = np.divide((weights * values).sum(axis=1), total, out=np.zeros_like(total), where=total > 0)
    out: Floats = weights * (values - mean[:, None])
    return out


def _as_table(policy: object, actions: int | None) -> Floats:
    array = as_array(
        policy, "policy", "probabilities of shape (states, actions), or an action for each state"
    )
    if array.ndim == 1:
        whole = array.dtype.kind in "iu" and array.size > 0 and array.min() >= 0
        if not whole or actions is None or array.max() >= actions:
            raise InvalidInputError(
                f"policy of shape {array.shape} must hold an action from 0 to actions − 1 for each state, as "
                f"ints, with actions= given, got {name_some(array, 4)} and actions={actions}; pass both"
            )
        one_hot: Floats = np.eye(actions)[array]
        return one_hot
    return readonly(as_distributions(array, "policy", (None, actions)).copy())


register("PolicyFunction", PolicyFunction)  # type: ignore[arg-type]
