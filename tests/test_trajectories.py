import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policyrisk.errors import InvalidInputError, MismatchError
from policyrisk.trajectories import Trajectories, batches, check_reiterable


def make(lengths, seed=0, dim=2):
    rng = np.random.default_rng(seed)
    total = sum(lengths)
    return Trajectories(
        rng.normal(size=(total + len(lengths), dim)),
        rng.normal(size=total),
        np.array(lengths, dtype=np.int64),
        rng.random(len(lengths)) < 0.5,
    )


@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=8), discount=st.floats(0.1, 1.0))
@settings(max_examples=40, deadline=None)
def test_returns_to_go_are_the_discounted_sums(lengths, discount):
    data = make(lengths)
    t, expected = 0, []
    for length in lengths:
        rewards = data.rewards[t : t + length]
        t += length
        expected += [sum(discount ** (u - s) * rewards[u] for u in range(s, length)) for s in range(length)]
    np.testing.assert_allclose(data.returns_to_go(discount), expected, rtol=1e-12, atol=1e-12)
    first = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    np.testing.assert_allclose(data.returns(discount), np.array(expected)[first], atol=1e-12)


@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=8), cut=st.integers(0, 8))
@settings(max_examples=40, deadline=None)
def test_slices_concatenate_to_the_whole(lengths, cut):
    data = make(lengths)
    again = Trajectories.concatenate([data[:cut], data[cut:]])
    for name in ("states", "rewards", "lengths", "terminated"):
        np.testing.assert_array_equal(getattr(again, name), getattr(data, name))
    episodes = list(data)
    assert [len(episode.rewards) for episode in episodes] == lengths
    np.testing.assert_array_equal(np.concatenate([e.states for e in episodes]), data.states)


def test_indexing():
    data = make([3, 1, 4, 2])
    np.testing.assert_array_equal(data[-1].states, data[3].states)
    np.testing.assert_array_equal(data[[2, 0]].lengths, [4, 3])
    np.testing.assert_array_equal(data[[2, 0]].rewards, np.concatenate([data.rewards[4:8], data.rewards[:3]]))
    np.testing.assert_array_equal(data[::2].lengths, [3, 4])
    np.testing.assert_array_equal(data[np.array([False, True, False, True])].lengths, [1, 2])
    assert len(data[2:2]) == 0
    with pytest.raises(IndexError):
        data[4]


@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=8), seed=st.integers(0, 100))
@settings(max_examples=40, deadline=None)
def test_chosen_episodes_are_those_taken_one_by_one(lengths, seed):
    data, rng = make(lengths), np.random.default_rng(seed)
    index, mask = rng.integers(-len(lengths), len(lengths), 5), rng.random(len(lengths)) < 0.5
    for chosen, numbers in (
        (index, index),
        (mask, np.flatnonzero(mask)),
        (slice(None, None, -1), range(len(lengths))[::-1]),
    ):
        found, expected = data[chosen], [data[int(k)] for k in numbers]
        assert len(found) == len(expected)
        for name in ("states", "rewards", "lengths", "terminated"):
            parts = [getattr(data[:0], name), *(getattr(episode, name) for episode in expected)]
            np.testing.assert_array_equal(getattr(found, name), np.concatenate(parts))
            assert not getattr(found, name).flags.writeable


def test_rows():
    data = make([2, 1])
    assert data.visited_rows.tolist() == [0, 1, 3]
    assert data.final_rows.tolist() == [2, 4]
    np.testing.assert_array_equal(data.starts(), data.states[[0, 3]])


def test_records_are_immutable_and_do_not_follow_the_callers_arrays():
    rewards = np.array([1.0, 2.0])
    data = Trajectories([[0], [1], [2]], rewards, [2], [True])
    rewards[0] = 9.0
    assert data.rewards[0] == 1.0
    with pytest.raises(ValueError, match="read-only"):
        data.rewards[0] = 3.0
    with pytest.raises(ValueError, match="read-only"):
        data[0:1].states[0] = 3
    with pytest.raises(AttributeError):
        data.rewards = rewards


def test_integer_states_stay_integers():
    assert Trajectories([[0], [1]], [1.0], [1], [True]).states.dtype == np.int64
    assert Trajectories([0, 1], [1.0], [1], [True]).states.shape == (2, 1)
    assert Trajectories([[0.5], [1]], [1.0], [1], [True]).states.dtype == np.float64


def test_sources():
    data = make([2, 1])
    assert [len(batch) for batch in batches(data)] == [2]
    assert [len(batch) for batch in batches([data, data[:1]])] == [2, 1]
    with pytest.raises(InvalidInputError, match="yield Trajectories"):
        list(batches([1]))
    with pytest.raises(InvalidInputError, match="Trajectories or an iterable"):
        list(batches(3))
    with pytest.raises(InvalidInputError, match="one-shot"):
        check_reiterable(iter([data]))
    check_reiterable([data])


def test_parts_of_different_dimension_do_not_mix():
    with pytest.raises(MismatchError, match="dimension"):
        Trajectories.concatenate([make([1], dim=1), make([1], dim=2)])
