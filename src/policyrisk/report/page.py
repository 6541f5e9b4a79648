"""The page around the numbers: headline, findings and table as HTML, the rest drawn by its script.

Every text that a user chose passes through ``html.escape`` or through JSON in which ``<`` is written
``\\u003c``. A content security policy allows the page's own scripts by their hash, and no request at all.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import math
import re
from collections.abc import Sequence
from html import escape
from importlib import resources
from string import Template
from typing import TYPE_CHECKING, Any

import numpy as np

from policyrisk._core.arrays import Floats
from policyrisk._core.text import NONE, number, percent
from policyrisk.report.grid import MapGrid
from policyrisk.report.numbers import Sampled
from policyrisk.risk import FEW_EPISODES
from policyrisk.risk.estimate import Estimate
from policyrisk.risk.mixture import MIXTURE
from policyrisk.risk.summary import PolicySummary

if TYPE_CHECKING:
    from policyrisk.evaluation import Evaluation
    from policyrisk.evaluation.advice import Advice

_TITLES = {
    "mean": ("Mean", "expected reward to go"),
    "std": ("Standard deviation", "how far outcomes spread"),
    "sharpe": ("Sharpe ratio", "mean / standard deviation"),
    "variance": ("Variance", "spread, squared"),
}
_DAGGER = "†"
_SEVERITIES = {"serious": "Serious", "warning": "Warning", "note": "Note", "ok": "All well"}


def asset(name: str) -> str:
    """One of the files beside this one."""
    return (resources.files("policyrisk.report") / name).read_text(encoding="utf-8")


def build(evaluation: Evaluation, grid: MapGrid, sampled: Sampled, data: dict[str, Any], plotly: str) -> str:
    """The whole page."""
    script = asset("report.js")
    return Template(asset("report.html")).substitute(
        policy=_security_policy(plotly, script),
        name=escape(evaluation.name),
        style=asset("report.css"),
        facts=_facts(evaluation),
        cards=_cards(evaluation),
        caveat=_caveat(evaluation),
        tails=_tails(evaluation),
        advice="\n".join(_finding(one) for one in evaluation.advice),
        maps=_maps_text(evaluation, grid),
        misfit=_misfit(evaluation),
        candidates=_candidates(evaluation),
        ranked=_ranked_text(evaluation, sampled),
        table=_table(evaluation, grid, sampled),
        data=json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"),
        plotly=plotly,
        script=script,
    )


def _security_policy(*scripts: str) -> str:
    hashes = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _facts(evaluation: Evaluation) -> str:
    """Settings and counts, as a list of terms."""
    risk, survey = evaluation.risk, evaluation.survey
    second = (
        f" for the mean, {risk.second_features!r} for the second"
        if risk.second_features != risk.features
        else ""
    )
    method = "estimated directly" if risk.variance_method == "direct" else "second moment less squared mean"
    cut_off = f", {survey.cut_off:,} of them cut off" if survey.cut_off else ", all of them terminated"
    described = f"{risk.features!r}{second}"
    if risk.misfit is not None:  # the table of candidates has the rest
        described = (
            f"{risk.features.size:,} in all for the mean, {risk.second_features.size:,} for the variance"
        )
    spelled = f"{evaluation.notes['features']}: " if "features" in evaluation.notes else ""
    influence = sorted(zip(evaluation.influence.tolist(), evaluation.names, strict=True), reverse=True)
    terms = {
        "Data": f"{survey.episodes:,} episodes{cut_off}; {survey.transitions:,} transitions; longest "
        f"{survey.longest:,} steps",
        "State": ", ".join(evaluation.names),
        "Source": str(evaluation.notes.get("data", "")),
        "Target": _target(evaluation),
        "Estimator": risk.provenance.settings,
        "Variance": method,
        "Features": f"{spelled}{described}",
        "Influence": ", ".join(f"{name} {percent(share)}" for share, name in influence)
        if len(evaluation.changing) > 2
        else "",
    }
    return "\n".join(f"<dt>{term}</dt><dd>{escape(text)}</dd>" for term, text in terms.items() if text)


def _target(evaluation: Evaluation) -> str:
    """The policy that is evaluated where the log is another's."""
    if evaluation.target is None:
        return ""
    notes = evaluation.notes.get("target") or {}
    names = notes.get("action_names") or ()
    named = f": {', '.join(f'{k} {name}' for k, name in enumerate(names))}" if names else ""
    return f"{notes.get('name', evaluation.target.name)}, of {evaluation.target.actions} actions{named}"


def _cards(evaluation: Evaluation) -> str:
    summary = evaluation.summary
    sample = summary.sample
    cards = []
    for key, (title, meaning) in _TITLES.items():
        estimate: Estimate = getattr(summary, key)
        beside = ""
        if summary.model is not None:
            own: Estimate = getattr(summary.model, key)
            beside = (
                f'<p class="beside">{escape(_by(summary))} over the same starts:<br>'
                f"<b>{_number(own)}</b> ({_ends(own) or 'no interval'})</p>"
            )
        if sample is not None and summary.returns is not None and (summary.cut_off or not summary.model):
            plain: Estimate = getattr(sample, key)
            whose = "plain sample of" if evaluation.target is None else "the recorded policy’s own"
            beside += (
                f'<p class="beside">{whose} {summary.returns.count:,} returns:<br>'
                f"<b>{_number(plain)}</b> ({_ends(plain) or 'no interval'})</p>"
            )
        if robust := (evaluation.notes.get("target") or {}).get("doubly_robust"):
            other = Estimate(*robust[key].values())
            beside += (
                f'<p class="beside">doubly robust, by propensities:<br>'
                f"<b>{_number(other)}</b> ({_ends(other) or 'no interval'})</p>"
            )
        interval = f"{100 * summary.level:g}%: {_ends(estimate)}" if _ends(estimate) else "no interval"
        cards.append(
            f'<article class="card" data-of="{key}"><h3>{title}</h3><p class="meaning">{meaning}</p>'
            f'<p class="value">{_number(estimate)}</p><p class="interval">{interval}</p>{beside}</article>'
        )
    return "\n".join(cards)


def _by(summary: PolicySummary) -> str:
    return "the mixture" if summary.estimator == MIXTURE else summary.estimator


def _caveat(evaluation: Evaluation) -> str:
    summary = evaluation.summary
    if evaluation.target is not None:
        text = _target_caveat(summary)
        if (evaluation.notes.get("target") or {}).get("doubly_robust"):
            text += " The doubly robust figures believe the propensities instead of the features."
        return escape(text)
    if completed := summary.completed:
        text = (
            f"Of {completed.count:,} returns from the data's own starts, discount {summary.discount:g}. "
            "Intervals hold the randomness of the starts and of the returns."
        )
        if completed.cut_off:
            text += (
                f" {completed.cut_off:,} episodes were cut off: their returns are completed by the estimate "
                "where they were cut off. The plain sample knows only the others, which are not like these."
            )
        return escape(
            f"{text} The figures of {_by(summary)} rest on the features alone: where the two differ "
            "by more than randomness explains, believe the returns here."
        )
    used = summary.starts - summary.unvisited
    text = f"Averages over {used:,} of the data's starts, discount {summary.discount:g}."
    if summary.known:
        text += (
            " Intervals say how much randomness there is in the estimate; they do not cover what the "
            "features cannot express."
        )
    if summary.returns is not None and summary.cut_off:
        text += (
            " The plain sample knows only the episodes that terminated, which are not like the others: where "
            "the two differ, that is one reason."
        )
    elif summary.returns is not None:
        text += (
            " The plain sample needs no features: where the two differ by more than their intervals, believe "
            "the sample here."
        )
    return escape(text)


def _target_caveat(summary: PolicySummary) -> str:
    text = (
        f"Of the target, over {summary.starts - summary.unvisited:,} of the log’s starts, discount "
        f"{summary.discount:g}. The log is of another policy, whose own returns stand beside: they need "
        "not be like the target’s."
    )
    if summary.covered is not None and summary.covered < 1:
        missing = percent(1 - summary.covered)
        text += f" Up to {missing} of the target’s probability has no data behind it and is left out."
    if summary.known:
        text += (
            " Intervals say how much randomness there is in the estimate; they do not cover what the "
            "features cannot express, nor what the recorded policy saw and the state lacks."
        )
    return text


def _finding(advice: Advice) -> str:
    return (
        f'<li class="finding {advice.severity}"><h3><span class="tag">{_SEVERITIES[advice.severity]}</span> '
        f"{escape(advice.title)}</h3><p>{_prose(advice.seen)}</p>"
        f'<p class="remedy"><b>What to do.</b> {_prose(advice.remedy)}</p></li>'
    )


def _tails(evaluation: Evaluation) -> str:
    """The return's distribution over the starts and a map of its worst, where they were asked for."""
    told = evaluation.notes.get("distribution")
    if told is None:
        return ""
    each = {"quantile": told["quantiles"], "mean of the worst": told["cvar"], "chance below": told["below"]}
    rows = []
    for of, values in each.items():
        for at, value in values.items():
            if of == "mean of the worst" and float(at) >= 0.5:
                continue
            estimate = Estimate(*value.values())
            shown = at if of == "chance below" else percent(float(at))
            rows.append([f"{of} {shown}", _number(estimate), _ends(estimate) or "no interval"])
    pictures = "".join(_picture(axes, name) for name, axes in evaluation.tail_pictures().items())
    return (
        '<h3 class="apart">The distribution of the return</h3><p class="caption">From the data’s own '
        f"starts, by {escape(told['features'])}. Intervals do not cover what the features cannot express.</p>"
        + _plain_table(["", "value", f"{100 * told['level']:g}% interval"], rows)
        + pictures
    )


def _picture(axes: Any, name: str) -> str:
    """A figure inside the page."""
    file = io.BytesIO()
    axes.get_figure(root=True).savefig(file, format="png", dpi=110)
    image = base64.b64encode(file.getvalue()).decode()
    return f'<img alt="{name}" style="max-width:100%" src="data:image/png;base64,{image}">'


def _prose(text: str) -> str:
    """Escaped, with true minus signs, and with options of the command line kept in one piece.

    >>> _prose("V is -3 < 0: use --direct")
    'V is −3 &lt; 0: use <code>--direct</code>'
    """
    text = re.sub(r"(?<![\w-])-(?=\d)", "−", escape(text))
    return re.sub(r"--[a-z]+", r"<code>\g<0></code>", text)


def _maps_text(evaluation: Evaluation, grid: MapGrid) -> str:
    """What is held where, in words."""
    sentences = []
    if not grid.axes:
        sentences.append("No coordinate that the features look at ever changes, so there is nothing to map.")
    if grid.idle:
        named = ", ".join(evaluation.names[k] for k in grid.idle)
        sentences.append(f"The features do not look at {named}, so the estimates do not depend on it.")
    if grid.held:
        labels = evaluation.label_names
        named = ", ".join(
            f"{(name := evaluation.names[k])} = "
            + (labels[name][int(grid.fixed[k])] if name in labels else number(float(grid.fixed[k]), 4))
            for k in grid.held
        )
        sentences.append(f"Held fixed: {named}.")
    if len(grid.axes) > 2 and not grid.free:
        sentences.append("One slider at a time leaves its median; moving another brings it back.")
    if evaluation.risk.misfit is not None:
        sentences.append(
            "Intervals at states cover randomness and the choice of features, those at the start randomness "
            "alone."
        )
    return escape(" ".join(sentences))


def _misfit(evaluation: Evaluation) -> str:
    """Where the features misfit, as a table; nothing where they do not."""
    check = evaluation.check
    if check is None or check.regions is None or not check.material().any():
        return ""
    rows = [
        [
            escape(check.regions.names(evaluation.names, evaluation.label_names)[j]),
            percent(float(check.share[j])),
            f"{_number(check.bias[j] / check.std[j])} ± {_number(check.bias_error[j] / check.std[j])}",
            f"{_number(check.variance_ratio[j])} ± {_number(check.variance_ratio_error[j])}",
        ]
        for j in np.flatnonzero(check.material()).tolist()
    ]
    head = ["where", "of the steps", "returns above the mean, in std", "variance seen / estimated"]
    return (
        '<h3 class="apart">Where the features cannot express the risk</h3><p class="caption">Returns to go '
        "of all steps there against the estimate; 0 and 1 would be right.</p>" + _plain_table(head, rows)
    )


def _candidates(evaluation: Evaluation) -> str:
    """What the answer is mixed of, and what else was tried; nothing where features were given."""
    choice = evaluation.notes.get("choice") or {}
    if scores := choice.get("cross_validation"):
        return _scored(scores)
    stack = choice.get("stack")
    if not stack:
        return ""
    rows = [
        [
            escape(one["name"]),
            *(percent(one[f"{of}_share"]) if one[f"{of}_share"] else "" for of in ("mean", "variance")),
            *(NONE if one[key] is None else _number(one[key]) for key in ("mse", "score")),
        ]
        for one in stack["candidates"]
        if not one["reason"]
    ]
    text = (
        f"The answer is a mixture. Each candidate was judged on episodes that it did not see; the smaller "
        f"the error and the score, the better. The mixture’s mean squared error of the mean is "
        f"{_number(stack['mse'])}, that of one number for all states {_number(stack['constant_mse'])}; the "
        f"squared distances from it are {_number(stack['calibration'])} times the estimated variance."
    )
    head = ["features", "share of the mean", "share of the variance", "squared error of the mean"]
    return f'<p class="caption">{text}</p>' + _plain_table([*head, "score of the variance"], rows)


def _scored(scores: dict[str, Any]) -> str:
    """What a target's features were chosen from."""
    rows = [
        [escape(one["name"]), _number(one["floored"]["value"]), _number(one["score"]["mse"]["value"])]
        for one in scores["ranking"]
        if one["score"] is not None
    ]
    text = (
        "Features of the state were chosen by what they tell about the recorded policy on episodes that they "
        "did not see, since none is of the target; the first one has a block for each action."
    )
    head = ["features", "score of mean and variance", "squared error of the mean"]
    return f'<p class="caption">{text}</p>' + _plain_table(head, rows)


def _plain_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of texts that are HTML already."""
    headings = "".join(f'<th scope="col">{text}</th>' for text in head)
    body = "".join("<tr>" + "".join(f"<td>{text}</td>" for text in row) + "</tr>" for row in rows)
    return (
        f'<div class="scroll"><table class="plain"><thead><tr>{headings}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _ranked_text(evaluation: Evaluation, sampled: Sampled) -> str:
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
    return escape(
        f"From {len(sampled.states):,} sampled visited states, ranked by {by}. States that lie within a "
        f"tenth of the data’s extent of one above are left out. {surely}{few}"
    )


def _table(evaluation: Evaluation, grid: MapGrid, sampled: Sampled) -> str:
    rows = sampled.riskiest(evaluation, grid)
    shown = [k for k in range(len(evaluation.names)) if k not in grid.idle]
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


def _number(value: float) -> str:
    """Four digits, with a true minus sign, and no exponent below ten millions.

    >>> _number(-73.125), _number(12345.6), _number(2e9), _number(float("nan"))
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
        return [_number(value) for value in values.tolist()]
    decimals = 0 if not np.any(known % 1.0) else max(3 - math.floor(math.log10(largest)), 0)
    texts = (NONE if math.isnan(v) else f"{v:,.{decimals}f}" for v in values.tolist())
    return [text.replace("-", "−") for text in texts]


def _ends(estimate: Estimate) -> str:
    return "" if math.isnan(estimate.low) else f"{_number(estimate.low)} to {_number(estimate.high)}"
