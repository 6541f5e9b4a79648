"""pr.evaluate: the command's numbers from Python, whatever the source, and errors that are ours."""

import json
import re

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

import policyrisk as pr
from policyrisk._core.output import plain
from policyrisk.cli import run
from policyrisk.data import write_npz
from policyrisk.errors import InvalidInputError, NoErrorBarsWarning


def walk(episodes=600, seed=1):
    return pr.domains.walk(n=10, p=0.7).sample(start=0, episodes=episodes, seed=seed)


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """A folder of two files."""
    folder = tmp_path_factory.mktemp("log")
    for k in range(2):
        pr.write_parquet(walk(200, seed=k), folder / f"{k}.parquet", state=["place"])
    return folder


def compared(numbers):
    """Without what differs between two runs by its nature."""
    numbers = json.loads(json.dumps(plain(numbers)))
    return {key: value for key, value in numbers.items() if key not in ("seconds", "name")}


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        ([], {}),
        (["--direct"], {"variance": "direct"}),
        (["--features", "tabular", "--lam", "0.5"], {"features": "tabular", "lam": 0.5}),
        (
            ["--features", "tiles:5,second=poly:2", "--box", "-1:10", "--discount", "0.9", "--level", "0.8"],
            {"features": "tiles:5,second=poly:2", "box": [(-1, 10)], "discount": 0.9, "level": 0.8},
        ),
        (
            ["--features", "poly:1", "--ridge", "0.1", "--direct", "--nonnegative"],
            {"features": "poly:1", "ridge": 0.1, "variance": "direct", "nonnegative": True},
        ),
    ],
)
def test_the_commands_numbers_are_those_of_evaluate(options, arguments, log, tmp_path):
    line = ["evaluate", str(log), "--state", "place", "--seed", "3", "--out", str(tmp_path / "out")]
    assert run([*line, *options, "--json"]) == 0
    numbers = json.loads((tmp_path / "out" / "summary.json").read_text())
    result = pr.evaluate(str(log), seed=3, state=["place"], **arguments)
    assert compared(result.to_dict()) == compared(numbers)
    stored = pr.Evaluation.load(tmp_path / "out")
    states = np.arange(10)[:, None]
    np.testing.assert_array_equal(result.risk.variance(states), stored.risk.variance(states))


def test_every_kind_of_source_gives_the_same_answer(log, tmp_path):
    data = pr.read(log, state=["place"]).load()
    write_npz(data, tmp_path / "log.npz")
    files = sorted(log.iterdir())
    results = [
        pr.evaluate(data, features="tabular"),
        pr.evaluate([data[:150], data[150:]], features="tabular", names=["place"]),
        pr.evaluate(pr.read(log, state=["place"]), features="tabular"),
        pr.evaluate(log, features="tabular", state=["place"]),
        pr.evaluate([str(file) for file in files], features="tabular", state="place"),
        pr.evaluate(tmp_path / "log.npz", features="tabular", names=["place"]),
    ]
    for result in results:
        assert result.summary.mean_value == pytest.approx(results[0].summary.mean_value, rel=1e-12)
        assert result.survey.episodes == 400
        assert result.names == result.risk.coordinates.names == ("place",)
    assert results[0].name == "policy"
    assert results[5].name == "log"


def test_an_evaluation_is_saved_loaded_and_reported(tmp_path):
    result = pr.evaluate(walk(), features="tabular", names=["place"], name="walk")
    result.save(tmp_path / "folder")
    assert {path.name for path in (tmp_path / "folder").iterdir()} == {"risk.npz", "survey.npz"}
    again = pr.Evaluation.load(tmp_path / "folder")
    assert again.summary.to_dict() == result.summary.to_dict()
    assert again.advice == result.advice
    assert run(["query", str(tmp_path / "folder"), "--at", "3"]) == 0
    result.report(tmp_path / "report.html")
    assert "<title>walk" in (tmp_path / "report.html").read_text()


def test_advice_is_worked_out_once(log, tmp_path, monkeypatch):
    from policyrisk.evaluation import record

    asked, advise = [], record.advise
    monkeypatch.setattr(record, "advise", lambda evaluation: asked.append(evaluation) or advise(evaluation))
    line = ["evaluate", str(log), "--state", "place", "--features", "tabular", "--out", str(tmp_path / "out")]
    assert run(line) == 0
    assert len(asked) == 1


def test_the_choice_is_said_before_the_fit():
    said = []
    result = pr.evaluate(walk(), seed=0, say=said.append)
    assert len(said) == 1
    assert result.notes["features"] in said[0]
    members = result.notes["choice"]["members"]
    assert all(each["features"] in result.notes["features"] for each in members[:3])
    assert result.notes["features"].endswith(f"and {len(members) - 3} more") == (len(members) > 4)
    assert sum(each["mean_share"] for each in members) == pytest.approx(1)


def test_blas_has_one_thread_while_a_mixture_is_chosen():
    """Two would wait for each other on its many small systems, for ten times the processor time and more."""

    def blas():
        return {each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"}

    seen = []
    with threadpool_limits(2, "blas"):
        pr.evaluate(walk(200), seed=0, say=lambda _: seen.append(blas()))
        assert blas() == {2}
    assert seen == [{1}]


def test_the_sums_so_far_are_in_the_checkpoint(log, tmp_path):
    place = tmp_path / "sums.npz"
    arguments = {"features": "tabular", "state": ["place"]}
    result = pr.evaluate(log, **arguments, checkpoint=place, resume=True)
    without = pr.evaluate(log, **arguments, seed=result.notes["settings"]["seed"])
    assert compared(result.to_dict()) == compared(without.to_dict())


def from_anywhere(episodes=300, seed=1):
    """Walks from random places: an average over few of the starts is another one."""
    return pr.domains.walk(n=10, p=0.7).sample(start=np.full(10, 0.1), episodes=episodes, seed=seed)


@pytest.mark.parametrize("variance", ["second-moment", "direct"])
def test_the_headline_is_over_all_starts_not_over_the_surveys_sample(variance, monkeypatch):
    monkeypatch.setattr("policyrisk.passes.survey.STARTS", 20)
    data = from_anywhere()
    result = pr.evaluate(data, features="tabular", variance=variance, seed=1)
    assert len(result.survey.starts) == 20
    assert result.summary.starts == 300
    lstd = pr.LSTD(pr.Tabular(10), variance=variance)
    expected = lstd.fit(data).summary(data.starts())
    for name in ("mean", "variance", "std", "sharpe"):
        found, truth = getattr(result.summary.model, name), getattr(expected, name)
        assert found.value == pytest.approx(truth.value, rel=1e-12)
        assert found.standard_error == pytest.approx(truth.standard_error, rel=1e-9)
    assert result.summary.mean_value == pytest.approx(data.returns().mean())
    sampled = result.risk.summary(result.survey.starts)
    assert abs(sampled.mean_value - expected.mean_value) > 0.1


class Frame:
    """What a data frame looks like from outside."""

    columns = ("x", "y")

    def __iter__(self):
        return iter(self.columns)


@pytest.mark.parametrize(
    ("source", "arguments", "message"),
    [
        (Frame(), {}, r"data must yield Trajectories, got str"),
        (3, {}, "source must be"),
        ("nowhere.parquet", {}, "nowhere.parquet"),
        ("log.xlsx", {}, "log.xlsx, which does not exist"),
        (iter([]), {}, "re-iterable"),
        ([], {}, "at least one episode"),
        (None, {"state": ["x"]}, "state must be left out unless source is a path"),
        (None, {"speling": 1}, "speling must be an option of evaluate"),
        (None, {"discount": 0}, "discount must be"),
        (None, {"lam": 1.5}, "lam must be"),
        (None, {"ridge": float("nan")}, "ridge must be"),
        (None, {"level": 1}, "level must be"),
        (None, {"variance": "indirect"}, "variance must be one of"),
        (None, {"features": "squares:3"}, "features must be auto or one of"),
        (None, {"features": pr.Tabular(10)}, r"features must be .* got Tabular; .* use Evaluation.of"),
        (None, {"features": "tiles:3x3"}, "features must have one of the sizes"),
        (
            None,
            {"box": [(0, 1), (0, 1)], "features": "poly:1"},
            "box must have low and high of each",
        ),
        (None, {"box": [(3, 1)], "features": "poly:1"}, "box must go from low to high"),
        (None, {"box": "wide"}, "box must be"),
        (None, {"names": ["a", "b"], "features": "poly:1"}, "names must be .* 1 coordinate, got"),
        (None, {"names": "a", "features": "poly:1"}, "names must be"),
        (None, {"seed": "one"}, "seed must be"),
        (None, {"resume": True}, "resume must have a checkpoint"),
        (None, {"resume": True, "checkpoint": "c.npz", "on_cluster": True}, "no checkpoint of a run on Ray"),
    ],
)
def test_bad_arguments_are_our_errors(source, arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInputError, match=message):
        pr.evaluate(walk(20) if source is None else source, **arguments)


def test_a_misspelled_option_of_the_reader_is_an_error(log):
    with pytest.raises(InvalidInputError, match=r"stat must be an option of evaluate, .* did you mean state"):
        pr.evaluate(log, features="tabular", stat=["place"])


@pytest.fixture(scope="module")
def square(tmp_path_factory):
    """Steps of a random walk on the unit square, which end on the right."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(5, 40, 2000)
    states = rng.random((lengths.sum() + 2000, 2))
    data = pr.Trajectories(states, rng.normal(size=lengths.sum()), lengths, np.ones(2000, bool))
    place = tmp_path_factory.mktemp("square") / "log.npz"
    write_npz(data, place)
    return place


def test_more_tiles_than_have_error_bars(square, tmp_path, capsys):
    """40,000 sparse features: sums that stay sparse, as the library has them, and no error bars, said so."""
    line = ["evaluate", str(square), "--state", "x,y", "--lam", "0.2", "--discount", "0.5"]
    line += ["--box", "0:1,0:1", "--features", "tiles:200x200"]
    assert run([*line, "--out", str(tmp_path / "fine"), "--verbose"]) == 0
    out, err = capsys.readouterr()
    assert "no error bars: the covariance of 40000 features" in err
    assert "There are no error bars" in out
    assert "at most 8,000 features" in out
    risk = pr.Evaluation.load(tmp_path / "fine").risk
    tiles = pr.TileCoding([0, 0], [1, 1], [200, 200])
    expected = pr.LSTD(tiles, lam=0.2, discount=0.5).fit(pr.read(square), error_bars=False)
    states = pr.read(square).load().states[:100]
    np.testing.assert_allclose(risk.mean(states), expected.mean(states), rtol=1e-6)
    # Estimates without error bars can be asked for and compared, too.
    assert run(["query", str(tmp_path / "fine"), "--at", "0.5,0.5", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)["states"][0]
    assert answer["mean"]["standard_error"] is None
    picture = str(tmp_path / "plane.png")
    assert run(["compare", str(tmp_path / "fine"), "--out", picture]) == 0
    assert re.search("trust in fine: .*there are no error bars", capsys.readouterr().out)


def test_dense_features_beside_many_tiles_are_refused(square, tmp_path, capsys):
    """The sums of both would be dense."""
    line = ["evaluate", str(square), "--out", str(tmp_path / "out")]
    assert run([*line, "--features", "tiles:200x200,second=poly:2"]) == 2
    assert "features must be at most 10000, got 40000" in " ".join(capsys.readouterr().err.split())


def test_no_error_bars_warn_in_python(square):
    with pytest.warns(NoErrorBarsWarning, match="40000 features"):
        pr.evaluate(square, 0.5, "tiles:200x200", lam=0.2)
