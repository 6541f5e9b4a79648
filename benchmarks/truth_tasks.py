"""All tasks by name: what truth.py and truth_intervals.py measure on.

>>> task = TASKS["queue"]()
>>> task.sample(episodes=100, seed=1)
Trajectories(100 episodes, 100 terminated, 554 transitions, dim 1)
>>> [values.round(3).tolist() for values in task.true([[1], [4]])]
[[3.333, 13.333], [7.935, 15.87]]
"""

import truth_simulators
import truth_tables
from truth_task import TASKS, Task

__all__ = ["SETS", "TASKS", "Task", "truth_simulators", "truth_tables"]

# What is chosen by looking at figures is chosen on the first, and the figures of the second are reported.
_TUNING = (
    *("lognormal", "drawdown", "navigation", "machines", "queue", "inventory"),
    *("lake", "queue_cut_5", "network", "mountain_car", "heavy_tails", "blackjack"),
)
SETS = {"tuning": _TUNING, "reporting": tuple(name for name in TASKS if name not in _TUNING)}
