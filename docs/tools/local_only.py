"""MkDocs hook: a built page that would load anything from the network ends the build."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError

_LOADS = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "link": "href"}


class _Loads(HTMLParser):
    """The addresses that a page loads by itself, those that start with a scheme or a host."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        address = dict(attrs).get(_LOADS.get(tag, "")) or ""
        if address.startswith(("http:", "https:", "//")):
            self.found.append(address)


def on_post_build(config: Any, **_: Any) -> None:
    """Look at every page."""
    for page in sorted(Path(config["site_dir"]).rglob("*.html")):
        loads = _Loads()
        loads.feed(page.read_text(encoding="utf-8"))
        if loads.found:
            raise PluginError(f"{page} must load nothing from the network, got {', '.join(loads.found)}")
