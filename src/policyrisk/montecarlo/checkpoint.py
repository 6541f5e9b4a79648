"""Checkpoints of a run: what was asked, the key of its chance, and the sums so far.

The file is replaced as a whole every few seconds. Blocks of episodes always draw the same chance (it comes
from the key and the block's place), and the sums' counts say which blocks are in, so that a run which was
killed and resumed adds up the same numbers in the same order as one that was not: the same bits.

A run may only go on from a checkpoint of its own problem. Domains, compiled policies, chains and states are
compared by their contents; other objects by what they print, and Python functions by their names, which is
all that a file can know of them.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from policyrisk._core.arrays import Floats
from policyrisk._core.records import read_record, write_record
from policyrisk._core.text import plural
from policyrisk.errors import InvalidInputError, MismatchError
from policyrisk.markov import MarkovChain
from policyrisk.montecarlo.sums import COUNT, ROWS

_KIND = "MonteCarloCheckpoint"
_EVERY = 2.0  # seconds between two checkpoints
_ADDRESS = r" at 0x[0-9a-fA-F]+"  # differs from process to process
_PATIENCE = 10.0  # of a checkpoint's own time: large ones are written less often


@dataclass(frozen=True)
class Problem:
    """What is asked, in plain values that a later call can be compared with."""

    simulator: str
    policy: str
    states: str
    episodes: int
    discount: float
    max_steps: int
    block: int  # episodes in a block
    seed: str  # the key of the run's chance

    @property
    def key(self) -> tuple[int, int]:
        """The key as two numbers."""
        first, second = self.seed.split("-")
        return int(first, 16), int(second, 16)


def key_text(key: tuple[Any, Any]) -> str:
    """A key of two 64-bit numbers as text."""
    return f"{int(key[0]):016x}-{int(key[1]):016x}"


def identity(thing: object) -> str:
    """A simulator or policy as text: what it prints and, where its contents are at hand, their digest.

    >>> identity(None), identity(len)
    ('None', '<built-in function len>')
    """
    text = re.sub(_ADDRESS, "", repr(thing))
    spec = getattr(thing, "spec", None)
    if spec is not None:
        told = (getattr(spec, name, None) for name in ("id", "kwargs", "max_episode_steps"))
        text += " ".join(["", *(re.sub(_ADDRESS, "", repr(value)) for value in told)])
    if isinstance(thing, MarkovChain):
        branches = thing.branches
        text += _digest([branches.indptr, branches.successor, branches.probability, branches.reward])
    elif hasattr(thing, "compiled"):
        text += _digest(thing.compiled())
    return text


def states_text(states: Floats) -> str:
    """States as text: their number and a digest."""
    return f"{plural(len(states), 'state')} of dimension {states.shape[1]}{_digest([states])}"


def _digest(parts: Iterable[Any]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        array = np.ascontiguousarray(part)
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(array.tobytes())
    return f" #{digest.hexdigest()[:16]}"


class Checkpoint:
    """The file of a run."""

    def __init__(self, path: str | os.PathLike[str], problem: Problem) -> None:
        self.path = Path(path)
        self.problem = problem
        self._due = 0.0

    def write(self, table: Floats) -> None:
        """Replace the file."""
        began = time.monotonic()
        try:
            write_record(self.path, _KIND, {"problem": asdict(self.problem)}, {"table": table})
        except (OSError, InvalidInputError) as error:
            raise InvalidInputError(
                f"checkpoint must be a file that can be written, got {self.path} ({error}); make room or "
                "choose another folder, where an earlier checkpoint can be copied to go on with resume=True"
            ) from error
        took = time.monotonic() - began
        self._due = began + took + max(_EVERY, _PATIENCE * took)

    def write_if_due(self, table: Floats) -> None:
        """Replace the file where the last time was some seconds ago."""
        if time.monotonic() >= self._due:
            self.write(table)


def open_checkpoint(
    path: str | os.PathLike[str], problem: Problem, resume: bool, any_seed: bool
) -> tuple[Checkpoint, Floats | None]:
    """The checkpoint of a problem and, where a run goes on, its sums so far.

    ``any_seed``: the caller gave none, so that the run goes on with the chance that the file names. Without
    ``resume`` a new run begins, but not over the only trace of an unfinished one or over another file.
    """
    target = Path(path)
    if not target.exists():
        return Checkpoint(target, problem), None
    try:
        header, arrays = read_record(target, _KIND)
        stored, table = Problem(**header["problem"]), arrays["table"]
    except (InvalidInputError, KeyError, TypeError) as error:
        raise InvalidInputError(
            f"checkpoint must be a new file or one that monte_carlo wrote, got {target} ({error}); "
            "choose another path"
        ) from error
    if not resume:
        done, total = int(table[COUNT].sum()), stored.episodes * table.shape[1]
        if done < total:
            raise InvalidInputError(
                f"checkpoint must not replace an unfinished run, got {target} with {done} of {total} "
                "episodes; pass resume=True to go on with it, or delete it"
            )
        return Checkpoint(target, problem), None
    before, now = asdict(stored), asdict(problem)
    if any_seed:
        now["seed"] = before["seed"]
    differ = [name for name in now if before[name] != now[name]]
    if differ:
        told = "; ".join(f"{name} was {before[name]} and is {now[name]}" for name in differ)
        raise MismatchError(
            f"checkpoint must be of the same problem, got {target}, where {told}; "
            "pass the same arguments, or another path for a new run"
        )
    if table.shape[0] != ROWS:
        raise InvalidInputError(f"checkpoint must hold {ROWS} sums, got {table.shape[0]}; start a new run")
    return Checkpoint(target, stored), table
