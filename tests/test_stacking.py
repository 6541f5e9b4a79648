"""Shares in a mixture, from what candidates say about episodes that they did not see."""

import json

import numpy as np
import pytest
from scipy import optimize, stats

import policyrisk as pr
from policyrisk.errors import ImproperPolicyError, InvalidInputError
from policyrisk.passes.episode_folds import FOLDS, fold_of_episodes
from policyrisk.selection.out_of_fold import fits_without_each
from policyrisk.selection.stacking import (
    FOREST,
    LEAST,
    MEMBERS,
    _filled,
    _simplex,
    _widening,
    shares_of,
    stack,
)

CHAIN = pr.domains.walk(n=12, p=0.7)
DATA = CHAIN.sample(start=0, episodes=400, seed=1)
TABLE = pr.Tabular(12)
HALVES = pr.TileCoding([0], [12], bins=2)
THIRDS = pr.TileCoding([0], [12], bins=3)
SHIFTED = pr.TileCoding([-2], [14], bins=4)
LINE = pr.Polynomial(degree=1, low=[0], high=[11])


def estimators(discount=1.0, **maps):
    return {name: pr.LSTD(phi, variance="direct", discount=discount) for name, phi in maps.items()}


def least_squares(X, y, weight):
    """argmin Σ weight (y − X a)² over a ≥ 0 of sum 1, by a general solver from several starts."""
    scale = float(weight @ y**2)

    def loss(a):
        return float(weight @ (y - X @ a) ** 2) / scale

    def slope(a):
        return -2 * X.T @ (weight * (y - X @ a)) / scale

    m = X.shape[1]
    found = [
        optimize.minimize(
            loss,
            start,
            jac=slope,
            method="SLSQP",
            bounds=[(0, 1)] * m,
            constraints={"type": "eq", "fun": lambda a: a.sum() - 1, "jac": np.ones_like},
            options={"ftol": 1e-15, "maxiter": 1000},
        ).x
        for start in (np.full(m, 1 / m), *np.eye(m))
    ]
    return min(found, key=loss), loss


def cut(data, every, after):
    """Every such episode ends after so many steps, cut off."""
    pieces = []
    for k in range(len(data)):
        one = data[[k]]
        if k % every == 0 and one.lengths[0] > after:
            one = pr.Trajectories(one.states[: after + 1], one.rewards[:after], [after], [False])
        pieces.append(one)
    return pr.Trajectories.concatenate(pieces)


@pytest.mark.parametrize("m", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("seed", range(4))
def test_the_simplex_by_another_solver(m, seed):
    rng = np.random.default_rng(seed)
    n = 300
    truth = rng.normal(size=n)
    X = 50 + truth[:, None] * rng.uniform(0.2, 1.2, m) + 0.3 * rng.normal(size=(n, m))
    y = 50 + truth + rng.normal(size=n)
    weight = rng.uniform(0.1, 2, n)
    expected, loss = least_squares(X, y, weight)
    centre = X[:, 0]
    D = X - centre[:, None]
    found = _simplex((D * weight[:, None]).T @ D, (D * weight[:, None]).T @ (y - centre))
    assert found.min() >= 0
    assert found.sum() == pytest.approx(1)
    np.testing.assert_allclose(found, expected, atol=2e-5)
    assert loss(found) <= loss(expected) * (1 + 1e-9)


def hedged(X, y, weight, episode):
    """The shares from the docstring's equations, with loops."""
    stacked, _ = least_squares(X, y, weight)
    shares = []
    for i in range(X.shape[1]):
        more = []
        for k in np.unique(episode):
            at = episode == k
            losses = [weight[at] @ np.square(y[at] - said[at]) for said in (X[:, i], X @ stacked)]
            more.append(losses[0] - losses[1])
        z = np.sum(more) / (np.std(more) * np.sqrt(len(more)))
        shares.append(np.exp(-(z**2) / 2) + stacked[i])
    return np.array(shares) / np.sum(shares)


def few(shares):
    shares = np.where(shares < LEAST, 0.0, shares)
    return shares / shares.sum()


@pytest.mark.parametrize("noise", [0.3, 3.0])
def test_shares_by_the_equations(noise):
    rng = np.random.default_rng(1)
    n = 400
    truth = np.cumsum(rng.normal(size=n)) / 5
    X = truth[:, None] + rng.normal(size=(n, 4)) * [0.2, 0.22, 0.25, 0.3]
    y = truth + noise * rng.normal(size=n)
    weight, episode = rng.uniform(0.5, 2, n), np.repeat(np.arange(n // 4), 4)
    expected = few(hedged(X, y, weight, episode))
    found = shares_of(X, y, weight, episode)
    assert np.count_nonzero(expected) > 2
    np.testing.assert_allclose(found, expected, atol=2e-4)


def test_the_stacked_one_is_alone_where_it_is_clearly_the_best():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2000, 2))
    y = X @ [0.45, 0.55] + 0.5 * rng.normal(size=2000)
    found = shares_of(X, y, np.ones(2000), np.arange(2000))
    np.testing.assert_allclose(found, least_squares(X, y, np.ones(2000))[0], atol=1e-4)


def test_few_shares_none_of_them_small():
    rng = np.random.default_rng(0)
    n, m = 500, 12
    X = rng.normal(size=(n, m)) * 0.05
    y = X.mean(axis=1) + rng.normal(size=n)  # nothing can be told
    shares = shares_of(X, y, np.ones(n), np.arange(n))
    kept = np.flatnonzero(shares)
    assert 1 < kept.size <= MEMBERS
    assert shares[kept].min() >= LEAST
    assert shares.sum() == pytest.approx(1)


def test_a_candidate_that_is_far_worse_has_no_share_however_few_episodes_say_so():
    rng = np.random.default_rng(0)
    y = rng.normal(size=400)
    good, bad = (y + 0.1 * rng.normal(size=400) for _ in range(2))
    bad[7] += 5.0
    assert shares_of(np.column_stack([good, bad]), y, np.ones(400), np.arange(400)).tolist() == [1.0, 0.0]


def test_both_shares_by_another_solver():
    """From the beginning: fits to the other folds, returns to go, the shares by their equations."""
    found = stack(estimators(thirds=THIRDS, shifted=SHIFTED, halves=HALVES), DATA, key=7)
    fold = fold_of_episodes(0, len(DATA), FOLDS, 7)
    of_step = np.repeat(fold, DATA.lengths)
    states, B = DATA.states[DATA.visited_rows], DATA.returns_to_go(1.0)
    names = ["thirds", "shifted", "halves"]
    J_i, V_i = np.empty((2, len(B), 3))
    line = {each.name: each for each in found.candidates}
    for i, phi in enumerate([THIRDS, SHIFTED, HALVES]):
        lstd = pr.LSTD(phi, variance="direct", variance_lam=line[names[i]].variance_lam)
        for k in range(FOLDS):
            fit = lstd.fit(DATA[np.flatnonzero(fold != k)], error_bars=False)
            at = of_step == k
            J_i[at, i], V_i[at, i] = fit.mean(states[at]), fit.variance(states[at])
    V_i = np.maximum(V_i, 0)

    def floored(v):
        return np.maximum(v, v.mean() / 10)

    v = floored(np.median(V_i, axis=1))
    episode = np.repeat(np.arange(len(DATA)), DATA.lengths)
    a = few(hedged(J_i, B, 1 / v, episode))
    q = (B - J_i @ a) ** 2
    for _ in range(4):
        b = few(hedged(V_i, q, 1 / v**2, episode))
        v = floored(V_i @ b)
    np.testing.assert_allclose([line[name].mean_share for name in names], a, atol=1e-4)
    np.testing.assert_allclose([line[name].variance_share for name in names], b, atol=1e-4)
    assert (np.sort(a) > LEAST).sum() >= 2  # the problem is one
    np.testing.assert_allclose([line[name].mse for name in names], np.square(B[:, None] - J_i).mean(axis=0))
    scores = np.square((q[:, None] - V_i) / v[:, None]).mean(axis=0)
    np.testing.assert_allclose([line[name].score for name in names], scores, rtol=1e-3)
    assert found.mse == pytest.approx(q.mean(), rel=1e-6)
    assert found.constant_mse == pytest.approx(B.var())
    assert found.calibration == pytest.approx((q / v).mean(), rel=1e-4)
    assert found.explained == pytest.approx(1 - q.mean() / B.var(), rel=1e-6)
    for at, c in [((B - J_i @ a) / np.sqrt(v), "mean"), ((q - V_i @ b) / v, "variance")]:
        sums = np.array([at[episode == k].sum() for k in range(len(DATA))])
        d = sums - sums.mean()
        nu = 2 / (np.sum(d**4) / np.sum(d**2) ** 2 - 1 / len(DATA))
        assert 2 < nu < 200
        expected = stats.t.ppf(0.975, nu) / stats.norm.ppf(0.975)
        assert getattr(found.widening, c) == pytest.approx(expected, rel=1e-3)


def test_draws_are_widened_where_a_few_episodes_make_most_of_the_error():
    rng = np.random.default_rng(0)
    normal, heavy = rng.normal(size=100_000), rng.standard_exponential(1000) ** 6
    assert _widening(normal, np.arange(100_000)) == pytest.approx(1.0, abs=1e-3)
    assert _widening(heavy, np.arange(1000)) > 1.2
    pairs = np.repeat(np.arange(1000), 2)
    assert _widening(np.repeat(heavy, 2), pairs) == pytest.approx(_widening(heavy, np.arange(1000)))
    one = stats.t.ppf(0.975, 1) / stats.norm.ppf(0.975)
    for errors, c in [(np.array([1e300, 0, 0, 0]), 0.0), (np.zeros(7), 6.0)]:
        expected = stats.t.ppf(0.975, c) / stats.norm.ppf(0.975) if c else None
        found = _widening(errors, np.arange(len(errors)))
        assert 1.0 < found <= one if expected is None else found == pytest.approx(expected)


def test_the_true_one_has_nearly_all():
    data = CHAIN.sample(start=0, episodes=3000, seed=2)
    found = stack(estimators(halves=HALVES, thirds=THIRDS, table=TABLE), data, key=0)
    table = found.candidates[0]
    assert table.name == "table"
    assert table.mean_share > 0.95
    assert table.variance_share > 0.95
    at = data.states[data.visited_rows].ravel()
    truly = np.mean((data.returns_to_go(1.0) - CHAIN.mean()[at]) ** 2 / CHAIN.variance()[at])
    assert found.calibration == pytest.approx(truly, rel=0.02)
    assert found.reference is None


def test_what_says_the_same_is_left_out():
    tiles = pr.TileCoding([0], [12], bins=12)
    found = stack(estimators(table=TABLE, tiles=tiles, line=LINE), DATA, key=0)
    reasons = {each.name: each.reason for each in found.candidates if each.reason}
    assert reasons == {"tiles": "says what table says"}
    assert "left out: tiles: says what table says" in str(found)


@pytest.mark.parametrize(("every", "after"), [(1, 25), (3, 8)])
def test_cut_off_episodes_are_completed_by_the_one_that_holds(every, after):
    """Two and three tiles are biased at the cut; the table is right there."""
    data = cut(CHAIN.sample(start=0, episodes=2000, seed=3), every, after)
    assert not data.terminated.all()
    found = stack(estimators(halves=HALVES, thirds=THIRDS, table=TABLE), data, key=0)
    assert found.reference == ("table", "table")
    best = found.candidates[0]
    assert (best.name, round(best.mean_share), round(best.variance_share)) == ("table", 1, 1)
    assert 0.9 < found.calibration < 1.1
    assert "cut-off episodes are completed by table" in str(found)


def test_the_completed_returns_are_those_of_the_reference():
    data, discount = cut(CHAIN.sample(start=0, episodes=500, seed=4), 2, 8), 0.9
    found = stack(estimators(discount, table=TABLE), data, key=5)
    fold = fold_of_episodes(0, len(data), FOLDS, 5)
    squares, q, V = [], [], []
    for k in range(FOLDS):
        lstd = pr.LSTD(TABLE, variance="direct", discount=discount)
        fit = lstd.fit(data[np.flatnonzero(fold != k)], error_bars=False)
        for episode in np.flatnonzero(fold == k):
            one = data[[episode]]
            left = discount ** np.arange(one.lengths[0], 0, -1)
            end = one.states[-1:]
            tail, rest = (0.0, 0.0) if one.terminated[0] else (fit.mean(end)[0], fit.variance(end)[0])
            J = fit.mean(one.states[:-1])
            squares.append((one.returns_to_go(discount) + left * tail - J) ** 2)
            q.append(squares[-1] + left**2 * rest)
            V.append(fit.variance(one.states[:-1]))
    squares, q, V = map(np.concatenate, (squares, q, V))
    assert found.mse == pytest.approx(np.mean(squares))
    assert found.calibration == pytest.approx(np.mean(q / np.maximum(V, 0.1 * V.mean())))


def test_all_cut_off_takes_a_discount():
    """States are drawn anew at every step: J(x) = x + 5.5 γ/(1 − γ), V(x) = 1 + γ²/(1 − γ²) (1 + var)."""
    rng = np.random.default_rng(0)
    states = rng.integers(0, 12, (500, 21))
    rewards = states[:, :-1] + rng.normal(size=(500, 20))
    data = pr.Trajectories(states.ravel(), rewards.ravel(), np.full(500, 20), np.zeros(500, bool))
    found = stack(estimators(0.8, table=TABLE, halves=HALVES), data, key=0)
    assert found.reference[0] == "table"
    assert found.candidates[0].name == "table"
    assert found.candidates[0].mean_share > 0.95
    uniform = (12**2 - 1) / 12
    V = 1 + 0.8**2 / (1 - 0.8**2) * (1 + uniform)
    # Completed by the mean, returns to go have nearly all of their variance, but not at the cuts.
    assert 0.8 * (V + uniform) < found.constant_mse < V + uniform
    assert 0.7 < found.explained / (uniform / (V + uniform)) < 1.4
    assert 0.9 < found.calibration < 1.1
    # Where the tails are worth nothing it is ordinary regression on the rewards.
    short = stack(estimators(1e-9, table=TABLE, halves=HALVES), data, key=0)
    assert short.constant_mse == pytest.approx(data.rewards.var(), abs=1e-6)
    with pytest.raises(ImproperPolicyError, match="discount=1 some episode must terminate"):
        stack(estimators(table=TABLE), data, key=0)


def test_failing_candidates_are_listed():
    broken = pr.FunctionFeatures(lambda states: np.full((len(states), 2), np.nan), size=2)
    found = stack(estimators(broken=broken, line=LINE), DATA, key=0)
    assert [each.name for each in found.candidates] == ["line", "broken"]
    assert found.candidates[1].reason.startswith("InvalidInputError: ")
    assert found.members == found.candidates[:1]
    assert "left out: broken: InvalidInputError" in str(found)
    with pytest.raises(InvalidInputError, match="must find features that can be fitted, got none: broken"):
        stack(estimators(broken=broken), DATA, key=0)


def test_the_same_key_gives_the_same():
    maps = {"thirds": THIRDS, "line": LINE, "halves": HALVES}
    first, again = (stack(estimators(**maps), DATA, key=3).to_dict() for _ in range(2))
    assert first == again
    assert stack(estimators(**maps), DATA, key=4).to_dict() != first
    backwards = stack(estimators(**dict(reversed(maps.items()))), DATA, key=3).to_dict()
    np.testing.assert_allclose(backwards["mse"], first["mse"], rtol=1e-9)
    assert json.loads(json.dumps(first))["candidates"][0]["name"] == first["candidates"][0]["name"]


def test_a_forest_is_a_candidate_like_any_other():
    J, V = CHAIN.mean(), CHAIN.variance()
    at = DATA.states[DATA.visited_rows].ravel()
    handed = []

    def oracle(data, tail, mean):
        handed.append((tail, mean))
        return J[at], V[at]

    found = stack(estimators(halves=HALVES, thirds=THIRDS), DATA, key=0, forest=oracle)
    assert found.candidates[0].name == FOREST
    assert found.candidates[0].mean_share > 0.8
    (tail, mean), (again, mixed) = handed  # first its own residuals, then those of the mixture's J
    assert (tail, mean, again) == (None, None, None)
    np.testing.assert_array_equal(mixed, found.mean)
    assert np.mean((DATA.returns_to_go(1.0) - mixed) ** 2) == pytest.approx(found.mse)
    data = cut(DATA, 2, 8)
    at = data.states[data.visited_rows].ravel()
    stack(estimators(table=TABLE, thirds=THIRDS), data, key=0, forest=oracle)
    whole = pr.LSTD(TABLE, variance="direct").fit(data, error_bars=False)
    for tail, _ in handed[2:]:  # the reference, of all episodes
        np.testing.assert_allclose(tail.w_second, whole.w_second, rtol=1e-9)


@pytest.mark.parametrize("variance", ["direct", "second-moment"])
@pytest.mark.parametrize("ridge", [0.0, 0.3])
@pytest.mark.filterwarnings("ignore::policyrisk.errors.PolicyRiskWarning")  # of what is given up
@pytest.mark.parametrize("cuts", ["none", "some", "alone"])
def test_fits_without_each_part(variance, ridge, cuts):
    """As fits of the others from the beginning; "alone": a cut-off ends where one other part has been."""
    data = DATA[:120] if cuts == "none" else cut(DATA[:120], 3, 6)
    parts = [data[k * 30 : (k + 1) * 30] for k in range(4)]
    if cuts == "alone":
        ends = pr.Trajectories([0, 12], [-1.0], [1], [False])
        visits = pr.Trajectories([0, 12, 5], [-1.0, -2.0], [2], [True])
        parts[0] = pr.Trajectories.concatenate([parts[0], ends])
        parts[1] = pr.Trajectories.concatenate([parts[1], visits])
    lstd = pr.LSTD(pr.Tabular(13), variance=variance, ridge=ridge)
    found = fits_without_each(lstd, parts)
    assert len(found) == 5
    assert [fit.provenance.given_up for fit in found] == ([0, 1, 0, 0, 0] if cuts == "alone" else [0] * 5)
    for k, fit in enumerate(found):
        others = pr.Trajectories.concatenate([part for j, part in enumerate(parts) if j != k])
        expected = lstd.fit(others, error_bars=False)
        np.testing.assert_allclose(fit.w_mean, expected.w_mean, rtol=1e-8, atol=1e-8)
        np.testing.assert_allclose(fit.w_second, expected.w_second, rtol=1e-8, atol=1e-6)
        np.testing.assert_array_equal(fit.visited(np.arange(13)), expected.visited(np.arange(13)))
        assert fit.error_bars is None


def test_what_a_candidate_does_not_know_is_filled_in_by_the_others():
    nan = np.nan
    said = {"a": np.array([1.0, nan, nan]), "b": np.array([2.0, 5.0, nan]), "c": np.array([9.0, 7.0, nan])}
    np.testing.assert_array_equal(_filled(said, -1.0), [[1, 2, 9], [6, 5, 7], [-1, -1, -1]])
