"""The report: what is in the file, and that a real browser shows the API's numbers."""

import base64
import gzip
import html
import itertools
import json
import math
import re
import subprocess
import sys
import warnings
from dataclasses import replace
from datetime import datetime, timedelta

import browser as chromium
import numpy as np
import pytest

import policyrisk as pr
from policyrisk._core.progress import ProgressBar
from policyrisk.errors import InvalidInputError, PolicyRiskWarning
from policyrisk.evaluation import Evaluation
from policyrisk.passes.survey import Survey
from policyrisk.plotting.evaluation_maps import _draw, _mapped, draw_map, write_maps
from policyrisk.report import write_report
from policyrisk.report.grid import CELLS, MapGrid
from policyrisk.report.numbers import APART, BITS, Maps, Sampled, histogram, line, measure, start_curve

ROUNDING = 2e-4  # of the numbers in the page
HOSTILE = '<img src=x onerror="window.harmed = 1">'
NAMES = (HOSTILE, "</script><script>window.harmed = 2</script>", "%{x} <b>&amp;</b> $\\alpha$")


def strip(dim, episodes=400, seed=3):
    """Walks to the right with bystander coordinates, as states of any dimension."""
    rng = np.random.default_rng(seed)
    walks = pr.domains.walk(n=20, p=0.8).sample(0, episodes=episodes, seed=seed)
    states = rng.random((len(walks.states), dim))
    states[:, 0] += walks.states[:, 0]
    return pr.Trajectories(states, walks.rewards, walks.lengths, walks.terminated)


def evaluate(features, data, names=None, name="policy", lam=0.9):
    dim = data.states.shape[1]
    names = tuple("abcdefghijklm"[:dim]) if names is None else names
    return Evaluation(name, names, pr.LSTD(features, lam=lam).fit(data), Survey.of(data, seed=0))


@pytest.fixture(scope="module")
def three():
    """Three coordinates, smooth features, hostile names."""
    data = strip(3)
    features = pr.Polynomial(2, low=[0, 0, 0], high=[20, 1, 1])
    return evaluate(features, data, names=NAMES, name=f"{HOSTILE} & co")


@pytest.fixture(scope="module")
def tiled():
    """Two coordinates that count, two that do not, and holes in the map."""
    return evaluate(pr.TileCoding([0, 0], [40, 1], bins=[40, 4], dims=[0, 2]), strip(4))


def test_coordinates_that_are_looked_at_and_change(tiled):
    assert tiled.looked_at == tiled.changing == (0, 2)
    data = strip(4)
    still = np.array(data.states)
    still[:, 2] = 0.5
    data = pr.Trajectories(still, data.rewards, data.lengths, data.terminated)
    tiles = pr.TileCoding([0, 0], [40, 1], bins=[40, 4], dims=[2, 0])
    line = pr.Polynomial(1, low=[0], high=[1], dims=[3])
    risk = pr.LSTD(tiles, line, lam=0.9).fit(data, error_bars=False)
    evaluation = Evaluation("policy", tuple("abcd"), risk, Survey.of(data, seed=0))
    assert evaluation.looked_at == (0, 2, 3), "of either map, in their order"
    assert evaluation.changing == (0, 3)
    assert [axis.coordinate for axis in MapGrid.of(evaluation).axes] == [0, 3]
    assert _mapped(evaluation) == (0, 3)
    function = pr.LSTD(lambda x: np.ones((len(x), 1))).fit(data, error_bars=False)
    assert Evaluation("policy", tuple("abcd"), function, evaluation.survey).looked_at == (0, 1, 2, 3)


def written(evaluation, folder):
    path = folder / "report.html"
    write_report(evaluation, path)
    return path


def embedded(text):
    return json.loads(
        re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1]
    )


def unpacked(maps):
    """The numbers of the only map by their kinds, (cells,): bytes by their place in a number, compressed."""
    (pair,) = maps["pairs"]
    planes = np.frombuffer(gzip.decompress(base64.b64decode(pair["data"])), np.uint8).reshape(4, -1)
    values = np.ascontiguousarray(planes.T).view("<f4").reshape(len(maps["kinds"]), -1)
    return dict(zip(maps["kinds"], values, strict=True))


def without_plotly(text):
    """The page less what is Plotly's."""
    return re.sub(r'<script type="text/plain" id="plotly">[\w+/=]*</script>', "", text)


def read(text):
    return float(text.replace("−", "-").replace(",", ""))


# ---- the file ----


def test_the_file_asks_for_nothing_and_shows_names_as_they_are(three, tmp_path):
    text = written(three, tmp_path).read_text(encoding="utf-8")
    page = without_plotly(text)
    assert "http" not in page.replace("http-equiv", "")
    assert not re.search(r"<(link|img|iframe|object|base)\b", page)
    assert not re.search(r"<script[^>]+src", page)
    assert "&lt;img src=x" in page
    assert page.count("<script>") == 1, "the page's own"
    assert len(page) < len(text) / 2
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-inline" not in policy.split("style-src")[0]
    assert [axis["name"] for axis in embedded(text)["axes"]] == list(NAMES)


def test_control_characters_in_names_are_shown(tmp_path):
    names = ("\x1b[31mred\0", "two\nlines", "\ud800\u202e")
    features = pr.Polynomial(2, low=[0, 0, 0], high=[20, 1, 1])
    text = written(evaluate(features, strip(3), names, name="\x1b]0;title\x07"), tmp_path).read_text("utf-8")
    page = without_plotly(text)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\u202e]|\\\\u00[01]", page)
    assert r"<title>\x1b]0;title\x07" in page
    shown = [axis["name"] for axis in embedded(text)["axes"]]
    assert shown == [r"\x1b[31mred\x00", r"two\nlines", r"\ud800\u202e"]
    assert all(name in page for name in shown)


def test_headline_numbers_stand_beside_the_estimators(three, tmp_path):
    text = written(three, tmp_path).read_text(encoding="utf-8")
    cards = dict(re.findall(r'data-of="(\w+)">(.*?)</article>', text, re.DOTALL))
    for name, card in cards.items():
        shown = re.search(r'class="value">(.*?)<', card)[1]
        estimate = getattr(three.summary, name)
        assert read(shown) == pytest.approx(estimate.value, rel=1e-3)
        ends = re.search(r"95%: (.*?) to (.*?)<", card).groups()
        assert [read(end) for end in ends] == pytest.approx([estimate.low, estimate.high], rel=1e-3)
        model = getattr(three.summary.model, name)
        beside = re.search(r"LSTD over.*?<b>(.*?)</b> \((.*?) to (.*?)\)", card, re.DOTALL).groups()
        assert [read(n) for n in beside] == pytest.approx([model.value, model.low, model.high], rel=1e-3)
        assert "plain sample" not in card, "which is the headline where nothing was cut off"
    assert list(cards) == ["mean", "std", "sharpe", "variance"]


def test_version_date_command_and_returns(three, tmp_path):
    path = tmp_path / "report.html"
    three.report(path, command="policyrisk evaluate 'a & b.csv' --out x")
    text = path.read_text(encoding="utf-8")
    assert f"policyrisk {pr.__version__} · 400 episodes" in text
    written = datetime.fromisoformat(re.search(r'<time datetime="(.*?)">', text)[1])
    assert timedelta(0) <= datetime.now().astimezone() - written < timedelta(hours=1)
    assert "<dt>Command</dt><dd>policyrisk evaluate &#x27;a &amp; b.csv&#x27; --out x</dd>" in text
    assert "Returns of 400 recorded episodes." in text
    shown = embedded(text)["histogram"]
    returns = strip(3).returns()
    counts, _ = np.histogram(returns, shown["edges"])
    assert shown["terminated"] == counts.tolist()
    assert sum(counts) == 400
    assert not any(shown["cut_off"])


def test_histogram_of_cut_off_and_discounted_returns():
    data = pr.domains.walk(n=10, p=0.7).sample(0, episodes=300, seed=1, max_steps=16)
    found = histogram(Survey.of(data, seed=0))
    steps, edges = data.lengths, np.array(found["edges"])
    assert np.array_equal(edges, np.arange(-16, -steps.min() + 2) - 0.5), "a bin for each number"
    for ended, of in ((data.terminated, "terminated"), (~data.terminated, "cut_off")):
        np.testing.assert_array_equal(found[of], np.bincount(16 - steps[ended], minlength=len(edges) - 1))
    survey = Survey.of(data, seed=0, discount=0.5)
    np.testing.assert_allclose(survey.returns, [data.returns(0.5), data.terminated])
    assert len(histogram(survey)["edges"]) == 41
    assert histogram(replace(survey, returns=np.empty((2, 0)))) is None, "of an older file"


def test_a_hundred_coordinates_are_no_wall_of_numbers(tmp_path):
    evaluation = evaluate(
        pr.Polynomial(1, [0] * 105, [20] + [1] * 104), strip(105), tuple(f"q{k}" for k in range(105))
    )
    path = written(evaluation, tmp_path)
    text = path.read_text(encoding="utf-8")
    assert path.stat().st_size < 3_000_000
    words = re.sub("<[^>]+>", " ", without_plotly(text).split("<body>")[1].split("<script")[0])
    named = set(re.findall(r"\bq\d+\b", words))
    assert len(named) <= 20, "of the 105"
    assert "105 coordinates: q0, q1, q2, q3, q4, q5, q6, …, q104" in words
    assert "97 coordinates of less influence are not shown." in words
    assert len(embedded(text)["cloud"]["states"][0]) == 8
    assert max(map(len, re.findall(r"<dd>(.*?)</dd>", text))) < 500
    assert re.search(r"98 others [\d.]+% together", words)


def test_embedded_maps_are_the_apis(tiled, tmp_path):
    data = embedded(written(tiled, tmp_path).read_text(encoding="utf-8"))
    assert [axis["name"] for axis in data["axes"]] == ["a", "c"], "the features look at no other"
    x, y = (np.array(axis["cells"]) for axis in data["axes"])
    assert y.tolist() == [0.125, 0.375, 0.625, 0.875], "a cell is a tile"
    cells = unpacked(data["maps"])
    states = np.array([[a, 0.5, c, 0.5] for c in y for a in x])
    risk = tiled.risk
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PolicyRiskWarning)
        expected = {of: getattr(risk, of)(states) for of in ("mean", "variance", "episodes")}
        for of in ("mean", "std"):
            value, (low, high) = getattr(risk, of)(states), risk.interval(states, of=of).T
            expected |= {f"{of}_down": value - low, f"{of}_up": high - value}
    assert set(cells) == set(expected)
    for kind, values in expected.items():
        np.testing.assert_allclose(cells[kind], values, rtol=1.01 * 2.0 ** -(BITS[kind] + 1), err_msg=kind)
    assert np.isfinite(cells["mean"]).any()


def test_warnings_become_advice(tmp_path):
    """Warnings are errors in these tests, and writing gives none."""
    data = pr.domains.walk(n=30, p=0.7).sample(0, episodes=60, seed=1)
    lstd = pr.LSTD(pr.Polynomial(1, [0], [29]), pr.Polynomial(2, [0], [29]), lam=0.95)
    evaluation = Evaluation("walk", ("place",), lstd.fit(data), Survey.of(data, seed=0))
    text = written(evaluation, tmp_path).read_text(encoding="utf-8")
    assert "The estimated variance is negative in places" in text
    assert "Few episodes stand behind the estimates" in text


def test_without_error_bars(tmp_path):
    chain = pr.domains.walk(n=8, p=0.7)
    exact = pr.LSTD(pr.Tabular(8)).fit_exact(chain, start=0)
    evaluation = Evaluation(
        "walk", ("place",), exact, Survey.of(chain.sample(0, episodes=50, seed=1), seed=0)
    )
    text = written(evaluation, tmp_path).read_text(encoding="utf-8")
    assert "There are no error bars" in text
    assert embedded(text)["line"]["intervals"] == {}


def test_a_state_that_never_changes_has_no_map(tmp_path):
    data = pr.Trajectories(np.ones((100, 2)), np.ones(50), np.ones(50, dtype=int), np.ones(50, dtype=bool))
    evaluation = evaluate(pr.Polynomial(0, [0, 0], [2, 2]), data)
    text = written(evaluation, tmp_path).read_text(encoding="utf-8")
    assert "nothing to map" in text
    assert embedded(text)["maps"] is None
    assert embedded(text)["line"] is None


def test_a_folder_that_is_not_there_is_named(tiled, tmp_path):
    with pytest.raises(InvalidInputError, match="folder that can be written"):
        write_report(tiled, tmp_path / "nowhere" / "report.html")


def test_without_plotly_the_extra_is_named():
    code = (
        "import sys; sys.modules['plotly'] = None; sys.modules['plotly.offline'] = None\n"
        "from policyrisk.report import _plotly\n"
        "from policyrisk.errors import PolicyRiskError\n"
        "try: _plotly()\n"
        "except PolicyRiskError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "policyrisk[plot]" in done.stdout


# ---- tails ----


@pytest.fixture(scope="module")
def tails():
    """Two coordinates, with the worst 5 and 50% and two losses."""
    return pr.evaluate(strip(2), features="poly:2", quantiles=[0.5, 0.05], loss_below=-30, seed=0)


def test_trust_then_the_five_numbers_then_findings_and_no_picture_that_stands_still(tails, tmp_path):
    text = written(tails, tmp_path).read_text(encoding="utf-8")
    assert (tmp_path / "report.html").stat().st_size < 3_000_000
    assert "<img" not in without_plotly(text)
    cards = re.findall(r'data-of="([^"]*)">.*?class="value">(.*?)<', text, re.DOTALL)
    shown, folded = dict(cards[:5]), dict(cards[5:])
    _, values, _ = tails.tails()
    assert list(shown) == [
        "mean",
        "std",
        "5.0% quantile",
        "mean of the worst 5.0%",
        "chance of a return below -30",
    ]
    assert list(folded) == ["sharpe", "variance"]
    assert read(shown["5.0% quantile"]) == pytest.approx(values["5.0% quantile"].value, rel=1e-3)
    chance = values["chance of a return below -30"].value
    assert read(shown["chance of a return below -30"].rstrip("%")) == pytest.approx(100 * chance, abs=0.06)
    places = [
        text.index(part) for part in ('class="trust', 'class="card"', "More numbers", 'id="h-findings"')
    ]
    assert places == sorted(places)


def test_tails_of_the_maps_are_the_apis(tails, tmp_path):
    data = embedded(written(tails, tmp_path).read_text(encoding="utf-8"))
    assert data["asked"] == [0.05, -30]
    cells = unpacked(data["maps"])
    states = MapGrid.of(tails).states((0, 1))
    inside, dist, ends = ~tails.outside(states), tails.distribution, tails.prediction_interval(states, 0.95)
    for kind, values in (
        ("worst", dist.cvar(states, 0.05)),
        ("loss", dist.probability(states, below=-30)),
        ("return_low", ends[:, 0]),
        ("return_high", ends[:, 1]),
    ):
        np.testing.assert_allclose(cells[kind][inside], values[inside], rtol=2.0 ** -BITS[kind], err_msg=kind)
        assert np.isnan(cells[kind][~inside]).all()
    curve = start_curve(tails)
    starts = tails.survey.starts
    np.testing.assert_allclose(
        curve["share"], [dist.cdf(starts, z).mean() for z in curve["at"]], rtol=1e-5, atol=1e-7
    )
    np.testing.assert_allclose(np.quantile(curve["returns"], 0.5), np.median(tails.survey.returns[0]), atol=1)


def test_a_line_of_tails_has_their_intervals():
    data = pr.domains.walk(n=12, p=0.7).sample(0, episodes=300, seed=0)
    found = pr.evaluate(data, features="tabular", quantiles=[0.05], loss_below=-40)
    drawn_line, states = line(found, MapGrid.of(found)), np.arange(12.0)[:, None]
    np.testing.assert_allclose(
        drawn_line["values"]["worst"], found.distribution.cvar(states, 0.05), rtol=1e-6
    )
    ends = found.distribution.interval(states, below=-40)
    np.testing.assert_allclose(np.transpose(drawn_line["intervals"]["loss"]), ends, rtol=1e-6, atol=1e-9)


# ---- which states it looks at ----


@pytest.mark.parametrize("dim", [2, 3, 4, 5, 6, 8, 10])
def test_what_is_embedded_is_bounded(dim):
    data = strip(dim, episodes=60)
    grid = MapGrid.of(evaluate(pr.Polynomial(1, [0] * dim, [20] + [1] * (dim - 1)), data))
    assert len(grid.axes) == min(dim, 8)
    assert len(grid.held) == dim - len(grid.axes)
    cells = [len(grid.states(pair)) for pair in grid.pairs]
    assert sum(cells) <= CELLS
    assert len(cells) == math.comb(len(grid.axes), 2)
    assert min(axis.cells.size for axis in grid.axes) >= 16
    assert grid.sliders == {2: 0, 3: 1, 4: 2, 5: 3}.get(dim, 2), "two at once, whatever the dimension"
    for pair in grid.pairs:
        levels = [range(len(axis.levels)) for k, axis in enumerate(grid.axes) if k not in pair]
        assert grid.slices(pair) == list(itertools.product(*levels[: grid.sliders])), "every combination"


def test_costly_estimates_keep_two_sliders_and_the_most_influential_coordinates(monkeypatch):
    evaluation = evaluate(pr.Polynomial(1, [0] * 10, [20] + [1] * 9), strip(10, episodes=60))
    monkeypatch.setattr("policyrisk.report.grid.CELLS", 40_000)
    grid = MapGrid.of(evaluation)
    assert (len(grid.axes), grid.sliders) == (6, 2)
    assert [axis.coordinate for axis in grid.axes] == np.argsort(-evaluation.influence)[:6].tolist()
    assert sum(len(grid.states(pair)) for pair in grid.pairs) <= 40_000


def test_what_is_not_mapped_stays_at_its_median(mixed):
    grid = MapGrid.of(mixed)
    states = replace(grid, sliders=1).states((1, 3))
    for axis in grid.axes[2:3] + grid.axes[4:]:
        assert (states[:, axis.coordinate] == axis.levels[axis.median]).all()
    first = grid.axes[0]
    assert set(states[:, first.coordinate]) == set(first.levels)


def test_levels_are_values_that_occur_with_the_median_among_them(three):
    for axis in MapGrid.of(three).axes:
        values = three.survey.visited[:, axis.coordinate]
        assert np.isin(axis.levels, values).all()
        assert (np.diff(axis.levels) > 0).all()
        assert np.mean(values <= axis.levels[axis.median]) == pytest.approx(0.5, abs=1e-3)
        shares = [np.mean(values <= level) for level in axis.levels]
        np.testing.assert_allclose(shares, np.linspace(0.05, 0.95, 9), atol=1e-3)


def test_states_of_a_pair_are_in_the_order_that_the_script_reads(three):
    grid = MapGrid.of(three)
    pair = (0, 2)
    first, other, second = grid.axes
    states = iter(grid.states(pair))
    for (level,) in grid.slices(pair):
        for up in second.cells:
            for across in first.cells:
                np.testing.assert_array_equal(next(states), [across, other.levels[level], up])
    assert next(states, None) is None


def test_whole_numbers_stay_whole():
    chain = pr.domains.walk(n=1000, p=0.95)
    data = chain.sample(900, episodes=40, seed=1)
    (axis,) = MapGrid.of(
        Evaluation("walk", ("place",), pr.LSTD(pr.Tabular(1000)).fit(data), Survey.of(data))
    ).axes
    low, high = data.states[data.visited_rows].min(), data.states[data.visited_rows].max()
    np.testing.assert_array_equal(axis.cells, np.arange(low, high + 1))
    wide = chain.sample(np.full(1000, 1e-3), episodes=200, seed=1)
    survey = Survey.of(wide)
    (axis,) = MapGrid.of(Evaluation("walk", ("place",), pr.LSTD(pr.Tabular(1000)).fit(wide), survey)).axes
    assert axis.cells.size <= 400
    assert (axis.cells % 1 == 0).all()


def test_maps_and_ranges(three):
    grid = MapGrid.of(three)
    maps = Maps.of(three, grid, ProgressBar("", None))
    std = np.concatenate(
        [np.sqrt(np.where(pair["variance"] >= 0, pair["variance"], np.nan)).ravel() for pair in maps.pairs]
    )
    np.testing.assert_allclose(maps.ranges()["std"], np.nanpercentile(std, [1, 99]), rtol=1e-5)


# ---- outside the data ----


@pytest.fixture(scope="module")
def diagonal():
    """One step from states near a diagonal, of a spread that rises along it; dense features extrapolate."""
    rng = np.random.default_rng(0)
    along = rng.random((3000, 1))
    states = np.repeat(np.hstack([along, along]) + 0.05 * rng.normal(size=(3000, 2)), 2, axis=0)
    rewards = (0.2 + states[::2, 0]) * rng.normal(size=3000)
    data = pr.Trajectories(states, rewards, np.ones(3000, int), np.ones(3000, bool))
    return evaluate(pr.Polynomial(2, [-0.2, -0.2], [1.2, 1.2]), data)


def cells_of(evaluation, axes):
    """The states at the centres of a picture's cells, rows upwards, and which lie outside the data."""
    rows, columns = axes.get_images()[0].get_array().shape
    (left, right), (below, above) = axes.get_xlim(), axes.get_ylim()
    x, y = left + (np.arange(columns) + 0.5) / columns * (right - left), (np.arange(rows) + 0.5) / rows
    states = np.array([[a, b] for b in below + y * (above - below) for a in x])
    return states, evaluation.outside(states)


def test_pictures_are_blank_outside_the_data_and_not_hatched_there(diagonal):
    axes = draw_map(diagonal, "std")
    states, outside = cells_of(diagonal, axes)
    assert 0.3 < outside.mean() < 0.9
    assert diagonal.risk.visited(states[outside]).mean() > 0.5, "as far as the features know"
    values = axes.get_images()[0].get_array()
    np.testing.assert_array_equal(
        np.ma.getmaskarray(values).ravel(), outside | ~(diagonal.risk.variance(states) >= 0)
    )
    (hatched,) = axes.collections
    corners = np.array([path.vertices for path in hatched.get_paths()])
    low, high = corners[:, 0], corners[:, 2]
    inside = [((low < at).all(axis=1) & (at < high).all(axis=1)).any() for at in states]
    expected = diagonal.risk.riskier(states[~outside], seed=0)
    assert diagonal.risk.riskier(states, seed=0)[outside].any(), "so they would be"
    assert expected.any()
    np.testing.assert_array_equal(np.array(inside)[~outside], expected)
    assert not np.array(inside)[outside].any()
    said = [text.get_text() for text in axes.get_legend().get_texts()]
    assert said[1:] == ["blank: outside the data"]


def test_maps_of_the_page_are_blank_outside_the_data(diagonal, tmp_path):
    data = embedded(written(diagonal, tmp_path).read_text(encoding="utf-8"))
    grid = MapGrid.of(diagonal)
    outside = diagonal.outside(grid.states((0, 1)))
    assert 0.3 < outside.mean() < 0.9
    cells = unpacked(data["maps"])
    episodes = cells.pop("episodes")
    for values in cells.values():
        assert np.isnan(values[outside]).all()
    for kind in ("mean", "variance", "mean_up", "mean_down"):
        assert np.isfinite(cells[kind][~outside]).all()
    assert (episodes[outside] == 0).all()
    assert (episodes[~outside] > 0).all()


def test_lines_have_gaps_outside_the_data():
    """States at both ends of the line and none between."""
    rng = np.random.default_rng(0)
    states = np.repeat(np.concatenate([rng.random(300), 9 + rng.random(300)])[:, None], 2, axis=0)
    data = pr.Trajectories(states, rng.normal(size=600), np.ones(600, int), np.ones(600, bool))
    evaluation = evaluate(pr.Polynomial(1, [0], [10]), data)
    axes = draw_map(evaluation, "mean")
    x, y = axes.get_lines()[0].get_data()
    between = (x > 1.2) & (x < 8.8)
    assert np.isnan(y[between]).all()
    assert np.isfinite(y[(x < 0.9) | (x > 9.1)]).all()
    assert axes.get_legend().get_title().get_text() == "blank: outside the data"
    grid = MapGrid.of(evaluation)
    drawn_line = line(evaluation, grid)
    between = (grid.axes[0].cells > 1.2) & (grid.axes[0].cells < 8.8)
    for values in (drawn_line["values"]["std"], *drawn_line["intervals"]["std"]):
        assert {value is None for value in np.array(values)[between]} == {True}
    assert (np.array(drawn_line["values"]["episodes"])[between] == 0).all()


def test_a_table_knows_its_rare_states():
    """One in 30,000 states, which a sample of the visited ones need not hold, is not outside the data."""
    places = np.r_[np.zeros(15_000), 4.0, np.full(15_000, 9.0)].repeat(2)[:, None]
    n = len(places) // 2
    data = pr.Trajectories(places, np.arange(n) % 3 * 1.0, np.ones(n, int), np.ones(n, bool))
    evaluation = evaluate(pr.Tabular(10), data)
    assert not evaluation.outside([[0], [4], [9]]).any()
    x, y = draw_map(evaluation, "mean").get_lines()[0].get_data()
    assert x[np.isfinite(y)].tolist() == [0, 4, 9]


# ---- the riskiest states ----


CITIES = ["Ath & <b>ens</b>", *(f"city {k:02d}" for k in range(1, 29)), "Zug"]


@pytest.fixture(scope="module")
def cities():
    """Places x, and a city that the rewards' spread rises with, by 30 names."""
    rng = np.random.default_rng(0)
    n = 6000
    city, x = rng.integers(0, 30, n), rng.random(n)
    states = np.repeat(np.column_stack([x, city, np.full(n, 7)]), 2, axis=0)
    rewards = (1 + city) * rng.normal(size=n)
    data = pr.Trajectories(states, rewards, np.ones(n, int), np.ones(n, bool))
    maps = pr.Polynomial(1, [0], [1], dims=[0]), pr.Tabular(30, dims=[1]), pr.Tabular(8, dims=[2])
    evaluation = evaluate(pr.Joint(maps), data, names=("x", "city", "shop"))
    labels = {"city": CITIES, "shop": [f"shop {k}" for k in range(8)]}
    return replace(evaluation, notes={"labels": labels})


@pytest.mark.parametrize("count", [30, 100, 101, 250])
def test_pictures_of_tables_have_cells_at_whole_numbers(count):
    """A table refuses others."""
    n = 2 * count
    states = np.repeat(np.column_stack([np.linspace(0, 1, n), np.arange(n) % count]), 2, axis=0)
    data = pr.Trajectories(states, np.arange(n) % 7 * 1.0, np.ones(n, int), np.ones(n, bool))
    maps = pr.Polynomial(1, [0], [1], dims=[0]), pr.Tabular(count, dims=[1])
    values = _draw(evaluate(pr.Joint(maps), data), "mean", (0, 1)).get_images()[0].get_array()
    assert len(values) == (count if count <= 100 else -(-count // 3))
    assert not np.ma.getmaskarray(values).all(axis=1).any(), "every number was visited, not at every x"


def test_labels_are_shown_by_their_names(cities, tmp_path):
    page = written(cities, tmp_path).read_text()
    assert "Held fixed: shop = shop 7." in page
    table = page.split('id="riskiest"')[1].split("</table>")[0]
    rows = [re.findall(r'<td data-value="(.*?)">(.*?)</td>', row) for row in table.split("<tr>")[2:]]
    codes = [int(float(row[2][0])) for row in rows]
    assert [row[2][1] for row in rows] == [html.escape(CITIES[code]) for code in codes]
    assert min(codes) > 15
    assert min(np.diff(np.unique(codes))) == 1, "neighbouring numbers are not near each other"
    axes = _draw(cities, "mean", (0, 1))
    assert [text.get_text() for text in axes.get_yticklabels()] == CITIES[::3]
    assert [text.get_text() for text in _draw(cities, "mean", (1,)).get_xticklabels()] == CITIES[::3]


def test_the_riskiest_states_lie_apart_and_nothing_riskier_was_left_out(tiled):
    sampled, grid = Sampled.of(tiled), MapGrid.of(tiled)
    rows = sampled.riskiest(tiled, grid)
    assert len(rows) == 10
    rank = np.where(np.isnan(sampled.std), -np.inf, sampled.interval[:, 0])
    extent = (tiled.survey.high - tiled.survey.low)[[0, 2]]
    place = sampled.states[:, [0, 2]] / extent
    near = np.abs(place[:, None] - place[rows]).max(axis=2) <= APART  # (states, rows)
    assert near[rows].sum() == len(rows), "each row is near itself alone"
    assert (np.diff(rank[rows]) <= 0).all()
    for k in range(len(rank)):
        if rank[k] > rank[rows[-1]]:
            assert (rank[rows][near[k]] >= rank[k]).any(), "only a riskier neighbour stands in its place"


# ---- in a real browser ----


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if lacking := chromium.missing():
        pytest.skip(f"not installed: {lacking} (Debian: apt-get install chromium chromium-driver)")
    with chromium.Browser(tmp_path_factory.mktemp("browser")) as started:
        yield started


@pytest.fixture
def opened(browser, tmp_path):
    """Open an evaluation's report; afterwards nothing was complained about, asked for, or harmed."""
    browser.post("/url", url="about:blank")
    browser.logs("performance")  # what the browser's own first page asked for

    def open_report(evaluation):
        browser.open(written(evaluation, tmp_path))
        browser.wait_for("return document.querySelectorAll('.plot .main-svg').length >= 3")
        return browser

    yield open_report
    assert browser.logs("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in browser.logs("performance")]
    asked = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    assert asked
    assert all(url.startswith(("file:", "data:", "blob:")) for url in asked), asked
    assert browser.run("return window.harmed") is None


def at(browser, plot, x, y):
    """Where in the window a point of a plot is."""
    return browser.run(
        """const plot = document.getElementById(arguments[0]);
        plot.scrollIntoView({block: "center", behavior: "instant"});
        const box = plot.getBoundingClientRect(), {xaxis, yaxis} = plot._fullLayout;
        return [
            box.left + xaxis._offset + xaxis.l2p(arguments[1]),
            box.top + yaxis._offset + yaxis.l2p(arguments[2]),
        ];""",
        plot,
        x,
        y,
    )


def hover(browser, plot, x, y, words):
    """The lines of the label at a point of a plot, once they hold the words."""
    browser.move(*at(browser, plot, x, y))
    return browser.wait_for(
        """const found = document.querySelectorAll("#" + arguments[0] + " .hovertext tspan.line");
        const lines = [...found].map((line) => line.textContent);
        return lines.join(" ").includes(arguments[1]) && lines;""",
        plot,
        words,
    )


def numbers(lines, name):
    """The value and the ends of its interval, in the line that starts with the name."""
    (line,) = (line for line in lines if line.startswith(name))
    return [read(part) for part in re.findall(r"[−\d.,]+(?:e[−\d]+)?", line.removeprefix(name))]


def drawn(browser, plot):
    """The values of a map as the browser has them, rows upwards."""
    z = browser.run("return document.getElementById(arguments[0]).data[0].z", plot)
    return np.array([[math.nan if value is None else value for value in row] for row in z])


def place(evaluation, at):
    """The state (1, dim) with these values along axes."""
    state = evaluation.middle[None].copy()
    for axis, value in at.items():
        state[0, axis.coordinate] = value
    return state


def titles(browser, plot):
    return browser.run(
        "const plot = document.getElementById(arguments[0]);"
        "return [plot.querySelector('.xtitle').textContent, plot.querySelector('.ytitle').textContent]",
        plot,
    )


def test_hovering_shows_the_apis_numbers(three, opened):
    browser = opened(three)
    x, y, other = MapGrid.of(three).axes
    assert x.name == HOSTILE, "the most influential one"
    state = place(three, {x: x.cells[10], y: y.cells[40], other: other.levels[other.median]})
    for plot in ("plot-std", "plot-mean_error"):
        lines = hover(browser, plot, x.cells[10], y.cells[40], "std ")
        for of in ("mean", "std"):
            value, (ends,) = getattr(three.risk, of)(state)[0], three.risk.interval(state, of=of)
            assert numbers(lines, of)[0] == pytest.approx(value, rel=1e-3)
            assert numbers(lines, of)[1:] == pytest.approx(ends, abs=0.01 * (ends[1] - ends[0]), rel=1e-3)
        assert numbers(lines, "Sharpe")[0] == pytest.approx(three.risk.sharpe(state)[0], rel=1e-3)
        assert numbers(lines, "episodes") == [round(three.risk.episodes(state)[0])]
        assert any(line.startswith(HOSTILE + " = ") for line in lines), "the name as it is"
        browser.move(5, 5)


def test_tails_are_drawn_and_hovered(tails, opened):
    browser = opened(tails)
    x, y = MapGrid.of(tails).axes
    lines = hover(browser, "plot-worst", x.cells[30], y.cells[50], "worst ")
    state = place(tails, {axis: numbers(lines, f"{axis.name} = ")[0] for axis in (x, y)})
    dist = tails.distribution
    assert numbers(lines, "worst 5%")[0] == pytest.approx(dist.cvar(state, 0.05)[0], rel=1e-3)
    assert numbers(lines, "below −30")[0] / 100 == pytest.approx(
        dist.probability(state, below=-30)[0], rel=1e-2
    )
    (ends,) = tails.prediction_interval(state, 0.95)
    assert numbers(lines, "next return, 95%: ") == pytest.approx(ends, rel=1e-3)
    q, value = 0.05, tails.tails()[1]["5.0% quantile"]
    said = hover(browser, "tails", value.value, q, "quantile")
    assert numbers(said[1:], "") == pytest.approx([value.value, value.low, value.high], rel=1e-3)
    assert browser.run("return document.querySelectorAll('#tails .annotation').length") == 1


def test_coordinates_can_be_chosen(three, opened):
    browser = opened(three)
    axes = MapGrid.of(three).axes
    names = [axis.name for axis in axes]
    assert titles(browser, "plot-std") == names[:2]
    browser.run("document.getElementById('x-axis').focus()")
    browser.press("\ue015")  # arrow down: the second coordinate, which was upwards: the two change places
    assert titles(browser, "plot-std") == [names[1], names[0]]
    browser.press("\ue015")
    assert titles(browser, "plot-std") == [names[2], names[0]]
    held = axes[1].levels[axes[1].median]
    states = np.concatenate(
        [
            place(three, {axes[0]: up, axes[1]: held, axes[2]: across})
            for up in axes[0].cells
            for across in axes[2].cells
        ]
    )
    V = three.risk.variance(states).reshape(len(axes[0].cells), -1)
    assert 0 < (V < 0).mean() < 0.2
    expected = np.sqrt(np.where(V >= 0, V, np.nan))
    np.testing.assert_allclose(drawn(browser, "plot-std"), expected, rtol=ROUNDING)
    shown = browser.run(
        "return [0, 1, 2].map((k) => document.getElementById('level-' + k).offsetParent !== null)"
    )
    assert shown == [False, True, False]


def test_sliders_move_together(mixed, opened):
    """Two off their medians at once, and the rest of the five at theirs."""
    browser = opened(mixed)
    grid = MapGrid.of(mixed)
    x, y, *others = grid.axes
    assert len(others) == 3
    assert grid.sliders >= 2
    before = drawn(browser, "plot-mean")
    held = {axis: axis.levels[axis.median] for axis in others}
    for k in (2, 3):
        browser.run("document.getElementById('level-' + arguments[0]).focus()", k)
        browser.press("\ue014")  # arrow right
        held[grid.axes[k]] = grid.axes[k].levels[grid.axes[k].median + 1]
    states = np.concatenate(
        [place(mixed, {x: across, y: up, **held}) for up in y.cells for across in x.cells]
    )
    expected = mixed.risk.mean(states).reshape(before.shape)
    np.testing.assert_allclose(drawn(browser, "plot-mean"), expected, rtol=ROUNDING)
    text = browser.run("return document.getElementById('view').textContent").replace("−", "-")
    for axis in others[: grid.sliders]:
        assert f"{axis.name} = {held[axis]:.4g}" in text


def test_unvisited_cells_are_blank_and_say_so(opened):
    features = pr.TileCoding([0, 0], [40, 1], bins=[40, 4], dims=[0, 2])
    evaluation = evaluate(features, strip(4, episodes=8))
    browser = opened(evaluation)
    x, y = MapGrid.of(evaluation).axes
    states = np.array([[across, 0.5, up, 0.5] for up in y.cells for across in x.cells])
    visited = evaluation.risk.visited(states).reshape(len(y.cells), -1)
    assert 0.5 < visited.mean() < 1
    np.testing.assert_array_equal(np.isfinite(drawn(browser, "plot-mean")), visited)
    row, column = np.argwhere(~visited)[0]
    lines = hover(browser, "plot-mean", x.cells[column], y.cells[row], "not visited")
    assert len(lines) == 3, "the place, and that nothing is known"
    text = browser.run("return document.getElementById('view').textContent")
    assert "Blank: outside the data, which say nothing there" in text


def test_one_coordinate_is_a_line(opened):
    data = pr.domains.walk(n=10, p=0.7).sample(0, episodes=500, seed=1)
    evaluation = evaluate(pr.Tabular(10), data, names=("place",))
    browser = opened(evaluation)
    std, interval = evaluation.risk.std([4])[0], evaluation.risk.interval([4], of="std")[0]
    lines = hover(browser, "plot-std", 4, std, "place = 4")
    (line,) = (line for line in lines if line.startswith("std "))
    shown = [float(n) for n in re.findall(r"[\d.]+", line)]
    assert shown == pytest.approx([std, *interval], rel=1e-3)


def test_names_of_labels_at_the_axes_and_in_the_hover(cities, opened):
    browser = opened(cities)
    shown = browser.run(
        "return [...document.querySelectorAll('#plot-std .ytick text')].map((one) => one.textContent)"
    )
    assert shown == CITIES[::2]
    assert "city = Ath & <b>ens</b>" in hover(browser, "plot-std", 0.5, 0, "city")
    assert "city = Zug" in hover(browser, "plot-std", 0.5, 29, "Zug")


def test_the_table_is_sorted_by_its_headings(tiled, opened):
    browser = opened(tiled)
    rows = "return [...document.querySelectorAll('#riskiest tbody tr')]"
    read = f"{rows}.map((row) => Number(row.cells[3].dataset.value))"
    means = browser.run(read)
    click = "document.querySelectorAll('#riskiest th button')[3].click()"
    browser.run(click)
    assert browser.run(read) == sorted(means, reverse=True)
    browser.run(click)
    assert browser.run(read) == sorted(means)
    assert browser.run("return document.querySelectorAll('#riskiest th')[3].ariaSort") == "ascending"


def test_nothing_can_be_uploaded(tiled, opened):
    browser = opened(tiled)
    buttons = browser.run("return [...document.querySelectorAll('.modebar-btn')].map((b) => b.dataset.title)")
    assert {*buttons} == {"Download plot as a PNG", "Zoom", "Pan", "Reset axes"}
    assert browser.run("return document.links.length") == 0


FITS = """return document.documentElement.scrollWidth <= window.innerWidth
    && [...document.querySelectorAll(".plot")].every((plot) => {
        const box = plot.getBoundingClientRect();
        const svg = plot.querySelector(".main-svg").getBoundingClientRect();
        return svg.width > 50 && svg.right <= box.right + 1 && svg.bottom <= box.bottom + 1;
    })"""
UNDISTORTED = """return [...document.querySelectorAll(".plot .main-svg")].every((svg) =>
    svg.getAttribute("viewBox") === "0 0 " + svg.getAttribute("width") + " " + svg.getAttribute("height"))"""


REACHED = """return [...document.querySelectorAll("summary, select, input, #riskiest button, .stamp a")]
    .filter((one) => one.offsetParent !== null)
    .map((one) => one.getBoundingClientRect().height)"""


def test_it_fits_a_phone_and_a_finger(three, opened, tmp_path):
    browser = opened(three)
    browser.on_a_phone(390, 844)
    try:
        browser.open(tmp_path / "report.html")
        browser.wait_for("return document.querySelectorAll('.plot .main-svg').length >= 3")
        browser.wait_for(FITS)
        browser.wait_for(UNDISTORTED)
        heights = browser.run(REACHED)
        assert len(heights) > 8
        assert min(heights) >= 43.5
        above = browser.run(
            "return [...document.querySelectorAll('.value')].every((one) =>"
            " one.getBoundingClientRect().bottom < window.innerHeight)"
        )
        assert above, "the four numbers are on the first screen"
        shown = "return [...document.querySelectorAll('.finding p')].some((one) => one.checkVisibility())"
        assert not browser.run(shown), "findings by their titles"
        browser.run("document.querySelector('.finding summary').click()")
        assert browser.run(shown)
    finally:
        browser.on_a_phone(0, 0)


BRIGHTNESS = """const light = (x) => x.match(/[0-9.]+/g).slice(0, 3).map(Number).reduce((a, b) => a + b);
    const plane = document.getElementById("plane");
    return [
        light(getComputedStyle(document.body).backgroundColor),
        light(getComputedStyle(document.querySelector(".value")).color),
        light(getComputedStyle(plane.querySelector(".main-svg")).backgroundColor),
        light(getComputedStyle(plane.querySelector(".xtitle")).fill),
    ]"""


def test_it_is_dark_where_the_screen_is(tiled, opened):
    """Plots too, whose texts stand out against what is behind them."""
    browser = opened(tiled)
    page, ink, plot, text = browser.wait_for(BRIGHTNESS)
    assert min(page, plot) > 700
    assert max(ink, text) < 200
    browser.show_as("screen", scheme="dark")
    try:
        browser.wait_for(BRIGHTNESS.replace("return [", "return ((found) => found[2] < 150)([") + ")")
        page, ink, plot, text = browser.run(BRIGHTNESS)
        assert max(page, plot) < 150
        assert min(ink, text) > 600
    finally:
        browser.show_as("screen")


def test_it_fits_paper(tiled, opened):
    browser = opened(tiled)
    browser.wait_for(UNDISTORTED)
    browser.show_as("print")  # the plots get smaller, and nobody draws them again
    try:
        assert browser.run(FITS)
        assert browser.run("return document.getElementById('controls').offsetParent") is None
    finally:
        browser.show_as("screen")


# ---- what the default answers with ----


@pytest.fixture(scope="module")
def mixed():
    """The default's answer about five coordinates, of which the last decides and the others are noise."""
    data = strip(5, episodes=300)
    swapped = np.array(data.states)[:, [1, 2, 3, 4, 0]]
    data = pr.Trajectories(swapped, data.rewards, data.lengths, data.terminated)
    return pr.evaluate(data, seed=0, names=list("abcde"))


def test_the_most_influential_coordinates_come_first(mixed):
    assert mixed.influence.sum() == pytest.approx(1)
    assert mixed.influence[4] > 0.5
    assert mixed.changing[0] == 4
    assert mixed.changing == tuple(np.argsort(-mixed.influence).tolist())
    assert MapGrid.of(mixed).axes[0].name == "e"
    assert _mapped(mixed)[0] == 4
    assert mixed.to_dict()["influence"]["e"] == mixed.influence[4]


def test_influence_by_hand(tiled):
    """What the estimates change by where one coordinate is another state's, root mean square."""
    states = tiled.survey.visited[:: -(-len(tiled.survey.visited) // 1000)]
    other = np.random.default_rng(0).permutation(len(states))
    change = np.zeros((4, 2))
    for d in (0, 2):
        moved = states.copy()
        moved[:, d] = states[other, d]
        with np.errstate(invalid="ignore"):
            off = np.stack([(f(moved) - f(states)) ** 2 for f in (tiled.risk.mean, tiled.risk.std)], axis=1)
        change[d] = np.sqrt(off[np.isfinite(off).all(axis=1)].mean(axis=0))
    assert (tiled.risk.variance(states) >= 0).all()
    np.testing.assert_allclose(tiled.influence, (change / change.sum(axis=0)).mean(axis=1))
    assert tiled.influence[[1, 3]].tolist() == [0, 0]


def test_a_mixture_shows_its_members_and_what_its_intervals_cover(mixed, tmp_path):
    mixed.report(tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    for member in mixed.notes["choice"]["members"]:
        assert f"<td>{member['features']}</td>" in text
    assert "Intervals at states cover randomness and the choice of features" in text
    assert "the mixture over the same starts" in text
    assert "may reach down to 0 where “riskier” says yes" in text
    assert "Joint(" not in text.split("Plotly")[0]
    assert "Where the features cannot express" not in text


def test_maps_of_a_mixture_have_the_ends_of_its_full_intervals(mixed):
    states = mixed.survey.visited[:50]
    cells = measure(mixed, states)
    for of in ("mean", "std"):
        value, (low, high) = getattr(mixed.risk, of)(states), mixed.risk.interval(states, of=of).T
        np.testing.assert_allclose(
            [value - cells[f"{of}_down"], value + cells[f"{of}_up"]], [low, high], rtol=1e-9
        )
    assert (cells["mean_up"] > 1.96 * mixed.risk.standard_error(states, of="mean")).all()


def test_misfit_is_shown_where_it_is(tmp_path):
    data = pr.domains.walk(n=12, p=0.7).sample(0, episodes=1200, seed=1)
    risk = pr.LSTD(pr.TileCoding([0], [12], bins=2)).fit(data, bootstrap=400, seed=0)
    evaluation = Evaluation(
        "walk", ("place",), risk, Survey.of(data, seed=0), check=pr.specification_test(risk, data)
    )
    evaluation.report(tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert "Where the features cannot express the risk" in text
    for j in np.flatnonzero(evaluation.check.material()):
        assert f"<td>{html.escape(evaluation.check.regions.names(['place'])[j])}</td>" in text
    write_maps(evaluation, tmp_path)
    assert (tmp_path / "map_check.png").exists()
    axes = pr.plotting.plot_check(evaluation.check, "variance", names=["place"])
    assert axes.get_title().startswith("variance: these features cannot express it")
