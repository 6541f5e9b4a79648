#!/usr/bin/env python3
"""Test every version that pyproject.toml claims: each Python with the newest packages and with the lowest.

    python tools/versions.py                      all of them, those Pythons that this machine has
    python tools/versions.py 3.13                 one Python, both ways
    python tools/versions.py 3.11-lowest 3.12     one combination, and another Python both ways
    python tools/versions.py 3.13 -- tests/test_td.py -x        what follows goes to pytest

A Python is found as python3.X on the PATH or among pyenv's versions. Each combination has an environment of
its own in .versions/, made anew when the packages in pyproject.toml changed. The lowest versions are the
bounds `>=` of [project] there; the tests' tools (the extra `test`), and what packages need themselves, are
the newest. Old packages use what newer ones deprecate: with the lowest a DeprecationWarning is no error.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = ROOT / "pyproject.toml"
KINDS = ("newest", "lowest")


def claimed(project: dict) -> list[str]:
    """The versions of Python in the classifiers."""
    pattern = re.compile(r"Programming Language :: Python :: (3\.\d+)")
    return [found[1] for line in project["classifiers"] if (found := pattern.fullmatch(line))]


def lowest(project: dict) -> list[str]:
    """The lower bounds as constraints; markers stay, so that a bound may depend on the version of Python."""
    extras = project["optional-dependencies"]
    given = project["dependencies"] + [
        one for name in extras if name not in ("test", "dev") for one in extras[name]
    ]
    found = []
    for one in given:
        requirement, _, marker = one.partition(";")
        bound = re.fullmatch(r"([\w.-]+)(?:\[.*\])?\s*>=\s*([\w.]+)\s*(?:,.*)?", requirement.strip())
        if bound:
            found.append(f"{bound[1]}=={bound[2]}" + (f" ;{marker}" if marker else ""))
        elif not requirement.startswith(project["name"]):
            raise SystemExit(f"{PYPROJECT.name} gives no lower bound for {one!r}; write name>=version")
    return found


def interpreter(version: str) -> str | None:
    """The Python of this version, or None."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [
        shutil.which(f"python{version}"),
        *sorted(pyenv.glob(f"{version}.*/bin/python"), reverse=True),
    ]
    for path in filter(None, candidates):
        # A shim of pyenv is on the PATH for versions that are not switched on: ask it.
        asked = subprocess.run(
            [path, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], capture_output=True, text=True
        )
        if asked.returncode == 0 and asked.stdout.strip() == version:
            return str(path)
    return None


def environment(name: str, python: str, project: dict, constraints: list[str]) -> str:
    """The Python of the combination's environment, with the package and its tests' tools in it."""
    home = ROOT / ".versions" / name
    inside, stamp = home / "bin" / "python", home / "packages.txt"
    packages = str((project["dependencies"], project["optional-dependencies"]))
    if not stamp.exists() or stamp.read_text() != packages:
        subprocess.run([python, "-m", "venv", "--clear", home], check=True)
        (home / "constraints.txt").write_text("\n".join(constraints) + "\n")
        install = [inside, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run(
            [*install, "--constraint", home / "constraints.txt", "--editable", ".[test]"],
            cwd=ROOT,
            check=True,
        )
        stamp.write_text(packages)
    return str(inside)


def main(arguments: list[str]) -> int:
    """Run what was asked for, print a line for each combination; 0 where all passed."""
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    split = arguments.index("--") if "--" in arguments else len(arguments)
    asked, options = arguments[:split], arguments[split + 1 :]
    versions = claimed(project)
    every = [(version, kind) for version in versions for kind in KINDS]
    chosen = [(v, k) for v, k in every if not asked or v in asked or f"{v}-{k}" in asked]
    unknown = set(asked) - {v for v, _ in every} - {f"{v}-{k}" for v, k in every}
    if unknown:
        raise SystemExit(
            f"unknown {', '.join(sorted(unknown))}; choose among {', '.join(versions)}\n{__doc__}"
        )
    results = {}
    for version, kind in chosen:
        name = f"{version}-{kind}"
        python = interpreter(version)
        if python is None:
            results[name] = "no such Python here"
            continue
        print(f"== {name}", flush=True)
        try:
            inside = environment(name, python, project, lowest(project) if kind == "lowest" else [])
        except subprocess.CalledProcessError:
            results[name] = "FAILED to install"
            continue
        # The cache of compiled code is told apart by the machine, not by the version that compiled it.
        settings = {"OPENBLAS_NUM_THREADS": "1", "NUMBA_CACHE_DIR": str(ROOT / ".versions" / name / "numba")}
        old = ["-W", "default::DeprecationWarning"] if kind == "lowest" else []
        tests = subprocess.run(
            [
                *(inside, "-m", "pytest", "-n", "auto", "--dist", "loadfile", "-p", "no:cacheprovider"),
                *("-m", "not slow and not service"),
                *old,
                *options,
            ],
            cwd=ROOT,
            env={**os.environ, **settings},
        )
        results[name] = "passed" if tests.returncode == 0 else "FAILED"
    print()
    for name, result in results.items():
        print(f"{name:<12} {result}")
    return 0 if all(result == "passed" for result in results.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
