"""Fits to all episodes that are mostly made from a sample of them, against fits to all."""

import numpy as np
import pytest

import policyrisk as pr
from policyrisk.lstd.newton import fits_from_sample
from policyrisk.passes import here
from policyrisk.returns.forest_sums import DataCounts
from policyrisk.risk.mixture import with_merged_draws

PLACES = np.arange(10.0)[:, None]


@pytest.fixture(scope="module")
def data():
    # Some episodes are cut off.
    return pr.domains.walk(n=10, p=0.7).sample(0, episodes=6000, seed=1, max_steps=60)


@pytest.fixture(scope="module")
def sample(data):
    return data[np.sort(np.random.default_rng(2).choice(len(data), 1500, replace=False))]


def both(lstd, data, sample):
    """The fit from the sample, and that to all, drawn with the same multipliers."""
    whole = DataCounts.of(data, lstd.discount)
    found = fits_from_sample([lstd], sample, here(data), whole, bootstrap=400, seed=3)[0]
    return found, lstd.fit(data, bootstrap=400, seed=3)


@pytest.mark.parametrize("variance", ["direct", "second-moment"])
@pytest.mark.parametrize("discount", [1.0, 0.9])
@pytest.mark.parametrize(
    "phi",
    [pr.Polynomial(3, low=[0], high=[9]), pr.Fourier(4, low=[0], high=[9]), pr.TileCoding([0], [9], bins=5)],
    ids=["poly", "fourier", "tiles"],
)
def test_a_fit_from_a_sample_is_that_to_all(data, sample, phi, discount, variance):
    found, exact = both(pr.LSTD(phi, variance=variance, discount=discount), data, sample)
    alone = pr.LSTD(phi, variance=variance, discount=discount).fit(sample)
    for of in ("mean", "variance"):
        error = exact.standard_error(PLACES, of=of)
        apart, before = (
            (getattr(each, of)(PLACES) - getattr(exact, of)(PLACES)) / error for each in (found, alone)
        )
        assert np.abs(before).max() > 0.5  # the sample alone says something else
        assert np.sqrt(np.mean(apart**2)) < 0.25
        # Draws by the same multipliers: the errors are the same but for the sample's matrices.
        ratio = found.standard_error(PLACES, of=of) / exact.standard_error(PLACES, of=of)
        assert np.abs(ratio - 1.0).mean() < 0.1
    assert found.provenance.episodes == exact.provenance.episodes == len(data)
    assert found.provenance.terminated == exact.provenance.terminated
    assert found.returns.mean == pytest.approx(exact.returns.mean)
    np.testing.assert_allclose(found.support.visits, exact.support.visits, rtol=0.2)


def test_draws_go_along_with_the_completed_returns(data, sample):
    found, exact = both(pr.LSTD(pr.Polynomial(3, low=[0], high=[9]), variance="direct"), data, sample)
    one, other = found.completed.draws, exact.completed.draws
    for mine, theirs in zip(one[1:3], other[1:3], strict=True):  # all start in one place
        assert np.corrcoef(mine, theirs)[0, 1] > 0.99
        assert mine.std() / theirs.std() == pytest.approx(1.0, abs=0.03)


@pytest.fixture(scope="module")
def mixture(sample):
    maps = pr.Polynomial(3, low=[0], high=[9]), pr.TileCoding([0], [9], bins=5)
    members = [pr.LSTD(phi, variance="direct").fit(sample, bootstrap=200, seed=3) for phi in maps]
    members.append(pr.ReturnForest().fit(sample, bootstrap=200, seed=3))
    return pr.RiskFunction.mixture(members, [0.5, 0.2, 0.3], [0.3, 0.3, 0.4])


def test_values_alone_are_those_with_features(mixture, data):
    some = data[:500]
    for of, gradient in (("start_sums", "phi_mean"), ("completed_sums", "tail")):
        given = some.starts() if of == "start_sums" else some
        alone, whole = (getattr(mixture, of)(given, values_alone=only) for only in (True, False))
        assert alone.mean == pytest.approx(whole.mean, rel=1e-12)
        assert not getattr(alone, gradient).any()
        assert getattr(whole, gradient).any()
        if of == "start_sums":
            assert alone.variances == pytest.approx(whole.variances, rel=1e-12)
        else:
            np.testing.assert_allclose(alone.powers, whole.powers, rtol=1e-9, atol=1e-9 * whole.powers.max())


def test_merged_draws_of_a_forest_have_its_errors(mixture, data, tmp_path):
    some = data.states[data.visited_rows[::37]]
    merged = with_merged_draws(mixture, some)
    assert merged.error_bars.replicates.shape[1] < 0.2 * mixture.error_bars.replicates.shape[1]
    for of in ("mean", "variance"):
        np.testing.assert_array_equal(getattr(merged, of)(PLACES), getattr(mixture, of)(PLACES))
        ratio = merged.standard_error(some[::9], of=of) / mixture.standard_error(some[::9], of=of)
        assert ratio.mean() == pytest.approx(1.0, abs=0.1)
    for one, other in zip(
        *(each.summary(data.starts()).covariance for each in (merged, mixture)), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=0.3)
    merged.save(tmp_path / "risk.npz")
    again = pr.RiskFunction.load(tmp_path / "risk.npz")
    np.testing.assert_array_equal(*(each.standard_error(PLACES, of="std") for each in (again, merged)))
