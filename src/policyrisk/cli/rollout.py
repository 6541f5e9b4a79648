"""``policyrisk rollout``: episodes of a policy in a Gymnasium environment."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from policyrisk.cli.screen import screen
from policyrisk.cli.shared import (
    Ray,
    RayAddress,
    SeedOption,
    cluster,
    imported,
    look_here,
    policy_of,
)

_SUFFIXES = (".parquet", ".npz")


def rollout(
    env: Annotated[str, typer.Argument(help="A Gymnasium id, as in CartPole-v1 or my_module:MyEnv-v0.")],
    policy: Annotated[
        str,
        typer.Option(
            help="module:name of a function from observations to actions, or to the probabilities of "
            "Discrete ones, or of an object or class with predict; the current folder is looked in too. "
            "sb3:model.zip for the policy in a file of Stable-Baselines3 (,normalisation=stats.npz where it "
            "was trained inside of VecNormalize). random for random actions."
        ),
    ],
    episodes: Annotated[int, typer.Option(min=1, help="How many episodes.")],
    out: Annotated[Path, typer.Option(help="File for the episodes, .parquet or .npz.")],
    stochastic: Annotated[
        bool,
        typer.Option(
            "--stochastic",
            help="Let sb3:model.zip, or an object with predict, draw its actions from their distribution.",
        ),
    ] = False,
    seed: SeedOption = None,
    num_envs: Annotated[
        int | None, typer.Option(min=1, help="Environments that are stepped side by side, else up to 16.")
    ] = None,
    max_steps: Annotated[
        int | None, typer.Option(min=1, help="Cut episodes off after this number of steps.")
    ] = None,
    project: Annotated[
        str | None,
        typer.Option(help="module:name of a function that makes a state of an observation."),
    ] = None,
    env_args: Annotated[
        str | None, typer.Option(help="The environment's arguments, as in '{\"gravity\": 9.8}' (JSON).")
    ] = None,
    state: Annotated[
        str | None,
        typer.Option(
            help="Names for the state's coordinates, as in x,y; otherwise those that the environment has, or "
            "state_0, …"
        ),
    ] = None,
    ray: Ray = False,
    ray_address: RayAddress = None,
) -> None:
    """Record episodes of a policy in a Gymnasium environment: states, rewards and actions.

    The probabilities of the actions are recorded with them where the policy tells them.

    Example: policyrisk rollout CartPole-v1 --policy random --episodes 1000 --seed 0 --out random.parquet
    """
    if out.suffix not in _SUFFIXES:
        raise typer.BadParameter(f"{str(out)!r} must end in {' or '.join(_SUFFIXES)}", param_hint="--out")
    if out.is_dir():
        raise typer.BadParameter(f"{str(out)!r} is a folder; name a file in it", param_hint="--out")
    from policyrisk._core.imports import check_installed
    from policyrisk._core.output import check_folder, make_folder

    check_folder(out.parent)
    if out.suffix == ".parquet":  # before the episodes are played
        check_installed("pyarrow", "writing Parquet")
    arguments = env_arguments(env_args)
    look_here()  # for module:id too
    chosen = None if policy == "random" else _policy(policy, stochastic, seed)
    projection = None if project is None else imported(project, "--project")

    from policyrisk import readers
    from policyrisk.simulation.rollouts import rollout as play

    options: dict[str, Any] = {
        "episodes": episodes,
        "seed": seed,
        "num_envs": num_envs,
        "max_steps": max_steps,
        "project": projection,
        "env_kwargs": arguments,
        "deterministic": not (stochastic and hasattr(chosen, "predict")),
    }
    acting = RandomActions.of(env, arguments, seed) if chosen is None else chosen
    with cluster(ray, ray_address) as on_cluster:
        if on_cluster:
            from policyrisk import distributed

            data = distributed.rollout(env, acting, **options).load()
        else:
            data = play(env, acting, **options)
    if state is not None:
        data = _renamed(data, state)
    make_folder(out.parent)
    if out.suffix == ".parquet":
        readers.write_parquet(data, out)
    else:
        readers.write_npz(data, out)
    returns, terminated = data.returns(), int(data.terminated.sum())
    numbers = {
        "env": env,
        "policy": policy,
        "out": str(out),
        "seed": seed,
        "episodes": len(data),
        "terminated": terminated,
        "transitions": data.transitions,
        "dim": data.dim,
        "mean_return": float(returns.mean()),
        "std_return": float(returns.std(ddof=1)) if len(data) > 1 else float("nan"),
    }
    returns_of = "recorded return, up to the cut," if terminated < len(data) else "return"
    screen.answer(
        numbers,
        f"{len(data)} episodes, {data.transitions} transitions, {len(data) - terminated} cut off; "
        f"{returns_of} {numbers['mean_return']:.5g} on average, std {numbers['std_return']:.5g}\n"
        f"written: {out}",
    )


def _renamed(data: Any, names: str) -> Any:
    """Episodes whose coordinates are called by these names, with commas between."""
    from dataclasses import replace

    from policyrisk.errors import InvalidInputError

    try:
        return replace(data, coordinates=names.split(","))
    except InvalidInputError as error:
        raise typer.BadParameter(str(error), param_hint="--state") from error


def env_arguments(text: str | None) -> dict[str, Any]:
    """The arguments of an environment, from JSON."""
    if text is None:
        return {}
    try:
        arguments = json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not JSON: {error}", param_hint="--env-args") from error
    if not isinstance(arguments, dict):
        raise typer.BadParameter(f"{text!r} must be a JSON object", param_hint="--env-args")
    return arguments


class RandomActions:
    """A policy that samples from an action space."""

    def __init__(self, space: Any, entropy: Any, *key: int) -> None:
        import numpy as np

        self.space, self.entropy = copy.deepcopy(space), entropy
        # Not the word that the environments' own seeds come from.
        self.space.seed(int(np.random.SeedSequence(entropy, spawn_key=(1, *key)).generate_state(1)[0]))

    @classmethod
    def of(cls, env: str, arguments: dict[str, Any], seed: int | None) -> RandomActions:
        """The one for an environment."""
        import numpy as np

        from policyrisk.simulation.rollouts import make_environments

        (made,), _ = make_environments(env, 1, 1, arguments)
        space = made.action_space
        made.close()
        return cls(space, np.random.SeedSequence(seed).entropy)

    def spawn(self, number: int) -> RandomActions:
        """The one for an episode, whose randomness is its own whoever runs the others."""
        return RandomActions(self.space, self.entropy, number)

    def __call__(self, observations: Any) -> Any:
        """An action for each of the observations."""
        return [self.space.sample() for _ in range(_count(observations))]

    def probabilities(self, observations: Any) -> Any:
        """Those of Discrete actions, (n, actions)."""
        import numpy as np

        return np.full((_count(observations), self.space.n), 1.0 / self.space.n)


def _count(observations: Any) -> int:
    """The number of observations in a batch."""
    while isinstance(observations, dict | tuple):
        observations = next(iter(observations.values() if isinstance(observations, dict) else observations))
    return len(observations)


def _policy(text: str, stochastic: bool, seed: int | None) -> Any:
    """A callable or an object with predict; a class that has it is made into an object."""
    found = policy_of(text, "--policy", stochastic, seed)
    if not callable(found) and not hasattr(found, "predict"):
        raise typer.BadParameter(
            f"{text} is of type {type(found).__name__}, neither a function nor an object with predict",
            param_hint="--policy",
        )
    if stochastic and not (text.startswith("sb3:") or hasattr(found, "predict")):
        raise typer.BadParameter(
            f"{text} is a function, which draws its actions itself or answers with their probabilities; "
            "leave the option out",
            param_hint="--stochastic",
        )
    return found
