"""Scores and targets → one number to train by.

In: scores ``[b]``, targets ``[b]`` (and the lists of the rows). Out: a loss. ``bce.py``: click or not; ``listwise.py``:
the softmax over a list; ``pairwise.py``: the clicked against the others, pair by pair; ``in_batch.py``: the other rows'
items of the batch as negatives.
"""

from fastrec.losses.bce import BCE
from fastrec.losses.lists import BPR, InBatchSoftmax, ListwiseSoftmax, PairwiseHinge

__all__ = ["BCE", "BPR", "InBatchSoftmax", "ListwiseSoftmax", "PairwiseHinge"]
