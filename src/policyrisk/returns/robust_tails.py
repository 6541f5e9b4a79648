"""The return's distribution under a target, doubly robust: propensities check the log as a chain.

With w_t = Π_{s≤t} π(a_s|x_s) / μ(a_s|x_s), R_t = Σ_{s<t} γ^s r_s, and *critics* F̃(z|x) of the return to go
and G̃(z|x, a) of taking a first, F̃(z|x) = Σ_a π(a|x) G̃(z|x, a), every episode gives (Huang and others 2021)

    F_k(θ) = F̃(θ|x_0) + Σ_t w_t D_t
    D_t = F̃((θ − R_{t+1})/γ^{t+1} | x_{t+1}) − G̃((θ − R_t)/γ^t | x_t, a_t)

with F̃(z|end) = 1{z ≥ 0}. Right propensities make the average unbiased, whatever the critics are. Here they
are logs as chains without the fold that the episode is in. Where such a chain has no answer any critic will
do: there F̃ and G̃ are the average over the starts; of an action that it has not seen G̃ is F̃. An episode that
was cut off ends in F̃ of the state it was cut off in.

Errors come from the same weights of groups of episodes as those of the chain's draws.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from policyrisk._core.arrays import Bools, Floats, Ints
from policyrisk.data import Source, Trajectories, batches, pieces
from policyrisk.data.source import InUnits
from policyrisk.features.target import Target
from policyrisk.passes import here
from policyrisk.passes.episode_folds import each_fold
from policyrisk.returns.chain_tails import DRAWS, GROUPS, ChainStarts, ChainTails, cells_of
from policyrisk.returns.curves import read_at
from policyrisk.risk.draws import multipliers

_FOLDS = 2
_STEPS = 1 << 12  # that are looked at together


@dataclass(frozen=True, eq=False)
class Critics:
    """F̃ and G̃ of one log as a chain, at thresholds."""

    tails: ChainTails
    F: Floats  # (n, m)
    G: Floats  # (pairs, m)
    number: Ints  # of pairs (cell · actions + action), rising

    @classmethod
    def of(cls, tails: ChainTails) -> Critics:
        """Those of a distribution."""
        m, known, log = tails.grid.size, tails.chain.known, tails.log
        F = np.where(known[:, None], tails._found[:, :m], tails.over().curve[0, :m])
        kept = np.flatnonzero(known[log.cell] & (log.weight > 0))
        number, pair = np.unique(log.cell[kept] * tails.actions + log.action[kept], return_inverse=True)
        found, share = cls(tails, F, np.zeros((number.size, m)), number), log.count[kept]
        share = share / np.bincount(pair, share)[pair]
        for some in np.array_split(np.arange(kept.size), kept.size // _STEPS + 1):
            at = kept[some]
            gamma = np.where(log.successor[at] < 0, 1.0, tails.discount)
            z = (tails.grid.theta - log.reward[at, None]) / gamma[:, None]
            np.add.at(found.G, pair[some], share[some, None] * found.read(log.successor[at], z))
        return found

    def read(self, cell: Ints, z: Floats) -> Floats:
        """F̃ at z (k, m) from cells (k,), −1 being the end."""
        grid = self.tails.grid
        values = read_at(self.F[cell], grid.theta, z, steps=grid.steps)
        return np.where(cell[:, None] < 0, z >= -grid.tol, values)

    def taking(self, cell: Ints, action: Ints, z: Floats) -> Floats:
        """G̃ at z (k, m)."""
        grid, wanted = self.tails.grid, cell * self.tails.actions + action
        at = np.minimum(np.searchsorted(self.number, wanted), self.number.size - 1)
        seen: Bools = self.number[at] == wanted
        curves = np.where(seen[:, None], self.G[at], self.F[cell])
        return read_at(curves, grid.theta, z, steps=grid.steps)


def robust_tails(tails: ChainTails, data: Source, target: Target) -> ChainStarts | None:
    """F over the starts of the data, and its draws, read as the chain's; None with clusters of episodes."""
    theta, key = tails.grid.theta, tails.key or (0, 0)
    sums, count = np.zeros((GROUPS, theta.size)), np.zeros(GROUPS)
    episode = 0
    source = data if tails.unit == 1.0 else InUnits(data, tails.unit)
    for _, others, own in each_fold(source, _FOLDS, int(key[0])):
        fitted = ChainTails.fit_by(here(others), tails.features, target, tails.discount, 1.0)
        critics = Critics.of(fitted.without_intervals())
        for batch in (piece for part in batches(own) for piece in pieces(part, _STEPS)):
            if batch.clusters is not None:
                return None
            group = (np.arange(len(batch)) + episode) % GROUPS
            np.add.at(sums, group, _episodes(critics, batch, target, theta))
            count += np.bincount(group, minlength=GROUPS)
            episode += len(batch)
    omega = 1.0 + multipliers(key, np.arange(GROUPS), DRAWS)
    mean = sums.sum(axis=0) / count.sum()
    F = np.clip(np.maximum.accumulate(mean), 0.0, 1.0)
    change = (omega.T @ sums) / (omega.T @ count)[:, None] - F
    rest = (
        tails.without_intervals().over().curve[:, theta.size :]
    )  # of the moments, and of what is below the thresholds
    return ChainStarts(tails, np.hstack([F[None], rest]), change, episode, 0)


def _episodes(critics: Critics, data: Trajectories, target: Target, theta: Floats) -> Floats:
    """F_k at thresholds, (episodes, m)."""
    tails, at, gamma = critics.tails, data.visited_rows, critics.tails.discount
    cell = np.full(len(data.states), -1)
    shown = np.concatenate([at, data.final_rows[~data.terminated]])
    cell[shown] = cells_of(tails.features, data.states[shown])
    assert data.actions is not None
    assert data.propensities is not None
    ratio = target.chance(data.states[at], data.actions) / data.propensities
    begin, t = data.offsets[:-1], np.arange(data.transitions) - np.repeat(data.offsets[:-1], data.lengths)
    power = gamma ** t.astype(np.float64)
    earned = np.cumsum(power * data.rewards)
    before = earned - power * data.rewards
    before -= np.repeat(before[begin], data.lengths)
    w = np.concatenate([np.cumprod(each) for each in np.split(ratio, begin[1:])])
    z = (theta - before[:, None]) / power[:, None]
    ends = cell[at + 1] < 0
    after = (z - data.rewards[:, None]) / np.where(ends, 1.0, gamma)[:, None]
    term = critics.read(cell[at + 1], after) - critics.taking(cell[at], data.actions, z)
    value = critics.read(cell[at[begin]], np.broadcast_to(theta, (len(data), theta.size)))
    return np.asarray(value + np.add.reduceat(w[:, None] * term, begin, axis=0))
