"""Episodes on a GPU beside the same on the CPU. Where there is no GPU: what is said of it."""

import importlib.util
import shutil
import sys
from types import SimpleNamespace

import cupy_stand_in
import numpy as np
import pytest

import policyrisk as pr
from policyrisk._core.devices import on_gpu
from policyrisk.control import pinball_policy
from policyrisk.domains import Pinball, Portfolio, UniformPolicy
from policyrisk.errors import DeviceError, InvalidInputError, MissingPackageError, PolicyRiskError
from policyrisk.features import radial
from policyrisk.lstd import accumulate, gpu_sums

GPU = importlib.util.find_spec("numba_cuda") is not None and on_gpu("auto", "numba_cuda")
CUPY = importlib.util.find_spec("cupy") is not None and on_gpu("auto", "cupy")
needs_cupy = pytest.mark.skipif(not CUPY, reason="no GPU, or CuPy is not installed")
needs_gpu = pytest.mark.skipif(not GPU, reason="no GPU, or numba-cuda is not installed")


def domains():
    yield Pinball("simple"), pinball_policy("simple")
    yield Pinball("medium", actions=5, rewards="original"), UniformPolicy(5)
    yield Portfolio(), UniformPolicy(2)
    yield Pinball("simple"), soft_pinball()
    yield Portfolio(), soft_portfolio()
    yield pr.domains.RewardSoFar(Portfolio()), soft_portfolio()


def soft_pinball():
    shipped = pinball_policy("simple")
    return pr.SoftmaxPolicy(shipped.features, shipped.actions, 8.0 * shipped.weights)


def soft_portfolio():
    phi = Portfolio().features()
    return pr.SoftmaxPolicy(phi, 2, np.random.default_rng(0).normal(size=(phi.size, 2)))


@needs_gpu
@pytest.mark.parametrize("number", range(6))
def test_returns_are_those_of_the_cpu(number):
    domain, policy = list(domains())[number]
    starts = domain.sample_starts(3000, seed=1)
    here = domain.returns(policy, starts, 4, seed=2, max_steps=2000, discount=0.99)
    there = domain.returns(policy, starts, 4, seed=2, max_steps=2000, discount=0.99, device="cuda")
    same = here.lengths == there.lengths
    assert same.mean() > 0.999  # an episode that differs by rounding may take another turn
    np.testing.assert_allclose(there.returns[same], here.returns[same], rtol=1e-12, atol=1e-9)
    np.testing.assert_array_equal(there.terminated[same], here.terminated[same])


@needs_gpu
@pytest.mark.parametrize("number", range(6))
def test_recorded_episodes_are_those_of_the_cpu(number):
    domain, policy = list(domains())[number]
    starts = domain.sample_starts(500, seed=3)
    here = domain.rollout(policy, starts, seed=4, max_steps=300)
    there = domain.rollout(policy, starts, seed=4, max_steps=300, device="cuda")
    same = np.flatnonzero(here.lengths == there.lengths)
    assert len(same) > 495
    for k in same:
        a, b = here[int(k) : int(k) + 1], there[int(k) : int(k) + 1]
        np.testing.assert_array_equal(a.actions, b.actions)
        np.testing.assert_allclose(a.states, b.states, rtol=0, atol=1e-9)
        np.testing.assert_allclose(a.rewards, b.rewards)
    assert there.propensities is None or here.propensities is not None


@needs_gpu
def test_monte_carlo_draws_what_it_draws_on_the_cpu():
    pinball, policy = next(domains())
    states = pinball.sample_starts(40, seed=5)
    here, there = (
        pr.monte_carlo(pinball, policy, states, episodes=700, seed=6, device=device)
        for device in ("cpu", "cuda")
    )
    assert np.mean(here.mean == there.mean) > 0.9
    np.testing.assert_allclose(there.mean, here.mean, atol=0.05)
    np.testing.assert_array_equal(here.episodes, there.episodes)


@needs_gpu
def test_the_actor_critic_learns_on_a_gpu_what_it_learns_on_the_cpu():
    portfolio = Portfolio()
    phi = portfolio.features()
    critic = pr.LSTD(pr.Joint([pr.Polynomial(2, [0], [50], dims=[0]), phi]), variance="direct")
    search = pr.ActorCritic(
        pr.SoftmaxPolicy(phi, 2), pr.criteria.MeanMinusVariance(0.2), critic, episodes=300, iterations=4
    )
    here, there = (search.fit(portfolio, seed=0, device=device) for device in ("cpu", "cuda"))
    np.testing.assert_allclose(there.history[0], here.history[0], rtol=0.02)
    np.testing.assert_allclose(there.policy.weights, here.policy.weights, atol=0.05)
    with pytest.raises(DeviceError, match="a policy that is not compiled"):
        pr.ActorCritic(
            pr.SoftmaxPolicy(pr.Polynomial(1, [0], [50], dims=[0]), 2), search.criterion, critic
        ).fit(portfolio, device="cuda")


def test_what_a_gpu_cannot_run():
    chain = pr.domains.walk(5)
    if GPU:
        with pytest.raises(DeviceError, match="compiled domains"):
            pr.monte_carlo(chain, None, [0], episodes=3, device="cuda")
    with pytest.raises(InvalidInputError, match="device must be"):
        pr.monte_carlo(chain, None, [0], episodes=3, device="gpu")


@pytest.mark.skipif(GPU, reason="there is a GPU")
def test_without_a_gpu():
    pinball, policy = next(domains())
    starts = pinball.sample_starts(2, seed=1)
    for ask in (
        lambda: pinball.rollout(policy, starts, device="cuda"),
        lambda: pinball.returns(policy, starts, device="cuda"),
        lambda: pr.monte_carlo(pinball, policy, starts, episodes=2, device="cuda"),
        lambda: pr.ActorCritic(
            soft_portfolio(), pr.criteria.Sharpe(), pr.LSTD(Portfolio().features()), episodes=2, iterations=1
        ).fit(Portfolio(), device="cuda"),
    ):
        with pytest.raises((DeviceError, MissingPackageError)) as caught:
            ask()
        assert isinstance(caught.value, PolicyRiskError)
        assert "cuda" in str(caught.value)
    here, auto = (pinball.returns(policy, starts, seed=1, device=device) for device in ("cpu", "auto"))
    np.testing.assert_array_equal(auto.returns, here.returns)


class Plain:
    """Features without a way to find them on a GPU, some of them 0."""

    size = 12

    def __call__(self, states):
        return np.maximum(np.sin(np.asarray(states) @ np.arange(48.0).reshape(4, 12)), 0.0)


def maps(kind):
    if kind == "plain":
        return Plain(), None
    if kind == "network":
        torch = pytest.importorskip("torch", reason="PyTorch is not installed")
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(4, 50), torch.nn.Tanh(), torch.nn.Linear(50, 1)).double()
        return pr.TorchFeatures(net, device="cuda"), None
    grid = pr.RadialBasis.grid([0, 0], [1, 1], (9, 9), dims=[0, 1], normalised=kind == "normalised")
    return grid, pr.Polynomial(3, [0] * 4, [1] * 4) if kind == "two" else None  # 0 at rest


def check_sums(kind, discount):
    """Cut-off episodes, features with zeros, several chunks, one map and two."""
    pinball, policy = next(domains())
    data = pinball.rollout(policy, pinball.sample_starts(300, seed=7), seed=8, max_steps=40)
    lstd = pr.LSTD(*maps(kind), lam=0.8, discount=discount)
    here, there = (lstd.equations(data, device=device) for device in ("cpu", "cuda"))
    for name in ("A", "b", "C", "D", "e", "gram", "mean_gram"):
        a, b = (np.asarray(getattr(each, name)) for each in (here, there))
        assert np.abs(a - b).max() <= 1e-12 * np.abs(a).max(), name
    for name in ("visits", "second_visits", "feature_episodes", "second_feature_episodes"):
        np.testing.assert_array_equal(getattr(here, name), getattr(there, name))
    assert (here.episodes, here.terminated, here.transitions, here.outside) == (
        there.episodes,
        there.terminated,
        there.transitions,
        there.outside,
    )
    whole = sum(lstd.equations(part, device="cuda") for part in (data[:100], data[100:]))
    assert np.abs(whole.A - here.A).max() <= 1e-12 * np.abs(here.A).max()


@needs_cupy
@pytest.mark.parametrize("discount", [1.0, 0.9])
@pytest.mark.parametrize("kind", ["radial", "normalised", "plain", "two", "network"])
def test_sums_of_dense_features_are_those_of_the_cpu(kind, discount):
    check_sums(kind, discount)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler to stand in for CUDA's")
    return cupy_stand_in.Kernels(tmp_path_factory.mktemp("kernels"), compiler)


@pytest.mark.parametrize("discount", [1.0, 0.9])
@pytest.mark.parametrize(
    ("kind", "slabs"), [("radial", 1), ("radial", 3), ("normalised", 3), ("plain", 3), ("two", 1), ("two", 3)]
)
def test_the_gpus_sums_on_the_cpu(kind, discount, slabs, kernels, monkeypatch):
    """The same kernels and the same calls, by a stand-in for CuPy."""
    for module in (gpu_sums, radial):
        monkeypatch.setattr(module, "cupy", cupy_stand_in.cupy)
        monkeypatch.setattr(module, "kernel", kernels)
    monkeypatch.setitem(sys.modules, "cupyx", SimpleNamespace(empty_pinned=np.empty))
    monkeypatch.setattr(accumulate, "on_gpu", lambda device, package: device == "cuda")
    for name, value in {"_MOST": 3000, "_FEWEST": 1, "_SLABS": slabs, "_SWEEPERS": 1000}.items():
        monkeypatch.setattr(gpu_sums, name, value)
    check_sums(kind, discount)


@needs_cupy
def test_a_fit_on_the_gpu():
    pinball, policy = next(domains())
    data = pinball.rollout(policy, pinball.sample_starts(500, seed=9), seed=10)
    lstd = pr.LSTD(pr.Polynomial(3, [0] * 4, [1] * 4), variance="direct")
    here, there = (lstd.fit(data, device=device) for device in ("cpu", "cuda"))
    x = data.starts()[:20]
    np.testing.assert_allclose(there.mean(x), here.mean(x), rtol=1e-6)
    np.testing.assert_allclose(there.standard_error(x, of="std"), here.standard_error(x, of="std"), rtol=1e-6)


@needs_cupy
def test_sparse_features_are_summed_on_the_cpu():
    data = pr.domains.walk(5).sample(0, episodes=10, seed=1)
    with pytest.raises(DeviceError, match="dense features"):
        pr.LSTD(pr.Tabular(5)).fit(data, device="cuda")


@pytest.mark.skipif(CUPY, reason="there is a GPU")
def test_sums_without_a_gpu():
    data = pr.domains.walk(5).sample(0, episodes=10, seed=1)
    lstd = pr.LSTD(pr.Polynomial(1, [0], [4]))
    for ask in (lstd.fit, lstd.equations):
        with pytest.raises((DeviceError, MissingPackageError), match="cuda"):
            ask(data, device="cuda")
    np.testing.assert_array_equal(lstd.equations(data, device="auto").A, lstd.equations(data).A)
