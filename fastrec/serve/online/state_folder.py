"""The state of events as a folder: written from a run's tables, read when serving starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fastrec._core.atomic import atomic_folder, check_replaceable
from fastrec.features import FeatureSet
from fastrec.serve.online.memory_store import MemoryStore
from fastrec.serve.online.online import Online
from fastrec.serve.online.settings_file import ABOUT, write_settings
from fastrec.table import Table


def write_online_state(
    folder: str | Path,
    features: FeatureSet,
    tables: Mapping[str, Any] | None = None,
    history: Any = None,
    *,
    outputs: Sequence[str] | None = None,
    keep: int = 128,
    late: str | float = "1h",
    learn: bool = False,
) -> Online:
    """Write the state that serving starts with: all events so far, by key, old ones folded.

    Args:
        folder: where to; an earlier state there is replaced in one step.
        features: the fitted features.
        tables: the tables of events, all rows so far in their order; tables that no generator reads are passed over.
        history: the frame's own rows so far, with the targets that lags read; None: no generator looks at them.
        outputs, keep, late, learn: see ``Online``; the history is taken as what the features have learned from.

    Returns:
        A closed ``Online`` that says which columns are needed (``inputs``, ``tables``).

    Raises:
        DataError: a generator cannot be served from events, by name.
    """
    check_replaceable(folder, ABOUT)
    settings = {"history": history is not None, "outputs": outputs, "keep": keep, "late": late, "learn": learn}
    given = {**(tables or {}), **({"history": history} if history is not None else {})}
    with atomic_folder(folder) as part:
        store = MemoryStore(part, sync="never")
        online = Online(features, store=store, tables=given, **settings)
        settings["outputs"] = online.outputs
        for name, frame in given.items():
            if name not in online.tables:
                continue
            rows = Table.read(frame, online.tables[name], device="cpu")
            for start in range(0, len(rows), 200_000):
                block = rows.slice(start, min(start + 200_000, len(rows)))
                online._observe(block, name, learn=False)
        online.snapshot()
        online.close()
        write_settings(part, settings)
    return online
