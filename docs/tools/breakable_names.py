"""MkDocs hook: long names in tables may break after a dot and the like, those of tests between words too."""

from __future__ import annotations

import re
from typing import Any

_CELL = re.compile(r"<td[^>]*>.*?</td>", re.DOTALL)
_CODE = re.compile(r"(<code>)([^<]*)(</code>)")


def on_page_content(html: str, **_: Any) -> str:
    """Put a place to break (<wbr>) into the code of every table cell."""

    def breakable(code: re.Match[str]) -> str:
        places = r"([._/]|::)(?=\w)" if "::" in code[2] else r"([.(=/])(?=\w)"
        return code[1] + re.sub(places, r"\1<wbr>", code[2]) + code[3]

    return _CELL.sub(lambda cell: _CODE.sub(breakable, cell[0]), html)
