"""Files of format 1, which the version before this one wrote, still load and answer what they answered.

``tests/data/format_1`` holds them, ``answers.json`` beside them what that version answered. What is computed
from a file's numbers is compared up to rounding, since processors add in different orders.
"""

import json
import warnings
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

import policyrisk as pr
from policyrisk.control import GreedyPolicy
from policyrisk.errors import PolicyRiskWarning
from policyrisk.evaluation import Evaluation
from policyrisk.montecarlo import MonteCarlo

FOLDER = Path(__file__).parent / "data" / "format_1"
ANSWERS = json.loads((FOLDER / "answers.json").read_text())
RISKS = ("tabular", "direct", "tiles", "two_maps", "fourier", "constrained", "exact", "td")


def close(found, expected):
    np.testing.assert_allclose(np.array(found, float), np.array(expected, float), rtol=1e-10, atol=1e-12)


def check(risk, told):
    x = np.array(told["x"])
    assert [repr(risk.features), repr(risk.second_features)] == told["maps"]
    found = asdict(risk.provenance)
    # What later versions count besides.
    since = {"biased": 0, "variance_lam": 0.0, "left_out": 0.0, "dropped": 0}
    np.testing.assert_equal({**found, "skipped": list(found["skipped"])}, {**told["facts"], **since})
    close(risk.episodes(x), told["episodes"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PolicyRiskWarning)
        for of in ("mean", "second_moment", "variance", "std", "sharpe"):
            close(getattr(risk, of)(x), told[of])
        summary = risk.summary(x).to_dict()
        for of, numbers in told["summary"].items():
            close(list(summary[of].values()), numbers)
        assert (risk.error_bars is None) == ("interval" not in told)
        for method, intervals in told.get("interval", {}).items():
            for of, ends in intervals.items():
                close(risk.interval(x, of, 0.9, method), ends)


@pytest.mark.parametrize("name", RISKS)
def test_estimates_answer_what_they_answered(name, tmp_path):
    risk = pr.RiskFunction.load(FOLDER / f"{name}.npz")
    check(risk, ANSWERS[name])
    with np.load(FOLDER / f"{name}.npz") as file:
        for weights in ("w_mean", "w_second"):
            np.testing.assert_array_equal(getattr(risk, weights), file[weights])
    risk.save(tmp_path / "again.npz")
    check(pr.RiskFunction.load(tmp_path / "again.npz"), ANSWERS[name])


def test_an_evaluation_is_what_it_was(tmp_path):
    Evaluation.load(FOLDER / "evaluation").save(tmp_path)
    told = ANSWERS["evaluation"]
    for evaluation in (Evaluation.load(FOLDER / "evaluation"), Evaluation.load(tmp_path)):
        assert (evaluation.name, list(evaluation.names), evaluation.level) == ("walk", ["place"], 0.9)
        assert evaluation.notes == told["notes"]
        summary = evaluation.summary
        close([summary.mean.value, summary.mean.low, summary.std.high], told["summary"])
        check(evaluation.risk, ANSWERS["tabular"])
        for name, value in told["survey"].items():
            assert np.asarray(getattr(evaluation.survey, name)).tolist() == value
        with np.load(FOLDER / "evaluation" / "survey.npz") as file:
            for name in ("starts", "visited"):
                np.testing.assert_array_equal(getattr(evaluation.survey, name), file[name])


def test_a_monte_carlo_record_is_what_it_was(tmp_path):
    record = MonteCarlo.load(FOLDER / "montecarlo.npz")
    record.save(tmp_path / "again.npz")
    assert record.to_dict() == MonteCarlo.load(tmp_path / "again.npz").to_dict() == ANSWERS["montecarlo"]


def test_a_policy_is_what_it_was(tmp_path):
    GreedyPolicy.load(FOLDER / "policy.npz").save(tmp_path / "again.npz")
    told = ANSWERS["policy"]
    for path in (FOLDER / "policy.npz", tmp_path / "again.npz"):
        policy = GreedyPolicy.load(path)
        close(policy.value(told["x"]), told["value"])
        assert policy.origin == told["origin"]
