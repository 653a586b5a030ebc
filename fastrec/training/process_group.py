"""``distributed``: a Learner's training on all processes that ``torchrun`` has started."""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as group
from fastai.callback.progress import ProgressCallback
from fastai.learner import Learner

from fastrec._core.device import DeviceLike, resolve_device
from fastrec._core.ranks import is_first, naming_lost_ranks, rank, world_size
from fastrec.errors import DataError, DeviceError
from fastrec.training.data_parallel import DataParallel

__all__ = ["distributed", "join_ranks"]


@contextmanager
def distributed(learn: Learner, *, sync_bn: bool = True, timeout: float = 60.0) -> Iterator[Learner]:
    """Train on the processes that ``torchrun`` has started.

    ``with distributed(learn): learn.fit_one_cycle(3, 1e-2)`` in a script that ``torchrun --nproc-per-node 2 train.py``
    starts twice. Inside the block every fit shares the rows of each
    batch out over the processes; outside, and where there is one process only, nothing is other than before. ``bs`` is
    each process's: two processes with ``bs=512`` learn from batches of 1,024, and ought to have that batch's learning
    rate. Metrics and losses in the Recorder's table are those of all rows. ``validate`` and ``get_preds`` see all rows
    on every process.

    A RecLearner's ``learn.distrib_ctx()`` is the same.

    Args:
        learn: the Learner, with loaders of this library.
        sync_bn: batch norms take their statistics over the batches of all processes.
        timeout: seconds that a process waits for another one before it ends with an error. One that is killed is
            noticed at once, one that hangs or whose machine is lost after this time. It counts where the processes have
            not been joined before.

    Yields:
        The Learner.

    Raises:
        RankError: another process has ended, or would not do the same.
        DataError: the loaders are none of this library.
    """
    place = getattr(learn.dls, "device", None) or next(learn.model.parameters(), torch.zeros(0)).device
    if join_ranks(place, timeout=timeout) == 1 or any(isinstance(cb, DataParallel) for cb in learn.cbs):
        yield learn
        return
    place = torch.device(place)
    if place.type == "cuda" and place.index not in (None, torch.cuda.current_device()):
        raise DeviceError(
            f"rank {rank()} has its batches on GPU {place.index}, and its own is {torch.cuda.current_device()}",
            remedy="Call fastrec.scale.join_ranks() at the beginning of the script, before data go to a GPU",
        )
    cb, logger = DataParallel(sync_bn=sync_bn), learn.logger
    hidden = [] if is_first() else [c for c in learn.cbs if isinstance(c, ProgressCallback)]
    learn.remove_cbs(hidden)
    learn.add_cb(cb)
    try:
        yield learn
    finally:
        cb.leave()
        learn.remove_cb(cb)
        learn.add_cbs(hidden)
        learn.logger = logger


def join_ranks(place: DeviceLike = "auto", *, timeout: float = 60.0) -> int:
    """Join the processes that ``torchrun`` has started, once; they stay joined to their end.

    ``distributed`` does so where it has not been done. On GPUs a script calls it first: each process then has its own
    GPU as the one that data go to.

    Args:
        place: where the nets are to be: on a CPU processes talk by gloo, on GPUs by NCCL; ``'auto'``: on CUDA devices
            where there are some.
        timeout: seconds that one waits for another.

    Returns:
        How many they are: 1 where nothing has started several.

    Raises:
        RankError: the others cannot be reached.
        DeviceError: there are fewer GPUs than processes on this machine.
    """
    if group.is_available() and group.is_initialized():
        return world_size()
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        return 1
    if not group.is_available():
        raise DataError("this torch has no torch.distributed", remedy="Install torch with it, or start one process")
    on_gpu = resolve_device(place).type == "cuda"
    if on_gpu:
        own = int(os.environ.get("LOCAL_RANK", "0"))
        if own >= torch.cuda.device_count():
            raise DeviceError(
                f"process {own} of this machine has no GPU of its own: there are {torch.cuda.device_count()}",
                remedy="Start as many processes as there are GPUs, or train on the CPU",
            )
        torch.cuda.set_device(own)
    with naming_lost_ranks("joining the others"):
        group.init_process_group("nccl" if on_gpu else "gloo", timeout=timedelta(seconds=timeout))
    atexit.register(lambda: group.is_initialized() and group.destroy_process_group())
    return world_size()
