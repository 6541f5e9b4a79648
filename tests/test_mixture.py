"""Several estimates mixed into one: values, shares, error bars and full intervals, each by hand."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from conftest import dense
from scipy import stats

import policyrisk as pr
from policyrisk._core.random import keys, mammen
from policyrisk.errors import InvalidInputError, MismatchError
from policyrisk.lstd.definition import Definition
from policyrisk.passes import here
from policyrisk.passes.checkpoint import DurableReduce
from policyrisk.risk.estimate import Estimate, ratio
from policyrisk.risk.mixture import Widening
from policyrisk.risk.state_estimates import member_picks

VISITED = np.arange(0, 16, 2)  # the table knows these
BETWEEN = VISITED + 1  # only tiles of two states each know these
NOWHERE = np.array([16, 17, 19])
STATES = np.concatenate([VISITED, BETWEEN, NOWHERE])
MAPS = (
    pr.Tabular(20),
    pr.TileCoding([0], [20], bins=10),
    pr.Polynomial(degree=1, low=[0], high=[14]),
    pr.TileCoding([0], [20], bins=4),
)
FEW = pytest.mark.filterwarnings("ignore::policyrisk.errors.FewEpisodesWarning")


def episodes(K=150, seed=0):
    """States that are drawn anew at every step; rewards grow with the state, and so does their noise."""
    rng = np.random.default_rng(seed)
    lengths = rng.geometric(0.4, K)
    states = 2 * rng.integers(0, 8, lengths.sum() + K)
    left = states[np.delete(np.arange(len(states)), np.cumsum(lengths + 1) - 1)]
    rewards = left + (1 + left / 5) * rng.normal(size=len(left))
    return pr.Trajectories(states, rewards, lengths, np.ones(K, bool))


DATA = episodes()


def fits(variance="direct", bootstrap=0, seed=0, maps=MAPS, data=DATA, **settings):
    bars = {"bootstrap": bootstrap, "seed": seed} if bootstrap else {}
    return [pr.LSTD(phi, variance=variance, **settings).fit(data, **bars) for phi in maps]


def mixed(members, shares, of):
    """The members that know each state, by their shares; nan where none does."""
    values = []
    for x in member_values(members, of).T:
        known = ~np.isnan(x)
        total = np.array(shares)[known].sum()
        values.append(np.array(shares)[known] @ x[known] / total if total > 0 else np.nan)
    return np.array(values)


def member_values(members, of, states=STATES):
    return np.array([getattr(member, of)(states) for member in members])


@pytest.mark.parametrize("a", [(0.2, 0.3, 0, 0.5), (0.5, 0.5, 0, 0), (0, 1, 0, 0), (2, 6, 0, 8)])
def test_means_and_variances_by_hand(a):
    members, b = fits(), (0.1, 0.6, 0, 0.3)
    both = pr.RiskFunction.mixture(members, a, b)
    np.testing.assert_allclose(both.mean(STATES), mixed(members, a, "mean"), rtol=1e-12)
    np.testing.assert_allclose(both.std(VISITED), np.sqrt(both.variance(VISITED)))
    # Where a state is unknown to all that have a share in either, nothing is said.
    V = np.where(np.isnan(mixed(members, a, "mean")), np.nan, mixed(members, b, "variance"))
    np.testing.assert_allclose(both.variance(STATES), V, rtol=1e-12)
    assert np.isnan(both.mean(NOWHERE[1:])).all()
    assert not np.isnan(both.mean(VISITED)).any()


def test_no_member_takes_variance_away():
    members = fits(bootstrap=50)
    members[1] = replace(members[1], w_second=-members[1].w_second)
    shares = np.array([0.2, 0.3, 0.0, 0.5])
    both = pr.RiskFunction.mixture(members, shares, shares, widening=Widening())
    V = np.array([member.variance(VISITED) for member in members])
    assert (V[1] < 0).all()
    np.testing.assert_allclose(both.variance(VISITED), 0.2 * V[0] + 0.5 * V[3], rtol=1e-12)
    assert (both.standard_error(VISITED, of="variance") > 0).all()
    assert both.start_sums(VISITED).negative == 0
    # Between them the table knows nothing, and the last of those only the member that is below 0 knows.
    V = np.array([member.variance(BETWEEN) for member in members])
    np.testing.assert_allclose(both.variance(BETWEEN), np.append(0.5 / 0.8 * V[3, :-1], V[1, -1]), rtol=1e-12)


@FEW
def test_where_all_variances_are_below_zero_the_std_is_zero():
    below = [replace(member, w_second=-member.w_second) for member in fits(bootstrap=50)]
    shares = (0.2, 0.3, 0.0, 0.5)
    both = pr.RiskFunction.mixture(below, shares, shares, widening=Widening())
    V = np.array([member.variance(VISITED) for member in below])
    np.testing.assert_allclose(both.variance(VISITED), shares @ V, rtol=1e-12)
    assert (both.variance(VISITED) < 0).all()
    with pytest.warns(pr.errors.NegativeVarianceWarning, match="where std is 0"):
        np.testing.assert_array_equal(both.std(VISITED), 0)
    t = stats.t.ppf(0.975, np.maximum(both.episodes(VISITED) - 1, 1))
    with pytest.warns(pr.errors.NegativeVarianceWarning):
        low, high = both.interval(VISITED, "std").T
    np.testing.assert_array_equal(low, 0)
    (part,) = both.parts(VISITED, 50)
    moved = np.sqrt(np.square(part.moves(both.error_bars)[1]).mean(axis=1))
    assert (moved > both.standard_error(VISITED, of="variance")).any()
    np.testing.assert_allclose(high, np.sqrt(np.e * t * moved), rtol=1e-9)
    with pytest.warns(pr.errors.NegativeVarianceWarning, match="are nan"):
        assert np.isnan(replace(both, widening=None).std(VISITED)).all()


def test_a_member_that_knows_more_speaks_alone():
    table, tiles, _, _ = fits()
    both = pr.RiskFunction.mixture([table, tiles], [0.9, 0.1], [0.9, 0.1])
    assert np.isnan(table.mean(BETWEEN)).all()
    np.testing.assert_allclose(both.mean(BETWEEN), tiles.mean(BETWEEN), rtol=1e-12)
    np.testing.assert_allclose(both.variance(BETWEEN), tiles.variance(BETWEEN), rtol=1e-12)
    np.testing.assert_array_equal(both.visited(STATES), table.visited(STATES) | tiles.visited(STATES))
    np.testing.assert_allclose(both.episodes(BETWEEN), tiles.episodes(BETWEEN))
    expected = 0.9 * table.episodes(VISITED) + 0.1 * tiles.episodes(VISITED)
    np.testing.assert_allclose(both.episodes(VISITED), expected)


def test_it_is_linear_in_the_weights_side_by_side():
    table, tiles, line, _ = fits()
    both = pr.RiskFunction.mixture([table, tiles, line], [1, 0, 3], [0, 1, 1])
    np.testing.assert_array_equal(both.w_mean, np.append(0.25 * table.w_mean, 0.75 * line.w_mean))
    np.testing.assert_array_equal(both.w_second, np.append(0.5 * tiles.w_second, 0.5 * line.w_second))
    assert both.features == pr.Joint([MAPS[0], MAPS[2]])
    assert both.second_features == pr.Joint([MAPS[1], MAPS[2]])
    np.testing.assert_allclose(dense(both.features(VISITED)) @ both.w_mean, both.mean(VISITED))


def test_second_moments_are_mixed_as_the_means():
    members, a = fits("second-moment"), (0.2, 0.3, 0, 0.5)
    both = pr.RiskFunction.mixture(members, a)
    J, M = (mixed(members, a, of) for of in ("mean", "second_moment"))
    np.testing.assert_allclose(both.second_moment(STATES), M, rtol=1e-12)
    np.testing.assert_allclose(both.variance(STATES), M - J**2, rtol=1e-9)


@FEW
def test_members_say_the_same():
    """A member mixed with itself is itself, error bars included; one alone keeps the covariance."""
    member = fits(bootstrap=50)[1]
    twice = pr.RiskFunction.mixture([member, member], [0.3, 0.7], [0.5, 0.5])
    once = pr.RiskFunction.mixture([member], [5.0], [5.0])
    replicates = member.error_bars.replicates
    for of in ("mean", "variance", "std", "sharpe"):
        np.testing.assert_allclose(
            getattr(twice, of)(VISITED[:, None]), getattr(member, of)(VISITED[:, None]), rtol=1e-12
        )
        np.testing.assert_array_equal(once.interval(VISITED, of), member.interval(VISITED, of))
        np.testing.assert_allclose(
            twice.interval(VISITED, of, method="bootstrap", level=0.8),
            member.interval(VISITED, of, method="bootstrap", level=0.8),
            rtol=1e-5,  # replicates are float32
        )
    phi = dense(member.features(VISITED))[:, member.error_bars.mean_kept]
    moved = phi @ replicates[:, : phi.shape[1]].T
    np.testing.assert_allclose(
        twice.standard_error(VISITED, "mean"), np.sqrt((moved**2).mean(axis=1)), rtol=1e-6
    )


@pytest.mark.parametrize("variance", ["direct", "second-moment"])
def test_error_bars_are_those_of_the_jackknife(variance):
    """The whole mixture fitted without each episode and with it twice: no influence, no multiplier, no Σ.

    Half the difference of the two is the episode's influence, up to third order.
    """
    a, b = (0.3, 0.4, 0.0, 0.3), (0.2, 0.2, 0.0, 0.6) if variance == "direct" else None
    both = pr.RiskFunction.mixture(fits(variance, bootstrap=4000), a, b)
    K = len(DATA)

    def refitted(which):
        members = [pr.LSTD(phi, variance=variance).fit(DATA[which], error_bars=False) for phi in MAPS]
        risk = pr.RiskFunction.mixture(members, a, b)
        return np.array([getattr(risk, of)(VISITED) for of in quantities])

    quantities = ("mean", "variance", "std", "sharpe")
    order = np.arange(K)
    moved = [refitted(np.append(order, k)) - refitted(np.delete(order, k)) for k in range(K)]
    errors = np.sqrt(np.square(np.array(moved) / 2).sum(axis=0))
    for of, error in zip(quantities, errors, strict=True):
        # 4,000 draws know it to 1.1 %.
        np.testing.assert_allclose(both.standard_error(VISITED, of), error, rtol=0.045, err_msg=of)


def test_errors_of_a_joint_covariance():
    """Members with blocks of their own: Σ of the stacked weights is that of all influences together.

    With γ = 0 and a table, J at a state is the mean reward there, and the influence of an episode its sum of
    (r − mean)/n. Tiles of two states with one of them visited are the same table again.
    """
    table, tiles, _, coarse = fits(bootstrap=4000, discount=1e-300, maps=MAPS)
    both = pr.RiskFunction.mixture([table, tiles, coarse], [0.25, 0.25, 0.5], [1, 0, 0])
    x = DATA.states[DATA.visited_rows].ravel()
    episode = np.repeat(np.arange(len(DATA)), DATA.lengths)

    def influences(group):
        n = np.bincount(group)
        mean = np.bincount(group, DATA.rewards) / np.maximum(n, 1)
        table = np.zeros((len(DATA), n.size))
        np.add.at(table, (episode, group), (DATA.rewards - mean[group]) / n[group])
        return table

    fine, rough = influences(x // 2), influences(x // 5)
    together = 0.5 * fine[:, VISITED // 2] + 0.5 * rough[:, VISITED // 5]
    error = np.sqrt(np.square(together).sum(axis=0))
    np.testing.assert_allclose(both.standard_error(VISITED, "mean"), error, rtol=0.05)
    apart = np.sqrt(np.square(fine[:, VISITED // 2]).sum(axis=0))
    assert (np.abs(apart / error - 1) > 0.1).any()  # what the test could not tell otherwise


@pytest.mark.parametrize("variance", ["direct", "second-moment"])
@FEW
@pytest.mark.parametrize("widening", [Widening(), Widening(1.2, 1.5)])
def test_full_intervals_by_hand(variance, widening):
    """Draw by draw and state by state, with the members that the draws take."""
    members, a = fits(variance, bootstrap=100), np.array([0.3, 0.4, 0.0, 0.3])
    b = np.array([0.2, 0.2, 0.0, 0.6]) if variance == "direct" else a
    both = pr.RiskFunction.mixture(members, a, b if variance == "direct" else None, widening=widening)
    states = np.concatenate([VISITED, BETWEEN])
    J, V, e = both.mean(states), both.variance(states), both.episodes(states)
    t = stats.t.ppf(0.95, np.maximum(e - 1, 1))
    J_i, V_i = member_values(members, "mean", states), member_values(members, "variance", states)
    (part,) = both.parts(states, 100)
    dJ, dV = both.error_bars.deviations(part.phi_mean, part.phi_second)
    if variance == "second-moment":
        dV = dV - 2 * J[:, None] * dJ
    E = np.empty((2, len(states), 100))
    for k, (shares, said, value, moved, c) in enumerate(
        [(a, J_i, J, dJ, widening.mean), (b, V_i, V, dV, widening.variance)]
    ):
        shared = np.flatnonzero(shares)
        picks = shared[member_picks(shares[shared], 100, k)]
        for i in range(len(states)):
            know = shares[shared][~np.isnan(said[shared, i])].sum()
            apart = np.nan_to_num(said[picks, i] - value[i]) / np.sqrt(know)
            E[k, i] = 2 * apart + c * moved[i]
    error = np.sqrt(np.square(E).mean(axis=2))
    mean = J - t * error[0], J + t * error[0]
    far = t * error[1] / V
    low, high = (
        V * np.maximum(1 - far / 3, 0) ** 3,
        V * np.where(far < 1, np.exp(np.minimum(far, 1)), np.e * far),
    )
    expected = {"mean": mean, "variance": (low, high), "std": (np.sqrt(low), np.sqrt(high))}
    drawn = V[:, None] * np.exp(np.clip(E[1] / V[:, None], -2, 2)) + (J[:, None] + E[0]) ** 2
    half = t * np.sqrt(np.square(drawn - (V + J**2)[:, None]).mean(axis=1))
    expected["second_moment"] = V + J**2 - half, V + J**2 + half
    for of, ends in expected.items():
        np.testing.assert_allclose(both.interval(states, of, level=0.9), np.column_stack(ends), rtol=1e-8)
    rho = (E[0] * E[1]).mean(axis=1) / error[0] / error[1]
    for i, (low, high) in enumerate(both.interval(states, "sharpe", level=0.9)):
        m = Estimate(J[i], 0, *np.array(mean)[:, i])
        s = Estimate(np.sqrt(V[i]), 0, *np.array(expected["std"])[:, i])
        np.testing.assert_allclose((low, high), ratio(m, s, rho[i]), rtol=1e-8)
    assert np.isnan(both.interval(NOWHERE[1:], "std")).all()
    narrow, wide = both.interval(VISITED, "mean", method="student"), both.interval(VISITED, "mean")
    assert (wide[:, 0] < narrow[:, 0]).all()
    assert (wide[:, 1] > narrow[:, 1]).all()


@FEW
def test_some_of_the_states_have_the_draws_that_they_have_among_all():
    both = pr.RiskFunction.mixture(
        fits(bootstrap=20), [1, 1, 0, 1], [0, 1, 2, 1], widening=Widening(1.2, 1.5)
    )
    (at,) = both.parts(VISITED, 20)
    which = np.arange(len(VISITED)) % 3 == 1
    expected = [moved[which] for moved in at.moves(both.error_bars)]
    np.testing.assert_array_equal(at.some(which).moves(both.error_bars), expected)
    (again,) = both.parts(VISITED[which], 20)
    np.testing.assert_allclose(again.moves(both.error_bars), expected, rtol=1e-6, atol=1e-9)


def test_without_widening_there_are_no_full_intervals():
    both = pr.RiskFunction.mixture(fits(bootstrap=20), [1, 1, 1, 1], [1, 1, 1, 1])
    with pytest.raises(InvalidInputError, match='method="full" needs to know what the features miss'):
        both.interval(VISITED, of="std", method="full")


@FEW
@pytest.mark.parametrize("variance", ["direct", "second-moment"])
def test_saved_and_loaded(tmp_path, variance):
    members = fits(variance, bootstrap=30)
    b = [0, 1, 0, 1] if variance == "direct" else None
    risk = pr.RiskFunction.mixture(members, [1, 2, 0, 3], b, widening=Widening(1.3, 1.7))
    risk.save(tmp_path / "risk.npz")
    again = pr.RiskFunction.load(tmp_path / "risk.npz")
    assert again.widening == risk.widening
    assert again.features == risk.features
    assert again.provenance == risk.provenance
    assert str(again) == str(risk)
    for of in ("mean", "second_moment", "variance", "std", "sharpe"):
        np.testing.assert_array_equal(getattr(again, of)(STATES), getattr(risk, of)(STATES))
        for method in ("full", "student", "bootstrap"):
            found, before = (each.interval(STATES, of, 0.8, method) for each in (again, risk))
            np.testing.assert_array_equal(found, before)


@FEW
def test_error_bars_only_where_they_were_drawn_together():
    table, tiles = fits(bootstrap=30)[:2]
    assert pr.RiskFunction.mixture([table, tiles], [1, 1], [1, 1]).error_bars.key == table.error_bars.key
    unlike = {
        "seed": fits(bootstrap=30, seed=1)[1],
        "draws": fits(bootstrap=20)[1],
        "none": fits()[1],
        "no bars": pr.LSTD(MAPS[1], variance="direct").fit(DATA, error_bars=False),
    }
    for name, other in unlike.items():
        for shares in itertools.permutations([(1, 1), (1, 0)]):
            assert pr.RiskFunction.mixture([table, other], *shares).error_bars is None, name
        alone = pr.RiskFunction.mixture([table, other], [1, 0], [1, 0])
        np.testing.assert_array_equal(alone.interval(VISITED, of="std"), table.interval(VISITED, of="std"))


def test_what_is_known_of_the_members_together():
    table, tiles, line, _ = fits()
    both = pr.RiskFunction.mixture([table, tiles, line], [1, 1, 1], [1, 1, 1])
    assert both.provenance.estimator == "mixture"
    assert both.provenance.episodes == len(DATA)
    assert both.provenance.redundant == max(each.provenance.redundant for each in (table, tiles, line))
    assert both.returns == table.returns
    assert both.error_bars is None


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ([1], "mean_shares must be 2 numbers, one for each member"),
        ([1, 1, 1], "mean_shares must be 2 numbers"),
        ([1, -0.1], "not negative and not all 0"),
        ([0, 0], "not negative and not all 0"),
        ([1, np.nan], "mean_shares must be finite"),
        ([[1, 1]], "mean_shares must have shape"),
        (["a", "b"], "mean_shares must be numbers"),
    ],
)
def test_bad_shares(shares, message):
    members = fits()[:2]
    with pytest.raises(InvalidInputError, match=message):
        pr.RiskFunction.mixture(members, shares, [1, 1])
    with pytest.raises(InvalidInputError, match=message.replace("mean", "variance")):
        pr.RiskFunction.mixture(members, [1, 1], shares)


def test_what_cannot_be_mixed():
    direct, paper = fits()[:2], fits("second-moment")[:2]
    with pytest.raises(InvalidInputError, match="members must be at least one RiskFunction"):
        pr.RiskFunction.mixture([], [])
    for members, b in [([direct[0], paper[1]], [1, 1]), ([direct[0], paper[1]], None), (paper, [1, 1])]:
        with pytest.raises(InvalidInputError, match="members must all have variance='direct'"):
            pr.RiskFunction.mixture(members, [1, 1], b)
    both = pr.RiskFunction.mixture(direct, [1, 1], [1, 1])
    with pytest.raises(InvalidInputError, match="members must not be mixtures themselves"):
        pr.RiskFunction.mixture([both, direct[0]], [1, 1], [1, 1])
    others = [
        pr.LSTD(MAPS[1], variance="direct").fit(DATA[:100]),
        pr.LSTD(MAPS[1], variance="direct", discount=0.9).fit(DATA),
    ]
    for other in others:
        with pytest.raises(MismatchError, match="members must be of one discount and of the same episodes"):
            pr.RiskFunction.mixture([direct[0], other], [1, 1], [1, 1])


def test_members_that_gave_up_whole_episodes_are_mixed():
    """A table gives up an episode of one step that ends where nobody set out from; a polynomial does not."""
    whole = pr.domains.walk(n=12, p=0.7).sample(0, episodes=300, seed=1)
    short = pr.Trajectories([[3], [20], [4], [21]], [-1.0, -1.0], [1, 1], [False, False])
    data = pr.Trajectories.concatenate([whole, short])
    maps = pr.Tabular(22), pr.Polynomial(2, [0], [21])
    table, parabola = (pr.LSTD(each, variance="direct").fit(data, bootstrap=20, seed=0) for each in maps)
    assert (table.provenance.episodes, parabola.provenance.episodes) == (300, 302)
    mixed = pr.RiskFunction.mixture([table, parabola], [0.5, 0.5])
    assert mixed.provenance.episodes == 302
    np.testing.assert_allclose(mixed.mean([3]), (table.mean([3]) + parabola.mean([3])) / 2, rtol=1e-12)


def lone_ends(episodes=120):
    """A walk's episodes, and among them others of one step that end where nobody set out from."""
    walk = pr.domains.walk(n=6, p=0.7).sample(0, episodes=episodes, seed=1)
    alone = [pr.Trajectories([[k % 6], [7]], [-5.0 + k], [1], [False]) for k in range(4)]
    parts = [alone[0], walk[:30], alone[1], alone[2], walk[30:70], alone[3], walk[70:]]
    return parts, np.cumsum([0, *map(len, parts)])[[0, 2, 3, 5]]


def in_parts(*sources):
    return lambda work: sum((work(s, k) for k, s in enumerate(sources[1:], 1)), start=work(sources[0], 0))


@pytest.mark.parametrize("split", ["one", "stream", "parts", "batches", "checkpoint"])
def test_an_episode_has_the_same_multipliers_whatever_others_give_up(split, tmp_path):
    """The replicates are Σ ξ_kb (ψ_k − ψ̄) of influences written out, k being the number in all the data."""
    parts, gone = lone_ends()
    data = pr.Trajectories.concatenate(parts)
    K, B = len(data), 6
    reduce = {
        "one": here(data),
        "stream": here(parts),
        "parts": in_parts(parts[:3], parts[3:4], parts[4:]),
        "batches": in_parts(*parts),
        "checkpoint": DurableReduce(parts, tmp_path / "c.npz", {}, resume=False),
    }[split]
    xi = np.empty((K, B))
    mammen(*keys(3), np.arange(K), xi)
    for phi, kept in ((pr.Tabular(8), np.delete(np.arange(K), gone)), (pr.Polynomial(1, [0], [7]), range(K))):
        risk = pr.LSTD(phi, variance="direct").fit_by(reduce, bootstrap=B, seed=3)
        reduce = here(data) if split == "checkpoint" else reduce
        assert risk.provenance.episodes == len(kept)
        influences = Definition(phi, phi, 0.9, 1.0, direct=True).influences
        psi = np.hstack(influences(data[kept], risk.w_mean, risk.w_second)) / len(kept)
        psi = (psi - psi.mean(axis=0)) * np.sqrt(len(kept) / (len(kept) - 1))
        bars = risk.error_bars
        columns = np.concatenate([bars.mean_kept, phi.size + bars.second_kept])
        np.testing.assert_allclose(bars.replicates, (xi[kept].T @ psi)[:, columns], rtol=1e-7, atol=1e-9)


def test_errors_of_members_that_gave_up_other_episodes():
    """Against every episode's influence on the mixture, 0 on a member that gave the episode up."""
    parts, gone = lone_ends()
    data = pr.Trajectories.concatenate(parts)
    K, x = len(data), np.arange(6)
    maps = pr.Tabular(8), pr.Polynomial(1, [0], [7])
    table, line = (pr.LSTD(phi, variance="direct").fit(data, bootstrap=4000, seed=0) for phi in maps)
    mixed = pr.RiskFunction.mixture([table, line], [0.5, 0.5])
    moved = np.zeros((K, len(x)))
    for risk, kept in ((table, np.delete(np.arange(K), gone)), (line, np.arange(K))):
        phi = risk.features
        psi, _ = Definition(phi, phi, 0.9, 1.0, direct=True).influences(
            data[kept], risk.w_mean, risk.w_second
        )
        psi = (psi - psi.mean(axis=0)) / np.sqrt(len(kept) * (len(kept) - 1))
        moved[kept] += 0.5 * psi @ dense(phi(x)).T
    # 4,000 draws know it to 1.1 %.
    np.testing.assert_allclose(mixed.standard_error(x, "mean"), np.sqrt((moved**2).sum(axis=0)), rtol=0.045)
