"""Surveys of recorded episodes against plain NumPy, for records and for streams."""

import itertools

import numpy as np
import pytest

import policyrisk as pr
from policyrisk._core.records import pack, unpack
from policyrisk.errors import InvalidInputError, MismatchError
from policyrisk.passes import survey as survey_module
from policyrisk.passes.survey import FEWEST, Survey, SurveyPass, SurveySums


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 9, 200)
    states = rng.normal(size=(lengths.sum() + 200, 3))
    states[:, 2] = np.floor(10 * states[:, 2])
    return pr.Trajectories(states, rng.normal(size=lengths.sum()), lengths, rng.random(200) < 0.7)


def parts(data, *cuts):
    ends = [0, *cuts, len(data)]
    return [data[a:b] for a, b in itertools.pairwise(ends)]


@pytest.mark.parametrize("cuts", [(), (1, 50, 199)])
def test_counts_extent_and_samples(data, cuts):
    survey = Survey.of(parts(data, *cuts), seed=1)
    visited = np.concatenate([episode.states[:-1] for episode in data])
    ends = np.concatenate([episode.states[-1:] for episode in data if not episode.terminated[0]])
    assert survey.episodes == 200
    assert survey.terminated == data.terminated.sum() == 200 - survey.cut_off
    assert survey.transitions == data.rewards.size
    assert survey.longest == data.lengths.max()
    np.testing.assert_array_equal(survey.low, visited.min(axis=0))
    np.testing.assert_array_equal(survey.high, visited.max(axis=0))
    np.testing.assert_array_equal(survey.reached, np.concatenate([visited, ends]).max(axis=0))
    assert survey.whole.tolist() == [False, False, True]
    np.testing.assert_array_equal(survey.starts, data.starts())
    np.testing.assert_array_equal(survey.visited, visited)


def test_ends_of_cut_off_episodes_reach_further_and_may_not_be_whole():
    data = pr.Trajectories([[0.0], [1.0], [7.5], [0.0], [99.0]], [1.0, 1.0, 1.0], [2, 1], [False, True])
    survey = Survey.of(data)
    assert survey.high.tolist() == [1.0]
    assert survey.reached.tolist() == [7.5]
    assert survey.whole.tolist() == [False]


def test_samples_are_bounded_and_uniform(data, monkeypatch):
    monkeypatch.setattr(survey_module, "STARTS", 40)
    monkeypatch.setattr(survey_module, "VISITED", 60)
    counts = np.zeros(200)
    for seed in range(500):
        starts = Survey.of(parts(data, 30, 160), seed=seed).starts
        assert len(starts) == 40
        counts += np.isin(data.starts()[:, 0], starts[:, 0])
    # Each is kept with probability 1/5: the binomial's z-scores over 200 starts.
    z = (counts - 100) / np.sqrt(500 * 0.2 * 0.8)
    assert np.abs(z).max() < 4.5
    assert abs(z[:30].mean()) < 4 / np.sqrt(30)


def test_arrays_and_back(data):
    survey = Survey.of(data, seed=1)
    arrays = {}
    again = unpack(pack(survey, arrays), arrays)
    for name, value in vars(survey).items():
        np.testing.assert_equal(getattr(again, name), value)


@pytest.mark.parametrize("cuts", [(), (1, 50, 199)])
def test_distinct_values_of_whole_coordinates(data, cuts, monkeypatch):
    visited = [episode.states[:-1] if episode.terminated[0] else episode.states for episode in data]
    want = np.unique(np.concatenate(visited)[:, 2])
    survey = Survey.of(parts(data, *cuts))
    assert survey.values[:2] == (None, None)
    np.testing.assert_array_equal(survey.values[2], want)
    monkeypatch.setattr(survey_module, "VALUES", want.size)
    np.testing.assert_array_equal(Survey.of(parts(data, *cuts)).values[2], want)
    monkeypatch.setattr(survey_module, "VALUES", want.size - 1)
    assert Survey.of(parts(data, *cuts)).values[2] is None


def test_distinct_values_however_far_apart():
    data = pr.Trajectories([[-3], [10**12], [5], [-3]], [1.0, 1.0, 1.0], [3], [False])
    assert Survey.of(data).values[0].tolist() == [-3.0, 5.0, 1e12]


def test_refusals(data):
    with pytest.raises(InvalidInputError, match="at least one episode"):
        Survey.of([])
    with pytest.raises(MismatchError, match="3 and 1"):
        Survey.of([data, pr.Trajectories([[0], [1]], [1.0], [1], [True])])


def sampled(source, episodes, transitions, seed):
    return SurveyPass(seed, (episodes, transitions))(source, 0).sample()


def ids(sample):
    return [float(part.states[0, 0]) for part in sample]


def test_a_small_source_is_sampled_whole_and_in_order(data):
    sample = sampled(parts(data, 30), 10_000, 10**6, seed=0)
    np.testing.assert_array_equal(sample.states, data.states)
    np.testing.assert_array_equal(sample.rewards, data.rewards)


@pytest.mark.parametrize(("episodes", "transitions"), [(50, 10**6), (10**6, 150)])
def test_a_large_source_is_sampled_within_bounds(data, episodes, transitions):
    data = data[np.argsort(-data.lengths)]  # short ones last: those that would still fit where others did not
    for seed in range(20):
        samples = []
        for cuts in ((), (3, 100), range(1, 200)):
            sample = sampled(parts(data, *cuts), episodes, transitions, seed=seed)
            assert len(sample) <= episodes
            assert sample.transitions <= transitions
            assert len(sample) == episodes or sample.transitions > transitions - data.lengths.max()
            samples.append(ids(sample))
        # The same episodes however the source is cut, since the order of the keys decides.
        assert samples[1] == samples[2] == samples[0]


def test_sampled_episodes_are_uniform(data):
    counts = dict.fromkeys(ids(data), 0)
    for seed in range(400):
        for key in ids(sampled(parts(data, 20, 90), 50, 10**6, seed=seed)):
            counts[key] += 1
    z = (np.array(list(counts.values())) - 100) / np.sqrt(400 * 0.25 * 0.75)
    assert np.abs(z).max() < 4.5


def test_a_few_episodes_are_kept_whatever_their_length(data):
    assert len(sampled(data, 50, 1, seed=0)) == FEWEST


def merged(pieces, seed, bounds=None):
    """The survey's sums as several processes take them, added in pairs from the right."""
    sums = [SurveyPass(seed, bounds)(piece, number) for number, piece in enumerate(pieces)]
    while len(sums) > 1:
        *sums, one, other = sums
        sums.append(one + other)
    return sums[0]


def test_one_part_has_the_bits_of_the_whole(data, monkeypatch):
    monkeypatch.setattr(survey_module, "STARTS", 40)
    monkeypatch.setattr(survey_module, "VISITED", 60)
    sums = SurveyPass(3, (50, 200))(parts(data, 20, 90), 0)
    whole = Survey.of(parts(data, 20, 90), seed=3)
    for name, value in vars(sums.survey()).items():
        np.testing.assert_equal(value, getattr(whole, name))
    assert ids(sums.sample()) == ids(sampled(data, 50, 200, seed=3))


@pytest.mark.parametrize("empty", [0, 1, 3])
def test_parts_add_up_to_the_whole(data, empty):
    """Samples are as large as the data, and are all of them in order; a part may be empty."""
    pieces = parts(data, 1, 50, 199)
    pieces.insert(empty, [])
    sums, whole = merged(pieces, 1, (10_000, 10**6)), Survey.of(data)
    for name, value in vars(sums.survey()).items():
        np.testing.assert_equal(value, getattr(whole, name), strict=not isinstance(value, tuple))
    for name in ("states", "rewards", "lengths", "terminated"):
        np.testing.assert_array_equal(getattr(sums.sample(), name), getattr(data, name))


def test_sums_of_nothing_are_neutral_and_no_survey(data):
    sums = SurveyPass(0, (50, 100))(data, 1)
    for both in (sums + SurveySums(), SurveySums() + sums):
        assert ids(both.sample()) == ids(sums.sample())
        np.testing.assert_array_equal(both.survey().low, sums.survey().low)
    with pytest.raises(InvalidInputError, match="at least one episode"):
        (SurveySums() + SurveySums()).survey()
    with pytest.raises(MismatchError, match="3 and 1"):
        sums + SurveySums.of(pr.Trajectories([[0], [1]], [1.0], [1], [True]))


def test_samples_of_merged_parts_are_uniform(data, monkeypatch):
    """Parts of very different size, of which the largest alone would fill the samples."""
    monkeypatch.setattr(survey_module, "STARTS", 40)
    monkeypatch.setattr(survey_module, "VISITED", 60)
    visited = np.concatenate([episode.states[:-1] for episode in data])[:, 0]
    starts, states, episodes, runs = np.zeros(200), np.zeros(visited.size), np.zeros(200), 250
    for seed in range(runs):
        sums = merged(parts(data, 5, 35, 160), seed, (50, 10**6))
        survey = sums.survey()
        assert (len(survey.starts), len(survey.visited), len(sums.sample())) == (40, 60, 50)
        kept = np.isin(data.starts()[:, 0], survey.starts[:, 0])
        np.testing.assert_array_equal(survey.starts, data.starts()[kept])  # in their order
        starts += kept
        states += np.isin(visited, survey.visited[:, 0])
        episodes += np.isin(data.starts()[:, 0], ids(sums.sample()))
    for counts, share in ((starts, 0.2), (states, 60 / visited.size), (episodes, 0.25)):
        z = (counts - runs * share) / np.sqrt(runs * share * (1 - share))
        assert np.abs(z).max() < 4.5
        # A part's own total, which is hypergeometric in each run; the binomial's variance is the larger one.
        for part in np.split(z, [5, 35, 160]):
            assert abs(part.sum()) < 4 * np.sqrt(part.size)


def test_merged_sample_is_the_prefix_in_the_order_of_keys(data):
    """Bounds on transitions: what would still fit behind an episode that did not is not taken."""
    data = data[np.argsort(-data.lengths)]
    for seed in range(20):
        pieces = parts(data, 5, 35, 160)
        keys = np.concatenate(
            [
                np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(k,)) if k else seed).random(
                    len(piece)
                )
                for k, piece in enumerate(pieces)
            ]
        )
        order = np.argsort(keys)
        expected = np.sort(order[: np.searchsorted(np.cumsum(data.lengths[order]), 150, side="right")])
        assert ids(merged(pieces, seed, (10**6, 150)).sample()) == ids(data[expected])
