"""Public names say what goes in and what comes out, in numpydoc sections."""

import inspect
import re
from importlib import import_module

import pytest
from test_frozen import MEMBERS, RECORDS

MODULES = ("control", "criteria", "distributed", "domains", "features", "plotting", "readers")
# Protocols, and records that nobody but the package makes.
DESCRIBED = {
    "ActorCriticResult",
    "Assessment",
    "BeforeAfter",
    "BinaryFeatures",
    "Counts",
    "Criterion",
    "FeatureMap",
    "Features",
    "Frontier",
    "FrontierPoint",
    "Maze",
    "RemoteEpisodes",
    "Shard",
    "Slopes",
    "Stream",
}


def public():
    """The public classes and functions, and what people ask of the classes, by their names."""
    for module in ("", *MODULES):
        home = import_module(f"policyrisk.{module}".rstrip("."))
        for name in set(home.__all__) - DESCRIBED:
            thing, full = getattr(home, name), f"{module}.{name}".lstrip(".")
            if not inspect.ismodule(thing):
                yield full, thing
                for member in {**MEMBERS, **RECORDS}.get(full, "").split():
                    if member not in getattr(thing, "__dataclass_fields__", {}):
                        found = inspect.getattr_static(thing, member)
                        yield f"{full}.{member}", getattr(found, "__func__", found)


PUBLIC = dict(public())


def sections(text):
    """The sections of a docstring by their titles, each as its lines."""
    found, title, lines = {}, "", (text or "").split("\n")
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if line and re.fullmatch("-+", following):
            title = line
        elif not re.fullmatch("-+", line):
            found.setdefault(title, []).append(line)
    return found


def described(text):
    """The names in the sections of parameters and of attributes."""
    names = ",".join(
        line
        for title in ("Parameters", "Attributes")
        for line in sections(text).get(title, [])
        if line[:1].strip()
    )
    return {name.strip(" *") for name in names.split(",") if name}


def lacks(name, thing):
    """What a docstring does not say."""
    text = inspect.getdoc(thing)
    if not callable(thing):  # a property
        return [] if text else ["a text"]
    found, lacking = sections(text), []
    if inspect.isclass(thing) and "Examples" not in found:
        lacking.append("Examples")
    if name in RECORDS:  # nobody but the package makes one
        fields = {each for each in RECORDS[name].split() if each in thing.__dataclass_fields__}
        return lacking + sorted(fields - described(text))
    signature = inspect.signature(thing)
    parameters = set(signature.parameters) - {"self", "cls"}
    lacking += sorted(parameters ^ described(text))
    if inspect.isfunction(thing) and signature.return_annotation != "None" and "Returns" not in found:
        lacking.append("Returns")
    return lacking


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_docstrings_have_their_sections(name):
    assert lacks(name, PUBLIC[name]) == []


def test_the_linter_finds_what_is_missing():
    def some(a, b):
        """Text.

        Parameters
        ----------
        a, c
            Two of them.
        """

    assert lacks("some", some) == ["b", "c", "Returns"]
