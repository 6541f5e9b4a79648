"""MkDocs hook: formulas in LaTeX become MathML, which browsers typeset without any script.

As on GitHub, ```` ```math ```` is a formula by itself and ``$`x`$`` one in a line.
"""

from __future__ import annotations

import re
from typing import Any

from latex2mathml.converter import convert

_BLOCK = re.compile(r"^```math\n(.*?)\n```$", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r"\$`(.+?)`\$")


def mathml(latex: str, display: str) -> str:
    """A formula in one line, without what browsers have dropped from MathML."""
    text = convert(latex, display=display)
    text = re.sub(r' columnalign="(\w+)"', r' style="text-align: \1"', text)
    text = re.sub(
        r"<mover>(?=(?:(?!</mover>).)*(?:&#x0007E;|&#x000AF;)</mo></mover>)", '<mover accent="true">', text
    )
    return " ".join(text.split())


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put MathML where formulas are."""
    markdown = _BLOCK.sub(lambda found: f'<div class="math">{mathml(found[1], "block")}</div>', markdown)
    # In a span: a line that begins with <math> would be a block of its own.
    return _INLINE.sub(lambda found: f"<span>{mathml(found[1], 'inline')}</span>", markdown)
