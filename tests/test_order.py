"""The order of the episodes: neighbours that go alike, changes on the way, and what they do to errors."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from test_clusters import trades

import policyrisk as pr
from policyrisk.errors import FewEpisodesWarning, InvalidInputError
from policyrisk.evaluation.log import blocks_of
from policyrisk.evaluation.order import EpisodeOrder

ALIKE, MEAN, SPREAD = (
    "Neighbouring episodes go alike",
    "The mean return changes over the order of the episodes",
    "The spread of the returns changes over the order of the episodes",
)


def order_of(returns: np.ndarray, **more) -> EpisodeOrder:
    return EpisodeOrder(returns, returns - returns.mean(), **more)


def log_of(returns: np.ndarray, **more) -> pr.Trajectories:
    """Episodes of one step with these returns, all from one state."""
    n = len(returns)
    return pr.Trajectories([[0], [1]] * n, returns, [1] * n, [True] * n, **more)


def titles(data, **how) -> list[str]:
    result = pr.evaluate(data, features="tabular", seed=0, **how)
    return [advice.title for advice in result.advice if advice.severity != "note"]


def alarms(found: EpisodeOrder) -> bool:
    return bool(found.alike or found.mean.found or found.spread.found)


@pytest.mark.parametrize("draw", ["standard_normal", "standard_exponential", "standard_cauchy"])
def test_independent_episodes_raise_few_alarms(draw: str) -> None:
    rng = np.random.default_rng(1)
    count = sum(alarms(order_of(getattr(rng, draw)(n))) for n in (40, 300) for _ in range(150))
    assert count <= 9  # 3 expected at 1 %; more than 9 of 300 has a probability of 1e-3


def test_a_shift_of_one_standard_deviation_is_seen() -> None:
    rng = np.random.default_rng(2)
    shift = np.repeat([0.0, 1.0], 150)
    found = [order_of(rng.normal(size=300) + shift) for _ in range(100)]
    assert sum(each.mean.found for each in found) >= 95
    assert sum(each.spread.found or each.alike for each in found) <= 4  # it is told as what it is
    assert abs(np.median([each.mean.after for each in found]) - 150) < 5
    trend = [order_of(rng.normal(size=300) + np.linspace(0.0, 2.0, 300)) for _ in range(100)]
    assert sum(each.mean.found and not each.alike for each in trend) >= 95
    spread = [order_of(rng.normal(size=300) * (1.0 + shift)) for _ in range(100)]
    assert sum(each.spread.found for each in spread) >= 95
    assert sum(each.mean.found or each.alike for each in spread) <= 4


def test_neighbours_that_go_alike_are_no_change() -> None:
    rng = np.random.default_rng(3)
    found = []
    for _ in range(60):
        noise = rng.normal(size=600)
        for k in range(1, 600):
            noise[k] += 0.5 * noise[k - 1]
        found.append(order_of(noise))
    assert all(each.alike for each in found)
    assert sum(each.mean.found or each.spread.found for each in found) <= 3
    assert np.mean([each.correlation for each in found]) == pytest.approx(0.5, abs=0.02)
    ends = [each.interval(0.95)[1:] for each in found]
    assert sum(low < 0 < high for low, high in ends) >= 54
    ratios = [each.ratio(each.residuals, each.block) for each in found]
    assert np.median(ratios) == pytest.approx(np.sqrt(3.0), rel=0.2)  # (1 + ρ)/(1 − ρ) of the variance


def test_the_error_by_blocks_is_that_of_their_sums() -> None:
    g = np.random.default_rng(4).normal(size=25)
    order = order_of(g)
    D = [part.sum() for part in np.split(g - g.mean(), [6, 12, 18, 24])]
    assert order.error(order.residuals, 6) == pytest.approx(np.sqrt(5 / 4 * np.square(D).sum()) / 25)
    assert order.error(order.residuals, 1) == pytest.approx(g.std(ddof=1) / 5)


def test_trades_in_blocks_without_their_name() -> None:
    data = trades(4)
    result = pr.evaluate(replace(data, clusters=None), features="tabular", seed=0)
    alike = next(advice for advice in result.advice if advice.title == ALIKE)
    assert alike.severity == "serious"
    assert "12 blocks of 50 consecutive episodes" in alike.seen
    assert "--cluster blocks:50" in alike.remedy
    assert result.trust.level == "poor"
    error, low, high = result.order.interval(0.95)
    assert low < 0.683 < high
    by_blocks = pr.evaluate(replace(data, clusters=None), features="tabular", seed=0, cluster="blocks:50")
    assert by_blocks.clusters == 12
    assert by_blocks.summary.mean.standard_error == pytest.approx(error, rel=1e-9)
    assert ALIKE not in [advice.title for advice in by_blocks.advice]


def test_a_drift_half_way() -> None:
    # Means of .58 and −3.26, about ten standard errors apart.
    rng = np.random.default_rng(5)
    returns = 6.6 * rng.normal(size=600) + np.repeat([0.58, -3.26], 300)
    result = pr.evaluate(log_of(returns), features="tabular", seed=0)
    (found,) = (advice for advice in result.advice if advice.title == MEAN)
    assert found.severity == "serious"
    assert "standard error" in found.seen
    assert (result.trust.level, ALIKE in result.trust.reason) == ("poor", False)
    assert 'id="order"' not in result._repr_html_()
    assert 'alt="returns"' in result._repr_html_()


def test_starts_explain_what_depends_on_them() -> None:
    # Starts change half-way, and the returns from each do not: what their starts explain is no change.
    start = np.repeat([0, 1], 150)
    returns = 5.0 * start + np.random.default_rng(6).normal(size=300)
    states = np.column_stack([start, np.full(300, 2)]).reshape(-1, 1)
    data = pr.Trajectories(states, returns, [1] * 300, [True] * 300)
    assert not {ALIKE, MEAN, SPREAD} & set(titles(data))


def test_times_give_the_order() -> None:
    rng = np.random.default_rng(7)
    times = rng.permutation(300)
    returns = rng.normal(size=300) + (times >= 150)
    assert MEAN not in titles(log_of(returns))
    assert MEAN in titles(log_of(returns, times=times))
    steps = {"episode": np.arange(300), "x": 0.0, "reward": returns, "terminated": True}
    frame = pd.DataFrame({**steps, "day": pd.to_datetime("2026-01-01") + pd.to_timedelta(times, "D")})
    result = pr.evaluate(frame, state="x", features="poly:1", time="day", seed=0)
    assert MEAN in [advice.title for advice in result.advice]
    assert (np.diff(result.order.times) == 1).all()
    blocks = blocks_of(log_of(returns, times=times), 100)
    assert (blocks == times // 100).all()


def test_clusters_are_the_units_of_order() -> None:
    rng = np.random.default_rng(8)
    cluster = np.repeat(np.arange(40), 15)
    returns = rng.normal(size=600) + 2.0 * rng.normal(size=40)[cluster]
    assert not {ALIKE, MEAN, SPREAD} & set(titles(log_of(returns), cluster=cluster))
    assert ALIKE in titles(log_of(returns))
    assert MEAN in titles(log_of(returns + 4.0 * (cluster >= 20)), cluster=cluster)
    few = pr.evaluate(log_of(returns), features="tabular", seed=0, cluster=cluster // 3)
    assert not few.order.testable
    assert "The order of the clusters was not tested" in [advice.title for advice in few.advice]


def test_completed_returns_of_cut_off_episodes() -> None:
    # Later episodes are cut off sooner, as where a log ends: completed, their returns do not change.
    walk = pr.domains.walk(n=8, p=0.7)
    whole = walk.sample(0, episodes=400, seed=9)
    kept = np.minimum(whole.lengths, np.linspace(40, 3, 400).astype(int))
    data = whole._shortened(kept)
    data = replace(data, terminated=kept == whole.lengths)
    result = pr.evaluate(data, features="tabular", seed=0)
    assert result.survey.cut_off > 100
    assert not alarms(result.order)
    assert alarms(order_of(data.returns()))  # the recorded ones shrink
    again = replace(result, survey=replace(result.survey, ends=np.empty((0, 0))))
    assert again.order is None


def test_streams_keep_neighbours_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("policyrisk.passes.survey.STARTS", 2000)
    rng = np.random.default_rng(10)
    noise = rng.normal(size=20_000)
    for k in range(1, noise.size):
        noise[k] += 0.5 * noise[k - 1]
    data = log_of(noise)
    result = pr.evaluate([data[k : k + 500] for k in range(0, 20_000, 500)], features="tabular", seed=0)
    assert result.order.returns.size == 2000
    assert result.order.correlation == pytest.approx(0.5, abs=0.1)
    assert result.order.alike


def test_blocks_that_are_none() -> None:
    data = log_of(np.random.default_rng(0).normal(size=60))
    for wrong in ("blocks:", "blocks:0", "blocks:x", "blocks:-3"):
        with pytest.raises(InvalidInputError, match="number of episodes of a block behind blocks:"):
            pr.evaluate(data, features="tabular", cluster=wrong)
    with pytest.raises(InvalidInputError, match="at least 3 clusters, got 2"):
        pr.evaluate(data, features="tabular", cluster="blocks:30")
    with pytest.warns(FewEpisodesWarning, match="6 clusters"):
        assert pr.evaluate(data, features="tabular", cluster="blocks:10").clusters == 6


def test_returns_are_drawn_with_their_running_mean() -> None:
    g = np.arange(40.0)
    axes = pr.plotting.plot_returns(g, window=4)
    points, _, running = axes.lines
    assert points.get_ydata().tolist() == g.tolist()
    assert running.get_ydata() == pytest.approx(np.arange(37) + 1.5)
    assert running.get_xdata() == pytest.approx(np.arange(37) + 2.5)
    by_time = pr.plotting.plot_returns(g, times=-g, window=4)
    assert by_time.lines[2].get_ydata() == pytest.approx(np.arange(37)[::-1] + 1.5)
    assert by_time.get_xlabel() == "time"
    with pytest.raises(InvalidInputError, match="window"):
        pr.plotting.plot_returns(g, window=41)


def test_the_report_draws_the_returns_over_time(tmp_path) -> None:
    returns = np.random.default_rng(11).normal(size=300) + np.repeat([0.0, 2.0], 150)
    result = pr.evaluate(log_of(returns), features="tabular", seed=0)
    result.report(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert 'id="order"' in page
    assert '"width":15' in page
    from policyrisk.plotting.evaluation_maps import draw_order

    assert draw_order(result).lines[-1].get_xdata()[0] == pytest.approx(150, abs=5)


@pytest.mark.slow
def test_size_of_the_tests_of_order() -> None:
    rng = np.random.default_rng(12)
    for n in (20, 100, 300, 1000):
        for draw in (rng.standard_normal, rng.standard_exponential, lambda n: rng.standard_t(3, n)):
            assert sum(alarms(order_of(draw(n))) for _ in range(1000)) <= 22  # 10 expected, at most
