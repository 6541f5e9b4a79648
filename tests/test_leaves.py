"""Leaves of trees as features: against a walk in plain Python and against scikit-learn's own."""

import pickle

import numpy as np
import pytest

import policyrisk as pr
from policyrisk.errors import InvalidInputError
from policyrisk.features import BinaryFeatures, Leaves, from_spec

FEATURE = [[0, -1, 1, -1, -1], [-1], [1, 0, -1, -1, -1]]
THRESHOLD = [[0.5, 2.0], [], [3.0, -1.0]]


def walk(feature, threshold, x):
    """The leaf of x, its number from 0, by reading the tree from its start: the definition."""
    leaves, splits = 0, iter(threshold)
    nodes = iter(feature)

    def descend(inside):
        nonlocal leaves
        node = next(nodes)
        if node < 0:
            leaves += 1
            return leaves - 1 if inside else None
        left = x[node] <= next(splits)
        found = [descend(inside and left), descend(inside and not left)]
        return next((leaf for leaf in found if leaf is not None), None)

    return descend(True)


def preorder(tree, node=0):
    """A tree of scikit-learn in our form."""
    if tree.children_left[node] < 0:
        return [-1], []
    left, right = (preorder(tree, child[node]) for child in (tree.children_left, tree.children_right))
    return (
        [int(tree.feature[node]), *left[0], *right[0]],
        [float(tree.threshold[node]), *left[1], *right[1]],
    )


def test_leaves_are_those_of_a_walk():
    phi = Leaves(FEATURE, THRESHOLD, dim=2)
    x = np.random.default_rng(0).normal(0, 3, (200, 2))
    x[:3] = [[0.5, 2.0], [np.nextafter(0.5, 1), 2.0], [-1.0, 3.0]]  # on the thresholds
    expected = [[walk(f, t, row) for f, t in zip(FEATURE, THRESHOLD, strict=True)] for row in x]
    np.testing.assert_array_equal(phi.active(x), np.add(expected, [0, 3, 4]))
    assert phi.size == 7
    assert isinstance(phi, BinaryFeatures)
    assert phi.tree_of.tolist() == [0, 0, 0, 1, 2, 2, 2]
    dense = phi(x).toarray()
    np.testing.assert_array_equal(dense.sum(axis=1), 3)
    np.testing.assert_array_equal(np.flatnonzero(dense[1]), phi.active(x)[1])


@pytest.mark.parametrize("kind", ["numbers", "whole", "large"])
def test_leaves_are_those_of_scikit_learn(kind):
    """Where float32, which scikit-learn compares in, holds the states exactly."""
    trees = pytest.importorskip("sklearn.tree")
    rng = np.random.default_rng(1)
    x = rng.normal(size=(2000, 3)).astype(np.float32).astype(np.float64)
    if kind != "numbers":
        x = rng.integers(-50, 50, (2000, 3)) * (1.0 if kind == "whole" else 2.0**16)
    fitted = [
        trees.DecisionTreeRegressor(min_samples_leaf=5, random_state=seed).fit(x, rng.normal(size=2000))
        for seed in range(4)
    ]
    parts = [preorder(each.tree_) for each in fitted]
    phi = Leaves([f for f, _ in parts], [t for _, t in parts], dim=3)
    active = phi.active(x)
    for tree, each in enumerate(fitted):
        theirs = each.apply(x)
        # Both number leaves in preorder.
        _, number = np.unique(theirs, return_inverse=True)
        np.testing.assert_array_equal(active[:, tree] - active[:, tree].min(), number)


def test_neighbouring_large_numbers_are_told_apart():
    """float32 would take 2²⁵ and 2²⁵ + 1 for one number."""
    phi = Leaves([[0, -1, -1]], [[2.0**25]], dim=1)
    assert phi.active([2.0**25, 2.0**25 + 1]).tolist() == [[0], [1]]


def test_description_and_equality():
    phi = Leaves(FEATURE, THRESHOLD, dim=2, dims=[3, 1])
    for again in (from_spec(phi.spec()), pickle.loads(pickle.dumps(phi))):
        assert again == phi
        assert hash(again) == hash(phi)
    assert phi != Leaves(FEATURE, [[0.5, 2.0], [], [3.0, -1.5]], dim=2, dims=[3, 1])
    assert phi != Leaves(FEATURE, THRESHOLD, dim=2)
    assert repr(phi) == "Leaves(trees=3, size=7, dim=2)"
    x = np.random.default_rng(2).normal(size=(5, 4))
    plain = Leaves(FEATURE, THRESHOLD, dim=2)
    np.testing.assert_array_equal(phi.active(x), plain.active(x[:, [3, 1]]))


@pytest.mark.parametrize(
    ("feature", "threshold", "said"),
    [
        ([[0, -1]], [[1.0]], "whole tree"),
        ([[-1, -1]], [[]], "whole tree"),
        ([[0, -1, -1]], [[]], "threshold of tree 0"),
        ([[0, -1, -1]], [[np.nan]], "finite"),
        ([[2, -1, -1]], [[1.0]], "from -1 to dim - 1 = 1"),
        ([[]], [[]], "one per node"),
        ([], [], "at least one tree"),
        ([[-1]], [[], []], "as many"),
    ],
)
def test_what_is_no_tree_is_refused(feature, threshold, said):
    with pytest.raises(InvalidInputError, match=said):
        Leaves(feature, threshold, dim=2)


def test_states_are_checked():
    phi = Leaves(FEATURE, THRESHOLD, dim=2)
    with pytest.raises(InvalidInputError, match="finite"):
        phi.active([[0.0, np.inf]])
    with pytest.raises(InvalidInputError, match="2 coordinates"):
        phi.active([[0.0]])


def test_leaves_are_features_of_lstd():
    """One tree whose leaves are the states is the table."""
    chain = pr.domains.walk(n=4, p=0.7)
    data = chain.sample(0, episodes=300, seed=1)
    phi = Leaves([[0, -1, 0, -1, 0, -1, -1]], [[0, 1, 2]], dim=1)
    tree, table = (pr.LSTD(each).fit(data) for each in (phi, pr.Tabular(4)))
    x = np.arange(4)
    np.testing.assert_allclose(tree.std(x), table.std(x), rtol=1e-12)
    np.testing.assert_allclose(tree.interval(x, of="std"), table.interval(x, of="std"), rtol=1e-9)
