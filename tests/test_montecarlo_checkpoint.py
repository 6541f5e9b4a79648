"""Checkpoints of Monte Carlo: runs that are killed or interrupted, and files that belong to another run."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from noise_simulator import BLOCKS_OF_16, Noise, run_noise, same

import policyrisk as pr
from policyrisk.domains.pinball import Pinball, UniformPolicy
from policyrisk.errors import InvalidInputError, MismatchError
from policyrisk.passes import checkpoint
from policyrisk.returns import MonteCarlo, monte_carlo
from policyrisk.returns.monte_carlo import COUNT
from policyrisk.returns.monte_carlo import _identity as identity
from policyrisk.simulation import register

register()
ABC = ([[0.3, 0.5], [0.6, 0.0]], [1.0, 3.0])


def interrupt_after(blocks: int) -> Callable[[int, int], None]:
    calls = iter(range(10**9))

    def progress(done: int, total: int) -> None:
        if next(calls) + 1 == blocks:
            raise KeyboardInterrupt

    return progress


def interrupted(path: Path, blocks: int = 5, seed: Any = 11) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_noise(path, seed=seed, progress=interrupt_after(blocks))


def test_an_interrupt_saves_and_says_so_and_the_run_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "mc.npz"
    with pytest.raises(
        KeyboardInterrupt, match=r"stopped after 66 of 100 episodes, saved in .*mc.npz; go on"
    ):
        run_noise(path, progress=interrupt_after(5))
    calls: list[tuple[int, int]] = []
    same(run_noise(), run_noise(path, resume=True, progress=lambda *call: calls.append(call)))
    assert calls[0] == (66, 100)
    assert calls[-1] == (100, 100)
    simulator = Noise()
    again = monte_carlo(
        simulator, None, [0.0, 5.0], 50, 11, max_steps=BLOCKS_OF_16, checkpoint=path, resume=True
    )
    same(run_noise(), again)
    assert not simulator.seen  # it was finished
    with pytest.raises(KeyboardInterrupt, match="nothing is kept without checkpoint"):
        run_noise(progress=interrupt_after(5))


class Interrupting:
    """A trace function that presses Ctrl-C before the given line, counted over all lines of the package."""

    def __init__(self, place: int) -> None:
        self.homes = tuple(str(Path(module.__file__).parent) for module in (pr.returns, checkpoint))
        self.left = place

    def __call__(self, frame: Any, event: str, arg: Any) -> Any:
        if not frame.f_code.co_filename.startswith(self.homes):
            return None
        self.left -= event == "line"
        if self.left == 0:
            sys.settrace(None)
            raise KeyboardInterrupt
        return self


def test_an_interrupt_at_any_line_counts_every_episode_once(tmp_path: Path) -> None:
    def run(path: Path | None, resume: bool = False) -> MonteCarlo:
        return monte_carlo(
            Noise(), None, [0.0], 32, 11, max_steps=BLOCKS_OF_16, checkpoint=path, resume=resume
        )

    undisturbed, interrupts, finished = run(None), 0, False
    before = sys.gettrace()
    while not finished:
        path = tmp_path / f"{interrupts}.npz"
        try:
            sys.settrace(Interrupting(1 + interrupts))
            result = run(path)
            finished = True
        except KeyboardInterrupt:
            result = run(path, resume=True)
            interrupts += 1
        finally:
            sys.settrace(before)
        same(undisturbed, result)
    assert interrupts > 80


def test_without_a_seed_the_random_key_is_kept_in_the_file(tmp_path: Path) -> None:
    path, copy = tmp_path / "mc.npz", tmp_path / "copy.npz"
    interrupted(path, seed=None)
    copy.write_bytes(path.read_bytes())
    first = run_noise(path, seed=None, resume=True)
    same(first, run_noise(copy, seed=None, resume=True))
    assert (first.mean != run_noise(seed=None).mean).all()


CHILD = """
import time
from types import SimpleNamespace
import numpy as np
from policyrisk.returns import monte_carlo
from policyrisk.passes import checkpoint
checkpoint._EVERY = checkpoint._PATIENCE = 0.0
class Noise:
    def __repr__(self):
        return "Noise"
    def returns(self, policy, starts, episodes, seed, max_steps, discount):
        time.sleep(0.004)
        g = np.repeat(starts[:, 0], episodes) + np.random.default_rng(seed).random(len(starts) * episodes)
        return SimpleNamespace(returns=g, lengths=np.ones(g.size, int), terminated=np.ones(g.size, bool))
print("ready", flush=True)
call = dict(simulator=Noise(), policy=None, states=[0.0, 5.0, 7.0], episodes=2000, seed=12)
monte_carlo(**call, max_steps={steps}, checkpoint={path!r}, resume=True).save({result!r})
"""


@pytest.mark.parametrize("kills", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_a_run_that_is_killed_again_and_again_ends_as_if_it_had_not_been(kills: int, tmp_path: Path) -> None:
    path, out = tmp_path / "mc.npz", tmp_path / "result.npz"
    text = CHILD.format(tests=str(Path(__file__).parent), steps=BLOCKS_OF_16, path=str(path), result=str(out))
    rng = np.random.default_rng(kills)
    done = [0]
    for _ in range(kills):
        child = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE)
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        time.sleep(rng.uniform(0.0, 1.5 / kills))
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        if path.exists():
            _, table = checkpoint.stored_checkpoint(path, "monte_carlo")
            done.append(int(table[COUNT].sum()))
    assert done == sorted(done)
    assert 0 < max(done) < 6000  # killed in the middle
    subprocess.run([sys.executable, "-c", text], check=True, stdout=subprocess.DEVNULL)
    undisturbed = monte_carlo(Noise(), None, [0.0, 5.0, 7.0], 2000, 12, max_steps=BLOCKS_OF_16)
    same(MonteCarlo.load(out), undisturbed)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "simulator": ({"simulator": Noise(1.0)}, r"simulator was Noise\(0.0\) and is Noise\(1.0\)"),
    "policy": ({"policy": UniformPolicy(5)}, "policy was None and is UniformPolicy"),
    "states": ({"states": [0.0, 6.0]}, "states was 2 states of dimension 1 #.* and is 2 states"),
    "episodes": ({"episodes": 60}, "episodes was 50 and is 60"),
    "seed": ({"seed": 12}, "seed was"),
    "discount": ({"discount": 0.9}, "discount was 1.0 and is 0.9"),
    "max_steps": ({"max_steps": BLOCKS_OF_16 + 1}, "max_steps was"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_checkpoint_of_another_problem_is_refused_by_name(name: str, tmp_path: Path) -> None:
    path = tmp_path / "mc.npz"
    interrupted(path)
    before = path.read_bytes()
    change, match = REFUSED[name]
    call = {
        "simulator": Noise(),
        "policy": None,
        "states": [0.0, 5.0],
        "episodes": 50,
        "seed": 11,
        "max_steps": BLOCKS_OF_16,
        **change,
    }
    with pytest.raises(MismatchError, match=f"(?s)same problem.*{match}.*begin another"):
        monte_carlo(**call, checkpoint=path, resume=True)
    assert path.read_bytes() == before


def test_what_tells_simulators_apart() -> None:
    tell = identity
    assert tell(Pinball("simple")) == tell(Pinball("simple"))
    different = [Pinball("simple"), Pinball("simple", noise=0.02), Pinball("box"), pr.MarkovChain(*ABC)]
    different += [pr.MarkovChain(ABC[0], [1.0, 2.0]), UniformPolicy(4), UniformPolicy(5), same, len]
    different += [
        gym.make("policyrisk/Pinball-v0", maze=maze, noise=noise)
        for maze in ("box", "simple")
        for noise in (0.0, 0.1)
    ]
    different += [gym.make("policyrisk/Pinball-v0", max_episode_steps=limit) for limit in (10, 20)]
    assert len({tell(thing) for thing in different}) == len(different)
    assert "0x" not in tell(same)

    class Table:
        def __init__(self, *weights: float) -> None:
            self.weights = weights

        def compiled(self) -> tuple[int, np.ndarray]:
            return 4, np.array(self.weights)

    assert tell(Table(1.0, 2.0)) == tell(Table(1.0, 2.0)) != tell(Table(1.0, 3.0))


def test_files_that_must_not_be_lost_are_not(tmp_path: Path) -> None:
    path = tmp_path / "mc.npz"
    interrupted(path)
    with pytest.raises(InvalidInputError, match=r"unfinished run, got .* with 66 of 100 .* resume=True"):
        run_noise(path)
    run_noise(path, resume=True)
    run_noise(path, seed=13)  # a finished one may be replaced
    path.write_bytes(path.read_bytes()[:-40])
    for resume in (False, True):
        with pytest.raises(InvalidInputError, match="checkpoint must be a new file or one that monte_carlo"):
            run_noise(path, resume=resume)
    run_noise().save(other := tmp_path / "other.npz")
    with pytest.raises(InvalidInputError, match="checkpoint must be a new file or one that monte_carlo"):
        run_noise(other)
    MonteCarlo.load(other)
    with pytest.raises(InvalidInputError, match="checkpoint must be a file that can be written"):
        run_noise(other / "mc.npz")
    assert sorted(tmp_path.iterdir()) == [path, other]


def test_a_full_disk_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint.records, "save", full)
    with pytest.raises(InvalidInputError, match=r"checkpoint must be .* No space left on device.* make room"):
        run_noise(tmp_path / "mc.npz")
