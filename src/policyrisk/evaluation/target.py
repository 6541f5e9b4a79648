"""The evaluation of another policy than the recorded one: its features and its fit.

The target policy π is a table of probabilities (states, actions), an action for each state, or a function
from states (n, dim) to probabilities (n, actions) or to actions (n,), by their numbers or names. Features of
the state get a block for each action (:class:`policyrisk.LSTDQ`). Where none are spelled they are

    a table          of one whole-numbered coordinate: where π is a table, where the coordinate is a label, or
                     with at least TABLE_VISITS transitions to a value; of several labels where each
                     combination of them and an action has as many
    otherwise        the candidates of :mod:`policyrisk.evaluation.mixture` with at most n/(20 m)
                     features, m being the number of actions: the one with the smallest errors of one step
                     for π on held-out episodes (:mod:`policyrisk.evaluation.target_choice`)

No held-out episode tells what π would have earned. Every logged step shows what its action leads to,
whichever policy chose it.

A function of one whole-numbered coordinate that has a table is asked once for every state, and the answers
are kept as a table: a saved evaluation then needs no code.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from math import prod
from typing import Any, ClassVar

import numpy as np

from policyrisk._core.arrays import as_array, as_floats, as_whole
from policyrisk._core.text import plural
from policyrisk.data import Source, Stream, Trajectories
from policyrisk.errors import (
    InvalidInputError,
    PolicyRiskError,
    PolicyRiskWarning,
    UncoveredError,
    UncoveredWarning,
)
from policyrisk.evaluation.labels import label_columns, label_spellings, tiles_of_labels
from policyrisk.evaluation.log import Log
from policyrisk.evaluation.mixture import candidates
from policyrisk.evaluation.overlap import NotLogged, Overlap
from policyrisk.evaluation.plan import Fitted, Fitting, fit_warning
from policyrisk.evaluation.request import EvaluationRequest, naming_arguments
from policyrisk.evaluation.target_choice import TargetScores, score_for_target
from policyrisk.features import Features
from policyrisk.features.spelling import Spelling
from policyrisk.features.target import Target, chosen_actions
from policyrisk.lstd import LSTDQ
from policyrisk.lstd.influences import DRAWS_OF_TABLES
from policyrisk.passes import Reduce, reduce_in_units
from policyrisk.passes.episode_folds import FOLDS
from policyrisk.passes.survey import Survey
from policyrisk.returns.chain_tails import is_partition
from policyrisk.risk import FEW_EPISODES, VarianceMethod
from policyrisk.selection.distribution_stack import Completed

TABLE_VISITS = 20  # transitions to a value of the state, on average, from which on there is a table of them
SPARSE_TABLE = 4  # numbers to a value, up to which a table has a place for each number
CHOSEN_ON = 20_000  # transitions, about: every so many episodes of the sample
_GRIDS = 2, 3, 4, 6, 10, 20, 40  # tiles along a coordinate, where the tails need cells
DIGESTED = 1_000  # visited states by which a policy is known again


def as_target(given: Any, sample: Trajectories, survey: Survey, named: Sequence[str] = ()) -> Target:
    """A caller's target, checked against episodes of the log and the actions' names, where these are text."""
    if sample.actions is None:
        error = InvalidInputError(
            "action must say which actions were taken, to evaluate another policy, got a log without them; "
            "name their column, or pass Trajectories(..., actions=...)"
        )
        error.argument = "action"
        raise error
    if sample.actions.ndim == 2 or (hasattr(given, "sample") and not isinstance(given, np.ndarray)):
        raise InvalidInputError(
            "target must choose among numbered actions, got continuous ones; use "
            "LSTDQ(ActionFeatures(...), policy).fit(data), and Evaluation.of for a report"
        )
    logged = max(int(sample.actions.max(initial=-1)) + 1, len(named))
    actions: int | None = None
    if callable(given):
        first, n = given(survey.visited[:1]), len(survey.visited)
        if chosen_actions(first, 1, named) is None:
            actions = as_floats(first, "target(states)", (1, None)).shape[1]
        else:
            chosen = as_whole(chosen_actions(given(survey.visited), n, named), "target(states)", (n,))
            actions = max(logged, int(chosen.max()) + 1)
    elif (table := as_array(given, "target", "probabilities, actions or a function")).ndim == 1:
        actions = max(logged, int(as_whole(table, "target", (None,)).max(initial=0)) + 1)
    target = Target.of(given, actions, 0, 0, named)
    if target.actions < logged:
        each = f": {', '.join(named)}" if named else ""
        raise InvalidInputError(
            f"target must give a probability for each of the log's {logged} actions{each}, got "
            f"{target.actions}; add a column for each, in this order"
        )
    target.probabilities(survey.visited)  # which checks it there
    return target


def action_names(data: Source) -> tuple[str, ...]:
    """The names that the actions' numbers stand for, where they are text."""
    if not isinstance(data, Stream):
        return ()
    return next((names for column, names in data.labels.items() if column not in data.state_columns), ())


def tabulated(target: Target, survey: Survey) -> Target:
    """A function of one whole-numbered coordinate from 0 on as a table; rows of states never met are even."""
    values = survey.values[0] if survey.dim == 1 and survey.values else None
    if isinstance(target.policy, np.ndarray) or values is None or survey.low[0] < 0:
        return target
    table = np.full((int(survey.reached[0]) + 1, target.actions), 1.0 / target.actions)
    table[values.astype(np.int64)] = target.probabilities(values[:, None])
    return Target.of(table, None, 0, 0)


def table_spelling(target: Target, survey: Survey, labels: Sequence[int]) -> Spelling | None:
    """A table of the states, where one is to be had; None where features have to be chosen."""
    if 1 < survey.dim == len(labels):
        sizes = tuple(tiles_of_labels(survey, sorted(labels)).values())
        visited = prod(sizes) * target.actions * TABLE_VISITS <= survey.transitions
        return Spelling("tiles", sizes) if visited else None
    values = survey.values[0] if survey.dim == 1 and survey.values else None
    if values is None:
        return None
    known = isinstance(target.policy, np.ndarray)
    if not (known or labels or len(values) * TABLE_VISITS <= survey.transitions):
        return None
    dense = survey.low[0] >= 0 and survey.reached[0] < SPARSE_TABLE * len(values)
    return Spelling("tabular") if known or dense else Spelling("labels")


@dataclass(frozen=True, eq=False)
class TargetPlan:
    """LSTDQ for a target, and how its features were settled."""

    lstdq: LSTDQ
    policy: Target
    name: str  # before it became a table
    fingerprint: tuple[str, str]  # what tells it from another one
    action_names: tuple[str, ...]
    spelling: Spelling  # of the state's features
    spelled: str  # the same with the coordinates' names
    near: NotLogged
    scores: TargetScores | None  # of the candidates, where features were chosen
    request: EvaluationRequest
    episodes: int  # of the log

    labels = ()
    identity: ClassVar[dict[str, Any]] = {}  # the settings hold all of it

    @classmethod
    def of(cls, request: EvaluationRequest, log: Log) -> TargetPlan:
        """The plan of a request that has a target."""
        sample, survey, named = log.sample, log.survey, action_names(log.data)
        with naming_arguments("target"):
            policy = as_target(request.target, sample, survey, named)
        fitting, scores = Fitting.of(request, log, "direct"), None
        name, fingerprint = policy.name, (policy.name, _digest(policy, survey))
        spelling = request.spelling or table_spelling(policy, survey, fitting.labels)
        if spelling is None:
            how: dict[str, Any] = {"seed": request.seed, "most_steps": _longest(request, survey)}
            spelling, scores = choose_for_target(sample, fitting, policy, **how)
            scores = scores.times(log.unit)
        if spelling.kind in ("tabular", "labels"):
            policy = tabulated(policy, survey)
        near = NotLogged.near(policy, sample, survey)
        phi, second = fitting.maps(spelling)
        lstdq = LSTDQ(phi, policy, None, second, **fitting.settings(spelling))
        spelled = spelling.text(log.names)
        return cls(
            lstdq,
            policy,
            name,
            fingerprint,
            named,
            spelling,
            spelled,
            near,
            scores,
            request,
            survey.episodes,
        )

    @property
    def features(self) -> str:
        """The features in words."""
        return f"{self.spelled}, a block for each of {plural(self.policy.actions, 'action')}"

    @property
    def variance(self) -> VarianceMethod:
        """The variance method of LSTDQ."""
        return self.lstdq.variance

    @property
    def explanation(self) -> str:
        """The table that features were chosen from, and what was chosen; nothing where they were not."""
        if self.scores is None:
            return ""
        share = "all" if self.scores.episodes == self.episodes else f"{self.scores.episodes} of the"
        return (
            f"{self.scores}\nchosen on {share} {plural(self.episodes, 'episode')} by single steps, since no "
            f"episode is of the target: {self.features}"
        )

    @property
    def bias(self) -> float:
        """By how much the mean may be off for what the features that were chosen miss."""
        return 0.0 if self.scores is None else self.scores.bias

    @property
    def notes(self) -> dict[str, Any]:
        """What the target is, and what features were chosen from."""
        choice = None
        if self.scores is not None:
            choice = {"features": self.spelled, "one_step": self.scores.to_dict()}
        named = {"name": self.name, "actions": self.policy.actions, "action_names": list(self.action_names)}
        return {"choice": choice, "target": {**named, "near": asdict(self.near)}}

    @property
    def settings(self) -> dict[str, Any]:
        """What tells the target from another one."""
        return {"target": list(self.fingerprint)}

    def fit(self, reduce: Reduce, unit: float) -> Fitted:
        """LSTDQ's passes, and one for what the log and the target have in common.

        The draws are always the same, so that targets on one log are compared by episode.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UncoveredWarning)  # the evaluation's names the actions
            risk = fit_warning(self.lstdq, reduce_in_units(reduce, unit), bootstrap=DRAWS_OF_TABLES, seed=0)
        if self.bias and risk.error_bars is not None:
            with suppress(UncoveredError):  # which comes again
                error = unit * risk.summary().mean.standard_error
                wide = math.hypot(1.0, self.bias / error) if error > 0 else 1.0
                risk = replace(risk, error_bars=risk.error_bars.widened(wide))
        overlap = reduce(self._overlap).to_dict()
        return Fitted(risk, {"target": {**self.notes["target"], **overlap}})

    def _overlap(self, source: Source, part: int = 0) -> Overlap:
        return Overlap.over(source, self.policy, self.request.discount)

    def partition(self, log: Log) -> tuple[Features, str, float]:
        """Features that put every state into one cell, the plan's own if they do; their spelling and bias."""
        fitting, survey = Fitting.of(self.request, log, "direct"), log.survey
        spelling, dim, bias = self.spelling, survey.dim, self.bias
        if not is_partition(fitting.maps(spelling)[0], survey.visited):
            most = survey.transitions / (20 * self.policy.actions)
            names = tiles_of_labels(survey, fitting.labels)
            sizes = dict.fromkeys(tuple(names.get(d, b) for d in range(dim)) for b in _GRIDS)
            ways = ("",) if names else ("", "rank")
            grids = [Spelling("tiles", each, by=by) for each in sizes for by in ways if prod(each) <= most]
            if not grids:
                raise InvalidInputError(
                    f"features must put states into cells for a target's quantiles, got {self.spelled}, and "
                    f"{plural(survey.transitions, 'transition')} of {plural(self.policy.actions, 'action')}, "
                    'too few to choose a grid; name one, as in "tiles:2,dims=0", or gather more'
                )
            how: dict[str, Any] = {"seed": self.request.seed, "most_steps": _longest(self.request, survey)}
            spelling, scores = choose_for_target(log.sample, fitting, self.policy, **how, among=grids)
            bias = scores.times(log.unit).bias
        return fitting.maps(spelling)[0], spelling.text(log.names), bias

    def judge(self, fitted: Fitted, data: Source) -> Fitted:
        """The doubly robust figures, where their intervals can be trusted."""
        target = {**fitted.notes["target"], "doubly_robust": None}
        if (target["effective_episodes"] or 0.0) >= FEW_EPISODES:
            with warnings.catch_warnings(), suppress(PolicyRiskError):  # the advice does not call it made
                warnings.simplefilter("ignore", PolicyRiskWarning)
                found = self.lstdq.doubly_robust(data, level=self.request.level, seed=self.request.seed)
                target["doubly_robust"] = {**found.to_dict(), "apart": list(found.apart)}
        return replace(fitted, notes={"target": target})

    def held_out(self, sample: Trajectories, seed: int) -> Completed | None:
        """None: no episode is of the target."""
        return None


def _longest(request: EvaluationRequest, survey: Survey) -> float:
    """The most steps of an episode, where the request knows it."""
    return survey.longest if request.time_limit == "end" else request.time_limit or math.inf


def choose_for_target(
    data: Trajectories,
    fitting: Fitting,
    target: Target,
    *,
    seed: int,
    most_steps: float,
    among: Sequence[Spelling] = (),
) -> tuple[Spelling, TargetScores]:
    """The features of the state with the smallest errors of one step, by the module's rule.

    Of all candidates, or ``among`` some. They are judged by the mean alone, so that how the variance is
    estimated does not matter.
    """
    survey, names, actions = fitting.survey, fitting.names, target.actions
    labels = fitting.labels or label_columns(data, survey, fitting.discount, seed)
    data = data[:: max(min(-(-data.transitions // CHOSEN_ON), len(data) // FOLDS), 1)]
    spellings = list(among) or label_spellings(survey, names, labels)
    if not (among or fitting.labels):
        spellings = candidates(survey, data.transitions // actions) + spellings
    if not spellings or len(data) < FOLDS:
        raise InvalidInputError(
            f"features=auto must have enough data to choose by, got {plural(len(data), 'episode')} with "
            f"{plural(data.transitions, 'transition')} of {plural(actions, 'action')}; gather more, or name "
            "the features, as in poly:1"
        )
    free = replace(fitting, variance="second-moment", nonnegative_at=None)
    by_name = {s.text(names): s for s in spellings}
    estimators = {
        name: LSTDQ(free.maps(s)[0], target, **free.settings(s, len(data))) for name, s in by_name.items()
    }
    scores = score_for_target(estimators, data, seed, labels, most_steps)
    return by_name[scores.best], scores


def _digest(target: Target, survey: Survey) -> str:
    """What tells the target from another one: its probabilities at visited states."""
    return blake2b(target.probabilities(survey.visited[:DIGESTED]).tobytes(), digest_size=8).hexdigest()
