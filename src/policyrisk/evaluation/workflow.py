"""From recorded episodes to an :class:`Evaluation`: survey the data, settle the features, fit.

The data are read as a stream: one pass for the survey (and a sample of episodes to choose features on), then
those that the estimator takes. All of them are taken here, where the estimator's sums can be kept in a
checkpoint every few seconds, or all by the workers of a cluster.
"""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from policyrisk import distributed
from policyrisk._core.arrays import (
    Seed,
    as_flag,
    as_list,
    as_number,
    check_choice,
)
from policyrisk._core.frames import Coordinates
from policyrisk._core.output import Clock
from policyrisk._core.text import plural
from policyrisk.distributed.fold import ShardFold
from policyrisk.errors import (
    ALL_CUT_OFF,
    ImproperPolicyError,
    InvalidInputError,
    NoErrorBarsWarning,
    PolicyRiskError,
)
from policyrisk.evaluation.arguments import (
    AUTO,
    box_bounds,
    check_checkpoint,
    naming_arguments,
    seed_number,
    spelled_features,
    state_names,
)
from policyrisk.evaluation.feature_choice import EPISODES, TRANSITIONS, FeatureChoice, choose_features
from policyrisk.evaluation.labels import stated_labels
from policyrisk.evaluation.mixture_fit import fit_mixture
from policyrisk.evaluation.quantiles import TailsAsked, spelling_for
from policyrisk.evaluation.record import Evaluation
from policyrisk.evaluation.source import Watched, described, fingerprint, opened, shards_of
from policyrisk.evaluation.spelling import Spelling, data_box
from policyrisk.evaluation.target import TargetPlan, action_names, as_target, doubly_robust_beside
from policyrisk.evaluation.target_findings import refuse_uncovered
from policyrisk.features import Features
from policyrisk.lstd import LSTD, LSTDQ
from policyrisk.lstd.action_estimator import FEWEST_DRAWS
from policyrisk.passes.checkpoint import DurableFold
from policyrisk.passes.fold import Fold, here
from policyrisk.passes.survey import SurveyPass
from policyrisk.readers import Stream
from policyrisk.readers.files import PathOrPaths
from policyrisk.risk import RiskFunction, VarianceMethod
from policyrisk.risk.check import FeatureCheck
from policyrisk.risk.estimate import as_level
from policyrisk.trajectories import (
    TIME_LEFT,
    Source,
    TimeLimit,
    as_time_limit,
    coordinates_of,
)

CHECKED = 100_000  # transitions up to which the features are tested by them


def evaluate(
    source: PathOrPaths | Source | Any,
    discount: float = 1.0,
    features: str = AUTO,
    *,
    target: Any = None,
    lam: float | None = None,
    ridge: float = 0.0,
    variance: VarianceMethod | None = None,
    nonnegative: bool = False,
    box: str | Sequence[tuple[float, float]] = AUTO,
    level: float = 0.95,
    quantiles: Sequence[float] = (),
    loss_below: float | None = None,
    seed: Seed = None,
    name: str | None = None,
    names: Sequence[str] | None = None,
    labels: Sequence[str] = (),
    time_limit: TimeLimit | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = False,
    on_cluster: bool = False,
    say: Callable[[str], object] | None = None,
    **columns: Any,
) -> Evaluation:
    """Evaluate a recorded policy, or another one from its log: ``policyrisk evaluate``, from Python.

    ``source`` is what :func:`policyrisk.read` reads (a path, or several, or a data frame), with the reader's
    options as ``columns`` (``state=["x", "y"]``, ``missing="last"``), or Trajectories, or a re-iterable of
    them such as a stream. ``time_limit`` takes the limit at which episodes were cut off for their end: a
    number of steps, or "end" for the one that they have in common. The time left then is the state's last
    coordinate, ``time_left`` (:meth:`policyrisk.Trajectories.with_time_limit`).

    ``features`` is a spelling, as in ``"tiles:20x20"`` or, for a function of your own, ``"my_module:edges"``,
    or "auto" for a mixture that held-out episodes choose (:mod:`policyrisk.evaluation.spelling`,
    :mod:`policyrisk.evaluation.feature_choice`), over ``box``: low
    and high of every coordinate, or "auto" for the data's own extent. ``lam``, ``discount``, ``ridge`` and
    ``variance`` are those of :class:`policyrisk.LSTD`; None is λ = 0.9, and "direct" for a mixture and
    "second-moment" where features are spelled. ``nonnegative`` demands V ≥ 0 at all visited states. ``level``
    is that of the intervals. ``seed`` is for the samples that are drawn of states and episodes, and for the
    folds, trees and draws of a mixture; what spelled features estimate does not depend on it.

    ``target`` is a policy other than the recorded one, of data with actions: probabilities (states, actions)
    or an action (states,) for whole-numbered states, or a function from states (n, dim) to (n, actions). It
    is estimated by :class:`policyrisk.LSTDQ`, None being λ = 0 and "direct" then, with a block of features
    for each action ("auto": :mod:`policyrisk.evaluation.target`). Where it takes actions that were never
    logged nothing is invented: too many of them are a :class:`policyrisk.errors.UncoveredError`. Targets on
    one log are compared episode by episode (:func:`policyrisk.compare`).

    ``quantiles`` (0.05 and 0.95, say) and ``loss_below`` ask for the distribution of the return as well, in
    one or two more passes: its quantiles, the mean of the worst, and the probability of less than
    ``loss_below``, over the starts and from every state (``Evaluation.distribution``,
    :mod:`policyrisk.evaluation.quantiles`).

    ``name`` is the policy's and ``names`` the coordinates', for tables and pictures. ``labels`` are those of
    them whose numbers are names; columns of text are labels anyway, and where there are none "auto" finds
    them itself (:mod:`policyrisk.evaluation.labels`). The fit's sums so far
    are in the file ``checkpoint`` once it has taken some seconds, and ``resume`` goes on from there, to the
    same bits. ``on_cluster`` has Ray's workers read the data, each of several files being a shard; there is
    no checkpoint then, since other workers take over what one has lost. ``say`` is called with the table
    that features were chosen from, before the fit.

    >>> import policyrisk as pr
    >>> data = pr.domains.walk(n=10, p=0.7).sample(start=0, episodes=1000, seed=1)
    >>> result = pr.evaluate(data, features="tabular", names=["place"])
    >>> result.summary.std
    9.7399 ± 0.425 (8.9652 to 11.142)
    >>> [advice.title for advice in result.advice]
    ['Nothing stands against these numbers']
    >>> result.risk.std([[9]]).round(3)
    array([3.459])

    >>> log = pr.Trajectories([[0], [1]] * 400, [0, 10] * 200, [1] * 400, [True] * 400, actions=[0, 1] * 200)
    >>> result = pr.evaluate(log, target=[[0.9, 0.1]])
    >>> print(f"{result.summary.mean.value:.3f}, {result.summary.variance.value:.3f}")
    1.000, 9.000
    """
    if lam is None:
        lam = 0.9 if target is None else 0.0
    with naming_arguments():
        lam = as_number(lam, "lam", 0.0, 1.0)
        discount = as_number(discount, "discount", 0.0, 1.0, open_low=True)
        ridge = as_number(ridge, "ridge", 0.0)
        level = as_level(level)
        tails = TailsAsked.of(quantiles, loss_below, target)
        if time_limit is not None:
            time_limit = as_time_limit(time_limit)
        spelling = spelled_features(features)
        bounds = box_bounds(box)
        check_checkpoint(checkpoint, resume, on_cluster)
        labels = as_list(labels, "labels", "names of coordinates")
        nonnegative = as_flag(nonnegative, "nonnegative")
    if variance is not None:
        check_choice(variance, "variance", get_args(VarianceMethod))
    number = seed_number(seed, checkpoint, resume)
    # By all estimators that are tried.
    shared: dict[str, Any] = {"lam": lam, "discount": discount, "ridge": ridge}
    settings = {
        "features": features,
        "box": AUTO if bounds is None else bounds.tolist(),
        **shared,
        "direct": variance == "direct",
        "nonnegative": nonnegative,
        "labels": labels,
        "level": level,
        "seed": number,
        **({} if time_limit is None else {"time_limit": time_limit}),
        **({} if tails is None else {"quantiles": list(tails.quantiles), "loss_below": loss_below}),
    }
    actions = target is not None
    how: dict[str, Any] = {"actions": actions, "time_limit": time_limit}
    data = opened(source, columns, **how)
    clock = Clock()
    with distributed.cluster() if on_cluster else nullcontext():
        shards = ShardFold(shards_of(source, columns, **how), "stop") if on_cluster else None
        with clock("survey"):
            sampled = spelling is None or target is not None
            work = SurveyPass(number, (EPISODES, TRANSITIONS) if sampled else None, discount)
            found = here(Watched("survey", data))(work) if shards is None else shards(work)
            survey = found.survey()
        if discount == 1.0 and survey.cut_off == survey.episodes:
            raise ImproperPolicyError(
                f"with discount=1 some episode must terminate (Assumption 1: proper policy), got "
                f"{survey.episodes} episodes, all cut off; {ALL_CUT_OFF}"
            )
        counted = data if shards is None else shards
        losses = counted.counts if isinstance(counted, Stream | ShardFold) else None
        low, high, constant = data_box(survey)
        with naming_arguments():
            added = () if time_limit is None else (TIME_LEFT,)
            dim = survey.dim - len(added)
            called = coordinates_of(data)
            known = called.names[:dim] if called is not None else getattr(data, "state_columns", ())
            if known == ("state_0",) and columns.get("state") is None:
                known = ()  # a file whose data have no names
            own = state_names(names, known, dim)
            stated = stated_labels(labels, own, data)
            columns_of = (*own, *added) if called is None or names is not None else called.names
            names = (*own, *added)
            if bounds is not None and len(bounds) != len(names):
                raise InvalidInputError(
                    f"box must have low and high of each of {', '.join(names)}, got "
                    f"{plural(len(bounds), 'pair')}; pass one for each coordinate"
                )
        if bounds is not None:
            low, high = bounds.T.copy()
        plan: TargetPlan | None = None
        if target is not None:
            variance = variance or "direct"
            named = action_names(data)
            with naming_arguments("target"):
                policy = as_target(target, found.sample(), survey, named)
            with clock("choice"):
                plan = TargetPlan.of(
                    policy,
                    named,
                    found.sample(),
                    survey,
                    names,
                    low,
                    high,
                    spelling,
                    **shared,
                    variance=variance,
                    labels=tuple(stated),
                    seed=number,
                    most_steps=survey.longest if time_limit == "end" else time_limit or math.inf,
                )
            spelling, settings["target"] = plan.spelling, list(plan.fingerprint)
            if say is not None and plan.scores is not None:
                say(str(plan))
        choice: FeatureChoice | None = None
        if spelling is None:
            with clock("choice"):
                choice = choose_features(
                    found.sample(),
                    survey,
                    names,
                    low,
                    high,
                    **shared,
                    variance=variance or "direct",
                    labels=tuple(stated),
                    seed=number,
                )
            variance = variance or "direct"
            if say is not None:
                say(str(choice))
        described_features = str(spelling) if choice is None else choice.name
        if plan is not None:
            described_features = plan.features
        demanded: Literal["visited"] | None = "visited" if nonnegative else None
        settled = variance or "second-moment"

        def maps(spelled: Spelling) -> tuple[Features, Features | None]:
            with naming_arguments("features"):
                phi, other = spelled.build(names, survey, low, high), spelled.second
                return phi, None if other is None else other.build(names, survey, low, high, beside=spelled)

        def settings_of(spelled: Spelling) -> dict[str, Any]:
            own = {"ridge": max(ridge, spelled.ridge(survey.episodes)), "nonnegative_at": demanded}
            return {**shared, **own, "variance": settled}

        def estimator(spelled: Spelling, variance_lam: float = 0.0) -> LSTD:
            return LSTD(*maps(spelled), **settings_of(spelled), variance_lam=variance_lam)

        if spelling is not None:
            with naming_arguments("features"):
                spelling.check_labels(names, survey, stated)
        lstd: LSTD | LSTDQ | None = None
        if plan is not None:
            phi, second = maps(plan.spelling)
            lstd = LSTDQ(phi, plan.policy, None, second, **settings_of(plan.spelling))
        elif spelling is not None:
            lstd = estimator(spelling)
        notes = {
            "data": described(source),
            "columns": json.loads(json.dumps(columns, default=_called)),
            "settings": settings,
            "features": described_features,
            "variance": settled,
            "box": [list(map(float, ends)) for ends in zip(low, high, strict=True)],
            "constant": [names[d] for d in constant],
            # With the names of those that are text.
            "labels": {
                names[d]: list(stated.get(d, ()))
                for d in sorted({*stated, *(() if choice is None else choice.labels)})
            },
            "unrecorded_ends": 0 if losses is None else losses.given_up,
            "vanished_episodes": 0 if losses is None else losses.vanished,
            "filled_values": 0 if losses is None else losses.filled,
            "dropped_episodes": 0 if losses is None else losses.dropped,
            "choice": None if choice is None else choice.to_dict(),
        }
        if time_limit is not None:
            notes["time_limit"] = survey.longest if time_limit == "end" else time_limit
        if plan is not None:
            notes |= {"target": plan.to_dict(), "choice": plan.choice}
        with clock("fit"):
            fold: Fold | None = shards
            if fold is None:
                problem = {key: notes[key] for key in ("columns", "settings", "features", "variance")}
                if plan is None and spelling is not None:  # as other spellings of the same maps are
                    problem["features"] = str(spelling.normal(names))
                    problem["settings"] = {**settings, "features": problem["features"]}
                problem["data"] = [notes["data"], *fingerprint(source, survey)]
                watched = Watched("fit", data, survey.transitions)
                fold = DurableFold(watched, checkpoint, problem, resume=resume)
            try:
                if plan is not None and lstd is not None:
                    # The draws are always the same, so that targets on one log are compared by episode.
                    risk = _fit(lstd, fold, bootstrap=FEWEST_DRAWS, seed=0)
                    notes["target"] |= fold(plan.overlap).to_dict()
                elif lstd is not None:
                    risk = _fit(lstd, fold)
                else:
                    assert choice is not None
                    risk = fit_mixture(choice, estimator, fold, found.sample(), discount, number)
            except PolicyRiskError:
                if checkpoint is not None:
                    Path(checkpoint).unlink(missing_ok=True)  # it would come to the same end
                raise
        distribution = None
        if tails is not None:
            with clock("distribution"):
                spelled = spelling_for(choice) if choice is not None else spelling
                assert spelled is not None
                distribution, told = tails.fit(maps(spelled)[0], fold, discount, survey, level)
                notes["distribution"] = {"features": str(spelled), **told}
        check = None
        if choice is not None and shards is None and survey.transitions <= CHECKED:
            sample = found.sample()
            with clock("check"):
                check = _check(risk, sample if len(sample) == survey.episodes else data)
        if isinstance(lstd, LSTDQ) and shards is None and survey.transitions <= CHECKED:
            with clock("check"):
                notes["target"]["doubly_robust"] = doubly_robust_beside(
                    lstd, data, notes["target"]["effective_episodes"], level, number
                )
    if name is None:
        name = Path(source).stem if isinstance(source, str | os.PathLike) else "policy"
    texts = {columns_of[d]: texts for d, texts in stated.items() if texts}
    at = Coordinates(columns_of, texts)
    risk = replace(risk, coordinates=at)
    distribution = None if distribution is None else replace(distribution, coordinates=at)
    result = Evaluation(
        name, names, risk, survey, level, notes, clock.seconds, check, distribution=distribution
    )
    if plan is not None:
        refuse_uncovered(result)
    return result


def _called(function: object) -> str:
    """What stands for a value that JSON does not know, such as a reader's ``project=``."""
    return getattr(function, "__qualname__", type(function).__name__)


def _fit(lstd: LSTD | LSTDQ, fold: Fold, **bootstrap: Any) -> RiskFunction:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoErrorBarsWarning)  # its remedy is LSTD's
        risk = lstd.fit_by(fold, **bootstrap)
    if risk.error_bars is None:
        size = max(risk.features.size, risk.second_features.size)
        warnings.warn(
            f"no error bars: the covariance of {size} features would not fit into memory; use fewer for them",
            NoErrorBarsWarning,
            stacklevel=3,
        )
    return risk


def _check(risk: RiskFunction, data: Source) -> FeatureCheck | None:
    """The test of a mixture's features by the data; None where it cannot be made."""
    if risk.error_bars is None or risk.error_bars.key is None:
        return None
    try:
        return risk.check(data)
    except (PolicyRiskError, np.linalg.LinAlgError):
        return None  # the advice does not call it made
