"""The frontier of mean and standard deviation: the best policy for every price of risk."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from policyrisk._core.arrays import Seed, as_count, as_floats, check_callable, readonly
from policyrisk._core.devices import Device
from policyrisk._core.progress import ProgressBar
from policyrisk._core.random import keys
from policyrisk._core.text import Readable, TextTable, number
from policyrisk.control.actor_critic import ActorCritic
from policyrisk.control.trials import GroupedReturns, Starts, player
from policyrisk.criteria import MeanMinusStd
from policyrisk.errors import InvalidInputError
from policyrisk.markov import MDP

_FRESH = 10  # times the episodes of an iteration: on which policies of a simulator are compared


@dataclass(frozen=True, eq=False)
class FrontierPoint:
    """The best policy that was found for one c."""

    c: float
    mean: float
    variance: float
    value: float  # of the criterion with this c
    policy: Any  # (n, actions) of a decision process; of a simulator, the policy itself
    mean_error: float = 0.0  # standard errors; 0 where all is exact
    std_error: float = 0.0
    within: float | None = None  # the mean of the stds within groups of starts, where the search has groups

    @property
    def std(self) -> float:
        """√variance, or what is within groups of starts."""
        return math.sqrt(max(self.variance, 0.0)) if self.within is None else self.within


@dataclass(frozen=True)
class Frontier(Readable):
    """The best policies, from the boldest to the most careful; ``print(frontier)`` shows them."""

    points: tuple[FrontierPoint, ...]  # in the order of c
    given: tuple[float, float] | None  # mean and std of the given policy

    def _blocks(self) -> list[str | TextTable]:
        rows = [
            [f"{point.c:g}", *(number(value) for value in (point.mean, point.std, point.value))]
            for point in self.points
        ]
        if self.given is not None:
            rows.append(["given policy", number(self.given[0]), number(self.given[1]), ""])
        return [TextTable(["c", "mean", "std", "value"], rows)]


def frontier(
    model: Any,
    start: npt.ArrayLike = 0,
    c: Sequence[float] = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0),
    policy: npt.ArrayLike | None = None,
    *,
    criterion: Callable[[float], Any] = MeanMinusStd,
    features: object = None,
    seed: Seed = 0,
    restarts: int = 1,
    search: ActorCritic | None = None,
    starts: Starts | None = None,
    max_steps: int = 10_000,
    device: Device = "cpu",
) -> Frontier:
    """The best policies by mean − c·std, for each c, of a decision process or of a simulator.

    For an :class:`MDP` the first c is improved (:meth:`MDP.improve`), the others from what was found before;
    then every c takes the best of all policies found. For a simulator the search is fitted for each c, each
    from the policy of the one before, up the prices and down again; all policies are then compared, with its
    own among them, on the same fresh episodes. :func:`policyrisk.plotting.plot_frontier` draws the record.

    Parameters
    ----------
    model
        An :class:`MDP`, or a simulator as of :meth:`ActorCritic.fit`.
    start
        Of an MDP: a state's index, or a distribution of shape (n,).
    c
        The prices of risk.
    policy
        Of an MDP: where to start.
    criterion
        A function of c; :class:`~policyrisk.criteria.MeanMinusVariance` as well.
    features, restarts
        Of an MDP: as of :meth:`MDP.improve`.
    seed
        Of everything random.
    search
        Of a simulator: the :class:`ActorCritic`, whose policy is the first.
    starts, max_steps, device
        Of a simulator: as of :meth:`ActorCritic.fit`.

    Returns
    -------
    Frontier
        Mean, std and policy for each c; ``print`` shows them as a table.

    Examples
    --------
    Leaving pays 3; staying pays 5 in the mean, and nobody knows how long:

    >>> mdp = MDP([[[0.8]], [[0.0]]], [[1.0, 3.0]])
    >>> print(frontier(mdp, c=[0.0, 1.0], policy=[[0.5, 0.5]]))
    c               mean     std  value
    0                  5  4.4721      5
    1                  3       0      3
    given policy  3.3333   1.291
    """
    check_callable(criterion, "criterion", "a class of criteria such as MeanMinusStd")
    prices = np.unique(as_floats(c, "c", (None,))).tolist()
    if not prices:
        raise InvalidInputError("c must hold at least one number, got none; pass for example [0, 0.5, 1]")
    if isinstance(model, MDP):
        found: list[FrontierPoint] = []
        with ProgressBar("frontier", len(prices)) as bar:
            for price in prices:
                near = found[-1].policy if found else policy
                better = model.improve(
                    criterion(price), start, near, seed, features=features, restarts=restarts
                )
                one = better.mean, better.variance, better.value, readonly(better.policy)
                found.append(FrontierPoint(price, *one))
                bar.advance()
        given = None
        if policy is not None:
            known = model.gradient(policy, start)
            given = known.mean, math.sqrt(max(known.variance, 0.0))
        points = []
        for price in prices:
            values = [criterion(price).slopes(point.mean, point.variance)[0] for point in found]
            points.append(replace(found[int(np.argmax(values))], c=price, value=max(values)))
        return Frontier(tuple(points), given)
    if search is None or policy is not None or features is not None:
        raise InvalidInputError(
            f"search must be an ActorCritic for a simulator such as {type(model).__name__}, and policy and "
            f"features None, got {search!r}; its own policy is where it begins"
        )
    limit = as_count(max_steps, "max_steps", 1)
    return _simulated(model, prices, criterion, search, seed, starts, limit, device)


def _simulated(
    simulator: Any,
    prices: list[float],
    criterion: Callable[[float], Any],
    search: ActorCritic,
    seed: Seed,
    starts: Starts | None,
    max_steps: int,
    device: Device,
) -> Frontier:
    """Each c from the policy of the one before, all on the same episodes in the end.

    Up the prices and down again: bold policies are then improved for as long as careful ones.
    """
    root = np.random.SeedSequence([int(word) for word in keys(seed)])
    path = [*prices, *prices[-2::-1]]
    fresh, *seeds = root.spawn(len(path) + 1)
    play = player(simulator, _FRESH * search.episodes, starts, max_steps, device)

    def returns_of(policy: Any) -> GroupedReturns:
        data = play(policy, fresh)
        return GroupedReturns.of(data.returns(search.critic.discount), data.starts(), search.groups)

    found: list[tuple[Any, GroupedReturns]] = []
    policy: Any = search.policy
    for price, own in zip(path, seeds, strict=True):
        near = replace(search, policy=policy, criterion=criterion(price))
        policy = near.fit(simulator, own, starts=starts, max_steps=max_steps, device=device).policy
        found.append((policy, returns_of(policy)))
    points = []
    for price in prices:
        values = [returns.judged(criterion(price)).value for _, returns in found]
        best, returns = found[int(np.argmax(values))]
        mean, std = returns.mean.estimate(), returns.std.estimate()
        variance = float(returns.count @ returns.variances / len(returns.returns))
        within = None if search.groups is None else float(std)
        errors = mean.standard_error, std.standard_error
        points.append(FrontierPoint(price, float(mean), variance, max(values), best, *errors, within))
    begin = returns_of(search.policy)
    return Frontier(tuple(points), (begin.mean.value, begin.std.value))
