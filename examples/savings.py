"""A savings plan as a Gymnasium environment, three ways to invest it, and their risk in closed form.

For 20 years one unit of money is paid in at the start of each year, and a share of all savings is held
in stocks, the rest in bonds. The state is (year, wealth), the action the share in stocks, the reward the
year's gain in real terms: the reward to go is what the markets still add to, or take from, the plan.
"""

import gymnasium
import numpy as np

import policyrisk as pr

YEARS, PAID_IN = 20, 1.0
STOCKS, BONDS = (0.05, 0.18), (0.01, 0.04)  # mean and standard deviation of a year's real return


class Savings(gymnasium.Env):
    """State (year, wealth), action the share in stocks, reward the year's gain."""

    observation_space = gymnasium.spaces.Box(0.0, np.inf, (2,), np.float64)
    action_space = gymnasium.spaces.Box(0.0, 1.0, (), np.float64)

    def reset(self, *, seed=None, options=None):
        """A saver who has something between nothing and 20 years' payments."""
        super().reset(seed=seed)
        self.year, self.wealth = 0, self.np_random.uniform(0.0, 20.0)
        return np.array([self.year, self.wealth]), {}

    def step(self, share):
        """A year: the payment, the markets."""
        stocks, bonds = self.np_random.normal(*np.transpose([STOCKS, BONDS]))
        gain = (self.wealth + PAID_IN) * (share * stocks + (1.0 - share) * bonds)
        self.year, self.wealth = self.year + 1, max(self.wealth + PAID_IN + gain, 0.0)
        return np.array([self.year, self.wealth]), float(gain), self.year == YEARS, False, {}


gymnasium.register("Savings-v0", entry_point=Savings)


def all_stocks(states):
    """Everything in stocks, always."""
    return np.ones(len(states))


def glide_path(states):
    """From 90% in stocks in the first year to 30% in the last."""
    return 0.9 - 0.6 * np.asarray(states)[:, 0] / (YEARS - 1)


def half_and_half(states):
    """Half in stocks, half in bonds."""
    return np.full(len(states), 0.5)


def per_year(degree):
    """Features that know the problem: 1, wealth, …, wealth^degree, for each year apart."""

    def features(states):
        year, wealth = np.asarray(states, dtype=float).T
        powers = (wealth[:, None] / 20.0) ** np.arange(degree + 1)
        in_year = year[:, None] == np.arange(YEARS)
        return (in_year[:, :, None] * powers[:, None, :]).reshape(len(states), -1)

    return features


def moments(policy):
    """J = a + b·wealth and M = c + d·wealth + f·wealth² of a policy whose share depends on the year alone.

    By backward induction, with W the wealth after the payment, g the year's return and W' = W(1 + g):
    J(t, w) = E[W g + J(t + 1, W')],  M(t, w) = E[(W g)² + 2 W g J(t + 1, W') + M(t + 1, W')].
    Returned are coefficients of shape (YEARS + 1, 5), in the order a, b, c, d, f.
    """
    table = np.zeros((YEARS + 1, 5))
    for t in range(YEARS - 1, -1, -1):
        share = float(policy(np.array([[t, 0.0]]))[0])
        m = share * STOCKS[0] + (1 - share) * BONDS[0]
        s = (share * STOCKS[1]) ** 2 + ((1 - share) * BONDS[1]) ** 2 + m**2  # E[g²]
        a, b, c, d, f = table[t + 1]
        linear = m + b * (1 + m)  # of J in W
        first = 2 * m * a + d * (1 + m)  # of M in W
        second = s + 2 * b * (m + s) + f * (1 + 2 * m + s)  # of M in W²
        table[t] = (
            a + linear * PAID_IN,
            linear,
            c + first * PAID_IN + second * PAID_IN**2,
            first + 2 * second * PAID_IN,
            second,
        )
    return table


def exact(policy, states):
    """Mean and standard deviation of the reward to go, from the moments."""
    year, wealth = np.asarray(states, dtype=float).T
    a, b, c, d, f = moments(policy)[year.astype(int)].T
    J, M = a + b * wealth, c + d * wealth + f * wealth**2
    return J, np.sqrt(M - J**2)


if __name__ == "__main__":
    estimator = pr.LSTD(per_year(1), per_year(2), variance="direct")  # J is linear in wealth, V quadratic
    states = np.array([[0, 1], [0, 10], [0, 19], [10, 20], [15, 60]])  # (year, wealth)
    risks = {}
    print("plan            year  wealth    mean (exact)      std (exact)   95% interval")
    for seed, plan in enumerate((all_stocks, glide_path, half_and_half)):
        risk = estimator.fit(pr.rollout(Savings, plan, episodes=1000, seed=seed))
        low, high = risk.interval(states, of="std").T
        rows = zip(states, risk.mean(states), risk.std(states), *exact(plan, states), low, high, strict=True)
        for (year, wealth), mean, std, true_mean, true_std, lower, upper in rows:
            print(
                f"{plan.__name__:14s} {year:5.0f} {wealth:7.0f} {mean:7.2f} ({true_mean:5.2f}) "
                f"{std:8.2f} ({true_std:5.2f})   {lower:.2f} to {upper:.2f}"
            )
        risks[plan.__name__] = risk
    print()
    print(pr.compare(risks, states[1:2], pr.criteria.MeanMinusStd(1.0)))
