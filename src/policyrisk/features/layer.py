"""A layer of a network: what it gives, without what comes after it, and how the network is known again.

``layer=None`` is the last hidden layer: the input of the linear layer whose output the network returns.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from policyrisk._core.arrays import Floats, as_count, describe
from policyrisk.errors import InvalidInputError

if TYPE_CHECKING:
    from torch.nn import Module


def stop_at(module: Any, layer: str | None, shape: tuple[int, ...], device: str) -> None:
    """Let a network of observations of this shape be left where the layer is known."""
    from torch import nn

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
    """What the layer gives where :func:`stop_at` was told one, else what the network returns."""
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
