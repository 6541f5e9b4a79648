"""What tells one problem from another: simulators, policies and states as text.

A run may only go on from a checkpoint of its own problem. Domains, compiled policies, chains and states are
compared by their contents; other objects by what they print, and Python functions by their names, which is
all that a file can know of them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from policyrisk.markov import MarkovChain

_ADDRESS = r" at 0x[0-9a-fA-F]+"  # differs from process to process


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
        text += digest([branches.indptr, branches.successor, branches.probability, branches.reward])
    elif hasattr(thing, "compiled"):
        text += digest(thing.compiled())
    return text


def digest(parts: Iterable[Any]) -> str:
    """Arrays as text."""
    total = hashlib.sha256()
    for part in parts:
        array = np.ascontiguousarray(part)
        total.update(f"{array.dtype.str}{array.shape}".encode())
        total.update(array.tobytes())
    return f" #{total.hexdigest()[:16]}"
