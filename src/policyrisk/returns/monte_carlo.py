"""Monte Carlo estimation: simulate, and take sample moments of the return.

From each state x, K episodes give returns g_k = Σ_{t<ℓ} γ^t r_t, and with them the sample mean ḡ for J(x),
the unbiased sample variance s² for V(x) and s for the standard deviation, each with its standard error (the
formulas are in :mod:`policyrisk.risk.start_sums`; that of s is that of s² divided by 2s). No features, no
bias, and the price is K episodes for each and every state: the naive map that LSTD is measured against.

Sums over returns are added up block by block and never lose digits. Column i of a *table* (7, n) is, for the
returns g_1, …, g_K seen so far from state i,

    K,   ḡ,   Σ (g_k − ḡ)²,   Σ (g_k − ḡ)³,   Σ (g_k − ḡ)⁴,   cut-off episodes,   steps

It is all one array of floats (whole numbers are exact in them up to 2⁵³) so that a block is taken in by a
single assignment: an interrupt finds a block in the table or not there, never half of it.

Cut-off episodes. One that has not ended after ``max_steps`` steps, or that the environment truncates, is
stopped. Its return so far enters the moments like any other: they are then exactly those of the return up to
the cut, whereas leaving it out would give those of the lucky episodes. Either differs from J and V, so that
cut-off episodes are counted in ``cut_off`` and a :class:`CutOffWarning` names them. (Where γ < 1 has left
less than a rounding error to come, nothing was cut off.)

Randomness. Episodes are run in blocks of a fixed size, states first to last and a state's episodes in order;
the block that begins with episode k of state i draws from the seed, i and k alone.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from policyrisk._core.arrays import (
    Floats,
    Ints,
    Seed,
    as_count,
    as_floats,
    as_number,
    as_path,
    as_states,
    check_callable,
    check_shape,
    freeze,
    name_some,
)
from policyrisk._core.devices import Device, on_gpu
from policyrisk._core.keywords import hinting
from policyrisk._core.progress import ProgressBar
from policyrisk._core.random import keys
from policyrisk._core.records import Saved, check_value, digest, record
from policyrisk._core.text import Readable, TextTable, number, percent, plural
from policyrisk.errors import CutOffWarning, DeviceError, InvalidInputError
from policyrisk.markov import MarkovChain
from policyrisk.passes.checkpoint import Checkpoint, as_resume, stored_checkpoint
from policyrisk.risk.estimate import student_interval
from policyrisk.risk.start_sums import COUNT, MEAN, add_samples, central_sums, sample_moments
from policyrisk.risk.state_estimates import as_quantity
from policyrisk.simulation.compiled import CompiledPolicy, Returns
from policyrisk.simulation.cuda import MOST, GpuEpisodes, Streams
from policyrisk.simulation.simulators import Runner, as_runner

SampledQuantity: TypeAlias = Literal["mean", "variance", "std"]

CUT_OFF, STEPS = 5, 6  # the rows after the central sums
ROWS = 7
_SHOWN = 8  # states in the table that is printed
_WORK = "monte_carlo"  # the name of its checkpoints
_ADDRESS = r" at 0x[0-9a-fA-F]+"  # of an object that prints it: differs from process to process


@record(
    states="n dim",
    mean="n",
    variance="n",
    std="n",
    mean_se="n",
    variance_se="n",
    std_se="n",
    episodes="n",
    cut_off="n",
    steps="n",
)
@dataclass(frozen=True, eq=False)
class MonteCarlo(Readable, Saved):
    """Moments of the return by simulation; row i belongs to ``states[i]``.

    Attributes
    ----------
    states
        (n, dim).
    mean, variance, std
        (n,), of the return from each state.
    mean_se, variance_se, std_se
        (n,), their standard errors.
    episodes, cut_off, steps
        (n,), how many episodes were run, how many of them were cut off, and all their steps.
    discount, max_steps
        As they were given.

    Examples
    --------
    >>> from policyrisk import MarkovChain
    >>> from policyrisk.returns import monte_carlo
    >>> print(monte_carlo(MarkovChain([[0.5]], [1.0]), None, [0], episodes=1000, seed=0))
    Monte Carlo: 1 state, 1000 episodes, 2013 steps; none cut off
    state   mean      ±  variance     ±     std      ±
    0      2.013  0.045    2.0349  0.21  1.4265  0.073
    """

    states: Floats  # (n, dim)
    mean: Floats  # (n,)
    variance: Floats  # (n,), unbiased; nan for fewer than two episodes
    std: Floats  # (n,), its root
    mean_se: Floats  # (n,), standard error of the mean
    variance_se: Floats  # (n,), of the variance, from the fourth central moment
    std_se: Floats  # (n,), of the std, by the delta method
    episodes: Ints  # (n,)
    cut_off: Ints  # (n,), episodes of these that were stopped before they ended
    steps: Ints  # (n,), simulated
    discount: float
    max_steps: int

    def __post_init__(self) -> None:
        freeze(self)

    def __len__(self) -> int:
        return len(self.states)

    @property
    def cut_off_share(self) -> Floats:
        """The share of each state's episodes that was cut off, of shape (n,)."""
        return np.asarray(self.cut_off / np.maximum(self.episodes, 1))

    def standard_error(self, of: SampledQuantity = "variance") -> Floats:
        """The standard error of a quantity, "mean", "variance" or "std", of shape (n,)."""
        of = as_quantity(of, SampledQuantity)
        return np.asarray(getattr(self, f"{of}_se"))

    def interval(self, of: SampledQuantity | None = None, level: float = 0.95) -> Floats:
        """quantity ± t · standard error with Student's t for the episodes, of shape (n, 2)."""
        of = as_quantity(of, SampledQuantity)
        error = self.standard_error(of)
        return student_interval(getattr(self, of), error, self.episodes.astype(np.float64), level)

    def _blocks(self) -> list[str | TextTable]:
        total, cut = int(self.episodes.sum()), int(self.cut_off.sum())
        lost = f"{plural(cut, 'episode')} cut off ({percent(cut / total)})" if cut else "none cut off"
        head = f"Monte Carlo: {plural(len(self), 'state')}, {plural(total, 'episode')}, "
        head += f"{plural(int(self.steps.sum()), 'step')}; {lost}"
        if self.discount != 1.0:
            head += f"; discount {self.discount:g}"
        if len(self) == 0:
            return [head]
        shown, spread = np.arange(len(self)), []
        if len(self) > _SHOWN:
            riskiest = np.argsort(np.where(np.isnan(self.std), -np.inf, self.std), kind="stable")
            shown = riskiest[::-1][:_SHOWN]
            spread = [
                f"mean from {number(self.mean.min())} to {number(self.mean.max())}, std from "
                f"{number(self.std.min())} to {number(self.std.max())}; the {_SHOWN} riskiest:"
            ]
        columns = ["state", "mean", "±", "variance", "±", "std", "±"]
        lines = [self._line(i) for i in shown.tolist()]
        return [head, *spread, TextTable([*columns, *(["cut off"] if cut else [])], lines)]

    def _line(self, i: int) -> list[str]:
        line = [", ".join(number(x) for x in self.states[i])]
        for of in get_args(SampledQuantity):
            line += [number(getattr(self, of)[i]), number(getattr(self, f"{of}_se")[i], 2)]
        return [*line, str(self.cut_off[i])] if self.cut_off.any() else line

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers and lists, for JSON."""
        return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in vars(self).items()}


def estimated(states: Floats, table: Floats, discount: float, max_steps: int) -> MonteCarlo:
    """What a table (7, n) says of states (n, dim); nan where there are too few episodes."""
    variance, ((of_mean, _), (_, of_variance)) = sample_moments(table)
    std, variance_se = np.sqrt(variance), np.sqrt(of_variance)
    episodes, cut_off, steps = table[[COUNT, CUT_OFF, STEPS]].astype(np.int64)
    return MonteCarlo(
        states=states,
        mean=np.where(table[COUNT] >= 1, table[MEAN], np.nan),
        variance=variance,
        std=std,
        mean_se=np.sqrt(of_mean),
        variance_se=variance_se,
        # Returns that are all alike have s = 0 without error.
        std_se=np.divide(variance_se, 2 * std, out=variance_se.copy(), where=std != 0),
        episodes=episodes,
        cut_off=cut_off,
        steps=steps,
        discount=discount,
        max_steps=max_steps,
    )


def tabulate(batch: Returns, discount: float) -> Floats:
    """The table (7, m) of k episodes from each of m states, in arrays (m, k).

    An episode that was stopped after ℓ steps counts as cut off unless the weight γ^ℓ of the reward that would
    have come next is below the 2⁻⁵³ of rounding, as in a discounted task that goes on for ever.
    """
    matters = discount ** batch.lengths.astype(np.float64) >= 2.0**-53
    cut_off, steps = np.sum(~batch.terminated & matters, axis=1), np.sum(batch.lengths, axis=1)
    return np.stack([*central_sums(batch.returns), cut_off, steps])


def merge(one: Floats, other: Floats) -> Floats:
    """The table (7, m) of two tables' episodes together; a column without episodes changes nothing."""
    table = one + other
    table[:CUT_OFF] = add_samples(one[:CUT_OFF], other[:CUT_OFF])
    return table


class Block(NamedTuple):
    """Episodes first, …, first + episodes − 1 from each state of ``rows``."""

    rows: slice
    first: int
    episodes: int

    def seed(self, key: Key) -> np.random.SeedSequence:
        """The block's own randomness."""
        return np.random.SeedSequence(key, spawn_key=(self.rows.start, self.first))


Key: TypeAlias = "tuple[int, int]"
Progress: TypeAlias = "Callable[[int, int], None] | None"
RunBlocks: TypeAlias = "Callable[[Runner, Sequence[Block], Key], Iterator[Floats]]"  # (7, states) of each


def run_here(runner: Runner, blocks: Sequence[Block], key: Key) -> Iterator[Floats]:
    """The tables of the blocks, one after the other, in this process."""
    for block in blocks:
        yield tabulate(runner.run(block.rows, block.episodes, block.seed(key)), runner.discount)


def run_on_gpu(runner: Runner, blocks: Sequence[Block], key: Key) -> Iterator[Floats]:
    """The same tables, the episodes of many blocks at a time on a GPU."""
    simulator, policy = runner.simulator, runner.policy
    if not (hasattr(simulator, "compiled") and isinstance(policy, CompiledPolicy)):
        raise DeviceError(
            "a GPU runs compiled domains and policies, such as Pinball and GreedyPolicy, got "
            f'{type(simulator).__name__} and {type(policy).__name__}; pass device="cpu"'
        )
    starts = runner.states
    if hasattr(simulator, "as_starts"):
        starts = simulator.as_starts(starts, "states")
    gpu = GpuEpisodes(simulator.compiled(), policy.compiled(), starts, runner.max_steps, runner.discount)
    at_once = max(MOST // runner.most, 1)
    for first in range(0, len(blocks), at_once):
        some = blocks[first : first + at_once]
        sizes = np.array([(block.rows.stop - block.rows.start) * block.episodes for block in some])
        begins = np.cumsum(sizes) - sizes
        streams = Streams(
            block=np.repeat(np.arange(len(some)), sizes),
            keys=np.array([keys(block.seed(key)) for block in some], np.uint64),
            first=begins,
        )
        which = np.concatenate([np.repeat(np.arange(b.rows.start, b.rows.stop), b.episodes) for b in some])
        out = gpu.returns(which, streams)
        for block, begin, size in zip(some, begins.tolist(), sizes.tolist(), strict=True):
            own = Returns._make(column[begin : begin + size] for column in out)
            yield tabulate(runner.checked(own, block.rows, block.episodes), runner.discount)


@hinting
def monte_carlo(
    simulator: object,
    policy: object,
    states: object,
    episodes: int = 500,
    seed: Seed = None,
    *,
    discount: float = 1.0,
    max_steps: int = 10_000,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = False,
    progress: Progress = None,
    device: Device = "cpu",
    run: RunBlocks = run_here,
) -> MonteCarlo:
    """Sample moments of the return from each of ``states``, by ``episodes`` episodes each.

    Parameters
    ----------
    simulator
        A domain such as :class:`policyrisk.domains.Pinball`, a :class:`policyrisk.MarkovChain`, or a
        Gymnasium environment that ``reset(options={"state": states[i]})`` puts into a state.
    policy
        For a domain one of ours, run compiled on all cores, or a function from states to actions; None for a
        chain. For a Gymnasium environment a function from an observation to an action, for a vector
        environment from all observations to all actions, or an object with ``predict``, as
        Stable-Baselines3's models have.
    states
        (n, dim); indices (n,) for a chain.
    episodes
        How many from each state.
    seed
        Of everything random.
    discount
        γ.
    max_steps
        Cuts off longer episodes.
    checkpoint
        A file that is rewritten every few seconds. Ctrl-C saves as well, and says so.
    resume
        Go on from the checkpoint to the result of an undisturbed run, bit for bit; where there is no file
        yet, begin.
    progress
        Called as ``progress(done, total)`` with numbers of episodes; without it, a bar appears on a terminal
        when the work takes more than a few seconds.
    device
        "cuda" runs a compiled domain and policy on a GPU, with the same random streams
        (:mod:`policyrisk.simulation.cuda`); "auto" where there is one.
    run
        Runs the blocks of episodes: :mod:`policyrisk.distributed` has one of its own.

    Returns
    -------
    MonteCarlo
        Mean, variance and std at each state, with standard errors and the number of cut-off episodes.

    Examples
    --------
    >>> from policyrisk.domains import walk
    >>> chain = walk(30)
    >>> result = monte_carlo(chain, None, states=[0, 29], episodes=2000, seed=0)
    >>> z = (result.std - chain.std()[[0, 29]]) / result.std_se
    >>> bool((abs(z) < 3).all()), result.cut_off.tolist()
    (True, [0, 0])
    """
    rows = as_states(states)
    count = as_count(episodes, "episodes", 1)
    most = as_count(max_steps, "max_steps", 1)
    gamma = as_number(discount, "discount", 0.0, 1.0, open_low=True)
    check_callable(run, "run", "what runs blocks, such as policyrisk.returns.run_here")
    if progress is not None:
        check_callable(progress, "progress", "a function of the episodes done and of all")
    going_on = as_resume(resume, checkpoint)
    runner = as_runner(simulator, policy, states, gamma, most)
    if on_gpu(device, "numba_cuda"):
        run = run_on_gpu
    begun = _begun(checkpoint, going_on)
    high, low = keys(seed)
    key = begun["seed"] if begun and seed is None else (int(high), int(low))
    problem = {
        "simulator": _identity(simulator),
        "policy": _identity(policy),
        "states": f"{plural(len(rows), 'state')} of dimension {rows.shape[1]}{_digest([rows])}",
        "episodes": count,
        "discount": gamma,
        "max_steps": most,
        "block": runner.most,
        "seed": key,
    }
    file = Checkpoint(_WORK, checkpoint, problem)
    table = np.zeros((ROWS, len(rows)))
    if begun:
        table = as_floats(file.load(Floats), f"the table in {checkpoint}", table.shape)
    _simulate(run, runner, table, count, key, file, progress)
    _warn_of_cut_offs(table, most, stacklevel=3 if run in (run_here, run_on_gpu) else 4)
    return estimated(rows.copy(), table, gamma, most)


def _begun(checkpoint: str | os.PathLike[str] | None, resume: bool) -> dict[str, Any] | None:
    """The problem of the run that goes on, None for one that begins.

    Without ``resume`` one begins, but not over the only trace of an unfinished one or over another file.
    """
    if checkpoint is None or not as_path(checkpoint, "checkpoint").exists():
        return None
    try:
        problem, table = stored_checkpoint(checkpoint, _WORK, Floats)
        check_shape(table, "the table", (ROWS, None))
        episodes = as_count(problem.get("episodes"), "episodes", 1)
        check_value(problem.get("seed"), tuple[int, int], "seed")
    except ValueError as error:
        raise InvalidInputError(
            f"checkpoint must be a new file or one that monte_carlo wrote, got {checkpoint} ({error}); "
            "choose another path"
        ) from error
    done, total = int(table[COUNT].sum()), episodes * table.shape[1]
    if not resume and done < total:
        raise InvalidInputError(
            f"checkpoint must not replace an unfinished run, got {checkpoint} with {done} of {total} "
            "episodes; pass resume=True to go on with it, or delete it"
        )
    return problem if resume else None


def _blocks(n: int, episodes: int, runner: Runner) -> Iterator[Block]:
    """All blocks of a run, in order."""
    at_once = min(episodes, runner.most)
    wide = max(runner.most // at_once, 1) if runner.together else 1
    for start in range(0, n, wide):
        rows = slice(start, min(start + wide, n))
        for first in range(0, episodes, at_once):
            yield Block(rows, first, min(at_once, episodes - first))


def _simulate(
    run: RunBlocks,
    runner: Runner,
    table: Floats,
    episodes: int,
    key: Key,
    file: Checkpoint,
    progress: Progress,
) -> None:
    """Add the blocks that are not in the table (7, n) yet."""
    n = table.shape[1]
    total = n * episodes
    blocks = list(_blocks(n, episodes, runner))
    todo = [block for block in blocks if table[COUNT, block.rows.start] <= block.first]
    with file.saved_on_interrupt(lambda: table, lambda: f"{int(table[COUNT].sum())} of {total} episodes"):
        # At once, so that a folder that cannot be written is found out now, and a drawn key is kept.
        file.save(table)
        with ProgressBar("Monte Carlo", len(blocks)) as bar:

            def tell() -> None:
                if progress is None:
                    bar.advance()
                else:
                    progress(int(table[COUNT].sum()), total)

            for _ in range(len(blocks) - len(todo)):
                tell()
            for block, batch in zip(todo, run(runner, todo, key), strict=True):
                # One assignment: an interrupt comes before it or after it.
                table[:, block.rows] = merge(table[:, block.rows], batch)
                file.save_if_due(lambda: table)
                tell()
        file.save(table)


def _warn_of_cut_offs(table: Floats, max_steps: int, stacklevel: int) -> None:
    cut, total = int(table[CUT_OFF].sum()), int(table[COUNT].sum())
    if cut:
        warnings.warn(
            f"{cut} of {plural(total, 'episode')} ({percent(cut / total)}) were cut off, from states number "
            f"{name_some(np.flatnonzero(table[CUT_OFF]))}: the moments there are those of the return up to "
            f"the cut; raise max_steps={max_steps} (or the environment's own limit), or see `cut_off`",
            CutOffWarning,
            stacklevel=stacklevel,
        )


def _identity(thing: object) -> str:
    """A simulator or policy as text, to tell one problem from another: a run goes on from its own alone.

    Domains, compiled policies and chains are told apart by their contents; other objects by what they print,
    and Python functions by their names, which is all that a file can know of them.
    """
    text = re.sub(_ADDRESS, "", repr(thing))
    spec = getattr(thing, "spec", None)
    if spec is not None:
        settings = (getattr(spec, name, None) for name in ("id", "kwargs", "max_episode_steps"))
        text += " ".join(["", *(re.sub(_ADDRESS, "", repr(value)) for value in settings)])
    if isinstance(thing, MarkovChain):
        branches = thing.branches
        text += _digest([branches.indptr, branches.successor, branches.probability, branches.reward])
    elif hasattr(thing, "compiled"):
        text += _digest(thing.compiled())
    return text


def _digest(parts: Iterable[Any]) -> str:
    """Arrays as text."""
    return f" #{digest({str(k): np.asarray(part) for k, part in enumerate(parts)}).hex()[:16]}"
