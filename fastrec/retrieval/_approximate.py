"""What ``Index`` keeps of many vectors so as not to compare them all: faiss's lists of short codes, or a graph."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastrec._core import limits
from fastrec._core.optional import require


class Approximate:
    """A faiss index with a dial: how many lists, or how much of a graph, a query looks into.

    Args:
        base: faiss's index; it is kept here, since what refines it only points to it.
        vectors: float32 ``[n, d]``.
        dial: how far to look; ``factor``: how many times ``k`` vectors are compared exactly at the end (lists only).
        farthest: the end of the dial.
    """

    def __init__(self, base: Any, vectors: Tensor, kind: str, dial: int, factor: int, farthest: int) -> None:
        self.faiss = _faiss()
        self.base, self.kind, self.dial, self.factor, self.farthest = base, kind, dial, factor, farthest
        self.top = base
        if kind == "ivf":
            self.top = self.faiss.IndexRefineFlat(base, self.faiss.swig_ptr(vectors.numpy()))

    @property
    def text(self) -> str:
        """The settings, for people."""
        if self.kind == "ivf":
            return f"{self.base.nlist} lists, {self.dial} probed, {self.factor} k compared exactly"
        return f"{self.dial} candidates"

    @property
    def pays(self) -> bool:
        """Whether it looks at so little that it is faster than comparing all."""
        return self.kind != "ivf" or 4 * self.dial <= self.base.nlist

    def harder(self) -> bool:
        """Look farther from now on; False: there is no farther."""
        if self.dial >= self.farthest:
            return False
        self.dial = min(2 * self.dial, self.farthest)
        self.factor = min(self.factor * 2, 32)
        return True

    def search(self, queries: Tensor, k: int, width: int) -> tuple[Tensor, Tensor]:
        """Return places int64 and scores float32 ``[q, width]`` of the ``k`` nearest; -1 and -inf where there are
        fewer.
        """
        if self.kind == "ivf":
            self.base.nprobe, self.top.k_factor = self.dial, float(self.factor)
        else:
            self.base.hnsw.efSearch = max(self.dial, k)
        self.faiss.omp_set_num_threads(torch.get_num_threads())
        scores, places = (torch.from_numpy(x) for x in self.top.search(queries.contiguous().numpy(), k))
        scores = scores.masked_fill(places < 0, -torch.inf)
        if width > k:
            places = torch.nn.functional.pad(places, (0, width - k), value=-1)
            scores = torch.nn.functional.pad(scores, (0, width - k), value=-torch.inf)
        return places, scores

    def to_state(self) -> dict[str, Any]:
        """As ``save_state`` takes it; the vectors are not in it."""
        numbers = {n: getattr(self, n) for n in ("kind", "dial", "factor", "farthest")}
        return {**numbers, "base": torch.from_numpy(self.faiss.serialize_index(self.base))}

    @classmethod
    def from_state(cls, state: dict[str, Any], vectors: Tensor) -> Approximate:
        """Rebuild what ``to_state`` returned."""
        numbers = {n: state[n] for n in ("kind", "dial", "factor", "farthest")}
        return cls(_faiss().deserialize_index(state["base"].numpy()), vectors, **numbers)


def inverted_file(vectors: Tensor) -> Approximate:
    """Lists round centres, four bits for every two numbers, and exact scores for the best.

    Source: André, Kermarrec, Le Scouarnec 2017, "Accelerated nearest neighbor search with Quick ADC".
    """
    faiss = _faiss()
    n, d = vectors.shape
    lists = 1 << max(4, round(math.log2(math.sqrt(n))))
    base = faiss.index_factory(d, f"IVF{lists},PQ{d // 2 if d % 2 == 0 else d}x4fs", faiss.METRIC_INNER_PRODUCT)
    base.cp.niter, base.cp.max_points_per_centroid = 8, limits.APPROXIMATE_A_LIST
    base.pq.cp.niter = 10
    faiss.omp_set_num_threads(torch.get_num_threads())
    random = np.random.default_rng(0)
    some = random.permutation(n)[: max(limits.APPROXIMATE_CODED, lists * limits.APPROXIMATE_A_LIST)]
    base.train(vectors.numpy()[np.sort(some)])
    base.add(vectors.numpy())
    return Approximate(base, vectors, "ivf", dial=8, factor=4, farthest=max(8, lists // 2))


def graph(vectors: Tensor) -> Approximate:
    """Return a hierarchy of graphs of near vectors.

    Source: Malkov, Yashunin 2016, "Efficient and robust approximate nearest neighbor search using hierarchical
    navigable small world graphs".
    """
    faiss = _faiss()
    base = faiss.IndexHNSWFlat(vectors.shape[1], 24, faiss.METRIC_INNER_PRODUCT)
    base.hnsw.efConstruction = 80
    faiss.omp_set_num_threads(torch.get_num_threads())
    base.add(vectors.numpy())
    return Approximate(base, vectors, "hnsw", dial=128, factor=1, farthest=1024)


def _faiss() -> Any:
    return require("faiss", "faiss-cpu", "pip install 'fastrec-tabular[retrieval]'")
