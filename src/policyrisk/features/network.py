"""Features from a network: φ(x) = (1, h(x)), h(x) being what one of its layers gives.

A trained value network, V(x) = wᵀh(x) + c, is linear in its last hidden layer h: the natural features of
states with many coordinates, or of images. *Whitened* features, φ(x) = (1, (U_kᵀ (h(x) − μ)) / √v_k), put few
that are uncorrelated and of one size in place of a layer's many nearly redundant numbers. Observations may be
normalised first as they were in training (:mod:`policyrisk.features.layer`).

Files hold no code. What is saved of a network is the hash of its ``state_dict`` and what h is at one fixed
observation; whoever loads an estimate gives the network again (``RiskFunction.load(path, features=...)``),
and both are compared.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from policyrisk._core.arrays import (
    Floats,
    as_floats,
    as_number,
    as_states,
    describe,
    name_some,
    readonly,
)
from policyrisk._core.devices import Device, cupy, on_gpu, torch_on_one_thread
from policyrisk._core.imports import check_installed
from policyrisk.errors import InvalidInputError, MismatchError
from policyrisk.features.box import as_dims, columns
from policyrisk.features.layer import (
    Normalisation,
    Whitening,
    fixed_observation,
    forward_once,
    input_shape,
    number_type,
    output,
    state_hash,
    stop_at,
)
from policyrisk.features.protocol import FeatureMap, first_fitting, given_features, not_given, register

if TYPE_CHECKING:
    from torch.nn import Module

    from policyrisk.features.spelling import Space

CUT = 1e-6
_NUMBERS = 1 << 22  # of the observations that the network sees at a time
_ROWS = 1 << 13, 1 << 16  # of them at most, on the CPU and on a GPU
# What a file says of one: everything but the network.
_SAVED = ("state", "probe", "layer", "shape", "width", "dims", "normalisation", "whitening", "file")
_TUPLES = ("probe", "shape", "dims")
_CLOSE = 1e-3  # what the same network may differ by, of its largest number, on another machine


class TorchFeatures(FeatureMap):
    """φ(x) = (1, h(x)), h(x) being the output of a layer of a PyTorch module.

    The module is copied, in evaluation mode and without gradients, so that training it further changes
    nothing here. Batch after batch is computed in the module's own precision, and φ put into double
    precision: in single precision a state's φ depends, by rounding, on the batch that it is in; pass
    ``module.double()`` where that matters. Use :meth:`whitened` before a fit, since a layer's numbers are
    usually all but redundant.

    Parameters
    ----------
    module
        The network. States (n, dim) become tensors of its type, of shape (n, *shape).
    layer
        The name of the submodule whose output h is. None is the last hidden layer: the input of the linear
        layer whose output the module returns, a value or the values of actions. Where what it returns is no
        linear layer's output, h is what it returns.
    device
        Where the network runs: "cpu", "cuda" or "auto". ``LSTD.fit(data, device="cuda")`` leaves the
        features of one on the GPU there. (Convolutions on a GPU are rounded as PyTorch is told to; its
        default is TF32.)
    shape
        That of one input; None is what the module's first linear layer takes.
    normalisation
        What was done to observations in training: a VecNormalize of Stable-Baselines3, an npz file or a
        dictionary with ``mean`` and ``var`` (and ``epsilon``, ``clip``).
    dims
        The coordinates that the module sees; all where None.

    Examples
    --------
    >>> import numpy as np
    >>> from torch import nn                                      # doctest: +SKIP
    >>> net = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 1))   # doctest: +SKIP
    >>> phi = TorchFeatures(net)                                  # doctest: +SKIP
    >>> phi.size                                                  # doctest: +SKIP
    65
    >>> risk = LSTD(phi.whitened(data.states)).fit(data)          # doctest: +SKIP
    """

    spelled = "sb3:model.zip,normalisation=stats.npz"
    describes = "the last hidden layer of the value network of a Stable-Baselines3 model, whitened"

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
        self.state = state_hash(self.module)
        self.shape = input_shape(self.module, shape)
        self.dims = as_dims(dims, prod(self.shape))
        self.normalisation = Normalisation.of_training(normalisation, prod(self.shape))
        self.whitening: Whitening | None = None
        self.file: str | None = None  # where the network was read: for messages
        stop_at(self.module, layer, self.shape, self.device)
        h = self._probe()
        self.width = h.size  # of the layer
        # Three numbers that another architecture with the same weights does not have.
        self.probe = tuple(float(f @ h) for f in (np.ones(h.size), np.cos(np.arange(h.size)), h))

    @classmethod
    def over(cls, space: Space, path: str, normalisation: str | None = None) -> TorchFeatures:
        """The last hidden layer of a saved model's value network, whitened at the data's states."""
        from policyrisk.features.sb3 import from_sb3

        phi = from_sb3(path, normalisation=normalisation, dims=space.dims)
        return phi.whitened(space.sample.visited)

    @cached_property
    def _arguments(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _SAVED}

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

    def on_module(self, module: Module | TorchFeatures) -> TorchFeatures:
        """These features with their network given again; another one is an error."""
        if isinstance(module, TorchFeatures):
            other, device, sought = module.module, module.device, module
        else:
            other, device, sought = module, "cpu", None
        if sought is None or (sought.layer, sought.shape) != (self.layer, self.shape):
            sought = TorchFeatures(other, self.layer, device, shape=self.shape)  # type: ignore[arg-type]
        if sought.state != self.state:
            raise MismatchError(
                f"features must be the network that was saved, whose state_dict has the hash "
                f"{self.state[:16]}…, got one with {sought.state[:16]}…; pass the same weights"
            )
        if not self._computes_as(sought):
            raise MismatchError(
                "features must compute what the saved network did, got the same weights with another result; "
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
        with torch_on_one_thread():
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
            whose = "the network" + ("" if self.file is None else f" of {self.file!r}")
            raise not_given(whose)
        if self.normalisation is not None:
            mean, deviation = self._tensors[:2]
            clip = self.normalisation.clip
            x = ((x - mean) / deviation).clamp(-clip, clip)
        x = x.to(self._type).reshape(len(x), *self.shape)
        h = output(self.module, x)
        if not isinstance(h, torch.Tensor) or h.ndim < 1 or len(h) != len(x):
            what = "tensors" if not isinstance(h, torch.Tensor) else describe(tuple(h.shape))
            raise InvalidInputError(
                f"module must give a tensor with a row for each of {len(x)} observations, got {what}; name "
                "a layer= whose output is one"
            )
        return h.reshape(len(x), -1)

    def _computes_as(self, other: TorchFeatures) -> bool:
        """Whether the other network gives the same at the fixed observation, but for rounding."""
        atol = _CLOSE * max(map(abs, self.probe))
        return self.width == other.width and np.allclose(other.probe, self.probe, _CLOSE, atol)

    def _probe(self) -> Floats:
        """h at one fixed observation, (width,)."""
        import torch

        forward_once(self.module, self.shape, self.device)
        x = torch.from_numpy(fixed_observation(prod(self.shape))).to(self.device)
        bare = self._with(normalisation=None)
        probe: Floats = bare._h(x)[0].to(torch.float64).cpu().numpy()
        return probe

    @cached_property
    def _type(self) -> Any:
        return number_type(self.module)

    @cached_property
    def _tensors(self) -> tuple[Any, ...]:
        """Mean and deviation of observations, −μᵀ components and components, where the network is."""
        import torch

        parts: list[Floats | None] = [None] * 4
        if self.normalisation is not None:
            parts[:2] = self.normalisation.mean, self.normalisation.deviation
        if self.whitening is not None:
            parts[2:] = -self.whitening.mean @ self.whitening.components, self.whitening.components
        return tuple(None if each is None else torch.tensor(each, device=self.device) for each in parts)

    def _with(self, **changes: Any) -> TorchFeatures:
        """The same with other attributes, the network shared."""
        made = object.__new__(TorchFeatures)
        made.__setstate__({**self.__getstate__(), **changes})
        return made

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

    __hash__ = FeatureMap.__hash__

    def __repr__(self) -> str:
        name = "a module to be given" if self.module is None else type(self.module).__name__
        layer = "" if self.layer is None else f", layer={self.layer!r}"
        return f"TorchFeatures({name}{layer}, size={self.size}, device={self.device!r})"

    @classmethod
    def of_spec(cls, **saved: Any) -> TorchFeatures:
        """The way back from :meth:`spec`, with the network that is at hand, or without one."""
        if saved.keys() != set(_SAVED):
            raise TypeError(f"a network is saved as {', '.join(_SAVED)}")
        if not isinstance(saved["normalisation"], Mapping | None):  # a text would be the path of a file
            raise InvalidInputError(f"spec's normalisation must be numbers, got {saved['normalisation']!r}")
        width = int(saved["width"])
        if (white := saved["whitening"]) is not None:
            mean = as_floats(white["mean"], "whitening's mean", (width,))
            components = as_floats(white["components"], "whitening's components", (width, None))
            white = Whitening(readonly(mean), readonly(components), float(white["cut"]))
        made = object.__new__(cls)
        tuples = {name: None if saved[name] is None else tuple(saved[name]) for name in _TUPLES}
        made.__setstate__(
            saved
            | tuples
            | {"module": None, "device": "cpu", "width": width, "whitening": white}
            | {"normalisation": Normalisation.of(saved["normalisation"])}
        )
        networks = (
            each
            for each in given_features()
            if isinstance(each, TorchFeatures) or hasattr(each, "state_dict")
        )
        return first_fitting(networks, made.on_module, made)


register("TorchFeatures", TorchFeatures)
