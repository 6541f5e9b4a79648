"""How far work is that takes more than a moment: a bar on a terminal, lines for who asks for them.

The environment variable ``POLICYRISK_PROGRESS=0`` leaves out the bars, of Python and of the command line.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from rich.console import Console
from rich.progress import Progress

_PATIENCE = 3.0  # seconds before the bar is shown
_EVERY = 10.0  # seconds between two lines

_told: Callable[[str], object] | None = None
_bar = True


@contextmanager
def telling(line: Callable[[str], object], *, bar: bool = True) -> Iterator[None]:
    """Have ``line`` called with a text now and then, as long as the block lasts, and a bar shown or none."""
    global _told, _bar
    before = _told, _bar
    _told, _bar = line, bar
    try:
        yield
    finally:
        _told, _bar = before


class ProgressBar(AbstractContextManager["ProgressBar"]):
    """A bar on the terminal's error stream once the work has taken some seconds; silent elsewhere.

    A ``total`` of None is not known: the bar then only moves.
    """

    def __init__(self, name: str, total: int | None) -> None:
        self._name, self._console = name, Console(stderr=True)
        self._progress = Progress(console=self._console, transient=True)
        self._task = self._progress.add_task(name, total=total)
        self._began = self._said = time.monotonic()
        self._shown = False
        off = os.environ.get("POLICYRISK_PROGRESS", "1") in ("", "0")
        self._can_be = _bar and not off and self._console.is_terminal

    def __exit__(self, *error: object) -> None:
        if self._shown:
            self._progress.stop()

    def advance(self, by: int = 1, told: str | None = None) -> None:
        """``by`` more of the total are done; ``told`` takes the place of the name."""
        self._progress.update(self._task, advance=by, description=told)
        now = time.monotonic()
        if not self._shown and self._can_be and now - self._began > _PATIENCE:
            self._shown = True
            self._progress.start()
        if _told is not None and now - self._said >= _EVERY:
            self._said = now
            _told(self._line(now - self._began))

    def _line(self, seconds: float) -> str:
        task = self._progress.tasks[0]
        name = self._name if task.description == self._name else f"{self._name}, {task.description}"
        if task.total is None:
            return f"{name}: {task.completed:,.0f} after {seconds:.0f} s"
        share = min(task.completed / task.total, 1.0) if task.total else 1.0
        left = f", about {seconds * (1 - share) / share:.0f} s left" if 0 < share < 1 else ""
        return f"{name}: {share:.0%} after {seconds:.0f} s{left}"
