"""The page around the numbers: headline, findings and table as HTML, the rest drawn by its script.

Every text that a user chose passes through ``escape`` or through JSON in which ``<`` is written ``\\u003c``;
both show control characters. A content security policy allows the page's own scripts by their hash, and no
request at all. Plotly's is in the page compressed; the page's own script puts it in, as it was.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from importlib import resources
from string import Template
from typing import TYPE_CHECKING, Any

import numpy as np

import policyrisk
from policyrisk._core.text import escape, number, percent, plural, printable
from policyrisk.report.grid import COORDINATES, MapGrid
from policyrisk.report.numbers import Sampled, compressed
from policyrisk.report.tables import (
    calibration,
    candidates,
    digits,
    ends,
    misfit,
    plain_table,
    ranked_text,
    riskiest,
)
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
_LONGEST = 400  # letters of the features' description
_COUNTED = {"serious": "serious finding", "warning": "warning"}
_SEVERITIES = {"serious": "Serious", "warning": "Warning", "note": "Note", "ok": "All well"}


def asset(name: str) -> str:
    """One of the files beside this one."""
    return (resources.files("policyrisk.report") / name).read_text(encoding="utf-8")


def build(
    evaluation: Evaluation, grid: MapGrid, sampled: Sampled, data: dict[str, Any], plotly: str, command: str
) -> str:
    """The whole page."""
    script = asset("report.js")
    return Template(asset("report.html")).substitute(
        policy=_security_policy(plotly, script),
        name=escape(evaluation.name),
        style=asset("report.css"),
        stamp=_stamp(evaluation),
        facts=_facts(evaluation, command),
        cards=_cards(evaluation),
        caveat=_caveat(evaluation),
        tails=_tails(evaluation),
        advice="\n".join(_finding(one) for one in evaluation.advice),
        maps=_maps_text(evaluation, grid),
        misfit=misfit(evaluation),
        candidates=candidates(evaluation),
        calibration=calibration(evaluation),
        histogram=_histogram_text(evaluation) if data["histogram"] else "",
        ranked=ranked_text(evaluation, grid, sampled),
        table=riskiest(evaluation, grid, sampled),
        data=json.dumps(_shown(data), allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"),
        plotly=compressed(plotly.encode()),
        script=script,
    )


def _shown(data: Any) -> Any:
    """The same with control characters shown in every text."""
    if isinstance(data, dict):
        return {key: _shown(part) for key, part in data.items()}
    if isinstance(data, list):
        return [_shown(part) for part in data]
    return printable(data) if isinstance(data, str) else data


def _security_policy(*scripts: str) -> str:
    hashes = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _stamp(evaluation: Evaluation) -> str:
    """What the reader holds in hand: the version, the date, and how many findings there are."""
    written = datetime.now().astimezone()
    counts = Counter[str](one.severity for one in evaluation.advice)
    said = [plural(counts[of], called) for of, called in _COUNTED.items() if counts[of]]
    trust = f'<a href="#h-findings">{" and ".join(said)}</a>' if said else "no warning"
    return (
        f'<time datetime="{written.isoformat(timespec="seconds")}">{written:%d %B %Y, %H:%M}</time> · '
        f"policyrisk {escape(policyrisk.__version__)} · {plural(evaluation.survey.episodes, 'episode')} · "
        f"{trust}"
    )


def _facts(evaluation: Evaluation, command: str) -> str:
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
    if len(described) > _LONGEST:  # boxes of many coordinates
        described = f"{described[:_LONGEST]} …"
    spelled = f"{evaluation.notes['features']}: " if "features" in evaluation.notes else ""
    terms = {
        "Command": command,
        "Data": f"{survey.episodes:,} episodes{cut_off}; {survey.transitions:,} transitions; longest "
        f"{survey.longest:,} steps",
        "State": _named(evaluation.names),
        "Source": str(evaluation.notes.get("data", "")),
        "Target": _target(evaluation),
        "Estimator": risk.provenance.settings,
        "Variance": method,
        "Features": f"{spelled}{described}",
        "Influence": _influence(evaluation) if len(evaluation.changing) > 2 else "",
        "Seed": str((evaluation.notes.get("settings") or {}).get("seed", "")),
    }
    return "\n".join(f"<dt>{term}</dt><dd>{escape(text)}</dd>" for term, text in terms.items() if text)


def _named(names: Sequence[str]) -> str:
    """Names, of many the first ones and the last.

    >>> _named(["x", "y"]), _named([f"q{k}" for k in range(105)])
    ('x, y', '105 coordinates: q0, q1, q2, q3, q4, q5, q6, …, q104')
    """
    if len(names) <= COORDINATES:
        return ", ".join(names)
    return f"{len(names)} coordinates: {', '.join(names[: COORDINATES - 1])}, …, {names[-1]}"


def _influence(evaluation: Evaluation) -> str:
    """Each coordinate's share, the largest first, and those of many others together."""
    order = np.argsort(-evaluation.influence, kind="stable").tolist()
    shown = order if len(order) <= COORDINATES else order[: COORDINATES - 1]
    said = [f"{evaluation.names[k]} {percent(float(evaluation.influence[k]))}" for k in shown]
    if rest := order[len(shown) :]:
        said.append(f"{len(rest)} others {percent(float(evaluation.influence[rest].sum()))} together")
    return ", ".join(said)


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
                f"<b>{digits(own)}</b> ({ends(own) or 'no interval'})</p>"
            )
        if sample is not None and summary.returns is not None and (summary.cut_off or not summary.model):
            plain: Estimate = getattr(sample, key)
            whose = "plain sample of" if evaluation.target is None else "the recorded policy’s own"
            beside += (
                f'<p class="beside">{whose} {summary.returns.count:,} returns:<br>'
                f"<b>{digits(plain)}</b> ({ends(plain) or 'no interval'})</p>"
            )
        if robust := (evaluation.notes.get("target") or {}).get("doubly_robust"):
            other = Estimate(*robust[key].values())
            beside += (
                f'<p class="beside">doubly robust, by propensities:<br>'
                f"<b>{digits(other)}</b> ({ends(other) or 'no interval'})</p>"
            )
        beside = beside and f'<div class="besides">{beside}</div>'
        interval = f"{100 * summary.level:g}%: {ends(estimate)}" if ends(estimate) else "no interval"
        cards.append(
            f'<article class="card" data-of="{key}"><h3>{title}</h3><p class="meaning">{meaning}</p>'
            f'<p class="value">{digits(estimate)}</p><p class="interval">{interval}</p>{beside}</article>'
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
        f'<li><details open class="finding {advice.severity}"><summary><h3><span class="tag">'
        f"{_SEVERITIES[advice.severity]}</span> {escape(advice.title)}</h3></summary>"
        f"<p>{_prose(advice.seen)}</p>"
        f'<p class="remedy"><b>What to do.</b> {_prose(advice.remedy)}</p></details></li>'
    )


def _histogram_text(evaluation: Evaluation) -> str:
    """The place of the histogram, and what it is of."""
    survey, discount = evaluation.survey, evaluation.risk.provenance.discount
    count = survey.returns.shape[1]
    of = f"{count:,} recorded episodes" if count == survey.episodes else f"a sample of {count:,} episodes"
    text = f"Returns of {of}" + (f", discount {discount:g}." if discount != 1 else ".")
    if survey.cut_off:
        text += " Lighter: episodes that were cut off, with what they had come to by then."
    if evaluation.target is not None:
        text += " They are the recorded policy’s, not the target’s."
    return (
        '<figure class="panel wide"><figcaption><h3>The returns</h3>'
        f'<p>{escape(text)}</p></figcaption><div class="plot" id="returns" role="img" '
        'aria-label="Histogram of the recorded returns"></div></figure>'
    )


def _tails(evaluation: Evaluation) -> str:
    """The return's distribution over the starts and a map of its worst, where they were asked for."""
    told = evaluation.notes.get("distribution")
    if told is None:
        return ""
    of, tails, model = evaluation.tails()
    rows = [[name, digits(value), ends(value) or "no interval"] for name, value in tails.items()]
    head = ["", "value", f"{100 * told['level']:g}% interval"]
    limits = "Intervals do not cover what the features cannot express."
    if model:
        rows = [[*row, digits(model[row[0]])] for row in rows]
        head.append("model")
        limits = f"The model, by {escape(told['features'])}, has the states other than the starts."
    pictures = "".join(_picture(axes, name) for name, axes in evaluation.tail_pictures().items())
    return (
        '<h3 class="apart">The distribution of the return</h3><p class="caption">From the data’s own '
        f"starts, {escape(of)}. {limits}</p>" + plain_table(head, rows) + pictures
    )


def _picture(axes: Any, name: str) -> str:
    """A figure inside the page."""
    file = io.BytesIO()
    axes.get_figure(root=True).savefig(file, format="png", dpi=110)
    image = base64.b64encode(file.getvalue()).decode()
    return f'<img alt="{name}" style="max-width:100%" src="data:image/png;base64,{image}">'


def _prose(text: str) -> str:
    """Escaped, with true minus signs, and with options of the command line kept in one piece.

    >>> _prose("V is -3 < 0: use --direct, --time-limit")
    'V is −3 &lt; 0: use <code>--direct</code>, <code>--time-limit</code>'
    """
    text = re.sub(r"(?<![\w-])-(?=\d)", "−", escape(text))
    return re.sub(r"--[a-z]+(?:-[a-z]+)*", r"<code>\g<0></code>", text)


def _maps_text(evaluation: Evaluation, grid: MapGrid) -> str:
    """What is held where, in words."""
    sentences = []
    if not grid.axes:
        sentences.append("No coordinate that the features look at ever changes, so there is nothing to map.")
    if grid.idle:
        named = _named([evaluation.names[k] for k in grid.idle])
        sentences.append(f"The features do not look at {named}, so the estimates do not depend on it.")
    if len(grid.held) > COORDINATES:
        share = percent(float(evaluation.influence[list(grid.held)].sum()))
        sentences.append(
            f"The {len(grid.axes)} most influential of {evaluation.survey.dim} coordinates can be chosen. "
            f"The others have {share} of the influence together and stay at their medians."
        )
    elif grid.held:
        labels = evaluation.label_names
        named = ", ".join(
            f"{(name := evaluation.names[k])} = "
            + (labels[name][int(grid.fixed[k])] if name in labels else number(float(grid.fixed[k]), 4))
            for k in grid.held
        )
        sentences.append(f"Held fixed: {named}.")
    if len(grid.axes) - 2 > grid.sliders > 0:
        most = (
            "The most influential of the others has"
            if grid.sliders == 1
            else (f"The {grid.sliders} most influential of the others have")
        )
        sentences.append(f"{most} a slider, the rest stay at their medians.")
    if evaluation.risk.misfit is not None:
        sentences.append(
            "Intervals at states cover randomness and the choice of features, those at the start randomness "
            "alone."
        )
    return escape(" ".join(sentences))
