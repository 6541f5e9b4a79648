"""LSTD(λ) from trajectories: the paper's theorems as tests, and the whole way from data to answer."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import policyrisk as pr
from policyrisk.equations import MomentEquations
from policyrisk.errors import (
    CancellationWarning,
    ImproperPolicyError,
    InvalidInputError,
    NegativeVarianceWarning,
    UnvisitedError,
)

WALK = pr.domains.walk(10, 0.7)
X = np.arange(10)


def polynomials(n=10):
    return [pr.Polynomial(degree, low=[0], high=[n - 1]) for degree in (1, 2)]


class Stream:
    """A re-iterable source of batches."""

    def __init__(self, data, size):
        self.data, self.size = data, size

    def __iter__(self):
        return (self.data[first : first + self.size] for first in range(0, len(self.data), self.size))


# Theorem 9


@pytest.mark.parametrize("variance", ["second-moment", "direct"])
def test_theorem_9_weights_approach_the_exact_ones_at_rate_one_half(variance):
    """The error of w_J and w_second over 30 data sets of each size, over two decades of sizes."""
    lstd = pr.LSTD(*polynomials(), lam=0.8, variance=variance)
    exact = lstd.fit_exact(WALK, 0)
    scale = np.concatenate([np.abs(exact.w_mean), np.abs(exact.w_second)])
    sizes = np.array([100, 1000, 10_000])
    errors = []
    for size in sizes:
        squared = 0.0
        for seed in range(30):
            data = WALK.sample(0, episodes=int(size), seed=seed)
            risk = lstd.fit(data, error_bars=False)
            wrong = np.concatenate([risk.w_mean - exact.w_mean, risk.w_second - exact.w_second]) / scale
            squared += np.sum(wrong**2)
        errors.append(np.sqrt(squared / 30))
    slope = np.polyfit(np.log(sizes), np.log(errors), 1)[0]
    assert -0.6 < slope < -0.4


def test_discounted_and_cut_off_episodes_approach_the_exact_solution_of_a_table():
    """A table bootstraps rightly at the cut, so that cutting changes no limit."""
    chain = pr.domains.walk(6, 0.7, discount=0.95)
    start = np.full(6, 1 / 6)
    data = chain.sample(start, episodes=40_000, seed=2, max_steps=7)
    assert 0.1 < data.terminated.mean() < 0.9
    risk = pr.LSTD(pr.Tabular(6), lam=0.5, discount=0.95).fit(data)
    x = np.arange(6)
    for of, truth in (("mean", chain.mean()), ("variance", chain.variance())):
        z = (getattr(risk, of)(x) - truth) / risk.standard_error(x, of=of)
        assert np.abs(z).max() < 4, of


# identities


def test_lambda_one_is_regression_of_the_returns_on_the_features():
    data = WALK.sample(0, episodes=200, seed=3)
    phi = polynomials()[0](data.states[data.visited_rows])
    w = np.linalg.lstsq(phi, data.returns_to_go())[0]
    risk = pr.LSTD(*polynomials(), lam=1.0).fit(data)
    np.testing.assert_allclose(risk.w_mean, w, rtol=1e-9)


@pytest.mark.parametrize("discount", [1.0, 0.9])
def test_tabular_lstd_0_solves_the_empirical_model(discount):
    chain = pr.domains.walk(10, 0.7, discount)
    data = chain.sample(0, episodes=300, seed=4)
    x, y = data.states[data.visited_rows, 0], data.states[data.visited_rows + 1, 0]
    counts = np.zeros((10, 11))
    np.add.at(counts, (x, y), 1)
    empirical = pr.MarkovChain(counts[:, :10] / counts.sum(axis=1, keepdims=True), -np.ones(10), discount)
    for variance in ("second-moment", "direct"):
        risk = pr.LSTD(pr.Tabular(10), lam=0.0, discount=discount, variance=variance).fit(data)
        np.testing.assert_allclose(risk.mean(X), empirical.mean(), rtol=1e-8)
        np.testing.assert_allclose(risk.variance(X), empirical.variance(), rtol=1e-6)


@given(
    cuts=st.lists(st.integers(0, 40), max_size=4),
    order=st.randoms(use_true_random=False),
    tiles=st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_equations_of_any_split_in_any_order_add_up(cuts, order, tiles):
    data = WALK.sample(np.full(10, 0.1), episodes=40, seed=5, max_steps=12)
    features = [pr.Tabular(10)] if tiles else polynomials()
    lstd = pr.LSTD(*features, lam=0.7)
    edges = [0, *sorted(cuts), 40]
    parts = [lstd.equations(data[a:b]) for a, b in pairwise(edges) if a < b]
    parts.append(MomentEquations.empty(lstd.features, lstd.second_features, lam=0.7))
    order.shuffle(parts)
    whole, total = lstd.equations(data), sum(parts)
    for name in ("A", "b", "C", "D", "e", "gram", "mean_gram", "visits", "feature_episodes"):
        np.testing.assert_allclose(getattr(total, name), getattr(whole, name), rtol=1e-11, atol=1e-9)
    assert (total.episodes, total.terminated, total.transitions) == (40, whole.terminated, whole.transitions)
    w = lstd.solve(total).w_second
    np.testing.assert_allclose(w, lstd.solve(whole).w_second, rtol=1e-7)


# fit


@pytest.mark.parametrize("variance", ["second-moment", "direct"])
@pytest.mark.parametrize("demanded", [None, "visited"])
def test_a_stream_gives_the_answer_of_one_batch(variance, demanded):
    data = WALK.sample(0, episodes=120, seed=6, max_steps=25)
    lstd = pr.LSTD(*polynomials(), lam=0.9, variance=variance, nonnegative_at=demanded)
    whole, stream = lstd.fit(data), lstd.fit(Stream(data, 17))
    np.testing.assert_allclose(stream.variance(X), whole.variance(X), rtol=1e-8)
    np.testing.assert_allclose(
        stream.standard_error(X, of="variance"), whole.standard_error(X, of="variance"), rtol=1e-7
    )
    assert stream.returns.count == whole.returns.count == data.terminated.sum()
    assert stream.returns.mean == pytest.approx(data.returns()[data.terminated].mean())


def test_solve_and_fit_agree():
    data = WALK.sample(0, episodes=100, seed=7)
    lstd = pr.LSTD(*polynomials(), lam=0.9)
    fitted, solved = lstd.fit(data), lstd.solve(lstd.equations(data))
    np.testing.assert_array_equal(fitted.w_second, solved.w_second)
    assert solved.error_bars is None
    with pytest.raises(InvalidInputError, match="no error bars"):
        solved.interval([0], of="mean")


def test_constraint_at_visited_states_leaves_no_negative_variance():
    chain = pr.domains.walk(30)
    data = chain.sample(0, episodes=400, seed=8)
    x = np.arange(30)
    free = pr.LSTD(*polynomials(30), lam=0.95).fit(data)
    with pytest.warns(NegativeVarianceWarning):
        assert np.isnan(free.std(x)).any()
    bound = pr.LSTD(*polynomials(30), lam=0.95, nonnegative_at="visited").fit(data)
    named = pr.LSTD(*polynomials(30), lam=0.95, nonnegative_at=x).fit(data)
    assert bound.std(x).min() >= 0
    np.testing.assert_allclose(bound.w_second, named.w_second, rtol=1e-6)
    assert bound.provenance.constrained >= 1
    # On the active face the second moment moves with J̃², so that Ṽ has no error of its own there.
    error = bound.standard_error(x, of="variance")
    active = bound.variance(x) < 1e-6
    assert active.any()
    assert (error[active] < 1e-4).all()
    assert (error[~active] > 0.1).all()


def test_constraint_at_visited_states_with_tiles():
    """A coarse mean in fine tiles of M gives many negative variances; none is left."""
    chain = pr.domains.walk(30)
    data = chain.sample(np.full(30, 1 / 30), episodes=300, seed=9)
    x = np.arange(30)
    coarse = pr.TileCoding(low=[0], high=[30], bins=[3])
    settings = {"lam": 0.2, "second_features": pr.Tabular(30)}
    free = pr.LSTD(coarse, **settings).fit(data)
    assert (free.variance(x) < 0).sum() >= 3
    bound = pr.LSTD(coarse, **settings, nonnegative_at="visited").fit(data)
    assert bound.variance(x).min() >= 0
    assert bound.provenance.constrained >= 1


def test_cut_off_in_an_unvisited_state_is_given_up_and_counted():
    """0 → 1 → 2 is cut off in 2, where nothing started: its last step goes, and the rest is as without it."""
    tail = pr.Trajectories([[1], [0], [0], [1]] * 500, [-1.0] * 1000, [1] * 1000, [False] * 1000)
    data = pr.Trajectories.concatenate(
        [pr.Trajectories([[0], [1], [2]], [-1.0, -5.0], [2], [False]), tail],
    )
    lstd = pr.LSTD(pr.Tabular(3), lam=0.5, discount=0.9)
    with pytest.raises(UnvisitedError, match="Assumption 4"):
        lstd.solve(lstd.equations(data))
    risk = lstd.fit(data)
    assert risk.provenance.given_up == 1
    assert np.isnan(risk.mean([2]))[0]
    without = pr.Trajectories.concatenate([pr.Trajectories([[0], [1]], [-1.0], [1], [False]), tail])
    np.testing.assert_array_equal(risk.mean([0, 1]), lstd.fit(without).mean([0, 1]))
    np.testing.assert_allclose(risk.mean([0, 1]), -10.0)


def test_no_end_and_no_data_are_named():
    data = WALK.sample(0, episodes=5, seed=0, max_steps=3)
    assert not data.terminated.any()
    with pytest.raises(ImproperPolicyError, match="Assumption 1"):
        pr.LSTD(*polynomials()).fit(data)
    with pytest.raises(InvalidInputError, match="at least one episode"):
        pr.LSTD(*polynomials()).fit(data[0:0])
    with pytest.raises(InvalidInputError, match="one-shot"):
        pr.LSTD(*polynomials()).fit(iter([data]))


def test_redundant_tilings_change_nothing_that_is_seen():
    chain = pr.domains.walk(12, 0.7)
    data = chain.sample(np.full(12, 1 / 12), episodes=500, seed=12)
    tiles = pr.TileCoding(low=[-0.5], high=[11.5], bins=[12], tilings=3)
    risk = pr.LSTD(tiles, lam=0.5).fit(data)
    assert risk.provenance.redundant > 0
    plain = pr.LSTD(pr.Tabular(12), lam=0.5).fit(data)
    x = np.arange(12)
    np.testing.assert_allclose(risk.mean(x), plain.mean(x), rtol=1e-6)
    np.testing.assert_allclose(risk.variance(x), plain.variance(x), rtol=1e-5)
    np.testing.assert_allclose(
        risk.standard_error(x, of="variance"), plain.standard_error(x, of="variance"), rtol=1e-4
    )


def test_a_plain_function_is_enough():
    data = WALK.sample(0, episodes=100, seed=13)
    risk = pr.LSTD(lambda x: np.column_stack([np.ones(len(x)), x[:, 0] / 9]), lam=0.8).fit(data)
    same = pr.LSTD(polynomials()[0], lam=0.8).fit(data)
    np.testing.assert_allclose(risk.mean(X), same.mean(X), rtol=1e-9)


def test_without_error_bars_the_estimates_are_the_same():
    data = WALK.sample(0, episodes=100, seed=1)
    for variance in ("second-moment", "direct"):
        lstd = pr.LSTD(pr.Tabular(10), variance=variance)
        with_bars, without = lstd.fit(data), lstd.fit(data, error_bars=False)
        np.testing.assert_array_equal(without.w_second, with_bars.w_second)
        assert without.error_bars is None
        assert without.returns == with_bars.returns
    with pytest.raises(InvalidInputError, match="error_bars=False"):
        lstd.fit(data, error_bars=False, bootstrap=10)


def test_bootstrap_intervals_are_near_the_student_ones():
    data = WALK.sample(0, episodes=2000, seed=14)
    risk = pr.LSTD(*polynomials(), lam=0.9).fit(data, bootstrap=2000, seed=1)
    student = risk.interval(X, of="variance")
    bootstrap = risk.interval(X, of="variance", method="bootstrap")
    width = student[:, 1] - student[:, 0]
    assert np.abs(bootstrap - student).max() < 0.15 * width.max()


# the second moment's λ = 1


def test_lambda_one_does_not_make_the_second_moment_a_regression():
    """Its cross term keeps J̃: the documented difference."""
    data = WALK.sample(0, episodes=200, seed=3)
    phi = polynomials()[1](data.states[data.visited_rows])
    w = np.linalg.lstsq(phi, data.returns_to_go() ** 2)[0]
    assert not np.allclose(pr.LSTD(*polynomials(), lam=1.0).fit(data).w_second, w, rtol=1e-3)


@pytest.mark.parametrize(
    ("degree", "second", "method", "lam"),
    [
        (1, pr.Polynomial(2, [0], [29]), "second-moment", 0.95),
        (1, pr.Polynomial(2, [0], [29]), "direct", 0.0),
        (0, pr.Tabular(30), "second-moment", 0.95),
    ],
)
def test_a_variance_that_is_held_at_zero_has_no_error(degree, second, method, lam, tmp_path):
    """Exactly, whatever the sums' rounding: what three large terms leave when they cancel is no error."""
    x, walks = np.arange(30), pr.domains.walk(n=30, p=0.7).sample(start=0, episodes=200, seed=3)
    noise = 20 * np.random.default_rng(0).normal(size=walks.transitions)
    noise[walks.states[walks.visited_rows, 0] >= 7] = 0.0  # far from there a parabola's variance is negative
    data = pr.Trajectories(walks.states, walks.rewards + noise, walks.lengths, walks.terminated)
    first = pr.Polynomial(degree, [0], [29])
    risk = pr.LSTD(first, second, lam=lam, variance=method, nonnegative_at="visited").fit(data)
    assert risk.provenance.constrained > 0
    held = np.abs(risk.variance(x)) < 1e-9 * np.abs(risk.second_moment(x)).max()
    assert held.sum() == risk.provenance.constrained
    errors = risk.standard_error(x, of="variance")
    assert (errors[held] == 0.0).all()
    assert (errors[~held] > 0.0).all()
    np.testing.assert_allclose(
        risk.standard_error(x, "second_moment")[held],
        2 * np.abs(risk.mean(x)[held]) * risk.standard_error(x, "mean")[held],
        rtol=1e-12,
    )
    risk.save(tmp_path / "risk.npz")
    loaded = pr.RiskFunction.load(tmp_path / "risk.npz")
    np.testing.assert_array_equal(loaded.standard_error(x, of="variance"), errors)
    for state in x[held]:
        assert loaded.summary([state]).variance.standard_error == 0.0


def shifted(shift):
    """20 steps of reward 3 + N(0, 1) + shift: V(x) = 20 − x whatever the shift."""
    rewards = shift + 3 + np.random.default_rng(0).normal(size=500 * 20)
    return pr.Trajectories(np.tile(np.arange(21), 500), rewards, [20] * 500, [True] * 500)


@pytest.mark.parametrize("shift", [1e6, 1e7, 1e9])
def test_the_direct_variance_knows_no_shift_of_the_rewards_and_the_other_says_that_it_does(shift):
    x = np.arange(20)
    paper, direct = (pr.LSTD(pr.Tabular(20), variance=variance) for variance in ("second-moment", "direct"))
    truth = paper.fit(shifted(0.0))
    risk = direct.fit(shifted(shift))
    np.testing.assert_allclose(risk.variance(x), truth.variance(x), rtol=1e-7)
    np.testing.assert_allclose(
        risk.standard_error(x, of="variance"), truth.standard_error(x, of="variance"), rtol=1e-6
    )
    with pytest.warns(CancellationWarning, match="variance='direct'"):
        paper.fit(shifted(shift)).variance([0])
    assert abs(truth.variance([0])[0] - 20) < 4 * truth.standard_error([0], of="variance")[0]
