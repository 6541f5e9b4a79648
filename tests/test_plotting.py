"""The pictures show the numbers that the API gives, where the API gives them."""

import math
import subprocess
import sys

import numpy as np
import pytest

import policyrisk as pr
from policyrisk.errors import InvalidInputError, NegativeVarianceWarning, NoDistributionError, PolicyRiskError


@pytest.fixture(scope="module")
def data():
    """Walks across a strip of three coordinates, the third a bystander."""
    rng = np.random.default_rng(0)
    walks = pr.domains.walk(n=20, p=0.8).sample(0, episodes=400, seed=3)
    states = np.column_stack(
        [walks.states[:, 0] + rng.random(len(walks.states)), rng.random((len(walks.states), 2))]
    )
    return pr.Trajectories(states, walks.rewards, walks.lengths, walks.terminated)


LOW, HIGH = np.array([0.0, 0.0, 0.0]), np.array([22.0, 1.0, 1.0])


@pytest.fixture(scope="module")
def risk(data):
    return pr.LSTD(pr.TileCoding(LOW, HIGH, bins=[11, 2, 2])).fit(data)


def picture(axes):
    return axes.images[-1].get_array().filled(np.nan)


def centres(shape, dims, at):
    """The cells' centres by loops: rows upwards, columns to the right."""
    states = np.empty((shape[1], shape[0], 3))
    for row in range(shape[1]):
        for column in range(shape[0]):
            x = np.array(at)
            for i, k, n in ((dims[0], column, shape[0]), (dims[1], row, shape[1])):
                x[i] = LOW[i] + (k + 0.5) * (HIGH[i] - LOW[i]) / n
            states[row, column] = x
    return states


@pytest.mark.parametrize(("of", "error"), [("mean", False), ("std", False), ("sharpe", True), ("std", True)])
@pytest.mark.parametrize("dims", [(0, 1), (2, 0)])
def test_map_shows_the_values_at_the_cells_centres(risk, of, error, dims):
    shape, at = (7, 5), [3.3, 0.1, 0.9]
    axes = pr.plotting.plot_map(risk, of, error=error, low=LOW, high=HIGH, dims=dims, at=at, shape=shape)
    states = centres(shape, dims, at).reshape(-1, 3)
    expected = risk.standard_error(states, of=of) if error else getattr(risk, of)(states)
    np.testing.assert_array_equal(picture(axes), expected.reshape(5, 7))
    assert axes.images[-1].get_extent() == [LOW[dims[0]], HIGH[dims[0]], LOW[dims[1]], HIGH[dims[1]]]
    assert axes.images[-1].origin == "lower"


def test_map_is_blank_where_the_data_say_nothing(risk):
    axes = pr.plotting.plot_map(risk, "episodes", low=LOW, high=HIGH, shape=(22, 2))
    shown = picture(axes)
    episodes = risk.episodes(centres((22, 2), (0, 1), (LOW + HIGH) / 2).reshape(-1, 3)).reshape(2, 22)
    assert np.isnan(shown[:, 21]).all(), "the last tile is beyond every walk"
    np.testing.assert_array_equal(np.nan_to_num(shown), episodes)


def test_map_of_a_negative_variance_is_blank_there():
    chain = pr.domains.walk(n=30, p=0.7)
    lstd = pr.LSTD(pr.Polynomial(1, [0, 0], [29, 1]), pr.Polynomial(2, [0, 0], [29, 1]), lam=0.95)
    walks = chain.sample(0, episodes=300, seed=1)
    states = np.column_stack([walks.states[:, 0], np.random.default_rng(1).random(len(walks.states))])
    risk = lstd.fit(pr.Trajectories(states, walks.rewards, walks.lengths, walks.terminated))
    with pytest.warns(NegativeVarianceWarning):
        axes = pr.plotting.plot_map(risk, low=[0, 0], high=[29, 1], shape=(29, 2))
    assert np.isnan(picture(axes)[:, -1]).all()
    assert np.isfinite(picture(axes)[:, 0]).all()


def test_map_has_labels_and_room_for_more(risk):
    axes = pr.plotting.plot_map(risk, "std", low=LOW, high=HIGH, names=["place", "width", "height"])
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("place", "width")
    assert axes.images[0].get_zorder() == 1
    (bar,) = (other for other in axes.figure.axes if other is not axes)
    assert bar.get_ylabel() == "standard deviation √V(x)"
    error = pr.plotting.plot_map(risk, "std", error=True, low=LOW, high=HIGH)
    assert error.figure.axes[1].get_ylabel() == "standard error of the standard deviation √V(x)"


def test_map_hatches_what_is_riskier_than_the_median_cell(risk):
    axes = pr.plotting.plot_map(risk, low=LOW, high=HIGH, shape=(22, 3), level=0.9)
    middle = centres((22, 3), (0, 1), (LOW + HIGH) / 2).reshape(-1, 3)
    expected = risk.riskier(middle, 0.9, seed=0)
    (hatched,) = axes.collections
    assert hatched.get_hatch()
    assert 0 < expected.sum() < expected.size
    corners = np.array([path.vertices for path in hatched.get_paths()])  # of rows' cells side by side
    inside = [
        ((corners[:, 0] < at).all(axis=1) & (at < corners[:, 2]).all(axis=1)).sum() for at in middle[:, :2]
    ]
    np.testing.assert_array_equal(inside, expected)
    (text,) = axes.get_legend().get_texts()
    assert text.get_text() == "riskier than the median cell (90% for all together)"
    assert not pr.plotting.plot_map(risk, low=LOW, high=HIGH).collections


def test_map_draws_on_given_axes(risk):
    from matplotlib.figure import Figure

    left, right = Figure().subplots(1, 2)
    assert pr.plotting.plot_map(risk, low=LOW, high=HIGH, axes=right) is right
    assert right.images
    assert not left.images


def test_map_takes_a_box_that_is_flat_in_other_coordinates(risk):
    flat = np.array([22.0, 1.0, 0.0])
    axes = pr.plotting.plot_map(risk, "mean", low=LOW, high=flat, shape=(7, 5))
    expected = risk.mean(centres((7, 5), (0, 1), LOW).reshape(-1, 3))
    np.testing.assert_array_equal(picture(axes), expected.reshape(5, 7))


@pytest.fixture(scope="module")
def walkers():
    walks = {p: pr.domains.walk(n=5, p=p) for p in (0.6, 0.7, 0.8)}
    return {
        f"p = {p}": pr.LSTD(pr.Tabular(5)).fit_exact(walk, start=0).summary([0]) for p, walk in walks.items()
    }


@pytest.mark.parametrize(
    ("criterion", "value"),
    [
        (pr.criteria.Sharpe(), lambda mean, std: mean / std),
        (pr.criteria.MeanMinusStd(1.5), lambda mean, std: mean - 1.5 * std),
        (pr.criteria.MeanMinusVariance(0.3), lambda mean, std: mean - 0.3 * std**2),
        (pr.criteria.VarianceMeanAtLeast(-12), lambda mean, std: std),
    ],
    ids=["sharpe", "std", "variance", "mean at least"],
)
def test_through_each_policy_goes_a_line_of_its_equals(criterion, value, walkers):
    axes = pr.plotting.plot_mean_std(walkers, criterion=criterion)
    lines = [line for line in axes.collections if not line.get_facecolor().size]
    found = [np.concatenate([path.vertices for path in line.get_paths()]) for line in lines]
    assert len(found) == 3
    for (std, mean), summary in zip((line.T for line in found), walkers.values(), strict=True):
        expected = value(summary.mean.value, summary.std.value)
        np.testing.assert_allclose(value(mean, std), expected, rtol=2e-3)  # straight between points


def test_what_misses_the_bound_is_grey(walkers):
    axes = pr.plotting.plot_mean_std(walkers, criterion=pr.criteria.MeanVarianceAtMost(20.0))
    texts = [text.get_text() for text in axes.get_legend().get_texts()]
    assert texts == [*walkers, "misses the bound", "equal mean"]
    (grey,) = (part for part in axes.collections if part.get_facecolor().size)
    (path,) = grey.get_paths()
    left, right = path.vertices[:, 0].min(), path.vertices[:, 0].max()
    assert left == pytest.approx(np.sqrt(20), abs=0.1)
    assert right == pytest.approx(axes.get_xlim()[1])
    plain = pr.plotting.plot_mean_std(walkers, criterion=pr.criteria.CVaR(0.05))
    assert len(plain.get_legend().get_texts()) == 3, "which has no lines in this plane"


def test_names_are_shown_as_they_are(risk, data, tmp_path):
    axes = pr.plotting.plot_map(risk, "mean", low=LOW, high=HIGH, names=[r"$\nonsense$", "a$", "c"])
    axes.figure.savefig(tmp_path / "map.png")  # Matplotlib would refuse the first as mathematics
    policies = {"_hidden": risk.summary(data.starts()), r"$\x$": risk.summary(data.starts())}
    plane = pr.plotting.plot_mean_std(policies)
    plane.figure.savefig(tmp_path / "plane.png")
    assert len(plane.get_legend().get_texts()) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dims": (0, 0)}, "two different coordinates from 0 to 2"),
        ({"dims": (0, 3)}, "two different coordinates from 0 to 2"),
        ({"high": [22, 1]}, "high must have shape"),
        ({"high": LOW}, "low must be below high in every coordinate"),
        ({"of": "risk"}, "of must be one of mean, .* got 'risk'"),
        ({"of": "episodes", "error": True}, "no standard error"),
        ({"names": ["x"]}, "names must hold 3 names"),
        ({"shape": (0, 5)}, "shape must be a whole number of at least 1"),
        ({"shape": (5,)}, "shape must have shape"),
        ({"at": [0.0]}, "at must have shape"),
    ],
)
def test_map_refuses(risk, change, message):
    with pytest.raises(InvalidInputError, match=message):
        pr.plotting.plot_map(risk, **{"low": LOW, "high": HIGH, **change})


def test_mean_std_has_the_intervals_in_both_directions(risk, data):
    summary = risk.summary(data.starts(), level=0.9)
    exact = pr.LSTD(pr.Tabular(5)).fit_exact(pr.domains.walk(n=5, p=0.7), start=0).summary([0])
    axes = pr.plotting.plot_mean_std({"strip": summary, "walk": exact})
    with_bars, without = axes.containers
    (x,), (y,) = with_bars[0].get_data()
    assert (x, y) == (summary.std.value, summary.mean.value)
    ends = [line.get_segments()[0] for line in with_bars[2]]
    np.testing.assert_allclose(ends[0][:, 0], [summary.std.low, summary.std.high])
    np.testing.assert_allclose(ends[1][:, 1], [summary.mean.low, summary.mean.high])
    assert not without[2]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["strip", "walk"]
    assert axes.get_title(loc="right") == "bars: 90% intervals"


def test_mean_std_names_policies_without_a_std():
    lstd = pr.LSTD(pr.Polynomial(1, [0], [29]), pr.Polynomial(2, [0], [29]), lam=0.95)
    risk = lstd.fit_exact(pr.domains.walk(n=30, p=0.7), start=0)
    with pytest.warns(NegativeVarianceWarning):
        summary = risk.summary([29])
    assert math.isnan(summary.std)
    assert pr.plotting.plot_mean_std({"bad": summary}).get_title(loc="left") == "negative variance: bad"


@pytest.mark.parametrize("summaries", [{}, [1]])
def test_mean_std_refuses(summaries):
    with pytest.raises(InvalidInputError, match="summaries must be a dictionary"):
        pr.plotting.plot_mean_std(summaries)


def test_line_shows_estimate_band_and_truth():
    chain = pr.domains.walk(n=10, p=0.7)
    risk = pr.LSTD(pr.Tabular(10)).fit(chain.sample(0, episodes=500, seed=1))
    axes = pr.plotting.plot_line(risk, range(10), of="std", truth=chain.std())
    estimate, exact = axes.lines
    np.testing.assert_array_equal(estimate.get_ydata(), risk.std(range(10)))
    np.testing.assert_array_equal(exact.get_ydata(), chain.std())
    corners = axes.collections[0].get_paths()[0].vertices[:, 1]
    interval = risk.interval(range(10), of="std")
    assert (corners.min(), corners.max()) == (interval.min(), interval.max())


def test_without_matplotlib_the_extra_is_named():
    code = (
        "import sys; sys.modules['matplotlib'] = None; sys.modules['matplotlib.figure'] = None\n"
        "import policyrisk as pr\n"
        "risk = pr.LSTD(pr.Tabular(5)).fit_exact(pr.domains.walk(n=5, p=0.7), start=0)\n"
        "try: pr.plotting.plot_line(risk, [0, 1])\n"
        f"except pr.errors.{PolicyRiskError.__name__} as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "policyrisk[plot]" in done.stdout


@pytest.fixture(scope="module")
def distribution():
    return pr.ReturnDistribution(pr.Tabular(6)).fit(pr.domains.walk(6).sample(0, 500, seed=1))


def test_a_fan_shows_the_quantiles(distribution):
    axes = pr.plotting.plot_fan(distribution, range(6), q=[0.1, 0.3, 0.5, 0.7, 0.9])
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["10% to 90%", "30% to 70%", "median", "mean"]
    for band, (low, high) in zip(axes.collections, ((0.1, 0.9), (0.3, 0.7)), strict=True):
        corners = {tuple(vertex) for vertex in band.get_paths()[0].vertices}
        for state in range(6):
            ends = [float(distribution.quantile([state], q)[0]) for q in (low, high)]
            assert {(state, end) for end in ends} <= corners
    median, mean = (line.get_ydata() for line in axes.lines)
    np.testing.assert_array_equal(median, distribution.quantile(range(6), 0.5))
    np.testing.assert_array_equal(mean, distribution.mean(range(6)))
    even = pr.plotting.plot_fan(distribution, range(6), q=[0.25, 0.75])
    assert len(even.lines) == 1
    for bad in ([0.5], [0.9, 0.1]):
        with pytest.raises(InvalidInputError, match="q must be"):
            pr.plotting.plot_fan(distribution, range(6), q=bad)
    with pytest.raises(InvalidInputError, match="axis must be"):
        pr.plotting.plot_fan(distribution, range(6), axis=1)


def test_a_map_of_the_worst_returns_needs_a_distribution(risk):
    with pytest.raises(NoDistributionError, match="needs the distribution"):
        pr.plotting.plot_map(risk, "cvar", low=LOW, high=HIGH)
    with pytest.raises(NoDistributionError, match="needs the distribution"):
        pr.plotting.plot_line(risk, HIGH[None], of="cvar")


def test_the_pit_is_drawn_as_a_density(distribution):
    score = distribution.score(pr.domains.walk(6).sample(0, 500, seed=2))
    axes = pr.plotting.plot_pit(score)
    heights = [bar.get_height() for bar in axes.patches]
    np.testing.assert_allclose(heights, 10 * np.array(score.pit))
    assert np.mean(heights) == pytest.approx(1.0)
    assert "500 held-out episodes" in axes.get_title()
