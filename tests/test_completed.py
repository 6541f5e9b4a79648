"""Completed returns against loops written from the equations, and their errors against repetition."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

import policyrisk as pr
from policyrisk.errors import InvalidInputError
from policyrisk.risk.completed import SIZE, CompletedReturns
from policyrisk.risk.estimate import Estimate, difference, ratio, skewed_interval
from policyrisk.risk.summary import Moments

N = 10
WALK = pr.domains.walk(n=N, p=0.6)
EVERYWHERE = np.full(N, 1 / N)
MAPS = {
    "table": (pr.Tabular(N), pr.Tabular(N)),
    "dense": (pr.Polynomial(1, [0], [N]), pr.Polynomial(2, [0], [N])),
}


def completed_by_hand(data, risk, gamma):
    """g and c of every episode, by the definition."""
    g, c = [], []
    for episode in data:
        T = len(episode.rewards)
        total = sum(gamma**t * r for t, r in enumerate(episode.rewards))
        end = episode.states[-1:]
        cut = not episode.terminated[0]
        g.append(total + (gamma**T * risk.mean(end)[0] if cut else 0.0))
        c.append(gamma ** (2 * T) * risk.variance(end)[0] if cut else 0.0)
    return np.array(g), np.array(c)


@pytest.mark.parametrize("method", ["second-moment", "direct"])
@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_moments_are_those_of_the_definition(method, name, gamma):
    data = WALK.sample(EVERYWHERE, 80, seed=1, max_steps=15)
    assert 0.2 < data.terminated.mean() < 0.9
    risk = pr.LSTD(*MAPS[name], discount=gamma, variance=method).fit([data[:1], data[1:30], data[30:]])
    g, c = completed_by_hand(data, risk, gamma)
    summary = risk.summary()
    assert summary.mean_value == pytest.approx(g.mean(), rel=1e-12)
    assert summary.variance_value == pytest.approx(g.var(ddof=1) + c.mean(), rel=1e-12)
    # s as it is usually written, with M̃.
    s = g**2 + c
    assert summary.variance_value == pytest.approx(s.mean() - g.mean() ** 2 + g.var() / 79, rel=1e-9)
    assert (risk.completed.count, risk.completed.cut_off) == (80, int((~data.terminated).sum()))


def test_where_nothing_is_cut_off_they_are_the_sample():
    data = WALK.sample(0, 50, seed=2)
    summary = pr.LSTD(pr.Polynomial(0, [0], [9])).fit(data).summary()
    for name in ("mean", "variance", "std", "sharpe"):
        for field in ("value", "standard_error", "low", "high"):
            found, truth = (getattr(getattr(each, name), field) for each in (summary, summary.sample))
            assert found == pytest.approx(truth, rel=1e-9), (name, field)
    plain = summary.returns.covariance()
    assert summary.covariance[0, 0] == pytest.approx(plain[0, 0], rel=1e-9)
    np.testing.assert_allclose(summary.covariance, plain, rtol=1.1 / 49)


@pytest.mark.parametrize("method", ["second-moment", "direct"])
@pytest.mark.parametrize("name", MAPS)
def test_gradients_are_derivatives(method, name):
    data = WALK.sample(EVERYWHERE, 60, seed=3, max_steps=15)
    risk = pr.LSTD(*MAPS[name], discount=0.95, variance=method).fit(data)
    g_J, g_M = risk.completed.gradients
    rng = np.random.default_rng(0)
    for gradient, weights in ((g_J, "w_mean"), (g_M, "w_second")):
        w, direction = getattr(risk, weights), rng.standard_normal(getattr(risk, weights).size)
        ends = [
            CompletedReturns.over(data, replace(risk, **{weights: w + h * direction})) for h in (1e-4, -1e-4)
        ]
        slope = [(a - b) / 2e-4 for a, b in zip(*((e.mean, e.variance) for e in ends), strict=True)]
        np.testing.assert_allclose(gradient @ direction, slope, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("method", ["second-moment", "direct"])
def test_the_joint_covariance_is_that_of_refits_without_each_episode(method):
    """Jackknife: every episode left out in turn, the whole fit and all averages done again."""
    data = WALK.sample(EVERYWHERE, 200, seed=4, max_steps=15)
    lstd = pr.LSTD(pr.Polynomial(1, [0], [N]), lam=0.5, variance=method)
    whole = lstd.fit(data).summary()
    K = len(data)
    left = []
    for k in range(K):
        some = lstd.fit(data[np.arange(K) != k]).summary()
        left.append([some.mean_value, some.variance_value, some.model.mean_value, some.model.variance_value])
    jackknife = (K - 1) ** 2 / K * np.cov(np.array(left).T)
    scale = np.sqrt(np.diag(jackknife))
    np.testing.assert_allclose(
        whole.joint / np.outer(scale, scale), jackknife / np.outer(scale, scale), atol=0.06
    )
    for k, name in enumerate(("mean", "variance")):
        by = np.eye(4)[k + 2] - np.eye(4)[k]
        gap = whole.gap(name)
        assert gap.standard_error == pytest.approx(math.sqrt(by @ jackknife @ by), rel=0.06)


@pytest.mark.parametrize("cut", [None, 15])
def test_a_summary_says_which_of_the_two_to_believe(cut):
    data = WALK.sample(0, 500, seed=4, max_steps=cut)
    biased = pr.LSTD(pr.Polynomial(0, [0], [N])).fit(data).summary()
    assert set(biased.apart) == {"mean", "variance"}
    assert biased.apart["mean"] == biased.gap("mean")
    assert "the mean and the variance by LSTD differ from these by more than randomness explains" in str(
        biased
    )
    assert "believe the completed returns" in str(biased)
    for lam in (0.5, 1.0):  # at 1 the two are one, but for rounding
        sound = pr.LSTD(pr.Tabular(N), lam=lam).fit(data).summary()
        assert not sound.apart
        assert "believe" not in str(sound)


def test_the_bootstraps_draws_give_the_same_covariance():
    data = WALK.sample(EVERYWHERE, 300, seed=5, max_steps=15)
    risk = pr.LSTD(pr.Tabular(N)).fit(data, bootstrap=4000, seed=1)
    drawn = replace(risk, completed=replace(risk.completed, with_weights=None))
    blind = replace(drawn, completed=replace(drawn.completed, draws=None))
    errors = [each.summary().mean.standard_error for each in (risk, drawn, blind)]
    assert errors[1] == pytest.approx(errors[0], rel=0.03)
    assert errors[2] < 0.9 * errors[0], "what the two parts share is not little"


def test_sums_add_in_any_order():
    data = WALK.sample(EVERYWHERE, 90, seed=6, max_steps=15)
    risk = pr.LSTD(*MAPS["dense"]).fit(data)
    parts = [risk.completed_sums(data[a:b]) for a, b in ((0, 7), (7, 8), (8, 90))]
    none = CompletedReturns.empty(risk.w_mean.size, risk.w_second.size)
    whole = risk.completed_sums(data)
    for sums in (parts[0] + parts[1] + parts[2], parts[2] + (parts[0] + none) + parts[1]):
        for name, truth in vars(whole).items():
            if truth is not None:
                scale = np.abs(truth).max() if np.ndim(truth) else 1.0
                np.testing.assert_allclose(getattr(sums, name), truth, rtol=1e-9, atol=1e-12 * scale)


def test_a_distant_mean_costs_no_digits():
    data = WALK.sample(0, 100, seed=7)
    far = pr.Trajectories(data.states, data.rewards + 1e6 / data.lengths.repeat(data.lengths), data.lengths,
                          data.terminated)  # fmt: skip
    one, other = (pr.LSTD(pr.Tabular(N)).fit(each).summary() for each in (data, far))
    assert other.std == pytest.approx(one.std.value, rel=1e-7)
    assert other.std.high == pytest.approx(one.std.high, rel=1e-6)


def test_powers_hold_four_moments_of_anything_linear():
    data = WALK.sample(EVERYWHERE, 70, seed=8, max_steps=15)
    risk = pr.LSTD(pr.Tabular(N)).fit([data[:20], data[20:]])
    g, c = completed_by_hand(data, risk, 1.0)
    d, x = g - g.mean(), data.starts()
    h = risk.mean(x) - risk.mean(x).mean()
    z = np.column_stack([np.ones(70), d, d**2 + c, h, h**2 + risk.variance(x)])
    fourth = np.einsum("ka,kb,kc,kd->abcd", z, z, z, z).reshape(SIZE**2, SIZE**2)
    np.testing.assert_allclose(risk.completed.powers, fourth, rtol=1e-9, atol=1e-9 * fourth.max())


def test_episodes_cut_off_where_nothing_is_known_are_completed_from_before():
    """2 and 3 are only ever ended in or lead there: an episode that comes from 1 is completed from 1."""
    states = [0, 1, 9, 1, 0, 9, 0, 1, 3, 2, 3, 0, 1, 9]
    data = pr.Trajectories(states, np.arange(1.0, 10.0), [2, 2, 2, 1, 2], [True, True, False, False, True])
    fitted = pr.LSTD(pr.Tabular(10), lam=0.0, discount=0.9, variance="direct").fit(data[data.terminated])
    completed = CompletedReturns.over(data, fitted)
    assert (completed.count, completed.cut_off, completed.shortened, completed.unknown) == (4, 1, 1, 1)
    J1 = fitted.mean([1])[0]
    g = [1 + 0.9 * 2, 3 + 0.9 * 4, 5 + 0.9 * J1, 8 + 0.9 * 9]
    assert completed.mean == pytest.approx(np.mean(g))
    c = 0.81 * fitted.variance([1])[0]
    assert completed.variance == pytest.approx(np.var(g, ddof=1) + c / 4)
    assert not completed.usable, "one of five left out is too many"
    twenty = sum([completed] * 19, CompletedReturns.over(data[:2], fitted))
    assert not twenty.usable
    few = sum([CompletedReturns.over(data[data.terminated], fitted)] * 10, completed)
    notes = "\n".join(replace(fitted, completed=few).summary().notes)
    assert "1 episode cut off where the data say nothing" in notes
    assert "1 episode of states that the data say nothing about: left out" in notes


def test_distinct_starts_have_a_width():
    """One step from each of 100 states: the table fits all exactly, and the starts are the randomness."""
    rewards = np.random.default_rng(1).random(100)
    data = pr.Trajectories(np.arange(200), rewards, np.ones(100, dtype=int), np.ones(100, dtype=bool))
    summary = pr.LSTD(pr.Tabular(200)).fit(data).summary()
    assert summary.model.mean.standard_error == 0.0
    assert summary.mean.standard_error == pytest.approx(rewards.std(ddof=1) / 10)
    assert summary.mean.low < 0.5 < summary.mean.high


def test_returns_without_randomness_have_an_interval_of_nothing():
    data = pr.Trajectories(
        np.tile([0, 1], 20), np.full(20, 3.0), np.ones(20, dtype=int), np.ones(20, dtype=bool)
    )
    summary = pr.LSTD(pr.Tabular(1)).fit(data).summary()
    assert (summary.std.value, summary.std.low, summary.std.high) == (0.0, 0.0, 0.0)
    assert (summary.mean.low, summary.mean.high) == (3.0, 3.0)


def test_given_starts_are_the_estimators():
    data = WALK.sample(EVERYWHERE, 60, seed=9, max_steps=15)
    risk = pr.LSTD(pr.Tabular(N)).fit(data)
    given = risk.summary(data.starts())
    assert (given.model, given.completed, given.joint) == (None, None, None)
    assert "take the starts as given" in "\n".join(given.notes)
    assert "as given" not in "\n".join(risk.summary().notes)
    with pytest.raises(InvalidInputError, match=r"gap needs the completed returns.*risk.summary\(\)"):
        given.gap("mean")


def test_files_keep_them_and_older_files_do_without(tmp_path):
    data = WALK.sample(EVERYWHERE, 60, seed=10, max_steps=15)
    risk = pr.LSTD(pr.Tabular(N)).fit(data, bootstrap=20, seed=1)
    risk.save(tmp_path / "new.npz")
    loaded = pr.RiskFunction.load(tmp_path / "new.npz")
    assert str(loaded.summary()) == str(risk.summary())
    np.testing.assert_array_equal(loaded.completed.draws, risk.completed.draws)
    replace(risk, completed=None).save(tmp_path / "old.npz")
    old = pr.RiskFunction.load(tmp_path / "old.npz").summary()
    assert old.model is None
    assert old.mean.low == pytest.approx(risk.summary().model.mean.low)


def test_texts_and_plain_values():
    data = WALK.sample(0, 60, seed=11, max_steps=30)
    summary = pr.LSTD(pr.Tabular(N)).fit(data).summary()
    header = str(summary).splitlines()[1].split()
    assert [word for word in header if word not in ("std", "error", "0.95", "interval")] == [
        "completed", "LSTD", "sample",
    ]  # fmt: skip
    plain = summary.to_dict()
    assert plain["model"]["std"]["high"] == summary.model.std.high
    cut = int((~data.terminated).sum())
    assert plain["completed"] == {"count": 60, "cut_off": cut, "shortened": 0, "unknown": 0}
    assert f"{cut} of 60 episodes cut off: their returns are completed by LSTD" in str(summary)


def test_halls_interval_solves_halls_equation():
    """T + αT²/3 + α²T³/27 + α/6 = ±t at the ends, T = (value − end) / s."""
    for alpha in (-0.5, -0.1, 1e-9, 0.3, 0.52):
        low, high = skewed_interval(5.0, 0.7, alpha, 12.0, 0.9)
        for end, t in ((low, stats.t.ppf(0.95, 12)), (high, -stats.t.ppf(0.95, 12))):
            T = (5.0 - end) / 0.7
            assert T + alpha * T**2 / 3 + alpha**2 * T**3 / 27 + alpha / 6 == pytest.approx(t, rel=1e-6)
    assert skewed_interval(5.0, 0.7, 1.0, 12.0, 0.9)[1] == pytest.approx(5.0 + 3 * 0.7), "3/α at the most"
    assert skewed_interval(1.0, 2.0, 0.0, 12.0, 0.9, positive=True)[0] > 0
    assert Estimate.skewed(1.0, 0.5, 0.0, 9.0).high == Estimate.of(1.0, 0.5, 10).high


DRAWS = {
    "exponential": (lambda rng, size: rng.exponential(1.0, size), 1.0, 1.0, 90),
    "lognormal": (lambda rng, size: rng.lognormal(0.0, 1.0, size), math.exp(0.5), (math.e - 1) * math.e, 80),
    "normal": (lambda rng, size: rng.normal(1.0, 1.0, size), 1.0, 1.0, 92),
    "Bernoulli": (lambda rng, size: (rng.random(size) < 0.2) * 1.0, 0.2, 0.16, 90),
    "two points": (lambda rng, size: (rng.random(size) < 0.05) * 10.0, 0.5, 4.75, 90),
}


def of_returns(g):
    """Mean and variance of some returns, one step each."""
    ones = np.ones(len(g), dtype=int)
    done = ONE_STEP.completed_sums(pr.Trajectories(np.tile([0, 1], len(g)), g, ones, ones.astype(bool)))
    return Moments(done.mean, done.variance, done.covariance(None), len(g), 0.95, completed=done)


ONE_STEP = pr.LSTD(pr.Tabular(1)).fit_exact(pr.MarkovChain([[0.0]], [0.0]), start=0)


def coverage(name, episodes, repetitions):
    """The share of intervals that hold the truth, by quantity, and how many records contradict themselves."""
    draw, m, v, _ = DRAWS[name]
    truth = {"mean": m, "std": math.sqrt(v), "sharpe": m / math.sqrt(v), "less": m - math.sqrt(v)}
    hits, contradictions = dict.fromkeys(truth, 0), 0
    for g in draw(np.random.default_rng(0), (repetitions, episodes)):
        found = of_returns(g)
        values = {"mean": found.mean, "std": found.std, "sharpe": found.sharpe, "less": found.less_std(1.0)}
        for of, value in truth.items():
            hits[of] += values[of].low <= value <= values[of].high
        contradictions += values["sharpe"].low > max(found.mean.value, 0.0) / found.std.high
        contradictions += (values["sharpe"].low > 1.0) != (values["less"].low > 0.0)
    return {of: hit / repetitions for of, hit in hits.items()}, contradictions


@pytest.mark.parametrize("name", DRAWS)
def test_intervals_of_300_skewed_returns_cover(name):
    share, contradictions = coverage(name, 300, 400)
    assert share["mean"] >= 0.90
    assert share["std"] >= 0.90
    assert share["sharpe"] >= DRAWS[name][3] / 100
    assert contradictions == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "episodes", "least"),
    [
        ("exponential", 50, 0.92),
        ("exponential", 300, 0.935),
        ("lognormal", 50, 0.83),
        ("lognormal", 300, 0.83),
    ],
)
def test_sharpe_and_mean_less_std_cover_with_few_returns(name, episodes, least):
    share, contradictions = coverage(name, episodes, 2000)
    assert min(share["sharpe"], share["less"]) >= least, share
    assert contradictions == 0


def test_every_set_of_heavy_returns_says_that_few_episodes_decide():
    rng = np.random.default_rng(1)
    for episodes in (50, 300):
        assert (
            max(of_returns(g).completed.effective_episodes for g in rng.lognormal(0, 1, (200, episodes))) < 60
        )
    assert min(of_returns(g).completed.effective_episodes for g in rng.normal(0, 1, (200, 300))) > 60
    data = pr.domains.walk(n=3, p=0.7).sample(0, 40, seed=1)
    assert "few episodes decide the spread" in str(pr.LSTD(pr.Tabular(3)).fit(data).summary())


def test_the_interval_of_a_ratio_is_where_that_of_the_difference_holds_0():
    for x in (Estimate(3.0, 1.0, 1.0, 6.0), Estimate(-3.0, 1.0, -7.0, -2.0), Estimate(0.5, 1.0, -1.0, 3.0)):
        y = Estimate(2.0, 0.5, 1.2, 4.5)
        for rho in (-0.4, 0.0, 0.7):
            low, high = ratio(x, y, rho)
            assert low < x / y < high
            for theta, end in ((low, 0), (high, 1)):
                size, sign = abs(theta), math.copysign(1.0, theta)
                scaled = Estimate(theta * y, 0.0, *sorted((theta * y.low, theta * y.high)))
                assert difference(x, scaled, sign * rho)[end] == pytest.approx(0.0, abs=1e-9 * (1 + size))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["second-moment", "direct"])
def test_intervals_cover_where_most_episodes_are_cut_off(method):
    J, V = WALK.mean(), WALK.variance()
    m = J.mean()
    truth = {"mean": m, "std": math.sqrt(V.mean() + J.var())}
    hits, z, repetitions = dict.fromkeys(truth, 0), [], 400
    for seed in range(repetitions):
        data = WALK.sample(EVERYWHERE, 300, seed=seed, max_steps=15)
        summary = pr.LSTD(pr.Tabular(N), variance=method).fit(data).summary()
        for of, value in truth.items():
            estimate = getattr(summary, of)
            hits[of] += estimate.low <= value <= estimate.high
        gap = summary.gap("mean")
        z.append(gap / gap.standard_error)
    for hit in hits.values():
        assert hit / repetitions > 0.9
    assert abs(np.mean(z)) < 4 / math.sqrt(repetitions)
    assert 0.85 < np.std(z) < 1.15
