"""Feature maps of a user's own, the way back from a spec, and what wrong arguments are told."""

from __future__ import annotations

import importlib
import json
import shutil
import sys

import numpy as np
import pytest
import scipy.sparse as sp

from policyrisk.domains import walk
from policyrisk.errors import InvalidInputError, PolicyRiskError
from policyrisk.features import (
    BinaryFeatures,
    Features,
    Fourier,
    FunctionFeatures,
    Polynomial,
    RadialBasis,
    Tabular,
    TileCoding,
    as_features,
    from_spec,
    register,
    registry,
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
    monkeypatch.setattr(registry, "_KINDS", dict(registry._KINDS))
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


def test_functions_without_a_name_have_no_spec():
    for function in (lambda states: states, Mine(3).__call__):
        with pytest.raises(
            InvalidInputError, match=r"module, .* or write a class with size, a call and spec"
        ):
            FunctionFeatures(function).spec()


def test_a_function_is_saved_by_its_name(tmp_path, monkeypatch):
    """And imported when it is asked for its features, if it still gives the same."""
    module = "own_edges_of_the_test"
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / f"{module}.py"
    file.write_text("import numpy as np\n\n\ndef edges(x):\n    return np.hstack([x, x > 0.5])\n")
    phi = FunctionFeatures.named(f"{module}:edges")
    assert phi == FunctionFeatures(sys.modules[module].edges)
    x = np.array([[0.2], [0.7]])
    value = phi(x)
    risk = LSTD(phi).fit(walk(5, 0.7).sample(0, episodes=100, seed=0))
    risk.save(tmp_path / "r.npz")
    spec = json.loads(json.dumps(phi.spec()))

    monkeypatch.delitem(sys.modules, module)
    again, loaded = from_spec(spec), RiskFunction.load(tmp_path / "r.npz")
    assert module not in sys.modules
    assert (again, again.size, hash(again)) == (phi, 2, hash(phi))
    np.testing.assert_array_equal(again(x), value)
    np.testing.assert_array_equal(loaded.mean([[0], [3]]), risk.mean([[0], [3]]))
    assert again.spec() == spec

    changed = "got one that gives something else at"
    gone = f"function {module}:edges must be there .* no module '{module}' here .*; go to the folder"
    for text, message in (("def edges(x):\n    return [[1.0, 2.0]] * len(x)\n", changed), (None, gone)):
        monkeypatch.delitem(sys.modules, module, raising=False)
        file.unlink()
        shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
        if text is not None:
            file.write_text(text)
        importlib.invalidate_caches()
        with pytest.raises(PolicyRiskError, match=message):
            from_spec(spec)(x)


@pytest.mark.parametrize(
    "name", ["os:system", "subprocess:call", "__main__:f", "numpy", "a b:c", "os.path:join"]
)
def test_a_file_names_no_function_of_python_itself(name):
    with pytest.raises(InvalidInputError, match="must name a function of a module of yours"):
        from_spec({"kind": "FunctionFeatures", "name": name, "size": 2, "probe": None})


def test_names_of_functions_are_checked():
    with pytest.raises(InvalidInputError, match="name must be module:name"):
        FunctionFeatures(two_columns, name="edges")
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
    assert repr(phi) == "TileCoding(bins=[5, 5], tilings=2, low=[0.0, 0.0], high=[1.0, 1.0])"
    grid = RadialBasis.grid(low=[0, 0], high=[1, 1], shape=(4, 3))
    assert repr(grid).startswith("RadialBasis.grid(shape=[4, 3], width=[0.333")
    assert len(repr(RadialBasis(np.zeros((500, 2)), 1.0))) < 300
