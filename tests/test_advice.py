"""Each finding appears when its cause does, says the number that was seen, and names a remedy."""

import dataclasses
import math

import numpy as np
import pytest

import policyrisk as pr
from policyrisk.evaluation import Evaluation
from policyrisk.evaluation.findings import advise
from policyrisk.passes.survey import Survey
from policyrisk.risk import FEW_EPISODES
from policyrisk.risk.mixture import Widening


def evaluated(lstd, data):
    return Evaluation("policy", ("place",), lstd.fit(data), Survey.of(data, seed=0))


def with_facts(evaluation, **facts):
    changed = dataclasses.replace(evaluation.risk.provenance, **facts)
    return dataclasses.replace(evaluation, risk=dataclasses.replace(evaluation.risk, provenance=changed))


def found(evaluation, words):
    """The finding whose title holds the words, or None."""
    advice = [one for one in advise(evaluation) if words in one.title]
    assert len(advice) <= 1
    return advice[0] if advice else None


@pytest.fixture(scope="module")
def good():
    data = pr.domains.walk(n=10, p=0.7).sample(0, episodes=2000, seed=1)
    return evaluated(pr.LSTD(pr.Tabular(10)), data)


def test_nothing_to_say_is_said(good):
    (only,) = advise(good)
    assert only.severity == "ok"
    assert "2000 episodes" in only.seen
    assert "do not cover what these features cannot express" in only.remedy


def test_notes_do_not_stand_against_the_numbers(good):
    advice = advise(with_facts(good, redundant=3))
    assert [one.severity for one in advice] == ["note", "ok"]


@pytest.mark.parametrize(("episodes", "severity"), [(40, "warning"), (20, "serious")])
def test_few_episodes(episodes, severity):
    data = pr.domains.walk(n=5, p=0.7).sample(0, episodes=episodes, seed=1)
    advice = found(evaluated(pr.LSTD(pr.Tabular(5)), data), "Few episodes")
    assert advice.severity == severity
    assert "100% of the visited states" in advice.seen
    assert f"({episodes} in the middle, {episodes} at the fewest)" in advice.seen
    assert "--features" in advice.remedy


def test_the_share_of_few_is_that_of_visited_states():
    # Starts at either end: states near 0 are seen by half of the episodes alone.
    chain = pr.domains.walk(n=12, p=0.9)
    data = pr.Trajectories.concatenate(
        [chain.sample(0, episodes=60, seed=1), chain.sample(8, episodes=300, seed=2)]
    )
    evaluation = evaluated(pr.LSTD(pr.Tabular(12)), data)
    # A state's episodes are counted by hand: those in which it occurs.
    place = data.states[data.visited_rows][:, 0].astype(int)
    episode = np.repeat(np.arange(len(data)), data.lengths)
    behind = np.array([len(np.unique(episode[place == k])) for k in range(12)])
    share = np.mean(behind[place] < FEW_EPISODES)
    assert 0 < share < 1
    assert f"{share:.1%} of the visited states" in found(evaluation, "Few episodes").seen


def with_share(evaluation, share):
    """The same with a negative variance at this share of the states."""
    changed = dataclasses.replace(evaluation)
    changed.__dict__["negative_share"] = share
    return changed


def test_negative_variance():
    data = pr.domains.walk(n=30, p=0.7).sample(0, episodes=2000, seed=1)
    lstd = pr.LSTD(pr.Polynomial(1, [0], [29]), pr.Polynomial(2, [0], [29]), lam=0.95)
    evaluation = evaluated(lstd, data)
    share = np.mean(evaluation.risk.variance(data.states[data.visited_rows]) < 0)
    assert 0 < share < 0.05
    advice = found(evaluation, "variance is negative")
    assert advice.severity == "warning"
    assert f"At {evaluation.negative_share:.1%} of the visited" in advice.seen
    assert "--direct" in advice.remedy
    assert "--nonnegative" in advice.remedy
    some = found(with_share(evaluation, 0.0006), "variance is negative")
    assert (some.severity, with_share(evaluation, 0.0006).trust.level) == ("note", "good")
    direct = dataclasses.replace(
        evaluation.risk, variance_method="direct", w_second=-evaluation.risk.w_second, starts=None
    )
    told = found(dataclasses.replace(evaluation, risk=direct), "variance is negative")
    assert "--direct" not in told.remedy
    assert "Over the start states it is" in told.seen
    assert told.severity == "serious"


def test_the_constraint_takes_the_place_of_a_negative_variance():
    data = pr.domains.walk(n=30, p=0.7).sample(0, episodes=2000, seed=1)
    lstd = pr.LSTD(
        pr.Polynomial(1, [0], [29]), pr.Polynomial(2, [0], [29]), lam=0.95, nonnegative_at=np.arange(30.0)
    )
    evaluation = evaluated(lstd, data)
    assert found(evaluation, "variance is negative") is None
    assert f"At {evaluation.risk.provenance.constrained} state" in found(evaluation, "V >= 0 is active").seen


@pytest.mark.parametrize(
    ("facts", "words", "severity", "seen"),
    [
        ({"condition": 1e8}, "ill-conditioned", None, ""),
        ({"condition": 3e10}, "ill-conditioned", "warning", "3e+10"),
        ({"condition": 3e13}, "ill-conditioned", "serious", "13 may be lost"),
        ({"terminated": 1990}, "cut off", "note", "10 of 2,000 episodes (0.5%)"),
        ({"terminated": 1500}, "cut off", "warning", "500 of 2,000 episodes (25.0%)"),
        ({"terminated": 1000}, "cut off", "serious", "1,000 of 2,000 episodes (50.0%)"),
        ({"given_up": 3}, "given up", "note", "3 cut-off episodes"),
        ({"given_up": 300}, "given up", "serious", "300 cut-off episodes"),
        ({"outside": 1}, "outside", "note", "1 of"),
        ({"outside": 10**4}, "outside", "serious", "10,000 of"),
        ({"redundant": 2}, "redundant", "note", "2 directions"),
        ({"constrained": 4}, "V >= 0", "note", "4 states"),
    ],
)
def test_findings_from_the_facts(good, facts, words, severity, seen):
    advice = found(with_facts(good, **facts), words)
    assert (advice and advice.severity) == severity
    assert advice is None or seen in advice.seen
    assert advice is None or advice.remedy.endswith(".")


def test_unvisited_starts_and_tiles(good):
    data = pr.domains.walk(n=10, p=0.7).sample(0, episodes=2000, seed=1)
    risk = pr.LSTD(pr.Tabular(12)).fit(data)
    strange = dataclasses.replace(risk, starts=risk.start_sums([[0], [11], [0], [0]]))
    advice = found(dataclasses.replace(good, risk=strange), "no estimate")
    assert advice.severity == "serious"
    assert "1 of 4 starts" in advice.seen
    tiles = found(dataclasses.replace(good, risk=risk), "never visited")
    assert tiles.severity == "note"
    assert "0% of the box that they span, and 2 of 12 features" in tiles.seen
    assert found(good, "never visited") is None


def test_bias_shows_as_disagreement_with_the_returns():
    """One constant feature for a walk: its mean is that of all states, far from that of the start."""
    data = pr.domains.walk(n=10, p=0.7).sample(0, episodes=2000, seed=1)
    evaluation = evaluated(pr.LSTD(pr.Polynomial(0, [0], [9]), lam=0.95), data)
    advice = found(evaluation, "disagrees")
    assert advice.severity == "serious"
    gap = evaluation.summary.gap("mean")
    assert gap == pytest.approx(evaluation.risk.mean([0])[0] - data.returns().mean())
    assert f"{abs(gap) / gap.standard_error:.1f} standard errors apart" in advice.seen
    assert "believe the returns: there are no features in them" in advice.seen
    assert "--lam" in advice.remedy


def test_randomness_is_no_disagreement():
    """An unbiased estimate of 60 data sets is not accused, cut-off episodes or not."""
    chain = pr.domains.walk(n=6, p=0.7)
    for seed in range(60):
        data = chain.sample(0, episodes=300, seed=seed, max_steps=12 if seed % 2 else None)
        assert found(evaluated(pr.LSTD(pr.Tabular(6)), data), "disagrees") is None


def test_one_cut_off_episode_does_not_switch_the_check_off():
    """20 steps of reward 3 + N(0, 1) on 10 tiles of two places each; one of 500 episodes is cut off."""
    lengths, ends = np.full(500, 20), np.ones(500, dtype=bool)
    lengths[7], ends[7] = 11, False
    states = np.concatenate([np.arange(length + 1.0) for length in lengths])
    rewards = 3 + np.random.default_rng(0).normal(size=lengths.sum())
    data = pr.Trajectories(states, rewards, lengths, ends)
    evaluation = evaluated(pr.LSTD(pr.TileCoding([0], [20], [10])), data)
    advice = found(evaluation, "disagrees")
    assert advice.severity == "serious"
    assert "only what 1 of 500 episodes miss" in advice.seen
    assert evaluation.summary.std.low < math.sqrt(20) < evaluation.summary.std.high
    assert evaluation.summary.model.std.low > evaluation.summary.std.high


def test_no_disagreement_where_the_sample_is_of_other_episodes():
    data = pr.domains.walk(n=10, p=0.7).sample(0, episodes=500, seed=1, max_steps=25)
    assert 0.2 < data.terminated.mean() < 0.9
    evaluation = evaluated(pr.LSTD(pr.Tabular(10)), data)
    sample = evaluation.summary.sample
    assert abs(evaluation.summary.mean_value - sample.mean_value) > 3 * sample.mean.standard_error
    assert found(evaluation, "disagrees") is None
    assert found(evaluation, "cut off") is not None


def test_bias_of_returns_without_randomness_is_found():
    """Two steps of reward 1 and one feature for both: every episode is the same, and nothing has an error."""
    states, rewards = np.tile([0.0, 1.0, 2.0], 50), np.ones(100)
    data = pr.Trajectories(states, rewards, np.full(50, 2), np.ones(50, dtype=bool))
    biased = evaluated(pr.LSTD(pr.Polynomial(0, [0], [2]), lam=0.0), data)
    assert biased.summary.gap("mean").standard_error == pytest.approx(0, abs=1e-12)
    assert biased.summary.gap("variance") > 1
    assert found(biased, "disagrees").severity == "serious"
    assert found(evaluated(pr.LSTD(pr.Tabular(3)), data), "disagrees") is None


def test_what_was_not_compared_is_not_called_checked(good):
    assert "the agreement with the returns" in advise(good)[0].seen
    assert "Not checked: calibration" in advise(good)[0].seen
    older = dataclasses.replace(good, risk=dataclasses.replace(good.risk, completed=None))
    checked, skipped = advise(older)[0].seen.split("Not checked: ")
    assert "the agreement" not in checked
    assert "the agreement" in skipped


def test_no_error_bars(good):
    exact = pr.LSTD(pr.Tabular(10)).fit_exact(pr.domains.walk(n=10, p=0.7), start=0)
    advice = found(dataclasses.replace(good, risk=exact), "no error bars")
    assert advice.severity == "warning"
    assert math.isnan(exact.provenance.condition) or exact.provenance.condition < 1e9


def test_starts_that_were_sampled(good):
    old = dataclasses.replace(good.risk, starts=None)  # of a file that does not have them
    assert found(dataclasses.replace(good, risk=old), "sample of the starts") is None
    starts = np.repeat([[0.0], [5.0]], 50, axis=0)
    survey = dataclasses.replace(good.survey, starts=starts)
    assert found(dataclasses.replace(good, survey=survey), "sample of the starts") is None
    advice = found(dataclasses.replace(good, risk=old, survey=survey), "sample of the starts")
    error = old.mean(starts).std() / 10
    assert advice.severity == "note"
    assert "100 of 2,000 were drawn" in advice.seen
    assert f"by about {error:.2g}," in advice.seen


def test_the_most_serious_come_first(good):
    order = [one.severity for one in advise(with_facts(good, condition=1e13, redundant=1, terminated=1500))]
    assert order == ["serious", "warning", "note"]


# ---- one line of trust ----


@pytest.mark.parametrize(("episodes", "level"), [(2000, "good"), (40, "fair"), (20, "poor")])
def test_the_level_of_trust_follows_the_most_serious_finding(episodes, level):
    data = pr.domains.walk(n=5, p=0.7).sample(0, episodes=episodes, seed=1)
    trust = evaluated(pr.LSTD(pr.Tabular(5)), data).trust
    assert trust.level == level
    reason = "no problems found" if level == "good" else "few episodes stand behind the estimates"
    assert trust.reason == reason


def test_trust_in_the_returns_is_not_lowered_by_an_estimate_at_other_states(good):
    trust = with_facts(good, condition=3e13).trust
    assert trust.level == "good"
    assert trust.reason.endswith("at other states poor: the equations are ill-conditioned")
    # Where an episode was cut off the estimate is in the answer.
    cut = dataclasses.replace(good.survey, terminated=1999)
    assert with_facts(dataclasses.replace(good, survey=cut), condition=3e13).trust.level == "poor"
    assert with_facts(dataclasses.replace(good, survey=cut), condition=3e10).trust.level == "fair"


def test_trust_is_shown_wherever_the_answer_is(good, tmp_path):
    serious = dataclasses.replace(good, survey=dataclasses.replace(good.survey, terminated=1999))
    serious = with_facts(serious, condition=3e13)
    assert serious.to_dict()["trust"] == {"level": "poor", "reason": "the equations are ill-conditioned"}
    assert "trust poor" in repr(serious)
    assert str(serious).endswith("trust: poor: the equations are ill-conditioned")
    serious.report(tmp_path / "report.html")
    top = (tmp_path / "report.html").read_text().split("<main>")[0]
    assert "Trust: <b>poor</b>: the equations are ill-conditioned." in top


def test_notes_that_ask_for_nothing_are_folded_away_in_the_report(good, tmp_path):
    noted = with_facts(good, redundant=3, given_up=3)
    noted.report(tmp_path / "report.html")
    shown, folded = (tmp_path / "report.html").read_text().split("1 note without anything to do")
    assert "Some last transitions were given up" in shown
    assert "Some features are redundant" in folded
    assert "Some features are redundant" not in shown


# ---- what held-out episodes said of the features that were chosen ----


@pytest.fixture(scope="module")
def chosen():
    """An answer of the default, on data without a problem."""
    data = pr.domains.walk(n=10, p=0.7).sample(0, episodes=400, seed=1)
    return pr.evaluate(data, seed=0)


def with_stack(evaluation, **values):
    choice = evaluation.notes["choice"]
    stack = {**choice["stack"], **values}
    return dataclasses.replace(evaluation, notes={**evaluation.notes, "choice": {**choice, "stack": stack}})


def test_the_default_is_well_where_nothing_is_wrong_and_says_what_was_checked(chosen):
    assert {one.severity for one in advise(chosen)} <= {"ok", "note"}
    well = found(chosen, "No problems")
    for check in ("calibration", "the range of the returns", "a test of the features", "the agreement"):
        assert check in well.seen
    assert "Not checked" not in well.seen
    assert "400 episodes" in well.seen
    assert "cover randomness and what the members of the mixture disagree about" in well.remedy
    unchecked = found(dataclasses.replace(chosen, check=None), "No problems")
    assert "Not checked: a test of the features." in unchecked.seen


@pytest.mark.parametrize(
    ("ratio", "severity"),
    [
        (1.0, None),
        (1.4, None),
        (0.7, None),
        (1.6, "warning"),
        (0.6, "warning"),
        (2.6, "serious"),
        (0.0, "serious"),
    ],
)
def test_calibration_on_held_out_episodes(chosen, ratio, severity):
    advice = found(with_stack(chosen, calibration=ratio), "on episodes that were not fitted")
    assert (advice and advice.severity) == severity
    if advice:
        assert f"are {ratio:.3g} times" in advice.seen
        assert ("too small" if ratio > 1 else "too large") in advice.title


@pytest.mark.parametrize(("share", "severity"), [(0.5, None), (0.02, "note"), (-0.2, "warning")])
def test_a_state_that_tells_nothing(chosen, share, severity):
    constant = chosen.notes["choice"]["stack"]["constant_mse"]
    told = with_stack(chosen, explained=share, mse=(1 - share) * constant)
    advice = found(told, "hardly anything")
    assert (advice and advice.severity) == severity


def test_a_state_that_tells_all(chosen):
    assert found(chosen, "nearly everything") is None
    constant = chosen.notes["choice"]["stack"]["constant_mse"]
    told = found(with_stack(chosen, explained=0.99, mse=0.01 * constant), "nearly everything")
    assert told.severity == "note"
    assert "99.0% of the squared distances" in told.seen
    unsure = dataclasses.replace(chosen.risk, widening=Widening(30.0, 30.0))
    rough = with_stack(dataclasses.replace(chosen, risk=unsure), explained=0.99, mse=0.01 * constant)
    assert (told.severity, found(rough, "nearly everything").severity) == ("note", "warning")


def test_how_serious_a_mixtures_disagreement_is(chosen, monkeypatch):
    """The estimator's variance over the starts is twice that of the returns: a size of 1."""
    assert found(chosen, "disagrees") is None
    risk = chosen.risk
    starts = dataclasses.replace(risk.starts, variances=2 * risk.starts.variances)
    biased = dataclasses.replace(chosen, risk=dataclasses.replace(risk, starts=starts))
    for name, severity in (("_LARGE_MIXED", "serious"), ("_SMALL", "warning"), ("", "note")):
        advice = found(biased, "disagrees")
        assert advice.severity == severity
        assert "Use the returns' figures" in advice.remedy
        if name:
            monkeypatch.setattr(f"policyrisk.evaluation.findings.{name}", 1.5)


def test_a_state_without_any_meaning_is_found_from_data():
    """Returns of one step that do not depend on the state."""
    rng = np.random.default_rng(0)
    states = rng.random((800, 1))
    data = pr.Trajectories(states, rng.normal(size=400), np.ones(400, dtype=int), np.ones(400, dtype=bool))
    assert found(pr.evaluate(data, seed=0), "hardly anything").severity in ("note", "warning")


def test_means_that_no_return_was_like(chosen):
    assert found(chosen, "outside the range") is None
    J = chosen.risk.mean(chosen.survey.visited)
    told = with_stack(chosen, least=float(np.quantile(J, 0.2)), most=0.0)
    advice = found(told, "outside the range")
    assert advice.severity == "serious"
    assert f"no return to go was below {np.quantile(J, 0.2):.4g}" in advice.seen
    older = with_stack(chosen, least=None, most=None)
    assert "the range of the returns" in found(older, "No problems").seen.split("Not checked: ")[1]


def test_an_older_choice_is_no_evidence(chosen):
    older = dataclasses.replace(chosen, notes={"choice": {"cross_validation": {}}}, check=None)
    assert "calibration" in found(older, "No problems").seen.split("Not checked: ")[1]


def test_features_that_misfit():
    """Tiles of the place alone, where a second coordinate decides the drift."""
    data = pr.domains.walk(n=12, p=0.7).sample(0, episodes=1200, seed=1)
    halves = pr.LSTD(pr.TileCoding([0], [12], bins=2)).fit(data, bootstrap=400, seed=0)
    evaluation = Evaluation(
        "policy", ("place",), halves, Survey.of(data, seed=0), check=pr.specification_test(halves, data)
    )
    assert evaluation.check.material().any()
    advice = found(evaluation, "cannot express the risk")
    assert advice.severity in ("warning", "serious")
    assert "most of all where place" in advice.seen
    table = pr.LSTD(pr.Tabular(12)).fit(data, bootstrap=400, seed=0)
    fine = dataclasses.replace(evaluation, risk=table, check=pr.specification_test(table, data))
    assert found(fine, "cannot express the risk") is None
    little = dataclasses.replace(
        evaluation.check, bias=0 * evaluation.check.bias, variance_ratio=1 + 0 * evaluation.check.bias
    )
    assert not little.material().any()
    assert found(dataclasses.replace(evaluation, check=little), "misfit by little").severity == "note"


def test_a_few_episodes_that_decide_the_variance():
    """One step each: three returns of 100 among 400 of N(0, 1), and the same without them."""
    rng = np.random.default_rng(0)
    rewards = rng.normal(size=400)
    one = np.ones(400, dtype=int)

    def told(rewards):
        data = pr.Trajectories(np.zeros(800), rewards, one, one.astype(bool))
        return evaluated(pr.LSTD(pr.Polynomial(0, [0], [1])), data)

    assert found(told(rewards), "few episodes decide") is None
    rewards[:3] = 100
    evaluation = told(rewards)
    advice = found(evaluation, "few episodes decide")
    assert advice.severity == "warning"
    assert evaluation.trust.level == "fair", "it concerns the returns themselves"
    assert "about 3 of 400 episodes" in advice.seen
    variance = evaluation.summary.variance
    error = math.sqrt(np.sum((rewards - rewards.mean()) ** 4)) / np.sum((rewards - rewards.mean()) ** 2)
    assert variance.standard_error / variance == pytest.approx(error, rel=0.01)
    assert f"{math.sqrt(error**2 - 1 / 400):.1%} of its size" in advice.seen


def test_intervals_that_are_wide(chosen):
    assert found(chosen, "known only roughly") is None
    wide = dataclasses.replace(chosen, risk=dataclasses.replace(chosen.risk, widening=Widening(17.0, 17.0)))
    low, high = wide.risk.interval(chosen.survey.visited[:500], of="std").T
    assert np.median(high - 3 * low) > 0
    assert found(wide, "known only roughly").severity == "warning"


def test_a_policy_without_randomness_blows_nothing_up():
    """Three steps of reward 1: V is 0 everywhere."""
    states = np.tile([0.0, 1.0, 2.0, 3.0], 200)
    data = pr.Trajectories(states, np.ones(600), np.full(200, 3), np.ones(200, dtype=bool))
    evaluation = pr.evaluate(data, seed=0)
    assert evaluation.summary.std == pytest.approx(0, abs=1e-6)
    assert {one.severity for one in advise(evaluation)} <= {"ok", "note"}
    assert evaluation.influence.tolist() == [1.0]


def test_a_discount_that_leaves_nothing_of_what_was_cut_off():
    """Episodes of 100 steps without an end, discount 0.9."""
    rng = np.random.default_rng(0)
    data = pr.Trajectories(
        np.zeros(101 * 200), rng.normal(size=100 * 200), np.full(200, 100), np.zeros(200, dtype=bool)
    )
    evaluation = evaluated(pr.LSTD(pr.Polynomial(0, [0], [1]), discount=0.9), data)
    assert found(evaluation, "cut off").severity == "note"
    assert (
        found(evaluated(pr.LSTD(pr.Polynomial(0, [0], [1]), discount=0.999), data), "cut off").severity
        == "serious"
    )


def test_the_check_is_saved_with_the_rest(chosen, tmp_path):
    chosen.save(tmp_path)
    again = Evaluation.load(tmp_path)
    assert again.check.to_dict() == chosen.check.to_dict()
    assert [one.seen for one in again.advice] == [one.seen for one in chosen.advice]
