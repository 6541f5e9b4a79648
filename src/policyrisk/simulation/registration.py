"""Making our environments known to Gymnasium, without importing it.

Gymnasium 1 no longer looks for environments by itself: whoever has some calls its ``register``. So that
``gymnasium.make("policyrisk/Pinball-v0")`` works once policyrisk was imported, before or after Gymnasium,
:func:`register_when_imported` registers at once where Gymnasium is loaded, and otherwise waits for it on
Python's import path. Where policyrisk was not imported at all, Gymnasium does that for the name
``policyrisk:policyrisk/Pinball-v0``.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

__all__ = ["PINBALL", "register", "register_when_imported"]

PINBALL = "policyrisk/Pinball-v0"


def register() -> None:
    """Register our environments with Gymnasium, unless they are."""
    from gymnasium.envs import registration

    if PINBALL not in registration.registry:
        registration.register(
            id=PINBALL,
            entry_point="policyrisk.domains.pinball.env:PinballEnv",
            vector_entry_point="policyrisk.domains.pinball.env:PinballVectorEnv",
            max_episode_steps=10_000,
        )


def register_when_imported() -> None:
    """Register now if Gymnasium is loaded, else as soon as it is."""
    if "gymnasium" in sys.modules:
        register()
    elif not any(isinstance(finder, _Waiting) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Waiting())


class _Waiting(importlib.abc.MetaPathFinder):
    """Finds nothing itself; when Gymnasium is looked for, it lets the others find it, and stops."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "gymnasium":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Registering(spec.loader)
        return spec


class _Registering(importlib.abc.Loader):
    """Another loader, followed by :func:`register`."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self.loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        module.__loader__ = self.loader
        self.loader.exec_module(module)
        register()
