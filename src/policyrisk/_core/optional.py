"""Packages that are imported only when used: a missing one is an error that names the extra to install."""

from __future__ import annotations

import importlib.util

from policyrisk.errors import MissingPackageError

# The extra of pyproject.toml that brings each package.
_EXTRAS = {"gymnasium": "gym", "minari": "gym", "pyarrow": "parquet", "plotly": "plot", "ray": "ray"}


def check_installed(package: str, what: str) -> None:
    """Raise unless ``package`` can be imported; ``what`` says what needs it.

    >>> check_installed("numpy", "adding up")
    """
    if importlib.util.find_spec(package) is None:
        extra = _EXTRAS.get(package, "all")
        raise MissingPackageError(
            f"{what} needs the package {package}, which is not installed; "
            f"install it with `pip install 'policyrisk[{extra}]'`"
        )
