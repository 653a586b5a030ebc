"""Nets of sessions on the device: an epoch over every event, and the best items of every session."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import torch
from _gpu_trace import synchronize
from _timing import Record, bare

from fastrec.sequences import NextItemNet, SessionFrame

NETS = ("SASRec", "GRU4Rec")


def measure(device: torch.device, *, sessions: int, items: int) -> Iterator[Record]:
    """Events a second of training and sessions a second of ``recommend``, after a run that warms up.

    Args:
        device: where.
        sessions: of geometric lengths, 6 events on average.
        items: of frequencies in proportion to 1 / (rank + 10).
    """
    log = _sessions(sessions, items)
    few = log.take(torch.arange(min(sessions, 500)))
    for net in NETS:
        for half in (False, True):
            model = NextItemNet(net, epochs=1, warm=False, half=half)
            model.device = device
            model.fit(few, seed=0)
            events = len(log.values) - len(log)  # the first of a session is nobody's target
            seconds = _seconds(lambda model=model: model.fit(log, seed=0), device)
            name = f"{net}, {'bf16 logits' if half else 'float32'}"
            yield bare("sessions, an epoch", name, events, seconds)
        seconds = _seconds(lambda model=model: model.recommend(log, 20), device)
        yield bare("sessions, the best 20 items", net, len(log), seconds)


def _sessions(count: int, items: int) -> SessionFrame:
    rng = np.random.default_rng(0)
    lengths = rng.geometric(1 / 5, count) + 1
    share = np.cumsum(1 / (np.arange(items) + 10))
    drawn = np.searchsorted(share, rng.random(lengths.sum()) * share[-1]).clip(0, items - 1)
    return SessionFrame({"items": np.split(drawn, np.cumsum(lengths)[:-1])}, item="items")


def _seconds(run: object, device: torch.device) -> float:
    synchronize(device)
    begun = time.perf_counter()
    run()  # type: ignore[operator]
    synchronize(device)
    return time.perf_counter() - begun
