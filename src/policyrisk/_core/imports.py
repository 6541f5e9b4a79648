"""What is imported only when used: public names on first use, and packages that may be missing."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from typing import Any

from policyrisk.errors import InvalidInputError, MissingPackageError

# The extra of pyproject.toml that brings each package.
_EXTRAS = {"gymnasium": "gym", "minari": "gym", "pyarrow": "parquet", "ray": "ray"}
_EXTRAS |= {"matplotlib": "plot", "plotly": "plot", "numba_cuda": "cuda", "cupy": "cuda"}
_EXTRAS |= {"torch": "torch", "stable_baselines3": "sb3"}
# What is used of packages that draw, which import it where they are in order.
_DRAWING = {"matplotlib": "matplotlib.figure", "plotly": "plotly.offline"}


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
    """The command that brings a package, by the extra that it belongs to; policyrisk is on no registry yet.

    >>> how_to_install("plotly")
    'install it with `pip install ".[plot]"` in your clone of policyrisk'
    """
    return f'install it with `pip install ".[{_EXTRAS.get(package, "all")}]"` in your clone of policyrisk'


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


def is_name(text: object) -> bool:
    """Whether this is a text ``module:name``, both with dots in them perhaps."""
    if not isinstance(text, str):
        return False
    module, colon, name = text.partition(":")
    return bool(colon) and all(part.isidentifier() for part in f"{module}.{name}".split("."))


def named_object(text: str) -> Any:
    """What ``module:name`` stands for; the module is imported.

    >>> named_object("math:pi")
    3.141592653589793
    """
    if not is_name(text):
        raise InvalidInputError(f"{text!r} must be module:name, as in my_policies:careful")
    module, _, name = text.partition(":")
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
