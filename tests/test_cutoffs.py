"""Cut-off episodes that end in states without an equation: what is given up, and that it is counted."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import policyrisk as pr
from policyrisk.lstd.cutoffs import trim
from policyrisk.passes.fold import here
from policyrisk.trajectories import batches


def visits_of(source, size):
    visits = np.zeros(size)
    for batch in source:
        np.add.at(visits, batch.states[batch.visited_rows, 0], 1)
    return visits


def build(episodes):
    """Episodes as (states with the final one, terminated)."""
    states = np.concatenate([np.array(x) for x, _ in episodes])
    lengths = np.array([len(x) - 1 for x, _ in episodes])
    return pr.Trajectories(states, np.ones(lengths.sum()), lengths, np.array([end for _, end in episodes]))


def test_last_transition_is_given_up_where_its_end_is_unvisited():
    data = build([([0, 1, 2], True), ([0, 1, 3], False), ([1, 0], False)])
    cut = trim(here(data), [(pr.Tabular(4), visits_of([data], 4))])
    assert cut.transitions == 1
    (kept,) = list(cut(data))
    assert kept.lengths.tolist() == [2, 1, 1]
    assert kept.states[:, 0].tolist() == [0, 1, 2, 0, 1, 1, 0]
    assert kept.terminated.tolist() == [True, False, False]


def test_giving_up_goes_on_until_the_end_is_known():
    """3 is seen only from 2, and 2 only on the way to 3: both transitions go, and a lone episode vanishes."""
    data = build([([0, 1], True), ([0, 2, 3], False), ([2, 3], False), ([3, 0], True)])
    without_last = data[:3]
    cut = trim(here(without_last), [(pr.Tabular(4), visits_of([without_last], 4))])
    (kept,) = list(cut(without_last))
    assert cut.transitions == 3
    assert len(kept) == 1
    assert kept.states[:, 0].tolist() == [0, 1]
    assert trim(here(data), [(pr.Tabular(4), visits_of([data], 4))]).transitions == 0


@given(seed=st.integers(0, 1000), cut=st.integers(1, 5))
@settings(max_examples=50, deadline=None)
def test_no_bootstrapping_from_unvisited_states_is_left_and_nothing_is_given_up_needlessly(seed, cut):
    rng = np.random.default_rng(seed)
    episodes = []
    for _ in range(6):
        x = rng.integers(0, 8, size=rng.integers(2, 5)).tolist()
        episodes.append((x, bool(rng.random() < 0.4)))
    data = build(episodes)
    source = [data[:cut], data[cut:]]
    cut = trim(here(source), [(pr.Tabular(8), visits_of(source, 8))])
    trimmed = list(batches(cut(source)))
    left = visits_of(trimmed, 8)
    for batch in trimmed:
        ends = batch.states[batch.final_rows[~batch.terminated], 0]
        assert (left[ends] > 0).all()
    total = sum(batch.transitions for batch in trimmed)
    assert total + cut.transitions == data.transitions
    if cut.transitions == 0:
        assert (visits_of(source, 8)[data.states[data.final_rows[~data.terminated], 0]] > 0).all()
