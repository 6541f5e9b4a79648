"""A cluster whose head is gone: an error of ours, within the time that it names.

The head and the driver are processes of their own, which Ray may end as it likes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.service

HEAD = """
import json, sys
from ray.cluster_utils import Cluster
size = {"num_cpus": 1, "object_store_memory": 100 * 2**20, "include_dashboard": False}
cluster = Cluster(initialize_head=True, head_node_args=size)
processes = cluster.head_node.all_processes
pids = [each.process.pid for name in ("gcs_server", "raylet") for each in processes[name]]
print(json.dumps({"address": cluster.address, "pids": pids}), flush=True)
sys.stdin.read()
cluster.shutdown()
"""

DRIVER = """
import sys, time
from pathlib import Path
import policyrisk as pr
from policyrisk.distributed import session
from ray import cloudpickle

cloudpickle.register_pickle_by_value(sys.modules["__main__"])
session.LOST_AFTER = 5.0
address, folder = sys.argv[1], Path(sys.argv[2])


class Slow:
    def __iter__(self):
        (folder / "begun").touch()
        time.sleep(600)
        yield from ()


try:
    with pr.distributed.cluster(address):
        pr.distributed.equations(pr.LSTD(pr.Tabular(5)), [Slow()])
except pr.errors.WorkerError as error:
    print("told:", error, flush=True)
"""


def test_a_head_that_is_gone_is_an_error_that_names_the_time(tmp_path: Path) -> None:
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    start = {"env": {**os.environ, **quiet}, "text": True, "stdout": subprocess.PIPE}
    head = subprocess.Popen([sys.executable, "-c", HEAD], stdin=subprocess.PIPE, **start)
    try:
        made = json.loads(head.stdout.readline())
        (tmp_path / "driver.py").write_text(DRIVER)
        command = [sys.executable, str(tmp_path / "driver.py"), made["address"], str(tmp_path)]
        driver = subprocess.Popen(command, stderr=subprocess.STDOUT, **start)
        try:
            while not (tmp_path / "begun").exists():
                assert driver.poll() is None, driver.communicate()[0]
                time.sleep(0.1)
            for pid in made["pids"]:
                os.kill(pid, signal.SIGKILL)
            told = driver.communicate(timeout=120)[0]  # Ray's own 60 s would end it with nothing told
        finally:
            driver.kill()
    finally:
        head.communicate(timeout=60)
    assert driver.returncode == 0, told
    assert f"{made['address']} did not for 5 seconds" in told
