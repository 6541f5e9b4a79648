"""From a request to an :class:`Evaluation`: survey → plan → fit, with the tails → judge.

The data are read as a stream: one pass for the survey (and a sample of episodes to choose features on), then
those that the estimator takes. All of them are taken here, where the estimator's sums can be kept in a
checkpoint every few seconds, or all by the workers of a cluster.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Unpack

from policyrisk import distributed
from policyrisk._core.arrays import Seed
from policyrisk._core.devices import single_threaded
from policyrisk._core.keywords import hinting
from policyrisk._core.output import Clock
from policyrisk._core.text import percent
from policyrisk.data import Source, TimeLimit
from policyrisk.data.columns import AnyReaderOptions, reading
from policyrisk.data.files import PathOrPaths
from policyrisk.errors import PolicyRiskError, PolicyRiskWarning
from policyrisk.evaluation.log import Log, Watched, described, fingerprint, surveyed
from policyrisk.evaluation.mixture import MixturePlan
from policyrisk.evaluation.overlap import Overlap
from policyrisk.evaluation.plan import Fitted, Fitting, Plan, SpelledPlan
from policyrisk.evaluation.prediction import predicted
from policyrisk.evaluation.record import Evaluation
from policyrisk.evaluation.request import AUTO, EvaluationRequest
from policyrisk.evaluation.tails import CHAIN, COLUMNS
from policyrisk.evaluation.target import TargetPlan
from policyrisk.evaluation.target_findings import refuse_uncovered, warn_of_uncovered
from policyrisk.passes import Reduce
from policyrisk.passes.checkpoint import DurableReduce
from policyrisk.passes.survey import Survey
from policyrisk.returns import DistributionMixture, RecordedReturns, ReturnDistribution
from policyrisk.returns.chain_tails import ChainTails
from policyrisk.returns.cut_off import CutOffReturns
from policyrisk.returns.distribution_function import DistributionAtStates
from policyrisk.returns.robust_tails import robust_tails
from policyrisk.returns.start_distribution import StartDistribution
from policyrisk.risk import FEW_EPISODES, RiskFunction, VarianceMethod
from policyrisk.risk.mixture import STATES, with_merged_draws
from policyrisk.selection.distribution_stack import stack_distribution
from policyrisk.selection.stacking import brief

JUDGED = 100_000  # transitions up to which the estimate is judged by one more look at the data


@hinting
@reading(AnyReaderOptions)
def evaluate(  # type: ignore[misc]  # cluster is a reader's too
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
    quantiles: Sequence[float] | None = None,
    loss_below: float | None = None,
    seed: Seed = None,
    name: str | None = None,
    names: Sequence[str] | None = None,
    labels: Sequence[str] = (),
    time_limit: TimeLimit | None = None,
    cluster: Any = None,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = False,
    on_cluster: bool = False,
    say: Callable[[str], object] | None = None,
    **columns: Unpack[AnyReaderOptions],
) -> Evaluation:
    """Evaluate a recorded policy, or another one from its log: ``policyrisk evaluate``, from Python.

    Parameters
    ----------
    source
        What :func:`policyrisk.read` reads (a path, or several, or a data frame), or Trajectories, or a
        re-iterable of them such as a stream.
    discount
        Of the returns, in (0, 1].
    features
        A spelling, as in ``"tiles:20x20"`` or, for a function of your own, ``"my_module:edges"``
        (:mod:`policyrisk.features.spelling`), or "auto" for a mixture that held-out episodes choose
        (:mod:`policyrisk.evaluation.mixture`).
    target
        A policy other than the recorded one, of data with actions: probabilities (states, actions) or an
        action (states,) for whole-numbered states, or a function from states (n, dim) to probabilities
        (n, actions) or to actions (n,), by number or by name. It is estimated by :class:`policyrisk.LSTDQ`,
        with a block of features for each action ("auto": :mod:`policyrisk.evaluation.target`). Targets on one
        log are compared episode by episode (:func:`policyrisk.compare`).
    lam, ridge
        As those of :class:`policyrisk.LSTD`; None is λ = 0.9, and 0 for a target.
    variance
        "direct" or "second-moment", as for LSTD; None is "second-moment" where features are spelled for the
        recorded policy, and "direct" else.
    nonnegative
        Whether to demand V ≥ 0 at all visited states.
    box
        Low and high of every coordinate for the features, or "auto" for the data's own extent.
    level
        Of the intervals.
    quantiles, loss_below
        Of the distribution of the return: its quantiles (0.05 and 0.95, say), the mean of the worst, and the
        probability of less than ``loss_below``, over the starts and from every state
        (``Evaluation.distribution``). With "auto" features the 5 %
        quantile and the chance of less than 0 are part of the answer; () leaves them out. With others they
        take one or two more passes. Those of a target are found by the log as a chain, without propensities.
    seed
        For the samples that are drawn of states and episodes, and for the folds, trees and draws of a
        mixture; what spelled features estimate does not depend on it.
    name, names
        The policy's name and those of the coordinates, for tables and pictures.
    labels
        Coordinates whose numbers are names; columns of text are labels anyway, and where there are none
        "auto" finds them itself (:mod:`policyrisk.evaluation.labels`).
    time_limit
        Takes the limit at which episodes were cut off for their end: a number of steps, or "end" for the one
        that they have in common. The time left then is the state's last coordinate, ``time_left``
        (:meth:`policyrisk.Trajectories.with_time_limit`).
    cluster
        Which episodes share what happens to them, such as those of one day, customer or training seed: the
        name of a column, an array (episodes,), or "blocks:50" for blocks of 50 consecutive episodes.
        Clusters, and not episodes, are then taken to be independent by every interval, fold and comparison.
    checkpoint, resume
        The file that holds the fit's sums so far, once it has taken some seconds; and whether to go on from
        there, to the same bits.
    on_cluster
        Whether Ray's workers read the data, each of several files being a shard. There is no checkpoint then,
        since other workers take over what one has lost.
    say
        Called with the table that features were chosen from, before the fit.
    state, episode, reward, terminated, truncated, step, action, propensity, codes, missing
    time, batch_rows
        Of files and data frames: the names of their columns, and how they are read, as of
        :func:`policyrisk.read_parquet`.
    row_groups, project
        Of Parquet files (:func:`policyrisk.read_parquet`) and of Minari's datasets
        (:func:`policyrisk.read_minari`).

    Returns
    -------
    Evaluation
        The estimate with its summary over the starts, the advice, and the survey of the data.

    Raises
    ------
    InvalidInputError
        An argument or the data are not as they must be; the text says which, and the way out.
    ImproperPolicyError
        No episode terminated, without a discount.
    UncoveredError
        The target takes actions that were never logged, and too many of them: nothing is invented there.

    Examples
    --------
    >>> import policyrisk as pr
    >>> data = pr.domains.walk(n=10, p=0.7).sample(start=0, episodes=1000, seed=1)
    >>> result = pr.evaluate(data, features="tabular", names=["place"])
    >>> result.summary.std
    9.7399 ± 0.425 (8.9652 to 11.142)
    >>> [advice.title for advice in result.advice]
    ['No problems found']
    >>> result.risk.std([[9]]).round(3)
    array([3.459])

    >>> log = pr.Trajectories([[0], [1]] * 400, [0, 10] * 200, [1] * 400, [True] * 400, actions=[0, 1] * 200)
    >>> result = pr.evaluate(log, target=[[0.9, 0.1]])
    >>> print(f"{result.summary.mean.value:.3f}, {result.summary.variance.value:.3f}")
    1.000, 9.000
    """
    return run(EvaluationRequest(**locals()).checked())


def run(request: EvaluationRequest) -> Evaluation:
    """The answer to a checked request; an error where too little of a target was logged."""
    clock = Clock()
    # A mixture takes many small systems, on which several BLAS threads would mostly wait for each other.
    alone = single_threaded() if request.spelling is None else nullcontext()
    with alone, distributed.cluster() if request.on_cluster else nullcontext():
        with clock("survey"):
            log = surveyed(request)
        with clock("choice"):
            plan = planned(request, log)
        if request.say is not None and plan.explanation:
            request.say(plan.explanation)
        notes = noted(request, log, plan)
        reduce = log.shards or _durable(request, log, plan, notes)
        fitted = fit(request, log, plan, reduce, clock)
        notes |= fitted.notes
        found = Evaluation(
            _named(request), log.names, fitted.risk, log.survey, request.level, notes, check=fitted.check
        )
        if found.target is not None:
            refuse_uncovered(found)
            warn_of_uncovered(found)
        if request.quantiles:
            with clock("distribution"):
                distribution, told = fit_distribution(request, plan, found.risk, reduce, log)
            found = replace(found, distribution=distribution, notes={**notes, "distribution": told})
        found = replace(found, prediction=predicted(found, plan, log, request.seed))
    found = replace(found, seconds=clock.seconds)
    return found if found.target is None else found.judged()


def planned(request: EvaluationRequest, log: Log) -> Plan:
    """The plan for the request."""
    if request.target is not None:
        return TargetPlan.of(request, log)
    if request.spelling is not None:
        return SpelledPlan.of(request, log)
    fitting = Fitting.of(request, log, "direct")
    assert log.wide is not None
    return MixturePlan.of(log.sample, fitting, request.seed, log.unit, (log.wide, log.numbers))


def noted(request: EvaluationRequest, log: Log, plan: Plan) -> dict[str, Any]:
    """The notes on the evaluation, in plain values."""
    survey, counts = log.survey, log.counts
    notes = {
        "data": described(request.source),
        "columns": json.loads(json.dumps(dict(request.columns), default=_called)),
        "settings": {**request.settings, **plan.settings},
        "features": plan.features,
        "variance": plan.variance,
        "box": [list(map(float, ends)) for ends in zip(log.low, log.high, strict=True)],
        "constant": list(log.constant),
        # With the names of those that are text.
        "labels": {log.names[d]: list(log.labels.get(d, ())) for d in sorted({*log.labels, *plan.labels})},
        "unrecorded_ends": counts.given_up,
        "vanished_episodes": counts.vanished,
        "filled_values": counts.filled,
        "dropped_episodes": counts.dropped,
        **plan.notes,
    }
    if request.time_limit is not None:
        notes["time_limit"] = survey.longest if request.time_limit == "end" else request.time_limit
    return notes


def fit(request: EvaluationRequest, log: Log, plan: Plan, reduce: Reduce, clock: Clock) -> Fitted:
    """The plan's estimate in the rewards' own unit, judged."""
    with clock("fit"):
        try:
            fitted = plan.fit(reduce, log.unit)
        except PolicyRiskError:
            if request.checkpoint is not None:
                Path(request.checkpoint).unlink(missing_ok=True)  # it would come to the same end
            raise
    fitted = replace(fitted, risk=fitted.risk.times(log.unit))
    if log.shards is None and log.survey.transitions <= JUDGED:
        with clock("check"):
            fitted = plan.judge(fitted, log.data)
    risk = with_merged_draws(fitted.risk, log.survey.visited[:STATES])
    return replace(fitted, risk=replace(risk, coordinates=log.coordinates))


def _durable(request: EvaluationRequest, log: Log, plan: Plan, notes: dict[str, Any]) -> DurableReduce:
    """Passes in this process, whose sums a checkpoint keeps for the same problem."""
    problem = {key: notes[key] for key in ("columns", "settings", "features", "variance")} | plan.identity
    problem["settings"] = {**notes["settings"], **plan.identity}
    problem["data"] = [notes["data"], *fingerprint(request.source, log.survey)]
    watched = Watched("fit", log.data, log.survey.transitions)
    return DurableReduce(watched, request.checkpoint, problem, resume=request.resume)


def fit_distribution(
    request: EvaluationRequest, plan: Plan, risk: RiskFunction, reduce: Reduce, log: Log
) -> tuple[DistributionAtStates, dict[str, Any]]:
    """The distribution beside a plan's estimate, and what notes say of it, in plain values.

    At states they are :class:`policyrisk.ReturnDistribution`'s, by the features that were spelled, or those
    of a mixture (:mod:`policyrisk.selection.distribution_stack`): the *model*. Over the starts they are those
    of the recorded returns, with the model's beside them. Where episodes were cut off a mixture completes
    their returns, and what a sample of the episodes says without any model stands beside
    (:mod:`policyrisk.returns.cut_off`).

    Of a target no return was recorded. Its model is the log as a chain
    (:mod:`policyrisk.returns.chain_tails`), on the table or the tiling of its features; where these are no
    partition, on the one that held-out steps ask for. Where propensities are known, the doubly robust
    distribution over the starts stands beside it (:mod:`policyrisk.returns.robust_tails`).
    """
    survey, notes = log.survey, {}
    below = () if request.loss_below is None else (request.loss_below,)
    asked = tuple(request.quantiles or ()), request.level
    if isinstance(plan, TargetPlan):
        phi, spelled, bias = plan.partition(log)
        tails = ChainTails.fit_by(reduce, phi, plan.policy, request.discount, log.unit, bias)
        notes = {"features": f"{CHAIN}, {spelled}", **tails.over().summary(*asked, below=below).to_dict()}
        worth = Overlap.over(log.data, plan.policy, request.discount).to_dict()["effective_episodes"]
        robust = robust_tails(tails, log.data, plan.policy) if (worth or 0.0) >= FEW_EPISODES else None
        if robust is not None:
            told = robust.summary(*asked, below=below).to_dict()
            notes["doubly_robust"] = {kind: told[kind] for kind in COLUMNS}
        return replace(tails, coordinates=log.coordinates), notes
    if isinstance(plan, MixturePlan) and risk.bars.key is not None:
        how: dict[str, Any] = {"key": plan.key, "unit": plan.unit, "names": log.names}
        mixture, regions = stack_distribution(plan.stack, plan.sample, plan.maps, risk, **how)
        dist: DistributionAtStates = replace(mixture, coordinates=log.coordinates)
        members = ", ".join(f"{brief(each.name)} ({percent(each.share)})" for each in mixture.members)
        notes = {"features": members, "regions": [asdict(each) for each in regions]}
    else:
        phi, _ = Fitting.of(request, log, plan.variance).maps(plan.spelling)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PolicyRiskWarning)  # what is given up is in the advice
            fitted = ReturnDistribution(phi, discount=request.discount).fit_by(reduce)
        dist = replace(fitted, coordinates=log.coordinates)
        notes = {"features": plan.spelling.text(log.names)}
    model = dist.summary(survey.starts, *asked, below=below).to_dict()
    recorded: StartDistribution | None = recorded_returns(survey, request.discount)
    if survey.cut_off and len(log.sample) > 1:
        cut_off = CutOffReturns(log.sample, request.discount, log.unit)
        notes["without_model"] = cut_off.summary(*asked, below=below)
        recorded = dist.completing(log.sample) if isinstance(dist, DistributionMixture) else None
    if recorded is None:
        return dist, {**notes, **model}
    return dist, {**notes, **recorded.summary(*asked, below=below).to_dict(), "model": model}


def recorded_returns(survey: Survey, discount: float) -> RecordedReturns | None:
    """The recorded returns, all or the survey's uniform sample; None where one of all was cut off."""
    returns = survey.returns[0]
    known = not survey.cut_off and returns.size >= 2
    return RecordedReturns(returns, discount, survey.clusters) if known else None


def _named(request: EvaluationRequest) -> str:
    """The policy's name."""
    if request.name is not None:
        return request.name
    return Path(request.source).stem if isinstance(request.source, str | os.PathLike) else "policy"


def _called(function: object) -> str:
    """What stands for a value that JSON does not know, such as a reader's ``project=``."""
    return getattr(function, "__qualname__", type(function).__name__)
