"""The estimator of the return's distribution from trajectories: F̃(θ|x) = φ(x)ᵀ G⁻¹ Σ_t φ(x_t) 1{B_t ≤ θ}.

One pass surveys the returns for the thresholds, one sums (:mod:`.threshold_sums`). Cut-off episodes are
completed by the estimate itself at the state they were cut off in, and with λ < 1 all bootstrap, so that the
weights W solve

    G W = Σ_t φ(x_t) target_t(W)

by repeated substitution, a pass each. Episodes are in groups; group g moves the weights by ψ_g, which solves

    G ψ_g = Σ_{t in g} φ(x_t) (target_t(W) − φ(x_t)ᵀ W) + Σ_t φ(x_t) target'_t(ψ_g)

target' being what a change of the weights changes of the targets. These are the error bars: the sandwich over
groups of episodes, which are independent as episodes are.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from policyrisk._core.arrays import (
    Floats,
    as_array,
    as_count,
    as_flag,
    as_floats,
    as_number,
    check_callable,
    is_sparse,
)
from policyrisk._core.keywords import hinting
from policyrisk._core.text import percent, plural
from policyrisk._core.units import unit_of
from policyrisk.data import Source, batches, check_reiterable, coordinates_of
from policyrisk.equations import DENSE_MOST
from policyrisk.equations.systems import DenseSystem
from policyrisk.errors import (
    GivenUpWarning,
    InvalidInputError,
    NoErrorBarsWarning,
    SolverError,
    check_proper,
)
from policyrisk.features import Features, as_features
from policyrisk.features.protocol import is_binary
from policyrisk.lstd.cutoffs import Trim, trim
from policyrisk.passes import Reduce, here, reduce_in_units
from policyrisk.returns.curves import Grid
from policyrisk.returns.distribution_function import DistributionFunction
from policyrisk.returns.threshold_sums import Bootstrap, ReturnSurvey, ThresholdSums
from policyrisk.risk.support import LOST_MOST, Support

_GROUPS, _FEWEST_GROUPS = 1000, 20  # of episodes, for the error bars
_MERGED = 20  # groups where targets bootstrap
_ROOM = 1 << 24  # numbers that the groups' weights may take
_PASSES = 2000
_SETTLED = 1e-8  # change of the weights, of the largest, at which they count as found
_SETTLED_ERRORS = 1e-2  # the same of the error bars
GramSolve: TypeAlias = Callable[[Floats], Floats]


@hinting
@dataclass(frozen=True, eq=False)
class ReturnDistribution:
    """Settings of the estimate of the return's distribution.

    Parameters
    ----------
    features
        A feature map, or a function from states (n, dim) to (n, l).
    thresholds
        The values z at which F̃(z|x) is estimated, (m,), or how many to choose from a survey of the returns.
    lam
        At 1 the targets are returns, completed where the episode was cut off; below 1 they bootstrap at
        every step, which takes many passes over the data.
    discount
        γ.

    Examples
    --------
    >>> import policyrisk as pr
    >>> chain = pr.domains.walk(n=10, p=0.7)
    >>> data = chain.sample(start=0, episodes=2000, seed=1)
    >>> dist = pr.ReturnDistribution(pr.Tabular(10)).fit(data)
    >>> dist.quantile([0], 0.05), chain.quantile(0.05)[:1]
    (array([-43.]), array([-42.]))
    >>> low, high = dist.interval([0], of="cvar", q=0.05)[0]
    >>> bool(low < chain.cvar(0.05)[0] < high)
    True
    """

    features: Features
    thresholds: Floats | int
    lam: float
    discount: float

    def __init__(
        self, features: Any, thresholds: npt.ArrayLike | int = 200, lam: float = 1.0, discount: float = 1.0
    ) -> None:
        settings = {
            "features": as_features(features),
            "thresholds": _as_thresholds(thresholds),
            "lam": as_number(lam, "lam", 0.0, 1.0),
            "discount": as_number(discount, "discount", 0.0, 1.0, open_low=True),
        }
        for name, value in settings.items():
            object.__setattr__(self, name, value)

    def fit(self, data: Source, *, error_bars: bool = True) -> DistributionFunction:
        """The distribution of the return from recorded episodes, with error bars.

        Without cut-off episodes λ = 1 takes a pass for the thresholds and one for the estimate.

        Parameters
        ----------
        data
            Trajectories, or a re-iterable stream of them.
        error_bars
            False leaves them out.

        Returns
        -------
        DistributionFunction
            F̃(z|x), its quantiles and tails at any state.
        """
        check_reiterable(data)
        return replace(self.fit_by(here(data), error_bars=error_bars), coordinates=coordinates_of(data))

    def fit_by(self, reduce: Reduce, *, error_bars: bool = True) -> DistributionFunction:
        """As ``fit``, for data that ``reduce`` runs passes over (see :mod:`policyrisk.passes`)."""
        check_callable(reduce, "reduce", "a pass over data, such as here(data)")
        features, gamma = self.features, self.discount
        theta = self.thresholds
        if not hasattr(features, "size"):  # a function, which tells it at its first call
            for states in reduce(lambda source, _: _first_states(source))[:1]:
                features(states)
        if isinstance(theta, int):
            theta = reduce(lambda source, part: ReturnSurvey.over(source, part, gamma)).choose(theta)
        unit = unit_of(float(np.abs(theta).max()))
        reduce, theta = reduce_in_units(reduce, unit), theta / unit
        grid = Grid(theta, steps=False)
        groups = _group_count(features, theta.size, error_bars)

        def count(source: Source, part: int) -> ThresholdSums:
            return ThresholdSums.over(source, part, features, grid, gamma, groups)

        sums = reduce(count)
        _check(sums, gamma)
        cut, trimmed = Trim(()), reduce
        if sums.terminated < sums.episodes:
            cut = trim(reduce, [(features, sums.visits)], gamma)
            if cut.transitions:
                _warn_of_given_up(cut.transitions, sums.transitions)
                trimmed = cut.trimmed(reduce)
                del sums
                sums = trimmed(count)
        grid = replace(grid, steps=sums.between == 0)
        solve, gram = _solver(sums)
        own, given, passes = sums.b, np.zeros(1), 0
        W = solve(own.sum(axis=0))
        if self.lam < 1.0:
            own = np.zeros_like(own)
        fixed = Bootstrap(features, grid, gamma, self.lam, W[None], groups, whole=True)
        if self.lam < 1.0 or sums.terminated < sums.episodes:
            W, passes = _substitute(trimmed, fixed, own.sum(axis=0), solve)
            given = trimmed(replace(fixed, weights=W[None]))
        psi = None
        if groups > 1:
            residuals = own + given - np.asarray(sums.gram @ W).reshape(own.shape)
            psi = _solve_all(residuals[sums.group_episodes > 0], solve)
            if passes:
                psi = _with_bootstrap(trimmed, replace(fixed, whole=False), _merged(psi), solve)
        kept = None if sp.issparse(sums.gram) else gram
        return DistributionFunction(
            features=features,
            grid=grid,
            weights=W,
            influences=None if psi is None else psi.transpose(1, 0, 2).astype(np.float32, order="C"),
            support=Support(sums.visits, sums.feature_episodes, sums.episodes, kept, 1.0),
            discount=gamma,
            episodes=sums.episodes,
            terminated=sums.terminated,
            transitions=sums.transitions,
            given_up=cut.transitions,
            passes=passes,
            unit=unit,
        )


def _first_states(source: Source) -> list[Floats]:
    """The first start of a source, (1, dim), if there is one."""
    first = next((batch for batch in batches(source) if len(batch)), None)
    return [] if first is None else [first.starts()[:1]]


def _as_thresholds(value: Any) -> Floats | int:
    if as_array(value, "thresholds", "a whole number, or numbers that rise").ndim == 0:
        return as_count(value, "thresholds", 10)
    theta = as_floats(value, "thresholds", (None,))
    if theta.size < 2 or not (np.diff(theta) > 0).all():
        raise InvalidInputError(
            f"thresholds must be at least two numbers that rise, got {theta.size} of them; sort them and "
            "leave out what is there twice, or pass how many to choose"
        )
    return theta.copy()


def _group_count(features: Features, thresholds: int, error_bars: bool) -> int:
    """How many groups of episodes there are, as many as fit; 1 where there are no error bars."""
    if not as_flag(error_bars, "error_bars"):
        return 1
    numbers = features.size * (thresholds + 3)
    if _FEWEST_GROUPS * numbers > 2 * _ROOM:
        warnings.warn(
            f"no error bars: {numbers} weights, of every feature at every threshold, would not fit "
            f"{_FEWEST_GROUPS} times; pass error_bars=False to say that this is meant, or use fewer",
            NoErrorBarsWarning,
            stacklevel=4,
        )
        return 1
    if not is_binary(features):  # whose Gram matrices may be dense
        numbers = max(numbers, features.size**2 // 4)
    return min(max(_ROOM // numbers, _FEWEST_GROUPS), _GROUPS)


def _check(sums: ThresholdSums, discount: float) -> None:
    if not sums.episodes:  # where the thresholds were given
        raise InvalidInputError("data must hold at least one episode, got none; record some")
    check_proper(discount, sums.terminated, sums.episodes)


def _warn_of_given_up(given_up: int, transitions: int) -> None:
    if given_up > LOST_MOST * transitions:
        warnings.warn(
            f"cut-off episodes gave up {plural(given_up, 'last transition')} "
            f"({percent(given_up / transitions)} of all), since they ended where nothing is known: the "
            "estimates are of episodes that end sooner. Gather episodes that go on for longer or from where "
            "these end, or use coarser features",
            GivenUpWarning,
            stacklevel=4,
        )


def _solver(sums: ThresholdSums) -> tuple[GramSolve, Any]:
    """The solution of G w = rhs (l, k), 0 at unvisited features, and G where it is dense."""
    groups, size = sums.b.shape[:2]
    rows = np.arange(groups * size)
    together = sp.csr_array((np.ones(rows.size), (rows % size, rows)), shape=(size, rows.size))
    G: Any = together @ sums.gram
    if is_sparse(G):
        diagonal: Floats = np.asarray(G.diagonal())
        if G.count_nonzero() == np.count_nonzero(diagonal):  # one feature at a time
            divisor = np.where(sums.visits > 0, diagonal, 1.0)[:, None]
            return lambda rhs: rhs / divisor, None
        if size > DENSE_MOST:
            raise InvalidInputError(
                f"features must be at most {DENSE_MOST} where several are active together, got {size}; use "
                "larger tiles or a single tiling"
            )
        G = G.toarray()
    return DenseSystem(G, G, sums.visits, 0.0, "the features' Gram matrix").solve, G


def _substitute(reduce: Reduce, bootstrap: Bootstrap, own: Floats, solve: GramSolve) -> tuple[Floats, int]:
    """W with G W = own + Σ φ target(W), and the passes it took."""
    W = bootstrap.weights[0]

    def step(W: Floats) -> Floats:
        return solve(own + reduce(replace(bootstrap, weights=W[None], groups=1))[0])

    return _settled(step, W, _SETTLED, "targets that bootstrap")


def _with_bootstrap(reduce: Reduce, bootstrap: Bootstrap, own: Floats, solve: GramSolve) -> Floats:
    """ψ = own + G⁻¹ Σ φ target'(ψ), for all groups at once."""

    def step(psi: Floats) -> Floats:
        return own + _solve_all(reduce(replace(bootstrap, weights=psi, groups=len(psi))), solve)

    return _settled(step, own, _SETTLED_ERRORS, "the error bars of targets that bootstrap")[0]


def _settled(step: GramSolve, x: Floats, tolerance: float, what: str) -> tuple[Floats, int]:
    """x (…, m + 3) with step(x) = x, by repeating it, and how many steps that took.

    Columns have units of their own, and count in parts of their size; those of F̃ in parts of the largest.
    """
    for count in range(1, _PASSES + 1):
        last, x = x, step(x)
        size = np.abs(x).reshape(-1, x.shape[-1]).max(axis=0)
        size[:-3] = size[:-3].max()
        if (np.abs(x - last) <= tolerance * size).all():
            return x, count
    raise SolverError(
        f"{what} did not settle in {_PASSES} passes; gather longer episodes, or use a larger lam, fewer "
        "features or a discount below 1"
    )


def _merged(psi: Floats) -> Floats:
    """The influences of fewer, larger groups: each group is as much work as the whole estimate."""
    if len(psi) <= _MERGED:
        return psi
    return np.stack([psi[first::_MERGED].sum(axis=0) for first in range(_MERGED)])


def _solve_all(rhs: Floats, solve: GramSolve) -> Floats:
    """The solutions of right-hand sides (groups, l, k)."""
    groups, size, k = rhs.shape
    return solve(rhs.transpose(1, 0, 2).reshape(size, groups * k)).reshape(size, groups, k).transpose(1, 0, 2)
