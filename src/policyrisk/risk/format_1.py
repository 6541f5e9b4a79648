"""Files of risk functions as the first versions wrote them, format 1.

Maps, facts and returns stand in the header; the arrays and numbers of a part are named ``part.name``.
"""

from __future__ import annotations

from typing import Any

from policyrisk._core.arrays import from_triangle
from policyrisk._core.records import Arrays, Header, unboxed
from policyrisk.features import from_spec
from policyrisk.risk.error_bars import ErrorBars
from policyrisk.risk.provenance import Provenance
from policyrisk.risk.start_sums import SampleReturns
from policyrisk.risk.support import Support


def fields_of_format_1(header: Header, arrays: Arrays) -> dict[str, Any]:
    """The fields of the :class:`RiskFunction` in a file."""
    parts: dict[str, dict[str, Any]] = {"support": {"gram": None}, "error_bars": {}}
    for place, array in arrays.items():
        part, _, name = place.rpartition(".")
        parts.setdefault(part, {"gram": None})[name] = unboxed(array)
    bars = parts["error_bars"]
    for block in ("mean", "second") if bars else ():
        bars[block] = from_triangle(bars[block], len(bars[f"{block}_kept"]))
    support = Support(**parts["support"])
    features, second = from_spec(header["features"]), from_spec(header["second_features"])
    facts, returns = header["facts"], header["returns"]
    return {
        "features": features,
        "second_features": features if second == features else second,
        "w_mean": arrays["w_mean"],
        "w_second": arrays["w_second"],
        "variance_method": header["variance_method"],
        "support": support,
        "second_support": Support(**parts["second_support"]) if "second_support" in parts else support,
        "provenance": Provenance(**{**facts, "skipped": tuple(facts.get("skipped", ()))}),
        "error_bars": ErrorBars(**bars) if bars else None,
        "returns": None if returns is None else SampleReturns(**returns),
    }
