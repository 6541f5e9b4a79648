"""All tasks by name: what truth.py measures on.

>>> task = TASKS["queue"]()
>>> task.sample(episodes=100, seed=1)
Trajectories(100 episodes, 100 terminated, 554 transitions, dim 1)
>>> [values.round(3).tolist() for values in task.true([[1], [4]])]
[[3.333, 13.333], [7.935, 15.87]]
"""

import truth_simulators
import truth_tables
from truth_task import TASKS, Task

__all__ = ["TASKS", "Task", "truth_simulators", "truth_tables"]
