"""Features for a target by errors of single steps, and what is said where a log cannot tell."""

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from test_lstdq import ACTIONS, N, log, policies, process

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from logs import lean, played

import policyrisk as pr
from policyrisk.cli import run
from policyrisk.evaluation import target_choice
from policyrisk.evaluation.target_choice import (
    FOLDS,
    NEIGHBOURS,
    RIVAL,
    TargetCandidate,
    TargetScores,
    alike,
    is_possible,
    possible_means,
    score_for_target,
)
from policyrisk.evaluation.target_findings import NOT_TOLD
from policyrisk.passes.episode_folds import fold_of_episodes

SIDE = 6
CHANCES = (0.35, 0.45, 0.6, 0.7)  # of a target to push to the side that the pole falls to
MOVES = np.array([(1, 0), (0, 1), (0, -1)])


def test_means_that_rewards_allow():
    assert possible_means((1.0, 2.0), 1.0) == (1.0, math.inf)
    assert possible_means((-3.0, -1.0), 1.0) == (-math.inf, -1.0)
    assert possible_means((-1.0, 2.0), 0.75) == (-4.0, 8.0)
    assert possible_means((0.5, 2.0), 1.0, 20) == (0.5, 40.0)
    assert possible_means((-1.0, 2.0), 0.5, 2) == (-1.5, 3.0)
    assert is_possible(1e6, (1.0, 1.0), 1.0)
    assert is_possible(0.97, (1.0, 1.0), 1.0)  # as an estimate of 1 may well be
    assert not is_possible(0.8, (1.0, 1.0), 1.0)
    assert is_possible(11.3, (1.0, 1.0), 0.9)
    assert not is_possible(11.4, (1.0, 1.0), 0.9)
    assert not is_possible(11.3, (1.0, 1.0), 0.9, beyond=0.1)
    assert not is_possible(-1.0, (0.0, 0.0), 1.0)
    assert is_possible(1.0 + 1e-9, (1.0, 1.0), 1.0, 1)


def test_steps_that_are_alike():
    """By all pairs: of another episode, the same fold and the same action, none of them nearer."""
    rng = np.random.default_rng(0)
    K, T = 40, 5
    states = rng.random((K * (T + 1), 2)) * [1.0, 100.0]
    states[:, 1] = states[:, 1].round() % 3  # a label
    actions = rng.integers(2, size=K * T)
    data = pr.Trajectories(states, np.zeros(K * T), [T] * K, [True] * K, actions=actions)
    fold_of = rng.integers(2, size=K)
    near = alike(data, fold_of, (1,))
    x = data.states[data.visited_rows].copy()
    x[:, 0] /= np.ptp(x[:, 0])
    episode = np.repeat(np.arange(K), T)
    for t in range(K * T):
        there = (episode != episode[t]) & (fold_of[episode] == fold_of[episode[t]]) & (actions == actions[t])
        apart = np.linalg.norm(x - x[t], axis=1)
        assert there[near[t]].all()
        np.testing.assert_allclose(
            np.sort(apart[near[t]]), np.sort(apart[there])[:NEIGHBOURS], rtol=0, atol=1e-8
        )
    alone = pr.Trajectories([[0.0], [1.0], [0.0], [1.0]], [1.0, 1.0], [1, 1], [True] * 2, actions=[0, 1])
    assert (alike(alone, np.zeros(2, dtype=int), ()) == -1).all()


def test_products_of_steps_that_are_alike_hold_no_randomness():
    """The misfit is E[ε²] under the known process, of which the squares of δ are mostly the randomness."""
    (P, R), (mu, pi) = process(), policies(1)
    P *= 0.97 / 0.8  # long episodes, so that J differs much more than a reward
    data = log(P, R, mu, 600, seed=4, max_steps=400)
    q = pr.LSTDQ(pr.Polynomial(degree=1, low=[0], high=[N - 1]), pi, variance="second-moment")
    (found,) = score_for_target({"line": q}, data, seed=1).ranking
    fold_of = fold_of_episodes(0, len(data), FOLDS, int(pr._core.random.keys(1)[0]))
    expected, squares, terms, starts = 0.0, 0.0, [], []
    for fold in range(FOLDS):
        risk, held_out = q.fit(data[fold_of != fold], error_bars=False), data[fold_of == fold]
        J = risk.mean(range(N))
        Q = np.stack([risk.action_mean(range(N), a) for a in range(ACTIONS)], axis=1)
        eps = R + (P @ J).T - Q
        x, a = held_out.states[held_out.visited_rows, 0].astype(int), held_out.actions
        after = np.append(J, 0.0)[held_out.states[held_out.visited_rows + 1, 0].astype(int)]
        delta = held_out.rewards + after - Q[x, a]
        expected += np.square(eps[x, a]).sum()
        squares += np.square(delta).sum()
        episode = np.repeat(np.arange(len(held_out)), held_out.lengths)
        # Both steps of a product have an error, and each is in about as many products as it has.
        terms.append(np.bincount(episode, 2 * eps[x, a] * (delta - eps[x, a])))
        starts.append(J[data.starts()[:, 0].astype(int)])
    error = math.sqrt(np.square(np.concatenate(terms)).sum()) / data.transitions
    assert abs(found.misfit - expected / data.transitions) < 4 * error
    assert squares > 2 * expected
    assert 4 * error < 0.5 * expected / data.transitions
    assert found.unsteady == pytest.approx((FOLDS - 1) * np.var(starts, axis=0).mean())
    assert found.mean == pytest.approx(np.mean(starts))
    assert found.score == pytest.approx(data.lengths.mean() ** 2 * found.misfit + found.unsteady)


def test_order_and_rivals(monkeypatch):
    """Impossible means come after possible ones, failures last; rivals are possible and nearly as good."""
    (P, R), (mu, pi) = process(), policies(1)
    data = log(P, R, mu, 200, seed=4)
    line, broken = pr.Polynomial(degree=1, low=[0], high=[N - 1]), pr.Tabular(2)
    settings = {"variance": "second-moment"}
    given = {"broken": pr.LSTDQ(broken, pi, **settings)}
    given |= {"line": pr.LSTDQ(line, pi, **settings), "table": pr.LSTDQ(pr.Tabular(N), pi, **settings)}
    found = score_for_target(given, data, seed=0)
    assert [each.name for each in found.ranking] == ["table", "line", "broken"]
    assert found.ranking[2].reason
    assert "broken" in str(found)
    best = found.ranking[0].mean
    monkeypatch.setattr(target_choice, "is_possible", lambda mean, *_: mean != best)
    assert [each.name for each in score_for_target(given, data, seed=0).ranking] == [
        "line",
        "table",
        "broken",
    ]
    order = [
        TargetCandidate("a", score=1.0, mean=2.0, possible=True),
        TargetCandidate("b", score=0.9 * RIVAL, mean=5.0, possible=True),
        TargetCandidate("c", score=1.1 * RIVAL, mean=9.0, possible=True),
        TargetCandidate("d", score=0.5, mean=-7.0),
    ]
    assert TargetScores(tuple(order), 10, 1.0).to_dict()["rivals"] == [2.0, 5.0]
    with pytest.raises(pr.errors.InvalidInputError, match="name some, as in poly:1: broken"):
        _ = TargetScores(found.ranking[2:], 10, 1.0).best


def grid():
    """A process on SIDE × SIDE cells, and the cells: right, up, down, which slip, and a hole to fall in."""
    n = SIDE**2
    cells = np.stack(np.divmod(np.arange(n), SIDE), axis=1)
    P, R = np.zeros((3, n, n)), np.repeat(-1.0 - 0.3 * cells[:, 1:], 3, axis=1)
    for a, b in np.ndindex(3, 3):
        to = cells + MOVES[b]
        to[:, 1] = np.clip(to[:, 1], 0, SIDE - 1)
        on = (to[:, 0] < SIDE) & ~((to[:, 0] == 3) & (to[:, 1] == 2))
        P[a, np.flatnonzero(on), to[on] @ [SIDE, 1]] += 0.7 if a == b else 0.15
    R[cells[:, 0] == SIDE - 1, 0] += 10.0
    return P, R, cells.astype(float)


def test_a_process_with_a_known_truth():
    """States of two coordinates, so that features are chosen; a target that goes where the log rarely did."""
    P, R, cells = grid()

    def target(x):
        return np.where((x[:, 1:] >= 1) & (x[:, 1:] < 4), [0.2, 0.7, 0.1], [0.8, 0.1, 0.1])

    one = log(P, R, np.full((SIDE**2, 3), 1 / 3), 400, seed=3, max_steps=300)
    states = np.vstack([cells, [[SIDE, 0]]])[one.states[:, 0].astype(int)]
    data = pr.Trajectories(states, one.rewards, one.lengths, one.terminated, actions=one.actions)
    result = pr.evaluate(data, target=target, seed=2)
    chain = pr.MarkovChain.from_mdp(P, R, target(cells))
    J, V = chain.mean(), chain.variance()
    for estimate, truth in (
        (result.summary.mean, J.mean()),
        (result.summary.std, math.sqrt(V.mean() + J.var())),
    ):
        assert abs(estimate.value - truth) < 3.5 * estimate.standard_error
    assert not any(advice.title in NOT_TOLD for advice in result.advice)


@pytest.fixture(scope="module")
def poles():
    pytest.importorskip("gymnasium", reason="CartPole")
    return pr.rollout("CartPole-v1", lambda x: np.full((len(x), 2), 0.5), episodes=150, seed=1)


def balances(x):
    """A controller that never drops the pole: it pushes to where it falls."""
    right = x[:, 2] + 0.5 * x[:, 3] > 0
    return np.column_stack([~right, right]).astype(float)


def withdrawn_everywhere(far, poles, tmp_path, capsys):
    """Summary, frame, report, the folder, `query` and `compare` have values without intervals."""
    far.save(tmp_path / "far")
    with pytest.warns(pr.errors.WithdrawnWarning):
        again = pr.Evaluation.load(tmp_path / "far", target=balances)
    for each in (far, again):
        for estimate in (each.summary.mean, each.summary.std, each.summary.sharpe):
            assert np.isnan([estimate.low, estimate.high, estimate.standard_error]).all()
        assert math.isfinite(each.summary.mean.value)
        assert not np.isnan(each.risk.mean(poles.starts()[:3])).any()
        frame = each.risk.to_frame(poles.starts()[:3])
        assert frame[["mean_low", "mean_high", "std_low", "sharpe_high"]].isna().all(axis=None)
        assert [one.title for one in each.advice] == [one.title for one in far.advice]
        found = pr.compare({"a": each, "b": each}, criterion="mean")
        assert found.best is found.significance is None
    far.report(tmp_path / "far" / "report.html")
    assert "<b>none</b>: this log cannot tell" in (tmp_path / "far" / "report.html").read_text()
    capsys.readouterr()
    line = ["query", str(tmp_path / "far"), "--at", "0,0,0,0", "--target", "test_target_choice:balances"]
    assert run(line) == 0
    said = capsys.readouterr()
    assert "trust: none: this log cannot tell" in said.out
    assert "withdrawn" in said.err
    assert run([*line, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["trust"]["level"] == "none"
    assert answer["states"][0]["mean"]["low"] is answer["states"][0]["std"]["high"] is None


@pytest.mark.filterwarnings("ignore::policyrisk.errors.NegativeVarianceWarning")
@pytest.mark.filterwarnings("ignore::policyrisk.errors.WithdrawnWarning")
def test_what_a_log_cannot_tell_is_said(poles, tmp_path, capsys):
    """Random episodes of 20 steps say nothing of one that goes on for 500; ten steps ahead they do."""
    with pytest.warns(pr.errors.WithdrawnWarning, match="log cannot tell: .*intervals of policy are with"):
        far = pr.evaluate(poles, target=balances, seed=0)
    withdrawn_everywhere(far, poles, tmp_path, capsys)
    assert str(far.trust).startswith(
        "none: this log cannot tell: the log does not settle what the target earns"
    )
    assert not any(one.title == NOT_TOLD[0] for one in far.advice)
    assert far.summary.mean_value >= 1
    ahead = pr.evaluate(poles, 0.9, target=balances, seed=0)
    assert abs(ahead.summary.mean_value - 10.0) < 1.0
    assert ahead.trust.level != "none"
    spelled = pr.evaluate(poles, target=balances, features="poly:2,by=rank")
    assert spelled.summary.mean_value < 0
    (advice,) = (one for one in spelled.advice if one.title == NOT_TOLD[0])
    assert advice.severity == "serious"
    assert "All recorded rewards are 1, so that no policy has a mean below 1" in advice.seen


@pytest.mark.filterwarnings("ignore::policyrisk.errors.WithdrawnWarning")
@pytest.mark.filterwarnings("ignore::policyrisk.errors.NegativeVarianceWarning")
@pytest.mark.parametrize(
    ("discount", "chance", "logs"),
    [(0.95, 0.6, 2), (1.0, 0.52, 1)] + [pytest.param(0.95, c, 6, marks=pytest.mark.slow) for c in CHANCES],
)
def test_intervals_hold_what_features_miss(discount, chance, logs):
    """CartPole from random episodes: the mean of a target near them is in the interval, or there is none."""
    right = lean(chance)
    truth = played(right, 20_000, np.random.default_rng(0)).returns(discount)
    for seed in range(logs):
        data = played(lean(0.5), 300, np.random.default_rng(seed))
        result = pr.evaluate(
            data, discount, target=lambda x: np.stack([1 - right(x), right(x)], axis=1), seed=seed
        )
        mean = result.summary.mean
        assert np.isnan(mean.low) or mean.low < truth.mean() < mean.high
        bias = result.notes["choice"]["one_step"]["bias"]
        assert bias > 0
        if result.trust.level != "none":
            assert mean.standard_error > bias
            assert mean.standard_error < 0.3 * truth.std()
