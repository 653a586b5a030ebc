"""Retrieve, filter, score, order: the four stages from sessions to a ranked list."""

from fastrec.retrieval.pipeline.recommender import Recommender
from fastrec.retrieval.pipeline.stages import MMR, Available, Boost, InSegment, Quota, Seen

__all__ = ["MMR", "Available", "Boost", "InSegment", "Quota", "Recommender", "Seen"]
