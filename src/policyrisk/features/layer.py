"""A layer of a network: the observations that it was trained on, what it gives, and few numbers for many.

Observations are *normalised* as they were in training (:class:`Normalisation`). A network is left where its
layer h is known (:func:`stop_at`); ``layer=None`` is the last hidden layer, the input of the linear layer
whose output the network returns. *Whitened* (:class:`Whitening`), by a principal component analysis of h at
some states, with mean μ and covariance U diag(v) Uᵀ, v_1 ≥ v_2 ≥ …, h becomes

    (U_kᵀ (h − μ)) / √v_k,    k running over the components with v_k > cut · v_1
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from policyrisk._core.arrays import Floats, as_count, as_floats, as_number, describe, readonly
from policyrisk._core.files import DAMAGE, read_arrays
from policyrisk.errors import InvalidInputError

if TYPE_CHECKING:
    from torch.nn import Module


def stop_at(module: Any, layer: str | None, shape: tuple[int, ...], device: str) -> None:
    """Let a network of observations of this shape be left where the layer is known."""
    from torch import nn

    if layer is not None:
        known = dict(module.named_modules(remove_duplicate=False))
        if layer not in known:
            names = ", ".join(name for name in known if name)
            raise InvalidInputError(
                f"layer must name a submodule, one of {names or 'none'}, got {layer!r}; pass one of these"
            )
        found = known[layer]
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
        returned = forward_once(module, shape, device)
    finally:
        for hook in hooks:
            hook.remove()
    if outputs and hasattr(returned, "data_ptr"):
        last, value = outputs[-1]
        # The same numbers, perhaps in another shape.
        if value.data_ptr() == returned.data_ptr() and value.numel() == returned.numel():
            last.register_forward_pre_hook(_stop_before)


def forward_once(module: Any, shape: tuple[int, ...], device: str) -> Any:
    """The output for the observation that is always the same; an error where the network takes none such."""
    import torch

    x = torch.from_numpy(fixed_observation(prod(shape))).to(device, number_type(module))
    try:
        return output(module, x.reshape(2, *shape))
    except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError) as error:
        raise InvalidInputError(
            f"module must take observations of shape {describe((None, *shape))}, got an error "
            f"({str(error).splitlines()[0]}); pass shape=, that of one observation"
        ) from error


def output(module: Any, x: Any) -> Any:
    """The layer's output if :func:`stop_at` named one, else what the network returns."""
    import torch

    with torch.no_grad():
        try:
            return module(x)
        except _Reached as reached:
            return reached.value


def number_type(module: Any) -> Any:
    """The type of the module's first number."""
    import torch

    numbers = (each.dtype for each in module.state_dict().values() if each.is_floating_point())
    return next(numbers, torch.float32)


class _Reached(Exception):  # noqa: N818 (no error: the way out of a network)
    """The layer is known, and what comes after it is not wanted; safe where threads share a network."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _stop_after(module: Any, inputs: Any, output: Any) -> None:
    raise _Reached(output)


def _stop_before(module: Any, inputs: Any) -> None:
    raise _Reached(inputs[0])


def input_shape(module: Module, shape: int | Sequence[int] | None) -> tuple[int, ...]:
    """That of one observation: as it is given, or what the first linear layer takes."""
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


def fixed_observation(numbers: int) -> Floats:
    """Two rows of an observation that is always the same, in [0, 1]."""
    return np.tile(0.5 + 0.5 * np.sin(1.0 + np.arange(numbers)), (2, 1))


def state_hash(module: Any) -> str:
    """SHA-256 of the names, types, shapes and bytes of the state_dict."""
    import torch

    digest = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        if isinstance(value, torch.Tensor):
            digest.update(f"{name}:{value.dtype}:{tuple(value.shape)}".encode())
            digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class Normalisation:
    """x ↦ clip((x − mean) / √(var + epsilon), −clip, clip), as Stable-Baselines3's VecNormalize does it."""

    mean: Floats  # (dim,)
    var: Floats  # (dim,)
    epsilon: float = 1e-8
    clip: float = 10.0

    @classmethod
    def of_training(cls, value: Any, numbers: int, whose: str = "an observation") -> Normalisation | None:
        """A caller's, as :meth:`of`, for observations of so many numbers."""
        found = cls.of(value)
        if found is not None and found.mean.size != numbers:
            raise InvalidInputError(
                f"normalisation must have {numbers} numbers, one for each of {whose}, got {found.mean.size}; "
                "pass that of its training"
            )
        return found

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
            given = read_arrays(path)
        except DAMAGE as error:
            raise InvalidInputError(f"{what}, got {path} ({error}); {save}") from error
        if {"mean", "var"} <= given.keys():
            return cls.of(given)
        raise InvalidInputError(f"{what}, got {path}; {save}")

    @property
    def deviation(self) -> Floats:
        """√(var + epsilon), of shape (dim,)."""
        deviation: Floats = np.sqrt(self.var + self.epsilon)
        return deviation

    def __call__(self, x: npt.NDArray[Any]) -> Floats:
        """Observations (n, dim) as they were in training."""
        return ((x - self.mean) / self.deviation).clip(-self.clip, self.clip)


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
