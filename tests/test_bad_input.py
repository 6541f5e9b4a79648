"""Malformed calls: each is answered by one of our exceptions, which names the argument and a way out."""

import inspect
from collections import deque

import numpy as np
import pytest
import scipy.sparse as sp

import policyrisk as pr
from policyrisk import cli, distributed
from policyrisk.errors import (
    ImproperPolicyError,
    InfeasibleConstraintError,
    InvalidInputError,
    MismatchError,
    PolicyRiskError,
    RepeatedFileWarning,
)

P2 = [[0.5, 0.2], [0.1, 0.6]]
CHAIN = pr.MarkovChain(P2, [1.0, 2.0])
MDP = np.array([P2, P2])
PHI = pr.Polynomial(1, low=[0], high=[1])
LSTD = pr.LSTD(PHI)
NAN, INF = float("nan"), float("inf")

# call, exception, what the text must name (the argument), and a word of the remedy
CASES = {
    "P not square": (lambda: pr.MarkovChain([[0.5, 0.1]], [1.0]), InvalidInputError, "P must", "reshape"),
    "P of one dimension": (lambda: pr.MarkovChain([0.5], [1.0]), InvalidInputError, "P must", "reshape"),
    "P ragged": (lambda: pr.MarkovChain([[0.5], [0.1, 0.2]], [1.0]), InvalidInputError, "P must", "pass"),
    "P of strings": (lambda: pr.MarkovChain([["a"]], [1.0]), InvalidInputError, "P must", "pass an array"),
    "P empty": (lambda: pr.MarkovChain(np.zeros((0, 0)), []), InvalidInputError, "P must", "add states"),
    "P nan": (lambda: pr.MarkovChain([[NAN]], [1.0]), InvalidInputError, "P must be finite", "repair"),
    "P inf": (lambda: pr.MarkovChain([[INF]], [1.0]), InvalidInputError, "P must be finite", "repair"),
    "sparse P nan": (
        lambda: pr.MarkovChain(sp.csr_array([[NAN, 0.2], [0.1, 0.1]]), [1.0, 1.0]),
        InvalidInputError,
        "P's entries",
        "repair",
    ),
    "sparse P not square": (
        lambda: pr.MarkovChain(sp.csr_array((2, 3)), [1.0, 1.0]),
        InvalidInputError,
        "P must be square",
        "reshape",
    ),
    "negative probability": (
        lambda: pr.MarkovChain([[0.5, 0.2], [-0.1, 0.6]], [1.0, 1.0]),
        InvalidInputError,
        "-0.1 in row 1",
        "at least 0",
    ),
    "row above 1": (
        lambda: pr.MarkovChain([[0.5, 0.2], [0.5, 0.6]], [1.0, 1.0]),
        InvalidInputError,
        "1.1 in row 1",
        "normalise",
    ),
    "r too short": (lambda: pr.MarkovChain(P2, [1.0]), InvalidInputError, "r must", "reshape"),
    "r nan": (lambda: pr.MarkovChain(P2, [1.0, NAN]), InvalidInputError, "r must be finite", "repair"),
    "r of wrong matrix shape": (
        lambda: pr.MarkovChain(P2, [[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]]),
        InvalidInputError,
        "r must",
        "reshape",
    ),
    "terminal rewards too short": (
        lambda: pr.MarkovChain(P2, np.ones((2, 2)), terminal_rewards=[1.0]),
        InvalidInputError,
        "terminal_rewards",
        "reshape",
    ),
    "P complex": (lambda: pr.MarkovChain([[0.5j]], [1.0]), InvalidInputError, "P must", "real numbers"),
    "sparse P complex": (
        lambda: pr.MarkovChain(sp.csr_array([[0.5j]]), [1.0]),
        InvalidInputError,
        "P's entries",
        "real numbers",
    ),
    "P in single precision": (
        lambda: pr.MarkovChain(np.array(P2, dtype=np.float32), [1, 1]),
        InvalidInputError,
        "P must be float64",
        "convert",
    ),
    "P none": (lambda: pr.MarkovChain(None, [1.0]), InvalidInputError, "P must", ""),
    "r masked": (
        lambda: pr.MarkovChain([[0.5]], np.ma.masked_array([7.0], mask=[True])),
        InvalidInputError,
        "r must",
        "fill",
    ),
    "r masked in a list": (
        lambda: pr.MarkovChain(P2, [np.ma.masked_array(1.0, mask=True), 2.0]),
        InvalidInputError,
        "r must",
        "fill",
    ),
    "r masked in a deque": (
        lambda: pr.MarkovChain(P2, deque([np.ma.masked_array(1.0, mask=True), 2.0])),
        InvalidInputError,
        "r must",
        "fill",
    ),
    "table of masked states": (
        lambda: pr.Tabular(6)(np.ma.masked_array([1.0, 2.0], mask=[True, False])),
        InvalidInputError,
        "states must",
        "fill",
    ),
    "tiles of masked states": (
        lambda: pr.TileCoding([0], [1], [4])(np.ma.masked_array([[0.1], [0.2]], mask=[[True], [False]])),
        InvalidInputError,
        "states must",
        "fill",
    ),
    "masked features": (
        lambda: pr.features.FunctionFeatures(lambda x: np.ma.masked_array(x, mask=x == 0))([[0.0], [1.0]]),
        InvalidInputError,
        "must give numbers",
        "return",
    ),
    "r of dates": (
        lambda: pr.MarkovChain([[0.5]], np.array(["2020"], dtype="datetime64")),
        InvalidInputError,
        "r must",
        "real numbers",
    ),
    "r of strings": (lambda: pr.MarkovChain([[0.5]], ["1"]), InvalidInputError, "r must", "real numbers"),
    "r scalar": (lambda: pr.MarkovChain(P2, 1.0), InvalidInputError, "(2,) or (2, 2)", "reshape"),
    "r beyond float64": (lambda: pr.MarkovChain(P2, [10**400, 1]), InvalidInputError, "r must", "pass"),
    "rewards that overflow": (
        lambda: pr.MarkovChain([[0.99999]], [1e308]).mean(),
        InvalidInputError,
        "r must keep the mean",
        "rescale",
    ),
    "squares that overflow": (
        lambda: pr.MarkovChain(P2, [1e200, 2e200]).variance(),
        InvalidInputError,
        "r must keep the variance",
        "rescale",
    ),
    "features that overflow": (
        lambda: pr.LSTD(lambda s: 1e160 * np.ones((len(s), 1))).fit_exact(CHAIN),
        InvalidInputError,
        "equations must be finite",
        "rescale",
    ),
    "start as a float": (lambda: CHAIN.occupancy(1.0), InvalidInputError, "as an int", "count states"),
    "start none": (lambda: CHAIN.sample(None), InvalidInputError, "start must", ""),
    "start ragged": (lambda: CHAIN.occupancy([[0.5], [0.5, 1]]), InvalidInputError, "start must", "pass"),
    "policy ragged": (
        lambda: pr.MarkovChain.from_mdp(MDP, [1, 2], [[1, 0], [1]]),
        InvalidInputError,
        "policy must",
        "pass",
    ),
    "policy empty": (
        lambda: pr.MarkovChain.from_mdp(MDP, [1, 2], np.array([], dtype=int)),
        InvalidInputError,
        "policy must",
        "one action per state",
    ),
    "policy of floats": (
        lambda: pr.MarkovChain.from_mdp(MDP, [1, 2], [0.0, 1.0]),
        InvalidInputError,
        "as ints",
        "one action per state",
    ),
    "rewards ragged": (
        lambda: pr.MarkovChain.from_mdp(MDP, [[1, 2], [3]], [0, 0]),
        InvalidInputError,
        "r must",
        "pass",
    ),
    "endless steps": (
        lambda: CHAIN.sample(0, max_steps=10**30),
        InvalidInputError,
        "max_steps",
        "smaller",
    ),
    "endless episodes": (lambda: CHAIN.sample(0, episodes=10**30), InvalidInputError, "episodes", "smaller"),
    "walk without end": (lambda: pr.domains.walk(10**30), InvalidInputError, "n must", "smaller"),
    "lam of text": (lambda: pr.LSTD(PHI, lam="0.5"), InvalidInputError, "lam", "range"),
    "demand that cannot be met": (
        lambda: pr.LSTD(
            PHI,
            lambda s: np.column_stack([s[:, 0] - 0.5]),
            nonnegative_at=[0, 1],
        ).fit_exact(CHAIN),
        InfeasibleConstraintError,
        "nonnegative_at",
        "constant",
    ),
    "discount 0": (lambda: pr.MarkovChain(P2, [1, 1], 0.0), InvalidInputError, "discount", "pass 1"),
    "discount above 1": (lambda: pr.MarkovChain(P2, [1, 1], 1.01), InvalidInputError, "discount", "pass 1"),
    "discount nan": (lambda: pr.MarkovChain(P2, [1, 1], NAN), InvalidInputError, "discount", "pass 1"),
    "discount of text": (
        lambda: pr.MarkovChain(P2, [1, 1], "x"),
        InvalidInputError,
        "discount",
        "pass 1",
    ),
    "improper policy": (
        lambda: pr.MarkovChain([[0.5, 0.5, 0], [0, 1.0, 0], [0, 0, 0.5]], [1, 1, 1]),
        ImproperPolicyError,
        "from states 0, 1;",
        "discount < 1",
    ),
    "MDP without actions": (
        lambda: pr.MarkovChain.from_mdp(np.array(P2), [1, 1], [0, 0]),
        InvalidInputError,
        "P must be (actions, n, n)",
        "MarkovChain(P, r)",
    ),
    "MDP of a single sparse matrix": (
        lambda: pr.MarkovChain.from_mdp(sp.csr_array(P2), [1, 1], [0, 0]),
        InvalidInputError,
        "P must be (actions, n, n)",
        "MarkovChain(P, r)",
    ),
    "MDP with the axes of QuantEcon": (
        lambda: pr.MarkovChain.from_mdp(np.swapaxes([P2, P2, P2], 0, 1), [1, 1], [0, 0]),
        InvalidInputError,
        "got (2, 3, 2), whose axes are swapped: (x, a, y)",
        "numpy.swapaxes(P, 0, 1)",
    ),
    "MDP with the axes of QuantEcon, in lists": (
        lambda: pr.MDP(np.swapaxes([P2, P2, P2], 0, 1).tolist(), [1, 1]),
        InvalidInputError,
        "got (2, 3, 2), whose axes are swapped: (x, a, y)",
        "numpy.swapaxes(P, 0, 1)",
    ),
    "MDP with matrices of different sizes": (
        lambda: pr.MarkovChain.from_mdp([sp.csr_array(P2), sp.csr_array((3, 3))], [1, 1], [0, 0]),
        InvalidInputError,
        "P[1]",
        "same states",
    ),
    "policy of unknown actions": (
        lambda: pr.MarkovChain.from_mdp(MDP, [1, 1], [0, 2]),
        InvalidInputError,
        "policy must",
        "one action per state",
    ),
    "policy that does not sum to 1": (
        lambda: pr.MarkovChain.from_mdp(MDP, [1, 1], [[0.5, 0.4], [1, 0]]),
        InvalidInputError,
        "policy must have rows of probabilities",
        "sum to 1",
    ),
    "policy of wrong shape": (
        lambda: pr.MarkovChain.from_mdp(MDP, [1, 1], [[0.5, 0.5]]),
        InvalidInputError,
        "policy must",
        "reshape",
    ),
    "ambiguous rewards": (
        lambda: pr.MarkovChain.from_mdp(MDP, np.ones((2, 2)), [0, 0]),
        InvalidInputError,
        "r of shape",
        "(actions, n, n)",
    ),
    "start beyond the states": (
        lambda: CHAIN.occupancy(2),
        InvalidInputError,
        "start",
        "count states from 0",
    ),
    "start negative": (lambda: CHAIN.occupancy(-1), InvalidInputError, "start", "count states from 0"),
    "start not a distribution": (
        lambda: CHAIN.occupancy([0.5, 0.6]),
        InvalidInputError,
        "start must be a distribution",
        "divide by the sum",
    ),
    "start of wrong length": (lambda: CHAIN.occupancy([1.0]), InvalidInputError, "start", "reshape"),
    "occupancy of an endless chain": (
        lambda: pr.MarkovChain([[1.0]], [1.0], 0.9).occupancy(0),
        ImproperPolicyError,
        "occupancy",
        "less than 1",
    ),
    "endless sampling": (
        lambda: pr.MarkovChain([[1.0]], [1.0], 0.9).sample(0),
        ImproperPolicyError,
        "max_steps",
        "pass max_steps",
    ),
    "no episodes": (lambda: CHAIN.sample(0, episodes=0), InvalidInputError, "episodes", "int"),
    "half an episode": (lambda: CHAIN.sample(0, episodes=1.5), InvalidInputError, "episodes", "int"),
    "no steps": (lambda: CHAIN.sample(0, max_steps=0), InvalidInputError, "max_steps", "int"),
    "seed of text": (lambda: CHAIN.sample(0, seed="x"), InvalidInputError, "seed", "pass"),
    "negative seed": (lambda: CHAIN.sample(0, seed=-1), InvalidInputError, "seed", "pass"),
    "walk without states": (lambda: pr.domains.walk(0), InvalidInputError, "n must", "larger"),
    "walk that never ends": (lambda: pr.domains.walk(3, 0.0), InvalidInputError, "p must", "probability"),
    "lam above 1": (lambda: pr.LSTD(PHI, lam=1.5), InvalidInputError, "lam", "range"),
    "negative ridge": (lambda: pr.LSTD(PHI, ridge=-1), InvalidInputError, "ridge", "range"),
    "unknown variance": (lambda: pr.LSTD(PHI, variance="x"), InvalidInputError, "variance", "choose"),
    "unknown demand": (
        lambda: pr.LSTD(PHI, nonnegative_at="all"),
        InvalidInputError,
        "nonnegative_at",
        "choose",
    ),
    "demand at nan": (
        lambda: pr.LSTD(PHI, nonnegative_at=[NAN]),
        InvalidInputError,
        "nonnegative_at",
        "repair",
    ),
    "unknown solver": (
        lambda: pr.LSTD(PHI, constraint_solver="x"),
        InvalidInputError,
        "constraint_solver",
        "choose",
    ),
    "features of no kind": (lambda: pr.LSTD(3), InvalidInputError, "features", ""),
    "chain of no kind": (lambda: LSTD.fit_exact(P2), InvalidInputError, "chain must", "MarkovChain(P, r)"),
    "discounts differ": (
        lambda: pr.LSTD(PHI, discount=0.9).fit_exact(CHAIN),
        MismatchError,
        "discount",
        "the same",
    ),
    "equations of no kind": (lambda: LSTD.solve(3), InvalidInputError, "equations", "lstd.equations"),
    "equations of another estimator": (
        lambda: pr.LSTD(PHI, lam=0.1).solve(LSTD.exact_equations(CHAIN)),
        MismatchError,
        "lam",
        "estimator that made them",
    ),
    "direct variance of equations": (
        lambda: pr.LSTD(PHI, variance="direct").solve(pr.LSTD(PHI).exact_equations(CHAIN)),
        InvalidInputError,
        'variance="direct"',
        "fit",
    ),
    "visited of equations": (
        lambda: pr.LSTD(PHI, nonnegative_at="visited").solve(pr.LSTD(PHI).exact_equations(CHAIN)),
        InvalidInputError,
        'nonnegative_at="visited"',
        "fit",
    ),
    "table too small for the chain": (
        lambda: pr.LSTD(pr.Tabular(1)).fit_exact(CHAIN),
        InvalidInputError,
        "states must",
        "enlarge",
    ),
    "table of no states": (lambda: pr.Tabular(0), InvalidInputError, "size must", "larger"),
    "polynomial of negative degree": (
        lambda: pr.Polynomial(-1, low=[0], high=[1]),
        InvalidInputError,
        "degree",
        "larger",
    ),
    "polynomial of astronomic size": (
        lambda: pr.Polynomial(100, low=[0] * 20, high=[1] * 20),
        InvalidInputError,
        "degree must give",
        "lower degree",
    ),
    "empty box": (lambda: pr.Polynomial(1, low=[1], high=[1]), InvalidInputError, "low", "widen"),
    "states of wrong dimension": (
        lambda: PHI(np.zeros((3, 2))),
        InvalidInputError,
        "states must",
        "dims",
    ),
    "states nan": (lambda: PHI([NAN]), InvalidInputError, "states must be finite", "repair"),
    "risk at text": (lambda: LSTD.fit_exact(CHAIN).mean(["a"]), InvalidInputError, "x must", "pass an array"),
    "error bars of a model": (
        lambda: LSTD.fit_exact(CHAIN).standard_error([0], of="mean"),
        InvalidInputError,
        "no error bars",
        "fit",
    ),
    "lengths that do not add up": (
        lambda: pr.Trajectories([[0], [1], [2]], [1.0, 2.0], [1], [True]),
        InvalidInputError,
        "lengths must sum",
        "number of rewards",
    ),
    "final state forgotten": (
        lambda: pr.Trajectories([[0], [1]], [1.0, 2.0], [2], [True]),
        InvalidInputError,
        "states must have",
        "ended in",
    ),
    "terminated as numbers": (
        lambda: pr.Trajectories([[0], [1]], [1.0], [1], [1]),
        InvalidInputError,
        "terminated",
        "True where",
    ),
    "empty episode": (
        lambda: pr.Trajectories([[0], [0], [1]], [1.0], [0, 1], [True, True]),
        InvalidInputError,
        "lengths must be at least 1",
        "leave empty",
    ),
    "reward nan": (
        lambda: pr.Trajectories([[0], [1]], [NAN], [1], [True]),
        InvalidInputError,
        "rewards must be finite",
        "repair",
    ),
    "nothing to concatenate": (
        lambda: pr.Trajectories.concatenate([]),
        InvalidInputError,
        "parts",
        "pass a list",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_malformed_call_is_answered_in_our_words(case):
    call, expected, argument, remedy = CASES[case]
    with pytest.raises(PolicyRiskError) as caught:
        call()
    assert type(caught.value) is expected
    text = str(caught.value)
    assert argument in text, text
    assert remedy in text, text


def test_there_are_enough_of_them():
    assert len(CASES) >= 30


def test_an_array_of_which_nothing_is_masked_is_an_array():
    states = np.ma.masked_array([1.0, 2.0], mask=[False, False])
    assert (pr.Tabular(6)(states).toarray() == pr.Tabular(6)([1.0, 2.0]).toarray()).all()


@pytest.mark.parametrize("features", [pr.Fourier(1, [0], [1]), pr.Tabular(2)], ids=repr)
def test_lstdq_answers_at_no_states(features):
    data = pr.Trajectories([[0], [1]] * 40, [0.0, 1.0] * 20, [1] * 40, [True] * 40, actions=[0, 1] * 20)
    risk = pr.LSTDQ(features, lambda x: np.full((len(x), 2), 0.5), 2).fit(data)
    none = np.empty((0, 1))
    for of in ("mean", "second_moment", "variance", "std", "sharpe", "covered", "episodes", "visited"):
        assert getattr(risk, of)(none).shape == (0,)
    assert risk.interval(none, of="mean").shape == (0, 2)
    assert risk.action_mean(none, 1).shape == risk.action_variance(none, np.empty(0, int)).shape == (0,)


@pytest.mark.filterwarnings("ignore::scipy.sparse.SparseEfficiencyWarning")  # of a function of features
@pytest.mark.parametrize("form", ["coo", "csc", "bsr", "dia", "dok", "lil"])
@pytest.mark.parametrize("kind", ["array", "matrix"])
def test_every_sparse_format_is_the_same_matrix(form, kind):
    make = getattr(sp, f"{form}_{kind}")
    P = make(np.array(P2))
    assert np.array_equal(pr.MarkovChain(P, [1.0, 2.0]).mean(), CHAIN.mean())
    assert np.array_equal(pr.MDP([P, P], [1.0, 2.0]).chain([0, 1]).mean(), CHAIN.mean())
    assert np.array_equal(
        pr.MarkovChain(P, P, terminal_rewards=[0, 0]).mean(),
        pr.MarkovChain(P2, P2, terminal_rewards=[0, 0]).mean(),
    )
    both = [pr.LSTD(lambda x, f=f: f(np.hstack([np.ones_like(x), x]))) for f in (make, np.asarray)]
    data = CHAIN.sample(0, episodes=50, seed=1)
    sparse, dense = (lstd.fit(data).std([0, 1]) for lstd in both)
    assert np.allclose(sparse, dense, rtol=1e-9)


def test_a_file_counts_once(tmp_path):
    data = pr.domains.walk(n=5, p=0.7).sample(0, episodes=30, seed=1)
    folder = tmp_path / "log"
    folder.mkdir()
    files = folder / "a.parquet", folder / "b.parquet"
    for k, file in enumerate(files):
        pr.write_parquet(data[k::2], file, state=["place"])
    whole = pr.read(folder, state=["place"]).load().returns()
    outside = tmp_path / "elsewhere.parquet"
    outside.symlink_to(files[0])
    once = {
        "the same name": [files[0], files[0]],
        "another spelling": [files[0], folder / ".." / "log" / "a.parquet"],
        "a link": [files[0], files[1], outside],
        "a file of the folder": [folder, files[1]],
    }
    for paths in once.values():
        for call in (pr.read, pr.read_parquet, pr.evaluate, distributed.shards):
            with pytest.raises(InvalidInputError, match="which are the same"):
                call([str(path) for path in paths], state=["place"])
    (folder / "0.parquet").symlink_to(files[0])  # before the file itself, by name
    (folder / "c.parquet").hardlink_to(files[1])
    for call in (pr.read, pr.read_parquet):
        with pytest.warns(RepeatedFileWarning, match=r"2 links .*0\.parquet \(that is .*a\.parquet\)"):
            assert np.array_equal(call(folder, state=["place"]).load().returns(), whole)
    with pytest.warns(RepeatedFileWarning, match="2 links"):
        assert len(distributed.shards(folder, state=["place"])) == 2


def test_an_evaluation_is_compared_once(tmp_path, capsys):
    data = pr.domains.walk(n=5, p=0.7).sample(0, episodes=200, seed=1)
    pr.evaluate(data, features="tabular").save(tmp_path / "a")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert cli.run(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 1
    assert "which are the same" in capsys.readouterr().err


@pytest.mark.parametrize("outside", ["all", lambda x: np.zeros((len(x), 2), bool), lambda x: [0.5] * len(x)])
def test_what_lies_outside_of_a_map_is_asked_of_a_function(outside):
    risk = pr.LSTD(pr.Tabular(3)).fit(pr.domains.walk(n=3).sample(0, episodes=50, seed=1))
    with pytest.raises(InvalidInputError, match="outside must"):
        pr.plotting.plot_line(risk, range(3), outside=outside)


@pytest.mark.parametrize(
    "call",
    [
        lambda: pr.LSTD(pr.Tabular(2), gamma=0.9),
        lambda: pr.TD(pr.Tabular(2), gamma=0.9),
        lambda: pr.ReturnForest(gamma=0.9),
        lambda: pr.MarkovChain([[0.5]], [1.0], gamma=0.9),
        lambda: pr.monte_carlo(None, None, [0], gamma=0.9),
        lambda: pr.evaluate("log.parquet", gamma=0.9),
        lambda: pr.evaluate(pr.domains.walk(3).sample(0, 5), discont=0.9),
    ],
)
def test_an_unknown_argument_is_answered_with_the_one_that_was_meant(call):
    with pytest.raises(InvalidInputError, match=r"did you mean discount\?"):
        call()


def test_signatures_show_the_options_of_readers():
    table = inspect.signature(pr.read_parquet).parameters
    for function in (pr.read, pr.evaluate, pr.Trajectories.from_frame, pr.readers.read_frame):
        found = inspect.signature(function).parameters
        assert not any(each.kind is each.VAR_KEYWORD for each in found.values())
        wider = {"cluster"} if function is pr.evaluate else set()  # a column's name, or an array
        for name in table.keys() - {"path", "row_groups"} - wider:
            assert (found[name].default, found[name].annotation) == (
                table[name].default,
                table[name].annotation,
            )
