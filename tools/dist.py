#!/usr/bin/env python3
"""Build the wheel and the sdist into dist/, and try the wheel where nothing else of ours is.

    python tools/dist.py                 build and try
    python tools/dist.py --tag v0.2.0    the same; an error where the version is another than the tag's

The wheel is installed into an empty environment in a temporary folder, from where `policyrisk --version`, the
README's first example (but for its picture) and the tests marked `smoke` run. The sdist must hold what the
tests need, so they are taken from there.
"""

from __future__ import annotations

import argparse
import doctest
import re
import subprocess
import sys
import tarfile
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"


def run(*command: str | Path, where: Path) -> str:
    """Run a command, shown, and give back what it printed."""
    print("$", *command, flush=True)
    done = subprocess.run([str(part) for part in command], cwd=where, text=True, stdout=subprocess.PIPE)
    print(done.stdout, end="", flush=True)
    if done.returncode:
        raise SystemExit(done.returncode)
    return done.stdout


def environment(folder: Path) -> Path:
    """The Python of a new environment."""
    venv.create(folder, with_pip=True)
    return folder / "bin" / "python"


def built(folder: Path) -> tuple[Path, Path]:
    """The wheel and the sdist, made with a build frontend of their own."""
    python = environment(folder / "build")
    run(python, "-m", "pip", "install", "--quiet", "build", where=folder)
    for old in DIST.glob("policyrisk-*"):
        old.unlink()
    run(python, "-m", "build", "--outdir", DIST, ROOT, where=folder)
    (wheel,), (sdist,) = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
    return wheel, sdist


def example(readme: str) -> str:
    """The README's first example as a program that stops where an answer is another than the one shown."""
    blocks = re.findall(r"```python\n(.*?)```", readme, flags=re.DOTALL)
    lines = ["import doctest, sys", "text = '''", blocks[0].replace("\\", "\\\\"), "'''"]
    flags = f"{doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS}"
    lines += [
        "test = doctest.DocTestParser().get_doctest(text, {}, 'README', None, 0)",
        f"sys.exit(doctest.DocTestRunner(optionflags={flags}).run(test).failed)",
    ]
    return "\n".join(lines)


def tried(wheel: Path, sdist: Path, folder: Path) -> str:
    """The version that the wheel says in an environment of its own, after example and tests ran there."""
    python = environment(folder / "tried")
    run(python, "-m", "pip", "install", "--quiet", wheel, where=folder)
    version = run(folder / "tried" / "bin" / "policyrisk", "--version", where=folder).split()[-1]
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (source,) = (folder / name for name in [sdist.name.removesuffix(".tar.gz")])
    program = folder / "example.py"
    program.write_text(example((source / "README.md").read_text()))
    run(python, program, where=folder)
    run(python, "-m", "pip", "install", "--quiet", "pytest", where=folder)
    run(python, "-m", "pytest", "-q", "-m", "smoke", source / "tests" / "test_smoke.py", where=folder)
    return version


def main() -> None:
    """Build, try, and compare with the tag."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tag", default="", help="such as v0.2.0")
    tag = parser.parse_args().tag
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        wheel, sdist = built(folder)
        version = tried(wheel, sdist, folder)
    if tag and tag.removeprefix("v") != version:
        raise SystemExit(f"the tag must be that of the version, v{version}, got {tag}; tag again")
    for file in (wheel, sdist):
        print(f"{file.relative_to(ROOT)}: {file.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    sys.exit(main())
