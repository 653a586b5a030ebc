"""Feature generators: from named columns to named columns, fitted on training rows, safe against leaks.

Generators are loaded at first use; ``base.GENERATORS`` holds the loaded ones, and saved features name them.
"""

from typing import TYPE_CHECKING

from fastrec._core.imports import lazily

# At once: a generator fits and transforms as a set of one, and ``explode`` is the name of its module too.
from fastrec.features.explode import Explode, explode
from fastrec.features.feature_set import FeatureSet

if TYPE_CHECKING:
    from fastrec.features.cache import FeatureCache
    from fastrec.features.clean import Clip, FillMissing, Log1p, Normalize
    from fastrec.features.co_visit import CoVisit, JaccardToHistory
    from fastrec.features.columns import category, matching, number, temporal
    from fastrec.features.cross import Cross, search_crosses
    from fastrec.features.cum_target import CumTarget
    from fastrec.features.cumulative import CumCount, CumStat, LastKnown
    from fastrec.features.embed import ImageEmbed, TextEmbed
    from fastrec.features.encode import Categorify, CountEncode, HashEncode, NaNPattern, RankByCount
    from fastrec.features.explode import Collect
    from fastrec.features.function import GroupFunction, RowFunction, feature
    from fastrec.features.group import DeviationFromGroup, GroupPick, GroupRank, GroupStats, Neighbours, NUnique
    from fastrec.features.history import History, LastAction, TimeSince
    from fastrec.features.join import JoinTable
    from fastrec.features.lagged import Diff, Ewm, Lag, PctChange, Rolling
    from fastrec.features.leakage.check import check_leakage
    from fastrec.features.lists import ListLength, ListSlice, MultiHot
    from fastrec.features.rows import Bucketize, Combine, Digits, RoundTo, RowStats, Where
    from fastrec.features.target import BayesianRate, TargetEncode
    from fastrec.features.text import TextSvd, TfIdfSimilarity, Tokens
    from fastrec.features.time import Cyclic, DateOf, DatePart
    from fastrec.features.vectors import Pca, SvdEncode, VectorColumns

_HOMES = {
    "BayesianRate": "target", "Bucketize": "rows", "Categorify": "encode", "Clip": "clean",
    "CoVisit": "co_visit", "Collect": "explode", "Combine": "rows", "CountEncode": "encode", "Cross": "cross",
    "CumCount": "cumulative", "CumStat": "cumulative", "CumTarget": "cum_target", "Cyclic": "time",
    "DateOf": "time", "DatePart": "time", "DeviationFromGroup": "group", "Diff": "lagged",
    "Digits": "rows", "Ewm": "lagged", "FeatureCache": "cache", "FillMissing": "clean",
    "GroupFunction": "function", "GroupPick": "group", "GroupRank": "group", "GroupStats": "group",
    "HashEncode": "encode", "History": "history", "ImageEmbed": "embed", "JaccardToHistory": "co_visit",
    "JoinTable": "join", "Lag": "lagged", "LastAction": "history", "LastKnown": "cumulative",
    "ListLength": "lists", "ListSlice": "lists", "Log1p": "clean", "MultiHot": "lists",
    "NUnique": "group", "NaNPattern": "encode", "Neighbours": "group",
    "Normalize": "clean", "Pca": "vectors", "PctChange": "lagged", "RankByCount": "encode",
    "Rolling": "lagged", "RoundTo": "rows", "RowFunction": "function", "RowStats": "rows", "SvdEncode": "vectors",
    "TargetEncode": "target", "TextEmbed": "embed", "TextSvd": "text", "TfIdfSimilarity": "text",
    "TimeSince": "history", "Tokens": "text", "VectorColumns": "vectors", "Where": "rows",
    "category": "columns", "check_leakage": "leakage", "feature": "function", "matching": "columns",
    "number": "columns", "search_crosses": "cross", "temporal": "columns",
}  # fmt: skip
__getattr__ = lazily(__name__, _HOMES)

__all__ = [
    "BayesianRate", "Bucketize", "Categorify", "Clip", "CoVisit", "Collect", "Combine", "CountEncode", "Cross",
    "CumCount", "CumStat", "CumTarget", "Cyclic", "DateOf", "DatePart", "DeviationFromGroup", "Diff", "Digits", "Ewm",
    "Explode", "FeatureCache", "FeatureSet", "FillMissing", "GroupFunction", "GroupPick", "GroupRank", "GroupStats",
    "HashEncode", "History", "ImageEmbed", "JaccardToHistory", "JoinTable", "Lag", "LastAction", "LastKnown",
    "ListLength", "ListSlice", "Log1p", "MultiHot", "NUnique", "NaNPattern", "Neighbours", "Normalize",
    "Pca", "PctChange", "RankByCount", "Rolling", "RoundTo", "RowFunction", "RowStats", "SvdEncode", "TargetEncode",
    "TextEmbed", "TextSvd", "TfIdfSimilarity", "TimeSince", "Tokens", "VectorColumns", "Where", "category",
    "check_leakage", "explode", "feature", "matching", "number", "search_crosses", "temporal",
]  # fmt: skip
