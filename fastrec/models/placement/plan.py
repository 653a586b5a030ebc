"""``plan_embeddings``: where tables will go, and what that costs, before anything is made."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table as Grid

from fastrec._core import limits
from fastrec._core.oom import shown_bytes
from fastrec.errors import DataError
from fastrec.models.embedding_layout import check_sizes, lay_out, padded
from fastrec.models.placement.power_law import cached_rows, found, rows_missed
from fastrec.models.placement.row_store import RowStore
from fastrec.models.placement.settings import Embeddings, Placement, bytes_per_row, device_slots, limited, table_kinds

__all__ = ["EmbeddingPlan", "TablePlan", "plan_embeddings"]


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
    """What ``plan_embeddings`` found; ``placement=`` of any model takes it.

    Args:
        tables: one each.
        embeddings: the settings it stands for.
        batch_size: rows of a batch.
        bandwidth: bytes per second at which rows come from the host, measured.
        seconds_per_batch: time to bring a batch's rows and to write as many back; most of it passes while the batch
            before trains.
    """

    tables: tuple[TablePlan, ...]
    embeddings: Embeddings
    batch_size: int
    bandwidth: float
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
    """Plan where embedding tables go, and print it.

    Args:
        cards: column → rows of its table.
        widths: column → width, or one for all.
        device_bytes: what tables and their optimizer's state may take of the device, see ``Embeddings``.
        skew: exponent s of the power law by which ids are expected: the k-th most frequent in proportion to ``k^-s``.
        placement: where large tables are to go.
        batch_size: rows of a batch.
        folder: where rows lie in files, see ``Embeddings``.
        pad: round widths up to multiples of 16 bytes, as models do; give a model the same ``pad``.

    Returns:
        The plan, which ``placement=`` of a model takes.

    Raises:
        DataError: a size below 1, a negative skew, or a column without a width.
        DeviceMemoryError: the limit cannot be kept.
    """
    wide = {n: widths.get(n, 0) if isinstance(widths, Mapping) else widths for n in cards}
    check_sizes([(rows, wide[n]) for n, rows in cards.items()], list(cards))
    if skew < 0 or batch_size < 1 or not cards:
        raise DataError(f"a plan of {len(cards)} tables, skew {skew}, batches of {batch_size}", remedy="Give skew ≥ 0")
    asked = limited(Embeddings(placement, device_bytes, folder))
    sizes = {n: (rows, padded(wide[n]) if pad else wide[n]) for n, rows in cards.items()}
    kinds = table_kinds(asked, sizes, small=limits.SPARSE_FROM)
    groups: dict[str, list[str]] = {}
    for s in lay_out([*sizes.values()], [*sizes], pad=False, grads="rows", kinds=kinds):
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
            room = None if held is None else held[i]
            tables.append(_table(n, sizes[n], wide[n], kinds.get(n), room, skew, batch_size))
    order = list(cards)
    tables.sort(key=lambda t: order.index(t.name))
    moved = sum(t.rows_per_batch * bytes_per_row(t.padded) for t in tables)
    widest = max((t.padded for t in tables if t.host_bytes), default=0)
    bandwidth = _bandwidth(widest, folder) if widest else float("inf")
    where = {t.name: t.place for t in tables}
    plan = EmbeddingPlan(tuple(tables), replace(asked, tables=where), batch_size, bandwidth, 2 * moved / bandwidth)
    plan.show()
    return plan


def _table(
    name: str, size: tuple[int, int], width: int, kind: str | None, room: int | None, skew: float, batch: int
) -> TablePlan:
    rows, each = size[0], bytes_per_row(size[1])
    places: dict[str | None, Placement] = {None: "device", "host": "host", "cached": "cached", "sharded": "row-sharded"}
    if room is None:
        return TablePlan(name, rows, width, size[1], places[kind], rows * each, 0, 1.0, 0.0)
    hot = 0 if kind == "host" else room
    share, missed = found(rows, hot, skew), rows_missed(rows, hot, skew, batch)
    return TablePlan(name, rows, width, size[1], places[kind], room * each, rows * each, share, missed)


def _bandwidth(width: int, folder: str | Path | None) -> float:
    """Measure the bytes of random rows per second from a store to the device."""
    rows = max(1024, limits.BANDWIDTH_BYTES // bytes_per_row(width))
    store = RowStore(rows, width, folder)
    store.begin("exp_avg_sq", width)
    store.begin("exp_avg", width)
    for column in store.columns.values():
        column.fill_(1.0)
    some = torch.randint(0, rows, (4, rows // 8))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    best = float("inf")
    for ids in some:
        began = time.perf_counter()
        for values in store.read(ids).values():
            values.to(device)
        best = min(best, time.perf_counter() - began)
    return len(some[0]) * bytes_per_row(width) / best
