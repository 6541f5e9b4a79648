"""What programs and people rely on, frozen: public names, the command line, summary.json, and numbers.

``python tests/test_frozen.py`` writes what the package says now into ``data/frozen.json``. Do that only for
a change that is meant, and say so in CHANGELOG.md.
"""

from __future__ import annotations

import inspect
import json
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import pytest
import typer
from conftest import Stops

import policyrisk as pr
from policyrisk._core.output import plain
from policyrisk.cli import entry

FILE = Path(__file__).parent / "data" / "frozen.json"
TOLERANCE = 1e-10  # of the largest number of its kind
MODULES = (
    "control",
    "criteria",
    "distributed",
    "domains",
    "errors",
    "features",
    "plotting",
    "readers",
    "testing",
)
LEAVING = {"Falling", "Sarsa", "SarsaResult", "train_pinball", "reproduce", "train"}
# Records that are handed out, and what people ask of them; nobody but the package makes one.
RECORDS = {
    "DistributionFunction": "cdf quantile cvar probability interval mean variance std summary score save "
    "load",
    "Evaluation": "risk summary advice trust check distribution to_dict report save load of metrics "
    "prediction prediction_interval calibrated to_frame",
    "RiskFunction": "mean second_moment variance std sharpe visited episodes standard_error interval summary "
    "score action_mean action_variance covered to_frame save load features second_features w_mean w_second",
}
# What people ask of the things that they make.
MEMBERS = {
    "ActorCritic": "fit",
    "LSTD": "equations exact_equations solve fit fit_exact",
    "LSTDQ": "fit",
    "MDP": "chain improve",
    "MarkovChain": "from_mdp from_log mean second_moment variance std occupancy sample diagnose distribution "
    "reach given covariance lowest drawdown",
    "RadialBasis": "grid",
    "ReturnDistribution": "fit",
    "ReturnForest": "fit",
    "ReturnMonitor": "update mean probability quantile cvar difference save load",
    "TD": "fit partial_fit",
    "TileCoding": "active",
    "Trajectories": "concatenate from_frame returns returns_to_go starts with_clusters with_time_limit",
    "domains.Pinball": "step rollout",
    "domains.Portfolio": "step rollout",
}
CHOSEN_BY_DATA = {"influence", "labels", "quantiles", "cvar", "below", "columns"}  # keys of these are names
STATES = np.array([[0, 0.25], [1, 0.75], [2, 0.5], [3, 0.25]])
PLACES = STATES[:, :1].astype(int)


def test_public_names_and_their_parameters():
    assert names() == frozen()["names"]


def test_commands_and_their_options():
    assert commands() == frozen()["commands"]


def test_keys_of_the_summary(numbers_of):
    found = {}
    for name in ("mixture", "target", "tails"):
        found = merged(found, keys(plain(numbers_of(name).to_dict())))
    assert found == frozen()["summary"]


@pytest.mark.filterwarnings("ignore::policyrisk.errors.FewEpisodesWarning")
@pytest.mark.parametrize(
    "name",
    [
        "spelled",
        "mixture",
        "labels",
        "cut off",
        "target",
        "tails",
        "frame",
        "discounted",
        "resumed",
        pytest.param("on ray", marks=pytest.mark.service),
    ],
)
def test_numbers(name, numbers_of):
    found, expected = numbers(name, numbers_of(name)), frozen()["numbers"][name]
    assert list(found) == list(expected)
    for of, values in found.items():
        scale = np.nanmax(np.abs(np.array(expected[of], float)))
        np.testing.assert_allclose(
            np.array(values, float), np.array(expected[of], float), rtol=0, atol=TOLERANCE * scale, err_msg=of
        )


def test_a_file_a_frame_an_interruption_and_ray_change_nothing():
    """They are ways to the one answer; parts are summed in another order than the whole."""
    numbers = frozen()["numbers"]
    for name in ("frame", "resumed", "on ray"):
        for of, values in numbers[name].items():
            np.testing.assert_allclose(values, numbers["spelled"][of], rtol=1e-9, err_msg=f"{name}: {of}")


@pytest.fixture(scope="module")
def numbers_of(tmp_path_factory):
    """The evaluations, each made once."""
    made = {}

    def one(name):
        if name not in made:
            made[name] = evaluation(name, tmp_path_factory.mktemp("frozen"))
        return made[name]

    return one


def walks(episodes=300, seed=1, longest=1000):
    """A walk along 0, …, 5 under a changing load (quarters): forward with .7, by action 1 with .8.

    Every number is exact in binary, and so are their sums: no machine rounds them differently.
    """
    rng = np.random.default_rng(seed)
    states, rewards, actions, lengths, ended = [], [], [], [], []
    for _ in range(episodes):
        place, length = int(rng.integers(0, 3)), 0
        while place < 5 and length < longest:
            load, action = rng.integers(0, 5) / 4, int(rng.integers(0, 2))
            states.append((place, load))
            actions.append(action)
            rewards.append(-1 - load * (1 + action) / 2)
            place = max(place + (1 if rng.integers(0, 10) < 7 + action else -1), 0)
            length += 1
        states.append((place, rng.integers(0, 5) / 4))
        lengths.append(length)
        ended.append(place == 5)
    return pr.Trajectories(np.array(states, float), rewards, lengths, ended, actions=actions)


def on_places(data):
    """The same episodes, of which the place alone is known."""
    places = data.states[:, :1].astype(int)
    return pr.Trajectories(places, data.rewards, data.lengths, data.terminated, actions=data.actions)


def table(data):
    """The same episodes as rows, each final state in one without a reward; every place has a name."""
    last = np.repeat(np.arange(len(data)), data.lengths + 1)
    ends = np.cumsum(data.lengths + 1) - 1
    reward = np.full(len(last), np.nan)
    reward[np.setdiff1d(np.arange(len(last)), ends)] = data.rewards
    terminated = np.zeros(len(last), bool)
    terminated[ends - 1] = data.terminated
    city = np.array(["Rome", "Oslo", "Bern", "Paris", "Åre", "end"])[data.states[:, 0].astype(int)]
    return pd.DataFrame(
        {
            "episode": last,
            "place": data.states[:, 0],
            "load": data.states[:, 1],
            "city": city,
            "reward": reward,
            "terminated": terminated,
        }
    )


def evaluation(name, folder):
    """One of the ten evaluations."""
    data, spelled = walks(), {"features": "poly:2", "names": ["place", "load"], "seed": 0}
    match name:
        case "spelled":
            return pr.evaluate(data, **spelled)
        case "mixture":
            return pr.evaluate(on_places(data), seed=0)
        case "labels":
            table(data).to_csv(folder / "log.csv", index=False)
            return pr.evaluate(folder / "log.csv", features="labels,shrink=3", state="city", seed=0)
        case "cut off":
            return pr.evaluate(on_places(walks(longest=8)), features="tabular", variance="direct", seed=0)
        case "target":
            return pr.evaluate(on_places(data), features="tabular", target=[[0.25, 0.75]] * 5, seed=0)
        case "tails":
            tails = {"quantiles": [0.05, 0.95], "loss_below": -10}
            return pr.evaluate(on_places(data), features="tabular", **tails, seed=0)
        case "frame":
            return pr.evaluate(table(data), features="poly:2", state=["place", "load"], seed=0)
        case "discounted":
            return pr.evaluate(data, **{**spelled, "discount": 0.9, "lam": 0.5, "nonnegative": True})
        case "resumed":
            parts = Stops([data[:60], data[60:]], last=2)
            kept = {"checkpoint": folder / "sums.npz", "resume": True}
            with pytest.raises(KeyboardInterrupt, match="stopped after 1 part"):
                pr.evaluate(parts, **spelled, **kept)
            return pr.evaluate(parts, **spelled, **kept)
        case "on ray":
            for k, part in enumerate((data[:60], data[60:])):
                pr.write_parquet(part, folder / f"{k}.parquet", state=["place", "load"])
            asked = {"features": "poly:2", "state": ["place", "load"], "seed": 0}
            return pr.evaluate(folder, **asked, on_cluster=True)
    raise AssertionError(name)


def numbers(name, result):
    """What an evaluation says, at states and over the starts."""
    risk, x = result.risk, STATES if result.survey.dim == 2 else PLACES
    found = {of: getattr(risk, of)(x) for of in ("mean", "variance", "std")}
    for of in ("mean", "variance"):
        found[f"standard error of the {of}"] = risk.standard_error(x, of=of)
    found["interval of the std"] = risk.interval(x, of="std")
    summary = result.summary
    for of in ("mean", "std", "sharpe"):
        one = getattr(summary, of)
        found[f"{of} over the starts"] = [one.value, one.low, one.high]
    if result.distribution is not None:
        for of in ("quantile", "cvar"):
            found[f"{of} at 0.05"] = getattr(result.distribution, of)(x, 0.05)
            found[f"interval of the {of} at 0.05"] = result.distribution.interval(x, of=of, q=0.05)
    return {of: np.asarray(values).tolist() for of, values in found.items()}


def names():
    """Public names with their parameters, and what people ask of classes."""
    found = {}
    for module in ("", *MODULES):
        home = import_module(f"policyrisk.{module}".rstrip("."))
        for name in home.__all__:
            if name not in LEAVING:
                full, thing = f"{module}.{name}".lstrip("."), getattr(home, name)
                found[full] = None if full in RECORDS else parameters(thing)
                for member in {**MEMBERS, **RECORDS}.get(full, "").split():
                    field = member in getattr(thing, "__dataclass_fields__", {})
                    static = None if field else inspect.getattr_static(thing, member)
                    found[f"{full}.{member}"] = parameters(static)
    return found


def parameters(thing):
    """The names of the parameters in one line; None for what is not called."""
    thing = getattr(thing, "__func__", thing)
    if not callable(thing):
        return None
    try:
        return " ".join(name for name in inspect.signature(thing).parameters if name not in ("self", "cls"))
    except ValueError:  # a built-in class behind an exception
        return None


def commands():
    """The commands with their arguments and options, by every spelling."""
    found = typer.main.get_command(entry.app).commands
    return {
        name: " ".join(
            sorted(
                spelling for option in command.params for spelling in (*option.opts, *option.secondary_opts)
            )
        )
        for name, command in sorted(found.items())
        if name not in LEAVING
    }


def keys(value):
    """The keys of dictionaries, and of those in them and in lists."""
    if isinstance(value, dict):
        return {key: "*" if key in CHOSEN_BY_DATA else keys(each) for key, each in sorted(value.items())}
    if isinstance(value, list):
        found = {}
        for each in value:
            found = merged(found, keys(each))
        return found
    return {}


def merged(one, other):
    """Both sets of keys."""
    if "*" in (one, other):
        return "*"
    return {key: merged(one.get(key, {}), other.get(key, {})) for key in sorted({*one, *other})}


def frozen():
    """What is frozen."""
    return json.loads(FILE.read_text())


def rewrite():
    """Freeze what the package says now."""
    with TemporaryDirectory() as folder:
        made = {}
        for name in ("spelled", "mixture", "labels", "cut off", "target", "tails", "frame", "discounted"):
            made[name] = evaluation(name, Path(folder))
        for name in ("resumed", "on ray"):
            place = Path(folder, name)
            place.mkdir()
            made[name] = evaluation(name, place)
    summary = {}
    for name in ("mixture", "target", "tails"):
        summary = merged(summary, keys(plain(made[name].to_dict())))
    content = {
        "names": names(),
        "commands": commands(),
        "summary": summary,
        "numbers": {name: numbers(name, result) for name, result in made.items()},
    }
    FILE.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    rewrite()
