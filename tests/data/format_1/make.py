"""Writes the files of this folder; run with the last version that wrote format 1, and never again.

Every file is saved by the version's own ``save``; ``answers.json`` has what it answered about them.
"""

import json  # noqa: I001
import warnings
from dataclasses import asdict
from pathlib import Path

import numpy as np

import policyrisk as pr
from policyrisk.control import GreedyPolicy
from policyrisk.evaluation import Evaluation
from policyrisk.survey import Survey  # where it stood then

HERE = Path(__file__).parent
OF = ("mean", "second_moment", "variance", "std", "sharpe")

walk = pr.domains.walk(n=8, p=0.7)
data = walk.sample(0, episodes=150, seed=1)
cut_off = walk.sample(0, episodes=150, seed=2, max_steps=9)
line, parabola = (pr.Polynomial(degree, low=[0], high=[7]) for degree in (1, 2))
long_maps = [pr.Polynomial(degree, low=[0], high=[29]) for degree in (1, 2)]
long_data = pr.domains.walk(n=30, p=0.7).sample(0, episodes=40, seed=1)
tiles = pr.TileCoding(low=[0], high=[8], bins=[4], tilings=2)
bumps = pr.RadialBasis.grid(low=[0], high=[7], shape=(3,))
RISKS = {
    "tabular": pr.LSTD(pr.Tabular(8)).fit(data),
    "direct": pr.LSTD(pr.Tabular(8), variance="direct").fit(data, bootstrap=20, seed=3),
    "tiles": pr.LSTD(tiles, lam=0.5, discount=0.9).fit(cut_off),
    "two_maps": pr.LSTD(bumps, parabola, ridge=0.001).fit(data),
    "fourier": pr.LSTD(pr.Fourier(order=2, low=[0], high=[7]), tiles).fit(data),
    "constrained": pr.LSTD(*long_maps, nonnegative_at=np.arange(30)).fit(long_data),
    "exact": pr.LSTD(line, parabola).fit_exact(walk, start=0),
    "td": pr.TD(pr.Tabular(8), step=pr.StepSize(0.1, decay=100)).fit(data),
}


def told(risk):
    x = np.array([0.0, 3.0, 6.0 if isinstance(risk.features, pr.Tabular) else 6.5])
    answers = {"x": x.tolist(), "episodes": risk.episodes(x).tolist()}
    answers |= {"maps": [repr(risk.features), repr(risk.second_features)], "facts": asdict(risk.facts)}
    answers |= {of: getattr(risk, of)(x).tolist() for of in OF}
    summary = risk.summary(x).to_dict()
    answers["summary"] = {of: list(summary[of].values()) for of in ("mean", "variance", "std", "sharpe")}
    if risk.error_bars is not None:
        methods = ["student"] if risk.error_bars.replicates is None else ["student", "bootstrap"]
        answers["interval"] = {m: {of: risk.interval(x, of, 0.9, m).tolist() for of in OF} for m in methods}
    return answers


warnings.simplefilter("ignore")
answers = {}
for name, risk in RISKS.items():
    risk.save(HERE / f"{name}.npz")
    answers[name] = told(risk)
evaluation = Evaluation(
    "walk", ("place",), RISKS["tabular"], Survey.of(data, seed=0), 0.9, {"data": "a", "box": [[0, 7]]}
)
evaluation.save(HERE / "evaluation")
answers["evaluation"] = {
    "name": evaluation.name,
    "names": list(evaluation.names),
    "level": evaluation.level,
    "notes": evaluation.notes,
    "summary": [evaluation.summary.mean.value, evaluation.summary.mean.low, evaluation.summary.std.high],
    "survey": {
        name: np.asarray(value).tolist()
        for name, value in vars(evaluation.survey).items()
        if name not in ("starts", "visited")
    },
}
record = pr.monte_carlo(walk, None, [0, 7], episodes=50, seed=4)
record.save(HERE / "montecarlo.npz")
answers["montecarlo"] = record.to_dict()
grid = pr.RadialBasis.grid(low=0, high=1, shape=3, normalised=True, truncate=0.9)
policy = GreedyPolicy(grid, [[0, 1], [2, 1], [0, 1]], {"seed": 5})
policy.save(HERE / "policy.npz")
answers["policy"] = {
    "x": [0.0, 0.5, 1.0],
    "value": policy.value([0.0, 0.5, 1.0]).tolist(),
    "origin": policy.origin,
}
(HERE / "answers.json").write_text(json.dumps(answers))
