"""What holds the rows of tables that are not on the device, made as settings say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch.distributed as dist

from fastrec._core import limits
from fastrec.errors import DataError
from fastrec.models.embedding_layout import KINDS, TableSlice
from fastrec.models.placement.row_cache import RowCache
from fastrec.models.placement.row_store import RowStore
from fastrec.models.placement.settings import Embeddings, device_slots, limited, table_kinds
from fastrec.models.placement.sharded_rows import ShardedRows

__all__ = ["kinds_of", "make_placed"]


def kinds_of(asked: Embeddings | None, sizes: Mapping[str, tuple[int, int]]) -> dict[str, str]:
    """Return which tables do not lie on the device, see ``table_kinds``."""
    return {} if asked is None else dict(table_kinds(limited(asked), sizes, small=limits.SPARSE_FROM))


def make_placed(asked: Embeddings | None, slices: Sequence[TableSlice]) -> dict[str, RowCache | ShardedRows]:
    """Make the holders of each group of tables that is not on the device."""
    groups = {s.group: (_kind(s.group), s.stop, s.width) for s in slices if _kind(s.group)}  # the last slice ends it
    if not groups:
        return {}
    off = {g: group for g, group in groups.items() if group[0] != "sharded"}
    here = {s.name: (s.stop - s.start, s.width) for s in slices if s.group not in groups}
    if off and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        raise DataError(
            "embedding tables on the host are trained by one process, not by several together",
            remedy="Give placement='row-sharded', which shares the rows out to the processes",
        )
    slots = device_slots(limited(asked), off, here) if off else {}
    return {
        g: ShardedRows(rows, width) if g not in off else RowCache(RowStore(rows, width, asked.folder), slots[g])
        for g, (_, rows, width) in groups.items()
    }


def _kind(group: str) -> str | None:
    return next((kind for kind in KINDS if group.endswith(f"_{kind}_rows")), None)
