"""Episodes that come in clusters: error bars, folds, scores and comparisons take clusters for independent."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from scipy.stats import beta
from scipy.stats import t as student

import policyrisk as pr
from policyrisk.data import read_npz, write_npz
from policyrisk.errors import FewEpisodesWarning, InvalidInputError, MismatchError
from policyrisk.passes.episode_folds import each_fold
from policyrisk.returns import RecordedReturns
from policyrisk.returns.start_distribution import Clusters
from policyrisk.risk.completed import CompletedReturns


def trades(seed: int, clusters: int = 12, each: int = 50, steps: int = 2) -> pr.Trajectories:
    """Trades of three kinds in blocks with a shared shock: the returns' correlation in a block is large."""
    rng = np.random.default_rng(seed)
    block = np.repeat(np.arange(clusters), each)
    K = block.size
    kind = rng.integers(0, 3, K)
    rewards = (
        rng.normal(size=(K, steps)) + 3.0 * rng.normal(size=clusters)[block, None] / steps + 0.683 / steps
    )
    states = np.repeat(kind, steps + 1)[:, None]
    return pr.Trajectories(states, rewards.ravel(), [steps] * K, np.ones(K, dtype=bool), clusters=block)


def copies(data: pr.Trajectories, times: int) -> pr.Trajectories:
    """Every episode several times, its copies being a cluster: they tell nothing new."""
    order = np.repeat(np.arange(len(data)), times)
    order = order[np.argsort(np.tile(np.arange(times), len(data)), kind="stable")]
    return replace(data[order], clusters=order)


@pytest.fixture(scope="module")
def walk() -> pr.Trajectories:
    return pr.domains.walk(n=6, p=0.7).sample(0, episodes=80, seed=3)


def test_the_mean_has_the_error_of_sums_over_clusters() -> None:
    data = trades(1)
    mean = pr.LSTD(pr.Tabular(3)).fit(data).summary().mean
    d = data.returns() - data.returns().mean()
    sums = np.bincount(data.clusters, d)
    assert mean.standard_error == pytest.approx(np.sqrt(12 / 11 * (sums @ sums)) / 600, rel=1e-9)
    assert (mean.high - mean.value) / mean.standard_error == pytest.approx(student.ppf(0.975, 11), rel=1e-9)


def test_trades_with_a_shared_shock() -> None:
    data = trades(4)
    old = pr.evaluate(replace(data, clusters=None), features="tabular", seed=0).summary.mean
    new = pr.evaluate(replace(data, clusters=None), features="tabular", cluster=data.clusters, seed=0)
    assert not old.low < 0.683 < old.high
    assert new.summary.mean.low < 0.683 < new.summary.mean.high
    assert new.summary.mean.standard_error > 3 * old.standard_error
    assert new.clusters == 12
    assert any("12 clusters of episodes" in note for note in new.summary.notes)


@pytest.mark.parametrize("variance", ["second-moment", "direct"])
def test_copies_tell_nothing_new(walk: pr.Trajectories, variance: str) -> None:
    lstd = pr.LSTD(pr.Tabular(6), lam=0.7, variance=variance)
    once, often = lstd.fit(walk, bootstrap=100, seed=0), lstd.fit(copies(walk, 3), bootstrap=100, seed=0)
    assert often.error_bars.clusters == 80
    np.testing.assert_allclose(often.error_bars.replicates, once.error_bars.replicates, rtol=2e-5, atol=1e-5)
    x = np.arange(6)[:, None]
    alone = replace(once.error_bars, mean=None, cross=None, second=None)
    drawn = replace(once, error_bars=alone)
    for of in ("mean", "std"):
        np.testing.assert_allclose(often.standard_error(x, of=of), drawn.standard_error(x, of=of), rtol=1e-4)
    a, b = often.summary(), once.summary()
    assert a.mean.standard_error == pytest.approx(b.mean.standard_error, rel=1e-9)
    assert a.variance.standard_error == pytest.approx(b.variance.standard_error, rel=0.02)


def test_copies_tell_nothing_new_of_another_policy() -> None:
    rng = np.random.default_rng(0)
    a = rng.integers(0, 2, 200)
    log = pr.Trajectories([[0], [1]] * 200, a + rng.normal(size=200), [1] * 200, [True] * 200, actions=a)
    q = pr.LSTDQ(pr.Tabular(1), [[0.3, 0.7]], actions=2)
    once, often = (q.fit(each, bootstrap=300, seed=0) for each in (log, copies(log, 2)))
    pair = [each.summary().mean.standard_error for each in (often, once)]
    assert pair[0] == pytest.approx(pair[1], rel=0.05)


def test_copies_tell_nothing_new_of_the_distribution(walk: pr.Trajectories) -> None:
    once, often = (pr.ReturnDistribution(pr.Tabular(6)).fit(each) for each in (walk, copies(walk, 3)))
    x = np.array([[0], [3]])
    np.testing.assert_allclose((often.influences**2).sum(axis=1), (once.influences**2).sum(axis=1), rtol=1e-5)
    for q in (0.3, 0.7):
        ends = [each.interval(x, of="quantile", q=q) for each in (often, once)]
        np.testing.assert_allclose(ends[0], ends[1], rtol=1e-5)


def test_copies_tell_nothing_new_of_recorded_returns() -> None:
    x = np.random.default_rng(2).normal(size=60)
    once = RecordedReturns(x)
    often = RecordedReturns(np.tile(x, 4), clusters=np.tile(np.arange(60), 4))
    for of in ("mean", "std"):
        assert often.estimate(of).standard_error == pytest.approx(once.estimate(of).standard_error, rel=1e-9)
    assert often.cvar(0.25).low == pytest.approx(once.cvar(0.25).low, rel=1e-9)
    assert often.below(0.0).low == pytest.approx(once.below(0.0).low, rel=0.05)
    a, b = often.quantile(0.3), once.quantile(0.3)
    assert abs(np.searchsorted(np.sort(x), a.low) - np.searchsorted(np.sort(x), b.low)) <= 1
    assert abs(np.searchsorted(np.sort(x), a.high) - np.searchsorted(np.sort(x), b.high)) <= 1


def test_what_a_share_of_clusters_is_worth_by_hand() -> None:
    """Korn and Graubard 1998: n p(1 − p)/s², at most n, times the squared ratio of Student's quantiles."""
    below, clusters = np.array([1, 1, 0, 0, 0, 1, 0, 0]), Clusters.of(8, list("aabbccdd"))
    error = clusters.error(below - 3 / 8)
    assert error == pytest.approx(np.sqrt((1.25**2 + 0.75**2 + 0.25**2 + 0.75**2) * 4 / 3) / 8)
    ratio = student.ppf(0.975, 7) / student.ppf(0.975, 3)
    assert clusters.worth(3 / 8, error, 8.0, 0.95) == pytest.approx(3 / 8 * 5 / 8 / error**2 * ratio**2)
    assert clusters.worth(3 / 8, error, 4.0, 0.95) == pytest.approx(4 * ratio**2)
    found = RecordedReturns(np.array([1.0, 2, 9, 8, 7, 3, 9, 9]), clusters=clusters.codes).below(5.0)
    worth = 3 / 8 * 5 / 8 / error**2 * ratio**2
    assert found.low == pytest.approx(beta.ppf(0.025, 3 / 8 * worth, 5 / 8 * worth + 1))


def test_sums_over_parts_are_those_of_the_whole() -> None:
    data = trades(2, clusters=7, each=9)
    risk = pr.LSTD(pr.Tabular(3)).fit(replace(data, clusters=None))
    order = np.random.default_rng(0).permutation(len(data))
    mixed = data[order]
    whole = risk.completed_sums(mixed)
    parts = sum(
        (risk.completed_sums(mixed[k : k + 10]) for k in range(0, 63, 10)), CompletedReturns.empty(3, 3)
    )
    assert whole.clusters.tolist() == parts.clusters.tolist() == list(range(7))
    np.testing.assert_allclose(whole.cluster_sums, parts.cluster_sums, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(whole.covariance(None)[:2, :2], parts.covariance(None)[:2, :2], rtol=1e-9)


def test_clusters_are_held_out_and_scored_as_a_whole() -> None:
    data = trades(3, clusters=20, each=5)
    for _, others, own in each_fold(data, 4, key=7):
        held_out = np.concatenate([part.clusters for part in own])
        assert held_out.size == 25
        assert not set(held_out) & set(others.clusters)
    risk = pr.LSTD(pr.Tabular(3)).fit(trades(9, clusters=20, each=5))
    shuffled = data[np.random.default_rng(1).permutation(100)]
    score = risk.score([shuffled[:30], shuffled[30:]]).mse
    squares = (data.returns_to_go() - risk.mean(data.states[data.visited_rows])) ** 2
    sums = np.bincount(np.repeat(data.clusters, data.lengths), squares - squares.mean())
    assert score.value == pytest.approx(squares.mean(), rel=1e-9)
    assert score.standard_error == pytest.approx(np.sqrt(20 / 19 * sums @ sums) / squares.size, rel=1e-9)


def test_policies_are_compared_by_whole_clusters() -> None:
    a, b = trades(5), trades(7)
    risks = {name: pr.LSTD(pr.Tabular(3)).fit(each) for name, each in (("a", a), ("b", b))}
    found = pr.compare(risks, criterion="mean").significance
    plain = {
        name: pr.LSTD(pr.Tabular(3)).fit(replace(each, clusters=None)) for name, each in (("a", a), ("b", b))
    }
    assert pr.compare(plain, criterion="mean").significance.p_value < 0.001
    assert found.p_value > 0.05
    # With three clusters each there are twenty exchanges, of which two are as far apart as what happened.
    few = {"a": trades(1, clusters=3), "b": trades(1, clusters=3)}
    few["b"] = replace(few["b"], rewards=few["b"].rewards + 20.0)
    with pytest.warns(FewEpisodesWarning, match="3 clusters"):
        risks = {name: pr.LSTD(pr.Tabular(3)).fit(each) for name, each in few.items()}
    p_value = pr.compare(risks, criterion="mean").significance.p_value
    assert 0.05 < p_value < 0.2


def test_a_mixture_keeps_clusters(walk: pr.Trajectories) -> None:
    data = walk.with_clusters(np.arange(80) % 9)
    with pytest.warns(FewEpisodesWarning, match="9 clusters"):
        result = pr.evaluate(data, quantiles=[0.05], seed=0)
    assert result.clusters == 9
    assert result.trust.level == "fair"
    assert "few clusters" in result.trust.reason
    assert result.distribution.episodes == 9
    with pytest.warns(FewEpisodesWarning, match="4.5 at the fewest"):
        assert result.distribution.interval([[0]], q=0.5).shape == (1, 2)


def test_a_column_names_the_clusters(tmp_path) -> None:
    data = trades(1, each=4)
    frame = pd.DataFrame(
        {
            "episode": np.repeat(np.arange(48), 2),
            "x": data.states[data.visited_rows, 0],
            "reward": data.rewards,
            "terminated": np.tile([False, True], 48),
            "day": np.repeat([f"2026-03-{k + 1:02d}" for k in data.clusters], 2),
        }
    )
    frame["date"] = pd.to_datetime(frame["day"])
    frame.to_csv(tmp_path / "log.csv", index=False)
    frame.to_parquet(tmp_path / "log.parquet")
    given = pr.evaluate(data, features="tabular", seed=0).summary.mean
    for source in (frame, tmp_path / "log.csv", tmp_path / "log.parquet"):
        for column in ("day", "date"):
            found = pr.evaluate(source, state="x", features="labels", cluster=column, seed=0).summary.mean
            assert found.standard_error == pytest.approx(given.standard_error, rel=1e-9)
    read = pr.read(frame, state="x", cluster="day", time="date", batch_rows=7).load()
    assert read.clusters.tolist() == data.clusters.tolist()
    assert (np.diff(read.times) >= 0).all()
    pr.write_parquet(read, tmp_path / "again.parquet")
    again = pr.read_parquet(tmp_path / "again.parquet", cluster="cluster", time="time").load()
    assert again.clusters.tolist() == read.clusters.tolist()
    assert again.times.tolist() == read.times.tolist()
    write_npz(read, tmp_path / "log.npz")
    assert read_npz(tmp_path / "log.npz").load().clusters.tolist() == read.clusters.tolist()
    by_array = pr.evaluate(frame, state="x", features="labels", cluster=list("abcdefghijkl" * 4), seed=0)
    assert by_array.clusters == 12


def test_wrong_clusters_are_refused() -> None:
    data = replace(trades(1, each=4), clusters=None)
    with pytest.raises(InvalidInputError, match="at least 3 clusters, got 2"):
        pr.evaluate(data, features="tabular", cluster=np.arange(48) % 2)
    with pytest.raises(InvalidInputError, match="shape"):
        pr.evaluate(data, features="tabular", cluster=np.arange(47))
    with pytest.raises(InvalidInputError, match="got 47 for at least 48 episodes"):
        pr.evaluate([data[:20], data[20:]], features="tabular", cluster=np.arange(47) % 5)
    with pytest.raises(InvalidInputError, match="got 20 for at least"):
        pr.evaluate([data[:20], data[20:]], features="tabular", cluster=np.arange(20) % 5)
    with pytest.raises(InvalidInputError, match="none missing"):
        pr.evaluate(data, features="tabular", cluster=[None, *range(47)])
    with pytest.raises(InvalidInputError, match="clusters must be numbers from 0"):
        data.with_clusters(-np.ones(48, dtype=int))
    with pytest.raises(MismatchError, match="clusters"):
        pr.Trajectories.concatenate([data, data.with_clusters(np.zeros(48, dtype=int))])


@pytest.mark.parametrize(
    "cluster", ["blocks:" + "9" * 20, [[1], [1, 2]], sp.coo_array(np.eye(3)), [None] * 40]
)
def test_other_clusters_are_our_errors(cluster: object) -> None:
    data = pr.domains.walk(n=4, p=0.7).sample(0, episodes=40, seed=1)
    with pytest.raises(InvalidInputError, match="cluster must"):
        pr.evaluate(data, features="tabular", cluster=cluster)
