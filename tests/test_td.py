"""TD(λ) against a slow twin written from the equations, the theorem's limit, and its own algebra."""

from __future__ import annotations

import gc
import itertools
import re
import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp
from conftest import dense
from hypothesis import given, settings
from hypothesis import strategies as st

from policyrisk.data import Trajectories
from policyrisk.domains import walk
from policyrisk.errors import GivenUpWarning, ImproperPolicyError, InvalidInputError, SolverError
from policyrisk.features import Fourier, FunctionFeatures, Polynomial, RadialBasis, Tabular, TileCoding
from policyrisk.markov import MarkovChain
from policyrisk.markov.projected import ProjectedChain
from policyrisk.risk import RiskFunction
from policyrisk.td import TD, StepSize, learned

BOX = {"low": [0, 0], "high": [1, 1]}
FEATURES = {
    "tiles": TileCoding(bins=4, **BOX),
    "tilings": TileCoding(bins=3, tilings=3, **BOX),
    "sparse": RadialBasis.grid(shape=4, truncate=1.5, **BOX),
    "dense": Polynomial(degree=2, **BOX),
}
PAIRS = [
    ("tiles", "tiles"),
    ("tilings", "tilings"),
    ("sparse", "sparse"),
    ("dense", "dense"),
    ("dense", "tiles"),
    ("tiles", "dense"),
]


def wandering(episodes: int, seed: int, cut: float = 0.4) -> Trajectories:
    """Random walks in the unit square, a part of them cut off; terminal states are far outside of it."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 9, episodes)
    terminated = rng.random(episodes) >= cut
    states = []
    for T, end in zip(lengths, terminated, strict=True):
        x = np.clip(rng.random(2) + np.cumsum(rng.normal(0, 0.1, (T + 1, 2)), axis=0), 0, 1)
        if end:
            x[-1] = 1e6
        states.append(x)
    return Trajectories(np.concatenate(states), rng.normal(size=lengths.sum()), lengths, terminated)


def used_transitions(td: TD, data: Trajectories):
    """The episodes as lists of (φ_J, φ_M, r, φ_J', φ_M'), cut-off ends with unvisited features given up."""
    seen: set[tuple[int, int]] = set()

    def support(x):
        return {
            (i, int(j))
            for i, features in enumerate((td.features, td.second_features))
            for j in np.flatnonzero(dense(features(x[None]))[0])
        }

    for episode in data:
        x, r, T = episode.states, episode.rewards, len(episode.rewards)
        if not episode.terminated[0]:
            while T > 0 and not support(x[T]) <= seen.union(*(support(x[t]) for t in range(T))):
                T -= 1
        rows = []
        for t in range(T):
            seen |= support(x[t])
            ended = t + 1 == len(r) and episode.terminated[0]
            now, then = x[t][None], x[t + (0 if ended else 1)][None]
            phi = [dense(f(now))[0] for f in (td.features, td.second_features)]
            following = [dense(f(then))[0] * (not ended) for f in (td.features, td.second_features)]
            rows.append((*phi, float(r[t]), *following))
        yield rows


def twin(td: TD, data: Trajectories):
    """The weights, straight from the module's docstring."""
    gamma, lam, xi = td.discount, td.lam, td.step
    w_J, w_M = np.zeros(td.features.size), np.zeros(td.second_features.size)
    iterates = []
    for rows in used_transitions(td, data):
        z, y = np.zeros_like(w_J), np.zeros_like(w_M)
        sum_J, sum_M = np.zeros_like(w_J), np.zeros_like(w_M)
        for phi_J, phi_M, r, next_J, next_M in rows:
            z, y = lam * gamma * z + phi_J, lam * gamma**2 * y + phi_M
            delta_J = r + gamma * next_J @ w_J - phi_J @ w_J
            delta_M = r**2 + 2 * gamma * r * next_J @ w_J + gamma**2 * next_M @ w_M - phi_M @ w_M
            if td.update == "step":
                k = len(iterates)
                w_J, w_M = w_J + xi(k) * z * delta_J, w_M + xi(k) * y * delta_M
                iterates.append((w_J, w_M))
            else:
                sum_J, sum_M = sum_J + z * delta_J, sum_M + y * delta_M
        if td.update == "episode":
            k = len(iterates)
            w_J, w_M = w_J + xi(k) * sum_J, w_M + xi(k) * sum_M
            iterates.append((w_J, w_M))
    if not td.average:
        return w_J, w_M
    weights = np.arange(1, len(iterates) + 1)
    return tuple(np.average([pair[i] for pair in iterates], axis=0, weights=weights) for i in (0, 1))


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
@pytest.mark.parametrize("update", ["episode", "step"])
def test_equals_the_twin(pair, update):
    data = wandering(25, seed=3)
    assert 0 < data.terminated.sum() < len(data)
    for lam, gamma, average in itertools.product([0.0, 0.7, 1.0], [1.0, 0.9], [False, True]):
        td = TD(
            FEATURES[pair[0]],
            None if pair[0] == pair[1] else FEATURES[pair[1]],
            lam=lam,
            discount=gamma,
            step=StepSize(0.05, decay=10, power=0.7),
            update=update,
            average=average,
        )
        risk = td.fit(data)
        w_J, w_M = twin(td, data)
        np.testing.assert_allclose(risk.w_mean, w_J, rtol=1e-11, atol=1e-13)
        np.testing.assert_allclose(risk.w_second, w_M, rtol=1e-11, atol=1e-13)


def test_one_episode_by_hand():
    """States 0, 1, end with rewards 2, 3 and half steps, twice."""
    data = Trajectories([0, 1, 2, 0, 1, 2], [2.0, 3.0, 2.0, 3.0], [2, 2], [True, True])
    step = StepSize(0.5, power=0)
    risk = TD(Tabular(2), step=step).fit(data)
    # After one: w_J = (1, 1.5), w_M = (2, 4.5). Then δ_J = (2 + 1.5 − 1, 3 − 1.5),
    # δ_M = (4 + 2·2·1.5 + 4.5 − 2, 9 − 4.5).
    np.testing.assert_allclose(risk.w_mean, [2.25, 2.25])
    np.testing.assert_allclose(risk.w_second, [8.25, 6.75])
    cut_off = Trajectories([0, 1, 2, 0, 1], [2.0, 3.0, 2.0], [2, 1], [True, False])
    risk = TD(Tabular(2), step=step, discount=0.5).fit(cut_off)
    # The second episode bootstraps from state 1: δ_J(0) = 2 + ½·1.5 − 1, δ_M(0) = 4 + 2·½·2·1.5 + ¼·4.5 − 2.
    np.testing.assert_allclose(risk.w_mean, [1 + 1.75 / 2, 1.5])
    np.testing.assert_allclose(risk.w_second, [2 + 6.125 / 2, 4.5])


def replicate(td: TD, chain: MarkovChain, episodes: int, seeds: range):
    fits = [td.fit(chain.sample(0, episodes=episodes, seed=seed)) for seed in seeds]
    return np.array([np.concatenate([risk.w_mean, risk.w_second]) for risk in fits])


def limit(td: TD, chain: MarkovChain):
    zeta = np.eye(chain.n)[0]
    weights = (
        ProjectedChain(chain, td.features, td.second_features, zeta, lam=td.lam, discount=td.discount)
        .equations()
        .solve()
    )
    return np.concatenate([weights.mean, weights.second])


@pytest.mark.parametrize(
    ("lam", "gamma", "update"),
    [
        pytest.param(0.0, 1.0, "episode", marks=pytest.mark.slow),
        (0.6, 1.0, "episode"),
        pytest.param(0.0, 0.9, "episode", marks=pytest.mark.slow),
        (0.6, 0.9, "step"),
    ],
)
def test_theorem_10(lam, gamma, update):
    """TD reaches the exact projected weights: no bias beyond randomness, and an error that falls with √K."""
    chain = walk(n=6, p=0.7, discount=gamma)
    pairs = TileCoding(low=[0], high=[6], bins=3)  # two states share a weight: far from exact
    decay = 200 if update == "episode" else 2000
    td = TD(pairs, lam=lam, discount=gamma, step=StepSize(0.1, decay=decay), update=update)
    exact = limit(td, chain)
    assert np.abs(np.repeat(exact[:3], 2) - chain.mean()).max() > 0.1
    n = 48
    few, many = replicate(td, chain, 500, range(n)), replicate(td, chain, 8_000, range(n, 2 * n))
    z = (many.mean(axis=0) - exact) / (many.std(axis=0, ddof=1) / np.sqrt(n))
    assert np.abs(z).max() < 4
    # The logarithm of a root mean square over n runs has standard error 1/√(2n), that of two 1/√n.
    ratio = np.sqrt(((many - exact) ** 2).mean(axis=0) / ((few - exact) ** 2).mean(axis=0))
    assert np.abs(np.log(ratio * np.sqrt(8_000 / 500))).max() < 4 / np.sqrt(n)


def test_averaging_steps_that_fall_slowly():
    """The average is several times closer to the limit than the last iterate, and without bias."""
    chain, phi = walk(n=6, p=0.7), Polynomial(degree=1, low=[0], high=[6])
    step = StepSize(0.05, decay=100, power=0.6)
    last, average = TD(phi, lam=0.5, step=step), TD(phi, lam=0.5, step=step, average=True)
    exact = limit(last, chain)
    errors = [(replicate(td, chain, 20_000, range(12)) - exact) / np.abs(exact) for td in (last, average)]
    rms = [np.sqrt(np.mean(error**2)) for error in errors]
    assert rms[1] < 0.5 * rms[0]
    z = errors[1].mean(axis=0) / (errors[1].std(axis=0, ddof=1) / np.sqrt(12))
    assert np.abs(z).max() < 4


def same_bits(a: RiskFunction, b: RiskFunction) -> bool:
    arrays = [
        (a.w_mean, b.w_mean),
        (a.w_second, b.w_second),
        (a.support.visits, b.support.visits),
        (a.support.feature_episodes, b.support.feature_episodes),
        (a.second_support.visits, b.second_support.visits),
    ]
    return a.provenance == b.provenance and all(np.array_equal(x, y) for x, y in arrays)


@settings(deadline=None, max_examples=40)
@given(
    cuts=st.lists(st.integers(0, 60), max_size=5),
    pair=st.sampled_from(PAIRS),
    update=st.sampled_from(["episode", "step"]),
    lam=st.sampled_from([0.0, 0.8]),
    average=st.booleans(),
)
def test_pieces_equal_the_whole(cuts, pair, update, lam, average):
    """partial_fit in pieces, a stream and one batch: the same bits, empty pieces included."""
    data = wandering(60, seed=11)
    ends = [0, *sorted(cuts), 60]
    pieces = [data[a:b] for a, b in itertools.pairwise(ends)]

    def make():
        step = StepSize(0.05, decay=10, power=0.7)
        return TD(*(FEATURES[name] for name in pair), lam=lam, step=step, update=update, average=average)

    whole, live = make().fit(data), make()
    for piece in (piece for piece in pieces if len(piece) or live._learned):
        by_pieces = live.partial_fit(piece)
    for other in (by_pieces, make().fit(pieces), make().partial_fit(iter(pieces))):
        assert same_bits(whole, other)
        for mine, theirs in ((whole.support.gram, other.support.gram),):
            if mine is not None:
                np.testing.assert_allclose(mine, theirs, rtol=1e-12)
        assert other.returns.mean == pytest.approx(whole.returns.mean, rel=1e-12)
        assert other.returns.variance == pytest.approx(whole.returns.variance, rel=1e-12)


def test_chunks_change_nothing(monkeypatch):
    data = wandering(300, seed=5)
    td = TD(FEATURES["tilings"], FEATURES["dense"], lam=0.5)
    whole = td.fit(data)
    monkeypatch.setattr(learned, "_TRANSITIONS", 20)
    assert len(list(learned.episode_rows(data, None))) > 50
    assert same_bits(whole, td.fit(data))
    monkeypatch.setattr(learned, "_TRANSITIONS", 1)
    assert same_bits(whole, td.fit(data))


def test_epochs_go_on_and_count_once():
    data = wandering(40, seed=2, cut=0.0)
    td, live = TD(FEATURES["tiles"], lam=0.3), TD(FEATURES["tiles"], lam=0.3)
    risk = td.fit(data, epochs=3)
    live.partial_fit([data, data])
    again = live.partial_fit(data)
    np.testing.assert_array_equal(risk.w_second, again.w_second)
    assert (risk.provenance.episodes, again.provenance.episodes) == (40, 120)
    assert risk.returns.count == 40
    np.testing.assert_array_equal(risk.support.visits, td.fit(data).support.visits)
    with pytest.raises(InvalidInputError, match="re-iterable"):
        td.fit(iter([data]), epochs=2)
    assert td.fit(iter([data])).provenance.episodes == 40


def test_fit_forgets_and_snapshots_stay():
    data = wandering(50, seed=4)
    td = TD(FEATURES["dense"], lam=0.5)
    first = td.fit(data)
    kept = first.w_mean.copy(), first.support.gram.copy(), first.support.visits.copy()
    second = td.partial_fit(data)
    assert not np.array_equal(second.w_mean, first.w_mean)
    for array, copy in zip((first.w_mean, first.support.gram, first.support.visits), kept, strict=True):
        np.testing.assert_array_equal(array, copy)
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
    assert same_bits(td.fit(data), first)


def test_unvisited_ends_are_given_up():
    """A cut-off end without an equation of its own takes its transitions along, until one is found."""
    cut_off = Trajectories([0, 1, 2], [1.0, 1.0], [2], [False])
    ends = Trajectories([2, 3], [1.0], [1], [True])
    td = TD(Tabular(4), discount=0.9, step=StepSize(0.5, power=0))
    with pytest.warns(GivenUpWarning, match="1 of 1 episodes"):
        risk = td.fit(cut_off)
    assert (risk.provenance.given_up, risk.provenance.transitions) == (2, 0)
    assert not risk.w_mean.any()
    assert np.isnan(risk.mean([0, 1, 2])).all()
    risk = td.fit([ends, cut_off])
    assert (risk.provenance.given_up, risk.provenance.transitions) == (0, 3)
    np.testing.assert_allclose(risk.w_mean, [0.5, 0.5 * (1 + 0.9 * 0.5), 0.5, 0])
    risk = td.fit([cut_off, ends], epochs=2)
    assert (risk.provenance.given_up, risk.provenance.transitions) == (0, 3)
    assert risk.support.visits.tolist() == [1, 1, 1, 0]
    assert risk.visited([0, 1, 2, 3]).tolist() == [True, True, True, False]
    looping = Trajectories([0, 1, 1], [1.0, 1.0], [2], [False])
    assert td.fit(looping).provenance.given_up == 0


def clock(episodes, end, most):
    """Geometric lengths, cut off after ``most`` steps; the state is the step, and each earns 1."""
    lengths = np.random.default_rng(0).geometric(end, episodes)
    kept = np.minimum(lengths, most)
    states = np.concatenate([np.arange(n + 1) for n in kept])
    return Trajectories(states, np.ones(kept.sum()), kept, lengths <= most)


def test_a_selection_by_what_was_given_up_is_said():
    """All that go on after step 9 gave up, and the rest seem to end there: 6.5 is found for 10."""
    td = TD(Tabular(12), step=StepSize(0.5, decay=100))
    data = clock(3000, end=0.1, most=10)
    count = int((~data.terminated).sum())
    with pytest.warns(GivenUpWarning, match=f"{count} of 3000 episodes were cut off.*{count} last transit"):
        risk = td.fit(data, epochs=20)
    assert risk.mean([0])[0] < 7
    td.fit(clock(3000, end=0.4, most=10))  # 0.6 %
    coarse = TD(TileCoding([0], [12], bins=3), step=StepSize(0.05, decay=100))
    assert coarse.fit(data).mean([0])[0] == pytest.approx(10, abs=1.5)


@pytest.mark.parametrize("kind", ["tilings", "sparse", "dense"])
def test_support_counts_what_was_seen(kind):
    data, phi = wandering(30, seed=8, cut=0.0), FEATURES[kind]
    risk = TD(phi).fit(data)
    rows = [dense(phi(episode.states[:-1])) for episode in data]
    np.testing.assert_array_equal(risk.support.visits, sum((row != 0).sum(axis=0) for row in rows))
    np.testing.assert_array_equal(
        risk.support.feature_episodes, sum((row != 0).any(axis=0).astype(float) for row in rows)
    )
    assert risk.support.episodes == 30
    if kind == "dense":
        np.testing.assert_allclose(risk.support.gram, sum(row.T @ row for row in rows), rtol=1e-12)
    else:
        assert risk.support.gram is None
    assert risk.visited(rows_of_states(data)).all()


def rows_of_states(data: Trajectories):
    return np.concatenate([episode.states[:-1] for episode in data])


def test_gram_leaves_ends_out():
    data, phi = wandering(30, seed=9, cut=1.0), FEATURES["dense"]
    rows = dense(phi(rows_of_states(data)))
    risk = TD(phi, discount=0.9).fit(data)
    np.testing.assert_allclose(risk.support.gram, rows.T @ rows, rtol=1e-12)


def test_facts_and_returns():
    data = wandering(80, seed=1)
    shift = np.zeros(data.transitions)
    shift[data.offsets[:-1]] = 1e8  # far from 0: the mean must come off before squares are summed
    moved = Trajectories(data.states, data.rewards + shift, data.lengths, data.terminated)
    risk = TD(FEATURES["tiles"], lam=0.3, discount=0.9, step=StepSize(1e-3)).fit([moved[:30], moved[30:]])
    returns = moved.returns(0.9)[data.terminated]
    assert risk.returns.count == len(returns)
    assert risk.returns.mean == pytest.approx(returns.mean(), rel=1e-13)
    assert risk.returns.variance == pytest.approx(returns.var(ddof=1), rel=1e-9)
    facts = risk.provenance
    assert (facts.estimator, facts.lam, facts.discount, facts.episodes) == ("TD", 0.3, 0.9, 80)
    assert facts.terminated == data.terminated.sum()
    assert facts.transitions + facts.given_up == data.transitions
    with pytest.raises(InvalidInputError, match="error bars"):
        risk.interval([[0.5, 0.5]], of="mean")


def test_states_outside_are_counted():
    data = Trajectories([[0.5], [1.5], [2.5], [9.0]], [1.0, 1.0, 1.0], [3], [True])
    phi, wide = TileCoding(low=[0], high=[1], bins=2), TileCoding(low=[0], high=[2], bins=2)
    assert TD(phi).fit(data).provenance.outside == 2
    assert TD(wide).fit(data).provenance.outside == 1
    assert TD(wide, phi).fit(data).provenance.outside == 2


def test_terminal_states_are_never_looked_at():
    seen = []

    def phi(x):
        seen.extend(x[:, 0].tolist())
        return np.hstack([np.ones_like(x), x])

    data = Trajectories([0, 1, 99, 2, 3, 4], [1.0, 2.0, 3.0, 4.0], [2, 2], [True, False])
    TD(phi).fit(data)
    assert set(seen) == {0, 1, 2, 3, 4}


def test_functions_of_any_kind():
    """A function's size is found by calling it, and sparse or dense does not matter to the weights."""
    data = wandering(40, seed=6)
    full = TD(lambda x: np.hstack([np.ones((len(x), 1)), np.maximum(x - 0.5, 0)]), lam=0.4).fit(data)

    def thin(x):
        return sp.csr_array(np.hstack([np.ones((len(x), 1)), np.maximum(x - 0.5, 0)]))

    sparse = TD(FunctionFeatures(thin), lam=0.4).fit(data)
    np.testing.assert_allclose(sparse.w_second, full.w_second, rtol=1e-12)
    assert sparse.support.gram is None
    assert full.support.gram.shape == (3, 3)


def test_saved_and_loaded(tmp_path):
    data = wandering(40, seed=6)
    risk = TD(FEATURES["dense"], FEATURES["tiles"]).fit(data)
    risk.save(tmp_path / "risk.npz")
    loaded = RiskFunction.load(tmp_path / "risk.npz")
    x = rows_of_states(data)
    np.testing.assert_array_equal(loaded.variance(x), risk.variance(x))
    assert loaded.returns == risk.returns


# --- divergence ---------------------------------------------------------------------------------------


def hinted(error: SolverError) -> float:
    found = re.search(r"pass step=StepSize\((\S+), \.\.\.\) or less", str(error))
    assert found is not None
    return float(found[1])


DIVERGING = {
    "tiles": TileCoding(low=[0], high=[20], bins=10),
    "tilings": TileCoding(low=[0], high=[20], bins=4, tilings=4),
    "fourier": Fourier(order=4, low=[0], high=[20]),
    "polynomial": Polynomial(degree=2, low=[0], high=[20]),
}


@pytest.mark.parametrize("update", ["episode", "step"])
@pytest.mark.parametrize("lam", [0.0, 0.8])
@pytest.mark.parametrize("kind", DIVERGING)
def test_the_hinted_step_is_stable_and_a_large_one_is_not(kind, lam, update):
    chain, phi = walk(n=20, p=0.6), DIVERGING[kind]
    data = chain.sample(0, episodes=2000, seed=7)

    def fit(scale):
        return TD(phi, lam=lam, step=StepSize(scale, power=0.0), update=update).fit(data, epochs=3)

    with pytest.raises(SolverError, match=rf"TD diverged at update \d+ \(one per {update}\)") as caught:
        fit(4.0)
    J, exact = fit(hinted(caught.value)).mean(np.arange(20)), limit(TD(phi, lam=lam), chain)[: phi.size]
    J_exact = dense(phi(np.arange(20)[:, None])) @ exact
    assert np.linalg.norm(J - J_exact) < 0.5 * np.linalg.norm(J_exact)


def test_hint_of_a_table():
    """Each episode visits state 0 three times and state 1 once: the largest sum of squares is 4."""
    data = Trajectories.concatenate([Trajectories([0, 0, 1, 0, 2], np.ones(4), [4], [True])] * 2000)
    with pytest.raises(SolverError) as caught:
        TD(Tabular(2), step=StepSize(5.0, power=0)).fit(data)
    assert hinted(caught.value) == 0.25


@pytest.mark.parametrize("update", ["episode", "step"])
def test_weights_that_overflow_in_the_last_update(update):
    """No TD error tells, since none comes after it."""
    data = Trajectories([0, 1], [1e160], [1], [True])
    with pytest.raises(SolverError, match=r"update 0 .*scale the features to about 1"):
        TD(lambda x: sp.csr_array(np.full((len(x), 1), 1e160)), update=update).fit(data)


def test_what_was_learned_before_a_bad_batch_is_kept():
    good, bad = wandering(30, seed=1, cut=0.0), wandering(5, seed=2, cut=0.0)
    to_and_fro = np.tile([[0.1, 0.1], [0.9, 0.9]], (51, 1))[:101]  # 50 visits to each of two tiles
    loops = Trajectories(to_and_fro, np.ones(100), [100], [True])
    bad = Trajectories.concatenate([bad, *[loops] * 60])
    td = TD(FEATURES["tiles"], step=StepSize(0.1, power=0))
    before = td.fit(good)
    with pytest.raises(SolverError, match="update"):
        td.partial_fit(bad)
    assert same_bits(td.risk, before)
    with pytest.raises(SolverError):
        td.partial_fit([good, bad])
    assert td.risk.provenance.episodes == 60
    kept = td.risk
    with pytest.raises(SolverError):
        td.fit(bad)
    assert same_bits(td.risk, kept)


def test_divergence_that_is_not_the_steps_fault():
    """Episodes cut off after one step of two states that point at each other, one with a doubled feature."""
    data = Trajectories([1, 2] * 4000, np.ones(4000), np.ones(4000, dtype=int), np.zeros(4000, dtype=bool))
    with pytest.raises(SolverError, match="where cut-off episodes make the equations unstable"):
        TD(lambda x: x, discount=0.99, step=StepSize(0.1, power=0)).fit(data)


# --- arguments -----------------------------------------------------------------------------------------

PHI = Tabular(3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TD(3), "features must"),
        (lambda: TD(Tabular), "instance"),
        (lambda: TD(PHI, second_features=3), "features must"),
        (lambda: TD(PHI, lam=-0.1), "lam must"),
        (lambda: TD(PHI, lam=1.1), "lam must"),
        (lambda: TD(PHI, discount=0.0), "discount must"),
        (lambda: TD(PHI, discount=1.5), "discount must"),
        (lambda: TD(PHI, step=0.1), "step must be a StepSize"),
        (lambda: TD(PHI, update="sweep"), "update must"),
        (lambda: TD(PHI, average="yes"), "average must"),
        (lambda: StepSize(0.0), "scale must"),
        (lambda: StepSize(-1), "scale must"),
        (lambda: StepSize(np.inf), "scale must"),
        (lambda: StepSize(0.1, decay=0), "decay must"),
        (lambda: StepSize(0.1, power=-0.1), "power must"),
        (lambda: StepSize(0.1, power=1.1), "power must"),
        (lambda: StepSize("a"), "scale must"),
        (lambda: TD(PHI).fit(3), "data must"),
        (lambda: TD(PHI).fit([]), "at least one episode"),
        (lambda: TD(PHI).fit([3]), "must yield Trajectories"),
        (lambda: TD(PHI).fit(EPISODE, epochs=0), "epochs must"),
        (lambda: TD(PHI).fit(EPISODE, epochs=1.5), "epochs must"),
        (lambda: TD(PHI).partial_fit([]), "at least one episode"),
        (lambda: TD(PHI).risk, "call fit"),
        (lambda: TD(PHI).fit(Trajectories([5, 0], [1.0], [1], [True])), "Tabular"),
        (lambda: TD(Wrong(active=[[3]])).fit(EPISODE), "indices from 0 to 2"),
        (lambda: TD(Wrong(active=[[-1]])).fit(EPISODE), "indices from 0 to 2"),
        (lambda: TD(Wrong(active=[0])).fit(EPISODE), "shape"),
        (lambda: TD(WrongShape(np.ones((1, 2)))).fit(EPISODE), "shape"),
        (lambda: TD(WrongShape(sp.csr_array(np.ones((1, 2))))).fit(EPISODE), "shape"),
        (lambda: TD(WrongShape(np.full((1, 3), np.nan))).fit(EPISODE), "finite"),
        (
            lambda: TD(WrongShape(sp.csr_array((np.ones(1), [3], [0, 1]), shape=(1, 3)))).fit(EPISODE),
            "indices from 0 to 2",
        ),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(InvalidInputError, match=message):
        make()


EPISODE = Trajectories([0, 1], [1.0], [1], [True])


class Wrong:
    size = 3

    def __init__(self, active):
        self.indices = np.array(active)

    def active(self, states):
        return self.indices

    def __call__(self, states):
        raise AssertionError


class WrongShape:
    size = 3

    def __init__(self, phi):
        self.phi = phi

    def __call__(self, states):
        return self.phi


def test_a_policy_must_end():
    data = Trajectories([0, 0], [1.0], [1], [False])
    with pytest.raises(ImproperPolicyError, match="Assumption 1"):
        TD(PHI).fit(data)
    assert TD(PHI, discount=0.9).fit(data).provenance.terminated == 0


def test_step_sizes():
    step = StepSize(0.1, decay=1000, power=1.0)
    np.testing.assert_allclose(step([0, 1, 1000]), [0.1, 0.1 / 1.001, 0.05])
    assert float(StepSize(0.3, decay=5, power=0)(10**9)) == 0.3
    flags = [StepSize(0.1, power=power).satisfies_theorem for power in (0, 0.5, 0.51, 1)]
    assert flags == [False, False, True, True]
    assert TD(PHI).step == step


def test_memory_stays_flat_on_a_live_stream():
    td = TD(FEATURES["tiles"])
    pieces = [wandering(2, seed=seed, cut=0.0) for seed in range(20)]
    traced = []
    tracemalloc.start()
    try:
        for _ in range(4):
            for _ in range(20):
                td.partial_fit(pieces)
            gc.collect()
            traced.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    # What is kept grows every time; the caches of NumPy and Numba fill up, now and then.
    assert np.diff(traced).min() < 20_000
