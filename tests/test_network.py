"""Features from networks: against layers by hand, closed forms, and Stable-Baselines3's own networks."""

import base64
import copy
import importlib.util
import io
import json
import os
import pickle
import zipfile
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
import scipy.linalg as sla

import policyrisk as pr
from policyrisk.cli import run
from policyrisk.errors import InvalidInputError, MismatchError, MissingPackageError
from policyrisk.features import from_sb3, from_spec
from policyrisk.features.spelling import Spelling

TORCH = importlib.util.find_spec("torch") is not None
SB3 = TORCH and importlib.util.find_spec("stable_baselines3") is not None
if TORCH:
    import torch
    from torch import nn

needs_torch = pytest.mark.skipif(not TORCH, reason="PyTorch is not installed (make test-all installs it)")
needs_sb3 = pytest.mark.skipif(
    not SB3, reason="Stable-Baselines3 is not installed (make test-all installs it)"
)

X = np.random.default_rng(0).normal(size=(300, 4))


def mlp(*sizes, activation="Tanh", seed=0, dtype=None):
    torch.manual_seed(seed)
    layers = []
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b, dtype=dtype or torch.float64), getattr(nn, activation)()]
    return nn.Sequential(*layers[:-1])


def by_hand(net, x, layers):
    """The first ``layers`` linear layers with tanh after each, in NumPy."""
    for each in [m for m in net if isinstance(m, nn.Linear)][:layers]:
        x = np.tanh(x @ each.weight.detach().numpy().T + each.bias.detach().numpy())
    return x


@needs_torch
def test_the_last_hidden_layer_and_others():
    net = mlp(4, 16, 8, 1)
    phi = pr.TorchFeatures(net)
    assert phi.size == 9
    np.testing.assert_allclose(phi(X), np.column_stack([np.ones(300), by_hand(net, X, 2)]), atol=1e-12)
    np.testing.assert_allclose(pr.TorchFeatures(net, layer="1")(X)[:, 1:], by_hand(net, X, 1), atol=1e-12)
    assert phi(X[:0]).shape == (0, 9)
    assert not phi.outside(X).any()
    given = X.copy()
    given.flags.writeable = False
    np.testing.assert_array_equal(phi.whitened(given)(given), phi.whitened(X)(X))
    np.testing.assert_array_equal(given, X)


@needs_torch
def test_which_layer_is_the_last_hidden_one():
    """That before a linear head, whatever comes of its shape; otherwise what the module returns."""

    class Critic(nn.Module):
        def __init__(self, change):
            super().__init__()
            self.head, self.body, self.change = nn.Linear(8, 1), nn.Linear(4, 8), change  # in no order

        def forward(self, x):
            return self.change(self.head(torch.relu(self.body(x))))

    hidden = lambda net: torch.relu(net.body(torch.tensor(X, dtype=torch.float32))).detach().numpy()  # noqa: E731
    for change in (lambda v: v, lambda v: v.squeeze(-1)):
        net = Critic(change)
        np.testing.assert_allclose(pr.TorchFeatures(net, shape=4)(X)[:, 1:], hidden(net), atol=1e-6)
    assert pr.TorchFeatures(Critic(torch.exp), shape=4).size == 2
    assert pr.TorchFeatures(Critic(lambda v: (v, v)), "body", shape=4).size == 9
    with pytest.raises(InvalidInputError, match="name a layer="):
        pr.TorchFeatures(Critic(lambda v: (v, v)), shape=4)
    assert pr.TorchFeatures(nn.Sequential(nn.Linear(4, 6), nn.ReLU())).size == 7  # an encoder


@needs_torch
def test_images_and_chosen_coordinates():
    net = nn.Sequential(nn.Conv2d(1, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(12, 1))
    x = np.random.default_rng(1).normal(size=(20, 10))
    phi = pr.TorchFeatures(net, shape=(1, 3, 3), dims=range(1, 10))
    with torch.no_grad():
        want = net[:3](torch.tensor(x[:, 1:], dtype=torch.float32).reshape(-1, 1, 3, 3)).numpy()
    np.testing.assert_allclose(phi(x)[:, 1:], want, atol=1e-6)


@needs_torch
def test_the_callers_module_is_left_alone_and_the_features_as_well():
    net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.BatchNorm1d(8), nn.Linear(8, 1)).train()
    before = copy.deepcopy(net.state_dict())
    phi = pr.TorchFeatures(net)
    first = phi(X)
    np.testing.assert_array_equal(phi(X), first)  # evaluation mode: no chance, no batch statistics
    assert net.training
    assert all(each.requires_grad for each in net.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    with torch.no_grad():
        net[0].weight += 1.0
    np.testing.assert_array_equal(phi(X), first)
    threads = torch.get_num_threads()
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(phi, [X] * 20):
            np.testing.assert_array_equal(found, first)
    assert torch.get_num_threads() == threads


@needs_torch
def test_whitening_keeps_what_varies():
    """h = (3x_0, 2x_1, 0.01x_2, x_0 − x_1, 5): two directions of size, one that is small, none besides."""
    h = nn.Linear(4, 5, dtype=torch.float64)
    with torch.no_grad():
        h.weight[:] = torch.tensor(
            [[3.0, 0, 0, 0], [0, 2, 0, 0], [0, 0, 0.01, 0], [1, -1, 0, 0], [0, 0, 0, 0]]
        )
        h.bias[:] = torch.tensor([1.0, 0, 0, 0, 5])
    phi = pr.TorchFeatures(h)
    for cut, size in ((1e-6, 4), (1e-3, 3), (0.99, 2)):
        white = phi.whitened(X, cut)(X)
        assert white.shape == (300, size)
        np.testing.assert_allclose(white[:, 1:].mean(0), 0, atol=1e-9)
        np.testing.assert_allclose(white[:, 1:].T @ white[:, 1:] / 300, np.eye(size - 1), atol=1e-9)
    white = phi.whitened(X)
    assert white == phi.whitened(X)
    assert white != phi
    assert white != phi.whitened(X, 1e-3)
    assert white.whitened(X) == white  # of the network's layer again
    fit = np.linalg.lstsq(white(X), phi(X), rcond=None)[1]
    assert np.all(fit < 1e-20)  # the same span
    with pytest.raises(InvalidInputError, match="the same at all"):
        phi.whitened(np.ones((5, 4)))


@needs_torch
def test_normalisation():
    net, stats = mlp(4, 8, 1), {"mean": [1, 2, 3, 4], "var": [4, 1, 9, 0], "epsilon": 1e-2, "clip": 2.0}
    phi = pr.TorchFeatures(net, normalisation=stats)
    u = np.clip((X - [1, 2, 3, 4]) / np.sqrt(np.array([4, 1, 9, 0]) + 1e-2), -2, 2)
    np.testing.assert_allclose(phi(X), pr.TorchFeatures(net)(u), atol=1e-12)
    assert phi != pr.TorchFeatures(net)
    for bad in ({"mean": [0] * 3, "var": [1] * 3}, {"mean": [0] * 4}, {"mean": [0] * 4, "var": [-1] * 4}, 3):
        with pytest.raises(InvalidInputError, match="normalisation"):
            pr.TorchFeatures(net, normalisation=bad)


@needs_torch
def test_what_is_refused(tmp_path):
    net = mlp(4, 8, 1)
    for wrong, said in (
        (lambda: pr.TorchFeatures(np.tanh), "must be a torch.nn.Module"),
        (lambda: pr.TorchFeatures(net, "nine"), "one of 0, 1, 2"),
        (lambda: pr.TorchFeatures(nn.ReLU()), "shape must be given"),
        (lambda: pr.TorchFeatures(net, shape=3), "pass shape="),
        (lambda: pr.TorchFeatures(net)(X[:, :3]), "4 coordinates"),
        (lambda: pr.TorchFeatures(net, device="tpu"), "device must be"),
        (lambda: pr.TorchFeatures(net).whitened(X, 2.0), "cut must be"),
        (lambda: from_sb3(net), "Stable-Baselines3"),
        (lambda: from_sb3(tmp_path / "none.zip"), "does not exist"),
        (lambda: pr.TorchFeatures(nn.Sequential(*net, Log()), layer="3")(-X), "finite"),
    ):
        with pytest.raises(InvalidInputError, match=said):
            wrong()


if TORCH:

    class Log(nn.Module):
        def forward(self, x):
            return torch.log(x)


def chain_data():
    rng = np.random.default_rng(5)
    lengths = rng.integers(5, 30, 60)
    states = rng.normal(size=(lengths.sum() + 60, 4))
    return pr.Trajectories(states, rng.normal(size=lengths.sum()), lengths, np.ones(60, bool))


@needs_torch
def test_saving_keeps_the_hash_and_loading_asks_for_the_module(tmp_path):
    net, data = mlp(4, 8, 1), chain_data()
    phi = pr.TorchFeatures(net, normalisation={"mean": [0.1] * 4, "var": [2.0] * 4}).whitened(data.states)
    risk = pr.LSTD(pr.features.Joint([phi, pr.Polynomial(1, [-5] * 4, [5] * 4)]), lam=0.5).fit(data)
    risk.save(tmp_path / "r.npz")
    again = pr.RiskFunction.load(tmp_path / "r.npz", features=net)
    np.testing.assert_array_equal(again.variance(X), risk.variance(X))
    assert again.features == risk.features
    again = pr.RiskFunction.load(tmp_path / "r.npz", features=pr.TorchFeatures(net))
    np.testing.assert_array_equal(again.standard_error(X, of="mean"), risk.standard_error(X, of="mean"))
    bare = pr.RiskFunction.load(tmp_path / "r.npz")
    np.testing.assert_array_equal(bare.w_mean, risk.w_mean)
    with pytest.raises(InvalidInputError, match="features must be given again"):
        bare.mean(X)
    other = copy.deepcopy(net)
    with torch.no_grad():
        other[0].bias[3] += 1e-12
    with pytest.raises(MismatchError, match="hash"):
        pr.RiskFunction.load(tmp_path / "r.npz", features=other)
    other = nn.Sequential(net[0], nn.ReLU(), net[2])  # the same weights
    with pytest.raises(MismatchError, match="activations"):
        pr.RiskFunction.load(tmp_path / "r.npz", features=other)
    for features in ([np.sin, net], [other, net], phi, risk.features):
        again = pr.RiskFunction.load(tmp_path / "r.npz", features=features)
        np.testing.assert_array_equal(again.variance(X), risk.variance(X))
    with pytest.raises(InvalidInputError, match="features must be given again"):
        pr.RiskFunction.load(tmp_path / "r.npz", features=np.sin).mean(X)
    assert pr.TorchFeatures(other) != pr.TorchFeatures(net)
    assert from_spec(json.loads(json.dumps(phi.spec()))) == phi
    assert pickle.loads(pickle.dumps(phi)) == phi


@needs_torch
def test_a_linear_system_is_recovered_through_a_network():
    """x' = Fx + w, cost xᵀQx: six squares (aᵀx)² of a hidden layer span J and V, and so do random ones."""
    gamma, Sigma, F = 0.9, np.diag([0.2, 0.1, 0.3]), np.array([[0.8, 0.3, 0], [0, 0.6, 0.2], [-0.2, 0, 0.7]])
    Q = np.diag([1.0, 0.5, 0.2])
    P = sla.solve_discrete_lyapunov(np.sqrt(gamma) * F.T, Q)
    S = sla.solve_discrete_lyapunov(gamma * F.T, 4 * gamma**2 * F.T @ P @ Sigma @ P @ F)
    s = (2 * gamma**2 * np.trace(P @ Sigma @ P @ Sigma) + gamma**2 * np.trace(S @ Sigma)) / (1 - gamma**2)
    rng = np.random.default_rng(3)
    T, K = 40, 1500
    states = np.empty((K, T + 1, 3))
    states[:, 0] = rng.normal(size=(K, 3)) * 2
    for t in range(T):
        states[:, t + 1] = states[:, t] @ F.T + rng.normal(size=(K, 3)) * np.sqrt(np.diag(Sigma))
    cost = np.einsum("eti,ij,etj->et", states[:, :-1], Q, states[:, :-1])
    data = pr.Trajectories(states.reshape(-1, 3), cost.ravel(), [T] * K, [False] * K)

    class Squares(nn.Module):
        def forward(self, x):
            return x**2

    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(3, 9, bias=False), Squares(), nn.Linear(9, 1)).double()
    phi = pr.TorchFeatures(net).whitened(data.states)
    assert phi.size == 1 + 6  # nine units, six quadratic monomials
    risk = pr.LSTD(phi, lam=0.5, discount=gamma, variance="direct").fit(data)
    at = np.array([[0.0, 0, 0], [1, -1, 0], [2, 1, 1], [-1, 2, 0.5]])
    J = np.einsum("ni,ij,nj->n", at, P, at) + gamma * np.trace(P @ Sigma) / (1 - gamma)
    V = np.einsum("ni,ij,nj->n", at, S, at) + s
    assert (np.abs(risk.mean(at) - J) < 4 * risk.standard_error(at, "mean")).all()
    assert (np.abs(risk.variance(at) - V) < 4 * risk.standard_error(at, of="variance")).all()
    assert (risk.standard_error(at, of="variance") < 0.1 * V).all()
    assert (risk.standard_error(at, "mean") < 0.02 * J).all()


@pytest.mark.skipif(not TORCH or not torch.cuda.is_available(), reason="no GPU, or no PyTorch for one")
def test_a_network_on_a_gpu(tmp_path):
    """The same features as on the CPU, and an estimate that is loaded onto either."""
    net, data = mlp(4, 8, 1), chain_data()
    here, there = (pr.TorchFeatures(net, device=device).whitened(data.states) for device in ("cpu", "cuda"))
    np.testing.assert_allclose(there(X), here(X), atol=1e-9)
    plain = [pr.TorchFeatures(net, device=device) for device in ("cpu", "cuda", "auto")]
    assert plain[0] == plain[1]
    assert [each.device for each in plain] == ["cpu", "cuda", "cuda"]
    np.testing.assert_allclose(plain[1](X), plain[0](X), atol=1e-12)
    risk = pr.LSTD(there, lam=0.5).fit(data)
    risk.save(tmp_path / "r.npz")
    for module, device in ((net, "cpu"), (plain[1], "cuda")):
        again = pr.RiskFunction.load(tmp_path / "r.npz", features=module)
        assert again.features.device == device
        np.testing.assert_allclose(again.variance(X), risk.variance(X), rtol=1e-6)


# Stable-Baselines3


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A model of each kind, not trained, and its file."""
    import stable_baselines3 as sb3

    folder = tmp_path_factory.mktemp("models")
    made = {
        "PPO": sb3.PPO("MlpPolicy", "CartPole-v1", n_steps=64, seed=0, device="cpu"),
        "A2C": sb3.A2C("MlpPolicy", "Pendulum-v1", seed=0, device="cpu", policy_kwargs={
            "net_arch": {"pi": [16], "vf": [24, 12]}, "activation_fn": nn.ReLU}),
        "DQN": sb3.DQN("MlpPolicy", "CartPole-v1", seed=0, device="cpu"),
        "SAC": sb3.SAC("MlpPolicy", "Pendulum-v1", buffer_size=10, seed=0, device="cpu"),
        "TD3": sb3.TD3("MlpPolicy", "Pendulum-v1", buffer_size=10, seed=0, device="cpu"),
    }  # fmt: skip
    for name, model in made.items():
        model.save(folder / f"{name}.zip")
    return made, folder


@needs_sb3
@pytest.mark.parametrize("name", ["PPO", "A2C", "DQN", "SAC", "TD3"])
def test_the_value_networks_last_hidden_layer(models, name):
    """By Stable-Baselines3's own functions; the file and the live model are the same features."""
    model, path = models[0][name], models[1] / f"{name}.zip"
    x = X[:, : model.observation_space.shape[0]].astype(np.float32)
    policy, obs = model.policy, torch.tensor(x)
    with torch.no_grad():
        if name in ("PPO", "A2C"):
            want = policy.mlp_extractor.forward_critic(policy.extract_features(obs))
        elif name == "DQN":
            want = policy.q_net.q_net[:-1](obs)
        else:
            action = policy._predict(obs, deterministic=True)
            want = policy.critic.qf0[:-1](torch.cat([obs, action], 1))
    live, read = from_sb3(model), from_sb3(str(path))
    assert live == read
    np.testing.assert_allclose(read(x)[:, 1:], want.numpy(), atol=1e-5)
    np.testing.assert_array_equal(live(x), read(x))
    assert len(np.unique(want.numpy())) > 100


@needs_sb3
def test_an_image_policy_must_be_live(tmp_path):
    import gymnasium as gym
    import stable_baselines3 as sb3

    class Pictures(gym.Env):
        observation_space = gym.spaces.Box(0, 255, (3, 36, 36), np.uint8)
        action_space = gym.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            return self.observation_space.sample(), {}

        def step(self, action):
            return self.observation_space.sample(), 0.0, False, False, {}

    model = sb3.PPO("CnnPolicy", Pictures(), n_steps=64, seed=0, device="cpu")
    x = np.random.default_rng(0).integers(0, 256, (5, 3 * 36 * 36))
    phi = from_sb3(model)
    with torch.no_grad():
        pictures = torch.tensor(x).reshape(5, 3, 36, 36)
        want = model.policy.mlp_extractor.forward_critic(model.policy.extract_features(pictures))
    assert phi.size == 513
    np.testing.assert_allclose(phi(x)[:, 1:], want.numpy(), atol=1e-5)
    model.save(tmp_path / "cnn.zip")
    with pytest.raises(InvalidInputError, match="pass the model"):
        from_sb3(tmp_path / "cnn.zip")


@needs_sb3
def test_observations_are_normalised_as_in_training(tmp_path):
    import gymnasium as gym
    import stable_baselines3 as sb3
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    env = VecNormalize(DummyVecEnv([lambda: gym.make("Pendulum-v1")]), clip_obs=1.5)
    model = sb3.PPO("MlpPolicy", env, n_steps=64, seed=0, device="cpu").learn(64)
    x = (X[:, :3] * [1, 1, 4]).astype(np.float32)
    obs = torch.tensor(env.normalize_obs(x))
    with torch.no_grad():
        want = model.policy.mlp_extractor.forward_critic(model.policy.extract_features(obs)).numpy()
    np.testing.assert_allclose(from_sb3(model)(x)[:, 1:], want, atol=1e-5)
    model.save(tmp_path / "m.zip")
    stats = tmp_path / "stats.npz"
    np.savez(stats, mean=env.obs_rms.mean, var=env.obs_rms.var, clip=env.clip_obs)
    for given in (env, stats, str(stats)):
        np.testing.assert_allclose(
            from_sb3(tmp_path / "m.zip", normalisation=given)(x)[:, 1:], want, atol=1e-5
        )
    assert np.abs(from_sb3(tmp_path / "m.zip")(x)[:, 1:] - want).max() > 0.1
    env.save(str(tmp_path / "stats.pkl"))
    with pytest.raises(InvalidInputError, match=r"npz file.*numpy\.savez"):
        from_sb3(tmp_path / "m.zip", normalisation=tmp_path / "stats.pkl")


class Bomb:
    """What a file of somebody else's may hold."""

    def __reduce__(self):
        return os.system, ("touch exploded",)


@needs_sb3
def test_nothing_in_a_file_is_run(models, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with zipfile.ZipFile(models[1] / "PPO.zip") as good:
        parts = {name: good.read(name) for name in good.namelist()}
    bomb = pickle.dumps(Bomb())
    data = json.loads(parts["data"])
    for value in data.values():
        if isinstance(value, dict):
            value[":serialized:"] = base64.b64encode(bomb).decode()
    saved = io.BytesIO()
    torch.save({"value_net.weight": Bomb()}, saved)
    for name, change, harmless in (
        ("pickled.zip", {"data": json.dumps(data).encode()}, True),
        ("weights.zip", {"policy.pth": saved.getvalue()}, False),
        ("bare.zip", {"policy.pth": bomb}, False),
    ):
        with zipfile.ZipFile(name, "w") as bad:
            for part, content in {**parts, **change}.items():
                bad.writestr(part, content)
        if harmless:
            assert from_sb3(name) == from_sb3(models[0]["PPO"])
        else:
            with pytest.raises(InvalidInputError, match="none or is damaged"):
                from_sb3(name)
    assert not (tmp_path / "exploded").exists()


@needs_sb3
def test_an_evaluation_by_a_models_features(models, tmp_path):
    """From the command line's text to a folder that is read again, while the model is where it was."""
    path = tmp_path / "deep" / "model.zip"
    path.parent.mkdir()
    path.write_bytes((models[1] / "PPO.zip").read_bytes())
    data = chain_data()
    result = pr.evaluate(data, 0.9, f"sb3:{path}", seed=0)
    phi = from_sb3(path).whitened(result.survey.visited)
    assert result.risk.features == phi
    want = pr.LSTD(phi, lam=0.9, discount=0.9).fit(data)
    np.testing.assert_allclose(result.risk.mean(X), want.mean(X))
    result.save(tmp_path / "out")
    bare = pr.Evaluation.load(tmp_path / "out")  # the path in the file is not looked at
    with pytest.raises(InvalidInputError, match=r"given again.* the network of '.*model\.zip'; pass it"):
        bare.risk.mean(X)
    for features in (from_sb3(path), from_sb3(models[0]["PPO"])):
        again = pr.Evaluation.load(tmp_path / "out", features=features)
        np.testing.assert_array_equal(again.risk.mean(X), result.risk.mean(X))
    with pytest.raises(MismatchError, match="hash"):
        pr.Evaluation.load(tmp_path / "out", features=from_sb3(models[0]["A2C"]))
    at = ["query", str(tmp_path / "out"), "--at", ",".join(map(str, X[0])), "--json"]
    assert run(at) == 1
    assert run([*at, "--features", f"sb3:{path}"]) == 0


def test_models_are_spelled_with_their_paths():
    text = "sb3:a/b.c/model.zip,normalisation=d/stats.npz,dims=x+y/poly:1,second=sb3:/e/f.zip"
    found = Spelling.parse(text)
    assert (found.size, found.dims) == ("a/b.c/model.zip", ("x", "y"))
    assert found.options == (("normalisation", "d/stats.npz"),)
    assert [each.kind for each in found.maps] == ["sb3", "poly"]
    assert found.second.size == "/e/f.zip"
    assert str(found) == text
    for wrong in ("sb3", "sb3:", "sb3:model", "sb3:model.zip,shrink=3", "poly:1,normalisation=a.npz"):
        with pytest.raises(InvalidInputError, match="misspelled"):
            Spelling.parse(wrong)


@pytest.mark.skipif(TORCH, reason="PyTorch is installed")
def test_without_pytorch():
    for ask in (lambda: pr.TorchFeatures(None), lambda: from_sb3("model.zip"),
                lambda: pr.evaluate(chain_data(), features="sb3:model.zip")):  # fmt: skip
        with pytest.raises(MissingPackageError, match=r"\[torch\]"):
            ask()
