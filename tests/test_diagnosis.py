"""chain.diagnose: its constants against operators built here, straight from their definitions.

The truth of each chain is `Model`: P, ρ and ζ0 as plain dense arrays. T is applied as written, by summing
(1−λ) Σ λ^l T^(l+1) term by term; Π by weighted least squares; q by summing ζ0ᵀ P^t.
"""

import itertools
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pytest

import policyrisk as pr
from policyrisk.domains import walk
from policyrisk.errors import ImproperPolicyError, InvalidInputError, SolverError
from policyrisk.markov import diagnosis as module
from policyrisk.markov.diagnosis import diagnose

KINDS = ("dense", "sparse", "cycle", "ring")
LAMBDAS, DISCOUNTS = (0.0, 0.3, 0.9, 1.0), (1.0, 0.9)


@dataclass(frozen=True)
class Model:
    P: np.ndarray  # (n, n)
    rho: np.ndarray  # (n, n): reward of each transition
    rho_end: np.ndarray  # (n,): reward of the step that ends
    zeta: np.ndarray  # (n,)
    phi_mean: np.ndarray  # (n, l_J)
    phi_second: np.ndarray  # (n, l_M)
    gamma: float
    lam: float

    @property
    def n(self):
        return len(self.P)

    @cached_property
    def r(self):
        return (self.P * self.rho).sum(axis=1) + (1 - self.P.sum(axis=1)) * self.rho_end

    @cached_property
    def r2(self):
        return (self.P * self.rho**2).sum(axis=1) + (1 - self.P.sum(axis=1)) * self.rho_end**2

    @cached_property
    def truth(self):
        """J and M of Proposition 2 in its discounted form, one above the other."""
        identity, g = np.eye(self.n), self.gamma
        J = np.linalg.solve(identity - g * self.P, self.r)
        M = np.linalg.solve(identity - g**2 * self.P, self.r2 + 2 * g * (self.P * self.rho) @ J)
        return np.concatenate([J, M])

    @cached_property
    def q(self):
        q, now = np.zeros(self.n), self.zeta
        while now.max() > 1e-18:
            q, now = q + now, now @ self.P
        return q

    def multistep(self, step, y):
        """(1−λ) Σ λ^l step^(l+1)(y); its limit step^∞(y) for λ = 1."""
        total, weight = np.zeros_like(y), 1.0 - self.lam
        for _ in range(750):  # every chain here has forgotten its start by then
            y = step(y)
            total, weight = total + weight * y, weight * self.lam
            if self.lam < 1 and weight < 1e-18:
                return total
        return y

    def T(self, z):
        """T of each column of z (2n, k)."""
        g, n = self.gamma, self.n
        z_J, z_M = z[:n], z[n:]
        fixed = self.r2[:, None] + 2 * g * (self.P * self.rho) @ z_J
        return np.vstack(
            [
                self.multistep(lambda y: self.r[:, None] + g * self.P @ y, z_J),
                self.multistep(lambda y: fixed + g**2 * self.P @ y, z_M),
            ]
        )

    def project(self, z):
        root = np.sqrt(self.q)[:, None]
        parts = zip((self.phi_mean, self.phi_second), (z[: self.n], z[self.n :]), strict=True)
        return np.vstack([phi @ np.linalg.lstsq(root * phi, root * y, rcond=1e-12)[0] for phi, y in parts])

    def chain(self):
        return pr.MarkovChain(self.P, self.rho, self.gamma, terminal_rewards=self.rho_end)

    def diagnose(self):
        return diagnose(
            self.chain(), table(self.phi_mean), table(self.phi_second), start=self.zeta, lam=self.lam
        )


def table(phi):
    return lambda states: phi[states[:, 0].astype(int)]


def transitions(kind, n, rng):
    if kind == "dense":
        P = rng.random((n, n))
        return P / P.sum(axis=1, keepdims=True) * rng.uniform(0.6, 0.95, (n, 1))
    if kind == "sparse":
        P = rng.random((n, n)) * (rng.random((n, n)) < 0.3) + 0.2 * np.roll(np.eye(n), 1, axis=1)
        going = rng.choice([0.5, 0.8, 1.0], n)
        going[-1] = 0.5
        return P / P.sum(axis=1, keepdims=True) * going[:, None]
    P = np.roll(np.eye(n), 1, axis=1)  # 0 → 1 → … → n − 1 → 0, left from the last
    P[-1] *= 0.6
    if kind == "cycle":
        P[rng.integers(n - 1)] *= 0.9
    return P


def random_model(kind, lam, gamma, transition_rewards, concentrated, seed):
    case = (seed, KINDS.index(kind), int(10 * lam), int(10 * gamma), transition_rewards, concentrated)
    rng = np.random.default_rng(case)
    n = int(rng.integers(3, 9))
    P = transitions(kind, n, rng)
    if transition_rewards:
        rho, rho_end = rng.normal(size=(n, n)) * 3, rng.normal(size=n)
    else:
        rho_end = rng.normal(size=n) * 3
        rho = np.repeat(rho_end[:, None], n, axis=1)
    zeta = np.eye(n)[rng.integers(n)] if concentrated else np.full(n, 1 / n)
    l_J, l_M = rng.integers(1, n + 1, 2)
    phi_J = rng.normal(size=(n, l_J)) if rng.random() < 0.7 else np.eye(n)
    phi_M = rng.normal(size=(n, l_M)) if rng.random() < 0.7 else np.eye(n)
    return Model(P, rho, rho_end, zeta, phi_J, phi_M, gamma, lam)


def blocks(model):
    """The linear part of ΠT as the matrices Π_J P_J, Π_M G and Π_M P_M, from ΠT of unit vectors."""
    n = model.n
    units = np.hstack([np.eye(2 * n), np.zeros((2 * n, 1))])
    image = model.project(model.T(units))
    linear, constant = image[:, :-1] - image[:, -1:], image[:, -1]
    assert np.abs(linear[:n, n:]).max() < 1e-12
    return linear, constant


def check(model):
    """Everything that the record claims, for a model whose states are all visited."""
    found = model.diagnose()
    n, rng = model.n, np.random.default_rng(5)
    linear, constant = blocks(model)
    root_J, root_M = found.norm_J.root, found.norm_M.root
    scale = 1 + 1e-9
    noise = 1e-12 * (1 + np.abs(constant).max())  # of `linear`, a difference; it matters where β = 0

    # Lemma 5: the reported modulus is the largest singular value in its norm, and so attained.
    K_J, K_M, cross = linear[:n, :n], linear[n:, n:], linear[n:, :n]
    for K, root, norm, beta in (
        (K_J, root_J, found.norm_J, found.beta_J),
        (K_M, root_M, found.norm_M, found.beta_M),
    ):
        _, singular, right = np.linalg.svd(root @ K @ np.linalg.inv(root))
        assert singular[0] == pytest.approx(beta, rel=1e-9, abs=noise)
        assert beta < 1
        worst = np.linalg.solve(root, right[0])
        assert norm(K @ worst) == pytest.approx(beta * norm(worst), rel=1e-8, abs=noise * norm(worst))
        for y in rng.normal(size=(5, n)):
            assert norm(K @ y) <= (beta * scale + noise) * norm(y)
            q_norm = np.sqrt(model.q @ y**2)
            assert norm(y) == pytest.approx(q_norm) if norm.kind == "q" else norm(y) >= q_norm
            assert norm(y) ** 2 == pytest.approx(y @ norm.W @ y)
    # Lemma 7: C is the smallest of its kind, and α and ε satisfy (1 − α) C = α ε.
    assert np.linalg.norm(root_M @ cross @ np.linalg.inv(root_J), 2) == pytest.approx(found.C, rel=1e-8)
    assert (1 - found.alpha) * found.C == pytest.approx(found.alpha * found.epsilon)
    assert found.beta == max(found.beta_J, found.beta_M) + found.epsilon
    assert found.epsilon > 0
    assert 0 < found.alpha < 1
    assert found.beta < 1
    pairs = rng.normal(size=(2, 2 * n, 12)) * 10.0 ** rng.integers(-2, 3, (2, 2 * n, 1))
    pairs[0, n:, 4:8] = pairs[1, n:, 4:8]  # differing in J alone, and in M alone
    pairs[0, :n, 8:] = pairs[1, :n, 8:]
    images = [model.project(model.T(z)) for z in pairs]
    for before, after in zip((pairs[0] - pairs[1]).T, (images[0] - images[1]).T, strict=True):
        assert found.alpha_norm(after) <= found.beta * found.alpha_norm(before) * scale
    # Lemma 8, with z* from the assembled fixed point.
    truth = model.truth
    size = found.alpha_norm(truth)
    assert found.alpha_norm(model.T(truth[:, None])[:, 0] - truth) < 1e-11 * size
    solution = np.linalg.solve(np.eye(2 * n) - linear, constant)
    projected = model.project(truth[:, None])[:, 0]
    assert found.projection_error == pytest.approx(found.alpha_norm(truth - projected), abs=1e-11 * size)
    assert found.error == pytest.approx(found.alpha_norm(truth - solution), rel=1e-7, abs=1e-10 * size)
    assert found.bound == pytest.approx(found.projection_error / (1 - found.beta))
    assert found.error <= found.bound * scale + 1e-12 * size
    return found


@pytest.mark.parametrize(("lam", "gamma"), list(itertools.product(LAMBDAS, DISCOUNTS)))
def test_contraction_and_bound_on_random_chains(lam, gamma):
    used = set()
    kinds = itertools.product(KINDS, (False, True), (False, True))
    for kind, transition_rewards, concentrated in kinds:
        model = random_model(kind, lam, gamma, transition_rewards, concentrated, 0)
        found = check(model)
        assert found.proper
        assert found.independent
        assert found.all_visited
        used |= {found.norm_J.kind, found.norm_M.kind}
    assert used == ({"q", "built"} if lam == 0 and gamma == 1 else {"q"})


@pytest.mark.parametrize("smooth_M", [False, True])
def test_a_norm_is_built_where_the_q_norm_does_not_contract(smooth_M):
    """Each state hands all its visits to the next, so ‖P y‖_q = ‖y‖_q for some y."""
    n = 6
    P = np.eye(n, k=1)
    rho_end = np.arange(1.0, n + 1)
    phi = np.eye(n)
    # Smooth features for M keep its projected map below 1 in ‖·‖_q; the table for J does not.
    phi_M = np.ones((n, 1)) if smooth_M else phi
    model = Model(P, np.repeat(rho_end[:, None], n, 1), rho_end, np.eye(n)[0], phi, phi_M, 1.0, 0.0)
    assert np.linalg.norm(np.sqrt(model.q)[:, None] * P / np.sqrt(model.q), 2) == pytest.approx(1.0)
    found = check(model)
    assert found.norm_J.kind == "built"
    assert found.norm_M.kind == ("q" if smooth_M else "built")
    assert "in a norm built for it" in str(found)
    # The equation that defines W, KᵀW K = s² (W − I), for q = 1; its trace gives s.
    W = found.norm_J.W
    s2 = np.trace(P.T @ W @ P) / np.trace(W - np.eye(n))
    np.testing.assert_allclose(P.T @ W @ P, s2 * (W - np.eye(n)), atol=1e-12)
    assert found.beta_J == pytest.approx(np.sqrt(s2 * (1 - 1 / np.linalg.norm(W, 2))))


@pytest.mark.parametrize("n", [2, 40, 150])
def test_the_built_norm_stays_moderate_on_long_chains(n):
    """‖W‖ of the half-way s alone would be 4^n."""
    found = diagnose(pr.MarkovChain(np.eye(n, k=1), np.ones(n)), pr.Tabular(n), lam=0.0)
    assert found.norm_J.kind == "built"
    assert np.linalg.norm(found.norm_J.W, 2) < 10 * n**2
    assert 1 - found.beta_J > 1 / n / 2
    K = np.eye(n, k=1)
    assert np.linalg.norm(found.norm_J.root @ K @ np.linalg.inv(found.norm_J.root), 2) == pytest.approx(
        found.beta_J
    )


def test_z_star_is_what_lstd_solves_for():
    chain, start = walk(30, 0.7), 0
    line, square = (pr.Polynomial(degree, low=[0], high=[29]) for degree in (1, 2))
    for lam in (0.0, 0.95):
        found = diagnose(chain, line, square, start, lam)
        risk = pr.LSTD(line, square, lam=lam).fit_exact(chain, start)
        states = np.arange(30)
        solution = np.concatenate([risk.mean(states), risk.second_moment(states)])
        truth = np.concatenate([chain.mean(), chain.second_moment()])
        assert found.error == pytest.approx(found.alpha_norm(truth - solution), rel=1e-9)


def test_the_papers_chain_in_print():
    line, square = (pr.Polynomial(degree, low=[0], high=[29]) for degree in (1, 2))
    text = str(diagnose(walk(30, 0.7), line, square, start=0, lam=0.95))
    lines = text.splitlines()
    assert lines[0] == "Projected equations on 30 states, discount 1, λ = 0.95"
    for expected in (
        "  1  proper policy         ok      every state can reach the end",
        "  3  independent features  ok      rank 2 of 2 features for J, 3 of 3 for M",
        "  4  all states visited    ok      the least visited state is 29, 1.429 times an episode",
        "  β_J        0.79022     for the mean J, in ‖·‖_q",
        "  β_M        0.80819     for the second moment M, in ‖·‖_q",
        "  β          0.9041      for J and M together, in the joint norm: max(β_J, β_M) + ε",
        "  true error 3.9926      10.0% of the bound",
    ):
        assert expected in lines
    assert max(map(len, lines)) <= 110


def test_assumption_1_fails_where_the_start_does_not_lead():
    """State 2 never ends, but is not reached: q is finite and the numbers are those of states 0 and 1."""
    P = np.array([[0.2, 0.7, 0.0], [0.5, 0.0, 0.0], [0.0, 0.0, 1.0]])
    phi = np.array([[1.0, 2.0, 5.0]]).T
    found = diagnose(pr.MarkovChain(P, [1.0, 2.0, 3.0], 0.9), table(phi), start=0, lam=0.5)
    alone = diagnose(pr.MarkovChain(P[:2, :2], [1.0, 2.0], 0.9), table(phi[:2]), start=0, lam=0.5)
    assert not found.proper
    assert not found.all_visited
    assert found.endless.tolist() == found.unvisited.tolist() == [2]
    for name in ("beta_J", "beta_M", "C", "alpha", "beta", "bound", "error"):
        assert getattr(found, name) == pytest.approx(getattr(alone, name), rel=1e-12)
    assert found.alpha_norm([1, 2, 9, 3, 4, 9]) == pytest.approx(alone.alpha_norm([1, 2, 3, 4]))
    assert "1  proper policy         FAILED  the end cannot be reached from states 2" in str(found)
    assert "4  all states visited    FAILED  never visited: states 2; left out below" in str(found)


def test_without_an_occupancy_the_rest_is_undefined_by_name():
    P = np.array([[0.2, 0.7, 0.0], [0.5, 0.0, 0.0], [0.0, 0.0, 1.0]])
    found = diagnose(pr.MarkovChain(P, np.ones(3), 0.9), pr.Tabular(3), start=2)
    assert found.endless.tolist() == [2]
    assert found.unvisited.tolist() == [0, 1]
    assert found.q is found.mean.norm is found.second.norm is None
    assert np.isnan([found.beta_J, found.beta_M, found.C, found.beta, found.bound, found.error]).all()
    assert "undefined" in str(found)
    assert "Assumption 1: proper policy" in str(found)
    assert "left out below" not in str(found)
    with pytest.raises(ImproperPolicyError, match="Assumption 1"):
        found.alpha_norm(np.zeros(6))


@pytest.mark.parametrize("lam", [0.0, 0.9])
def test_assumption_3_fails_and_the_numbers_are_those_of_independent_features(lam):
    rng = np.random.default_rng(3)
    model = random_model("dense", lam, 1.0, True, False, 11)
    phi = rng.normal(size=(model.n, 2))
    redundant = phi @ np.array([[1.0, 0, 1e6], [0, 1e-4, 1e6]])
    chain = model.chain()
    found = diagnose(chain, table(redundant), table(phi), model.zeta, lam)
    plain = diagnose(chain, table(phi), table(phi.copy()), model.zeta, lam)
    assert (found.mean.rank, found.mean.size, found.second.rank, found.second.size) == (2, 3, 2, 2)
    assert not found.independent
    assert plain.independent
    for name in ("beta_J", "beta_M", "C", "alpha", "beta", "bound", "error"):
        assert getattr(found, name) == pytest.approx(getattr(plain, name), rel=1e-8)
    assert "3  independent features  FAILED  rank 2 of 3 features for J, 2 of 2 for M" in str(found)
    assert "redundant features change no number" in str(found)


@pytest.mark.parametrize("gamma", DISCOUNTS)
@pytest.mark.parametrize("lam", [0.0, 0.9])
def test_shared_features_and_units_of_measurement_change_nothing(gamma, lam):
    model = random_model("sparse", lam, gamma, True, False, 4)
    phi = np.random.default_rng(8).normal(size=(model.n, 3))
    tiny = table(phi * [1.0, 1e-20, 1e9])
    found = diagnose(model.chain(), tiny, None, model.zeta, lam)
    apart = diagnose(model.chain(), table(phi), table(phi.copy()), model.zeta, lam)
    assert found.independent
    for name in ("beta_J", "beta_M", "C", "alpha", "beta", "bound", "error"):
        assert getattr(found, name) == pytest.approx(getattr(apart, name), rel=1e-9)


def test_assumption_4_fails_and_the_visited_part_counts():
    P = np.eye(5, k=1) * 0.9
    phi = np.random.default_rng(1).normal(size=(5, 3))
    found = diagnose(pr.MarkovChain(P, np.arange(5.0)), table(phi), pr.Tabular(5), start=3, lam=0.0)
    alone = diagnose(pr.MarkovChain(P[3:, 3:], [3.0, 4.0]), table(phi[3:]), pr.Tabular(2), start=0, lam=0.0)
    assert found.proper
    assert found.independent
    assert found.unvisited.tolist() == [0, 1, 2]
    assert (found.mean.dimension, found.second.dimension) == (2, 2)
    assert found.beta == pytest.approx(alone.beta)
    assert pytest.approx(alone.C) == found.C
    assert "FAILED  never visited: states 0, 1, 2; left out below" in str(found)
    assert "rank 3 of 3 features for J, 5 of 5 for M (on the visited states 2 and 2)" in str(found)


def test_visits_too_rare_to_weigh_are_named():
    found = diagnose(walk(120, 0.999), pr.Polynomial(1, low=[0], high=[119]), start=119, lam=0.5)
    assert 0 < found.unvisited.size < 120
    assert (found.q[found.unvisited] <= module.RAREST).all()
    assert "FAILED  < 1e-250 times visited" in str(found)
    assert 0 < found.beta < 1
    assert found.error <= found.bound


def test_no_coupling_and_no_error_at_all():
    """Rewards 0: C = 0, J = M = 0, and any α would do."""
    found = diagnose(pr.MarkovChain([[0.2, 0.3], [0.4, 0.1]], np.zeros(2)), pr.Tabular(2), lam=0.0)
    assert (found.C, found.epsilon, found.alpha) == (0.0, 0.0, 0.5)
    assert found.beta == max(found.beta_J, found.beta_M)
    assert found.bound == found.error == 0.0
    assert np.isnan(found.ratio)
    assert "M's equation does not depend on J" in str(found)


def test_features_that_are_all_zero():
    model = random_model("dense", 0.5, 1.0, False, False, 2)
    zero = np.zeros((model.n, 2))
    found = diagnose(model.chain(), table(zero), table(model.phi_second), model.zeta, 0.5)
    assert found.mean.rank == found.beta_J == 0
    assert found.error <= found.bound


def test_a_modulus_that_is_1_to_rounding_is_an_error():
    chain = pr.MarkovChain([[0.0, 1.0], [1.0 - 1e-11, 0.0]], np.ones(2))
    with pytest.raises(SolverError, match=r"Π_J P_J contracts.*Assumption 1"):
        diagnose(chain, pr.Tabular(2), lam=0.0)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"lam": 1.5}, "lam must be in"),
        ({"start": 7}, "start must be a state"),
        ({"features": 3}, "features must have a size"),
        ({"second_features": pr.Tabular(1)}, "whole numbers from 0 to 0"),
    ],
)
def test_bad_arguments(change, text):
    arguments = {"features": pr.Tabular(2), "second_features": None, "start": 0, "lam": 0.9}
    with pytest.raises(InvalidInputError, match=text):
        diagnose(pr.MarkovChain(np.eye(2) * 0.5, np.ones(2)), **(arguments | change))


def test_large_chains_are_refused_with_a_remedy():
    with pytest.raises(InvalidInputError, match=r"at most 2000 states.*got 2001; .*LSTD.fit_exact"):
        diagnose(walk(2001), pr.Polynomial(1, low=[0], high=[2000]))


def test_bad_vectors_for_the_norms():
    found = diagnose(walk(3), pr.Tabular(3))
    with pytest.raises(InvalidInputError, match="z must have shape"):
        found.alpha_norm(np.zeros(3))
    with pytest.raises(InvalidInputError, match="y must have shape"):
        found.norm_J(np.zeros(4))
