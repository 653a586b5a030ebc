"""The state of events as a folder: written from a run's tables, read when serving starts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastrec._core.atomic import atomic_file, atomic_folder, check_replaceable
from fastrec.errors import MissingFileError, UnreadableFileError
from fastrec.features import FeatureSet
from fastrec.serve.online.memory_store import MemoryStore
from fastrec.serve.online.store import Store
from fastrec.table import Table

if TYPE_CHECKING:
    from fastrec.serve.online.online import Online

_ABOUT = "online.json"
_BLOCK = 200_000  # events that are observed at a time


def write_online_state(
    folder: str | Path,
    features: FeatureSet,
    tables: Mapping[str, Any] | None = None,
    history: Any = None,
    *,
    outputs: Sequence[str] | None = None,
    keep: int = 128,
    late: str | float = "1h",
) -> Online:
    """Write the state that serving starts with: all events so far, by key, old ones folded.

    Args:
        folder: where to; an earlier state there is replaced in one step.
        features: the fitted features.
        tables: the tables of events, all rows so far in their order; tables that no generator reads are passed over.
        history: the frame's own rows so far, with the targets that lags read; None: no generator looks at them.
        outputs, keep, late: see ``Online``.

    Returns:
        A closed ``Online`` that says which columns are needed (``inputs``, ``tables``).

    Raises:
        DataError: a generator cannot be served from events, by name.
    """
    from fastrec.serve.online.online import Online

    check_replaceable(folder, _ABOUT)
    settings = {"history": history is not None, "outputs": outputs, "keep": keep, "late": late}
    given = {**(tables or {}), **({"history": history} if history is not None else {})}
    with atomic_folder(folder) as part:
        store = MemoryStore(part, sync="never")
        online = Online(features, store=store, tables=given, **settings)
        settings["outputs"] = online.outputs
        for name, frame in given.items():
            if name not in online.tables:
                continue
            rows = Table.read(frame, online.tables[name], device="cpu")
            for start in range(0, len(rows), _BLOCK):
                block = rows.slice(start, min(start + _BLOCK, len(rows)))
                online.observe(block, None if name == "history" else name)
        online.snapshot()
        online.close()
        with atomic_file(part / _ABOUT) as file:
            file.write_text(json.dumps({"format": 1, **settings}, indent=1), encoding="utf-8")
    return online


def load_online(folder: str | Path, features: FeatureSet | None, store: Store | None) -> Online:
    """See ``Online.load``."""
    from fastrec.serve.online.online import SIGNATURE, Online

    folder = Path(folder)
    path = folder / _ABOUT
    if not path.is_file():
        raise MissingFileError("there is no such file", file=path, remedy="Give the folder that export wrote")
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
        options = {n: settings[n] for n in ("history", "outputs", "keep", "late")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UnreadableFileError(
            f"the state's settings cannot be read ({error!r})", file=path, remedy="Export the run again"
        ) from error
    features = FeatureSet.load(folder.parent / "features") if features is None else features
    if set(options["outputs"]) - {n for s in features.steps for n in s.outputs}:
        raise UnreadableFileError("it is the state of other features", file=path, remedy="Export the run again")
    own = MemoryStore(folder)
    if store is not None:
        if not any(store.get([SIGNATURE])):
            own.copy_to(store)
        own.close()
        return Online(features, store=store, **options)
    try:
        return Online(features, store=own, **options)
    except BaseException:
        own.close()
        raise
