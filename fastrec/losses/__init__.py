"""Losses of scores and targets: binary cross-entropy, softmax over a list, pairs, in-batch negatives.

They take scores ``[b]``, targets ``[b]``, and the lists of the rows if needed.
"""

from fastrec.losses.lists import BCE, BPR, InBatchSoftmax, ListwiseSoftmax

__all__ = ["BCE", "BPR", "InBatchSoftmax", "ListwiseSoftmax"]
