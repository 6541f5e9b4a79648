"""The summary over all starts of the data, against the summary of the starts themselves."""

from dataclasses import replace

import numpy as np
import pytest

import policyrisk as pr
from policyrisk.errors import InvalidInputError
from policyrisk.passes.checkpoint import DurableReduce
from policyrisk.risk.start_sums import StartSums

N = 12
MAPS = {
    "table": (pr.Tabular(N), pr.Tabular(N)),
    "tiles": (pr.TileCoding([0], [N], bins=[5], tilings=3),) * 2,
    "dense": (pr.Polynomial(1, [0], [N]), pr.Polynomial(2, [0], [N])),
    "mixed": (pr.Polynomial(2, [0], [N]), pr.Tabular(N)),
}


CHAIN = pr.domains.walk(n=N, p=0.6)


def walks(episodes=60, seed=0, most=None):
    """Episodes from several states, a few of them cut off."""
    parts = [CHAIN.sample(start, episodes // 3, seed=seed + start, max_steps=most) for start in (0, 5, 9)]
    return pr.Trajectories.concatenate(parts)


def assert_same(summary, truth):
    """The estimator's average over the data's own starts is that over the starts themselves."""
    found = summary.model
    counts = (summary.starts, summary.unvisited, summary.negative)
    assert counts == (truth.starts, truth.unvisited, truth.negative)
    for name in ("mean", "variance", "std", "sharpe"):
        ours, theirs = getattr(found, name), getattr(truth, name)
        for field in ("value", "standard_error", "low", "high"):
            assert getattr(ours, field) == pytest.approx(getattr(theirs, field), rel=1e-9), (name, field)
    assert found.episodes == pytest.approx(truth.episodes, rel=1e-12)
    np.testing.assert_allclose(found.covariance, truth.covariance, rtol=1e-9)


@pytest.mark.parametrize("method", ["second-moment", "direct"])
@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("most", [None, 25], ids=["terminated", "cut off"])
def test_summary_over_the_datas_own_starts(method, name, most):
    data = walks(most=most)
    risk = pr.LSTD(*MAPS[name], discount=0.95, variance=method).fit(
        [data[:1], data[1:1], data[1:17], data[17:]]
    )
    truth = risk.summary(data.starts(), level=0.9)
    assert truth.starts == len(data)
    assert_same(risk.summary(level=0.9), truth)


@pytest.mark.filterwarnings("ignore::policyrisk.errors.NegativeVarianceWarning")
def test_starts_whose_episodes_gave_everything_up_are_looked_at_like_any_other():
    """3 is only ever ended in, 2 and 4 only lead there; 1 is known, though one episode from it vanished."""
    states = [0, 1, 9, 1, 0, 9, 2, 3, 4, 2, 3, 1, 3, 0, 1, 9]
    lengths, ends = [2, 2, 1, 2, 1, 2], [True, True, False, False, False, True]
    data = pr.Trajectories(states, np.arange(1.0, 11.0), lengths, ends)
    data = pr.Trajectories.concatenate([data, *[data[[0, 1, 5]]] * 40])
    for variance in ("second-moment", "direct"):
        risk = pr.LSTD(pr.Tabular(5), lam=0.5, variance=variance).fit(data)
        assert risk.provenance.given_up == 4
        assert risk.provenance.episodes == 123
        found = risk.summary()
        assert (found.starts, found.unvisited) == (126, 2)
        assert_same(found, risk.summary(data.starts()))


def test_starts_out_of_every_basis_functions_reach_are_counted_as_unvisited():
    narrow = pr.FunctionFeatures(lambda x: np.eye(N)[x[:, 0].astype(int)] * (x[:, :1] < 9), size=N)
    data = walks()
    risk = pr.LSTD(narrow).fit(data)
    assert risk.summary().unvisited == 20
    assert_same(risk.summary(), risk.summary(data.starts()))


def test_negative_variances_of_starts_are_counted():
    chain = pr.domains.walk(30)
    lstd = pr.LSTD(*(pr.Polynomial(degree, [0], [29]) for degree in (1, 2)), lam=0.95)
    data = pr.Trajectories.concatenate([chain.sample(x, episodes=200, seed=x) for x in (0, 29)])
    risk = lstd.fit(data)
    assert risk.summary().negative == 200
    assert_same(risk.summary(), risk.summary(data.starts()))


def test_many_features_have_starts_without_error_bars(monkeypatch):
    monkeypatch.setattr("policyrisk.equations.moment_equations.DENSE_MOST", 4)
    data = walks()
    with pytest.warns(pr.errors.NoErrorBarsWarning):
        risk = pr.LSTD(pr.Tabular(N)).fit(data)
    found, truth = risk.summary(), risk.summary(data.starts())
    model = found.model
    assert (model.mean.value, model.variance.value) == pytest.approx((truth.mean.value, truth.variance.value))
    assert (found.starts, model.episodes) == pytest.approx((truth.starts, truth.episodes))
    assert found.mean.standard_error == pytest.approx(data.returns().std(ddof=1) / np.sqrt(len(data)))
    assert not model.known
    with pytest.warns(pr.errors.NoErrorBarsWarning):
        cut = pr.LSTD(pr.Tabular(N)).fit(walks(most=25)).summary()
    assert not cut.known, "the tails' errors are not known"
    assert np.isfinite(cut.mean_value)


def test_a_stream_of_single_episodes_looks_at_many_starts_together(monkeypatch):
    looks = 0
    start_sums = pr.RiskFunction.start_sums

    def counted(self, starts, **options):
        nonlocal looks
        looks += 1
        return start_sums(self, starts, **options)

    monkeypatch.setattr(pr.RiskFunction, "start_sums", counted)
    monkeypatch.setattr("policyrisk.lstd.influences.EPISODES", 20)
    data = walks()
    risk = pr.LSTD(pr.Tabular(N)).fit(list(data))
    assert looks == 3
    assert_same(risk.summary(), risk.summary(data.starts()))


def test_starts_survive_files_and_checkpoints(tmp_path):
    data = walks()
    lstd = pr.LSTD(*MAPS["dense"], variance="direct")
    risk = lstd.fit(data)
    risk.save(tmp_path / "risk.npz")
    assert str(pr.RiskFunction.load(tmp_path / "risk.npz").summary()) == str(risk.summary())
    replace(risk, starts=None).save(tmp_path / "old.npz")
    old = pr.RiskFunction.load(tmp_path / "old.npz")
    assert str(old.summary(data.starts())) == str(risk.summary(data.starts()))

    source, where = [data[:20], data[20:50], data[50:]], tmp_path / "checkpoint.npz"
    reduce = DurableReduce(source, where, {}, resume=False)
    whole = lstd.fit_by(reduce)
    reduce.checkpoint.save(reduce._state)
    again = lstd.fit_by(DurableReduce(source[:1], where, {}, resume=True))
    assert str(again.summary()) == str(whole.summary())
    assert_same(again.summary(), risk.summary(data.starts()))


@pytest.mark.parametrize("make", ["TD", "solve", "fit_exact", "no error bars"])
def test_estimates_without_starts_of_their_own_say_so(make):
    lstd, data = pr.LSTD(pr.Tabular(N)), walks()
    risk = {
        "TD": lambda: pr.TD(pr.Tabular(N)).fit(data),
        "solve": lambda: lstd.solve(lstd.equations(data)),
        "fit_exact": lambda: lstd.fit_exact(CHAIN),
        "no error bars": lambda: lstd.fit(data, error_bars=False),
    }[make]()
    with pytest.raises(InvalidInputError, match=r"starts must be passed.*pass data.starts\(\)"):
        risk.summary()
    assert risk.summary(data.starts()).starts == len(data)


def test_weights_need_starts():
    with pytest.raises(InvalidInputError, match="weights must come with starts"):
        pr.LSTD(pr.Tabular(N)).fit(walks()).summary(weights=[1.0])


def test_sums_add_in_any_order():
    data = walks()
    risk = pr.LSTD(*MAPS["dense"], variance="direct").fit(data)
    parts = [risk.start_sums(data[a:b].starts()) for a, b in ((0, 7), (7, 8), (8, 60))]
    nothing = StartSums.empty(risk.w_mean.size, risk.w_second.size)
    for sums in (parts[0] + parts[1] + parts[2], parts[2] + (parts[0] + nothing) + parts[1]):
        for name, truth in vars(risk.starts).items():
            np.testing.assert_allclose(getattr(sums, name), truth, rtol=1e-9, atol=1e-9, err_msg=name)
    same = vars(nothing + parts[0])
    for name, truth in vars(parts[0]).items():
        np.testing.assert_array_equal(same[name], truth)
