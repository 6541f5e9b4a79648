"""The README's tables of what one has: every line runs on data of that kind, and answers what it should."""

import importlib.util
import re
import shlex
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import policyrisk as pr
from policyrisk import cli
from policyrisk.control import pinball_policy
from policyrisk.errors import PolicyRiskWarning

README = (Path(__file__).parent.parent / "README.md").read_text()
TABLES = README.split("## What you have")[1].split("## ")[0]
LINES = re.findall(r"^\| (.*?) \| `([^`]*)` \|$", TABLES, re.MULTILINE)
SB3 = importlib.util.find_spec("stable_baselines3") is not None
FEWER = {
    "episodes=300": "episodes=60",
    "--episodes 300": "--episodes 60",
    "episodes=500)": "episodes=500, seed=2)",
}  # so that the tests are short


def policy(observations):
    """For CartPole: push where the pole leans, which does not keep it up for long."""
    return (observations[:, 2] > 0).astype(int)


@pytest.fixture(scope="module")
def steps():
    """Episodes in the plane, a row a step: 80 walks to the right of x = 1."""
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    rows = []
    for episode in range(80):
        x, y = rng.random(2) * 0.5
        while x < 1:
            x += 0.3 * rng.random()
            rows.append((episode, x, y, rng.normal(1.0, 0.5 + y), x >= 1))
    return pandas.DataFrame(rows, columns=["episode", "x", "y", "reward", "terminated"])


@pytest.fixture(scope="module")
def place(tmp_path_factory, steps):
    """A folder with everything that the lines name, and the names that they use."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "logs").mkdir()
    for part in range(2):
        half = steps[steps["episode"] % 2 == part]
        half.to_parquet(folder / "logs" / f"{part}.parquet", index=False)
    (folder / "my_module.py").write_text(
        "def policy(observations):\n    return (observations[:, 2] > 0).astype(int)\n"
    )
    if SB3:
        from stable_baselines3 import PPO

        PPO("MlpPolicy", "CartPole-v1", n_steps=64, seed=0, device="cpu").save(folder / "model.zip")
    names = {
        "pr": pr,
        "policy": policy,
        "frame": steps.rename(columns={"episode": "id", "reward": "profit"}),
        "P": np.array([[0.3, 0.5], [0.6, 0.0]]),
        "r": np.array([1.0, 3.0]),
        "P_actions": np.array([[[0.3, 0.5], [0.6, 0.0]], [[0.3, 0.5], [0.6, 0.0]]]),
        "probabilities": np.full((2, 2), 0.5),
        "simulator": pr.domains.Pinball(),
        "states": np.array([[0.1, 0.9, 0.0, 0.0], [0.8, 0.1, 0.0, 0.0]]),
    }
    return folder, names


@pytest.fixture
def minari_data(tmp_path, monkeypatch):
    """A dataset of Minari: 40 episodes of CartPole at random."""
    minari = pytest.importorskip("minari")
    from gymnasium import make
    from minari.data_collector import EpisodeBuffer

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    env = make("CartPole-v1")
    env.action_space.seed(0)
    buffers = []
    for k in range(40):
        x, _ = env.reset(seed=k)
        observations, actions, rewards, ends, cuts = [x], [], [], [], []
        while not ends or not (ends[-1] or cuts[-1]):
            action = env.action_space.sample()
            x, reward, end, cut, _ = env.step(action)
            for values, value in zip(
                (observations, actions, rewards, ends, cuts), (x, action, reward, end, cut), strict=True
            ):
                values.append(value)
        buffers.append(
            EpisodeBuffer(
                id=k,
                seed=k,
                observations=observations,
                actions=actions,
                rewards=rewards,
                terminations=ends,
                truncations=cuts,
            )
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Minari's, about an author and the like
        minari.create_dataset_from_buffers("walk/test-v0", buffers, env=env)


def test_the_table_has_all_kinds():
    told = " ".join(have for have, _ in LINES)
    for kind in ("Gymnasium", "Stable-Baselines3", "data frame", "Parquet", "Minari", "model:", "simulator"):
        assert kind in told
    assert len(LINES) == 12


# Those of the shell make reports, which takes some seconds each: one of them is in the short run.
@pytest.mark.parametrize(
    "line",
    [
        pytest.param(line, marks=[pytest.mark.slow] if "policyrisk" in line and "logs" not in line else [])
        for _, line in LINES
    ],
    ids=lambda line: line[:60],
)
def test_the_line_runs(line, place, tmp_path, monkeypatch, request):
    if "model.zip" in line and not SB3:
        pytest.skip("Stable-Baselines3 is not installed (make test-all installs it)")
    if "minari" in line:
        request.getfixturevalue("minari_data")
    folder, names = place
    monkeypatch.chdir(folder)
    for long, short in FEWER.items():
        line = line.replace(long, short)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PolicyRiskWarning)  # few episodes
        if line.startswith("policyrisk "):
            line = line.replace("results/mine", str(tmp_path / "mine"))
            for command in line.split(" && "):
                assert cli.run(shlex.split(command)[1:]) == 0
            sys.modules.pop("my_module", None)
            assert (tmp_path / "mine" / "report.html").stat().st_size < 3_000_000
            answer = pr.Evaluation.load(tmp_path / "mine")
        else:
            answer = eval(line, names | ({"policy": pinball_policy()} if "simulator" in line else {}))
    if isinstance(answer, pr.Evaluation):
        summary = answer.summary
        assert summary.mean.low < summary.returns.mean < summary.mean.high
    elif "monte_carlo" in line:
        found = pr.monte_carlo(names["simulator"], pinball_policy(), names["states"], 500, seed=1)
        assert (np.abs(answer - found.std) < 10 * found.std_se).all()
    else:
        np.testing.assert_allclose(answer, np.sqrt([29.0625, 26.8125]))  # docs/start.md has it by hand
