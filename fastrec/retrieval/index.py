"""``Index``: nearest vectors, exactly or with measured recall."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor
from torch.nn import functional as F

from fastrec._core import limits
from fastrec._core.atomic import atomic_file
from fastrec._core.imports import require
from fastrec.errors import DataError, check_whole, refuse
from fastrec.sequences import best_items
from fastrec.table import Column, Table, Vocab, as_column
from fastrec.table.state import Saved


class Approximate:
    """A faiss index with an adjustable search effort ``dial``, up to ``farthest``: lists probed, or graph candidates.

    ``base`` is stored because the refining index only points to it. For lists, ``factor k`` vectors are compared
    exactly.
    """

    def __init__(self, base: Any, vectors: Tensor, kind: str, dial: int, factor: int, farthest: int) -> None:
        self.faiss = _faiss()
        self.base, self.kind, self.dial, self.factor, self.farthest = base, kind, dial, factor, farthest
        self.top = self.faiss.IndexRefineFlat(base, self.faiss.swig_ptr(vectors.numpy())) if kind == "ivf" else base

    @property
    def text(self) -> str:
        """The settings, for people."""
        if self.kind == "ivf":
            return f"{self.base.nlist} lists, {self.dial} probed, {self.factor} k compared exactly"
        return f"{self.dial} candidates"

    def harder(self) -> bool:
        """Double the effort; return False at the limit."""
        if self.dial >= self.farthest:
            return False
        self.dial = min(2 * self.dial, self.farthest)
        self.factor = min(self.factor * 2, 32)
        return True

    def search(self, queries: Tensor, k: int, width: int) -> tuple[Tensor, Tensor]:
        """Return places int64 and scores float32 ``[q, width]`` of the ``k`` nearest, filled up with -1 and -inf."""
        if self.kind == "ivf":
            self.base.nprobe, self.top.k_factor = self.dial, float(self.factor)
        else:
            self.base.hnsw.efSearch = max(self.dial, k)
        self.faiss.omp_set_num_threads(torch.get_num_threads())
        scores, places = (torch.from_numpy(x) for x in self.top.search(queries.contiguous().numpy(), k))
        scores = scores.masked_fill(places < 0, -torch.inf)
        short = (0, width - k)
        return F.pad(places, short, value=-1), F.pad(scores, short, value=-torch.inf)

    def to_state(self) -> dict[str, Any]:
        """Return all but the vectors, as ``save_state`` takes it."""
        numbers = {n: getattr(self, n) for n in ("kind", "dial", "factor", "farthest")}
        return {**numbers, "base": torch.from_numpy(self.faiss.serialize_index(self.base))}

    @classmethod
    def from_state(cls, state: dict[str, Any], vectors: Tensor) -> Approximate:
        """Rebuild what ``to_state`` returned."""
        numbers = {n: state[n] for n in ("kind", "dial", "factor", "farthest")}
        return cls(_faiss().deserialize_index(state["base"].numpy()), vectors, **numbers)


def inverted_file(vectors: Tensor) -> Approximate:
    """Index vectors in lists round centres: four bits per two numbers, exact scores for the best.

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
    """Index vectors in a hierarchy of graphs of near vectors.

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


Kind = Literal["auto", "exact", "ivf", "hnsw"]


class Index(Saved):
    """Search of vectors with the highest dot product (or cosine) with a query.

    Up to 50,000 vectors are compared exactly. More are stored in ``faiss-cpu`` lists, of which as many are probed as
    the recall measured on held-out queries requires. If a quarter of the lists is not enough (many tight clusters),
    exact search is used, as it is as fast. The choice, ``about``, is printed.

    Args:
        vectors: float ``[n, d]``, finite.
        ids: ``[n]`` distinct ids of any key type; None: 0 to n - 1.
        metric: ``"dot"`` or ``"cosine"``.
        kind: ``"exact"``, ``"ivf"`` (lists) or ``"hnsw"`` (a graph); ``"auto"``: by size and recall.
        recall: wanted recall of the 100 nearest; ``"ivf"`` and ``"hnsw"`` approach it as far as they can.
        queries: float ``[q, d]`` typical queries for measuring recall; None: some of the vectors, without themselves.
        verbose: print ``about``.

    Attributes:
        kind: the chosen kind.
        recall: measured recall; 1 for exact search.
        about: a line on both.

    Raises:
        DataError: shapes do not fit, a number is not finite, an id occurs twice.
        MissingPackageError: there are more vectors, and no ``faiss-cpu``.
    """

    constructed = False  # what was built is read, not chosen anew
    learned = ("kind", "metric", "recall", "about", "vectors", "ids", "_found")

    def __init__(
        self,
        vectors: Tensor,
        ids: Any = None,
        *,
        metric: Literal["dot", "cosine"] = "dot",
        kind: Kind = "auto",
        recall: float = 0.98,
        queries: Tensor | None = None,
        verbose: bool = True,
    ) -> None:
        if metric not in ("dot", "cosine") or kind not in ("auto", "exact", "ivf", "hnsw"):
            raise DataError(f"metric={metric!r}, kind={kind!r}", remedy="See the arguments of Index")
        self.metric = metric
        self.vectors = self._checked(torch.as_tensor(vectors), "vectors")
        if not len(self.vectors):
            raise DataError("there is no vector", remedy="Give one or more")
        self.ids = _vocab(torch.arange(len(self.vectors)) if ids is None else ids, len(self.vectors))
        started = time.perf_counter()
        self._found: Approximate | None = None
        self.kind, self.recall = "exact", 1.0
        if kind != "exact" and (kind != "auto" or len(self.vectors) > limits.INDEX_FEW):
            found = (graph if kind == "hnsw" else inverted_file)(self.vectors)
            reached = self._tune(found, recall, None if queries is None else self._checked(queries, "queries"))
            # if a quarter of the lists is not enough, exact search is as fast
            if kind != "auto" or (reached >= recall and 4 * found.dial <= found.base.nlist):
                self._found, self.kind, self.recall = found, found.kind, reached
        how = "exact, every vector is compared"
        if self._found is not None:
            how = f"{self.kind} ({self._found.text}), recall@{limits.INDEX_AT} {self.recall:.4f} measured"
        size, took = f"{len(self.vectors):,} × {self.vectors.shape[1]}", time.perf_counter() - started
        self.about = f"Index of {size}: {how}, {took:.1f} s"
        if verbose:
            print(self.about)

    def __len__(self) -> int:
        return len(self.vectors)

    def search(self, queries: Tensor, k: int, *, allowed: Any = None) -> tuple[Tensor, Tensor]:
        """Return the nearest vectors of each query.

        Args:
            queries: float ``[q, d]``.
            k: number of vectors.
            allowed: the vectors that may be found: bool ``[n]``, or ids; None: all.

        Returns:
            Places int64 ``[q, k]``, nearest first (exact search: ties by place), and scores float32; -1 and -inf where
            there are fewer. ``decode`` turns places into ids.

        Raises:
            DataError: shapes do not fit, a number is not finite, ``k`` is below 1, or an allowed id is unknown.
        """
        check_whole("search", k=k)
        queries = self._checked(queries, "queries")
        mask = None if allowed is None else self._mask(allowed)
        if self._found is None:
            return self._exact(queries, k, mask)
        if mask is None:
            return self._completed(*self._found.search(queries, min(k, len(self)), k), queries, None)
        count = int(mask.sum())
        wanted = -(-3 * k * len(self) // max(1, 2 * count))  # half as many again as should do
        if count <= limits.INDEX_FEW or wanted > limits.INDEX_FEW // 10:
            return self._exact(queries, k, mask)
        # Search for more than ``k`` and drop those not allowed; queries with too few results are searched exactly.
        places, scores = self._found.search(queries, min(wanted, len(self)), wanted)
        scores = scores.masked_fill(~mask[places.clamp_min(0)] | (places < 0), -torch.inf)
        best, order = torch.sort(scores, dim=1, descending=True, stable=True)
        return self._completed(places.gather(1, order)[:, :k], best[:, :k].contiguous(), queries, mask)

    def decode(self, places: Tensor) -> Column:
        """Return ids of places, flattened; missing for -1."""
        return as_column(self.ids.decode(places.reshape(-1).clamp_min(-1) + 1), name="id")

    def similar(self, ids: Any, k: int = 10) -> Table:
        """Return the ``k`` vectors nearest to those of ``[n]`` ids, without themselves.

        Returns:
            ``id``, ``neighbour``, ``score`` and ``place`` (from 1), nearest first.

        Raises:
            DataError: ``k`` is below 1, or an id is unknown.
        """
        own = self._places(as_column(ids, name="id"), "Ask for ids that are there")
        found, scores = self.search(self.vectors[own], k + 1)
        kept = (found != own.unsqueeze(1)) & (found >= 0)
        kept &= kept.cumsum(1) <= k
        row, _ = kept.nonzero(as_tuple=True)
        columns = {"id": self.decode(own[row]), "neighbour": self.decode(found[kept])}
        return Table({**columns, "score": scores[kept], "place": kept.cumsum(1)[kept]})

    def _state(self) -> dict[str, Any]:
        return {**super()._state(), "_found": None if self._found is None else self._found.to_state()}

    def _restore(self, state: dict[str, Any]) -> None:
        super()._restore(state)
        if self._found is not None:
            self._found = Approximate.from_state(self._found, self.vectors)

    def _tune(self, found: Approximate, goal: float, queries: Tensor | None) -> float:
        """Increase the effort until held-out queries reach the goal, or to its limit; return the measured recall."""
        source = self.vectors if queries is None else queries
        rows = torch.randperm(len(source), generator=torch.Generator().manual_seed(0))[: 2 * limits.INDEX_HELD_OUT]
        own = rows if queries is None else torch.full_like(rows, -1)
        asked, k = source[rows], min(limits.INDEX_AT, len(self) - 1)

        def others(places: Tensor, part: slice) -> Tensor:
            """Return the first ``k`` that are not the query itself."""
            order = torch.argsort((places == own[part, None]).int(), dim=1, stable=True)
            return places.gather(1, order)[:, :k]

        expected = others(self._exact(asked, k + 1)[0], slice(None))

        def recall(part: slice) -> float:
            got = others(found.search(asked[part], k + 1, k + 1)[0], part)
            return float((got[:, :, None] == expected[part][:, None, :]).any(2).double().mean())

        chosen_by, measured_on = slice(0, len(asked) // 2), slice(len(asked) // 2, None)
        while recall(chosen_by) < goal or recall(measured_on) < goal:
            if not found.harder():
                break
        return recall(measured_on)

    def _completed(self, places: Tensor, scores: Tensor, queries: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Search exactly for queries with too few results."""
        k = scores.shape[1]
        few = (scores[:, min(k, len(self)) - 1] == -torch.inf).nonzero().squeeze(1)
        if len(few):
            places[few], scores[few] = self._exact(queries[few], k, mask)
        return places, scores

    def _exact(self, queries: Tensor, k: int, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        rows = None if mask is None else mask.nonzero().squeeze(1)
        vectors = self.vectors if rows is None else self.vectors[rows]
        places = torch.full((len(queries), k), -1, dtype=torch.int64)
        scores = torch.full((len(queries), k), -torch.inf)
        step = max(1, limits.INDEX_CELLS // max(1, len(vectors)))
        for a in range(0, len(queries) if len(vectors) else 0, step):
            found, best = best_items(queries[a : a + step] @ vectors.T, k)
            found = found if rows is None else rows[found]
            places[a : a + step] = found.masked_fill(best == -torch.inf, -1)
            scores[a : a + step] = best
        return places, scores

    def _mask(self, allowed: Any) -> Tensor:
        """Return bool ``[n]``."""
        if isinstance(allowed, Tensor) and allowed.dtype == torch.bool:
            if allowed.shape != (len(self),):
                remedy = "Give True or False for each"
                raise DataError(f"a mask of {tuple(allowed.shape)} for {len(self)} vectors", remedy=remedy)
            return allowed.cpu()
        mask = torch.zeros(len(self), dtype=torch.bool)
        mask[self._places(as_column(allowed, name="allowed"), "Allow ids that are there")] = True
        return mask

    def _places(self, ids: Column, remedy: str) -> Tensor:
        codes = self.ids.encode(ids) if len(ids) else torch.zeros(0, dtype=torch.int64)
        refuse(codes == 0, ids.name, "an id is not in the index", remedy)
        return codes - 1

    def _checked(self, given: Tensor, name: str) -> Tensor:
        """Return vectors as float32 on the CPU, normalised for the cosine."""
        vectors = torch.as_tensor(given).detach().float().cpu().contiguous()
        width = self.vectors.shape[1] if hasattr(self, "vectors") else None
        if vectors.dim() != 2 or vectors.shape[1] != (width or vectors.shape[1]) or not vectors.shape[1]:
            wanted = "[n, d]" if width is None else f"[n, {width}]"
            raise DataError(f"{name} of {tuple(vectors.shape)}", remedy=f"Give float {wanted}")
        bad = ~torch.isfinite(vectors).all(1)
        refuse(bad, None, f"{name} hold a number that is not finite", "Drop such vectors")
        return F.normalize(vectors, dim=1) if self.metric == "cosine" else vectors


@dataclass(frozen=True)
class Vectors:
    """Vectors by id, stored in Parquet as ``id``, ``vector``, ``norm`` and, if known, ``until``.

    Args:
        ids: ``[n]``, distinct, none missing.
        values: float32 ``[n, d]``.
        until: time of the last event that each vector learned from, in seconds since 1970 or the log's unit, float64
            ``[n]``.
        about: metadata: the run, the model.
    """

    ids: Column
    values: Tensor
    until: Tensor | None = None
    about: Mapping[str, Any] = field(default_factory=dict)

    def save(self, path: str | Path) -> None:
        """Write a Parquet file; an earlier one is replaced in one step.

        Raises:
            WriteError: the file system refused.
        """
        n, width = self.values.shape
        values = self.values.float().cpu().contiguous()
        lists = pa.ListArray.from_arrays(pa.array(range(0, n * width + 1, width), pa.int32()), values.view(-1).numpy())
        norm = torch.linalg.vector_norm(values.double(), dim=1).float()
        columns = {"id": self.ids.to_arrow(), "vector": lists, "norm": norm.numpy()}
        columns |= {} if self.until is None else {"until": self.until.numpy()}
        table = pa.table(columns).replace_schema_metadata({"fastrec": json.dumps(dict(self.about))})
        with atomic_file(path) as part:
            pq.write_table(table, part)

    @classmethod
    def load(cls, path: str | Path) -> Vectors:
        """Read a file of ``save``, or any with ``id`` and ``vector``.

        Raises:
            FastrecError: no such file, or no vectors of equal length.
        """
        table, parquet = Table.read(str(path), device="cpu"), Path(path).is_file() and Path(path).suffix == ".parquet"
        said = (pq.read_schema(path).metadata or {}).get(b"fastrec", b"{}") if parquet else b"{}"
        return cls.of(table, json.loads(said))

    @classmethod
    def of(cls, table: Table, about: Mapping[str, Any] | None = None) -> Vectors:
        """Take the columns ``id``, ``vector`` and, if present, ``until`` of a table.

        Raises:
            MissingColumnError, DataError: no such columns, or no vectors of equal length.
        """
        column = table["vector"]
        if column.kind not in ("list", "vector"):
            raise DataError("it holds no vectors", column="vector", remedy="Give a file of fastrec embed")
        column.refuse_missing("it lacks a vector", "Embed the run again")
        until = table["until"].number() if "until" in table else None
        return cls(table["id"], column.vectors(column.vector_width()).float(), until, about or {})

    def index(self, **options: Any) -> Index:
        """Return an ``Index`` of them; options as it takes them."""
        return Index(self.values, self.ids, **options)

    def features(self, ids: Any, times: Any, *, name: str = "vector") -> Table:
        """Return vectors as features of later rows, whose targets they cannot contain.

        Args:
            ids: ``[n]``; an unknown one gets missing values.
            times: of the rows, ``[n]``: ``datetime64``, or numbers in the unit of ``until``.
            name: prefix of the columns ``{name}_0``, ``{name}_1``, ….

        Raises:
            DataError: ``until`` is not known, or a row is not later, or in another unit.
        """
        if self.until is None:
            problem = "it is not known until when these vectors have learned: they may know the rows' own targets"
            remedy = "Embed a run of sessions that has times (order=), or stack the run's predictions, out of fold"
            raise DataError(problem, remedy=remedy)
        codes = _vocab(self.ids, len(self.values)).encode(as_column(ids, name="ids"))
        when, known = as_column(times, name="times").number(), codes > 0
        if len(when) != len(codes):
            raise DataError(f"{len(when)} times for {len(codes)} ids", column="times", remedy="Give one for each")
        until = self.until[codes - 1]
        # Units of times are a thousand apart. Counts of steps, far below seconds since 1970, may differ by any factor.
        high, low = torch.maximum(when.abs(), until.abs()), torch.minimum(when.abs(), until.abs())
        other = (high >= 1e8) & (high > 100 * low)
        late = (known & (other | ~(when > until))).nonzero()
        if len(late):
            row, remedy = int(late[0]), "Embed a run that ends before the first row"
            problem = f"the row is of {float(when[row]):.0f}, its vector has learned until {float(until[row]):.0f}"
            if bool(other[row]):
                remedy = "Give times in the unit of until: seconds since 1970, or as the log of the run counts"
            raise DataError(problem, column="times", row=row, remedy=remedy)
        values = torch.where(known.unsqueeze(1), self.values[codes - 1], torch.nan)
        return Table({f"{name}_{i}": column for i, column in enumerate(values.unbind(1))})


def neighbour_overlap(one: Vectors, other: Vectors, k: int = 10) -> float:
    """Return the mean share of an id's ``k`` nearest (by cosine) that both spaces have in common, over common ids.

    Rotations of either space do not change it. By chance it is about ``k / n``.

    Raises:
        DataError: fewer than ``k + 2`` common ids.
    """
    codes = _vocab(one.ids, len(one.values)).encode(other.ids)
    theirs = (codes > 0).nonzero().squeeze(1)
    if len(theirs) < k + 2:
        raise DataError(f"{len(theirs)} ids in common", remedy=f"Give vectors with {k + 2} or more, or a lower k")
    asked = torch.arange(0, len(theirs), -(-len(theirs) // limits.OVERLAP_QUERIES))
    near = []
    for vectors in (one.values[codes[theirs] - 1], other.values[theirs]):
        found = Index(vectors, metric="cosine", kind="exact", verbose=False).similar(asked, k)
        near.append(found["neighbour"].integer().view(-1, k))
    return float((near[0][:, :, None] == near[1][:, None, :]).any(2).double().mean())


def _vocab(ids: Any, count: int) -> Vocab:
    column = as_column(ids, name="ids")
    known = Vocab.fit(column)
    codes = known.encode(column)
    if len(codes) != count or len(known) - 1 != count or bool((codes == 0).any()):
        remedy = "Give each vector an id of its own, none missing"
        raise DataError(f"{len(codes)} ids, {len(known) - 1} of them different, of {count} vectors", remedy=remedy)
    return Vocab(known.decode(codes), name="id")
