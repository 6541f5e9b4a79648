"""Intervals that hold at all times: equations, exact error rates, simulated streams, and what is refused."""

import json
import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import binom

import policyrisk as pr
from policyrisk.cli import run
from policyrisk.errors import InvalidInputError
from policyrisk.returns.monitor import capital, count_capital, running_quantile

LIMIT = math.log(2 / 0.05)  # of the capital at one end of a 95% interval
FRACTIONS = np.append(0.5 ** np.arange(1, 9), [0.75, 0.9375])


def capital_over_time(gains):
    """log K after each gain (streams, n), written from the equation."""
    logs = [np.cumsum(np.log1p(f * gains), axis=1) for f in FRACTIONS]
    return np.logaddexp.reduce(logs, axis=0) - math.log(len(FRACTIONS))


def streams(kind, count, length, seed):
    """Returns in [0, 1] (count, length), their mean, and how large an error of 95% is by chance."""
    rng = np.random.default_rng(seed)
    if kind == "bernoulli":
        return (rng.random((count, length)) < 0.1).astype(float), 0.1
    if kind == "beta":
        return rng.beta(1, 3, (count, length)), 0.25
    x = np.minimum(rng.lognormal(0, 1, (count, length)), 20.0) / 20.0
    z = math.log(20)
    phi = [0.5 * math.erfc(-each / math.sqrt(2)) for each in (z - 1, -z)]
    return x, (math.exp(0.5) * phi[0] + 20 * phi[1]) / 20


def test_capital_is_the_mean_over_fractions():
    gains = np.random.default_rng(0).uniform(-1, 2, 50)
    expected = np.mean([np.prod(1 + f * gains) for f in FRACTIONS])
    assert np.exp(capital(gains)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("s", "t", "p"), [(0, 7, 0.3), (3, 9, 0.5), (9, 9, 0.05), (2, 60, 0.2)])
def test_capital_of_counts_is_the_mixture(s, t, p):
    def weight(x):
        return x**-0.5 * (1 - x) ** -0.5

    def ratio(x):
        return (x / p) ** s * ((1 - x) / (1 - p)) ** (t - s) * weight(x)

    expected = quad(ratio, 0, p, limit=200)[0] / quad(weight, 0, p)[0]
    assert np.exp(count_capital(s, t, p)) == pytest.approx(expected, rel=1e-6)


def test_capital_of_counts_is_fair_at_p_and_loses_above():
    for p in (0.05, 0.3, 0.8):
        for t in range(12):
            s = np.arange(t + 1)
            now = np.exp(count_capital(s, t, p))
            for truth in (p, (1 + p) / 2):
                goes_on = truth * np.exp(count_capital(s + 1, t + 1, p))
                goes_on += (1 - truth) * np.exp(count_capital(s, t + 1, p))
                if truth == p:
                    np.testing.assert_allclose(goes_on, now, rtol=1e-10)
                else:
                    assert (goes_on <= now * (1 + 1e-12)).all()


@pytest.mark.parametrize("p", [0.05, 0.5])
def test_counts_ever_refute_a_true_chance_at_most_so_often(p):
    """Exactly, by following the chance of every count that has not refuted p yet, over 500 looks."""
    alive, alarms = np.array([1.0]), 0.0
    for t in range(1, 501):
        alive = np.append(alive * (1 - p), 0.0) + np.append(0.0, alive * p)
        too_few = count_capital(np.arange(t + 1), t, p) >= LIMIT
        alarms += alive[too_few].sum()
        alive[too_few] = 0.0
    assert 0.002 < alarms <= 0.025


@pytest.mark.parametrize("kind", ["bernoulli", "beta", "lognormal"])
def test_the_mean_is_ever_missed_in_at_most_5_percent(kind):
    x, mean = streams(kind, 10_000, 300, seed=1)
    alarms = [
        (capital_over_time(gains) >= LIMIT).any(axis=1).mean()
        for gains in (x / mean - 1, (1 - x) / (1 - mean) - 1)
    ]
    assert max(alarms) <= 0.025 + 3 * math.sqrt(0.025 / 10_000)
    assert sum(alarms) > 0.001  # or the interval would be needlessly wide


def test_an_interval_ends_where_the_capital_says(tmp_path):
    x, _ = streams("beta", 1, 200, seed=2)
    found = pr.ReturnMonitor(-10, 30, returns=40 * x[0] - 10).mean
    low, high = (found.low + 10) / 40, (found.high + 10) / 40
    for m, beyond in ((low, low + 1e-9), (high, high - 1e-9)):
        sign = 1 if m == low else -1
        gains = [(x[0] / each - 1) if sign == 1 else (1 - x[0]) / (1 - each) - 1 for each in (m, beyond)]
        assert capital(gains[0]) == pytest.approx(LIMIT, abs=1e-6)
        assert capital(gains[1]) < LIMIT
    assert found.value == pytest.approx(40 * x.mean() - 10)


@pytest.mark.parametrize("q", [0.05, 0.25])
def test_cvar_is_ever_missed_from_below_in_at_most_5_percent(q):
    """Uniform returns: CVaR_q = q/2."""
    x = np.random.default_rng(3).random((2000, 300))
    z = np.stack([running_quantile(each, q) for each in x])
    least = z - z / q
    gains = (z - np.maximum(z - x, 0) / q - least) / (q / 2 - least) - 1
    alarms = (capital_over_time(gains) >= LIMIT).any(axis=1).mean()
    assert alarms <= 0.025 + 3 * math.sqrt(0.025 / 2000)


def test_all_bounds_hold_and_close_in():
    rng = np.random.default_rng(4)
    truth = {"mean": 0.5, "quantile": 0.05, "cvar": 0.025, "below": 0.2}
    widths = []
    for episodes in (100, 3000):
        missed, total = 0, 0.0
        for _ in range(20):
            monitor = pr.ReturnMonitor(0, 1, returns=rng.random(episodes))
            found = {
                "mean": monitor.mean,
                "quantile": monitor.quantile(0.05),
                "cvar": monitor.cvar(0.05),
                "below": monitor.probability(below=0.2),
            }
            missed += sum(not each.low <= truth[name] <= each.high for name, each in found.items())
            assert all(each.low <= each.value <= each.high for each in found.values())
            total += sum(each.high - each.low for each in found.values())
        assert missed <= 2
        widths.append(total)
    assert widths[1] < 0.35 * widths[0]


def test_ends_of_a_quantile_are_where_counts_refute():
    monitor = pr.ReturnMonitor(0, 1, returns=np.arange(1, 200) / 200)
    found = monitor.quantile(0.3)
    below = round(found.low * 200)  # returns up to low: too many to refute
    assert count_capital(below, 199, 0.3) < LIMIT
    assert count_capital(below - 1, 199, 0.3) >= LIMIT
    above = round(found.high * 200)  # returns up to high: so many below a higher one refute
    assert count_capital(199 - above, 199, 0.7) >= LIMIT
    assert count_capital(199 - above + 1, 199, 0.7) < LIMIT


@pytest.mark.parametrize("kind", ["bernoulli", "beta", "lognormal"])
@pytest.mark.parametrize("rises", [True, False])
def test_half_a_standard_deviation_is_seen_within_twice_the_episodes_of_a_fixed_test(kind, rises):
    """A two-sided test at 5% with 80% power takes (1.96 + .84)² / .5² = 31 episodes.

    That of normal returns. Any test that holds for all returns in [0, 1] takes at least log(1/α) over the
    largest growth of the capital: 85 of lognormal returns clipped at 20 whose mean falls.
    """
    x, mean = streams(kind, 1000, 250, seed=5)
    old = mean - 0.5 * x.std() if rises else mean + 0.5 * x.std()
    if old <= 0:  # a chance of 10 % has not risen by half of its std
        x, old = 1.0 - x, 1.0 - mean - 0.5 * x.std()
    gains = x / old - 1 if rises else (1 - x) / (1 - old) - 1
    seen = capital_over_time(gains) >= LIMIT
    first = np.where(seen.any(axis=1), seen.argmax(axis=1) + 1, 250)
    growth = max(np.log1p(f * gains).mean() for f in np.linspace(0.01, 0.99, 99))
    assert np.median(first) <= max(2 * 31, 1.5 * LIMIT / growth)
    if (kind, rises) != ("lognormal", False):
        assert np.median(first) <= 62


def test_two_policies_with_one_mean_are_ever_called_different_in_at_most_5_percent():
    """Looked at four times: the interval of the difference excludes 0."""
    alarms = []
    for k in range(30):
        x, _ = streams("beta", 2, 100, seed=100 + k)
        found = [
            pr.ReturnMonitor(0, 1, returns=x[0, :t]).difference(pr.ReturnMonitor(0, 1, returns=x[1, :t]))
            for t in (25, 50, 75, 100)
        ]
        alarms.append(any(each.low > 0 or each.high < 0 for each in found))
    assert np.mean(alarms) <= 0.05


def test_a_difference_holds_both():
    rng = np.random.default_rng(6)
    better = pr.ReturnMonitor(0, 1, returns=rng.beta(8, 2, 500))
    worse = pr.ReturnMonitor(0, 1, returns=rng.beta(5, 5, 500))
    found = better.difference(worse)
    assert 0 < found.low < 0.3 < found.high


def test_nights_in_a_row_are_one_long_night(tmp_path):
    x = np.random.default_rng(7).random(100)
    whole = pr.ReturnMonitor(0, 1, returns=x)
    path = tmp_path / "monitor.npz"
    pr.ReturnMonitor(0, 1, returns=x[:60]).save(path)
    again = pr.ReturnMonitor.load(path)
    again.update(x[60:99])
    again.update(x[99])
    assert again.to_dict() == whole.to_dict()
    assert str(again) == str(whole)


def test_before_the_first_return_everything_is_possible():
    monitor = pr.ReturnMonitor(-5, 5)
    for found in (monitor.mean, monitor.quantile(0.1), monitor.cvar(0.1)):
        assert math.isnan(found.value)
        assert (found.low, found.high) == (-5, 5)
    assert monitor.probability(below=0)[1:] == (0, 1)


def test_what_is_refused():
    monitor = pr.ReturnMonitor(0, 1, returns=[0.5])
    for wrong in ([0.5, 1.5], [math.nan], ["a"], np.ma.array([0.5, 0.6], mask=[True, False])):
        with pytest.raises(InvalidInputError):
            monitor.update(wrong)
    assert len(monitor) == 1
    for arguments in ((1, 0), (0, 0), (math.nan, 1), (0, math.inf), (-1e308, 1e308)):
        with pytest.raises(InvalidInputError):
            pr.ReturnMonitor(*arguments)
    with pytest.raises(InvalidInputError):
        pr.ReturnMonitor(0, 1, level=1.0)
    for q in (0, 1, 2):
        with pytest.raises(InvalidInputError):
            monitor.cvar(q)


def test_counts_of_a_fixed_look_are_honest_too():
    """At one look the interval of a chance covers more than 95%: the price of all the others."""
    p, n = 0.1, 200
    outcomes = np.arange(n + 1)
    covered = (count_capital(outcomes, n, p) < LIMIT) & (count_capital(n - outcomes, n, 1 - p) < LIMIT)
    assert 0.98 < binom.pmf(outcomes, n, p)[covered].sum() <= 1.0


def test_watch_from_night_to_night(tmp_path, capsys):
    walk, kept = pr.domains.walk(n=10, p=0.7), tmp_path / "robot.npz"
    nights = [walk.sample(0, 50, seed=k) for k in range(2)]
    command = ["watch", "", "--low", "-200", "--high", "0", "--monitor", str(kept), "--json"]
    for k, night in enumerate(nights):
        command[1] = str(tmp_path / f"{k}.parquet")
        pr.write_parquet(night, command[1])
        assert run([*command, "--below", "-30"]) == 0
        told = json.loads(capsys.readouterr().out)
    expected = pr.ReturnMonitor(-200, 0, returns=np.concatenate([each.returns() for each in nights]))
    assert told["mean"] == expected.mean._asdict()
    assert told["below"]["-30"] == expected.probability(below=-30)._asdict()
    assert (told["episodes"], told["new"]) == (100, 50)
    before = kept.read_bytes()
    for wrong in (["--low", "-20"], ["--high", "1"], ["--level", "0.9"]):
        assert run([*command, *wrong]) == 1
    pr.write_parquet(walk.sample(0, 50, seed=3, max_steps=12), command[1])
    assert run(command) == 1
    assert "cut off" in capsys.readouterr().err
    assert kept.read_bytes() == before
