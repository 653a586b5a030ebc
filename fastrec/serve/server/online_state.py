"""The state of events that lies in an export's folder, opened for a server."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from fastrec.serve.server.service import Events
from fastrec.serve.server.spec import read_spec
from fastrec.serve.server.values import arrow_type

__all__ = ["open_events"]


def open_events(export: str | Path) -> Events | None:
    """What makes an export's columns from events, with all events that were ever taken in; None: it has no events.

    Args:
        export: what ``fastrec export`` wrote: ``features/`` holds the features, ``events/`` the events.
    """
    spec = read_spec(export)
    if spec.events is None:
        return None
    from fastrec.features import FeatureSet
    from fastrec.serve.online import MemoryStore, Online

    schemas = {name: pa.schema([(c.name, arrow_type(c)) for c in columns]) for name, columns in spec.tables.items()}
    return Online(
        FeatureSet.load(Path(export) / "features"),
        store=MemoryStore(Path(export) / "events"),
        tables=schemas,
        history=bool(spec.events.get("history")),
        outputs=[i.name for i in spec.made],
    )
