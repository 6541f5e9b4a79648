"""The command itself: its subcommands, and how it handles errors, warnings and interrupts.

exit code    0    done
             1    the data (or what they are asked for) do not allow it
             2    the command line is wrong
             130  interrupted (Ctrl-C)
             143  terminated (SIGTERM)
"""

from __future__ import annotations

import ctypes
import errno
import inspect
import os
import shlex
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from policyrisk._core.imports import naming_modules
from policyrisk.cli import compare, evaluate, improve, query, rollout, unattended
from policyrisk.cli.screen import as_options, command, screen
from policyrisk.cli.shared import CLUSTER, options_of
from policyrisk.errors import PolicyRiskError, PolicyRiskWarning

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # no room, for anybody or for this user or file
_M_ARENA_MAX = -8  # the number in malloc.h
_INTERRUPTED = 128 + signal.SIGINT

app = typer.Typer(
    name="policyrisk",
    help="How risky is a policy, from every state? Mean, second moment and variance of the reward to go.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
_COMMANDS: dict[Callable[..., None], Sequence[inspect.Parameter]] = {
    rollout.rollout: CLUSTER,
    evaluate.evaluate: evaluate.options(),
    compare.compare: [],
    query.query: [],
    unattended.watch: evaluate.column_options(),
    unattended.gate: evaluate.column_options(),
    improve.improve: options_of(improve.ImprovementRequest),
}
for each, options in _COMMANDS.items():
    app.command(each.__name__)(command(each, options))


def _show_version(wanted: bool) -> None:
    if wanted:
        from policyrisk import __version__

        typer.echo(f"policyrisk {__version__}")
        raise typer.Exit


@app.callback()
@command
def common(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """Take what every command shares; it may stand before the command or after it."""


def main() -> None:
    """Run the command line of this process."""
    try:
        code = run(sys.argv[1:])
    except Exception:  # with --debug
        screen.traceback()
        code = 1
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run a command line; the exit code."""
    screen.clear(arguments)
    _keep_memory_low()
    stopped: list[int] = []  # by these signals
    with _readable_warnings(), _terminable(stopped), naming_modules():
        try:
            # The object is for what a command leaves behind.
            line = shlex.join(["policyrisk", *arguments])
            result = app(list(arguments), prog_name="policyrisk", standalone_mode=False, obj=line)
            if sys.stdout is not None:  # which was closed
                sys.stdout.flush()
            code = result if isinstance(result, int) else 0
        except SystemExit as done:  # shell completion
            return done.code if isinstance(done.code, int) else 1
        except KeyboardInterrupt:
            code = _INTERRUPTED
        except Exception as error:
            if isinstance(error, OSError) and error.errno == errno.EPIPE:
                # Whoever read our output has gone: nothing is left to say, nor at exit.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                return 1
            if screen.debug and not _is_usage(error):
                raise
            return _report(error)
        if code == _INTERRUPTED:  # as Typer has it, too
            screen.error("terminated" if stopped else "interrupted")
            code = 128 + stopped[0] if stopped else code
    return code


@contextmanager
def _terminable(stopped: list[int]) -> Iterator[None]:
    """Let SIGTERM be an interrupt, which saves what there is; its number is added to ``stopped``."""

    def stop(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_IGN)  # saving is not to be disturbed
        stopped.append(number)
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _report(error: Any) -> int:
    """One message on the error stream, and the exit code."""
    name = "policyrisk"
    if type(error).__name__ == "NoArgsIsHelpError":
        typer.echo(error.format_message(), err=True)
        return 2
    if _is_usage(error):
        name = getattr(error.ctx, "command_path", name)
        text = f"{as_options(error.format_message())} (see `{name} --help`)"
    elif isinstance(error, PolicyRiskError):
        text = as_options(str(error))
    elif isinstance(error, OSError) and error.errno in _FULL and error.filename is None:
        text = f"the output cannot be written: {error.strerror}; free some space, or send it elsewhere"
    elif isinstance(error, OSError) and error.filename is not None:
        text = f"{error.filename} cannot be used: {error.strerror}; choose another (--debug shows where)"
    elif isinstance(error, MemoryError):
        text = f"there is not enough memory ({error}); use fewer features"
    else:
        text = f"{type(error).__name__}: {error} (--debug shows where)"
    screen.error(" ".join(text.split()), name)
    return int(error.exit_code) if _is_usage(error) else 1


def _keep_memory_low() -> None:
    """Leave little to allocators that keep what was freed, unless the environment says otherwise."""
    # PyArrow's pool is chosen when PyArrow is first imported.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    if sys.platform == "linux" and "MALLOC_ARENA_MAX" not in os.environ:
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:  # glibc's: two heaps for all threads, which else have one each
            mallopt(_M_ARENA_MAX, 2)


def _is_usage(error: Exception) -> bool:
    """Whether it is one of Typer's own, which come from Click or from Typer's copy of it."""
    return hasattr(error, "format_message") and hasattr(error, "exit_code")


@contextmanager
def _readable_warnings() -> Iterator[None]:
    """Warnings as a line each, and the same one once."""
    shown = set()

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        text = " ".join(str(message).split())
        if text not in shown:
            shown.add(text)
            screen.note(f"warning: {as_options(text)}")

    with warnings.catch_warnings():
        warnings.filterwarnings("always", category=PolicyRiskWarning)
        warnings.showwarning = show
        yield
