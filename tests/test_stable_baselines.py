"""Policies of Stable-Baselines3, live and from their files, against the models' own ``predict``."""

import json
import zipfile

import gymnasium as gym
import numpy as np
import pytest
from conftest import assert_same

import policyrisk as pr
from policyrisk.cli import run
from policyrisk.errors import InvalidInputError

torch = pytest.importorskip("torch", reason="PyTorch is not installed (make test-all installs it)")
sb3 = pytest.importorskip(
    "stable_baselines3", reason="Stable-Baselines3 is not installed (make test-all installs it)"
)

SMALL = {"net_arch": [8, 8]}
MODELS = {
    "ppo": lambda: sb3.PPO("MlpPolicy", "CartPole-v1", seed=0, device="cpu"),
    "relu": lambda: sb3.A2C(
        "MlpPolicy",
        "CartPole-v1",
        seed=1,
        device="cpu",
        policy_kwargs={"net_arch": [16, 12], "activation_fn": torch.nn.ReLU},
    ),
    "dqn": lambda: sb3.DQN("MlpPolicy", "CartPole-v1", seed=2, device="cpu", buffer_size=10),
    "ppo-box": lambda: sb3.PPO("MlpPolicy", "Pendulum-v1", seed=3, device="cpu"),
    "sac": lambda: sb3.SAC(
        "MlpPolicy", "Pendulum-v1", seed=4, device="cpu", buffer_size=10, policy_kwargs=dict(SMALL)
    ),
    "td3": lambda: sb3.TD3(
        "MlpPolicy", "Pendulum-v1", seed=5, device="cpu", buffer_size=10, policy_kwargs=dict(SMALL)
    ),
}


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Models and their files. Untrained: the networks' last layers are made to say something."""
    folder, found = tmp_path_factory.mktemp("models"), {}
    for name, make in MODELS.items():
        model = make()
        random = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for weight in model.policy.parameters():
                weight += 0.3 * torch.randn(weight.shape, generator=random)
        if name == "dqn":
            model.exploration_rate = 0.3
        model.save(folder / f"{name}.zip")
        found[name] = model, folder / f"{name}.zip"
    return found


def observations(model, n=500):
    return np.random.default_rng(0).normal(size=(n, *model.observation_space.shape)).astype(np.float32)


@pytest.mark.parametrize("name", MODELS)
def test_the_action_that_a_file_holds_best(name, saved):
    model, path = saved[name]
    x = observations(model)
    answer = pr.sb3_policy(path)(x)
    expected, _ = model.predict(x, deterministic=True)
    if hasattr(model.action_space, "n"):
        assert set(np.unique(answer)) == {0.0, 1.0}
        np.testing.assert_array_equal(answer.argmax(axis=1), expected)
        assert np.ptp(expected) == 1
    else:
        np.testing.assert_allclose(answer, expected, atol=1e-5)
        assert np.std(expected) > 0.1


@pytest.mark.parametrize("name", MODELS)
def test_the_distribution_in_a_file(name, saved):
    """Of the probabilities themselves, or of the draws' mean and deviation, at one observation."""
    model, path = saved[name]
    policy, n = pr.sb3_policy(path, deterministic=False, seed=1), 20_000
    x = observations(model, 1)
    many = np.repeat(x, n, axis=0)
    if name == "dqn":
        best = model.predict(x, deterministic=True)[0][0]
        np.testing.assert_allclose(policy(x)[0], np.where(np.arange(2) == best, 0.85, 0.15))
        return
    model.set_random_seed(0)
    drawn, _ = model.predict(many, deterministic=False)
    if hasattr(model.action_space, "n"):
        share = policy(x)[0, 1]
        assert abs(np.mean(drawn) - share) < 5 * np.sqrt(share * (1 - share) / n)
        with torch.no_grad():
            exact = model.policy.get_distribution(torch.from_numpy(x)).distribution.probs.numpy()
        np.testing.assert_allclose(policy(x), exact, atol=1e-6)
        return
    ours = policy(many)
    assert abs(ours.mean() - drawn.mean()) <= 5 * np.sqrt((ours.var() + drawn.var()) / n) + 1e-5
    assert abs(ours.std() - drawn.std()) <= 5 * np.sqrt((ours.var() + drawn.var()) / n) + 1e-5
    assert (ours.std() > 0.1) == (name != "td3")


def test_live_models(saved):
    model, path = saved["ppo"]
    data = pr.rollout("CartPole-v1", model, episodes=6, seed=0, max_steps=50)
    file = pr.rollout("CartPole-v1", pr.sb3_policy(path), episodes=6, seed=0, max_steps=50)
    np.testing.assert_array_equal(data.states, file.states)
    assert data.propensities is None
    assert set(file.propensities) == {1.0}
    drawn = pr.rollout("CartPole-v1", model, episodes=6, seed=0, max_steps=50, deterministic=False)
    same = pr.rollout("CartPole-v1", pr.sb3_policy(path, False), episodes=6, seed=0, max_steps=50, num_envs=2)
    np.testing.assert_array_equal(drawn.states, same.states)  # the draws are ours, whoever tells
    np.testing.assert_allclose(drawn.propensities, same.propensities, atol=1e-6)
    assert drawn.propensities.min() < 0.9
    assert drawn.coordinates.names[2] == "pole_angle"


def test_continuous_draws_do_not_depend_on_the_others(saved):
    _, path = saved["sac"]

    def run(num_envs):
        policy = pr.sb3_policy(path, deterministic=False, seed=7)
        return pr.rollout("Pendulum-v1", policy, episodes=3, seed=1, max_steps=5, num_envs=num_envs)

    assert_same(run(1), run(3))
    assert np.abs(run(1).actions).max() <= 2.0
    assert len(set(run(1).actions.ravel())) == 15


def test_vec_normalize(saved, tmp_path):
    """In a VecEnv, by the model's own, and from a file of its averages: the policy sees the same."""
    from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor, VecNormalize

    def make():
        return gym.make("Pendulum-v1", max_episode_steps=10)

    inner = DummyVecEnv([make] * 2)
    env = VecNormalize(inner)
    env.obs_rms.mean[:], env.obs_rms.var[:] = [0.5, -0.5, 1.0], [0.25, 4.0, 9.0]
    env.clip_obs = 1.5
    model, path = saved["ppo-box"]
    before = env.obs_rms.mean.copy()
    data = pr.rollout(env, model, episodes=4, seed=3)
    assert (env.obs_rms.mean == before).all()
    assert not data.terminated.any()
    assert data.lengths.tolist() == [10] * 4
    scaled = np.clip(
        (data.states[data.visited_rows] - [0.5, -0.5, 1.0]) / np.sqrt(np.array([0.25, 4.0, 9.0]) + 1e-8),
        -1.5,
        1.5,
    )
    expected, _ = model.predict(scaled.astype(np.float32), deterministic=True)
    np.testing.assert_allclose(data.actions, expected, atol=1e-4)
    x, y, speed = data.states[data.visited_rows].T  # as they are: Pendulum's own reward of them
    cost = np.arctan2(y, x) ** 2 + 0.1 * speed**2 + 0.001 * data.actions[:, 0] ** 2
    np.testing.assert_allclose(data.rewards, -cost, rtol=1e-3, atol=1e-5)
    assert data.coordinates.names == ("cos_angle", "sin_angle", "velocity")

    np.savez(tmp_path / "stats.npz", mean=env.obs_rms.mean, var=env.obs_rms.var, clip=env.clip_obs)
    told = pr.sb3_policy(path, normalisation=tmp_path / "stats.npz")
    again = pr.rollout(DummyVecEnv([make] * 2), told, episodes=4, seed=3)
    np.testing.assert_allclose(again.states, data.states, atol=1e-3)
    with pytest.raises(InvalidInputError, match="VecNormalize outermost, got it inside of VecMonitor"):
        pr.rollout(VecMonitor(env), model, episodes=2)
    with pytest.raises(InvalidInputError, match="normalisation must have 3 numbers"):
        pr.sb3_policy(path, normalisation={"mean": [0.0], "var": [1.0]})


class Picture(gym.Env):
    """An image that gets brighter."""

    observation_space = gym.spaces.Box(0, 255, (16, 16, 3), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = 0
        return np.full((16, 16, 3), 0, np.uint8), {}

    def step(self, action):
        self.at += 1
        return np.full((16, 16, 3), 50 * self.at, np.uint8), 1.0, self.at == 3, False, {}


def test_what_a_network_sees_in_an_image():
    """The way out that the error names."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(768, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1)
    )
    with pytest.raises(InvalidInputError, match=r"with phi = policyrisk\.TorchFeatures"):
        pr.rollout(Picture, lambda x: np.zeros(len(x), int), episodes=2)
    phi = pr.TorchFeatures(network, shape=(16, 16, 3))
    data = pr.rollout(
        Picture,
        lambda x: np.zeros(len(x), int),
        episodes=2,
        project=lambda batch: phi(batch.reshape(len(batch), -1)),
    )
    assert data.states.shape == (8, 4)
    with torch.no_grad():
        seen = network[:3](torch.full((1, 16, 16, 3), 100.0)).numpy()
    np.testing.assert_allclose(data.states[2, 1:], seen[0], rtol=1e-4, atol=1e-5)


def test_models_that_a_file_does_not_tell_enough_of(saved, tmp_path):
    _, path = saved["ppo"]
    with pytest.raises(InvalidInputError, match=r"policy must see what .* trained on, .*\(4,\), got \(3,\)"):
        pr.rollout("Pendulum-v1", pr.sb3_policy(path), episodes=1)
    model = sb3.PPO("MlpPolicy", "Pendulum-v1", use_sde=True, device="cpu", policy_kwargs=dict(SMALL))
    model.save(tmp_path / "sde.zip")
    pr.sb3_policy(tmp_path / "sde.zip")
    with pytest.raises(InvalidInputError, match="trained with use_sde=True"):
        pr.sb3_policy(tmp_path / "sde.zip", deterministic=False)
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(tmp_path / "odd.zip", "w") as new:
        data = json.loads(old.read("data"))
        data["action_space"][":type:"] = "<class 'gymnasium.spaces.multi_discrete.MultiDiscrete'>"
        new.writestr("data", json.dumps(data))
        new.writestr("policy.pth", old.read("policy.pth"))
    with pytest.raises(InvalidInputError, match=r"Discrete actions from 0 on, or a Box of them, got .*odd"):
        pr.sb3_policy(tmp_path / "odd.zip")


def test_from_the_command_line(saved, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    _, path = saved["ppo"]
    out = tmp_path / "log.parquet"
    roll = ["rollout", "CartPole-v1", "--episodes", "40", "--seed", "0", "--max-steps", "60"]
    roll += ["--out", str(out)]
    assert run([*roll, "--policy", f"sb3:{path}", "--stochastic"]) == 0
    data = pr.read(out).load()
    policy = pr.sb3_policy(path, deterministic=False)
    expected = pr.rollout("CartPole-v1", policy, episodes=40, seed=0, max_steps=60)
    assert_same(data, expected)
    assert data.coordinates.names[0] == "cart_position"
    for wrong, said in (
        (["--policy", f"sb3:{path},greedy"], "must be sb3:model.zip, with ,stochastic or ,normalisation="),
        (["--policy", "sb3:nowhere.zip"], "Invalid value for --policy: model must be a zip file that"),
        (["--policy", "random_walk:f", "--stochastic"], "is a function, which draws its actions itself"),
    ):
        (tmp_path / "random_walk.py").write_text("def f(x):\n    return [0] * len(x)\n")
        assert run([*roll, *wrong]) == 2
        assert said in " ".join(capsys.readouterr().err.split())

    folder = tmp_path / "target"
    target = ["--target", f"sb3:{path},stochastic", "--features", "poly:1", "--out", str(folder)]
    assert run(["evaluate", str(out), *target, "--discount", "0.9"]) == 0
    at = ["--at", "0,0,0.05,0", "--json"]
    capsys.readouterr()
    assert run(["query", str(folder), *at, "--target", f"sb3:{path},stochastic"]) == 0
    (answer,) = json.loads(capsys.readouterr().out)["states"]
    risk = pr.LSTDQ(pr.Polynomial(1, *_box(data)), policy, 2, discount=0.9, lam=0.0).fit(data)
    assert answer["mean"]["value"] == pytest.approx(risk.mean([[0, 0, 0.05, 0]])[0], rel=1e-6)


def _box(data):
    seen = data.states[data.visited_rows]
    return seen.min(axis=0), seen.max(axis=0)
