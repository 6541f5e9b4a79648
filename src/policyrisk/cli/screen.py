"""What a command shows, and where: the answer, its details, warnings, progress and errors.

Every command takes the same options (:func:`command` adds them):

                stdout               stderr                                  --log FILE
    as it is    the answer           warnings, a bar (elsewhere than on a    all of it, with the details
                                     terminal a line now and then), errors   and the time
    --verbose   and its details      the same                                the same
    --json      JSON, nothing else   the same                                the same
    --quiet     nothing, or JSON     errors                                  the same

Errors and warnings speak of the command's options: the library's texts name its arguments
(``state=['x', 'y']``), and :func:`as_options` spells them as the command line does (``--state x,y``).
"""

from __future__ import annotations

import ast
import errno
import functools
import inspect
import re
import shutil
import sys
import textwrap
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import IO, Annotated, Any, get_type_hints

import typer

from policyrisk._core.text import printable
from policyrisk.errors import InvalidInputError

_WIDEST = 100  # letters of a line of prose, on a terminal that has room for more

_option = functools.partial(typer.Option, rich_help_panel="Output")
_SHARED: dict[str, Any] = {
    "as_json": Annotated[bool, _option("--json", help="Print JSON instead of text, and nothing else.")],
    "verbose": Annotated[bool, _option("--verbose", help="Print the details behind the answer too.")],
    "quiet": Annotated[bool, _option("--quiet", help="Print nothing but errors, and what --json asks for.")],
    "log": Annotated[
        Path | None, _option(help="Append all that is said, details included, to this file.", dir_okay=False)
    ],
    "debug": Annotated[bool, _option("--debug", help="Show the traceback of an error.")],
}


class Screen:
    """What one run of the command line shows."""

    def __init__(self, arguments: Sequence[str] = ()) -> None:
        self.arguments = arguments
        self.as_json = self.verbose = self.quiet = self.debug = False
        self.options: Mapping[str, str] = {}  # of the command that runs, by their names in Python
        self._log: IO[str] | None = None
        self._stdout = sys.stdout

    def clear(self, arguments: Sequence[str]) -> None:
        """Begin anew, for another run."""
        self.close()
        self.__init__(arguments)  # type: ignore[misc]

    def settle(self, options: Mapping[str, str], log: Path | None, **chosen: bool) -> None:
        """Take what a command line says, which may say it before the command and after it."""
        self.options = options
        for name, value in chosen.items():
            setattr(self, name, getattr(self, name) or value)
        if log is not None:
            self.close()
            try:
                self._log = log.open("a", encoding="utf-8")
                self._keep(f"policyrisk {_version()}: {' '.join(self.arguments)}")
            except OSError as error:
                raise typer.BadParameter(
                    f"{str(log)!r} cannot be written: {error.strerror}", param_hint="--log"
                ) from error

    def close(self) -> None:
        """Close the log."""
        if self._log is not None:
            with suppress(OSError):  # said where it was written to
                self._log.close()
            self._log = None

    @contextmanager
    def on(self) -> Iterator[None]:
        """Show what the library has to say; with --json all that others print goes to the error stream."""
        from policyrisk._core import progress

        with (
            redirect_stdout(sys.stderr if self.as_json else sys.stdout),
            progress.telling(self._progress, bar=not self.quiet),
        ):
            try:
                yield
            except KeyboardInterrupt as stopped:
                if str(stopped):  # such as where the work so far was saved
                    self.error(as_options(str(stopped)))
                raise

    def answer(self, numbers: Mapping[str, Any], text: str, details: Sequence[str] = ()) -> None:
        """What was asked for, as text or as JSON; the details are texts that come after it."""
        for each in (text, *details):
            self._keep(each)
        if self.as_json:
            from policyrisk._core.output import as_json

            print(as_json(numbers), file=self._stdout)
        elif not self.quiet:
            for each in (text, *(details if self.verbose else ())):
                self._show(_fitted(each))

    def detail(self, text: str) -> None:
        """What is known on the way to the answer."""
        self._keep(text)
        if self.verbose and not (self.as_json or self.quiet):
            self._show(f"{_fitted(text)}\n")

    def note(self, text: str) -> None:
        """A line beside the answer, on the error stream."""
        self._keep(text)
        if not self.quiet:
            self._show(f"policyrisk: {text}", err=True)

    def error(self, text: str, name: str = "policyrisk") -> None:
        """Why there is no answer."""
        self._show(f"{name}: {text}", err=True)
        with suppress(OSError):  # one error is enough
            self._keep(text)

    def traceback(self) -> None:
        """Where the error that is being handled came from."""
        self._show(traceback.format_exc().rstrip(), err=True)

    def _progress(self, line: str) -> None:
        self._keep(line)
        if not self.quiet and not (sys.stderr and sys.stderr.isatty()):
            self._show(f"policyrisk: {line}", err=True)

    def _show(self, text: str, err: bool = False) -> None:
        """All that is said goes through here or :meth:`_keep`, so that nothing in it commands a terminal."""
        try:
            typer.echo(printable(text, keep="\n"), err=err)
        except OSError as error:
            if not err or error.errno == errno.EPIPE:
                raise  # a full error stream is no reason to stop, and there is nowhere to say so

    def _keep(self, text: str) -> None:
        if self._log is None:
            return
        try:
            self._log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {printable(text, keep=chr(10))}\n")
            self._log.flush()
        except OSError as error:
            name = self._log.name
            self.close()
            raise OSError(error.errno, error.strerror, name) from error


screen = Screen()


def command(function: Callable[..., None], options: Sequence[inspect.Parameter] = ()) -> Callable[..., None]:
    """A command with further options, and with those that all share, which the screen takes.

    Those that the function has itself are left to it.
    """
    hints = get_type_hints(function, include_extras=True)
    own = [
        *(
            each.replace(annotation=hints[name])
            for name, each in inspect.signature(function).parameters.items()
            if each.kind is not inspect.Parameter.VAR_KEYWORD
        ),
        *options,
    ]
    names = {each.name: _spelled(each.name, each.annotation) for each in own}
    added = {name: hint for name, hint in _SHARED.items() if name not in names}
    parameters = [
        *own,
        *(keyword(name, hint, None if name == "log" else False) for name, hint in added.items()),
    ]

    @functools.wraps(function)
    def shown(**given: Any) -> None:
        screen.settle(names, **{name: given.pop(name) for name in added})
        with screen.on():
            try:
                function(**given)
            except InvalidInputError as error:
                if error.argument is None:
                    raise
                raise typer.BadParameter(str(error), param_hint=_option_of(error.argument)) from error

    shown.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    shown.__annotations__ = {each.name: each.annotation for each in parameters}
    return shown


def keyword(name: str, hint: Any, default: Any) -> inspect.Parameter:
    """A parameter of a command that is an option."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=hint, default=default)


def _spelled(name: str, hint: Any) -> str:
    """A parameter as it is spelled on the command line: --loss-below, or FOLDER."""
    for info in getattr(hint, "__metadata__", ()):
        if type(info).__name__ == "ArgumentInfo":
            return name.upper()
        for text in getattr(info, "param_decls", None) or ():
            return str(text)
    return f"--{name.replace('_', '-')}"


# The library's own words, and the command line's: what has an option of another name, or none at all.
_PHRASES = tuple(
    (re.compile(pattern), text)
    for pattern, text in (
        (r"--resume or resume=True", "--resume"),
        (r"(--[\w-]+(?: [^\s()]+)?) \(\w+=[^()]*\)", r"\1"),  # --direct (variance='direct')
        (r"\(\w+=[^(),]*, (--[^(),]+)(, or data\.\w+\(\))?\)", r"(\1)"),  # (discount=0.9, --discount 0.9)
        (r"(--[\w-]+)(,| or) \w+=", r"\1"),
        (r"Fit pr\.ReturnDistribution with thresholds= that reach further, record", "Record"),
        (r"; \w+= in Python", ""),
        (r" \(risk\.\w+\)|see (?:risk\.covered|episodes)\(x\), ", ""),
        (r",? or pass Trajectories\([^)]*\)", ""),
        (r"; pass Trajectories\([^)]*\), or", ";"),
        (r",? or give them in codes=", ""),
        (r""",? or pass on_error=["']skip["'] to go on without""", ""),
        (r" pass tail=, or", " or"),
        (r"; pass the states as a data frame, or none, or evaluate", "; evaluate"),
        (r"; fit with bootstrap=\S+ or more, or pass a lower level", "; choose a lower one"),
        (r" pass error_bars=False to say that this is meant, or", ""),
        (r""",? raise tol, or try solver=["']projection["']""", ""),
        (r" or pass actions=\S+ with a policy", " or name a policy"),
        (r" with `save`", ""),
        (r",? or call the reader that you mean", ""),
        (r"\benv_kwargs\b", "--env-args"),
        (r"^policyrisk\.distributed(?= needs|$)", "--ray"),
        (r"^from_sb3(?= needs|$)", "--features sb3:"),
        (r"\b(use|with) (?:a )?discount (?:<|below) 1\b", r"\1 --discount below 1"),
        (r"""\bvariance=["']direct["']""", "--direct"),
        (r"""\bnonnegative(_at)?=(["']?\w+["']?)?""", "--nonnegative"),
        (r"\b(beg(?:in|un) another|go on) (without|with) resume\b", r"\1 \2 --resume"),
    )
)
_OTHER_NAMES = {"names": "--state", "labels": "--label", "env_kwargs": "--env-args"}


def _option_of(argument: str) -> str:
    """The option that gives an argument of the library; an option is its own."""
    known = {"variance": "--direct", **_OTHER_NAMES, **screen.options}
    return known.get(argument, f"--{argument.lstrip('-').replace('_', '-')}")


def as_options(text: str, options: Mapping[str, str] | None = None) -> str:
    """A message of the library in the command line's words; the options are those of the command that runs.

    >>> options = {"state": "--state", "resume": "--resume", "loss_below": "--loss-below"}
    >>> as_options("state must name the columns; pass for example state=['x', 'y']", options)
    '--state must name the columns; pass for example --state x,y'
    >>> as_options("pass resume=True, loss_below=3.5, or use variance='direct'", options)
    'pass --resume, --loss-below 3.5, or use --direct'
    """
    known = {**_OTHER_NAMES, **(screen.options if options is None else options)}
    for pattern, phrase in _PHRASES:
        text = pattern.sub(phrase, text)

    def spelled(match: re.Match[str]) -> str:
        option, value = known[match[1]], match[2] or ""
        if value in ("", "...", "…", "True") or not option.startswith("-"):
            return option if option.startswith("-") else match[0]
        words = _words(value)
        if match[1] == "action" and value[0] == "[" and len(words) == 1:
            words.append("")  # one column of a continuous action
        return f"{option} {'none' if value == 'None' else ','.join(words)}"

    names = "|".join(map(re.escape, sorted(known, key=len, reverse=True)))
    values = r"""\[[^\]]*\]|"[^"]*"|'[^']*'|\.\.\.|[\w.+-]*[\w]"""
    text = re.sub(rf"(?<![\w,-])({names})=({values})?", spelled, text)
    subject = re.match(rf"({names})(?: (?:and|or) ({names}))?(?= (?:must|needs|is|are)\b)", text)
    if subject is None or " in row " in text:  # then it is the column that is meant
        return text
    return re.sub(rf"\b({names})\b", lambda match: known[match[1]], subject[0]) + text[subject.end() :]


def _words(value: str) -> list[str]:
    """The items of a list as Python writes it, or the one item, as an option takes them."""
    from policyrisk._core.text import quoted

    try:
        found = ast.literal_eval(value)
    except (ValueError, SyntaxError):
        found = None
    if isinstance(found, list | tuple):
        return [quoted(str(item)) for item in found]
    return [word.strip(" '\"") for word in value.strip("[]()").split(",")]


def _fitted(text: str) -> str:
    """Prose broken into lines that fit the terminal; tables, and what goes elsewhere, as they are."""
    if sys.stdout is None or not sys.stdout.isatty():
        return text
    width = min(shutil.get_terminal_size().columns, _WIDEST)
    lines = []
    for line in text.splitlines():
        if "   " in line.strip():  # a row of a table
            lines.append(line)
            continue
        indent = line[: len(line) - len(line.lstrip())]
        lines += textwrap.wrap(
            line, width, subsequent_indent=indent or "  ", break_long_words=False, break_on_hyphens=False
        ) or [""]
    return "\n".join(lines)


def _version() -> str:
    import policyrisk

    return policyrisk.__version__
