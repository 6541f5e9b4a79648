"""SARSA(λ) against a slow twin and a problem solved by value iteration, and the shipped policy."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any, NamedTuple

import numpy as np
import pytest
from numba import njit

import policyrisk.simulation.compiled as compiled
from experiments import _sarsa_kernels as kernels
from experiments.sarsa import Falling, Sarsa, SarsaResult
from experiments.train_pinball import TrainingParameters, pinball_features
from experiments.train_pinball import run as train_pinball
from policyrisk._core.random import below, generator, keys, stream, uniform
from policyrisk.control import GreedyPolicy, pinball_policy
from policyrisk.domains import Pinball
from policyrisk.errors import InvalidInputError
from policyrisk.features import Polynomial, RadialBasis

SMALL = RadialBasis.grid([0, 0, -1, -1], [1, 1, 1, 1], (5, 4, 3, 2), normalised=True, truncate=1.2)
BAR = 1.06 * 35.5  # actions: what fine-grid dynamic programming needs, and 6%


# --- the kernel against the equations ----------------------------------------------------------------


def slow_sarsa(sarsa: Sarsa, pinball: Pinball, episodes: int, seed: int, max_steps: int) -> np.ndarray:
    """The module's equations with dense features and dense traces, one transition at a time."""

    def phi(state):
        return sarsa.features(state[None]).toarray()[0]

    def draw(function, *arguments):  # Python gets plain ints back from compiled code
        value, words[0, 0], words[0, 1] = function(*arguments, words[0, 0], words[0, 1])
        return value

    def pick(features, epsilon):
        if draw(uniform) < epsilon:
            return draw(below, sarsa.actions)
        return int(np.argmax(features @ w))

    rng = generator(seed)
    key = keys(rng)
    starts = pinball.sample_starts(episodes, seed=rng)
    w = np.zeros((sarsa.features.size, sarsa.actions))
    for k in range(episodes):
        alpha, epsilon = (
            v.first ** (1 - k / episodes) * v.last ** (k / episodes) for v in (sarsa.step, sarsa.epsilon)
        )
        words = np.array([stream(*key, k)], np.uint64)
        x = starts[k : k + 1].copy()
        e = np.zeros_like(w)
        now = phi(x[0])
        action = pick(now, epsilon)
        for _ in range(max_steps):
            reward, done = pinball.act(x, np.array([action]), words)  # moves x and words on
            delta = reward[0] - now @ w[:, action]
            e *= sarsa.discount * sarsa.lam
            e[e < 1e-3 * now.max()] = 0.0
            e[now > 0, action] = now[now > 0]
            square = now @ now
            if not done[0]:
                now = phi(x[0])
                action = pick(now, epsilon)
                delta += sarsa.discount * now @ w[:, action]
            w += alpha * delta * e / square
            if done[0]:
                break
    return w


@pytest.mark.parametrize(
    ("lam", "discount", "step", "epsilon"),
    [(0.0, 1.0, 0.4, 0.3), (0.3, 1.0, (0.5, 0.1), (0.4, 0.1)), (0.9, 0.95, 0.1, 0.2)],
)
def test_weights_are_those_of_the_equations(lam, discount, step, epsilon):
    pinball = Pinball("empty")
    alpha, share = (Falling(*np.broadcast_to(v, 2).tolist()) for v in (step, epsilon))
    sarsa = Sarsa(SMALL, 4, lam=lam, discount=discount, step=alpha, epsilon=share)
    result = sarsa.train(pinball, 30, seed=5, max_steps=60)
    assert result.terminated.any()  # both kinds of end were met
    assert not result.terminated.all()
    expected = slow_sarsa(sarsa, pinball, 30, seed=5, max_steps=60)
    np.testing.assert_allclose(result.policy.weights, expected, rtol=0, atol=1e-9)


def test_same_seed_same_bits():
    sarsa, pinball = Sarsa(SMALL, 4), Pinball("box")
    a, b, other = (sarsa.train(pinball, 1200, seed=seed, max_steps=300) for seed in (3, 3, 4))
    assert a.policy.weights.tobytes() == b.policy.weights.tobytes()
    assert a.returns.tobytes() == b.returns.tobytes()
    assert not np.array_equal(a.policy.weights, other.policy.weights)


def test_untruncated_bases_learn_too():
    phi = RadialBasis.grid([0, 0], [1, 1], (4, 4), dims=[0, 1])
    result = Sarsa(phi, 4, step=Falling(0.1, 0.1)).train(Pinball("empty"), 50, seed=1, max_steps=200)
    assert np.isfinite(result.policy.weights).all()
    assert (result.policy.weights < 0).any()


# --- a problem whose optimum is known ----------------------------------------------------------------

N, SLIP, RIGHT_EXIT = 12, 0.2, -6.0


class CorridorTable(NamedTuple):
    last: int


@njit
def corridor_read(table, states, i):
    return (states[i, 0],)


@njit
def corridor_step(table, state, action, s0, s1):
    """A step left (0) or right (1), one time in five the other way; leaving on the right costs more."""
    u, s0, s1 = uniform(s0, s1)
    right = (action == 1) != (u < SLIP)
    x = state[0] + (1.0 if right else -1.0)
    return (x,), RIGHT_EXIT if x > table.last else -1.0, x < 0.0 or x > table.last, s0, s1


compiled.register_domain(CorridorTable, corridor_read, corridor_step)


class Corridor:
    actions = 2

    def sample_starts(self, n, seed):
        return seed.integers(0, N, (n, 1)).astype(float)

    def compiled(self):
        return CorridorTable(N - 1)


def optimal_corridor() -> np.ndarray:
    """Q (N, 2) by value iteration."""
    value = np.zeros(N + 2)  # exits at both ends
    for _ in range(2000):
        left = np.r_[np.full(N, -1.0)] + value[:-2]
        right = np.r_[np.full(N - 1, -1.0), RIGHT_EXIT] + value[2:]
        q = np.column_stack([(1 - SLIP) * left + SLIP * right, (1 - SLIP) * right + SLIP * left])
        value[1:-1] = q.max(axis=1)
    return q


def test_finds_the_optimal_policy_of_a_corridor(monkeypatch):
    # Not kept on disk: the corridor is defined here, see policyrisk.simulation.compiled.
    monkeypatch.setattr(kernels, "run_episodes", njit(kernels.run_episodes.py_func))
    one_hot = RadialBasis.grid(low=0, high=N - 1, shape=N, width=0.5 / (N - 1), normalised=True, truncate=1.2)
    states = np.arange(N)
    assert (one_hot(states).toarray() == np.eye(N)).all()
    q = optimal_corridor()
    assert set(q.argmax(axis=1)) == {0, 1}
    result = Sarsa(one_hot, 2, step=Falling(0.3, 0.005), epsilon=Falling(0.3, 0.01)).train(
        Corridor(), 20_000, seed=0, max_steps=500
    )
    assert result.policy(states).tolist() == q.argmax(axis=1).tolist()
    np.testing.assert_allclose(result.policy.value(states), q.max(axis=1), atol=0.8)
    ends, means = result.curve(20)
    assert ends.tolist() == list(range(1000, 20_001, 1000))
    assert means[3] == pytest.approx(result.returns[3000:4000].mean())
    assert str(result).splitlines()[-1].split()[0] == "20000"


# --- the compiled choice against the features --------------------------------------------------------


@njit
def choose_1(table, x, out):
    for i in range(len(x)):
        out[i] = compiled.choose(table, (x[i, 0],), np.uint64(1), np.uint64(2))[0]


@njit
def choose_4(table, x, out):
    for i in range(len(x)):
        out[i] = compiled.choose(table, (x[i, 0], x[i, 1], x[i, 2], x[i, 3]), np.uint64(1), np.uint64(2))[0]


GRIDS = {
    "one coordinate, narrow": (1, 3, {"low": 0, "high": 1, "shape": 9, "width": 0.005, "truncate": 20}),
    "two of four, untruncated": (
        4,
        2,
        {
            "low": [0.2, -1],
            "high": [0.8, 2],
            "shape": (4, 5),
            "width": 0.15,
            "normalised": False,
            "dims": [3, 1],
        },
    ),
    "few centres": (
        4,
        5,
        {
            "low": [0] * 4,
            "high": [1] * 4,
            "shape": (7, 1, 2, 4),
            "width": [0.1, 0.9, 0.6, 0.2],
            "truncate": 2,
        },
    ),
}


@pytest.mark.parametrize("name", GRIDS)
def test_compiled_choice_is_the_largest_value(name):
    dim, actions, settings = GRIDS[name]
    phi = RadialBasis.grid(**{"normalised": True, **settings})
    rng = np.random.default_rng(8)
    policy = GreedyPolicy(phi, rng.normal(size=(phi.size, actions)))
    states = rng.uniform(-0.2, 1.2, (4000, dim))  # some outside the box
    out = np.empty(len(states), np.int64)
    (choose_1 if dim == 1 else choose_4)(policy.compiled(), states, out)
    dense = phi(states) if phi.truncate is None else phi(states).toarray()
    values = np.array([[sum(row * policy.weights[:, a]) for a in range(actions)] for row in dense[:300]])
    assert out[:300].tolist() == values.argmax(axis=1).tolist()
    assert out.tolist() == policy(states).tolist()
    assert np.unique(out).size == actions
    np.testing.assert_allclose(policy.value(states[:300]), values.max(axis=1), rtol=1e-12)


def test_what_compiled_code_cannot_follow_is_said_and_still_callable():
    phi = RadialBasis.grid([0] * 5, [1] * 5, 2)
    policy = GreedyPolicy(phi, np.zeros((32, 2)))
    assert policy(np.zeros((3, 5))).tolist() == [0, 0, 0]
    with pytest.raises(InvalidInputError, match="at most 4 coordinates"):
        policy.compiled()
    with pytest.raises(InvalidInputError, match="truncate the bases"):
        GreedyPolicy(RadialBasis.grid(0, 1, 40), np.zeros((40, 2))).compiled()


def test_control_does_not_load_gymnasium():
    code = "import sys, policyrisk.control; sys.exit('gymnasium' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- the shipped policy ------------------------------------------------------------------------------


def shipped_lengths(episodes: int, seed: int) -> Any:
    pinball = Pinball("simple")
    starts = pinball.sample_starts(episodes, seed=seed)
    return pinball.returns(pinball_policy(), starts, seed=seed + 1, max_steps=2000)


def test_shipped_policy_is_near_optimal():
    returns = shipped_lengths(2000, seed=610)
    error = returns.lengths.std(ddof=1) / np.sqrt(2000)
    assert (~returns.terminated).sum() <= 2
    assert returns.lengths.mean() + 3 * error < BAR


@pytest.mark.slow
def test_shipped_policy_is_near_optimal_over_20000_episodes():
    returns = shipped_lengths(20_000, seed=620)
    assert returns.terminated.mean() >= 0.999
    assert returns.lengths.mean() <= BAR


@pytest.mark.slow
def test_shipped_policy_is_what_its_recorded_seed_gives():
    shipped = pinball_policy()
    assert train_pinball().policy.weights.tobytes() == shipped.weights.tobytes()


def test_shipped_policy_says_where_it_comes_from():
    policy = pinball_policy()
    assert policy.features == pinball_features()
    assert policy.origin["seed"] == TrainingParameters().seed
    assert policy.origin["episodes"] == TrainingParameters().episodes
    assert policy.origin["domain"] == repr(Pinball("simple"))


def test_shipped_value_is_close_to_what_happens():
    pinball, policy = Pinball("simple"), pinball_policy()
    starts = pinball.sample_starts(300, seed=630)
    J = pinball.returns(policy, starts, episodes=30, seed=631).returns.reshape(300, 30).mean(axis=1)
    assert np.corrcoef(policy.value(starts), J)[0, 1] > 0.97
    assert abs((policy.value(starts) - J).mean()) < 2.0


def test_shipped_policy_called_and_compiled_act_alike():
    pinball, policy = Pinball("simple"), pinball_policy()
    starts = pinball.sample_starts(20, seed=640)
    fast = pinball.rollout(policy, starts, seed=641)
    slow = pinball.rollout(lambda states: policy(states), starts, seed=641)
    assert fast.lengths.tolist() == slow.lengths.tolist()
    np.testing.assert_allclose(fast.states, slow.states, atol=1e-9)


def test_other_mazes_have_no_policy_yet():
    with pytest.raises(InvalidInputError, match=re.escape("experiments.train_pinball --maze hard")):
        pinball_policy("hard")


# --- files and arguments -----------------------------------------------------------------------------


def test_save_and_load(tmp_path):
    rng = np.random.default_rng(3)
    policy = GreedyPolicy(SMALL, rng.normal(size=(SMALL.size, 4)), {"seed": 7, "step": [0.3, 0.02]})
    policy.save(tmp_path / "p.npz")
    loaded = GreedyPolicy.load(tmp_path / "p.npz")
    assert loaded.weights.tobytes() == policy.weights.tobytes()
    assert loaded.features == policy.features
    assert loaded.origin == policy.origin
    with pytest.raises(ValueError, match="read-only"):
        loaded.weights[0, 0] = 1.0


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (Polynomial(2, [0], [1]), "radial bases on a grid, got Polynomial"),
        (RadialBasis([[0.0], [1.0]], 0.5), "radial bases on a grid"),
        (RadialBasis.grid(0, 1, 3, truncate=1), "normalised where they are truncated"),
    ],
)
def test_bad_features(features, message):
    with pytest.raises(InvalidInputError, match=message):
        GreedyPolicy(features, np.zeros((features.size, 4)))


def test_bad_weights():
    with pytest.raises(InvalidInputError, match="weights must have shape"):
        GreedyPolicy(SMALL, np.zeros((3, 4)))
    with pytest.raises(InvalidInputError, match="a column per action"):
        GreedyPolicy(SMALL, np.zeros((SMALL.size, 0)))


def test_curve_of_few_episodes():
    policy = GreedyPolicy(SMALL, np.zeros((SMALL.size, 4)))
    result = SarsaResult(policy, np.array([-3.0, -1.0]), np.array([3, 1]), np.array([True, True]))
    assert [part.tolist() for part in result.curve(100)] == [[1, 2], [-3.0, -1.0]]
