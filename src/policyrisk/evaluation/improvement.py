"""Improving a policy on a named task, and the evaluations before and after."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from policyrisk.control.actor_critic import ActorCritic
from policyrisk.control.before_after import BeforeAfter, improve
from policyrisk.control.policies import agreement, imitated, on_rows
from policyrisk.control.tasks import Task, TimedEnvironment, task
from policyrisk.control.trials import player
from policyrisk.errors import InvalidInputError
from policyrisk.evaluation.pipeline import evaluate
from policyrisk.evaluation.record import Evaluation
from policyrisk.evaluation.request import AUTO, ImprovementRequest, naming_arguments
from policyrisk.features.spelling import Spelling
from policyrisk.lstd import LSTD
from policyrisk.passes.survey import Survey

_IMITATED = 200  # episodes of the policy that the first one imitates, at most


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
        request = self.request
        if isinstance(self.task.simulator, TimedEnvironment):
            limit = {"max_steps": self.task.max_steps, "action_noise": float(request.action_noise)}
            return {**limit, "reward_so_far": request.reward_so_far}
        return {"reward_so_far": True} if request.reward_so_far else None

    def run(self, checkpoint: str | os.PathLike[str] | None = None) -> BeforeAfter:
        """The search, and fresh episodes of its first and of its last policy."""
        return improve(
            self.search,
            self.task.simulator,
            self.request.seed,
            fresh=self.request.fresh,
            max_steps=self.task.max_steps,
            checkpoint=checkpoint,
            resume=self.request.resume,
            device=self.request.device,
        )

    def evaluations(self, found: BeforeAfter) -> Iterator[tuple[str, Evaluation]]:
        """The evaluations of the fresh episodes before and after, by the critic's features."""
        box = list(zip(self.task.low.tolist(), self.task.high.tolist(), strict=True))
        for name, data in (("before", found.before), ("after", found.after)):
            yield (
                name,
                evaluate(
                    data,
                    self.request.discount,
                    self.critic,
                    variance="direct",
                    box=box,
                    seed=self.request.seed,
                    name=f"{self.request.env}, {name}",
                    names=self.task.names,
                ),
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
