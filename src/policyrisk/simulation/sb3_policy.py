"""The policy in a zip file of Stable-Baselines3, of which nothing is unpickled.

Its networks are those of :mod:`policyrisk.features.sb3`. What they say becomes actions as in the model's own
``predict``:

    PPO, A2C    Discrete: probabilities, the softmax of the logits. Box: a normal distribution about the mean,
                its draw clipped to the space
    DQN         ε-greedy, with the ε that the training ended at
    SAC         tanh of a normal distribution, scaled to the space
    TD3, DDPG   an action in [−1, 1]ᵏ, scaled to the space: nothing is drawn

A deterministic policy takes the likeliest action, or that of the mean, instead.
"""

from __future__ import annotations

import os
import re
from typing import Any

import numpy as np
import numpy.typing as npt

from policyrisk._core.arrays import Floats
from policyrisk._core.devices import torch_on_one_thread
from policyrisk.errors import InvalidInputError
from policyrisk.features.layer import Normalisation
from policyrisk.features.sb3 import LIVE, Sb3Networks

_SAC_LOG_STD = (-20.0, 2.0)  # what it is clipped to


def sb3_policy(
    path: str | os.PathLike[str],
    deterministic: bool = True,
    seed: int | None = None,
    *,
    normalisation: Any = None,
) -> Sb3Policy | Sb3Draws:
    """The policy in a file that Stable-Baselines3's ``model.save`` wrote, for :func:`policyrisk.rollout`.

    Those of PPO, A2C, DQN, SAC, TD3 and DDPG with MlpPolicy on vectors, with Discrete or Box actions; a model
    whose file lacks something that is needed is an error. It runs on one thread, on which small networks are
    fastest. With Discrete actions it is a ``target`` for :func:`policyrisk.evaluate` and
    :class:`policyrisk.LSTDQ`, too.

    Parameters
    ----------
    path
        The zip file.
    deterministic
        False draws the actions.
    seed
        That of the draws of continuous actions; Discrete ones are drawn by :func:`policyrisk.rollout`.
    normalisation
        For a model that was trained inside of VecNormalize, whose scaling is not in its file: that
        VecNormalize, or an npz file or a dictionary with its ``mean`` and ``var`` (and ``epsilon``,
        ``clip``), as for :class:`policyrisk.TorchFeatures`.

    Returns
    -------
    Sb3Policy or Sb3Draws
        A function from observations (n, dim) to n actions.
    """
    networks = Sb3Networks.read(path)
    space = networks.settings.get("action_space")
    told = space if isinstance(space, dict) else {}
    kind = str(told.get(":type:", "nothing"))
    if not deterministic and networks.settings.get("use_sde"):
        raise InvalidInputError(
            f"policy must draw each action anew to be run by its distribution, got {path}, which was trained "
            f"with use_sde=True; leave it deterministic, or {LIVE}"
        )
    scaling = Normalisation.of_training(normalisation, networks.size, f"an observation of {path}")
    policy = Sb3Policy(f"sb3:{path}", networks, told, deterministic, scaling)
    if not policy.size or policy.answer(np.zeros((1, networks.size))).shape != (1, policy.size):
        raise InvalidInputError(
            f"policy must have Discrete actions from 0 on, or a Box of them, got {path} with {kind}; {LIVE}"
        )
    return policy if deterministic or policy.actions else Sb3Draws(policy, np.random.SeedSequence(seed))


class Sb3Policy:
    """A policy for :func:`policyrisk.rollout`, and, of Discrete actions, a ``target`` to evaluate.

    Called with a batch of observations (n, …), it answers with the probabilities (n, actions) of Discrete
    actions, which are 0 and 1 where it is deterministic, or with continuous actions (n, k).
    """

    def __init__(
        self,
        name: str,
        networks: Sb3Networks,
        space: dict[str, Any],
        deterministic: bool = True,
        scaling: Normalisation | None = None,
    ) -> None:
        kind = str(space.get(":type:"))
        self.networks, self.deterministic, self.scaling = networks, deterministic, scaling
        self.name = name
        self.actions = 0  # how many there are; 0 where they are continuous
        self.low = self.high = np.empty(0)  # (k,), of continuous ones
        if ".discrete.Discrete'" in kind and str(space.get("start")) == "0":
            self.actions = int(str(space.get("n")))
        elif ".box.Box'" in kind:
            self.low, self.high = _numbers(space.get("low")), _numbers(space.get("high"))
        self.size = self.actions or (self.low.size if self.low.size == self.high.size else 0)
        self._actor: Any = networks.actor()
        self._log_std = networks.log_std()

    def __call__(self, observations: npt.ArrayLike) -> Floats:
        """Probabilities (n, actions), or the actions (n, k) of the mean."""
        answer = self.answer(observations)
        if not self.actions:
            return self.within(answer)
        best: Floats = np.eye(self.actions)[answer.argmax(axis=1)]
        if self.deterministic:
            return best
        if self.networks.heads == "action-values":
            epsilon = float(self.networks.settings.get("exploration_rate") or 0.0)
            explored: Floats = (1.0 - epsilon) * best + epsilon / self.actions
            return explored
        odds = np.exp(answer - answer.max(axis=1, keepdims=True))
        found: Floats = odds / odds.sum(axis=1, keepdims=True)
        return found

    def answer(self, observations: npt.ArrayLike) -> Floats:
        """What the network says (n, size): logits, action values, or actions."""
        return self._asked(self._actor, observations)

    def draw(self, observations: npt.ArrayLike, rng: np.random.Generator) -> Floats:
        """Continuous actions (n, k) from its distribution."""
        if self.networks.heads == "actor-critic":
            mean, log_std = self.answer(observations), self.networks.weights["log_std"].double().numpy()
            return self.within(mean + np.exp(log_std) * rng.standard_normal(mean.shape))
        if self._log_std is None:
            return self(observations)
        mean = self._asked(self._actor[:-1], observations)
        log_std = np.clip(self._asked(self._log_std, observations), *_SAC_LOG_STD)
        return self.within(np.tanh(mean + np.exp(log_std) * rng.standard_normal(mean.shape)))

    def within(self, answer: Floats) -> Floats:
        """The network's actions in the space: clipped to it, or scaled from [−1, 1]ᵏ."""
        if self.networks.heads == "actor-critic":
            return np.clip(answer, self.low, self.high)
        scaled: Floats = self.low + 0.5 * (answer + 1.0) * (self.high - self.low)
        return scaled

    def _asked(self, network: Any, observations: npt.ArrayLike) -> Floats:
        import torch

        x = np.asarray(observations)
        trained = self.networks.observation
        if x.shape[1:] not in (trained, (self.networks.size,)):
            raise InvalidInputError(
                f"policy must see what {self.name} was trained on, observations of shape {trained}, got "
                f"{x.shape[1:]}; name the environment of its training"
            )
        x = x.reshape(len(x), -1)
        if self.scaling is not None:
            x = self.scaling(x)
        with torch_on_one_thread(), torch.no_grad():
            answer: Floats = network(torch.from_numpy(x.astype(np.float32))).double().numpy()
        return answer


class Sb3Draws:
    """A policy that draws continuous actions: for each episode by itself, whoever plays the others."""

    def __init__(self, policy: Sb3Policy, seed: np.random.SeedSequence) -> None:
        self.policy, self.seed = policy, seed
        self._rng = np.random.default_rng(seed)

    def spawn(self, number: int) -> Sb3Draws:
        """The one for an episode."""
        # Not the words that the environments' own seeds come from.
        return Sb3Draws(self.policy, np.random.SeedSequence(self.seed.entropy, spawn_key=(3, number)))

    def __call__(self, observations: npt.ArrayLike) -> Floats:
        """Actions (n, k)."""
        return self.policy.draw(observations, self._rng)


def _numbers(text: object) -> Floats:
    """The numbers of an array as NumPy prints it; none where it left some out."""
    found = re.findall(r"[-+]?(?:inf|[\d.]+(?:e[-+]?\d+)?)", str(text))
    return np.array([] if "..." in str(text) else found, dtype=np.float64)
