"""Whatever is passed or read, the answer is a result or an error of ours, no other exception or warning.

Calls are the valid ones of test_inputs_untouched, and some of functions that take plain values and paths,
with one or two arguments replaced; files are valid ones with some bytes changed. What a user's own function
raises is the user's.
"""

from __future__ import annotations

import io
import resource
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import test_env_answers as env_answers
import test_inputs_untouched as untouched
from attack import Call, hostile_values, noted, public
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet as pq
from test_env_answers import Answers, Parts

import policyrisk as pr
from policyrisk.data import read_csv, read_npz, write_npz, write_parquet
from policyrisk.data.columns import Columns

pytestmark = pytest.mark.filterwarnings("ignore::policyrisk.errors.PolicyRiskWarning")

# Uses that take longer than all the others; the long run has them too.
LONG = {"answers", "decision_process", "distributions", "evaluated", "softmax_policy", "written"}
# Arguments that start something else, and methods of which a valid call is no more than its object.
NOT_ATTACKED = {"self", "on_cluster", "workers", "system"}  # the last is a class of systems
# A tenth as often as others in the long run, since they take a tenth of a second or more.
SELDOM = {"MDP.improve", "frontier", "write_report"}
# What optimisers and estimators call inside, with numbers that were checked at their own door.
INNER = {"slopes", "slack", "solve_constrained"}


def plain_values(folder: Path) -> None:
    """Functions that take numbers, texts and paths alone."""
    chain = pr.domains.walk(n=5, p=0.7)
    pr.domains.gambler(5, p=0.4)
    pr.domains.grid_walk(rows=3, columns=3)
    pr.domains.boyan(discount=0.9)
    pr.Tabular(5, dims=[0])
    pr.StepSize(0.1, decay=10.0, power=0.7)
    pr.ReturnForest(trees=4, leaf=5, discount=0.9)
    pr.criteria.MeanMinusStd(1.0)
    pr.criteria.VarianceMeanAtLeast(1.0)
    pr.criteria.CVaR(0.05)
    pr.criteria.Quantile(0.05)
    pr.criteria.MeanMinusVariance(1.0)
    pr.criteria.MeanVarianceAtMost(1.0)
    chain.quantile(0.1)
    chain.cvar(0.1)
    data = chain.sample(0, episodes=20, seed=1, max_steps=50)
    write_npz(data, folder / "a.npz")
    write_parquet(data, folder / "a.parquet")
    risk = pr.LSTD(pr.Tabular(5), lam=0.5, discount=1.0, ridge=0.0).fit(data)
    risk.save(folder / "risk.npz")
    pr.RiskFunction.load(folder / "risk.npz")
    pr.read(folder / "a.npz")
    read_npz(folder / "a.npz", codes=None)
    pr.read_parquet(folder / "a.parquet", batch_rows=10)
    table(folder / "a.csv", data)
    read_csv(folder / "a.csv", state=["x"], codes=None)
    pr.domains.Pinball("box", noise=0.1).sample_starts(2, seed=0)
    pr.domains.Portfolio().sample_starts(2, seed=0)
    pr.criteria.spelled("cvar:0.05")
    chain.moments(3)
    chain.lowest(0)
    chain.drawdown(0)
    monitor = pr.ReturnMonitor(-9.0, 9.0, level=0.9)
    monitor.update([1.0, -2.0, 3.0])
    monitor.quantile(0.1)
    monitor.cvar(0.5)
    monitor.probability(below=0.0)
    for kept in (monitor, pr.ReturnDistribution(pr.Tabular(5), thresholds=10).fit(data)):
        kept.save(folder / "kept.npz")
        type(kept).load(folder / "kept.npz")


def evaluations(folder: Path) -> None:
    """What a default evaluation with tails answers; it takes a second to make."""
    data = pr.domains.walk(n=5, p=0.7).sample(0, episodes=60, seed=1, max_steps=50)
    result = pr.evaluate(data, features="tabular", quantiles=[0.1], loss_below=-6.0, seed=0)
    result.report(folder / "report.html")
    result.save(folder / "evaluation")
    pr.Evaluation.load(folder / "evaluation")
    pr.write_report(result, folder / "report.html", command="policyrisk evaluate")
    pr.compare({"a": result, "b": result}, criterion="cvar:0.1")
    tails = result.distribution
    tails.interval([[1.0]], of="cvar", q=0.1)
    tails.probability([[1.0]], below=-6.0)
    policy = pr.SoftmaxPolicy(pr.Tabular(5), 2)
    policy.save(folder / "policy.npz")
    pr.SoftmaxPolicy.load(folder / "policy.npz")
    drawn = pr.GaussianPolicy(pr.Tabular(5), 1)
    drawn.save(folder / "drawn.npz")
    pr.GaussianPolicy.load(folder / "drawn.npz")
    actions = np.arange(len(data.rewards)) % 2
    acted = pr.Trajectories(data.states, data.rewards, data.lengths, data.terminated, actions=actions)
    pr.evaluate(acted, target=policy, features="tabular", seed=0)


def table(path: Path, data: pr.Trajectories) -> None:
    """Episodes as a CSV file."""
    rows = ["episode,x,reward,terminated"]
    for k, episode in enumerate(data):
        ends = [*[""] * (len(episode.rewards) - 1), "true"]
        for x, r, end in zip(episode.states[:, 0], episode.rewards, ends, strict=False):
            rows.append(f"{k},{x},{r},{end or 'false'}")
    path.write_text("\n".join(rows) + "\n")


def calls_of(folder: Path, left_out: set[str]) -> list[Call]:
    """The valid calls, made here once."""
    uses = [use for use in untouched.DISTINCT if use.__name__ not in left_out]
    some_maps = untouched.maps
    untouched.maps = lambda given: some_maps(given)[:1]
    try:
        begun: list[Callable[[], Any]] = [lambda: plain_values(folder)]
        if "evaluated" not in left_out:
            begun.append(lambda: evaluations(folder))
        begun += [lambda use=use: use(untouched.Given("plain")) for use in uses]
        inner = {"equations.constraint"}  # whose callers have checked what they hand over
        modules = tuple(name for name in untouched.MODULES if name not in inner)
        return noted(begun, public(modules), {__file__, untouched.__file__})
    finally:
        untouched.maps = some_maps


def tries(inputs: int) -> settings:
    """So many inputs, the same ones in every run."""
    every = list(HealthCheck)
    return settings(
        max_examples=inputs, deadline=None, database=None, derandomize=True, suppress_health_check=every
    )


def attack(calls: list[Call], inputs: int, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.chdir(folder)  # where texts that pass for paths are written
    tried: Counter[str] = Counter()
    foreign: dict[str, list[str]] = {}  # by the exception and its place: what brought it about

    @tries(inputs)
    @given(st.data())
    def one(data: Any) -> None:
        call = data.draw(st.sampled_from(calls))
        names = [name for name in call.arguments if name not in NOT_ATTACKED]
        changes, told = {}, []
        for name in data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=2, unique=True)):
            values = hostile_values(call.arguments[name], name)
            kind = data.draw(st.sampled_from(sorted(values)))
            try:
                changes[name] = values[kind]()
            except Exception:
                continue  # this array cannot become that
            told.append(f"{name}: {kind}")
        found = call.attacked(changes, user=(__file__, untouched.__file__))
        tried[call.name] += 1
        if found is not None:
            foreign.setdefault(found, []).append(f"{call.name} ({', '.join(told)})")

    one()
    print(f"\n{sum(tried.values())} inputs to {len(tried)} functions")
    report = [f"{found} <- {calls[0]}, {len(calls)} times" for found, calls in sorted(foreign.items())]
    assert not report, "\n".join(["answers that are not ours:", *report])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("attacked")


def with_arguments(calls: list[Call]) -> list[Call]:
    return [
        call
        for call in calls
        if call.arguments.keys() - NOT_ATTACKED and call.name.rpartition(".")[2] not in INNER
    ]


def test_calls_answer_in_our_words(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = with_arguments(calls_of(folder, LONG))
    assert len({call.name for call in calls}) > 100
    attack(calls, 500, monkeypatch, folder)


@pytest.mark.slow
def test_many_calls_answer_in_our_words(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = with_arguments(calls_of(folder, set()))
    assert len({call.name for call in calls}) > 150
    often = [call for call in calls if call.name not in SELDOM]
    attack([*calls, *often * 9], 90_000, monkeypatch, folder)


@pytest.mark.slow
def test_five_thousand_calls_answer_in_our_words(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = with_arguments(calls_of(folder, set()))
    attack([*calls, *[call for call in calls if call.name not in SELDOM] * 9], 5_000, monkeypatch, folder)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 2 * 2**20  # kilobytes: 2 GB


# --- environments -----------------------------------------------------------------------------------


def actions(observations: Any) -> Any:
    return np.zeros(len(observations), int)


RUNS = {  # what runs an environment, and the environment's answers that it takes
    "rollout": (lambda env: pr.rollout(env, actions, episodes=2, seed=0, max_steps=3), Answers),
    "monte_carlo": (
        lambda env: pr.monte_carlo(env, lambda x: 0, [[0.5, 0.5]], episodes=2, seed=0, max_steps=3),
        Answers,
    ),
    "parts": (lambda env: pr.rollout(env, actions, episodes=2, seed=0), Parts),
}
PLACES = {
    Answers: ("reset", "seen", "reward", "ended", "cut", "told", "whole"),
    Parts: ("seen", "rewards", "done", "infos"),
}


def attack_environments(inputs: int) -> None:
    tried: Counter[str] = Counter()
    foreign: dict[str, str] = {}

    @tries(inputs)
    @given(st.data())
    def one(data: Any) -> None:
        name = data.draw(st.sampled_from(sorted(RUNS)))
        run, make = RUNS[name]
        parts, told = {}, []
        for place in data.draw(st.lists(st.sampled_from(PLACES[make]), min_size=1, max_size=2, unique=True)):
            valid = np.ones(2) if make is Parts or place == "seen" else None
            values = hostile_values(valid)
            kind = data.draw(st.sampled_from(sorted(values)))
            try:
                parts[place] = values[kind]()
            except Exception:
                continue  # this array cannot become that
            told.append(f"{place}: {kind}")
        # An episode that never ends is the environment's.
        found = Call(name, run, {"env": make(**parts)}).attacked({}, user=(env_answers.__file__,))
        tried[name] += 1
        if found is not None:
            foreign.setdefault(f"{name} ({', '.join(told)})", found)

    one()
    print(f"\n{dict(tried)} environments, {len(foreign)} answers that are not ours: {foreign}")
    assert not foreign


def test_environments_are_answered_in_our_words() -> None:
    attack_environments(150)


@pytest.mark.slow
def test_many_environments_are_answered_in_our_words() -> None:
    attack_environments(5_000)


# --- files ------------------------------------------------------------------------------------------


def npz_bytes(data: pr.Trajectories, **headers: bytes) -> bytes:
    """An npz file, with other headers for some of its arrays."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name in ("states", "rewards", "lengths", "terminated"):
            array = io.BytesIO()
            np.lib.format.write_array(array, getattr(data, name))
            content = array.getvalue()
            if name in headers:
                text = headers[name]
                size = 118 - len(text) if len(text) < 118 else 10
                header = text + b" " * size + b"\n"
                content = content[:8] + len(header).to_bytes(2, "little") + header + content[128:]
            archive.writestr(f"{name}.npy", content)
    return out.getvalue()


HEADERS = [
    b"{'descr': '<f8', 'fortran_order': False, 'shape': (10000000000000,), }",
    b"{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999999999999999,), }",
    b"{'descr': '<f8', 'fortran_order': False, 'shape': (-5, -4), }",
    b"{'descr': '<f8', 'fortran_order': False, 'shape': (2.5,), }",
    b"{'descr': '<f8', 'fortran_order': False, 'shape': (True, 3), }",
    b"{'descr': '<f8', 'fortran_order': False, 'shape': 3, }",
    b"{'descr': '<f8', 'fortran_order': 7, 'shape': (3,), }",
    b"{'descr': '|O', 'fortran_order': False, 'shape': (3,), }",
    b"{'descr': '<M8[s]', 'fortran_order': False, 'shape': (3,), }",
    b"{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': (3,), }",
    b"{'descr': '|S0', 'fortran_order': False, 'shape': (9999,), }",
    b"{'descr': '<U8', 'fortran_order': False, 'shape': (), }",
    b"{'descr': 'zz', 'fortran_order': False, 'shape': (3,), }",
    b"{'descr': '<f8', 'shape': (3,), }",
    b"{'descr': '<f8', 'fortran_order': False, 'shape': (3,",
    b"((((((((((((((((((((((((((",
    b"'''",
    b"\xff\xfe\x00",
    b"__import__('os')",
    b"[" * 110,
]


def twice(data: pr.Trajectories) -> bytes:
    """An npz file with one array twice."""
    out = io.BytesIO(npz_bytes(data))
    array = io.BytesIO()
    np.save(array, data.rewards * 2)
    with zipfile.ZipFile(out, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("rewards.npy", array.getvalue())
    return out.getvalue()


@pytest.fixture(scope="module")
def shelf(folder: Path) -> dict[str, bytes]:
    """Valid files, and some that are wrong in ways of their own, by name."""
    data = pr.domains.walk(n=5, p=0.7).sample(0, episodes=8, seed=1, max_steps=20)
    table(folder / "b.csv", data)
    write_parquet(data, folder / "b.parquet")
    pr.LSTD(pr.Tabular(5)).fit(pr.domains.walk(n=5).sample(0, episodes=30, seed=1)).save(folder / "b.risk")
    found = {name: (folder / name).read_bytes() for name in ("b.csv", "b.parquet", "b.risk")}
    found["b.npz"] = npz_bytes(data)
    for k, header in enumerate(HEADERS):
        for name in ("states", "rewards", "lengths", "terminated"):
            found[f"{name}{k}.npz"] = npz_bytes(data, **{name: header})
    kinds = {"x": [pa.string(), pa.binary(), pa.date32(), pa.decimal128(9, 2), pa.bool_(), pa.null()]}
    columns = {
        "episode": [0, 0, 1],
        "x": [1, 2, 3],
        "reward": [1.0, 2.0, 3.0],
        "terminated": [False, True, True],
    }
    for k, kind in enumerate(kinds["x"]):
        for name in columns:
            other = pa.array([None] * 3 if kind == pa.null() else columns[name]).cast(pa.string())
            try:
                typed = {**columns, name: other.cast(kind)}
            except pa.ArrowException:
                typed = {**columns, name: pa.array([None] * 3, kind)}
            out = io.BytesIO()
            pq.write_table(pa.table(typed), out)
            found[f"{name}{k}.parquet"] = out.getvalue()
    text = found["b.csv"]
    found |= {
        "bom.csv": b"\xef\xbb\xbf" + text,
        "ends.csv": text.replace(b"\n", b"\r\n", 3).replace(b"\n", b"\r", 2),
        "nul.csv": text.replace(b"1", b"\0", 2),
        "utf16.csv": text.decode().encode("utf-16"),
        "quotes.csv": text.replace(b",", b',"', 5),
        "header.csv": text.splitlines()[0],
        "huge.csv": text.replace(b"1", b"1" * 400, 2),
    }
    return found


def changed(content: bytes, data: Any) -> bytes:
    """Some bytes of a file are other ones, gone, or there twice."""
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, max(len(content) - 1, 0)))
        end = min(at + data.draw(st.sampled_from([1, 2, 8, 40])), len(content))
        how = data.draw(st.sampled_from(["cut", "flip", "gone", "again", "nul", "ff", "text", "digit"]))
        part = content[at:end]
        if how == "cut":
            content = content[:at]
        elif how == "flip":
            bit = 1 << data.draw(st.integers(0, 7))
            content = (
                content[:at] + bytes([content[at] ^ bit]) * bool(content) + content[at + 1 :]
                if content
                else b""
            )
        else:
            new = {"gone": b"", "again": part * 2, "nul": b"\0" * len(part), "ff": b"\xff" * len(part)}
            content = (
                content[:at]
                + new.get(how, b"9" * len(part) if how == "digit" else b",\"\n'x")
                + content[end:]
            )
    return content


def read_back(path: Path) -> Any:
    if path.suffix == ".risk":
        return pr.RiskFunction.load(path)
    state = {"state": "x"} if (path.suffix != ".npz" and path.stem != "b") or path.suffix == ".csv" else {}
    return pr.read(path, **state).load()


def attack_files(shelf: dict[str, bytes], inputs: int, folder: Path) -> None:
    tried: Counter[str] = Counter()
    foreign: dict[str, str] = {}

    @tries(inputs)
    @given(st.data())
    def one(data: Any) -> None:
        # Half of them begin with a valid file.
        valid = data.draw(st.booleans())
        name = data.draw(st.sampled_from([each for each in sorted(shelf) if each.startswith("b.") == valid]))
        path = folder / f"attacked{Path(name).suffix}" if not name.startswith("b.") else folder / name
        path.write_bytes(changed(shelf[name], data))
        found = Call(name, read_back, {"path": path}).attacked({}, user=(__file__,))
        tried[Path(name).suffix] += 1
        if found is not None:
            foreign.setdefault(found, name)

    one()
    print(f"\n{dict(tried)} files, {len(foreign)} answers that are not ours")
    assert not foreign


def test_files_answer_in_our_words(shelf: dict[str, bytes], folder: Path) -> None:
    attack_files(shelf, 250, folder)


@pytest.mark.slow
def test_many_files_answer_in_our_words(shelf: dict[str, bytes], folder: Path) -> None:
    attack_files(shelf, 10_000, folder)


@pytest.mark.parametrize("header", HEADERS[:3])
def test_a_header_is_not_taken_at_its_word(header: bytes, folder: Path) -> None:
    data = pr.domains.walk(n=5, p=0.7).sample(0, episodes=3, seed=1)
    (folder / "c.npz").write_bytes(npz_bytes(data, rewards=header))
    with pytest.raises(pr.errors.InvalidInputError, match="damaged"):
        pr.read(folder / "c.npz").load()


def test_an_array_that_is_there_twice_is_refused(folder: Path) -> None:
    (folder / "d.npz").write_bytes(twice(pr.domains.walk(n=5, p=0.7).sample(0, episodes=3, seed=1)))
    with pytest.raises(pr.errors.InvalidInputError, match="rewards is there twice"):
        pr.read(folder / "d.npz").load()


def test_many_columns_are_matched_one_by_one() -> None:
    """Where each was looked for among all of them, this took a minute."""
    names = [f"state_{k}" for k in range(20_000)]
    found = Columns().matched(["reward", *names[::-1], "episode", "terminated"], "a file")
    assert found.state == tuple(names)
