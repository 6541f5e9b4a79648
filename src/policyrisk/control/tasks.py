"""What ``policyrisk improve`` improves policies on: our domains by name, and Gymnasium environments in time.

The return of an episode that a time limit cuts off is not known, and one step from the limit a state is worth
less than at the start. In a :class:`TimedEnvironment` the limit is therefore part of the task: an episode
*ends* there, and the time is the last coordinate of the state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from policyrisk._core.arrays import Floats, as_count, as_number
from policyrisk._core.imports import check_installed
from policyrisk.control.actor_critic import Actor
from policyrisk.control.greedy import pinball_policy
from policyrisk.control.policies import GaussianPolicy, SoftmaxPolicy
from policyrisk.control.trials import player
from policyrisk.data import Trajectories
from policyrisk.data.spaces import coordinate_names
from policyrisk.domains import Pinball, Portfolio, RewardSoFar
from policyrisk.errors import InvalidInputError
from policyrisk.features import Polynomial
from policyrisk.features.protocol import Features
from policyrisk.simulation.domain import EARNED
from policyrisk.simulation.rollouts import make_environments

_LIMIT = 10_000  # steps of an episode of our domains
_PILOT = 200  # episodes, for the extent of coordinates without bounds
_WIDER = 1.5  # than that: a better policy gets farther
_VAST = 1e6  # no bounds of a coordinate that features could be laid over
_RICH = 72.0  # a reward so far that few portfolios exceed
_SHARP = 16.0  # what the shipped pinball policy's action values are multiplied with

# cos(πu) is 0 in the middle of a coordinate's range: slopes of the policy are learned apart from its bias, as
# they would not be on u itself.
FEATURES, CRITIC = "fourier:1,total=1", "poly:3"


@dataclass(frozen=True)
class TimedEnvironment:
    """Makes Gymnasium's environment ``env`` with a time limit that is part of the state.

    ``max_steps`` is the limit, at most the environment's own. ``action_noise`` disturbs the actions: it is
    the probability that a random one takes the place of a discrete action, or the standard deviation of what
    is added to a continuous one, in units of half its range. Random numbers for it are apart from the
    environment's. With ``reward_so_far`` what has been earned is one more coordinate, the last: a policy that
    sees it can be better than any that does not.

    >>> env = TimedEnvironment("CartPole-v1", max_steps=3, action_noise=0.1)()
    >>> _ = env.reset(seed=0)
    >>> [(env.step(0)[0][-1].item(), env.step(1)[2]) for _ in range(1)]
    [(1.0, False)]
    >>> env.step(1)[2:4]
    (True, False)
    """

    env: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    max_steps: int | None = None
    action_noise: float = 0.0
    reward_so_far: bool = False

    def __post_init__(self) -> None:
        as_number(self.action_noise, "action_noise", 0.0)
        if self.max_steps is not None:
            as_count(self.max_steps, "max_steps", 1)

    def __call__(self) -> Any:
        """The environment, wrapped."""
        check_installed("gymnasium", "an environment")
        from policyrisk.domains.env import TimedEnv

        (made,), _ = make_environments(self.env, 1, 1, dict(self.arguments))
        own = None if made.spec is None else made.spec.max_episode_steps
        limits = [limit for limit in (self.max_steps, own) if limit is not None]
        if not limits:
            made.close()
            raise InvalidInputError(
                f"max_steps must be given for {self.env}, which has no limit of its own, got None; pass "
                "after how many steps an episode ends"
            )
        return TimedEnv(made, min(limits), self.action_noise, self.reward_so_far)


@dataclass(frozen=True, eq=False)
class Task:
    """A simulator, what is known of its states, and features that suit it, spelled as for ``evaluate``."""

    name: str
    simulator: Any
    names: tuple[str, ...]  # of the state's coordinates
    low: Floats  # (dim,)
    high: Floats  # (dim,)
    features: str | None  # of the policy; None where it brings its own
    critic: str
    episodes: int
    iterations: int
    step: float
    start: Callable[[Features | None], Actor]  # the policy to begin with
    pilot: Trajectories  # a few episodes of a first policy
    max_steps: int = _LIMIT
    lam: float = 0.0  # of the gradient
    groups: str | None = None  # tiles of the starts that the criterion is averaged over


def task(
    name: str,
    arguments: Mapping[str, Any] | None = None,
    max_steps: int | None = None,
    action_noise: float = 0.0,
    reward_so_far: bool = False,
) -> Task:
    """The task ``portfolio``, ``pinball``, or a :class:`TimedEnvironment` with this id.

    With ``reward_so_far`` what has been earned is the last coordinate of the state, and the policy sees it.

    >>> task("portfolio").names
    ('period', 'rate', 'slot_1', 'slot_2', 'slot_3', 'slot_4')
    """
    if name in ("portfolio", "pinball"):
        if arguments or max_steps is not None or action_noise:
            raise InvalidInputError(
                f"env_args, max_steps and action_noise must not be given for {name}, got "
                f"{dict(arguments or {})}, {max_steps} and {action_noise:g}; leave them out"
            )
        if name == "pinball" and reward_so_far:
            raise InvalidInputError(
                "reward_so_far must be False for pinball, whose policy brings its own features, got True; "
                "leave it out"
            )
        return _portfolio(reward_so_far) if name == "portfolio" else _pinball()
    return _environment(TimedEnvironment(name, dict(arguments or {}), max_steps, action_noise, reward_so_far))


def _portfolio(reward_so_far: bool) -> Task:
    portfolio = Portfolio()
    simulator = RewardSoFar(portfolio) if reward_so_far else portfolio
    slots = tuple(f"slot_{i}" for i in range(1, 5))
    known = "+".join(("rate", *slots))
    low, high = [0.0, 1.1, 0.0, 0.0, 0.0, 0.0], [50.0, 2.0, 1.0, 1.0, 1.0, 1.0]
    return Task(
        "portfolio",
        simulator,
        ("period", "rate", *slots, *([EARNED] if reward_so_far else [])),
        np.array([*low, 0.0] if reward_so_far else low),
        np.array([*high, _RICH] if reward_so_far else high),
        f"tiles:10x2x2x2x2x2x24,dims=period+{known}+{EARNED}" if reward_so_far else f"tiles:2,dims={known}",
        f"poly:2,dims=period/tiles:2,dims={known}",
        1000,
        100,
        0.15,
        lambda phi: SoftmaxPolicy(_given(phi), portfolio.actions),
        _pilot(simulator, SoftmaxPolicy(portfolio.features(), portfolio.actions)),
        lam=1.0 if reward_so_far else 0.0,
    )


def _pinball() -> Task:
    pinball, shipped = Pinball(), pinball_policy()
    soft = SoftmaxPolicy(shipped.features, shipped.actions, _SHARP * shipped.weights)
    return Task(
        "pinball",
        pinball,
        ("x", "y", "dx", "dy"),
        np.array([0.0, 0.0, -1.0, -1.0]),
        np.array([1.0, 1.0, 1.0, 1.0]),
        None,
        "tiles:24x24,dims=x+y",
        5000,
        30,
        0.2,
        lambda phi: soft,
        _pilot(pinball, soft),
        lam=1.0,
        groups="tiles:10x10,dims=x+y",
    )


def _environment(make: TimedEnvironment) -> Task:
    env = make()
    space, acts = env.observation_space, env.action_space
    steps = int(space.high[-2 if make.reward_so_far else -1])
    env.close()
    dim = None if hasattr(acts, "n") else int(acts.shape[0])

    def start(phi: Features | None) -> Actor:
        return SoftmaxPolicy(_given(phi), int(acts.n)) if dim is None else GaussianPolicy(_given(phi), dim)

    pilot = _pilot(make, start(Polynomial(0, np.zeros(len(space.low)), np.ones(len(space.low)))))
    low, high = pilot.states.min(axis=0), pilot.states.max(axis=0)
    middle, half = (low + high) / 2, _WIDER * np.maximum((high - low) / 2, 1e-9)
    bounded = (np.abs(space.low) < _VAST) & (np.abs(space.high) < _VAST)
    low, high = np.where(bounded, space.low, middle - half), np.where(bounded, space.high, middle + half)
    more = ("time", EARNED) if make.reward_so_far else ("time",)
    names = coordinate_names(env) or (*(f"state_{i}" for i in range(len(low) - len(more))), *more)
    return Task(make.env, make, names, low, high, FEATURES, CRITIC, 100, 50, 0.3, start, pilot, steps)


def _pilot(simulator: Any, policy: Any) -> Trajectories:
    """Always the same, whatever the seed of the search: its features must be those of a run to go on with."""
    return player(simulator, _PILOT, None, _LIMIT)(policy, np.random.SeedSequence(0))


def _given(features: Features | None) -> Features:
    assert features is not None
    return features
