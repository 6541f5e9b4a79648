"""Making our environments known to Gymnasium, without importing it.

Gymnasium 1 no longer looks for environments by itself: whoever has some calls its ``register``. Where
Gymnasium is loaded, ours are registered when policyrisk is imported, or else when the next public name of it
is looked up; ``policyrisk.domains.pinball.env`` and its like, which need Gymnasium, register them when they
are imported. So ``gymnasium.make("policyrisk/Pinball-v0")`` works

    after `import gymnasium` and `import policyrisk`, in this order
    in the other order, where after that a function or class of ours was looked up, such as
    ``policyrisk.rollout``, or a ``policyrisk.domains.Pinball`` was made

and ``gymnasium.make("policyrisk.domains.pinball.env:policyrisk/Pinball-v0")`` always: Gymnasium imports the
module in front of the colon.
"""

from __future__ import annotations

import sys

PINBALL = "policyrisk/Pinball-v0"
PORTFOLIO = "policyrisk/Portfolio-v0"


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
    if PORTFOLIO not in registration.registry:
        registration.register(id=PORTFOLIO, entry_point="policyrisk.domains.portfolio.env:PortfolioEnv")


def register_if_loaded() -> None:
    """Register where Gymnasium is loaded; it is not loaded for that."""
    if sys.modules.get("gymnasium") is not None:
        register()
