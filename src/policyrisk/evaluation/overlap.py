"""How much a log and a target policy have in common, and what of the target was not logged."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from scipy.spatial import KDTree

from policyrisk._core.arrays import Bools, Floats, Ints
from policyrisk._core.records import Additive, add_each, record
from policyrisk.data import Source, Trajectories, batches
from policyrisk.features.target import Target
from policyrisk.passes.survey import Survey

NEAREST = 50  # logged steps around a state
LOOKED_AT = 2_000  # visited states
NAMED = 3  # actions and states that are named


@dataclass(frozen=True)
class NotLogged:
    """The share of the target's probability at visited states on actions that were not logged there."""

    share: float
    somewhere: float  # the share of the states where there is any
    actions: tuple[tuple[int, float], ...]  # those that most of it is on, with their shares
    places: tuple[tuple[tuple[float, ...], float], ...]  # states with the most of it, and its share there

    @classmethod
    def of(cls, target: Target, states: Floats, count: Ints, logged: Bools) -> NotLogged:
        """At states (n, dim) with their counts (n,); ``logged`` (n, actions) says what was logged there."""
        gone = np.where(logged, 0.0, target.probabilities(states))
        at_state, by_action = gone.sum(axis=1), count @ gone / count.sum()
        actions = np.argsort(-by_action, kind="stable")[:NAMED].tolist()
        places = np.argsort(-at_state * count, kind="stable")[:NAMED].tolist()
        return cls(
            float(by_action.sum()),
            float(count @ (at_state > 0)) / float(count.sum()),
            tuple((a, float(by_action[a])) for a in actions if by_action[a] > 0),
            tuple((tuple(states[k].tolist()), float(at_state[k])) for k in places if at_state[k] > 0),
        )

    @classmethod
    def near(cls, target: Target, sample: Trajectories, survey: Survey) -> NotLogged:
        """What none of the NEAREST sampled steps took, in coordinates of span 1: no features are in it."""
        assert sample.actions is not None
        span = np.where(survey.high > survey.low, survey.high - survey.low, 1.0)
        steps = np.asarray(sample.states[sample.visited_rows], dtype=np.float64) / span
        states, count = looked_at(survey)
        _, nearest = KDTree(steps).query(states / span, k=min(NEAREST, len(steps)))
        taken = sample.actions[np.asarray(nearest).reshape(len(states), -1)]
        logged = np.zeros((len(states), target.actions), dtype=np.bool_)
        np.put_along_axis(logged, taken, True, axis=1)
        return cls.of(target, states, count, logged)


def looked_at(survey: Survey) -> tuple[Floats, Ints]:
    """Different visited states (n, dim), of at most LOOKED_AT, and how often each is among these (n,)."""
    visited = survey.visited
    states, count = np.unique(visited[:: -(-len(visited) // LOOKED_AT)], axis=0, return_counts=True)
    return states, count


@record
@dataclass(frozen=True)
class Overlap(Additive):
    """How much a log and the target have in common; it adds.

    With propensities μ, the weights ρ_t = π(a_t|x_t) / μ_t make the log's steps those of the target, and
    their products over an episode its episodes: of n weights w, (Σ w)² / Σ w² are left in effect.
    """

    steps: int = 0
    episodes: int = 0
    agreed: float = 0.0  # Σ π(a_t|x_t)
    propensities: int = 0  # steps whose propensity is known
    step_weights: tuple[float, float] = (0.0, 0.0)  # Σ ρ and Σ ρ²
    episode_weights: tuple[float, float] = (0.0, 0.0)
    least: float = math.inf  # return to go
    most: float = -math.inf
    least_reward: float = math.inf
    most_reward: float = -math.inf

    _rules: ClassVar = {
        **dict.fromkeys(("step_weights", "episode_weights"), add_each),
        **dict.fromkeys(("least", "least_reward"), min),
        **dict.fromkeys(("most", "most_reward"), max),
    }

    @classmethod
    def over(cls, source: Source, target: Target, discount: float) -> Overlap:
        """The overlap of a source of episodes, in one pass."""
        return sum((cls._of(batch, target, discount) for batch in batches(source) if len(batch)), cls())

    @classmethod
    def _of(cls, data: Trajectories, target: Target, discount: float) -> Overlap:
        assert data.actions is not None
        pi, to_go = target.chance(data.states[data.visited_rows], data.actions), data.returns_to_go(discount)
        found = cls(
            data.transitions,
            len(data),
            float(pi.sum()),
            least=float(to_go.min()),
            most=float(to_go.max()),
            least_reward=float(data.rewards.min()),
            most_reward=float(data.rewards.max()),
        )
        if data.propensities is None:
            return found
        rho = pi / data.propensities
        with np.errstate(over="ignore"):
            w = np.multiply.reduceat(rho, data.offsets[:-1])
            return replace(
                found,
                propensities=data.transitions,
                step_weights=(float(rho.sum()), float(rho @ rho)),
                episode_weights=(float(w.sum()), float(w @ w)),
            )

    def to_dict(self) -> dict[str, Any]:
        """What notes hold: shares of the steps and episodes, None where propensities are not known."""
        known = self.propensities == self.steps
        return {
            "agreed": self.agreed / self.steps,
            "propensities": known,
            "effective_steps": _effective(*self.step_weights) / self.steps if known else None,
            "effective_episodes": _effective(*self.episode_weights) if known else None,
            **{name: getattr(self, name) for name in ("least", "most", "least_reward", "most_reward")},
        }


def _effective(total: float, squares: float) -> float:
    return total**2 / squares if 0 < squares < math.inf else 0.0
