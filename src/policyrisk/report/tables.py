"""The report's tables, and how it writes numbers: HTML that needs no script."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from policyrisk._core.arrays import Floats
from policyrisk._core.text import NONE, escape, percent
from policyrisk.report.grid import MapGrid
from policyrisk.report.numbers import Sampled
from policyrisk.risk import FEW_EPISODES
from policyrisk.risk.estimate import Estimate

if TYPE_CHECKING:
    from policyrisk.evaluation import Evaluation

_DAGGER = "†"


def ranked_text(evaluation: Evaluation, grid: MapGrid, sampled: Sampled) -> str:
    """How the riskiest states were chosen, in words."""
    by = (
        "the lower end of the standard deviation’s interval, so that luck leads less often"
        if evaluation.risk.error_bars is not None
        else "their standard deviation"
    )
    surely, few = "", f"{_DAGGER} marks fewer than {FEW_EPISODES} episodes, where the interval is too narrow."
    if evaluation.risk.misfit is not None:
        few = ""  # its intervals were widened for that
    if evaluation.risk.error_bars is not None:
        surely = (
            f"The intervals hold for all these states together; “riskier” says which are riskier than the "
            f"median state, with {100 * evaluation.level:g}% confidence for all together. "
        )
    if evaluation.risk.error_bars is not None and evaluation.risk.misfit is not None:
        surely += (
            "It is about randomness alone; the intervals cover the choice of features as well, so that one "
            "may reach down to 0 where “riskier” says yes. "
        )
    many = len(evaluation.names) - len(grid.idle) - len(grid.shown)
    left = f" {many} coordinates of less influence are not shown." if many else ""
    return escape(
        f"From {len(sampled.states):,} sampled visited states, ranked by {by}. States that lie within a "
        f"tenth of the data’s extent of one above are left out. {surely}{few}{left}"
    )


def riskiest(evaluation: Evaluation, grid: MapGrid, sampled: Sampled) -> str:
    """The riskiest states: the inside of a table."""
    rows = sampled.riskiest(evaluation, grid)
    shown = grid.shown
    level = f"{100 * evaluation.level:g}%"
    columns = [
        ("rank", np.arange(1.0, len(rows) + 1)),
        *((evaluation.names[k], sampled.states[rows, k]) for k in shown),
        ("mean", sampled.mean[rows]),
        ("std", sampled.std[rows]),
        (f"{level} low", sampled.interval[rows, 0]),
        (f"{level} high", sampled.interval[rows, 1]),
        ("riskier", sampled.riskier[rows].astype(np.float64)),
        ("episodes", np.round(sampled.episodes[rows])),
    ]
    head = "".join(
        f'<th scope="col" aria-sort="none"><button type="button">{escape(heading)}</button></th>'
        for heading, _ in columns
    )
    texts = [_column(values) for _, values in columns]
    for place, k in enumerate(shown, start=1):
        if names := evaluation.label_names.get(evaluation.names[k]):
            texts[place] = [escape(names[int(code)]) for code in columns[place][1].tolist()]
    texts[-2] = ["yes" if surely else NONE for surely in sampled.riskier[rows].tolist()]
    few = ((columns[-1][1] < FEW_EPISODES) & (evaluation.risk.misfit is None)).tolist()
    texts[-1] = [text + _DAGGER if less else text for text, less in zip(texts[-1], few, strict=True)]
    cells = [
        [f'<td data-value="{value!r}">{text}</td>' for value, text in zip(column, shown_as, strict=True)]
        for column, shown_as in zip((values.tolist() for _, values in columns), texts, strict=True)
    ]
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in zip(*cells, strict=True))
    return f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"


def misfit(evaluation: Evaluation) -> str:
    """Where the features misfit, as a table; nothing where they do not."""
    check = evaluation.check
    if check is None or check.regions is None or not check.material().any():
        return ""
    return (
        '<details open class="more"><summary><h3>Where the features cannot express the risk</h3></summary>'
        + _regions(evaluation, np.flatnonzero(check.material()).tolist())
        + "</details>"
    )


def calibration(evaluation: Evaluation) -> str:
    """Returns to go against the estimate, region by region; nothing where that was not looked at."""
    check = evaluation.check
    if check is None or check.regions is None:
        return ""
    return (
        '<details class="more"><summary><h3>Calibration: the estimate against the returns, region by region'
        f'</h3></summary><p class="caption">Of the mean: {escape(str(check.mean))}. Of the variance: '
        f"{escape(str(check.variance))}.</p>{_regions(evaluation, range(len(check.share)))}</details>"
    )


def _regions(evaluation: Evaluation, chosen: Sequence[int]) -> str:
    """Some of the regions of the features' test, as a table."""
    check = evaluation.check
    assert check is not None
    assert check.regions is not None
    names = check.regions.names(evaluation.names, evaluation.label_names)
    rows = [
        [
            escape(names[j]),
            percent(float(check.share[j])),
            f"{digits(check.bias[j] / check.std[j])} ± {digits(check.bias_error[j] / check.std[j])}",
            f"{digits(check.variance_ratio[j])} ± {digits(check.variance_ratio_error[j])}",
        ]
        for j in chosen
    ]
    head = ["where", "of the steps", "returns above the mean, in std", "variance seen / estimated"]
    text = "Returns to go of all steps there against the estimate; 0 and 1 would be right."
    return f'<p class="caption">{text}</p>' + plain_table(head, rows)


def candidates(evaluation: Evaluation) -> str:
    """What the answer is mixed of, and what else was tried; nothing where features were given."""
    choice = evaluation.notes.get("choice") or {}
    if scores := choice.get("one_step"):
        return _scored(scores)
    stack = choice.get("stack")
    if not stack:
        return ""
    rows = [
        [
            escape(one["name"]),
            *(percent(one[f"{of}_share"]) if one[f"{of}_share"] else "" for of in ("mean", "variance")),
            *(NONE if one[key] is None else digits(one[key]) for key in ("mse", "score")),
        ]
        for one in stack["candidates"]
        if not one["reason"]
    ]
    text = (
        f"The answer is a mixture. Each candidate was judged on episodes that it did not see; the smaller "
        f"the error and the score, the better. The mixture’s mean squared error of the mean is "
        f"{digits(stack['mse'])}, that of one number for all states {digits(stack['constant_mse'])}; the "
        f"squared distances from it are {digits(stack['calibration'])} times the estimated variance."
    )
    head = ["features", "share of the mean", "share of the variance", "squared error of the mean"]
    return f'<p class="caption">{text}</p>' + plain_table([*head, "score of the variance"], rows)


def _scored(scores: dict[str, Any]) -> str:
    """What a target's features were chosen from."""
    rows = [
        [
            escape(one["name"]),
            *(digits(one[of]) for of in ("score", "misfit", "unsteady", "mean")),
            "" if one["possible"] else "not possible",
        ]
        for one in scores["ranking"]
        if not one["reason"]
    ]
    text = (
        "Features of the state were chosen by the errors that they leave in single steps of the target, on "
        "episodes that they did not see, since none is of the target; the first one has a block for each "
        "action."
    )
    head = [
        "features",
        "squared error of one step",
        "from the choice of episodes",
        "mean over the starts",
        "",
    ]
    return f'<p class="caption">{text}</p>' + plain_table(head, rows)


def plain_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of texts that are HTML already."""
    headings = "".join(f'<th scope="col">{text}</th>' for text in head)
    body = "".join("<tr>" + "".join(f"<td>{text}</td>" for text in row) + "</tr>" for row in rows)
    return (
        f'<div class="scroll"><table class="plain"><thead><tr>{headings}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def digits(value: float) -> str:
    """Four digits, with a true minus sign, and no exponent below ten millions.

    >>> digits(-73.125), digits(12345.6), digits(2e9), digits(float("nan"))
    ('−73.12', '12,346', '2e+09', '–')
    """
    if math.isnan(value):
        return NONE
    text = f"{value:,.0f}" if 1e4 <= abs(value) < 1e7 else f"{float(value):.4g}"
    return text.replace("-", "−")


def _column(values: Floats) -> list[str]:
    """Numbers under each other, with as many decimals as give the largest four digits.

    >>> _column(np.array([-41.5, 3.25, np.nan])), _column(np.array([1.0, 17.0]))
    (['−41.50', '3.25', '–'], ['1', '17'])
    """
    known = values[np.isfinite(values)]
    largest = float(np.abs(known).max(initial=0.0))
    if not 1e-4 <= largest < 1e7 or known.size < np.count_nonzero(~np.isnan(values)):
        return [digits(value) for value in values.tolist()]
    decimals = 0 if not np.any(known % 1.0) else max(3 - math.floor(math.log10(largest)), 0)
    texts = (NONE if math.isnan(v) else f"{v:,.{decimals}f}" for v in values.tolist())
    return [text.replace("-", "−") for text in texts]


def ends(estimate: Estimate) -> str:
    """The interval's ends, nothing where there is none."""
    return "" if math.isnan(estimate.low) else f"{digits(estimate.low)} to {digits(estimate.high)}"
