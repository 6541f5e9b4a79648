"""Small chains with known answers: the paper's walk and a few classics."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from policyrisk._core.arrays import as_count, as_number
from policyrisk.errors import InvalidInputError
from policyrisk.markov import MarkovChain


def walk(n: int = 30, p: float = 0.7, discount: float = 1.0) -> MarkovChain:
    """The paper's chain: n states in a row, rewards −1, the end behind the last.

    From each state the walk goes on with probability p and back with 1 − p; the first state leads to itself
    instead of back. State 0 is farthest from the end.

    Parameters
    ----------
    n
        The number of states.
    p
        The probability of a step towards the end.
    discount
        γ.

    Returns
    -------
    MarkovChain
        With n states.

    Examples
    --------
    >>> chain = walk(n=30, p=0.7)
    >>> chain.mean()[[0, 29]].round(6), chain.variance()[[0, 29]].round(6)
    (array([-73.125,  -2.5  ]), array([359.296875,  13.125   ]))
    """
    n = as_count(n, "n", 1)
    p = as_number(p, "p", 0.0, 1.0, open_low=True, remedy="pass the probability of a step towards the end")
    forward, back = np.full(n - 1, p), np.full(n - 1, 1.0 - p)
    stay = np.zeros(n)
    stay[0] = 1.0 - p
    diagonals: Any = [back, stay, forward]
    P = sp.diags_array(diagonals, offsets=[-1, 0, 1], shape=(n, n))
    return MarkovChain(P, np.full(n, -1.0), discount)


def boyan(discount: float = 1.0) -> MarkovChain:
    """Boyan's chain: state s = 12, …, 1 moves down by 1 or 2, each with probability ½, reward −3 (−2 from 1).

    Index i holds s = 12 − i; s = 0 is the end, so that J(s) = −2s.

    Parameters
    ----------
    discount
        γ.

    Returns
    -------
    MarkovChain
        With 12 states.

    Examples
    --------
    >>> boyan().mean()[0]
    np.float64(-24.0)
    """
    n = 12
    P = 0.5 * (np.eye(n, k=1) + np.eye(n, k=2))
    r = np.full(n, -3.0)
    r[-1] = -2.0
    return MarkovChain(P, r, discount)


def gambler(N: int, p: float = 0.5) -> MarkovChain:
    """Gambler's ruin on 0, …, N, reward 1 a round: index k − 1 holds the fortune k, 0 and N end the game.

    For p = ½ the mean duration from k is k(N − k).

    Parameters
    ----------
    N
        The fortune that ends the game.
    p
        The probability of winning a round.

    Returns
    -------
    MarkovChain
        With N − 1 states.

    Examples
    --------
    >>> gambler(10).mean()[[0, 4]]
    array([ 9., 25.])
    """
    N = as_count(N, "N", 2)
    p = as_number(p, "p", 0.0, 1.0, remedy="pass the probability of winning a round")
    diagonals: Any = [np.full(N - 2, 1.0 - p), np.full(N - 2, p)]
    P = sp.diags_array(diagonals, offsets=[-1, 1], shape=(N - 1, N - 1))
    return MarkovChain(P, np.ones(N - 1))


def grid_walk(rows: int, columns: int, discount: float = 1.0) -> MarkovChain:
    """A walk on a grid, to each of the four sides with probability ¼, that ends over the edge; rewards 1.

    Parameters
    ----------
    rows, columns
        Of the grid.
    discount
        γ.

    Returns
    -------
    MarkovChain
        With rows · columns states.

    Examples
    --------
    >>> grid_walk(1, 1).mean()
    array([1.])
    """
    rows, columns = as_count(rows, "rows", 1), as_count(columns, "columns", 1)
    if rows * columns > np.iinfo(np.int32).max:
        raise InvalidInputError(f"rows * columns must fit 32 bits, got {rows * columns}; use a smaller grid")
    line = [
        sp.diags_array([1.0, 1.0], offsets=[-1, 1], shape=(m, m)) if m > 1 else sp.csr_array((1, 1))
        for m in (rows, columns)
    ]
    P = 0.25 * (sp.kron(line[0], sp.eye_array(columns)) + sp.kron(sp.eye_array(rows), line[1]))
    return MarkovChain(sp.csr_array(P), np.ones(rows * columns), discount)
