"""Candidates: a short list of items for each session, from several sources, for a ranker to order."""

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
