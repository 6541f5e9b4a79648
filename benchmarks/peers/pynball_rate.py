"""Actions a second of pynball-rl in its easy maze, which is our simple one; run in its own environment.

Reads numbers of actions from the input, a line each, and answers each with the seconds that it took.
"""

from __future__ import annotations

import importlib.resources
import random
import sys
import time

from pynball_rl import PynBall


def walk(env: PynBall, actions: int) -> None:
    for _ in range(actions):
        try:
            terminal = env.step(random.randrange(5))[2]
        except RuntimeError:  # it gives up where a ball left the square
            terminal = True
        if terminal:
            env.reset()


def main() -> None:
    env = PynBall(importlib.resources.files("pynball_rl.configs") / "easy_config.toml")
    env.reset()
    for line in sys.stdin:
        start = time.perf_counter()
        walk(env, int(line))
        print(time.perf_counter() - start, flush=True)


if __name__ == "__main__":
    main()
