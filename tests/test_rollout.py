"""Rollouts of Gymnasium environments: the same episodes however many run side by side, none of them lost."""

import sys
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
from conftest import assert_same
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import policyrisk as pr
from policyrisk.data.spaces import coordinate_names
from policyrisk.errors import InvalidInputError, MissingPackageError
from policyrisk.simulation.rollouts import episode_seed, run_episodes, seed_key
from policyrisk.simulation.spaces import as_policy

BOX = spaces.Box(-np.inf, np.inf, (2,), np.float64)
TWO = spaces.Discrete(2)


class NoisySteps(gym.Env):
    """Ends after 1 or 30 steps, as the first draw says; observations are (step, a draw)."""

    observation_space, action_space = BOX, spaces.Discrete(3)

    def __init__(self, short=1, long=30):
        self.lengths = (short, long)
        self.closed = False

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.length = 0, self.lengths[int(self.np_random.random() < 0.5)]
        return np.array([0.0, self.np_random.random()]), {}

    def step(self, action):
        self.at += 1
        observation = np.array([self.at, self.np_random.random()])
        return observation, self.np_random.random() + 10 * int(action), self.at >= self.length, False, {}

    def close(self):
        self.closed = True


def choose(observations):
    """Some policy without randomness: each row's action depends on that row."""
    return (observations[:, 1] * 3).astype(int)


def by_hand(env, policy, seeds, limit=None):
    """One environment, one episode after the other; the seed None keeps its random state."""
    states, rewards, lengths, ends, actions = [], [], [], [], []
    for seed in seeds:
        observation, _ = env.reset(seed=seed)
        states.append(observation)
        ended = cut = False
        lengths.append(0)
        while not (ended or cut or lengths[-1] == limit):
            actions.append(policy(np.array([observation]))[0])
            observation, reward, ended, cut, _ = env.step(actions[-1])
            states.append(observation)
            rewards.append(reward)
            lengths[-1] += 1
        ends.append(bool(ended))
    return pr.Trajectories(np.array(states), rewards, lengths, ends, actions)


def seeds(seed, episodes):
    return [episode_seed(seed_key(seed), k) for k in range(episodes)]


@pytest.mark.parametrize("num_envs", [1, 2, 7, 16, 64, None])
def test_the_same_episodes_for_any_number_of_environments(num_envs):
    data = pr.rollout(NoisySteps, choose, episodes=40, seed=5, num_envs=num_envs)
    assert_same(data, by_hand(NoisySteps(), choose, seeds(5, 40)))


def test_long_episodes_are_not_lost():
    """Lengths are 1 or 30, each with probability 1/2; those that finish first would nearly all be short."""
    lengths = pr.rollout(NoisySteps, choose, episodes=1000, seed=1, num_envs=50).lengths
    z = (lengths.mean() - 15.5) / (14.5 / np.sqrt(1000))
    assert abs(z) < 4
    assert set(lengths.tolist()) == {1, 30}


def test_parts_can_be_run_elsewhere():
    everything = pr.rollout(NoisySteps, choose, episodes=30, seed=2)
    numbers = [17, 3, 29, 4]
    part = run_episodes([NoisySteps(), NoisySteps()], as_policy(choose), numbers, seed_key(2))
    assert_same(part, everything[numbers])


def test_seeds():
    def run(seed):
        return pr.rollout(NoisySteps, choose, episodes=3, seed=seed).rewards

    assert np.array_equal(run(7), run(7))
    assert not np.array_equal(run(7), run(8))
    assert np.array_equal(run(np.random.SeedSequence(7)), run(np.random.SeedSequence(7)))
    assert np.array_equal(run(np.random.default_rng(7)), run(np.random.default_rng(7)))
    assert not np.array_equal(run(None), run(None))
    assert len(set(seeds(0, 1000))) == 1000
    with pytest.raises(InvalidInputError, match="seed"):
        run("seven")


# --- what ends an episode ----------------------------------------------------------------------------


class Count(gym.Env):
    """Counts its steps; terminates at ``end`` and truncates at ``limit``, each if given."""

    observation_space, action_space = spaces.Box(0, np.inf, (1,), np.float32), spaces.Discrete(2)

    def __init__(self, end=None, limit=None, copy=False):
        self.end, self.limit, self.copy = end, limit, copy
        self.observation = np.zeros(1, np.float32)  # the same array every time

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation[0] = 0
        return self.observe(), {}

    def observe(self):
        return self.observation.copy() if self.copy else self.observation

    def step(self, action):
        self.observation[0] += 1
        at = int(self.observation[0])
        return self.observe(), at, at == self.end, at == self.limit, {}


def zeros(observations):
    return np.zeros(len(observations), int)


@pytest.mark.parametrize(
    ("make", "max_steps", "length", "terminated"),
    [
        (lambda: Count(end=3), None, 3, True),
        (lambda: Count(limit=3), None, 3, False),
        (lambda: Count(end=3, limit=3), None, 3, True),
        (lambda: Count(), 3, 3, False),
        (lambda: Count(end=3), 3, 3, True),
        (lambda: Count(end=5), 3, 3, False),
        (lambda: gym.wrappers.TimeLimit(Count(end=9), 4), 7, 4, False),
    ],
)
@pytest.mark.parametrize("num_envs", [1, 2])
def test_terminated_and_truncated_are_kept_apart(make, max_steps, length, terminated, num_envs):
    data = pr.rollout(make, zeros, episodes=5, seed=0, num_envs=num_envs, max_steps=max_steps)
    one = pr.Trajectories(
        np.arange(length + 1.0)[:, None], np.arange(1.0, length + 1), [length], [terminated], [0] * length
    )
    assert_same(data, pr.Trajectories.concatenate([one] * 5))


def test_an_episode_without_end_can_be_interrupted():
    made = []

    def make():
        made.append(NoisySteps(long=10**9, short=10**9))
        return made[-1]

    calls = iter(range(100))

    def tires(observations):
        if next(calls) == 50:
            raise KeyboardInterrupt
        return zeros(observations)

    with pytest.raises(KeyboardInterrupt):
        pr.rollout(make, tires, episodes=10, num_envs=3)
    assert [env.closed for env in made] == [True] * 3


def test_who_closes_what():
    made = []

    def make(**kwargs):
        made.append(NoisySteps(**kwargs))
        return made[-1]

    pr.rollout(make, choose, episodes=4, env_kwargs={"long": 2})
    assert [env.closed for env in made] == [True] * 4
    mine = NoisySteps()
    pr.rollout(mine, choose, episodes=4)
    assert not mine.closed


# --- vector environments -----------------------------------------------------------------------------


def vector(mode, n, make=NoisySteps):
    return SyncVectorEnv([make] * n, autoreset_mode=mode)


@pytest.mark.parametrize("n", [1, 3, 8])
@pytest.mark.parametrize("max_steps", [None, 11])
def test_a_vector_environment_without_autoreset(n, max_steps):
    env = vector(AutoresetMode.DISABLED, n)
    for episodes in (2, 20):
        data = pr.rollout(env, choose, episodes=episodes, seed=5, max_steps=max_steps)
        assert_same(data, by_hand(NoisySteps(), choose, seeds(5, episodes), max_steps))


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
@pytest.mark.parametrize("n", [1, 3, 8])
@pytest.mark.parametrize("episodes", [2, 20])
def test_a_vector_environment_with_autoreset(mode, n, episodes):
    """Environment i begins with its seed and runs episodes i, i + n, …, one random state through all."""
    data = pr.rollout(vector(mode, n), choose, episodes=episodes, seed=5)
    (first,) = seeds(5, 1)
    parts = {}
    for i in range(min(n, episodes)):
        mine = range(i, episodes, n)
        part = by_hand(NoisySteps(), choose, [first + i] + [None] * (len(mine) - 1))
        parts.update(zip(mine, part, strict=True))
    assert_same(data, pr.Trajectories.concatenate(parts[k] for k in range(episodes)))


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_final_observations_of_vector_environments(mode):
    data = pr.rollout(vector(mode, 3, lambda: Count(limit=4, copy=True)), zeros, episodes=7)
    one = pr.Trajectories(np.arange(5.0)[:, None], np.arange(1.0, 5), [4], [False], [0] * 4)
    assert_same(data, pr.Trajectories.concatenate([one] * 7))


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_dict_observations_of_vector_environments(mode):
    env = vector(mode, 3, lambda: Shaped("dict"))
    data = pr.rollout(env, lambda batch: zeros(batch["at"]), episodes=7, project=lambda batch: batch["at"])
    assert data.states.tolist() == [[0], [1], [2]] * 7


def test_pinball_as_a_vector_environment():
    env = gym.make_vec("policyrisk/Pinball-v0", num_envs=4, max_episode_steps=20)
    data = pr.rollout(env, zeros, episodes=10, seed=0)
    assert (data.lengths.tolist(), data.dim) == ([20] * 10, 4)
    np.testing.assert_array_equal(data.starts()[:, 2:], 0.0)  # at rest


def test_what_a_vector_environment_cannot_do():
    env = vector(AutoresetMode.NEXT_STEP, 3)
    with pytest.raises(
        InvalidInputError, match="max_steps must be None for a vector environment that resets"
    ):
        pr.rollout(env, choose, episodes=2, max_steps=5)
    with pytest.raises(InvalidInputError, match="num_envs must be 3"):
        pr.rollout(env, choose, episodes=2, num_envs=4)
    env.metadata = {}
    with pytest.raises(
        InvalidInputError, match=r'env\.metadata\["autoreset_mode"\] must be one of .* got None'
    ):
        pr.rollout(env, choose, episodes=2)


# --- observations and actions ------------------------------------------------------------------------


class Shaped(gym.Env):
    """Two steps; observations of the kind asked for, all telling the step."""

    def __init__(self, kind, action_space=TWO):
        self.kind, self.action_space = kind, action_space
        self.observation_space = {
            "discrete": spaces.Discrete(5),
            "multi": spaces.MultiDiscrete([5, 5]),
            "image": spaces.Box(0, 255, (2, 2), np.uint8),
            "matrix": spaces.Box(0, 9, (2, 2), np.float32),
            "dict": spaces.Dict(at=spaces.Discrete(5), goal=BOX),
            "tuple": spaces.Tuple([BOX, spaces.Discrete(5)]),
            "text": spaces.Text(3),
        }[kind]
        self.actions = []

    def observe(self):
        return {
            "discrete": self.at,
            "multi": np.array([self.at, 4]),
            "image": np.full((2, 2), self.at, np.uint8),
            "matrix": np.array([[self.at, 1], [2, 3]], np.float32),
            "dict": {"at": self.at, "goal": np.zeros(2)},
            "tuple": (np.array([self.at, 0.5]), self.at),
            "text": "abc",
        }[self.kind]

    def reset(self, *, seed=None, options=None):
        self.at = 0
        return self.observe(), {}

    def step(self, action):
        assert self.action_space.contains(action), repr(action)
        self.actions.append(action)
        self.at += 1
        return self.observe(), 0.0, self.at == 2, False, {}


@pytest.mark.parametrize(
    ("kind", "states"),
    [
        ("discrete", np.array([[0], [1], [2]])),
        ("multi", np.array([[0, 4], [1, 4], [2, 4]])),
        ("image", np.array([[0] * 4, [1] * 4, [2] * 4])),
        ("matrix", np.array([[0.0, 1, 2, 3], [1, 1, 2, 3], [2, 1, 2, 3]])),
        ("dict", np.array([[0.0, 0, 0], [1, 0, 0], [2, 0, 0]])),
    ],
)
def test_observations_that_are_arrays(kind, states):
    policy = (lambda batch: zeros(batch["at"])) if kind == "dict" else zeros
    data = pr.rollout(lambda: Shaped(kind), policy, episodes=3, num_envs=2)
    np.testing.assert_array_equal(data.states, np.tile(states, (3, 1)), strict=True)


def test_images_are_refused():
    class Picture(Shaped):
        def __init__(self):
            super().__init__("image")
            self.observation_space = spaces.Box(0, 255, (32, 32, 3), np.uint8)

        def observe(self):
            return np.full((32, 32, 3), self.at, np.uint8)

    message = (
        r"coordinates of a state, got an image of shape \(32, 32, 3\), .* 3072 columns; .* by a project that"
    )
    with pytest.raises(InvalidInputError, match=message):
        pr.rollout(Picture, zeros, episodes=2)
    flat = pr.rollout(Picture, zeros, episodes=2, project=lambda batch: batch.reshape(len(batch), -1))
    assert flat.dim == 3072
    seen = pr.rollout(Picture, zeros, episodes=2, project=lambda batch: batch.mean(axis=(1, 2, 3)))
    assert seen.states.tolist() == [[0.0], [1.0], [2.0]] * 2


def test_projections():
    batches = []

    def policy(batch):
        batches.append(batch)
        return zeros(batch["at"])

    data = pr.rollout(lambda: Shaped("dict"), policy, episodes=2, project=lambda batch: batch["at"])
    assert data.states.tolist() == [[0], [1], [2]] * 2
    assert batches[0]["at"].tolist() == [0, 0]
    assert batches[0]["goal"].shape == (2, 2)
    data = pr.rollout(
        lambda: Shaped("tuple"), lambda batch: zeros(batch[1]), episodes=1, project=lambda batch: batch[0]
    )
    assert data.states.tolist() == [[0, 0.5], [1, 0.5], [2, 0.5]]
    data = pr.rollout(NoisySteps, choose, episodes=2, project=lambda batch: batch[:, :1])
    assert data.dim == 1


@pytest.mark.parametrize(
    ("kind", "project", "message"),
    [
        ("dict", lambda batch: batch, "must be an array, got a dict of 'at', 'goal'; pass project"),
        ("tuple", None, "observations must be an array, got a tuple of 2 parts; pass project"),
        ("text", None, "observations must be"),
        (
            "discrete",
            lambda batch: 3,
            r"project\(observations\) must be 2 rows of numbers.*got int64 of shape \(\)",
        ),
        ("discrete", lambda batch: batch[:1], r"must be 2 rows of numbers, .* of shape \(1,\)"),
        ("discrete", lambda batch: ["a", "b"], r"must be 2 rows of numbers, .* got <U1"),
        ("discrete", lambda batch: [[1], [1, 2]], r"must be an array of shape \(n, dim\)"),
        ("discrete", "at", "project must be a function of a batch of observations, got str"),
    ],
)
def test_projections_that_do_not_fit(kind, project, message):
    with pytest.raises(InvalidInputError, match=message):
        pr.rollout(lambda: Shaped(kind), lambda batch: [0, 0], episodes=2, project=project)


def test_a_projection_that_changes_its_mind():
    with pytest.raises(InvalidInputError, match="states must keep their dimension, got 2 and then 3"):
        pr.rollout(Count, zeros, episodes=1, project=lambda batch: np.zeros((1, 2 + int(batch[0, 0] > 3))))


@pytest.mark.parametrize(
    ("space", "answer", "taken"),
    [
        (spaces.Discrete(2), [1, 0], [1, 0]),
        (spaces.Discrete(2), [True, False], [1, 0]),
        (spaces.Discrete(3, start=-1), [-1, 1], [-1, 1]),
        (spaces.Box(-1, 1, (2,), np.float32), [[0.5, 1], [0, -1]], [[0.5, 1], [0, -1]]),
        (spaces.MultiDiscrete([3, 4]), [[2, 3], [0, 0]], [[2, 3], [0, 0]]),
        (spaces.MultiBinary(2), [[1, 0], [0, 0]], [[1, 0], [0, 0]]),
    ],
    ids=str,
)
def test_actions_reach_their_environments(space, answer, taken):
    envs = [Shaped("discrete", space) for _ in range(2)]
    waiting = iter(envs)
    data = pr.rollout(lambda: next(waiting), lambda batch: answer, episodes=2)
    assert [np.asarray(env.actions[0]).tolist() for env in envs] == taken
    assert data.actions.tolist() == [taken[0], taken[0], taken[1], taken[1]]
    assert data.actions.dtype == (np.int64 if isinstance(space, spaces.Discrete) else np.float64)
    assert data.propensities is None


def test_actions_that_are_no_arrays():
    space = spaces.Dict(push=spaces.Box(-1, 1, (1,), np.float32), turn=spaces.Discrete(3))
    env = Shaped("discrete", space)
    data = pr.rollout(
        env, lambda batch: {"push": np.full((1, 1), 0.5, np.float32), "turn": np.array([2])}, episodes=1
    )
    assert [float(action["push"][0]) for action in env.actions] == [0.5, 0.5]
    assert [int(action["turn"]) for action in env.actions] == [2, 2]
    assert data.actions is None


@pytest.mark.parametrize(
    ("space", "policy", "message"),
    [
        (
            spaces.Discrete(2),
            lambda x: 0,
            r"actions of shape \(3,\), one for each of the 3 .*, got shape \(\)",
        ),
        (spaces.Discrete(2), lambda x: [0], r"actions of shape \(3,\), .* got shape \(1,\)"),
        (spaces.Discrete(2), lambda x: [[0], [0], [0]], r"got shape \(3, 1\)"),
        (spaces.Discrete(2), lambda x: [0.0, 1.0, 0.0], "must return whole numbers for the action space"),
        (spaces.Discrete(2), lambda x: [0, 2, 0], "actions from 0 to 1, got 2"),
        (spaces.Discrete(2), lambda x: None, r"actions of shape \(3,\)"),
        (spaces.Discrete(2), lambda x: ([0, 0, 0], None), "got tuple .* model itself, not its predict"),
        (spaces.Box(0, 1, (2,)), lambda x: [[0], [0, 1], [1]], "must return an array of actions, got list"),
        (
            spaces.Box(-1, 1, (2,)),
            lambda x: [0.0, 0.0, 0.0],
            r"actions of shape \(3, 2\), .* got shape \(3,\)",
        ),
        (spaces.Box(-1, 1, ()), lambda x: ["a", "b", "c"], "must return numbers for the action space"),
    ],
)
def test_answers_of_the_wrong_shape(space, policy, message):
    with pytest.raises(InvalidInputError, match=message):
        pr.rollout(lambda: Shaped("discrete", space), policy, episodes=3)


@pytest.mark.parametrize("policy", [lambda x: int(x[1] > 0), lambda x: 1 if x[0] > 0.5 else 0])
def test_a_policy_for_one_observation_is_told_so(policy):
    message = r"must take a batch of observations, here of shape \(3, 2\), .*Error.* wrap it as lambda batch"
    with pytest.raises(InvalidInputError, match=message):
        pr.rollout(NoisySteps, policy, episodes=3)
    wrapped = pr.rollout(NoisySteps, lambda batch: np.array([policy(x) for x in batch]), episodes=3, seed=0)
    assert len(wrapped) == 3


def test_a_failure_of_the_policys_own_stays_what_it_is():
    with pytest.raises(ZeroDivisionError):
        pr.rollout(NoisySteps, lambda x: 1 / 0, episodes=3)


class Started(NoisySteps):
    """Begins in the state that it is asked for."""

    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed)
        return (observation if options is None else np.array(options["state"], float)), info


@pytest.mark.parametrize("policy", [choose, lambda x: np.zeros(len(x), int)])
def test_a_policy_for_a_batch_is_told_so_by_monte_carlo(policy):
    message = r"policy must (take one observation|return an action of shape \(\)).* policy\(x\[None\]\)\[0\]"
    with pytest.raises(InvalidInputError, match=message):
        pr.monte_carlo(Started(), policy, [[0.0, 5.0]], episodes=2)
    found = pr.monte_carlo(Started(), lambda x: policy(x[None])[0], [[0.0, 0.5]], episodes=2, seed=0)
    model = pr.monte_carlo(
        Started(), Model(lambda x: (policy(x[None])[0], None)), [[0.0, 0.5]], episodes=2, seed=0
    )
    assert found.mean.tolist() == model.mean.tolist()


class Model:
    """A policy in the manner of Stable-Baselines3."""

    def __init__(self, answer=lambda x: (choose(x), None)):
        self.answer, self.asked = answer, []

    def predict(self, observation, state=None, episode_start=None, deterministic=False):
        self.asked.append(deterministic)
        return self.answer(observation)


def test_an_object_with_predict():
    model = Model()
    assert_same(
        pr.rollout(NoisySteps, model, episodes=9, seed=3), pr.rollout(NoisySteps, choose, episodes=9, seed=3)
    )
    assert set(model.asked) == {True}
    with pytest.raises(
        InvalidInputError, match="must return None as its state, got tuple: the policy has a memory"
    ):
        pr.rollout(NoisySteps, Model(lambda x: (choose(x), (1, 2))), episodes=1)
    with pytest.raises(
        InvalidInputError, match=r"policy\.predict must return \(actions, state\), got ndarray"
    ):
        pr.rollout(NoisySteps, Model(choose), episodes=1)
    with pytest.raises(InvalidInputError, match="policy must be a function from a batch"):
        pr.rollout(NoisySteps, 0, episodes=1)
    drawing = Model()
    pr.rollout(NoisySteps, drawing, episodes=2, deterministic=False)
    assert set(drawing.asked) == {False}
    with pytest.raises(InvalidInputError, match="deterministic must be left out for a policy that is a func"):
        pr.rollout(NoisySteps, choose, episodes=2, deterministic=False)


# --- Stable-Baselines3's vector environments, in its manner ------------------------------------------


class VecSteps:
    """A VecEnv: parts that reset themselves in the step that ends an episode."""

    def __init__(self, n, make=NoisySteps, limit=None):
        self.envs, self.num_envs, self.limit = [make() for _ in range(n)], n, limit
        self.observation_space, self.action_space = self.envs[0].observation_space, self.envs[0].action_space
        self.seeds = [None] * n

    def seed(self, seed):
        self.seeds = [seed + i for i in range(self.num_envs)]

    def reset(self):
        self.lengths = [0] * self.num_envs
        return np.array([env.reset(seed=seed)[0] for env, seed in zip(self.envs, self.seeds, strict=True)])

    def step_async(self, actions):
        self.actions = actions

    def step_wait(self):
        rows = [self._step(i) for i in range(self.num_envs)]
        observations, rewards, done, infos = zip(*rows, strict=True)
        return np.array(observations), np.array(rewards), np.array(done), infos

    def _step(self, i):
        observation, reward, ended, _, _ = self.envs[i].step(self.actions[i])
        self.lengths[i] += 1
        cut = not ended and self.lengths[i] == self.limit
        info = {}
        if ended or cut:
            info = {"terminal_observation": observation, "TimeLimit.truncated": cut}
            observation, _ = self.envs[i].reset()
            self.lengths[i] = 0
        return observation, np.float32(reward), ended or cut, info

    def step(self, actions):
        self.step_async(actions)
        return self.step_wait()

    def env_method(self, name):
        raise NotImplementedError


class VecScale:
    """VecNormalize: observations less 3 and halved, cut at ±1; rewards by a tenth."""

    def __init__(self, venv):
        self.venv = venv

    def __getattr__(self, name):
        return getattr(self.venv, name)

    def normalize_obs(self, observations):
        return np.clip((observations - 3) / 2, -1, 1)

    def step_wait(self):
        observations, rewards, done, infos = self.venv.step_wait()
        return self.normalize_obs(observations), rewards / 10, done, infos


class VecAround:
    """Some wrapper, which hands on what is inside of it."""

    def __init__(self, venv):
        self.venv = venv

    def __getattr__(self, name):
        return getattr(self.venv, name)


@pytest.mark.parametrize("limit", [None, 7])
def test_a_vec_env(limit):
    key = seed_key(5)
    data = pr.rollout(VecSteps(3, limit=limit), choose, episodes=8, seed=5)
    lanes = []
    for i in range(3):  # each part by hand, one episode after the other
        seeds = [episode_seed(key, 0) + i] + [None] * (len(range(i, 8, 3)) - 1)
        lanes.append(by_hand(NoisySteps(), choose, seeds, limit))
    by_number = pr.Trajectories.concatenate([lanes[k % 3][k // 3] for k in range(8)])
    assert_same(data, replace(by_number, rewards=by_number.rewards.astype(np.float32)))
    assert data.terminated.all() == (limit is None)
    with pytest.raises(InvalidInputError, match="max_steps must be None for a vector environment that reset"):
        pr.rollout(VecSteps(2), choose, episodes=2, max_steps=3)
    with pytest.raises(InvalidInputError, match="num_envs must be 2 for the environment"):
        pr.rollout(VecSteps(2), choose, episodes=2, num_envs=3)


def test_vec_normalize_is_for_the_policy_alone():
    seen = []

    def policy(observations):
        seen.append(observations)
        return (observations[:, 0] > 0).astype(int)

    data = pr.rollout(VecScale(VecSteps(3)), policy, episodes=8, seed=5)
    assert_same(data, pr.rollout(VecSteps(3), lambda x: (x[:, 0] > 3).astype(int), episodes=8, seed=5))
    assert np.abs(np.concatenate(seen)).max() == 1.0
    assert data.states[:, 0].max() == 30.0
    with pytest.raises(InvalidInputError, match="VecNormalize outermost, got it inside of VecAround; pass"):
        pr.rollout(VecAround(VecScale(VecSteps(2))), policy, episodes=2)


def test_a_model_brings_its_vec_normalize():
    model = Model(lambda x: ((x[:, 0] > 0).astype(int), None))
    model.get_vec_normalize_env = lambda: VecScale(VecSteps(1))
    expected = pr.rollout(NoisySteps, lambda x: (x[:, 0] > 3).astype(int), episodes=5, seed=1)
    assert_same(pr.rollout(NoisySteps, model, episodes=5, seed=1), expected)
    seen = pr.rollout(VecScale(VecSteps(3)), model, episodes=5, seed=1)  # not twice
    assert_same(seen, pr.rollout(VecSteps(3), model, episodes=5, seed=1))
    assert_same(seen, pr.rollout(VecSteps(3), lambda x: (x[:, 0] > 3).astype(int), episodes=5, seed=1))


# --- what the coordinates are called ------------------------------------------------------------------


class Titled(NoisySteps):
    state_names = ("step", "luck")


def test_names_of_coordinates():
    assert coordinate_names(Titled()) == ("step", "luck")
    assert coordinate_names(gym.wrappers.TimeLimit(Titled(), 5)) == ("step", "luck")
    assert coordinate_names(gym.wrappers.TransformObservation(Titled(), lambda x: -x, BOX)) is None
    assert coordinate_names(NoisySteps()) is None
    assert coordinate_names(Shaped("dict")) == ("at", "goal_0", "goal_1")
    assert coordinate_names(Shaped("tuple")) is None
    assert coordinate_names(Shaped("discrete")) is None
    cartpole = gym.make("CartPole-v1")
    assert coordinate_names(cartpole) == ("cart_position", "cart_velocity", "pole_angle", "pole_velocity")
    Titled.state_names, before = ("step",), Titled.state_names
    with pytest.raises(InvalidInputError, match=r"state_names must be 2 different names, .* got \('step',\)"):
        coordinate_names(Titled())
    Titled.state_names = before


def test_names_of_joints():
    """As MuJoCo's environments have them: positions less those skipped, velocities, and the rest."""

    class Joint:
        def __init__(self, name):
            self.name = name

    class Model:
        njnt, jnt_type = 2, (0, 3)  # a free one and a hinge

        def joint(self, i):
            return Joint(("root", "knee")[i])

    env = NoisySteps()
    env.observation_structure = {"skipped_qpos": 2, "qpos": 6, "qvel": 7, "force": 2, "tendon": 0}
    env.model, env.observation_space = Model(), spaces.Box(-1, 1, (15,))
    names = coordinate_names(env)
    assert names[:6] == ("root_z", "root_qw", "root_qx", "root_qy", "root_qz", "knee")
    assert names[6:10] == (
        "root_x_velocity",
        "root_y_velocity",
        "root_z_velocity",
        "root_turn_x_velocity",
    )
    assert names[12:] == ("knee_velocity", "force_0", "force_1")
    env.observation_space = spaces.Box(-1, 1, (14,))
    assert coordinate_names(env) is None  # the structure is another one


# --- what is no environment --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env", "options", "message"),
    [
        ("NoSuchThing-v0", {}, "env must be what gymnasium.make can make, got 'NoSuchThing-v0'"),
        ("no_such_module:Thing-v0", {}, "env must be what gymnasium.make can make"),
        ("CartPole-v1", {"env_kwargs": {"wheels": 3}}, "got 'CartPole-v1' with {'wheels': 3}"),
        (3, {}, "env must be an environment of Gymnasium, its id, or a function that makes one, got int"),
        (lambda: 3, {}, "env must make an environment of Gymnasium, got a function that returns int"),
        (NoisySteps(), {"num_envs": 2}, "num_envs must be 1 for the environment"),
        (
            NoisySteps(),
            {"env_kwargs": {"long": 2}},
            "env_kwargs must be left out for an environment that is made",
        ),
        (NoisySteps, {"num_envs": 0}, "num_envs must be a whole number of at least 1"),
        (NoisySteps, {"episodes": 0}, "episodes must be a whole number of at least 1"),
        (NoisySteps, {"max_steps": 0}, "max_steps must be a whole number of at least 1"),
    ],
)
def test_what_is_refused(env, options, message):
    with pytest.raises(InvalidInputError, match=message):
        pr.rollout(env, choose, **{"episodes": 2, **options})


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(MissingPackageError, match=r"rollout needs the package gymnasium.*\[gym\]"):
        pr.rollout(NoisySteps, choose, episodes=2)


class Broken(Count):
    def __init__(self, reward=0.0, observation=0.0):
        super().__init__(end=4)
        self.broken = reward, observation

    def step(self, action):
        _, _, ended, cut, info = super().step(action)
        reward, at = self.broken if self.observation[0] == 3 else (0.0, 0.0)
        return np.array([at], np.float32), reward, ended, cut, info


def test_numbers_that_are_not_finite():
    with pytest.raises(InvalidInputError, match="rewards must be finite, got nan after 3 steps of episode 0"):
        pr.rollout(lambda: Broken(reward=np.nan), zeros, episodes=2)
    with pytest.raises(
        InvalidInputError, match=r"observations must be finite, got \[inf\] after 3 steps of episode 0"
    ):
        pr.rollout(lambda: Broken(observation=np.inf), zeros, episodes=2)


# --- end to end --------------------------------------------------------------------------------------


def test_cartpole_end_to_end(tmp_path):
    """Rolled out by id, written, read back as a stream and evaluated."""

    def policy(x):
        return x[:, 2] > 0

    data = pr.rollout("CartPole-v1", policy, episodes=60, seed=1, env_kwargs={"max_episode_steps": 45})
    assert_same(data, pr.rollout(gym.make("CartPole-v1", max_episode_steps=45), policy, episodes=60, seed=1))
    assert 0 < (~data.terminated).sum() < 60
    assert data.lengths.max() == 45
    pr.write_parquet(data, tmp_path / "cart.parquet")
    stream = pr.read_parquet(tmp_path, batch_rows=500)
    assert_same(stream.load(), data)
    lstd = pr.LSTD(pr.Polynomial(1, low=[-1] * 4, high=[1] * 4), lam=0.5, discount=0.9)
    np.testing.assert_allclose(lstd.fit(stream).w_second, lstd.fit(data).w_second, rtol=1e-9)


def test_frozen_lake_is_a_table():
    rng = np.random.default_rng(0)
    data = pr.rollout("FrozenLake-v1", lambda x: rng.integers(4, size=len(x)), episodes=300, seed=0)
    assert data.states.dtype == np.int64
    assert data.terminated.all()
    risk = pr.LSTD(pr.Tabular(16), lam=1.0).fit(data)
    at = data.states[data.visited_rows].ravel() == 0  # λ = 1 on a table: the mean over all visits
    np.testing.assert_allclose(risk.mean([[0]]), data.returns_to_go()[at].mean(), rtol=1e-9)
