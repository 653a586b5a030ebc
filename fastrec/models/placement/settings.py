"""``Embeddings``: where the tables of a model are to lie, and how much of the device they may take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, get_args

import torch

from fastrec._core import limits
from fastrec._core.oom import shown_bytes
from fastrec.errors import DataError, DeviceMemoryError

__all__ = [
    "Embeddings",
    "Placement",
    "as_embeddings",
    "bytes_per_row",
    "device_slots",
    "limited",
    "share_out",
    "table_kinds",
]

Placement = Literal["auto", "device", "host", "cached", "row-sharded"]


@dataclass(frozen=True)
class Embeddings:
    """Where embedding tables lie: an option of every model, ``rec_learner(dls, DLRM, placement=Embeddings(…))``.

    Tables below 20,000 rows are on the device always. Of the others gradients are row-sparse, and what is computed is
    what ``grads='rows'`` computes without any placement.

    Args:
        placement: ``'device'``: all rows on the device. ``'host'``: rows come to the device for the batches that need
            them. ``'cached'``: the rows that are looked up most stay there. ``'row-sharded'``: each rank of a
            ``torch.distributed`` process group holds the rows that a hash gives it. ``'auto'``: ``'device'`` if all
            fits ``device_bytes``, else the smallest tables on the device and the others ``'cached'``.
        device_bytes: what the tables and their optimizer's state may take of the device; also what simulates a small
            device on a CPU. None: 80 % of what is free on a CUDA device; elsewhere no limit, and 262,144 rows of tables
            off the device have room on it, of ``'cached'`` ones a twentieth if that is more.
        folder: where rows that are not on the device lie in memory-mapped files instead of the host's memory; the files
            are in a folder of their own there, which goes with the model.
        tables: column → placement, where it is not to be ``placement``.

    Raises:
        DataError: another placement, or a limit below 1.
    """

    placement: Placement = "auto"
    device_bytes: int | None = None
    folder: str | Path | None = None
    tables: Mapping[str, Placement] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, asked in {"": self.placement, **self.tables}.items():
            if asked not in get_args(Placement):
                raise DataError(
                    f"{asked!r} is no placement of an embedding table",
                    column=name or None,
                    remedy=f"Give one of {', '.join(map(repr, get_args(Placement)))}",
                )
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
    raise DataError(
        f"placement={given!r} is no placement", remedy="Give a name, Embeddings(…), or what plan_embeddings returned"
    )


def bytes_per_row(width: int, *, trained: bool = True) -> int:
    """Return the bytes of a row in float32; in training up to both running means of AdamW or LAMB and the step."""
    return 4 * (3 * width + 1) if trained else 4 * width


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
    asked: Embeddings, sizes: Mapping[str, tuple[int, int]], *, small: int
) -> dict[str, Literal["host", "cached", "sharded"]]:
    """Return the tables that do not lie on the device, and their places.

    Args:
        sizes: table → ``(rows, width)``.
    """
    if unknown := [n for n in asked.tables if n not in sizes]:
        raise DataError(
            "there is no embedding table of that name", column=unknown[0], remedy=f"Tables: {', '.join(sizes)}"
        )
    limit = asked.device_bytes
    taken = {n: rows * bytes_per_row(width) for n, (rows, width) in sizes.items()}
    wanted = {n: "device" if sizes[n][0] < small else asked.tables.get(n, asked.placement) for n in sizes}
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
        raise DeviceMemoryError(
            f"embedding tables of {shown_bytes(fixed)} with their optimizer's state are more than the "
            f"{shown_bytes(limit)} of device_bytes",
            asked=fixed,
            free=limit,
            remedy="Give placement='auto' or 'cached', narrower tables (emb_szs=), or a larger device_bytes",
        )
    names = {"host": "host", "cached": "cached", "row-sharded": "sharded"}
    return {n: names[kind] for n, kind in wanted.items() if kind != "device"}  # type: ignore[misc]


def device_slots(
    asked: Embeddings, groups: Mapping[str, tuple[str, int, int]], device_rows: Mapping[str, tuple[int, int]]
) -> dict[str, int]:
    """Return how many rows of each group of tables have room on the device.

    Args:
        groups: group that does not lie on the device → its kind, rows and width.
        device_rows: table on the device → ``(rows, width)``.
    """
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
