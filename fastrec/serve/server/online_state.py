"""The state of events that lies in an export's folder, opened for a server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fastrec.serve.server.recommend.models import recommends
from fastrec.serve.server.service import EventState
from fastrec.serve.server.spec import read_spec

__all__ = ["open_events"]


@contextmanager
def open_events(export: str | Path) -> Iterator[EventState | None]:
    """While it lasts, what makes an export's columns from events, with all that were ever taken in; None: it has none.

    Args:
        export: what ``fastrec export`` wrote: ``features/`` holds the features, ``events/`` the events.
    """
    if recommends(export) or read_spec(export).events is None:
        yield None
        return
    from fastrec.serve.online import Online

    online = Online.load(Path(export) / "events")
    try:
        yield online
    finally:
        online.close()
