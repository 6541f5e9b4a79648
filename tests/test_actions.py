"""Actions and propensities: through every file, stream and shard, and as rollouts record them."""

import re

import gymnasium as gym
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from conftest import assert_same
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from typer.testing import CliRunner

import policyrisk as pr
from policyrisk._core.random import uniform
from policyrisk.cli.entry import app
from policyrisk.data import read_csv, read_npz, write_npz
from policyrisk.distributed import shards
from policyrisk.domains.pinball import Pinball, UniformPolicy
from policyrisk.errors import BadRowError, InvalidInputError, MismatchError, UnrecordedEndWarning
from policyrisk.passes.survey import SurveySums
from policyrisk.simulation.spaces import drawn_actions


def recorded(actions=0, propensities=True, seed=1, whole=False):
    """Thirty episodes; ``actions`` 0 for whole ones, k for k coordinates."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 6, 30)
    n = int(lengths.sum())
    states = rng.integers(0, 9, (n + 30, 2)) if whole else rng.normal(size=(n + 30, 2))
    return pr.Trajectories(
        states,
        rng.normal(size=n),
        lengths,
        rng.random(30) < 0.5,
        rng.normal(size=(n, actions)) if actions else rng.integers(0, 4, n),
        1.0 - rng.random(n) if propensities else None,
    )


KINDS = [(0, True), (0, False), (1, True), (3, False)]


# --- files ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("actions", "propensities"), KINDS)
def test_every_kind_of_file_gives_them_back(tmp_path, actions, propensities):
    data = recorded(actions, propensities)
    pr.write_parquet([data[:7], data[7:]], tmp_path / "log.parquet")
    write_npz([data[:7], data[7:]], tmp_path / "log.npz")
    pyarrow.csv.write_csv(pq.read_table(tmp_path / "log.parquet"), tmp_path / "log.csv")
    for name in ("log.parquet", "log.npz", "log.csv"):
        stream = pr.read(tmp_path / name)
        assert_same(stream.load(), data)
        assert stream.labels == {}
    for rows in (1, 5):
        batches = list(pr.read(tmp_path / "log.parquet", batch_rows=rows))
        assert_same(pr.Trajectories.concatenate(batches), data)
        batches = list(pr.read(tmp_path / "log.csv", batch_rows=rows))
        assert_same(pr.Trajectories.concatenate(batches), data)
    without = pr.Trajectories(data.states, data.rewards, data.lengths, data.terminated)
    for name in ("log.parquet", "log.csv"):
        assert_same(pr.read(tmp_path / name, action=None).load(), without)
        assert pr.read(tmp_path / name, propensity=None).load().propensities is None


@pytest.mark.parametrize(("actions", "propensities"), KINDS)
def test_every_shard_gives_them_back(tmp_path, actions, propensities):
    data = recorded(actions, propensities)
    pr.write_parquet(data, tmp_path / "whole.parquet")
    table = pq.read_table(tmp_path / "whole.parquet")
    pq.write_table(table, tmp_path / "whole.parquet", row_group_size=13)
    pieces = shards(tmp_path / "whole.parquet")
    assert len(pieces) > 5
    assert_same(pr.Trajectories.concatenate(piece.source().load() for piece in pieces), data)


def test_a_sample_of_episodes_has_them():
    data = recorded()
    sums = SurveySums.of([data[:10], data[10:]], seed=0, bounds=(1000, 100_000))
    assert_same(sums.sample(), data)


def table(action=None, **columns):
    """Two episodes: 2 transitions and an end row, and 1 transition and an end row."""
    return pa.table(
        {
            "episode": [0, 0, 0, 1, 1],
            "x": [0.0, 0.1, 0.2, 0.3, 0.4],
            "reward": [1.0, 1.0, None, 1.0, None],
            "terminated": [False, True, False, False, False],
            **({} if action is None else {"action": action}),
            **columns,
        }
    )


def loaded(tmp_path, table, **options):
    pq.write_table(table, tmp_path / "log.parquet")
    return pr.read_parquet(tmp_path / "log.parquet", **{"state": "x", **options}).load()


@pytest.mark.parametrize(
    "column",
    [
        [1, 0, None, 2, None],
        [1.0, 0.0, None, 2.0, float("nan")],  # what a data frame makes of whole numbers with gaps
        [1, 0, 7, 2, -3],  # what stands in an end row is not looked at
    ],
)
def test_end_rows_have_no_action(tmp_path, column):
    data = loaded(tmp_path, table(column, propensity=[0.5, 1.0, None, 0.25, 0.0]))
    assert data.actions.dtype == np.int64
    assert data.actions.tolist() == [1, 0, 2]
    assert data.propensities.tolist() == [0.5, 1.0, 0.25]
    booleans = [None if value is None else value == 1 for value in (1, 0, None, 1, None)]
    assert loaded(tmp_path, table(booleans)).actions.tolist() == [1, 0, 1]


@pytest.mark.parametrize("kind", [pa.list_(pa.float32()), pa.list_(pa.int64(), 2)], ids=str)
@pytest.mark.parametrize("batch_rows", [1, 3, 100])
def test_columns_of_lists_are_continuous(tmp_path, kind, batch_rows):
    column = pa.array([[1, 2], [3, 4], None, [5, 6], [0, 0]], type=kind)
    data = loaded(tmp_path, table(column), batch_rows=batch_rows)
    assert data.actions.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert data.actions.dtype == np.float64


def test_columns_are_found_on_their_own_and_by_their_names(tmp_path):
    a, p = [1, 0, None, 2, None], [0.5, 1.0, None, 0.25, None]
    for name in ("action", "actions"):
        for probability in ("propensity", "action_probability"):
            data = loaded(tmp_path, table(**{name: a, probability: p}))
            assert (data.actions.tolist(), data.propensities.tolist()) == ([1, 0, 2], [0.5, 1.0, 0.25])
    both = loaded(tmp_path, table(action_0=a, action_1=p))
    assert both.actions.tolist() == [[1, 0.5], [0, 1.0], [2, 0.25]]
    named = loaded(tmp_path, table(button=a, chance=p), action="button", propensity="chance")
    assert (named.actions.tolist(), named.propensities.tolist()) == ([1, 0, 2], [0.5, 1.0, 0.25])
    force = loaded(tmp_path, table(force=p), action=["force"])
    assert force.actions.tolist() == [[0.5], [1.0], [0.25]]
    # A probability without an action is none of an action, and the caller's own columns go first.
    assert loaded(tmp_path, table(propensity=p)).action_kind == "no actions"
    moved = table([1.5, 0.5, 0.0, 2.0, 1.0])
    pair = loaded(tmp_path, moved, state=["x", "action"])
    assert (pair.dim, pair.actions) == (2, None)
    assert loaded(tmp_path, moved, action=None).actions is None


def test_an_action_is_no_coordinate_of_the_state(tmp_path):
    data = recorded(3)
    pr.write_parquet(data, tmp_path / "log.parquet")
    names = pq.read_schema(tmp_path / "log.parquet").names
    assert names == [
        *("episode", "step", "state_0", "state_1", "reward", "terminated", "truncated"),
        *("action_0", "action_1", "action_2", "propensity"),
    ]
    assert pr.read(tmp_path / "log.parquet").state_columns == ("state_0", "state_1")
    with pytest.raises(InvalidInputError, match=r"must not name a column 'action_1', which another has"):
        pr.write_parquet(data, tmp_path / "log.parquet", state=["x", "action_1"])


def test_episodes_without_end_rows(tmp_path):
    rows = pa.table(
        {
            "episode": [0, 0, 1, 1],
            "x": [0.0, 0.1, 0.2, 0.3],
            "reward": [1.0, 2.0, 3.0, 4.0],
            "terminated": [False, True, False, False],
            "action": [5, 6, 7, 8],
            "propensity": [0.1, 0.2, 0.3, 0.4],
        }
    )
    with pytest.warns(UnrecordedEndWarning):
        data = loaded(tmp_path, rows)
    assert data.rewards.tolist() == [1.0, 2.0, 3.0]
    assert data.actions.tolist() == [5, 6, 7]
    assert data.propensities.tolist() == [0.1, 0.2, 0.3]


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"action": [1, None, None, 2, None]}, {}, "action must not be null, got null in row 1 of"),
        ({"action": [1, None, None, 2, None]}, {}, "or pass action=None to leave actions out"),
        ({"propensity": [0.5, 1.5, None, 1, None]}, {}, "or pass propensity=None to leave it out"),
        ({"action": [1, 0, None, None, None]}, {}, "action must not be null, got null in row 3 of"),
        ({"action": [1, 0, None, float("nan"), None]}, {}, "action must be finite, got nan in row 3 of"),
        ({"action": [1, 0, None, 0.5, None]}, {}, "whole numbers or names, got 0.5 in row 3 of"),
        ({"action": [1, 0, None, 0.5, None]}, {}, "pass action=['action'] where the actions are continuous"),
        ({"action": [1, 0, None, 1e300, None]}, {}, "whole numbers or names, got 1e+300 in row 3 of"),
        (
            {"action": [[1], [2], None, [3, 4], None]},
            {},
            "as many numbers in every row, got 2 after 1 in row 3",
        ),
        ({"f": [1.0, 2.0, None, None, None]}, {"action": ["f"]}, "f must not be null, got null in row 3 of"),
        (
            {"propensity": [0.5, 1.0, None, 0.0, None]},
            {},
            "propensity must be in (0, 1], got 0.0 in row 3 of",
        ),
        (
            {"propensity": [0.5, 1.5, None, 0.1, None]},
            {},
            "propensity must be in (0, 1], got 1.5 in row 1 of",
        ),
        ({"propensity": [0.5, 1.0, None, None, None]}, {}, "propensity must not be null, got null in row 3"),
        (
            {"propensity": [float("nan"), 1.0, None, 1.0, None]},
            {},
            "propensity must be finite, got nan in row 0",
        ),
    ],
)
@pytest.mark.parametrize("batch_rows", [2, 100])
def test_bad_rows_are_named(tmp_path, columns, options, message, batch_rows):
    action = columns.get("action", [1, 0, None, 2, None])
    with pytest.raises(BadRowError, match=re.escape(message)):
        loaded(tmp_path, table(**{"action": action, **columns}), **options, batch_rows=batch_rows)


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({}, {"action": "a"}, "action must name a column, got 'a'"),
        ({}, {"action": ["a"]}, "action must name a column, got 'a'"),
        ({}, {"action": []}, "action must be a column's name, or a list of names"),
        ({}, {"action": 3}, "action must be a column's name, or a list of names"),
        ({}, {"propensity": 3}, "propensity must be a column's name, got 3"),
        ({}, {"propensity": "x"}, "propensity must come with a column of the action that it belongs to"),
        ({"action": [1, 2, 3, 4, 5]}, {"propensity": "p"}, "propensity must name a column, got 'p'"),
        (
            {"action": [b"l"] * 5},
            {},
            "action must be a column of numbers, or of text in all files, got binary",
        ),
        ({"action": ["l"] * 5}, {"action": ["action"]}, "action must be a column of numbers"),
        ({"action": [1] * 5, "propensity": ["l"] * 5}, {}, "propensity must be a column of numbers, got"),
        ({"action": [[]] * 5}, {}, "action must hold at least one number, got an empty list in row 0"),
    ],
)
def test_columns_that_are_none(tmp_path, columns, options, message):
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        loaded(tmp_path, table(**columns), **options)


def test_files_that_do_not_fit_together(tmp_path):
    pq.write_table(table([1, 0, None, 2, None]), tmp_path / "a.parquet")
    pq.write_table(table(), tmp_path / "b.parquet")
    with pytest.raises(MismatchError, match=r"actions must be alike throughout, got actions in .*no actions"):
        pr.read_parquet(tmp_path, state="x").load()
    assert len(pr.read_parquet(tmp_path, state="x", action=None).load()) == 4
    with pytest.raises(MismatchError, match="actions must be alike throughout"):
        pr.write_parquet([recorded(0), recorded(1)], tmp_path / "c.parquet")


# --- names ---------------------------------------------------------------------------------------------

NAMES = ["right", "left", None, "wait", None]


@pytest.mark.parametrize("kind", [pa.string(), pa.dictionary(pa.int8(), pa.string())], ids=str)
@pytest.mark.parametrize("batch_rows", [1, 100])
def test_names_of_actions_are_numbered(tmp_path, kind, batch_rows):
    pq.write_table(table(pa.array(NAMES).cast(kind)), tmp_path / "a.parquet")
    stream = pr.read_parquet(tmp_path / "a.parquet", state="x", batch_rows=batch_rows)
    assert stream.labels == {"action": ("left", "right", "wait")}
    assert stream.load().actions.tolist() == [1, 0, 2]
    # The same numbers in every shard.
    pq.write_table(table(pa.array(["up", "left", None, "left", None]).cast(kind)), tmp_path / "b.parquet")
    codes = {"action": ("left", "right", "up", "wait")}
    assert pr.read_parquet(tmp_path, state="x").labels == codes
    pieces = [piece.source() for piece in shards(tmp_path, state="x")]
    assert [piece.load().actions.tolist() for piece in pieces] == [[1, 0, 3], [2, 0, 0]]
    # They are labels of the action, none of the state's.
    assert pr.evaluate(tmp_path, features="poly:1", state="x", action="action").notes["labels"] == {}


def test_names_in_csv(tmp_path):
    path = tmp_path / "log.csv"
    pyarrow.csv.write_csv(table(NAMES), path)
    stream = read_csv(path, state="x")
    assert stream.labels == {"action": ("left", "right", "wait")}
    assert stream.load().actions.tolist() == [1, 0, 2]
    pyarrow.csv.write_csv(table(["right", "1", None, "wait", None]), path)
    with pytest.raises(InvalidInputError, match="action must hold numbers or names, got both, such as 1 and"):
        read_csv(path, state="x").load()
    pyarrow.csv.write_csv(table([True, False, None, True, None]), path)
    assert read_csv(path, state="x").load().actions.tolist() == [1, 0, 1]


@pytest.mark.parametrize("kind", ["U", "S"])
def test_names_in_npz(tmp_path, kind):
    columns = {"states": [[0], [1], [2]], "rewards": [1.0, 1.0], "lengths": [2], "terminated": [True]}
    np.savez(tmp_path / "log.npz", **columns, actions=np.array(["right", "left"], dtype=kind))
    stream = read_npz(tmp_path / "log.npz")
    assert stream.labels == {"action": ("left", "right")}
    assert stream.load().actions.tolist() == [1, 0]
    given = read_npz(tmp_path / "log.npz", codes={"action": ("right", "wait", "left")})
    assert given.load().actions.tolist() == [0, 2]
    np.savez(tmp_path / "log.npz", **columns, actions=np.array(["1", "0"]))
    assert read_npz(tmp_path / "log.npz").load().actions.tolist() == [1, 0]
    np.savez(tmp_path / "log.npz", **columns, actions=[0, 1], propensities=[0.5, 0.0])
    with pytest.raises(InvalidInputError, match=r"log.npz: propensities must be in \(0, 1\], got 0.0"):
        read_npz(tmp_path / "log.npz").load()


# --- nothing on-policy looks at them ---------------------------------------------------------------------


def test_estimators_do_not_look_at_them(tmp_path):
    data = recorded(whole=True)
    bare = pr.Trajectories(data.states, data.rewards, data.lengths, data.terminated)
    phi = pr.Polynomial(degree=1, low=[0, 0], high=[9, 9])
    x = bare.states
    for estimator in (pr.LSTD(phi), pr.LSTD(phi, variance="direct"), pr.TD(phi), pr.ReturnForest()):
        seed = {"seed": 0} if isinstance(estimator, pr.ReturnForest) else {}
        one, two = estimator.fit(data, **seed), estimator.fit(bare, **seed)
        assert one.variance(x).tobytes() == two.variance(x).tobytes()
        assert one.mean(x).tobytes() == two.mean(x).tobytes()
    for name, each in (("one", data), ("two", bare)):
        pr.write_parquet(each, tmp_path / f"{name}.parquet")
    summaries = [
        pr.evaluate(tmp_path / f"{name}.parquet", features="poly:1", seed=0).summary
        for name in ("one", "two")
    ]
    assert str(summaries[0]) == str(summaries[1])


def test_evaluate_leaves_actions_that_nobody_asked_for_alone(tmp_path):
    broken = table([1.0, None, None, 0.5, None])
    pq.write_table(broken, tmp_path / "log.parquet")
    with pytest.raises(BadRowError):
        pr.read_parquet(tmp_path / "log.parquet", state="x").load()
    assert pr.evaluate(tmp_path / "log.parquet", features="poly:1", state="x").survey.episodes == 2
    with pytest.raises(BadRowError):
        pr.evaluate(tmp_path / "log.parquet", features="poly:1", state="x", action="action")


# --- rollouts --------------------------------------------------------------------------------------------


class Corridor(gym.Env):
    """At 0, …, 5: the action a moves a to the right, or stays at 0; over at 5 or after 12 steps."""

    observation_space = spaces.Box(0, 9, (1,), np.float64)

    def __init__(self, action_space=None):
        self.action_space = action_space or spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.steps = 0, 0
        return np.array([0.0]), {}

    def step(self, action):
        self.at, self.steps = self.at + int(action), self.steps + 1
        return np.array([float(self.at)]), -1.0, self.at >= 5, self.steps >= 12, {}


def chances(observations):
    """Probabilities that depend on the state; the last action is never taken at 0."""
    at = np.asarray(observations)[:, 0]
    second = 0.2 + 0.1 * at
    third = np.where(at > 0, 0.1, 0.0)
    return np.column_stack([1.0 - second - third, second, third])


def visited(data):
    return data.states[data.visited_rows]


def test_actions_are_drawn_from_probabilities():
    data = pr.rollout(Corridor, chances, episodes=3000, seed=1)
    table = chances(visited(data))
    np.testing.assert_array_equal(data.propensities, table[np.arange(data.transitions), data.actions])
    moved = np.diff(data.states[:, 0])[data.visited_rows]
    np.testing.assert_array_equal(moved, data.actions)
    for at in range(5):
        here = visited(data)[:, 0] == at
        for action in range(3):
            p, n = table[here][0, action], here.sum()
            z = ((data.actions[here] == action).sum() - n * p) / max(np.sqrt(n * p * (1 - p)), 1e-9)
            assert abs(z) < 4.5
    for num_envs in (1, 5):
        assert_same(pr.rollout(Corridor, chances, episodes=40, seed=1, num_envs=num_envs), data[:40])
    assert not np.array_equal(pr.rollout(Corridor, chances, episodes=40, seed=2).lengths, data[:40].lengths)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_probabilities_in_vector_environments(mode):
    env = SyncVectorEnv([Corridor] * 3, autoreset_mode=mode)
    data = pr.rollout(env, chances, episodes=200, seed=1)
    table = chances(visited(data))
    np.testing.assert_array_equal(data.propensities, table[np.arange(data.transitions), data.actions])
    np.testing.assert_array_equal(np.diff(data.states[:, 0])[data.visited_rows], data.actions)
    if mode is AutoresetMode.DISABLED:
        assert_same(data, pr.rollout(Corridor, chances, episodes=200, seed=1))


class Soft:
    """Draws its actions itself, and tells their probabilities."""

    def __init__(self, seed=0, table=chances, start=0):
        self.rng, self.table, self.start = np.random.default_rng(seed), table, start

    def spawn(self, k):
        return Soft(k, self.table, self.start)

    def __call__(self, observations):
        return [self.start + self.rng.choice(3, p=row) for row in chances(observations)]

    def probabilities(self, observations):
        return self.table(observations)


def test_a_policy_that_tells_its_probabilities():
    data = pr.rollout(Corridor, Soft(), episodes=50, seed=1)
    expected = chances(visited(data))[np.arange(data.transitions), data.actions]
    np.testing.assert_array_equal(data.propensities, expected)
    higher = pr.rollout(lambda: Corridor(spaces.Discrete(3, start=1)), Soft(start=1), episodes=50, seed=1)
    expected = chances(visited(higher))[np.arange(higher.transitions), higher.actions - 1]
    np.testing.assert_array_equal(higher.propensities, expected)
    shifted = pr.rollout(
        lambda: Corridor(spaces.Discrete(3, start=1)), lambda x: np.eye(3)[[1] * len(x)], episodes=4
    )
    assert shifted.actions.tolist() == [2] * 12
    assert shifted.propensities.tolist() == [1.0] * 12


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (lambda x: np.full((len(x), 3), 0.5), "policy's probabilities must have rows of probabilities"),
        (lambda x: np.tile([1.5, -0.5, 0.0], (len(x), 1)), "policy's probabilities must have rows"),
        (lambda x: np.full((len(x), 3), np.nan), "policy's probabilities must be finite"),
        (lambda x: np.full((len(x), 2), 0.5), "policy must return actions of shape"),
        (Soft(table=lambda x: np.eye(3)[[2] * len(x)]), "probabilities must be above 0 for the actions"),
        (Soft(table=lambda x: [0.5, 0.5]), r"policy's probabilities must have shape \(1, 3\)"),
    ],
)
def test_probabilities_that_are_none(policy, message):
    with pytest.raises(InvalidInputError, match=message):
        pr.rollout(Corridor, policy, episodes=3, seed=0)


def test_draws_against_a_search_in_sums():
    rng = np.random.default_rng(0)
    table = rng.dirichlet([0.3] * 5, 200) * (rng.random((200, 5)) < 0.8)
    table = (table + 1e-12 * np.eye(5)[0]) / (table + 1e-12 * np.eye(5)[0]).sum(axis=1, keepdims=True)
    words = rng.integers(0, 2**63, (200, 2), dtype=np.uint64)
    before = words.copy()
    chosen, told = drawn_actions(table, 5, words)
    for i, (s0, s1) in enumerate(before):
        u, *after = uniform(s0, s1)
        assert chosen[i] == np.searchsorted(np.cumsum(table[i]), u, side="right")
        assert words[i].tolist() == after
    np.testing.assert_array_equal(told, table[np.arange(200), chosen])


def test_pinball_records_actions_and_propensities():
    pinball = Pinball("box", noise=0.0)
    starts = pinball.sample_starts(20, seed=0)
    data = pinball.rollout(UniformPolicy(4), starts, seed=1, max_steps=50)
    after, rewards, _ = pinball.step(visited(data), data.actions)
    np.testing.assert_array_equal(after, data.states[data.visited_rows + 1])
    np.testing.assert_array_equal(rewards, data.rewards)
    assert np.bincount(data.actions).size == 4
    assert set(data.propensities) == {0.25}
    follow = pinball.rollout(lambda s: np.full(len(s), 2), starts, seed=1, max_steps=5)
    assert set(follow.actions) == {2}
    assert follow.propensities is None
    third = np.array([0.5, 0.0, 0.25, 0.25])
    drawn = pinball.rollout(lambda s: np.tile(third, (len(s), 1)), starts, seed=1, max_steps=50)
    np.testing.assert_array_equal(drawn.propensities, third[drawn.actions])
    counts, n = np.bincount(drawn.actions, minlength=4), drawn.transitions
    assert counts[1] == 0
    assert np.abs((counts - n * third) / np.sqrt(n * third * (1 - third) + 1e-9)).max() < 4.5
    first = pinball.rollout(lambda s: np.tile(third, (len(s), 1)), starts[:3], seed=1, max_steps=50)
    assert_same(first, drawn[:3])


def test_rollout_on_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = ["rollout", "FrozenLake-v1", "--policy", "random", "--episodes", "20", "--seed", "3"]
    for out in ("log.parquet", "log.npz"):
        assert CliRunner().invoke(app, [*command, "--out", out]).exit_code == 0
    data = pr.read("log.parquet").load()
    assert_same(data, pr.read("log.npz").load())
    assert set(data.actions) == {0, 1, 2, 3}
    assert set(data.propensities) == {0.25}
    table = pq.read_table("log.parquet").rename_columns(
        ["episode", "step", "state_0", "reward", "terminated", "truncated", "button", "chance"]
    )
    pq.write_table(table, "other.parquet")
    options = ["--features", "tabular:16", "--seed", "0", "--out", "out"]
    named = ["--action", "button", "--propensity", "chance"]
    done = CliRunner().invoke(app, ["evaluate", "other.parquet", *options, *named])
    assert done.exit_code == 0, done.output
    for wrong, message in ((["--action", "a"], "got 'a'"), (["--action", "a,,b"], "names with commas")):
        done = CliRunner().invoke(app, ["evaluate", "other.parquet", *options, *wrong])
        assert done.exit_code != 0
        assert message in f"{done.output}{done.exception}"
