"""The estimator LSTD(λ): from a model or from trajectories to a :class:`RiskFunction`.

    A w_J = b        C w_M = e + D w_J            the paper's M, Ṽ = M̃ − J̃²
    A w_J = b        C w_V = Σ y_t δ_t²           variance="direct"

With ``nonnegative_at`` the second equation is replaced by the constrained one of sec. 5: w_M is the point
of W = {w : φ_M(x_i)ᵀ w ≥ (φ_J(x_i)ᵀ w_J)² for all i} with (C w − d)ᵀ(w' − w) ≥ 0 for all w' in W
(φ_M(x_i)ᵀ w ≥ 0 for the direct variance).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from policyrisk._core.arrays import Seed, as_count, as_number, check_kind
from policyrisk._core.devices import Device
from policyrisk._core.keywords import hinting
from policyrisk.data import Source, check_reiterable, coordinates_of
from policyrisk.equations import MomentEquations
from policyrisk.errors import InvalidInputError
from policyrisk.features import Features, as_features
from policyrisk.lstd.accumulate import FirstPass, accumulate
from policyrisk.lstd.central_moments import ExactMoments, MomentPasses, with_higher_moments
from policyrisk.lstd.cutoffs import Trim, lost_traces, trim
from policyrisk.lstd.pipeline import ConstraintSolver, Known, answer, check_settings, fit_by, solve
from policyrisk.lstd.steps import View
from policyrisk.markov import MarkovChain
from policyrisk.markov.projected import ProjectedChain
from policyrisk.passes import Reduce, here
from policyrisk.risk import RiskFunction, VarianceMethod


@hinting
@dataclass(frozen=True, eq=False)
class LSTD:
    """Settings of LSTD(λ): A w_J = b and C w_M = e + D w_J, from episodes or from a model.

    Parameters
    ----------
    features
        φ_J: a feature map, or a function from states (n, dim) to (n, l).
    second_features
        φ_M; the same as ``features`` where None.
    lam
        The trace parameter λ.
    discount
        γ.
    ridge
        Acts on per-episode means: (A/K + ridge·I) w = b/K.
    variance
        "second-moment" for Ṽ = M̃ − J̃², "direct" for an equation of the variance itself.
    nonnegative_at
        States (n, dim) where Ṽ ≥ 0 is demanded, or "visited" for those that were seen.
    constraint_solver
        "active-set", or "projection" for the paper's iteration.
    variance_lam
        κ of the direct variance, C w_V = Σ_t y_t δ_t (2ε_t − δ_t) with ε_t = Σ_{s≥t} (κγ)^{s−t} δ_s. At κ = 0
        this is a sum of δ², in which every step's part of J̃'s error counts as variance. At κ = 1 it is that
        of (B_t − J̃(x_t))², in which J̃'s error counts once, at more noise.
    moments
        With 4 the third and fourth central moments are estimated as well, without error bars
        (:mod:`policyrisk.lstd.central_moments`): ``risk.skewness``, ``risk.kurtosis``, ``risk.moments``.
    higher_features
        φ_3 and φ_4 for these; φ_M where None.

    Examples
    --------
    >>> import policyrisk as pr
    >>> chain = pr.domains.walk(n=30, p=0.7)
    >>> phi = pr.Polynomial(degree=1, low=[0], high=[29])
    >>> lstd = pr.LSTD(phi, pr.Polynomial(degree=2, low=[0], high=[29]), lam=0.95)
    >>> lstd.fit_exact(chain, start=0).variance([27, 28, 29]).round(3)
    array([  9.902, -16.038, -43.016])
    """

    features: Any
    second_features: Any = None
    lam: float = 0.9
    discount: float = 1.0
    ridge: float = 0.0
    variance: VarianceMethod = "second-moment"
    nonnegative_at: npt.ArrayLike | Literal["visited"] | None = None
    constraint_solver: ConstraintSolver = "active-set"
    variance_lam: float = 0.0
    moments: int = 2
    higher_features: Any = None
    name: ClassVar[str] = "LSTD"
    of_table: ClassVar[bool] = False  # as of :class:`policyrisk.equations.systems.TableSystem`

    def __post_init__(self) -> None:
        check_settings(self)
        kappa = as_number(self.variance_lam, "variance_lam", 0.0, 1.0)
        if kappa and self.variance != "direct":
            raise InvalidInputError(
                f'variance_lam must be 0 unless variance="direct", got {kappa:g}; leave one of them out'
            )
        first = as_features(self.features)
        second = first if self.second_features is None else as_features(self.second_features)
        order = as_count(self.moments, "moments", 2, 4)
        checked = {
            "features": first,
            "second_features": second,
            "variance_lam": kappa,
            "moments": order,
            "higher_features": _as_higher(self.higher_features, second, order),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def exact_equations(self, chain: MarkovChain, start: npt.ArrayLike = 0) -> MomentEquations:
        """The projected equations of a known chain (sec. 4.3).

        Parameters
        ----------
        chain
            A chain with the same discount.
        start
            A state's index, or a distribution of shape (n,).

        Returns
        -------
        MomentEquations
            The limit of the sampled equations' per-episode means.
        """
        return self._project(chain, start).equations()

    def fit_exact(self, chain: MarkovChain, start: npt.ArrayLike = 0) -> RiskFunction:
        """The solution of the exact projected equations, every setting included; no error bars.

        Parameters
        ----------
        chain
            A chain with the same discount.
        start
            A state's index, or a distribution of shape (n,).

        Returns
        -------
        RiskFunction
            What ``fit`` tends to as episodes are added, where none is cut off.
        """
        projected = self._project(chain, start)
        equations = projected.equations()
        weights = equations.solve(self.ridge)
        d = equations.second_rhs(weights.mean)
        if self.variance == "direct":
            d = projected.direct_right_hand_side(weights.mean, self.variance_lam)
        visited = np.flatnonzero(projected.q > 0)[:, None].astype(np.float64)
        risk = answer(self, equations, weights, d, called="LSTD's exact equations", visited=visited)[0]
        if self.moments > 2:
            sums = ExactMoments(chain, chain.start_distribution(start), self.lam)
            risk = with_higher_moments(risk, self.higher_features, weights, sums)
        return risk

    def equations(self, data: Source, device: Device = "cpu") -> MomentEquations:
        """The sums A, b, C, D and e over recorded episodes, in one pass; they add.

        Parameters
        ----------
        data
            Trajectories, or a re-iterable stream of them.
        device
            "cuda" sums dense features on a GPU (:mod:`policyrisk.lstd.gpu_sums`), "auto" where there is one.

        Returns
        -------
        MomentEquations
            The equations of these episodes.
        """
        return accumulate(data, self.view, device)

    def fit(
        self,
        data: Source,
        *,
        error_bars: bool = True,
        bootstrap: int = 0,
        seed: Seed = None,
        device: Device = "cpu",
    ) -> RiskFunction:
        """The risk function of recorded episodes, with error bars.

        Memory does not depend on the length of the data. The equations take one pass. The error bars take
        another, most of the time where there are many features; no estimate needs it. The direct variance,
        the constraint at "visited" states and cut-off episodes that end in unvisited states take more passes.

        Parameters
        ----------
        data
            Trajectories, or a re-iterable stream of them.
        error_bars
            False leaves out the pass for the error bars.
        bootstrap
            How many draws of the weights are kept for ``risk.interval(method="bootstrap")``.
        seed
            That of the draws.
        device
            "cuda" sums the equations of dense features on a GPU; the other passes run on the CPU.

        Returns
        -------
        RiskFunction
            J̃, M̃ and Ṽ at any state.

        Examples
        --------
        >>> import policyrisk as pr
        >>> chain = pr.domains.walk(n=10, p=0.7)
        >>> risk = pr.LSTD(pr.Tabular(10)).fit(chain.sample(start=0, episodes=2000, seed=1))
        >>> low, high = risk.interval([0], of="variance")[0]
        >>> bool(low < chain.variance()[0] < high)
        True
        """
        check_reiterable(data)
        risk = self.fit_by(here(data), error_bars=error_bars, bootstrap=bootstrap, seed=seed, device=device)
        return replace(risk, coordinates=coordinates_of(data))

    def fit_by(
        self,
        reduce: Reduce,
        *,
        error_bars: bool = True,
        bootstrap: int = 0,
        seed: Seed = None,
        device: Device = "cpu",
    ) -> RiskFunction:
        """As ``fit``, for data wherever they are (see :mod:`policyrisk.passes`).

        >>> import policyrisk as pr
        >>> from policyrisk.passes import here
        >>> data = pr.domains.walk(n=10, p=0.7).sample(start=0, episodes=50, seed=1)
        >>> lstd = pr.LSTD(pr.Tabular(10))
        >>> bool(lstd.fit_by(here(data)).mean([0]) == lstd.fit(data).mean([0]))
        True
        """
        return fit_by(self, reduce, error_bars, bootstrap, seed, device)

    def known(self, reduce: Reduce, first: FirstPass, device: Device = "cpu") -> Known:
        """The sums and weights of what cut-off episodes do not give up."""
        maps = self.features, self.second_features
        equations, facts = first.equations.of_maps(*maps), dict[str, Any]()
        cut, decays = self._cut(reduce, equations)
        trimmed = cut.trimmed(reduce)
        if cut.transitions:
            equations = trimmed(partial(FirstPass.over, self.view, device)).equations.of_maps(*maps)
            lost = lost_traces(reduce, cut, decays)[: 1 + (self.second_features != self.features)]
            facts = {"given_up": cut.transitions, "lost": lost}
        return Known(self.view, trimmed, equations, equations.solve(self.ridge), facts, cut)

    def _cut(self, reduce: Reduce, equations: MomentEquations) -> tuple[Trim, list[float]]:
        """What cut-off episodes give up, and by how much the trace of each map decays in a step."""
        if equations.terminated == equations.episodes or (self.discount == 1.0 and not equations.terminated):
            return Trim(()), []  # the second is an error, and solve's
        seen = [(self.features, equations.visits), (self.second_features, equations.second_visits)]
        seen = seen[:1] if self.second_features == self.features else seen
        decays = [self.lam * self.discount, self.lam * self.discount**2][: len(seen)]
        for k, phi in enumerate(self.higher_features, start=3):
            if phi not in [each for each, _ in seen]:
                visits = MomentPasses(reduce, self.lam).equations(phi, self.discount**k).visits
                seen.append((phi, visits))
                decays.append(self.lam * self.discount**k)
        return trim(reduce, seen, self.discount), decays

    @property
    def view(self) -> View:
        """What the sums over data depend on."""
        return View(self.features, self.second_features, self.lam, self.discount)

    def solve(self, equations: MomentEquations) -> RiskFunction:
        """The risk function of summed equations, without error bars.

        The direct variance, ``nonnegative_at="visited"`` and ``moments`` need the data again: use ``fit``.

        Parameters
        ----------
        equations
            Those of this estimator, or a sum of several.

        Returns
        -------
        RiskFunction
            J̃, M̃ and Ṽ at any state.
        """
        return solve(self, equations)

    def _project(self, chain: MarkovChain, start: npt.ArrayLike) -> ProjectedChain:
        check_kind(chain, "chain", MarkovChain, "build MarkovChain(P, r)")
        return ProjectedChain(
            chain,
            self.features,
            self.second_features,
            chain.start_distribution(start),
            lam=self.lam,
            discount=self.discount,
        )


def _as_higher(maps: Sequence[Any] | None, second: Features, moments: int) -> tuple[Features, ...]:
    """φ_3, … up to the moments that are asked for."""
    if maps is None:
        return (second,) * (moments - 2)
    if not isinstance(maps, Sequence) or len(maps) != moments - 2:
        got = len(maps) if isinstance(maps, Sequence) else type(maps).__name__
        raise InvalidInputError(
            f"higher_features must be as many maps as there are moments beyond the second, {moments - 2} "
            f"with moments={moments}, got {got}; pass [phi_3, phi_4] with moments=4"
        )
    return tuple(as_features(each) for each in maps)
