"""Feature maps of a user's own, the way back from a spec, and what wrong arguments are told."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse as sp

from policyrisk.cli import run
from policyrisk.control import GaussianPolicy, SoftmaxPolicy
from policyrisk.data.npz import write_npz
from policyrisk.domains import walk
from policyrisk.errors import InvalidInputError, MismatchError
from policyrisk.evaluation import evaluate
from policyrisk.features import (
    BinaryFeatures,
    Features,
    Fourier,
    FunctionFeatures,
    Joint,
    Polynomial,
    RadialBasis,
    Tabular,
    TileCoding,
    as_features,
    from_spec,
    protocol,
    register,
)
from policyrisk.lstd import LSTD
from policyrisk.risk import RiskFunction


def two_columns(states):
    return np.hstack([states, states**2])


def test_function_features():
    phi = FunctionFeatures(two_columns)
    assert not hasattr(phi, "size")
    assert not isinstance(phi, BinaryFeatures)
    with pytest.raises(InvalidInputError, match="size of the feature function two_columns is known after"):
        _ = phi.size
    assert phi([]).shape == (0, 2)
    np.testing.assert_array_equal(phi([1, 3]), [[1, 1], [3, 9]])
    assert phi.size == 2
    assert isinstance(phi, Features)
    assert not phi.outside([1e9]).any()
    assert phi == FunctionFeatures(two_columns)
    assert hash(phi) == hash(FunctionFeatures(two_columns))
    assert phi != FunctionFeatures(np.sin)
    assert repr(phi) == "FunctionFeatures(two_columns, size=2)"


def test_function_features_may_be_sparse():
    def doubled(states):  # each row has the columns 2, 0, 0
        n = len(states)
        return sp.csr_array((np.ones(3 * n), np.tile([2, 0, 0], n), np.arange(n + 1) * 3), shape=(n, 3))

    value = FunctionFeatures(doubled)([1, 2])
    assert isinstance(value, sp.csr_array)
    np.testing.assert_array_equal(value.toarray(), [[2, 0, 1], [2, 0, 1]])
    np.testing.assert_array_equal(value.indices, [0, 2, 0, 2])


def test_function_features_with_known_size_are_not_called_without_states():
    phi = FunctionFeatures(lambda states: states.max() * states, size=1)
    assert phi(np.empty((0, 1))).shape == (0, 1)


def test_function_cannot_write_into_the_states():
    def careless(states):
        states -= 1
        return states

    with pytest.raises(ValueError, match="read-only"):
        FunctionFeatures(careless)(np.ones((2, 1)))


@pytest.mark.parametrize(
    ("function", "rule"),
    [
        (lambda x: x[:, 0], r"must give shape \(3, \*\).*got \(3,\)"),
        (lambda x: x[:-1], r"must give shape \(3, \*\).*got \(2, 1\)"),
        (lambda x: x[:, :0], r"at least one column, got \(3, 0\)"),
        (lambda x: np.where(x > 1, np.nan, x), "must give finite numbers, got others for the state in row 2"),
        (lambda x: sp.csr_array(np.where(x > 1, np.inf, x)), "must give finite .* state in row 2"),
        (lambda x: [["a"]] * 3, "must give numbers"),
        (lambda x: [["1"]] * 3, "must give numbers"),
        (lambda x: x + 1j, "must give numbers"),
        (lambda x: sp.csr_array(x + 1j), "must give numbers"),
        (lambda x: [[1], [1, 2], [3]], "must give numbers"),
        (lambda x: None, "must give"),
    ],
)
def test_function_output_is_checked(function, rule):
    with pytest.raises(InvalidInputError, match=rule):
        FunctionFeatures(function)([0.0, 1.0, 2.0])


def test_function_output_has_constant_width():
    phi = FunctionFeatures(lambda x: np.ones((len(x), len(x))))
    phi([1, 2])
    with pytest.raises(InvalidInputError, match=r"must give shape \(3, 2\).*got \(3, 3\)"):
        phi([1, 2, 3])
    with pytest.raises(InvalidInputError, match=r"must give shape \(3, 5\)"):
        FunctionFeatures(lambda x: np.ones((len(x), 3)), size=5)([1, 2, 3])


class Mine:
    """The least that a map of one's own has to be, and a spec."""

    def __init__(self, power):
        self.power = power
        self.size = 2

    def __call__(self, states):
        return np.hstack([np.ones_like(states), states**self.power])

    def spec(self):
        return {"kind": "Mine", "power": self.power}


def test_as_features():
    mine = Mine(3)
    assert as_features(mine) is mine
    function = FunctionFeatures(two_columns)
    assert as_features(function) is function
    assert as_features(two_columns) == function
    tiles = TileCoding(low=[0], high=[1], bins=3)
    assert as_features(tiles) is tiles
    for bad in (3, None, "tiles", np.zeros((3, 2))):
        with pytest.raises(InvalidInputError, match="features must have a size and a call"):
            as_features(bad)
    with pytest.raises(InvalidInputError, match="got the class Tabular itself"):
        as_features(Tabular)
    nameless = Mine(1)
    nameless.size = "two"
    with pytest.raises(InvalidInputError, match=r"features\.size must be a whole number"):
        as_features(nameless)


def test_own_classes_are_registered(monkeypatch):
    monkeypatch.setattr(protocol, "_KINDS", dict(protocol._KINDS))
    spec = json.loads(json.dumps(Mine(3).spec()))
    with pytest.raises(InvalidInputError, match=r"got 'Mine'; .*register"):
        from_spec(spec)
    register("Mine", Mine)
    register("Mine", Mine)
    assert from_spec(spec).power == 3
    with pytest.raises(InvalidInputError, match="kind must be new, got 'Tabular'"):
        register("Tabular", Mine)
    with pytest.raises(InvalidInputError, match="register needs a kind"):
        register(Mine, "Mine")


@pytest.mark.parametrize("spec", [None, 3, {}, {"size": 3}, {"kind": 3}])
def test_from_spec_needs_a_kind(spec):
    with pytest.raises(InvalidInputError, match="spec must be a dictionary with the feature map's kind"):
        from_spec(spec)


def test_from_spec_needs_the_arguments():
    with pytest.raises(InvalidInputError, match=r"spec must hold the arguments of Tabular, got .*'lenght'"):
        from_spec({"kind": "Tabular", "lenght": 3})


def test_a_function_is_given_again(tmp_path):
    """A file keeps what to call it and what it gave at a few states; whoever loads it hands it in."""
    phi, data = FunctionFeatures(two_columns), walk(5, 0.7).sample(0, episodes=100, seed=0)
    risk = LSTD(phi).fit(data)
    risk.save(tmp_path / "r.npz")
    spec = json.loads(json.dumps(phi.spec()))
    assert spec["name"] == f"{__name__}:two_columns"
    bare = from_spec(spec)
    assert (bare, bare.size, hash(bare), bare.spec()) == (phi, 2, hash(phi), spec)
    with pytest.raises(
        InvalidInputError, match=r"must be given again, .*:two_columns; pass it with features="
    ):
        RiskFunction.load(tmp_path / "r.npz").mean([[0]])
    for given in (
        two_columns,
        phi,
        [np.sin, two_columns],
        (Joint([phi, Tabular(3)]),),
        lambda x: two_columns(x),
    ):
        again = RiskFunction.load(tmp_path / "r.npz", features=given)
        np.testing.assert_array_equal(again.mean([[0], [3]]), risk.mean([[0], [3]]))
        assert again.features.spec() == spec
    for wrong, message in (
        (lambda x: 1.1 * two_columns(x), "lambda> that gives something else at"),
        ([np.sin, np.cos], "sin that fails at .* must give shape"),
        (bare, "two_columns that fails at .* pass the function itself"),
    ):
        with pytest.raises(MismatchError, match=f"must be the function .*two_columns, got .*{message}"):
            RiskFunction.load(tmp_path / "r.npz", features=wrong)
    for wrong in ({"a": two_columns}, "two_columns", 3):
        with pytest.raises(InvalidInputError, match="features must be a function, a network, a feature map"):
            RiskFunction.load(tmp_path / "r.npz", features=wrong)


def test_several_functions_are_told_apart(tmp_path):
    """By their names where they have some, else by what they give; lambdas have none."""
    lambdas = [lambda x: np.hstack([np.ones_like(x), x]), lambda x: np.hstack([x**2, x**3])]
    joint = Joint([FunctionFeatures(each, size=2) for each in lambdas])
    data = walk(8, 0.7).sample(0, episodes=200, seed=0)
    for features in ({"features": joint}, {"features": lambdas[0], "second_features": joint}):
        risk = LSTD(**features, ridge=1e-6).fit(data)
        risk.save(tmp_path / "r.npz")
        for given in (lambdas, lambdas[::-1], joint):
            again = RiskFunction.load(tmp_path / "r.npz", features=given)
            np.testing.assert_array_equal(again.variance([[2]]), risk.variance([[2]]))
        with pytest.raises(MismatchError, match="gives something else"):
            RiskFunction.load(tmp_path / "r.npz", features=lambdas[0])
    called = []

    def named(x):
        called.append(1)
        return x

    for policy, arguments in ((SoftmaxPolicy, {"actions": 2}), (GaussianPolicy, {"dim": 1})):
        made = policy(FunctionFeatures(named, size=1), **arguments)
        made([[0.5]])
        made.save(tmp_path / "p.npz")
        called.clear()
        again = policy.load(tmp_path / "p.npz", features=[named, np.sin])
        assert len(called) == 1
        np.testing.assert_array_equal(again([[0.5]]), made([[0.5]]))
        with pytest.raises(InvalidInputError, match="must be given again"):
            policy.load(tmp_path / "p.npz")([[0.5]])


def test_a_function_from_the_command_line(tmp_path, monkeypatch, capsys):
    """Evaluated, compared and queried from the folders alone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "own_line_of_the_test.py").write_text("def line(x):\n    return [[1.0, v] for (v,) in x]\n")
    features, data = "own_line_of_the_test:line", walk(5, 0.7).sample(0, episodes=200, seed=0)
    write_npz(data, tmp_path / "0.7.npz")
    assert run(["evaluate", "0.7.npz", "--features", features, "--out", "0.7"]) == 0
    evaluate(walk(5, 0.8).sample(0, episodes=200, seed=0), features=features, name="0.8").save("0.8")
    expected = LSTD(lambda x: np.hstack([np.ones_like(x), x])).fit(data).mean([[3]])
    monkeypatch.delitem(sys.modules, "own_line_of_the_test")
    capsys.readouterr()
    assert run(["query", "0.7", "--at", "3"]) == 1
    said = capsys.readouterr().err
    assert (
        f"--features must be given again, since files hold no code, got none for the function {features};"
        in said
    )
    assert "own_line_of_the_test" not in sys.modules
    assert run(["query", "0.7", "--at", "3", "--features", features, "--json"]) == 0
    (answer,) = json.loads(capsys.readouterr().out)["states"]
    assert answer["mean"]["value"] == pytest.approx(expected[0])
    assert run(["compare", "0.7", "0.8", "--json"]) == 1
    capsys.readouterr()
    assert run(["compare", "0.7", "0.8", "--features", features, "--json"]) == 0
    assert {"0.7", "0.8"} <= set(json.loads(capsys.readouterr().out)["features"])
    assert run(["evaluate", "0.7.npz", "--features", "no_such_module:line", "--out", "x"]) == 2
    assert "there is no module 'no_such_module' here" in " ".join(capsys.readouterr().err.split())


def test_names_of_functions_are_checked():
    for name in ("two\nlines", "\x1b[2J", 3, {"a": 1}):
        with pytest.raises(InvalidInputError, match="name must be text of one line"):
            FunctionFeatures(two_columns, name=name)
        with pytest.raises(InvalidInputError, match="name must be text of one line"):
            from_spec({"kind": "FunctionFeatures", "name": name, "size": 2, "probe": None})
    with pytest.raises(InvalidInputError, match="the module 'numpy' has no 'edges'"):
        FunctionFeatures.named("numpy:edges")


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda: TileCoding([0], [1], 0), "bins must be a whole number of at least 1, got 0"),
        (lambda: TileCoding([0], [1], [-3]), "bins must be a whole number of at least 1, got -3"),
        (lambda: TileCoding([0], [1], [2.5]), "bins must be a whole number"),
        (lambda: TileCoding([0, 0], [1, 1], [5]), "bins must be one whole number or 2 of them.* got 1"),
        (lambda: TileCoding([0], [1], 2**40), "bins must be at most"),
        (
            lambda: TileCoding([0] * 20, [1] * 20, 10),
            r"number of tiles.* got 100000000000000000000; .*hashed=",
        ),
        (lambda: TileCoding([0], [1], 5, tilings=0), "tilings must be a whole number of at least 1, got 0"),
        (
            lambda: TileCoding([0], [1], 5, tilings=4, hashed=10),
            "hashed must be a multiple of tilings=4, got 10; .* 12",
        ),
        (lambda: TileCoding([0], [1], 5, hashed=0), "hashed must be a whole number of at least 1"),
        (lambda: TileCoding([1], [1], 5), "low must be below high"),
        (lambda: TileCoding([2, 0], [1, 1], 5), "low must be below high"),
        (lambda: TileCoding([], [], 5), "low must be below high"),
        (lambda: TileCoding([-1e308], [1e308], 5), "high - low must be at most"),
        (lambda: TileCoding([0], [np.inf], 5), "high must be finite"),
        (lambda: TileCoding([0], [1, 2], 5), "high must have shape"),
        (lambda: TileCoding([0, 0], [1, 1], 5, dims=[1, 1]), "dims must be distinct"),
        (lambda: TileCoding([0, 0], [1, 1], 5, dims=[0, -1]), "dims must be distinct and not negative"),
        (lambda: TileCoding([0, 0], [1, 1], 5, dims=[0]), "dims must name 2 coordinates"),
        (lambda: TileCoding([0], [1], 5, dims=[0.5]), "dims must be a list of coordinate indices"),
        (lambda: RadialBasis.grid([0, 0], [1, 1], (3,)), "shape must be one whole number or 2 of them"),
        (lambda: RadialBasis.grid([0], [1], 0), "shape must be a whole number of at least 1"),
        (lambda: RadialBasis.grid([0], [1], 3, width=0.0), "width must be positive"),
        (lambda: RadialBasis.grid([0], [1], 3, width=-1), "width must be positive"),
        (lambda: RadialBasis.grid([0], [1], 3, width=np.nan), "width must be finite"),
        (lambda: RadialBasis.grid([0], [1], 3, width=[1, 2]), "width must have shape"),
        (lambda: RadialBasis.grid([0], [1], 3, width="wide"), "width must be numbers"),
        (lambda: RadialBasis.grid([0], [1], 3, truncate=0), "truncate must be in"),
        (
            lambda: RadialBasis.grid([0], [1], 3, truncate=0.5, normalised=True),
            "more than half the grid's spacing",
        ),
        (
            lambda: RadialBasis.grid([0], [1], 1, width=0.1, truncate=5, normalised=True),
            "more than half the grid",
        ),
        (lambda: RadialBasis(np.empty((0, 2)), 1.0), "centres must hold at least one centre"),
        (lambda: RadialBasis([[0, np.nan]], 1.0), "centres must be finite"),
        (lambda: RadialBasis([[0, 1]], 1.0, low=[0, 0]), "low and high must both be given"),
        (lambda: RadialBasis([[0, 1]], 1.0, low=[0], high=[1]), "centres must have 1 coordinates"),
        (lambda: RadialBasis([[0, 1]], 1.0, dims=[0]), "dims must name 2 coordinates"),
        (lambda: Fourier(-1, [0], [1]), "order must be a whole number of at least 0"),
        (lambda: Fourier(2, [0], [1], total=-1), "total must be a whole number of at least 0"),
        (lambda: Fourier(1.5, [0], [1]), "order must be a whole number"),
        (lambda: Polynomial(-1, [0], [1]), "degree must be a whole number of at least 0"),
        (lambda: Tabular(0), "size must be a whole number of at least 1"),
        (lambda: Tabular(3, dims=[0, 1]), "dims must name 1 coordinate,"),
        (lambda: FunctionFeatures(3), "function must take states"),
        (lambda: FunctionFeatures(np.sin, size=0), "size must be a whole number of at least 1"),
    ],
)
def test_wrong_arguments(make, rule):
    with pytest.raises(InvalidInputError, match=rule):
        make()


def test_text_names_the_arguments():
    phi = TileCoding(low=[0, 0], high=[1, 1], bins=[5, 5], tilings=2)
    assert repr(phi) == "TileCoding(low=(0.0, 0.0), high=(1.0, 1.0), bins=(5, 5), tilings=2)"
    grid = RadialBasis.grid(low=[0, 0], high=[1, 1], shape=(4, 3))
    assert repr(grid).startswith(
        "RadialBasis.grid(low=(0.0, 0.0), high=(1.0, 1.0), shape=(4, 3), width=[0.333"
    )
    assert len(repr(RadialBasis(np.zeros((500, 2)), 1.0))) < 300


def test_own_modules_never_take_the_place_of_packages(tmp_path):
    """SciPy looks for ``sys.modules["torch"]``; a file torch.py in the current folder is never asked."""
    (tmp_path / "torch.py").write_text("raise SystemExit('a file of the current folder ran')")
    (tmp_path / "mine.py").write_text(
        "import scipy.stats\ntry:\n    import torch\nexcept ImportError:\n    pass\n"
        "value = scipy.stats.norm.cdf([0.0]).tolist()\n"
    )
    code = (
        "import sys; from policyrisk._core.imports import named_object, naming_modules\n"
        "finders, path = sys.meta_path[:], sys.path[:]\n"
        "with naming_modules():\n    print(named_object('mine:value'))\n"
        "print(finders == sys.meta_path, path == sys.path, None in sys.modules.values())"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.split("\n")[:2] == ["[0.5]", "True True False"], done.stderr
