"""The request of an evaluation: a frozen record, from which the command's options are derived.

A new option is one field here (and, for Python, the parameter of that name of
:func:`policyrisk.evaluate`). A field is an option of the command where it has metadata: the panel of the
help, the range, and where the option is called or typed otherwise than the field, how. The help text is that
of the field in the docstring. The arguments are checked here as well, each error saying which one is wrong.
Heavy imports happen where arguments are checked, so that ``--help`` is quick.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from policyrisk.errors import InvalidInputError

if TYPE_CHECKING:
    from policyrisk.data import Source, TimeLimit
    from policyrisk.data.files import PathOrPaths
    from policyrisk.features.spelling import Spelling
    from policyrisk.risk import VarianceMethod

AUTO = "auto"
_OPTION: dict[str, Any] = {"panel": None}
_ESTIMATOR = {"panel": "Estimator"}
COLUMNS = "Columns of the data"
_TAIL, _LOSS = 0.05, 0.0  # the quantile and the line of a loss where nothing was asked for
_TAILS = (_TAIL, 0.5, 0.95)  # quantiles where a loss alone was asked for


@contextmanager
def naming_arguments(name: str | None = None) -> Iterator[None]:
    """Let an error say which argument is wrong, this one or that which its text begins with.

    The command line has other names for them.
    """
    try:
        yield
    except InvalidInputError as error:
        error.argument = error.argument or name or str(error).split()[0]
        raise


@dataclass(frozen=True, eq=False)
class EvaluationRequest:
    """The parameters of :func:`policyrisk.evaluate`; the texts are those of the command's help.

    :meth:`checked` settles what needs no data: ``lam``, a ``seed`` that is a number, the quantiles in order
    (where a loss alone was asked for, some), bounds of the coordinates.

    Parameters
    ----------
    source
        A path or several, a data frame, Trajectories, or a re-iterable of them.
    discount
        Discount, above 0.
    features
        auto, or one of tiles:20x20 (,tilings=4), rbf:7x7 (,width=0.2), fourier:3 (,total=4), poly:2, tabular
        (tabular:30), labels (,shrink=3), sb3:model.zip (the last hidden layer of a Stable-Baselines3 model's
        value network; ,normalisation=stats.npz), module:name of a function of states (n, dim), here or
        installed. One number is for all coordinates: tiles:10. Each may be followed by ,dims=x+y for the
        coordinates it looks at, by name or number from 0, a name such as "speed m/s" in quotes; some have a
        slash between: tiles:10,dims=x/labels,dims=city. Last may stand ,second= with the features of the
        second moment: poly:1,second=poly:2. auto mixes those that held-out episodes ask for.
    target
        Another policy than the recorded one, from a log with actions: module:name of a function from states
        (n, dim) to probabilities (n, actions) or to actions (n,), numbers or names, or of an array (states,
        actions) of probabilities; the current folder is looked in too. Or the policy.npz that improve wrote.
        Or sb3:model.zip, a file of Stable-Baselines3: the action that it holds best, or with ,stochastic
        after it its probabilities.
    lam
        Trace parameter λ, 0.9 unless given, and 0 with --target.
    ridge
        Added to the equations' diagonal.
    variance
        Estimate the variance itself, not the second moment less the squared mean.
    nonnegative
        Demand V >= 0 at all visited states.
    box
        auto for the data's own extent, or low:high of each coordinate, as in 0:1,-2:2.
    level
        The intervals' level.
    quantiles
        Quantiles of the return, as in 0.05,0.5,0.95, each with the mean of the worst, or none; with --target
        those of the target. Where features are auto and nothing is asked for, the 5 % quantile, and the
        chance of a return below 0.
    loss_below
        The line of a loss: estimate the chance of a return below it.
    seed
        The seed of everything random, else fresh.
    name
        The policy's name, else that of --out.
    names
        Those of the coordinates.
    labels
        A column of the state whose numbers are names, as all text is; may be given several times.
    time_limit
        Treat the time limit as the end of an episode, and add the time left to the state: end, or the limit
        in steps.
    cluster
        Column of what episodes share, such as a day, a customer or a training seed, or blocks:50 for blocks
        of 50 consecutive episodes: clusters, and not episodes, are then taken to be independent.
    checkpoint
        The file that keeps the fit's sums while it runs.
    resume
        Go on with the same evaluation where it was killed or stopped.
    on_cluster
        Whether Ray's workers read the data.
    say
        Called with the table that features were chosen from.
    columns
        The reader's options.
    """

    source: PathOrPaths | Source | Any
    discount: float = field(default=1.0, metadata={**_ESTIMATOR, "min": 0, "max": 1})
    features: str = field(default=AUTO, metadata=_ESTIMATOR)
    target: Any = field(default=None, metadata=_ESTIMATOR)
    lam: float | None = field(default=None, metadata={**_ESTIMATOR, "min": 0, "max": 1})
    ridge: float = field(default=0.0, metadata={**_ESTIMATOR, "min": 0})
    variance: VarianceMethod | None = field(
        default=None, metadata={**_ESTIMATOR, "option": "--direct", "type": "bool"}
    )
    nonnegative: bool = field(default=False, metadata=_ESTIMATOR)
    box: str | Sequence[tuple[float, float]] = field(default=AUTO, metadata=_ESTIMATOR)
    level: float = field(default=0.95, metadata=_OPTION)
    quantiles: Sequence[float] | None = field(default=None, metadata=_OPTION)
    loss_below: float | None = field(default=None, metadata=_OPTION)
    seed: Any = field(default=None, metadata={**_OPTION, "type": "int | None", "min": 0})
    name: str | None = field(default=None, metadata=_OPTION)
    names: Sequence[str] | None = None
    labels: Sequence[str] = field(
        default=(), metadata={"panel": COLUMNS, "option": "--label", "type": "list[str] | None"}
    )
    time_limit: TimeLimit | None = field(default=None, metadata=_OPTION)
    cluster: Any = field(default=None, metadata={"panel": COLUMNS, "type": "str | None"})
    checkpoint: str | os.PathLike[str] | None = None
    resume: bool = field(default=False, metadata=_OPTION)
    on_cluster: bool = False
    say: Callable[[str], object] | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def spelling(self) -> Spelling | None:
        """What ``features`` spells; None for "auto"."""
        from policyrisk.features.spelling import Spelling

        if not isinstance(self.features, str):
            raise InvalidInputError(
                'features must be "auto" or a text such as "tiles:20x20", got '
                f"{type(self.features).__name__}; name a function of your own as module:name, or use "
                "Evaluation.of(LSTD(features).fit(data), data)"
            )
        if self.features == AUTO:
            return None
        spelling = Spelling.parse(self.features)
        spelling.check_functions()
        return spelling

    @property
    def plain(self) -> bool:
        """Whether it is the default for the recorded policy, whose answer has tails without being asked."""
        return self.spelling is None and self.target is None

    @property
    def nonnegative_at(self) -> Literal["visited"] | None:
        """Where V ≥ 0 is demanded."""
        return "visited" if self.nonnegative else None

    @property
    def settings(self) -> dict[str, Any]:
        """The request in plain values, for notes and checkpoints."""
        asked: dict[str, Any] = {} if self.time_limit is None else {"time_limit": self.time_limit}
        if self.cluster is not None:
            asked["cluster"] = self.cluster if isinstance(self.cluster, str) else "an array"
        if self.quantiles:
            asked |= {"quantiles": list(self.quantiles), "loss_below": self.loss_below}
        same = "features", "lam", "discount", "ridge", "nonnegative", "level", "seed"
        return {
            **{of: getattr(self, of) for of in same},
            "box": self.box if isinstance(self.box, str) else [list(ends) for ends in self.box],
            "direct": self.variance == "direct",
            "labels": list(self.labels),
            **asked,
        }

    def checked(self) -> EvaluationRequest:
        """The same with each argument checked, and settled as far as that needs no data."""
        from policyrisk._core.arrays import as_flag, as_list, as_number, check_choice
        from policyrisk.data import as_time_limit
        from policyrisk.risk import VarianceMethod
        from policyrisk.risk.estimate import as_level

        with naming_arguments():
            asked = () if self.quantiles is None else as_list(self.quantiles, "quantiles", "shares")
            quantiles = sorted({as_number(q, "quantiles", 0.0, 1.0, open_low=True) for q in asked})
            loss = None if self.loss_below is None else as_number(self.loss_below, "loss_below")
            if self.quantiles is None and loss is None and self.plain:
                quantiles, loss = [_TAIL], _LOSS
            trace = (0.9 if self.target is None else 0.0) if self.lam is None else self.lam
            settled = replace(
                self,
                lam=as_number(trace, "lam", 0.0, 1.0),
                discount=as_number(self.discount, "discount", 0.0, 1.0, open_low=True),
                ridge=as_number(self.ridge, "ridge", 0.0),
                level=as_level(self.level),
                quantiles=tuple(quantiles) or (() if loss is None else _TAILS),
                loss_below=loss,
                time_limit=None if self.time_limit is None else as_time_limit(self.time_limit),
                box=_bounds(self.box),
                labels=as_list(self.labels, "labels", "names of coordinates"),
                nonnegative=as_flag(self.nonnegative, "nonnegative"),
            )
            _ = settled.spelling  # raises where it is none
            self._check_checkpoint()
        if self.variance is not None:
            check_choice(self.variance, "variance", get_args(VarianceMethod))
        return replace(settled, seed=self._seed_number())

    def _check_checkpoint(self) -> None:
        """Raise where a run has a checkpoint to go on with and must not, or has none and must."""
        from policyrisk._core.arrays import as_flag, as_path

        if self.checkpoint is not None:
            as_path(self.checkpoint, "checkpoint")
        on_cluster, resume = as_flag(self.on_cluster, "on_cluster"), as_flag(self.resume, "resume")
        if on_cluster and (resume or self.checkpoint is not None):
            raise InvalidInputError(
                "resume and checkpoint must be left out on a cluster, got one of them; there is no "
                "checkpoint of a run on Ray to go on with"
            )
        if resume and self.checkpoint is None:
            raise InvalidInputError("resume must have a checkpoint to go on with, got none; pass checkpoint=")

    def _seed_number(self) -> int:
        """A number: that of the run that goes on, which must find it again, or a fresh one."""
        import numpy as np

        from policyrisk._core.arrays import as_count
        from policyrisk._core.random import generator
        from policyrisk.passes.checkpoint import stored_problem

        given, checkpoint = self.seed, self.checkpoint
        if given is None and self.resume and checkpoint is not None and Path(checkpoint).exists():
            settings = stored_problem(checkpoint).get("settings")
            found = settings.get("seed") if isinstance(settings, dict) else None
            return as_count(found, f"the seed in {checkpoint}", 0, 2**128)
        if given is None or isinstance(given, np.random.Generator | np.random.SeedSequence):
            return int(generator(given).integers(2**32))
        generator(given)  # raises where it is no seed
        return int(given)


def _bounds(box: object) -> str | list[tuple[float, float]]:
    """Low and high of each coordinate, or "auto"."""
    from policyrisk._core.arrays import as_floats

    if isinstance(box, str) and box == AUTO:
        return AUTO
    bounds = [(low, high) for low, high in as_floats(box, "box", (None, 2)).tolist()]
    for low, high in bounds:
        if low >= high:
            raise InvalidInputError(
                f'box must go from low to high, got {low:g} to {high:g}; widen it, or pass "auto"'
            )
    return bounds
