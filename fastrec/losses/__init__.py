"""Scores and targets → a loss: click or not, a softmax over a list, pairs, in-batch negatives.

In: scores ``[b]``, targets ``[b]``, and the lists of the rows if needed. Out: a loss.
"""

from fastrec.losses.bce import BCE
from fastrec.losses.lists import BPR, InBatchSoftmax, ListwiseSoftmax

__all__ = ["BCE", "BPR", "InBatchSoftmax", "ListwiseSoftmax"]
