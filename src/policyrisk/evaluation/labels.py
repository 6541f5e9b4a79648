"""Labels found in the data: whole-numbered coordinates whose numbers are names.

The numbers of a label are in no order: what is known about 217 and 219 says nothing about 218. So for every
whole-numbered coordinate with at least FEWEST values, and not too many for a table, two predictions of the
return to go are compared on held-out episodes, both for what is left of it after a sum of quadratics in the
other coordinates,

    table    by the mean at the value itself, n visits, times n/(n + PRIOR)
    near     by those at the other values near by, the value itself left out: a weighted mean, or a weighted
             straight line, over the h next values on either side; h the best of 1, 2, 4, 8 and 16

Each explains some part of the squared error. A coordinate is taken for a label where the table explains
something (by two standard errors over episodes) and the neighbours less than half of that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from policyrisk._core.arrays import Floats, Ints, Seed
from policyrisk._core.frames import numbered_names
from policyrisk._core.random import keys
from policyrisk._core.text import quoted
from policyrisk.data import Stream, Trajectories, coordinates_of
from policyrisk.errors import InvalidInputError
from policyrisk.features.spelling import Spelling
from policyrisk.passes.episode_folds import FOLDS, folds_of
from policyrisk.passes.survey import Survey

FEWEST = 6  # values: a straight line through fewer is not much less than a table of them
PRIOR = 3.0  # visits
MOST = 2_000  # values of all labels together that features are chosen for
CROSSED = 20  # values of a label that is crossed with other coordinates
_REACH = (1, 2, 4, 8, 16)  # values on either side


def label_columns(
    data: Trajectories, survey: Survey, discount: float = 1.0, seed: Seed = None
) -> tuple[int, ...]:
    """The coordinates that are taken for labels; folds of the episodes are drawn from ``seed``.

    ``survey`` is of the whole data, of which ``data`` may be a sample.

    >>> import policyrisk as pr
    >>> data = pr.domains.walk(n=30, p=0.7).sample(0, episodes=300, seed=1)
    >>> label_columns(data, Survey.of(data), seed=0)
    ()
    >>> names = np.random.default_rng(0).permutation(31)
    >>> shuffled = pr.Trajectories(names[data.states], data.rewards, data.lengths, data.terminated)
    >>> label_columns(shuffled, Survey.of(shuffled), seed=0)
    (0,)
    """
    whole = [
        d
        for d, values in enumerate(survey.values)
        if values is not None and FEWEST <= values.size <= MOST // survey.dim
    ]
    if not whole or len(data) < 2 * FOLDS:
        return ()
    states = np.asarray(data.states[data.visited_rows], dtype=np.float64)
    y = data.returns_to_go(discount)
    episode = np.repeat(np.arange(len(data)), data.lengths)
    fold = folds_of(data, FOLDS, int(keys(seed)[0]))[episode]
    smooth = _quadratics(states)
    gram = [(part := smooth[fold != k]).T @ part for k in range(FOLDS)]
    moments = [smooth[fold != k].T @ y[fold != k] for k in range(FOLDS)]
    found = []
    for d in whole:
        _, code = np.unique(states[:, d], return_inverse=True)
        others = np.delete(np.arange(smooth.shape[1]), [1 + 2 * d, 2 + 2 * d])
        explained = np.zeros((len(data), 2 * len(_REACH)))  # by each prediction, the table's first
        total = np.zeros(len(data))
        for k in range(FOLDS):
            w = np.linalg.lstsq(gram[k][np.ix_(others, others)], moments[k][others], rcond=1e-10)[0]
            left = y - smooth[:, others] @ w
            test = fold == k
            at, of, true = code[test], episode[test], left[test]
            predicted = _predictions(code[~test], left[~test], code.max() + 1)
            total += np.bincount(of, true**2, len(data))
            for j, values in enumerate(predicted):
                explained[:, j] += np.bincount(of, true**2 - (true - values[at]) ** 2, len(data))
        table, near = explained[:, 0], explained[:, 1:].sum(axis=0).max()
        error = np.sqrt(np.square(table - table.mean()).sum())
        if table.sum() > 2 * error and near < 0.5 * table.sum():
            found.append(d)
    return tuple(found)


def stated_labels(given: Sequence[str], names: Sequence[str], data: Any) -> Mapping[int, tuple[str, ...]]:
    """The coordinates that are labels because someone said so, or because they are text, with their names.

    ``given`` names coordinates, of all that ``names`` names; those of them that are numbers have no names.

    >>> stated_labels(["shop"], ["x", "shop"], data=None)
    {1: ()}
    """
    wrong = [name for name in given if not isinstance(name, str) or name not in names]
    if wrong:
        raise InvalidInputError(
            f"labels must be a list of coordinates of the state, {', '.join(names)}, got {wrong[0]!r}; "
            f"pass for example [{names[0]!r}]"
        )
    found: dict[int, tuple[str, ...]] = {list(names).index(name): () for name in given}
    if (known := coordinates_of(data)) is not None:
        found |= {d: known.labels[name] for d, name in enumerate(known.names) if name in known.labels}
    elif isinstance(data, Stream) and data.labels:
        columns = data.state_columns or numbered_names("state", len(names))  # as an array's are called
        if len(columns) != len(names):
            raise InvalidInputError(
                "state must have a column for each coordinate where one is text, got "
                f"{len(columns)} columns for {len(names)} coordinates; write a list's numbers "
                "into columns of their own"
            )
        texts = {column: names for column, names in data.labels.items() if column in columns}
        found |= {columns.index(column): names for column, names in texts.items()}
    return dict(sorted(found.items()))


def label_spellings(survey: Survey, names: Sequence[str], labels: Sequence[int]) -> list[Spelling]:
    """The features that are tried where some coordinates are labels: tables of these beside the others.

    One label with few values, numbered without gaps, is also crossed with the others: tiles, as many along
    it as it has values. So are several labels with few values together, where nothing else is beside them.

    >>> import policyrisk as pr
    >>> data = pr.Trajectories([[7, 0.1], [-7, 0.5], [7, 0.7]], [1.0, 1.0], [2], [True])
    >>> print(*label_spellings(Survey.of(data), ["shop", "x"], [0]), sep="\\n")
    poly:1,dims=1/labels,shrink=1,dims=0
    poly:2,dims=1/labels,shrink=1,dims=0
    tiles:10,dims=1/labels,shrink=1,dims=0
    >>> data = pr.Trajectories([[7, 0.1], [8, 0.5], [7, 0.7]], [1.0, 1.0], [2], [True])
    >>> print(label_spellings(Survey.of(data), ["shop", "x"], [0])[-1])
    tiles:2x5,dims=0+1
    >>> print(*label_spellings(Survey.of(data), ["shop", "x"], []))
    <BLANKLINE>
    """
    if not labels:
        return []
    tables = tuple(labels)
    others = tuple(d for d in range(len(names)) if d not in tables)
    count = sum(values.size for d in labels if (values := survey.values[d]) is not None)
    if count > MOST:
        raise InvalidInputError(
            f"labels must have at most {MOST} values together for features=auto, got {count} of "
            f"{', '.join(names[d] for d in tables)}; name the features, as in "
            f"labels,shrink=1,dims={quoted(names[tables[0]])}"
        )
    if not others:
        found = [Spelling("labels", shrink=visits, dims=tables) for visits in (0.0, 1.0)]
        sizes = tuple(tiles_of_labels(survey, tables).values())
        if len(tables) > 1 and prod(sizes) <= CROSSED:
            found.append(Spelling("tiles", sizes, dims=tables))
        return found
    smooth = [Spelling("poly", (degree,), dims=others) for degree in (1, 2)]
    if len(others) <= 3:
        side = (10, 10, 4)[len(others) - 1]
        smooth.append(Spelling("tiles", (side,) * len(others), dims=others))
    found = [replace(each, others=(Spelling("labels", shrink=1.0, dims=tables),)) for each in smooth]
    values = survey.values[labels[0]]
    gaps = values is None or np.ptp(values) != values.size - 1
    if len(labels) == 1 and 2 <= count <= CROSSED and not gaps and len(others) <= 2:
        side = 5 if len(others) == 1 else 3
        found.append(Spelling("tiles", (count, *[side] * len(others)), dims=tables + others))
    return found


def tiles_of_labels(survey: Survey, labels: Sequence[int]) -> dict[int, int]:
    """How many tiles leave every value of a label one of its own, for each label."""
    return {d: int(survey.high[d] - survey.low[d]) + 1 for d in labels}


def _quadratics(states: Floats) -> Floats:
    """1, u_0, u_0², u_1, u_1², … with u the standardised coordinates, of shape (n, 1 + 2 dim)."""
    spread = states.std(axis=0)
    u = (states - states.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    powers = np.stack([u, u**2], axis=2).reshape(len(u), -1)
    return np.hstack([np.ones((len(u), 1)), powers])


def _predictions(code: Ints, y: Floats, m: int) -> list[Floats]:
    """The table's prediction at each of m values, and the neighbours', each of shape (m,)."""
    n: Floats = np.bincount(code, minlength=m).astype(np.float64)
    total = np.asarray(np.bincount(code, y, m), dtype=np.float64)
    found: list[Floats] = [total / (n + PRIOR)]
    for h in _REACH:
        u = np.arange(-h, h + 1)
        kernel = (1.0 - np.abs(u) / (h + 1)) * (u != 0)

        def around(values: Floats, power: int, kernel: Floats = kernel, u: Ints = u, h: int = h) -> Floats:
            """Σ_u kernel(u) u^power values[i + u] for every i."""
            summed: Floats = np.convolve(values, (kernel * u**power)[::-1])[h : h + m]
            return summed

        n0, n1, n2 = around(n, 0) + PRIOR, around(n, 1), around(n, 2) + PRIOR
        y0, y1 = around(total, 0), around(total, 1)
        found.append(y0 / n0)
        if h > 1:
            found.append((n2 * y0 - n1 * y1) / (n0 * n2 - n1**2))
    return found
