"""The networks of a Stable-Baselines3 model, live or from its zip file.

A zip file of Stable-Baselines3 holds the policy's weights, and everything else as JSON whose values are
pickled where JSON has none for them; unpickling runs code of the file's author. Here nothing is unpickled:
weights are read as tensors alone, and what kind of networks they belong to from names, shapes and the text
next to the pickles. That is enough for networks of linear layers (``MlpPolicy``) on vectors:

                actor                                     critic
    PPO, A2C    mlp_extractor.policy_net.*, action_net    mlp_extractor.value_net.*, value_net
    DQN         q_net.q_net.*                             the same
    SAC, TD3    actor.latent_pi.*, actor.mu               critic.qf0.*, of the actor's action

Other models (images, networks of one's own) must be loaded by the user, who knows whose code that runs, and
given as objects.
"""

from __future__ import annotations

import io
import os
import pickle
import re
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from policyrisk._core.devices import Device
from policyrisk._core.files import DAMAGE, check_expansion, from_json, opened_zip
from policyrisk._core.imports import check_installed
from policyrisk.errors import InvalidInputError
from policyrisk.features.network import TorchFeatures

if TYPE_CHECKING:
    import numpy.typing as npt
    from torch.nn import Module

Heads: TypeAlias = Literal["actor-critic", "action-values", "continuous"]

_MEMBERS = ("data", "policy.pth")
_OWN = ("stable_baselines3.", "sb3_contrib.")
# Of torch.nn, those that need no arguments: a file may name no other class.
_ACTIVATION = re.compile(
    r"<class 'torch\.nn\.modules\.activation\.(CELU|ELU|GELU|Hardsigmoid|Hardswish|Hardtanh|LeakyReLU|Mish|"
    r"ReLU|ReLU6|SELU|Sigmoid|SiLU|Softplus|Softsign|Tanh|Tanhshrink)'>"
)
# The linear layers of the actor and of the critic: those numbered within a prefix, then one by its name.
_NETWORKS: dict[Heads, tuple[tuple[str, str | None], tuple[str, str | None]]] = {
    "actor-critic": (("mlp_extractor.policy_net", "action_net"), ("mlp_extractor.value_net", "value_net")),
    "action-values": (("q_net.q_net", None), ("q_net.q_net", None)),
    "continuous": (("actor.mu", None), ("critic.qf0", None)),
}
# The way out where a file tells too little of its model.
LIVE = "load the model yourself, which runs what its author put into the file, and pass the model"


@dataclass(frozen=True, eq=False)
class Sb3Networks:
    """The networks of linear layers of a model: their weights, and what is between the layers.

    ``heads`` says what the actor gives: "actor-critic" logits of discrete actions or the mean of continuous
    ones (whose ``log_std`` is among the weights), "action-values" the value of each action, "continuous"
    an action in [−1, 1]ᵏ, to be scaled to the action space.
    """

    weights: Mapping[str, Any]  # the policy's state_dict, tensors on the CPU
    heads: Heads
    activation: str  # its name in torch.nn, one that _ACTIVATION names
    observation: tuple[int, ...]  # the shape of an observation
    settings: Mapping[str, Any]  # what the file says in JSON, less what is pickled; empty for a live model

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Sb3Networks:
        """Those of a zip file; an error for models that a file does not tell enough of."""
        check_installed("torch", "a model of Stable-Baselines3")
        settings, weights = _parts(Path(path))
        what = f"model must be one with MlpPolicy on vectors, got {path}"
        heads = _heads(weights)
        module = str(_of(settings, "policy_class").get("__module__", ""))
        kwargs = _of(settings, "policy_kwargs")
        if heads is None or not f"{module}.".startswith(_OWN):
            raise InvalidInputError(f"{what} with networks of its own; {LIVE}")
        if {"features_extractor_class", "features_extractor_kwargs"} & kwargs.keys():
            raise InvalidInputError(f"{what} with a features extractor of its own; {LIVE}")
        space = _of(settings, "observation_space")
        shape = re.findall(r"\d+", str(space.get("_shape", "")))
        image = str(space.get("dtype")) == "uint8" and len(shape) == 3
        if ".box.Box'" not in str(space.get(":type:")) or not shape or image:
            raise InvalidInputError(f"{what} with observations {space.get(':type:')}; {LIVE}")
        activation = "Tanh" if heads == "actor-critic" else "ReLU"  # their defaults
        if "activation_fn" in kwargs:
            named = _ACTIVATION.fullmatch(str(kwargs["activation_fn"]))
            if named is None:
                raise InvalidInputError(f"{what} with the activation {kwargs['activation_fn']}; {LIVE}")
            activation = named[1]
        found = cls(weights, heads, activation, tuple(map(int, shape)), settings)
        found._check(what)
        return found

    @classmethod
    def of(cls, model: Any) -> Sb3Networks | None:
        """Those of a live model; None where they are more than linear layers on vectors."""
        policy, space = model.policy, model.observation_space
        weights = {name: value.detach().cpu() for name, value in policy.state_dict().items()}
        heads = _heads(weights)
        flat = (
            getattr(getattr(policy, "features_extractor_class", None), "__name__", "") == "FlattenExtractor"
        )
        own = type(policy).__module__.startswith(_OWN)
        vector = type(space).__name__ == "Box" and not (space.dtype == "uint8" and len(space.shape) == 3)
        named = _ACTIVATION.fullmatch(str(policy.activation_fn))
        if heads is None or named is None or not (flat and own and vector):
            return None
        found = cls(weights, heads, named[1], tuple(space.shape), {})
        try:
            found._check("model must be one with MlpPolicy on vectors, got another")
        except InvalidInputError:
            return None
        return found

    @cached_property
    def size(self) -> int:
        """The numbers of an observation."""
        return prod(self.observation)

    def actor(self) -> Module:
        """The network from observations (n, size) to what ``heads`` says."""
        prefix, last = _NETWORKS[self.heads][0]
        if self.heads == "continuous":
            from torch import nn

            if "actor.latent_pi.0.weight" in self.weights:  # SAC's
                prefix, last = "actor.latent_pi", "actor.mu"
            return nn.Sequential(*self._layers(prefix, last), nn.Tanh())  # type: ignore[no-any-return]
        return self._network(prefix, last)

    def log_std(self) -> Module | None:
        """SAC's network from observations to the logarithm of its standard deviations; None of others."""
        if "actor.log_std.weight" not in self.weights:
            return None
        return self._network("actor.latent_pi", "actor.log_std")

    def critic(self) -> Module:
        """The network from observations (n, size) to the value: of each action, or of the actor's own."""
        network = self._network(*_NETWORKS[self.heads][1])
        return _at_actions(self.actor(), network) if self.heads == "continuous" else network

    def values(self) -> Module:
        """The critic in double precision: no slower compared to LSTD's sums, and the same in any batch."""
        module: Module = self.critic().double()
        return module

    def _network(self, prefix: str, last: str | None) -> Module:
        from torch import nn

        return nn.Sequential(*self._layers(prefix, last))  # type: ignore[no-any-return]

    def _layers(self, prefix: str, last: str | None) -> list[Module]:
        """Linear layers with the weights, and activations between them."""
        from torch import nn

        layers: list[Any] = []
        for name in self._names(prefix, last):
            weight, bias = self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias")
            linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, dtype=weight.dtype)
            linear.load_state_dict({"weight": weight, **({} if bias is None else {"bias": bias})})
            layers += [*([getattr(nn, self.activation)()] if layers else []), linear]
        return layers

    def _names(self, prefix: str, last: str | None) -> list[str]:
        numbered = re.compile(re.escape(prefix) + r"\.(\d+)\.weight")
        found = sorted(int(match[1]) for name in self.weights if (match := numbered.fullmatch(name)))
        return [*(f"{prefix}.{number}" for number in found), *([] if last is None else [last])]

    def _check(self, what: str) -> None:
        """Raise unless the layers fit together and take the observations."""
        import torch

        try:
            with torch.no_grad():
                for network in (self.actor(), self.critic()):
                    network(torch.zeros(1, self.size, dtype=next(iter(self.weights.values())).dtype))
        except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise InvalidInputError(f"{what} whose networks do not fit ({error}); {LIVE}") from error


def _heads(weights: Mapping[str, Any]) -> Heads | None:
    """What the networks are, by the names of their weights; None for others."""
    if any("features_extractor." in name or "lstm" in name for name in weights):
        return None
    if "value_net.weight" in weights and "action_net.weight" in weights:
        return "actor-critic"
    if "q_net.q_net.0.weight" in weights:
        return "action-values"
    return "continuous" if "critic.qf0.0.weight" in weights else None


def _of(settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = settings.get(name)
    return found if isinstance(found, dict) else {}


def _parts(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings, less what is pickled, and the policy's weights."""
    import torch

    what = f"model must be a zip file that Stable-Baselines3 saved, got {path}"
    try:
        data, numbers = _members(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what is odd about a file is an error below
            loaded = torch.load(io.BytesIO(numbers), map_location="cpu", weights_only=True)
        settings = {
            name: {key: text for key, text in value.items() if key != ":serialized:"}
            if isinstance(value, dict)
            else value
            for name, value in from_json(data).items()
        }
        weights = {name: value for name, value in loaded.items() if isinstance(value, torch.Tensor)}
        for name, value in weights.items():
            if value.numel() * value.element_size() > value.untyped_storage().nbytes():
                raise ValueError(f"{name} has a shape of more numbers than the file has")
    except FileNotFoundError as error:
        raise InvalidInputError(f"{what}, which does not exist; check it") from error
    except InvalidInputError:
        raise
    except (*DAMAGE, pickle.UnpicklingError) as error:
        raise InvalidInputError(f"{what}, which is none or is damaged ({error}); save it again") from error
    return settings, weights


def _members(path: Path) -> tuple[bytes, bytes]:
    """The settings, in JSON, and the weights, a zip file in the zip file, once their sizes are known."""
    with opened_zip(path) as archive:
        check_expansion(path, sum(archive.getinfo(name).file_size for name in _MEMBERS))
        data, numbers = (archive.read(name) for name in _MEMBERS)
    with zipfile.ZipFile(io.BytesIO(numbers)) as inner:
        check_expansion(path, sum(each.file_size for each in inner.infolist()))
    return data, numbers


def _at_actions(actor: Module, critic: Module) -> Module:
    """Q(x, a(x)), a being the actor's action."""
    import torch
    from torch import nn

    class ActorsValue(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.actor, self.critic = actor, critic

        def forward(self, x: Any) -> Any:
            return self.critic(torch.cat([x, self.actor(x)], dim=1))

    return ActorsValue()


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
    action a that the actor takes at x without noise. States are observations as the environment gives them.

    Parameters
    ----------
    model
        A live one, or the path of its zip file, of which nothing is unpickled (the module's text says which
        files are enough).
    layer, device, dims
        As of :class:`TorchFeatures`.
    normalisation
        Where training normalised observations, so must the features: the VecNormalize of a live model with
        its environment is found; otherwise pass it, or the path of an npz file of its numbers
        (``numpy.savez(path, mean=env.obs_rms.mean, var=env.obs_rms.var, clip=env.clip_obs)``), since its own
        files are pickles.

    Returns
    -------
    TorchFeatures
        Of the observations.

    Examples
    --------
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
