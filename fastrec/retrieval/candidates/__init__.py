"""Candidates: a short list of items for each session, from several sources, for a ranker to order.

``source.py`` is the contract, ``model_source.py`` makes a source of any model of sessions (co-visitation, session kNN,
popularity), ``repeated_items.py``, ``segment_popularity.py`` and ``nearest_vectors.py`` are others. ``union.py`` puts
them side by side and says what each is worth, ``cut_off.py`` parts a log by time, ``negatives.py`` thins a table out,
``candidate_features.py`` and ``event_features.py`` add what a ranker can know.
"""

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
