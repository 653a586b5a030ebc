"""Candidates: a short list of items for each session, from several sources, for a ranker to order.

``source.py`` is the contract, ``model_source.py`` makes a source of any model of sessions (co-visitation, session kNN,
popularity), ``repeated_items.py``, ``segment_popularity.py`` and ``nearest_vectors.py`` are others. ``union.py`` puts
them side by side and says what each is worth, ``cut_off.py`` parts a log by time, ``negatives.py`` thins a table out,
``candidate_features.py`` and ``event_features.py`` add what a ranker can know.
"""

from fastrec.retrieval.candidates.candidate_features import CandidateFeatures
from fastrec.retrieval.candidates.cut_off import cut_anywhere, cut_at
from fastrec.retrieval.candidates.event_features import EventFeatures
from fastrec.retrieval.candidates.model_source import ModelSource
from fastrec.retrieval.candidates.nearest_vectors import NearestVectors
from fastrec.retrieval.candidates.negatives import sample_negatives
from fastrec.retrieval.candidates.repeated_items import RepeatedItems
from fastrec.retrieval.candidates.segment_popularity import SegmentPopularity
from fastrec.retrieval.candidates.source import CandidateSource
from fastrec.retrieval.candidates.union import Candidates

__all__ = [
    "CandidateFeatures",
    "CandidateSource",
    "Candidates",
    "EventFeatures",
    "ModelSource",
    "NearestVectors",
    "RepeatedItems",
    "SegmentPopularity",
    "cut_anywhere",
    "cut_at",
    "sample_negatives",
]
