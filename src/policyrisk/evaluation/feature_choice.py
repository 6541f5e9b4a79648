"""Features chosen by cross-validation among a few sensible ones.

The candidates depend on the number d of coordinates and on the number n of transitions:

    tiles        a coarse, a middling and a fine grid, b tiles along every coordinate with b^d ≤ 100, 400 and
                 1600, and 4 shifted grids with 4 b^d ≤ 256
    rbf          c^d ≤ 64 centres
    fourier      the highest orders of at most 64 and 256 cosines
    poly         degrees 1, 2 and 3, up to 200 monomials
    tabular      for one whole-numbered coordinate with at most 500 values
    labels       tables of the coordinates that are labels, more and less shrunk, beside poly and tiles of the
                 others; alone where the labels are stated (:mod:`policyrisk.evaluation.labels`)

each of them but the labels only if it has at most n/20 features, and each with both ways to the variance
unless one is asked for. They are fitted and scored by
:func:`policyrisk.selection.cross_validation.cross_validate` on at most
``EPISODES`` episodes with at most ``TRANSITIONS`` transitions, a uniform sample, so that the cost does not
grow with the data. The first in its ranking is taken; of maps with the same score, that with the fewest
features.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from policyrisk._core.arrays import Floats, Seed
from policyrisk._core.text import plural
from policyrisk.errors import InvalidInputError, PolicyRiskWarning
from policyrisk.evaluation.labels import label_columns, label_spellings
from policyrisk.evaluation.spelling import Spelling
from policyrisk.lstd import LSTD
from policyrisk.passes.survey import Survey
from policyrisk.risk import VarianceMethod
from policyrisk.selection.cross_validation import CrossValidation, cross_validate
from policyrisk.trajectories import Trajectories

EPISODES = 2_000
TRANSITIONS = 60_000
_METHODS: tuple[VarianceMethod, ...] = ("second-moment", "direct")


@dataclass(frozen=True, eq=False)
class FeatureChoice:
    """What was chosen, and the table that it was chosen from."""

    spelling: Spelling
    variance: VarianceMethod
    validation: CrossValidation
    sampled: int  # episodes that it was chosen on
    episodes: int  # of the data

    def __str__(self) -> str:
        share = "all" if self.sampled == self.episodes else f"{self.sampled} of the"
        return f"{self.validation}\nchosen on {share} {plural(self.episodes, 'episode')}: {self.name}"

    @property
    def name(self) -> str:
        """The chosen candidate's name."""
        return f"{self.spelling} {self.variance}"

    def to_dict(self) -> dict[str, Any]:
        """Everything in plain values."""
        return {
            "features": str(self.spelling),
            "variance": self.variance,
            "sampled_episodes": self.sampled,
            "cross_validation": self.validation.to_dict(),
        }


def candidates(survey: Survey, transitions: int) -> list[Spelling]:
    """The feature maps that are tried for states like these.

    >>> import policyrisk as pr
    >>> survey = Survey.of(pr.domains.walk(n=30, p=0.7).sample(0, episodes=1000, seed=1), seed=0)
    >>> print(*candidates(survey, 70_000))
    tabular tiles:10 tiles:29 tiles:10,tilings=4 rbf:8 fourier:8 poly:1 poly:2 poly:3
    """
    d, most = survey.dim, transitions / 20

    def side(total: int, longest: int) -> int:
        return min(math.floor(math.pow(total, 1 / d) + 1e-9), longest)

    found: list[Spelling] = []
    finest = 40  # tiles along a coordinate
    if d == 1 and survey.whole[0] and survey.low[0] >= 0 and survey.reached[0] < 500:
        table = int(survey.reached[0]) + 1
        if table <= most:
            found.append(Spelling("tabular"))
        finest = min(finest, table - 1)  # as many tiles as states are the table again
    grids = sorted({side(100, min(10, finest)), side(400, finest), side(1600, finest)})
    orders = sorted({side(64, 9) - 1, side(256, 9) - 1})
    squares = [*(("tiles", tiles, 1) for tiles in grids), ("tiles", side(64, 10), 4), ("rbf", side(64, 8), 1)]
    others = [
        *(Spelling(kind, (n,) * d, tilings=tilings) for kind, n, tilings in squares if n >= 2),
        *(Spelling("fourier", (order,)) for order in orders if order >= 2),
        *(Spelling("poly", (degree,)) for degree in (1, 2, 3) if math.comb(d + degree, degree) <= 200),
    ]
    return found + [spelling for spelling in others if spelling.count(d) <= most]


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
    variance: VarianceMethod | None = None,
    seed: Seed = None,
    labels: Sequence[int] = (),
) -> FeatureChoice:
    """The best of the candidates for the box low to high (dim,), on a sample of the episodes.

    ``survey`` is of the whole data, ``variance`` the one way to estimate it that is considered (both where
    None). Folds are drawn from ``seed``. ``labels`` are coordinates that are labels for certain; where there
    are none, those that look like labels have their tables tried beside all other candidates.
    """
    found = labels or label_columns(data, survey, discount, seed)
    spellings = label_spellings(survey, names, found)
    if not labels:
        spellings = candidates(survey, data.transitions) + spellings
    folds = min(4, len(data))
    if not spellings or folds < 2:
        raise InvalidInputError(
            f"features=auto must have enough data to choose by, got {plural(len(data), 'episode')} with "
            f"{plural(data.transitions, 'transition')}; gather more, or name the features, as in poly:1"
        )
    methods = _METHODS if variance is None else (variance,)
    entries = {f"{s} {m}": (s, m) for s in spellings for m in methods}
    estimators = {
        name: LSTD(
            s.build(names, survey, low, high),
            lam=lam,
            discount=discount,
            ridge=ridge + s.ridge(len(data)),
            variance=m,
        )
        for name, (s, m) in entries.items()
    }
    with warnings.catch_warnings():
        # What a candidate lacks is in the table.
        warnings.simplefilter("ignore", PolicyRiskWarning)
        validation = cross_validate(estimators, data, folds=folds, seed=seed)
    sizes = {name: estimator.features.size for name, estimator in estimators.items()}
    best = entries[_best(validation, sizes)]
    return FeatureChoice(*best, validation, sampled=len(data), episodes=survey.episodes)


def _best(validation: CrossValidation, sizes: Mapping[str, int]) -> str:
    """The first; of several alike, as two spellings of one table are, that with the fewest features."""
    first = validation.best  # raises where all failed
    lowest = validation.ranking[0].floored
    assert lowest is not None
    alike = [
        c.name
        for c in validation.ranking
        if c.floored is not None and math.isclose(c.floored, lowest, rel_tol=1e-9, abs_tol=1e-9)
    ]
    return min([first, *alike], key=lambda name: sizes[name])
