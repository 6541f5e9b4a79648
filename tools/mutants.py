#!/usr/bin/env python3
"""Break single operators of the numeric rooms and see whether the tests notice.

    python tools/mutants.py                                    80 operators, drawn at random
    python tools/mutants.py --count 20 --seed 3 --minutes 10
    python tools/mutants.py --at src/policyrisk/risk/bands.py:104

One operator at a time is turned round in a copy of the tree: + and -, * and /, ** and *, < and >=, > and <=,
== and !=, and and or; a minus sign or a `not` is dropped. Then the tests of the file's room run until one
fails, those that name the module first. Numbers that are only frozen (tests/test_frozen.py) do not count:
they would notice everything and check nothing. A mutant with which the tests do not end is caught.

`HARMLESS` has the lines where a survivor is no gap in the tests, with the reason. The exit code is 1 where
less than 95% of the others are caught.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = Path("src/policyrisk")
AIM = 0.95
SLOW = 400  # seconds of processor time for the tests of a room, which take about one minute
WAIT = 1800.0  # seconds for tests that only wait
# The numeric rooms and the tests of each, tests/test_NAME.py.
ROOMS = {
    "equations": "equations constraint projected lstd large",
    "lstd": "lstd accumulate influence cutoffs lstdq doubly_robust higher_moments starts large oracles units",
    "td": "td projected",
    "markov": "markov linear chain_distribution curves mdp questions projected diagnosis oracles "
    "target_tails",
    "risk": "risk bands completed influence mixture bounds starts cross_validation clusters "
    "tail_criteria criteria units",
    "returns": "return_distribution distribution_mixture distribution_scores forest curves monitor "
    "montecarlo retention target_tails evaluate_quantiles",
    "selection": "stacking cross_validation specification criteria gate influence distribution_mixture",
    "criteria": "criteria tail_criteria gate",
    "control": "actor_critic improve mdp portfolio",
    "features": "features tilecoding radial leaves joint lstdq feature_arguments own_features target",
}
# (file below src/policyrisk, line without its indentation) of survivors, and why no test can see them.
HARMLESS: dict[tuple[str, str], str] = {}

SIGNS = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.Pow: ("**", "*"),
    ast.Lt: ("<", ">="),
    ast.GtE: (">=", "<"),
    ast.Gt: (">", "<="),
    ast.LtE: ("<=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
}


@dataclass(frozen=True)
class Mutant:
    """One operator of a file, and what it becomes."""

    file: str  # below the package
    line: int
    start: int  # in the text
    end: int
    new: str
    text: str  # the line

    def applied(self, source: str) -> str:
        """The file with the operator turned round."""
        return source[: self.start] + self.new + source[self.end :]

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}"


def mutants(file: Path) -> Iterator[Mutant]:
    """Every operator of a file inside of functions, but for texts, types, and what errors say."""
    source = file.read_text()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    lines = source.splitlines()

    def at(line: int, column: int) -> int:
        return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())

    def mutant(node: ast.AST, first: int, last: int, old: str, new: str) -> Iterator[Mutant]:
        found = re.search(rf"(?<![*/<>=!\w]){re.escape(old)}(?![*/<>=\w])", source[first:last])
        if found:
            start = first + found.start()
            line = source.count("\n", 0, start) + 1
            name = str(file.relative_to(ROOT / PACKAGE))
            yield Mutant(name, line, start, start + len(old), new, lines[line - 1].strip())

    def between(left: ast.expr, right: ast.expr) -> tuple[int, int]:
        assert left.end_lineno is not None
        assert left.end_col_offset is not None
        return at(left.end_lineno, left.end_col_offset), at(right.lineno, right.col_offset)

    def operators(node: ast.AST) -> Iterator[Mutant]:
        match node:
            case ast.BinOp(op=op) if type(op) in SIGNS and not any(
                isinstance(part, ast.JoinedStr | ast.List | ast.Tuple)
                or (isinstance(part, ast.Constant) and isinstance(part.value, str))
                for part in (node.left, node.right)
            ):
                yield from mutant(node, *between(node.left, node.right), *SIGNS[type(op)])
            case ast.Compare(ops=[op]) if type(op) in SIGNS:
                yield from mutant(node, *between(node.left, node.comparators[0]), *SIGNS[type(op)])
            case ast.BoolOp(op=op):
                yield from mutant(node, *between(node.values[0], node.values[1]), *SIGNS[type(op)])
            case ast.UnaryOp(op=ast.USub() | ast.Not()) if not isinstance(node.operand, ast.Constant):
                first = at(node.lineno, node.col_offset)
                old = "-" if isinstance(node.op, ast.USub) else "not "
                yield from mutant(node, first, first + len(old), old.strip(), "")

    def inside(node: ast.AST, function: bool = False) -> Iterator[Mutant]:
        if isinstance(node, ast.Raise | ast.JoinedStr | ast.Assert | ast.arguments):
            return
        if isinstance(node, ast.Call) and "warn" in ast.unparse(node.func):
            return
        if isinstance(node, ast.AnnAssign):
            parts: list[ast.AST] = [node.value] if node.value else []
        elif isinstance(node, ast.FunctionDef):
            parts, function = list(node.body), True
        else:
            parts = list(ast.iter_child_nodes(node))
        if function:
            yield from operators(node)
        for part in parts:
            yield from inside(part, function)

    yield from inside(ast.parse(source))


def everything() -> list[Mutant]:
    """Every mutant of the numeric rooms."""
    files = [f for room in ROOMS for f in sorted((ROOT / PACKAGE).glob(f"{room}.py"))]
    files += [f for room in ROOMS for f in sorted((ROOT / PACKAGE / room).rglob("*.py"))]
    return [one for file in files for one in mutants(file)]


def tests_of(file: str) -> list[str]:
    """The tests of a file's room, those first that name its module."""
    module = Path(file).stem
    room = ROOMS[Path(file).parts[0].removesuffix(".py")]
    paths = [ROOT / "tests" / f"test_{name}.py" for name in room.split()]
    naming = {path for path in paths if re.search(rf"\b{module}\b", path.read_text())}
    return [str(path.relative_to(ROOT)) for path in sorted(paths, key=lambda path: path not in naming)]


def forget_compiled(tree: Path, file: str) -> None:
    """Delete what was compiled from a file and from all that import it: kernels hold each other's code."""
    modules, new = set[str](), {Path(file)}
    files = [path.relative_to(tree / PACKAGE) for path in (tree / PACKAGE).rglob("*.py")]
    texts = {path: (tree / PACKAGE / path).read_text() for path in files}
    if "njit" not in texts[Path(file)]:
        return
    found = set(new)
    while new:
        modules = {".".join(("policyrisk", *path.with_suffix("").parts)) for path in new}
        new = {
            path
            for path, text in texts.items()
            if path not in found and "njit" in text and any(f"from {name} import" in text for name in modules)
        }
        found |= new
    for path in found:
        for old in (tree / PACKAGE / path.parent / "__pycache__").glob(f"{path.stem}.*.nb*"):
            old.unlink()


def failing(tree: Path, tests: list[str]) -> str:
    """The first test that fails, or nothing."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header", "-m"]
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "OPENBLAS_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            [*command, "not slow and not service", *tests],
            cwd=tree,
            env=environment,
            capture_output=True,
            text=True,
            timeout=WAIT,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (SLOW, SLOW)),
        )
    except subprocess.TimeoutExpired:
        return f"no end within {WAIT:.0f} s"
    if done.returncode < 0:  # by a signal
        return f"no end within {SLOW} s of processor time, or a crash"
    found = re.search(r"^(?:FAILED|ERROR) ([^\s\[]+)", done.stdout, flags=re.MULTILINE)
    return "" if done.returncode == 0 else found[1] if found else "an error on import"


def caught(mutant: Mutant, tree: Path, sound: set[str]) -> str:
    """The test that fails with the mutant and not without it, or nothing; ``tree`` is as before after it."""
    place = tree / PACKAGE / mutant.file
    source, kept = place.read_text(), place.stat()
    place.write_text(mutant.applied(source))
    forget_compiled(tree, mutant.file)
    by = failing(tree, tests_of(mutant.file))
    place.write_text(source)
    os.utime(place, ns=(kept.st_atime_ns, kept.st_mtime_ns))
    forget_compiled(tree, mutant.file)
    if "::" in by and by not in sound:
        if failing(tree, [by]):
            raise SystemExit(f"{by} must pass without a mutant, and fails; mend it first")
        sound.add(by)
    return by


def main() -> int:
    """Draw, try, and say what survived."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=80)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=90.0, help="no further one is begun after these")
    parser.add_argument("--at", action="append", default=[], help="file:line instead; several times")
    options = parser.parse_args()
    if options.at:
        wanted = {str((ROOT / PACKAGE / one.removeprefix(f"{PACKAGE}/")).resolve()) for one in options.at}
        drawn = [one for one in everything() if f"{ROOT / PACKAGE / one.file}:{one.line}" in wanted]
    else:
        every = everything()
        drawn = random.Random(options.seed).sample(every, min(options.count, len(every)))
    began, survivors, tried, sound = time.monotonic(), list[Mutant](), 0, set[str]()
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".git", ".venv", "site", "dist", "results"))
        for mutant in drawn:
            if (time.monotonic() - began) / 60 > options.minutes:
                break
            by = caught(mutant, tree, sound)
            reason = HARMLESS.get((mutant.file, mutant.text))
            said = f"caught by {by}" if by else f"harmless: {reason}" if reason else "SURVIVED"
            print(f"{mutant}  [{mutant.new or 'dropped'}]  {said}", flush=True)
            tried += bool(by) or reason is None
            if not by and reason is None:
                survivors.append(mutant)
    share = 1 - len(survivors) / max(tried, 1)
    print(f"{tried - len(survivors)} of {tried} caught ({share:.0%}), {len(drawn)} drawn", flush=True)
    return share < AIM


if __name__ == "__main__":
    sys.exit(main())
