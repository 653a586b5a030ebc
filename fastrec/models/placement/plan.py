"""``plan_embeddings``: place embedding tables and estimate the cost."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table as Grid

from fastrec._core import limits
from fastrec._core.device import resolve_device
from fastrec._core.memory import shown_bytes
from fastrec.errors import DataError, DeviceMemoryError
from fastrec.models.embedding_layout import TableSlice, check_sizes, kind_of, lay_out, padded
from fastrec.models.placement.row_cache import RowCache
from fastrec.models.placement.row_store import RowStore, ShardedRows

# Hit rates of a cache of the hottest rows, if the k-th most frequent id is looked up in proportion to ``k^-s``.


def harmonic(n: int, skew: float) -> float:
    """Return the sum of ``k^-s`` for k = 1 … n: some terms, then their integral (Euler and Maclaurin's first term)."""
    near = float((np.arange(1, min(n, limits.HARMONIC_TERMS) + 1, dtype=np.float64) ** -skew).sum())
    if n <= limits.HARMONIC_TERMS:
        return near
    low, high = limits.HARMONIC_TERMS + 0.5, n + 0.5
    far = np.log(high / low) if skew == 1 else (high ** (1 - skew) - low ** (1 - skew)) / (1 - skew)
    return near + float(far)


def found(rows: int, cached: int, skew: float) -> float:
    """Return the share of lookups in a table of ``rows`` rows that hit its ``cached`` most frequent ones."""
    return harmonic(min(cached, rows), skew) / harmonic(rows, skew) if cached else 0.0


def cached_rows(rows: Sequence[int], slots: int, skew: float) -> list[int]:
    """Count how many rows of each of some tables, looked up equally often, are among the ``slots`` hottest of all."""
    rows = np.asarray(rows, dtype=np.int64)
    if slots >= rows.sum():
        return rows.tolist()
    if skew == 0:
        return (rows * (slots / rows.sum())).astype(np.int64).tolist()
    whole = np.array([harmonic(int(n), skew) for n in rows])

    def above(log_p: float) -> np.ndarray:  # rows that are looked up at least so often
        return np.minimum(rows, np.exp(-(log_p + np.log(whole)) / skew)).astype(np.int64)

    # bisection over the logarithm of how often a row must be looked up
    low, high = -60.0, 0.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (low, middle) if above(middle).sum() <= slots else (middle, high)
    return above(high).tolist()


def rows_missed(rows: int, cached: int, skew: float, batch: int) -> float:
    """Estimate how many different rows outside the cache a batch looks up in one table."""
    if cached >= rows:
        return 0.0
    edges = np.unique(np.geomspace(cached + 1, rows + 1, 2000).astype(np.int64))
    middle = (edges[:-1] + edges[1:] - 1) / 2
    often = batch * middle**-skew / harmonic(rows, skew)
    return float((np.diff(edges) * -np.expm1(-often)).sum())


Placement = Literal["auto", "device", "host", "cached", "row-sharded"]


@dataclass(frozen=True)
class Embeddings:
    """Placement of embedding tables, an option of every model: ``rec_learner(dls, DLRM, placement=Embeddings(…))``.

    Tables below 20,000 rows are always on the device. Others have row-sparse gradients; results equal those of
    ``grads='rows'`` without a placement.

    Args:
        placement: ``'device'``: all rows on the device. ``'host'``: rows are loaded for each batch. ``'cached'``: the
            most frequent rows stay on the device. ``'row-sharded'``: each rank of a ``torch.distributed`` process group
            holds a share of the rows. ``'auto'``: ``'device'`` if all fits ``device_bytes``, else the smallest tables
            on the device and the others ``'cached'``.
        device_bytes: limit of the tables and their optimizer state on the device (also simulated on a CPU). None: 80 %
            of the free memory of a CUDA device; elsewhere no limit, with room for 262,144 rows of tables off the
            device, or a twentieth of ``'cached'`` ones if that is more.
        folder: keep rows off the device in memory-mapped files here, which are removed with the model; None: in memory.
        tables: column → placement, if it is not ``placement``.
    """

    placement: Placement = "auto"
    device_bytes: int | None = None
    folder: str | Path | None = None
    tables: Mapping[str, Placement] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, asked in {"": self.placement, **self.tables}.items():
            if asked not in get_args(Placement):
                remedy = f"Give one of {', '.join(map(repr, get_args(Placement)))}"
                raise DataError(f"{asked!r} is no placement of an embedding table", column=name or None, remedy=remedy)
        if self.device_bytes is not None and self.device_bytes < 1:
            raise DataError(f"device_bytes={self.device_bytes}", remedy="Give the bytes that tables may take, or None")


def as_embeddings(given: object) -> Embeddings | None:
    """Convert ``placement=``: a name, ``Embeddings`` or a dict of its fields, a plan, or None."""
    if given is None or isinstance(given, Embeddings):
        return given
    if isinstance(given, Mapping):
        return Embeddings(**given)
    if isinstance(given, str):
        return Embeddings(given)  # type: ignore[arg-type]
    planned = getattr(given, "embeddings", None)
    if isinstance(planned, Embeddings):
        return planned
    raise DataError(f"placement={given!r} is no placement", remedy="Give a name, Embeddings(…) or a plan")


def bytes_per_row(width: int) -> int:
    """Return the bytes of a row in training, in float32: the weights, both running means of AdamW or LAMB, the step."""
    return 4 * (3 * width + 1)


def limited(asked: Embeddings) -> Embeddings:
    """Return the settings with a limit, if a CUDA device gives one."""
    if asked.device_bytes is not None or not torch.cuda.is_available():
        return asked
    free, _ = torch.cuda.mem_get_info()
    return replace(asked, device_bytes=int(0.8 * free))


def share_out(given: object, widths: Sequence[int]) -> list[Embeddings | None]:
    """Return the settings of several sets of tables of the same rows, which share one limit by their widths."""
    asked = as_embeddings(given)
    if asked is None or asked.device_bytes is None:
        return [asked] * len(widths)
    total = sum(map(bytes_per_row, widths))
    return [replace(asked, device_bytes=max(1, asked.device_bytes * bytes_per_row(w) // total)) for w in widths]


def table_kinds(
    asked: Embeddings, sizes: Mapping[str, tuple[int, int]]
) -> dict[str, Literal["host", "cached", "sharded"]]:
    """Return the places of the tables, of ``(rows, width)`` by name, that do not lie on the device."""
    if unknown := [n for n in asked.tables if n not in sizes]:
        remedy = f"Tables: {', '.join(sizes)}"
        raise DataError("there is no embedding table of that name", column=unknown[0], remedy=remedy)
    # the smallest tables first: they save most lookups a byte
    limit = asked.device_bytes
    taken = {n: rows * bytes_per_row(width) for n, (rows, width) in sizes.items()}
    wanted = {n: "device" if sizes[n][0] < limits.SPARSE_FROM else asked.tables.get(n, asked.placement) for n in sizes}
    fixed = sum(taken[n] for n, kind in wanted.items() if kind == "device")
    free = None if limit is None else limit - fixed
    open_ = sorted((n for n, kind in wanted.items() if kind == "auto"), key=taken.get)
    fits = free is None or sum(taken[n] for n in open_) <= free
    left = None if free is None else free / 2  # the other half is for the hottest rows of what does not fit
    for name in open_:
        if not fits:
            left -= taken[name]
        wanted[name] = "device" if fits or left >= 0 else "cached"
    fixed = sum(taken[n] for n, kind in wanted.items() if kind == "device")
    if limit is not None and fixed > limit:
        problem = f"embedding tables of {shown_bytes(fixed)} with their optimizer's state are more than the "
        problem += f"{shown_bytes(limit)} of device_bytes"
        remedy = "Give placement='auto' or 'cached', narrower tables (emb_szs=), or a larger device_bytes"
        raise DeviceMemoryError(problem, asked=fixed, free=limit, remedy=remedy)
    names = {"host": "host", "cached": "cached", "row-sharded": "sharded"}
    return {n: names[kind] for n, kind in wanted.items() if kind != "device"}  # type: ignore[misc]


def device_slots(
    asked: Embeddings, groups: Mapping[str, tuple[str, int, int]], device_rows: Mapping[str, tuple[int, int]]
) -> dict[str, int]:
    """Return how many rows of each group of tables (kind, rows, width) have room beside tables on the device."""
    limit = asked.device_bytes
    if limit is None:
        share = {"host": 0, "cached": limits.CACHED_SHARE}
        return {g: min(rows, max(limits.HOST_SLOTS, int(share[kind] * rows))) for g, (kind, rows, _) in groups.items()}
    left = limit - sum(rows * bytes_per_row(width) for rows, width in device_rows.values())
    total = sum(rows * bytes_per_row(width) for _, rows, width in groups.values())
    found = {}
    for group, (kind, rows, width) in groups.items():
        each = bytes_per_row(width)
        found[group] = min(
            rows, int(left * (rows * each / total)) // each, limits.HOST_SLOTS if kind == "host" else rows
        )
        if found[group] < min(rows, limits.LEAST_SLOTS):
            raise DeviceMemoryError(
                f"device_bytes={limit:,} leaves room for {max(found[group], 0):,} of {rows:,} rows of width {width}",
                asked=limits.LEAST_SLOTS * each,
                free=max(left, 0),
                remedy="Give a larger device_bytes, narrower tables, or place more of them off the device",
            )
    return found


@dataclass(frozen=True)
class TablePlan:
    """Where one table goes."""

    name: str
    rows: int
    width: int
    padded: int
    place: Placement
    device_bytes: int
    host_bytes: int
    hit_rate: float
    rows_per_batch: float


@dataclass(frozen=True)
class EmbeddingPlan:
    """What ``plan_embeddings`` found; ``placement=`` of any model takes it."""

    tables: tuple[TablePlan, ...]  #: one each
    embeddings: Embeddings  #: the settings it stands for
    batch_size: int  #: rows of a batch
    bandwidth: float  #: bytes per second at which rows come from the host, measured
    #: time to bring a batch's rows and to write as many back; most of it passes while the batch before trains
    seconds_per_batch: float

    @property
    def hit_rate(self) -> float:
        """Share of all lookups whose row is on the device before the batch comes."""
        return sum(t.hit_rate for t in self.tables) / len(self.tables)

    @property
    def device_bytes(self) -> int:
        """What all tables take on the device, their optimizer's state included."""
        return sum(t.device_bytes for t in self.tables)

    def show(self) -> None:
        """Print the plan."""
        grid = Grid(title=f"Embedding tables for batches of {self.batch_size:,} rows", title_justify="left")
        for name in ("table", "rows", "width", "place", "on the device", "elsewhere", "hit rate", "rows a batch"):
            grid.add_column(name, justify="left" if name in ("table", "place") else "right", no_wrap=True)
        for t in self.tables:
            width = f"{t.width}" if t.width == t.padded else f"{t.width} → {t.padded}"
            numbers = (shown_bytes(t.device_bytes), shown_bytes(t.host_bytes) if t.host_bytes else "")
            shares = (f"{t.hit_rate:.1%}", f"{t.rows_per_batch:,.0f}")
            grid.add_row(t.name, f"{t.rows:,}", width, t.place, *numbers, *shares)
        console = Console(width=max(110, Console().width))
        console.print(grid)
        for line in self.notes():
            console.print(line, highlight=False)

    def notes(self) -> list[str]:
        """Return the lines below the table: bytes, time, and whether rounding widths up pays."""
        limit = self.embeddings.device_bytes
        of = "" if limit is None else f" of {shown_bytes(limit)}"
        away = sum(t.host_bytes for t in self.tables)
        where = "in files" if self.embeddings.folder is not None else "on the host"
        lines = [f"{shown_bytes(self.device_bytes)}{of} on the device, {shown_bytes(away)} {where}."]
        if away:
            lines.append(
                f"{self.hit_rate:.1%} of the lookups find their row on the device; the others' rows take "
                f"{1000 * self.seconds_per_batch:.1f} ms a batch at the measured {shown_bytes(int(self.bandwidth))}/s."
            )
        asked, stored = (sum(t.rows * w for t in self.tables for w in [getattr(t, n)]) for n in ("width", "padded"))
        if stored > asked:
            more = stored / asked - 1
            worth = more <= limits.PADDING_WASTE
            pays = "which aligned reads are worth" if worth else "which pad=False saves; it pays here"
            lines.append(f"Widths are rounded up to multiples of 16 bytes: {more:.0%} more bytes, {pays}.")
        return lines


def plan_embeddings(
    cards: Mapping[str, int],
    widths: Mapping[str, int] | int,
    device_bytes: int | None = None,
    skew: float = 1.05,
    *,
    placement: Placement = "auto",
    batch_size: int = 4096,
    folder: str | Path | None = None,
    pad: bool = True,
) -> EmbeddingPlan:
    """Plan the placement of embedding tables, and print it.

    Args:
        cards: column → rows of its table.
        widths: column → width, or one for all.
        device_bytes, placement, folder: see ``Embeddings``.
        skew: exponent s of the expected power law of ids: the k-th most frequent in proportion to ``k^-s``.
        batch_size: rows of a batch.
        pad: round widths up to multiples of 16 bytes; give the model the same ``pad``.

    Returns:
        The plan, for a model's ``placement=``.

    Raises:
        DeviceMemoryError: the limit cannot be kept.
    """
    wide = {n: widths.get(n, 0) if isinstance(widths, Mapping) else widths for n in cards}
    check_sizes([(rows, wide[n]) for n, rows in cards.items()], list(cards))
    if skew < 0 or batch_size < 1 or not cards:
        raise DataError(f"a plan of {len(cards)} tables, skew {skew}, batches of {batch_size}", remedy="Give skew ≥ 0")
    asked = limited(Embeddings(placement, device_bytes, folder))
    sizes = {n: (rows, padded(wide[n], pad=pad)) for n, rows in cards.items()}
    kinds = table_kinds(asked, sizes)
    groups: dict[str, list[str]] = {}
    for s in lay_out([*sizes.values()], [*sizes], grads="rows", kinds=kinds):
        groups.setdefault(s.group, []).append(s.name)
    off = {
        g: (kinds[names[0]], sum(sizes[n][0] for n in names), sizes[names[0]][1])
        for g, names in groups.items()
        if kinds.get(names[0], "sharded") != "sharded"
    }
    slots = device_slots(asked, off, {n: size for n, size in sizes.items() if n not in kinds})
    tables = []
    for group, names in groups.items():
        room = slots.get(group)
        held = None if room is None else cached_rows([sizes[n][0] for n in names], room, skew)
        for i, n in enumerate(names):
            (rows, width), kind, room = sizes[n], kinds.get(n), None if held is None else held[i]
            place: Placement = {None: "device", "sharded": "row-sharded"}.get(kind, kind)  # type: ignore[assignment]
            each, hot = bytes_per_row(width), 0 if kind == "host" else room
            costs = (rows * each, 0, 1.0, 0.0)
            if room is not None:
                costs = (room * each, rows * each, found(rows, hot, skew), rows_missed(rows, hot, skew, batch_size))
            tables.append(TablePlan(n, rows, wide[n], width, place, *costs))
    order = list(cards)
    tables.sort(key=lambda t: order.index(t.name))
    moved = sum(t.rows_per_batch * bytes_per_row(t.padded) for t in tables)
    widest = max((t.padded for t in tables if t.host_bytes), default=0)
    bandwidth = _bandwidth(widest, folder) if widest else float("inf")
    where = {t.name: t.place for t in tables}
    plan = EmbeddingPlan(tuple(tables), replace(asked, tables=where), batch_size, bandwidth, 2 * moved / bandwidth)
    plan.show()
    return plan


def _bandwidth(width: int, folder: str | Path | None) -> float:
    """Measure the bytes of random rows per second from a store to the device."""
    rows = max(1024, limits.BANDWIDTH_BYTES // bytes_per_row(width))
    store = RowStore(rows, width, folder)
    store.begin("exp_avg_sq", width)
    store.begin("exp_avg", width)
    for column in store.columns.values():
        column.fill_(1.0)
    # as a batch reads them: rows at random, with what an optimizer keeps
    some = torch.randint(0, rows, (4, rows // 8))
    device = resolve_device("auto")
    best = float("inf")
    for ids in some:
        began = time.perf_counter()
        for values in store.read(ids).values():
            values.to(device)
        best = min(best, time.perf_counter() - began)
    return len(some[0]) * bytes_per_row(width) / best


def make_placed(asked: Embeddings | None, slices: Sequence[TableSlice]) -> dict[str, RowCache | ShardedRows]:
    """Make the holders of each group of tables that is not on the device."""
    groups = {s.group: (kind, s.stop, s.width) for s in slices if (kind := kind_of(s.group))}  # the last slice ends it
    if not groups:
        return {}
    off = {g: group for g, group in groups.items() if group[0] != "sharded"}
    here = {s.name: (s.stop - s.start, s.width) for s in slices if s.group not in groups}
    if off and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        problem = "embedding tables on the host are trained by one process, not by several together"
        raise DataError(problem, remedy="Give placement='row-sharded', which shares the rows out to the processes")
    slots = device_slots(limited(asked), off, here) if off else {}
    return {
        g: ShardedRows(rows, width) if g not in off else RowCache(RowStore(rows, width, asked.folder), slots[g])
        for g, (_, rows, width) in groups.items()
    }
