"""Several estimates of the same policy mixed into one, and what their disagreement says about its error.

With shares a_i ≥ 0 of the means and b_i ≥ 0 of the variances, each of sum 1,

    J̃(x) = Σ_i a_i J̃_i(x)          Ṽ(x) = Σ_i b_i Ṽ_i(x)

is linear in the members' weights side by side, so that a mixture is an ordinary :class:`RiskFunction`: its
features are :class:`~policyrisk.features.Joint`, its weights the members' times their shares, and its error
bars the members' replicates side by side, which were drawn with the same multipliers for the same episodes.
(The paper's M̃ is mixed with the shares a, and Ṽ = M̃ − J̃².)

No member has the truth among its features, and features and shares were chosen from the same episodes that
were fitted. Draw b of the answer holds what members disagree about: it takes one of them, member i with the
probability a_i, the same one at every state, at twice its distance from the mixture, and the replicate dJ̃_b,

    J̃_b = J̃ + 2 (J̃_i − J̃) + c_J dJ̃_b          of squared error  c_J² s_J² + 4 Σ_i a_i (J̃_i − J̃)²

and Ṽ_b likewise, on the scale of its logarithm. Every quantity has its interval from these draws. 2 is the
one constant: on tasks outside the suite s² + 4 · spread covers 94.6 and 93.6 % of the means and the stds at
300 episodes (nominal 95 %), s² + spread 89 and 87 %, s² alone 80 %. c_J and c_V are the :class:`Widening`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from policyrisk._core.arrays import Floats, Ints, as_floats, as_list
from policyrisk._core.records import record
from policyrisk.errors import InvalidInputError, MismatchError
from policyrisk.features import Features, Joint, Leaves
from policyrisk.features.target import PolicyFeatures
from policyrisk.risk.draws import ErrorBars
from policyrisk.risk.support import MixedSupport, Provenance, Support

if TYPE_CHECKING:
    from policyrisk.risk.risk_function import RiskFunction

MIXTURE = "mixture"
TREES = 2  # of a forest, whose leaves have draws that are kept
STATES = 5000  # that these are averages over


@record
@dataclass(frozen=True)
class Widening:
    """By how much draws move farther than replicates where few episodes decide these; at least 1."""

    mean: float = 1.0  # c_J
    variance: float = 1.0  # c_V


def mixed_fields(
    members: Sequence[RiskFunction],
    mean_shares: Sequence[float],
    variance_shares: Sequence[float] | None,
) -> dict[str, Any]:
    """The fields of the mixture; see :meth:`RiskFunction.mixture`."""
    members = as_list(members, "members", "fitted RiskFunctions")
    if not members:
        raise InvalidInputError("members must be at least one RiskFunction, got none; pass some")
    for member in members:
        if not hasattr(member, "variance_method"):
            raise InvalidInputError(f"members must be RiskFunctions, got {type(member).__name__}; fit some")
    if any(isinstance(member.features, PolicyFeatures) for member in members):
        raise InvalidInputError("members must be of the recorded policy, got one of LSTDQ; pass LSTD's")
    methods = {member.variance_method for member in members}
    if len(methods) > 1 or (variance_shares is not None and "second-moment" in methods):
        raise InvalidInputError(
            "members must all have variance='direct' to be mixed with variance_shares, or all "
            "'second-moment' without, got others; fit them alike"
        )
    m = len(members)
    if len({member.unit for member in members}) > 1:
        units = sorted({member.unit for member in members})
        raise MismatchError(
            f"members must be of the same episodes, got some whose rewards are about {units[0]:g} and others "
            f"about {units[-1]:g}; fit all to the same data"
        )
    a = as_shares(mean_shares, m, "mean_shares")
    b = a if variance_shares is None else as_shares(variance_shares, m, "variance_shares")
    of_mean, of_second = np.flatnonzero(a).tolist(), np.flatnonzero(b).tolist()
    bars = [member.error_bars for member in members]
    sizes = [member.w_mean.size for member in members], [member.w_second.size for member in members]
    features = mixed_features([members[i].features for i in of_mean])
    second = mixed_features([members[i].second_features for i in of_second])
    support = mixed_support([members[i].support for i in of_mean], a[of_mean])
    second_support = mixed_support([members[i].second_support for i in of_second], b[of_second])
    same = second == features and bool(np.array_equal(a, b))
    return {
        "features": features,
        "second_features": features if second == features else second,
        "w_mean": np.concatenate([a[i] * members[i].w_mean for i in of_mean]),
        "w_second": np.concatenate([b[i] * members[i].w_second for i in of_second]),
        "variance_method": members[0].variance_method,
        "support": support,
        "second_support": support if same else second_support,
        "provenance": mixed_provenance([member.provenance for member in members]),
        "error_bars": mixed_bars(bars, of_mean, of_second, sizes, (a, b)),
        "returns": members[0].returns,
        "unit": members[0].unit,
    }


def mixed_features(maps: Sequence[Features]) -> Features:
    """The maps side by side, or the one that there is."""
    return maps[0] if len(maps) == 1 else Joint(maps)


def mixed_support(supports: Sequence[Support | MixedSupport], shares: Floats) -> Support | MixedSupport:
    """The supports of the members with a share, of shape (m,)."""
    plain = tuple(each for each in supports if isinstance(each, Support))
    if len(plain) < len(supports):
        raise InvalidInputError("members must not be mixtures themselves, got one; mix its members instead")
    return plain[0] if len(plain) == 1 else MixedSupport(plain, shares)


def mixed_bars(
    bars: Sequence[ErrorBars | None],
    of_mean: Sequence[int],
    of_second: Sequence[int],
    sizes: tuple[Sequence[int], Sequence[int]],
    shares: tuple[Floats, Floats],
) -> ErrorBars | None:
    """The members' replicates side by side, of those with a share in the mean and in the second weights.

    ``sizes`` are the members' numbers of features of both maps and ``shares`` their shares, each (m,). None
    where one of them has none, or where they were not drawn with the same multipliers.
    """
    if list(of_mean) == list(of_second) and len(of_mean) == 1:
        return bars[of_mean[0]]
    drawn: dict[int, tuple[ErrorBars, Floats]] = {}
    for i in {*of_mean, *of_second}:
        each = bars[i]
        if each is None or each.replicates is None:
            return None
        drawn[i] = each, each.replicates
    if len({(each.key, len(R)) for each, R in drawn.values()}) > 1:
        return None
    kept: tuple[list[Ints], list[Ints]] = [], []
    moved: tuple[list[Floats], list[Floats]] = [], []
    for which, chosen in enumerate((of_mean, of_second)):
        first = 0
        for i in chosen:
            each, R = drawn[i]
            k = len(each.mean_kept)
            moved[which].append((R[:, :k] if which == 0 else R[:, k:]) * shares[which][i])
            kept[which].append((each.mean_kept, each.second_kept)[which] + first)
            first += sizes[which][i]
    replicates = np.hstack([*moved[0], *moved[1]]).astype(np.float32, copy=False)
    key, clusters = drawn[of_mean[0]][0].key, max(each.clusters for each, _ in drawn.values())
    both = np.concatenate(kept[0]), np.concatenate(kept[1])
    return ErrorBars(*both, None, None, None, replicates, key=key, clusters=clusters)


def with_merged_draws(risk: RiskFunction, states: Floats) -> RiskFunction:
    """The same with fewer draws of a forest's leaves, of which there are too many to be kept.

    What all trees together move a forest by in a draw is averaged over the ``states`` (n, dim) in each leaf
    of the first ``TREES``, and these averages are all that stays of it, times the number that makes their
    variance at the states on average what it was.
    """
    bars = risk.error_bars
    if bars is None or bars.replicates is None or bars.mean is not None or bars.merge is not None:
        return risk
    columns, merges, done = [], [], 0
    for features, kept in ((risk.features, bars.mean_kept), (risk.second_features, bars.second_kept)):
        maps = features.maps if isinstance(features, Joint) else (features,)
        end = 0
        for phi in maps:
            first, end = end, end + phi.size
            size = int(np.count_nonzero((kept >= first) & (kept < end)))
            moved = bars.replicates[:, done : done + size].T
            done += size
            merge: Any = sp.eye_array(size, format="csr")
            if isinstance(phi, Leaves) and phi.size == size and phi.trees > TREES:
                moved, merge = _merged(phi, moved, states)
            columns.append(moved)
            merges.append(merge)
    if all(merge.shape[0] == merge.shape[1] for merge in merges):
        return risk
    replicates = np.concatenate(columns).T.astype(np.float32)
    whole = sp.csr_array(sp.block_diag(merges, format="csr"))
    return replace(risk, error_bars=replace(bars, replicates=replicates, merge=whole))


def _merged(leaves: Leaves, moved: Floats, states: Floats) -> tuple[Floats, Any]:
    """Draws (c, B), and M (leaves, c) that makes about those of the leaves (leaves, B) of them."""
    some = np.flatnonzero(leaves.tree_of < TREES)
    field: Any = leaves(states) @ moved
    rows: Any = sp.csr_array(leaves(states)[:, some])
    count = rows.sum(axis=0)[:, None]
    # A leaf without a state has its own draws, as if all trees had them.
    together = np.where(count > 0, (rows.T @ field) / np.maximum(count, 1.0), moved[some] * leaves.trees)
    after = np.square((rows @ together) / TREES).mean()
    scale = math.sqrt(np.square(field).mean() / after) / TREES if after > 0 else 0.0
    shape = leaves.size, some.size
    return together, sp.csr_array((np.full(some.size, scale), (some, np.arange(some.size))), shape=shape)


def mixed_provenance(members: Sequence[Provenance]) -> Provenance:
    """What is common to the members, and the worst of what is not."""
    # Members may have given up cut-off episodes as a whole, each its own; terminated ones all have.
    first = max(members, key=lambda each: each.episodes)
    for other in members:
        if (other.discount, other.terminated) != (first.discount, first.terminated):
            raise MismatchError(
                f"members must be of one discount and of the same episodes, got {first.settings} of "
                f"{first.episodes} and {other.settings} of {other.episodes}; fit all to the same data"
            )
    worst = {
        name: max(getattr(each, name) for each in members)
        for name in ("outside", "given_up", "redundant", "constrained", "constraint_residual", "residual")
    }
    condition = np.nanmax([-np.inf, *(each.condition for each in members)])
    return replace(first, estimator=MIXTURE, ridge=0.0, condition=float(condition), **worst)


def as_shares(shares: Sequence[float], members: int, name: str) -> Floats:
    """Checked shares (members,), scaled to a sum of 1."""
    array = as_floats(shares, name, (None,))
    if array.size != members or (array < 0).any() or array.sum() <= 0:
        raise InvalidInputError(
            f"{name} must be {members} numbers, one for each member, not negative and not all 0, got "
            f"{array.tolist()}; pass each member's share"
        )
    scaled: Floats = array / array.sum()
    return scaled
