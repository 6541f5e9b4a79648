"""How many episodes of a simulator are run by a policy, for searches and for comparisons of policies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, get_args

import numpy as np

from policyrisk._core.arrays import check_callable, check_choice
from policyrisk._core.devices import Device
from policyrisk.data import Trajectories
from policyrisk.errors import DeviceError, InvalidInputError
from policyrisk.simulation.rollouts import rollout

Starts: TypeAlias = Callable[[int, np.random.Generator], Any]
Run: TypeAlias = Callable[[Any, np.random.SeedSequence], Trajectories]  # a policy and a seed to episodes


@dataclass(frozen=True)
class _Followed:
    """A policy for compiled code that is not asked for the probabilities of what it did."""

    policy: Any

    @property
    def actions(self) -> int:
        return int(self.policy.actions)

    def compiled(self) -> Any:
        return self.policy.compiled()


def starts_of(domain: Any, starts: Starts | None) -> Starts:
    """The given function of start states, or the domain's own."""
    if starts is not None:
        check_callable(starts, "starts", "a function from n and a numpy Generator to states (n, dim)")
        return starts
    if not hasattr(domain, "sample_starts"):
        raise InvalidInputError(
            f"starts must be given for a domain without sample_starts, got None for {type(domain).__name__}; "
            "pass a function from n and a numpy Generator to states (n, dim)"
        )
    return lambda n, rng: domain.sample_starts(n, seed=rng)


def player(
    simulator: Any, episodes: int, starts: Starts | None, max_steps: int, device: Device = "cpu"
) -> Run:
    """How so many episodes of a simulator are run by a policy; the same seed gives the same episodes."""
    check_choice(device, "device", get_args(Device))
    if not hasattr(simulator, "compiled"):
        if device == "cuda":
            raise DeviceError(
                'device must be "cpu" for a Gymnasium environment, got "cuda"; compiled domains run on a GPU'
            )
        if starts is not None:
            raise InvalidInputError(
                f"starts must be None for a Gymnasium environment, got {starts!r}; its reset decides"
            )

        def play_env(policy: Any, seed: np.random.SeedSequence) -> Trajectories:
            follow, env_seed = policy.__call__, seed
            if hasattr(policy, "sample"):  # continuous actions, drawn here
                acts, env_seed = _children(seed)
                rng = np.random.default_rng(acts)
                follow = lambda states: policy.sample(states, rng)  # noqa: E731
            return rollout(simulator, follow, episodes, env_seed, max_steps=max_steps)

        return play_env
    drawn = starts_of(simulator, starts)

    def play(policy: Any, seed: np.random.SeedSequence) -> Trajectories:
        places, acts = _children(seed)
        begin = drawn(episodes, np.random.default_rng(places))
        follow = policy.__call__
        if getattr(policy, "compilable", False):
            follow = _Followed(policy)
        elif device == "cuda":
            raise DeviceError(
                f'device must be "cpu" for a policy that is not compiled, got "cuda" for {policy!r}; pass '
                "one on tiles, or on normalised radial bases of a grid"
            )
        data: Trajectories = simulator.rollout(follow, begin, acts, max_steps, device)
        return data

    return play


def _children(seed: np.random.SeedSequence) -> list[np.random.SeedSequence]:
    """Two children of a seed, always the same: a sequence counts what it has spawned."""
    return np.random.SeedSequence(seed.entropy, spawn_key=seed.spawn_key).spawn(2)
