"""Progress of a set of features."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from threading import Lock
from typing import Any

_listeners: list[Callable[[], None]] = []  # of the process: steps work in threads of their own


def counted(do: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function that computes a step to tell when it is done."""
    if not _listeners:
        return do

    @wraps(do)
    def done(*arguments: Any) -> Any:
        made = do(*arguments)
        for listener in list(_listeners):
            listener()
        return made

    return done


@contextmanager
def step_by_step(advance: Callable[[int], None], units: int, steps: int) -> Iterator[None]:
    """Advance the progress by each computed step's share of the units.

    Args:
        advance: called with units just done.
        units: how many there are.
        steps: how many steps are expected; more than these advance by nothing.
    """
    lock, done, told = Lock(), 0, 0

    def listen() -> None:
        nonlocal done, told
        with lock:
            done += 1
            now = units * min(done, steps) // max(steps, 1)
            advance(now - told)
            told = now

    _listeners.append(listen)
    try:
        yield
    finally:
        _listeners.remove(listen)
    advance(units - told)
