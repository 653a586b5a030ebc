"""Retrieve, filter, score, order: the four stages from sessions to what is shown.

``recommender.py`` puts the stages together, ``filters.py`` holds what takes candidates away, ``orders.py`` what puts
those that are left in another order than their scores', ``saving.py`` writes and reads all of it.
"""

from fastrec.retrieval.pipeline.recommender import Recommender
from fastrec.retrieval.pipeline.stages import MMR, Available, Boost, InSegment, Quota, Seen

__all__ = ["MMR", "Available", "Boost", "InSegment", "Quota", "Recommender", "Seen"]
