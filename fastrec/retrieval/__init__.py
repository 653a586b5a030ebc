"""Collaborative filters: who took what → scores of other users and items, and each user's best items.

In: pairs of users and items, raw ids of any kind. Out: float64 scores of pairs, or a table of recommendations.
``base.py`` is the contract; ``ease.py``, ``item_knn.py``, ``user_knn.py``, ``rp3beta.py`` and ``spectral.py`` are
linear in a user's history, ``als.py`` and ``bpr.py`` learn vectors, ``popularity.py`` is the rule to beat.
"""

from fastrec.retrieval.als import ImplicitALS
from fastrec.retrieval.base import CollaborativeFilter
from fastrec.retrieval.bpr import BPRFactors
from fastrec.retrieval.candidates import (
    Candidates,
    CandidateSource,
    ModelSource,
    NearestVectors,
    RepeatedItems,
    SegmentPopularity,
    cut_at,
    sample_negatives,
)
from fastrec.retrieval.ease import EASE
from fastrec.retrieval.history_filter import HistoryFilter
from fastrec.retrieval.index import Index
from fastrec.retrieval.item_knn import ItemKNN
from fastrec.retrieval.popularity import Popularity
from fastrec.retrieval.rp3beta import RP3Beta
from fastrec.retrieval.spectral import SpectralFilter
from fastrec.retrieval.user_knn import UserKNN

__all__ = [
    "EASE",
    "BPRFactors",
    "CandidateSource",
    "Candidates",
    "CollaborativeFilter",
    "HistoryFilter",
    "ImplicitALS",
    "Index",
    "ItemKNN",
    "ModelSource",
    "NearestVectors",
    "Popularity",
    "RP3Beta",
    "RepeatedItems",
    "SegmentPopularity",
    "SpectralFilter",
    "UserKNN",
    "cut_at",
    "sample_negatives",
]
