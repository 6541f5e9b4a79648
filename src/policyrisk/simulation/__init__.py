"""Running a policy: compiled domains, Gymnasium environments, policies. Here: our environments' names.

Gymnasium 1 no longer looks for environments by itself: whoever has some calls its ``register``. Where
Gymnasium is loaded, ours are registered when policyrisk is imported, or else when the next public name of it
is looked up; ``policyrisk.domains.env``, which needs Gymnasium, registers them when it is
imported. So ``gymnasium.make("policyrisk/Pinball-v0")`` works

    after `import gymnasium` and `import policyrisk`, in this order
    in the other order, where after that a function or class of ours was looked up, such as
    ``policyrisk.rollout``, or a ``policyrisk.domains.Pinball`` was made

and ``gymnasium.make("policyrisk.domains.env:policyrisk/Pinball-v0")`` always: Gymnasium imports the
module in front of the colon.
"""

from __future__ import annotations

import sys

_ENVIRONMENTS = {"Pinball": 10_000, "Portfolio": None}  # domains that are environments, and their time limits
_MODULE = "policyrisk.domains.env"


def register() -> None:
    """Register our environments with Gymnasium, unless they are."""
    from gymnasium.envs import registration

    for domain, limit in _ENVIRONMENTS.items():
        if (name := f"policyrisk/{domain}-v0") not in registration.registry:
            registration.register(
                id=name,
                entry_point=f"{_MODULE}:DomainEnv",
                max_episode_steps=limit,
                kwargs={"domain": domain},
            )


def register_if_loaded() -> None:
    """Register where Gymnasium is loaded; it is not loaded for that."""
    if sys.modules.get("gymnasium") is not None:
        register()
