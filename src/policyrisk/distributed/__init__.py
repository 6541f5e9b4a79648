"""The same sums on many machines, by Ray: :func:`fit`, :func:`rollout` and :func:`monte_carlo`.

Episodes come in *shards*, which are read (or simulated) where a worker is free. A pass over the data is cut
into *parts* of some shards each; a worker sums a part, and the sums are added in pairs, these in pairs again,
on the machines where they lie. The driver gets the last one only. The parts and the order of adding depend on
the shards and not on the workers: up to eight workers give the same result, bit for bit, and any number
of them the local one, to rounding. What was lost with a worker or a machine is summed
again; every episode counts once.

Ray is imported when it is used. Outside of ``with cluster(...)`` each call starts a cluster on this machine,
unless Ray runs already, and ends it.
"""

from policyrisk.distributed.reduce import Shard, equations, fit, shards
from policyrisk.distributed.session import cluster
from policyrisk.distributed.simulation import RemoteEpisodes, monte_carlo, rollout

__all__ = ["RemoteEpisodes", "Shard", "cluster", "equations", "fit", "monte_carlo", "rollout", "shards"]
