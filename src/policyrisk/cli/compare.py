"""``policyrisk compare``: several evaluations ranked by a criterion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from policyrisk.cli.screen import screen
from policyrisk.cli.shared import (
    FeaturesAgain,
    LevelOption,
    can_make,
    check_there,
    criterion_of,
    features_again,
    place_option,
)

if TYPE_CHECKING:
    from policyrisk.evaluation import Evaluation
    from policyrisk.selection.comparison import Comparison

_SUFFIXES = (".png", ".svg", ".pdf")
_LONGEST = 2_000  # letters of features that are spelled anew; a file may hold any text
_APART = 5.0  # standard errors between two averages of starts, of many coordinates perhaps
_EXAMPLES = (
    "mean",
    "sharpe",
    "mean-std:1",
    "mean:variance<=10",
    "variance:mean>=5",
    "quantile:0.05",
    "cvar:0.05",
)


def compare(
    folders: Annotated[list[Path], typer.Argument(help="Folders that `policyrisk evaluate` wrote.")],
    by: Annotated[
        str,
        typer.Option(
            "--criterion",
            help="mean, sharpe, mean-std:c, mean-variance:c, 'mean:variance<=c' or 'variance:mean>=c' (in "
            "quotes), c a number; quantile:0.05 or cvar:0.05, of evaluations with --quantiles.",
            autocompletion=lambda incomplete: [text for text in _EXAMPLES if text.startswith(incomplete)],
        ),
    ] = "sharpe",
    out: Annotated[Path, place_option(help="Picture of the mean-std plane (png, svg or pdf).")] = Path(
        "comparison.png"
    ),
    level: LevelOption = 0.95,
    features: FeaturesAgain = None,
) -> None:
    """Rank policies by a risk criterion, each by the returns from its own start states.

    The data must start alike, as those of one task do. By quantile: and cvar: a policy is judged by its
    estimate where an episode was cut off, and needs the distribution that `evaluate --quantiles` keeps; mean
    and variance beside them are still those of the returns.
    """
    for folder in folders:
        check_there(folder)
    from policyrisk._core.output import check_file, write_figure
    from policyrisk.criteria import CVaR, Quantile
    from policyrisk.data.files import check_distinct
    from policyrisk.evaluation import Evaluation
    from policyrisk.plotting import plot_mean_std
    from policyrisk.selection import comparison

    criterion = criterion_of(by)
    if out.suffix not in _SUFFIXES:
        raise typer.BadParameter(f"{str(out)!r} must end in {', '.join(_SUFFIXES)}", param_hint="--out")
    check_file(out)
    drawn = can_make("pictures are")
    given = features_again(features)
    evaluations = [Evaluation.load(folder, features=given) for folder in folders]
    check_distinct([[folder] for folder in folders], "folders")
    own = [evaluation.name for evaluation in evaluations]
    titles = own if len(set(own)) == len(own) else map(str, folders)
    policies = dict(zip(titles, evaluations, strict=True))
    _check_names(evaluations, folders)
    result = comparison.compare(policies, None, criterion, level=level)
    tails = isinstance(criterion, Quantile | CVaR)
    if tails:
        result = _with_moments(result, policies)
    if drawn:
        summaries = {ranked.name: ranked.summary for ranked in result.ranking}
        write_figure(plot_mean_std(summaries, criterion=criterion), out)
    spelled = {name: _spelled(evaluation, tails) for name, evaluation in policies.items()}
    difference = _starts_differ(policies)
    extra = {
        "starts": sum(evaluation.survey.episodes for evaluation in evaluations),
        "starts_apart": difference,
        "doubts": {name: _doubts(evaluation) for name, evaluation in policies.items()},
        "features": spelled,
        "picture": str(out) if drawn else None,
    }
    lines = [str(result)]
    if difference is not None:
        lines.append(f"doubt about the difference: the data do not start alike, {difference}")
    by_features = (not tails and r.summary.cut_off for r in result.ranking)  # what they complete
    if any(by_features) and len(set(spelled.values())) > 1:
        lines.append(_different(spelled))
    if drawn:
        lines.append(f"written: {out}")
    screen.answer(result.to_dict() | extra, "\n".join(lines))


def _different(spelled: Mapping[str, str]) -> str:
    each = ", ".join(f"{name} with {spelling}" for name, spelling in spelled.items())
    return (
        f"doubt about the difference: {each}; different features have different biases, so evaluate all with "
        "the same --features"
    )


def _doubts(evaluation: Evaluation) -> list[str]:
    """The warnings about an evaluation by itself, which concern a comparison with it too."""
    return [advice.title for advice in evaluation.advice if advice.severity in ("serious", "warning")]


def _with_moments(result: Comparison, policies: Mapping[str, Evaluation]) -> Comparison:
    """The comparison with mean, variance and std of the completed returns in place of the distributions'."""
    ranking = []
    for ranked in result.ranking:
        whole = policies[ranked.name].risk.summary(level=result.level)
        moments = {of: getattr(whole, of) for of in ("mean", "variance", "std")}
        ranking.append(replace(ranked, summary=replace(ranked.summary, **moments)))
    return replace(result, ranking=tuple(ranking))


def _spelled(evaluation: Evaluation, tails: bool) -> str:
    """The features, spelled alike where they are the same; those of a mixture are told in words."""
    from policyrisk.errors import InvalidInputError
    from policyrisk.features.spelling import Spelling

    notes = (evaluation.noted("distribution") if tails else {}) or evaluation.notes
    spelled = str(notes.get("features"))
    if len(spelled) > _LONGEST:
        return spelled
    try:
        return Spelling.parse(spelled).normal(evaluation.names).text(evaluation.names)
    except InvalidInputError:
        return spelled


def _check_names(evaluations: Sequence[Evaluation], folders: Sequence[Path]) -> None:
    """Raise where coordinates are called differently."""
    from policyrisk.errors import MismatchError
    from policyrisk.selection.comparison import same_names

    first = evaluations[0]
    for evaluation, folder in zip(evaluations, folders, strict=True):
        if not same_names(first.names, evaluation.names):
            raise MismatchError(
                "evaluations must have the same coordinates to be compared, got "
                f"{', '.join(first.names)} in {folders[0]} and {', '.join(evaluation.names)} in {folder}; "
                "evaluate them with the same --state and --time-limit"
            )


def _starts_differ(policies: Mapping[str, Evaluation]) -> str | None:
    """The coordinate whose average over the starts differs most, where that is beyond doubt."""
    import numpy as np

    means = {name: evaluation.survey.starts.mean(axis=0) for name, evaluation in policies.items()}
    errors = {name: e.survey.starts.var(axis=0) / len(e.survey.starts) for name, e in policies.items()}
    first = next(iter(policies))
    names, most, found = policies[first].names, _APART, None
    for name in policies:
        error = np.sqrt(errors[name] + errors[first])
        gap = np.abs(means[name] - means[first])
        z = np.where(gap > 0, gap / np.where(error > 0, error, 1e-300), 0.0)
        d = int(np.argmax(z))
        if z[d] > most:
            at = f"{means[first][d]:.4g} in {first} and {means[name][d]:.4g} in {name}"
            most, found = z[d], f"{names[d]} being {at} on average"
    return found
