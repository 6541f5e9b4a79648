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
put into a mixture by :func:`policyrisk.selection.stacking.stack` on at most ``EPISODES`` episodes with at
most ``TRANSITIONS`` transitions, a uniform sample, so that the cost does not grow with the data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from policyrisk._core.arrays import Floats
from policyrisk._core.random import keys
from policyrisk._core.text import percent, plural
from policyrisk.errors import InvalidInputError
from policyrisk.evaluation.labels import label_columns, label_spellings
from policyrisk.evaluation.spelling import Spelling
from policyrisk.lstd import LSTD
from policyrisk.montecarlo.forest import Grown, ReturnForest
from policyrisk.passes.survey import Survey
from policyrisk.risk import RiskFunction, VarianceMethod
from policyrisk.selection.out_of_fold import FOLDS
from policyrisk.selection.stacking import FOREST, Stack, brief, stack
from policyrisk.trajectories import Trajectories

EPISODES = 2_000
TRANSITIONS = 60_000
_ADDITIVE = 6  # cosines of a coordinate
_NAMED = 3  # members that a mixture's name spells out
_FEW_DIMS = 4  # up to which there are grids
_COSINES = 300


@dataclass(frozen=True)
class Member:
    """A part of the mixture: features, or the forest where they are None."""

    spelling: Spelling | None
    mean_share: float
    variance_share: float
    variance_lam: float  # κ of its direct variance

    def __str__(self) -> str:
        return FOREST if self.spelling is None else str(self.spelling)


@dataclass(frozen=True, eq=False)
class FeatureChoice:
    """What was chosen, and the table that it was chosen from."""

    members: tuple[Member, ...]
    labels: tuple[int, ...]  # coordinates that are taken for labels
    stack: Stack
    sampled: int  # episodes that it was chosen on
    episodes: int  # of the data
    tail: Member | None  # what completed cut-off episodes for the forest, None where there were none
    trees: Grown = field(repr=False)  # of the forest, on the sample

    def __str__(self) -> str:
        share = "all" if self.sampled == self.episodes else f"{self.sampled} of the"
        return f"{self.stack}\nchosen on {share} {plural(self.episodes, 'episode')}: {self.name}"

    @property
    def name(self) -> str:
        """The members with their shares, the smaller ones of many by their number."""
        if len(self.members) == 1:
            return str(self.members[0])
        said = []
        named = len(self.members) if len(self.members) <= _NAMED + 1 else _NAMED
        for member in self.members[:named]:
            shares = (member.mean_share, "J"), (member.variance_share, "V")
            parts = ", ".join(f"{percent(share)} of {what}" for share, what in shares if share)
            said.append(f"{brief(str(member))} ({parts})")
        if named < len(self.members):
            said.append(f"and {len(self.members) - named} more")
        return "a mixture of " + ", ".join(said)

    def to_dict(self) -> dict[str, Any]:
        """Everything in plain values."""
        members = [
            {"features": str(m), "mean_share": m.mean_share, "variance_share": m.variance_share}
            for m in self.members
        ]
        return {
            "features": self.name,
            "members": members,
            "sampled_episodes": self.sampled,
            "stack": self.stack.to_dict(),
        }


def candidates(survey: Survey, transitions: int, names: Sequence[str]) -> list[Spelling]:
    """The feature maps that are tried for states like these, all of whose coordinates are numbers.

    >>> import policyrisk as pr
    >>> survey = Survey.of(pr.domains.walk(n=30, p=0.7).sample(0, episodes=1000, seed=1), seed=0)
    >>> print(*candidates(survey, 70_000, ["x"])[:7])
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
    squares = [*(("tiles", tiles, 1) for tiles in grids), ("tiles", side(64, 10), 4), ("rbf", side(64, 8), 1)]
    plain = [
        *(Spelling(kind, (n,) * d, tilings=tilings) for kind, n, tilings in squares if n >= 2),
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
        first, *others = (Spelling("fourier", (_ADDITIVE,), by="rank", dims=(name,)) for name in names)
        found.append(replace(first, others=tuple(others)))
    return list(dict.fromkeys(found))


def choose_features(
    data: Trajectories,
    survey: Survey,
    names: Sequence[str],
    low: Floats,
    high: Floats,
    *,
    lam: float,
    discount: float,
    ridge: float,
    variance: VarianceMethod = "direct",
    labels: Sequence[int] = (),
    seed: int,
) -> FeatureChoice:
    """The mixture of the candidates for the box low to high (dim,), on a sample of the episodes.

    ``survey`` is of the whole data. Folds and the forest are drawn from ``seed``. ``labels`` are coordinates
    that are labels for certain; where there are none, those that look like labels have their tables tried
    beside all other candidates.
    """
    found = tuple(labels) or tuple(label_columns(data, survey, discount, seed))
    spellings = label_spellings(survey, names, found)
    if not labels:
        spellings = candidates(survey, data.transitions, names) + spellings
    if not spellings or len(data) < FOLDS:
        raise InvalidInputError(
            f"features=auto must have enough data to choose by, got {plural(len(data), 'episode')} with "
            f"{plural(data.transitions, 'transition')}; gather more, or name the features, as in poly:1"
        )
    K = len(data)
    estimators = {
        str(s): LSTD(
            s.build(names, survey, low, high),
            lam=lam,
            discount=discount,
            ridge=max(ridge, s.ridge(K)),
            variance=variance,
        )
        for s in spellings
    }

    trees: Grown = {}

    def forest(data: Trajectories, tail: RiskFunction | None, mean: Floats | None) -> tuple[Floats, Floats]:
        settings = ReturnForest(discount=discount)
        fitted = settings.fit_out_of_bag(data, tail=tail, mean=mean, seed=seed, grown=trees)
        return fitted.mean, fitted.variance

    stacked = stack(estimators, data, key=int(keys(seed)[0]), forest=forest if variance == "direct" else None)
    by_name = {str(s): s for s in spellings}
    members = {
        each.name: Member(by_name.get(each.name), each.mean_share, each.variance_share, each.variance_lam)
        for each in stacked.candidates
    }
    return FeatureChoice(
        tuple(members[each.name] for each in stacked.members),
        found,
        stacked,
        sampled=K,
        episodes=survey.episodes,
        tail=None if stacked.reference is None else members[stacked.reference[1]],
        trees=trees,
    )
