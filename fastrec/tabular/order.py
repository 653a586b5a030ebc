"""The order of an epoch's rows in memory: permutations of rows and of groups, and one seed for all ranks."""

from __future__ import annotations

import numpy as np
import torch

from fastrec.errors import DataError


def permutation(n: int, seed: int, device: torch.device) -> torch.Tensor:
    """Draw a uniform permutation, int64 ``[n]``, on the device where it is used.

    On a CPU random words with the rows' numbers in their lowest bits are sorted: numpy does that in half the time that
    exchanging rows takes. Rows that draw the same word (one pair in 2^40, of ten million rows) keep their order.
    """
    if device.type == "cuda":
        generator = torch.Generator(device).manual_seed(seed)
        return torch.randperm(n, generator=generator, device=device)
    bits = max(n - 1, 1).bit_length()
    words = np.random.SFC64(seed).random_raw(n).view(np.int64)
    words <<= bits
    words |= np.arange(n)
    words.sort()
    words &= (1 << bits) - 1
    return torch.from_numpy(words)


def grouped_order(ids: np.ndarray, generator: np.random.Generator | None) -> np.ndarray:
    """Order rows with groups together: groups as they first appear, or permuted; rows of a group in their order."""
    ascending = _ascend(ids)
    if ascending and generator is None:
        return np.arange(len(ids))
    if ascending:
        starts = np.append(0, np.flatnonzero(ids[1:] != ids[:-1]) + 1)
        sizes, rank = np.diff(starts, append=len(ids)), generator.permutation(len(starts))
    else:
        _, first, codes, sizes = np.unique(ids, return_index=True, return_inverse=True, return_counts=True)
        rank = np.argsort(first, kind="stable") if generator is None else generator.permutation(len(first))
        starts = np.cumsum(sizes) - sizes
    sizes, starts = sizes[rank], starts[rank]
    places = np.repeat(starts - (np.cumsum(sizes) - sizes), sizes) + np.arange(len(ids))
    return places if ascending else np.argsort(codes, kind="stable")[places]


def _ascend(ids: np.ndarray) -> bool:
    return bool((ids[1:] >= ids[:-1]).all())


def count_groups(ids: np.ndarray) -> int:
    """Count the groups."""
    if not _ascend(ids):
        return len(np.unique(ids))
    return int(np.count_nonzero(ids[1:] != ids[:-1])) + bool(len(ids))


def group_bounds(ids: np.ndarray, batches: int) -> np.ndarray:
    """Return the bounds of batches, int64 ``[batches + 1]``, for rows whose groups lie together.

    Args:
        batches: how many, at most one for each group; less for fewer groups.
    """
    n = len(ids)
    if n == 0:
        return np.zeros(1, dtype=np.int64)
    ends = np.append(np.flatnonzero(ids[1:] != ids[:-1]) + 1, n)
    batches = min(batches, len(ends))
    k = np.arange(1, batches)
    closing = np.searchsorted(ends, -(-k * n // batches)) + 1  # groups in the first k batches
    closing = np.maximum.accumulate(closing - k) + k  # at least one group each,
    closing = np.minimum(closing, len(ends) - batches + k)  # and one left for each that follows
    return np.concatenate([[0], ends[closing - 1], [n]]).astype(np.int64)


def check_joined(world_size: int) -> None:
    """Refuse ranks that cannot agree on an order."""
    import torch.distributed as group

    if not (group.is_available() and group.is_initialized() and group.get_world_size() == world_size):
        raise DataError(
            f"{world_size} ranks must draw the same order, and no process group of as many joins them",
            remedy="Give the same seed= on every rank, or call torch.distributed.init_process_group before",
        )


def shared_seed(seed: int, world_size: int) -> int:
    """Send rank 0's seed to every rank; all of them must call."""
    import torch.distributed as group

    check_joined(world_size)
    seeds = [seed]
    group.broadcast_object_list(seeds, src=0)
    return seeds[0]
