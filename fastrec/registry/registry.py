"""``Registry``: versions of a model in a folder, and which of them is current."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fastrec._core.atomic import alone_at, atomic_folder, now, remove_leftovers, task_in, write_json
from fastrec.errors import DataError, MissingFileError, UnreadableFileError, WriteError

STATE = "registry.json"
OBSERVED = Path("events") / "observed.log"  # where a server of the registry keeps the events that it is told of
_RUN, _EXPORT = "decision.json", "serving.json"  # files that tell a run and an export
_VERSIONS = "versions"


@dataclass(frozen=True)
class Version:
    """A version, as it was put into the registry; its files never change."""

    number: int  #: from 1
    folder: Path  #: holds ``run/``, ``export/`` or both
    added: str  #: when, ISO 8601 in UTC
    source: str  #: the folder that it was copied from
    why: str = ""  #: what was said of it
    events_from: int = 0  #: how many bytes of observed events there were: those after it its state is still to take in

    @property
    def run(self) -> Path | None:
        """The run directory; None: only its export was put in."""
        return folder if (folder := self.folder / "run").is_dir() else None

    @property
    def export(self) -> Path | None:
        """What a server loads; None: the run was not exported."""
        return folder if (folder := self.folder / "export").is_dir() else None


@dataclass
class _State:
    """The content of ``registry.json``, which is replaced whole so that everything changes at once."""

    current: int | None = None
    previous: int | None = None
    versions: dict[str, dict[str, Any]] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)

    def note(self, what: str, before: int | None, why: str, about: Mapping[str, Any] | None = None) -> None:
        record = {"at": now(), "what": what, "version": self.current, "before": before, "why": why}
        self.history.append(record | ({"about": dict(about)} if about else {}))


class Registry:
    """Versions of a model on disk: ``versions/0001``, …, and ``registry.json``, which says what is current.

    A change is one renamed file: a reader sees the old state or the new one, and a killed process leaves one of them.
    ``current`` and ``previous`` are links for people and other programs. They are updated after every change, or at the
    next look at ``current`` if the writer was killed before that.

    Args:
        folder: the registry's folder, made at the first promotion.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    @property
    def current(self) -> Version | None:
        """The version in use."""
        state = self._read()
        self._mend_links(state)
        return None if state.current is None else self._version(state, state.current)

    @property
    def previous(self) -> Version | None:
        """The version in use before, which ``rollback`` returns to."""
        state = self._read()
        return None if state.previous is None else self._version(state, state.previous, there=False)

    @property
    def versions(self) -> list[Version]:
        """All versions, the oldest first; also those whose files are gone."""
        state = self._read()
        return [self._version(state, int(n), there=False) for n in sorted(state.versions, key=int)]

    @property
    def history(self) -> list[dict[str, Any]]:
        """The changes, oldest first: ``at``, ``what`` (promoted, rolled back, kept), ``version``, ``why``, …"""
        return self._read().history

    def version(self, number: int) -> Version:
        """Return a version by its number.

        Raises:
            DataError: there is no such version.
        """
        return self._version(self._read(), number)

    def promote(
        self,
        source: str | Path | int,
        *,
        export: str | Path | None = None,
        why: str = "",
        about: Mapping[str, Any] | None = None,
    ) -> Version:
        """Make a run, an export or an earlier version the current one.

        Args:
            source: a run directory or an export, which is copied; or the number of a version.
            export: the run's export, which is copied too.
            why: a note for the history.
            about: figures for the history, as JSON values.

        Raises:
            DataError: the folder is neither a run nor an export, or holds a link; or there is no such version.
            WriteError: the file system refused; the current version stays.
        """
        parts = {} if isinstance(source, int) else _parts(Path(source), export)
        if isinstance(source, int):
            self.version(source)  # before a folder is made
        with self._writing() as state:
            number = source if isinstance(source, int) else self._add(state, Path(source), parts, why)
            found = self._version(state, number)
            before = state.current
            if number != before:
                state.current, state.previous = number, before
            state.note("promoted", before, why, about)
        return found

    def rollback(self, *, why: str = "") -> Version:
        """Make the previous version the current one again; a second rollback takes that back.

        Raises:
            DataError: there is no previous version.
        """
        with self._writing() as state:
            if state.previous is None or state.current is None:
                raise DataError("there is no version to go back to", file=self.folder, remedy="Promote one by number")
            state.current, state.previous = state.previous, state.current
            state.note("rolled back", state.previous, why)
            return self._version(state, state.current)

    def keep(self, *, why: str, about: Mapping[str, Any] | None = None) -> None:
        """Write into the history that a candidate was not promoted, why, and figures (JSON values) about it."""
        with self._writing() as state:
            state.note("kept", state.current, why, about)

    def _add(self, state: _State, source: Path, parts: Mapping[str, Path], why: str) -> int:
        # the number of a folder whose writer was killed is not used again
        there = [int(p.name) for p in (self.folder / _VERSIONS).glob("[0-9]*") if p.name.isdigit()]
        number = max([*map(int, state.versions), *there, 0]) + 1
        with atomic_folder(self._folder_of(number)) as part:
            for name, folder in parts.items():
                _copy(folder, part / name)
        observed = self.folder / OBSERVED
        seen = observed.stat().st_size if observed.is_file() else 0
        state.versions[str(number)] = {"added": now(), "source": str(source.resolve()), "why": why, "events_from": seen}
        return number

    @contextmanager
    def _writing(self) -> Iterator[_State]:
        """Yield the state to change and write it if the block ends well, one writer at a time."""
        with alone_at(self.folder / STATE, wait=True):
            # Traces of a writer that was killed at its first version are a registry too.
            begun = all(p.name == _VERSIONS or p.name.startswith(".") for p in self.folder.iterdir())
            if not begun and not (self.folder / STATE).is_file():
                problem = "the folder holds something that is not a registry"
                raise WriteError(problem, file=self.folder, remedy="Choose another")
            state = self._read()
            yield state
            write_json(self.folder / STATE, asdict(state))
            self._link(state)
            remove_leftovers(self.folder / _VERSIONS)

    def _link(self, state: _State) -> None:
        for name in ("current", "previous"):
            number, link = getattr(state, name), self.folder / name
            try:
                if number is None:
                    link.unlink(missing_ok=True)
                    continue
                fresh = self.folder / f".{name}.new"
                fresh.unlink(missing_ok=True)
                fresh.symlink_to(Path(_VERSIONS) / f"{number:04d}")
                fresh.replace(link)
            except OSError:  # a file system without links: registry.json says it all
                return

    def _mend_links(self, state: _State) -> None:
        wanted = None if state.current is None else f"{state.current:04d}"
        with suppress(OSError):
            link = self.folder / "current"
            if wanted != (link.readlink().name if link.is_symlink() else None):
                with alone_at(self.folder / STATE, wait=True):
                    self._link(self._read())

    def _read(self) -> _State:
        path = self.folder / STATE
        try:
            return _State(**json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return _State()
        except (OSError, ValueError, TypeError) as error:
            problem = f"it cannot be read, or is not a registry's ({error})"
            raise UnreadableFileError(problem, file=path, remedy="Restore it") from error

    def _version(self, state: _State, number: int, *, there: bool = True) -> Version:
        about = state.versions.get(str(number))
        if about is None:
            known = ", ".join(state.versions) or "none"
            raise DataError(f"there is no version {number}", file=self.folder, remedy=f"There are: {known}")
        folder = self._folder_of(number)
        if there and not folder.is_dir():
            remedy = "Restore them, or promote another"
            raise MissingFileError("the version's files are gone", file=folder, remedy=remedy)
        return Version(number, folder, **about)

    def _folder_of(self, number: int) -> Path:
        return self.folder / _VERSIONS / f"{number:04d}"


def is_registry(folder: str | Path) -> bool:
    """Tell whether a folder is a registry."""
    return (Path(folder) / STATE).is_file()


def _parts(source: Path, export: str | Path | None) -> dict[str, Path]:
    parts = {}
    if (source / _RUN).is_file() or is_session_run(source):
        parts["run"] = source
    elif (source / _EXPORT).is_file() and export is None:
        parts["export"] = source
    else:
        remedy = "Give what fastrec run or fastrec export wrote"
        raise DataError("this is neither a run directory nor an export", file=source, remedy=remedy)
    if export is not None:
        if not (Path(export) / _EXPORT).is_file():
            raise DataError("this is no export", file=export, remedy="Give what fastrec export wrote")
        parts["export"] = Path(export)
    return parts


def is_session_run(folder: Path) -> bool:
    """Tell whether a folder is a run for next items, which is served itself, without an export."""
    return task_in(folder / "config.json") == "next_item" and (folder / "models").is_dir()


def _copy(folder: Path, to: Path) -> None:
    """Copy a folder's files, without links: they could bring in any file of the machine."""

    def refuse_links(inside: str, names: list[str]) -> list[str]:
        link = next((p for p in (Path(inside) / n for n in names) if p.is_symlink()), None)
        if link is not None:
            raise DataError("this is a link, and a registry takes none", file=link, remedy="Put the file itself there")
        return []

    try:
        shutil.copytree(folder, to, symlinks=True, ignore=refuse_links)
    except OSError as error:
        several = isinstance(error, shutil.Error)
        source, why = error.args[0][0][::2] if several else (error.filename or folder, error.strerror or error)
        remedy = "Mend it, or free disk space; what was current still is"
        raise WriteError(f"it could not be copied ({why})", file=source, remedy=remedy) from error
