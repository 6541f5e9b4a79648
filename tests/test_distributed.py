"""The same sums on a cluster: against local ones, with workers killed, machines gone and files damaged."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import gymnasium
import numpy as np
import pandas as pd
import pytest

import policyrisk as pr
from policyrisk import distributed, errors
from policyrisk.cli.entry import run
from policyrisk.cli.rollout import RandomActions
from policyrisk.data import Stream
from policyrisk.distributed import reduce as reduce_module
from policyrisk.distributed import session
from policyrisk.distributed.reduce import ShardEpisodes, ShardReduce, as_shards
from policyrisk.passes.survey import Survey, SurveyPass

CHAIN = pr.domains.walk(n=12, p=0.6)
TABLE = pr.Tabular(12)
SUMS = ("A", "b", "C", "D", "e", "gram", "mean_gram")
COUNTS = (
    "visits",
    "second_visits",
    "feature_episodes",
    "second_feature_episodes",
    "episodes",
    "terminated",
    "transitions",
    "outside",
)


@pytest.fixture(scope="module")
def machines():
    """Two machines of a core each, as far as Ray can tell; what dies is noticed within a second or two."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # loopback only
    import ray
    from ray import cloudpickle
    from ray.cluster_utils import Cluster

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    quick = {
        "health_check_initial_delay_ms": 0,
        "health_check_period_ms": 300,
        "health_check_failure_threshold": 3,
    }
    size = {"num_cpus": 1, "object_store_memory": 200 * 2**20}
    cluster = Cluster(
        initialize_head=True,
        head_node_args={**size, "include_dashboard": False, "_system_config": quick},
    )
    cluster.add_node(**size)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    yield cluster
    ray.shutdown()
    cluster.shutdown()
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


@pytest.fixture(autouse=True)
def _on(machines):
    return machines


def walks(count, episodes=30, **options):
    return [CHAIN.sample(start=0, episodes=episodes, seed=k, **options) for k in range(count)]


def assert_same(found, expected):
    """The same equations: counts exactly, sums to rounding."""
    for name in COUNTS:
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)
    for name in SUMS:
        truth = getattr(expected, name)
        np.testing.assert_allclose(
            getattr(found, name), truth, rtol=1e-12, atol=1e-13 * np.abs(truth).max(), err_msg=name
        )


class Piece:
    """A shard that does something the first time that a worker comes to its second half."""

    def __init__(self, data, marker):
        self.data, self.marker = data, Path(marker)

    def __iter__(self):
        half = len(self.data) // 2
        yield self.data[:half]
        try:
            self.marker.touch(exist_ok=False)
        except FileExistsError:
            pass
        else:
            self.misfortune()
        yield self.data[half:]

    def misfortune(self):
        raise NotImplementedError


class Deadly(Piece):
    def misfortune(self):
        os.kill(os.getpid(), signal.SIGKILL)


class Broken(Piece):
    """Fails at every time."""

    def __iter__(self):
        yield self.data[: len(self.data) // 2]
        raise OSError("the disk is gone")


class Fleeting(Piece):
    """Can be read once, by the first pass."""

    def __iter__(self):
        yield from [self.data]
        if self.marker.exists():
            raise OSError("the file is gone")
        self.marker.touch()


class Slow(Piece):
    """Waits until the test goes on."""

    def misfortune(self):
        while not self.marker.with_suffix(".gone").exists():
            time.sleep(0.05)


# --- the same answers -------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 5, 9])
def test_equations_are_the_local_ones_for_any_number_of_shards(count):
    data = walks(count)
    lstd = pr.LSTD(TABLE, pr.Polynomial(2, [0], [11]), lam=0.8, discount=0.95)
    expected = lstd.equations(data)
    assert_same(distributed.equations(lstd, data), expected)
    assert_same(distributed.equations(lstd, data[::-1]), expected)


def test_number_of_workers_changes_no_bit(monkeypatch):
    """Many shards in few parts; the tasks are handed out differently."""
    data, lstd = walks(11), pr.LSTD(TABLE)
    monkeypatch.setattr(reduce_module, "PARTS", 7)
    found = []
    for workers in (1, 2, 3):
        monkeypatch.setattr(session, "workers", lambda workers=workers: workers)
        found.append(distributed.equations(lstd, data))
    for other in found[1:]:
        for name in SUMS + COUNTS:
            np.testing.assert_array_equal(getattr(other, name), getattr(found[0], name))
    assert_same(found[0], lstd.equations(data))
    assert found[0].shared


@pytest.mark.parametrize("shards", [1, 2, 3, 6, 7])
def test_tree_adds_neighbours_in_order(shards):
    found = ShardReduce(as_shards(walks(shards, episodes=2)), "stop")(lambda source, part: Spelled(str(part)))
    assert found.text.replace("(", "").replace(")", "") == "".join(map(str, range(shards)))
    assert found.depth <= np.ceil(np.log2(shards))


class Spelled:
    """A sum that remembers what was added to what."""

    def __init__(self, text, depth=0):
        self.text, self.depth = text, depth

    def __add__(self, other):
        return Spelled(f"({self.text}{other.text})", 1 + max(self.depth, other.depth))


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({"features": TABLE}, {"bootstrap": 5, "seed": 3}),
        ({"features": TABLE, "variance": "direct"}, {"bootstrap": 3, "seed": 1}),
        (
            {
                "features": pr.Polynomial(1, [0], [11]),
                "second_features": pr.Polynomial(2, [0], [11]),
                "nonnegative_at": "visited",
                "lam": 0.95,
            },
            {},
        ),
        ({"features": TABLE, "moments": 4}, {"error_bars": False}),
    ],
)
def test_fit_is_the_local_one_with_everything_in_it(settings, options):
    """Cut-off episodes that end unvisited as well: few steps from the start, and others near the end."""
    data = [*walks(4, max_steps=5), CHAIN.sample(start=11, episodes=8, seed=1)]
    lstd = pr.LSTD(**settings, discount=0.95)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", errors.GivenUpWarning)  # states that rest on it are nan in both
        local, found = lstd.fit(data, **options), distributed.fit(lstd, data, **options)
    assert found.provenance.biased == local.provenance.biased
    assert found.provenance.given_up == local.provenance.given_up
    assert (local.provenance.given_up > 0) == (settings["features"] is TABLE)
    assert found.provenance.constrained == local.provenance.constrained
    assert (found.provenance.episodes, found.provenance.transitions) == (
        local.provenance.episodes,
        local.provenance.transitions,
    )
    x = np.arange(12)
    for name in ("mean", "variance", "second_moment", "episodes"):
        truth = getattr(local, name)(x)
        np.testing.assert_allclose(getattr(found, name)(x), truth, rtol=1e-8, atol=1e-9 * np.nanmax(truth))
    np.testing.assert_allclose(found.moments(x), local.moments(x), rtol=1e-8, atol=1e-6)
    np.testing.assert_allclose(found.returns.variance, local.returns.variance, rtol=1e-12)
    if local.error_bars is None:
        assert found.error_bars is None
        return
    over_starts, truth = found.summary(), local.summary()
    assert (over_starts.starts, over_starts.unvisited) == (truth.starts, truth.unvisited)
    for name in ("mean", "variance"):
        for field in ("value", "standard_error", "high"):
            ours, theirs = (getattr(getattr(each, name), field) for each in (over_starts, truth))
            assert ours == pytest.approx(theirs, rel=1e-6, nan_ok=True), (name, field)
    truth = local.standard_error(x, of="variance")
    np.testing.assert_allclose(
        found.standard_error(x, of="variance"), truth, rtol=1e-6, atol=1e-9 * np.nanmax(truth)
    )
    if "bootstrap" in options:
        ours, theirs = found.error_bars.replicates, local.error_bars.replicates
        np.testing.assert_allclose(ours, theirs, rtol=1e-7, atol=1e-8 * np.abs(theirs).max())


@pytest.mark.parametrize(("lam", "max_steps"), [(1.0, None), (1.0, 25), (0.8, None)])
def test_distributions_are_the_local_ones(lam, max_steps, tmp_path):
    data, x = walks(4, max_steps=max_steps), np.arange(12)
    estimator = pr.ReturnDistribution(TABLE, thresholds=20, lam=lam, discount=0.7)
    local, found = estimator.fit(data), distributed.fit(estimator, data, error_bars=lam == 1.0)
    counts = ("episodes", "terminated", "transitions", "given_up")
    assert [getattr(found, name) for name in counts] == [getattr(local, name) for name in counts]
    np.testing.assert_allclose(found.thresholds, local.thresholds)
    np.testing.assert_allclose(found.weights, local.weights, rtol=1e-6, atol=1e-7)
    for of in ("quantile", "cvar"):
        np.testing.assert_allclose(getattr(found, of)(x, 0.1), getattr(local, of)(x, 0.1), atol=1e-5)
    if lam < 1:
        return
    # Which episodes share a group depends on the shards, and with it how wide an interval is, a little.
    ours, theirs = (np.diff(each.interval(x, of="mean"), axis=1) for each in (found, local))
    np.testing.assert_allclose(ours, theirs, rtol=0.5 if found.passes else 0.05)
    if found.passes:
        return
    broken = distributed.Shard("broken", Broken(data[0], tmp_path / "x"))
    with pytest.warns(errors.SkippedShardsWarning, match="broken"):
        again = distributed.fit(estimator, [*as_shards(data), broken], on_error="skip", error_bars=False)
    assert again.skipped == ("broken",)
    np.testing.assert_allclose(again.weights, found.weights, rtol=1e-6, atol=1e-7)
    with pytest.raises(errors.InvalidInputError, match="bootstrap must be 0"):
        distributed.fit(estimator, data, bootstrap=10)


def test_what_cut_off_episodes_give_up_goes_across_shards():
    """State 3 is visited in the other shard, and no longer once that one has given it up."""
    one = pr.Trajectories([[0], [1], [0], [2]], [1.0, 1.0], [1, 1], [True, False])
    other = pr.Trajectories([[0], [2], [3]], [1.0, 1.0], [2], [False])
    lstd = pr.LSTD(pr.Tabular(4))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", errors.GivenUpWarning)
        local, found = lstd.fit([one, other]), distributed.fit(lstd, [one, other])
    assert local.provenance.given_up == found.provenance.given_up == 3
    assert found.provenance.episodes == local.provenance.episodes == 1


def test_episodes_keep_their_multipliers_where_others_were_given_up():
    """The lone episodes, which end where nobody set out from, go as a whole, from the middle of parts."""
    lone = pr.Trajectories([[1], [13]], [3.0], [1], [False])
    data = [pr.Trajectories.concatenate([part[:2], lone, part[2:]]) for part in walks(3)]
    lstd = pr.LSTD(pr.Tabular(14))
    local = lstd.fit(pr.Trajectories.concatenate(data), bootstrap=5, seed=1)
    found = distributed.fit(lstd, data, bootstrap=5, seed=1)
    assert local.provenance.given_up == found.provenance.given_up == 3
    ours, theirs = found.error_bars.replicates, local.error_bars.replicates
    np.testing.assert_allclose(ours, theirs, rtol=1e-7, atol=1e-8 * np.abs(theirs).max())


def test_folders_and_files_are_shards(tmp_path):
    data = walks(3)
    for k, part in enumerate(data):
        pr.write_parquet(part, tmp_path / f"{k}.parquet", state=["place"])
    empty = tmp_path / "3.parquet"
    _without_rows(tmp_path / "0.parquet", empty)
    lstd = pr.LSTD(TABLE)
    shards = distributed.shards(tmp_path, state=["place"])
    assert [Path(shard.name).name for shard in shards] == [f"{k}.parquet" for k in range(4)]
    assert_same(distributed.equations(lstd, shards), lstd.equations(data))
    few = distributed.shards([tmp_path / "0.parquet", tmp_path / "1.parquet"], state=["place"])
    assert_same(distributed.equations(lstd, few), lstd.equations(data[:2]))
    streams = [pr.read_parquet(tmp_path / f"{k}.parquet", state=["place"]) for k in range(2)]
    assert_same(distributed.equations(lstd, streams), lstd.equations(data[:2]))
    frame = pd.DataFrame({"other": [7, 8], "place": [3, 1]})
    for estimator in (lstd, pr.ReturnDistribution(TABLE, thresholds=10)):
        risk = distributed.fit(estimator, shards[::-1])  # the first, without episodes, knows no names
        np.testing.assert_array_equal(risk.mean(frame), risk.mean([3, 1]))


@pytest.mark.parametrize("rows", [1, 7, 50, 10_000])
def test_row_groups_share_a_file(tmp_path, rows):
    """Episodes that begin in one row group and end in another, or in the one after that, are read once."""
    from pyarrow import parquet

    path = tmp_path / "log.parquet"
    pr.write_parquet(walks(1, episodes=5 if rows == 1 else 30)[0], path)
    parquet.write_table(parquet.read_table(path), path, row_group_size=rows)
    whole = pr.read_parquet(path, batch_rows=64).load()
    shards = distributed.shards(path)
    groups = -(-parquet.read_metadata(path).num_rows // rows)
    assert len(shards) == min(groups, 16)
    together = pr.Trajectories.concatenate(batch for shard in shards for batch in ShardEpisodes({0: shard}))
    for name in ("states", "rewards", "lengths", "terminated"):
        np.testing.assert_array_equal(getattr(together, name), getattr(whole, name))


def _without_rows(path, target):
    from pyarrow import parquet

    parquet.write_table(parquet.read_table(path).slice(0, 0), target)


def test_warnings_of_workers_arrive_once(tmp_path):
    from pyarrow import compute, parquet

    pr.write_parquet(walks(1, max_steps=5)[0], tmp_path / "log.parquet")
    table = parquet.read_table(tmp_path / "log.parquet")
    parquet.write_table(table.filter(compute.is_valid(table["reward"])), tmp_path / "log.parquet")
    with pytest.warns(errors.UnrecordedEndWarning, match="given up") as seen:
        distributed.fit(pr.LSTD(pr.Polynomial(1, [0], [11]), discount=0.9), tmp_path)
    assert len(seen) == 1


# --- simulation -------------------------------------------------------------------------------------


def lean(x):
    return x[:, 2] + 0.3 * x[:, 3] > 0


def test_rollouts_are_the_local_ones_bit_for_bit(monkeypatch):
    local = pr.rollout("CartPole-v1", lean, episodes=30, seed=5, max_steps=60)
    for parts, envs in ((4, None), (30, 1)):
        monkeypatch.setattr("policyrisk.distributed.simulation.SHARDS", parts)
        found = distributed.rollout("CartPole-v1", lean, episodes=30, seed=5, max_steps=60, num_envs=envs)
        assert len(found.shards) == parts
        together = found.load()
        for name in ("states", "rewards", "lengths", "terminated", "actions"):
            np.testing.assert_array_equal(getattr(together, name), getattr(local, name))
    lstd = pr.LSTD(pr.TileCoding([-3] * 4, [3] * 4, bins=[3] * 4))
    assert_same(distributed.equations(lstd, found), lstd.equations(local))


def test_random_actions_are_the_local_ones_bit_for_bit(monkeypatch):
    local = pr.rollout("CartPole-v1", RandomActions.of("CartPole-v1", {}, 3), episodes=12, seed=5, num_envs=1)
    acting = RandomActions.of("CartPole-v1", {}, 3)
    monkeypatch.setattr("policyrisk.distributed.simulation.SHARDS", 4)
    for found in (
        pr.rollout("CartPole-v1", acting, episodes=12, seed=5, num_envs=5),
        distributed.rollout("CartPole-v1", acting, episodes=12, seed=5).load(),
    ):
        for name in ("states", "rewards", "lengths", "terminated", "actions", "propensities"):
            np.testing.assert_array_equal(getattr(found, name), getattr(local, name))
    assert set(local.propensities) == {0.5}
    first = [episode.states[: 1 + int(local.lengths.min())] for episode in local]
    assert not np.allclose(np.diff(first[0], axis=0), np.diff(first[1], axis=0), atol=0.05)


def test_drawn_actions_are_the_local_ones_bit_for_bit(monkeypatch):
    def soft(x):
        right = 1.0 / (1.0 + np.exp(-5.0 * x[:, 2]))
        return np.column_stack([1.0 - right, right])

    local = pr.rollout("CartPole-v1", soft, episodes=12, seed=5)
    monkeypatch.setattr("policyrisk.distributed.simulation.SHARDS", 4)
    found = distributed.rollout("CartPole-v1", soft, episodes=12, seed=5).load()
    for name in ("states", "actions", "propensities"):
        np.testing.assert_array_equal(getattr(found, name), getattr(local, name))


def test_rollouts_say_what_is_wrong():
    with pytest.raises(errors.InvalidInputError, match="actions from 0 to 1, got 7"):
        distributed.rollout("CartPole-v1", lambda x: np.full(len(x), 7), episodes=3, seed=0)
    with pytest.raises(errors.InvalidInputError, match=r"what gymnasium\.make can make"):
        distributed.rollout("NoSuchThing-v0", lean, episodes=3, seed=0)
    made = gymnasium.make("CartPole-v1")
    with pytest.raises(errors.InvalidInputError, match="each worker has its own"):
        distributed.rollout(made, lean, episodes=3, seed=0)
    lock = threading.Lock()
    with pytest.raises(errors.InvalidInputError, match="can be pickled"):
        distributed.rollout("CartPole-v1", lambda x: lock, episodes=3, seed=0)


def test_monte_carlo_is_the_local_one_bit_for_bit(tmp_path):
    local = pr.monte_carlo(CHAIN, None, [0, 5, 11], episodes=900, seed=1)
    found = distributed.monte_carlo(CHAIN, None, [0, 5, 11], episodes=900, seed=1)
    for name in ("mean", "variance", "std_se", "episodes", "steps", "cut_off"):
        np.testing.assert_array_equal(getattr(found, name), getattr(local, name))
    assert local.std.shape == (3,)


def test_monte_carlo_goes_on_where_another_stopped(tmp_path):
    """Stopped on the cluster, finished here."""
    states, path = np.arange(12), tmp_path / "run.npz"
    truth = pr.monte_carlo(CHAIN, None, states, episodes=50, seed=2)

    def stop(done, total):
        if done > total / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match="or resume=True"):
        distributed.monte_carlo(CHAIN, None, states, episodes=50, seed=2, checkpoint=path, progress=stop)
    again = pr.monte_carlo(CHAIN, None, states, episodes=50, seed=2, checkpoint=path, resume=True)
    np.testing.assert_array_equal(again.variance, truth.variance)


# --- the command line -------------------------------------------------------------------------------


def unread(stream):
    raise AssertionError(f"{stream} was read by the driver")


def evaluated(tmp_path, capsys, *options):
    line = ["evaluate", str(tmp_path / "log"), "--seed", "0", "--out", str(tmp_path / "out"), "--json"]
    assert run([*line, *options]) == 0
    return json.loads(capsys.readouterr().out)


def assert_same_numbers(found, local):
    for name in ("mean", "variance"):
        assert found[name]["value"] == pytest.approx(local[name]["value"], rel=1e-9)
        assert found[name]["standard_error"] == pytest.approx(local[name]["standard_error"], rel=1e-6)


def write_log(folder, data):
    folder.mkdir()
    for k, part in enumerate(data):
        pr.write_parquet(part, folder / f"{k}.parquet", state=["place"])


def test_the_headline_is_over_all_starts_on_a_cluster_and_here(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("policyrisk.passes.survey.STARTS", 20)
    data = [CHAIN.sample(np.full(12, 1 / 12), episodes=100, seed=k) for k in range(3)]
    write_log(tmp_path / "log", data)
    options = ["--state", "place", "--features", "tabular:12"]
    local, ours = evaluated(tmp_path, capsys, *options), pr.Evaluation.load(tmp_path / "out")
    found = evaluated(tmp_path, capsys, *options, "--ray")
    assert len(ours.survey.starts) == 20
    assert local["starts"] == found["starts"] == 300
    assert_same_numbers(found, local)
    both = pr.Trajectories.concatenate(data)
    truth = pr.LSTD(TABLE).fit(both).summary().to_dict()
    assert_same_numbers(local, truth)
    # From Python a cluster is started where there is none; data in memory are sent to it.
    result = pr.evaluate(data, features="tabular:12", on_cluster=True)
    assert_same_numbers(result.to_dict(), truth)


@pytest.mark.parametrize("features", ["tabular:12", "auto"])
def test_evaluate_gives_the_same_numbers_and_reads_nothing_here(tmp_path, capsys, monkeypatch, features):
    write_log(tmp_path / "log", walks(3))
    options = ["--state", "place", "--features", features]
    options += ["--quantiles", "0.05"] if features != "auto" else []
    local = evaluated(tmp_path, capsys, *options)
    here = Survey.of(walks(3), seed=0)
    monkeypatch.setattr(Stream, "__iter__", unread)
    found = evaluated(tmp_path, capsys, *options, "--ray")
    assert_same_numbers(found, local)
    if features != "auto":
        for of in ("quantiles", "cvar"):
            ours, theirs = (each["distribution"][of]["0.05"] for each in (found, local))
            assert ours["value"] == pytest.approx(theirs["value"])
            assert ours["low"] == pytest.approx(theirs["low"], rel=0.05)
    there = pr.Evaluation.load(tmp_path / "out").survey
    for name, value in vars(here).items():  # fewer states than a sample holds
        np.testing.assert_array_equal(getattr(there, name), value)
    assert run(["evaluate", str(tmp_path / "log"), *options, "--out", str(tmp_path / "x")]) != 0
    assert "was read by the driver" in capsys.readouterr().err


@pytest.mark.slow
def test_evaluate_on_a_cluster_at_an_address(machines, tmp_path, capsys):
    write_log(tmp_path / "log", walks(3))
    options = ["--state", "place", "--features", "tabular:12"]
    local = evaluated(tmp_path, capsys, *options)
    line = [
        "evaluate",
        str(tmp_path / "log"),
        *options,
        "--seed",
        "0",
        "--out",
        str(tmp_path / "out"),
        "--json",
        "--quiet",
    ]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "policyrisk.cli", *line, "--ray-address", machines.address],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert_same_numbers(json.loads(done.stdout), local)


def test_evaluate_counts_what_workers_gave_up(tmp_path, capsys):
    from pyarrow import compute, parquet

    # Of an episode of one step, without its end, nothing is left.
    short = pr.Trajectories.concatenate([*walks(1, max_steps=5), *walks(1, episodes=7, max_steps=1)])
    gone = walks(1, episodes=4, max_steps=1)
    write_log(tmp_path / "log", [short, *walks(2, max_steps=6), *gone])
    for path in (tmp_path / "log").iterdir():
        table = parquet.read_table(path)
        parquet.write_table(table.filter(compute.is_valid(table["reward"])), path)
    options = ["--state", "place", "--features", "tabular:12", "--discount", "0.9"]
    local, found = (evaluated(tmp_path, capsys, *options, *more) for more in ([], ["--ray"]))
    for name in ("unrecorded_ends", "vanished_episodes", "episodes", "transitions", "given_up"):
        assert found[name] == local[name]
    assert local["vanished_episodes"] == 11
    assert local["unrecorded_ends"] > 11


def test_random_policy_has_fresh_randomness_on_every_worker(tmp_path):
    line = ["rollout", "CartPole-v1", "--policy", "random", "--episodes", "20", "--seed", "1", "--ray"]
    for name in ("one.npz", "two.npz"):
        assert run([*line, "--out", str(tmp_path / name)]) == 0
    one, two = (pr.read(tmp_path / name).load() for name in ("one.npz", "two.npz"))
    np.testing.assert_array_equal(one.states, two.states)
    pushes = {tuple(np.sign(np.diff(episode.states[:8, 1]))) for episode in one}
    assert len(pushes) > 10


@pytest.mark.slow
def test_command_line_with_a_cluster_of_its_own(tmp_path):
    """A policy from the current folder, workers of another process."""
    (tmp_path / "leaning.py").write_text("def lean(x):\n    return x[:, 2] + 0.3 * x[:, 3] > 0\n")
    command = [sys.executable, "-W", "error", "-m", "policyrisk.cli"]
    line = ["rollout", "CartPole-v1", "--policy", "leaning:lean", "--episodes", "12", "--seed", "2"]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}

    def call(*options):
        return subprocess.run(
            [*command, *line, *options], cwd=tmp_path, env=environment, capture_output=True, text=True
        )

    for options in (["--out", "local.npz"], ["--out", "ray.npz", "--ray"]):
        done = call(*options)
        assert (done.returncode, done.stderr) == (0, "")
    local, found = (pr.read(tmp_path / name).load() for name in ("local.npz", "ray.npz"))
    np.testing.assert_array_equal(found.states, local.states)
    done = call("--out", "x.npz", "--ray-address", "127.0.0.1:1")
    assert done.returncode == 1
    assert "address must be that of a Ray cluster that runs, got '127.0.0.1:1'" in done.stderr


# --- faults -----------------------------------------------------------------------------------------


def test_killed_worker_costs_nothing(tmp_path):
    data, lstd = walks(6), pr.LSTD(TABLE)
    shards = [Deadly(part, tmp_path / str(k)) if k in (1, 4) else part for k, part in enumerate(data)]
    found = distributed.equations(lstd, shards)
    assert {path.name for path in tmp_path.iterdir()} == {"1", "4"}
    assert_same(found, lstd.equations(data))


def test_killed_worker_changes_no_bit_of_the_survey(tmp_path):
    data, look = walks(6), SurveyPass(seed=0, bounds=(20, 10**6))
    shards = [Deadly(part, tmp_path / str(k)) if k in (1, 4) else part for k, part in enumerate(data)]
    found, expected = (ShardReduce(as_shards(each), "stop")(look) for each in (shards, data))
    assert {path.name for path in tmp_path.iterdir()} == {"1", "4"}
    np.testing.assert_array_equal(found.sample().states, expected.sample().states)
    assert len(expected.sample()) == 20
    for name, value in vars(found.survey()).items():
        np.testing.assert_array_equal(value, getattr(expected.survey(), name))


def test_worker_that_always_dies_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(session, "RETRIES", 1)
    shards = [walks(1)[0], Doomed(walks(1)[0], tmp_path / "0")]
    with pytest.raises(errors.WorkerError, match=r"part 1 of the shards .* 2 attempts"):
        distributed.equations(pr.LSTD(TABLE), shards)


class Doomed(Piece):
    def __iter__(self):
        os.kill(os.getpid(), signal.SIGKILL)
        yield self.data


def test_machine_that_goes_away_costs_nothing(machines, tmp_path, monkeypatch):
    """It goes while it works on a shard. Sums and episodes that lay there are made again elsewhere."""
    monkeypatch.setattr("policyrisk.distributed.simulation.SHARDS", 4)
    # Small things are kept by the driver; these are larger than the 100 kB from which on they are not.
    data, lstd = walks(6), pr.LSTD(pr.Tabular(120))
    node = machines.add_node(num_cpus=2, object_store_memory=100 * 2**20)
    episodes = distributed.rollout("CartPole-v1", lean, episodes=32, seed=5)
    shards = [Slow(part, tmp_path / str(k)) if k in (2, 3, 4) else part for k, part in enumerate(data)]

    def take_away():
        while len(list(tmp_path.iterdir())) < 3:
            time.sleep(0.05)
        machines.remove_node(node, allow_graceful=False)
        for k in (2, 3, 4):
            (tmp_path / f"{k}.gone").touch()

    thread = threading.Thread(target=take_away)
    thread.start()
    found = distributed.equations(lstd, shards)
    thread.join()
    assert_same(found, lstd.equations(data))
    local = pr.rollout("CartPole-v1", lean, episodes=32, seed=5)
    assert local.states.nbytes > 4 * 100_000
    np.testing.assert_array_equal(episodes.load().states, local.states)


def test_unreadable_shard_stops_or_is_left_out(tmp_path):
    data, lstd = walks(5), pr.LSTD(TABLE)
    for k, part in enumerate(data):
        pr.write_parquet(part, tmp_path / f"{k}.parquet")
    damaged = tmp_path / "2.parquet"
    damaged.write_bytes(damaged.read_bytes()[:-100])
    with pytest.raises(errors.InvalidInputError, match=r"shard .*2\.parquet must be readable, .* damaged"):
        distributed.fit(lstd, tmp_path)
    with pytest.warns(errors.SkippedShardsWarning, match=r"1 of 5 shards .* left out: .*2\.parquet"):
        risk = distributed.fit(lstd, tmp_path, on_error="skip")
    rest = lstd.fit([part for k, part in enumerate(data) if k != 2])
    assert risk.provenance.skipped == (str(damaged),)
    assert "1 shard left out" in str(risk)
    assert risk.provenance.episodes == rest.provenance.episodes
    np.testing.assert_allclose(risk.variance(np.arange(12)), rest.variance(np.arange(12)), rtol=1e-9)
    np.testing.assert_allclose(
        risk.standard_error(np.arange(12), of="variance"),
        rest.standard_error(np.arange(12), of="variance"),
        rtol=1e-7,
    )


def test_half_of_a_broken_shard_is_not_counted(tmp_path, monkeypatch):
    """It shares a part with others, and fails after some of its episodes were summed."""
    monkeypatch.setattr(reduce_module, "PARTS", 2)
    data, lstd = walks(6), pr.LSTD(TABLE)
    shards = [Broken(part, "") if k == 1 else part for k, part in enumerate(data)]
    with pytest.warns(errors.SkippedShardsWarning, match=r"number 1 \(number 1: the disk is gone\)"):
        found = distributed.equations(lstd, shards, on_error="skip")
    assert_same(found, lstd.equations([part for k, part in enumerate(data) if k != 1]))


def test_shard_that_fails_later_is_an_error(tmp_path):
    """It is in the equations already, and must not be left out of the error bars."""
    shards = [*walks(2), Fleeting(walks(1)[0], tmp_path / "read")]
    with pytest.raises(errors.InvalidInputError, match="could be read in the first pass"):
        distributed.fit(pr.LSTD(TABLE), shards, on_error="skip")


def test_nothing_to_read_is_an_error():
    broken = [Broken(part, "") for part in walks(2)]
    with pytest.raises(errors.InvalidInputError, match="none of 2 shards is; number 0: the disk is gone"):
        distributed.equations(pr.LSTD(TABLE), broken, on_error="skip")
    for shards, message in (([], "at least one"), (7, "got int"), (iter([]), "got list_iterator")):
        with pytest.raises(errors.InvalidInputError, match=message):
            distributed.fit(pr.LSTD(TABLE), shards)
    with pytest.raises(errors.InvalidInputError, match="on_error"):
        distributed.fit(pr.LSTD(TABLE), walks(1), on_error="retry")
    with pytest.raises(errors.InvalidInputError, match="while Ray runs"), distributed.cluster(workers=2):
        pass


def test_errors_of_the_work_itself_come_through():
    with pytest.raises(errors.InvalidInputError, match="states"):
        distributed.fit(pr.LSTD(pr.Tabular(3)), walks(2))


def test_another_policy_is_estimated_where_the_shards_are(machines):
    rng, x = np.random.default_rng(0), np.arange(12)
    data = []
    for part in walks(5):
        columns = part.states, part.rewards, part.lengths, part.terminated
        data.append(pr.Trajectories(*columns, actions=rng.integers(2, size=part.transitions)))
    pi = np.column_stack([x + 1, 12 - x]) / 13
    for policy in (pi, lambda x: pi[x[:, 0].astype(int)]):
        q = pr.LSTDQ(TABLE, policy, actions=2)
        risk, here = distributed.fit(q, data), q.fit(data)
        np.testing.assert_allclose(risk.variance(x), here.variance(x), rtol=1e-8)
        np.testing.assert_allclose(
            risk.standard_error(x, of="std"), here.standard_error(x, of="std"), rtol=1e-6
        )
    table = pr.LSTDQ(TABLE, pi)
    np.testing.assert_allclose(distributed.equations(table, data).A, table.equations(data).A, atol=1e-10)
