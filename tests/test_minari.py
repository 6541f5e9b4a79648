"""Minari's datasets, as Minari itself records them."""

import gc
import importlib.util
import sys
import types
import warnings

import gymnasium as gym
import numpy as np
import pytest
from conftest import assert_same

import policyrisk as pr
from policyrisk.errors import InvalidInputError, MissingPackageError

minari = pytest.importorskip("minari")


def tree_map(function, tree, *rest):
    """What the recorder needs of jax: a function of the leaves of nested dicts and tuples."""
    if isinstance(tree, dict):
        return {name: tree_map(function, tree[name], *(other[name] for other in rest)) for name in tree}
    if isinstance(tree, tuple):
        return tuple(tree_map(function, *parts) for parts in zip(tree, *rest, strict=True))
    return function(tree, *rest)


@pytest.fixture(scope="module", autouse=True)
def datasets(tmp_path_factory):
    """Datasets go to an empty folder. Recording wants jax for one function; without it ours stands in."""
    folder = tmp_path_factory.mktemp("datasets")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(folder))
        if importlib.util.find_spec("jax") is None:
            jax = types.ModuleType("jax")
            jax.tree_util = types.ModuleType("jax.tree_util")
            jax.tree_util.tree_map = tree_map
            patch.setitem(sys.modules, "jax", jax)
            patch.setitem(sys.modules, "jax.tree_util", jax.tree_util)
        yield folder


class Walk(gym.Env):
    """From 0 to the right, 1 or 2 at a time; the end is at 5. Observations of the kind asked for."""

    def __init__(self, kind="box"):
        box = gym.spaces.Box(-100, 100, (2,), np.float64)
        self.kind = kind
        self.action_space = gym.spaces.Discrete(3)
        self.observation_space = {
            "box": box,
            "discrete": gym.spaces.Discrete(10),
            "dict": gym.spaces.Dict(goal=box, here=gym.spaces.Dict(at=box)),
            "tuple": gym.spaces.Tuple([gym.spaces.Discrete(10), box]),
        }[kind]

    def observe(self):
        at = np.array([self.at, -self.at], np.float64)
        return {
            "box": at,
            "discrete": self.at,
            "dict": {"goal": np.array([5.0, 5.0]), "here": {"at": at}},
            "tuple": (self.at, at),
        }[self.kind]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = 0
        return self.observe(), {}

    def step(self, action):
        self.at += int(action)
        return self.observe(), float(-action), self.at >= 5, False, {}


PLANS = [[1, 2, 2], [1, 1, 1, 1], [2, 1, 1, 1], [1]]  # ended; cut by the limit; both at once; left half-way
ENDS = [True, False, True, False]


def record(name, kind, plans=PLANS):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Minari asks for authors, an evaluation environment and so on
        env = minari.DataCollector(gym.wrappers.TimeLimit(Walk(kind), 4))
        for plan in plans:
            env.reset(seed=0)
            for action in plan:
                env.step(action)
        dataset = env.create_dataset(
            name,
            algorithm_name="plans",
            author="me",
            author_email="me@example.org",
            code_permalink="none",
            description="walks",
        )
        env.close()
        del env
        gc.collect()  # the recorder leaves its temporary folder to the collector, with a warning
    return dataset


def expected(*coordinates):
    at = [np.concatenate([[0], np.cumsum(plan)]) for plan in PLANS]
    states = np.concatenate(at)[:, None] * np.array(coordinates)
    states[states == 0] = 0  # never −0
    actions = np.concatenate(PLANS)
    return pr.Trajectories(states, -actions, [len(plan) for plan in PLANS], ENDS, actions)


def test_box_observations_by_object_id_path_and_door(datasets):
    dataset = record("walk/box-v0", "box")
    folder = datasets / "walk" / "box-v0"
    ways = [
        pr.read_minari(dataset),
        pr.read_minari("walk/box-v0"),
        pr.read_minari(folder),
        pr.read_minari(folder / "data"),
        pr.read("minari:walk/box-v0"),
        pr.read(folder),
    ]
    for stream in ways:
        assert_same(stream.load(), expected(1.0, -1.0))
        assert_same(stream.load(), expected(1.0, -1.0))
        assert (stream.counts.cut_off, stream.given_up, stream.vanished) == (2, 0, 0)
    assert repr(ways[0]) == "Stream(Minari dataset walk/box-v0)"


def test_batches():
    record("walk/batches-v0", "box")
    assert [len(batch) for batch in pr.read_minari("walk/batches-v0", batch_rows=8)] == [2, 2]
    assert [len(batch) for batch in pr.read_minari("walk/batches-v0", batch_rows=1)] == [1, 1, 1, 1]


def test_part_of_a_dataset():
    dataset = record("walk/part-v0", "box")
    ended = dataset.filter_episodes(lambda episode: bool(episode.terminations[-1]))
    assert_same(pr.read_minari(ended).load(), expected(1.0, -1.0)[[0, 2]])


def test_discrete_observations_stay_whole():
    assert_same(pr.read_minari(record("walk/discrete-v0", "discrete")).load(), expected(1))


def test_projections():
    nested = record("walk/dict-v0", "dict")
    assert_same(pr.read_minari(nested, lambda batch: batch["here"]["at"]).load(), expected(1.0, -1.0))
    assert_same(
        pr.read_minari(nested, project=lambda batch: batch["here"]["at"][:, 1]).load(), expected(-1.0)
    )
    pair = record("walk/tuple-v0", "tuple")
    assert_same(pr.read_minari(pair, project=lambda batch: batch[0]).load(), expected(1))
    everything = pr.read_minari(nested).load()
    assert np.array_equal(everything.states[:, -2:], expected(1.0, -1.0).states)
    assert everything.coordinates.names[-2:] == ("here_at_0", "here_at_1")
    with pytest.raises(
        InvalidInputError,
        match="episode 0 of Minari dataset walk/tuple-v0: observations must be an array, "
        "got a tuple of 2 parts; pass project",
    ):
        pr.read_minari(pair).load()
    with pytest.raises(InvalidInputError, match=r"project\(observations\) must be 4 rows of numbers"):
        pr.read_minari(nested, lambda batch: batch["here"]["at"][0]).load()
    with pytest.raises(InvalidInputError, match="project must be a function"):
        pr.read_minari(nested, project="here")


def episode(**changes):
    values = {
        "observations": np.array([[0.0, 0], [1, 0], [2, 0]]),
        "actions": [1, 1],
        "rewards": [1.0, 1.0],
        "terminations": [False, True],
        "truncations": [False, False],
        **changes,
    }
    return minari.data_collector.EpisodeBuffer(**values)


def dataset_of(name, *episodes, actions=None):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return minari.create_dataset_from_buffers(
            name,
            list(episodes),
            observation_space=Walk().observation_space,
            action_space=actions or Walk().action_space,
            algorithm_name="none",
            author="me",
            author_email="me@example.org",
            code_permalink="none",
            description="by hand",
        )


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        (
            "early",
            {"terminations": [True, False]},
            "true only in an episode's last step, got true in step 0 of 2 in episode 1",
        ),
        ("short", {"observations": np.zeros((2, 2))}, "episode 1 of .*: observations must be 3 rows"),
        ("nan", {"rewards": [1.0, float("nan")]}, r"episode 1 of .*: rewards must be finite"),
    ],
)
def test_bad_episodes_are_named(name, changes, message):
    stream = pr.read_minari(dataset_of(f"bad/{name}-v0", episode(), episode(**changes)))
    with pytest.raises(InvalidInputError, match=message):
        stream.load()


@pytest.mark.parametrize(
    ("name", "space", "actions", "recorded"),
    [
        ("box", gym.spaces.Box(-1, 1, (2,)), [[0.5, 1.0], [0.25, -1.0]], [[0.5, 1.0], [0.25, -1.0]]),
        ("scalar", gym.spaces.Box(-1, 1, ()), [0.5, 0.25], [[0.5], [0.25]]),
        ("multi", gym.spaces.MultiDiscrete([3, 4]), [[2, 3], [0, 1]], [[2.0, 3.0], [0.0, 1.0]]),
        ("dict", gym.spaces.Dict(push=gym.spaces.Discrete(2)), {"push": [0, 1]}, None),
    ],
)
def test_kinds_of_actions(name, space, actions, recorded):
    if not isinstance(actions, dict):
        actions = np.array(actions, space.dtype)
    found = pr.read_minari(dataset_of(f"acts/{name}-v0", episode(actions=actions), actions=space)).load()
    assert (None if found.actions is None else found.actions.tolist()) == recorded


def test_datasets_that_are_none(tmp_path, monkeypatch):
    with pytest.raises(InvalidInputError, match=r"on this computer, got no/such-v0 .*minari download"):
        pr.read_minari("no/such-v0")
    with pytest.raises(InvalidInputError, match="its id or its folder, got int"):
        pr.read_minari(3)
    (tmp_path / "metadata.json").write_text("{}")
    with pytest.raises(InvalidInputError, match="must be a Minari dataset"):
        pr.read_minari(tmp_path)
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(MissingPackageError, match=r"needs the package minari.*\[gym\]"):
        pr.read_minari("walk/box-v0")
