"""Cross-validation: folds that never leak, scores over held-out steps, the choice on the paper's chain."""

import json
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

import policyrisk as pr
from policyrisk._core.random import keys
from policyrisk.errors import InvalidInputError, MismatchError, SingularSystemError
from policyrisk.passes.episode_folds import FoldEpisodes, fold_of_episodes
from policyrisk.risk.scoring import ClusterSums, step_scores
from policyrisk.selection.cross_validation import cross_validate

CHAIN = pr.domains.walk(n=8, p=0.7)
DATA = CHAIN.sample(0, episodes=47, seed=0)
TABLE = pr.Tabular(8)
EXACT = pr.LSTD(TABLE).fit_exact(CHAIN, start=0)


@dataclass
class Fixed:
    """An estimator that answers the same whatever it is given, and remembers what that was."""

    answer: object
    seen: list = field(default_factory=list)

    def fit(self, data):
        self.seen.append(data)
        return self.answer


class Failing:
    def fit(self, data):
        raise SingularSystemError("A is singular; use fewer features")


def marked(episodes, batches=1):
    """Episodes of different lengths whose rewards are their own number."""
    lengths = 1 + np.arange(episodes) % 3
    parts = []
    for index in np.array_split(np.arange(episodes), batches):
        n = lengths[index]
        states = np.zeros((n.sum() + n.size, 1), dtype=np.int64)
        parts.append(
            pr.Trajectories(states, np.repeat(index, n).astype(float), n, np.ones(n.size, dtype=bool))
        )
    return parts


def numbers(trajectories):
    return [int(t.rewards[0]) for t in trajectories]


@pytest.mark.parametrize("folds", [2, 3, 5, 7])
def test_folds_are_balanced_and_do_not_depend_on_batches(folds):
    fold = fold_of_episodes(0, 100, folds, key=3)
    counts = np.bincount(fold, minlength=folds)
    assert counts.max() - counts.min() <= 1
    for first in (0, 1, 10, 33):
        np.testing.assert_array_equal(fold_of_episodes(first, 20, folds, key=3), fold[first : first + 20])
    assert fold_of_episodes(4, 0, folds, key=3).size == 0
    assert not np.array_equal(fold, fold_of_episodes(0, 100, folds, key=4))


def test_every_fold_is_as_likely_for_every_episode():
    counts = np.zeros((12, 4))
    for key in range(3000):
        fold = fold_of_episodes(0, 12, 4, key * 0x1234567)
        counts[np.arange(12), fold] += 1
    z = (counts - 750) / np.sqrt(3000 * 0.25 * 0.75)
    assert np.abs(z).max() < 4.5


@pytest.mark.parametrize("batches", [1, 6])
def test_no_episode_is_both_fitted_and_held_out(batches):
    parts = marked(23, batches)
    source = parts[0] if batches == 1 else parts
    held = []
    for fold in range(5):
        inside = [n for part in FoldEpisodes(source, 9, 5, fold, held_out=True) for n in numbers(part)]
        outside = [n for part in FoldEpisodes(source, 9, 5, fold, held_out=False) for n in numbers(part)]
        assert sorted(inside + outside) == list(range(23))
        held += inside
    assert sorted(held) == list(range(23))


def test_the_fits_see_the_training_episodes_alone():
    table = pr.Tabular(1)
    chain = pr.MarkovChain([[0.5]], [1.0])
    estimator = Fixed(pr.LSTD(table).fit_exact(chain))
    stream = marked(23, 4)
    result = cross_validate({"a": estimator}, stream, folds=4, seed=1)
    fitted = [sorted(n for part in data for n in numbers(part)) for data in estimator.seen]
    left_out = [set(range(23)) - set(index) for index in fitted]
    assert sorted(len(s) for s in left_out) == [5, 6, 6, 6]
    assert set.union(*left_out) == set(range(23))
    assert sum(len(s) for s in left_out) == 23
    assert result.episodes == 23


def test_scores_are_means_over_all_steps():
    result = cross_validate({"exact": Fixed(EXACT)}, DATA, folds=4, seed=0)
    whole = EXACT.score(DATA)
    (candidate,) = result.ranking
    for name in ("mse", "calibration", "dawid_sebastiani"):
        assert getattr(candidate.score, name) == pytest.approx(getattr(whole, name))
        assert getattr(candidate.score, name).standard_error == pytest.approx(
            getattr(whole, name).standard_error
        )
    assert candidate.difference is None
    assert (result.episodes, result.steps) == (47, DATA.transitions)


def test_differences_are_paired_by_episode():
    wrong = pr.LSTD(pr.Polynomial(degree=1, low=[0], high=[7]), variance="direct").fit_exact(CHAIN, start=0)
    result = cross_validate({"line": Fixed(wrong), "exact": Fixed(EXACT)}, DATA, folds=4, seed=0)
    x, B = DATA.states[DATA.visited_rows], DATA.returns_to_go()
    scores = [step_scores(*risk.mean_and_variance(x), B).dawid_sebastiani for risk in (wrong, EXACT)]
    episode = np.repeat(np.arange(47), DATA.lengths)
    sums = ClusterSums.of(scores[0] - scores[1], episode)
    sign = 1 if sums.mean() > 0 else -1
    second = result.ranking[1]
    assert result.best == ("exact" if sign > 0 else "line")
    assert second.difference == pytest.approx(sign * sums.mean())
    assert second.difference.standard_error == pytest.approx(sums.standard_error())


def test_a_stream_and_one_record_give_the_same():
    table = pr.Tabular(8)
    estimators = {"LSTD(0)": pr.LSTD(table, lam=0.0), "LSTD(0.9)": pr.LSTD(table, lam=0.9)}
    whole = cross_validate(estimators, DATA, seed=5)
    stream = cross_validate(estimators, [DATA[:10], DATA[10:13], DATA[13:]], seed=5)
    again = cross_validate(estimators, DATA, seed=5)
    assert str(whole) == str(again)
    for a, b in zip(whole.ranking, stream.ranking, strict=True):
        assert a.name == b.name
        assert a.score.mse == pytest.approx(b.score.mse)
    assert str(cross_validate(estimators, DATA, seed=6)) != str(whole)


def test_the_papers_chain_prefers_the_direct_variance():
    chain = pr.domains.walk(n=30, p=0.7)
    line, parabola = (pr.Polynomial(degree=d, low=[0], high=[29]) for d in (1, 2))
    estimators = {
        "M − J²": pr.LSTD(line, parabola, lam=0.95),
        "direct": pr.LSTD(line, parabola, lam=0.95, variance="direct"),
    }
    result = cross_validate(estimators, chain.sample(0, episodes=1000, seed=0), folds=5, seed=0)
    assert result.best == "direct"
    direct, paper = result.ranking
    assert direct.score.not_positive == 0
    assert 0.02 < paper.score.not_positive < 0.1  # the last two states
    assert paper.score.dawid_sebastiani == np.inf
    assert paper.difference / paper.difference.standard_error > 3
    assert direct.score.mse == pytest.approx(paper.score.mse)  # the same J
    assert result.verdict.startswith("direct is preferred to M − J²: its score is lower by")


def with_variance_in_the_last(variance, elsewhere=1.0):
    """The exact estimate, its V multiplied, and another V in the last state."""
    V = EXACT.variance(np.arange(8)) * elsewhere
    V[7] = variance
    return Fixed(replace(EXACT, w_second=V, variance_method="direct"))


@pytest.mark.parametrize("variance", [-3.0, 0.0, 1e-40])
def test_undue_certainty_is_scored_with_the_floor(variance):
    """A slow reference: folds by fold, the floor from the better J, and the score written out."""
    certain, exact = with_variance_in_the_last(variance), Fixed(EXACT)
    result = cross_validate({"certain": certain, "exact": exact}, DATA, folds=3, seed=0)
    assert result.best == "exact"
    total, steps = 0.0, 0
    key = int(keys(0)[0])
    for fold in range(3):
        held_out = FoldEpisodes(DATA, key, 3, fold, held_out=True).collected()
        x, B = held_out.states[held_out.visited_rows][:, 0], held_out.returns_to_go()
        J, V = EXACT.mean(np.arange(8))[x], certain.answer.variance(np.arange(8))[x]
        floor = 0.01 * np.mean((B - J) ** 2)
        for j, v, b in zip(J, V, B, strict=True):
            total += np.log(max(v, floor)) + (b - j) ** 2 / max(v, floor)
        steps += B.size
    worse = result.ranking[1]
    assert worse.floored == pytest.approx(total / steps)
    assert worse.difference == pytest.approx(worse.floored - result.ranking[0].floored)
    assert worse.score.not_positive == (0 if variance > 0 else np.mean(DATA.states[DATA.visited_rows] == 7))
    assert "scored as if it were that" in str(result)
    assert "e+" not in str(result)


def test_a_few_negative_variances_do_not_outweigh_a_wrong_estimate_everywhere():
    rare = with_variance_in_the_last(-1.0)
    useless = with_variance_in_the_last(EXACT.variance([7])[0] * 1e4, elsewhere=1e4)
    result = cross_validate({"useless": useless, "rare": rare}, DATA, folds=3, seed=0)
    assert result.best == "rare"


def test_without_randomness_the_floor_is_not_zero():
    sure = pr.domains.walk(n=4, p=1.0)
    exact = pr.LSTD(pr.Tabular(4)).fit_exact(sure, start=0)
    result = cross_validate(
        {"a": Fixed(exact), "b": Fixed(exact)}, sure.sample(0, episodes=9, seed=0), folds=3
    )
    assert np.isfinite(result.ranking[0].floored)
    assert result.ranking[1].difference == 0.0


def test_fits_go_without_error_bars_where_they_can():
    asked = []

    class Spy(Fixed):
        def fit(self, data, *, error_bars=True):
            asked.append(error_bars)
            return super().fit(data)

    cross_validate({"spy": Spy(EXACT)}, DATA, folds=3, seed=0)
    assert asked == [False] * 3


def test_failures_are_reported_and_ranked_last():
    class Sometimes:
        calls = 0

        def fit(self, data):
            self.calls += 1
            if self.calls == 2:
                raise np.linalg.LinAlgError("SVD did not converge")
            return EXACT

    small = pr.LSTD(pr.Tabular(3)).fit_exact(pr.domains.walk(n=3, p=0.7), start=0)
    estimators = {
        "failing": Failing(),
        "exact": Fixed(EXACT),
        "sometimes": Sometimes(),
        "small": Fixed(small),
    }
    result = cross_validate(estimators, DATA, folds=3, seed=0)
    assert result.best == "exact"
    reasons = {c.name: c.reason for c in result.ranking[1:]}
    assert reasons["failing"] == "fold 0: SingularSystemError: A is singular; use fewer features"
    assert reasons["sometimes"].startswith("fold 1: LinAlgError")
    assert "whole numbers from 0 to 2" in reasons["small"]  # it could not look at the held-out states
    assert all(c.score is None and c.difference is None for c in result.ranking[1:])
    assert "failed: failing: fold 0" in str(result)
    alone = cross_validate({"failing": Failing()}, DATA, folds=3, seed=0)
    with pytest.raises(InvalidInputError, match="all failed"):
        _ = alone.best
    assert "failed" in str(alone)


def test_other_errors_are_not_hidden():
    class Buggy:
        def fit(self, data):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        cross_validate({"buggy": Buggy()}, DATA)


def test_unvisited_steps_are_scored_by_the_overall_mean_and_variance():
    visits = EXACT.support.feature_episodes.copy()
    visits[6:] = 0
    partial = type(EXACT.support)(visits, visits, 1, None, np.inf)
    blind = Fixed(replace(EXACT, support=partial, second_support=partial))
    result = cross_validate({"blind": blind, "exact": Fixed(EXACT)}, DATA, folds=3, seed=0)
    assert result.best == "exact"
    share = np.isin(DATA.states[DATA.visited_rows][:, 0], [6, 7]).mean()
    worse = result.ranking[1]
    assert worse.score.unvisited == pytest.approx(share)
    assert "did not visit" in str(result)
    total, key = 0.0, int(keys(0)[0])
    for fold in range(3):
        held_out = FoldEpisodes(DATA, key, 3, fold, held_out=True).collected()
        x, B = held_out.states[held_out.visited_rows][:, 0], held_out.returns_to_go()
        J, V = EXACT.mean(np.arange(8))[x], EXACT.variance(np.arange(8))[x]
        there = np.isin(x, [6, 7])
        guess = np.log(B.var()) + (B - B.mean()) ** 2 / B.var()
        total += np.sum((guess - np.log(V) - (B - J) ** 2 / V)[there])
    assert worse.difference == pytest.approx(total / DATA.transitions)


def test_cut_off_episodes_are_scored_by_completed_returns():
    data = CHAIN.sample(0, episodes=40, seed=1, max_steps=12)
    estimator = Fixed(EXACT)
    result = cross_validate({"exact": estimator}, data, folds=4, seed=0)
    assert result.cut_off == int((~data.terminated).sum()) > 0
    assert (result.episodes, result.steps) == (40, data.transitions)
    assert sum(len(seen) for seen in estimator.seen) == 3 * 40
    assert "cut off: completed by the median" in str(result)
    assert result.ranking[0].score.calibration == pytest.approx(EXACT.score(data).calibration)


def test_completion_is_the_same_for_all_and_none_gains_by_its_own():
    """A small variance everywhere is consistent with itself, and wrong: the rewards until the cut say so."""
    chain = pr.MarkovChain(
        np.full((2, 2), 0.5), [[2.0, -2.0], [2.0, -2.0]], terminal_rewards=[0, 0], discount=0.9
    )
    data = chain.sample(0, episodes=200, seed=0, max_steps=20)
    table = pr.LSTD(pr.Tabular(2), discount=0.9)
    estimators = {f"{share:g}": Scaled(table, share) for share in (0.7, 0.85, 1.0, 1.2, 1.5)}
    result = cross_validate(estimators, data, folds=4, seed=0)
    assert result.cut_off == result.episodes == 200
    assert result.best == "1"


class Scaled:
    """An estimator whose variances are multiplied by a share."""

    def __init__(self, estimator, share):
        self.estimator, self.share, self.discount = (
            replace(estimator, variance="direct"),
            share,
            estimator.discount,
        )

    def fit(self, data):
        risk = self.estimator.fit(data)
        return replace(risk, w_second=self.share * risk.w_second)


def test_where_all_are_cut_off_and_one_must_end_nothing_is_fitted():
    data = CHAIN.sample(0, episodes=40, seed=1, max_steps=2)
    assert not data.terminated.any()
    estimator = Fixed(EXACT)
    estimator.discount = 1.0
    with pytest.raises(InvalidInputError, match="all cut off; gather"):
        cross_validate({"exact": estimator}, data, folds=4, seed=0)
    assert estimator.seen == []
    del estimator.discount  # it may not say: then the estimates do
    with pytest.raises(InvalidInputError, match="all cut off; gather"):
        cross_validate({"exact": estimator}, data, folds=4, seed=0)


def test_it_prints_nothing_off_the_terminal_and_reads_well(capfd, monkeypatch):
    monkeypatch.setattr("policyrisk._core.progress._PATIENCE", 0.0)
    result = cross_validate({"exact": Fixed(EXACT), "failing": Failing()}, DATA, folds=3, seed=0)
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")
    lines = str(result).splitlines()
    assert lines[0].startswith("Dawid–Sebastiani score of 47 held-out episodes")
    assert lines[2].startswith("exact")
    plain = json.loads(json.dumps(result.to_dict()))
    assert plain["ranking"][0]["name"] == "exact"
    assert plain["ranking"][1]["score"] is None


def test_astronomic_scores_are_printed_in_few_digits():
    sure = replace(EXACT, w_mean=EXACT.w_mean * 1e15, w_second=np.full(8, 1e-3), variance_method="direct")
    result = cross_validate({"exact": Fixed(EXACT), "sure": Fixed(sure)}, DATA, folds=3, seed=0)
    worse = result.ranking[1]
    assert worse.name == "sure"
    assert worse.floored > 1e27
    header, _, row = str(result).splitlines()[1:4]
    cells = row.split()
    assert len(header) == len(row)
    assert float(cells[1]) == pytest.approx(worse.floored, rel=1e-4)
    assert float(cells[3]) == pytest.approx(worse.difference, rel=1e-3)
    assert float(cells[7]) == pytest.approx(worse.score.mse, rel=1e-4)
    assert "".join(cells[8:]) == ">1e6"
    assert max(map(len, cells)) < 12
    assert max(map(len, result.verdict.split())) < 12


@pytest.mark.parametrize(("terminal", "setting"), [(True, None), (True, "0"), (False, None)])
def test_the_bar_is_shown_on_a_terminal_after_a_while(terminal, setting, capfd, monkeypatch):
    from policyrisk._core.progress import ProgressBar

    monkeypatch.setattr("policyrisk._core.progress._PATIENCE", 0.0)
    monkeypatch.setenv("FORCE_COLOR" if terminal else "NO_COLOR", "1")
    if setting is not None:
        monkeypatch.setenv("POLICYRISK_PROGRESS", setting)
    with ProgressBar("work", 3) as bar:
        for _ in range(3):
            bar.advance()
    assert ("work" in capfd.readouterr().err) is (terminal and setting is None)


DISCOUNTED = pr.LSTD(pr.Tabular(8), discount=0.9).fit_exact(
    pr.domains.walk(n=8, p=0.7, discount=0.9), start=0
)
BAD = {
    "none": (lambda: cross_validate({}, DATA), InvalidInputError, "at least one name"),
    "list": (lambda: cross_validate([Fixed(EXACT)], DATA), InvalidInputError, "must be a dictionary"),
    "no fit": (lambda: cross_validate({"a": 3}, DATA), InvalidInputError, r"must have a fit\(data\)"),
    "class": (lambda: cross_validate({"a": Failing}, DATA), InvalidInputError, r"must have a fit\(data\)"),
    "folds": (lambda: cross_validate({"a": Fixed(EXACT)}, DATA, folds=1), InvalidInputError, "folds must be"),
    "few": (lambda: cross_validate({"a": Fixed(EXACT)}, DATA[:4]), InvalidInputError, "at least folds=5"),
    "seed": (lambda: cross_validate({"a": Fixed(EXACT)}, DATA, seed=-1), InvalidInputError, "seed must be"),
    "data": (lambda: cross_validate({"a": Fixed(EXACT)}, 3), InvalidInputError, "data must be Trajectories"),
    "once": (lambda: cross_validate({"a": Fixed(EXACT)}, iter([DATA])), InvalidInputError, "re-iterable"),
    "fitted discounts": (
        lambda: cross_validate({"a": Fixed(EXACT), "b": Fixed(DISCOUNTED)}, DATA),
        MismatchError,
        "agree on the discount",
    ),
    "discounts": (
        lambda: cross_validate({"a": pr.LSTD(TABLE), "b": pr.LSTD(TABLE, discount=0.9)}, DATA),
        MismatchError,
        "agree on the discount",
    ),
    "cut off": (
        lambda: cross_validate({"a": Fixed(EXACT)}, CHAIN.sample(0, episodes=9, seed=0, max_steps=2)),
        InvalidInputError,
        "terminated episodes to score",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_says_what_to_do(case):
    call, kind, message = BAD[case]
    with pytest.raises(kind, match=message):
        call()
