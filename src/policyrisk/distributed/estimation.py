"""LSTD(λ) over shards."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from policyrisk._core.arrays import Seed
from policyrisk.distributed.fold import OnError, ShardFold
from policyrisk.distributed.session import cluster
from policyrisk.distributed.shards import as_shards
from policyrisk.equations import MomentEquations
from policyrisk.lstd import LSTD
from policyrisk.risk import RiskFunction


def fit(
    lstd: LSTD,
    shards: Any,
    *,
    on_error: OnError = "stop",
    error_bars: bool = True,
    bootstrap: int = 0,
    seed: Seed = None,
) -> RiskFunction:
    """``lstd.fit`` of all the shards' episodes; to rounding, what it would give here.

    ``shards`` is a folder of Parquet or CSV files, a list of files, of Trajectories or of streams, what
    :func:`shards` makes of files with other columns, or what :func:`rollout` returned.

    A shard that cannot be read is an error that names it, or with ``on_error="skip"`` a
    :class:`policyrisk.errors.SkippedShardsWarning`; ``risk.provenance.skipped`` has the names. The other
    options are those of :meth:`policyrisk.LSTD.fit`.

    >>> import policyrisk as pr
    >>> chain = pr.domains.walk(n=10, p=0.7)
    >>> data = [chain.sample(start=0, episodes=100, seed=k) for k in range(3)]
    >>> risk = pr.distributed.fit(pr.LSTD(pr.Tabular(10)), data)
    >>> bool(abs(risk.variance([0]) - pr.LSTD(pr.Tabular(10)).fit(data).variance([0])) < 1e-9)
    True
    """
    with cluster():
        fold = ShardFold(as_shards(shards), on_error)
        risk = lstd.fit_by(fold, error_bars=error_bars, bootstrap=bootstrap, seed=seed)
        return replace(risk, provenance=replace(risk.provenance, skipped=fold.skipped))


def equations(lstd: LSTD, shards: Any, *, on_error: OnError = "stop") -> MomentEquations:
    """``lstd.equations`` of all the shards' episodes, in one pass."""
    with cluster():
        return ShardFold(as_shards(shards), on_error)(lambda source, _: lstd.equations(source))
