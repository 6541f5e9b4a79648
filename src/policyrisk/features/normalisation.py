"""Observations normalised as they were in training: x ↦ clip((x − mean) / √(var + epsilon), −clip, clip)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from policyrisk._core.arrays import Floats, as_floats, as_number, readonly
from policyrisk._core.records import DAMAGE
from policyrisk.errors import InvalidInputError


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
            with path.open("rb") as handle, np.load(handle, allow_pickle=False) as file:
                given = {name: file[name] for name in file.files}
        except DAMAGE as error:
            raise InvalidInputError(f"{what}, got {path} ({error}); {save}") from error
        if isinstance(given, dict) and {"mean", "var"} <= given.keys():
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

    def spec(self) -> dict[str, Any]:
        """In plain values."""
        values = {"mean": self.mean.tolist(), "var": self.var.tolist()}
        return {**values, "epsilon": self.epsilon, "clip": self.clip}
