"""Features: maps from states to vectors, φ(x).

A feature map is any object with a ``size`` and a call that takes states (n, dim) to an array
(n, size), dense or sparse (CSR). Ours also tell which states lie outside their declared box
(:meth:`outside`), compare equal when they are the same map, and describe themselves in plain values
(:meth:`spec`) so that they can be saved and loaded (:func:`from_spec`). A plain function on states
becomes one by :func:`as_features`; a class of your own is loaded again once it is registered.
"""

from policyrisk.features.actions import ActionFeatures
from policyrisk.features.fourier import Fourier
from policyrisk.features.function import FunctionFeatures, as_features
from policyrisk.features.joint import Joint
from policyrisk.features.labels import Labels
from policyrisk.features.leaves import Leaves
from policyrisk.features.network import TorchFeatures
from policyrisk.features.polynomial import Polynomial
from policyrisk.features.protocol import BinaryFeatures, Features
from policyrisk.features.radial import RadialBasis
from policyrisk.features.ranked import Ranked
from policyrisk.features.registry import from_spec, register
from policyrisk.features.sb3_features import from_sb3
from policyrisk.features.tabular import Tabular
from policyrisk.features.tilecoding import TileCoding

__all__ = [
    "ActionFeatures",
    "BinaryFeatures",
    "Features",
    "Fourier",
    "FunctionFeatures",
    "Joint",
    "Labels",
    "Leaves",
    "Polynomial",
    "RadialBasis",
    "Ranked",
    "Tabular",
    "TileCoding",
    "TorchFeatures",
    "as_features",
    "from_sb3",
    "from_spec",
    "register",
]
