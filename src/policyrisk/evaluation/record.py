"""One policy, evaluated from its data: what a report shows (:mod:`policyrisk.evaluation.folder` keeps it)."""

from __future__ import annotations

import base64
import io
import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

import policyrisk
from policyrisk._core.arrays import Bools, Floats, as_list, check_kind, check_shape
from policyrisk._core.imports import hindrance
from policyrisk._core.text import NONE, Readable, TextTable, escape, number, percent, plural, printable
from policyrisk.data import Source, Trajectories, batches, coordinates_of
from policyrisk.errors import InvalidInputError, MismatchError, WithdrawnWarning
from policyrisk.evaluation import tails
from policyrisk.evaluation.advice import Advice
from policyrisk.evaluation.findings import Trust, advise
from policyrisk.evaluation.order import EpisodeOrder
from policyrisk.evaluation.prediction import Prediction, by_fit
from policyrisk.features import Features, Tabular
from policyrisk.features.target import PolicyFeatures, PolicyFunction, Target
from policyrisk.passes.survey import Survey
from policyrisk.returns.chain_tails import ChainTails
from policyrisk.returns.distribution_function import DistributionAtStates
from policyrisk.risk import RiskFunction
from policyrisk.risk.estimate import Estimate, as_level
from policyrisk.risk.state_estimates import changes_by_coordinate
from policyrisk.risk.summary import PolicySummary
from policyrisk.selection.specification import SpecificationTest

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FEW_COORDINATES = 2  # up to which they are mapped in their own order
# Notes that ``summary.json`` holds, null where they say nothing.
_NOTED = (
    *("data", "features", "box", "settings", "columns", "labels", "choice"),
    *("unrecorded_ends", "vanished_episodes", "filled_values", "dropped_episodes"),
)
_POINTS = 10_000  # of the box, to tell how much of it the data speak of
_PERMUTED = 1_000  # visited states that influence is measured at
NEIGHBOURS = 2000  # visited states whose distances are looked at
_BLOCK = 1000  # states whose distances are in hand at once
_MARGIN = 0.01  # of the data's extent: a state that is beyond it by less is not called outside


@dataclass(frozen=True, eq=False)
class Evaluation(Readable):
    """An estimate beside a survey of the data that it came from.

    Parameters
    ----------
    name
        The policy's, for titles.
    names
        Those of the state's coordinates.
    risk
        The estimate.
    survey
        Counts, ranges and samples of the data.
    level
        That of the intervals.
    notes
        Plain values: settings, counts, the choice of features.
    seconds
        What the parts took; they are not saved.
    check
        The test of the features, where it was made.
    saved_advice
        The advice, where it was found earlier and cannot be found again: the target is a function, and files
        hold none, or the intervals were withdrawn.
    distribution
        That of the return, where quantiles or the chance of a loss were asked for.
    prediction
        What :meth:`prediction_interval` rests on: ``guarantee``, ``episodes`` and their regions.

    Examples
    --------
    >>> import policyrisk as pr, tempfile
    >>> data = pr.domains.walk(n=5, p=0.7).sample(0, episodes=500, seed=1)
    >>> risk = pr.LSTD(pr.Tabular(5)).fit(data)
    >>> evaluation = Evaluation("walk", ("place",), risk, Survey.of(data, seed=0))
    >>> evaluation
    Evaluation('walk', 500 episodes, trust good, RiskFunction(LSTD, lam=0.9, discount=1, Tabular(...), ...))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     evaluation.save(folder)
    ...     again = Evaluation.load(folder)
    >>> again.summary.mean == evaluation.summary.mean, again.names
    (True, ('place',))
    """

    name: str  # of the policy, for titles
    names: tuple[str, ...]  # of the state's coordinates
    risk: RiskFunction
    survey: Survey
    # Where quantiles were asked for.
    distribution: DistributionAtStates | None = field(default=None, kw_only=True)
    level: float = 0.95  # of the intervals
    notes: Mapping[str, Any] = field(default_factory=dict)  # plain values: settings, counts, the choice
    seconds: Mapping[str, float] = field(default_factory=dict)  # that the parts took; they are not saved
    check: SpecificationTest | None = None  # the test of the features, where it was made
    saved_advice: tuple[Advice, ...] | None = None  # where it cannot be found again
    prediction: Prediction | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if len(self.names) != self.survey.dim or not all(isinstance(name, str) for name in self.names):
            raise MismatchError(
                f"names must be {self.survey.dim}, one per coordinate of the state, got "
                f"{len(self.names)}: {', '.join(map(str, self.names))}; name each once"
            )

    def __repr__(self) -> str:
        episodes = plural(self.survey.episodes, "episode")
        return f"Evaluation({self.name!r}, {episodes}, trust {self.trust.level}, {self.risk!r})"

    def _blocks(self) -> Iterator[str | TextTable]:
        """The answer, and how far to trust it; the report has the details."""
        summary, notes = self.summary, self.notes.get("distribution")
        rows = {"mean": summary.mean, "std": summary.std}
        of, tails, _ = self.tails()
        rows |= tails
        yield f"{printable(self.name)}: return {self._whose()}"
        head = ["", "value", "std error", f"{100 * self.level:g}% interval"]
        yield TextTable(head, [[name, *estimate.cells] for name, estimate in rows.items()])
        if notes is not None and ("model" not in notes or notes["starts"] < self.survey.episodes):
            yield f"quantiles: {of}"
        if apart := self.without_model():
            columns = ["without the model", "weighted", "std error", head[-1], "possible"]
            cells = [
                [name, *(each.cells if each else [NONE] * 3), f"{ends.low:.5g} to {ends.high:.5g}"]
                for name, (each, ends) in apart.items()
            ]
            yield TextTable(columns, cells)
        if robust := self.robust_tails():
            columns = ["doubly robust, by propensities", *head[1:]]
            yield TextTable(columns, [[name, *each.cells] for name, each in robust.items()])
        yield f"trust: {self.trust}"

    def _repr_html_(self) -> str:
        """In a notebook: the answer, maps of mean and std, and the findings folded up below them."""
        advice = "".join(
            f"<li><b>{escape(each.severity)}: {escape(each.title)}</b><br>{escape(each.seen)}<br>"
            f"{escape(each.remedy)}</li>"
            for each in self.advice
        )
        return (
            f"{super()._repr_html_()}{self._pictures()}<details><summary>What to know before the numbers are "
            f"trusted</summary><ul>{advice}</ul></details>"
            f"<details><summary>All numbers over the starts</summary>{self.summary._repr_html_()}</details>"
            '<div>maps over any two coordinates: <code>.report("report.html")</code></div>'
        )

    def _pictures(self) -> str:
        """Small maps of mean and std, and the returns over time; none without Matplotlib or a target."""
        if hindrance("matplotlib") or self.lacks_target:
            return ""
        from policyrisk.plotting.evaluation_maps import draw_map, draw_order

        found = []
        drawn = {"mean": draw_map(self, "mean"), "std": draw_map(self, "std")}
        if self.order is not None:
            drawn["returns"] = draw_order(self)
        for of, axes in drawn.items():
            file = io.BytesIO()
            figure = axes.get_figure(root=True)
            assert figure is not None
            figure.savefig(file, format="png", dpi=70)
            image = base64.b64encode(file.getvalue()).decode()
            found.append(f'<img alt="{of}" style="display:inline" src="data:image/png;base64,{image}">')
        return f"<div>{''.join(found)}</div>"

    @property
    def clusters(self) -> int:
        """How many clusters the episodes come in; 0 where these are taken to be independent."""
        bars = self.risk.error_bars
        return 0 if bars is None else bars.clusters

    @cached_property
    def order(self) -> EpisodeOrder | None:
        """The returns in the order of the episodes, with tests of it; None where they are not known."""
        return EpisodeOrder.of(self)

    def _whose(self) -> str:
        """Whose return the answer is, in a few words."""
        episodes, said = plural(self.survey.episodes, "episode"), []
        if self.target is not None:
            covered = percent(self.summary.covered or 0.0)
            name = self.notes["target"]["name"]
            said.append(f"of {name}, from {episodes} of another policy that hold {covered} of what it does")
        elif self.summary.completed is None:
            said.append(f"from {plural(self.summary.starts, 'start')}, by {self.summary.estimator}")
        else:
            said.append(f"of {episodes}")
            if cut := self.cut_off_share:
                said.append(f"{percent(cut)} of them cut off and completed")
        if dropped := self.notes.get("dropped_episodes"):
            said.append(f"{dropped:,} left out, with values missing")
        if filled := self.notes.get("filled_values"):
            said.append(f"{plural(filled, 'missing value')} filled in")
        return ", ".join(said)

    @classmethod
    def of(
        cls, risk: RiskFunction, data: Source, *, name: str = "policy", names: Sequence[str] | None = None
    ) -> Evaluation:
        """An estimate beside a survey of the data that it came from, in one more pass over them.

        Parameters
        ----------
        risk
            The estimate.
        data
            The Trajectories, or the stream, that were fitted.
        name
            The policy's.
        names
            Those of the coordinates; the data's own where None.

        Returns
        -------
        Evaluation
            With advice and report, as of :func:`policyrisk.evaluate`.

        Examples
        --------
        >>> import policyrisk as pr
        >>> data = pr.domains.walk(n=5, p=0.7).sample(0, episodes=500, seed=1)
        >>> evaluation = pr.Evaluation.of(pr.LSTD(pr.Tabular(5)).fit(data), data, names=["place"])
        >>> evaluation.survey.episodes
        500
        """
        check_kind(risk, "risk", RiskFunction, "fit an estimator, such as LSTD(features), to data")
        survey = Survey.of(data, seed=0, discount=risk.provenance.discount)
        called = [f"state_{i}" for i in range(survey.dim)]
        called = called if names is None else as_list(names, "names", "the coordinates' names")
        notes: dict[str, Any] = {}
        if (known := coordinates_of(data)) is not None and names is None:
            called = list(known.names)
            notes["labels"] = {name: list(texts) for name, texts in known.labels.items()}
        return cls(name, tuple(called), risk, survey, notes=notes)

    @cached_property
    def summary(self) -> PolicySummary:
        """Mean, variance, std and Sharpe ratio over all of the data's starts.

        An estimate that did not keep sums over them (one without error bars) is
        averaged over the survey's sample.
        """
        starts = self.survey.starts if self.risk.starts is None else None
        return self.risk.summary(starts, level=self.level)

    @cached_property
    def advice(self) -> tuple[Advice, ...]:
        """What to know before the numbers are trusted, the most serious first."""
        return advise(self) if self.saved_advice is None else self.saved_advice

    @cached_property
    def trust(self) -> Trust:
        """How far to trust the answer over the starts: ``level`` (good, fair, poor, none) and ``reason``."""
        return Trust.of(self)

    @property
    def target(self) -> Target | None:
        """The policy that the estimates are of, where it is another one than the recorded one."""
        return self.risk.features.target if isinstance(self.risk.features, PolicyFeatures) else None

    @property
    def lacks_target(self) -> bool:
        """Whether the target is a function that the file does not hold, and that was not passed again."""
        policy = None if self.target is None else self.target.policy
        return isinstance(policy, PolicyFunction) and policy.function is None

    def judged(self) -> Evaluation:
        """The same; without intervals, and with a warning, where the log cannot tell (trust "none")."""
        if self.trust.level != "none":
            return self
        warnings.warn(
            f"{self.trust.reason}; the intervals of {self.name} are withdrawn (nan)",
            WithdrawnWarning,
            stacklevel=3,
        )
        bars = self.risk.error_bars
        if bars is None or bars.withdrawn:
            return self
        kept: dict[str, Any] = {"risk": replace(self.risk, error_bars=bars.widened(math.nan))}
        if isinstance(self.distribution, ChainTails):
            told = _without_intervals(self.notes["distribution"])
            kept |= {
                "distribution": self.distribution.without_intervals(),
                "notes": {**self.notes, "distribution": told},
            }
        return replace(self, **kept, saved_advice=self.advice)

    def noted(self, subject: str) -> Mapping[str, Any]:
        """What notes say of a subject, such as the target or the choice; empty where they say nothing."""
        return self.notes.get(subject) or {}

    def action_name(self, action: int) -> str:
        """What to call an action: its name, where the log has names, or its number."""
        names = self.noted("target").get("action_names") or ()
        return names[action] if action < len(names) else str(action)

    def place(self, state: Sequence[float]) -> str:
        """A state (dim,) in words, as in ``x = 0.5, city = Oslo``."""
        labels = self.label_names
        said = (
            f"{name} = {labels[name][int(value)] if name in labels else number(value, 4)}"
            for name, value in zip(self.names, state, strict=True)
        )
        return ", ".join(map(printable, said))

    @cached_property
    def looked_at(self) -> tuple[int, ...]:
        """The coordinates that the features depend on, in their order; all where a map does not say."""
        dim = self.survey.dim
        return tuple(sorted(_dims(self.risk.features, dim) | _dims(self.risk.second_features, dim)))

    @cached_property
    def changing(self) -> tuple[int, ...]:
        """The coordinates among these that take more than one value in the data, to be mapped.

        In their order where one map shows all, up to FEW_COORDINATES of them, and else the most influential
        ones first.
        """
        found = tuple(d for d in self.looked_at if self.survey.low[d] < self.survey.high[d])
        if len(found) <= FEW_COORDINATES:
            return found
        return tuple(sorted(found, key=lambda d: -self.influence[d]))

    @cached_property
    def influence(self) -> Floats:
        """Each coordinate's share in how the estimates change from state to state, of shape (dim,).

        By how much J̃ and √Ṽ change, root mean square, where the coordinate is that of another visited state
        and the others stay; each relative to the sum over coordinates, and the average of the two. 0 for
        all where nothing changes.
        """
        visited = self.survey.visited
        states = visited[:: -(-len(visited) // _PERMUTED)]
        other = np.random.default_rng(0).permutation(len(states))

        def values(x: Floats) -> Floats:
            J, V = self.risk.mean_and_variance(x)
            return np.column_stack([J, np.sqrt(np.maximum(V, 0.0))])

        change = np.zeros((self.survey.dim, 2))
        for d, differences in changes_by_coordinate(values, states, other, self.looked_at):
            squares = np.square(differences)
            known = np.isfinite(squares).all(axis=1)
            change[d] = np.sqrt(squares[known].mean(axis=0)) if known.any() else 0.0
        total = change.sum(axis=0)
        shares: Floats = change[:, total > 0] / total[total > 0]
        return shares.mean(axis=1) if shares.size else np.zeros(self.survey.dim)

    def outside(self, x: npt.ArrayLike) -> Bools:
        """Which states (n, dim) lie outside the data, of shape (n,).

        That is in some coordinate by more than a hundredth of what the data span: feature maps take such a
        state for the nearest one of their box, whose estimate it shares. Or farther from every visited state
        than any of these is from its nearest neighbour (of NEIGHBOURS of them, in coordinates of span 1 that
        the features look at): dense features and trees have an estimate there all the same, and claim all
        episodes for it. A table knows itself which of its states were visited.
        """
        states, survey = self.risk._states(x), self.survey
        check_shape(states, "x", (None, survey.dim))
        span = survey.high - survey.low
        beyond = (states < survey.low - _MARGIN * span) | (
            states > np.maximum(survey.high, survey.reached) + _MARGIN * span
        )
        scale = np.where(span > 0, span, 1.0)
        found: Bools = np.any(beyond, axis=1)
        if all(isinstance(each, Tabular) for each in (self.risk.features, self.risk.second_features)):
            return found
        seen = list(self.looked_at)
        few = survey.visited[:: -(-len(survey.visited) // NEIGHBOURS)]
        sample, places = (
            ((np.clip(each, survey.low, survey.high) - survey.low) / scale)[:, seen] for each in (few, states)
        )
        between = _squared_distances(sample, sample)
        np.fill_diagonal(between, np.inf)
        farthest = max(float(between.min(axis=1).max()), _MARGIN**2)  # infinite for one state alone
        for first in range(0, len(places), _BLOCK):
            nearest = _squared_distances(places[first : first + _BLOCK], sample).min(axis=1)
            found[first : first + _BLOCK] |= nearest > farthest
        return found

    @property
    def label_names(self) -> Mapping[str, Sequence[str]]:
        """What the numbers 0, 1, … of coordinates that are text stand for, by the coordinates' names."""
        return {name: texts for name, texts in (self.notes.get("labels") or {}).items() if texts}

    @cached_property
    def middle(self) -> Floats:
        """The median of each coordinate over the visited states, a value that occurs; of shape (dim,)."""
        return np.quantile(self.survey.visited, 0.5, axis=0, method="inverted_cdf")

    @property
    def cut_off_share(self) -> float:
        """The share of episodes that did not terminate."""
        return self.survey.cut_off / self.survey.episodes

    @cached_property
    def unvisited_share(self) -> float:
        """The share of the data's box, low to high, that the estimates say nothing about.

        Of 10,000 points, uniform in the box (whole numbers in coordinates that are whole), always the same.
        """
        survey = self.survey
        u = np.random.default_rng(0).random((_POINTS, survey.dim))
        span = survey.high - survey.low
        whole = np.minimum(np.floor(u * (span + 1)), span)
        points = survey.low + np.where(survey.whole, whole, u * span)
        return float(1.0 - self.risk.visited(points).mean())

    @cached_property
    def negative_share(self) -> float:
        """The share of the visited states (the survey's sample of them) where the variance is negative."""
        return float((self.at_visited[0] < 0).mean())

    @cached_property
    def at_visited(self) -> Floats:
        """Ṽ at these states, nan where it is unknown, and the episodes behind it, of shape (2, n)."""
        parts = self.risk.parts(self.survey.visited)
        size = self.risk.unit * self.risk.unit
        return np.hstack([[at.V * size, at.episodes] for at in parts])

    def to_dict(self) -> dict[str, Any]:
        """Everything in plain values, as ``summary.json`` holds it.

        Returns
        -------
        dict
            Notes that do not apply are None.
        """
        survey, facts = self.survey, self.risk.provenance
        notes = {name: self.notes.get(name) for name in _NOTED}
        notes |= {name: self.notes[name] for name in ("time_limit", "distribution") if name in self.notes}
        if self.target is not None:
            notes["target"] = self.notes.get("target")
        summary = self.summary.to_dict()
        for count in ("unvisited", "negative"):
            summary[f"{count}_starts"] = summary.pop(count)
        summary["episodes_behind"] = summary.pop("episodes")  # the average start
        return {
            "policyrisk": policyrisk.__version__,
            "name": self.name,
            "coordinates": list(self.names),
            "trust": asdict(self.trust),
            **summary,
            "episodes": survey.episodes,
            "transitions": survey.transitions,
            "longest_episode": survey.longest,
            "cut_off_share": self.cut_off_share,
            "unvisited_share": self.unvisited_share,
            "negative_variance_share": self.negative_share,
            "condition_number": facts.condition,
            "given_up": facts.given_up,
            "outside_box": facts.outside,
            "redundant_directions": facts.redundant,
            "constraint_active": facts.constrained,
            "feature_count": self.risk.features.size,
            "variance_method": self.risk.variance_method,
            **notes,
            "check": None if self.check is None else self.check.to_dict(),
            "prediction": None if self.prediction is None else self.prediction.to_dict(),
            "influence": dict(zip(self.names, self.influence.tolist(), strict=True)),
            "advice": [asdict(one) for one in self.advice],
            "seconds": dict(self.seconds),
        }

    def metrics(self) -> dict[str, float]:
        """The answer as numbers by name, for trackers of experiments.

        Returns
        -------
        dict
            Mean, variance, std, Sharpe ratio, and quantiles, CVaRs and chances of a loss that were asked for
            (``quantile_0.05``), each with ``_low`` and ``_high``; counts; ``trust``, from 0 (none) to 3
            (good). What is not known is left out.

        Examples
        --------
        >>> import policyrisk as pr
        >>> data = pr.domains.walk(n=5, p=0.7).sample(0, episodes=500, seed=1)
        >>> metrics = pr.evaluate(data, features="tabular", quantiles=[0.05], seed=0).metrics()
        >>> {name: round(metrics[name], 1) for name in ("mean", "std_high", "cvar_0.05", "trust")}
        {'mean': -10.5, 'std_high': 6.5, 'cvar_0.05': -27.6, 'trust': 3.0}
        """
        told: dict[str, Any] = {of: getattr(self.summary, of) for of in ("mean", "variance", "std", "sharpe")}
        found = {of: {"value": float(each), "low": each.low, "high": each.high} for of, each in told.items()}
        notes = self.noted("distribution")
        for of, name in tails.COLUMNS.items():
            found |= {f"{name}_{q}": value for q, value in notes.get(of, {}).items()}
        numbers = {
            name if of == "value" else f"{name}_{of}": float(value)
            for name, values in found.items()
            for of, value in values.items()
            if of != "standard_error"
        }
        numbers |= {"episodes": float(self.survey.episodes), "transitions": float(self.survey.transitions)}
        numbers |= {
            "cut_off_share": self.cut_off_share,
            "trust": float(("none", "poor", "fair", "good").index(self.trust.level)),
        }
        return {name: value for name, value in numbers.items() if np.isfinite(value)}

    def prediction_interval(self, x: npt.ArrayLike, level: float = 0.9, *, start: bool = False) -> Floats:
        """Between what a single return from each state will come to end.

        The interval is for one further episode, where those of ``risk`` are for means. What it guarantees,
        and by how many episodes, is in ``prediction`` (:mod:`policyrisk.evaluation.prediction`).

        Parameters
        ----------
        x
            States (n, dim).
        level
            The chance that the return is inside, over the states that a new episode visits (in a part of the
            state space with 50 recorded episodes or more, over those).
        start
            Whether a new episode begins at x: the chance is then over starts.

        Returns
        -------
        (n, 2) array
            Infinite where there are too few episodes for the level, with a FewEpisodesWarning; nan where no
            episode was, and where the trust is "none".

        Raises
        ------
        InvalidInputError
            There are no calibration episodes: :meth:`calibrated` takes them.

        Examples
        --------
        >>> import policyrisk as pr
        >>> chain = pr.domains.walk(n=30, p=0.7)
        >>> result = pr.evaluate(chain.sample(start=0, episodes=300, seed=1), seed=0)
        >>> result.prediction_interval([[0], [20]]).round()
        array([[-111.,  -47.],
               [ -46.,  -11.]])
        >>> result.prediction.guarantee, result.prediction.episodes
        ('out-of-fold', 300)
        """
        if self.prediction is None:
            raise InvalidInputError(
                "prediction_interval needs calibration episodes, got none: an Evaluation of an estimate has "
                "none, nor has a target's without propensities; pass some to calibrated"
            )
        return self.prediction.interval(self.risk, self.risk._states(x), as_level(level), start)

    def calibrated(self, held_out: Source) -> Evaluation:
        """The same with prediction intervals that fresh episodes vouch for, whatever the model.

        Parameters
        ----------
        held_out
            Trajectories, or a stream of them, that nothing was fitted to; they are loaded.

        Returns
        -------
        Evaluation
            Its prediction intervals are exact in finite samples, if no episode was cut off.

        Examples
        --------
        >>> import policyrisk as pr
        >>> chain = pr.domains.walk(n=5, p=0.7)
        >>> fitted, fresh = (chain.sample(0, episodes=300, seed=seed) for seed in (1, 2))
        >>> result = pr.Evaluation.of(pr.LSTD(pr.Tabular(5)).fit(fitted), fitted).calibrated(fresh)
        >>> result.prediction.guarantee, result.prediction_interval([[0]]).round().tolist()
        ('exact', [[-20.0, -1.0]])
        """
        data = Trajectories.concatenate(batches(held_out))
        return replace(
            self,
            prediction=Prediction.of(self, data, by_fit(self, data), former=self.prediction, fresh=True),
        )

    def tails(self) -> tuple[str, dict[str, Estimate], dict[str, Estimate]]:
        """What quantiles and the like over the starts are of, they by their names, and the model's.

        Nothing where they were not asked for, and nothing beside them where they are the model's.
        """
        notes = self.notes.get("distribution")
        if notes is None:
            return "", {}, {}
        model = dict(tails.rows(notes["model"])) if "model" in notes else {}
        return tails.whose(notes, self.survey), dict(tails.rows(notes)), model

    def to_frame(self, x: npt.ArrayLike, level: float | None = None, predict: float = 0.9) -> Any:
        """The states x, and what is estimated at them, tails included, as a data frame.

        Parameters
        ----------
        x
            States (n, dim).
        level
            That of the intervals; the evaluation's where None.
        predict
            That of the interval for one return, :meth:`prediction_interval`.

        Returns
        -------
        data frame
            That of :meth:`RiskFunction.to_frame`, with columns such as ``quantile_0.05``, ``cvar_0.05`` and
            ``below_0``, each with the ends of its interval, and ``prediction_low`` and ``prediction_high``.

        Examples
        --------
        >>> import policyrisk as pr
        >>> result = pr.evaluate(pr.domains.walk(n=5, p=0.7).sample(0, episodes=300, seed=1), seed=0)
        >>> list(result.to_frame([0, 4]).columns)[-4:]
        ['below_0_low', 'below_0_high', 'prediction_low', 'prediction_high']
        """
        level = self.level if level is None else level
        columns: dict[str, Floats] = {}
        if self.distribution is not None:
            states, told = self.risk._states(x), self.notes["distribution"]
            found = tails.at_states(self.distribution, told, states, level, self.risk.episodes(states))
            for kind, name in tails.COLUMNS.items():
                for key, (values, _, *ends) in found[kind].items():
                    columns[f"{name}_{key}"] = values
                    if self.distribution.has_intervals:
                        columns |= {f"{name}_{key}_low": ends[0], f"{name}_{key}_high": ends[1]}
        if self.prediction is not None:
            low, high = self.prediction_interval(x, predict).T
            columns |= {"prediction_low": low, "prediction_high": high}
        return self.risk._frame(x, level, columns)

    def robust_tails(self) -> dict[str, Estimate]:
        """The tails of a target over the starts by the log's propensities, doubly robust, by their names.

        Nothing where propensities are not known, or leave the worth of too few episodes.
        """
        return dict(tails.rows(self.noted("distribution").get("doubly_robust") or tails.NOTHING))

    def without_model(self) -> dict[str, tuple[Estimate | None, Estimate]]:
        """What cut-off episodes leave of quantiles and the like over the starts: weighted, and possible.

        Weighted by the chance of being observed for long enough, where episodes were cut off at different
        times; with the ends of what is possible whatever the cuts depend on
        (:mod:`policyrisk.returns.cut_off`). Nothing where no episode was cut off.
        """
        return tails.without_model(self.noted("distribution"))

    def tail_pictures(self) -> dict[str, Axes]:
        """The return's distribution over the starts and a map of the mean of its worst, by their names."""
        from policyrisk.plotting.evaluation_maps import plot_start, tail_map

        if self.distribution is None or hindrance("matplotlib"):
            return {}
        return {"distribution": plot_start(self), "map_cvar": tail_map(self)}

    def report(self, path: str | os.PathLike[str], command: str = "") -> None:
        """Write the report, one HTML file: :func:`policyrisk.write_report`.

        Parameters
        ----------
        path
            The file.
        command
            What somebody would type to get it again, where there is such a line.
        """
        from policyrisk.report import write_report

        write_report(self, path, command)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the evaluation into a folder, which is made where it is missing.

        The files are ``risk.npz`` and ``survey.npz``, and ``distribution.npz`` where quantiles were asked
        for; one of an earlier evaluation goes. That is what :func:`Evaluation.load`, ``policyrisk query`` and
        ``policyrisk compare`` read; ``policyrisk evaluate`` puts maps, the report and ``summary.json`` beside
        them.

        Parameters
        ----------
        folder
            The folder.
        """
        from policyrisk.evaluation.folder import save

        save(self, folder)

    @classmethod
    def load(cls, folder: str | os.PathLike[str], target: Any = None, features: Any = None) -> Evaluation:
        """Read what :func:`Evaluation.save` wrote; missing, damaged or mixed-up files are errors.

        Files hold no code: what was a function or a network is passed again
        (:meth:`policyrisk.RiskFunction.load`).

        Parameters
        ----------
        folder
            The folder.
        target
            The target policy, where it is a function and its estimates at states are wanted.
        features
            Those of the estimate, where they are a function or a network.

        Returns
        -------
        Evaluation
            As it was saved.
        """
        from policyrisk.evaluation.folder import load

        return load(folder, target, features)


def _without_intervals(told: Any) -> Any:
    """Plain values whose estimates have no standard errors and no intervals."""
    if not isinstance(told, dict):
        return told
    if told.keys() >= {"value", "standard_error", "low", "high"}:
        return {**told, "standard_error": math.nan, "low": math.nan, "high": math.nan}
    return {name: _without_intervals(value) for name, value in told.items()}


def _squared_distances(x: Floats, y: Floats) -> Floats:
    """Between points (n, dim) and (m, dim) of coordinates in [0, 1], of shape (n, m): one product."""
    squares: Floats = np.square(x).sum(axis=1)[:, None] + np.square(y).sum(axis=1) - 2.0 * (x @ y.T)
    return squares


def _dims(features: Features, dim: int) -> set[int]:
    dims = getattr(features, "dims", None) or getattr(getattr(features, "box", None), "dims", None)
    return set(range(dim)) if dims is None else set(dims)
