"""A compiled domain with the sum of the rewards so far in its state: policies see what they have earned."""

from __future__ import annotations

from collections import namedtuple
from functools import cache
from typing import Any

import numpy as np
from numba import njit

from policyrisk._core.arrays import Bools, Floats, Ints, Seed, as_floats
from policyrisk.errors import InvalidInputError
from policyrisk.simulation.compiled import Words, domain_kernels, register_domain
from policyrisk.simulation.domain import CompiledDomain


@cache
def _earning(table: Any) -> Any:
    """The class of tables with the fields of a domain's own, and other kernels.

    A table inside a table is more than Numba's parallel loops take. The class is of no module that could be
    imported: its code is compiled in each process anew.
    """
    read, step = domain_kernels(table)
    made = namedtuple(f"Earning{table.__name__}", table._fields, module="earning")  # type: ignore[misc]

    @njit
    def read_earned(domain: Any, states: Floats, i: int) -> Any:
        return read(domain, states, i) + (states[i, states.shape[1] - 1],)  # noqa: RUF005

    @njit
    def step_earned(domain: Any, state: Any, action: int, s0: np.uint64, s1: np.uint64) -> Any:
        after, reward, ended, s0, s1 = step(domain, state[:-1], action, s0, s1)
        return after + (state[-1] + reward,), reward, ended, s0, s1  # noqa: RUF005

    register_domain(made, read_earned, step_earned)
    return made


class RewardSoFar(CompiledDomain):
    """A domain with R_<t, the sum of the rewards so far, as the last coordinate of its states.

    Criteria of risk have no optimality principle: a policy that sees what has been earned can be better than
    any that does not. Rewards, chance and episodes are the domain's; so are starts, with nothing earned.

    Parameters
    ----------
    domain
        A compiled domain.

    Examples
    --------
    >>> from policyrisk.domains import Portfolio
    >>> seeing = RewardSoFar(Portfolio())
    >>> always = lambda states: np.ones(len(states), dtype=int)
    >>> data = seeing.rollout(always, seeing.sample_starts(3), seed=0)
    >>> bool(np.allclose(data.states[data.final_rows, -1], data.returns()))
    True
    """

    def __init__(self, domain: CompiledDomain) -> None:
        if not isinstance(domain, CompiledDomain):
            raise InvalidInputError(
                f"domain must be a compiled one such as Portfolio(), got {type(domain).__name__}; an "
                "environment of Gymnasium sees its rewards in control.tasks.TimedEnvironment"
            )
        self.domain = domain
        self.actions = domain.actions

    def __repr__(self) -> str:
        return f"RewardSoFar({self.domain!r})"

    def compiled(self) -> Any:
        """The table for compiled code, see :mod:`policyrisk.simulation.compiled`."""
        own = self.domain.compiled()
        kind: Any = type(own)
        return _earning(kind)(*own)

    def sample_starts(self, n: int, seed: Seed = None) -> Floats:
        """The domain's own n starts, of shape (n, dim + 1): nothing is earned yet."""
        starts: Floats = self.domain.sample_starts(n, seed)
        return np.column_stack([starts, np.zeros(len(starts))])

    def act(self, states: Floats, actions: Ints, words: Words) -> tuple[Floats, Bools]:
        """One action for each row of ``states``, in place, each with its own stream: rewards, ended."""
        own = np.ascontiguousarray(states[:, :-1])
        rewards, ended = self.domain.act(own, actions, words)
        states[:, :-1] = own
        states[:, -1] += rewards
        return rewards, ended

    def as_starts(self, value: object, name: str) -> Floats:
        """Checked states (n, dim + 1), a copy."""
        given = as_floats(value, name, (None, None))
        return np.column_stack([self.domain.as_starts(given[:, :-1], name), given[:, -1]])
