"""The doubly robust summary of another policy, where propensities are known."""

import json
from dataclasses import replace

import numpy as np
import pytest
from test_lstdq import ACTIONS, LINE, N, log, policies, process

import policyrisk as pr
from policyrisk._core.random import keys
from policyrisk.equations import moment_equations
from policyrisk.errors import FewEpisodesWarning, InvalidInputError, UncoveredError, UncoveredWarning
from policyrisk.lstd import doubly_robust
from policyrisk.lstd.critics import CriticValues, EpisodeTerms
from policyrisk.lstd.doubly_robust import FoldTerms
from policyrisk.passes.episode_folds import fold_of_episodes

P, R = process()
MU, PI = policies(1)
MU = (MU + 1 / ACTIONS) / 2
BIG = log(P, R, MU, 40_000, seed=1)


def truth(pi=PI, gamma=1.0):
    """Mean and second moment over starts, and Q_J and V_Q (n, actions)."""
    chain = pr.MarkovChain.from_mdp(P, R, pi, discount=gamma)
    J, M = chain.mean(), chain.second_moment()
    Q_J = R + gamma * np.einsum("axy,y->xa", P, J)
    Q_M = R**2 + 2 * gamma * R * np.einsum("axy,y->xa", P, J) + gamma**2 * np.einsum("axy,y->xa", P, M)
    return J.mean(), M.mean(), Q_J, Q_M - Q_J**2


def critic(data, Q, V_Q, pi=PI):
    """Values of critics (n, actions) at the episodes: the ends of terminated ones, state n, are 0."""
    J = (pi * Q).sum(axis=1)
    V = (pi * (V_Q + Q**2)).sum(axis=1) - J**2
    J, V = np.append(J, 0.0), np.append(V, 0.0)
    x, a = data.states[data.visited_rows, 0], data.actions
    return CriticValues(J[data.states[:, 0]], V[data.states[:, 0]], Q[x, a], V_Q[x, a])


def ratios(data, pi=PI):
    return pi[data.states[data.visited_rows, 0], data.actions] / data.propensities


def second_moments(terms, centre):
    """M_k of S_k and J_k."""
    return terms.S + 2 * centre * terms.J - centre**2


def by_the_equation(episode, rho, J, M, Q_J, Q_M, gamma):
    """J_k and M_k as they are written, a step at a time; J and M (n + 1,), Q_J and Q_M (n, actions)."""
    x, a, r = episode.states[:, 0], episode.actions, episode.rewards
    J_k, M_k, product, R_before = J[x[0]], M[x[0]], 1.0, 0.0
    for t in range(len(r)):
        product *= rho[t]
        delta_J = r[t] + gamma * J[x[t + 1]] - Q_J[x[t], a[t]]
        delta_M = r[t] ** 2 + 2 * gamma * r[t] * J[x[t + 1]] + gamma**2 * M[x[t + 1]] - Q_M[x[t], a[t]]
        J_k += product * gamma**t * delta_J
        M_k += product * (gamma ** (2 * t) * delta_M + 2 * gamma**t * R_before * delta_J)
        R_before += gamma**t * r[t]
    return J_k, M_k


@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_terms_are_those_of_the_equation(gamma):
    """Any critics, any centre, episodes that were cut off among them."""
    data = log(P, R, MU, 40, seed=2, max_steps=5)
    rng = np.random.default_rng(3)
    Q, V_Q = rng.normal(size=(N, ACTIONS)), rng.random((N, ACTIONS))
    J, M = (np.append((PI * values).sum(axis=1), 0.0) for values in (Q, V_Q + Q**2))
    terms = EpisodeTerms.of(data, ratios(data), critic(data, Q, V_Q), gamma, 0.7)
    for k, episode in enumerate(data):
        J_k, M_k = by_the_equation(episode, ratios(episode), J, M, Q, V_Q + Q**2, gamma)
        assert terms.J[k] == pytest.approx(J_k, abs=1e-10)
        assert second_moments(terms, 0.7)[k] == pytest.approx(M_k, abs=1e-9)


def assert_unbiased(terms, centre, gamma=1.0):
    mean, second, _, _ = truth(gamma=gamma)
    for found, exact in ((terms.J, mean), (second_moments(terms, centre), second)):
        assert abs(found.mean() - exact) < 3.5 * found.std() / np.sqrt(found.size)


CRITICS = {
    "right": lambda Q, V: (Q, V),
    "none": lambda Q, V: (0 * Q, 0 * V),
    "constant": lambda Q, V: (0 * Q + 2.0, 0 * V + 1.0),
    "wrong": lambda Q, V: (Q[::-1] + 0.5, 2.0 * V),
}


@pytest.mark.parametrize("gamma", [1.0, 0.9])
@pytest.mark.parametrize("name", CRITICS)
def test_right_propensities_forgive_any_critic(name, gamma):
    """Unbiased for the mean and the second moment; the right critics have the least noise."""
    _, _, Q, V_Q = truth(gamma=gamma)
    terms = EpisodeTerms.of(BIG, ratios(BIG), critic(BIG, *CRITICS[name](Q, V_Q)), gamma, 1.0)
    assert_unbiased(terms, 1.0, gamma)
    right = EpisodeTerms.of(BIG, ratios(BIG), critic(BIG, Q, V_Q), gamma, 1.0)
    assert right.J.std() <= terms.J.std()
    assert right.S.std() <= terms.S.std()


def test_right_critics_forgive_wrong_propensities():
    """The other half of doubly robust; with neither right, nothing is."""
    wrong = np.sqrt(ratios(BIG)) * 0.9
    _, _, Q, V_Q = truth()
    assert_unbiased(EpisodeTerms.of(BIG, wrong, critic(BIG, Q, V_Q), 1.0, 0.0), 0.0)
    with pytest.raises(AssertionError):
        assert_unbiased(EpisodeTerms.of(BIG, wrong, critic(BIG, 0 * Q, 0 * V_Q), 1.0, 0.0), 0.0)


def test_no_critic_is_importance_sampling_of_each_decision():
    """Σ_t ρ_{0:t} γ^t r_t, and the same of the square of the return."""
    data, gamma = BIG[:50], 0.9
    nothing = np.zeros((N, ACTIONS))
    terms = EpisodeTerms.of(data, ratios(data), critic(data, nothing, nothing), gamma, 0.0)
    for k, episode in enumerate(data):
        rho, power = np.cumprod(ratios(episode)), gamma ** np.arange(episode.transitions)
        returns = np.cumsum(power * episode.rewards)
        assert terms.J[k] == pytest.approx(rho @ (power * episode.rewards), abs=1e-12)
        assert terms.S[k] == pytest.approx(rho @ np.diff(returns**2, prepend=0.0), abs=1e-11)
        assert terms.weight[k] == pytest.approx(rho[-1])
        assert terms.g[k] == pytest.approx(returns[-1])


def test_the_logging_policy_itself_has_the_moments_of_the_sample():
    """Target = log: all weights are 1; without critics to the digit, with them within the error."""
    data = log(P, R, MU, 2000, seed=4)
    found, returns = pr.LSTDQ(pr.Tabular(N), MU).doubly_robust(data, seed=0), data.returns()
    for moments in (found.per_decision, found.weighted):
        assert moments.mean == pytest.approx(returns.mean(), abs=1e-12)
        assert moments.variance == pytest.approx(returns.var(ddof=1), rel=1e-3)
    assert found.per_decision.variance == pytest.approx(returns.var(ddof=1), rel=1e-12)
    assert found.per_decision.mean.standard_error == pytest.approx(
        returns.std(ddof=1) / np.sqrt(2000), rel=1e-9
    )
    assert abs(found.mean - returns.mean()) < found.mean.standard_error
    assert abs(found.variance - returns.var(ddof=1)) < found.variance.standard_error
    assert found.effective_episodes == pytest.approx(2000)
    assert found.weights.mean == pytest.approx(1.0)


def test_errors_of_weighted_importance_sampling_are_those_of_small_changes():
    """Each episode's influence on Σ w g / Σ w and Σ w (g − m)² / Σ w, against differences."""
    rng = np.random.default_rng(3)
    w, g, centre, K = rng.exponential(size=40), rng.normal(5.0, 2.0, 40), 4.0, 40
    nothing = np.zeros(K)
    terms = EpisodeTerms(J=nothing, S=nothing, weight=w, g=g, f=(g - centre) ** 2)
    found = doubly_robust._weighted(terms, centre, effective=20.0, level=0.95)

    def moments(share):
        m = np.average(g, weights=share * w)
        return np.array([m, np.average((g - m) ** 2, weights=share * w)])

    assert [found.mean_value, found.variance_value] == pytest.approx(moments(np.ones(K)), rel=1e-12)
    steps = 1e-6 * np.eye(K)
    influences = K * np.array([(moments(1 + step) - moments(1 - step)) / 2e-6 for step in steps])
    np.testing.assert_allclose(found.covariance, influences.T @ influences / (K * (K - 1)), rtol=1e-6)


@pytest.mark.parametrize("variance", ["direct", "second-moment"])
def test_each_episode_is_judged_by_fits_to_other_folds(variance):
    """Slowly: fits without each fold, their public answers at states and pairs, and the equation."""
    data = log(P, R, MU, 600, seed=5)
    q, folds, seed = pr.LSTDQ(pr.Tabular(N), PI, discount=0.95, variance=variance), 3, 7
    found = q.doubly_robust(data, folds, seed=seed)
    fold = fold_of_episodes(0, len(data), folds, int(keys(seed)[0]))
    terms, x = np.empty((len(data), 2)), range(N)
    for k in range(folds):
        risk = q.fit(data[fold != k])
        J, M = np.append(risk.mean(x), 0.0), np.append(risk.second_moment(x), 0.0)
        Q_J = np.stack([risk.action_mean(x, a) for a in range(ACTIONS)], axis=1)
        Q_M = np.stack([risk.action_variance(x, a) for a in range(ACTIONS)], axis=1) + Q_J**2
        for i in np.flatnonzero(fold == k):
            terms[i] = by_the_equation(data[i], ratios(data[i]), J, M, Q_J, Q_M, 0.95)
    m, error = terms[:, 0].mean(), terms[:, 0].var(ddof=1) / len(data)
    v = terms[:, 1].mean() - m**2 + error
    assert found.mean == pytest.approx(m, abs=1e-9)
    assert found.mean.standard_error == pytest.approx(np.sqrt(error), rel=1e-9)
    assert found.variance == pytest.approx(v, abs=1e-8)
    influence = terms[:, 1] - 2 * m * terms[:, 0]
    assert found.variance.standard_error == pytest.approx(influence.std() / np.sqrt(len(data)), rel=0.01)
    assert found.model.mean == pytest.approx(q.fit(data).summary().mean, abs=1e-12)


def test_biased_features_are_found_out():
    """A line in the states is wrong; what the episodes add to it is right, and the two differ."""
    found = pr.LSTDQ(LINE, PI).doubly_robust(BIG[:20_000], seed=0)
    mean, second, _, _ = truth()
    assert abs(found.mean - mean) < 3 * found.mean.standard_error
    assert abs(found.variance - (second - mean**2)) < 3 * found.variance.standard_error
    assert abs(found.model.mean - mean) > 5 * found.model.mean.standard_error
    assert "mean" in found.apart
    assert any("features are biased" in note for note in found.notes)
    assert not any("not those of" in note for note in found.notes)


def test_wrong_propensities_are_found_out():
    """Their weights do not have mean 1, and a note says so."""
    data = replace(BIG[:4000], propensities=np.minimum(BIG[:4000].propensities * 1.1, 1.0))
    found = pr.LSTDQ(pr.Tabular(N), PI).doubly_robust(data, seed=0)
    assert any("propensities are not those of the log" in note for note in found.notes)


def test_unknown_pairs_are_valued_like_the_others():
    """J̃ = Σ π Q̃ and M̃ = Σ π Q̃_M over all actions, or a critic would not be taken off again."""
    mu, pi = MU.copy(), PI * 0.9
    mu[:, 2], pi[:, 2] = 0.0, PI[:, 2] * 0.1
    mu, pi = mu / mu.sum(axis=1, keepdims=True), pi / pi.sum(axis=1, keepdims=True)
    with pytest.warns(UncoveredWarning):
        risk = pr.LSTDQ(pr.Tabular(N), pi).fit(log(P, R, mu, 500, seed=6), error_bars=False)
    x, a = (each.ravel() for each in np.meshgrid(range(N), range(ACTIONS), indexing="ij"))
    pairs = pr.Trajectories(
        np.stack([x, x], axis=1).ravel(), np.zeros(x.size), np.ones(x.size, int), x < 0, actions=a
    )
    values = CriticValues.of(risk, pairs)
    J, V, Q, V_Q = values.J[::2], values.V[::2], values.Q, values.V_Q
    np.testing.assert_allclose((pi[x, a] * Q).reshape(N, -1).sum(axis=1), J[::ACTIONS], atol=1e-12)
    M = (pi[x, a] * (V_Q + Q**2)).reshape(N, -1).sum(axis=1)
    np.testing.assert_allclose(M, (V + J**2)[::ACTIONS], atol=1e-11)
    np.testing.assert_allclose(J[::ACTIONS], risk.mean(range(N)), atol=1e-12)
    np.testing.assert_array_equal(Q[a == 2], J[a == 2])


def test_streams_are_as_one_record():
    """Batches of any size."""
    data, q = log(P, R, MU, 300, seed=8, max_steps=6), pr.LSTDQ(pr.Tabular(N), PI)
    whole = q.doubly_robust(data, seed=1)
    parts = q.doubly_robust([data[:7], data[7:7], data[7:200], data[200:]], seed=1)
    for of, estimate in whole.quantities().items():
        assert parts.quantities()[of] == pytest.approx(estimate, abs=1e-9)
        assert parts.quantities()[of].standard_error == pytest.approx(estimate.standard_error, rel=1e-6)
    assert whole.cut_off == parts.cut_off > 0


@pytest.mark.parametrize("variance", ["direct", "second-moment"])
def test_what_completes_cut_off_episodes_moves_with_the_weights(variance):
    """The gradients that the errors take, against differences."""
    data, gamma = log(P, R, MU, 2000, seed=9, max_steps=3), 0.9
    q = pr.LSTDQ(pr.Tabular(N), PI, discount=gamma, variance=variance)
    risk = q.fit(data, bootstrap=10, seed=0)

    def sums(risk):
        found = FoldTerms.over(data, risk, q.policy, 0.0)
        return found, doubly_robust._sums(found.bare.J, found.bare.S, 0.0)

    found, own = sums(risk)
    bare = replace(found, terms=found.bare)
    gradients = doubly_robust._with_tails(own, bare, risk, np.arange(len(data)), 0.0).gradients
    for which, gradient in zip(("w_mean", "w_second"), gradients, strict=True):
        for i in (0, 4, 8):
            step = 1e-5 * np.eye(N * ACTIONS)[i]
            up, down = (sums(replace(risk, **{which: getattr(risk, which) + s}))[1] for s in (step, -step))
            assert gradient[0, i] == pytest.approx((up.mean - down.mean) / 2e-5, abs=1e-8)
            assert gradient[1, i] == pytest.approx((up.variance - down.variance) / 2e-5, abs=2e-3)


def test_errors_hold_those_of_what_completes_episodes():
    """Cut off after three steps, most of the return is LSTDQ's, and so is most of the error."""
    data = log(P, R, MU, 2000, seed=10, max_steps=3)
    found = pr.LSTDQ(pr.Tabular(N), PI).doubly_robust(data, seed=0)
    mean, second, _, _ = truth()
    assert abs(found.mean - mean) < 3 * found.mean.standard_error
    assert abs(found.variance - (second - mean**2)) < 3 * found.variance.standard_error
    for of in ("mean", "variance"):
        assert 0.8 < getattr(found, of).standard_error / getattr(found.model, of).standard_error < 1.3
    assert any("cut off" in note and "is in these intervals" in note for note in found.notes)


def test_episodes_cut_off_where_no_other_fold_was():
    """From state 0 one goes to state N, another stays there: one ends a step before, one is left out."""
    pi = np.vstack([PI, PI[0]])
    odd = [pr.Trajectories([[x], [N]], [1.0], [1], [False], actions=[0], propensities=[0.5]) for x in (0, N)]
    data = pr.Trajectories.concatenate([BIG[:2000], *odd])
    found = pr.LSTDQ(pr.Tabular(N + 1), pi, discount=0.9).doubly_robust(data, seed=0)
    assert (found.cut_off, found.shortened, found.unknown) == (1, 1, 1)
    mean, _, _, _ = truth(gamma=0.9)
    assert abs(found.mean - mean) < 3 * found.mean.standard_error


def test_features_without_error_bars(monkeypatch):
    """Sparse and many: the same estimate, and the errors of what completes episodes are not known."""
    data, q = log(P, R, MU, 1000, seed=12, max_steps=6), pr.LSTDQ(pr.Tabular(N), PI)
    dense = q.doubly_robust(data, seed=0)
    monkeypatch.setattr(moment_equations, "DENSE_MOST", 10)
    sparse = q.doubly_robust(data, seed=0)
    assert sparse.variance == pytest.approx(dense.variance, rel=1e-6)
    assert sparse.mean.standard_error < dense.mean.standard_error
    assert any("whose error is not in the intervals" in note for note in sparse.notes)


def test_a_target_that_nobody_logged_is_refused():
    """As by the summary of LSTDQ."""
    mu, pi = np.tile([0.5, 0.5, 0.0], (N, 1)), np.tile([0.3, 0.3, 0.4], (N, 1))
    with pytest.warns(UncoveredWarning), pytest.raises(UncoveredError, match="never logged"):
        pr.LSTDQ(pr.Tabular(N), pi).doubly_robust(log(P, R, mu, 500, seed=13), seed=0)


def test_few_effective_episodes_are_said():
    """A target that is far from the log leaves a handful of episodes."""
    mu = np.tile([0.9, 0.05, 0.05], (N, 1))
    data = log(P, R, mu, 400, seed=11)
    with pytest.warns(FewEpisodesWarning, match="leave the worth of"):
        found = pr.LSTDQ(pr.Tabular(N), np.tile([0.05, 0.9, 0.05], (N, 1))).doubly_robust(data, seed=0)
    w = np.multiply.reduceat(ratios(data, np.tile([0.05, 0.9, 0.05], (N, 1))), data.offsets[:-1])
    assert found.effective_episodes == pytest.approx(w.sum() ** 2 / (w**2).sum())
    assert "LSTDQ's are to be preferred" in found.notes[0]
    plain = json.loads(json.dumps(found.to_dict()))
    assert plain["effective_episodes"] == found.effective_episodes
    assert plain["weighted"]["mean"]["value"] == found.weighted.mean


def test_bad_input():
    """What is missing is named, before anything is fitted."""
    data, q = BIG[:20], pr.LSTDQ(pr.Tabular(N), PI)
    with pytest.raises(InvalidInputError, match="data must hold propensities"):
        q.doubly_robust(replace(data, propensities=None))
    with pytest.raises(InvalidInputError, match="at least folds=4 episodes, got 3"):
        q.doubly_robust(data[:3])
    with pytest.raises(InvalidInputError, match="folds must be"):
        q.doubly_robust(data, folds=1)
    for tiny in (1e-80, 1e-10):
        with pytest.raises(InvalidInputError, match="overflow"):
            q.doubly_robust(replace(BIG[:2000], propensities=np.full(BIG[:2000].transitions, tiny)))

    class Noisy:
        def sample(self, states, seed):
            return states[:, :1]

    moved = replace(data, actions=data.actions[:, None].astype(float))
    sampled = pr.LSTDQ(pr.ActionFeatures(pr.Polynomial(1, low=[0, 0], high=[N, ACTIONS])), Noisy())
    with pytest.raises(InvalidInputError, match="must tell its probabilities"):
        sampled.doubly_robust(moved)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::policyrisk.errors.FewEpisodesWarning")  # one data set in some hundreds
@pytest.mark.parametrize("case", ["table", "cut off", "line"])
def test_intervals_cover(case):
    """Nominal 95 % intervals, whether the features are right, wrong, or complete what was cut off."""
    mean, second, _, _ = truth()
    q = pr.LSTDQ(LINE if case == "line" else pr.Tabular(N), PI)
    held, found = [], []
    for seed in range(400):
        data = log(P, R, MU, 1000, seed=20_000 + seed, max_steps=4 if case == "cut off" else 200)
        s = q.doubly_robust(data, seed=seed)
        held.append((s.mean.low < mean < s.mean.high, s.variance.low < second - mean**2 < s.variance.high))
        found.append((s.mean, s.variance))
    assert (np.abs(np.mean(held, axis=0) - 0.95) < 0.04).all()
    z = (np.mean(found, axis=0) - [mean, second - mean**2]) / (np.std(found, axis=0) / np.sqrt(400))
    assert (np.abs(z) < 3.5).all()
