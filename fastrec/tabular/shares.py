"""Batch sizes, and every rank's share of an epoch."""

from __future__ import annotations

from typing import Any

import numpy as np
from fastai.torch_core import to_detach

from fastrec._core import ranks
from fastrec.errors import DataError


class Shared:
    """A loader that yields its rank's share of the rows."""

    rank: int
    world_size: int

    def set_rank(self, rank: int | None = None, world_size: int | None = None) -> None:
        """Yield another rank's share from the next epoch on; the order of rows is not reset.

        Args:
            rank, world_size: which of how many; None: as torch's process group says, else the only one.
        """
        self.rank, self.world_size = check_rank(rank, world_size)
        self._check_share()

    def _check_share(self) -> None:
        """Refuse what leaves a rank without a batch, or with an order of its own."""

    def to_detach(self, b: Any, cpu: bool = True, gather: bool = True) -> Any:
        """Detach tensors of this rank without gathering, as ranks may have batches of unequal sizes.

        (fastai gathers at every batch, for its metrics; ``fastrec.scale.distributed`` does so once an epoch.)
        """
        return to_detach(b, cpu, False)


def batch_sizes(rows: int, bs: int, *, drop_last: bool = False, rank: int = 0, world_size: int = 1) -> np.ndarray:
    """Return the sizes of a rank's batches, int64 ``[batches]``: as many batches on every rank.

    Alone, all batches but the last have ``bs`` rows. Of several ranks, the one with a row more may need a batch that
    another has no rows for: then batches are as even as they can be, and none is empty.
    """
    if world_size > 1 and 0 < rows < world_size:
        raise DataError(f"{rows} rows for {world_size} ranks", remedy="Train on fewer ranks, or on more rows")
    mine = rows * (rank + 1) // world_size - rows * rank // world_size
    fewest, most = rows // world_size, -(-rows // world_size)
    if drop_last:
        return np.full(fewest // bs, bs, dtype=np.int64)
    batches = min(-(-most // bs), fewest) if world_size > 1 else -(-rows // bs)
    if batches == -(-mine // bs):
        sizes = np.full(batches, bs, dtype=np.int64)
        if batches:
            sizes[-1] = mine - bs * (batches - 1)
        return sizes
    return np.diff(np.arange(batches + 1) * mine // batches)


def check_rank(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Return rank and world size: as given, else of torch's process group, else 0 of 1."""
    if rank is None and world_size is None:
        return ranks.rank(), ranks.world_size()
    if rank is None or world_size is None or not 0 <= rank < world_size:
        raise DataError(f"rank={rank} of world_size={world_size}", remedy="Give both, ranks counted from 0")
    return rank, world_size
