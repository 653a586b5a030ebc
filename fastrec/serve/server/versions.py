"""The versions of a registry that a server answers with: the current one, and a canary for some of the requests."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from threading import RLock

import pyarrow as pa

from fastrec._core.atomic import atomic_file, atomic_folder
from fastrec.errors import DataError
from fastrec.features import FeatureSet
from fastrec.registry import Registry, Version, is_registry
from fastrec.registry.registry import OBSERVED, is_session_run
from fastrec.serve.online import Online
from fastrec.serve.online.store import EventLog, read_log
from fastrec.serve.session import FILE


@dataclass(frozen=True)
class Canary:
    """A version that answers a share of the requests."""

    version: int  #: its number in the registry
    share: float  #: of the requests that say an id, above 0 and at most 1

    @classmethod
    def read(cls, text: str) -> Canary:
        """Read ``VERSION=SHARE``, as the command line has it.

        Raises:
            DataError: it is not of this form, or the share is none.
        """
        number, _, share = text.partition("=")
        try:
            made = cls(int(number), float(share))
        except ValueError:
            raise DataError(f"a canary {text!r}", remedy="Give a version and a share, such as 7=0.05") from None
        if not 0 < made.share <= 1:
            raise DataError(f"a canary's share of {share}", remedy="Give more than 0, and at most 1")
        return made


def takes_canary(request_id: str, canary: Canary) -> bool:
    """Tell whether a request goes to the canary; the same id always gets the same answer.

    A larger share keeps those that a smaller one took; another version takes others.
    """
    digest = hashlib.sha256(f"{canary.version}:{request_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < canary.share * 2**64


class Source:
    """Where exports are loaded from: an export's folder, or a registry whose current version it is."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.registry = Registry(folder) if is_registry(folder) else None

    def current(self) -> tuple[Path, int | None]:
        """Return the export's folder, and its number in the registry; refuse a registry with none."""
        if self.registry is None:
            return self.folder, None
        version = self.registry.current
        if version is None:
            raise DataError("no version of the registry is current", file=self.folder, remedy="Promote one")
        return _export_of(version), version.number

    def version(self, number: int) -> Path:
        """Return the export of a version; refuse one that is not there or has none."""
        if self.registry is None:
            raise DataError("an export has no versions for a canary", file=self.folder, remedy="Serve a registry")
        return _export_of(self.registry.version(number))


def _export_of(version: Version) -> Path:
    """Return the folder to serve of a version: its export, or the run itself if it is for next items."""
    if version.export is not None and (version.export / FILE).is_file():
        return version.export
    if version.run is not None and is_session_run(version.run):
        return version.run
    why = f"version {version.number} has no export, and cannot be served"
    raise DataError(why, file=version.folder, remedy="Promote the run with its export (fastrec promote makes one)")


# Events reach all versions of a registry, so that a rollback lacks none.

NO_EVENTS = "its columns from events have nothing to make them"
EVENTS_REMEDY = "Export the run with --data: the tables of events so far go along"
_START = "start.json"  # how many events of each table a version's export came with
_NAME = b"table"  # in the metadata of a record's schema


class RegistryEvents:
    """The events that a registry's server has observed, and the state of events of each served version.

    A version's files never change: its state is copied from its export to ``events/0007`` and continues there. Each
    batch of events is written to ``events/observed.log`` first. A version that is served again observes the records
    that it lacks; events from before it was promoted are in its export.
    """

    def __init__(self, registry: Registry) -> None:
        self.registry, self._folder = registry, registry.folder / OBSERVED.parent
        self._log: EventLog | None = None
        self._open: dict[int, Online] = {}
        self._lock = RLock()  # a state is opened while others observe

    def state_of(self, version: Version) -> Online:
        """Open the state of a version's events, with all that was observed since it was added."""
        with self._lock:
            if version.number in self._open:
                return self._open[version.number]
            export, folder = version.export, self._folder / f"{version.number:04d}"
            if export is None or not (export / "events").is_dir():
                raise DataError(NO_EVENTS, file=version.folder, remedy=EVENTS_REMEDY)
            if not folder.is_dir():
                with atomic_folder(folder) as part:
                    shutil.copytree(export / "events", part, dirs_exist_ok=True)
            online = Online.load(folder, FeatureSet.load(export / "features"))
            try:
                self._catch_up(online, folder / _START, version.events_from)
            except BaseException:
                online.close()
                raise
            self._open[version.number] = online
            return online

    def observe(self, events: pa.Table, table: str, *, checked_by: int) -> None:
        """Observe a table's events; they are on disk on return.

        ``checked_by`` is the version whose features check them: if it refuses them, no version observes them.
        """
        with self._lock:
            rows = self._open[checked_by].checked(events, table)
            if not len(rows):
                return
            if self._log is None:
                self._folder.mkdir(parents=True, exist_ok=True)
                self._log = EventLog(self.registry.folder / OBSERVED)
            stored = rows.to_arrow().replace_schema_metadata({_NAME: table.encode()})
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, stored.schema) as writer:
                writer.write_table(stored)
            self._log.commit(self._log.append(sink.getvalue().to_pybytes()))
            for online in self._open.values():
                if table in online.tables:
                    online.observe(events, table)

    def keep(self, numbers: Collection[int | None]) -> None:
        """Close the states of all other versions; requests that they are answering are answered."""
        with self._lock:
            for number in [n for n in self._open if n not in numbers]:
                self._open.pop(number).close()

    def close(self) -> None:
        """Close all."""
        with self._lock:
            self.keep(())
            if self._log is not None:
                self._log.close()
                self._log = None

    def _catch_up(self, online: Online, start: Path, after: int) -> None:
        """Observe the records that the state lacks; its counters, stored with the events, say how many it has."""
        if not start.is_file():  # nothing was observed before it is there
            with atomic_file(start) as part:
                part.write_text(json.dumps({t: online.observed(t) for t in online.tables}), encoding="utf-8")
        begun = json.loads(start.read_text(encoding="utf-8"))
        path, seen = self.registry.folder / OBSERVED, Counter[str]()
        for record in read_log(path, after=after) if path.is_file() else ():
            with pa.ipc.open_stream(record) as reader:
                events = reader.read_all()
            table = events.schema.metadata[_NAME].decode()
            if table not in online.tables:
                continue
            seen[table] += len(events)
            if seen[table] > online.observed(table) - begun[table]:
                online.observe(events.replace_schema_metadata(None), table)
