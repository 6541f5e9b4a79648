"""Episodes on a GPU beside the same on the CPU. Where there is no GPU: what is said of it."""

import importlib.util

import numpy as np
import pytest

import policyrisk as pr
from policyrisk.control import pinball_policy
from policyrisk.domains import Pinball, Portfolio, UniformPolicy
from policyrisk.errors import DeviceError, InvalidInputError, MissingPackageError, PolicyRiskError
from policyrisk.simulation.cuda import on_gpu

GPU = importlib.util.find_spec("numba_cuda") is not None and on_gpu("auto")
needs_gpu = pytest.mark.skipif(not GPU, reason="no GPU, or numba-cuda is not installed")


def domains():
    yield Pinball("simple"), pinball_policy("simple")
    yield Pinball("medium", actions=5, rewards="original"), UniformPolicy(5)
    yield Portfolio(), UniformPolicy(2)


@needs_gpu
@pytest.mark.parametrize("number", range(3))
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
@pytest.mark.parametrize("number", range(3))
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
    ):
        with pytest.raises((DeviceError, MissingPackageError)) as caught:
            ask()
        assert isinstance(caught.value, PolicyRiskError)
        assert "cuda" in str(caught.value)
    here, auto = (pinball.returns(policy, starts, seed=1, device=device) for device in ("cpu", "auto"))
    np.testing.assert_array_equal(auto.returns, here.returns)
