"""Retrieval: who took what → scores of other items; vectors → the nearest; sessions → candidates → what is shown.

In: pairs of users and items of any kind, vectors, sessions. Out: scores, or tables of recommendations. ``base.py`` is
the contract of collaborative filters: ``ease.py``, ``item_knn.py``, ``user_knn.py``, ``rp3beta.py`` and ``spectral.py``
are linear in a user's history, ``als.py`` and ``bpr.py`` learn vectors, ``popularity.py`` is the rule to beat.
``history_filter.py`` makes a model of sessions of one, ``ranked_candidates.py`` of several models and boosted trees;
``objective_ranker.py`` has trees for each of several goals.
``index.py`` searches vectors, ``candidates/`` finds short lists of items for sessions, ``pipeline/`` retrieves,
filters, scores and orders.
"""

from fastrec.retrieval._saved import Saved
from fastrec.retrieval.base import CollaborativeFilter, Popularity
from fastrec.retrieval.candidates import (
    CandidateFeatures,
    Candidates,
    CandidateSource,
    EventFeatures,
    ModelSource,
    NearestVectors,
    RepeatedItems,
    SegmentPopularity,
    cut_anywhere,
    cut_at,
    sample_negatives,
)
from fastrec.retrieval.filters import (
    EASE,
    BPRFactors,
    HistoryFilter,
    ImplicitALS,
    ItemKNN,
    RP3Beta,
    SpectralFilter,
    UserKNN,
)
from fastrec.retrieval.index import Index
from fastrec.retrieval.pipeline import MMR, Available, Boost, InSegment, Quota, Recommender, Seen
from fastrec.retrieval.rankers import ObjectiveRanker, RankedCandidates, events_of, recall_of_sets

__all__ = [
    "EASE",
    "MMR",
    "Available",
    "BPRFactors",
    "Boost",
    "CandidateFeatures",
    "CandidateSource",
    "Candidates",
    "CollaborativeFilter",
    "EventFeatures",
    "HistoryFilter",
    "ImplicitALS",
    "InSegment",
    "Index",
    "ItemKNN",
    "ModelSource",
    "NearestVectors",
    "ObjectiveRanker",
    "Popularity",
    "Quota",
    "RP3Beta",
    "RankedCandidates",
    "Recommender",
    "RepeatedItems",
    "Saved",
    "Seen",
    "SegmentPopularity",
    "SpectralFilter",
    "UserKNN",
    "cut_anywhere",
    "cut_at",
    "events_of",
    "recall_of_sets",
    "sample_negatives",
]
