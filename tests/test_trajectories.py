import pickle
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policyrisk.data import (
    ACTION_COLUMNS,
    COLUMNS,
    Shortened,
    Trajectories,
    batches,
    check_reiterable,
    gathered,
    pieces,
)
from policyrisk.errors import EmptyDataError, InvalidInputError, MismatchError


def make(lengths, seed=0, dim=2, actions=None):
    """``actions`` None for no actions, 0 for whole ones and k for k coordinates, with propensities."""
    rng = np.random.default_rng(seed)
    total = sum(lengths)
    columns = (
        rng.normal(size=(total + len(lengths), dim)),
        rng.normal(size=total),
        np.array(lengths, dtype=np.int64),
        rng.random(len(lengths)) < 0.5,
    )
    if actions is None:
        return Trajectories(*columns)
    taken = rng.normal(size=(total, actions)) if actions else rng.integers(-2, 9, total)
    return Trajectories(*columns, taken, 1.0 - rng.random(total))


def assert_same(found, expected):
    for name in (*COLUMNS, *ACTION_COLUMNS):
        one, two = getattr(found, name), getattr(expected, name)
        assert (one is None) == (two is None), name
        if one is not None:
            assert one.dtype == two.dtype, name
            assert not one.flags.writeable, name
            np.testing.assert_array_equal(one, two)


some_lengths = st.lists(st.integers(1, 6), min_size=1, max_size=8)
some_actions = st.sampled_from([None, 0, 1, 3])


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


@given(lengths=some_lengths, cut=st.integers(0, 8), actions=some_actions)
@settings(max_examples=40, deadline=None)
def test_slices_concatenate_to_the_whole(lengths, cut, actions):
    data = make(lengths, actions=actions)
    assert_same(Trajectories.concatenate([data[:cut], data[cut:]]), data)
    assert_same(Trajectories.concatenate(data), data)
    assert_same(Trajectories.concatenate(pieces(data, 3)), data)
    assert_same(Trajectories.concatenate(gathered([data[:cut], data[cut:]], 2, 4)), data)
    assert_same(pickle.loads(pickle.dumps(data))[:], data)
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


@given(lengths=some_lengths, seed=st.integers(0, 100), actions=some_actions)
@settings(max_examples=40, deadline=None)
def test_shortened_episodes_keep_their_first_transitions(lengths, seed, actions):
    data = make(lengths, actions=actions)
    left = np.random.default_rng(seed).integers(0, np.array(lengths) + 1)
    (found,) = Shortened([data], lambda batch: left)
    expected = [
        Trajectories(
            episode.states[: t + 1],
            *(episode.rewards[:t], [t], episode.terminated),
            *(None if column is None else column[:t] for column in (episode.actions, episode.propensities)),
        )
        for episode, t in zip(data, left.tolist(), strict=True)
        if t
    ]
    assert_same(found, Trajectories.concatenate([data[:0], *expected]))


@given(lengths=some_lengths, seed=st.integers(0, 100), actions=some_actions)
@settings(max_examples=40, deadline=None)
def test_chosen_episodes_are_those_taken_one_by_one(lengths, seed, actions):
    data, rng = make(lengths, actions=actions), np.random.default_rng(seed)
    index, mask = rng.integers(-len(lengths), len(lengths), 5), rng.random(len(lengths)) < 0.5
    for chosen, numbers in (
        (index, index),
        (mask, np.flatnonzero(mask)),
        (slice(None, None, -1), range(len(lengths))[::-1]),
    ):
        found, expected = data[chosen], [data[int(k)] for k in numbers]
        assert_same(found, Trajectories.concatenate([data[:0], *expected]))


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


def one(**columns):
    """Two transitions."""
    return Trajectories([[0], [1], [2]], [1.0, 1.0], [2], [True], **columns)


def test_actions_are_whole_numbers_or_coordinates():
    assert one().actions is None
    assert one().propensities is None
    for given_ in ([1, 0], [1.0, 0.0], [True, False], np.array([1, 0], dtype=np.uint8)):
        assert one(actions=given_).actions.dtype == np.int64
        assert one(actions=given_).actions.tolist() == [1, 0]
    box = one(actions=[[1], [0]], propensities=[1, 0.5])
    assert box.actions.dtype == np.float64
    assert box.actions.shape == (2, 1)
    assert repr(box).endswith("dim 1, actions of dim 1, propensities)")
    assert repr(one(actions=[1, 0])).endswith("dim 1, actions)")
    assert repr(one()).endswith("dim 1)")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"actions": [1, 0, 0]}, "actions must have shape (2,), or (2, k) for continuous ones, got (3,)"),
        ({"actions": 1}, "got ()"),
        ({"actions": np.zeros((2, 0))}, "got (2, 0)"),
        ({"actions": np.zeros((2, 1, 1))}, "got (2, 1, 1)"),
        ({"actions": [0.5, 1.0]}, "must be whole numbers, got 0.5 at index 0; pass continuous actions in"),
        ({"actions": [1.0, np.nan]}, "whole numbers, got nan at index 1"),
        ({"actions": [np.inf, 1.0]}, "whole numbers, got inf"),
        ({"actions": [1e300, 1.0]}, "whole numbers, got 1e+300"),
        ({"actions": [[0.5], [np.nan]]}, "actions must be finite, got nan at index (1, 0)"),
        ({"actions": ["left", "right"]}, "actions must be numbers"),
        ({"propensities": [0.5, 0.5]}, "propensities must come with the actions"),
        ({"actions": [1, 0], "propensities": [0.5]}, "propensities must have shape (2,), got (1,)"),
        ({"actions": [1, 0], "propensities": [0.5, 0.0]}, "must be in (0, 1], got 0.0 at index 1"),
        ({"actions": [1, 0], "propensities": [1.5, 0.5]}, "must be in (0, 1], got 1.5 at index 0"),
        ({"actions": [1, 0], "propensities": [np.nan, 0.5]}, "propensities must be finite, got nan"),
    ],
)
def test_actions_and_propensities_that_cannot_be(columns, message):
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        one(**columns)


def test_parts_carry_the_same_of_actions_and_propensities():
    bare, taken = one(), one(actions=[1, 0])
    known, box = one(actions=[1, 0], propensities=[0.5, 0.5]), one(actions=[[1], [0]])
    for parts in ((bare, taken), (taken, known), (taken, box), (box, one(actions=[[1, 2], [0, 2]]))):
        with pytest.raises(MismatchError, match="parts must agree on their actions"):
            Trajectories.concatenate(parts)


def test_what_a_stream_says_itself_is_kept():
    class Broken:
        def __iter__(self):
            raise EmptyDataError("the folder must hold files, got none; look there")

    with pytest.raises(EmptyDataError, match="the folder must hold files"):
        next(batches(Broken()))
