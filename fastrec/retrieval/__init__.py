"""Retrieval: who took what → scores of other items; vectors → the nearest; sessions → candidates → a ranked list.

In: pairs of users and items, vectors, or sessions. Out: scores, or tables of recommendations. Collaborative filters
share one contract (``CollaborativeFilter``); ``candidates/`` finds short lists, ``pipeline/`` filters and orders them.
"""

from fastrec.retrieval.base import CollaborativeFilter, Popularity, Saved
from fastrec.retrieval.candidates.from_events import CandidateTables, PastFeatures, RankingTables, make_candidates
from fastrec.retrieval.candidates.given import ScoredCandidates, score_candidates
from fastrec.retrieval.candidates.sources import (
    CandidateSource,
    ModelSource,
    NearestVectors,
    RepeatedItems,
    SegmentPopularity,
)
from fastrec.retrieval.candidates.union import (
    CandidateFeatures,
    Candidates,
    EventFeatures,
    cut_anywhere,
    cut_at,
    sample_negatives,
)
from fastrec.retrieval.filters import EASE, HistoryFilter, ImplicitALS, ItemKNN, RP3Beta, SpectralFilter, UserKNN
from fastrec.retrieval.index import Index, Vectors, neighbour_overlap
from fastrec.retrieval.pipeline.recommender import Recommender
from fastrec.retrieval.pipeline.stages import MMR, Available, Boost, InSegment, Quota, Seen
from fastrec.retrieval.rankers import ObjectiveRanker, RankedCandidates, events_of, recall_of_sets

__all__ = [
    "EASE", "MMR", "Available", "Boost", "CandidateFeatures", "CandidateSource", "CandidateTables", "Candidates",
    "CollaborativeFilter", "EventFeatures", "HistoryFilter", "ImplicitALS", "InSegment", "Index", "ItemKNN",
    "ModelSource", "NearestVectors", "ObjectiveRanker", "PastFeatures", "Popularity", "Quota", "RP3Beta",
    "RankedCandidates", "RankingTables", "Recommender", "RepeatedItems", "Saved", "ScoredCandidates", "Seen",
    "SegmentPopularity", "SpectralFilter", "UserKNN", "Vectors", "cut_anywhere", "cut_at", "events_of",
    "make_candidates", "neighbour_overlap", "recall_of_sets", "sample_negatives", "score_candidates",
]  # fmt: skip
