"""Feature generators: from named columns to named columns, fitted on training rows, safe against leaks.

Generators are loaded at first use; ``base.GENERATORS`` holds the loaded ones, and saved features name them.
"""

from typing import TYPE_CHECKING

from fastrec._core.lazy import lazily

# At once: a generator fits and transforms as a set of one, and ``explode`` is the name of its module too.
from fastrec.features.explode import Explode, explode
from fastrec.features.feature_set import FeatureSet

if TYPE_CHECKING:
    from fastrec.features.bucketize import Bucketize
    from fastrec.features.cache import FeatureCache
    from fastrec.features.categorify import Categorify
    from fastrec.features.clip import Clip
    from fastrec.features.co_visit import CoVisit
    from fastrec.features.collect import Collect
    from fastrec.features.combine import Combine
    from fastrec.features.count import CountEncode
    from fastrec.features.cross import Cross
    from fastrec.features.cross_search import search_crosses
    from fastrec.features.cum_count import CumCount
    from fastrec.features.cum_target import CumTarget
    from fastrec.features.cumulative import CumStat, LastKnown
    from fastrec.features.cyclic import Cyclic
    from fastrec.features.date_of import DateOf
    from fastrec.features.date_part import DatePart
    from fastrec.features.deviation import DeviationFromGroup
    from fastrec.features.digits import Digits, RoundTo
    from fastrec.features.ewm import Ewm
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
    from fastrec.features.leakage.check import check_leakage
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

_HOMES = {
    "BayesianRate": "rate", "Bucketize": "bucketize", "Categorify": "categorify", "Clip": "clip",
    "CoVisit": "co_visit", "Collect": "collect", "Combine": "combine", "CountEncode": "count", "Cross": "cross",
    "CumCount": "cum_count", "CumStat": "cumulative", "CumTarget": "cum_target", "Cyclic": "cyclic",
    "DateOf": "date_of", "DatePart": "date_part", "DeviationFromGroup": "deviation", "Diff": "lag",
    "Digits": "digits", "Ewm": "ewm", "FeatureCache": "cache", "FillMissing": "fill_missing",
    "GroupFunction": "function", "GroupPick": "group_pick", "GroupRank": "group_rank", "GroupStats": "group_stats",
    "HashEncode": "hash_encode", "History": "history", "ImageEmbed": "image_embed", "JaccardToHistory": "similarity",
    "JoinTable": "join_table", "Lag": "lag", "LastAction": "last_action", "LastKnown": "cumulative",
    "ListLength": "list_length", "ListSlice": "list_slice", "Log1p": "log1p", "MultiHot": "multi_hot",
    "NUnique": "nunique", "NaNPattern": "nan_pattern", "Neighbours": "neighbours", "NgramHash": "ngram_hash",
    "Normalize": "normalize", "Pca": "pca", "PctChange": "pct_change", "RankByCount": "rank_by_count",
    "Rolling": "rolling", "RoundTo": "digits", "RowFunction": "function", "RowStats": "row_stats", "SvdEncode": "svd",
    "TargetEncode": "target", "TextEmbed": "text_embed", "TextSvd": "text_svd", "TfIdfSimilarity": "tfidf",
    "TimeSince": "time_since", "Tokens": "tokens", "VectorColumns": "vector_columns", "Where": "where",
    "category": "selectors", "check_leakage": "leakage", "feature": "function", "matching": "selectors",
    "number": "selectors", "search_crosses": "cross_search", "temporal": "selectors",
}  # fmt: skip
__getattr__ = lazily(__name__, _HOMES)

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
