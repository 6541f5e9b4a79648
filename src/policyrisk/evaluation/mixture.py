"""What the default answer is made of: candidates, and the mixture that held-out episodes ask for.

The candidates depend on the number d of coordinates and on the number n of transitions:

    tiles        a coarse, a middling and a fine grid, b tiles along every coordinate with b^d ≤ 100, 400 and
                 1600, and 4 shifted grids with 4 b^d ≤ 256
    rbf          c^d ≤ 64 centres
    fourier      the highest orders of at most 64 and 256 cosines, from three coordinates on the highest
                 sum of orders of at most 300, and one coordinate at a time
    poly         degrees 1, 2 and 3, up to 200 monomials
    by rank      of these the grids up to 400 tiles, the cosines and the polynomials
    labels       a table, for one whole-numbered coordinate; and tables of the coordinates that are labels,
                 shrunk or not, beside poly and tiles of the others, and no other maps where the labels are
                 stated (:mod:`policyrisk.evaluation.labels`)
    forest       leaf averages of returns to go

each of them only if it has at most n/20 features (tables: as many as there are values). They are fitted and
put into a mixture by :func:`policyrisk.selection.stacking.stack` on a uniform sample of the episodes
(``EPISODES`` and ``TRANSITIONS`` of :mod:`policyrisk.evaluation.log`), so that the cost does not grow with
the data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from policyrisk._core.arrays import Floats, Ints
from policyrisk._core.random import keys
from policyrisk._core.text import percent, plural
from policyrisk.data import Source, Trajectories
from policyrisk.data.source import in_units
from policyrisk.errors import InvalidInputError, PolicyRiskError, SingularSystemError
from policyrisk.evaluation.labels import label_columns, label_spellings
from policyrisk.evaluation.plan import Fitted, Fitting
from policyrisk.features import Features
from policyrisk.features.spelling import Spelling
from policyrisk.lstd import LSTD
from policyrisk.lstd.influences import with_starts
from policyrisk.lstd.newton import fits_from_sample
from policyrisk.passes import Reduce, here, reduce_in_units
from policyrisk.passes.episode_folds import FOLDS
from policyrisk.passes.survey import Survey
from policyrisk.returns.forest import Grown, ReturnForest
from policyrisk.returns.forest_sums import DataCounts
from policyrisk.risk import RiskFunction, VarianceMethod
from policyrisk.selection.distribution_stack import Completed
from policyrisk.selection.specification import specification_test
from policyrisk.selection.stacking import Stack, StackedCandidate, brief, stack

_ADDITIVE = 6  # cosines of a coordinate
_NAMED = 3  # members that a mixture's name spells out
_FEW_DIMS = 4  # up to which there are grids
_COSINES = 300
_DRAWS = 200  # of the weights, for a mixture's error bars


@dataclass(frozen=True, eq=False)
class MixturePlan:
    """The mixture that was chosen, and what it was chosen from."""

    fitting: Fitting
    sample: Trajectories  # that it was chosen on, in units of
    unit: float
    wide: Trajectories  # a larger one that holds it, for matrices and leaves
    numbers: Ints | None  # (n,): of its episodes in all of the data, None where these are all
    seed: int
    labels: tuple[int, ...]  # coordinates that are taken for labels
    stack: Stack
    spellings: Mapping[str, Spelling]  # of the candidates that are features: all but the forest
    trees: Grown = field(repr=False)  # of the forest, on the sample

    @classmethod
    def of(
        cls,
        sample: Trajectories,
        fitting: Fitting,
        seed: int,
        unit: float = 1.0,
        wide: tuple[Trajectories, Ints | None] | None = None,
    ) -> MixturePlan:
        """The mixture of the candidates, on a sample of the episodes; folds and forest drawn from ``seed``.

        ``wide`` is a larger sample that holds this one, with its episodes' numbers in all of the data.

        Where no coordinate is a label for certain, those that look like labels have their tables tried beside
        all other candidates.
        """
        survey, names = fitting.survey, fitting.names
        labels = fitting.labels or label_columns(sample, survey, fitting.discount, seed)
        spellings = label_spellings(survey, names, labels)
        if not fitting.labels:
            spellings = candidates(survey, sample.transitions) + spellings
        if not spellings or len(sample) < FOLDS:
            raise InvalidInputError(
                f"features=auto must have enough data to choose by, got {plural(len(sample), 'episode')} "
                f"with {plural(sample.transitions, 'transition')}; gather more, or name the features, as in "
                "poly:1"
            )
        trees: Grown = {}

        def forest(
            data: Trajectories, tail: RiskFunction | None, mean: Floats | None
        ) -> tuple[Floats, Floats]:
            settings = ReturnForest(discount=fitting.discount)
            fitted = settings.fit_out_of_bag(data, tail=tail, mean=mean, seed=seed, grown=trees)
            return fitted.mean, fitted.variance

        by_name = {each.text(names): each for each in spellings}
        free = replace(fitting, nonnegative_at=None)
        stacked = stack(
            {name: free.lstd(each, len(sample)) for name, each in by_name.items()},
            sample,
            key=cls.key_of(seed),
            forest=forest if fitting.variance == "direct" else None,
        )
        larger = wide or (sample, None)
        return cls(fitting, sample, unit, *larger, seed, tuple(labels), stacked, by_name, trees)

    @property
    def members(self) -> tuple[StackedCandidate, ...]:
        """The candidates with a share."""
        return self.stack.members

    @property
    def spelling(self) -> Spelling:
        """The candidate, other than the forest, whose mean was nearest to held-out episodes."""
        fitted = [each for each in self.stack.candidates if each.name in self.spellings and not each.reason]
        nearest = min(fitted, key=lambda each: each.mse, default=None)
        return Spelling("poly", (1,)) if nearest is None else self.spellings[nearest.name]

    @staticmethod
    def key_of(seed: int) -> int:
        """What the folds are drawn from."""
        return int(keys(seed)[0])

    @property
    def key(self) -> int:
        """What the folds were drawn from."""
        return self.key_of(self.seed)

    @property
    def maps(self) -> dict[str, Features]:
        """The features of the members with a share in the mean, the largest share first."""
        shared = sorted(self.members, key=lambda each: -each.mean_share)
        own = [each.name for each in shared if each.mean_share and each.name in self.spellings]
        return {name: self.fitting.maps(self.spellings[name])[0] for name in own}

    @property
    def variance(self) -> VarianceMethod:
        """That of all members."""
        return self.fitting.variance

    @property
    def explanation(self) -> str:
        """The table of the candidates, and what was chosen."""
        share, count = f"{len(self.sample)} of the", self.fitting.survey.episodes
        share = "all" if len(self.sample) == count else share
        return f"{self.stack.times(self.unit)}\nchosen on {share} {plural(count, 'episode')}: {self.features}"

    @property
    def features(self) -> str:
        """The members with their shares, the smaller ones of many by their number."""
        if len(self.members) == 1:
            return self.members[0].name
        said = []
        named = len(self.members) if len(self.members) <= _NAMED + 1 else _NAMED
        for member in self.members[:named]:
            shares = (member.mean_share, "J"), (member.variance_share, "V")
            parts = ", ".join(f"{percent(share)} of {what}" for share, what in shares if share)
            said.append(f"{brief(member.name)} ({parts})")
        if named < len(self.members):
            said.append(f"and {len(self.members) - named} more")
        return "a mixture of " + ", ".join(said)

    @property
    def notes(self) -> dict[str, Any]:
        """The choice in plain values."""
        members = [
            {"features": m.name, "mean_share": m.mean_share, "variance_share": m.variance_share}
            for m in self.members
        ]
        choice = {"features": self.features, "members": members, "sampled_episodes": len(self.sample)}
        return {"choice": {**choice, "stack": self.stack.times(self.unit).to_dict()}}

    @property
    def settings(self) -> dict[str, Any]:
        """They are the request's."""
        return {}

    @property
    def identity(self) -> dict[str, Any]:
        """The members in words."""
        return {}

    def fit(self, reduce: Reduce, unit: float) -> Fitted:
        """The members, fitted to all of the data, the forest to a sample; and what they share."""
        reduce, discount = reduce_in_units(reduce, unit), self.fitting.discount
        whole = reduce(lambda source, _: DataCounts.of(source, discount))
        if whole.episodes == len(self.wide):
            reduce = here(self.wide)
        fits = self._fits(reduce, whole)
        members = [each for each in self.members if each.name in fits]
        counts = {name: getattr(whole, name) for name in ("episodes", "terminated", "transitions")}
        for each in self.members:
            if each.name not in self.spellings:
                forest = self._forest(reduce, fits, [each.mean_share for each in members])
                fits[each.name] = replace(forest, provenance=replace(forest.provenance, **counts))
                members.append(each)
        risk = RiskFunction.mixture(
            [fits[each.name] for each in members],
            [each.mean_share for each in members],
            [each.variance_share for each in members] if self.variance == "direct" else None,
            widening=self.stack.widening,
        )
        risk = replace(risk, returns=whole.returns, provenance=replace(risk.provenance, **counts))
        risk = with_starts(risk, reduce, self.wide if whole.episodes > len(self.wide) else None)
        assert risk.completed is not None
        # How returns and weights vary together; a member's returns are completed almost as the mixture's,
        # most nearly those of one that gave up no episode as a whole.
        fullest = sorted(fits.values(), key=lambda each: -each.provenance.episodes)
        draws = [each.completed.draws for each in fullest if each.completed is not None]
        shared = next((each for each in draws if each is not None), None)
        return Fitted(replace(risk, completed=replace(risk.completed, draws=shared)))

    def _fits(self, reduce: Reduce, whole: DataCounts) -> dict[str, RiskFunction]:
        """The members that are no forest; those that cannot be fitted leave their shares to the others."""
        lstds = {each.name: self._lstd(each) for each in self.members if each.name in self.spellings}
        draws: dict[str, Any] = {"bootstrap": _DRAWS, "seed": self.seed}
        found: dict[str, Any] = {}
        if whole.episodes > len(self.wide) and whole.numbers is None:
            together = fits_from_sample([*lstds.values()], self.wide, reduce, whole, **draws)
            found = dict(zip(lstds, together, strict=True))
        for name in lstds if not found else ():
            try:
                found[name] = lstds[name].fit_by(reduce, **draws)
            except (SingularSystemError, np.linalg.LinAlgError) as error:
                found[name] = error
        fits = {name: found[name] for name in lstds if isinstance(found[name], RiskFunction)}
        left = [each for each in self.members if each.name not in lstds or each.name in fits]
        if not (any(each.mean_share for each in left) and any(each.variance_share for each in left)):
            raise next(each for each in found.values() if isinstance(each, Exception))
        return fits

    def _lstd(self, candidate: StackedCandidate) -> LSTD:
        return self.fitting.lstd(self.spellings[candidate.name], variance_lam=candidate.variance_lam)

    def _forest(self, reduce: Reduce, fits: dict[str, RiskFunction], shares: list[float]) -> RiskFunction:
        """The forest beside the other members, whose shares of the mean these are."""
        tail = None
        if self.stack.reference is not None:  # what completed cut-off episodes
            name = self.stack.reference[1]
            (given,) = (each for each in self.stack.candidates if each.name == name)
            tail = fits.get(name) or self._lstd(given).fit_by(here(self.wide), error_bars=False)
        return ReturnForest(discount=self.fitting.discount).fit_by(
            here(self.wide),
            self.sample,
            tail=tail,
            mean=self.stack.mean,
            around=RiskFunction.mixture(list(fits.values()), shares) if sum(shares) else None,
            share=sum(shares),
            bootstrap=_DRAWS,
            seed=self.seed,
            grown=self.trees,
            numbers=self.numbers,
        )

    def judge(self, fitted: Fitted, data: Source) -> Fitted:
        """The test of the features by the data, where it can be made."""
        bars = fitted.risk.error_bars
        if bars is None or bars.key is None:
            return fitted
        whole = len(self.sample) == self.fitting.survey.episodes
        looked_at = in_units(self.sample, 1.0 / self.unit) if whole else data
        try:
            return replace(fitted, check=specification_test(fitted.risk, looked_at))
        except (PolicyRiskError, np.linalg.LinAlgError):
            return fitted  # the advice does not call it made

    def held_out(self, sample: Trajectories, seed: int) -> Completed | None:
        """By the mixture of what the members said out of fold."""
        found = self.stack.mean, self.stack.variance, self.stack.ends
        return Completed.of(sample, *found, self.fitting.discount, self.key)


def candidates(survey: Survey, transitions: int) -> list[Spelling]:
    """The feature maps that are tried for states like these, all of whose coordinates are numbers.

    >>> import policyrisk as pr
    >>> survey = Survey.of(pr.domains.walk(n=30, p=0.7).sample(0, episodes=1000, seed=1), seed=0)
    >>> print(*candidates(survey, 70_000)[:7])
    labels tiles:10 tiles:29 tiles:10,tilings=4 rbf:8 fourier:8 poly:1
    """
    d, most = survey.dim, transitions / 20

    def side(total: int, longest: int) -> int:
        return min(math.floor(math.pow(total, 1 / d) + 1e-9), longest)

    found: list[Spelling] = []
    finest = 40  # tiles along a coordinate
    if d == 1 and survey.whole[0]:
        values = survey.values[0]
        if values is not None and len(values) < transitions / 2:
            found.append(Spelling("labels"))  # a table that a state which it has never seen is no error for
        # As many tiles as states are the table again.
        finest = max(min(finest, int(survey.reached[0] - survey.low[0])), 1)
    grids = sorted({side(100, min(10, finest)), side(400, finest), side(1600, finest)})
    orders = sorted({side(64, 9) - 1, side(256, 9) - 1})
    shifted = (("tilings", 4),)
    squares = [*(("tiles", n, ()) for n in grids), ("tiles", side(64, 10), shifted), ("rbf", side(64, 8), ())]
    plain = [
        *(Spelling(kind, (n,) * d, options) for kind, n, options in squares if n >= 2),
        *(Spelling("fourier", (order,)) for order in orders if order >= 2),
        *(Spelling("poly", (degree,)) for degree in (1, 2, 3) if math.comb(d + degree, degree) <= 200),
    ]
    ranked = [
        replace(each, by="rank")
        for each in plain
        if each.kind != "rbf" and each.count(d) <= 400 and (d <= _FEW_DIMS or each.kind == "poly")
    ]
    found += [each for each in (*plain, *ranked) if each.count(d) <= most]
    if d > 2:
        total = max(t for t in range(1, 30) if math.comb(t + d, d) <= max(_COSINES, d + 1))
        if total > 1 and math.comb(total + d, d) <= most:
            found += [Spelling("fourier", (total,), total=total, by=by) for by in ("", "rank")]
    if 1 < d and (1 + _ADDITIVE) * d <= most:
        first, *others = (Spelling("fourier", (_ADDITIVE,), by="rank", dims=(k,)) for k in range(d))
        found.append(replace(first, others=tuple(others)))
    return list(dict.fromkeys(found))
