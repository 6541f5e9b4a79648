"""The exact projected equations, against the formulas of sec. 4.3 written out with dense matrices."""

import numpy as np
import pytest
import scipy.sparse as sp

import policyrisk as pr
from policyrisk.equations import MomentEquations
from policyrisk.errors import MismatchError, NegativeVarianceWarning


def setup(seed, discount, *, transition_rewards=False, n=8):
    rng = np.random.default_rng(seed)
    P = rng.dirichlet(np.full(n + 1, 0.7), size=n)[:, :n]
    r = rng.normal(size=(n, n)) if transition_rewards else rng.normal(size=n)
    chain = pr.MarkovChain(P, r, discount)
    start = rng.dirichlet(np.ones(n))
    tables = rng.normal(size=(n, 3)), rng.normal(size=(n, 4))
    features = [
        pr.FunctionFeatures(lambda x, table=table: table[x[:, 0].astype(int)], size=table.shape[1])
        for table in tables
    ]
    return chain, P, r, start, tables, features


@pytest.mark.parametrize("lam", [0.0, 0.5, 0.95, 1.0])
@pytest.mark.parametrize("discount", [1.0, 0.9])
@pytest.mark.parametrize("transition_rewards", [False, True])
def test_equations_equal_the_dense_formulas(lam, discount, transition_rewards):
    chain, P, r, start, (phi_J, phi_M), features = setup(7, discount, transition_rewards=transition_rewards)
    n = len(P)
    equations = pr.LSTD(*features, lam=lam, discount=discount).exact_equations(chain, start)
    eye = np.eye(n)
    R = np.tile(r[:, None], (1, n)) if r.ndim == 1 else r
    stop = 1 - P.sum(axis=1)
    ends = r if r.ndim == 1 else np.zeros(n)
    q = np.linalg.solve(eye - P.T, start)
    Q = np.diag(q)
    # P_J as the series (1 − λ) Σ λ^l (γP)^{l+1}, summed until nothing is left (λ = 1 gives the zero matrix).
    P_J, P_M = np.zeros((n, n)), np.zeros((n, n))
    for target, g in ((P_J, discount), (P_M, discount**2)):
        power = g * P
        for step in range(4000):
            target += (1 - lam) * lam**step * power
            power = power @ (g * P)
    resolve_J = np.linalg.inv(eye - lam * discount * P)
    resolve_M = np.linalg.inv(eye - lam * discount**2 * P)
    mean_reward = (P * R).sum(axis=1) + stop * ends
    squared = (P * R**2).sum(axis=1) + stop * ends**2
    expected = {
        "A": phi_J.T @ Q @ (eye - P_J) @ phi_J,
        "b": phi_J.T @ Q @ resolve_J @ mean_reward,
        "C": phi_M.T @ Q @ (eye - P_M) @ phi_M,
        "D": phi_M.T @ Q @ resolve_M @ (2 * discount * (P * R) @ phi_J),
        "e": phi_M.T @ Q @ resolve_M @ squared,
        "gram": phi_M.T @ Q @ phi_M,
        "mean_gram": phi_J.T @ Q @ phi_J,
    }
    for name, value in expected.items():
        np.testing.assert_allclose(getattr(equations, name), value, rtol=1e-9, atol=1e-9, err_msg=name)
    assert equations.transitions == pytest.approx(q.sum())


@pytest.mark.parametrize("lam", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("discount", [1.0, 0.9])
@pytest.mark.parametrize(("variance", "kappa"), [("second-moment", 0.0), ("direct", 0.0), ("direct", 0.8)])
def test_tabular_features_give_the_exact_solution(lam, discount, variance, kappa):
    chain = setup(3, discount)[0]
    lstd = pr.LSTD(pr.Tabular(chain.n), lam=lam, discount=discount, variance=variance, variance_lam=kappa)
    risk = lstd.fit_exact(chain, np.full(chain.n, 1 / chain.n))
    x = np.arange(chain.n)
    np.testing.assert_allclose(risk.mean(x), chain.mean(), rtol=1e-9)
    np.testing.assert_allclose(risk.variance(x), chain.variance(), rtol=1e-7)
    np.testing.assert_allclose(risk.second_moment(x), chain.second_moment(), rtol=1e-9)
    np.testing.assert_allclose(risk.sharpe(x), chain.mean() / chain.std(), rtol=1e-7)


@pytest.mark.parametrize("kappa", [0.0, 0.6])
def test_direct_variance_solves_its_equation(kappa):
    chain, P, r, start, (phi_J, phi_M), features = setup(5, 0.9)
    lam, gamma, n = 0.7, 0.9, len(P)
    lstd = pr.LSTD(*features, lam=lam, discount=gamma, variance="direct", variance_lam=kappa)
    risk = lstd.fit_exact(chain, start)
    J = phi_J @ risk.w_mean
    q = np.linalg.solve(np.eye(n) - P.T, start)
    stop = 1 - P.sum(axis=1)
    squared = stop * (r - J) ** 2
    for x in range(n):
        squared[x] += P[x] @ (r[x] + gamma * J - J[x]) ** 2
    epsilon = np.linalg.solve(np.eye(n) - kappa * gamma * P, r + gamma * P @ J - J)
    for x in range(n):
        squared[x] += 2 * kappa * gamma * P[x] @ ((r[x] + gamma * J - J[x]) * epsilon)
    Y = phi_M.T @ np.diag(q) @ np.linalg.inv(np.eye(n) - lam * gamma**2 * P)
    w = np.linalg.solve(Y @ (np.eye(n) - gamma**2 * P) @ phi_M, Y @ squared)
    np.testing.assert_allclose(risk.w_second, w, rtol=1e-9)


def test_shared_features_share_the_matrix():
    chain = pr.domains.walk(6)
    equations = pr.LSTD(pr.Tabular(6)).exact_equations(chain)
    assert equations.C is equations.A
    discounted = pr.MarkovChain(chain.P, -np.ones(6), 0.9)
    other = pr.LSTD(pr.Tabular(6), discount=0.9).exact_equations(discounted)
    assert other.C is not other.A


@pytest.mark.parametrize("solver", ["active-set", "projection"])
@pytest.mark.parametrize("demanded", ["visited", "states"])
def test_constraint_makes_the_variance_non_negative(solver, demanded):
    chain = pr.domains.walk(30)
    features = [pr.Polynomial(degree, low=[0], high=[29]) for degree in (1, 2)]
    x = np.arange(30)
    lstd = pr.LSTD(
        *features,
        lam=0.95,
        nonnegative_at="visited" if demanded == "visited" else x,
        constraint_solver=solver,
    )
    risk = lstd.fit_exact(chain, 0)
    assert risk.variance(x).min() > -1e-6
    assert risk.variance([28])[0] == pytest.approx(23.370, abs=5e-4)
    assert risk.provenance.constrained == 1
    assert risk.provenance.constraint_residual < 1e-6


def test_constraint_with_redundant_and_with_one_hot_features():
    """A table written twice is redundant; the constrained values are those of the plain table."""
    chain = pr.domains.walk(12, 0.6)
    twice = pr.FunctionFeatures(lambda x: np.tile(np.eye(12)[x[:, 0].astype(int)], 2), size=24)
    phi_J = pr.Polynomial(0, low=[0], high=[11])
    x = np.arange(12)
    plain = pr.LSTD(phi_J, pr.Tabular(12), lam=0.0, nonnegative_at=x).fit_exact(chain, 0)
    doubled = pr.LSTD(phi_J, twice, lam=0.0, nonnegative_at=x).fit_exact(chain, 0)
    assert plain.provenance.constrained > 0
    assert doubled.provenance.redundant == 12
    np.testing.assert_allclose(doubled.variance(x), plain.variance(x), atol=1e-6)
    np.testing.assert_allclose(doubled.w_second[:12], doubled.w_second[12:], rtol=1e-9)


def test_unvisited_states_are_nan_and_negative_variance_warns():
    chain = pr.MarkovChain([[0.0, 0.5, 0.0], [0.5, 0.0, 0.0], [0.2, 0.2, 0.2]], [1.0, 2.0, 3.0])
    risk = pr.LSTD(pr.Tabular(3)).fit_exact(chain, 0)
    assert np.isnan(risk.mean([2])[0])
    assert risk.visited([0, 1, 2]).tolist() == [True, True, False]
    features = [pr.Polynomial(degree, low=[0], high=[29]) for degree in (1, 2)]
    walk = pr.LSTD(*features, lam=0.95).fit_exact(pr.domains.walk(30), 0)
    with pytest.warns(NegativeVarianceWarning, match="negative at 2 of 30 states"):
        std = walk.std(np.arange(30))
    assert np.isnan(std[-2:]).all()
    assert not np.isnan(std[:-2]).any()


@pytest.mark.parametrize("settings", [{}, {"nonnegative_at": np.arange(30)}], ids=["free", "constrained"])
@pytest.mark.parametrize("start", [0, 29, np.eye(30)[3]])
def test_exact_equations_are_solved_as_fit_exact_does(settings, start):
    """Leverage limits what data say, not what a chain says: no state that the chain visits is unknown."""
    chain, x = pr.domains.walk(30), np.arange(30)
    features = [pr.Polynomial(degree, low=[0], high=[29]) for degree in (1, 2)]
    lstd = pr.LSTD(*features, lam=0.95, **settings)
    solved, fitted = lstd.solve(lstd.exact_equations(chain, start)), lstd.fit_exact(chain, start)
    assert not np.isnan(fitted.mean(x)).any()
    for name in ("mean", "variance", "second_moment", "episodes"):
        np.testing.assert_array_equal(getattr(solved, name)(x), getattr(fitted, name)(x), err_msg=name)


def test_exact_and_sampled_equations_do_not_add():
    chain, lstd = pr.domains.walk(5), pr.LSTD(pr.Polynomial(1, low=[0], high=[4]))
    exact, sampled = lstd.exact_equations(chain), lstd.equations(chain.sample(0, episodes=10, seed=0))
    for one, other in ((exact, sampled), (sampled, exact)):
        with pytest.raises(MismatchError, match="agree on exact"):
            one + other
    nothing = MomentEquations.empty(lstd.features)
    assert (nothing + exact).exact
    assert (exact + nothing).exact
    both = exact + lstd.exact_equations(chain, 3)
    assert both.exact
    assert lstd.solve(both).visited(np.arange(5)).all()


def test_large_sparse_features_stay_sparse_through_the_chain():
    chain = pr.domains.grid_walk(20, 30)
    risk = pr.LSTD(pr.Tabular(600), lam=0.5).fit_exact(chain, np.full(600, 1 / 600))
    np.testing.assert_allclose(risk.variance(np.arange(600)), chain.variance(), rtol=1e-8)
    assert sp.issparse(pr.Tabular(600)([3]))


def test_with_long_returns_the_error_of_J_counts_once():
    """A constant for J: κ = 1 gives E[(B − J̃)²] = V + (J − J̃)² at every state, κ = 0 a sum over steps."""
    chain = pr.domains.walk(12, p=0.8)
    flat, table, x = pr.Polynomial(0, [0], [11]), pr.Tabular(12), np.arange(12)
    lstd = pr.LSTD(flat, table, lam=0.5, variance="direct", variance_lam=1.0)
    risk = lstd.fit_exact(chain, np.full(12, 1 / 12))
    once = chain.variance() + (chain.mean() - risk.mean(x)) ** 2
    np.testing.assert_allclose(risk.variance(x), once, rtol=1e-9)
