"""The portfolio: simulator, exact process and environment are one thing, with the known figures."""

import json

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import policyrisk as pr
from experiments import portfolio as experiment
from policyrisk.criteria import MeanMinusStd, MeanMinusVariance
from policyrisk.domains import UniformPolicy
from policyrisk.errors import InvalidInputError, MismatchError

PORTFOLIO = pr.domains.Portfolio()


@pytest.mark.parametrize(
    ("probability", "mean", "variance"),
    [(0.0, 50.0, 0.0), (1.0, 65.948313, 47.143059), (0.5, 57.974157, 16.107994)],
)
def test_known_figures(probability, mean, variance):
    policy = np.tile([1 - probability, probability], (PORTFOLIO.mdp.n, 1))
    chain = PORTFOLIO.mdp.chain(policy)
    assert chain.mean()[0] == pytest.approx(mean, abs=1e-6)
    assert chain.variance()[0] == pytest.approx(variance, abs=1e-6)


def twin(state, action, changes, lost):
    """One period by the rules of the module's docstring, in plain Python."""
    period, rate, *slots = state
    if changes:
        rate = 3.1 - rate
    matured = slots.pop(0)
    slots.append(float(action))
    reward = 0.2 * (5 - sum(slots)) + (4 * 0.2 * rate if matured and not lost else 0.0)
    return [period + 1, rate, *slots], reward


def test_the_process_has_the_branches_of_the_rules():
    index = {tuple(state): i for i, state in enumerate(PORTFOLIO.states.round(9).tolist())}
    assert tuple(PORTFOLIO.states[0]) == (0.0, 2.0, 0.0, 0.0, 0.0, 0.0)
    for action, branches in enumerate(PORTFOLIO.mdp.branches):
        for x in range(0, 1600, 7):
            state = PORTFOLIO.states[x].tolist()
            expected = {}
            for changes, p in ((False, 0.9), (True, 0.1)):
                for lost, q in ((False, 0.95), (True, 0.05)):
                    after, reward = twin(state, action, changes, lost)
                    y = 1600 if after[0] == 50 else index[tuple(np.round(after, 9))]
                    key = (y, round(reward, 9))
                    expected[key] = expected.get(key, 0.0) + p * q
            found = {}
            for i in range(branches.indptr[x], branches.indptr[x + 1]):
                key = (branches.successor[i], round(branches.reward[i], 9))
                found[key] = found.get(key, 0.0) + branches.probability[i]
            assert found == pytest.approx(expected)


def test_the_simulator_follows_the_rules():
    rng = np.random.default_rng(0)
    states = PORTFOLIO.states[rng.integers(1600, size=4000)]
    actions = rng.integers(2, size=4000)
    after, rewards, ended = PORTFOLIO.step(states, actions, seed=3)
    changes, lost = after[:, 1] != states[:, 1], np.zeros(4000, dtype=bool)
    for i in range(4000):
        kept = twin(states[i].tolist(), actions[i], changes[i], False)
        lost[i] = abs(kept[1] - rewards[i]) > 1e-9
        expected = twin(states[i].tolist(), actions[i], changes[i], lost[i])
        assert after[i] == pytest.approx(expected[0])
        assert rewards[i] == pytest.approx(expected[1])
    assert (ended == (states[:, 0] == 49)).all()
    matured = states[:, 2] == 1
    assert not lost[~matured].any()
    for seen, p in ((changes, 0.1), (lost[matured], 0.05)):
        assert abs(seen.mean() - p) < 4 * np.sqrt(p * (1 - p) / seen.size)


def test_simulated_returns_have_the_exact_moments():
    returns = PORTFOLIO.returns(UniformPolicy(2), PORTFOLIO.sample_starts(1), 50_000, seed=1).returns
    z = (returns.mean() - 57.974157) / np.sqrt(16.107994 / returns.size)
    spread = np.std((returns - returns.mean()) ** 2) / np.sqrt(returns.size)
    assert abs(z) < 4
    assert abs(returns.var() - 16.107994) < 4 * spread
    data = PORTFOLIO.rollout(lambda states: np.zeros(len(states), dtype=int), PORTFOLIO.sample_starts(2))
    assert data.returns() == pytest.approx([50.0, 50.0])
    assert data.lengths.tolist() == [50, 50]
    assert data.terminated.all()


def test_features_tell_the_states_apart():
    with_period = PORTFOLIO.features(period=True).active(PORTFOLIO.states).ravel()
    assert len(set(with_period)) == 1600
    without = PORTFOLIO.features().active(PORTFOLIO.states).ravel()
    assert len(set(zip(without, PORTFOLIO.states[:, 0], strict=True))) == 1600
    assert len(set(without)) == 32


def test_environment():
    env = gym.make("policyrisk/Portfolio-v0")
    check_env(env.unwrapped, skip_render_check=True)
    observation, _ = env.reset(seed=5)
    assert observation.tolist() == [0.0, 2.0, 0.0, 0.0, 0.0, 0.0]
    total, ended = 0.0, False
    while not ended:
        observation, reward, ended, cut, _ = env.step(0)
        total += reward
        assert not cut
    assert total == pytest.approx(50.0)
    state = [49.0, 1.1, 0.0, 1.0, 0.0, 1.0]
    assert env.reset(options={"state": state})[0].tolist() == state
    assert env.step(1)[2]
    with pytest.raises(InvalidInputError, match="options must have no keys but state"):
        env.reset(options={"place": 1})
    with pytest.raises(gym.error.ResetNeeded):
        gym.make("policyrisk/Portfolio-v0").unwrapped.step(0)


def test_environments_of_one_policy_have_the_exact_mean():
    def invest(batch):
        return np.ones(len(batch), dtype=int)

    data = pr.rollout(gym.make("policyrisk/Portfolio-v0"), invest, episodes=200, seed=0)
    assert abs(data.returns().mean() - 65.948313) < 4 * np.sqrt(47.143059 / 200)


def test_bad_input():
    with pytest.raises(InvalidInputError, match="starts must be"):
        PORTFOLIO.rollout(UniformPolicy(2), [[0, 1.5, 0, 0, 0, 0]])
    with pytest.raises(InvalidInputError, match=r"actions must be in 0, …, 1"):
        PORTFOLIO.step(PORTFOLIO.sample_starts(1), [2])
    with pytest.raises(InvalidInputError, match="actions must be whole numbers"):
        PORTFOLIO.step(PORTFOLIO.sample_starts(1), [0.0])
    with pytest.raises(MismatchError, match="domain's 2 actions"):
        PORTFOLIO.rollout(UniformPolicy(4), PORTFOLIO.sample_starts(1))
    with pytest.raises(InvalidInputError, match="policy must be one of ours"):
        PORTFOLIO.rollout(3, PORTFOLIO.sample_starts(1))
    with pytest.raises(InvalidInputError, match="policy must be a compiled one"):
        PORTFOLIO.returns(lambda states: 0, PORTFOLIO.sample_starts(1))


def test_improved_by_the_exact_gradient():
    better = PORTFOLIO.mdp.improve(
        MeanMinusVariance(0.2), features=PORTFOLIO.features()(PORTFOLIO.states), restarts=0
    )
    assert better.value >= 57.90
    chain = PORTFOLIO.mdp.chain(better.policy)
    assert chain.mean()[0] - 0.2 * chain.variance()[0] == pytest.approx(better.value)
    assert better.policy[:32] == pytest.approx(better.policy[-32:])  # whatever the period


def test_largest_mean():
    best = PORTFOLIO.mdp.improve(MeanMinusStd(0.0), restarts=0)
    assert best.mean == pytest.approx(67.948313, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("period", "c", "least"),
    [
        (False, 0.1, 61.17),
        (False, 0.2, 57.90),
        (False, 0.5, 53.69),
        (False, 1.0, 50.80),
        (True, 0.1, 63.17),
        (True, 0.2, 60.47),
        (True, 0.5, 56.46),
        (True, 1.0, 53.46),
    ],
)
def test_mean_less_variance_is_at_least_what_is_known(period, c, least):
    features = None if period else PORTFOLIO.features()(PORTFOLIO.states)
    better = PORTFOLIO.mdp.improve(MeanMinusVariance(c), features=features, restarts=1)
    chain = PORTFOLIO.mdp.chain(better.policy)
    assert chain.mean()[0] - c * chain.variance()[0] >= least


@pytest.mark.slow
def test_the_experiment(tmp_path, capsys):
    arguments = ["--c", "0.1", "--episodes", "100", "--iterations", "3", "--restarts", "0"]
    experiment.main(["--out", str(tmp_path), *arguments])
    told = capsys.readouterr().out
    assert "always invest" in told
    assert "from episodes" in told
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["simple"]["always invest"] == pytest.approx([65.948313, 47.143059], abs=1e-6)
    assert result["improved"]["slots and rate"][0][2] >= 61.17
    assert result["improved"]["and the period"][0][2] >= 63.17
    mean, variance, value = result["improved"]["from episodes"][0]
    assert value == pytest.approx(mean - 0.1 * variance)
    assert (tmp_path / "portfolio.png").read_bytes().startswith(b"\x89PNG")
