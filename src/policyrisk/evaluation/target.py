"""Another policy than the recorded one: what it is, which features it gets, and what is fitted for it.

The target policy π is a table of probabilities (states, actions), an action for each state, or a function
from states (n, dim) to (n, actions). Features of the state get a block for each action
(:class:`policyrisk.LSTDQ`). Where none are spelled they are

    a table          of one whole-numbered coordinate: where π is a table, where the coordinate is a label, or
                     with at least TABLE_VISITS transitions to a value
    otherwise        the candidates of :mod:`policyrisk.evaluation.feature_choice` with at most n/(20 m)
                     features, m being the number of actions: the one with the smallest errors of one step
                     for π on held-out episodes (:mod:`policyrisk.evaluation.target_choice`)

No held-out episode tells what π would have earned. What an action leads to every step tells, whoever took it.

A function of one whole-numbered coordinate that has a table is asked once for every state, and the answers
are kept as a table: a saved evaluation then needs no code.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any

import numpy as np

from policyrisk._core.arrays import Floats, as_array, as_floats, as_whole
from policyrisk._core.text import plural
from policyrisk.errors import InvalidInputError, PolicyRiskError, PolicyRiskWarning
from policyrisk.evaluation.feature_choice import candidates
from policyrisk.evaluation.labels import label_columns, label_spellings
from policyrisk.evaluation.overlap import NotLogged, Overlap
from policyrisk.evaluation.spelling import Spelling
from policyrisk.evaluation.target_choice import FOLDS, TargetScores, score_for_target
from policyrisk.features.target import Target
from policyrisk.lstd import LSTDQ
from policyrisk.passes.survey import Survey
from policyrisk.readers import Stream
from policyrisk.risk import FEW_EPISODES, VarianceMethod
from policyrisk.trajectories import Source, Trajectories

TABLE_VISITS = 20  # transitions to a value of the state, on average, from which on there is a table of them
SPARSE_TABLE = 4  # numbers to a value, up to which a table has a place for each number
CHOSEN_ON = 20_000  # transitions, about: every so many episodes of the sample
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
        actions = as_floats(given(survey.visited[:1]), "target(states)", (1, None)).shape[1]
    elif (table := as_array(given, "target", "probabilities, actions or a function")).ndim == 1:
        actions = max(logged, int(as_whole(table, "target", (None,)).max(initial=0)) + 1)
    target = Target.of(given, actions, 0, 0)
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
    """What is fitted for a target, and how it was settled."""

    policy: Target
    name: str  # before it became a table
    fingerprint: tuple[str, str]  # what tells it from another one
    action_names: tuple[str, ...]
    spelling: Spelling  # of the state's features
    discount: float
    near: NotLogged
    scores: TargetScores | None  # of the candidates, where features were chosen
    episodes: int  # of the data

    @classmethod
    def of(
        cls,
        policy: Target,
        action_names: tuple[str, ...],
        sample: Trajectories,
        survey: Survey,
        names: Sequence[str],
        low: Floats,
        high: Floats,
        spelling: Spelling | None,
        *,
        labels: Sequence[int],
        seed: int,
        most_steps: float,
        **settings: Any,
    ) -> TargetPlan:
        """The plan for a target and a caller's spelling, on a sample of the episodes that ``survey`` is of.

        ``settings`` are those of LSTDQ, and no episode of the target has more than ``most_steps``.
        """
        scores = None
        name, fingerprint = policy.name, (policy.name, _digest(policy, survey))
        spelling = spelling or table_spelling(policy, survey, labels)
        if spelling is None:
            box = names, low, high
            spelling, scores = choose_for_target(
                sample, survey, *box, policy, labels=labels, seed=seed, most_steps=most_steps, **settings
            )
        if spelling.kind in ("tabular", "labels"):
            policy = tabulated(policy, survey)
        told = settings["discount"], NotLogged.near(policy, sample, survey), scores, survey.episodes
        return cls(policy, name, fingerprint, action_names, spelling, *told)

    @property
    def features(self) -> str:
        """The features in words."""
        return f"{self.spelling}, a block for each of {plural(self.policy.actions, 'action')}"

    def __str__(self) -> str:
        if self.scores is None:
            return self.features
        share = "all" if self.scores.episodes == self.episodes else f"{self.scores.episodes} of the"
        return (
            f"{self.scores}\nchosen on {share} {plural(self.episodes, 'episode')} by single steps, since no "
            f"episode is of the target: {self.features}"
        )

    def overlap(self, source: Source, part: int = 0) -> Overlap:
        """How much of the data is like the target: a pass."""
        return Overlap.over(source, self.policy, self.discount)

    @property
    def choice(self) -> dict[str, Any] | None:
        """What features were chosen from in plain values, None where they were not."""
        if self.scores is None:
            return None
        return {"features": str(self.spelling), "one_step": self.scores.to_dict()}

    def to_dict(self) -> dict[str, Any]:
        """What notes say of the target, in plain values."""
        named = {"name": self.name, "actions": self.policy.actions, "action_names": list(self.action_names)}
        return {**named, "near": asdict(self.near)}


def choose_for_target(
    data: Trajectories,
    survey: Survey,
    names: Sequence[str],
    low: Floats,
    high: Floats,
    target: Target,
    *,
    labels: Sequence[int],
    seed: int,
    most_steps: float,
    ridge: float,
    variance: VarianceMethod,
    **settings: Any,
) -> tuple[Spelling, TargetScores]:
    """The features of the state with the smallest errors of one step, by the module's rule.

    They are judged by the mean alone, so that the ``variance`` that will be fitted does not matter.
    """
    found = tuple(labels) or label_columns(data, survey, settings["discount"], seed)
    data = data[:: max(min(-(-data.transitions // CHOSEN_ON), len(data) // FOLDS), 1)]
    spellings, actions = label_spellings(survey, names, found), target.actions
    if not labels:
        spellings = candidates(survey, data.transitions // actions, names) + spellings
    if not spellings or len(data) < FOLDS:
        raise InvalidInputError(
            f"features=auto must have enough data to choose by, got {plural(len(data), 'episode')} with "
            f"{plural(data.transitions, 'transition')} of {plural(actions, 'action')}; gather more, or name "
            "the features, as in poly:1"
        )
    estimators = {
        str(s): LSTDQ(
            s.build(names, survey, low, high),
            target,
            variance="second-moment",
            ridge=max(ridge, s.ridge(len(data))),
            **settings,
        )
        for s in spellings
    }
    scores = score_for_target(estimators, data, seed, found, most_steps)
    return next(s for s in spellings if str(s) == scores.best), scores


def doubly_robust_beside(
    lstdq: LSTDQ, data: Source, effective: float | None, level: float, seed: int
) -> dict[str, Any] | None:
    """What :meth:`policyrisk.LSTDQ.doubly_robust` says, in plain values; ``apart`` is where it differs.

    None where its intervals cannot be trusted: without propensities, or with few ``effective`` episodes.
    """
    if effective is None or effective < FEW_EPISODES:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PolicyRiskWarning)
        try:
            found = lstdq.doubly_robust(data, level=level, seed=seed)
        except PolicyRiskError:
            return None  # the advice does not call it made
        return {**found.to_dict(), "apart": list(found.apart)}


def _digest(target: Target, survey: Survey) -> str:
    """What tells the target from another one: its probabilities at visited states."""
    return blake2b(target.probabilities(survey.visited[:DIGESTED]).tobytes(), digest_size=8).hexdigest()
