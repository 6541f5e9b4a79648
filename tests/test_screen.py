"""What commands show: the answer first, the same options everywhere, progress, and no extras needed."""

import ast
import json
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import policyrisk as pr
from policyrisk import cli
from policyrisk._core import progress
from policyrisk.cli.screen import _PHRASES, as_options
from policyrisk.data import write_npz
from policyrisk.evaluation.order import EpisodeOrder


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A log of 300 episodes and its evaluation, with what it said and logged."""
    folder = tmp_path_factory.mktemp("screen")
    write_npz(pr.domains.walk(n=6, p=0.7).sample(0, 300, seed=1), folder / "walk.npz")
    return folder


def evaluate(place, out, *options):
    return cli.run(
        ["evaluate", str(place / "walk.npz"), "--features", "tabular", "--out", str(out), *options]
    )


@pytest.fixture
def no_pictures(monkeypatch):
    for package in ("matplotlib", "plotly"):
        monkeypatch.setitem(sys.modules, package, None)


def test_the_answer_comes_first_and_the_details_with_verbose(place, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # the maps take long
    assert evaluate(place, tmp_path / "a", "--seed", "0") == 0
    title, head, mean, std, trust, more = capsys.readouterr().out.splitlines()
    summary = pr.Evaluation.load(tmp_path / "a").summary
    assert title == "a: return of 300 episodes"
    assert head.split() == ["value", "std", "error", "95%", "interval"]
    assert mean.split() == ["mean", *" ".join(summary.mean.cells).split()]
    assert std.split() == ["std", *" ".join(summary.std.cells).split()]
    assert trust == "trust: good: no problems found"
    assert more == f"more in {tmp_path / 'a' / 'report.html'}, or here with --verbose"
    assert evaluate(place, tmp_path / "a", "--seed", "0", "--verbose") == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{title}\n{head}\n{mean}\n")
    for detail in ("box: state 0 to 5", "sharpe", "ok: No problems found", "seconds: ", "written: "):
        assert detail in out


def test_quiet_says_nothing_json_alone_on_stdout_and_the_log_has_all(place, tmp_path, capsys, no_pictures):
    log = tmp_path / "all.log"
    assert evaluate(place, tmp_path / "a", "--quiet", "--log", str(log)) == 0
    assert capsys.readouterr() == ("", "")
    first = log.read_text()
    assert f"policyrisk {pr.__version__}: evaluate " in first
    assert "a: return of 300 episodes" in first
    assert "seconds: " in first
    assert "pictures are left out" in first
    assert cli.run(["--json", "--log", str(log), "query", str(tmp_path / "a"), "--at", "2"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "a"
    assert log.read_text().startswith(first)
    assert "a at state = 2" in log.read_text()
    assert cli.run(["query", str(tmp_path / "a"), "--at", "x", "--quiet", "--log", str(log)]) == 2
    assert "not a finite number" in capsys.readouterr().err
    assert "not a finite number" in log.read_text()
    assert cli.run(["query", str(tmp_path / "a"), "--at", "2", "--log", str(tmp_path / "no" / "x.log")]) == 2
    assert "--log" in capsys.readouterr().err


def test_what_a_policy_prints_is_not_in_the_json(tmp_path, capsys, monkeypatch):
    (tmp_path / "talking_policy.py").write_text("def talk(x):\n    print('hello')\n    return [0] * len(x)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    line = ["rollout", "CartPole-v1", "--policy", "talking_policy:talk", "--episodes", "2", "--out", "o.npz"]
    assert cli.run([*line, "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["episodes"] == 2
    assert "hello" in err


def test_the_version_and_the_shared_options_of_every_command(capsys):
    assert cli.run(["--version"]) == 0
    assert capsys.readouterr().out == f"policyrisk {pr.__version__}\n"
    for command in (["rollout"], ["compare"], ["improve"]):
        assert cli.run([*command, "--help"]) == 0
        shown = capsys.readouterr().out
        for option in ("--json", "--verbose", "--quiet", "--log", "--debug"):
            assert option in shown, command


@pytest.mark.parametrize("total", [4, None])
def test_a_line_of_progress_now_and_then(total, monkeypatch):
    said = []
    monkeypatch.setattr(progress, "_EVERY", 0.03)
    with progress.telling(said.append), progress.ProgressBar("fit", total) as bar:
        bar.advance()
        assert said == []
        for _ in range(2):
            time.sleep(0.04)
            bar.advance()
            bar.advance(0)
    assert [line.split(" after ")[0] for line in said] == (
        ["fit: 50%", "fit: 75%"] if total else ["fit: 2", "fit: 3"]
    )
    with progress.ProgressBar("fit", total) as bar:
        time.sleep(0.04)
        bar.advance()
    assert len(said) == 2, "nobody is told any more"


def test_the_command_line_is_told_of_progress_without_a_terminal(place, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(progress, "_EVERY", 0.0)
    assert evaluate(place, tmp_path / "a", "--json") == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["episodes"] == 300
    assert "policyrisk: survey: " in err
    for part in ("fit", "maps", "report"):
        assert f"policyrisk: {part}: 100% after " in err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("pass for example state=['x', 'y']", "pass for example --state x,y"),
        ("names must be different", "--state must be different"),
        ("features=auto must have enough data", "--features auto must have enough data"),
        ("write for example dims=x", "write for example dims=x"),
        ("as in labels,step=1,dims=x", "as in labels,step=1,dims=x"),
        ("pass action=['force'] where", "pass --action force, where"),
        ("or pass step=None to ignore it", "or pass --step none to ignore it"),
        ("with nonnegative_at=, or use variance='direct'", "with --nonnegative, or use --direct"),
        ("a larger --lam (lam=), which", "a larger --lam, which"),
        ("than it says; see episodes(x), gather more", "than it says; gather more"),
        ("(--features, features=)", "(--features)"),
        ("(step=2 of evaluate, --step 2, or data.with_step())", "(--step 2)"),
        ("in a=1.npz; go on with --resume or resume=True", "in a=1.npz; go on with --resume"),
        ('device="cuda" needs a GPU; pass device="cpu"', "--device cuda needs a GPU; pass --device cpu"),
        ("reward must be finite, got inf in row 1", "reward must be finite, got inf in row 1"),
    ],
)  # fmt: skip
def test_messages_speak_of_options(text, said):
    names = ("state", "features", "action", "step", "lam", "device", "reward", "resume")
    assert as_options(text, {name: f"--{name}" for name in names}) == said


def test_every_phrase_that_is_put_otherwise_is_still_said():
    def template(node):
        if isinstance(node, ast.Constant):
            return str(node.value)
        return "".join(map(template, node.values)) if isinstance(node, ast.JoinedStr) else "…"

    said = {
        template(node)
        for path in Path(pr.__file__).parent.rglob("*.py")
        if path.name != "screen.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant | ast.JoinedStr)
    }
    for pattern, _ in _PHRASES:
        assert any(map(pattern.search, said)), pattern


def test_no_column_can_be_asked_for(tmp_path, capsys, no_pictures):
    rows = ["episode,step,state,reward,terminated", "0,0,1,2,false", "0,0,2,2,true", "1,0,1,2,true"]
    (tmp_path / "a.csv").write_text("\n".join(rows) + "\n")
    line = ["evaluate", str(tmp_path / "a.csv"), "--features", "poly:1", "--out", str(tmp_path / "a")]
    assert cli.run(line) == 1
    assert "or pass --step none to ignore it" in capsys.readouterr().err
    assert cli.run([*line, "--step", "none", "--ridge", "1", "--quiet"]) == 0


# Without the extras


def test_evaluate_and_compare_write_their_numbers_without_pictures(place, tmp_path, capsys, no_pictures):
    out = tmp_path / "a"
    assert evaluate(place, out) == 0
    shown, said = capsys.readouterr()
    assert {path.name for path in out.iterdir()} == {"risk.npz", "survey.npz", "summary.json"}
    assert "pictures are left out: matplotlib is not installed; install it with `pip install" in said
    assert "the report is left out: plotly is not installed" in said
    assert f"more in {out}, or here" in shown
    assert cli.run(["compare", str(out), "--out", str(tmp_path / "c.png"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["picture"] is None
    assert not (tmp_path / "c.png").exists()


LEFT_OUT = {"matplotlib": "pictures are", "plotly": "the report is", "jinja2": "the report is"}


@pytest.mark.parametrize(("package", "what"), LEFT_OUT.items())
def test_a_broken_package_costs_its_pictures_alone(place, tmp_path, capsys, monkeypatch, package, what):
    used = {"matplotlib": "matplotlib.figure", "plotly": "plotly.offline", "jinja2": "jinja2.environment"}
    used, other = used[package], "plotly" if package == "matplotlib" else "matplotlib"
    monkeypatch.setitem(sys.modules, used, None)  # it is found, and ends in an ImportError
    monkeypatch.setitem(sys.modules, other, None)  # which takes long
    assert evaluate(place, tmp_path / "a", "--quantiles", "0.1") == 0
    said = capsys.readouterr().err
    assert f"{what} left out: {package} is broken (ModuleNotFoundError: " in said
    assert (tmp_path / "a" / "summary.json").exists()


@pytest.mark.parametrize(
    ("package", "extra", "arguments"),
    [
        ("pyarrow", "parquet", "evaluate a.parquet --out o"),
        ("pyarrow", "parquet", "evaluate a.csv --out o"),
        ("pyarrow", "parquet", "rollout CartPole-v1 --policy random --episodes 1000000 --out a.parquet"),
        ("gymnasium", "gym", "rollout CartPole-v1 --policy random --episodes 2 --out a.npz"),
        ("gymnasium", "gym", "improve CartPole-v1 --criterion sharpe --out o"),
        ("minari", "gym", "evaluate minari:a/b-v0 --out o"),
        ("ray", "ray", "evaluate a.parquet --ray --out o"),
        ("numba_cuda", "cuda", "improve pinball --criterion sharpe --device cuda --out o"),
    ],
)
def test_what_cannot_be_done_without_says_so_at_once(
    package, extra, arguments, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.parquet").touch()
    (tmp_path / "a.csv").touch()
    monkeypatch.setitem(sys.modules, package, None)
    assert cli.run(arguments.split()) == 1
    said = capsys.readouterr().err
    assert f"needs the package {package}, which is not installed" in said
    assert f'install it with `pip install "policyrisk[{extra}]"`' in said


# Notebooks


def test_records_are_tables_in_notebooks_and_never_dump_their_arrays():
    chain = pr.domains.walk(n=6, p=0.7)
    data = chain.sample(0, 60, seed=1)
    one, two = pr.Polynomial(1, [0], [5]), pr.Polynomial(2, [0], [5])
    risk = pr.LSTD(two).fit(data)
    evaluation = pr.Evaluation.of(risk, data, name="<b>walk & talk</b>", names=["place"])
    records = [
        evaluation.summary,
        pr.compare({"<b>walk & talk</b>": risk}),
        pr.cross_validate({"<b>walk & talk</b>": pr.LSTD(one)}, data, folds=2, seed=0),
        pr.monte_carlo(chain, None, [[0], [5]], episodes=20, seed=0),
        pr.ReturnDistribution(two).fit(data).summary([[0]], [0.05]),
        risk.score(data),
        chain.diagnose(one, two, 0, 0.9),
        chain.distribution(0),
    ]
    for record in records:
        html = record._repr_html_()
        assert "array(" not in repr(record)
        assert repr(record) == str(record)
        assert "<b>" not in html
        words = [word for word in str(record).split() if word[0].isdigit()]
        assert words
        assert all(word.split("%")[0] in html for word in words), "the same numbers"
    order = EpisodeOrder.of(pr.evaluate(data, features="tabular"))
    rest = [risk, evaluation, order, pr.ReturnDistribution(two).fit(data), pr.ReturnMonitor(-99, 0)]
    rest.append(pr.MDP(np.eye(2)[None] / 2, [1.0, 2.0]).improve(pr.criteria.Sharpe(), 0, seed=0))
    for record in rest:
        assert record._repr_html_().startswith("<")
        assert len(repr(record).splitlines()) <= 1 + 4 * isinstance(record, pr.ReturnMonitor)
        assert len(repr(record)) < 400
    for record in records[:6]:
        assert record._repr_html_().count("<table>") == 1
    assert "&lt;b&gt;walk &amp; talk" in evaluation._repr_html_()
    assert "<b>walk" not in evaluation._repr_html_()
