"""Features spelled as text, and the mixture that held-out episodes choose."""

import numpy as np
import pytest

import policyrisk as pr
from policyrisk.errors import ImproperPolicyError, InvalidInputError
from policyrisk.evaluation.mixture import MixturePlan, candidates
from policyrisk.evaluation.plan import Fitting
from policyrisk.features.spelling import Spelling, data_box
from policyrisk.passes.survey import Survey

NAMES = ("x", "y", "speed")
LOW, HIGH = np.array([0.0, -1.0, 0.0]), np.array([1.0, 1.0, 5.0])


def plane(dim=3, episodes=60, seed=0):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(5, 30, episodes)
    states = rng.uniform(0, 1, (lengths.sum() + episodes, dim))
    return pr.Trajectories(states, rng.normal(size=lengths.sum()), lengths, np.ones(episodes, bool))


def build(text, names=NAMES, low=LOW, high=HIGH, survey=None):
    return Spelling.parse(text).build(names, survey or Survey.of(plane(len(names))), low, high)


@pytest.mark.parametrize(
    ("text", "features"),
    [
        ("tiles:4x3x2", pr.TileCoding(LOW, HIGH, [4, 3, 2])),
        ("tiles:4", pr.TileCoding(LOW, HIGH, [4, 4, 4])),
        ("tiles:4x3,tilings=2,dims=y+x", pr.TileCoding([-1, 0], [1, 1], [4, 3], tilings=2, dims=[1, 0])),
        ("tiles:7,dims=speed", pr.TileCoding([0], [5], [7], dims=[2])),
        ("tiles:7,dims=2", pr.TileCoding([0], [5], [7], dims=[2])),
        ("rbf:3", pr.RadialBasis.grid(LOW, HIGH, (3, 3, 3))),
        (
            "rbf:3x4,width=0.2x0.5,dims=x+y",
            pr.RadialBasis.grid([0, -1], [1, 1], (3, 4), [0.2, 0.5], dims=[0, 1]),
        ),
        ("rbf:3,width=0.2", pr.RadialBasis.grid(LOW, HIGH, 3, 0.2)),
        ("fourier:3", pr.Fourier(3, LOW, HIGH)),
        ("fourier:3,total=4", pr.Fourier(3, LOW, HIGH, total=4)),
        ("poly:2,dims=x", pr.Polynomial(2, [0], [1], dims=[0])),
        ("tabular:12,dims=y", pr.Tabular(12, dims=(1,))),
        (
            "tiles:7,dims=speed/poly:1,dims=x+y",
            pr.Joint([pr.TileCoding([0], [5], [7], dims=[2]), pr.Polynomial(1, LOW[:2], HIGH[:2], [0, 1])]),
        ),
    ],
)
def test_spelled_features_are_those_of_the_library(text, features):
    assert build(text) == features
    assert str(Spelling.parse(text)) == text


def test_the_table_is_as_large_as_the_data():
    data = pr.Trajectories([[0, 3], [1, 4], [9, 6]], [1.0, 1.0], [2], [False])
    survey = Survey.of(data)
    assert build("tabular,dims=y", NAMES[:2], LOW[:2], HIGH[:2], survey) == pr.Tabular(7, dims=(1,))
    with pytest.raises(InvalidInputError, match="must be told which coordinate, got 2"):
        build("tabular", NAMES[:2], LOW[:2], HIGH[:2], survey)
    with pytest.raises(InvalidInputError, match="whole numbers from 0"):
        build("tabular,dims=x")


def test_second_features():
    spelling = Spelling.parse("poly:1,dims=x,second=tiles:4x4x4,tilings=2")
    assert str(spelling.second) == "tiles:4x4x4,tilings=2"
    assert spelling.dims == ("x",)
    assert str(spelling) == "poly:1,dims=x,second=tiles:4x4x4,tilings=2"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must be auto or one of tiles"),
        ("squares:3", "write for example tiles:20x20"),
        ("Tiles:3", "must be auto or one of"),
        ("tiles", "needs a size after a colon; write for example tiles:20x20"),
        ("tiles:", "whole numbers from 1"),
        ("tiles:0x3", "whole numbers from 1"),
        ("tiles:-3", "whole numbers from 1"),
        ("tiles:3.5", "whole numbers from 1"),
        ("tiles:3xx3", "whole numbers from 1"),
        ("tiles:3X3", "whole numbers from 1"),
        ("tiles:٣", "whole numbers from 1"),
        ("tiles:3x3,", "not ''"),
        ("tiles:3x3,width=2", "not 'width=2'"),
        ("tiles:3x3,tilings", "not 'tilings'"),
        ("tiles:3x3,tilings=2,tilings=3", "once"),
        ("tiles:3x3,tilings=2x2", "one number"),
        ("rbf:3x3,width=-1", "positive numbers"),
        ("rbf:3x3,width=nan", "positive numbers"),
        ("poly:2x2", "takes one number"),
        ("poly:2;second=poly:3", "whole numbers"),
        ("poly:1,second=", "must be auto or one of"),
        ("poly:1,second=poly:2,second=poly:3", "one second="),
        ("poly:1,second=auto", "must be auto or one of"),
    ],
)
def test_misspelled_features_show_a_right_one(text, message):
    with pytest.raises(InvalidInputError) as error:
        Spelling.parse(text)
    assert message in str(error.value)
    assert "write for example" in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tiles:3x3", "each of the coordinates x, y, speed"),
        ("tiles:3x3x3,dims=x+y", "each of the coordinates x, y,"),
        ("rbf:3,width=1x2", "widths"),
        ("tiles:3,dims=z", "got 'z'"),
        ("tiles:3,dims=3", "got '3'"),
        ("tiles:3,dims=x+x", "once"),
        ("tabular,dims=x+y", "one alone"),
        ("tiles:101", "at most 1000000, got 1030301"),
        ("tiles:1000x1000x10000000", "at most 1000000"),
        ("tiles:100,second=poly:2", "at most 10000, got 1000000"),
        ("tabular:1000001,dims=y", "at most 1000000, got 1000001"),
        ("rbf:1000", "at most 10000"),
        ("fourier:999999", "at most"),
        ("poly:999999999", "at most"),
    ],
)
def test_features_that_do_not_fit_the_state(text, message):
    with pytest.raises(InvalidInputError, match=message):
        build(text)


def test_the_datas_box_leaves_room_about_a_constant_coordinate():
    data = pr.Trajectories([[0.0, 5.0], [2.0, 5.0], [3.0, 6.0]], [1.0, 1.0], [2], [True])
    low, high, constant = data_box(Survey.of(data))
    assert constant == (1,)
    assert low.tolist() == [0.0, 5.0]
    assert high.tolist() == [2.0, 10.0]


@pytest.mark.parametrize("dim", [1, 2, 3, 4, 6, 12, 40])
def test_candidates_are_few_and_small_in_every_dimension(dim):
    data = plane(dim)
    survey = Survey.of(data)
    names = [f"s{d}" for d in range(dim)]
    spellings = candidates(survey, 10**6)
    assert 1 <= len(spellings) <= 24
    assert len(set(map(str, spellings))) == len(spellings)
    low, high, _ = data_box(survey)
    sizes = {str(s): s.build(names, survey, low, high).size for s in spellings}
    assert max(sizes.values()) <= 1600, sizes
    assert all(Spelling.parse(s.text(names)).normal(names) == s.normal(names) for s in spellings)
    least = min(sizes.values())
    assert [s for s in candidates(survey, 20 * least) if sizes[str(s)] > least] == []


def choice_of(data, names, **options):
    survey = Survey.of(data)
    low, high, _ = data_box(survey)
    settings = {"lam": 0.9, "discount": 1.0, "ridge": 0.0, "variance": "direct", **options}
    return MixturePlan.of(data, Fitting(survey, tuple(names), low, high, **settings), seed=0)


def steps(episodes=4000):
    """One step each; rewards depend on the tenth of the line, far from any low polynomial."""
    rng = np.random.default_rng(3)
    x = rng.uniform(0, 1, (episodes, 1))
    levels = np.array([0.0, 50.0, -50.0, 20.0, -80.0, 60.0, 0.0, 90.0, -30.0, 10.0])
    rewards = levels[np.minimum((10 * x[:, 0]).astype(int), 9)] + rng.normal(size=episodes)
    return pr.Trajectories(np.repeat(x, 2, axis=0), rewards, np.ones(episodes, int), np.ones(episodes, bool))


def test_a_step_function_is_given_tiles_and_the_table_is_printed():
    choice = choice_of(steps(), ["x"])
    first = max(choice.members, key=lambda member: member.mean_share)
    assert choice.spellings[first.name].kind == "tiles"
    assert sum(member.mean_share for member in choice.members) == pytest.approx(1.0)
    assert sum(member.variance_share for member in choice.members) == pytest.approx(1.0)
    assert choice.features in choice.explanation
    assert "chosen on all 4000 episodes" in choice.explanation
    names = [each.name for each in choice.stack.candidates]
    assert len(names) == len(set(names)) >= 10
    assert "forest" in names
    assert choice.notes["choice"]["members"][0]["features"] == choice.members[0].name
    assert choice.stack.explained > 0.99  # the levels' variance is 3,000 times that of the noise
    assert choice_of(steps(), ["x"]).explanation == choice.explanation


def test_of_two_spellings_of_one_table_the_smaller_is_tried_alone():
    # tiles:10,tilings=4 tell the ten states apart as the table does, with four times the features.
    data = pr.domains.walk(n=10, p=0.7).sample(0, episodes=1000, seed=3)
    choice = choice_of(data, ["place"])
    names = {each.name: each.reason for each in choice.stack.candidates}
    assert names["tiles:10,tilings=4"] == "says what labels says"
    assert "tiles:10,tilings=4" not in [each.name for each in choice.members]


def test_too_little_data_to_choose_by():
    with pytest.raises(InvalidInputError, match="name the features"):
        choice_of(plane(2, episodes=1), ["x", "y"])
    cut_off = pr.Trajectories(
        np.linspace(0, 1, 420)[:, None], np.ones(400), np.full(20, 20), np.zeros(20, bool)
    )
    with pytest.raises(ImproperPolicyError, match=r"all cut off; .*gather episodes"):
        choice_of(cut_off, ["x"])
    assert choice_of(cut_off, ["x"], discount=0.9).stack.episodes == 20  # there none has to end


def test_no_candidate_refuses_places_that_were_never_seen():
    data = pr.domains.walk(n=8, p=0.9).sample(start=0, episodes=200, seed=1)
    survey = Survey.of(data, seed=0)
    maps = [each.build(["x"], survey, *data_box(survey)[:2]) for each in candidates(survey, 2000)]
    assert any(isinstance(phi, pr.Labels) for phi in maps)
    for phi in maps:
        risk = pr.LSTD(phi, ridge=1e-9).fit(data)
        known = risk.visited([3.0, 9.0, -1.0, 2.5])
        assert known[0]
        assert not isinstance(phi, pr.Labels) or not known[1:].any()
