"""Non-negative variance as a constraint: two solvers, one answer."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cache

import daqp
import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as spl
from scipy.optimize import linprog

from policyrisk.equations import active_set, constraint
from policyrisk.equations.constraint import solve_constrained
from policyrisk.equations.problem import equilibrate
from policyrisk.errors import (
    InfeasibleConstraintError,
    InvalidInputError,
    NotUniqueWarning,
    SingularSystemError,
    SolverError,
)

SOLVERS = ["active-set", "projection"]


@dataclass(frozen=True)
class Instance:
    """A constrained problem of exact projected equations."""

    C: np.ndarray
    d: np.ndarray
    H: np.ndarray
    g: np.ndarray
    gram: np.ndarray

    def solve(self, solver="active-set", **options):
        return solve_constrained(self.C, self.d, self.H, self.g, gram=self.gram, solver=solver, **options)

    @property
    def negative(self):
        """The fraction of states whose variance is negative without the constraint."""
        return float((self.H @ np.linalg.solve(self.C, self.d) > self.g).mean())


def resolvent(P, scale, X):
    """(I − scale P)⁻¹ X."""
    if sp.issparse(P):
        return spl.splu(sp.csc_array(sp.eye_array(P.shape[0]) - scale * P)).solve(X)
    return np.linalg.solve(np.eye(len(P)) - scale * P, X)


def equations(P, r, Phi_J, Phi_M, lam, start=None):
    """Sec. 4.3 written out: C, d, H, g and gram of a chain, its rewards and features."""
    n = P.shape[0]
    start = np.full(n, 1 / n) if start is None else start
    q = resolvent(P.T, 1.0, start)
    A = Phi_J.T @ (q[:, None] * resolvent(P, lam, Phi_J - P @ Phi_J))
    w_J = np.linalg.solve(A, Phi_J.T @ (q * resolvent(P, lam, r)))
    C = Phi_M.T @ (q[:, None] * resolvent(P, lam, Phi_M - P @ Phi_M))
    d = Phi_M.T @ (q * resolvent(P, lam, r * (r + 2 * P @ (Phi_J @ w_J))))
    gram = Phi_M.T @ (q[:, None] * Phi_M)
    return Instance(C, d, -Phi_M, -((Phi_J @ w_J) ** 2), gram)


def random_chain(rng, n, successors):
    """Every state goes to a few others and stops with a probability between 5% and 100%."""
    if successors == n:
        P = rng.dirichlet(np.full(n, 0.3), size=n) * rng.uniform(0.0, 0.95, size=(n, 1))
    else:
        rows = np.repeat(np.arange(n), successors)
        columns = np.concatenate([rng.choice(n, successors, replace=False) for _ in range(n)])
        probability = rng.dirichlet(np.ones(successors), size=n) * rng.uniform(0.0, 0.95, size=(n, 1))
        P = sp.csr_array((probability.ravel(), (rows, columns)), shape=(n, n))
    return P, np.abs(rng.standard_t(3, size=n))


def random_features(rng, n, size):
    return np.hstack([np.ones((n, 1)), rng.normal(size=(n, size - 1))])


def drifting_chain(rng, n):
    """Steps of −3, −1, 1 and 4 along a line, mostly forward: long, nearly certain episodes."""
    steps = {-3: 0.05, -1: 0.10, 1: 0.40, 4: 0.45}
    P = sp.lil_array((n, n))
    for i, (step, probability) in itertools.product(range(n), steps.items()):
        if i + step < n:
            P[i, max(i + step, 0)] += probability
    return sp.csr_array(P), np.abs(1 + 0.1 * rng.normal(size=n))


def grid_chain(rng, side):
    """A square that is crossed to the far corner, with a few costly cells."""
    n = side * side
    P = sp.lil_array((n, n))
    moves = {(1, 0): 0.475, (0, 1): 0.475, (-1, 0): 0.025, (0, -1): 0.025}
    for x, y, (dx, dy) in itertools.product(range(side), range(side), moves):
        a, b = (np.clip(x + dx, 0, side - 1), np.clip(y + dy, 0, side - 1))
        if not (x == y == side - 1 and (a, b) == (x, y)):
            P[x * side + y, a * side + b] += moves[dx, dy]
    costly = rng.random(n) < 0.1
    return sp.csr_array(P), -1.0 - 5.0 * costly * rng.exponential(size=n)


def radial_basis(side, centres, width=1.0):
    at = (np.stack(np.divmod(np.arange(side * side), side), axis=1) + 0.5) / side
    axis = (np.arange(centres) + 0.5) / centres
    centre = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    distance = ((at[:, None] - centre) ** 2).sum(axis=-1) * centres**2
    bumps = np.exp(-0.5 * distance / width**2)
    return np.hstack([np.ones((side * side, 1)), bumps[:, 1:]])


@cache
def instance(name, lam):
    rng = np.random.default_rng(0)
    match name:
        case "dense":  # 100 features, 1000 constraints
            P, r = random_chain(rng, 1000, 1000)
            return equations(P, r, random_features(rng, 1000, 100), random_features(rng, 1000, 100), lam)
        case "sparse":
            P, r = random_chain(rng, 1000, 5)
            return equations(P, r, random_features(rng, 1000, 300), random_features(rng, 1000, 100), lam)
        case "large":  # 300 features, 3000 constraints
            P, r = random_chain(rng, 3000, 3)
            return equations(P, r, random_features(rng, 3000, 300), random_features(rng, 3000, 300), lam)
        case "grid":
            P, r = grid_chain(rng, 32)
            return equations(P, r, radial_basis(32, 5), radial_basis(32, 10), lam)
        case "monomials":  # 1, x, x², x³ up to 27000
            P, r = drifting_chain(rng, 1000)
            x = np.linspace(1, 30, 1000)[:, None]
            return equations(P, r, x ** np.arange(2), x ** np.arange(4), lam)
        case "tabular":
            P, r = random_chain(rng, 60, 5)
            poor = random_features(rng, 60, 30)
            return equations(P, 1 + 3 * r, poor, np.eye(60), lam)
    raise KeyError(name)


def paper_chain():
    """N = 30, p = 0.7, rewards −1, from state 1, φ_J = (1, x), φ_M = (1, x, x²), λ = .95."""
    n, p = 30, 0.7
    P = np.diag(np.full(n - 1, p), 1) + np.diag(np.full(n - 1, 1 - p), -1)
    P[0, 0] = 1 - p
    x = np.arange(1.0, n + 1)[:, None]
    return equations(P, -np.ones(n), x ** np.arange(2), x ** np.arange(3), 0.95, np.eye(n)[0])


def assert_optimal(problem, result, tol=1e-9):
    """The optimality conditions, each relative to the terms that it is the difference of."""
    C, d, H, g = problem.C, problem.d, np.asarray(problem.H), problem.g
    w, mu = result.w, result.multipliers
    root = np.linalg.cholesky(problem.gram)
    equation = np.linalg.solve(root, C @ w - d + H.T @ mu)
    assert np.linalg.norm(equation) <= tol * np.linalg.norm(np.linalg.solve(root, d))
    slack = g - H @ w
    size = max(np.abs(g).max(), np.abs(H @ w).max())
    assert slack.min() >= -tol * size
    assert (mu >= 0).all()
    np.testing.assert_array_equal(result.active, np.flatnonzero(mu))
    np.testing.assert_allclose(slack[result.active], 0, atol=tol * size)


def random_small(seed, features, rows, tight=0.3):
    """A positive definite, far from symmetric C; some constraints are tight at one common point."""
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(features, features))
    K = 1.5 * rng.normal(size=(features, features))
    C = root @ root.T / features + 0.1 * np.eye(features) + K - K.T
    H = rng.normal(size=(rows, features))
    g = H @ rng.normal(size=features) + rng.exponential(size=rows) * (rng.random(rows) >= tight)
    return Instance(C, 5 * rng.normal(size=features), H, g, np.eye(features))


def brute_force(problem):
    """Try every set of constraints that the solution may press on."""
    C, d, H, g = problem.C, problem.d, problem.H, problem.g
    rows, features = H.shape
    for size in range(min(rows, features) + 1):
        for A in map(list, itertools.combinations(range(rows), size)):
            system = np.block([[C, H[A].T], [H[A], np.zeros((size, size))]])
            if np.linalg.cond(system) > 1e10:
                continue
            both = np.linalg.solve(system, np.concatenate([d, g[A]]))
            w, mu = both[:features], both[features:]
            if (mu >= -1e-10).all() and (H @ w <= g + 1e-9).all():
                return w
    raise AssertionError("no set of constraints fits")


def tableau_lemke(K, q, p):
    """Lemke's method on the whole tableau, as in textbooks: variables s, μ, θ; returns μ."""
    m = len(q)
    tableau = np.hstack([np.eye(m), -K, -p[:, None], q[:, None]])
    basis = np.arange(m)
    row, entering = int(np.argmin(q / p)), 2 * m
    for pivot in range(10 * m):
        tableau[row] /= tableau[row, entering]
        for i in set(range(m)) - {row}:
            tableau[i] -= tableau[i, entering] * tableau[row]
        left, basis[row] = basis[row], entering
        if left == 2 * m:
            mu = np.zeros(2 * m + 1)
            mu[basis] = tableau[:, -1]
            return mu[m : 2 * m], pivot
        entering = left + m if left < m else left - m
        blocking = np.flatnonzero(tableau[:, entering] > 1e-12)
        ratios = tableau[blocking, -1] / tableau[blocking, entering]
        row = int(blocking[np.argmin(ratios)])
    raise AssertionError("too many pivots")


HARD = [
    (name, lam)
    for name, lams in {
        "dense": (0.0, 0.95),
        "sparse": (0.0, 0.95),
        "grid": (0.0, 0.5, 0.9),
        "monomials": (0.0, 0.95),
    }.items()
    for lam in lams
]


@pytest.mark.parametrize(("name", "lam"), HARD)
@pytest.mark.parametrize("solver", SOLVERS)
def test_optimal_where_many_variances_were_negative(solver, name, lam):
    problem = instance(name, lam)
    assert problem.negative >= 0.05
    result = problem.solve(solver)
    assert_optimal(problem, result)
    assert result.solver == solver
    assert 0 < result.residual <= 1e-12
    assert result.active.size >= (1 if name == "monomials" else 20)


@pytest.mark.parametrize(("name", "lam"), HARD)
def test_solvers_agree(name, lam):
    problem = instance(name, lam)
    direct, paper = (problem.solve(solver) for solver in SOLVERS)
    np.testing.assert_array_equal(direct.active, paper.active)
    for ours, theirs in ((direct.w, paper.w), (direct.multipliers, paper.multipliers)):
        assert np.linalg.norm(ours - theirs) <= 1e-6 * np.linalg.norm(theirs)
    assert direct.residual < 1e-15


def test_direct_solver_with_300_features_and_3000_constraints():
    problem = instance("large", 0.0)
    assert problem.negative >= 0.05
    result = problem.solve()
    assert_optimal(problem, result)
    assert result.active.size > 100


@pytest.mark.parametrize("solver", SOLVERS)
def test_paper_chain(solver):
    problem = paper_chain()
    result = problem.solve(solver)
    np.testing.assert_allclose(result.w, [6248.738524, -378.100220, 5.669426], rtol=1e-7)
    np.testing.assert_array_equal(result.active, [29])
    np.testing.assert_allclose(result.multipliers[29], 262.940, atol=5e-4)
    variance = problem.g - problem.H @ result.w
    np.testing.assert_allclose(variance[28:], [23.370, 0.0], atol=5e-4)
    assert_optimal(problem, result)


def test_paper_chain_takes_the_known_number_of_projections_with_gram():
    chain = paper_chain()
    problem = equilibrate(chain.C, chain.d, chain.H, chain.g, chain.gram)
    u, mu, iterations = constraint.iterate(problem, constraint.gram_factor(problem), tol=1e-9)
    assert 25 <= iterations <= 31
    assert problem.residual(u, mu) <= 1e-9


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("seed", range(12))
def test_brute_force_over_active_sets(seed, solver):
    problem = random_small(seed, features=2 + seed % 3, rows=5 + seed % 4)
    result = problem.solve(solver)
    np.testing.assert_allclose(result.w, brute_force(problem), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("seed", range(20))
def test_path_follows_the_textbook_tableau(seed):
    problem = random_small(seed, features=8, rows=30, tight=0.0)
    H, C_inverse = problem.H, np.linalg.inv(problem.C)
    H, g = (x / np.linalg.norm(H, axis=1).reshape(-1, *[1] * (x.ndim - 1)) for x in (H, problem.g))
    q = g - H @ C_inverse @ problem.d
    p = np.random.default_rng(seed).uniform(1, 2, q.size)
    assert q.min() < 0
    status, pivots, rows, values = active_set.lemke(H, C_inverse, q, p, 1000)
    mu, expected_pivots = tableau_lemke(H @ C_inverse @ H.T, q, p)
    assert status == active_set.SOLVED
    assert pivots == expected_pivots
    np.testing.assert_allclose(np.bincount(rows, values, q.size), mu, atol=1e-9)


def test_path_renews_its_inverse_on_a_long_path():
    problem = instance("large", 0.0)
    scaled = equilibrate(problem.C, problem.d, problem.H, problem.g, problem.gram)
    C_inverse = np.linalg.inv(scaled.C)
    q = scaled.g - scaled.H @ scaled.unconstrained
    p = np.random.default_rng(0).uniform(1, 2, q.size)
    _, pivots, rows, mu = active_set.lemke(scaled.H, C_inverse, q, p, 10_000)
    assert pivots > 2 * active_set._PIVOTS_BETWEEN_REFRESHES
    H_A = scaled.H[rows]
    np.testing.assert_allclose(H_A @ C_inverse @ H_A.T @ mu, -q[rows], rtol=0, atol=1e-13)


@pytest.mark.parametrize("seed", range(5))
def test_daqp_as_an_independent_solver_of_variational_inequalities(seed):
    problem = random_small(seed, features=20, rows=100)
    w, _, flag, _ = daqp.solve(problem.C, -problem.d, problem.H, problem.g, is_avi=True, primal_tol=1e-10)
    assert flag == 1
    np.testing.assert_allclose(problem.solve().w, w, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("solver", SOLVERS)
def test_satisfied_constraints_return_the_unconstrained_weights(solver):
    problem = random_small(0, features=4, rows=6)
    w = np.linalg.solve(problem.C, problem.d)
    for g in (problem.H @ w + 1.0, problem.H @ w):  # slack, and exactly tight
        result = Instance(problem.C, problem.d, problem.H, g, problem.gram).solve(solver)
        np.testing.assert_allclose(result.w, w, rtol=1e-12)
        assert (result.iterations, result.active.size) == (0, 0)
        np.testing.assert_array_equal(result.multipliers, np.zeros(6))


@pytest.mark.parametrize("solver", SOLVERS)
def test_no_constraints_at_all(solver):
    result = solve_constrained([[2.0]], [3.0], np.zeros((0, 1)), [], gram=[[1.0]], solver=solver)
    np.testing.assert_allclose(result.w, [1.5])


@pytest.mark.parametrize("solver", SOLVERS)
def test_more_tight_constraints_than_features(solver):
    angles = np.linspace(0.2, 1.3, 7)
    H = -np.stack([np.cos(angles), np.sin(angles)], axis=1)
    corner = np.array([1.0, 2.0])
    problem = Instance(np.array([[1.0, 0.8], [-0.8, 1.0]]), np.array([-3.0, -4.0]), H, H @ corner, np.eye(2))
    result = problem.solve(solver)
    np.testing.assert_allclose(result.w, corner, rtol=1e-9)
    assert_optimal(problem, result)


@pytest.mark.parametrize("solver", SOLVERS)
def test_repeated_rows_count_once_with_the_tightest_bound(solver):
    problem = instance("grid", 0.5)
    once = problem.solve(solver)
    again = np.random.default_rng(1).permutation(np.repeat(np.arange(len(problem.g)), 2))
    looser = np.concatenate([problem.g, problem.g[again] + 1.0])
    rows = np.concatenate([np.arange(len(problem.g)), again])
    result = Instance(problem.C, problem.d, problem.H[rows], looser, problem.gram).solve(solver)
    np.testing.assert_allclose(result.w, once.w, rtol=1e-6)
    np.testing.assert_array_equal(result.active, once.active)
    problem_ = equilibrate(problem.C, problem.d, problem.H[rows], looser, problem.gram)
    np.testing.assert_array_equal(problem_.rows, np.arange(len(problem.g)))


@pytest.mark.parametrize("solver", SOLVERS)
def test_units_of_features_rows_and_rewards_do_not_matter(solver):
    problem = instance("grid", 0.9)
    rng = np.random.default_rng(2)
    feature = 10.0 ** rng.uniform(-6, 6, problem.d.size)
    row = 10.0 ** rng.uniform(-6, 6, problem.g.size)
    reward = 1e9
    plain = problem.solve(solver)
    scaled = Instance(
        feature[:, None] * problem.C * feature,
        reward * feature * problem.d,
        row[:, None] * problem.H * feature,
        reward * row * problem.g,
        feature[:, None] * problem.gram * feature,
    ).solve(solver)
    np.testing.assert_allclose(feature * scaled.w / reward, plain.w, rtol=1e-6)
    np.testing.assert_array_equal(scaled.active, plain.active)
    np.testing.assert_allclose(row * scaled.multipliers / reward, plain.multipliers, rtol=1e-5)
    assert scaled.iterations == plain.iterations


@pytest.mark.parametrize("solver", SOLVERS)
def test_sparse_and_column_major_rows(solver):
    problem = instance("grid", 0.9)
    dense = problem.solve(solver)
    rows = np.where(np.abs(problem.H) < 1e-3, 0.0, problem.H)
    results = [
        solve_constrained(problem.C, problem.d, kind(rows), problem.g, gram=problem.gram, solver=solver)
        for kind in (np.array, np.asfortranarray, sp.csr_array, sp.coo_array)
    ]
    for result in results[1:]:
        np.testing.assert_allclose(result.w, results[0].w, rtol=1e-7)
    assert np.linalg.norm(results[0].w - dense.w) > 0


@pytest.mark.parametrize("solver", SOLVERS)
def test_contradicting_constraints_are_named(solver):
    H = [[0.0, 1.0], [-1.0, 0.0], [1.0, 0.0], [1.0, 1.0]]
    with pytest.raises(InfeasibleConstraintError, match=r"Assumption 11.*rows 1, 2 .*constant"):
        solve_constrained(np.eye(2), [1.0, 1.0], H, [5, -2.0, 1.0, 9], gram=np.eye(2), solver=solver)


@pytest.mark.parametrize("solver", SOLVERS)
def test_empty_set_of_many_constraints(solver):
    problem = random_small(3, features=6, rows=40)
    y = np.random.default_rng(3).exponential(size=40)
    least = y @ problem.g + linprog(-y @ problem.H, problem.H, problem.g, bounds=(None, None)).fun
    for most, empty in ((0.99 * least, True), (1.01 * least, False)):
        # One more row: the weighted sum of all slacks y (g − H w) is to be at most ``most``.
        H = np.vstack([problem.H, -y @ problem.H])
        wider = Instance(problem.C, problem.d, H, np.append(problem.g, most - y @ problem.g), problem.gram)
        if empty:
            with pytest.raises(InfeasibleConstraintError, match="40"):
                wider.solve(solver)
        else:
            assert_optimal(wider, wider.solve(solver), tol=1e-8)


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_set_without_interior_is_not_empty(solver):
    problem = Instance(
        np.array([[2.0, 1.0], [-1.0, 1.0]]),
        np.array([1.0, 1.0]),
        np.array([[1.0, 1.0], [-1.0, -1.0]]),
        np.array([-1.0, 1.0]),
        np.eye(2),
    )
    result = problem.solve(solver)
    np.testing.assert_allclose(result.w.sum(), -1.0, rtol=1e-10)
    assert_optimal(problem, result)


@pytest.mark.parametrize("seed", [93, 94])
def test_projection_onto_a_set_that_is_a_single_point(seed):
    problem = random_small(seed, features=25, rows=170, tight=0.9)
    direct, paper = (problem.solve(solver) for solver in SOLVERS)
    np.testing.assert_allclose(paper.w, direct.w, rtol=1e-8)


@pytest.mark.parametrize("solver", SOLVERS)
def test_rows_without_features(solver):
    H = np.array([[0.0, 0.0], [-1.0, 0.0]])
    arguments = {"gram": np.eye(2), "solver": solver}
    result = solve_constrained(np.eye(2), [0.5, 2.0], H, [0.0, -1.0], **arguments)
    np.testing.assert_allclose(result.w, [1.0, 2.0])
    np.testing.assert_allclose(result.multipliers, [0.0, 0.5])
    with pytest.raises(InfeasibleConstraintError, match="rows 0 cannot hold"):
        solve_constrained(np.eye(2), [0.5, 2.0], H, [-1.0, -1.0], **arguments)


@pytest.mark.parametrize("solver", SOLVERS)
def test_indefinite_symmetric_part_warns_and_still_solves(solver):
    problem = Instance(
        np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 2.5], [0.0, 0.0, 1.0]]),
        np.array([-1.0, 1.0, 2.0]),
        -np.eye(3) - 0.1,
        np.array([-1.0, -1.0, -1.0]),
        np.eye(3),
    )
    with pytest.warns(NotUniqueWarning, match=r"eigenvalue of -2\.5e-01"):
        result = problem.solve(solver)
    assert_optimal(problem, result)
    assert result.active.size > 0


def test_a_ray_without_proof_of_emptiness_is_not_called_infeasible():
    problem = Instance(
        np.array([[1.0, 2.5], [0.0, 1.0]]),
        np.array([1.0, -1.0]),
        np.array([[-1.0, -1.0], [-0.1, -1.0]]),
        np.array([-4.0, 0.0]),
        np.eye(2),
    )
    assert (problem.H @ [5.0, 5.0] < problem.g).all()
    with pytest.warns(NotUniqueWarning), pytest.raises(SolverError, match="got ray, ray"):
        problem.solve()


@pytest.mark.parametrize(
    ("y", "g", "proof"),
    [
        ([1.0, 1.0], [1.0, -2.0], True),
        ([1.0, 1.0], [1.0, 2.0], False),  # x between -2 and 1
        ([1.0, 0.9], [1.0, -2.0], False),  # the rows do not cancel
        ([-1.0, -1.0], [1.0, 2.0], False),  # not a non-negative combination
    ],
)
def test_proof_of_infeasibility(y, g, proof):
    H = np.array([[1.0], [-1.0]])
    assert active_set._proves_infeasible(H, np.array(g), np.array(y)) == proof


@pytest.mark.parametrize("lam", [0.0, 0.9])
def test_bounds_path_equals_the_general_ones(lam):
    problem = instance("tabular", lam)
    assert problem.negative >= 0.05
    quick = problem.solve()
    assert quick.solver == "bounds"
    assert 0 < quick.iterations < 8
    assert_optimal(problem, quick)
    scaled = equilibrate(problem.C, problem.d, problem.H, problem.g, problem.gram)
    u, mu, _ = active_set.solve(scaled, 1e-12)
    direct = scaled.solution(u, mu, 1, "active-set")
    for other in (direct, problem.solve("projection")):
        np.testing.assert_allclose(quick.w, other.w, rtol=1e-8)
        np.testing.assert_array_equal(quick.active, other.active)


def test_bounds_on_some_features_and_given_twice():
    problem = instance("tabular", 0.9)
    some = np.arange(0, 60, 2)
    H = np.vstack([-np.eye(60)[some], -3 * np.eye(60)[some]])
    g = np.concatenate([problem.g[some], 3 * problem.g[some] + 1.0])
    twice = Instance(problem.C, problem.d, H, g, problem.gram)
    result = twice.solve()
    assert result.solver == "bounds"
    assert result.active.max() < len(some)
    assert_optimal(twice, result)


def test_bounds_path_needs_no_definite_symmetric_part():
    C = np.array([[1.0, -4.0], [0.0, 1.0]])
    problem = Instance(C, np.array([-6.0, 0.5]), -np.eye(2), np.array([0.0, -1.0]), np.eye(2))
    result = problem.solve()  # a warning would be an error here
    assert result.solver == "bounds"
    np.testing.assert_allclose(result.w, [0.0, 1.0])
    np.testing.assert_allclose(result.multipliers, [2.0, 0.5])


@pytest.mark.parametrize(
    ("C", "H"),
    [
        ([[2.0, 1.0], [-1.0, 2.0]], -np.eye(2)),  # a positive entry off the diagonal
        ([[2.0, -1.0], [-1.0, 2.0]], np.eye(2)),  # upper bounds
        ([[2.0, -1.0], [-1.0, 2.0]], -np.ones((1, 2))),  # no bound
    ],
)
def test_bounds_path_is_left_alone_where_it_is_not_proved(C, H):
    H = np.asarray(H)
    problem = Instance(np.array(C), np.array([-1.0, 2.0]), H, np.full(len(H), -3.0), np.eye(2))
    result = problem.solve()
    assert result.solver == "active-set"
    assert_optimal(problem, result)


def test_a_stalled_path_is_followed_again_in_another_direction(monkeypatch):
    problem = instance("grid", 0.9)
    expected = problem.solve()
    follow, directions = active_set.lemke, []

    def stall_twice(H, C_inverse, q, p, max_pivots):
        directions.append(p)
        return follow(H, C_inverse, q, p, 3 if len(directions) <= 2 else max_pivots)

    monkeypatch.setattr(active_set, "lemke", stall_twice)
    result = problem.solve()
    assert len(directions) == 3
    assert not np.array_equal(directions[0], directions[1])
    np.testing.assert_array_equal(result.active, expected.active)
    assert np.linalg.norm(result.w - expected.w) <= 1e-9 * np.linalg.norm(expected.w)

    monkeypatch.setattr(active_set, "lemke", lambda *a: follow(*a[:-1], 3))
    with pytest.raises(SolverError, match=r"3 pivots in 5 attempts.*projection"):
        problem.solve()


def test_projection_that_does_not_get_there_says_so(monkeypatch):
    monkeypatch.setattr(constraint, "_MAX_ITERATIONS", 3)
    with pytest.raises(SolverError, match=r"after 3 iterations.*active-set"):
        instance("grid", 0.9).solve("projection")


def test_bounds_solver_that_does_not_get_there_says_so():
    problem = instance("tabular", 0.9)
    scaled = equilibrate(problem.C, problem.d, problem.H, problem.g, problem.gram)
    with pytest.raises(SolverError, match="bounds solver"):
        active_set.solve_bounds(scaled, tol=1e-300)


@pytest.mark.parametrize("last", [1.0, 1.0 + 1e-16])
def test_singular_equations_are_named(last):
    with pytest.raises(SingularSystemError, match="Assumption 3"):
        solve_constrained([[1.0, 1.0], [1.0, last]], [1.0, 2.0], [[-1.0, 2.0]], [-9.0], gram=np.eye(2))


def test_singular_gram_is_named_where_it_is_needed():
    with (
        pytest.warns(NotUniqueWarning),
        pytest.raises(InvalidInputError, match="gram must be positive definite"),
    ):
        solve_constrained(
            [[1.0, 4.0], [0.0, 1.0]],
            [1.0, -1.0],
            [[-1.0, -1.0]],
            [-9.0],
            gram=np.ones((2, 2)),
            solver="projection",
        )
