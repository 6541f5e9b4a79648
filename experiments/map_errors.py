"""How far a map is from the truth, and how many Monte-Carlo episodes would have done as well.

The truth is a sample too: with ŝ the Monte-Carlo std of a tile and se its standard error, an estimate s has
E (s − ŝ)² = (s − σ)² + se², so that

    error² = mean (s − ŝ)² − mean se²

is the mean square error against the std σ that more and more episodes would give. A tile with Ṽ < 0 has no
std; it is counted, and enters with s = 0, the nearest that a std can be.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from experiments.common import Bools, Floats

LADDER = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # episodes from each state that the curve is measured with


@dataclass(frozen=True, eq=False)
class Truth:
    """Mean and std of the return at n places, with their standard errors (0 where unknown)."""

    mean: Floats  # (n,)
    std: Floats  # (n,)
    mean_se: Floats  # (n,)
    std_se: Floats  # (n,)

    def error(self, J: Floats, V: Floats) -> MapError:
        """Of a map J̃ (n,), Ṽ (n,), over the places that are finite in both; at least one must be."""
        seen: Bools = np.isfinite(J) & np.isfinite(V) & np.isfinite(self.std) & np.isfinite(self.mean)
        std, mean, J, V = self.std[seen], self.mean[seen], J[seen], V[seen]
        s = np.sqrt(np.where(V > 0, V, 0.0))
        rmse, mean_rmse = _rms(s - std), _rms(J - mean)
        return MapError(
            tiles=int(seen.sum()),
            unseen=int((~seen).sum()),
            negative=int((V < 0).sum()),
            std_rmse=rmse,
            std_rmse_relative=rmse / float(std.mean()),
            std_error=_less(rmse, self.std_se[seen]),
            std_rmse_where_positive=_rms((s - std)[V >= 0]),
            std_bias=float((s - std).mean()),
            std_correlation=_correlation(s, std),
            mean_rmse=mean_rmse,
            mean_rmse_relative=mean_rmse / float(np.abs(mean).mean()),
            mean_error=_less(mean_rmse, self.mean_se[seen]),
            mean_correlation=_correlation(J, mean),
        )


@dataclass(frozen=True)
class MapError:
    """Root mean squares over the tiles that estimate and truth both speak of."""

    tiles: int
    unseen: int  # tiles that only one speaks of, left out
    negative: int  # tiles with Ṽ < 0, taken as std 0
    std_rmse: float  # of s − ŝ
    std_rmse_relative: float  # divided by the mean of ŝ
    std_error: float  # without the truth's own sampling error
    std_rmse_where_positive: float  # over the tiles with Ṽ ≥ 0
    std_bias: float  # the mean of s − ŝ
    std_correlation: float
    mean_rmse: float
    mean_rmse_relative: float  # divided by the mean of |J|
    mean_error: float
    mean_correlation: float


@dataclass(frozen=True, eq=False)
class Budget:
    """What Monte Carlo achieves with few episodes, measured on fresh ones."""

    truth: Truth
    returns: Floats  # (n, k): k fresh returns from each of the truth's places

    def error(self, n: int) -> float:
        """The root mean square error of the std from n episodes at every place, over k // n draws."""
        groups = self.returns.shape[1] // n
        draws = self.returns[:, : groups * n].reshape(-1, groups, n).std(axis=2, ddof=1)
        return _less(_rms(draws - self.truth.std[:, None]), self.truth.std_se)

    def same_budget(self, trajectories: int) -> tuple[float, float]:
        """The error with that many trajectories in all, and the share of places that it is over.

        They are spread evenly; where there are fewer than two for each place, half as many places as
        trajectories get two, and the rest nothing.
        """
        places = len(self.returns)
        n, more = divmod(trajectories, places)
        if n < 2:  # one episode has no deviation
            return self.error(2), min(trajectories // 2 / places, 1.0)
        square = (places - more) * self.error(n) ** 2
        if more:
            square += more * self.error(n + 1) ** 2
        return float(np.sqrt(square / places)), 1.0

    def curve(self) -> tuple[Floats, Floats]:
        """Trajectories in all, and the error, for two episodes at every place up to all that there are."""
        n = np.array([n for n in LADDER if n <= self.returns.shape[1]])
        return n * float(len(self.returns)), np.array([self.error(int(k)) for k in n])

    def needed(self, error: float) -> float:
        """The number of trajectories in all that reach an error; at least two at every place.

        Between the measured points log n is linear in log error; beyond the last the error falls as 1/√n.
        """
        trajectories, errors = self.curve()
        if error <= 0:
            return float("inf")
        if error < errors[-1]:
            return float(trajectories[-1] * (errors[-1] / error) ** 2)
        return float(np.exp(np.interp(-np.log(error), -np.log(errors), np.log(trajectories))))


def _rms(values: Floats) -> float:
    return float(np.sqrt(np.mean(values**2))) if values.size else float("nan")


def _less(rmse: float, standard_errors: Floats) -> float:
    """√(rmse² − mean se²), 0 where randomness has made the difference negative."""
    return float(np.sqrt(max(rmse**2 - float(np.mean(standard_errors**2)), 0.0)))


def _correlation(a: Floats, b: Floats) -> float:
    if a.size < 2 or a.std() == 0 or b.std() == 0:
        return float("nan")
    return float(np.corrcoef(a, b)[0, 1])
