"""Improving a policy as a task: the comparison on fresh episodes, environments in time, and the command."""

import json
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest

import policyrisk as pr
from experiments import pinball_improved
from experiments.tiles import TileGrid
from policyrisk import cli
from policyrisk.control import improve
from policyrisk.control.actor_critic import ActorCriticResult
from policyrisk.control.before_after import BeforeAfter
from policyrisk.control.policies import agreement, imitated
from policyrisk.control.tasks import TimedEnvironment, task
from policyrisk.criteria import MeanMinusStd, MeanMinusVariance, MomentCriterion, Sharpe, Slopes


def episodes_of_one_step(returns):
    n = len(returns)
    return pr.Trajectories(np.zeros((2 * n, 1)), returns, np.ones(n, dtype=int), np.ones(n, dtype=bool))


@pytest.mark.parametrize("criterion", [MeanMinusVariance(0.3), Sharpe()])
def test_errors_of_a_comparison_are_those_of_repetition(criterion):
    """Over 500 repetitions the differences scatter as their standard errors say."""
    rng = np.random.default_rng(0)
    found, errors = [], []
    for _ in range(500):
        shared = rng.exponential(size=300)
        old, new = 3.0 + 2.0 * shared + rng.normal(size=300), 4.0 + shared + 0.5 * rng.normal(size=300)
        result = ActorCriticResult(None, criterion, np.zeros((1, 6)))
        both = BeforeAfter(result, episodes_of_one_step(old), episodes_of_one_step(new), 1.0).compared()
        found.append([both[name][2].value for name in ("mean", "std", "value")])
        errors.append([both[name][2].standard_error for name in ("mean", "std", "value")])
    ratio = np.array(errors).mean(axis=0) / np.array(found).std(axis=0)
    # The standard deviation of 500 has an error of 3 to 6% by itself, and 300 is not yet infinity.
    assert np.all(np.abs(ratio - 1) < 0.2), ratio


def test_a_comparison_within_groups_leaves_out_what_differs_between_them():
    rng = np.random.default_rng(1)
    starts, shift = np.tile([[0.0], [1.0]], (500, 1)), np.tile([0.0, 90.0], 500)
    old, new = (
        pr.Trajectories(
            np.repeat(starts, 2, axis=0),
            shift + std * rng.normal(size=1000),
            np.ones(1000, dtype=int),
            np.ones(1000, dtype=bool),
        )
        for std in (4.0, 3.0)
    )
    result = ActorCriticResult(None, MeanMinusStd(1.0), np.zeros((1, 6)))
    groups = pr.TileCoding([0], [1], bins=2)
    before, after, difference = BeforeAfter(result, old, new, 1.0, groups).compared()["std"]
    assert abs(before - 4.0) < 4 * before.standard_error < 0.5
    assert abs(after - 3.0) < 4 * after.standard_error < 0.5
    assert abs(difference + 1.0) < 4 * difference.standard_error
    assert BeforeAfter(result, old, new, 1.0).compared()["std"][0] > 45


def test_printed_numbers_are_those_of_the_exact_process():
    portfolio = pr.domains.Portfolio()
    phi = portfolio.features()
    critic = pr.LSTD(pr.Joint([pr.Polynomial(2, [0], [50], dims=[0]), phi]), variance="direct")
    search = pr.ActorCritic(pr.SoftmaxPolicy(phi, 2), MeanMinusStd(1.0), critic, 400, 12, 0.3)
    found = improve(search, portfolio, seed=3, fresh=4000)
    for which, policy in enumerate((search.policy, found.result.policy)):
        chain = portfolio.mdp.chain(policy(portfolio.states))
        mean, std = chain.mean()[0], np.sqrt(chain.variance()[0])
        for name, truth in (("mean", mean), ("std", std), ("value", mean - std)):
            estimate = found.compared()[name][which]
            assert abs(estimate - truth) < 4 * estimate.standard_error, (which, name)
    # The first row of the learning curve is of the first policy, whose moments are known.
    for column, truth in ((0, 57.974157), (2, np.sqrt(16.107994)), (4, 57.974157 - np.sqrt(16.107994))):
        value, error = found.result.history[0, column : column + 2]
        assert abs(value - truth) < 4 * error
    # Half of the variance of the difference goes where the episodes are the same.
    before, after, difference = found.compared()["mean"]
    assert difference.standard_error < 0.8 * np.hypot(before.standard_error, after.standard_error)
    assert difference.low > 0


def test_fresh_episodes_are_not_those_of_the_search():
    seen = []

    class Watched(pr.domains.Portfolio):
        def rollout(self, *arguments, **options):
            seen.append(super().rollout(*arguments, **options))
            return seen[-1]

    portfolio = Watched()
    phi = portfolio.features()
    critic = pr.LSTD(pr.Joint([pr.Polynomial(2, [0], [50], dims=[0]), phi]), variance="direct")
    improve(
        pr.ActorCritic(pr.SoftmaxPolicy(phi, 2), MeanMinusStd(1.0), critic, 50, 2), portfolio, 0, fresh=50
    )
    first, _, *choice, before, after = seen
    assert len(choice) == 3
    assert not any(np.array_equal(each.rewards[:50], before.rewards[:50]) for each in choice)
    assert not np.array_equal(first.returns(), before.returns())  # the same policy
    assert np.corrcoef(before.returns(), after.returns())[0, 1] > 0.5


def test_an_environment_in_time_is_the_environment():
    env, plain = TimedEnvironment("CartPole-v1", max_steps=30)(), gym.make("CartPole-v1")
    states, own = env.reset(seed=5)[0], plain.reset(seed=5)[0]
    for t in range(1, 31):
        states, reward, ended, cut, _ = env.step(t % 2)
        own, other, over, _, _ = plain.step(t % 2)
        assert np.allclose(states, [*own, t])
        assert reward == other
        assert not cut
        assert ended == (over or t == 30)
        if ended:
            break


def test_noise_takes_the_place_of_actions():
    class Echo(gym.Env):
        observation_space = gym.spaces.Box(-1.0, 1.0, (1,))
        action_space = gym.spaces.Discrete(4, start=2)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return np.zeros(1, np.float32), {}

        def step(self, action):
            assert 2 <= action < 6
            return np.zeros(1, np.float32), float(action), False, False, {}

    gym.register("Echo-v0", Echo)
    try:
        make = TimedEnvironment("Echo-v0", max_steps=4000, action_noise=0.4)
        env = make()
        env.reset(seed=0)
        assert env.action_space == gym.spaces.Discrete(4)
        taken = np.array([env.step(3)[1] for _ in range(4000)])
        share = (taken == 5).mean()  # .6 + .4/4
        assert abs(share - 0.7) < 4 * np.sqrt(0.7 * 0.3 / 4000)
        with pytest.raises(pr.errors.InvalidInputError, match="max_steps must be given for Echo-v0"):
            TimedEnvironment("Echo-v0")()
        with pytest.raises(pr.errors.InvalidInputError, match="action_noise must be a probability"):
            TimedEnvironment("Echo-v0", max_steps=5, action_noise=2)()
    finally:
        gym.registry.pop("Echo-v0")


def test_continuous_actions_are_in_units_of_half_their_range():
    env, plain = TimedEnvironment("Pendulum-v1", max_steps=5)(), gym.make("Pendulum-v1")
    env.reset(seed=1)
    plain.reset(seed=1)
    for given, torque in ((0.5, 1.0), (-1.0, -2.0), (3.0, 2.0)):
        assert np.allclose(env.step(np.array([given]))[0][:-1], plain.step(np.array([torque], np.float32))[0])


def test_the_tasks():
    made = task("CartPole-v1", max_steps=20)
    assert made.names[-1] == "time"
    assert made.high[-1] == 20
    assert made.max_steps == 20
    assert np.all(made.low < made.high)
    assert np.isfinite(made.high).all()
    with pytest.raises(pr.errors.InvalidInputError, match="must not be given for portfolio"):
        task("portfolio", max_steps=20)


def test_command_improves_writes_and_goes_on(tmp_path, capsys, monkeypatch):
    out = tmp_path / "cartpole"
    options = "--criterion mean-std:0.5 --max-steps 40 --action-noise 0.2 --critic poly:2 --episodes 30 "
    options += f"--iterations 6 --step 0.5 --fresh 60 --seed 1 --out {out}"
    command = ["improve", "CartPole-v1", *options.split()]
    assert cli.run([*command, "--json"]) == 0
    numbers = json.loads(capsys.readouterr().out)
    assert numbers["value"]["difference"]["low"] > 0
    names = ["after.html", "before.html", "history.csv", "learning.png", "policy.npz", "result.json"]
    assert sorted(path.name for path in out.iterdir()) == names
    assert json.loads((out / "result.json").read_text())["value"] == numbers["value"]
    rows = np.genfromtxt(out / "history.csv", delimiter=",", names=True)
    assert rows["iteration"].tolist() == list(range(1, 7))
    assert np.allclose(rows["value"], rows["mean"] - 0.5 * rows["std"])
    policy = pr.SoftmaxPolicy.load(out / "policy.npz")
    assert policy(np.zeros((1, 5))).shape == (1, 2)

    # The same, stopped on the way.
    iterate, done = pr.ActorCritic._iterate, []

    def stopped(self, *arguments):
        done.append(0)
        if len(done) == 4:
            raise KeyboardInterrupt
        return iterate(self, *arguments)

    again = [*command[:-1], str(tmp_path / "again")]
    with monkeypatch.context() as patch:
        patch.setattr(pr.ActorCritic, "_iterate", stopped)
        assert cli.run(again) == 130
    assert "3 iterations" in capsys.readouterr().err
    assert cli.run(again) == 2
    assert "add --resume" in capsys.readouterr().err
    assert cli.run([*again, "--resume", "--seed", "2"]) == 1
    assert "seed must be that of the run" in capsys.readouterr().err
    assert cli.run([*again, "--resume"]) == 0
    assert "written: " in capsys.readouterr().out
    assert (tmp_path / "again" / "history.csv").read_text() == (out / "history.csv").read_text()
    assert not (tmp_path / "again" / "checkpoint.npz").exists()


class Shot(gym.Env):
    """How far to shoot, in [0, 4]: the return is the distance, less a miss that grows with it."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (1,))
    action_space = gym.spaces.Box(0.0, 4.0, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        far = float(action[0])
        assert 0.0 <= far <= 4.0
        return np.zeros(1, np.float32), far + far * self.np_random.normal(), True, False, {}


def test_command_with_continuous_actions(tmp_path, capsys):
    """mean − c·variance of the shot a is a − c·a², largest at 1/(2c), here 2.5; it begins at 2 ± 2."""
    gym.register("Shot-v0", Shot, max_episode_steps=1)
    out = tmp_path / "shot"
    options = "--criterion mean-variance:0.2 --features tiles:1,dims=time --critic tiles:1,dims=time "
    options += "--episodes 80 --iterations 30 --step 0.2 --fresh 300 --reward-so-far --seed 0 --json --out "
    try:
        assert cli.run(["improve", "Shot-v0", *options.split(), str(out)]) == 0
    finally:
        gym.registry.pop("Shot-v0")
    numbers = json.loads(capsys.readouterr().out)
    assert numbers["reward_so_far"] is True
    assert numbers["value"]["difference"]["low"] > 0
    policy = pr.GaussianPolicy.load(out / "policy.npz")
    assert 2 + 2 * policy(np.zeros((1, 3))).item() == pytest.approx(2.5, abs=0.6)
    assert np.exp(policy.log_std.item()) < 0.5  # of half the range: a wild shot risks more
    assert (out / "after.html").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (
            ["CartPole-v1", "--criterion", "median"],
            2,
            "criterion must be one of mean, sharpe, mean-std:c, mean-variance:c",
        ),
        (["CartPole-v1", "--criterion", "mean-std:x"], 2, "is not a finite number"),
        (["CartPole-v1", "--criterion", "mean-std:-1"], 2, "c must be"),
        (["NoSuch-v0", "--criterion", "sharpe"], 1, "gymnasium.make"),
        (["pinball", "--criterion", "sharpe", "--features", "poly:1"], 2, "brings its own"),
        (["CartPole-v1", "--criterion", "sharpe", "--features", "auto"], 2, "for --features: auto chooses"),
        (
            ["CartPole-v1", "--criterion", "sharpe", "--critic", "poly"],
            2,
            "for --critic: features are misspelled",
        ),
        (["CartPole-v1", "--criterion", "sharpe", "--groups", "poly:1"], 1, "groups must be a TileCoding"),
        (["CartPole-v1", "--criterion", "sharpe", "--device", "cuda"], 1, 'device must be "cpu" for a Gym'),
        (["pinball", "--criterion", "sharpe", "--reward-so-far"], 1, "must be False for pinball"),
        (["CartPole-v1", "--criterion", "mean:variance<=1"], 1, "without a constraint"),
        (["CartPole-v1", "--criterion", "cvar:0.05"], 1, "without a constraint"),
    ],
)
def test_wrong_commands_say_what_is_wrong(arguments, code, message, tmp_path, capsys):
    assert cli.run(["improve", *arguments, "--out", str(tmp_path / "out")]) == code
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def portfolio_search(iterations=8):
    portfolio = pr.domains.Portfolio()
    phi = portfolio.features()
    critic = pr.LSTD(pr.Joint([pr.Polynomial(2, [0], [50], dims=[0]), phi]), variance="direct")
    return portfolio, pr.ActorCritic(
        pr.SoftmaxPolicy(phi, 2), MeanMinusStd(1.0), critic, 200, iterations, 0.5
    )


def test_the_best_policy_is_kept_and_not_the_last(monkeypatch):
    portfolio, search = portfolio_search()
    result = search.fit(portfolio, seed=0)
    # The candidates are those of the best iterations, as the learning curve has them.
    best = np.argsort(-result.history[:, 4], kind="stable")[:3]
    assert [done for done, _ in result.candidates] == best.tolist()
    np.testing.assert_array_equal(
        dict(search.fit(portfolio, seed=0).candidates)[best[0]].weights, result.candidates[0][1].weights
    )
    # A search that ends badly: the policy is then the better one that it came through.
    good = search.policy.with_parameters(-0.1 * np.ones_like(search.policy.parameters))
    bad, better = search.policy, result.policy
    ended = ActorCriticResult(bad, search.criterion, result.history, ((2, bad), (5, better), (6, good)))
    monkeypatch.setattr(pr.ActorCritic, "fit", lambda *_, **__: ended)
    found = improve(search, portfolio, seed=0, fresh=400)
    assert found.iteration == 5
    assert found.result.policy is better
    assert found.to_dict()["iteration"] == 5
    assert found.compared()["value"][2] > 0

    class Loss(MomentCriterion):
        """The same to be made small."""

        larger_is_better = False

        def slopes(self, mean, variance):
            return Slopes(*(-each for each in search.criterion.slopes(mean, variance)))

    assert improve(replace(search, criterion=Loss()), portfolio, seed=0, fresh=400).iteration == 5


def test_frontier_of_a_simulator_takes_the_longest_episode():
    """The first five steps of every cart are upright, and earn 1 each."""
    line = pr.Polynomial(1, [-3, -3, -0.3, -3], [3, 3, 0.3, 3])
    search = pr.ActorCritic(
        pr.SoftmaxPolicy(line, 2), MeanMinusStd(0.0), pr.LSTD(line, discount=0.9), episodes=10, iterations=1
    )
    found = pr.frontier("CartPole-v1", c=[0.0], search=search, seed=0, max_steps=5)
    assert found.given == pytest.approx((sum(0.9**k for k in range(5)), 0.0), abs=1e-9)


def careful(observations):
    """To the side that the pole falls to."""
    return (observations[:, 2] + 0.3 * observations[:, 3] > 0).astype(int)


def test_a_search_begins_with_a_policy_of_ones_own(tmp_path, capsys):
    """A function is imitated, a file is gone on with, and the file runs in the environment of its search."""
    options = (
        "--criterion mean-std:1 --max-steps 30 --action-noise 0.2 --episodes 20 --iterations 1 --fresh 40"
    )
    first, second = tmp_path / "first", tmp_path / "second"
    command = ["improve", "CartPole-v1", *options.split(), "--fresh", "40", "--seed", "0", "--json", "--out"]
    told = [part for part in command if part != "--json"]
    assert cli.run([*told, str(first), "--policy", "test_improve:careful"]) == 0
    numbers = json.loads((first / "result.json").read_text())
    said = capsys.readouterr().out
    assert said.splitlines()[0].endswith(
        f"; before imitates test_improve:careful, whose actions it has in {numbers['imitation']:.1%}"
    )
    assert numbers["imitation"] > 0.9
    plain = tmp_path / "plain"
    assert cli.run([*command, str(plain)]) == 0
    assert (
        numbers["mean"]["before"]["value"]
        > json.loads(capsys.readouterr().out)["mean"]["before"]["value"] + 2
    )
    assert cli.run([*command, str(second), "--policy", str(first / "policy.npz")]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["mean"]["before"]["value"] == numbers["mean"]["after"]["value"]
    assert again["imitation"] is None

    log = tmp_path / "log.npz"
    rollout = ["rollout", "CartPole-v1", "--episodes", "50", "--seed", "1", "--out", str(log)]
    assert cli.run([*rollout, "--policy", str(first / "policy.npz")]) == 0
    assert "episode ends after 30 steps, actions with noise 0.2" in capsys.readouterr().err
    data = pr.read(log).load()
    assert data.dim == 5
    assert data.terminated.all()
    assert data.lengths.max() == 30
    evaluate = ["evaluate", str(log), "--features", "poly:1", "--out", str(tmp_path / "target"), "--target"]
    assert cli.run([*evaluate, str(first / "policy.npz")]) == 0
    assert "policy.npz, from 50 episodes of another policy" in capsys.readouterr().out
    assert cli.run([*rollout, "--policy", str(tmp_path / "none.npz")]) == 2
    assert "--policy" in capsys.readouterr().err


def test_an_imitation_has_the_likeliest_actions():
    """In one state: the shares of the actions, and of continuous ones their mean and their spread."""
    data = pr.Trajectories([[0]] * 101, [0.0] * 100, [100], [True], actions=[0] * 30 + [1] * 70)
    found = imitated(pr.SoftmaxPolicy(pr.Tabular(1), 2), data)
    assert found([0]).ravel() == pytest.approx([0.3, 0.7], abs=1e-3)
    assert agreement(found, data) == 0.7
    rng = np.random.default_rng(0)
    far = rng.normal(2.0, 0.5, size=(100, 1))
    found = imitated(
        pr.GaussianPolicy(pr.Tabular(1), 1), pr.Trajectories([[0]] * 101, [0.0] * 100, [100], [True], far)
    )
    assert found([0]).item() == pytest.approx(far.mean(), abs=1e-3)
    assert np.exp(found.log_std.item()) == pytest.approx(far.std(), abs=1e-3)


# --- pinball with less risk ------------------------------------------------------------------------


def test_starts_are_at_rest_in_their_tiles():
    grid = TileGrid(pr.domains.Maze.named("simple"), 20)
    tiles = np.repeat(np.arange(len(grid.states)), 7)
    starts = pinball_improved.starts_in(grid, tiles, np.random.default_rng(0))
    assert np.array_equal(grid.tile_of(starts), np.flatnonzero(grid.free)[tiles])
    assert grid.maze.playable(starts[:, :2]).all()
    assert (starts[:, 2:] == 0).all()
    assert len(np.unique(starts[:, 0])) == len(starts)


def test_the_experiment(tmp_path, capsys):
    out = tmp_path / "pinball"
    options = "--tiles 8 --map-episodes 6 --episodes 10 --iterations 2 --fresh 20 --c 0 --out"
    pinball_improved.main([*options.split(), str(out)])
    assert "Improved against shipped" in capsys.readouterr().out
    numbers = json.loads((out / "result.json").read_text())
    names = {"improved.png", "improved.svg", "improved.pdf", "maps.npz", "policy.npz", "result.json"}
    assert {path.name for path in out.iterdir()} == names
    with np.load(out / "maps.npz") as maps:
        std, mean = (np.sort(maps[f"before_{of}"][np.isfinite(maps["before_std"])]) for of in ("std", "mean"))
    few = numbers["risky_tiles"]
    assert few == round(0.1 * len(std))
    assert numbers["risky_std"] == pytest.approx([std[-few], std[-1]])
    assert numbers["all_tiles"]["before"]["mean"] == pytest.approx(mean.mean())
    assert [point["c"] for point in numbers["frontier"]] == [0.0, 1.0]
    old, new = (numbers["policies"][name]["std"]["value"] for name in ("shipped", "improved"))
    assert numbers["changes"]["std"]["value"] == pytest.approx(new / old - 1)
    policy = pr.SoftmaxPolicy.load(out / "policy.npz")
    assert policy.actions == 4


@pytest.mark.slow
def test_pinball_risks_a_fifth_less_for_no_less_reward():
    given = pinball_improved.ImprovedParameters(c=(1.0,), map_episodes=200, iterations=16, fresh=300, seed=1)
    changes = pinball_improved.run(given).changes()
    assert changes["std"].high < -0.2
    assert changes["mean"].low > -0.03
