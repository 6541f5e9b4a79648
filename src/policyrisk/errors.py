"""Exceptions and warnings of policyrisk.

Every message names the argument, the rule it broke, the value it got and the way out, so that it can
be acted on without reading the source. All exceptions derive from :class:`PolicyRiskError`; those
about a value the caller passed are also ``ValueError``.

Assumptions are numbered as in Tamar, Di Castro and Mannor (2013): 1 proper policy, 3 independent
features, 4 all states visited, 11 feasible constraint.
"""

__all__ = [
    "BadRowError",
    "CancellationWarning",
    "CutOffWarning",
    "DeviceError",
    "EmptyDataError",
    "FewEpisodesWarning",
    "GivenUpWarning",
    "ImproperPolicyError",
    "InfeasibleConstraintError",
    "InvalidInputError",
    "MismatchError",
    "MissingPackageError",
    "MissingValuesWarning",
    "NegativeVarianceWarning",
    "NoDistributionError",
    "NoErrorBarsWarning",
    "NotUniqueWarning",
    "PolicyRiskError",
    "PolicyRiskWarning",
    "RepeatedFileWarning",
    "SingularSystemError",
    "SkippedShardsWarning",
    "SolverError",
    "UncoveredError",
    "UncoveredWarning",
    "UnrecordedEndWarning",
    "UnvisitedError",
    "WithdrawnWarning",
    "WorkerError",
]


# The way out where no episode ended and none of the return is discounted.
ALL_CUT_OFF = (
    'take their time limit for the end (time_limit="end" of evaluate and read, --time-limit end, or '
    "data.with_time_limit()), use a discount below 1 (discount=0.99, --discount 0.99), or gather episodes "
    "that end"
)


class PolicyRiskError(Exception):
    """Base of every exception that policyrisk raises on purpose."""


class InvalidInputError(PolicyRiskError, ValueError):
    """An argument has the wrong shape, type or value."""

    argument: str | None = None  # its name, where `evaluate` knows it: the command line names the option


class MismatchError(InvalidInputError):
    """Two things that must belong together (equations, features, discounts) do not."""


class NoDistributionError(InvalidInputError):
    """A quantile or the mean of the worst returns was asked of an estimate of mean and variance alone."""


class BadRowError(InvalidInputError):
    """A row of a file breaks the layout; the message names both."""


class EmptyDataError(InvalidInputError):
    """A file, folder or dataset holds no episode."""


class ImproperPolicyError(InvalidInputError):
    """Assumption 1 fails: the end cannot be reached from some states, so sums diverge."""


def check_proper(discount: float, terminated: int, episodes: int, remedy: str = ALL_CUT_OFF) -> None:
    """Raise where no episode terminated, though without a discount one must."""
    if discount == 1.0 and not terminated:
        raise ImproperPolicyError(
            f"with discount=1 some episode must terminate (Assumption 1: proper policy), got {episodes} "
            f"episodes, all cut off; {remedy}"
        )


class SingularSystemError(PolicyRiskError):
    """Assumption 3 fails in a way that changes the estimates: the equations have no unique answer."""


class UnvisitedError(PolicyRiskError):
    """Assumption 4 fails: an equation refers to a state that was never visited itself."""


class UncoveredError(PolicyRiskError):
    """The target policy takes actions that nobody logged, too often for the data to say anything about it."""


class InfeasibleConstraintError(PolicyRiskError):
    """Assumption 11 fails: no weights make the variance non-negative at all the states asked for.

    Or, of a criterion with a bound: no policy was found that keeps to it.
    """


class SolverError(PolicyRiskError):
    """An iterative or pivoting solver stopped before its residual was small enough."""


class MissingPackageError(PolicyRiskError, ImportError):
    """What was asked for needs a package that is not installed."""


class DeviceError(PolicyRiskError):
    """A GPU was asked for where there is none, or for work that it cannot do."""


class WorkerError(PolicyRiskError):
    """The workers of a cluster died again and again over the same piece of work."""


class PolicyRiskWarning(UserWarning):
    """Base of every warning that policyrisk gives."""


class NegativeVarianceWarning(PolicyRiskWarning):
    """Some estimated variances are negative; they are returned as they are."""


class CancellationWarning(PolicyRiskWarning):
    """M - J^2 lost most of its digits, since the mean is huge beside the variance."""


class FewEpisodesWarning(PolicyRiskWarning):
    """Few episodes stand behind some intervals, which then cover less often than they say."""


class NotUniqueWarning(PolicyRiskWarning):
    """The constrained equations may have more than one solution."""


class NoErrorBarsWarning(PolicyRiskWarning):
    """There are too many features for error bars."""


class CutOffWarning(PolicyRiskWarning):
    """Some simulated episodes were cut off; the moments are those of the return up to the cut."""


class GivenUpWarning(PolicyRiskWarning):
    """Cut-off episodes gave up so much that estimates which rest on it are nan, or, of TD, wrong."""


class UncoveredWarning(PolicyRiskWarning):
    """The target policy takes actions that nobody logged; it is estimated without them."""


class MissingValuesWarning(PolicyRiskWarning):
    """Missing values were filled in, or episodes left out because of them, as was asked for."""


class RepeatedFileWarning(PolicyRiskWarning):
    """A folder has links to files that are also in it; they were left out, since nothing counts twice."""


class UnrecordedEndWarning(PolicyRiskWarning):
    """Cut-off episodes whose end state was not recorded gave up their last transition."""


class WithdrawnWarning(PolicyRiskWarning):
    """The log cannot tell what a target policy earns: its evaluation has no intervals and no rank."""


class SkippedShardsWarning(PolicyRiskWarning):
    """Some shards could not be read; the estimate rests on the others."""
