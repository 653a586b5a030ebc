"""Feature generators: from named columns to named columns, fitted on training rows, safe against leaks.

``__all__`` is the registry: every class in it is tested by one contract suite and can be saved and loaded by name.
"""

from fastrec.features.bucketize import Bucketize
from fastrec.features.combine import Combine
from fastrec.features.count import CountEncode
from fastrec.features.cross import Cross
from fastrec.features.cumulative import CumStat, LastKnown
from fastrec.features.cyclic import Cyclic
from fastrec.features.explode import explode
from fastrec.features.feature_set import FeatureSet
from fastrec.features.group import GroupPick, GroupRank, GroupStats
from fastrec.features.history import History
from fastrec.features.lag import Diff, Lag
from fastrec.features.rate import BayesianRate
from fastrec.features.similarity import JaccardToHistory
from fastrec.features.target import TargetEncode
from fastrec.features.where import Where

__all__ = [
    "BayesianRate",
    "Bucketize",
    "Combine",
    "CountEncode",
    "Cross",
    "CumStat",
    "Cyclic",
    "Diff",
    "FeatureSet",
    "GroupPick",
    "GroupRank",
    "GroupStats",
    "History",
    "JaccardToHistory",
    "Lag",
    "LastKnown",
    "TargetEncode",
    "Where",
    "explode",
]
