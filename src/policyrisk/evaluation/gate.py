"""May a new policy take the place of a baseline? A gate for continuous integration, or for every morning.

Both are logs, returns, evaluations, or the ``summary.json`` of one. Where the returns of whole episodes are
known they are tested (:mod:`policyrisk.selection.margin`); a target's evaluation, tails of cut-off episodes
and a summary are judged by their intervals.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from policyrisk._core.arrays import Floats, Seed, as_array, as_floats, as_number, is_frame
from policyrisk._core.files import from_json
from policyrisk._core.text import Readable, TextTable, number, percent, printable
from policyrisk._core.units import unit_of
from policyrisk.criteria import Criterion, CVaR, MeanMinusStd, Quantile, Sharpe, as_criterion
from policyrisk.data import batches, coordinates_of
from policyrisk.data.read import has_columns
from policyrisk.errors import InvalidInputError, MismatchError
from policyrisk.evaluation.folder import SURVEY
from policyrisk.evaluation.log import marks_of, opened
from policyrisk.evaluation.record import Evaluation
from policyrisk.returns.start_distribution import Clusters
from policyrisk.risk.estimate import Estimate, as_level
from policyrisk.selection.comparison import check_discounts, compare, tails_of, withdrawn
from policyrisk.selection.margin import (
    Decision,
    Sample,
    Verdict,
    by_estimates,
    by_holm,
    by_interval,
    by_returns,
    check_criterion,
    own_estimate,
    unknown,
)
from policyrisk.selection.regions import Regions, points_of

REGIONS = "regions"
_GROUPS = 20  # at most
_DEPTH = 2  # cuts: up to 4 regions
_CODES: dict[Decision, int] = {"passed": 0, "worse": 1, "undecided": 3}
_MARKS: dict[Decision, str] = {"passed": "✅", "worse": "❌", "undecided": "❔"}
Names: TypeAlias = "str | tuple[npt.ArrayLike, npt.ArrayLike] | None"


@dataclass(frozen=True, eq=False)
class Gate(Readable):
    """The record of a gate: ``decision``, ``exit_code``, the numbers behind them, and ``markdown()``."""

    criterion: Criterion
    margin: float
    level: float
    names: tuple[str, str]  # of the new policy and of the baseline
    whole: Verdict  # on all episodes
    groups: tuple[Verdict, ...] = ()  # which decide in its place, with Holm's correction

    @property
    def decision(self) -> Decision:
        """passed, worse or undecided: of groups the worst, and passed only if each is."""
        found = [each.decision for each in self.groups or (self.whole,)]
        if "worse" in found:
            return "worse"
        return "undecided" if "undecided" in found else "passed"

    @property
    def exit_code(self) -> int:
        """0 passed, 1 worse, 3 undecided: that of ``policyrisk gate``."""
        return _CODES[self.decision]

    @property
    def line(self) -> str:
        """The decision in one line."""
        new, baseline = self.names
        what = str(self.criterion).partition(",")[0]
        if self.whole.reason:
            return f"{self.decision}: {what} of {new} against {baseline}: {self.whole.reason}"
        found = self.whole.difference
        said = (
            f"{self.decision}: {what} {number(self.whole.new)} of {new}, {number(self.whole.baseline)} of "
            f"{baseline}; difference {number(found)} ({number(found.low)} to {number(found.high)}, each end "
            f"with {percent(self.level)}), margin {self.margin:g}"
        )
        if self.groups:
            of = {each: [g.name for g in self.groups if g.decision == each] for each in _CODES}
            return f"{said}; " + ", ".join(f"{k} in {'/'.join(v)}" for k, v in of.items() if v)
        return said + "".join(f"; {each}" for each in _needed(self.whole))

    def _rows(self) -> Iterator[list[str]]:
        head = "all episodes" if not self.groups else "all episodes (does not decide)"
        for each in (self.whole, *self.groups):
            name = head if each is self.whole else each.name
            ends = "" if each.reason else f"{number(each.difference.low)} to {number(each.difference.high)}"
            values = [number(value) for value in (each.new, each.baseline, each.difference.value)]
            yield [name, *map(str, each.episodes), *values, ends, each.decision]

    @property
    def _header(self) -> list[str]:
        bounds = f"{percent(self.level)} bounds"
        return ["", "new episodes", "baseline's", "new", "baseline", "difference", bounds, "verdict"]

    def _remarks(self) -> Iterator[str]:
        for each in self.groups or (self.whole,):
            name = f"{each.name}: " if self.groups else ""
            yield from (f"{name}{said}" for said in (each.reason, *_needed(each)) if said)

    def _blocks(self) -> Iterator[str | TextTable]:
        yield printable(self.line)
        if self.groups:
            yield TextTable(self._header, list(self._rows()))
            yield from map(printable, self._remarks())

    def markdown(self) -> str:
        """The record for a pull request: a headline, a table and remarks."""

        def plain(text: str) -> str:
            """Without marks of Markdown or HTML."""
            return "".join(f"\\{c}" if c in "\\|*_`[]<>#&~" else c for c in printable(text))

        new, baseline = map(plain, self.names)
        rows = [["---", *["--:"] * 5, ":-:", "---"], *self._rows()]
        cells = [self._header, rows[0], *([*map(plain, row[:-1]), _mark(row[-1])] for row in rows[1:])]
        title = f"### {_mark(self.decision)}: {new} against {baseline}"
        how = (
            f"{plain(str(self.criterion))}; worse means by more than a margin of {self.margin:g}. "
            f"Each verdict is wrong with a probability of at most {percent(1.0 - self.level)}"
            f"{', all groups together (Holm)' if self.groups else ''}."
        )
        lines = [title, "", how, "", *(f"| {' | '.join(row)} |" for row in cells), ""]
        return "\n".join([*lines, *(f"- {plain(each)}" for each in self._remarks())]).rstrip() + "\n"

    def to_dict(self) -> dict[str, Any]:
        """Everything in plain values, as ``policyrisk gate --json`` prints it."""
        one, *others = (
            {**asdict(each), "difference": each.difference.to_dict()} for each in (self.whole, *self.groups)
        )
        return {
            "decision": self.decision,
            "exit_code": self.exit_code,
            "criterion": str(self.criterion),
            "margin": self.margin,
            "level": self.level,
            "new": self.names[0],
            "baseline": self.names[1],
            "all": one,
            "groups": others,
        }


def gate(
    new: Any,
    baseline: Any,
    criterion: Criterion | str = "cvar:0.05",
    margin: float = 0.0,
    level: float = 0.95,
    *,
    by: Names = None,
    cluster: Names = None,
    discount: float | None = None,
    seed: Seed = None,
    **columns: Any,
) -> Gate:
    """Decide whether a new policy is worse than a baseline by more than a margin.

    Parameters
    ----------
    new, baseline
        Each an :class:`policyrisk.Evaluation` or its folder, the ``summary.json`` of one, returns (n,) of
        whole episodes, or a log: what :func:`policyrisk.read` reads, or Trajectories.
    criterion
        One of :mod:`policyrisk.criteria` without a constraint, or its spelling.
    margin
        By how much the new policy may be worse, 0 or more.
    level
        A verdict is wrong with a probability of at most 1 − level, for level above 0.5.
    by
        A column by whose values at the starts groups are judged, each by itself, with Holm's correction; or
        "regions" for those that the starts of the baseline's evaluation are cut into, by the coordinates that
        matter most. A pair of arrays gives the values of each episode, of the new policy and of the baseline.
    cluster
        A column (seed, day), or a pair of arrays: episodes with the same value depend on each other. Clusters
        of the two policies are taken as different ones.
    discount
        That of logs; None is that of the evaluation beside it, or 1.
    seed
        Of the exchanges, which are the same ones where it is None.
    **columns
        The reader's options for logs, as in ``reward="pnl"``.

    Returns
    -------
    Gate
        ``decision`` ("passed", "worse" or "undecided"), ``exit_code`` (0, 1, 3), and the numbers behind them.

    Raises
    ------
    InvalidInputError
        An argument or the data are not as they must be, such as logs with episodes that were cut off.

    Examples
    --------
    >>> import policyrisk as pr
    >>> logs = [pr.domains.walk(n=10, p=p).sample(0, episodes=400, seed=1) for p in (0.6, 0.8)]
    >>> worse = pr.gate(*logs, criterion="cvar:0.05")
    >>> worse.decision, worse.exit_code
    ('worse', 1)
    >>> pr.gate(*reversed(logs), criterion="mean", margin=2.0).decision
    'passed'
    """
    criterion, level = as_criterion(criterion), as_level(level)
    check_criterion(criterion)
    margin = as_number(margin, "margin", 0.0, remedy="pass by how much the new policy may be worse")
    if level <= 0.5:
        raise InvalidInputError(f"level must be above 0.5, got {level:g}; pass a share such as 0.95")
    given = [_source(each) for each in (new, baseline)]
    of = _names(new, baseline, given)
    pairs = zip(of, given, strict=True)
    discounts = {name: e.risk.provenance.discount for name, e in pairs if isinstance(e, Evaluation)}
    if discount is not None:
        discounts["logs"] = as_number(discount, "discount", 0.0, 1.0, open_low=True)
    check_discounts(discounts)
    gamma = next(iter(discounts.values()), 1.0)
    marked = _by_regions(*given) if isinstance(by, str) and by == REGIONS else by
    samples = [
        _sample(each, criterion, gamma, columns, _own(marked, k), _own(cluster, k))
        for k, each in enumerate(given)
    ]
    one, two = samples
    if one is not None and two is not None:
        whole = by_returns("all", one, two, criterion, margin, level, seed)
        groups = () if one.groups is None else _by_groups(one, two, criterion, margin, level, seed)
        return Gate(criterion, margin, level, of, whole, groups)
    if by is not None or cluster is not None:
        raise InvalidInputError(
            "by and cluster need the returns of both policies, got an evaluation or a summary without them; "
            "pass logs of whole episodes"
        )
    return Gate(criterion, margin, level, of, _by_intervals(given, samples, criterion, margin, level))


def _source(given: Any) -> Any:
    """An Evaluation, the values of a summary, returns (n,), or what is read as a log."""
    if isinstance(given, str | os.PathLike) and not str(given).startswith("minari:"):
        place = Path(given)
        if place.suffix.lower() == ".json":
            return _json(place)
        return Evaluation.load(place) if (place / SURVEY).is_file() else given
    listed = isinstance(given, list | tuple) and not any(isinstance(e, str | Path) for e in given)
    if listed or isinstance(given, np.ndarray):
        array = as_array(given, "returns", "numbers of shape (n,)")
        return as_floats(array, "returns", (None,))
    return given


def _json(place: Path) -> Mapping[str, Any]:
    try:
        if not place.is_file():
            raise OSError("no file of that name")
        found = from_json(place.read_bytes())
    except (OSError, ValueError) as error:
        raise InvalidInputError(f"{place} must be a JSON file, got {error}; pass a summary.json") from error
    if not isinstance(found, dict):
        raise InvalidInputError(f"{place} must hold the summary of an evaluation, got another JSON value")
    return found


def _names(new: Any, baseline: Any, given: list[Any]) -> tuple[str, str]:
    """What to call the two."""
    found = []
    for each, source, otherwise in zip((new, baseline), given, ("new", "baseline"), strict=True):
        is_path = isinstance(each, str | os.PathLike)
        own = source.get("name") if isinstance(source, Mapping) else getattr(source, "name", None)
        name = Path(each).name if is_path and not isinstance(source, Mapping) else own
        found.append(name if isinstance(name, str) and name else otherwise)
    return ("new", "baseline") if found[0] == found[1] else (found[0], found[1])


def _own(names: Names, k: int) -> Any:
    """A column, or the values of one of the two policies."""
    if names is None or isinstance(names, str):
        return names
    if not isinstance(names, list | tuple) or len(names) != 2:
        raise InvalidInputError(
            f"by and cluster must be a column's name or a pair of arrays, got {type(names).__name__}; pass "
            "(of_new, of_baseline)"
        )
    return marks_of(names[k], "by and cluster")


def _by_regions(*evaluations: Any) -> tuple[Any, ...]:
    """The box that each start of both lies in, of those that the baseline's starts are cut into."""
    for each in evaluations:
        if not isinstance(each, Evaluation):
            raise InvalidInputError(
                f'by="regions" needs evaluations, got {type(each).__name__}; evaluate both logs, or pass a '
                "column"
            )
    new, baseline = evaluations
    if len(new.names) != len(baseline.names):
        raise MismatchError(
            f"both evaluations must have {len(baseline.names)} coordinates, got {len(new.names)}"
        )
    points, influence = points_of(baseline.survey.starts), baseline.influence
    order = [d for d in np.argsort(-influence, kind="stable").tolist() if influence[d] > 0]
    boxes = Regions.of(points, np.arange(len(points)), order, _DEPTH)
    names = np.array(boxes.names(baseline.names, baseline.label_names))
    return tuple(names[boxes.index(points_of(each.survey.starts))] for each in evaluations)


def _sample(
    given: Any, criterion: Criterion, discount: float, columns: Any, by: Any, cluster: Any
) -> Sample | None:
    """The returns of whole episodes with their groups and clusters; None where they are not known."""
    if isinstance(given, Evaluation):
        return _of_evaluation(given, criterion, by, cluster)
    if isinstance(given, Mapping):
        return None
    returns, marks = given, dict[str, Any]()
    if not isinstance(given, np.ndarray):
        wanted = [each for each in (by, cluster) if isinstance(each, str)]
        returns, marks = _of_log(given, discount, columns, list(dict.fromkeys(wanted)))
    return _marked(returns, marks, by, cluster)


def _marked(returns: Floats, marks: Mapping[str, Any], by: Any, cluster: Any) -> Sample:
    """Returns of whole episodes with what groups and clusters are called."""
    found = []
    for what, each in (("by", by), ("cluster", cluster)):
        if isinstance(each, str) and each not in marks:
            known = f"one of {', '.join(marks)}" if marks else "a pair of arrays beside returns"
            raise InvalidInputError(f"{what} must be {known}, got {each!r}; pass another")
        values = marks[each] if isinstance(each, str) else each
        if values is not None and values.shape != returns.shape:
            raise MismatchError(
                f"{what} must have one value for each of {len(returns)} episodes, got shape {values.shape}"
            )
        found.append(values)
    unit_of(float(np.abs(returns).max(initial=0.0)))  # raises beyond what can be squared
    clusters = None if found[1] is None else Clusters.of(len(returns), found[1])
    groups = None if found[0] is None else np.array([_called(each) for each in found[0].tolist()])
    return Sample(np.column_stack([returns, np.zeros(len(returns))]), clusters, groups)


def _called(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _of_log(
    source: Any, discount: float, columns: Mapping[str, Any], wanted: list[str]
) -> tuple[Floats, dict[str, Any]]:
    """The returns of a log, and the values of columns at the episodes' starts."""
    named = isinstance(source, str | os.PathLike | list | tuple) or is_frame(source)
    if wanted and not named:
        raise InvalidInputError(
            f"by and cluster must be pairs of arrays unless logs are files or frames, got {wanted}"
        )
    if named and has_columns(source):  # of the states nothing is needed
        columns = {**columns, "state": wanted or [columns.get("terminated", "terminated")]}
    data = opened(source, columns)
    returns, starts, cut_off = [], [], 0
    for batch in batches(data):
        cut_off += int((~batch.terminated).sum())
        returns.append(batch.returns(discount))
        starts.append(batch.starts() if wanted else np.empty((len(batch), 0)))
    if cut_off:
        raise InvalidInputError(
            f"episodes must have ended, as the rest of a return is unknown, got {cut_off} that were cut off; "
            "evaluate the logs, and pass the evaluations"
        )
    at_starts = np.concatenate(starts)
    known = coordinates_of(data) if wanted else None
    labels = {} if known is None else known.labels
    marks: dict[str, Any] = {}
    for name, values in zip(wanted, at_starts.T, strict=True):
        texts = labels.get(name)
        marks[name] = values if texts is None else np.array(texts)[values.astype(int)]
    return np.concatenate(returns), marks


def _of_evaluation(evaluation: Evaluation, criterion: Criterion, by: Any, cluster: Any) -> Sample | None:
    """The returns of an evaluation's episodes; completed ones, unless the criterion is of the tail."""
    survey, done = evaluation.survey, evaluation.risk.completed
    if evaluation.target is not None or withdrawn(evaluation) or survey.returns.size == 0:
        return None
    if by is None and cluster is None:
        tails = isinstance(criterion, CVaR | Quantile)
        if done is not None and done.observed is not None and done.usable and not (tails and done.cut_off):
            unit = evaluation.risk.unit
            return Sample(done.observed * np.array([unit, unit * unit]))
        if not tails or survey.cut_off:
            return None
    if survey.cut_off:
        raise InvalidInputError(
            f"episodes must have ended to be judged by groups or clusters, got {survey.cut_off} that were "
            "cut off; leave by and cluster out"
        )
    marks: dict[str, Any] = dict(zip(evaluation.names, survey.starts.T, strict=True))
    for name, texts in evaluation.label_names.items():
        marks[name] = np.array(texts)[marks[name].astype(int)]
    return _marked(survey.returns[0], marks, by, cluster)


def _by_groups(
    new: Sample, baseline: Sample, criterion: Criterion, margin: float, level: float, seed: Seed
) -> tuple[Verdict, ...]:
    """The verdicts on groups, in the order of their names."""
    names = np.unique(np.concatenate([new.groups, baseline.groups])).tolist()
    if len(names) > _GROUPS:
        raise InvalidInputError(
            f"by must be of at most {_GROUPS} groups, got {len(names)}; pass a column of few values"
        )
    found = []
    for name in names:
        one, two = (each.some(each.groups == name) for each in (new, baseline))
        found.append(by_returns(name, one, two, criterion, margin, level, seed))
    return by_holm(found, margin, level)


def _by_intervals(
    given: list[Any], samples: list[Sample | None], criterion: Criterion, margin: float, level: float
) -> Verdict:
    """By what evaluations and summaries say."""
    between = 2.0 * level - 1.0
    one, two = (
        _count(each) if sample is None else len(sample) for each, sample in zip(given, samples, strict=True)
    )
    episodes = one, two
    for each in given:
        if isinstance(each, Evaluation) and (each.trust.level == "none" or withdrawn(each)):
            return unknown("all", episodes, f"no trust in {each.name}: {each.trust.reason}")
    if all(isinstance(each, Evaluation) for each in given):
        found = compare(dict(zip("nb", given, strict=True)), criterion=criterion, level=between)
        values = {each.name: each.assessment.value.value for each in found.ranking}
        if found.significance is None:
            return unknown("all", episodes, "a value does not exist")
        lead = found.significance.difference
        if found.significance.best == "b":
            lead = Estimate(-lead.value, lead.standard_error, -lead.high, -lead.low, lead.dof)
        return by_interval("all", (values["n"], values["b"]), lead, margin, level, episodes)
    new, baseline = (
        _estimate(each, sample, criterion, between) for each, sample in zip(given, samples, strict=True)
    )
    return by_estimates("all", (new, baseline), margin, level, episodes)


def _count(given: Any) -> int:
    if isinstance(given, Evaluation):
        return given.survey.episodes
    count = given.get("episodes") if isinstance(given, Mapping) else None
    return count if isinstance(count, int) else 0


def _estimate(given: Any, sample: Sample | None, criterion: Criterion, level: float) -> Estimate:
    """The criterion's value of one policy, with an interval of this level."""
    if isinstance(given, Mapping):
        return _of_summary(given, criterion, level)
    if isinstance(given, Evaluation):
        if isinstance(criterion, CVaR | Quantile):
            summary: Any = tails_of({"it": given}, None, criterion)["it"].summary([criterion.q], level)
        else:
            summary = given.risk.summary(level=level)
        return criterion.assess(summary).value
    assert sample is not None
    return own_estimate(sample, criterion, (1.0 + level) / 2.0)


def _of_summary(summary: Mapping[str, Any], criterion: Criterion, level: float) -> Estimate:
    """The criterion's value in a ``summary.json``, with an interval of this level."""
    tails = summary.get("distribution") or {}
    found: Any = None
    if isinstance(criterion, CVaR | Quantile) and isinstance(tails, Mapping):
        kept = tails.get("cvar" if isinstance(criterion, CVaR) else "quantiles")
        found = kept.get(f"{criterion.q:g}") if isinstance(kept, Mapping) else None
    elif criterion == MeanMinusStd(0.0) or isinstance(criterion, Sharpe):
        found = summary.get("sharpe" if isinstance(criterion, Sharpe) else "mean")
    own = summary.get("level")
    if not isinstance(found, Mapping) or not isinstance(own, float):
        raise InvalidInputError(
            f"a summary must hold {criterion} and its level, got one without; evaluate with --quantiles, or "
            "pass the folder of the evaluation"
        )
    values = [
        math.nan if found.get(of) is None else as_number(found[of], of, -math.inf)
        for of in ("value", "low", "high")
    ]
    share = float(ndtri(0.5 + level / 2.0) / ndtri(0.5 + as_level(own) / 2.0))  # as of a normal distribution
    value, low, high = values
    return Estimate(value, math.nan, value - share * (value - low), value + share * (high - value))


def _needed(verdict: Verdict) -> Iterator[str]:
    """What would decide, in words."""
    if verdict.decision != "undecided" or verdict.reason:
        return
    if verdict.needed is None:
        yield "no number of episodes would decide if the difference stays as it is"
    elif max(verdict.needed) > 0:
        yield f"about {_counts(verdict.needed)} would decide if the difference stays as it is"
    if verdict.needed_if_equal is not None and max(verdict.needed_if_equal) > 0:
        yield f"{_counts(verdict.needed_if_equal)} if the policies are equal"


def _counts(needed: tuple[int, int]) -> str:
    one, two = (f"{float(f'{each:.2g}'):,.0f}" for each in needed)
    return f"{one} episodes of each" if one == two else f"{one} new episodes and {two} of the baseline"


def _mark(decision: Any) -> str:
    return f"{_MARKS[decision]} {decision}" if decision in _MARKS else str(decision)
