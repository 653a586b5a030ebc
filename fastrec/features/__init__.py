"""Feature generators: from named columns to named columns, fitted on training rows, safe against leaks.

Each generator registers in ``base.GENERATORS`` when it is defined; saved features name it there.
"""

from typing import TYPE_CHECKING

from fastrec._core.lazy import lazily
from fastrec.features.bucketize import Bucketize
from fastrec.features.cache import FeatureCache
from fastrec.features.categorify import Categorify
from fastrec.features.clip import Clip
from fastrec.features.co_visit import CoVisit
from fastrec.features.collect import Collect
from fastrec.features.combine import Combine
from fastrec.features.count import CountEncode
from fastrec.features.cross import Cross
from fastrec.features.cum_count import CumCount
from fastrec.features.cum_target import CumTarget
from fastrec.features.cumulative import CumStat, LastKnown
from fastrec.features.cyclic import Cyclic
from fastrec.features.date_of import DateOf
from fastrec.features.date_part import DatePart
from fastrec.features.deviation import DeviationFromGroup
from fastrec.features.digits import Digits, RoundTo
from fastrec.features.ewm import Ewm
from fastrec.features.explode import Explode, explode
from fastrec.features.feature_set import FeatureSet
from fastrec.features.fill_missing import FillMissing
from fastrec.features.function import GroupFunction, RowFunction, feature
from fastrec.features.group_pick import GroupPick
from fastrec.features.group_rank import GroupRank
from fastrec.features.group_stats import GroupStats
from fastrec.features.hash_encode import HashEncode
from fastrec.features.history import History
from fastrec.features.image_embed import ImageEmbed
from fastrec.features.join_table import JoinTable
from fastrec.features.lag import Diff, Lag
from fastrec.features.last_action import LastAction
from fastrec.features.list_length import ListLength
from fastrec.features.list_slice import ListSlice
from fastrec.features.log1p import Log1p
from fastrec.features.multi_hot import MultiHot
from fastrec.features.nan_pattern import NaNPattern
from fastrec.features.neighbours import Neighbours
from fastrec.features.ngram_hash import NgramHash
from fastrec.features.normalize import Normalize
from fastrec.features.nunique import NUnique
from fastrec.features.pca import Pca
from fastrec.features.pct_change import PctChange
from fastrec.features.rank_by_count import RankByCount
from fastrec.features.rate import BayesianRate
from fastrec.features.rolling import Rolling
from fastrec.features.row_stats import RowStats
from fastrec.features.selectors import category, matching, number, temporal
from fastrec.features.similarity import JaccardToHistory
from fastrec.features.svd import SvdEncode
from fastrec.features.target import TargetEncode
from fastrec.features.text_embed import TextEmbed
from fastrec.features.text_svd import TextSvd
from fastrec.features.tfidf import TfIdfSimilarity
from fastrec.features.time_since import TimeSince
from fastrec.features.tokens import Tokens
from fastrec.features.vector_columns import VectorColumns
from fastrec.features.where import Where

if TYPE_CHECKING:
    from fastrec.features.cross_search import search_crosses
    from fastrec.features.leakage.check import check_leakage

# Both are long and run rarely: they are imported at first use.
__getattr__ = lazily(__name__, {"check_leakage": "leakage", "search_crosses": "cross_search"})

__all__ = [
    "BayesianRate", "Bucketize", "Categorify", "Clip", "CoVisit", "Collect", "Combine", "CountEncode", "Cross",
    "CumCount", "CumStat", "CumTarget", "Cyclic", "DateOf", "DatePart", "DeviationFromGroup", "Diff", "Digits", "Ewm",
    "Explode", "FeatureCache", "FeatureSet", "FillMissing", "GroupFunction", "GroupPick", "GroupRank", "GroupStats",
    "HashEncode", "History", "ImageEmbed", "JaccardToHistory", "JoinTable", "Lag", "LastAction", "LastKnown",
    "ListLength", "ListSlice", "Log1p", "MultiHot", "NUnique", "NaNPattern", "Neighbours", "NgramHash", "Normalize",
    "Pca", "PctChange", "RankByCount", "Rolling", "RoundTo", "RowFunction", "RowStats", "SvdEncode", "TargetEncode",
    "TextEmbed", "TextSvd", "TfIdfSimilarity", "TimeSince", "Tokens", "VectorColumns", "Where", "category",
    "check_leakage", "explode", "feature", "matching", "number", "search_crosses", "temporal",
]  # fmt: skip
