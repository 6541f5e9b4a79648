"""Batches of observations and of actions, in the form of Gymnasium's vector environments.

A batch of n observations has n in front of every array: (n, …) of a Box, (n,) of a Discrete, a dict or tuple
of such arrays for a Dict or Tuple space. A batch of n actions is the same. Of observations,

    project   is a function of a batch that picks the states' coordinates, of shape (n, dim) or (n,)
    policy    is a function of a batch that answers with a batch of actions. An object with
              ``predict(observations, deterministic=True)``, which returns (actions, state), is one too: that
              is Stable-Baselines3's. Its state must be None: a policy must depend on the observation alone.
              For Discrete actions it may answer with their probabilities instead
              (:mod:`policyrisk.simulation.probabilities`).

Without a project, the parts of a Dict stand side by side, in the space's order, and arrays are flattened into
coordinates. Images are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from policyrisk._core.arrays import Floats, as_flag, is_masked, shown
from policyrisk.errors import InvalidInputError
from policyrisk.simulation.compiled import Words
from policyrisk.simulation.probabilities import as_answer, drawn_actions, told_propensities

if TYPE_CHECKING:
    import gymnasium as gym

Choose: TypeAlias = "Callable[[Any], Any]"


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
        if not _answers(choose, _first(observations) if batch else _alone(observations)):
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


def _first(batch: Any) -> Any:
    """The first observation of a batch."""
    if isinstance(batch, dict):
        return {name: _first(part) for name, part in batch.items()}
    return tuple(map(_first, batch)) if isinstance(batch, tuple) else batch[0]


def _alone(observation: Any) -> Any:
    """A batch of one observation."""
    if isinstance(observation, dict):
        return {name: _alone(part) for name, part in observation.items()}
    return tuple(map(_alone, observation)) if isinstance(observation, tuple) else np.array([observation])


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
