"""The Gymnasium environments: Gymnasium's own check, agreement with the domain, seeds and pictures."""

from __future__ import annotations

import subprocess
import sys
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from policyrisk.domains.env import DomainEnv
from policyrisk.domains.maze import MAZES
from policyrisk.domains.pinball import Pinball
from policyrisk.errors import InvalidInputError
from policyrisk.simulation import register

register()
ID = "policyrisk/Pinball-v0"
MAKE = f"gymnasium.make('{ID}')"


@pytest.mark.parametrize("maze", MAZES)
def test_gymnasiums_own_check_passes(maze: str) -> None:
    env = gym.make(ID, maze=maze, render_mode="rgb_array")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped)


def test_make_passes_the_arguments_on_and_limits_time() -> None:
    env = gym.make(ID, maze="box", noise=0.0, rewards="original", actions=5)
    assert repr(env.unwrapped.domain) == "Pinball(maze='box', noise=0, rewards='original', actions=5)"
    assert env.spec.max_episode_steps == 10_000
    assert env.action_space.n == 5
    short = gym.make(ID, maze="empty", max_episode_steps=3)
    short.reset(seed=0)
    assert [short.step(0)[3] for _ in range(3)] == [False, False, True]
    with pytest.raises(TypeError, match="nose"):
        gym.make(ID, nose=0.1)


def test_one_ball_moves_as_in_the_domain() -> None:
    pinball = Pinball("simple", noise=0.0)
    env = gym.make(ID, maze="simple", noise=0.0)
    state, _ = env.reset(seed=0)
    np.testing.assert_array_equal(state, [0.2, 0.9, 0.0, 0.0])
    for action in np.random.default_rng(0).integers(0, 4, 200):
        expected, reward, terminated = pinball.step(state[None], [action])
        state, got, ended, cut, _ = env.step(action)
        np.testing.assert_array_equal(state, expected[0])
        assert (got, ended, cut) == (reward[0], terminated[0], False)


def test_reset_to_a_state() -> None:
    env = DomainEnv("Pinball", maze="empty", noise=0.0)
    state, _ = env.reset(options={"state": [0.3, 0.4, 0.1, -0.2]})
    assert state.tolist() == [0.3, 0.4, 0.1, -0.2]
    state, _ = env.reset(options={"state": (0.3, 0.4)})
    assert state.tolist() == [0.3, 0.4, 0.0, 0.0]
    env.reset(options={"state": [0.9, 0.245, 0.0, -0.9]})
    _, reward, terminated, truncated, _ = env.step(3)
    assert (reward, terminated, truncated) == (-1.0, True, False)


def test_a_seed_repeats_an_episode_and_none_goes_on() -> None:
    env = DomainEnv("Pinball", maze="simple", noise=0.03)

    def walk(seed: int | None) -> np.ndarray:
        env.reset(seed=seed)
        return np.array([env.step(t % 4)[0] for t in range(20)])

    first, second, again = walk(3), walk(None), walk(3)
    np.testing.assert_array_equal(first, again)
    assert (first != second).any()
    assert (walk(4) != first).any()


def test_what_comes_out_is_the_callers() -> None:
    env = DomainEnv("Pinball", maze="empty", noise=0.0)
    state, _ = env.reset()
    state[:] = 7.0
    after, *_ = env.step(0)
    assert after[0] == pytest.approx(0.204)
    after[:] = 7.0
    assert env.step(0)[0][0] < 0.3


# --- many balls ------------------------------------------------------------------------------------


def test_many_balls_move_as_in_the_domain() -> None:
    env = gym.make_vec(ID, num_envs=3, maze="medium", noise=0.0, max_episode_steps=20)
    pinball = Pinball("medium", noise=0.0)
    start = pinball.sample_starts(1, seed=0, velocity=0.5)
    states, _ = env.reset(seed=1, options={"state": start[0]})
    np.testing.assert_array_equal(states, np.repeat(start, 3, axis=0))
    for actions in np.random.default_rng(0).integers(0, 4, (19, 3)):
        expected = pinball.step(states, actions)
        states, rewards, terminated, truncated, _ = env.step(actions)
        if terminated.any():
            break
        np.testing.assert_array_equal(states, expected[0])
        np.testing.assert_array_equal(rewards, expected[1])
        assert not truncated.any()
    assert env.observation_space.contains(states)
    assert env.action_space.contains(env.action_space.sample())


# --- pictures --------------------------------------------------------------------------------------


def colour_at(image: np.ndarray, x: float, y: float) -> tuple[int, ...]:
    size = len(image)
    return tuple(image[int((1 - y) * size), int(x * size)].tolist())


def test_the_picture_shows_obstacles_ball_and_target() -> None:
    env = DomainEnv("Pinball", maze="box", render_mode="rgb_array")
    env.reset(options={"state": [0.3, 0.8]})
    image = env.render()
    assert image.dtype == np.uint8
    assert image.shape == (400, 400, 3)
    floor, wall, ball, target = (
        colour_at(image, *p) for p in [(0.7, 0.7), (0.5, 0.5), (0.3, 0.8), (0.9, 0.2)]
    )
    assert len({floor, wall, ball, target}) == 4
    assert colour_at(image, 0.5, 0.005) == colour_at(image, 0.995, 0.5) == wall
    assert colour_at(image, 0.3, 0.815) == ball
    assert colour_at(image, 0.3, 0.825) == floor
    assert colour_at(image, 0.9, 0.235) == target
    assert colour_at(image, 0.8, 0.3) == floor  # not mirrored
    env.reset(options={"state": [0.6, 0.3]})
    assert colour_at(env.render(), 0.3, 0.8) == floor


# --- errors and imports ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: DomainEnv("Pinball", render_mode="human"), "render_mode must be None"),
        (
            lambda: DomainEnv("Pinball", maze="empty").reset(options={"states": [0.5, 0.5]}),
            "options must have no keys but state",
        ),
        (lambda: DomainEnv("Pinball", maze="empty").reset(options={"state": [0.5]}), "must have shape"),
        (lambda: DomainEnv("Pinball", maze="empty").reset(options={"state": [0.5, 1.5]}), "positions in"),
        (
            lambda: DomainEnv("Pinball", maze="empty").reset(options={"state": np.full((3, 4), 0.5)}),
            "must be one state, got 3",
        ),
    ],
)
def test_bad_arguments_are_named(call: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        call()


def test_a_bad_action_is_named() -> None:
    env = DomainEnv("Pinball", maze="empty")
    env.reset()
    with pytest.raises(InvalidInputError, match="action must be in 0, …, 3, got 4"):
        env.step(4)


def test_reset_comes_first() -> None:
    env = DomainEnv("Pinball", maze="empty", render_mode="rgb_array")
    with pytest.raises(gym.error.ResetNeeded, match="step was called before reset"):
        env.step(0)


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def also(code: str) -> Any:
    return pytest.param(code, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    "code",
    [
        also(f"import gymnasium, policyrisk; {MAKE}"),
        f"import policyrisk as pr; import gymnasium; pr.LSTD; {MAKE}",
        also(f"import policyrisk as pr; pr.domains; import gymnasium; pr.domains.Pinball; {MAKE}"),
        f"import policyrisk as pr; pr.rollout('{ID}', lambda x: [0], 1, max_steps=1)",
        f"import gymnasium; gymnasium.make('policyrisk:{ID}')",
        also(f"import policyrisk, gymnasium; gymnasium.make('policyrisk.domains.env:{ID}')"),
        f"import gymnasium; gymnasium.make_vec('policyrisk.domains.env:{ID}', 2)",
    ],
)
def test_registration(code: str) -> None:
    assert (
        run_python(f"import sys; path = list(sys.meta_path); {code}; print(sys.meta_path == path)") == "True"
    )


def test_the_domain_does_not_load_gymnasium() -> None:
    assert run_python("import sys, policyrisk.domains.pinball; print('gymnasium' in sys.modules)") == "False"
