"""Features: maps from states to vectors, φ(x).

A feature map is any object with a ``size`` and a call that takes states (n, dim) to an array
(n, size), dense or sparse (CSR). Ours also tell which states lie outside their declared box
(``outside``), compare equal when they are the same map, and describe themselves in plain values
(``spec``) so that they can be saved and loaded (:func:`from_spec`). A plain function on states
becomes one by :func:`as_features`; a class of your own is loaded again, and can be spelled as text
(:mod:`policyrisk.features.spelling`), once it is registered (:func:`register`).
"""

from policyrisk.features.actions import ActionFeatures
from policyrisk.features.composed import Joint, Ranked
from policyrisk.features.function import FunctionFeatures, as_features
from policyrisk.features.lattice import Fourier, Polynomial
from policyrisk.features.leaves import Leaves
from policyrisk.features.network import TorchFeatures
from policyrisk.features.protocol import BinaryFeatures, FeatureMap, Features, from_spec, register
from policyrisk.features.radial import RadialBasis
from policyrisk.features.sb3 import from_sb3
from policyrisk.features.tables import Labels, Tabular
from policyrisk.features.tilecoding import TileCoding

__all__ = [
    "ActionFeatures",
    "BinaryFeatures",
    "FeatureMap",
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
