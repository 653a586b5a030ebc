"""Texts as bags of words, on the host.

Bags are sorted by the bytes of their codes and counts, so that neither the order of rows nor partitions change the
result.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch

from fastrec.features._engine.keyed import union_keys
from fastrec.table import Keys
from fastrec.table.offsets import offsets_of, rows_of


@dataclass(frozen=True, eq=False)
class Bags:
    """Distinct bags of words.

    Args:
        words: the ``K`` words that occur, in ascending order.
        size: how many bags there are; one of them may be empty.
        pairs: int64 ``[P]``, ascending: ``bag · K + word`` of each word of each bag.
        times: int64 ``[P]``, how often it is there.
    """

    words: Keys
    size: int
    pairs: torch.Tensor
    times: torch.Tensor

    def split(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return bag and word of every pair: int64 ``[P]`` each."""
        width = max(len(self.words), 1)
        return self.pairs // width, self.pairs % width


def count_words(
    offsets: torch.Tensor, codes: torch.Tensor, size: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Count how often each word occurs in each text.

    Args:
        offsets: int64 ``[texts + 1]``, where each text's words begin, from 0.
        codes: int64 ``[elements]``: 0 = no word, ``i`` = word ``i - 1``.
        size: how many words there are.

    Returns:
        Text, word (from 0) and count, int64 ``[P]`` each, by text and then by word.
    """
    known = codes > 0
    pairs = (rows_of(offsets) * max(size, 1) + codes - 1)[known]
    found, times = np.unique(pairs.numpy(), return_counts=True)
    pairs = torch.from_numpy(found)
    return pairs // max(size, 1), pairs % max(size, 1), torch.from_numpy(times.astype(np.int64))


def distinct_bags(
    words: Keys, text: torch.Tensor, word: torch.Tensor, times: torch.Tensor, texts: int
) -> tuple[Bags, torch.Tensor]:
    """Find the distinct bags of texts.

    Args:
        words: the words, in ascending order; those in no text are left out.
        text: int64 ``[P]``, ascending; with ``word`` and ``times`` as ``count_words`` gives them.
        word: int64 ``[P]``, ascending within each text.
        times: int64 ``[P]``.
        texts: how many texts there are.

    Returns:
        The bags, and each text's bag: int64 ``[texts]``.
    """
    used, word = torch.unique(word, return_inverse=True)
    words = words if len(used) == len(words) else words.take(used)
    entries = np.stack([word.numpy(), times.numpy()], 1).astype(">u4")
    ends = offsets_of(torch.bincount(text, minlength=texts) * entries.itemsize * 2).numpy()
    keys = pa.Array.from_buffers(pa.large_binary(), texts, [None, pa.py_buffer(ends), pa.py_buffer(entries)])
    codes, distinct = Keys((keys,)).distinct()
    order = distinct.sort_order()
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order))
    bag_of = place[codes]
    # Each bag takes its words from the first of its texts.
    first = torch.full((len(order),), texts).scatter_reduce_(0, bag_of, torch.arange(texts), "amin")
    bag = bag_of[text]
    rows = (first[bag] == text).nonzero().squeeze(1)
    pairs, moved = torch.sort(bag[rows] * max(len(words), 1) + word[rows])
    return Bags(words, len(order), pairs, times[rows][moved]), bag_of


def merge_bags(a: Bags, b: Bags) -> tuple[Bags, torch.Tensor, torch.Tensor]:
    """Return the bags of both, and the places of those of ``a`` and of ``b`` among them."""
    words, left, right = union_keys(a.words, b.words)
    (bag_a, word_a), (bag_b, word_b) = a.split(), b.split()
    text, word = torch.cat([bag_a, bag_b + a.size]), torch.cat([left[word_a], right[word_b]])
    bags, bag_of = distinct_bags(words, text, word, torch.cat([a.times, b.times]), a.size + b.size)
    return bags, bag_of[: a.size], bag_of[a.size :]
