"""What is imported only when used: public names on first use, and packages that may be missing."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from policyrisk.errors import InvalidInputError, MissingPackageError

# The extra of pyproject.toml that brings each package.
_EXTRAS = {"gymnasium": "gym", "minari": "gym", "pyarrow": "parquet", "ray": "ray"}
_EXTRAS |= {"matplotlib": "plot", "plotly": "plot", "jinja2": "plot", "numba_cuda": "cuda", "cupy": "cuda"}
_EXTRAS |= {"torch": "torch", "stable_baselines3": "sb3"}
_PROBED = frozenset({*_EXTRAS, "pandas", "polars"})  # never taken from the current folder
_in_a_command = False  # whose names may stand for modules in the current folder
# What is used of packages that draw, which import it where they are in order.
_DRAWING = {"matplotlib": "matplotlib.figure", "plotly": "plotly.offline", "jinja2": "jinja2.environment"}


def lazy(
    package: str, homes: Mapping[str, str], before: Callable[[], None] = lambda: None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package whose names live in the modules ``homes[name]``.

    An empty home means that the name is itself a module of the package. ``before`` is called before each.
    """

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        before()
        if not homes[name]:
            return importlib.import_module(f"{package}.{name}")
        return getattr(importlib.import_module(homes[name]), name)

    def names() -> list[str]:
        return sorted(homes)

    return get, names


def is_installed(package: str) -> bool:
    """Whether a package can be imported.

    >>> is_installed("numpy"), is_installed("no_such_package")
    (True, False)
    """
    return importlib.util.find_spec(package) is not None


def how_to_install(package: str) -> str:
    """The command that brings a package, by the extra that it belongs to.

    >>> how_to_install("plotly")
    'install it with `pip install "policyrisk[plot]"`'
    """
    return f'install it with `pip install "policyrisk[{_EXTRAS.get(package, "all")}]"`'


def hindrance(package: str) -> str | None:
    """Why a package that draws cannot, with the way out: it is not installed, or broken; None where it can.

    >>> hindrance("matplotlib") is None
    True
    """
    if not is_installed(package):
        return f"{package} is not installed; {how_to_install(package)}"
    try:
        importlib.import_module(_DRAWING[package])
    except Exception as error:  # whatever is broken in it
        return f"{package} is broken ({type(error).__name__}: {error}); install it again"
    return None


def check_installed(package: str, what: str) -> None:
    """Raise unless ``package`` can be imported; ``what`` says what needs it.

    >>> check_installed("numpy", "adding up")
    """
    if not is_installed(package):
        raise MissingPackageError(
            f"{what} needs the package {package}, which is not installed; {how_to_install(package)}"
        )


class _Folder(MetaPathFinder):
    """Finds the modules of a folder that the user named, and what these import from it.

    What packages look for, a file of that name beside the data is not taken for: pandas tries pytz, for one.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.own = {"gymnasium.envs.registration"}  # may import: it does what an environment's module says

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """That of a module of the folder itself; what is inside of a package Python finds by its path."""
        importer = _importer()
        if path is not None or fullname in _PROBED or not {fullname, importer, _top(importer)} & self.own:
            return None
        self.own.add(fullname)
        return PathFinder.find_spec(fullname, [self.folder])


def _top(module: str) -> str:
    return module.partition(".")[0]


def _importer() -> str:
    """The name of the module whose code imports another."""
    frame = sys._getframe(2)
    while frame.f_back is not None and _top(frame.f_globals.get("__name__", "")) == "importlib":
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", ""))


@contextmanager
def naming_modules() -> Iterator[None]:
    """Let :func:`named_object` look in the current folder too: what a command is called with."""
    global _in_a_command
    before, finders, _in_a_command = _in_a_command, sys.meta_path[:], True
    try:
        yield
    finally:
        _in_a_command = before
        sys.meta_path[:] = [
            each for each in sys.meta_path if not isinstance(each, _Folder) or each in finders
        ]


def look_here(module: str) -> None:
    """Find a module in the current folder from now on, after those that are installed."""
    here = str(Path.cwd())
    known = [each for each in sys.meta_path if isinstance(each, _Folder) and each.folder == here]
    if not known:
        known = [_Folder(here)]
        sys.meta_path += known
    known[0].own.add(_top(module))


def is_name(text: object) -> bool:
    """Whether this is a text ``module:name``, both with dots in them perhaps."""
    if not isinstance(text, str):
        return False
    module, colon, name = text.partition(":")
    return bool(colon) and all(part.isidentifier() for part in f"{module}.{name}".split("."))


def named_object(text: str) -> Any:
    """What ``module:name`` stands for, a text that a user wrote, never a file: the module is imported.

    >>> named_object("math:pi")
    3.141592653589793
    """
    if not is_name(text):
        raise InvalidInputError(f"{text!r} must be module:name, as in my_policies:careful")
    module, _, name = text.partition(":")
    if _in_a_command:
        look_here(module)
    try:
        found = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except ModuleNotFoundError as error:
        if error.name is None or not (module == error.name or module.startswith(f"{error.name}.")):
            raise
        raise InvalidInputError(f"there is no module {error.name!r} here or among those installed") from error
    except AttributeError as error:
        raise InvalidInputError(f"the module {module!r} has no {name!r}") from error
    return found
