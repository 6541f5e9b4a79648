"""Pinball against recorded transitions of the original program, a loop without shortcuts, and known means."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np
import pytest
from conftest import assert_same
from numba import njit
from pinball_twin import edges_of, plain_actions
from scipy import stats

from policyrisk.domains.maze import MAZES, Maze, inside_any, near_lists, nearest_distance
from policyrisk.domains.pinball import Pinball, UniformPolicy
from policyrisk.errors import InvalidInputError, MismatchError
from policyrisk.simulation import compiled as _compiled

DATA = Path(__file__).parent / "data"


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = numba.get_num_threads()
    yield numba.set_num_threads
    numba.set_num_threads(before)


def starts_of(pinball: Pinball, count: int) -> np.ndarray:
    return np.repeat(pinball.maze.starts[:1], count, axis=0)


# --- one action ------------------------------------------------------------------------------------


@pytest.mark.parametrize("maze", ["simple", "medium"])
def test_golden_transitions(maze: str) -> None:
    rows = np.loadtxt(DATA / f"pinball_{maze}.csv", delimiter=",", skiprows=1)
    pinball = Pinball(maze, noise=0.0, rewards="original", actions=5)
    states, rewards, terminated = pinball.step(rows[:, :4], rows[:, 4].astype(int), seed=0)
    np.testing.assert_allclose(states, rows[:, 5:9], rtol=0, atol=1e-13)
    np.testing.assert_array_equal(rewards, rows[:, 9])
    np.testing.assert_array_equal(terminated, rows[:, 9] > 0)
    assert terminated.any()


def twin_step(maze: Maze, states: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    edges = edges_of([polygon.tolist() for polygon in maze.obstacles])
    return plain_actions(edges, maze.ball_radius, *maze.target, maze.target_radius, states, actions)


@pytest.mark.parametrize("name", MAZES)
def test_skipping_substeps_changes_nothing(name: str) -> None:
    pinball = Pinball(name, noise=0.0, actions=5)
    rng = np.random.default_rng(1)
    # Where balls go, how fast they go: along noisy trajectories. And slow ones, and ones in the target.
    walk = Pinball(name, noise=0.03, actions=5).rollout(
        UniformPolicy(5), pinball.sample_starts(200, seed=2), seed=3, max_steps=100
    )
    near_target = np.zeros((2000, 4))
    near_target[:, :2] = pinball.maze.target + rng.uniform(-0.06, 0.06, (2000, 2))
    near_target[:, 2:] = rng.uniform(-1, 1, (2000, 2))
    near_target = near_target[pinball.maze.free(near_target[:, :2])]
    slow = pinball.sample_starts(2000, seed=4)
    slow[:, 2:] = rng.normal(0, 0.01, (2000, 2))
    states = np.concatenate([walk.states, near_target, slow])
    actions = rng.integers(0, 5, len(states))
    expected, reached = twin_step(pinball.maze, states, actions)
    after, _, terminated = pinball.step(states, actions)
    np.testing.assert_array_equal(terminated, reached)
    np.testing.assert_allclose(after, expected, rtol=0, atol=1e-12)
    assert reached.sum() > 100
    impulse = np.array([[0.2, 0], [0, 0.2], [-0.2, 0], [0, -0.2], [0, 0]])[actions]
    straight = np.clip(states[:, 2:] + impulse, -1, 1) * 0.995
    bounced = ~reached & (np.abs(after[:, 2:] - straight).max(axis=1) > 1e-9)
    assert bounced.sum() > 300


def test_a_ball_that_leaves_a_wall_at_a_grazing_angle_still_hits_it() -> None:
    pinball = Pinball("empty", noise=0.0, actions=5)
    states = np.array([[0.3, 0.0295, 0.9, 0.0036], [0.3, 0.0295, 0.9, 0.0090]])  # slopes 0.004 and 0.01
    after, _, _ = pinball.step(states, [4, 4])
    expected, _ = twin_step(pinball.maze, states, np.array([4, 4]))
    np.testing.assert_allclose(after, expected, rtol=0, atol=1e-14)
    straight = states[:, 1] + 0.02 * states[:, 3]
    assert abs(after[0, 1] - straight[0]) > 1e-6  # π/1.99 lets through slopes above 0.0079 alone
    assert after[1, 1] == pytest.approx(straight[1], abs=1e-15)


def test_at_rest_without_thrust_nothing_moves() -> None:
    pinball = Pinball("simple", noise=0.0, actions=5)
    states = pinball.sample_starts(500, seed=0)
    after, rewards, terminated = pinball.step(states, np.full(500, 4))
    np.testing.assert_array_equal(after, states)
    assert not terminated.any()
    assert (rewards == -1).all()


def test_a_ball_that_left_the_square_comes_back_at_rest() -> None:
    pinball = Pinball("empty", noise=0.0)
    # Inside a wall, where no trajectory leads and no public call starts, nothing may stop the ball.
    states = np.array([[0.9999, 0.5, 1.0, 0.3], [0.5, 0.0001, 0.0, -1.0], [0.0001, 0.9999, -1.0, 1.0]])
    actions = np.array([0, 3, 1])
    expected, _ = twin_step(pinball.maze, states, actions)
    after = states.copy()
    pinball.act(after, actions, np.ones((3, 2), np.uint64))
    np.testing.assert_allclose(after, expected, rtol=0, atol=1e-12)
    assert (after[:, 2:] == 0.0).all()
    assert after[0, 0] == 0.95
    assert after[1, 1] == 0.05
    assert after[2, :2].tolist() == [0.05, 0.95]


def test_rewards_of_both_schemes() -> None:
    states = np.array([[0.5, 0.5, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0], [0.9, 0.245, 0.0, -0.9]])
    paper = Pinball("empty", noise=0.0, actions=5).step(states, [0, 4, 3])
    original = Pinball("empty", noise=0.0, rewards="original", actions=5).step(states, [0, 4, 3])
    assert paper[1].tolist() == [-1.0, -1.0, -1.0]
    assert original[1].tolist() == [-5.0, -1.0, 10000.0]
    assert paper[2].tolist() == original[2].tolist() == [False, False, True]


def test_noise_has_the_deviation_asked_for_and_is_clipped() -> None:
    n = 50_000
    pinball = Pinball("empty", noise=0.03)
    states = np.tile([0.5, 0.5, 0.1, 0.0], (n, 1))
    after, _, _ = pinball.step(states, np.zeros(n, int), seed=5)
    for pushed, mean in zip(after[:, 2:].T / 0.995, (0.3, 0.0), strict=True):
        assert abs(pushed.mean() - mean) / (0.03 / math.sqrt(n)) < 4
        assert stats.kstest((pushed - mean) / 0.03, "norm").pvalue > 1e-3
    assert abs(np.corrcoef(after[:, 2:].T)[0, 1]) * math.sqrt(n) < 4
    np.testing.assert_allclose(after[:, :2], states[:, :2] + 0.02 * after[:, 2:] / 0.995, atol=1e-15)
    fast, _, _ = pinball.step(np.tile([0.5, 0.5, 1.2, 0.0], (1000, 1)), np.zeros(1000, int), seed=6)
    assert fast[:, 2].max() == pytest.approx(0.995, abs=1e-15)


def test_step_repeats_with_its_seed_and_not_without() -> None:
    pinball = Pinball("simple")
    states, actions = pinball.sample_starts(50, seed=0), np.zeros(50, int)
    once, again, other = (pinball.step(states, actions, seed=s)[0] for s in (7, 7, 8))
    np.testing.assert_array_equal(once, again)
    assert (once != other).any(axis=1).all()
    assert (pinball.step(states, actions)[0] != pinball.step(states, actions)[0]).any()


# --- many steps ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MAZES)
def test_a_million_noisy_steps_stay_in_the_maze(name: str) -> None:
    pinball = Pinball(name, noise=0.03, actions=5)
    starts = pinball.sample_starts(2500, seed=1, velocity=1.0)
    states = pinball.rollout(UniformPolicy(5), starts, seed=2, max_steps=900).states
    assert len(states) > 1_000_000
    assert np.isfinite(states).all()
    assert states[:, :2].min() > 0.01
    assert states[:, :2].max() < 0.99
    assert np.abs(states[:, 2:]).max() <= math.sqrt(2)
    assert not inside_any(*pinball.maze.edges, states[:, :2]).any()


class ChaseTable(NamedTuple):
    x: float
    y: float


@njit(cache=True)
def chase(table: ChaseTable, state: Any, s0: np.uint64, s1: np.uint64) -> tuple[int, np.uint64, np.uint64]:
    dx = table.x - state[0] - 0.1 * state[2]
    dy = table.y - state[1] - 0.1 * state[3]
    if abs(dx) > abs(dy):
        return (0 if dx > 0 else 2), s0, s1
    return (1 if dy > 0 else 3), s0, s1


_compiled.register_policy(ChaseTable, chase)


class Chase:
    """A policy of a user's own, compiled; it draws nothing, so that a function can follow the same way."""

    actions = 4

    def __init__(self, maze: Maze) -> None:
        self.target = maze.target

    def compiled(self) -> ChaseTable:
        return ChaseTable(*self.target.tolist())

    def function(self, states: np.ndarray) -> np.ndarray:
        d = self.target - states[:, :2] - 0.1 * states[:, 2:]
        across = np.where(d[:, 0] > 0, 0, 2)
        along = np.where(d[:, 1] > 0, 1, 3)
        return np.where(np.abs(d[:, 0]) > np.abs(d[:, 1]), across, along)


def test_a_function_and_a_compiled_policy_go_the_same_way() -> None:
    pinball = Pinball("box", noise=0.03)
    policy = Chase(pinball.maze)
    starts = pinball.sample_starts(300, seed=0)
    ours = pinball.rollout(policy, starts, seed=1, max_steps=120)
    assert_same(ours, pinball.rollout(policy.function, starts, seed=1, max_steps=120))
    assert ours.terminated.any()
    assert not ours.terminated.all()


def test_two_tables_of_one_name_are_refused() -> None:
    class UniformTable(NamedTuple):
        actions: int

    with pytest.raises(InvalidInputError, match="table must be a class with a name of its own, got"):
        _compiled.register_policy(UniformTable, chase)


@pytest.mark.slow
def test_a_policy_of_a_users_own_leaves_no_trace_on_disk(tmp_path: Path) -> None:
    # Numba's index of what is on disk names classes, and cannot be read where one cannot be imported.
    ours = (
        "from policyrisk.domains.pinball import Pinball, UniformPolicy\n"
        "p = Pinball('empty')\n"
        "def run(policy):\n"
        "    p.rollout(policy, [[0.5, 0.5]], max_steps=2); p.returns(policy, [[0.5, 0.5]], max_steps=2)\n"
    )
    (tmp_path / "mine.py").write_text(
        "from typing import NamedTuple\nfrom numba import njit\n"
        "from policyrisk.simulation.compiled import register_policy\n"
        "class MineTable(NamedTuple):\n    action: int\n"
        "@njit\ndef choose(table, state, s0, s1):\n    return table.action, s0, s1\n"
        "register_policy(MineTable, choose)\n"
        "class Always:\n    actions = 4\n    def compiled(self):\n        return MineTable(2)\n"
    )
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    with_mine = environment | {"PYTHONPATH": str(tmp_path)}
    for code, variables in (
        (ours + "import mine; run(mine.Always()); run(UniformPolicy())", with_mine),
        (ours + "run(UniformPolicy())", environment),
    ):
        subprocess.run([sys.executable, "-c", code], env=variables, check=True)
    assert list((tmp_path / "cache").rglob("compiled._play*.nbi"))


def test_rollouts_record_what_happened() -> None:
    pinball = Pinball("box", noise=0.0, rewards="original")
    policy = Chase(pinball.maze)
    starts = pinball.sample_starts(100, seed=3, velocity=0.5)
    data = pinball.rollout(policy, starts, seed=4, max_steps=60)
    ends = np.cumsum(data.lengths + 1) - 1
    firsts = ends - data.lengths
    np.testing.assert_array_equal(data.states[firsts], starts)
    moved = np.setdiff1d(np.arange(len(data.states)), ends)
    before = data.states[moved]
    after, rewards, terminated = pinball.step(before, policy.function(before))
    np.testing.assert_array_equal(after, data.states[moved + 1])
    np.testing.assert_array_equal(rewards, data.rewards)
    last = np.cumsum(data.lengths) - 1
    np.testing.assert_array_equal(terminated[last], data.terminated)
    assert terminated.sum() == data.terminated.sum()
    assert (data.lengths[~data.terminated] == 60).all()
    assert data.lengths.max() == 60


def test_same_bits_on_one_thread_and_on_two_however_the_work_is_cut(
    threads: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    pinball = Pinball("simple")
    starts = pinball.sample_starts(150, seed=0)
    policy = UniformPolicy()
    threads(1)
    one = pinball.rollout(policy, starts, seed=1, max_steps=700)
    sums = pinball.returns(policy, starts, seed=1, max_steps=700)
    threads(min(2, numba.config.NUMBA_NUM_THREADS))
    assert_same(one, pinball.rollout(policy, starts, seed=1, max_steps=700))
    same_sums = pinball.returns(policy, starts, seed=1, max_steps=700)
    for a, b in zip(sums, same_sums, strict=True):
        np.testing.assert_array_equal(a, b)
    monkeypatch.setattr(_compiled, "_BATCH", 40)
    monkeypatch.setattr(_compiled, "_BLOCK", 5_000)
    assert_same(one, pinball.rollout(policy, starts, seed=1, max_steps=700))
    np.testing.assert_array_equal(sums.returns, one.returns())
    np.testing.assert_array_equal(sums.lengths, one.lengths)
    np.testing.assert_array_equal(sums.terminated, one.terminated)
    assert one.terminated.any()


def test_returns_repeat_each_start_with_fresh_randomness() -> None:
    pinball = Pinball("empty")
    starts = np.array([[0.2, 0.9], [0.88, 0.26]])
    out = pinball.returns(UniformPolicy(), starts, episodes=400, seed=0, max_steps=20_000)
    assert out.returns.shape == (800,)
    np.testing.assert_array_equal(out.returns, -out.lengths)
    assert out.terminated.all()
    assert np.median(out.lengths[:400]) > 2 * np.median(out.lengths[400:])
    assert len(np.unique(out.lengths[:400])) > 200


def test_no_starts_give_no_episodes() -> None:
    pinball = Pinball("empty")
    data = pinball.rollout(UniformPolicy(), np.empty((0, 4)), seed=0)
    assert len(data) == 0
    assert pinball.returns(UniformPolicy(), np.empty((0, 2)), seed=0).returns.shape == (0,)


def length_z(maze: str, noise: float, mean: float, error: float, episodes: int) -> float:
    """Our random policy's mean episode (five actions) less the known one, in standard errors."""
    pinball = Pinball(maze, noise=noise, actions=5)
    out = pinball.returns(UniformPolicy(5), starts_of(pinball, episodes), seed=9, max_steps=10**7)
    assert out.terminated.all()
    ours = out.lengths.std(ddof=1) / math.sqrt(episodes)
    return float((out.lengths.mean() - mean) / math.hypot(ours, error))


@pytest.mark.parametrize(("maze", "mean", "error"), [("empty", 787, 7), ("box", 808, 7)])
def test_mean_episode_of_the_random_policy(maze: str, mean: float, error: float) -> None:
    assert abs(length_z(maze, 0.0, mean, error, 4000)) < 3.5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("maze", "noise", "mean", "error"),
    [
        ("simple", 0.0, 6169, 140),
        ("simple", 0.03, 6272, 147),
        ("medium", 0.0, 1161, 15),
        ("medium", 0.03, 1146, 14),
        ("hard", 0.0, 24203, 1034),
        ("hard", 0.03, 23959, 1035),
    ],
)
def test_mean_episode_of_the_random_policy_elsewhere(
    maze: str, noise: float, mean: float, error: float
) -> None:
    episodes = min(4000, int(3e7 / mean))  # a few seconds each
    assert abs(length_z(maze, noise, mean, error, episodes)) < 3.5


# --- where a ball may be ---------------------------------------------------------------------------


def test_distances_and_insides_of_a_square() -> None:
    maze = Maze.named("box")
    edges, owners = maze.edges
    points = np.array([[0.5, 0.5], [0.5, 0.7], [0.6, 0.6], [0.02, 0.5]])
    expected = [0.05, 0.15, math.hypot(0.05, 0.05), 0.01]
    np.testing.assert_allclose(nearest_distance(edges, points), expected, atol=1e-15)
    assert inside_any(edges, owners, points).tolist() == [True, False, False, False]
    near_from, near = near_lists(edges, points, 0.0501)
    assert near_from.tolist() == [0, 4, 4, 4, 6]  # both long sides of the wall
    assert owners[near].tolist() == [4, 4, 4, 4, 1, 1]


def test_starts_are_uniform_on_the_reachable_free_region() -> None:
    pinball = Pinball("hard")
    states = pinball.sample_starts(40_000, seed=0)
    assert not states[:, 2:].any()
    edges, owners = pinball.maze.edges
    assert nearest_distance(edges, states[:, :2]).min() >= pinball.maze.ball_radius
    assert not inside_any(edges, owners, states[:, :2]).any()
    assert np.hypot(*(states[:, :2] - pinball.maze.target).T).min() >= pinball.maze.target_radius
    # An independent flood of a coarser grid from the target, and the share of each of 5 × 5 squares.
    cells = 250
    middle = (np.arange(cells) + 0.5) / cells
    points = np.stack(np.meshgrid(middle, middle, indexing="ij"), -1).reshape(-1, 2)
    free = pinball.maze.free(points).reshape(cells, cells)
    seen = np.zeros_like(free)
    front = [(int(pinball.maze.target[0] * cells), int(pinball.maze.target[1] * cells))]
    while front:
        i, j = front.pop()
        if free[i, j] and not seen[i, j]:
            seen[i, j] = True
            front += [(i + 1, j), (i - 1, j), (i, j + 1), (i, j - 1)]
    pocket = free & ~seen
    assert pocket.mean() == pytest.approx(0.0039, abs=3e-4)
    cell = (states[:, :2] * cells).astype(int)
    assert not pocket[cell[:, 0], cell[:, 1]].any()
    seen &= (np.hypot(*(points - pinball.maze.target).T) >= pinball.maze.target_radius).reshape(cells, cells)
    area = seen.reshape(5, 50, 5, 50).sum(axis=(1, 3)).ravel() / seen.sum()
    which = (states[:, :2] * 5).astype(int)
    counts = np.bincount(which[:, 0] * 5 + which[:, 1], minlength=25)
    # The grid's areas are off by about a cell along each wall: 2% of a square's share.
    error = np.sqrt(area * (1 - area) / len(states) + (0.02 * area) ** 2)
    assert (np.abs(counts / len(states) - area) / error).max() < 4


def test_starts_with_velocity_and_seeds() -> None:
    pinball = Pinball("simple")
    states = pinball.sample_starts(5000, seed=1, velocity=0.5)
    assert stats.kstest(states[:, 2:].ravel(), stats.uniform(-0.5, 1.0).cdf).pvalue > 1e-3
    np.testing.assert_array_equal(states, pinball.sample_starts(5000, seed=1, velocity=0.5))
    np.testing.assert_array_equal(states[:, :2], pinball.sample_starts(5000, seed=1)[:, :2])
    assert (pinball.sample_starts(3) != pinball.sample_starts(3)).any()
    assert pinball.sample_starts(0).shape == (0, 4)


def test_pockets_are_free_but_not_reachable() -> None:
    maze = Maze.named("medium")
    states = np.random.default_rng(0).random((200_000, 2))
    pocket = states[maze.free(states) & ~maze.reachable(states)]
    assert len(pocket) / 200_000 == pytest.approx(0.0025, abs=5e-4)
    assert np.ptp(pocket, axis=0).max() < 0.2  # one place
    assert not maze.reachable([[1.5, 0.5], [-0.1, 0.5]]).any()


def test_a_neck_a_hair_too_narrow_does_not_connect() -> None:
    # Two blades with 2R less 10⁻⁵ between their points: the free regions at their sides end 0.0009 apart,
    # within one cell of the grid.
    low, high = 0.501 - 0.019995, 0.501 + 0.019995
    blades = [[[0.45, 0.01], [0.55, 0.01], [0.501, low]], [[0.45, 0.99], [0.55, 0.99], [0.501, high]]]
    maze = Maze.from_dict(figures(obstacles=[*WALLS, *blades], starts=[[0.8, 0.9]]))
    rng = np.random.default_rng(0)
    near = rng.uniform([0.4995, 0.5008], [0.5025, 0.5012], (200_000, 2))
    around = rng.uniform([0.46, 0.46], [0.54, 0.54], (200_000, 2))
    for points in (near, around):
        left = points[:, 0] < 0.501
        assert maze.free(points[left]).sum() > 1000
        assert not maze.reachable(points[left]).any()
    right = around[around[:, 0] > 0.501]
    assert maze.reachable(right).sum() > 0.95 * maze.free(right).sum()


# --- mazes -----------------------------------------------------------------------------------------


def figures(**changes: Any) -> dict[str, Any]:
    walls = [
        [[0, 0], [0, 0.01], [1, 0.01], [1, 0]],
        [[0, 0], [0.01, 0], [0.01, 1], [0, 1]],
        [[0, 1], [0, 0.99], [1, 0.99], [1, 1]],
        [[1, 1], [0.99, 1], [0.99, 0], [1, 0]],
    ]
    base = {
        "ball_radius": 0.02,
        "target": {"center": [0.9, 0.2], "radius": 0.04},
        "starts": [[0.2, 0.9]],
        "obstacles": walls,
    }
    return base | changes


BOX = [[0.4, 0.4], [0.6, 0.4], [0.6, 0.6], [0.4, 0.6]]
WALLS = figures()["obstacles"]


def test_shipped_mazes_have_the_known_figures() -> None:
    shapes = {name: (len(m.obstacles), len(m.edges[0])) for name in MAZES if (m := Maze.named(name))}
    assert shapes == {
        "simple": (10, 53),
        "medium": (10, 48),
        "hard": (18, 85),
        "box": (5, 20),
        "empty": (4, 16),
    }


def test_a_maze_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(figures(obstacles=[*WALLS, BOX])))
    for maze in (str(file), file, Maze.load(file)):
        pinball = Pinball(maze, noise=0.0)
        assert repr(pinball) == "Pinball(maze='mine', noise=0, rewards='paper', actions=4)"
        assert not pinball.maze.free([[0.39, 0.5]])[0]
    with pytest.raises(ValueError, match="read-only"):
        pinball.maze.obstacles[0][0, 0] = 1.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ball_radius": 0}, "ball_radius must be in"),
        ({"ball_radius": "big"}, "ball_radius must be in"),
        ({"target": [0.9, 0.2]}, "target must have exactly the keys center, radius, got list"),
        ({"target": {"center": [0.9], "radius": 0.04}}, "target.center must have shape"),
        ({"extra": 1}, "the maze must have exactly the keys ball_radius, obstacles, starts, target, got"),
        ({"obstacles": []}, "obstacles must be a list of polygons"),
        ({"obstacles": [*WALLS, [[0.4, 0.4], [0.5, 0.5]]]}, "obstacles[4] must have at least 3 distinct"),
        ({"obstacles": [*WALLS, [*BOX, BOX[0]]]}, "obstacles[4] must not repeat a vertex, got [0.4, 0.4]"),
        (
            {"obstacles": [*WALLS, [[0.2, 0.2], [0.3, 0.3], [0.4, 0.4]]]},
            "obstacles[4] must enclose an area",
        ),
        ({"obstacles": WALLS[:3]}, "obstacles must wall the ball in all around, got a way"),
        ({"target": {"center": [0.98, 0.2], "radius": 0.04}}, "target.center must be free"),
        ({"target": {"center": [1.2, 0.2], "radius": 0.04}}, "target.center must be free"),
        ({"starts": []}, "starts must have shape"),
        ({"starts": [[0.2, 0.9], [0.02, 0.9]]}, "starts[1] = [0.02, 0.9]; move that start"),
        (
            {"obstacles": [*WALLS, BOX], "starts": [[0.5, 0.5]]},
            "starts must be free (outside every obstacle, ball_radius=0.02 from every edge)",
        ),
        (
            {"obstacles": [*WALLS, [[0.01, 0.7], [0.99, 0.7], [0.99, 0.71], [0.01, 0.71]]]},
            "connected to the target, got starts[0] = [0.2, 0.9]",
        ),
    ],
)
def test_a_bad_maze_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        Maze.from_dict(figures(**changes))


def test_a_bad_maze_argument_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="maze must be one of simple, medium, hard, box, empty"):
        Pinball("difficult")
    with pytest.raises(InvalidInputError, match="maze must be a readable file"):
        Pinball(tmp_path / "absent.json")
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(InvalidInputError, match="maze must be a JSON file"):
        Pinball(str(tmp_path / "broken.json"))


# --- arguments -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"noise": -0.1}, "noise must be in"),
        ({"rewards": "mine"}, "rewards must be one of paper, original"),
        ({"actions": 3}, "actions must be a whole number of at least 4"),
    ],
)
def test_bad_settings_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        Pinball("empty", **arguments)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: p.step([[0.5, 0.5, 0, 0]], [4]), "actions must be in 0, …, 3, got 4 at index 0"),
        (lambda p: p.step([[0.5, 0.5, 0, 0]], [0.5]), "actions must be whole numbers"),
        (lambda p: p.step([[0.5, 0.5, 0, 0]], [0, 1]), "actions must have shape (1,)"),
        (lambda p: p.step([[0.5, 0.5, 0]], [0]), "states must have shape (*, 4)"),
        (lambda p: p.step([[0.5, 1.5, 0, 0]], [0]), "states must have positions in [0, 1]², got [0.5, 1.5]"),
        (lambda p: p.step([[0.5, np.nan, 0, 0]], [0]), "states must be finite"),
        (lambda p: p.step([[0.5, 0.5, 0, 0]], [0], seed=-1), "seed must be None"),
        (lambda p: p.rollout(UniformPolicy(), [[0.5, 0.005]]), "starts must be outside every obstacle"),
        (lambda p: p.rollout(UniformPolicy(), [[0.5, 0.5]], max_steps=0), "max_steps must be a whole number"),
        (lambda p: p.rollout("random", [[0.5, 0.5]]), "policy must be one of ours or a function"),
        (lambda p: p.rollout(lambda s: [7], [[0.5, 0.5]]), "policy(states) must be in 0, …, 3, got 7"),
        (lambda p: p.rollout(lambda s: s[:, :3], [[0.5, 0.5]]), "policy(states) must be whole numbers"),
        (lambda p: p.rollout(lambda s: s, [[0.5, 0.5]]), "policy's probabilities must have rows of"),
        (lambda p: p.returns(lambda s: [0], [[0.5, 0.5]]), "policy must be a compiled one"),
        (lambda p: p.returns(UniformPolicy(), [[0.5, 0.5]], episodes=0), "episodes must be a whole number"),
        (lambda p: p.sample_starts(-1), "n must be a whole number"),
        (lambda p: p.sample_starts(1, velocity=2), "velocity must be in [0, 1]"),
        (lambda p: p.sample_starts(1, seed=0.5), "seed must be None"),
        (lambda p: UniformPolicy(0), "actions must be a whole number of at least 1"),
    ],
)
def test_bad_arguments_are_named(call: Callable[[Pinball], Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        call(Pinball("empty"))


def test_a_policy_with_too_many_actions_is_named() -> None:
    with pytest.raises(MismatchError, match="policy must choose among the domain's 4 actions"):
        Pinball("empty").rollout(UniformPolicy(5), [[0.5, 0.5]])
