"""Long service: many calls keep memory flat, and many threads get the answers of one."""

import gc
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import policyrisk as pr

CHAIN = pr.domains.walk(n=8, p=0.7)
CALLS = 5_000


def resident_megabytes():
    statm = Path("/proc/self/statm")
    if not statm.exists():
        pytest.skip("this system does not tell a process's memory in /proc")
    gc.collect()
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


@pytest.mark.parametrize("estimator", ["partial_fit", "equations"])
def test_memory_is_flat_over_many_calls(estimator):
    batches = [CHAIN.sample(0, episodes=5, seed=k) for k in range(20)]
    features = pr.TileCoding(low=[0], high=[8], bins=[8])
    if estimator == "partial_fit":
        call = pr.TD(features, step=pr.StepSize(0.1)).partial_fit
    else:
        lstd = pr.LSTD(features)
        call = lstd.equations
    for k in range(CALLS // 5):
        call(batches[k % 20])
    before = resident_megabytes()
    for k in range(CALLS):
        call(batches[k % 20])
    # A leak of one small array a call, 300 bytes, would be 1.5 MB.
    assert resident_megabytes() - before < 1.0


@pytest.mark.parametrize(
    "features",
    [
        pr.TileCoding(low=[0], high=[8], bins=[8], tilings=3),
        pr.RadialBasis.grid(low=[0], high=[8], shape=5),
        pr.RadialBasis.grid(low=[0], high=[8], shape=9, truncate=2),
        pr.Fourier(order=4, low=[0], high=[8]),
        pr.Tabular(8),
    ],
    ids=lambda features: type(features).__name__,
)
def test_eight_threads_get_the_answers_of_one(features):
    data = CHAIN.sample(0, episodes=300, seed=1)
    risk = pr.LSTD(features, ridge=1e-6).fit(data)
    rng = np.random.default_rng(0)
    questions = [rng.integers(0, 8, size=(rng.integers(1, 3000), 1)) for _ in range(64)]

    def ask(x):
        return [
            risk.mean(x),
            risk.variance(x),
            risk.episodes(x),
            risk.standard_error(x, of="variance"),
            risk.interval(x, of="mean"),
        ]

    with ThreadPoolExecutor(8) as threads:
        together = list(threads.map(ask, questions))
    for x, answers in zip(questions, together, strict=True):
        for one, other in zip(ask(x), answers, strict=True):
            np.testing.assert_array_equal(one, other)


def test_eight_threads_may_fit_at_once():
    data = [CHAIN.sample(0, episodes=200, seed=k) for k in range(8)]
    tiles = pr.TileCoding(low=[0], high=[8], bins=[8])
    bases = pr.RadialBasis.grid(low=[0], high=[8], shape=4)

    def fit(episodes):
        return [pr.LSTD(features).fit(episodes).variance(np.arange(8)) for features in (tiles, bases)]

    alone = [fit(episodes) for episodes in data]
    with ThreadPoolExecutor(8) as threads:
        together = list(threads.map(fit, data))
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_array_equal(one, other)
