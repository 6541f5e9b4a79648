"""Files from elsewhere: none runs code or fills the memory, and what one says is a result or our error.

The files are written by the library and then changed: bytes of them, or their contents under a checksum that
is right for these. :data:`KINDS` has a file of every kind that is loaded, and what is asked of it then.
"""

from __future__ import annotations

import contextlib
import io
import resource
import subprocess
import sys
import time
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import scipy.sparse as sp
from attack import PATIENCE, Call, Forgery
from pyarrow import parquet as pq

import policyrisk as pr
from policyrisk.cli import run
from policyrisk.control import GreedyPolicy
from policyrisk.data import read_npz, write_npz, write_parquet
from policyrisk.errors import InvalidInputError
from policyrisk.evaluation import Evaluation
from policyrisk.evaluation.folder import _digest
from policyrisk.features import Labels, from_spec
from policyrisk.features import protocol as maps
from policyrisk.features.layer import Normalisation
from policyrisk.features.sb3 import _members
from policyrisk.lstd.residuals import _columns_of
from policyrisk.passes.checkpoint import DurableReduce
from policyrisk.returns import MonteCarlo

pytestmark = pytest.mark.filterwarnings("ignore::policyrisk.errors.PolicyRiskWarning")

N = 6
WALK = pr.domains.walk(n=N, p=0.7)
DATA = WALK.sample(0, episodes=60, seed=1, max_steps=30)
AT = [[0.0], [3.0]]
LOW, HIGH = [0], [N - 1]


def line(x: np.ndarray) -> np.ndarray:
    """A user's own features."""
    return np.hstack([np.ones_like(x), x])


def careful(x: np.ndarray) -> np.ndarray:
    """A user's own policy."""
    return np.full((len(x), 2), 0.5)


@dataclass(frozen=True)
class Kind:
    """A file, what writes it, and what is asked of what is loaded from it."""

    write: Callable[[Path], Any]
    ask: Callable[[Path], Any]


def ask_risk(path: Path, **given: Any) -> None:
    risk = pr.RiskFunction.load(path, **given)
    print(risk, repr(risk), risk.mean(AT), risk.variance(AT), risk.episodes(AT), risk.to_frame(AT))
    if risk.error_bars is not None:
        print(risk.interval(AT, of="variance"), risk.interval(AT, of="std"))
    print(risk.summary(AT), risk.summary().to_dict() if risk.starts is not None else "")
    risk.save(path.with_suffix(".again"))


def ask_distribution(path: Path) -> None:
    dist = pr.DistributionFunction.load(path)
    print(dist, dist.cdf(AT, -3.0), dist.quantile(AT, 0.1), dist.cvar(AT, 0.1), dist.summary(AT))
    print(dist.interval(AT, of="quantile", q=0.1))


def ask_evaluation(path: Path) -> None:
    """Of a folder; of what was forged in it the digests are right, too."""
    folder = path.parent
    found = Evaluation.load(folder)
    print(found, found.advice, found.summary, found.to_dict(), found.outside(AT), found.unvisited_share)
    if found.distribution is not None:
        tails = found.distribution
        print(tails.quantile(AT, 0.2), tails.interval(AT, of="cvar", q=0.1))
        print(tails.probability(AT, below=-9.0))
    print(pr.gate(found, found, "mean", 1.0), found.risk.interval(AT, of="variance"))
    assert run(["query", str(folder), "--at", "3", "--quiet"]) in (0, 1)


def ask_policy(cls: Any, path: Path) -> None:
    policy = cls.load(path)
    print(policy, policy(AT))


def ask_monitor(path: Path) -> None:
    monitor = pr.ReturnMonitor.load(path)
    print(monitor, monitor.quantile(0.1), monitor.cvar(0.1), monitor.probability(below=-9.0))
    monitor.update([-3.0])
    print(monitor.to_dict())


def ask_monte_carlo(path: Path) -> None:
    found = MonteCarlo.load(path)
    print(found, found.to_dict(), found.interval(of="mean"), found.cut_off_share)


def checkpoint(path: Path, resume: bool) -> DurableReduce:
    return DurableReduce([DATA[:30], DATA[30:]], path, {"data": "walk"}, resume=resume)


def stop_halfway(path: Path) -> None:
    fold = checkpoint(path, resume=False)
    lstd = pr.LSTD(pr.Tabular(N))
    lstd.fit_by(fold)
    fold.checkpoint.save(([fold._state[0][0]], None, 0))


def go_on(path: Path) -> None:
    print(pr.LSTD(pr.Tabular(N)).fit_by(checkpoint(path, resume=True)).mean(AT))


def fitted(features: Any, **settings: Any) -> Callable[[Path], None]:
    return lambda path: pr.LSTD(features, **settings).fit(DATA).save(path)


def grid(**settings: Any) -> pr.RadialBasis:
    return pr.RadialBasis.grid(low=LOW, high=HIGH, shape=4, **settings)


def log(path: Path) -> None:
    write_npz(DATA, path)


def ask_log(path: Path) -> None:
    print(read_npz(path).load())


def evaluated(path: Path) -> None:
    pr.evaluate(DATA, features="poly:2", seed=0, quantiles=[0.1]).save(path.parent)


def chosen(path: Path) -> None:
    pr.evaluate(WALK.sample(0, episodes=80, seed=2), seed=0, quantiles=[0.1]).save(path.parent)


def targeted(path: Path) -> None:
    policy = np.full((N, 2), 0.5)
    actions = np.random.default_rng(0).integers(2, size=DATA.transitions)
    data = pr.Trajectories(DATA.states, DATA.rewards, DATA.lengths, DATA.terminated, actions)
    pr.evaluate(data, target=policy, features="tabular", seed=0, quantiles=[0.1]).save(path.parent)


def clustered(path: Path) -> None:
    data = pr.Trajectories(
        DATA.states, DATA.rewards, DATA.lengths, DATA.terminated, clusters=np.arange(len(DATA)) // 3
    )
    pr.evaluate(data, features="tabular", seed=0, quantiles=[0.1]).save(path.parent)


def of_actions(policy: Any) -> Callable[[Path], None]:
    actions = np.random.default_rng(0).integers(2, size=DATA.transitions)
    data = pr.Trajectories(DATA.states, DATA.rewards, DATA.lengths, DATA.terminated, actions)
    return lambda path: pr.LSTDQ(pr.Tabular(N), policy, 2).fit(data).save(path)


def mixed(path: Path) -> None:
    both = [pr.LSTD(m, variance="direct").fit(DATA, bootstrap=50, seed=0) for m in (pr.Tabular(N), grid())]
    pr.RiskFunction.mixture(both, [0.5, 0.5], [0.25, 0.75]).save(path)


TILES = pr.TileCoding(LOW, HIGH, bins=4, tilings=2)
KINDS: dict[str, Kind] = {
    "Tabular": Kind(fitted(pr.Tabular(N), moments=4), ask_risk),
    "TileCoding": Kind(fitted(TILES), ask_risk),
    "Fourier": Kind(fitted(pr.Fourier(2, LOW, HIGH)), ask_risk),
    "Polynomial": Kind(fitted(pr.Polynomial(2, LOW, HIGH)), ask_risk),
    "RadialBasis": Kind(fitted(pr.RadialBasis([[0.0], [3.0]], 2.0)), ask_risk),
    "RadialBasis.grid": Kind(fitted(grid()), ask_risk),
    "Labels": Kind(fitted(Labels(range(N), dims=[0])), ask_risk),
    "Leaves": Kind(lambda path: pr.ReturnForest(trees=4, leaf=5).fit(DATA, seed=0).save(path), ask_risk),
    "Ranked": Kind(fitted(pr.features.Ranked.of(pr.Fourier(2, [0], [1]), DATA.states)), ask_risk),
    "Joint": Kind(fitted(pr.Joint([pr.Tabular(N), pr.Polynomial(1, LOW, HIGH)])), ask_risk),
    "FunctionFeatures": Kind(fitted(line), partial(ask_risk, features=line)),
    "PolicyFunction": Kind(of_actions(careful), partial(ask_risk, policy=careful)),
    "table": Kind(of_actions(np.full((N, 2), 0.5)), ask_risk),
    "mixture": Kind(mixed, ask_risk),
    "TD": Kind(lambda path: pr.TD(pr.Tabular(N)).fit(DATA).save(path), ask_risk),
    "distribution": Kind(
        lambda path: pr.ReturnDistribution(pr.Tabular(N), thresholds=20).fit(DATA).save(path),
        ask_distribution,
    ),
    "GreedyPolicy": Kind(
        lambda path: GreedyPolicy(grid(normalised=True), np.eye(4, 3)).save(path),
        partial(ask_policy, GreedyPolicy),
    ),
    "SoftmaxPolicy": Kind(
        lambda path: pr.SoftmaxPolicy(TILES, 2).save(path), partial(ask_policy, pr.SoftmaxPolicy)
    ),
    "GaussianPolicy": Kind(
        lambda path: pr.GaussianPolicy(pr.Tabular(N), 1).save(path), partial(ask_policy, pr.GaussianPolicy)
    ),
    "MonteCarlo": Kind(
        lambda path: pr.monte_carlo(WALK, None, [0, 1], episodes=20, seed=0).save(path), ask_monte_carlo
    ),
    "monitor": Kind(
        lambda path: pr.ReturnMonitor(-50, 0, returns=DATA.returns()).save(path),
        ask_monitor,
    ),
    "checkpoint": Kind(stop_halfway, go_on),
    "evaluation/risk.npz": Kind(evaluated, ask_evaluation),
    "evaluation/survey.npz": Kind(evaluated, ask_evaluation),
    "evaluation/distribution.npz": Kind(evaluated, ask_evaluation),
    "choice/survey.npz": Kind(chosen, ask_evaluation),
    "choice/distribution.npz": Kind(chosen, ask_evaluation),
    "choice/risk.npz": Kind(chosen, ask_evaluation),
    "target/survey.npz": Kind(targeted, ask_evaluation),
    "target/risk.npz": Kind(targeted, ask_evaluation),
    "target/distribution.npz": Kind(targeted, ask_evaluation),
    "clusters/survey.npz": Kind(clustered, ask_evaluation),
    "clusters/risk.npz": Kind(clustered, ask_evaluation),
    "clusters/distribution.npz": Kind(clustered, ask_evaluation),
    "log": Kind(log, ask_log),
}


# --- whatever a file says ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A file of every kind, by the kind's name."""
    folder, found = tmp_path_factory.mktemp("shelf"), {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, kind in KINDS.items():
            path = folder / (name if "/" in name else f"{name}.npz")
            path.parent.mkdir(exist_ok=True)
            if not path.exists():  # a folder is written as a whole
                kind.write(path)
            found[name] = path
    return found


@contextlib.contextmanager
def replaced(path: Path, content: bytes) -> Any:
    """Another content for a file; an evaluation's survey has its digest where it is a file beside it."""
    survey, before = path.parent / "survey.npz", {}
    before[path] = path.read_bytes()
    path.write_bytes(content)
    if path.name in ("risk.npz", "distribution.npz") and survey.exists():
        before[survey] = survey.read_bytes()
        beside = Forgery(before[survey])
        for pair in beside.header["value"]["dict"]:
            if pair[0] == path.name.removesuffix(".npz"):
                pair[1] = _digest(path)
        survey.write_bytes(beside.bytes())
    try:
        yield
    finally:
        for file, was in before.items():
            file.write_bytes(was)


def damaged(content: bytes, rng: np.random.Generator) -> tuple[str, bytes]:
    """With some bytes changed, cut off, gone or there twice."""
    at = int(rng.integers(len(content)))
    end = at + int(rng.choice([1, 2, 8, 40]))
    part = content[at:end]
    how = ("cut", "flip", "gone", "again", "nul", "ff", "noise")[rng.integers(7)]
    new = {
        "cut": b"",
        "flip": bytes([part[0] ^ (1 << int(rng.integers(8)))]) + part[1:],
        "gone": b"",
        "again": part * 2,
        "nul": bytes(len(part)),
        "ff": b"\xff" * len(part),
        "noise": rng.bytes(len(part)),
    }[how]
    return f"{how} at {at}", content[:at] + new + (b"" if how == "cut" else content[end:])


def attack(shelf: dict[str, Path], change: Callable[..., tuple[str, bytes]], count: int, seed: int) -> None:
    """``count`` changed files, and what is asked of each: a result, or an error of ours."""
    rng, foreign, longest = np.random.default_rng(seed), {}, 0.0
    names = sorted(shelf)
    for k in range(count):
        name = names[k % len(names)]
        told, content = change(shelf[name], rng)
        # Numbers that are finite and whose squares are not come to inf and nan, as NumPy has it.
        silent = np.errstate(over="ignore", invalid="ignore", divide="ignore")
        with replaced(shelf[name], content), contextlib.redirect_stdout(io.StringIO()), silent:
            began = time.monotonic()
            found = Call(name, KINDS[name].ask, {"path": shelf[name]}).attacked({}, user=())
            longest = max(longest, time.monotonic() - began)
        if found is not None:
            foreign.setdefault(found, f"{name}: {told}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"\n{count} files, {len(foreign)} foreign, {longest:.1f} s at most, {peak:.2f} GB")
    assert not foreign, foreign
    assert longest < PATIENCE
    assert peak < 2


@pytest.fixture
def forged(shelf: dict[str, Path]) -> Callable[..., tuple[str, bytes]]:
    """Changes what a record file says."""
    files = {path: Forgery(path.read_bytes()) for name, path in shelf.items() if name != "log"}
    return lambda path, rng: files[path].forged(rng)


def damage(path: Path, rng: np.random.Generator) -> tuple[str, bytes]:
    """Changes a file's bytes."""
    return damaged(path.read_bytes(), rng)


def records_of(shelf: dict[str, Path]) -> dict[str, Path]:
    return {name: path for name, path in shelf.items() if name != "log"}


def test_forged_and_damaged_files_are_results_or_our_errors(shelf: dict[str, Path], forged: Any) -> None:
    attack(records_of(shelf), forged, 60, seed=0)
    attack(shelf, damage, 60, seed=0)


@pytest.mark.slow
def test_many_forged_files_are_results_or_our_errors(shelf: dict[str, Path], forged: Any) -> None:
    attack(records_of(shelf), forged, 1_000, seed=1)


@pytest.mark.slow
def test_many_damaged_files_are_results_or_our_errors(shelf: dict[str, Path]) -> None:
    attack(shelf, damage, 2_000, seed=2)


# --- no code ----------------------------------------------------------------------------------------

CODE = "numpy._core.numeric:builtins.exec"  # in a package that is there, by a walk to what runs texts


def crafted(content: bytes, marker: Path) -> bytes:
    """A record file whose features, and policy, are functions of that name, with a program for states."""
    source = f"open({str(marker)!r}, 'w').close()"
    states = [list(np.frombuffer(source.encode().ljust(-len(source) % 8 + len(source)), np.float64))]
    spec = {"kind": "FunctionFeatures", "name": CODE, "size": 2, "probe": {"states": states, "values": [0.0]}}
    other = Forgery(content)

    def put(value: Any) -> Any:
        if isinstance(value, dict):
            if "spec" in value:
                return {"spec": {**spec, "size": size_of(value["spec"])}}
            return {key: put(item) for key, item in value.items()}
        return [put(item) for item in value] if isinstance(value, list) else value

    other.header["value"] = put(other.header["value"])
    return other.bytes()


def size_of(spec: dict[str, Any]) -> int:
    return int(from_spec(spec).size) if spec["kind"] != "PolicyFunction" else 2


@pytest.mark.parametrize("name", ["Tabular", "TileCoding", "distribution", "SoftmaxPolicy", "GaussianPolicy"])
def test_a_file_that_names_code_is_refused_by_name(name: str, shelf: dict[str, Path], tmp_path: Path) -> None:
    path, marker = tmp_path / "crafted.npz", tmp_path / "ran"
    path.write_bytes(crafted(shelf[name].read_bytes(), marker))
    before = set(sys.modules)
    with pytest.raises(InvalidInputError, match="files hold no code, got none for the function numpy"):
        KINDS[name].ask(path)
    assert set(sys.modules) == before
    assert not marker.exists()


def test_an_evaluation_that_names_code_is_refused_by_name(
    shelf: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Loaded and printed, queried and compared."""
    monkeypatch.chdir(tmp_path)
    path, marker = shelf["evaluation/risk.npz"], tmp_path / "ran"
    told = f"got none for the function {CODE}"
    with replaced(path, crafted(path.read_bytes(), marker)):
        with pytest.raises(InvalidInputError, match="files hold no code"):
            print(Evaluation.load(path.parent).advice)
        for arguments in (["query", str(path.parent), "--at", "3"], ["compare", str(path.parent)]):
            assert run(arguments) == 1
            assert told in " ".join(capsys.readouterr().err.split())
    assert not marker.exists()


def is_ours(make: Any) -> bool:
    """Whether a module of the library has it; examples and other tests here make maps known, too."""
    module = sys.modules[make.__module__] if make.__module__.startswith("policyrisk.") else None
    return getattr(module, make.__qualname__, None) is make


def test_loading_imports_nothing(shelf: dict[str, Path]) -> None:
    """Every kind of file, and every registered feature map, in this process, where all is imported."""
    assert {kind for kind, make in maps._KINDS.items() if is_ours(make)} - {"TorchFeatures"} <= KINDS.keys()
    for name, path in shelf.items():
        with contextlib.redirect_stdout(io.StringIO()):
            KINDS[name].ask(path)
    before = set(sys.modules)
    for name, path in shelf.items():
        with contextlib.redirect_stdout(io.StringIO()):
            KINDS[name].ask(path)
    assert set(sys.modules) == before


IMPORTS = """
import sys
from pathlib import Path
import policyrisk as pr
from policyrisk.control import GreedyPolicy
from policyrisk.evaluation import Evaluation
from policyrisk.returns import MonteCarlo
kinds = [pr.RiskFunction, pr.DistributionFunction, pr.SoftmaxPolicy, pr.GaussianPolicy, GreedyPolicy]
kinds += [MonteCarlo, Evaluation, pr.ReturnMonitor]
for path in sys.argv[1:]:
    for kind in kinds:
        try:
            kind.load(Path(path).parent if kind is Evaluation else path)
        except pr.errors.InvalidInputError:
            pass
assert not {"antigravity", "this", "crafted_module"} & sys.modules.keys()
"""


def test_names_in_files_are_imported_by_no_loader(shelf: dict[str, Path], tmp_path: Path) -> None:
    """Every text in every file is the name of a module that is there, and a process loads them all."""
    (tmp_path / "crafted_module.py").write_text("raise SystemExit('imported')\nclass x: pass\n")
    files = []
    for number, (name, path) in enumerate(records_of(shelf).items()):
        for text in ("crafted_module", "crafted_module:x", "antigravity", "this:d"):
            other = Forgery(path.read_bytes())
            other.header["value"] = named(other.header["value"], text)
            folder = tmp_path / f"{number}{text.partition(':')[0]}{len(text)}"
            folder.mkdir()
            files.append(folder / Path(name).name.removesuffix(".npz"))
            files[-1].write_bytes(other.bytes())
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS, *map(str, files)], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def named(value: Any, text: str) -> Any:
    """With this text for every one that is no part of the format."""
    kept = {"Tabular", "FunctionFeatures", "PolicyFunction"}
    if isinstance(value, dict):
        fixed = ("array", "same", "record", "symmetric", "sparse", "kind")
        return {key: item if key in fixed else named(item, text) for key, item in value.items()}
    if isinstance(value, list):
        return [named(item, text) for item in value]
    return text if isinstance(value, str) and value not in kept else value


HERE = "raise SystemExit('the file in the current folder was run')\n"


@pytest.mark.parametrize("features", ["tabular", "my_features:line"])
@pytest.mark.parametrize("as_installed", [True, False])
def test_modules_beside_the_data_do_not_run(features: str, as_installed: bool, tmp_path: Path) -> None:
    """Only the one that is named does; ``python -m`` itself has what it needs first from the folder."""
    names = ["plotly", "pyarrow", "pandas", "matplotlib", "torch", "gymnasium"]
    probed = ["pytz", "bottleneck", "msvcrt", "winreg"]  # by those, and not there
    for name in names + [*probed, "rich", "typer", "csv", "numba", "scipy"] * as_installed:
        (tmp_path / f"{name}.py").write_text(HERE)
    (tmp_path / "my_features.py").write_text(
        "import gymnasium, matplotlib, numpy as np, pandas, plotly, pyarrow\n"
        "from my_helpers import ones\n"
        "def line(x):\n    import my_late\n    return np.hstack([ones(x), x])\n"
    )
    (tmp_path / "my_helpers.py").write_text("from numpy import ones_like as ones\n")
    (tmp_path / "my_late.py").write_text("")
    write_npz(DATA, tmp_path / "data.npz")
    python = [sys.executable, "-P"] if as_installed else [sys.executable]
    command = [
        *python,
        "-m",
        "policyrisk.cli",
        "evaluate",
        "data.npz",
        "--features",
        features,
        "--out",
        "out",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "current folder was run" not in done.stderr
    assert (tmp_path / "out" / "report.html").exists()


# --- sizes ------------------------------------------------------------------------------------------

HUGE = 1 << 31  # bytes of zeros


def zeros(path: Path, *names: str) -> None:
    """An npz file of a few megabytes that unpacks to gigabytes."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f8", "fortran_order": False, "shape": (HUGE // 8,)}
    )
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name in names:
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                member.write(header.getvalue())
                for _ in range(HUGE >> 24):
                    member.write(bytes(1 << 24))


@pytest.fixture(scope="module")
def bomb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bomb") / "zeros.npz"
    zeros(path, "states")
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        for name in ("rewards", "lengths", "terminated", "header", "checksum", "mean", "var"):
            part = io.BytesIO()
            np.save(part, np.zeros(3))
            archive.writestr(f"{name}.npy", part.getvalue())
    return path


@pytest.mark.parametrize(
    "read",
    [
        lambda path: read_npz(path).load(),
        pr.RiskFunction.load,
        pr.SoftmaxPolicy.load,
        MonteCarlo.load,
        Normalisation.of,
    ],
)
def test_a_small_file_of_gigabytes_is_refused_before_it_is_read(bomb: Path, read: Any) -> None:
    began, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InvalidInputError, match=r"would unpack to 2,147,4"):
        read(bomb)
    assert time.process_time() - began < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**18  # a quarter of a gigabyte


def test_a_parquet_file_of_gigabytes_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path, rows = tmp_path / "zeros.parquet", 1 << 20
    column = pa.array(np.zeros(rows))
    part = pa.table(dict.fromkeys(("episode", "x", "reward", "terminated"), column))
    with pq.ParquetWriter(path, part.schema) as writer:
        for _ in range(80):
            writer.write_table(part)
    with pytest.raises(InvalidInputError, match=r"would unpack to 671,088,640, more than 100 times"):
        pr.read_parquet(path, state="x").load()


def test_a_list_of_gigabytes_in_a_small_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path, count = tmp_path / "lists.parquet", 1 << 26
    lists = pa.ListArray.from_arrays(
        pa.array([0, count, 2 * count], pa.int32()), pa.array(np.zeros(2 * count))
    )
    columns = {"episode": [0, 0], "x": lists, "reward": [1.0, 1.0], "terminated": [False, True]}
    pq.write_table(pa.table(columns), path)
    del lists, columns
    assert path.stat().st_size < 10_000
    with pytest.raises(InvalidInputError, match="would unpack to 1,073,741,824, more than 100 times"):
        pr.read_parquet(path, state="x").load()


@pytest.mark.parametrize("column", ["episode", "x"])
def test_a_long_text_in_every_row_does_not_fill_the_memory(column: str, tmp_path: Path) -> None:
    path, n, limit = tmp_path / "texts.parquet", 60_000, 3 << 30
    texts = pa.DictionaryArray.from_arrays(pa.array(np.zeros(n, np.int32)), ["a" * 1_000_000])
    columns = {"episode": np.zeros(n, np.int64), "x": np.zeros(n), "reward": np.ones(n)}
    table = pa.table({**columns, column: texts, "terminated": np.arange(n) == n - 1})
    pq.write_table(table, path, store_schema=False)  # a reader then takes it for plain text
    assert path.stat().st_size < 100_000
    code = f"""
import resource; resource.setrlimit(resource.RLIMIT_AS, ({limit}, {limit}))
import policyrisk as pr
print(pr.read_parquet({str(path)!r}, state="x").load())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.startswith("Trajectories(1 episodes, 1 terminated, 60000 transitions"), done.stderr


@pytest.mark.parametrize("part", ["settings", "weights"])
def test_a_small_model_of_gigabytes_is_refused_before_it_is_read(part: str, tmp_path: Path) -> None:
    path, zeros = tmp_path / "model.zip", bytes(6 << 26)
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("data/0", "data/1") if part == "weights" else ():
            archive.writestr(name, zeros)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data", zeros * 2 if part == "settings" else b"{}")
        archive.writestr("policy.pth", inner.getvalue())
    with pytest.raises(InvalidInputError, match=r"would unpack to 805,306,3\d\d, more than 100 times"):
        _members(path)


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("zeros.npz", pr.ReturnMonitor.load),
        ("zeros.npz", pr.RiskFunction.load),
        ("zeros.csv", partial(pr.read, state="x")),
        ("zeros.parquet", partial(pr.read, state="x")),
        ("zeros.json", lambda path: pr.gate(path, path, "mean")),
        ("zeros.zip", _members),
    ],
)
def test_a_device_is_no_file(name: str, read: Any, tmp_path: Path) -> None:
    """A link to one in an archive that somebody sent: it may have no end."""
    (tmp_path / name).symlink_to("/dev/zero")
    with pytest.raises((InvalidInputError, OSError), match=r"no file|which is neither"):
        read(tmp_path / name)
    with pytest.raises(InvalidInputError, match="got the device"):
        pr.SoftmaxPolicy(TILES, 2).save(tmp_path / name)


def test_data_that_compress_well_are_read(tmp_path: Path) -> None:
    data = pr.Trajectories(np.zeros((200_000, 2)), np.zeros(199_999), [199_999], [True])
    write_npz(data, tmp_path / "constant.npz")
    write_parquet(data, tmp_path / "constant.parquet")
    assert read_npz(tmp_path / "constant.npz").load().transitions == 199_999


def test_a_map_too_large_is_refused_by_its_size(shelf: dict[str, Path], tmp_path: Path) -> None:
    """Made, from its description and spelled; a file with it does not fit."""
    began, message = time.process_time(), "order must give at most 1000000 features"
    with pytest.raises(InvalidInputError, match=message):
        pr.Fourier(20, [0] * 12, [1] * 12)
    with pytest.raises(InvalidInputError, match=message):
        from_spec(
            {"kind": "Fourier", "order": 20, "total": None, "low": [0] * 12, "high": [1] * 12, "dims": None}
        )
    states = np.random.default_rng(0).random((200, 12))
    data = pr.Trajectories(states, np.ones(100), np.ones(100, int), np.ones(100, bool))
    with pytest.raises(InvalidInputError, match=message):
        pr.evaluate(data, features="fourier:20", seed=0)
    assert pr.Fourier(20, [0] * 12, [1] * 12, total=2).size == 91
    other = Forgery(shelf["Fourier"].read_bytes())
    for field in other.header["value"]["fields"].values():
        if isinstance(field, dict) and "spec" in field:
            field["spec"] |= {"order": 20, "low": [0] * 12, "high": [1] * 12}
    (tmp_path / "large.npz").write_bytes(other.bytes())
    with pytest.raises(InvalidInputError, match=message):
        pr.RiskFunction.load(tmp_path / "large.npz")
    assert time.process_time() - began < 5


# --- contents that do not fit -----------------------------------------------------------------------


def test_lists_in_lists_without_end_are_our_error(shelf: dict[str, Path], tmp_path: Path) -> None:
    for depth in (101, 500, 100_000):
        other, text = Forgery(shelf["Tabular"].read_bytes()), "[" * depth + "]" * depth
        other.header = f'{{"kind": "RiskFunction", "format": 2, "value": {text}}}'
        (tmp_path / "deep.npz").write_bytes(other.bytes())
        with pytest.raises(InvalidInputError, match="lists in"):
            pr.RiskFunction.load(tmp_path / "deep.npz")
        (tmp_path / "deep.json").write_text(text)
        with pytest.raises(InvalidInputError, match="maze must be a JSON file"):
            pr.domains.Pinball(str(tmp_path / "deep.json"))
        assert run(["rollout", "CartPole-v1", "--policy", "random", "--episodes", "1", "--out",
                    str(tmp_path / "o.npz"), "--env-args", text]) == 2  # fmt: skip


@pytest.mark.parametrize("part", ['\\"', "sb3:", "second=poly:1,"])
def test_a_long_text_for_the_features_takes_no_time(part: str, shelf: dict[str, Path]) -> None:
    """It was read again and again, from each quote that nothing closes."""
    path, began = shelf["evaluation/survey.npz"], time.process_time()
    other = Forgery(path.read_bytes())
    for pair in other.header["value"]["dict"]:
        if pair[0] == "notes":
            pair[1] = with_features(pair[1], '"' + part * 20_000)
    with replaced(path, other.bytes()), contextlib.redirect_stdout(io.StringIO()):
        assert run(["compare", str(path.parent), "--out", str(path.parent / "c.png")]) == 0
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    ("name", "value"), [("features", None), ("regions", 3), ("regions", [{"dict": [["name", "here"]]}])]
)
def test_notes_on_the_tails_that_do_not_fit_are_refused(
    name: str, value: Any, shelf: dict[str, Path]
) -> None:
    """Features that are missing were a KeyError once the advice was printed."""
    path = shelf["choice/survey.npz"]
    other = Forgery(path.read_bytes())
    (notes,) = [pair for pair in other.header["value"]["dict"] if pair[0] == "notes"]
    (tails,) = [pair for pair in notes[1]["dict"] if pair[0] == "distribution"]
    tails[1]["dict"] = [pair for pair in tails[1]["dict"] if pair[0] != name]
    tails[1]["dict"] += [] if value is None else [[name, value]]
    with replaced(path, other.bytes()), pytest.raises(InvalidInputError, match=r"notes\.distribution"):
        Evaluation.load(path.parent)


@pytest.mark.parametrize("name", ["Tabular", "distribution", "choice/distribution.npz"])
@pytest.mark.parametrize("unit", [1e300, 3.0, -1.0, float("inf")])
def test_a_unit_of_rewards_is_a_power_of_two(name: str, unit: float, shelf: dict[str, Path]) -> None:
    """The square of a huge one was an OverflowError."""
    path = shelf[name]
    other = Forgery(path.read_bytes())
    other.header["value"]["fields"]["unit"] = unit
    with replaced(path, other.bytes()), pytest.raises(InvalidInputError, match="unit must have unit entries"):
        KINDS[name].ask(path)


@pytest.mark.parametrize(
    "world",
    [
        {"max_steps": "5"},
        {"max_steps": 5, "action_noise": "x"},
        {"env": "x"},
        {"max_steps": [1]},
        {"junk": 1},
    ],
)
def test_a_policy_of_another_world_is_refused(world: Any, tmp_path: Path, capsys: Any) -> None:
    """Its environment is made with what the file says."""
    pr.SoftmaxPolicy(pr.Fourier(1, [-5] * 4, [5] * 4), 2).save(tmp_path / "policy.npz", world)
    with pytest.raises(InvalidInputError, match=r"world"):
        pr.SoftmaxPolicy.load(tmp_path / "policy.npz")
    place = ["--policy", str(tmp_path / "policy.npz"), "--out", str(tmp_path / "out.npz")]
    assert run(["rollout", "CartPole-v1", "--episodes", "2", *place]) == 2
    assert "world" in capsys.readouterr().err


def with_features(notes: Any, text: str) -> Any:
    """Notes as they are packed, with another text for the features."""
    kept = [pair for pair in notes["dict"] if pair[0] != "features"]
    assert len(kept) == len(notes["dict"]) - 1
    return {"dict": [*kept, ["features", text]]}


@pytest.mark.parametrize("given", [3, None, b"\xff\0", object(), "nul\0"])
def test_what_is_no_folder_is_our_error(given: Any) -> None:
    with pytest.raises(InvalidInputError, match="folder must be"):
        Evaluation.load(given)


def test_a_sum_of_another_pass_is_no_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.npz"
    fold = checkpoint(path, resume=False)
    pr.LSTD(pr.Tabular(N)).fit_by(fold)
    fold.checkpoint.save((fold._state[0][:0:-1], None, 0))
    with pytest.raises(InvalidInputError, match="checkpoint must hold the sums of these passes, got"):
        go_on(path)


@pytest.mark.parametrize("which", [2, slice(None)])
def test_sums_that_leave_out_what_was_visited_corrupt_nothing(which: Any, tmp_path: Path) -> None:
    """SciPy would write beyond its arrays where a feature had no place in a sparse matrix."""
    path = tmp_path / "checkpoint.npz"
    stop_halfway(path)
    other = Forgery(path.read_bytes())
    other.arrays["state.0.0.equations.visits"][which] = np.nan
    path.write_bytes(other.bytes())
    with contextlib.suppress(pr.errors.PolicyRiskError):
        pr.LSTD(pr.Tabular(N)).fit_by(checkpoint(path, resume=True))


def test_a_column_without_a_place_is_none() -> None:
    rows = sp.csr_array(np.ones((3, 4)))
    kept = _columns_of(rows, np.array([1, 3]), 4)
    kept.check_format(full_check=True)
    none = _columns_of(rows, np.empty(0, np.int64), 4)
    none.check_format(full_check=True)
    assert (kept.shape, none.shape) == ((3, 2), (3, 0))
