"""Features from a network: φ(x) = (1, h(x)), h(x) being what one of its layers gives.

A trained value network, V(x) = wᵀh(x) + c, is linear in its last hidden layer h: the natural features of
states with many coordinates, or of images. *Whitened* features come from a principal component analysis of h
at some states, with mean μ and covariance U diag(v) Uᵀ, v_1 ≥ v_2 ≥ …:

    φ(x) = (1, (U_kᵀ (h(x) − μ)) / √v_k),    k running over the components with v_k > cut · v_1

so that a layer's many nearly redundant numbers become few that are uncorrelated and of one size. Observations
may be normalised first as they were in training: x ↦ clip((x − mean) / √(var + epsilon), −clip, clip).

Files hold no code. What is saved of a network is the hash of its ``state_dict`` and what h is at one fixed
observation; whoever loads an estimate gives the module again (``RiskFunction.load(path, module=...)``), and
both are compared. A network from a zip file of Stable-Baselines3 is read from there again.
"""

from __future__ import annotations

import copy
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from policyrisk._core.arrays import (
    Bools,
    Floats,
    as_count,
    as_floats,
    as_number,
    as_states,
    describe,
    name_some,
    readonly,
)
from policyrisk._core.devices import Device, cupy, on_gpu
from policyrisk._core.imports import check_installed
from policyrisk._core.records import DAMAGE
from policyrisk.errors import InvalidInputError, MismatchError
from policyrisk.features.box import as_dims, columns
from policyrisk.features.protocol import Described
from policyrisk.features.sb3 import Sb3Networks

if TYPE_CHECKING:
    from torch.nn import Module

CUT = 1e-6
_NUMBERS = 1 << 22  # of the observations that the network sees at a time
_ROWS = 1 << 13, 1 << 16  # of them at most, on the CPU and on a GPU
_CLOSE = 1e-3  # what the same network may differ by, of its largest number, on another machine


@dataclass(frozen=True, eq=False)
class Normalisation:
    """x ↦ clip((x − mean) / √(var + epsilon), −clip, clip), as Stable-Baselines3's VecNormalize does it."""

    mean: Floats  # (dim,)
    var: Floats  # (dim,)
    epsilon: float = 1e-8
    clip: float = 10.0

    @classmethod
    def of(cls, value: Any) -> Normalisation | None:
        """A caller's: None, one of these, a live VecNormalize, or an npz file with the fields' names.

        VecNormalize's own files are pickles, which may run anything, and are not read.
        """
        if value is None or isinstance(value, Normalisation):
            return value
        if isinstance(value, str | os.PathLike):
            return cls._read(Path(value))
        if isinstance(value, Mapping):
            given = dict(value)
        elif hasattr(value, "obs_rms") and hasattr(value, "clip_obs"):
            if not value.norm_obs:
                return None
            rms = value.obs_rms
            given = {"mean": getattr(rms, "mean", None), "var": getattr(rms, "var", None)}
            given |= {"epsilon": value.epsilon, "clip": value.clip_obs}
        else:
            raise InvalidInputError(
                "normalisation must be a VecNormalize, an npz file or a dictionary with mean and var, got "
                f"{type(value).__name__}; pass one of these"
            )
        if not {"mean", "var"} <= given.keys() <= {"mean", "var", "epsilon", "clip"}:
            raise InvalidInputError(
                "normalisation must have mean and var, and may have epsilon and clip, got "
                f"{', '.join(sorted(given)) or 'nothing'}; pass these"
            )
        mean = np.array(as_floats(np.ravel(given["mean"]), "normalisation's mean", (None,)))
        var = np.array(as_floats(np.ravel(given["var"]), "normalisation's var", mean.shape))
        epsilon = as_number(given.get("epsilon", 1e-8), "normalisation's epsilon", 0.0)
        if not (var + epsilon > 0).all():
            raise InvalidInputError("normalisation's var must be positive, got some that are not")
        clip = as_number(given.get("clip", 10.0), "normalisation's clip", 0.0, open_low=True)
        return cls(readonly(mean), readonly(var), epsilon, clip)

    @classmethod
    def _read(cls, path: Path) -> Normalisation | None:
        what = "normalisation must be an npz file with mean and var (VecNormalize's own files hold code)"
        save = (
            "write one with numpy.savez(path, mean=env.obs_rms.mean, var=env.obs_rms.var, clip=env.clip_obs)"
        )
        try:
            with path.open("rb") as handle, np.load(handle, allow_pickle=False) as file:
                given = {name: file[name] for name in file.files}
        except DAMAGE as error:
            raise InvalidInputError(f"{what}, got {path} ({error}); {save}") from error
        if isinstance(given, dict) and {"mean", "var"} <= given.keys():
            return cls.of(given)
        raise InvalidInputError(f"{what}, got {path}; {save}")

    def spec(self) -> dict[str, Any]:
        """In plain values."""
        values = {"mean": self.mean.tolist(), "var": self.var.tolist()}
        return {**values, "epsilon": self.epsilon, "clip": self.clip}


@dataclass(frozen=True, eq=False)
class Whitening:
    """h ↦ (h − mean) @ components, from a principal component analysis; ``cut`` says where it stopped."""

    mean: Floats  # (width,)
    components: Floats  # (width, kept): U_k / √v_k
    cut: float

    @classmethod
    def of(cls, h: Floats, cut: float) -> Whitening:
        """That of rows h (n, width): components whose variance is more than ``cut`` of the largest."""
        mean = h.mean(axis=0)
        v, U = np.linalg.eigh((h - mean).T @ (h - mean) / len(h))
        v, U = v[::-1], U[:, ::-1]
        # Rounding in single precision is no variation.
        kept = int(np.count_nonzero(v > np.maximum(cut * v[0], (1e-6 * np.abs(h).max(initial=0.0)) ** 2)))
        if kept == 0:
            raise InvalidInputError(
                "states must differ in the network's layer, got a layer that is the same at all of "
                f"{len(h)} states; pass other states, or name another layer="
            )
        U = U[:, :kept] * np.where(U[np.abs(U).argmax(axis=0), np.arange(len(v))] < 0, -1.0, 1.0)[:kept]
        return cls(readonly(mean), readonly(np.ascontiguousarray(U / np.sqrt(v[:kept]))), cut)

    def spec(self) -> dict[str, Any]:
        """In plain values."""
        return {"mean": self.mean.tolist(), "components": self.components.tolist(), "cut": self.cut}


class TorchFeatures(Described):
    """φ(x) = (1, h(x)), h(x) being the output of the submodule that ``layer`` names.

    ``layer=None`` is the last hidden layer: the input of the linear layer whose output the module returns,
    a value or the values of actions. Where what it returns is no linear layer's output, h is what it returns.

    States (n, dim) become tensors of the module's type, of shape (n, *shape); ``shape=None`` is what the
    module's first linear layer takes. ``dims`` are the coordinates that it sees. ``normalisation`` is what
    was done to observations in training: a VecNormalize of Stable-Baselines3, an npz file or a dictionary
    with ``mean`` and ``var`` (and ``epsilon``, ``clip``). ``device`` is where the network runs, "cpu",
    "cuda" or "auto"; ``LSTD.fit(data, device="cuda")`` leaves the features of one on the GPU there.
    (Convolutions on a GPU are rounded as PyTorch is told to; its default is TF32.)

    The module is copied, in evaluation mode and without gradients, so that training it further changes
    nothing here. Batch after batch is computed in the module's own precision, and φ put into double
    precision: in single precision a state's φ depends, by rounding, on the batch that it is in, and pass
    ``module.double()`` where that matters. Use :meth:`whitened` before a fit, since a layer's numbers are
    usually all but redundant.

    >>> import numpy as np
    >>> from torch import nn                                      # doctest: +SKIP
    >>> net = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 1))   # doctest: +SKIP
    >>> phi = TorchFeatures(net)                                  # doctest: +SKIP
    >>> phi.size                                                  # doctest: +SKIP
    65
    >>> risk = LSTD(phi.whitened(data.states)).fit(data)          # doctest: +SKIP
    """

    def __init__(
        self,
        module: Module,
        layer: str | None = None,
        device: Device = "cpu",
        *,
        shape: int | Sequence[int] | None = None,
        normalisation: Any = None,
        dims: npt.ArrayLike | None = None,
    ) -> None:
        check_installed("torch", "TorchFeatures")
        import torch

        if not isinstance(module, torch.nn.Module):
            raise InvalidInputError(
                f"module must be a torch.nn.Module, got {type(module).__name__}; of a model of "
                "Stable-Baselines3 use policyrisk.features.from_sb3"
            )
        self.device = "cuda" if on_gpu(device, "torch") else "cpu"
        self.layer = layer
        self.module: Module | None = copy.deepcopy(module).eval().requires_grad_(False).to(self.device)
        self.state = _hash(self.module)
        self.shape = _shape(self.module, shape)
        self.dims = as_dims(dims, prod(self.shape))
        self.normalisation = Normalisation.of(normalisation)
        if self.normalisation is not None and self.normalisation.mean.size != prod(self.shape):
            raise InvalidInputError(
                f"normalisation must have {prod(self.shape)} numbers, one for each of an observation, got "
                f"{self.normalisation.mean.size}; pass that of the same environment"
            )
        self.whitening: Whitening | None = None
        self.file: str | None = None  # where the network was read
        self._stop_at(layer)
        h = self._probe()
        self.width = h.size  # of the layer
        # Three numbers that another architecture with the same weights does not have.
        self.probe = tuple(float(f @ h) for f in (np.ones(h.size), np.cos(np.arange(h.size)), h))

    @property
    def size(self) -> int:
        """The number of features: the layer's, or the components that were kept, and the constant."""
        return 1 + (self.width if self.whitening is None else self.whitening.components.shape[1])

    def whitened(self, states: npt.ArrayLike, cut: float = CUT) -> TorchFeatures:
        """The same network, whitened by the principal components of its layer at states (n, dim).

        Components are kept whose variance is more than ``cut`` of the largest one's.
        """
        cut = as_number(cut, "cut", 0.0, 1.0)
        plain = self._with(whitening=None)
        return self._with(whitening=Whitening.of(plain(states)[:, 1:], cut))

    def on_module(self, module: Module | TorchFeatures, name: str = "module") -> TorchFeatures:
        """These features with their network given again; another one is an error, by that name."""
        if isinstance(module, TorchFeatures):
            other, device, sought = module.module, module.device, module
        else:
            other, device = module, "cpu"
            sought = None
        if other is None:
            raise InvalidInputError("module must be a network, got features without one; pass the network")
        if sought is None or (sought.layer, sought.shape) != (self.layer, self.shape):
            sought = TorchFeatures(other, self.layer, device, shape=self.shape)  # type: ignore[arg-type]
        if sought.state != self.state:
            raise MismatchError(
                f"{name} must be the network that was saved, whose state_dict has the hash "
                f"{self.state[:16]}…, got one with {sought.state[:16]}…; pass the same weights"
            )
        if not self._computes_as(sought):
            raise MismatchError(
                f"{name} must compute what the saved network did, got the same weights with another result; "
                "pass the same architecture, activations included"
            )
        return self._with(module=sought.module, device=sought.device)

    def __call__(self, states: npt.ArrayLike) -> Floats:
        """φ(states), of shape (n, size)."""
        import torch

        array = as_states(states)
        array = array[:, columns(array.shape[1], self.dims, prod(self.shape))]
        out = np.empty((len(array), self.size))
        rows = self._batch
        with _one_thread():
            for start in range(0, len(array), rows):
                some = torch.from_numpy(np.array(array[start : start + rows])).to(self.device)
                out[start : start + rows] = self._phi(some).cpu().numpy()
        if not np.isfinite(out).all():
            wrong = np.flatnonzero(~np.isfinite(out).all(axis=1))
            raise InvalidInputError(
                f"module must give finite numbers, got others for the states in rows {name_some(wrong)}; "
                "look at the network, or at its normalisation"
            )
        return out

    @property
    def on_gpu(self) -> bool:
        """Whether LSTD's sums on a GPU may find φ there."""
        return self.device == "cuda"

    def gpu_input(self, states: Floats) -> Floats:
        """What is to be copied to the GPU for states (n, dim): observations (n, numbers)."""
        return states[:, columns(states.shape[1], self.dims, prod(self.shape))]

    def gpu_rows(self, observations: Any) -> Any:
        """φ, of shape (n, size), of what was copied, both CuPy's arrays, in CuPy's current stream."""
        import torch

        xp = cupy()
        stream = torch.cuda.ExternalStream(xp.cuda.get_current_stream().ptr)
        with torch.cuda.stream(stream):
            x = torch.from_dlpack(observations)
            out = torch.empty((len(x), self.size), dtype=torch.float64, device=x.device)
            for start in range(0, len(x), self._batch):
                self._phi(x[start : start + self._batch], out[start : start + self._batch])
            return xp.from_dlpack(out)

    @property
    def _batch(self) -> int:
        return min(max(_NUMBERS // prod(self.shape), 1), _ROWS[self.device == "cuda"])

    def _phi(self, x: Any, out: Any = None) -> Any:
        """φ of observations (n, numbers), a tensor of double precision as x is."""
        import torch

        h = self._h(x)
        if out is None:
            out = torch.empty((len(x), self.size), dtype=torch.float64, device=x.device)
        out[:, 0] = 1.0
        if self.whitening is None:
            out[:, 1:] = h
        else:
            shift, components = self._tensors[2:]
            torch.addmm(shift, h.to(torch.float64), components, out=out[:, 1:])
        return out

    def _h(self, x: Any) -> Any:
        """What the layer gives, (n, width)."""
        import torch

        if self.module is None:
            raise InvalidInputError(
                "module must be given again, since files hold no code but the hash of a network; load with "
                "RiskFunction.load(path, module=...)" + (f", or put {self.file} back" if self.file else "")
            )
        if self.normalisation is not None:
            mean, deviation = self._tensors[:2]
            clip = self.normalisation.clip
            x = ((x - mean) / deviation).clamp(-clip, clip)
        x = x.to(self._type).reshape(len(x), *self.shape)
        with torch.no_grad():
            try:
                h = self.module(x)
            except _Reached as reached:
                h = reached.value
        if not isinstance(h, torch.Tensor) or h.ndim < 1 or len(h) != len(x):
            what = "tensors" if not isinstance(h, torch.Tensor) else describe(tuple(h.shape))
            raise InvalidInputError(
                f"module must give a tensor with a row for each of {len(x)} observations, got {what}; name "
                "a layer= whose output is one"
            )
        return h.reshape(len(x), -1)

    def _stop_at(self, layer: str | None) -> None:
        """Let the network be left where h is known."""
        from torch import nn

        module: Any = self.module
        if layer is not None:
            try:
                found = module.get_submodule(layer)
            except AttributeError as error:
                known = ", ".join(name for name, _ in module.named_modules() if name)
                raise InvalidInputError(
                    f"layer must name a submodule, one of {known or 'none'}, got {layer!r}; pass one of these"
                ) from error
            if found is not module:
                found.register_forward_hook(_stop_after)
            return
        outputs: list[tuple[Any, Any]] = []
        hooks = [
            each.register_forward_hook(lambda part, _, out: outputs.append((part, out)))
            for each in module.modules()
            if isinstance(each, nn.Linear) and each is not module
        ]
        try:
            returned = self._forward_once()
        finally:
            for hook in hooks:
                hook.remove()
        if outputs and hasattr(returned, "data_ptr"):
            last, value = outputs[-1]
            # The same numbers, perhaps in another shape.
            if value.data_ptr() == returned.data_ptr() and value.numel() == returned.numel():
                last.register_forward_pre_hook(_stop_before)

    def _forward_once(self) -> Any:
        import torch

        x = torch.from_numpy(_observation(prod(self.shape))).to(self.device, self._type)
        assert self.module is not None
        try:
            with torch.no_grad():
                return self.module(x.reshape(2, *self.shape))
        except _Reached as reached:
            return reached.value
        except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError) as error:
            raise InvalidInputError(
                f"module must take observations of shape {describe((None, *self.shape))}, got an error "
                f"({str(error).splitlines()[0]}); pass shape=, that of one observation"
            ) from error

    def _computes_as(self, other: TorchFeatures) -> bool:
        """Whether the other network gives the same at the fixed observation, but for rounding."""
        atol = _CLOSE * max(map(abs, self.probe))
        return self.width == other.width and np.allclose(other.probe, self.probe, _CLOSE, atol)

    def _probe(self) -> Floats:
        """h at one fixed observation, (width,)."""
        import torch

        self._forward_once()
        x = torch.from_numpy(_observation(prod(self.shape))).to(self.device)
        bare = self._with(normalisation=None)
        probe: Floats = bare._h(x)[0].to(torch.float64).cpu().numpy()
        return probe

    @cached_property
    def _type(self) -> Any:
        """The type of the module's first number."""
        import torch

        assert self.module is not None
        numbers = (each.dtype for each in self.module.state_dict().values() if each.is_floating_point())
        return next(numbers, torch.float32)

    @cached_property
    def _tensors(self) -> tuple[Any, ...]:
        """Mean and deviation of observations, −μᵀ components and components, where the network is."""
        import torch

        parts: list[Floats | None] = [None] * 4
        if self.normalisation is not None:
            n = self.normalisation
            parts[:2] = n.mean, np.sqrt(n.var + n.epsilon)
        if self.whitening is not None:
            parts[2:] = -self.whitening.mean @ self.whitening.components, self.whitening.components
        return tuple(None if each is None else torch.tensor(each, device=self.device) for each in parts)

    def _with(self, **changes: Any) -> TorchFeatures:
        """The same with other attributes, the network shared."""
        made = object.__new__(TorchFeatures)
        made.__setstate__({**self.__getstate__(), **changes})
        return made

    def outside(self, states: npt.ArrayLike) -> Bools:
        """No state is outside: there is no box."""
        return np.zeros(len(as_states(states)), dtype=np.bool_)

    @cached_property
    def _key(self) -> str:
        # The arrays of a wide layer's whitening are long as text.
        arrays = [] if self.whitening is None else [self.whitening.mean, self.whitening.components]
        arrays += [] if self.normalisation is None else [self.normalisation.mean, self.normalisation.var]
        digest = hashlib.sha256(b"".join(np.ascontiguousarray(each).tobytes() for each in arrays))
        rest = self.state, self.layer, self.shape, self.dims
        clip = None if self.normalisation is None else (self.normalisation.epsilon, self.normalisation.clip)
        return repr(("TorchFeatures", rest, clip, digest.hexdigest()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TorchFeatures) and self._key == other._key and self._computes_as(other)

    __hash__ = Described.__hash__

    def spec(self) -> dict[str, Any]:
        """What is saved: everything but the network, and the hash of its ``state_dict``."""
        return {
            "kind": "TorchFeatures",
            "state": self.state,
            "probe": list(self.probe),
            "layer": self.layer,
            "shape": list(self.shape),
            "width": self.width,
            "dims": None if self.dims is None else list(self.dims),
            "normalisation": None if self.normalisation is None else self.normalisation.spec(),
            "whitening": None if self.whitening is None else self.whitening.spec(),
            "file": self.file,
        }

    def __repr__(self) -> str:
        name = "a module to be given" if self.module is None else type(self.module).__name__
        layer = "" if self.layer is None else f", layer={self.layer!r}"
        return f"TorchFeatures({name}{layer}, size={self.size}, device={self.device!r})"

    @classmethod
    def of_spec(
        cls,
        state: str,
        probe: Sequence[float],
        layer: str | None,
        shape: Sequence[int],
        width: int,
        dims: Sequence[int] | None,
        normalisation: Mapping[str, Any] | None,
        whitening: Mapping[str, Any] | None,
        file: str | None,
    ) -> TorchFeatures:
        """The way back from :meth:`spec`, with the network that is at hand, or without one."""
        made = object.__new__(cls)
        white = None
        if whitening is not None:
            mean = as_floats(whitening["mean"], "whitening's mean", (int(width),))
            components = as_floats(whitening["components"], "whitening's components", (int(width), None))
            white = Whitening(readonly(mean), readonly(components), float(whitening["cut"]))
        values: dict[str, Any] = {
            "module": None,
            "device": "cpu",
            "state": state,
            "probe": tuple(probe),
            "layer": layer,
            "shape": tuple(shape),
            "width": int(width),
            "dims": None if dims is None else tuple(dims),
            "normalisation": Normalisation.of(normalisation),
            "whitening": white,
            "file": file,
        }
        made.__setstate__(values)
        module = _at_hand.get()
        if module is not None:
            return made.on_module(module)
        if file is not None and Path(file).is_file():
            return made.on_module(_critic(Sb3Networks.read(file)), file)
        return made


_at_hand: ContextVar[Any] = ContextVar("module", default=None)


@contextmanager
def module_at_hand(module: Any) -> Iterator[None]:
    """Features that are loaded meanwhile get this network; None is none."""
    token = _at_hand.set(module)
    try:
        yield
    finally:
        _at_hand.reset(token)


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
        module, shape = _critic(networks), (networks.size,)
    else:
        module, shape = _policy_values(model.policy), tuple(model.observation_space.shape) or (1,)
    phi = TorchFeatures(module, layer, device, shape=shape, normalisation=normalisation, dims=dims)
    return phi._with(file=file)


def _critic(networks: Sb3Networks) -> Module:
    """In double precision: it is no slower beside LSTD's sums, and does not depend on the batch."""
    module: Module = networks.critic().double()
    return module


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


_lock = Lock()
_inside = _before = 0  # calls under way, and PyTorch's own number of threads


@contextmanager
def _one_thread() -> Iterator[None]:
    """Hold PyTorch to one thread, each of ours on its own: the passes use them all."""
    import torch

    global _inside, _before
    with _lock:
        if _inside == 0:
            _before = torch.get_num_threads()
        _inside += 1
        before = _before
    torch.set_num_threads(1)  # of this thread alone, as is the way back
    try:
        yield
    finally:
        torch.set_num_threads(before)
        with _lock:
            _inside -= 1


class _Reached(Exception):  # noqa: N818 (no error: the way out of a network)
    """The layer is known, and what comes after it is not wanted; safe where threads share a network."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _stop_after(module: Any, inputs: Any, output: Any) -> None:
    raise _Reached(output)


def _stop_before(module: Any, inputs: Any) -> None:
    raise _Reached(inputs[0])


def _shape(module: Module, shape: int | Sequence[int] | None) -> tuple[int, ...]:
    from torch import nn

    if shape is not None:
        sizes = (shape,) if np.ndim(shape) == 0 else tuple(shape)  # type: ignore[arg-type]
        return tuple(as_count(size, "shape", 1) for size in sizes)
    first = next((each for each in module.modules() if isinstance(each, nn.Linear)), None)
    if first is None:
        raise InvalidInputError(
            "shape must be given for a module without a linear layer, got None; pass that of one observation"
        )
    return (int(first.in_features),)


def _observation(numbers: int) -> Floats:
    """Two rows of an observation that is always the same, in [0, 1]."""
    return np.tile(0.5 + 0.5 * np.sin(1.0 + np.arange(numbers)), (2, 1))


def _hash(module: Any) -> str:
    """SHA-256 of the names, types, shapes and bytes of the state_dict."""
    import torch

    digest = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        if isinstance(value, torch.Tensor):
            digest.update(f"{name}:{value.dtype}:{tuple(value.shape)}".encode())
            digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
