"""MomentEquations: a monoid, and solved with redundant, unvisited and singular features as promised."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import policyrisk as pr
from policyrisk.equations import MomentEquations
from policyrisk.equations.systems import DenseSystem
from policyrisk.errors import (
    ImproperPolicyError,
    InvalidInputError,
    MismatchError,
    SingularSystemError,
    UnvisitedError,
)

PHI = pr.Polynomial(1, low=[0], high=[4])
PSI = pr.Polynomial(2, low=[0], high=[4])
PARTS = [pr.LSTD(PHI, PSI, lam=0.5).exact_equations(pr.domains.walk(5), start) for start in range(5)]
NAMES = ("A", "b", "C", "D", "e", "gram", "mean_gram", "visits", "second_visits")


def assert_same(left, right):
    for name in NAMES:
        np.testing.assert_allclose(getattr(left, name), getattr(right, name), rtol=1e-12, atol=1e-12)
    assert (left.episodes, left.terminated) == (right.episodes, right.terminated)
    assert left.transitions == pytest.approx(right.transitions)


@given(order=st.permutations(range(5)), cut=st.integers(0, 5), empties=st.integers(0, 2))
@settings(max_examples=30, deadline=None)
def test_equations_are_a_commutative_monoid(order, cut, empties):
    empty = MomentEquations.empty(PHI, PSI, lam=0.5)
    parts = [PARTS[i] for i in order]
    left = sum(parts[:cut] + [empty] * empties, start=empty)
    right = sum(parts[cut:], start=empty)
    assert_same(left + right, sum(PARTS))
    assert_same(right + left, sum(PARTS))
    assert_same(PARTS[0] + empty, PARTS[0])


def test_sharing_survives_addition():
    lstd = pr.LSTD(PHI, lam=0.5)
    a, b = (lstd.exact_equations(pr.domains.walk(5), start) for start in (0, 1))
    both = a + b
    assert both.C is both.A
    assert both.gram is both.mean_gram
    assert (MomentEquations.empty(PHI, lam=0.5) + a).shared
    assert not (PARTS[0] + PARTS[1]).shared
    np.testing.assert_allclose((PARTS[0] + PARTS[1]).C, PARTS[0].C + PARTS[1].C)


@pytest.mark.parametrize(
    "other",
    [
        MomentEquations.empty(PHI, PSI, lam=0.6),
        MomentEquations.empty(PHI, PSI, lam=0.5, discount=0.9),
        MomentEquations.empty(PSI, PSI, lam=0.5),
        MomentEquations.empty(PHI, PHI, lam=0.5),
    ],
)
def test_equations_that_do_not_match_do_not_add(other):
    with pytest.raises(MismatchError, match="must agree on"):
        PARTS[0] + other


def test_adding_something_else_is_a_type_error():
    with pytest.raises(TypeError):
        PARTS[0] + 1


def test_ridge_acts_on_episode_means():
    equations = PARTS[0] + PARTS[1] + PARTS[2]
    weights = equations.solve(ridge=0.3)
    A, b, C = equations.A / 3, equations.b / 3, equations.C / 3
    w_mean = np.linalg.solve(A + 0.3 * np.eye(2), b)
    np.testing.assert_allclose(weights.mean, w_mean, rtol=1e-12)
    d = (equations.e + equations.D @ w_mean) / 3
    np.testing.assert_allclose(weights.second, np.linalg.solve(C + 0.3 * np.eye(3), d), rtol=1e-12)


def test_no_episode_and_no_end_are_named():
    empty = MomentEquations.empty(PHI, PSI, lam=0.5)
    with pytest.raises(InvalidInputError, match="at least one episode"):
        empty.solve()
    from dataclasses import replace

    with pytest.raises(ImproperPolicyError, match="Assumption 1"):
        replace(PARTS[0], terminated=0).solve()


# the linear system below


def random_system(seed, size=6):
    rng = np.random.default_rng(seed)
    phi = rng.normal(size=(50, size))
    gram = phi.T @ phi
    skew = rng.normal(size=(size, size))
    return gram + (skew - skew.T), gram, rng.normal(size=size)


def test_regular_system():
    A, gram, b = random_system(0)
    system = DenseSystem(A, gram, np.ones(6), ridge=0.0, name="A")
    np.testing.assert_allclose(system.solve(b), np.linalg.solve(A, b))
    many = np.column_stack([b, 2 * b])
    np.testing.assert_allclose(system.solve(many)[:, 1], 2 * system.solve(b))
    assert (system.rank, system.redundant) == (6, 0)


@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e9])
def test_redundant_features_get_minimum_norm_weights(scale):
    """Columns of Φ that repeat others: same estimates, and no smaller weights give them."""
    rng = np.random.default_rng(1)
    phi = rng.normal(size=(50, 4))
    S = np.array([[1, 0, 0, 0, 1, 0], [0, 1, 0, 0, 1, 0], [0, 0, 1, 0, 0, scale], [0, 0, 0, 1, 0, 0]])
    skew = rng.normal(size=(4, 4))
    small = phi.T @ phi + skew - skew.T
    beta = rng.normal(size=4)
    A, gram, b = S.T @ small @ S, S.T @ (phi.T @ phi) @ S, S.T @ beta
    system = DenseSystem(A, gram, np.ones(6), ridge=0.0, name="A")
    assert (system.rank, system.redundant) == (4, 2)
    w = system.solve(b)
    np.testing.assert_allclose(S @ w, np.linalg.solve(small, beta), rtol=1e-8)
    null = np.linalg.svd(S)[2][4:]
    np.testing.assert_allclose(null @ w, 0, atol=1e-9 * np.abs(w).max())
    t = np.linalg.solve(system.reduced, np.asarray(system.restrict(b[None, :])).ravel())
    np.testing.assert_allclose(system.lift(t), w, rtol=1e-8)


def test_inconsistent_right_hand_side_names_rank_assumption_and_remedy():
    A = np.ones((2, 2))
    system = DenseSystem(A, A, np.ones(2), ridge=0.0, name="A")
    with pytest.raises(SingularSystemError, match=r"rank 1 of 2.*Assumption 3.*ridge"):
        system.solve(np.array([1.0, 2.0]))


def test_what_single_episodes_leave_along_redundant_directions_is_no_error_in_error_bars():
    A = np.ones((2, 2))
    system = DenseSystem(A, A, np.ones(2), ridge=0.0, name="A")
    np.testing.assert_allclose(system.solve_kept(np.array([1.0, 1.0 + 1e-6])), 0.5, rtol=1e-5)


def test_singular_matrix_of_independent_features_is_an_error():
    """A is singular though no feature is redundant: cut-off episodes can do that."""
    with pytest.raises(SingularSystemError, match=r"Assumption 3.*ridge"):
        DenseSystem(np.ones((2, 2)), np.eye(2), np.ones(2), ridge=0.0, name="A")


def test_direction_that_only_bootstraps_is_an_error():
    """No visited state sees the second direction, yet A does: it was only bootstrapped from."""
    gram = np.array([[1.0, 1.0], [1.0, 1.0]])
    A = gram - np.array([[0.5, 0.2], [0.5, 0.2]])
    with pytest.raises(UnvisitedError, match="Assumption 4"):
        DenseSystem(A, gram, np.ones(2), ridge=0.0, name="A")


@pytest.mark.parametrize("degree", [10, 11, 12, 13, 16])
def test_nearly_dependent_features_are_an_error_and_not_redundant(degree):
    """Monomials of a high degree are independent on 30 states, though the Gram matrix cannot tell."""
    phi = pr.Polynomial(degree, low=[0], high=[29])
    with pytest.raises(SingularSystemError, match=rf"numerical rank \d+ of {degree + 1} features"):
        pr.LSTD(phi, lam=0.95).fit_exact(pr.domains.walk(30), 0)


@pytest.mark.parametrize("gap", [1e-8, 1e-9, 1e-10, 1e-11])
def test_two_features_that_all_but_agree_are_an_error(gap):
    with pytest.raises(SingularSystemError, match="numerical rank 1 of 2 features"):
        pr.LSTD(lambda s: np.hstack([np.ones((len(s), 1)), 1 + gap * s])).fit_exact(pr.domains.walk(30), 0)


@pytest.mark.parametrize("degree", [2, 4, 7])
@pytest.mark.parametrize("variance", ["second-moment", "direct"])
def test_a_circle_in_single_precision_is_what_it_is_in_double(degree, variance):
    """cos² + sin² = 1 to 1e-7 only: noise in the Gram matrix, which is neither 0 nor anything to fit."""
    rng = np.random.default_rng(0)
    angles = rng.uniform(-np.pi, np.pi, (200, 1)) + np.cumsum(rng.normal(0, 0.3, (200, 41)), axis=1)
    states = np.stack([np.cos(angles), np.sin(angles)], axis=-1).reshape(-1, 2)
    rewards = (np.cos(angles[:, :-1]) + 0.1 * rng.normal(size=(200, 40))).ravel()
    lstd = pr.LSTD(pr.Polynomial(degree, [-1, -1], [1, 1]), discount=0.95, variance=variance)
    single, stored, double = (
        lstd.fit(pr.Trajectories(x, rewards, [40] * 200, [True] * 200))
        for x in (states.astype(np.float32), states.astype(np.float32).astype(np.float64), states)
    )
    redundant = (degree + 1) * (degree + 2) // 2 - (2 * degree + 1)  # what is left: cos kθ and sin kθ
    x = states[:: 41 * 20]
    for risk in (single, stored):
        assert (risk.provenance.redundant, double.provenance.redundant) == (redundant, redundant)
        np.testing.assert_allclose(risk.mean(x), double.mean(x), rtol=1e-5)
        np.testing.assert_allclose(risk.variance(x), double.variance(x), rtol=1e-5)
        np.testing.assert_allclose(
            risk.standard_error(x, of="variance"), double.standard_error(x, of="variance"), rtol=1e-4
        )


def test_unvisited_features_are_left_out_or_refused():
    A, gram, b = random_system(3)
    A[2] = 0
    A[:, 2] = 0
    visits = np.array([1, 1, 0, 1, 1, 1])
    w = DenseSystem(A, gram, visits, ridge=0.0, name="A").solve(b)
    keep = [0, 1, 3, 4, 5]
    np.testing.assert_allclose(w[keep], np.linalg.solve(A[np.ix_(keep, keep)], b[keep]))
    assert w[2] == 0
    A[0, 2] = -0.1
    with pytest.raises(UnvisitedError, match=r"no transition started in.*: 2 \(Assumption 4"):
        DenseSystem(A, gram, visits, ridge=0.0, name="A")


def test_badly_scaled_features_are_no_problem():
    x = np.arange(1, 31.0)
    phi = x[:, None] ** np.arange(5)
    gram = phi.T @ phi
    system = DenseSystem(gram, gram, np.ones(5), ridge=0.0, name="A")
    w = np.array([3.0, -2.0, 0.5, 1e-2, -1e-3])
    np.testing.assert_allclose(system.solve(gram @ w), w, rtol=1e-4)
    assert system.condition < 1e9
