"""The page around the numbers: headline, findings and tables by the template ``report.html``.

The page's script draws the rest. Every value that the template shows is escaped, its control characters shown
as Python writes them; JSON has ``<`` written as ``\\u003c``. A content security policy allows the page's own
scripts by their hash, and no request at all. Plotly's script is in the page compressed, and the page's own
script puts it in, as it was.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from importlib import resources
from typing import TYPE_CHECKING, Any

import numpy as np

import policyrisk
from policyrisk._core.arrays import Floats
from policyrisk._core.text import NONE, escape, number, percent, plural, printable
from policyrisk.report.grid import COORDINATES, MapGrid
from policyrisk.report.numbers import Sampled, compressed
from policyrisk.risk import FEW_EPISODES
from policyrisk.risk.estimate import Estimate
from policyrisk.risk.mixture import MIXTURE

if TYPE_CHECKING:
    from policyrisk.evaluation import Evaluation

_LONGEST = 400  # letters of the features' description
_COUNTED = {"serious": "serious finding", "warning": "warning"}
_DAGGER = "†"
_MOMENTS = {
    "mean": ("Mean", "expected reward to go"),
    "std": ("Standard deviation", "how far outcomes spread"),
    "sharpe": ("Sharpe ratio", "mean / standard deviation"),
    "variance": ("Variance", "spread, squared"),
}


def asset(name: str) -> str:
    """One of the files beside this one."""
    return (resources.files("policyrisk.report") / name).read_text(encoding="utf-8")


def build(
    evaluation: Evaluation, grid: MapGrid, sampled: Sampled, data: dict[str, Any], plotly: str, command: str
) -> str:
    """The whole page."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined
    from markupsafe import Markup

    def shown(value: Any) -> Markup:
        """What every value passes through that the template shows; HTML as it is."""
        return value if isinstance(value, Markup) else Markup(escape(str(value)))

    environment = Environment(
        loader=FunctionLoader(asset),
        autoescape=True,
        finalize=shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = {"digits": digits, "ends": ends, "number": number, "percent": percent, "plural": plural}
    environment.filters |= {**filters, "shown": shown, "prose": lambda text: Markup(prose(text))}
    environment.globals |= filters
    script = asset("report.js")
    counts = Counter[str](one.severity for one in evaluation.advice)
    cards = _cards(evaluation)
    text = json.dumps(_printable(data), allow_nan=False, separators=(",", ":"))
    return environment.get_template("report.html").render(
        e=evaluation,
        grid=grid,
        sampled=sampled,
        cards=cards,
        command=command,
        coordinates=COORDINATES,
        counts=[plural(counts[of], called) for of, called in _COUNTED.items() if counts[of]],
        described=_features(evaluation),
        distribution=data["tails"],
        estimated=lambda values: Estimate(*values.values()),
        few_episodes=FEW_EPISODES,
        folded_cards=list(_MOMENTS)[2:] if len(cards) > len(_MOMENTS) else [],
        folded=[one for one in evaluation.advice if one.severity == "note" and one.asks_nothing],
        held_influence=float(evaluation.influence[list(grid.held)].sum()),
        hidden=len(evaluation.names) - len(grid.idle) - len(grid.shown),
        histogram=data["histogram"],
        idle=[evaluation.names[k] for k in grid.idle],
        influence=_influence(evaluation),
        level=f"{100 * evaluation.level:g}%",
        mixture=MIXTURE,
        model_tails=evaluation.tails()[2],
        moments=_MOMENTS,
        ordered=data["order"],
        riskiest=riskiest(evaluation, grid, sampled),
        **_regions(evaluation),
        version=policyrisk.__version__,
        written=datetime.now().astimezone(),
        policy=Markup(_security_policy(plotly, script)),
        style=Markup(asset("report.css")),
        data=Markup(text.replace("<", "\\u003c")),
        plotly=Markup(compressed(plotly.encode())),
        script=Markup(script),
    )


def _printable(data: Any) -> Any:
    """The same with control characters shown in every text."""
    if isinstance(data, dict):
        return {key: _printable(part) for key, part in data.items()}
    if isinstance(data, list):
        return [_printable(part) for part in data]
    return printable(data) if isinstance(data, str) else data


def _security_policy(*scripts: str) -> str:
    hashes = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _features(evaluation: Evaluation) -> str:
    """The features of mean and variance, shortened where boxes have many coordinates."""
    risk = evaluation.risk
    if risk.widening is not None:  # the table of candidates has the rest
        first, second = risk.features.size, risk.second_features.size
        described = f"{first:,} in all for the mean, {second:,} for the variance"
    elif risk.second_features != risk.features:
        described = f"{risk.features!r} for the mean, {risk.second_features!r} for the second"
    else:
        described = repr(risk.features)
    if len(described) > _LONGEST:
        described = f"{described[:_LONGEST]} …"
    spelled = evaluation.notes.get("features")
    return described if spelled is None else f"{spelled}: {described}"


def _cards(evaluation: Evaluation) -> list[tuple[str, str, str, Estimate]]:
    """Key, title, meaning and value of each number at the top: the moments, and the tails asked for first.

    Of several quantiles these are the smallest, the mean of the worst there, and the first loss.
    """
    cards = [(key, *texts, getattr(evaluation.summary, key)) for key, texts in _MOMENTS.items()]
    _, tails, _ = evaluation.tails()
    meanings = {
        "quantile": "so many returns are at most this",
        "mean": "CVaR",
        "chance": "share of the returns",
    }
    found = dict[str, tuple[str, str, str, Estimate]]()
    for name, value in tails.items():
        kind = next(kind for kind in meanings if kind in name)
        found.setdefault(kind, (name, name[:1].upper() + name[1:], meanings[kind], value))
    return cards + list(found.values())


def _regions(evaluation: Evaluation) -> dict[str, Any]:
    """The regions of the features' test: their names, all of them, and those where the features misfit."""
    check = evaluation.check
    if check is None or check.regions is None:
        return {"region_names": (), "calibration": (), "misfit": ()}
    names = check.regions.names(evaluation.names, evaluation.label_names)
    return {
        "region_names": names,
        "calibration": range(len(names)),
        "misfit": np.flatnonzero(check.material()).tolist(),
    }


def _influence(evaluation: Evaluation) -> list[str]:
    """Each coordinate's share, the largest first, and those of many others together."""
    order = np.argsort(-evaluation.influence, kind="stable").tolist()
    shown = order if len(order) <= COORDINATES else order[: COORDINATES - 1]
    said = [f"{evaluation.names[k]} {percent(float(evaluation.influence[k]))}" for k in shown]
    if rest := order[len(shown) :]:
        said.append(f"{len(rest)} others {percent(float(evaluation.influence[rest].sum()))} together")
    return said


def riskiest(
    evaluation: Evaluation, grid: MapGrid, sampled: Sampled
) -> list[tuple[str, list[tuple[str, str]]]]:
    """The columns of the table of the riskiest states: heading, and value and text of each cell."""
    rows, level = sampled.riskiest(evaluation, grid), f"{100 * evaluation.level:g}%"
    numbers = {
        "mean": sampled.mean[rows],
        "std": sampled.std[rows],
        f"{level} low": sampled.interval[rows, 0],
        f"{level} high": sampled.interval[rows, 1],
    }
    columns = [("rank", place := np.arange(1.0, len(rows) + 1), _column(place))]
    for k in grid.shown:
        name, values = evaluation.names[k], sampled.states[rows, k]
        names = evaluation.label_names.get(name)
        columns.append((name, values, [names[int(v)] for v in values] if names else _column(values)))
    columns += [(name, values, _column(values)) for name, values in numbers.items()]
    riskier, episodes = sampled.riskier[rows], np.round(sampled.episodes[rows])
    columns.append(("riskier", riskier.astype(np.float64), ["yes" if surely else NONE for surely in riskier]))
    few = (episodes < FEW_EPISODES) & (evaluation.risk.widening is None)
    texts = [text + _DAGGER * less for text, less in zip(_column(episodes), few.tolist(), strict=True)]
    columns.append(("episodes", episodes, texts))
    return [
        (heading, list(zip(map(repr, values.tolist()), texts, strict=True)))
        for heading, values, texts in columns
    ]


def prose(text: str) -> str:
    """Escaped, with true minus signs, and with options of the command line kept in one piece.

    >>> prose("V is -3 < 0: use --direct, --time-limit")
    'V is −3 &lt; 0: use <code>--direct</code>, <code>--time-limit</code>'
    """
    text = re.sub(r"(?<![\w-])-(?=\d)", "−", escape(text))
    return re.sub(r"--[a-z]+(?:-[a-z]+)*", r"<code>\g<0></code>", text)


def digits(value: float | None) -> str:
    """Four digits, with a true minus sign, and no exponent below ten millions.

    >>> digits(-73.125), digits(12345.6), digits(2e9), digits(float("nan"))
    ('−73.12', '12,346', '2e+09', '–')
    """
    if value is None or math.isnan(value):
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


def ends(estimate: Estimate, shown: Callable[[float], str] = digits) -> str:
    """The interval's ends, nothing where there is none."""
    return "" if math.isnan(estimate.low) else f"{shown(estimate.low)} to {shown(estimate.high)}"
