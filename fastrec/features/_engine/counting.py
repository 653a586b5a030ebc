"""How far a set of features has come, told to whoever shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from threading import Lock
from typing import Any

_listeners: list[Callable[[], None]] = []  # of the process: steps work in threads of their own


def counted(do: Callable[..., Any]) -> Callable[..., Any]:
    """A function that works a step out, and tells when it is done."""
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
    """While it lasts every step that is worked out advances by its share of the units; at the end none is left over.

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
