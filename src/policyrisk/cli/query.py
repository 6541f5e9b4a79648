"""``policyrisk query``: the numbers at chosen states."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from policyrisk.cli.screen import screen
from policyrisk.cli.shared import (
    FeaturesAgain,
    check_there,
    features_again,
    finite_number,
    policy_of,
    without_quotes,
)

if TYPE_CHECKING:
    from policyrisk.evaluation import Evaluation
    from policyrisk.risk import Quantity

_QUANTITIES: tuple[Quantity, ...] = ("mean", "variance", "std", "sharpe")


def query(
    folder: Annotated[Path, typer.Argument(help="A folder that `policyrisk evaluate` wrote.")],
    at: Annotated[
        list[str],
        typer.Option(
            help="A state, as in 0.2,0.9 or Oslo,true,2026-03-31; may be given several times. "
            'A name with a comma in it is in quotes: "Oslo, north",0.5.'
        ),
    ],
    level: Annotated[
        float | None,
        typer.Option(help="The intervals' level; the evaluation's where not given.", min=0, max=1),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(help="module:name of the target again, where it is a function: files hold no code."),
    ] = None,
    features: FeaturesAgain = None,
    predict: Annotated[
        bool,
        typer.Option(
            "--predict", help="Also between what a single episode from there will end: at --level, or 0.9."
        ),
    ] = False,
) -> None:
    """Mean, variance, std, Sharpe ratio and tails at a state, with intervals and the episodes behind them."""
    check_there(folder)
    from policyrisk.evaluation import Evaluation

    policy = None if target is None else policy_of(target, "--target")
    evaluation = Evaluation.load(folder, policy, features_again(features))
    if evaluation.lacks_target:
        raise typer.BadParameter(
            f"the target {evaluation.notes['target']['name']} is a function, and files hold no code; name it "
            "again",
            param_hint="--target",
        )
    states = [_point(text, evaluation) for text in at]
    answers = _answers(evaluation, states, evaluation.level if level is None else level)
    told: dict[str, Any] = {"name": evaluation.name, "trust": asdict(evaluation.trust), "states": answers}
    last = f"\ntrust: {evaluation.trust}"
    if predict:
        share = 0.9 if level is None else level
        ends = evaluation.prediction_interval(states, share).tolist()
        assert evaluation.prediction is not None
        told["prediction"] = evaluation.prediction.to_dict()
        last = f"\nnext return: {evaluation.prediction.said(share)}{last}"
        for answer, (low, high) in zip(answers, ends, strict=True):
            answer["prediction"] = {"level": share, "low": low, "high": high}
    text = "\n\n".join(_text(evaluation, answer) for answer in answers)
    screen.answer(told, text + last)


def _point(text: str, evaluation: Evaluation) -> list[float]:
    """A state: as many numbers, or names where a label has names, as there are coordinates."""
    from policyrisk._core.text import pieces, plural

    parts, coordinates = pieces(text, ","), evaluation.names
    if len(parts) != len(coordinates):
        raise typer.BadParameter(
            f"{text!r} must have {plural(len(coordinates), 'number')}, one each for "
            f"{', '.join(coordinates)}, got {len(parts)}; write for example --at "
            f"{','.join(['0.5'] * len(coordinates))}",
            param_hint="--at",
        )
    return [
        _code(without_quotes(part.strip(), "--at"), coordinate, names)
        if (names := evaluation.label_names.get(coordinate))
        else _number(part.strip())
        for part, coordinate in zip(parts, coordinates, strict=True)
    ]


def _number(text: str) -> float:
    """A number, true or false, or a date in days since the beginning of 1970, as readers take them.

    >>> _number("true"), _number("1970-01-02T12:00"), _number("1970-01-02T01:00+01:00"), _number("-2")
    (1.0, 1.5, 1.0, -2.0)
    """
    if text.lower() in ("true", "false"):
        return float(text.lower() == "true")
    try:
        date = datetime.fromisoformat(text) if "-" in text[1:] else None
    except ValueError:  # such as 1e-3
        date = None
    if date is None:
        return finite_number(text, "--at")
    return (date.replace(tzinfo=date.tzinfo or UTC) - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(days=1)


def _code(name: str, coordinate: str, names: Sequence[str]) -> float:
    if name not in names:
        more = f", … ({len(names)} in all)" if len(names) > 8 else ""
        raise typer.BadParameter(
            f"{coordinate} must be one of {', '.join(names[:8])}{more}, got {name!r}; no other was recorded",
            param_hint="--at",
        )
    return float(names.index(name))


def _answers(evaluation: Evaluation, states: list[list[float]], level: float) -> list[dict[str, Any]]:
    import numpy as np

    from policyrisk.errors import NegativeVarianceWarning
    from policyrisk.evaluation.tails import at_states
    from policyrisk.features.protocol import outside
    from policyrisk.risk.estimate import Estimate, student_quantile

    risk, episodes, strange = evaluation.risk, evaluation.risk.episodes(states), evaluation.outside(states)
    facts = {
        "visited": episodes > 0,
        "outside_box": outside((risk.features, risk.second_features), np.array(states)),
        "outside_data": strange,
        "episodes": np.where(strange, 0.0, episodes),
    }
    if evaluation.target is not None:
        facts["covered"] = risk.covered(states)
    estimates: dict[str, Any] = {}
    for of in _QUANTITIES:
        with warnings.catch_warnings():
            if of == "sharpe":  # it was said for the std
                warnings.simplefilter("ignore", NegativeVarianceWarning)
            values = getattr(risk, of)(states)
            errors, ends = np.full(len(states), np.nan), np.full((len(states), 2), np.nan)
            if risk.error_bars is not None:
                errors, ends = risk.standard_error(states, of=of), risk.interval(states, of=of, level=level)
                if risk.widening is not None:  # more than randomness is in the interval, and in its error
                    errors = (ends[:, 1] - ends[:, 0]) / (2.0 * student_quantile(level, episodes))
        estimates[of] = np.vstack([values, errors, ends.T])
    tails: dict[str, dict[str, Any]] = {}
    if evaluation.distribution is not None:
        asked = evaluation.notes["distribution"]
        tails = at_states(evaluation.distribution, asked, np.array(states), level, episodes)

    def told(numbers: Any) -> dict[str, float]:
        return Estimate(*numbers.tolist()).to_dict()

    return [
        {
            "at": {
                name: texts[int(value)] if (texts := evaluation.label_names.get(name)) else value
                for name, value in zip(evaluation.names, state, strict=True)
            },
            **{name: values[k].item() for name, values in facts.items()},
            "level": level,
            **{of: told(found[:, k]) for of, found in estimates.items()},
            **{of: {q: told(each[:, k]) for q, each in found.items()} for of, found in tails.items()},
        }
        for k, state in enumerate(states)
    ]


def _text(evaluation: Evaluation, answer: dict[str, Any]) -> str:
    from policyrisk._core.text import number, percent, printable, table
    from policyrisk.evaluation import tails
    from policyrisk.risk.estimate import Estimate

    place = ", ".join(
        printable(f"{name} = {value if isinstance(value, str) else f'{value:g}'}")
        for name, value in answer["at"].items()
    )
    covered = answer.get("covered")
    coverage = (
        "" if covered is None else f"; {percent(covered)} of the target's probability there on logged actions"
    )
    if not answer["visited"]:
        why = (
            "not visited" if covered is None else "not visited, or too little logged of what the target does"
        )
        return (
            f"{printable(evaluation.name)} at {place}: {why}, so that the data say nothing about it{coverage}"
        )
    estimates: dict[str, Estimate] = {of: Estimate(*answer[of].values()) for of in _QUANTITIES}
    estimates |= dict(tails.rows(answer)) if "quantiles" in answer else {}
    rows = [[of, *each.cells] for of, each in estimates.items()]
    if next_return := answer.get("prediction"):
        ends = f"{number(next_return['low'])} to {number(next_return['high'])} ({next_return['level']:.4g})"
        rows.append(["next return", "", "", ends])
    header = ["", "value", "std error", f"{answer['level']:.4g} interval"]
    beyond = (
        "\noutside of the features' box: these are the numbers at its nearest point" * answer["outside_box"]
    )
    behind = f"about {answer['episodes']:.0f} of {evaluation.survey.episodes} episodes behind it"
    if answer["outside_data"]:
        behind = "outside the data: no episode was there, and the numbers are extrapolated"
    return f"{printable(evaluation.name)} at {place}: {behind}{coverage}\n{table(header, rows)}{beyond}"
