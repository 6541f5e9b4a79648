"""``policyrisk rollout``: episodes of a policy in a Gymnasium environment."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from policyrisk.cli.screen import screen
from policyrisk.cli.shared import (
    SeedOption,
    cluster,
    imported,
    place_option,
    policy_of,
    stored,
)
from policyrisk.evaluation.request import naming_arguments

if TYPE_CHECKING:
    from policyrisk.data import Trajectories

_SUFFIXES = (".parquet", ".npz")
EnvArgs = Annotated[
    str | None, typer.Option(help="The environment's arguments, as in '{\"gravity\": 9.8}' (JSON).")
]


def rollout(
    env: Annotated[str, typer.Argument(help="A Gymnasium id, as in CartPole-v1 or my_module:MyEnv-v0.")],
    policy: Annotated[
        str,
        typer.Option(
            help="module:name of a function from observations to actions, or to the probabilities of "
            "Discrete ones, or of an object or class with predict; the current folder is looked in too. "
            "sb3:model.zip for the policy in a file of Stable-Baselines3 (,normalisation=stats.npz where it "
            "was trained inside of VecNormalize). The policy.npz that improve wrote, in the environment that "
            "it was improved in. random for random actions."
        ),
    ],
    episodes: Annotated[int, typer.Option(min=1, help="How many episodes.")],
    out: Annotated[Path, place_option(help="File for the episodes, .parquet or .npz.")],
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
    env_args: EnvArgs = None,
    state: Annotated[
        str | None,
        typer.Option(
            help="Names for the state's coordinates, as in x,y; otherwise those that the environment has, or "
            "state_0, …"
        ),
    ] = None,
    **on: Any,
) -> None:
    """Record episodes of a policy in a Gymnasium environment: states, rewards and actions.

    The probabilities of the actions are recorded with them where the policy tells them.

    Example: policyrisk rollout CartPole-v1 --policy random --episodes 1000 --seed 0 --out random.parquet
    """
    _check_place(out)
    world, acting, arguments = _staged(policy, stochastic, seed, env, env_arguments(env_args))
    options: dict[str, Any] = {
        "episodes": episodes,
        "seed": seed,
        "num_envs": num_envs,
        "max_steps": max_steps,
        "project": None if project is None else imported(project, "--project"),
        "env_kwargs": arguments,
        "deterministic": not (stochastic and hasattr(acting, "predict")),
    }
    data = _played(world, acting, options, **on)
    if state is not None:
        data = _renamed(data, state)
    _write(data, out)
    _answer(data, {"env": env, "policy": policy, "out": str(out), "seed": seed})


def _answer(data: Trajectories, request: Mapping[str, Any]) -> None:
    """Show the counts, and mean and std of the returns."""
    returns, terminated = data.returns(), int(data.terminated.sum())
    numbers = {
        **request,
        "episodes": len(data),
        "terminated": terminated,
        "transitions": data.transitions,
        "dim": data.dim,
        "mean_return": float(returns.mean()),
        "std_return": float(returns.std(ddof=1)) if len(data) > 1 else float("nan"),
    }
    cut_off = len(data) - terminated
    returns_of = "recorded return, up to the cut," if cut_off else "return"
    screen.answer(
        numbers,
        f"{len(data)} episodes, {data.transitions} transitions, {cut_off} cut off; "
        f"{returns_of} {numbers['mean_return']:.5g} on average, std {numbers['std_return']:.5g}\n"
        f"written: {request['out']}",
    )


def _check_place(out: Path) -> None:
    """Raise, before the episodes are played, where they could not be written."""
    if out.suffix not in _SUFFIXES:
        raise typer.BadParameter(f"{str(out)!r} must end in {' or '.join(_SUFFIXES)}", param_hint="--out")
    from policyrisk._core.imports import check_installed
    from policyrisk._core.output import check_file

    check_file(out)
    if out.suffix == ".parquet":
        check_installed("pyarrow", "writing Parquet")


def _played(
    env: Any, acting: Any, options: Mapping[str, Any], ray: bool, ray_address: str | None
) -> Trajectories:
    """The episodes, played here or on a cluster."""
    with cluster(ray, ray_address) as on_cluster:
        if on_cluster:
            from policyrisk import distributed

            return distributed.rollout(env, acting, **options).load()
        from policyrisk.simulation.rollouts import rollout as play

        return play(env, acting, **options)


def _write(data: Trajectories, out: Path) -> None:
    """Write the episodes, as the name's ending says."""
    from policyrisk import readers
    from policyrisk._core.output import make_folder

    make_folder(out.parent)
    (readers.write_parquet if out.suffix == ".parquet" else readers.write_npz)(data, out)


def _renamed(data: Any, names: str) -> Any:
    """Episodes whose coordinates are called by these names, with commas between."""
    from dataclasses import replace

    from policyrisk._core.text import pieces, unquoted

    with naming_arguments("--state"):
        return replace(data, coordinates=[unquoted(name) for name in pieces(names, ",")])


def env_arguments(text: str | None) -> dict[str, Any]:
    """The arguments of an environment, from JSON."""
    from policyrisk._core.files import from_json

    if text is None:
        return {}
    try:
        arguments = from_json(text)
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
        """Random actions for an environment."""
        import numpy as np

        from policyrisk.simulation.rollouts import make_environments

        (made,), _ = make_environments(env, 1, 1, arguments)
        space = made.action_space
        made.close()
        return cls(space, np.random.SeedSequence(seed).entropy)

    def spawn(self, number: int) -> RandomActions:
        """The policy for one episode, with random numbers of its own."""
        return RandomActions(self.space, self.entropy, number)

    def __call__(self, observations: Any) -> Any:
        """An action for each of the observations."""
        return [self.space.sample() for _ in range(_count(observations))]

    def probabilities(self, observations: Any) -> Any:
        """The probabilities of Discrete actions, (n, actions)."""
        import numpy as np

        return np.full((_count(observations), self.space.n), 1.0 / self.space.n)


class PolicyFile:
    """The policy in the file that ``policyrisk improve`` wrote."""

    def __init__(self, path: str, seed: int | None) -> None:
        import numpy as np

        self.policy, self.changes = stored(path, "--policy")
        self._seed = np.random.SeedSequence(seed)

    def world(self, env: str, arguments: dict[str, Any]) -> Any:
        """The environment, changed as it was when the policy was improved."""
        from policyrisk.control.tasks import TimedEnvironment

        changes = self.changes
        if changes is None:
            return env
        if "max_steps" not in changes:
            raise typer.BadParameter(
                "the policy sees the reward so far of a domain, which no Gymnasium environment shows; run it "
                "in Python, on policyrisk.domains.RewardSoFar",
                param_hint="--policy",
            )
        added = changes.get("action_noise", 0.0)
        noise = f", actions with noise {added:g}" if added else ""
        screen.note(f"as the policy was improved: an episode ends after {changes['max_steps']} steps{noise}")
        return TimedEnvironment(env, arguments, **changes)

    def __call__(self, observations: Any) -> Any:
        """The probabilities of the actions, or actions drawn."""
        if not hasattr(self.policy, "sample"):
            return self.policy(observations)
        return self.policy.sample(observations, self._seed.spawn(1)[0])


def _count(observations: Any) -> int:
    """The number of observations in a batch."""
    while isinstance(observations, dict | tuple):
        observations = next(iter(observations.values() if isinstance(observations, dict) else observations))
    return len(observations)


def _staged(
    text: str, stochastic: bool, seed: int | None, env: str, arguments: dict[str, Any]
) -> tuple[Any, Any, dict[str, Any]]:
    """The environment, the policy, and the arguments that are left to give to the environment."""
    acting = _policy(text, stochastic, seed, env, arguments)
    world = acting.world(env, arguments) if isinstance(acting, PolicyFile) else env
    return world, acting, arguments if world is env else {}


def _policy(text: str, stochastic: bool, seed: int | None, env: str, arguments: dict[str, Any]) -> Any:
    """A callable or an object with predict; a class that has it is made into an object."""
    from policyrisk._core.imports import look_here

    if ":" in env:  # module:id
        look_here(env.partition(":")[0])
    if text == "random":
        return RandomActions.of(env, arguments, seed)
    if text.endswith(".npz"):
        return PolicyFile(text, seed)
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
