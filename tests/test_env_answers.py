"""What environments answer is checked: a wrong answer is an error that names it, and no flag is guessed."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import policyrisk as pr
from policyrisk.errors import InvalidInputError
from policyrisk.simulation.environments import GymnasiumForm

SEEN = np.zeros(2, np.float32)


class Answers(gym.Env):
    """Steps twice, and answers what it is told to."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, reset: Any = None, **parts: Any) -> None:
        self.first, self.parts, self.t = reset, parts, 0

    def reset(self, *, seed=None, options=None):
        self.t = 0
        start = SEEN if options is None else np.asarray(options["state"], np.float32)
        return (start, {}) if self.first is None else self.first

    def step(self, action):
        self.t += 1
        answer = {"seen": SEEN, "reward": 1.0, "ended": self.t > 1, "cut": False, "told": {}}
        return self.parts.get("whole", tuple((answer | self.parts).values()))


WRONG = {
    "two rewards": ({"reward": np.ones(2)}, "reward must be one number"),
    "no reward": ({"reward": None}, "reward must be one number"),
    "a reward of text": ({"reward": "1.5"}, "reward must be one number"),
    "a masked reward": ({"reward": np.ma.masked}, "masked"),
    "text for terminated": ({"ended": "no"}, "terminated must be True or False"),
    "text for truncated": ({"cut": "False"}, "truncated must be True or False"),
    "nothing for terminated": ({"ended": None}, "terminated must be True or False"),
    "a number for terminated": ({"ended": 2}, "terminated must be True or False"),
    "the old interface": ({"whole": (SEEN, 1.0, False, {})}, "got 4 values"),
    "no answer": ({"whole": None}, "got NoneType"),
    "another shape": ({"seen": np.zeros(3, np.float32)}, "observation_space"),
    "no observation": ({"seen": None}, "observation"),
    "a masked observation": ({"seen": np.ma.array(SEEN, mask=[True, False])}, "masked"),
    "one value from reset": ({"reset": SEEN[:1]}, "env.reset must return"),
    "another shape from reset": ({"reset": (np.zeros(3), {})}, "observation_space"),
}
SAME_FROM_A_STATE = {"another shape", "no observation", "a masked observation", "another shape from reset"}


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_answer_is_named(kind):
    parts, message = WRONG[kind]
    with pytest.raises(InvalidInputError, match=message):
        pr.rollout(Answers(**parts), lambda x: np.zeros(len(x), int), episodes=2, seed=0)
    if kind not in SAME_FROM_A_STATE:  # there the policy sees one observation as it is
        with pytest.raises(InvalidInputError, match=message):
            pr.monte_carlo(Answers(**parts), lambda x: 0, [[0.5, 0.5]], episodes=2, seed=0, max_steps=3)


def test_one_element_is_a_number():
    env = Answers(reward=np.array([[2.0]]), cut=np.array([0]))
    data = pr.rollout(env, lambda x: np.zeros(len(x), int), episodes=2, seed=0)
    assert data.returns().tolist() == [4.0, 4.0]
    assert data.terminated.all()


class EndlessError(Exception):
    """An episode that no answer ends."""


class Parts:
    """Two parts in the form of Stable-Baselines3, of which one reset is enough."""

    num_envs, observation_space, action_space = 2, Answers.observation_space, Answers.action_space

    def __init__(self, **parts: Any) -> None:
        self.parts, self.steps = parts, 0

    def seed(self, seed):
        pass

    def reset(self):
        return np.zeros((2, 2), np.float32)

    def step(self, actions):
        self.steps += 1
        if self.steps > 50:
            raise EndlessError
        infos = [{"terminal_observation": SEEN}] * 2
        answer = {"seen": self.reset(), "rewards": np.ones(2), "done": np.ones(2, bool), "infos": infos}
        return tuple((answer | self.parts).values())

    step_async = step_wait = env_method = None


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"rewards": np.ones(3)}, "rewards must be 2"),
        ({"rewards": [None, "a"]}, "rewards must be 2"),
        ({"done": np.array(["no", "no"])}, "dones must be"),
        ({"done": [0.5, 1.0]}, "dones must be True or False"),
        ({"infos": [{"TimeLimit.truncated": "no"}] * 2}, "TimeLimit.truncated"),
        ({"infos": None}, "infos must be"),
        ({"more": 1}, "must return"),
        ({"seen": {}}, "observations must be an array"),
        ({"seen": np.zeros(2)}, "as many coordinates as the others"),
    ],
)
def test_a_wrong_answer_of_parts_is_named(parts, message):
    assert len(pr.rollout(Parts(), lambda x: np.zeros(len(x), int), episodes=2, seed=0)) == 2
    assert GymnasiumForm(Parts()).step(None)[2].all()
    with pytest.raises(InvalidInputError, match=message):
        pr.rollout(Parts(**parts), lambda x: np.zeros(len(x), int), episodes=2, seed=0)
