"""The examples run as scripts, and what they find is compared with the truth."""

import ast
import contextlib
import io
import json
import runpy
import warnings
from html.parser import HTMLParser
from pathlib import Path

import gymnasium
import numba
import numpy as np
import pytest

import policyrisk as pr

EXAMPLES = Path(__file__).parent.parent / "examples"
PNG = b"\x89PNG"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Run an example in a folder of its own, once: its names, what it printed, and the folder."""
    done = {}

    def run_once(name, main=True):
        if (name, main) not in done:
            folder, printed = tmp_path_factory.mktemp(name), io.StringIO()
            with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
                patch.chdir(folder)
                # Kernels kept beside the example would be looked for by the name that it has here.
                patch.setattr(numba.config, "CACHE_DIR", str(folder))
                # What it registers there is forgotten again: twice would be a warning.
                patch.delitem(gymnasium.registry, "Savings-v0", raising=False)
                names = runpy.run_path(
                    str(EXAMPLES / f"{name}.py"), run_name="__main__" if main else "example"
                )
                gymnasium.registry.pop("Savings-v0", None)
            done[name, main] = names, printed.getvalue(), folder
        return done[name, main]

    return run_once


def z_scores(risk, x, of, truth):
    return (getattr(risk, of)(x) - truth) / risk.standard_error(x, of=of)


def test_every_example_is_tested():
    tested = Path(__file__).read_text()
    for path in EXAMPLES.glob("*.py"):
        assert f'run("{path.stem}"' in tested, path
    assert [path.name for path in EXAMPLES.glob("*.ipynb")] == ["notebook.ipynb"]


def test_notebook(tmp_path, monkeypatch):
    """Its cells run one after the other, and what each ends in shows itself as HTML."""
    monkeypatch.chdir(tmp_path)
    cells = json.loads((EXAMPLES / "notebook.ipynb").read_text())["cells"]
    assert not any(cell.get("outputs") for cell in cells)
    names, shown = {}, {}
    for cell in cells:
        if cell["cell_type"] == "code":
            *lines, last = ast.parse("".join(cell["source"])).body
            exec(compile(ast.Module(lines, []), "notebook", "exec"), names)
            value = eval(compile(ast.Expression(last.value), "notebook", "eval"), names)
            if hasattr(value, "_repr_html_"):
                shown.setdefault(type(value).__name__, []).append(value._repr_html_())
    assert {kind: len(found) for kind, found in shown.items()} == {
        "Evaluation": 2,
        "CrossValidation": 1,
        "Comparison": 1,
    }
    for kind, found in shown.items():
        for html in found:
            parser = Balanced()
            parser.feed(html)
            assert parser.open == [], kind
            assert "<table>" in html
    for name, evaluation in (("lean", names["leaning"]), ("swing", names["swinging"])):
        returns = names["episodes"][name].returns()
        assert evaluation.summary.mean.value == pytest.approx(returns.mean())
        assert evaluation.summary.std.value == pytest.approx(returns.std(ddof=1))
    assert (
        f'<td style="text-align:right">{names["leaning"].summary.mean.cells[0]}</td>'
        in shown["Evaluation"][0]
    )
    assert shown["Evaluation"][0].count("data:image/png;base64,") == 3  # mean, std, returns
    assert len(shown["Evaluation"][0]) < 200_000
    assert (tmp_path / "swing.html").exists()


class Balanced(HTMLParser):
    """The tags that are open."""

    def __init__(self):
        super().__init__()
        self.open = []

    def handle_starttag(self, tag, attributes):
        if tag not in ("br", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_exact_chain(run):
    names, printed, folder = run("exact_chain")
    # Careful steps are geometric: (1 - 0.9) / 0.9² of variance each, and 1/0.9 of mean.
    near = np.arange(10)
    np.testing.assert_allclose(names["mean"][near], -(near + 1) / 0.9)
    np.testing.assert_allclose(names["std"][near] ** 2, (near + 1) * 0.1 / 0.81)
    far = np.array([5, 12, 20, 29])
    for of in ("mean", "std"):
        assert np.abs(z_scores(names["risk"], far, of, names[of][far])).max() < 4
    assert (folder / "walker.png").read_bytes().startswith(PNG)
    assert printed.count("\n") == 8


def test_cartpole(run):
    names, printed, _ = run("cartpole")
    # The truth for the clumsy policy: fresh episodes without the time limit.
    fresh = pr.rollout(
        "CartPole-v1", names["Clumsy"](seed=1), 300, seed=1, env_kwargs={"max_episode_steps": 10_000}
    )
    assert fresh.terminated.all()
    returns = fresh.returns()
    summary = names["risks"]["clumsy"].summary(fresh.starts())
    error = np.hypot(summary.mean.standard_error, returns.std() / np.sqrt(300))
    assert abs(summary.mean_value - returns.mean()) < 4 * error
    assert summary.std.value == pytest.approx(returns.std(), rel=0.25)
    # Falls after some 40 steps: the Sharpe ratio likes that, and the mean less the deviation does not.
    assert "careless leads clumsy" in printed
    assert "clumsy leads careless" in printed


def test_cartpole_policies_choose_as_they_say(run):
    names, _, _ = run("cartpole", main=False)
    states = np.array([[0, 0, 0.1, 0], [0, 0, 0.1, -0.5], [0, 0, -0.1, 0], [0, 0, -0.1, 0.5]])
    assert names["upright"](states).tolist() == [1, 0, 0, 1]
    assert names["careless"](states).tolist() == [1, 1, 0, 0]
    actions, state = names["Clumsy"](slips=0.0).predict(states)
    assert actions.tolist() == [1, 0, 0, 1]
    assert state is None
    often = names["Clumsy"]().predict(np.repeat(states[:1], 10_000, axis=0))[0]
    assert abs(often.mean() - 0.85) < 4 * np.sqrt(0.85 * 0.15 / 10_000)


def test_logged_parquet(run):
    names, _, folder = run("logged_parquet")
    chain, at = names["chain"], np.array([1, 2, 4, 6, 8])
    for of in ("mean", "std"):
        assert np.abs(z_scores(names["risk"], at, of, getattr(chain, of)()[at])).max() < 4
    counts = names["log"].counts
    assert counts.episodes == 1500
    assert counts.cut_off > 0
    assert counts.given_up == 0
    page = (folder / "report.html").read_text()
    assert "<title>help desk" in page
    assert "Episodes were cut off before their end" in page


def test_pinball(run):
    names, _, folder = run("pinball")
    # The tiles do not see the velocity: J from rest is right to a few percent, not more.
    at_rest, truth = names["at_rest"], names["truth"]
    np.testing.assert_allclose(names["risk"].mean(at_rest), truth.mean, rtol=0.06)
    assert (folder / "pinball.png").read_bytes().startswith(PNG)


# The savings plan


PLANS = ("all_stocks", "glide_path", "half_and_half")


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize(("year", "wealth"), [(0, 5.0), (12, 30.0), (19, 10.0)])
def test_savings_moments_are_those_of_a_simulation(run, plan, year, wealth):
    names, _, _ = run("savings", main=False)
    policy, n, rng = names[plan], 100_000, np.random.default_rng(0)
    now, gains = np.full(n, wealth), np.zeros(n)
    for t in range(year, names["YEARS"]):
        share = policy(np.array([[t, 0.0]]))[0]
        rate = share * rng.normal(*names["STOCKS"], n) + (1 - share) * rng.normal(*names["BONDS"], n)
        gain = (now + names["PAID_IN"]) * rate
        now, gains = now + names["PAID_IN"] + gain, gains + gain
    (J,), (S,) = names["exact"](policy, [[year, wealth]])
    squares = (gains - J) ** 2
    assert abs(gains.mean() - J) < 4 * S / np.sqrt(n)
    assert abs(squares.mean() - S**2) < 4 * squares.std() / np.sqrt(n)


def test_savings_is_a_gymnasium_environment(run):
    from gymnasium.utils.env_checker import check_env

    names, _, _ = run("savings", main=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the checker, about infinite bounds and the like
        check_env(names["Savings"](), skip_render_check=True)


@pytest.mark.parametrize("plan", PLANS)
def test_savings_intervals_hold_the_truth(run, plan):
    """Features that can express it have no bias: the errors are as large as the error bars say."""
    names, _, _ = run("savings")
    x = np.array([[0, 5], [0, 10], [0, 15], [5, 15], [10, 20]])
    risk, truth = names["risks"][plan], names["exact"](names[plan], x)
    for of, exact in zip(("mean", "std"), truth, strict=True):
        assert np.abs(z_scores(risk, x, of, exact)).max() < 3.5, of
        low, high = risk.interval(x, of=of, level=0.999).T
        assert ((low < exact) & (exact < high)).all(), of


def test_savings_prefers_half_and_half(run):
    names, printed, _ = run("savings")
    x = np.array([[0, 10]])
    J, S = np.array([names["exact"](names[plan], x) for plan in PLANS])[:, :, 0].T
    assert PLANS[np.argmax(J - S)] == "half_and_half"
    assert "half_and_half leads glide_path" in printed


# Yahtzee


def test_yahtzee_last_turns(run):
    """What the last open category is worth: closed forms for Yahtzee, the sixes and chance."""
    names, _, _ = run("yahtzee", main=False)
    value = np.zeros(names["CARDS"])
    names["solve"](names["LAST"], value)
    every = (1 << names["CATEGORIES"]) - 1
    # A die shows a six after up to three rolls with probability 1 − (5/6)³.
    sixes = 5 * 6 * (1 - (5 / 6) ** 3)
    assert value[(every - (1 << 5)) << 7] == pytest.approx(sixes, abs=1e-12)
    # Each die: roll again below 5 of the last, then below 4.25: 3.5, 4.25, 4 2/3.
    assert value[(every - (1 << 12)) << 7] == pytest.approx(5 * 14 / 3, abs=1e-12)
    # The published chance of a Yahtzee within three rolls.
    assert value[(every - (1 << names["YAHTZEE"])) << 7] / 50 == pytest.approx(0.04602864, abs=5e-9)
    # Three sixes make 63 of 45, which earns the bonus of 35.
    least = ((5 / 6) ** 3) ** np.arange(6) * (1 - (5 / 6) ** 3) ** (5 - np.arange(6)) * [1, 5, 10, 10, 5, 1]
    assert value[(every - (1 << 5)) << 7 | 45] == pytest.approx(sixes + 35 * least[:3].sum(), abs=1e-12)


@pytest.mark.slow
def test_yahtzee(run):
    """The figures that Verhoeff published."""
    _, printed, _ = run("yahtzee")
    assert "best mean 254.5896;" in printed
    assert "mean 254.5896, std 59.6117" in printed
    assert "median 248" in printed


# The treatment of sepsis


# Survival, mean and variance of the length of stay, from the distribution of first states.
SEPSIS = {
    "clinicians": (0.781845, 9.23795, 91.31938),
    "random": (0.780071, 9.46230, 96.56309),
    "optimal": (0.875142, 10.99174, 139.08207),
}


@pytest.mark.parametrize("policy", SEPSIS)
def test_sepsis_truths(run, policy):
    found = run("sepsis")[0]["truths"][policy]
    assert np.abs(np.subtract(found, SEPSIS[policy])).max() < 5.1e-6
    assert abs(found[0] - SEPSIS[policy][0]) < 5.1e-7


TAILS = {  # of the stay: 95 % quantile, mean of the longest 5 and 1 %, P(more than 30)
    "clinicians": (28, 38.080113, 53.641629, 0.04025858),
    "random": (29, 39.124921, 55.140007, 0.04378099),
    "optimal": (35, 46.791567, 66.261035, 0.07084840),
}


@pytest.mark.parametrize("policy", TAILS)
def test_sepsis_tails(run, policy):
    names, _, _ = run("sepsis")
    stay = pr.MarkovChain.from_mdp(
        names["P"], -1.0 * (np.arange(names["STATES"]) < names["DIED"]), names["policies"][policy]
    ).distribution(names["start"])
    found = -stay.quantile(0.05), -stay.cvar(0.05), -stay.cvar(0.01), stay.cdf(-31)
    np.testing.assert_allclose(found, TAILS[policy], rtol=1e-7, atol=5.1e-7)


def test_sepsis_no_policy_is_better_than_the_optimal_one(run):
    """One step that departs from it, anywhere, gains nothing; and clinicians know all that it does."""
    names, _, _ = run("sepsis")
    P, policies = names["P"], names["policies"]
    n, survived = names["STATES"], names["SURVIVED"]
    enters = np.broadcast_to(np.arange(n) == survived, (n, n)).astype(float)
    J = pr.MDP(P, enters).chain(policies["optimal"]).mean()
    assert (P[:, :, survived] + P @ J).max(axis=0) == pytest.approx(J, abs=1e-10)
    assert (policies["clinicians"] * policies["optimal"]).sum(axis=1)[: names["DIED"]].min() > 0.02


def test_sepsis_log_is_of_the_process(run):
    names, _, _ = run("sepsis")
    P, start, policy, log = (names[name] for name in ("P", "start", "clinicians", "log"))
    died, survived = names["DIED"], names["SURVIVED"]
    x, y, a = log.states[log.visited_rows, 0], log.states[log.visited_rows + 1, 0], log.actions
    assert log.terminated.all()
    assert set(log.states[log.final_rows, 0]) == {died, survived}
    assert x.max() < died
    np.testing.assert_array_equal(log.propensities, policy[x, a])
    # What is drawn at a step, the treatment and what follows, is on average what the step expects.
    rng = np.random.default_rng(0)
    u, v = rng.normal(size=policy.shape), rng.normal(size=len(start))
    for drawn, (expected, square) in (
        (u[x, a], [(policy * u**k).sum(axis=1)[x] for k in (1, 2)]),
        (v[y], [(P @ v**k)[a, x] for k in (1, 2)]),
    ):
        assert abs((drawn - expected).sum()) < 4 * np.sqrt((square - expected**2).sum())
    first = np.bincount(log.starts()[:, 0], minlength=len(start)) / len(log)
    assert (np.abs(first - start) <= 5 * np.sqrt(start / len(log))).all()
    lived = names["survival"](log).returns()
    np.testing.assert_array_equal(lived, log.states[log.final_rows, 0] == survived)
    share, mean, variance = SEPSIS["clinicians"]
    error = np.sqrt(np.array([share * (1 - share), variance]) / len(log))
    z = (np.array([lived.mean(), log.returns().mean()]) - [share, mean]) / error
    assert np.abs(z).max() < 4


def test_sepsis(run):
    """Estimates of other policies from the clinicians' log, as far from the truth as their errors say."""
    names, printed, _ = run("sepsis")
    assert "random          refused: the target takes actions that were never logged" in printed
    assert set(names["found"]) == {"clinicians", "half and half", "optimal"}
    target = names["policies"]["half and half"]
    with pytest.warns(pr.errors.UncoveredWarning, match=r"1\.0% of the target's probability"):
        risk = pr.LSTDQ(pr.Tabular(names["STATES"]), target).fit(names["log"], bootstrap=100, seed=1)
    summary, (_, mean, variance) = risk.summary(), names["truths"]["half and half"]
    assert summary.mean_value == pytest.approx(names["found"]["half and half"][1])
    assert abs(summary.mean_value - mean) < 4 * summary.mean.standard_error
    assert abs(summary.variance.value - variance) < 4 * summary.variance.standard_error
    assert summary.covered > 0.85
    lived = [names["found"][name][0] for name in ("clinicians", "half and half", "optimal")]
    np.testing.assert_allclose(lived, [0.782, 0.823, 0.875], atol=0.02)
