"""The versions of a registry that a server answers with: the current one, and a canary for some of the requests."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from fastrec.errors import DataError
from fastrec.registry import Registry, Version, is_registry
from fastrec.registry.model_registry import is_session_run
from fastrec.serve.server.spec import FILE

__all__ = ["Canary", "Source", "takes_canary"]


@dataclass(frozen=True)
class Canary:
    """A version that answers a share of the requests.

    Args:
        version: its number in the registry.
        share: of the requests that say an id, above 0 and at most 1.
    """

    version: int
    share: float

    @classmethod
    def read(cls, text: str) -> Canary:
        """``VERSION=SHARE``, as the command line has it.

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
    """Where exports are loaded from: an export's folder, or a registry whose current version it is.

    Args:
        folder: what ``fastrec export`` wrote, or a registry.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.registry = Registry(folder) if is_registry(folder) else None

    def current(self) -> tuple[Path, int | None]:
        """Return the export's folder, and its number in the registry.

        Raises:
            DataError: the registry has no current version, or that one has no export.
        """
        if self.registry is None:
            return self.folder, None
        found = self.registry.current
        if found is None:
            raise DataError("no version of the registry is current", file=self.folder, remedy="Promote one")
        return _export_of(found), found.number

    def version(self, number: int) -> Path:
        """Return the export of a version.

        Raises:
            DataError: it is no registry, there is no such version, or that one has no export.
        """
        if self.registry is None:
            raise DataError("an export has no versions for a canary", file=self.folder, remedy="Serve a registry")
        return _export_of(self.registry.version(number))


def _export_of(version: Version) -> Path:
    """Return what a server loads of a version: its export, or the run itself if it is for next items."""
    if version.export is not None and (version.export / FILE).is_file():
        return version.export
    if version.run is not None and is_session_run(version.run):
        return version.run
    raise DataError(
        f"version {version.number} has no export, and cannot be served",
        file=version.folder,
        remedy="Promote the run with its export (fastrec promote makes one)",
    )
