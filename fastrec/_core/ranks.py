"""Processes that train together, by torch's collectives.

All ranks call each function in the same order; a single process is rank 0 of 1.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as group
from torch import Tensor

from fastrec._core import limits
from fastrec.errors import FastrecError, RankError


def rank() -> int:
    """Return this process's number, from 0."""
    return group.get_rank() if _on() else 0


def world_size() -> int:
    """Return how many processes train together."""
    return group.get_world_size() if _on() else 1


def is_first() -> bool:
    """Tell whether this is rank 0, the one that writes files and shows progress."""
    return rank() == 0


def _on() -> bool:
    return group.is_available() and group.is_initialized()


@contextmanager
def naming_lost_ranks(doing: str) -> Iterator[None]:
    """Turn torch's errors of a lost or hanging process into a ``RankError`` that names this rank and what it did."""
    try:
        yield
    except FastrecError:
        raise
    except (RuntimeError, ValueError) as error:
        said = " ".join(str(error).split())
        problem = f"rank {rank()} of {world_size()} has lost another one while {doing} ({said[:300]})"
        remedy = "See what the rank that ended first says: it ran out of memory, raised an error, was killed, "
        remedy += "or its machine cannot be reached"
        raise RankError(problem, remedy=remedy) from error


def _where(like: Tensor) -> torch.device:
    """Return the device for sending: NCCL sends from GPUs alone."""
    if group.get_backend() != "nccl":
        return torch.device("cpu")
    return like.device if like.device.type == "cuda" else torch.device("cuda", torch.cuda.current_device())


def summed(tensors: Sequence[Tensor], doing: str) -> None:
    """Replace tensors, of equal shapes and kinds on every rank, by their sums over the ranks, in place."""
    _collect(group.all_reduce, tensors, doing)


def broadcast(tensors: Sequence[Tensor], doing: str) -> None:
    """Replace tensors, of equal shapes and kinds on every rank, by rank 0's, in place."""
    _collect(partial(group.broadcast, src=0), tensors, doing)


def _collect(collective: Callable[[Tensor], Any], tensors: Sequence[Tensor], doing: str) -> None:
    if world_size() == 1:
        return
    for bucket in _buckets(tensors):
        # a single tensor is sent as it is, where it is: a copy of a large table would take its memory again
        flat = torch.cat([t.reshape(-1) for t in bucket]) if len(bucket) > 1 else bucket[0].reshape(-1)
        sent = flat.to(_where(flat))
        with naming_lost_ranks(doing):
            collective(sent)
        for t, part in zip(bucket, sent.split([t.numel() for t in bucket]), strict=True):
            if part.data_ptr() != t.data_ptr() or part.device != t.device:
                t.copy_(part.view(t.shape))


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    by_kind: dict[Any, list[Tensor]] = {}
    for t in tensors:
        by_kind.setdefault((t.dtype, t.device), []).append(t.detach())
    for alike in by_kind.values():
        bucket: list[Tensor] = []
        for t in alike:
            if bucket and sum(b.numel() for b in bucket) + t.numel() > limits.SENT_NUMBERS:
                yield bucket
                bucket = []
            bucket.append(t)
        yield bucket


def all_rows(parts: Sequence[Tensor], doing: str) -> list[Tensor]:
    """Return each tensor's rows of all ranks, in the order of the ranks, on the device of this rank's part.

    Ranks may have different numbers of rows. ``doing`` names the task in errors.
    """
    if world_size() == 1 or not parts:
        return list(parts)
    counts = torch.tensor([len(p) for p in parts], dtype=torch.int64, device=_where(parts[0]))
    with naming_lost_ranks(doing):
        of_ranks = [torch.empty_like(counts) for _ in range(world_size())]
        group.all_gather(of_ranks, counts)
        return [_gathered(p, n) for p, n in zip(parts, torch.stack(of_ranks, 1).tolist(), strict=True)]


def _gathered(part: Tensor, counts: list[int]) -> Tensor:
    most, shape = max(counts), part.shape[1:]
    if most == 0:
        return part
    kind = torch.uint8 if part.dtype == torch.bool else part.dtype
    sent = torch.zeros((most, *shape), dtype=kind, device=_where(part))
    sent[: len(part)] = part
    found = [torch.empty_like(sent) for _ in counts]
    group.all_gather(found, sent)
    return torch.cat([f[:n] for f, n in zip(found, counts, strict=True)]).to(part.device, part.dtype)


def agree(value: Any, what: str) -> None:
    """Refuse, on every rank, ranks that would not do the same: of ``what`` the value must be equal on all."""
    if world_size() == 1:
        return
    found: list[Any] = [None] * world_size()
    with naming_lost_ranks(f"comparing {what}"):
        group.all_gather_object(found, value)
    for i, other in enumerate(found):
        if other != found[0]:
            problem = f"rank {i} has another {what} than rank 0: {_short(other)}, not {_short(found[0])}"
            raise RankError(problem, remedy="Give every rank the same data, settings and seed")


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 200 else f"{text[:200]}…"


def on_first_rank(f: Callable[[], Any], doing: str) -> Any:
    """Run a function on rank 0 alone; return its small, picklable result on every rank, or raise its error there."""
    if world_size() == 1:
        return f()
    told: list[Any] = [None]
    error: Exception | None = None
    if is_first():
        try:
            told = [(True, f())]
        except Exception as raised:  # the others wait for an answer, whatever it is
            error, told = raised, [(False, raised)]
            try:
                pickle.loads(pickle.dumps(raised))
            except Exception:
                told = [(False, RankError(f"rank 0 has raised {type(raised).__name__}: {raised}"))]
    with naming_lost_ranks(doing):
        group.broadcast_object_list(told, src=0)
    if error is not None:
        raise error
    fine, value = told[0]
    if not fine:
        raise value
    return value
