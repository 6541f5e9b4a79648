"""The pinball experiment: its numbers recomputed here, its helpers against slow references, its files."""

import json

import numpy as np
import pytest
from scipy import special

from experiments import pinball, pinball_extended
from experiments.claims import monotonicity
from experiments.map_errors import Budget, Truth
from experiments.tiles import TileGrid, every_visit, grid_distances, visit_sums
from policyrisk import TileCoding, monte_carlo
from policyrisk.control import pinball_policy
from policyrisk.domains import Pinball
from policyrisk.domains.maze import Maze
from policyrisk.simulation.simulators import Runner

SMALL = pinball.PinballParameters(trajectories=300, mc_episodes=30, tiles=12, fresh=3000, seed=3)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return tmp_path_factory.mktemp("mc") / "mc.npz"


@pytest.fixture(scope="module")
def small(checkpoint):
    return pinball.run(SMALL, checkpoint=checkpoint)


# --- the grid ------------------------------------------------------------------------------------------


def slow_distances(cells, sources):
    """Bellman's equation, swept until nothing changes."""
    d = np.where(sources & cells, 0.0, np.inf)
    moves = [
        (i, j)
        for i in range(-2, 3)
        for j in range(-2, 3)
        if 0 < i * i + j * j <= 5 and (i * j or i * i + j * j == 1)
    ]
    while True:
        before = d.copy()
        for i, j in np.argwhere(cells):
            for a, b in moves:
                x, y = i + a, j + b
                if 0 <= x < cells.shape[0] and 0 <= y < cells.shape[1] and cells[x, y]:
                    d[i, j] = min(d[i, j], d[x, y] + np.hypot(a, b))
        if np.array_equal(before, d):
            return d


@pytest.mark.parametrize("seed", range(4))
def test_distances_are_those_of_bellmans_equation(seed):
    rng = np.random.default_rng(seed)
    cells = rng.random((9, 7)) < 0.6
    sources = rng.random((9, 7)) < 0.1
    np.testing.assert_allclose(grid_distances(cells, sources), slow_distances(cells, sources), atol=1e-12)


def test_distances_go_round_a_wall_and_stay_away_from_closed_cells():
    cells = np.ones((7, 7), dtype=bool)
    cells[2:4, :6] = False  # two thick, which no knight jumps
    home = np.zeros((7, 7), dtype=bool)
    home[6, 0] = True
    d = grid_distances(cells, home)
    assert np.isinf(d[2:4, :6]).all()
    # To (3, 6) it is 3 up and 6 across, three knight's moves; the corner takes 2 straight steps more.
    assert d[3, 6] == pytest.approx(3 * np.sqrt(5))
    assert d[1, 6] == pytest.approx(3 * np.sqrt(5) + 2)
    assert d[0, 0] > d[1, 6]


def test_distances_in_an_empty_maze_are_straight():
    maze = Maze.named("empty")
    grid = TileGrid(maze, 20)
    straight = np.hypot(*(grid.states[:, :2] - maze.target).T) - maze.target_radius
    assert (grid.distances >= straight - 2 / 250).all()
    assert (grid.distances <= 1.028 * straight + 3 / 250).all()


def test_tiles_are_numbered_as_in_tile_coding_and_pictures_show_them_in_place():
    grid = TileGrid(Maze.named("simple"), 15)
    phi = TileCoding([0, 0], [1, 1], bins=[15, 15], dims=[0, 1])
    points = np.random.default_rng(0).random((200, 4))
    np.testing.assert_array_equal(grid.tile_of(points), phi.active(points)[:, 0])
    np.testing.assert_array_equal(phi.active(grid.states)[:, 0], np.flatnonzero(grid.free))
    picture = grid.picture(grid.states[:, 0] + 10 * grid.states[:, 1])
    row, column = np.argwhere(np.isfinite(picture)).T
    np.testing.assert_allclose(picture[row, column], (column + 0.5) / 15 + 10 * (row + 0.5) / 15)
    assert np.isfinite(picture).sum() == len(grid.states)
    gaps = grid.states[grid.neighbours[:, 0], :2] - grid.states[grid.neighbours[:, 1], :2]
    np.testing.assert_allclose(np.abs(gaps).sum(axis=1), 1 / 15)
    apart = np.abs(grid.states[:, None, :2] - grid.states[None, :, :2]).sum(axis=2)
    assert len(grid.neighbours) == np.sum(np.abs(apart - 1 / 15) < 1e-9) // 2


# --- errors and budgets ----------------------------------------------------------------------------------


def test_error_counts_negative_variance_as_no_deviation_and_leaves_the_unseen_out():
    truth = Truth(
        mean=np.array([-1.0, -2.0, -3.0, -4.0]),
        std=np.array([1.0, 2.0, 3.0, 4.0]),
        mean_se=np.full(4, 0.5),
        std_se=np.array([0.1, 0.2, 0.3, 9.0]),
    )
    error = truth.error(np.array([-1.0, -2.0, -5.0, np.nan]), np.array([4.0, 4.0, -1.0, 1.0]))
    assert (error.tiles, error.unseen, error.negative) == (3, 1, 1)
    assert error.std_rmse == pytest.approx(np.sqrt((1 + 0 + 9) / 3))
    assert error.std_rmse_relative == pytest.approx(np.sqrt(10 / 3) / 2)
    assert error.std_error == pytest.approx(np.sqrt(10 / 3 - 0.14 / 3))
    assert error.std_rmse_where_positive == pytest.approx(np.sqrt(0.5))
    assert error.std_bias == pytest.approx((1 - 3) / 3)
    assert error.mean_rmse == pytest.approx(np.sqrt(4 / 3))
    assert error.mean_error == pytest.approx(np.sqrt(4 / 3 - 0.25))
    assert error.std_correlation == pytest.approx(np.corrcoef([2, 2, 0], [1, 2, 3])[0, 1])


def test_budget_errors_are_those_of_normal_samples():
    places, sigma = 4000, 3.0
    none = np.zeros(places)
    returns = np.random.default_rng(1).normal(-20, sigma, (places, 64))
    budget = Budget(Truth(none, np.full(places, sigma), none, none), returns)
    for n in (2, 5, 16, 64):
        # E (s − σ)² = 2σ² (1 − c₄(n)), since E s² = σ² and E s = c₄ σ.
        c4 = np.sqrt(2 / (n - 1)) * special.gamma(n / 2) / special.gamma((n - 1) / 2)
        assert budget.error(n) == pytest.approx(sigma * np.sqrt(2 * (1 - c4)), rel=0.03)
    assert budget.needed(budget.error(8)) == pytest.approx(8 * places)
    assert budget.needed(budget.error(64) / 3) == pytest.approx(9 * 64 * places)
    assert budget.needed(1e9) == pytest.approx(2 * places)
    assert budget.needed(0.0) == np.inf
    mixed = np.sqrt((3000 * budget.error(4) ** 2 + 1000 * budget.error(5) ** 2) / 4000)
    assert budget.same_budget(4 * places + 1000) == (pytest.approx(mixed), 1.0)
    assert budget.same_budget(places) == (budget.error(2), 0.5)


def test_budget_takes_the_truths_own_randomness_off():
    places, sigma = 20_000, 3.0
    rng = np.random.default_rng(2)
    noise = np.full(places, 0.5)
    truth = Truth(noise, sigma + noise * rng.normal(size=places), noise, noise)
    clean = Truth(noise, np.full(places, sigma), noise, 0 * noise)
    returns = rng.normal(0, sigma, (places, 8))
    assert Budget(truth, returns).error(8) == pytest.approx(Budget(clean, returns).error(8), rel=0.02)


# --- the claims --------------------------------------------------------------------------------------------

LINE = np.column_stack([np.arange(39), np.arange(1, 40)])


def test_a_noisy_monotone_map_passes_and_one_with_a_hump_does_not():
    d = np.arange(40.0)
    noise = np.random.default_rng(0).normal(0, 0.2, 40)
    straight = monotonicity(0.1 * d + noise, np.full(40, 0.2), d, LINE, 1.0)
    assert straight.monotone
    assert straight.drop_at_least <= 0
    hump = 0.1 * d + noise + 3.0 * (np.abs(d - 15) < 3)
    found = monotonicity(hump, np.full(40, 0.2), d, LINE, 1.0)
    assert not found.monotone
    near, far = found.drop_pair
    assert d[near] < d[far]
    assert found.drop == pytest.approx(hump[near] - hump[far])
    assert 0 < found.drop_at_least < found.drop
    assert found.monotone_share < straight.monotone_share
    assert found.neighbours == 39
    assert found.falling >= 1 / 39


def test_false_alarms_are_rare():
    d = np.arange(40.0)
    rng = np.random.default_rng(5)
    flat = [monotonicity(rng.normal(0, 1, 40), np.ones(40), d, LINE, 1.0).monotone for _ in range(300)]
    assert sum(flat) >= 298  # each alarms with probability 0.001 at most


def test_monotonicity_leaves_unknown_tiles_and_pairs_across_the_way_out():
    d = np.array([0.0, 1.0, 1.1, np.inf, 2.0])
    values = np.array([1.0, 2.0, 9.0, 0.0, np.nan])
    found = monotonicity(values, np.full(5, 0.1), d, np.array([[0, 1], [1, 2], [2, 3], [3, 4]]), 1.0)
    assert (found.tiles, found.neighbours, found.rising, found.falling) == (3, 1, 1.0, 0.0)
    assert found.monotone_share == pytest.approx(1.0)


# --- every-visit Monte Carlo ---------------------------------------------------------------------------


def test_every_visit_is_a_loop_over_steps():
    domain = Pinball("simple")
    data = domain.rollout(pinball_policy("simple"), domain.sample_starts(40, 1), 2, max_steps=60)
    assert 0 < data.terminated.sum() < 40
    grid = TileGrid(domain.maze, 10)
    seen = {}
    for episode in data:
        if episode.terminated[0]:
            for t in range(episode.transitions):
                i, j = (int(c * 10) for c in episode.states[t, :2])
                seen.setdefault(i * 10 + j, []).append(episode.rewards[t:].sum())
    found = every_visit(visit_sums(data, grid))
    for tile in range(100):
        returns = seen.get(tile, [])
        assert found.visits[tile] == len(returns)
        expected = np.mean(returns) if returns else np.nan
        np.testing.assert_allclose(found.mean[tile], expected)
        expected = np.var(returns, ddof=1) if len(returns) > 1 else np.nan
        np.testing.assert_allclose(found.variance[tile], expected, atol=1e-9)


# --- the whole -----------------------------------------------------------------------------------------


def test_the_numbers_are_those_of_the_maps(small):
    numbers, maps = small.to_dict(), small.maps()
    V, truth = maps["lstd_variance"], maps["mc_std"]
    both = np.isfinite(V) & np.isfinite(truth)
    gap = np.sqrt(np.maximum(V[both], 0)) - truth[both]
    assert numbers["std_rmse"] == pytest.approx(np.sqrt(np.mean(gap**2)))
    assert numbers["std_rmse_relative"] == pytest.approx(numbers["std_rmse"] / truth[both].mean())
    gap = maps["lstd_mean"][both] - maps["mc_mean"][both]
    assert numbers["at_rest"]["lstd"]["mean_rmse"] == pytest.approx(np.sqrt(np.mean(gap**2)))
    assert numbers["at_rest"]["lstd"]["tiles"] == both.sum()
    often = (maps["visits"] >= 100) & np.isfinite(V)
    gap = np.sqrt(np.maximum(V[often], 0)) - np.sqrt(maps["visited_variance"][often])
    # Tiles whose centre is not free are in the truth as visited, but not in LSTD's map at rest.
    assert numbers["as_visited"]["tiles"] >= often.sum()
    assert numbers["as_visited"]["lstd"]["std_rmse"] == pytest.approx(np.sqrt(np.mean(gap**2)), rel=0.3)
    assert numbers["free_tiles"] == np.isfinite(truth).sum() == len(small.grid.states)
    assert numbers["mc_trajectories"] == 30 * numbers["free_tiles"]
    assert numbers["transitions"] == small.data.transitions == pytest.approx(300 * numbers["mean_steps"])
    assert numbers["trajectories"] == 300
    assert numbers["reached_share"] == 1.0
    assert numbers["sample_efficiency"] == pytest.approx(numbers["mc_trajectories_needed"] / 300)
    fewest = numbers["mc_trajectories_needed"] <= 2.000001 * numbers["free_tiles"]
    assert numbers["mc_needed_is_the_fewest"] == fewest
    known = np.isfinite(truth)
    correlation = np.corrcoef(maps["mc_mean"][known], maps["distance"][known])[0, 1]
    assert numbers["correlation_of_mean_and_distance"] == pytest.approx(correlation)
    assert correlation < -0.95
    assert set(numbers["seconds"]) >= {"simulation", "estimation", "solve", "monte_carlo", "total"}


def test_the_riskiest_and_the_farthest_tile_are_the_maps(small):
    numbers, maps = small.to_dict(), small.maps()
    for name, picture in (("riskiest", maps["mc_std"]), ("farthest", maps["distance"])):
        tile = numbers[name]
        row, column = np.unravel_index(np.nanargmax(picture), picture.shape)
        assert tile["position"] == pytest.approx([(column + 0.5) / 12, (row + 0.5) / 12])
        assert tile["std"] == pytest.approx(maps["mc_std"][row, column])
        assert tile["distance"] == pytest.approx(maps["distance"][row, column])
        own = monte_carlo(small.pinball, small.policy, [[*tile["position"], 0, 0]], 20_000, seed=9)
        z = (own.std[0] - tile["std_anew"]) / np.hypot(own.std_se[0], tile["std_anew_standard_error"])
        assert abs(z) < 4
    claims = numbers["claims"]
    gap = claims["riskiest_less_farthest"]
    assert gap["std"] == pytest.approx(numbers["riskiest"]["std_anew"] - numbers["farthest"]["std_anew"])
    assert claims["somewhere_is_riskier_than_the_farthest"] == (gap["z"] > 3.0902)
    near, far = claims["drop_pair"]
    assert near["distance"] < far["distance"]
    drop = claims["nearer_less_farther"]
    assert drop["std"] == pytest.approx(near["std_anew"] - far["std_anew"])
    errors = [tile["std_anew_standard_error"] for tile in (near, far)]
    assert drop["z"] == pytest.approx(drop["std"] / np.hypot(*errors))
    assert claims["std_is_monotone_in_distance"] == (
        claims["std_and_distance"]["monotone"] or drop["z"] <= 3.0902
    )


def test_lstd_is_near_the_truth_as_visited_and_the_fresh_mean_is_near_the_monte_carlo_one(small):
    numbers = small.to_dict()
    assert numbers["as_visited"]["lstd"]["mean_correlation"] > 0.98
    assert numbers["fresh"]["mean_steps"] == pytest.approx(numbers["mean_steps"], rel=0.1)
    assert small.fresh.visits.sum() == pytest.approx(3000 * numbers["fresh"]["mean_steps"])


def test_the_same_seed_gives_the_same_numbers_and_a_finished_map_is_taken_up(small, checkpoint, monkeypatch):
    before = checkpoint.read_bytes()
    runs = []
    monkeypatch.setattr(Runner, "run", lambda *_: runs.append(1))
    monkeypatch.setattr(pinball, "_claims", lambda *_: {})  # which simulates by Monte Carlo as well
    again = pinball.run(SMALL, checkpoint=checkpoint, resume=True)
    assert not runs
    assert checkpoint.read_bytes() == before
    np.testing.assert_array_equal(again.rest.std, small.rest.std)
    for key in ("transitions", "std_rmse", "as_visited", "mc_trajectories_needed", "fresh"):
        assert again.numbers[key] == small.numbers[key]


def test_written_files(small, tmp_path):
    paths = pinball.write(small, tmp_path / "deep" / "er")
    figures = ("pinball_value", "pinball_std", "pinball_distance")
    names = ["result.json", "maps.npz", *(f + s for f in figures for s in (".png", ".svg", ".pdf"))]
    assert [path.name for path in paths] == names
    assert {path.name for path in paths[0].parent.iterdir()} == set(names)
    told = json.loads(paths[0].read_text(), parse_constant=pytest.fail)
    assert told["std_rmse"] == small.numbers["std_rmse"]
    assert told["parameters"]["tiles"] == 12
    with np.load(paths[1]) as maps:
        np.testing.assert_array_equal(maps["mc_std"], small.maps()["mc_std"])
    for path in paths[2:]:
        begins = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}[path.suffix]
        assert path.read_bytes().startswith(begins)


def test_the_script(tmp_path, capsys):
    numbers = "--trajectories 100 --mc-episodes 5 --tiles 8 --seed 1 --noise 0.02 --fresh 500"
    options = ["--out", str(tmp_path), *numbers.split()]
    pinball.main(options)
    assert "Riskiest tile" in capsys.readouterr().out
    assert (tmp_path / "pinball_std.png").exists()
    assert (tmp_path / "monte_carlo.npz").exists()
    first = json.loads((tmp_path / "result.json").read_text())
    pinball.main([*options, "--resume"])
    again = json.loads((tmp_path / "result.json").read_text())
    assert again["parameters"]["noise"] == 0.02
    seconds = again.pop("seconds")
    assert list(seconds)[-2:] == ["figures", "total"]
    assert seconds["total"] >= sum(seconds.values()) - seconds["total"] - 0.01
    first.pop("seconds")
    assert again == first


def test_extended(small, tmp_path):
    parameters = pinball_extended.ExtendedParameters(fine=6, coarse=5, folds=2, sizes=(100, 300))
    extension = pinball_extended.run(small, parameters)
    numbers = extension.numbers
    assert numbers["chosen"] in extension.errors
    estimators = pinball_extended.candidates(small.parameters, parameters)
    assert set(numbers["maps"]) == {*estimators, "every-visit Monte Carlo"}
    states = small.grid.states
    for name in ("tiles, direct", "bases for J, tiles for V, direct"):
        V = estimators[name].fit(small.data).variance(states)
        np.testing.assert_allclose(extension.variances[name], V)
        seen = np.isfinite(V)
        gap = np.sqrt(np.maximum(V, 0))[seen] - small.rest.std[seen]
        assert numbers["maps"][name]["std_rmse"] == pytest.approx(np.sqrt(np.mean(gap**2)))
    assert numbers["maps"]["tiles, V ≥ 0"]["negative"] == 0
    assert numbers["maps"]["tiles"] == pytest.approx(
        {**small.numbers["at_rest"]["lstd"], **_extra(numbers["maps"]["tiles"])}
    )
    assert [size for size, _ in extension.curves["LSTD(0.5), tiles"]] == [100, 300]
    paths = pinball_extended.write(extension, tmp_path)
    assert [path.suffix for path in paths] == [".png", ".svg", ".pdf"] * 3
    told = json.loads((tmp_path / "result.json").read_text(), parse_constant=pytest.fail)
    assert told["extended"]["chosen"] == numbers["chosen"]
    assert told["std_rmse"] == small.numbers["std_rmse"]
    assert list(told["seconds"])[-2:] == ["extended_figures", "total"]
    parts = {**told["seconds"], "total": 0.0}
    assert parts.keys() >= {"monte_carlo", "cross_validation", "fits", "curves"}
    assert told["seconds"]["total"] >= sum(parts.values()) - 0.01, "of the paper's part too"


def _extra(summary):
    return {
        name: summary[name]
        for name in ("mc_trajectories_needed", "sample_efficiency", "interval_coverage_at_rest")
    }
