"""The suite of benchmarks/truth.py: its simulators beside their exact truths, and its measures by hand."""

from __future__ import annotations

import doctest
import json
import sys
from dataclasses import replace
from pathlib import Path

import gymnasium
import numpy as np
import pytest

import policyrisk as pr
from policyrisk.errors import InvalidInputError

pytest.importorskip("sklearn")
sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import truth
import truth_methods
import truth_tables
import truth_task
import truth_tasks
from truth_methods import Answer
from truth_tasks import TASKS

EXACT = [name for name, made in TASKS.items() if made().exact is not None]
RETURNS = 20_000


def z_scores(returns: np.ndarray, mean: float, std: float) -> tuple[float, float]:
    """Of the mean and of the variance of a sample, each by its own standard error."""
    squares = (returns - mean) ** 2
    return (
        (returns.mean() - mean) / (returns.std() / np.sqrt(returns.size)),
        (squares.mean() - std**2) / (squares.std() / np.sqrt(returns.size)),
    )


def test_the_tasks_example_runs() -> None:
    assert doctest.testmod(truth_tasks) == (0, 3)


@pytest.mark.parametrize("name", TASKS)
def test_every_task_samples_valid_episodes(name: str) -> None:
    task = TASKS[name]()
    data, again = task.sample(60, seed=3), task.sample(60, seed=3)
    assert len(data) == 60
    assert np.isfinite(data.states).all()
    assert np.array_equal(data.states, again.states)
    assert np.array_equal(data.rewards, again.rewards)
    assert not np.array_equal(data.rewards, task.sample(60, seed=4).rewards)
    states = task.states(seed=1)
    assert states.shape == (50, data.dim)
    assert task.limit is not None or data.terminated.all()


@pytest.mark.parametrize(
    ("name", "share"),
    [("queue_cut_5", 0.05), ("queue_cut_50", 0.5), ("inventory_cut_5", 0.05), ("inventory_cut_50", 0.5)],
)
def test_so_many_are_cut_off(name: str, share: float) -> None:
    task = TASKS[name]()
    assert 1.0 - task.sample(3000, 0).terminated.mean() == pytest.approx(share, abs=0.025)
    whole = TASKS[name.split("_")[0]]()
    x = task.states()
    assert np.array_equal(task.true(x), whole.true(x))  # the truth is that of the task without a limit


@pytest.mark.parametrize("name", EXACT)
def test_returns_have_the_exact_mean_and_variance(name: str) -> None:
    task, rng = TASKS[name](), np.random.default_rng(8)
    x = task.states()[:2]
    J, std = task.true(x)
    truths = [*zip(J, std, strict=True), task.start_truth()]
    for start, (mean, spread) in zip([*x, None], truths, strict=True):
        at = task.start(RETURNS, rng) if start is None else np.repeat(start[None], RETURNS, axis=0)
        of_mean, of_variance = z_scores(task.returns(at, rng), mean, spread)
        assert abs(of_mean) < 4
        assert abs(of_variance) < 4 or name == "heavy_tails"  # the square of t₃ has no variance


def test_episodes_are_those_of_the_returns() -> None:
    task = TASKS["heavy_tails"]()
    data = task.sample(4000, 1)
    mean, std = task.start_truth()
    assert abs(z_scores(data.returns(task.discount), mean, std)[0]) < 4


def test_a_table_has_the_moments_of_its_chain() -> None:
    rng = np.random.default_rng(0)
    P, r = rng.dirichlet(np.ones(6), 5), rng.standard_normal((5, 5))
    branches = [(x, P[x, y], y, r[x, y] if y < 5 else 0.0) for x in range(5) for y in range(6)]
    chain = pr.MarkovChain(P[:, :5], r, 0.9)
    J, V = truth_tables.table(branches[::-1], 5).moments(0.9)
    assert np.allclose(J, chain.mean())
    assert np.allclose(V, chain.variance())
    sigma = np.arange(5.0)
    _, noisy = truth_tables.table(branches, 5, sigma).moments(0.9)
    assert np.allclose(noisy - V, np.linalg.solve(np.eye(5) - 0.81 * P[:, :5], sigma**2))


def test_the_busy_period_has_its_closed_form() -> None:
    J, std = TASKS["queue"]().true(np.array([[1], [7]]))
    assert np.allclose(J, np.array([1, 7]) / 0.3)
    assert np.allclose(std**2, np.array([1, 7]) * 1.7 / 0.3**3)


def test_the_linear_quadratic_system_has_its_closed_form() -> None:
    task, rng, stay = TASKS["linear_quadratic"](), np.random.default_rng(2), 0.95
    x = task.states()[:1]
    A = np.random.default_rng(10).standard_normal((10, 10))
    A *= 0.9 / np.abs(np.linalg.eigvals(A)).max()
    P = np.zeros((10, 10))
    for _ in range(500):  # J = −xᵀPx − c
        P = np.diag(np.linspace(0.2, 2.0, 10)) + stay * A.T @ P @ A
    c = stay * 0.25 * np.trace(P) / (1.0 - stay)
    returns = task.returns(np.repeat(x, RETURNS, axis=0), rng)
    assert abs(z_scores(returns, float((-x @ P @ x.T)[0, 0] - c), 1.0)[0]) < 4


@pytest.mark.parametrize(
    ("name", "env"), [("cart_pole", "CartPole-v1"), ("mountain_car", "MountainCarContinuous-v0")]
)
def test_the_physics_are_gymnasiums(name: str, env: str) -> None:
    task, peer = TASKS[name](), gymnasium.make(env).unwrapped
    peer.reset(seed=0)
    x = task.states()[:20]
    after, rewards, over = task.step(x, np.random.default_rng(0))
    for i in range(len(x)):
        force = np.sqrt(max((100.0 * over[i] - rewards[i]) / 0.1, 0.0))
        actions = [0, 1] if name == "cart_pole" else [np.array([force]), np.array([-force])]
        found = []
        for action in actions:
            peer.state, peer.steps_beyond_terminated = np.array(x[i]), None
            state, reward, ended, *_ = peer.step(action)
            found.append(np.allclose(state, after[i], atol=1e-6) and ended == over[i])
            assert reward == pytest.approx(rewards[i], abs=1e-9)
        assert any(found)


def test_blackjack_is_gymnasiums() -> None:
    task, env = TASKS["blackjack"](), gymnasium.make("Blackjack-v1")
    returns = []
    for k in range(3000):
        (total, _, _), _ = env.reset(seed=k)
        over = False
        while not over:
            (total, _, _), reward, over, *_ = env.step(int(total < 18))
        returns.append(reward)
    of_mean, of_variance = z_scores(np.array(returns), *task.start_truth())
    assert abs(of_mean) < 4
    assert abs(of_variance) < 4
    data = task.sample(2000, 0)
    totals, last = data.states[data.visited_rows, 0], data.offsets[1:] - 1
    assert (totals[np.isin(np.arange(totals.size), last, invert=True)] < 18).all()  # a hit, and it goes on
    assert (data.rewards[last[totals[last] < 18]] == -1.0).all()  # a hit ends a hand above 21 only


def test_a_truth_without_a_formula_is_simulated_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(truth_task, "CACHE", tmp_path)
    monkeypatch.setattr(truth_task, "RETURNS", 2000)
    monkeypatch.setattr(truth_task, "START_RETURNS", 4000)
    monkeypatch.setattr(truth_task, "LANES", 4000)
    known = TASKS["lognormal"]()
    blind = replace(known, exact=None, exact_start=None, made_by="a test")
    x = known.states()[:5]
    J, std = known.true(x)
    found = blind.true(x)
    assert np.abs((found[0] - J) / (std / np.sqrt(2000))).max() < 4
    assert np.abs(found[1] / std - 1.0).max() < 0.15
    assert blind.start_truth()[1] == pytest.approx(known.start_truth()[1], rel=0.1)
    files = sorted(tmp_path.iterdir())
    assert len(files) == 2
    silent = replace(blind, step=lambda x, rng: pytest.fail("simulated again"))
    assert np.array_equal(silent.true(x), found)
    assert silent.start_truth() == blind.start_truth()
    replace(blind, made_by="another").true(x)
    assert len(sorted(tmp_path.iterdir())) == 3


def answer(mean: list[float], std: list[float], half: float) -> Answer:
    m, s = np.array(mean), np.array(std)
    start = (1.0, 0.5, 1.5), (2.0, 1.0, 2.5)
    return Answer(m, s, np.stack([m - half, m + half], 1), np.stack([s - half, s + half], 1), *start)


def test_measures_by_hand() -> None:
    J, std = np.array([0.0, 10.0]), np.array([3.0, 4.0])
    overall = answer([5.0, 5.0], [6.0, 6.0], np.nan)
    unit = np.sqrt(12.5)
    row = truth.measures(answer([1.0, 10.0], [3.0, 3.0], 0.5), J, std, (1.0, 4.0), overall)
    assert row["mean_error"] == pytest.approx(np.sqrt(0.5) / unit)
    assert row["std_error"] == pytest.approx(np.sqrt(0.5) / unit)
    assert (row["mean_coverage"], row["std_coverage"], row["unknown"]) == (0.5, 0.5, 0)
    assert row["mean_width"] == pytest.approx(1.0 / unit)
    assert (row["start_mean_coverage"], row["start_std_coverage"]) == (1.0, 0.0)
    assert (row["start_mean_error"], row["start_std_error"]) == (0.0, -0.5)
    assert row["mean_correlation"] == pytest.approx(1.0)
    assert np.isnan(row["std_correlation"])  # of a constant


def test_what_is_not_known_counts_as_the_overall_sample() -> None:
    J, std = np.array([0.0, 10.0]), np.array([3.0, 4.0])
    overall = answer([5.0, 5.0], [7.0, 7.0], np.nan)
    row = truth.measures(answer([np.nan, 10.0], [np.nan, 4.0], 0.5), J, std, (1.0, 4.0), overall)
    assert row["mean_error"] == pytest.approx(np.sqrt(12.5) / np.sqrt(12.5))
    assert row["std_error"] == pytest.approx(np.sqrt(8.0) / np.sqrt(12.5))
    assert (row["mean_coverage"], row["std_coverage"], row["unknown"]) == (0.5, 0.5, 1)


def test_the_verdict_names_the_rival_that_was_better() -> None:
    common = {"task": "queue", "episodes": 300, "mean_error": 0.1, "std_correlation": 1.0, "seconds": 1.0}
    covered = {f"{of}_coverage": 0.9 for of in ("mean", "std", "start_mean", "start_std")}
    rows = [
        {**common, **covered, "repeat": 0, "method": "policyrisk", "std_error": 0.6, "advice": ["ok: fine"]},
        {
            **common,
            **covered,
            "repeat": 1,
            "method": "policyrisk",
            "std_error": 0.8,
            "advice": ["serious: no"],
        },
        {**common, **covered, "repeat": 0, "method": "forest", "std_error": 0.5},
    ]
    assert truth.average(rows)["queue", 300, "policyrisk"]["std_error"] == pytest.approx(np.sqrt(0.5))
    lines = "\n".join(truth.verdict(rows))
    assert "1.41 × the error of forest" in lines
    assert "an error of 0.60 unwarned" in lines
    assert "0.80 unwarned" not in lines


def test_residuals_are_those_of_other_episodes() -> None:
    data = TASKS["lognormal"]().sample(40, 0)
    seen: list[set[float]] = []

    class Model:
        def fit(self, states: np.ndarray, B: np.ndarray) -> Model:
            seen.append(set(B.tolist()))
            self.value = B.mean()
            return self

        def predict(self, states: np.ndarray) -> np.ndarray:
            return np.full(len(states), self.value)

    _, B, episode = truth_methods.pairs(data, 1.0, 0)
    found = truth_methods.two_stages(Model, data, 1.0, data.states[:3], 0)
    assert len(seen) == 6  # four folds, J and V
    for part in seen[:4]:  # an episode is in the fold with all of its states, or not at all
        inside = np.array([b in part for b in B])
        whole = {k: inside[episode == k].mean() for k in np.unique(episode)}
        assert set(whole.values()) == {0.0, 1.0}
    assert found.mean[0] == pytest.approx(B.mean())
    assert found.std[0] == pytest.approx(B.std(), rel=0.1)


@pytest.mark.parametrize("method", ["knn", "forest", "boosting"])
def test_rivals_learn(method: str) -> None:
    task = TASKS["heavy_tails"]()
    data, x = task.sample(150, 2), task.states()
    J, std = task.true(x)
    overall = truth_methods.sample(data, task.discount, x, 0)
    rows = [
        truth.measures(fit(data, task.discount, x, 0), J, std, task.start_truth(), overall)
        for fit in (truth_methods.METHODS[method], truth_methods.sample)
    ]
    assert rows[0]["mean_error"] < 0.8 * rows[1]["mean_error"]


def test_a_row_is_measured_and_written() -> None:
    rows = truth.measure("lake", 60, 0, ("policyrisk", "sample"))
    ours, plain = json.loads(json.dumps(rows))
    assert (ours["method"], ours["task"], ours["episodes"]) == ("policyrisk", "lake", 60)
    assert ours["std_error"] < plain["std_error"] + 0.5
    assert 0.0 <= ours["std_coverage"] <= 1.0
    assert plain["std_coverage"] == 0.0
    assert ours["advice"]


def test_a_failure_is_an_answer_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise InvalidInputError("data must end")

    monkeypatch.setattr(pr, "evaluate", refuse)
    task = TASKS["queue"]()
    found = truth_methods.policyrisk(task.sample(20, 0), 1.0, task.states(), 0)
    assert np.isnan(found.mean).all()
    assert np.isnan(found.std_interval).all()
    assert found.facts == {"failure": "data must end"}
    J, std = task.true(task.states())
    overall = truth_methods.sample(task.sample(20, 0), 1.0, task.states(), 0)
    row = truth.measures(found, J, std, task.start_truth(), overall)
    plain = truth.measures(overall, J, std, task.start_truth(), overall)
    assert (row["start_mean_coverage"], row["start_std_coverage"]) == (0.0, 0.0)
    assert row["start_std_error"] == plain["start_std_error"]
    assert row["std_error"] == plain["std_error"]
