"""Cut-off episodes that end in states without an equation: what is given up, and that it is counted."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import policyrisk as pr
from policyrisk.data import batches
from policyrisk.errors import GivenUpWarning
from policyrisk.lstd.cutoffs import trim
from policyrisk.passes import here
from policyrisk.risk.support import LOST_MOST


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


def test_closed_features_are_given_up_back_to_the_transition_that_led_in():
    """2 and 3 lead to each other alone. 4 leads to 1 in a cut-off episode, and 1 to an end in another one."""
    data = build([([0, 1, 9], True), ([0, 2, 3, 2, 3], False), ([4, 1], False), ([5, 4], False)])
    seen = [(pr.Tabular(6), visits_of([data], 6))]
    cut = trim(here([data[:2], data[2:]]), seen)
    (kept,) = list(cut(data))
    assert cut.transitions == 4
    assert kept.states[:, 0].tolist() == [0, 1, 9, 4, 1, 5, 4]
    assert trim(here(data), seen, discount=0.9).transitions == 0  # there nothing needs to end


def test_one_closed_tile_leaves_the_rest_as_it_is():
    """500 geometric episodes in one tile, and one that is cut off in another, which nobody has left."""
    rng = np.random.default_rng(0)
    ended = build([([0] * (n + 1), True) for n in rng.geometric(0.1, 500).tolist()])
    stuck = build([([0, 1, 1], False)])
    maps = pr.Tabular(2), pr.TileCoding([0], [2], bins=[2]), pr.Tabular(2)
    seconds = None, None, pr.TileCoding([0], [2], bins=[2])
    for phi, second in zip(maps, seconds, strict=True):
        for lam in (0.0, 0.9):
            lstd = pr.LSTD(phi, second, lam=lam)
            risk, without = lstd.fit(pr.Trajectories.concatenate([ended, stuck])), lstd.fit(ended)
            for name in ("mean", "variance", "std"):
                ours, theirs = getattr(risk, name)([0.0, 1.0]), getattr(without, name)([0.0])
                np.testing.assert_allclose(ours, [theirs[0], np.nan], rtol=1e-12)
            np.testing.assert_allclose(
                risk.interval([0.0], of="std"), without.interval([0.0], of="std"), rtol=1e-9
            )
            assert (risk.provenance.given_up, risk.provenance.biased) == (2, 0)


def clock(episodes, end, most, seed=0):
    """Geometric lengths, at most ``most`` steps; the state is the step."""
    lengths = np.random.default_rng(seed).geometric(end, episodes)
    kept = np.minimum(lengths, most)
    states = np.concatenate([np.arange(n + 1) for n in kept])
    return pr.Trajectories(states, np.ones(kept.sum()), kept, lengths <= most)


@pytest.mark.parametrize("lam", [0.0, 0.9, 1.0])
def test_estimates_that_rest_on_what_was_given_up_are_nan(lam):
    """Every episode that reaches step 10 is cut off there, so that step 9 seems to end always."""
    with pytest.warns(GivenUpWarning, match="more than 5%"):
        risk = pr.LSTD(pr.Tabular(12), lam=lam).fit(clock(3000, end=0.1, most=10))
    assert risk.provenance.biased == risk.provenance.transitions
    x = np.arange(11)
    for estimates in (risk.mean(x), risk.variance(x), risk.interval(x, of="variance")):
        assert np.isnan(estimates).all()
    assert not risk.visited(x).any()


def test_few_given_up_transitions_cost_only_what_rests_on_them():
    """From step n, visits_9/visits_n episodes reach step 9; cut_off/(visits_9 − cut_off) gave up."""
    data = clock(20000, end=0.5, most=10)
    cut_off = int((~data.terminated).sum())
    assert cut_off > 5
    with pytest.warns(GivenUpWarning):
        risk = pr.LSTD(pr.Tabular(12), lam=0.7).fit(data)
    assert risk.provenance.given_up == cut_off
    visits = np.bincount(data.states[data.visited_rows, 0], minlength=11)
    lost = visits[9] / visits[:10] * cut_off / (visits[9] - cut_off)
    np.testing.assert_allclose(risk.support.lost[:10], lost, rtol=1e-9)
    np.testing.assert_array_equal(risk.visited(np.arange(10)), lost < LOST_MOST)
    assert abs(risk.mean([0])[0] - 2.0) < 4 * risk.standard_error([0], of="mean")[0]


@pytest.mark.parametrize("discount", [1.0, 0.9])
@pytest.mark.parametrize("lam", [0.0, 0.6])
def test_what_is_lost_is_the_weight_of_the_transitions_given_up(lam, discount):
    """J − J̃ = φᵀ A⁻¹ Σ z_T δ_T, where J is what comes out if the transition ends the episode instead."""
    known = pr.domains.walk(n=8, p=0.6).sample(0, episodes=400, seed=3)
    lstd, x = pr.LSTD(pr.Tabular(9), lam=lam, discount=discount), np.arange(8)
    risk, ended = (
        lstd.fit(pr.Trajectories.concatenate([known, build([([2, 3, 8], end)])])) for end in (False, True)
    )
    assert (risk.provenance.given_up, ended.provenance.given_up) == (1, 0)
    J, J_ended = risk.mean(x), ended.mean(x)
    delta = 1.0 - J_ended[3]
    np.testing.assert_allclose(risk.support.lost[:8] * delta, J_ended - J, rtol=1e-6)


def test_what_is_lost_of_each_map_is_by_its_own_traces():
    """A⁻¹ z_T and C⁻¹ y_T, step by step: a trace of φ_M decays by λγ²."""
    known, lam, gamma = pr.domains.walk(n=8, p=0.6).sample(0, episodes=400, seed=3), 0.6, 0.8
    data = pr.Trajectories.concatenate([known, build([([2, 3, 8], False)])])
    risk = pr.LSTD(pr.Tabular(9), pr.Tabular(10), lam=lam, discount=gamma).fit(data)
    for support, decay in ((risk.support, gamma), (risk.second_support, gamma**2)):
        matrix = np.zeros((8, 8))
        for k in range(len(data)):
            path, trace = data[k].states[:, 0].astype(int), np.zeros(8)
            for x, y in pairwise(path):
                trace = lam * decay * trace + np.eye(8)[x]
                if k < 400 or y < 8:  # else it is given up
                    matrix += np.outer(trace, np.eye(8)[x] - (decay * np.eye(8)[y] if y < 8 else 0.0))
        np.testing.assert_allclose(support.lost[:8], np.linalg.solve(matrix, trace), rtol=1e-9)
