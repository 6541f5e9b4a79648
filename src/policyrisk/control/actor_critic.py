"""Improving a policy from simulated episodes: the actor-critic of the paper's conclusion.

Every iteration runs episodes of the policy π_w, fits the critic J̃, M̃ to them, and takes a step of w along the
sampled gradient of a criterion f(m, v). With R_<t = Σ_{s<t} γ^s r_s and

    δ^J_t = r_t + γ J̃(x_{t+1}) − J̃(x_t)
    δ^M_t = r_t² + 2γ r_t J̃(x_{t+1}) + γ² M̃(x_{t+1}) − M̃(x_t)

the gradients of the mean J_0 and of the second moment M_0 of the return are

    ∇J_0 = E Σ_t γ^t ∇log π_t δ^J_t
    ∇M_0 = E Σ_t ∇log π_t (γ^{2t} δ^M_t + 2γ^t R_<t δ^J_t)

where the critic is exact, and ∇V_0 = ∇M_0 − 2 J_0 ∇J_0. So a step counts for the factor

    γ^t δ^J_t (∂f/∂m + 2 ∂f/∂v (R_<t − J_0)) + γ^{2t} δ^M_t ∂f/∂v

of ∇log π_t, in which J_0 is the mean return of the *other* episodes: a product of two estimates from the same
episode would be biased. An episode that was cut off is completed by the critic, from the last of its states
that the critic knows; one that has no such state is left out, with a warning that counts them.

A critic that is not exact biases the gradient, the more the worse it follows how J and V change from one
state to the next: give it features that do. Where V is simpler than M, use ``LSTD(…, variance="direct")``.
With ``lam`` above 0 what the critic says of x_{t+1} counts for less, and what came after it for the rest:
J̃(x_{t+1}) and M̃(x_{t+1}) above become

    J̃ + λ (r + γ J^λ − J̃)   and   M̃ + λ (r² + 2γ r J^λ + γ² M^λ − M̃)

with r the next step's reward, and J^λ, M^λ the same of the state after it. λ = 1 has no bias whatever the
critic, and more noise: it is for simulators that make many episodes.

With ``groups``, tiles of the start states, the criterion is averaged over the groups
(:mod:`policyrisk.control.trials`): J_0, ∂f/∂m and ∂f/∂v are then those of the episode's group.

Steps are Adam's (Kingma and Ba 2015), the step size falling linearly to 0 over the iterations.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypedDict

import numpy as np
import numpy.typing as npt

from policyrisk._core.arrays import (
    Floats,
    Ints,
    Seed,
    as_count,
    as_number,
    check_choice,
    check_shape,
    freeze,
)
from policyrisk._core.devices import Device
from policyrisk._core.progress import ProgressBar
from policyrisk._core.random import keys
from policyrisk._core.text import Readable, TextTable, number
from policyrisk.control import _policy_kernels
from policyrisk.control.trials import GroupedReturns, Run, Starts, player
from policyrisk.data import Trajectories
from policyrisk.errors import GivenUpWarning, InvalidInputError, MismatchError, SolverError
from policyrisk.features import TileCoding
from policyrisk.lstd import LSTD
from policyrisk.passes.checkpoint import Checkpoint, as_resume
from policyrisk.risk.completed import cut_back
from policyrisk.risk.support import LOST_MOST

COLUMNS = ("mean", "mean_error", "std", "std_error", "value", "value_error")
_FIRST, _SECOND = 0.9, 0.99  # Adam's memory of the gradient and of its square
_UNKNOWN = 0.1  # of the steps: more that the critic says nothing about are an error
_WORK = "actor-critic"
_KEPT = 3  # iterations whose policies are candidates for the best


class Actor(Protocol):
    """A policy with parameters whose probabilities have a gradient."""

    @property
    def parameters(self) -> Floats:
        """In one row."""

    def with_parameters(self, parameters: Floats) -> Any:
        """The policy with other parameters."""

    def log_gradient(self, states: npt.ArrayLike, actions: Any, factors: Floats) -> Floats:
        """Σ_t factors_t ∇log π(a_t|x_t)."""

    def __call__(self, states: npt.ArrayLike) -> Floats:
        """π(a|x), of shape (n, actions), of policies that choose among some."""


@dataclass(frozen=True, eq=False)
class ActorCriticResult(Readable):
    """An improved policy, and how the iterations that led to it went."""

    policy: Any
    criterion: Any
    history: Floats  # (iterations, 6): mean, std and value of the criterion, each with its standard error
    candidates: tuple[tuple[int, Any], ...] = ()  # policies of the best iterations, with how many led to them

    def __post_init__(self) -> None:
        freeze(self)

    def curve(self, of: str = "value") -> tuple[Ints, Floats]:
        """The learning curve: the iterations' numbers, from 1, and one of the history's columns."""
        check_choice(of, "of", COLUMNS)
        return np.arange(1, len(self.history) + 1), self.history[:, COLUMNS.index(of)]

    def _blocks(self) -> list[str | TextTable]:
        """The learning curve in ten lines."""
        ends = np.unique(np.linspace(1, len(self.history), min(10, len(self.history))).round().astype(int))
        rows = [
            [str(end), *(f"{number(row[i])} ± {number(row[i + 1], 2)}" for i in (0, 2, 4))]
            for end, row in zip(ends.tolist(), self.history[ends - 1], strict=True)
        ]
        return [TextTable(["iteration", "mean", "std", "value"], rows)]


@dataclass(frozen=True, eq=False)
class ActorCritic:
    """Steps along the sampled gradient of a criterion of mean and variance that has no constraint.

    Parameters
    ----------
    policy
        Where it starts: a :class:`SoftmaxPolicy` or a :class:`GaussianPolicy`.
    criterion
        One of :mod:`policyrisk.criteria` without a constraint.
    critic
        An :class:`LSTD` whose discount is that of the returns.
    episodes
        How many are run in each iteration.
    iterations
        How many steps.
    step
        Adam's first step size, about how far a parameter moves in an iteration.
    lam
        How much the gradient trusts what was seen rather than the critic: 0 the critic, 1 whole returns.
    groups
        A :class:`TileCoding` with one tiling of the start states: each tile has a mean and a variance of its
        own, and the criterion is averaged over them; std is then the mean of the stds within tiles.

    Examples
    --------
    >>> import policyrisk as pr
    >>> portfolio = pr.domains.Portfolio()
    >>> phi = portfolio.features()
    >>> critic = pr.LSTD(pr.Joint([pr.Polynomial(2, [0], [50], dims=[0]), phi]), variance="direct")
    >>> start, criterion = pr.SoftmaxPolicy(phi, actions=2), pr.criteria.MeanMinusVariance(0.2)
    >>> search = pr.ActorCritic(start, criterion, critic, episodes=200, iterations=10)
    >>> better = search.fit(portfolio, seed=0)
    >>> bool(better.history[-1, 4] > better.history[0, 4])
    True
    """

    policy: Actor
    criterion: Any
    critic: LSTD
    episodes: int = 1000
    iterations: int = 300
    step: float = 0.1
    lam: float = 0.0
    groups: TileCoding | None = None

    def __post_init__(self) -> None:
        as_count(self.episodes, "episodes", 2)
        as_count(self.iterations, "iterations", 1)
        as_number(self.step, "step", 0.0, open_low=True)
        as_number(self.lam, "lam", 0.0, 1.0)
        if self.groups is not None and not (isinstance(self.groups, TileCoding) and self.groups.tilings == 1):
            raise InvalidInputError(
                f"groups must be a TileCoding with one tiling, got {self.groups!r}; every tile is a group"
            )
        if not all(hasattr(self.policy, name) for name in ("parameters", "with_parameters", "log_gradient")):
            raise InvalidInputError(
                "policy must be one with a gradient such as SoftmaxPolicy, got "
                f"{type(self.policy).__name__}; give it `parameters`, `with_parameters` and `log_gradient`"
            )
        if not isinstance(self.critic, LSTD):
            raise InvalidInputError(
                f"critic must be an LSTD, got {type(self.critic).__name__}; pass LSTD(features)"
            )
        if not hasattr(self.criterion, "slopes") or self.criterion.slack(1.0, 1.0) is not None:
            raise InvalidInputError(
                "criterion must be one of mean and variance without a constraint, such as MeanMinusStd(1.0), "
                f"got {self.criterion!r}; a penalty c·std or c·variance can take the place of a bound"
            )

    def fit(
        self,
        simulator: Any,
        seed: Seed = None,
        *,
        starts: Starts | None = None,
        max_steps: int = 10_000,
        checkpoint: str | os.PathLike[str] | None = None,
        resume: bool = False,
        device: Device = "cpu",
    ) -> ActorCriticResult:
        """Improve the policy on episodes of a simulator.

        Parameters
        ----------
        simulator
            One of our domains, or whatever :func:`policyrisk.rollout` runs, a Gymnasium environment or its
            id.
        seed
            Of everything random.
        starts
            For a domain: ``starts(n, generator)`` gives the start states of n episodes; its ``sample_starts``
            where None.
        max_steps
            Cuts off longer episodes.
        checkpoint
            A file that the run is kept in.
        resume
            Go on from the checkpoint, to the end that an undisturbed run has.
        device
            "cuda" runs the episodes of a domain on a GPU, for policies that compiled code can follow.

        Returns
        -------
        ActorCriticResult
            ``policy``, the last one; ``history``; and ``candidates``, those of the iterations that looked
            best on their own episodes: :func:`policyrisk.control.improve` finds the best on fresh ones.
        """
        play = player(simulator, self.episodes, starts, as_count(max_steps, "max_steps", 1), device)
        file = Checkpoint(_WORK, checkpoint, self._problem(simulator, max_steps))
        state = self._begun(file, seed, as_resume(resume, checkpoint))
        with ProgressBar("improving", self.iterations) as bar:
            bar.advance(len(state["history"]))
            with file.saved_on_interrupt(lambda: state, lambda: f"{len(state['history'])} iterations"):
                while len(state["history"]) < self.iterations:
                    state |= self._iterate(state, play)
                    bar.advance(1, _told(state["history"][-1]))
                    file.save_if_due(state.copy)
        if checkpoint is not None:
            file.save(state)
        policy, *kept = map(self.policy.with_parameters, (state["parameters"], *state["kept"]))
        candidates = tuple(zip((done for done, _ in state["kept_at"]), kept, strict=True))
        return ActorCriticResult(policy, self.criterion, np.array(state["history"]), candidates)

    def _problem(self, simulator: Any, max_steps: int) -> dict[str, Any]:
        return {
            "policy": repr(self.policy),
            "parameters": hashlib.sha256(self.policy.parameters.tobytes()).hexdigest(),
            "criterion": repr(self.criterion),
            "critic": repr((self.critic.features, self.critic.second_features, self.critic.lam)),
            "discount": float(self.critic.discount),
            "variance": self.critic.variance,
            "episodes": self.episodes,
            "iterations": self.iterations,
            "step": float(self.step),
            "lam": float(self.lam),
            "groups": repr(self.groups),
            "simulator": simulator if isinstance(simulator, str) else repr(simulator),
            "max_steps": max_steps,
        }

    def _begun(self, file: Checkpoint, seed: Seed, resume: bool) -> dict[str, Any]:
        if file.path is not None and file.path.exists():
            if not resume:
                raise InvalidInputError(
                    f"checkpoint must not exist yet, got {file.path}; pass resume=True to go on, or delete it"
                )
            stored: dict[str, Any] = file.load(_Ascended)
            for name in ("parameters", "first", "second"):
                check_shape(stored[name], f"{name} in {file.path}", self.policy.parameters.shape)
            kept = (len(stored["kept_at"]), self.policy.parameters.size)
            check_shape(stored["kept"], f"kept in {file.path}", kept)
            if seed is not None and stored["key"] != [int(word) for word in keys(seed)]:
                raise MismatchError(
                    f"seed must be that of the run to go on with, got another for {file.path}; pass the same"
                )
            return stored
        nothing = np.zeros_like(self.policy.parameters)
        return {
            "key": [int(word) for word in keys(seed)],
            "parameters": np.array(self.policy.parameters),
            "first": nothing,
            "second": nothing,
            "history": [],
            "kept": np.empty((0, nothing.size)),
            "kept_at": [],
        }

    def _iterate(self, state: dict[str, Any], play: Run) -> dict[str, Any]:
        """One iteration: episodes, critic, gradient, step."""
        k = len(state["history"])
        policy = self.policy.with_parameters(state["parameters"])
        data = play(policy, np.random.SeedSequence([*state["key"], k]))
        risk = self.critic.fit(data, error_bars=False)
        gamma = self.critic.discount
        J, V = risk.mean_and_variance(data.states)
        B = completed_returns(data, J, gamma)
        if np.isnan(B).any():
            data, B = _without_unknown(data, B)
            J, V = risk.mean_and_variance(data.states)
        returns = GroupedReturns.of(B, data.starts(), self.groups)
        judged = returns.judged(self.criterion)
        factors = step_factors(
            data, J, V + J**2, returns.others, gamma, judged.by_mean, judged.by_variance, self.lam
        )
        unknown = np.isnan(factors)
        if unknown.mean() > _UNKNOWN:
            raise SolverError(
                "the critic must know most states that episodes come through, got nothing about "
                f"{unknown.mean():.0%} of the steps after {k} iterations; give it features that states "
                "share, or run more and longer episodes"
            )
        factors[unknown] = 0.0
        gradient = policy.log_gradient(data.states[data.visited_rows], data.actions, factors) / len(data)
        if not np.isfinite(gradient).all():
            raise SolverError(
                f"the gradient is not finite after {k} iterations, with mean {number(returns.mean.value)} "
                f"and std {number(returns.std.value)}; pass a smaller step, or a criterion that has a "
                "gradient where no risk is left"
            )
        up = gradient if self.criterion.larger_is_better else -gradient
        first = _FIRST * state["first"] + (1.0 - _FIRST) * up
        second = _SECOND * state["second"] + (1.0 - _SECOND) * up**2
        direction = first / (1.0 - _FIRST ** (k + 1))
        scale = np.sqrt(second / (1.0 - _SECOND ** (k + 1)))
        size = self.step * (1.0 - k / self.iterations)
        moved = state["parameters"] + size * direction / np.where(scale > 0.0, scale, 1.0)
        told = [each.estimate() for each in (returns.mean, returns.std, judged)]
        row = tuple(float(x) for e in told for x in (e.value, e.standard_error))
        history = [*state["history"], row]
        moves = {"parameters": moved, "first": first, "second": second, "history": history}
        return moves | _kept(state, row[4] if self.criterion.larger_is_better else -row[4])


def _kept(state: dict[str, Any], value: float) -> dict[str, Any]:
    """The parameters of the best iterations so far, with the one that had this value."""
    found = [*zip(state["kept_at"], state["kept"], strict=True)]
    found.append(((len(state["history"]), value), state["parameters"]))
    found = sorted(found, key=lambda each: each[0][1], reverse=True)[:_KEPT]
    return {"kept_at": [at for at, _ in found], "kept": np.array([parameters for _, parameters in found])}


def _told(row: Sequence[float]) -> str:
    parts = zip(("mean", "std", "value"), row[::2], row[1::2], strict=True)
    return ", ".join(f"{name} {number(value)} ± {number(error, 2)}" for name, value, error in parts)


def _without_unknown(data: Trajectories, returns: Floats) -> tuple[Trajectories, Floats]:
    """The episodes whose returns are known, and these; an error where most are not."""
    known = np.isfinite(returns)
    lost = f"{np.count_nonzero(~known)} of {len(data)} episodes were cut off"
    remedy = "give it features that states share, or run longer episodes"
    if not known.mean() >= 1.0 - LOST_MOST:
        raise SolverError(
            f"the critic must know most states that episodes come through, but {lost} where it knows "
            f"nothing, and at most {LOST_MOST:.0%} may be left out; {remedy}"
        )
    warnings.warn(
        f"{lost} where the critic knows nothing, and are left out of this iteration; {remedy}",
        GivenUpWarning,
        stacklevel=4,
    )
    return data[known], returns[known]


def completed_returns(data: Trajectories, J: Floats, discount: float) -> Floats:
    """The episodes' returns (episodes,) by the critic's J, nan where it knows nothing, at all the states.

    One that was cut off in x_T is completed with γ^T J̃(x_T); where that is nan from the last state before
    that has a J̃, without the rewards that came after. It is nan where there is no such state.
    """
    cut, returns = np.flatnonzero(~data.terminated), data.returns(discount)
    if cut.size:
        some, J_cut = data[cut], J[np.repeat(~data.terminated, data.lengths + 1)]
        last, returns[cut] = cut_back(some, ~np.isnan(J_cut), discount)
        rows = some.offsets[:-1] + np.arange(len(some)) + np.maximum(last, 0)
        returns[cut] += np.float64(discount) ** last * J_cut[rows]
    return returns


def step_factors(
    data: Trajectories,
    J: Floats,
    M: Floats,
    J_0: Floats,
    discount: float,
    by_mean: npt.ArrayLike,
    by_variance: npt.ArrayLike,
    lam: float = 0.0,
) -> Floats:
    """What every step's ∇log π counts for in the gradient of f(m, v), of shape (transitions,).

    J and M are the critic's at all of ``data.states``, nan where it knows nothing, and so are the factors of
    steps that lead there. J_0, ∂f/∂m and ∂f/∂v are those of each episode (episodes,).
    """
    out = np.empty(data.transitions)
    f_m, f_v = (np.broadcast_to(by, len(data)).astype(np.float64) for by in (by_mean, by_variance))
    _policy_kernels.step_factors(
        data.rewards, data.lengths, data.terminated, J, M, J_0, f_m, f_v, discount, lam, out
    )
    return out


class _Ascended(TypedDict):
    """What a checkpoint holds."""

    key: list[int]
    parameters: Floats
    first: Floats  # Σ of gradients, decayed
    second: Floats  # of their squares
    history: list[tuple[float, float, float, float, float, float]]  # value and error of mean, std, criterion
    kept: Floats  # (some, parameters): those of the iterations that looked best
    kept_at: list[tuple[int, float]]  # how many iterations led to them, and the value there
