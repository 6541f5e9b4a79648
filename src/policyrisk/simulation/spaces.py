"""Batches of observations and of actions, in the form of Gymnasium's vector environments, and policies.

A batch of n observations has n in front of every array: (n, …) of a Box, (n,) of a Discrete, a dict or tuple
of such arrays for a Dict or Tuple space. A batch of n actions is the same. Of observations,

    project   is a function of a batch that picks the states' coordinates, of shape (n, dim) or (n,)
    policy    is a function of a batch that answers with a batch of actions. An object with
              ``predict(observations, deterministic=True)``, which returns (actions, state), is one too: that
              is Stable-Baselines3's. Its state must be None: a policy must depend on the observation alone.

Policies that tell the probabilities of their actions 0, …, A − 1 let episodes record propensities:

    a policy that answers with probabilities (n, A)     the actions are drawn here: one draw of an episode's
                                                        own stream at each of its steps
    an object that answers with actions, or is          asked for π(a|x) of the action that it took
    compiled, and has probabilities(observations),
    (n, A)

The first is also what ``pr.LSTDQ`` takes for a target: the same function can be run and judged.

Without a project, the parts of a Dict stand side by side, in the space's order, and arrays are flattened into
coordinates. Images are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
from numba import njit

from policyrisk._core.arrays import Floats, Ints, as_distributions, as_flag, is_masked, shown
from policyrisk._core.random import uniform
from policyrisk.data import Trajectories
from policyrisk.errors import InvalidInputError
from policyrisk.simulation.compiled import Words

if TYPE_CHECKING:
    import gymnasium as gym

Choose: TypeAlias = "Callable[[Any], Any]"
_ROWS = 1 << 16  # states whose probabilities are asked for at a time


def stack(observations: Sequence[Any], space: gym.Space[Any]) -> Any:
    """Single observations of a space as one batch, in Gymnasium's form, copied."""
    from gymnasium.vector.utils import concatenate, create_empty_array

    empty: Any = create_empty_array(space, len(observations))
    try:
        if any(map(is_masked, observations)):
            raise ValueError("some entries are masked")
        return concatenate(space, observations, empty)
    except Exception as error:
        raise InvalidInputError(
            f"env's observations must be of its observation_space, {shown(space)}, got "
            f"{shown(observations[0])} ({str(error)[:200]}); correct one of the two"
        ) from error


def as_policy(policy: object, deterministic: bool = True) -> Choose:
    """A function from a batch of observations to a batch of actions.

    Of an object with ``predict`` it asks for the action that it holds best, or, not ``deterministic``, for
    one drawn from its distribution: of Stable-Baselines3's models with Discrete actions for the
    probabilities, so that the draw is ours.
    """
    deterministic = as_flag(deterministic, "deterministic")
    predict = getattr(policy, "predict", None)
    if callable(predict):
        tell = None if deterministic else _telling(policy)
        return tell or (lambda observations: _predicted(predict(observations, deterministic=deterministic)))
    if not deterministic:
        raise InvalidInputError(
            "deterministic must be left out for a policy that is a function, got False; let it draw its "
            "actions, or answer with their probabilities (n, actions)"
        )
    if callable(policy):
        return policy
    raise InvalidInputError(
        "policy must be a function from a batch of observations to a batch of actions, or an object with "
        f"predict(observations, deterministic=True), got {type(policy).__name__}; pass for example "
        "lambda observations: numpy.zeros(len(observations), int)"
    )


def _telling(model: Any) -> Choose | None:
    """The probabilities (n, actions) of a Stable-Baselines3 model's Discrete actions; None of others."""
    network = getattr(model, "policy", None)
    distribution_of = getattr(network, "get_distribution", None)
    if network is None or distribution_of is None or not hasattr(getattr(model, "action_space", None), "n"):
        return None

    def tell(observations: Any) -> Any:
        import torch

        network.set_training_mode(False)
        with torch.no_grad():
            found = distribution_of(network.obs_to_tensor(observations)[0]).distribution.probs
        return found.double().cpu().numpy()

    return tell


def ask(choose: Choose, observations: Any, batch: bool = True) -> Any:
    """choose(observations), of a batch, or of one observation; a policy for the other kind is an error.

    >>> ask(lambda x: int(x[0] > 0), np.ones((5, 2)))
    Traceback (most recent call last):
    policyrisk.errors.InvalidInputError: policy must take a batch of observations, ...
    """
    try:
        return choose(observations)
    except Exception as error:
        other_kind = (lambda part: part[0]) if batch else (lambda part: np.array([part]))
        if not _answers(choose, _mapped(other_kind, observations)):
            raise  # a failure of its own
        wanted, other = "a batch of observations", "one observation"
        way_out = "lambda batch: numpy.array([policy(x) for x in batch])"
        if not batch:
            wanted, other, way_out = other, wanted, "lambda x: policy(x[None])[0]"
        raise InvalidInputError(
            f"policy must take {wanted}, here {_shapes(observations)}, got one that fails on it "
            f"({type(error).__name__}: {error}) and answers {other}; wrap it as {way_out}"
        ) from error


def _answers(choose: Choose, observations: Any) -> bool:
    try:
        choose(observations)
    except Exception:
        return False
    return True


def _mapped(function: Callable[[Any], Any], batch: Any) -> Any:
    """A function of every array of a batch, in the batch's form."""
    if isinstance(batch, dict):
        return {name: _mapped(function, part) for name, part in batch.items()}
    return tuple(_mapped(function, part) for part in batch) if isinstance(batch, tuple) else function(batch)


def _shapes(observations: Any) -> str:
    if isinstance(observations, dict):
        return ", ".join(f"{name!r} {_shapes(part)}" for name, part in observations.items())
    if isinstance(observations, tuple):
        return ", ".join(map(_shapes, observations))
    return f"of shape {np.shape(observations)}"


def _predicted(answer: object) -> Any:
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise InvalidInputError(
            f"policy.predict must return (actions, state), got {type(answer).__name__}; "
            "pass a function of observations instead"
        )
    actions, state = answer
    if state is not None:
        raise InvalidInputError(
            f"policy.predict must return None as its state, got {type(state).__name__}: the policy has a "
            "memory; pass a policy that is a function of the observation"
        )
    return actions


def decide(
    choose: Choose, observations: Any, space: gym.Space[Any], words: Words
) -> tuple[Any, Floats | None]:
    """A policy's actions for a batch of n, checked, and the probabilities that it took them with, if told.

    ``words`` (n, 2) are the states of the streams that actions are drawn from where it answers with
    probabilities; they move on.
    """
    from gymnasium import spaces

    answer = ask(choose, observations)
    if not isinstance(space, spaces.Discrete):
        return as_action_batch(answer, space, len(words)), None
    first, count = int(space.start), int(space.n)
    found = drawn_actions(answer, count, words)
    if found is not None:
        return (found[0] + first).astype(space.dtype), found[1]
    actions = as_action_batch(answer, space, len(words))
    return actions, told_propensities(choose, observations, actions - first, count)


def single_actions(batch: Any, space: gym.Space[Any], count: int) -> list[Any]:
    """The actions of a batch one by one."""
    from gymnasium.vector.utils import batch_space, iterate

    return list(batch if _has_array_actions(space) else iterate(batch_space(space, count), batch))


def as_action_batch(answer: Any, space: gym.Space[Any], count: int) -> Any:
    """The actions of a batch: an array of the space's type, checked, where the space's actions are arrays.

    >>> from gymnasium.spaces import Discrete
    >>> as_action_batch([True, False], Discrete(2), 2)
    array([1, 0])
    """
    from gymnasium import spaces

    if not _has_array_actions(space):
        return answer
    actions = as_answer(answer)
    shape = (count, *(space.shape or ()))
    if actions.shape != shape:
        raise InvalidInputError(
            f"policy must return actions of shape {shape}, one for each of the {count} observations of its "
            f"batch, got shape {actions.shape}; a policy for one observation at a time can be wrapped as "
            "lambda batch: numpy.array([policy(x) for x in batch])"
        )
    kinds = "biuf" if isinstance(space, spaces.Box) else "biu"
    if actions.dtype.kind not in kinds:
        raise InvalidInputError(
            f"policy must return {'numbers' if 'f' in kinds else 'whole numbers'} for the action space "
            f"{space}, got {actions.dtype}; convert its answer"
        )
    if isinstance(space, spaces.Discrete):
        low, high = int(space.start), int(space.start + space.n) - 1
        wrong = np.flatnonzero((actions < low) | (actions > high))
        if wrong.size:
            raise InvalidInputError(
                f"policy must return actions from {low} to {high}, got {actions[wrong[0]]}; correct it"
            )
    return actions.astype(space.dtype)


def check_single(answer: Any, space: gym.Space[Any] | None) -> Any:
    """The answer for one observation; that for a batch of them, which has an axis more, is an error."""
    if space is not None and _has_array_actions(space) and np.ndim(answer) > len(space.shape or ()):
        raise InvalidInputError(
            f"policy must return an action of shape {space.shape} for one observation, got shape "
            f"{np.shape(answer)}; a policy for a batch of them can be wrapped as lambda x: policy(x[None])[0]"
        )
    return answer


def _has_array_actions(space: gym.Space[Any]) -> bool:
    from gymnasium import spaces

    return isinstance(space, spaces.Discrete | spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary)


def drawn_actions(answer: Any, actions: int, words: Words) -> tuple[Ints, Floats] | None:
    """Actions (n,) drawn from probabilities (n, actions), and their own; None where the answer is none.

    Row i draws from the stream whose state is ``words[i]`` (n, 2), which moves on.

    >>> words = np.array([[1, 2], [3, 4]], dtype=np.uint64)
    >>> drawn_actions([[0.0, 1.0], [1.0, 0.0]], 2, words)
    (array([1, 0]), array([1., 1.]))
    >>> drawn_actions([1, 0], 2, words) is None
    True
    """
    if as_answer(answer).shape != (len(words), actions):
        return None
    table = as_distributions(answer, "policy's probabilities", (len(words), actions))
    chosen = np.empty(len(words), dtype=np.int64)
    _draw(table, words, chosen)
    propensities: Floats = table[np.arange(len(chosen)), chosen]
    return chosen, propensities


def as_answer(answer: Any) -> npt.NDArray[Any]:
    """What a policy answers, as an array of whatever type and shape."""
    try:
        if is_masked(answer):
            raise ValueError("masked entries")
        return np.asarray(answer)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidInputError(
            f"policy must return an array of actions, got {type(answer).__name__} ({str(error)[:200]}); "
            "convert its answer, and of a model of Stable-Baselines3 pass the model itself, not its predict"
        ) from error


def told_propensities(policy: object, observations: Any, chosen: Ints, actions: int) -> Floats | None:
    """π(a|x) of the actions (n,) that a policy has chosen; None where it has no ``probabilities``."""
    tell: Callable[[Any], Any] | None = getattr(policy, "probabilities", None)
    if not callable(tell):
        return None
    table = as_distributions(tell(observations), "policy's probabilities", (len(chosen), actions))
    told: Floats = table[np.arange(len(chosen)), chosen]
    never = np.flatnonzero(told <= 0)
    if never.size:
        raise InvalidInputError(
            "policy's probabilities must be above 0 for the actions that it takes, got "
            f"{told[never[0]]} for action {chosen[never[0]]}; let it tell those that it acts by"
        )
    return told


def with_propensities(data: Trajectories, policy: object, actions: int) -> Trajectories:
    """Episodes whose actions the policy has chosen, with their propensities if it tells them."""
    chosen = data.actions
    if chosen is None or not hasattr(policy, "probabilities"):
        return data
    rows = data.visited_rows
    parts = [
        told_propensities(policy, data.states[rows[some]], chosen[some], actions)
        for some in (slice(first, first + _ROWS) for first in range(0, max(rows.size, 1), _ROWS))
    ]
    return data._with(propensities=all_or_none(parts))


def all_or_none(parts: Sequence[Any]) -> npt.NDArray[Any] | None:
    """All rows of some arrays; None where one of them is."""
    return None if any(part is None for part in parts) else np.concatenate(parts)


@njit(cache=True)
def _draw(table: Floats, words: Words, out: Ints) -> None:
    """out_i = j with probability table_ij; where rounding leaves a row's sum below the draw, its last j."""
    for i in range(table.shape[0]):
        u, words[i, 0], words[i, 1] = uniform(words[i, 0], words[i, 1])
        total = 0.0
        for j in range(table.shape[1]):
            if table[i, j] > 0.0 and total <= u:
                out[i] = j
                total += table[i, j]
