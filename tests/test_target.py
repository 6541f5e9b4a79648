"""evaluate --target: another policy than the recorded one, from a log to a report; compared on one log."""

import json
import math
from contextlib import redirect_stdout

import numpy as np
import pandas as pd
import pytest
from conftest import Stops, listing
from test_evaluate import call
from test_lstdq import ACTIONS, N, log, policies, process
from test_pr_evaluate import compared

import policyrisk as pr
from policyrisk.cli import run
from policyrisk.data import write_parquet
from policyrisk.errors import InvalidInputError, UncoveredError, UncoveredWarning
from policyrisk.evaluation.overlap import NEAREST, NotLogged, Overlap
from policyrisk.features.target import Target
from policyrisk.passes.survey import Survey
from policyrisk.report.numbers import measure

P, R = process()
MU, PI = policies(1)
MU = (MU + 1 / ACTIONS) / 2
NEAR = 0.9 * PI + 0.1 / ACTIONS
STATES = range(N)

MODULE = f"""
import numpy as np

careful = np.array({PI.tolist()})
table = np.array({NEAR.tolist()})


def near(states):
    return table[states[:, 0].astype(int)]


def two_actions(states):
    return np.full((len(states), 2), 0.5)
"""


@pytest.fixture(scope="module")
def data():
    return log(P, R, MU, 1500, seed=2)


@pytest.fixture(scope="module")
def place(tmp_path_factory, data):
    """A folder with a log, a module of targets, and two of them evaluated by the command."""
    folder = tmp_path_factory.mktemp("ward")
    write_parquet(data, folder / "log.parquet", state=["ward"])
    (folder / "targets_of_a_test.py").write_text(MODULE)
    with pytest.MonkeyPatch.context() as patch, (folder / "screen").open("w") as screen:
        patch.chdir(folder)
        assert evaluated(folder, "careful", "--json") == 0
        with redirect_stdout(screen):
            assert evaluated(folder, "near", "--verbose") == 0
    return folder


def evaluated(folder, name, *options, out=None):
    target, place = f"targets_of_a_test:{name}", str(folder / (out or name))
    line = ["evaluate", str(folder / "log.parquet"), "--state", "ward", "--target", target, "--out", place]
    return run([*line, *options])


def with_actions(data, actions, propensities=None):
    arrays = data.states, data.rewards, data.lengths, data.terminated
    return pr.Trajectories(*arrays, actions=actions, propensities=propensities)


def test_from_a_file_to_the_truth(place):
    """Numbers, files and texts of the command, against the exact moments of the target."""
    chain = pr.MarkovChain.from_mdp(P, R, PI)
    found, J, V = pr.Evaluation.load(place / "careful"), chain.mean(), chain.variance()
    for of, truth in (("mean", J), ("variance", V)):
        z = (getattr(found.risk, of)(STATES) - truth) / found.risk.standard_error(STATES, of)
        assert np.abs(z).max() < 3.5
    summary = found.summary
    for estimate, truth in ((summary.mean, J.mean()), (summary.variance, V.mean() + J.var())):
        assert abs(estimate.value - truth) < 3.5 * estimate.standard_error
    assert found.risk.provenance.lam == 0
    assert found.risk.variance_method == "direct"
    numbers = json.loads((place / "careful" / "summary.json").read_text())
    assert numbers["covered"] == 1.0
    assert numbers["target"]["propensities"]
    assert numbers["features"] == "tabular, a block for each of 3 actions"
    assert numbers["advice"][0]["title"] == "The log is of another policy"
    assert "map_covered.png" in listing(place / "careful")
    page = (place / "careful" / "report.html").read_text()
    for text in ("The log is of another policy", "the recorded policy’s own 1,500 returns", '"target":true'):
        assert text in page


def test_the_same_from_python_as_a_table_and_as_a_function(place, data, monkeypatch):
    """A function of whole-numbered states becomes a table, so that its file needs no code."""
    monkeypatch.chdir(place)
    numbers = json.loads((place / "careful" / "summary.json").read_text())
    result = pr.evaluate(place / "log.parquet", target=PI, state=["ward"], seed=numbers["settings"]["seed"])
    mine, theirs = (compared(each) for each in (result.to_dict(), numbers))
    assert theirs["target"].pop("name") == "targets_of_a_test:careful"
    assert mine["target"].pop("name") == "a table of 5 × 3"
    assert {**mine, "data": None} == {**theirs, "data": None}
    again = pr.evaluate(data, target=lambda states: PI[states[:, 0].astype(int)])
    np.testing.assert_array_equal(again.risk.w_second, result.risk.w_second)
    assert again.notes["target"]["name"].endswith("<lambda>")
    again.save(place / "saved")
    stored = pr.Evaluation.load(place / "saved")
    np.testing.assert_array_equal(stored.risk.std(STATES), again.risk.std(STATES))
    assert stored.summary.std == again.summary.std
    deterministic = pr.evaluate(data, target=[0, 1, 2, 0, 1], features="tabular")
    assert deterministic.target.policy.shape == (N, ACTIONS)


def test_the_screen_and_a_query_say_what_is_covered(place, capsys):
    out = (place / "screen").read_text()
    assert "the log is of another policy than the target, targets_of_a_test:near, of 3 actions" in out
    assert "covered by logged actions: 100% of the target's probability" in out
    assert "λ = 0 no propensities are needed; those of the log serve the doubly robust figures alone." in out
    assert "doubly robust: mean " in out
    code, out, _ = call(capsys, "query", place / "near", "--at", "3")
    assert code == 0
    assert "100% of the target's probability there on logged actions" in out


def test_names_of_actions(tmp_path, data):
    """Columns of text are numbered in the order of the alphabet, which the notes say."""
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    write_parquet(data, tmp_path / "numbers.parquet", state=["ward"])
    table = pq.read_table(tmp_path / "numbers.parquet")
    names = np.array(["wait", "drug", "knife"], dtype=object)
    column = [None if a is None else names[a] for a in table["action"].to_pylist()]
    table = table.set_column(table.column_names.index("action"), "treatment", pa.array(column))
    pq.write_table(table, tmp_path / "log.parquet")
    order = [1, 2, 0]  # drug, knife, wait
    options = {"state": ["ward"], "action": "treatment", "propensity": "propensity"}
    result = pr.evaluate(tmp_path / "log.parquet", target=PI[:, order], **options)
    np.testing.assert_allclose(
        result.risk.mean(STATES), pr.evaluate(data, target=PI).risk.mean(STATES), atol=1e-9
    )
    assert result.notes["target"]["action_names"] == ["drug", "knife", "wait"]
    with pytest.raises(InvalidInputError, match="3 actions: drug, knife, wait, got 2") as caught:
        pr.evaluate(tmp_path / "log.parquet", target=[[0.5, 0.5]] * N, **options)
    assert caught.value.argument == "target"


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("two_actions", "a probability for each of the log's 3 actions, got 2"),
        ("nobody", "has no 'nobody'"),
        ("__name__", "must be probabilities, actions or a function"),
    ],
)
def test_errors_name_the_option(place, capsys, monkeypatch, target, text):
    monkeypatch.chdir(place)
    before = listing(place)
    capsys.readouterr()
    assert evaluated(place, target, out="wrong") == 2
    error = capsys.readouterr().err
    assert "--target" in error
    assert text in error
    assert listing(place) == before


def test_a_log_without_actions(place, data, capsys, monkeypatch):
    monkeypatch.chdir(place)
    bare = with_actions(data, None)
    with pytest.raises(InvalidInputError, match="action must say which actions were taken"):
        pr.evaluate(bare, target=PI)
    with pytest.raises(InvalidInputError, match="numbered actions, got continuous"):
        pr.evaluate(with_actions(data, data.actions[:, None].astype(float)), target=PI)
    with pytest.raises(InvalidInputError, match="must have rows of probabilities"):
        pr.evaluate(data, target=PI * 2)
    with pytest.raises(InvalidInputError, match="whole numbers from 0 to 2"):
        pr.evaluate(data, target=PI[:3])
    write_parquet(bare, place / "bare.parquet", state=["ward"])
    code, _, error = call(
        capsys, "evaluate", "bare.parquet", "--state", "ward", "--target", "targets_of_a_test:careful",
        "--out", "bare",
    )  # fmt: skip
    assert code == 2
    assert "--action" in error
    (place / "bare.parquet").unlink()


def test_any_share_of_actions_that_nobody_logged_stands_against_the_numbers(data):
    kept = [k for k in range(len(data)) if not (data[k].actions[data[k].states[:-1, 0] == 3] == 2).any()]
    rare = np.array(MU)
    rare[3] = [0.499, 0.499, 0.002]
    result = pr.evaluate(data[kept], target=rare)
    assert 0.99 < result.summary.covered < 1.0
    (advice,) = (one for one in result.advice if "never logged" in one.title)
    assert advice.severity == "warning"
    assert "No problems" not in str(result.advice)
    assert result.trust.level == "fair"
    assert "never logged" in result.trust.reason


def test_actions_that_nobody_logged(data):
    """A little of them is said, with action and place; too much is refused by name."""
    kept = [k for k in range(len(data)) if not (data[k].actions[data[k].states[:-1, 0] == 3] == 2).any()]
    some = data[kept]
    rare = np.array(MU)
    rare[3] = [0.45, 0.45, 0.1]
    with pytest.warns(UncoveredWarning) as seen:
        result = pr.evaluate(some, target=rare)
    assert [each.filename for each in seen] == [__file__]
    assert "missing: action 2 (" in str(seen[0].message)
    (advice,) = (one for one in result.advice if "never logged" in one.title)
    assert advice.severity == "warning"
    assert "action 2 (" in advice.seen
    assert "above all at state = 3 (10.0% of it there)" in advice.seen
    assert result.risk.covered([3]) == pytest.approx(0.9)
    np.testing.assert_allclose(measure(result, np.array([[3.0], [1.0]]))["covered"], [0.9, 1.0])
    never = np.zeros((N, ACTIONS + 1))
    never[:, ACTIONS] = 1.0
    with pytest.raises(
        UncoveredError, match=r"action 3 \(100% of.*That includes [1-9]\d* logged"
    ):  # and no warning
        pr.evaluate(data, target=never)


def clutter(data, seed=0):
    """The states with a coordinate beside them that says nothing."""
    beside = np.random.default_rng(seed).random((len(data.states), 1))
    arrays = np.hstack([data.states, beside]), data.rewards, data.lengths, data.terminated
    return pr.Trajectories(*arrays, actions=data.actions)


def by_ward(states):
    """A target that is a function of states with two coordinates."""
    return PI[np.clip(states[:, 0].astype(int), 0, N - 1)]


def test_a_function_of_other_states_is_asked_for_again(tmp_path, data, capsys):
    """Features are chosen by single steps; the file holds the advice, and no code."""
    pairs = clutter(data)
    said = []
    result = pr.evaluate(pairs, target=by_ward, names=["ward", "noise"], seed=1, say=said.append)
    assert "by single steps, since no episode is of the target" in said[0]
    ranking = result.notes["choice"]["one_step"]["ranking"]
    assert result.notes["features"] == f"{ranking[0]['name']}, a block for each of 3 actions"
    result.save(tmp_path / "pairs")
    result.report(tmp_path / "report.html")
    assert "did not see, since none is of the target" in (tmp_path / "report.html").read_text()
    loaded = pr.Evaluation.load(tmp_path / "pairs")
    assert loaded.advice == result.advice
    assert loaded.summary.std == result.summary.std
    assert "<table>" in loaded._repr_html_()
    with pytest.raises(InvalidInputError, match="policy must be given again"):
        loaded.risk.mean([[1.0, 0.5]])
    code, _, error = call(capsys, "query", tmp_path / "pairs", "--at", "1,0.5")
    assert code == 2
    assert "--target" in error
    again = pr.Evaluation.load(tmp_path / "pairs", target=by_ward)
    at = [[1.0, 0.5]]
    assert again.risk.variance(at) == result.risk.variance(at)
    spelled = pr.evaluate(pairs, target=by_ward, names=["ward", "noise"], features="labels,dims=ward")
    chain = pr.MarkovChain.from_mdp(P, R, PI)
    x = np.column_stack([STATES, np.full(N, 0.5)])
    for of, truth in (("mean", chain.mean()), ("variance", chain.variance())):
        z = (getattr(spelled.risk, of)(x) - truth) / spelled.risk.standard_error(x, of)
        assert np.abs(z).max() < 3.5


def test_smooth_features_do_not_hide_what_was_logged_elsewhere():
    """Action 1 is logged left of 1/2 alone: a polynomial has an estimate for it on the right, and advice."""
    rng = np.random.default_rng(3)
    x = rng.random(400)
    a = ((x < 0.5) & (rng.random(400) < 0.5)).astype(int)
    data = pr.Trajectories(np.repeat(x, 2), x + a, [1] * 400, [True] * 400, actions=a)
    result = pr.evaluate(data, target=lambda s: np.full((len(s), 2), 0.5), features="poly:1")
    (advice,) = (one for one in result.advice if "logged elsewhere" in one.title)
    assert "action 1 (" in advice.seen
    share = result.notes["target"]["near"]["share"]
    survey, pi = Survey.of(data), Target.of(lambda s: np.full((len(s), 2), 0.5), 2, 0, 0)
    slow = 0.0
    for at in survey.visited[:, 0]:
        nearest = np.argsort(np.abs(x - at), kind="stable")[:NEAREST]
        slow += 0.5 * sum(b not in a[nearest] for b in (0, 1)) / len(survey.visited)
    assert share == pytest.approx(slow)
    assert NotLogged.near(pi, data, survey).share == pytest.approx(slow)
    tiles = pr.evaluate(data, target=lambda s: np.full((len(s), 2), 0.5), features="tiles:2", discount=0.9)
    assert not any("logged elsewhere" in one.title for one in tiles.advice)


def test_overlap_by_hand():
    """Two episodes, of two steps and of one."""
    data = pr.Trajectories(
        np.array([0, 1, 2, 0, 2]), [1.0, 2.0, -5.0], [2, 1], [True, True], actions=[0, 1, 1],
        propensities=[0.5, 0.25, 0.5],
    )  # fmt: skip
    target = Target.of([[0.8, 0.2], [0.4, 0.6]], None, 0, 0)
    found = Overlap.over(data, target, 1.0).to_dict()
    rho = np.array([1.6, 2.4, 0.4])
    w = np.array([1.6 * 2.4, 0.4])
    assert found["agreed"] == pytest.approx((0.8 + 0.6 + 0.2) / 3)
    assert found["effective_steps"] == pytest.approx(rho.sum() ** 2 / (rho @ rho) / 3)
    assert found["effective_episodes"] == pytest.approx(w.sum() ** 2 / (w @ w))
    assert (found["least"], found["most"]) == (-5.0, 3.0)
    parts = Overlap.over([data[:1], data[1:]], target, 1.0).to_dict()
    assert parts == pytest.approx(found)
    bare = Overlap.over(with_actions(data, data.actions), target, 1.0).to_dict()
    assert bare["agreed"] == found["agreed"]
    assert bare["effective_steps"] is None


def test_targets_of_one_log_are_compared_by_episode(place, capsys, monkeypatch):
    """The command's difference is sharper than that of two logs, whatever seeds the evaluations had."""
    monkeypatch.chdir(place)
    code, out, _ = call(
        capsys, "compare", "careful", "near", "--json", "--out", "c.png", "--criterion", "mean-std:1"
    )
    assert code == 0
    found = json.loads(out)
    assert any("episode by episode of one log" in note for note in found["notes"])
    assert found["starts_apart"] is None
    alone = [one["standard_error"] for one in (each["value"] for each in found["ranking"])]
    assert found["significance"]["difference"]["standard_error"] < 0.5 * math.hypot(*alone)
    folders = [pr.Evaluation.load(place / name) for name in ("careful", "near")]
    assert folders[0].notes["settings"]["seed"] != folders[1].notes["settings"]["seed"]
    other = pr.evaluate(log(P, R, MU, 1500, seed=3), target=NEAR).risk
    apart = pr.compare({"careful": folders[0].risk, "near": other}, criterion=pr.criteria.MeanMinusStd(1))
    assert not any("episode by episode" in note for note in apart.notes)


@pytest.mark.slow
def test_the_size_of_paired_comparisons():
    """Nominal 95 % intervals of the difference of two targets on one log, over 600 logs."""
    truth, held = {}, []
    for name, policy in (("careful", PI), ("near", NEAR)):
        chain = pr.MarkovChain.from_mdp(P, R, policy)
        J, V = chain.mean(), chain.variance()
        truth[name] = J.mean() - math.sqrt(V.mean() + J.var())
    for seed in range(600):
        one = log(P, R, MU, 600, seed=50_000 + seed, propensities=False)
        risks = {
            name: pr.evaluate(one, target=policy).risk for name, policy in (("careful", PI), ("near", NEAR))
        }
        difference = (
            found := pr.compare(risks, criterion=pr.criteria.MeanMinusStd(1))
        ).significance.difference
        lead = truth[found.significance.best] - truth[found.significance.second]
        held.append(difference.low < lead < difference.high)
    assert abs(np.mean(held) - 0.95) < 0.015 + 2 * math.sqrt(0.95 * 0.05 / 600)


def test_the_doubly_robust_figures_stand_beside(data):
    """Those of LSTDQ.doubly_robust; where one tile cannot tell wards apart, they disagree, as advice says."""
    result = pr.evaluate(data, target=PI, seed=4)
    direct = pr.LSTDQ(pr.Tabular(N), PI).doubly_robust(data, seed=4)
    beside = result.notes["target"]["doubly_robust"]
    assert beside["variance"]["value"] == pytest.approx(direct.variance)
    assert beside["apart"] == []
    blind = pr.evaluate(
        log(P, R, MU, 4000, seed=5), target=np.eye(ACTIONS)[R.argmax(axis=1)] / 2 + MU / 2, features="tiles:1"
    )
    titles = [advice.title for advice in blind.advice]
    assert "The estimate disagrees with what the episodes say" in titles
    bare = pr.evaluate(with_actions(data, data.actions), target=PI, seed=4)
    assert bare.notes["target"]["doubly_robust"] is None
    np.testing.assert_array_equal(bare.risk.w_second, result.risk.w_second)


def test_a_killed_evaluation_goes_on(tmp_path, data):
    """To the same bits, with the same target alone."""
    parts = [data[:400], data[400:900], data[900:]]
    whole = pr.evaluate(parts, target=PI, seed=1)
    with pytest.raises(KeyboardInterrupt):
        pr.evaluate(Stops(parts, 4), target=PI, seed=1, checkpoint=tmp_path / "c.npz")
    source = Stops(parts, 4)
    source.passes = 10
    with pytest.raises(InvalidInputError, match="same problem"):
        pr.evaluate(source, target=NEAR, seed=1, checkpoint=tmp_path / "c.npz", resume=True)
    again = pr.evaluate(source, target=PI, seed=1, checkpoint=tmp_path / "c.npz", resume=True)
    np.testing.assert_array_equal(again.risk.error_bars.replicates, whole.risk.error_bars.replicates)
    assert again.notes["target"] == whole.notes["target"]


def test_an_evaluation_of_an_estimate_by_hand(tmp_path, data):
    """Evaluation.of knows that LSTDQ's estimate is of a target, if not how the log was chosen."""
    found = pr.Evaluation.of(pr.LSTDQ(pr.Tabular(N), PI).fit(data), data)
    found.report(tmp_path / "report.html")
    assert "the recorded policy’s own" in (tmp_path / "report.html").read_text()
    assert "The log is of another policy" in [advice.title for advice in found.advice]
    found.save(tmp_path)
    assert pr.Evaluation.load(tmp_path).to_dict()["target"] is None


def test_no_held_out_episode_is_of_a_target(data):
    with pytest.raises(InvalidInputError, match="must be of the recorded policy"):
        pr.cross_validate({"q": pr.LSTDQ(pr.Tabular(N), PI), "l": pr.LSTD(pr.Tabular(N))}, data)


def test_a_target_may_answer_with_actions_or_their_names(tmp_path):
    """An action for each state, by number or by name, is the policy that takes it with probability 1."""
    rng = np.random.default_rng(0)
    n = 400
    frame = pd.DataFrame(
        {
            "episode": np.repeat(np.arange(n // 4), 4),
            "x": rng.random(n).round(2),
            "reward": rng.random(n),
            "action": rng.choice(["sell", "buy", "hold"], n),
            "terminated": np.tile([False, False, False, True], n // 4),
        }
    )

    def chosen(states):
        return np.where(states[:, 0] < 0.5, 1, 2)

    def spelled(states):
        return [["buy", "hold", "sell"][a] for a in chosen(states)]

    def probable(states):
        return np.eye(3)[chosen(states)]

    answers = [
        pr.evaluate(frame, state="x", features="tiles:2", target=target, seed=0)
        for target in (probable, chosen, spelled)
    ]
    assert len({result.summary.mean.to_dict()["value"] for result in answers}) == 1
    answers[2].save(tmp_path / "named")
    again = pr.Evaluation.load(tmp_path / "named", spelled)
    np.testing.assert_array_equal(again.risk.mean([0.2, 0.7]), answers[0].risk.mean([0.2, 0.7]))
    with pytest.raises(InvalidInputError, match="names of the log's actions, buy, hold, sell, got 'keep'"):
        pr.evaluate(frame, state="x", features="tiles:2", target=lambda states: ["keep"] * len(states))
    with pytest.raises(InvalidInputError, match=r"whole numbers, got float64"):
        pr.evaluate(frame, state="x", features="tiles:2", target=lambda states: chosen(states) / 2)
