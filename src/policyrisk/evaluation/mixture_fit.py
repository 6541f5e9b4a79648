"""The fit of a chosen mixture: its members, each fitted to all of the data, and what they share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from policyrisk.evaluation.feature_choice import FeatureChoice
from policyrisk.evaluation.spelling import Spelling
from policyrisk.lstd import LSTD
from policyrisk.lstd.passes import StartsAndReturns
from policyrisk.montecarlo.forest import ReturnForest
from policyrisk.passes.fold import Fold
from policyrisk.risk import RiskFunction
from policyrisk.trajectories import Trajectories

DRAWS = 200  # of the weights, for a mixture's error bars


def fit_mixture(
    choice: FeatureChoice,
    estimator: Callable[[Spelling, float], LSTD],
    fold: Fold,
    sample: Trajectories,
    discount: float,
    seed: int,
) -> RiskFunction:
    """The chosen mixture, its members fitted to all of the data."""
    fits: list[RiskFunction] = []
    members = sorted(choice.members, key=lambda each: each.spelling is None)  # the forest last
    for member in members:
        if member.spelling is None:
            known = dict(zip(map(str, members), fits, strict=False))
            others = sum(each.mean_share for each in members[:-1])
            around = (
                RiskFunction.mixture(fits, [each.mean_share for each in members[:-1]]) if others else None
            )
            fits.append(
                ReturnForest(discount=discount).fit_by(
                    fold,
                    sample,
                    tail=_tail(choice, known, estimator, fold),
                    mean=choice.stack.mean,
                    around=around,
                    share=others,
                    bootstrap=DRAWS,
                    seed=seed,
                    grown=choice.trees,
                )
            )
        else:
            lstd = estimator(member.spelling, member.variance_lam)
            fits.append(lstd.fit_by(fold, bootstrap=DRAWS, seed=seed))
    direct = fits[0].variance_method == "direct"
    risk = RiskFunction.mixture(
        fits,
        [each.mean_share for each in members],
        [each.variance_share for each in members] if direct else None,
        misfit=choice.stack.misfit,
    )
    found = fold(lambda source, _: StartsAndReturns.over(source, risk))
    # How returns and weights vary together; a member's returns are completed almost as the mixture's, most
    # nearly those of one that gave up no episode as a whole.
    fullest = sorted(fits, key=lambda each: -each.provenance.episodes)
    draws = [each.completed.draws for each in fullest if each.completed is not None]
    shared = next((each for each in draws if each is not None), None)
    return replace(risk, starts=found.starts, completed=replace(found.completed, draws=shared))


def _tail(
    choice: FeatureChoice,
    known: dict[str, RiskFunction],
    estimator: Callable[[Spelling, float], LSTD],
    fold: Fold,
) -> RiskFunction | None:
    """What completes the forest's cut-off episodes: the estimate that completed them in the choice."""
    tail = choice.tail
    if tail is None or tail.spelling is None or str(tail) in known:
        return known.get(str(tail))
    return estimator(tail.spelling, tail.variance_lam).fit_by(fold, error_bars=False)
