"""Features from the value network of a Stable-Baselines3 model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from policyrisk._core.devices import Device
from policyrisk._core.imports import check_installed
from policyrisk.errors import InvalidInputError
from policyrisk.features.network import TorchFeatures
from policyrisk.features.sb3 import Sb3Networks

if TYPE_CHECKING:
    from torch.nn import Module


def from_sb3(
    model: Any,
    layer: str | None = None,
    device: Device = "cpu",
    *,
    normalisation: Any = None,
    dims: npt.ArrayLike | None = None,
) -> TorchFeatures:
    """The last hidden layer of the value network of a Stable-Baselines3 model, as :class:`TorchFeatures`.

    That is V's of PPO and A2C, Q's of DQN, and of SAC, TD3 and DDPG that of the first critic Q(x, a) at the
    action a that the actor takes at x without noise. ``model`` is a live one, or the path of its zip file, of
    which nothing is unpickled (see :mod:`policyrisk.features.sb3` for which files tell enough).

    States are observations as the environment gives them. Where training normalised them, so must the
    features: the VecNormalize of a live model with its environment is found; otherwise pass it as
    ``normalisation``, or the path of an npz file of its numbers
    (``numpy.savez(path, mean=env.obs_rms.mean, var=env.obs_rms.var, clip=env.clip_obs)``), since its own
    files are pickles.

    >>> phi = from_sb3("ppo_cartpole.zip")                        # doctest: +SKIP
    >>> risk = LSTD(phi.whitened(data.states)).fit(data)          # doctest: +SKIP
    """
    check_installed("torch", "from_sb3")
    if isinstance(model, str | os.PathLike):
        networks: Sb3Networks | None = Sb3Networks.read(model)
        file = str(Path(model).resolve())
    else:
        if not hasattr(model, "policy") or not hasattr(model, "observation_space"):
            raise InvalidInputError(
                "model must be one of Stable-Baselines3 or the path of its zip file, got "
                f"{type(model).__name__}; use TorchFeatures for a module"
            )
        networks, file = Sb3Networks.of(model), None
        if normalisation is None:
            normalisation = model.get_vec_normalize_env()
    if networks is not None:
        module, shape = networks.values(), (networks.size,)
    else:
        module, shape = _policy_values(model.policy), tuple(model.observation_space.shape) or (1,)
    phi = TorchFeatures(module, layer, device, shape=shape, normalisation=normalisation, dims=dims)
    return phi._with(file=file)


def _policy_values(policy: Any) -> Module:
    """The value of a live policy with networks of any kind."""
    from torch import nn

    class PolicyValues(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.policy = policy

        def forward(self, x: Any) -> Any:
            own = self.policy
            if hasattr(own, "predict_values"):
                return own.predict_values(x)
            if hasattr(own, "q_net"):
                return own.q_net(x)
            return own.critic.q1_forward(x, own._predict(x, deterministic=True))

    if not any(hasattr(policy, name) for name in ("predict_values", "q_net", "critic")):
        raise InvalidInputError(
            f"model must have a value network, got the policy {type(policy).__name__}; pass its network to "
            "TorchFeatures"
        )
    return PolicyValues()
