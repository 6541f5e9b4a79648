"""``policyrisk improve``: from a simulator and a criterion to a better policy, and how much better it is.

The options are those of :class:`ImprovementRequest`, the texts of its docstring their help. Heavy imports
happen in the functions, so that ``--help`` is quick.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from policyrisk.cli.rollout import EnvArgs, env_arguments
from policyrisk.cli.screen import screen
from policyrisk.cli.shared import (
    can_make,
    criterion_of,
    place_option,
    policy_of,
    values_of,
)
from policyrisk.errors import InvalidInputError
from policyrisk.evaluation.request import AUTO, naming_arguments

if TYPE_CHECKING:
    from policyrisk._core.devices import Device
    from policyrisk._core.output import Clock
    from policyrisk.control.actor_critic import ActorCritic
    from policyrisk.control.before_after import BeforeAfter
    from policyrisk.control.tasks import Task
    from policyrisk.criteria import Criterion
    from policyrisk.data import Trajectories
    from policyrisk.evaluation import Evaluation

_RESULT, _CHECKPOINT = "result.json", "checkpoint.npz"
_OPTION: dict[str, Any] = {"panel": None}
_IMITATED = 200  # episodes of the policy that the first one imitates, at most


@dataclass(frozen=True, eq=False)
class ImprovementRequest:
    """The parameters of ``policyrisk improve``; the texts are those of the command's help.

    Parameters
    ----------
    env
        pinball, portfolio, or a Gymnasium id, as in CartPole-v1.
    criterion
        The criterion to maximise.
    env_args
        The environment's arguments.
    policy
        Where to begin: the policy.npz of an earlier search, or module:name of a function from observations to
        actions, or to the probabilities of Discrete ones, which the policy that is improved then imitates
        (or of a policy with a gradient, which is improved itself). Else every action is as likely.
    episodes
        Episodes of an iteration, else what suits the task.
    iterations
        Iterations, else what suits the task.
    step
        About how far a weight moves in the first iterations.
    features
        The policy's features, spelled as for evaluate, but not auto.
    critic
        The critic's features, spelled likewise.
    discount
        Discount, above 0.
    max_steps
        An environment's episodes end after so many steps, else by its own limit.
    action_noise
        Noise in an environment's actions: the probability of a random one instead, or, of continuous ones,
        the standard deviation in units of half their range.
    reward_so_far
        Let the policy see the reward so far, as `earned`.
    lam
        The gradient by the critic (0) or by whole returns (1).
    groups
        Average the criterion over tiles of the starts, as pinball's tiles:10x10,dims=x+y.
    fresh
        Number of fresh episodes on which both policies are compared.
    seed
        The seed of everything random.
    device
        Simulate our domains on cpu, cuda (a GPU), or auto.
    resume
        Go on with the same search where it was killed or stopped.
    """

    env: str
    criterion: Criterion
    env_args: Mapping[str, Any] = field(default_factory=dict)
    policy: Any = field(default=None, metadata={**_OPTION, "type": "str | None"})
    episodes: int | None = field(default=None, metadata={**_OPTION, "min": 2})
    iterations: int | None = field(default=None, metadata={**_OPTION, "min": 1})
    step: float | None = field(default=None, metadata=_OPTION)
    features: str | None = field(default=None, metadata=_OPTION)
    critic: str | None = field(default=None, metadata=_OPTION)
    discount: float = field(default=1.0, metadata={**_OPTION, "min": 0, "max": 1})
    max_steps: int | None = field(default=None, metadata={**_OPTION, "min": 1})
    action_noise: float = field(default=0.0, metadata={**_OPTION, "min": 0})
    reward_so_far: bool = field(default=False, metadata=_OPTION)
    lam: float | None = field(default=None, metadata={**_OPTION, "min": 0, "max": 1})
    groups: str | None = field(default=None, metadata=_OPTION)
    fresh: int = field(default=1000, metadata={**_OPTION, "min": 2})
    seed: int = field(default=0, metadata={**_OPTION, "min": 0})
    device: Device = field(default="cpu", metadata=_OPTION)
    resume: bool = field(default=False, metadata=_OPTION)


@dataclass(frozen=True, eq=False)
class ImprovementPlan:
    """A request, with what suits its task where it leaves something open."""

    request: ImprovementRequest
    task: Task
    search: ActorCritic
    features: str | None  # of the policy, as they are spelled; None where it brings its own
    critic: str
    groups: str | None
    imitation: float | None = None  # how far the first policy acts as the request's, where it imitates that

    @classmethod
    def of(cls, request: ImprovementRequest) -> ImprovementPlan:
        """Prepared: the task is made, and features are laid over its states."""
        from policyrisk.control.actor_critic import ActorCritic
        from policyrisk.control.tasks import task
        from policyrisk.features.spelling import Spelling
        from policyrisk.lstd import LSTD
        from policyrisk.passes.survey import Survey

        given = task(
            request.env, request.env_args, request.max_steps, request.action_noise, request.reward_so_far
        )
        if request.features is not None and given.features is None:
            error = InvalidInputError(f"the policy of {request.env} brings its own; leave the option out")
            error.argument = "features"
            raise error
        survey = Survey.of(given.pilot, seed=0)

        def spelled(name: str) -> tuple[str | None, Any]:
            text = getattr(given, name) if getattr(request, name) is None else getattr(request, name)
            if text is None:
                return None, None
            with naming_arguments(name):
                if text == AUTO:
                    raise InvalidInputError(
                        "auto chooses for recorded data alone; write for example fourier:1"
                    )
                return text, Spelling.parse(text).build(given.names, survey, given.low, given.high)

        (features, phi), (critic, psi), (groups, tiles) = map(spelled, ("features", "critic", "groups"))
        settled: dict[str, Any] = {
            of: getattr(given if getattr(request, of) is None else request, of)
            for of in ("episodes", "iterations", "step", "lam")
        }
        lstd = LSTD(psi, discount=request.discount, variance="direct")
        actor, alike = _begun(given.start(phi), request, given, settled["episodes"])
        search = ActorCritic(actor, request.criterion, lstd, **settled, groups=tiles)
        assert critic is not None
        return cls(request, given, search, features, critic, groups, alike)

    @property
    def world(self) -> dict[str, Any] | None:
        """How the environment that the policy acts in differs from the one that was named."""
        from policyrisk.control.tasks import TimedEnvironment

        request = self.request
        if isinstance(self.task.simulator, TimedEnvironment):
            limit = {"max_steps": self.task.max_steps, "action_noise": float(request.action_noise)}
            return {**limit, "reward_so_far": request.reward_so_far}
        return {"reward_so_far": True} if request.reward_so_far else None

    def run(self, checkpoint: str | os.PathLike[str] | None = None) -> BeforeAfter:
        """The search, and fresh episodes of its first and of its last policy."""
        from policyrisk.control.before_after import improve as searched

        return searched(
            self.search,
            self.task.simulator,
            self.request.seed,
            fresh=self.request.fresh,
            max_steps=self.task.max_steps,
            checkpoint=checkpoint,
            resume=self.request.resume,
            device=self.request.device,
        )

    def evaluated(self, name: str, data: Trajectories) -> Evaluation:
        """The evaluation of fresh episodes by the critic's features."""
        from policyrisk.evaluation import evaluate

        return evaluate(
            data,
            self.request.discount,
            self.critic,
            variance="direct",
            box=list(zip(self.task.low.tolist(), self.task.high.tolist(), strict=True)),
            seed=self.request.seed,
            name=f"{self.request.env}, {name}",
            names=self.task.names,
        )

    def to_dict(self, found: BeforeAfter) -> dict[str, Any]:
        """What was searched, how, and what came of it, in plain values."""
        search, request = self.search, self.request
        return {
            "task": request.env,
            **found.to_dict(),
            "iterations": search.iterations,
            "episodes_of_an_iteration": search.episodes,
            "step": search.step,
            "lam": search.lam,
            "groups": self.groups,
            "reward_so_far": request.reward_so_far,
            "imitation": self.imitation,
            "features": self.features,
            "critic": self.critic,
            "discount": request.discount,
            "steps": self.task.max_steps,
            "action_noise": request.action_noise,
            "seed": request.seed,
        }


def _begun(actor: Any, request: ImprovementRequest, given: Task, episodes: int) -> tuple[Any, float | None]:
    """The policy that the search begins with, and how far it acts as the one that it imitates."""
    import numpy as np

    from policyrisk.control.policies import agreement, imitated, on_rows
    from policyrisk.control.trials import player

    policy = request.policy
    if policy is None:
        return actor, None
    if all(hasattr(policy, name) for name in ("parameters", "with_parameters", "log_gradient")):
        return policy, None
    with naming_arguments("policy"):
        play = player(given.simulator, min(episodes, _IMITATED), None, given.max_steps)
        data = play(on_rows(policy, given.simulator), np.random.SeedSequence(0))
    actor = imitated(actor, data)
    return actor, agreement(actor, data)


def improve(
    env: Annotated[str, typer.Argument(help="pinball, portfolio, or a Gymnasium id, as in CartPole-v1.")],
    criterion: Annotated[
        str, typer.Option(help="What is to be large: mean-std:c, mean-variance:c or sharpe, c a number.")
    ],
    out: Annotated[
        Path,
        place_option(
            help="Folder for policy.npz, history.csv, learning.png, before.html, after.html and result.json."
        ),
    ],
    env_args: EnvArgs = None,
    **chosen: Any,
) -> None:
    """Improve a policy by an actor-critic of risk, and compare it with where it began on fresh episodes.

    Example: policyrisk improve CartPole-v1 --criterion mean-std:1 --action-noise 0.4 --out results/cartpole
    """
    from policyrisk._core.imports import look_here
    from policyrisk._core.output import Clock, check_folder
    from policyrisk._core.text import percent

    arguments = env_arguments(env_args)
    given = values_of(ImprovementRequest, chosen, {"policy": lambda text: policy_of(text, "--policy")})
    request = ImprovementRequest(env, criterion_of(criterion), arguments, **given)
    from policyrisk.passes.checkpoint import Unasked

    if ":" in env:  # module:id
        look_here(env.partition(":")[0])
    check_folder(out)
    drawn, reported = can_make("pictures are"), can_make("the report is")
    checkpoint = out / _CHECKPOINT
    if checkpoint.exists() and not request.resume:
        raise typer.BadParameter(
            f"{checkpoint} is that of a search that was not finished; add --resume, or delete it",
            param_hint="--out",
        )
    clock = Clock()
    with clock("prepare"):
        improvement = ImprovementPlan.of(request)
    with clock("improve"):
        found = improvement.run(Unasked(checkpoint, screen.note))
    numbers, written = _write(improvement, found, out, drawn, reported, clock)
    checkpoint.unlink(missing_ok=True)
    over = "" if improvement.groups is None else f", averaged over {improvement.groups}"
    begin = ""
    if improvement.imitation is not None:
        begin = (
            f"; before imitates {chosen['policy']}, whose actions it has in {percent(improvement.imitation)}"
        )
    value = f"value: {found.result.criterion}{over}{begin}"
    answer = [
        f"Both policies on the same {request.fresh} fresh episodes; {value}",
        str(found),
        f"policy.npz is that of iteration {found.iteration}, the best on other fresh episodes",
        "written: " + ", ".join(map(str, written)),
    ]
    seconds = ", ".join(f"{name} {taken:.1f}" for name, taken in numbers["seconds"].items())
    details = ["\nEpisodes of the search", str(found.result), f"seconds: {seconds}"]
    screen.answer(numbers, "\n".join(answer), details)


def _write(
    improvement: ImprovementPlan, found: BeforeAfter, out: Path, drawn: bool, reported: bool, clock: Clock
) -> tuple[dict[str, Any], list[Path]]:
    """Write the folder; its numbers, and its files."""
    from policyrisk._core.output import complete_folder, write_figure, write_json
    from policyrisk.plotting import plot_learning

    with complete_folder(out, last=_RESULT, partly=("learning.png", "before.html", "after.html")) as folder:
        found.result.policy.save(folder / "policy.npz", improvement.world)
        found.write_history(folder / "history.csv")
        if drawn:
            write_figure(plot_learning(found.result), folder / "learning.png")
        with clock("reports"):
            for name, data in (("before", found.before), ("after", found.after)) if reported else ():
                improvement.evaluated(name, data).report(folder / f"{name}.html")
        numbers = {**improvement.to_dict(found), "seconds": clock.seconds}
        write_json(numbers, folder / _RESULT)
        return numbers, [out / path.name for path in sorted(folder.iterdir())]
