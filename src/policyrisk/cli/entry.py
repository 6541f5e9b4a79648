"""The command itself: its groups of commands, and what becomes of errors, warnings and interrupts.

exit code    0    done
             1    the data (or what they are asked for) do not allow it
             2    the command line is wrong
             130  interrupted
"""

from __future__ import annotations

import ctypes
import errno
import os
import shlex
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from policyrisk.cli import compare, evaluate, improve, query, reproduce, rollout, train
from policyrisk.errors import PolicyRiskError, PolicyRiskWarning

_M_ARENA_MAX = -8  # the number in malloc.h

app = typer.Typer(
    name="policyrisk",
    help="How risky is a policy, from every state? Mean, second moment and variance of the reward to go.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command("rollout")(rollout.rollout)
app.command("evaluate")(evaluate.evaluate)
app.command("compare")(compare.compare)
app.command("query")(query.query)
app.command("improve")(improve.improve)
app.add_typer(reproduce.app, name="reproduce")
app.add_typer(train.app, name="train")


@app.callback()
def common(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error; may stand after the command too.")
    ] = False,
) -> None:
    """Take what every command shares; :func:`run` has seen --debug already."""


def main() -> None:
    """Run the command line of this process."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run a command line; the exit code."""
    debug = "--debug" in arguments
    _keep_memory_low()
    with _readable_warnings():
        try:
            result = app(
                [argument for argument in arguments if argument != "--debug"],
                prog_name="policyrisk",
                standalone_mode=False,
                obj=shlex.join(["policyrisk", *arguments]),  # for what a command leaves behind
            )
            sys.stdout.flush()
        except SystemExit as done:  # shell completion
            return done.code if isinstance(done.code, int) else 1
        except KeyboardInterrupt:
            result = 130
        except Exception as error:
            if isinstance(error, OSError) and error.errno == errno.EPIPE:
                # Whoever read our output has gone: nothing is left to say, nor at exit.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                return 1
            if debug and not _is_usage(error):
                raise
            return _report(error)
    code = result if isinstance(result, int) else 0
    if code == 130:
        typer.echo("policyrisk: interrupted", err=True)
    return code


def _report(error: Any) -> int:
    """One message on the error stream, and the exit code."""
    name = "policyrisk"
    if type(error).__name__ == "NoArgsIsHelpError":
        typer.echo(error.format_message(), err=True)
        return 2
    if _is_usage(error):
        name = getattr(error.ctx, "command_path", name)
        text = f"{error.format_message()} (see `{name} --help`)"
    elif isinstance(error, PolicyRiskError):
        text = str(error)
    elif isinstance(error, MemoryError):
        text = f"there is not enough memory ({error}); use fewer features"
    else:
        text = f"{type(error).__name__}: {error} (--debug shows where)"
    typer.echo(f"{name}: {' '.join(text.split())}", err=True)
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
            typer.echo(f"policyrisk: warning: {text}", err=True)

    with warnings.catch_warnings():
        warnings.filterwarnings("always", category=PolicyRiskWarning)
        warnings.showwarning = show
        yield
