"""Values that go into a file and come back: every kind of them, what is shared, and what is refused."""

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import policyrisk as pr
from policyrisk._core import records
from policyrisk.data import read_npz, write_npz
from policyrisk.errors import InvalidInputError


@records.record
@dataclass(frozen=True, eq=False)
class Leaf:
    """A record of a few kinds of values."""

    numbers: Any
    count: int = 0


@records.record
@dataclass(frozen=True, eq=False)
class Tree:
    """A record of records."""

    left: Any
    right: Any
    notes: dict[Any, Any] = field(default_factory=dict)


def back(value, tmp_path, cls=object):
    records.save(tmp_path / "value.npz", "Value", value)
    return records.load(tmp_path / "value.npz", "Value", cls)


def test_plain_values_come_back_as_they_were(tmp_path):
    value = {
        "a": [1, 2.5, None, True, "x"],
        "b": ((), (1, (2, [3]))),
        3: {"inf": -np.inf, "tiny": 5e-324, "third": 1 / 3},
    }
    found = back(value, tmp_path)
    assert found == value
    assert [type(part) for part in found["a"]] == [int, float, type(None), bool, str]
    assert back([np.float64(1.5), np.int64(2), np.bool_(True)], tmp_path) == [1.5, 2, True]
    assert np.isnan(back(float("nan"), tmp_path))


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64, np.bool_])
@pytest.mark.parametrize("shape", [(), (0,), (5,), (1, 1), (3, 3), (3, 4), (0, 0), (2, 3, 4)])
def test_arrays_come_back_to_the_bit(shape, dtype, order, tmp_path):
    array = np.asarray(np.random.default_rng(0).normal(size=shape).astype(dtype), order=order)
    found = back(array, tmp_path)
    np.testing.assert_array_equal(found, array, strict=True)
    assert found.flags.f_contiguous == array.flags.f_contiguous


def test_of_a_symmetric_matrix_a_triangle_is_kept(tmp_path):
    root = np.random.default_rng(0).normal(size=(150, 150))
    square = root @ root.T
    square = np.tril(square) + np.tril(square, -1).T
    np.testing.assert_array_equal(back(square, tmp_path), square)
    with np.load(tmp_path / "value.npz") as file:
        assert {name: file[name].shape for name in file.files if name not in ("header", "checksum")} == {
            "value": (150 * 151 // 2,)
        }
    for place in ((149, 0), (0, 149), (70, 75)):  # one entry that differs
        bent = square.copy()
        bent[place] += 1.0
        np.testing.assert_array_equal(back(bent, tmp_path), bent)
    missing = square.copy()
    missing[2, 2] = np.nan
    np.testing.assert_array_equal(back(missing, tmp_path), missing)


def test_sparse_matrices_and_features_come_back(tmp_path):
    tiles = pr.TileCoding(low=[0], high=[1], bins=[4], tilings=2)
    value = Tree(tiles(np.linspace(0, 1, 7)), (tiles, pr.Fourier(2, low=[0], high=[1])))
    found = back(value, tmp_path, Tree)
    assert isinstance(found.left, sp.csr_array)
    np.testing.assert_array_equal(found.left.toarray(), value.left.toarray())
    assert found.right == value.right


def test_what_is_the_same_object_stays_so(tmp_path):
    leaf, array = Leaf(np.arange(3.0)), np.arange(4.0)
    found = back(Tree([leaf, array], (leaf, array, leaf.numbers, {"again": leaf})), tmp_path, Tree)
    one, row = found.left
    assert found.right[0] is found.right[3]["again"] is one
    assert found.right[1] is row
    assert found.right[2] is one.numbers
    with np.load(tmp_path / "value.npz") as file:
        assert sorted(file.files) == ["checksum", "header", "left.0.numbers", "left.1"]


def test_a_field_that_a_file_lacks_has_its_default():
    assert records.unpack({"record": "Leaf", "fields": {"numbers": 1}}, {}).count == 0


@pytest.mark.parametrize(
    ("described", "match"),
    [
        ({"record": "Path", "fields": {"path": "x"}}, "'Path', which is unknown"),
        ({"record": "Leaf", "fields": {"numbers": 1, "more": 2}}, "unexpected keyword argument 'more'"),
        ({"record": "Leaf", "fields": {}}, "missing 1 required"),
        ({"array": "none"}, "none"),
        ({"same": "none"}, "none"),
        ({"spec": {"kind": "Unheard"}}, "kind must be one of"),
        ({"else": 1}, "record"),
        ([1, 2], "must be of type Leaf, got .1, 2."),
    ],
)
def test_a_file_of_other_contents_is_our_error(described, match, tmp_path, monkeypatch):
    monkeypatch.setattr(records, "pack", lambda value, arrays: described)
    records.save(tmp_path / "value.npz", "Value", None)
    with pytest.raises(InvalidInputError, match=f"(?s)value.npz, whose contents do not fit.*{match}"):
        records.load(tmp_path / "value.npz", "Value", Leaf)


def test_what_is_no_record_is_refused(tmp_path):
    @dataclass(frozen=True)
    class Stranger:
        size: int = 1

    with pytest.raises(InvalidInputError, match=r"spec\(\) to be saved, got Stranger"):
        records.save(tmp_path / "value.npz", "Value", [Stranger()])
    assert not list(tmp_path.iterdir())
    with pytest.raises(TypeError, match="two record classes are called Leaf"):
        records.record(type("Leaf", (), {}))
    with pytest.raises(TypeError, match="Twig has no field length"):
        records.record(length="n")(dataclass(type("Twig", (), {})))


def test_kinds_and_formats_are_told_apart(tmp_path, monkeypatch):
    path = tmp_path / "value.npz"
    records.save(path, "Value", 1)
    with pytest.raises(InvalidInputError, match="must be a Record file of format 2, got Value of format 2"):
        records.load(path, "Record", int)
    monkeypatch.setattr(records, "FORMAT", 3)
    records.save(path, "Value", 1)
    monkeypatch.undo()
    with pytest.raises(InvalidInputError, match=r"got Value of format 3 in .*; update policyrisk"):
        records.load(path, "Value", int)


def test_data_files_with_a_flipped_bit_are_our_errors_or_harmless(tmp_path):
    path = tmp_path / "log.npz"
    write_npz(pr.domains.walk(n=5, p=0.7).sample(0, episodes=3, seed=1), path)
    whole = path.read_bytes()
    errors = 0
    for bit in range(8 * (len(whole) - 200), 8 * len(whole)):  # the archive's own directory
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            read_npz(path).load()
        except InvalidInputError:
            errors += 1
    assert errors > 500


def test_a_folder_is_no_place_for_a_file(tmp_path):
    with pytest.raises(InvalidInputError, match="path must be a file, got the folder"):
        pr.LSTD(pr.Tabular(8)).fit_exact(pr.domains.walk(n=8), start=0).save(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_types_of_all_records_are_known():
    """What a type checker alone imports is not there when a file is checked."""
    for cls in records._shapes:
        assert records._hints(cls).keys() >= {each.name for each in fields(cls)}
