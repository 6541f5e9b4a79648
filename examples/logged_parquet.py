"""A log that another program wrote: Parquet in, numbers and a report out.

The log is of a help desk. A run begins with some open tickets; every minute one is solved with probability
0.6 or a new one comes in; each open ticket costs 1 a minute; the run ends when none is open. After an hour
the recorder stops, and such a run is cut off. The first half of this file is the other program, and needs
nothing of policyrisk; the columns have names of its own.
"""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import policyrisk as pr

MOST, SOLVED = 12, 0.6


def write_log(path, runs=1500, seed=1):
    """One row for each minute of each run, and one for the state that it ended in, without a cost."""
    rng = np.random.default_rng(seed)
    rows = []
    for run in range(runs):
        tickets, minute = int(rng.integers(1, 9)), 0
        while tickets > 0 and minute < 60:
            rows.append((f"run-{run}", minute, tickets, -float(tickets), False))
            tickets = max(tickets - 1, 0) if rng.random() < SOLVED else min(tickets + 1, MOST)
            minute += 1
        rows.append((f"run-{run}", minute, tickets, None, tickets == 0))
    columns = [pa.array(column) for column in zip(*rows, strict=True)]
    table = pa.table(columns, names=["run", "minute", "tickets", "cost", "done"])
    pq.write_table(table, path)


def exact():
    """The same desk as a Markov chain of the states 0 to MOST, where 0 has ended."""
    P = np.zeros((MOST + 1, MOST + 1))
    for tickets in range(1, MOST + 1):
        P[tickets, min(tickets + 1, MOST)] += 1 - SOLVED
        if tickets > 1:
            P[tickets, tickets - 1] = SOLVED
    return pr.MarkovChain(P, -np.arange(MOST + 1.0))


if __name__ == "__main__":
    write_log("desk.parquet")
    # Nothing is read yet: the stream is read batch by batch, as often as the estimator needs it.
    log = pr.read_parquet(
        "desk.parquet", state=["tickets"], episode="run", reward="cost", step="minute", terminated="done"
    )
    risk = pr.LSTD(pr.Tabular(MOST + 1), lam=0.9).fit(log)
    print(log.counts)

    chain, at = exact(), np.array([1, 4, 8])
    low, high = risk.interval(at, of="std").T
    for i, tickets in enumerate(at):
        print(
            f"open tickets {tickets}: mean {risk.mean(at)[i]:.1f} (exact {chain.mean()[tickets]:.1f}), "
            f"std {risk.std(at)[i]:.1f}, {low[i]:.1f} to {high[i]:.1f} (exact {chain.std()[tickets]:.1f})"
        )

    evaluation = pr.Evaluation.of(risk, log, name="help desk", names=["tickets"])
    pr.write_report(evaluation, "report.html")
    print("written: report.html")
