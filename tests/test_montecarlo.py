"""Monte Carlo: moments against the exact ones, errors against their spread, domains and environments."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numba
import numpy as np
import pytest
from noise_simulator import ARRAYS, BLOCKS_OF_16, Noise, run_noise, same
from scipy import stats

import policyrisk as pr
from policyrisk.domains.pinball import Pinball, UniformPolicy
from policyrisk.errors import CutOffWarning, InvalidInputError
from policyrisk.returns import MonteCarlo, monte_carlo
from policyrisk.returns.monte_carlo import CUT_OFF, ROWS, STEPS, estimated, merge, tabulate
from policyrisk.risk.start_sums import SampleReturns
from policyrisk.simulation import register
from policyrisk.simulation.compiled import Returns

register()
ID = "policyrisk/Pinball-v0"
ABC = ([[0.3, 0.5], [0.6, 0.0]], [1.0, 3.0])


# --- the moments ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "chain",
    [pr.domains.walk(30), pr.MarkovChain(*ABC), pr.MarkovChain(*ABC, discount=0.9)],
    ids=["walk", "two states", "discounted"],
)
def test_moments_of_chains_are_the_exact_ones_within_their_errors(chain: pr.MarkovChain) -> None:
    states = np.arange(chain.n)
    result = monte_carlo(chain, None, states, 3000, seed=1, discount=chain.discount, max_steps=1000)
    for name in ("mean", "variance", "std"):
        z = (getattr(result, name) - getattr(chain, name)()) / result.standard_error(name)
        assert np.abs(z).max() < 4.0, name
        assert (z**2).sum() < stats.chi2.isf(1e-4, chain.n), name
    assert result.episodes.tolist() == [3000] * chain.n
    assert not result.cut_off.any()


class Exponential(Noise):
    """Returns with mean, variance and std 1, and a fourth moment of 9."""

    def returns(
        self, policy: Any, starts: Any, episodes: int, seed: Any, max_steps: int, discount: float
    ) -> Any:
        out = super().returns(policy, starts, episodes, seed, max_steps, discount)
        out.returns = -np.log1p(-out.returns)
        return out


def test_standard_errors_are_the_spread_over_replications() -> None:
    # A state that is asked for again has randomness of its own: each row is a replication.
    result = monte_carlo(Exponential(), None, np.zeros(1000), episodes=1000, seed=2)
    for name in ("mean", "variance", "std"):
        difference = (getattr(result, name) - 1.0) ** 2 - result.standard_error(name) ** 2
        assert abs(difference.mean() / (difference.std() / np.sqrt(1000))) < 4.0, name
        low, high = result.interval(name, level=0.9).T
        assert 0.85 < ((low <= 1.0) & (high >= 1.0)).mean() < 0.93, name


def test_errors_of_small_samples_by_hand() -> None:
    g = np.array([1.0, 2.0, 6.0, 7.0])
    batch = Returns(g[None], np.ones((1, 4), np.int64), np.ones((1, 4), bool))
    got = estimated(np.zeros((1, 1)), tabulate(batch, 1.0), 1.0, 10)
    # deviations −3, −2, 2, 3: s² = 26/3, μ₂ = 6.5, μ₄ = 48.5
    assert got.mean[0] == 4.0
    assert got.variance[0] == pytest.approx(26 / 3)
    assert got.mean_se[0] == pytest.approx(np.sqrt(26 / 3 / 4))
    assert got.variance_se[0] == pytest.approx(np.sqrt((48.5 - 6.5**2 / 3) / 4))
    assert got.std_se[0] == pytest.approx(got.variance_se[0] / (2 * np.sqrt(26 / 3)))


def test_one_episode_has_a_mean_and_equal_ones_no_variance() -> None:
    chain = pr.MarkovChain([[0.0]], [2.5])
    one = monte_carlo(chain, None, [0], episodes=1, seed=0)
    assert one.mean.tolist() == [2.5]
    assert np.isnan([one.variance, one.std, one.mean_se, one.variance_se, one.std_se]).all()
    many = monte_carlo(chain, None, [0], episodes=5, seed=0)
    assert [getattr(many, name)[0] for name in ARRAYS] == [2.5, 0, 0, 0, 0, 0, 5, 0, 5]


@pytest.mark.parametrize("offset", [0.0, 1e9, -1e9])
def test_digits_survive_a_mean_that_is_far_from_zero(offset: float) -> None:
    simulator = Noise(offset)
    result = monte_carlo(simulator, None, [0.0], episodes=1000, seed=3, max_steps=BLOCKS_OF_16)
    assert len(simulator.seen) == 63
    u = np.concatenate(simulator.seen) - offset  # exact: both are multiples of the same power of two
    truth = SampleReturns.of(u)
    assert result.mean[0] - offset == pytest.approx(truth.mean, abs=1e-6 if offset else 1e-14)
    rounding = 1e-6 if offset else 1e-12
    assert result.variance[0] == pytest.approx(np.var(u, ddof=1), rel=rounding)
    assert result.variance_se[0] == pytest.approx(np.sqrt(truth.covariance()[1, 1]), rel=rounding)


def test_tables_merge_as_plain_sums_do() -> None:
    rng = np.random.default_rng(4)
    g = rng.exponential(size=(5, 40)) + np.arange(5)[:, None] * 10
    lengths = rng.integers(1, 9, g.shape)
    ended = rng.random(g.shape) < 0.8

    def part(a: int, b: int) -> np.ndarray:
        return tabulate(Returns(g[:, a:b], lengths[:, a:b], ended[:, a:b]), 1.0)

    whole, empty = part(0, 40), np.zeros((ROWS, 5))
    for cuts in ([7], [1, 2], [20, 33, 39]):
        table = empty
        for a, b in zip([0, *cuts], [*cuts, 40], strict=True):
            table = merge(table, part(a, b))
        np.testing.assert_allclose(table, whole, rtol=1e-11)
    np.testing.assert_array_equal(merge(whole, empty), whole)
    np.testing.assert_array_equal(merge(empty, whole), whole)
    truth = SampleReturns.of(g[3])
    assert [truth.count, truth.mean, truth.squares, truth.cubes, truth.fourths] == pytest.approx(whole[:5, 3])
    np.testing.assert_array_equal(whole[CUT_OFF], (~ended).sum(axis=1))
    np.testing.assert_array_equal(whole[STEPS], lengths.sum(axis=1))


# --- cut-off episodes -------------------------------------------------------------------------------


def test_cut_off_episodes_are_counted_kept_and_named() -> None:
    chain = pr.MarkovChain([[0.5, 0.0], [0.0, 0.0]], [1.0, 1.0])
    with pytest.warns(CutOffWarning, match=r"of 8000 episodes .* from states number 0: .* raise max_steps=3"):
        result = monte_carlo(chain, None, [0, 1], episodes=4000, seed=5, max_steps=3)
    assert abs(result.cut_off[0] - 500) < 4 * np.sqrt(4000 * 7) / 8
    assert result.cut_off[1] == 0
    # min(τ, 3) is 1, 2, 3 with probabilities ½, ¼, ¼
    assert abs(result.mean[0] - 1.75) < 4 * result.mean_se[0]
    assert abs(result.variance[0] - 0.6875) < 4 * result.variance_se[0]
    np.testing.assert_array_equal(result.cut_off_share, result.cut_off / 4000)
    assert f"{result.cut_off[0]} episodes cut off (6" in str(result)


def test_a_discounted_task_without_end_is_cut_off_only_while_it_matters() -> None:
    chain = pr.MarkovChain([[1.0]], [1.0], discount=0.5)
    result = monte_carlo(chain, None, [0], episodes=3, seed=0, discount=0.5, max_steps=54)
    assert (result.mean[0], result.cut_off[0], result.steps[0]) == (pytest.approx(2.0, abs=1e-15), 0, 162)
    with pytest.warns(CutOffWarning):
        result = monte_carlo(chain, None, [0], episodes=3, seed=0, discount=0.5, max_steps=53)
    assert result.cut_off[0] == 3


# --- domains and environments -----------------------------------------------------------------------


class OnlyRollout:
    def __init__(self, pinball: Pinball) -> None:
        self.pinball = pinball

    def rollout(self, policy: Any, starts: Any, seed: Any, max_steps: int) -> pr.Trajectories:
        return self.pinball.rollout(policy, starts, seed, max_steps)


@pytest.mark.parametrize("discount", [1.0, 0.95])
def test_sums_and_recorded_episodes_agree(discount: float) -> None:
    pinball, policy, states = Pinball("empty"), UniformPolicy(), [[0.5, 0.5], [0.2, 0.9]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CutOffWarning)
        call: dict[str, Any] = {"episodes": 40, "seed": 6, "discount": discount, "max_steps": 2000}
        summed = monte_carlo(pinball, policy, states, **call)
        recorded = monte_carlo(OnlyRollout(pinball), policy, states, **call)
    for name in ARRAYS:
        np.testing.assert_allclose(getattr(summed, name), getattr(recorded, name), rtol=1e-9, err_msg=name)


def test_the_same_bits_on_one_thread_and_on_two() -> None:
    pinball = Pinball("empty")
    runs = []
    threads = numba.get_num_threads()
    try:
        for count in (1, min(2, numba.config.NUMBA_NUM_THREADS)):
            numba.set_num_threads(count)
            runs.append(monte_carlo(pinball, UniformPolicy(), [[0.8, 0.3]], episodes=40, seed=7))
    finally:
        numba.set_num_threads(threads)
    same(*runs)


def seek(states: np.ndarray) -> np.ndarray:
    """Towards the target of the empty maze."""
    d = Pinball("empty").maze.target - states[..., :2] - 0.1 * states[..., 2:]
    return np.where(
        np.abs(d[..., 0]) > np.abs(d[..., 1]), np.where(d[..., 0] > 0, 0, 2), np.where(d[..., 1] > 0, 1, 3)
    )


SEEK_STATES = [[0.3, 0.7, 0.0, 0.0], [0.8, 0.5, 0.1, -0.3]]


@pytest.fixture(scope="module")
def seen() -> MonteCarlo:
    return monte_carlo(Pinball("empty", noise=0.1), seek, SEEK_STATES, episodes=1000, seed=8)


@pytest.mark.parametrize("many", [False, True], ids=["one ball", "many"])
def test_gymnasium_and_the_domain_agree(many: bool, seen: MonteCarlo) -> None:
    env: Any = (
        gym.make_vec(ID, 30, maze="empty", noise=0.1) if many else gym.make(ID, maze="empty", noise=0.1)
    )
    result = monte_carlo(env, seek, SEEK_STATES, episodes=100, seed=9)
    for name in ("mean", "variance", "std"):
        error = np.hypot(result.standard_error(name), seen.standard_error(name))
        z = (getattr(result, name) - getattr(seen, name)) / error
        assert np.abs(z).max() < 4.0, name
    np.testing.assert_allclose(result.steps, -result.mean * 100, rtol=1e-12)
    same(result, monte_carlo(env, seek, SEEK_STATES, episodes=100, seed=9))
    assert (result.mean != monte_carlo(env, seek, SEEK_STATES, episodes=100, seed=10).mean).all()


@pytest.mark.parametrize("many", [False, True], ids=["one ball", "many"])
def test_gymnasium_limits_and_discounts(many: bool) -> None:
    env: Any = (
        gym.make_vec(ID, 4, maze="empty", noise=0.0, max_episode_steps=5)
        if many
        else gym.make(ID, maze="empty", noise=0.0, max_episode_steps=5)
    )
    with pytest.warns(CutOffWarning, match="12 of 12 episodes"):
        cut = monte_carlo(env, seek, SEEK_STATES, episodes=6, seed=0, discount=0.5)
    assert cut.mean.tolist() == [-1.9375, -1.9375]
    with pytest.warns(CutOffWarning):
        cut = monte_carlo(env, seek, SEEK_STATES, episodes=6, seed=0, max_steps=3)
    assert (cut.mean.tolist(), cut.steps.tolist()) == ([-3.0, -3.0], [18, 18])


def test_each_part_of_a_vector_environment_counts_until_its_first_end() -> None:
    class Three:
        """Part 0 is truncated after a step and then ends again and again; 1 and 2 end after three."""

        num_envs = 3

        def reset(self, *, seed: Any, options: Any) -> Any:
            self.steps = 0
            return np.full(3, 0.0 if options is None else options["state"]), {}

        def step(self, actions: Any) -> Any:
            self.steps += 1
            ended = np.array([self.steps > 1, self.steps == 3, self.steps == 3])
            return actions, np.array([1.0, 10.0, 100.0]), ended, np.array([self.steps == 1, False, False]), {}

    with pytest.warns(CutOffWarning, match="2 of 5 episodes"):
        result = monte_carlo(Three(), lambda x: x, [7.0], episodes=5, seed=0)  # in blocks of 3 and 2
    assert (result.cut_off[0], result.steps[0]) == (2, 1 + 3 + 3 + 1 + 3)
    assert result.mean[0] == pytest.approx((1 + 30 + 300 + 1 + 30) / 5)


def test_a_vector_environment_of_any_autoreset_mode() -> None:
    class Ladder(gym.Env[Any, Any]):
        """From rung k, k to k + 4 steps of reward 1."""

        observation_space, action_space = gym.spaces.Discrete(10), gym.spaces.Discrete(1)

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            self.rung = (options or {}).get("state", 1) + int(self.np_random.integers(5))
            return self.rung, {}

        def step(self, action: Any) -> Any:
            self.rung -= 1
            return self.rung, 1.0, self.rung == 0, False, {}

    results = [
        monte_carlo(
            gym.vector.SyncVectorEnv([Ladder] * 3, autoreset_mode=mode),
            lambda rungs: np.zeros(len(rungs), int),
            [2, 5],
            episodes=7,
            seed=1,
        )
        for mode in gym.vector.AutoresetMode
    ]
    for result in results:
        same(result, results[0])
        assert ((result.mean >= [2, 5]) & (result.mean <= [6, 9]) & (result.std > 0)).all()
        np.testing.assert_allclose(result.steps, result.mean * 7)


def test_an_environment_is_given_the_state_as_it_was_written() -> None:
    class Ladder(gym.Env[Any, Any]):
        """From rung k, k steps of reward 1."""

        observation_space, action_space = gym.spaces.Discrete(10), gym.spaces.Discrete(1)

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            self.rung = (options or {"state": 0})["state"]
            assert np.ndim(self.rung) == 0
            return self.rung, {}

        def step(self, action: Any) -> Any:
            self.rung -= 1
            return self.rung, 1, self.rung == 0, False, {}

    result = monte_carlo(Ladder(), lambda rung: 0, [3, 5], episodes=4)
    assert result.mean.tolist() == [3.0, 5.0]
    assert result.states.tolist() == [[3.0], [5.0]]


def test_an_environment_that_ignores_the_state_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"simulator must start where reset.*wrapper"):
        monte_carlo(gym.make("CartPole-v1"), lambda observation: 0, np.zeros((3, 4)), episodes=2)
    # The default start is a state like any other.
    start = [[0.2, 0.9, 0.0, 0.0]]
    with pytest.warns(CutOffWarning):
        assert monte_carlo(gym.make(ID, maze="simple"), seek, start, 2, max_steps=2).mean.tolist() == [-2.0]


# --- the record -------------------------------------------------------------------------------------


@pytest.fixture
def record() -> Iterator[MonteCarlo]:
    return monte_carlo(pr.domains.walk(30), None, np.arange(30), episodes=20, seed=14)


def test_it_is_saved_and_loaded_and_plain(record: MonteCarlo, tmp_path: Path) -> None:
    record.save(tmp_path / "r.npz")
    back = MonteCarlo.load(tmp_path / "r.npz")
    same(record, back)
    assert (back.discount, back.max_steps, len(back)) == (1.0, 10_000, 30)
    plain = json.loads(json.dumps(record.to_dict()))
    assert plain["std"] == record.std.tolist()
    assert plain["max_steps"] == 10_000
    with pytest.raises(ValueError, match="read-only"):
        record.mean[0] = 0.0
    with pytest.raises(InvalidInputError, match="does not exist"):
        MonteCarlo.load(tmp_path / "none.npz")


def test_it_prints_the_riskiest_states(record: MonteCarlo) -> None:
    lines = str(record).splitlines()
    assert lines[0].startswith("Monte Carlo: 30 states, 600 episodes, ")
    assert lines[0].endswith("; none cut off")
    assert lines[1].endswith("the 8 riskiest:")
    assert len(lines) == 11
    assert lines[3].split()[0] == str(int(np.argmax(record.std)))
    nothing = monte_carlo(pr.domains.walk(30), None, [])
    assert str(nothing) == "Monte Carlo: 0 states, 0 episodes, 0 steps; none cut off"


def test_nothing_is_written_where_there_is_no_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    run_noise()
    assert capfd.readouterr() == ("", "")


# --- malformed calls --------------------------------------------------------------------------------

CHAIN = pr.MarkovChain(*ABC)
PINBALL = Pinball("empty")
BAD: dict[str, tuple[Callable[[], object], str]] = {
    "no simulator": (lambda: monte_carlo(3, None, [0]), "simulator must be .* got int; pass one"),
    "no episodes": (lambda: monte_carlo(CHAIN, None, [0], 0), "episodes must be .* at least 1, got 0"),
    "no steps": (lambda: monte_carlo(CHAIN, None, [0], max_steps=0), "max_steps must"),
    "discount of 0": (lambda: monte_carlo(CHAIN, None, [0], discount=0.0), "discount must be in"),
    "discount above 1": (lambda: monte_carlo(CHAIN, None, [0], discount=1.5), "discount must be in"),
    "not the chain's discount": (
        lambda: monte_carlo(CHAIN, None, [0], discount=0.9),
        "discount must be the chain's, 1, got 0.9; pass discount=1",
    ),
    "a policy for a chain": (lambda: monte_carlo(CHAIN, seek, [0]), "policy must be None for a MarkovChain"),
    "no such state": (lambda: monte_carlo(CHAIN, None, [0, 2]), "from 0 to 1, got 2 in row 1"),
    "half a state": (lambda: monte_carlo(CHAIN, None, [0.5]), "states must be indices .* got 0.5 in row 0"),
    "states of two numbers": (lambda: monte_carlo(CHAIN, None, [[0, 1]]), r"got shape \(1, 2\)"),
    "state nan": (lambda: monte_carlo(CHAIN, None, [float("nan")]), "states must be finite"),
    "seed": (lambda: monte_carlo(CHAIN, None, [0], seed=-1), "seed must be"),
    "resume from nothing": (lambda: monte_carlo(CHAIN, None, [0], resume=True), "checkpoint must be given"),
    "outside the maze": (
        lambda: monte_carlo(PINBALL, UniformPolicy(), [[0.5, 0.5]] * 7 + [[2.0, 0.5]]),
        r"states must have positions in .* in row 7",
    ),
    "too many actions": (
        lambda: monte_carlo(PINBALL, UniformPolicy(5), [[0.5, 0.5]]),
        "policy must choose among the domain's 4 actions",
    ),
    "no policy": (
        lambda: monte_carlo(PINBALL, None, [[0.5, 0.5]]),
        "policy must be one of ours or a function",
    ),
    "a compiled policy for Gymnasium": (
        lambda: monte_carlo(gym.make(ID), UniformPolicy(), [[0.5, 0.5]]),
        "policy must be a function from an observation",
    ),
    "rewards nan": (
        lambda: monte_carlo(Noise(float("nan")), None, [0.0, 1.0]),
        "simulator must give finite rewards, got a return of nan from state number 0",
    ),
    "of": (lambda: monte_carlo(CHAIN, None, [0], 2).interval("sharpe"), "of must be one of"),
}


@pytest.mark.parametrize("name", BAD)
def test_malformed_calls_are_answered_by_name(name: str) -> None:
    call, match = BAD[name]
    with pytest.raises(InvalidInputError, match=match):
        call()


def test_a_simulator_that_gives_too_little_is_named() -> None:
    class Short(Noise):
        def returns(self, *args: Any, **more: Any) -> Any:
            out = super().returns(*args, **more)
            out.lengths = out.lengths[:-1]
            return out

    with pytest.raises(
        InvalidInputError, match=r"simulator must give 10 lengths, one per episode, got shape \(9,\)"
    ):
        monte_carlo(Short(), None, [0.0], episodes=10)
