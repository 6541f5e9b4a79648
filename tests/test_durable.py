"""Fits that are interrupted again and again end as if they had not been."""

import errno
import os
import re
import subprocess
import sys
from itertools import count

import numpy as np
import pytest

import policyrisk as pr
from policyrisk._core.records import pack, unpack
from policyrisk.errors import InvalidInputError, MismatchError
from policyrisk.passes import checkpoint
from policyrisk.passes.checkpoint import Checkpoint, DurableReduce, Unasked, stored_problem

CHAIN = pr.domains.walk(n=8, p=0.7)
LINE, PARABOLA = (pr.Polynomial(degree, low=[0], high=[7]) for degree in (1, 2))
TILES = pr.TileCoding(low=[0], high=[8], bins=[8])
ESTIMATORS = {
    "tiles": pr.LSTD(TILES),
    "direct": pr.LSTD(TILES, variance="direct"),
    "constrained": pr.LSTD(LINE, PARABOLA, nonnegative_at="visited"),
    "mixed": pr.LSTD(LINE, TILES, discount=0.9),
}


class Mortal:
    """A stream of batches that dies once, at a given batch counted over all its passes."""

    def __init__(self, data, dies_at=None):
        self.data, self.left = data, dies_at

    def __iter__(self):
        for batch in self.data:
            if self.left is not None:
                self.left -= 1
                if self.left < 0:
                    self.left = None
                    raise ConnectionAbortedError
            yield batch


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(checkpoint, "_EVERY", 0.0)
    monkeypatch.setattr(checkpoint, "_PATIENCE", 0.0)


def records(max_steps=None):
    return [CHAIN.sample(0, episodes=12, seed=k, max_steps=max_steps) for k in range(10)]


def weights(risk):
    bars = risk.error_bars
    return [risk.w_mean, risk.w_second, bars.mean, bars.cross, bars.second, bars.replicates]


@pytest.mark.parametrize(
    ("name", "max_steps"),
    [("tiles", None), ("direct", None), ("constrained", None), ("mixed", None), ("tiles", 9), ("direct", 9)],
)
def test_a_fit_that_dies_anywhere_goes_on_to_the_same_bits(tmp_path, name, max_steps):
    lstd, data, path = ESTIMATORS[name], records(max_steps), tmp_path / "checkpoint.npz"

    def fit(source, resume):
        return lstd.fit_by(
            DurableReduce(source, path, {"data": "walks"}, resume=resume), bootstrap=20, seed=3
        )

    whole = weights(fit(data, resume=False))
    path.unlink()
    near = weights(lstd.fit(data, bootstrap=20, seed=3))
    for one, other in zip(whole, near, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-8)
    rng = np.random.default_rng(1)
    deaths, resume = 0, False
    while True:
        source = Mortal(data, int(rng.integers(0, 15)))
        try:
            found = weights(fit(source, resume))
            break
        except ConnectionAbortedError:
            deaths, resume = deaths + 1, True
    assert deaths > 0
    for one, other in zip(whole, found, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(("lam", "max_steps"), [(1.0, None), (1.0, 9), (0.8, None)])
def test_a_distribution_that_dies_goes_on_to_the_same_bits(tmp_path, lam, max_steps, monkeypatch):
    calls = count()  # a checkpoint holds what all passes found, here dozens: now and then will do
    monkeypatch.setattr(
        Checkpoint, "save_if_due", lambda self, state: None if next(calls) % 11 else self.save(state())
    )
    data, path = records(max_steps)[:3], tmp_path / "checkpoint.npz"
    estimator = pr.ReturnDistribution(TILES, thresholds=10, lam=lam, discount=0.8)

    def fit(source, resume):
        found = estimator.fit_by(DurableReduce(source, path, {"data": "walks"}, resume=resume))
        return [found.thresholds, found.weights, found.influences]

    whole = fit(data, resume=False)
    path.unlink()
    near = estimator.fit(data)
    assert (near.passes > 0) == (lam < 1 or max_steps is not None)
    for one, other in zip(whole[:2], (near.thresholds, near.weights), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7)
    for resume, dies_at in ((False, 4), (True, 3), (True, 30 if near.passes else 2)):
        with pytest.raises(ConnectionAbortedError):
            fit(Mortal(data, dies_at), resume)
    found = fit(data, resume=True)
    for one, other in zip(whole, found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_an_interrupt_saves_and_says_so(tmp_path):
    class Interrupted(Mortal):
        def __iter__(self):
            yield from self.data[:7]
            raise KeyboardInterrupt

    path = tmp_path / "checkpoint.npz"
    with pytest.raises(KeyboardInterrupt, match=r"after 7 parts of pass 1, saved in .*go on with --resume"):
        ESTIMATORS["tiles"].fit_by(DurableReduce(Interrupted(records()), path, {}, resume=False))
    calls = []

    def work(source, part):
        calls.append(part)
        return pr.LSTD(TILES).equations(source).without_maps()

    reduce = DurableReduce(records(), path, {}, resume=True)
    finished, total, done = reduce._state
    assert (finished, done) == ([], 7)
    reduce._state = finished, total.equations, done
    assert reduce(work).episodes == 120
    assert calls == [7, 8, 9]


def test_only_the_same_evaluation_goes_on(tmp_path):
    path = tmp_path / "checkpoint.npz"
    ESTIMATORS["tiles"].fit_by(DurableReduce(records(), path, {"data": "a", "lam": 0.9}, resume=False))
    assert stored_problem(path) == {"data": "a", "lam": 0.9}
    with pytest.raises(MismatchError, match="lam changed since"):
        DurableReduce(records(), path, {"data": "a", "lam": 0.5}, resume=True)
    DurableReduce(records(), path, {"data": "a", "lam": 0.5}, resume=False)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InvalidInputError, match="damaged"):
        DurableReduce(records(), path, {"data": "a", "lam": 0.9}, resume=True)
    # Where there is no file yet, it begins.
    DurableReduce(records(), tmp_path / "none.npz", {}, resume=True)


def test_no_episode_at_all_is_said(tmp_path):
    with pytest.raises(InvalidInputError, match="at least one episode"):
        ESTIMATORS["tiles"].fit_by(DurableReduce([], tmp_path / "c.npz", {}, resume=False))


def test_features_come_from_the_call_and_never_from_the_file(tmp_path):
    """A fit that was killed goes on with features that no file could hold; what is kept are tables' sums."""

    class Own:
        size = 2

        def __call__(self, x):
            return np.hstack([np.ones_like(x), x])

    for k, features in enumerate((Own(), lambda x: np.hstack([np.ones_like(x), x]))):
        lstd, path = pr.LSTD(features, moments=3), tmp_path / f"{k}.npz"
        whole = weights(lstd.fit_by(DurableReduce(records(), None, {}, resume=False)))
        for resume, dies_at in ((False, 4), (True, 3)):
            with pytest.raises(ConnectionAbortedError):
                lstd.fit_by(DurableReduce(Mortal(records(), dies_at), path, {}, resume=resume))
            header = np.load(path)["header"].tobytes().decode()
            assert set(re.findall(r'"spec": {"kind": "(\w+)"', header)) == {"Tabular"}
        found = lstd.fit_by(DurableReduce(records(), path, {}, resume=True))
        assert found.features is lstd.features
        for one, other in zip(weights(found)[:-1], whole[:-1], strict=True):
            np.testing.assert_array_equal(one, other)


def test_what_is_the_same_object_stays_so():
    equations = pr.LSTD(TILES).equations(records())
    arrays = {}
    again = unpack(pack(equations, arrays), arrays)
    assert again.C is again.A
    assert again.shared
    for name in ("A", "b", "D", "e", "gram", "visits"):
        np.testing.assert_array_equal(getattr(again, name), getattr(equations, name))
    assert again.features == equations.features


def test_a_checkpoint_that_nobody_asked_for_is_given_up_and_said_so_once(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    data, lstd, said = records(), ESTIMATORS["mixed"], []
    monkeypatch.setattr(checkpoint.records, "save", full)
    unasked = Unasked(tmp_path / "c.npz", said.append)
    risk = lstd.fit_by(DurableReduce(data, unasked, {}, resume=False))
    undisturbed = lstd.fit_by(DurableReduce(data, None, {}, resume=False))
    assert weights(risk)[0].tolist() == weights(undisturbed)[0].tolist()
    assert len(said) == 1
    assert said[0].startswith(
        "it goes on without a checkpoint, since none can be written: [Errno 28] No space"
    )
    with pytest.raises(InvalidInputError, match="checkpoint must be a file that can be written"):
        lstd.fit_by(DurableReduce(data, tmp_path / "c.npz", {}, resume=False))
    fold = DurableReduce(Stopped(data), unasked, {}, resume=False)
    with pytest.raises(KeyboardInterrupt, match="that is not kept, since the checkpoint cannot be written"):
        lstd.fit_by(fold)


class Stopped:
    """A stream that somebody interrupts after two batches."""

    def __init__(self, data):
        self.data = data

    def __iter__(self):
        yield from self.data[:2]
        raise KeyboardInterrupt


def test_what_a_killed_writer_left_goes_with_the_next_run(tmp_path):
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    path = tmp_path / "c.npz"
    Checkpoint("passes", path, {}).save(1)
    left, running = (tmp_path / f".c.npz.{pid}.0123456789ab.part" for pid in (child.pid, os.getpid()))
    left.touch()
    running.touch()
    assert Checkpoint("passes", path, {}).load(int) == 1
    assert not left.exists()
    assert running.exists()  # of a process that may still be writing
