"""Writing so that a crash, a full disk or Ctrl-C leaves either the old result or the new one."""

from __future__ import annotations

import datetime as dt
import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fastrec._core import limits
from fastrec.errors import FastrecError, MissingFileError, UnreadableFileError, WriteError

# Hidden names for files being written, locked by their writer; leftovers of killed processes are found and removed.
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_HIDDEN = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{8}\.(?P<kind>part|old)", re.DOTALL)
locks: dict[Path, int] = {}  # this process's hidden files and folders, each with the descriptor of its lock


def hidden_beside(path: Path, kind: str) -> Path:
    """Return a hidden name beside ``path`` that nothing has yet: a ``'part'``, or the ``'old'`` that is replaced."""
    return path.with_name(f".{_short(path.name)}.{secrets.token_hex(4)}.{kind}")


@contextmanager
def hidden_part(part: Path, *, folder: bool) -> Iterator[None]:
    """Create a hidden file or folder and lock it meanwhile; at the end it is removed if it is still there."""
    try:
        while part not in locks:  # again if another process took it for a leftover before it was locked
            part.mkdir(exist_ok=True) if folder else part.touch()
            _lock(part)
        yield
    finally:
        remove(part)
        lock = locks.pop(part, -1)
        if lock >= 0:
            os.close(lock)


@contextmanager
def working_folder(path: Path, *, made: Path | None = None) -> Iterator[Path]:
    """Yield a hidden folder beside ``path`` for temporary files; leftovers of killed processes are removed first.

    If ``made`` is given, it is that folder, from before ``begin_anew`` replaced the process; otherwise a new one.
    """
    remove_leftovers(path.parent, path.name)
    part = hidden_beside(path, "part") if made is None else made
    with hidden_part(part, folder=True):
        yield part


@contextmanager
def alone_at(path: Path, *, wait: bool = False) -> Iterator[None]:
    """Keep other processes from writing to ``path``; the kernel frees the lock if this one dies.

    Args:
        path: the target. The lock is a hidden file in the same folder; systems without ``flock`` have no lock.
        wait: wait for a process that is writing there, instead of raising an error.

    Raises:
        WriteError: another process is writing there, or the lock cannot be opened.
    """
    if fcntl is None:
        yield
        return
    path = Path(os.path.realpath(path))
    lock, held = path.with_name(f".{_short(path.name)}.lock"), None
    while held is None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            held = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:  # such as another user's, who was killed before it was removed
            problem = f"could not be written: no lock can be had ({error.strerror})"
            remedy = "Remove that file, or choose another place" if os.path.lexists(lock) else "Choose another place"
            raise WriteError(problem, file=lock, remedy=remedy) from error
        try:
            fcntl.flock(held, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            os.close(held)
            remedy = "Wait for it to end, or choose another place"
            raise WriteError("another process is writing here", file=path, remedy=remedy) from None
        except OSError:  # a file system without locks
            break
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(held), os.stat(lock)):
                break
        # its last holder removed the file between the two calls
        os.close(held)
        held = None
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
        os.close(held)


def remove_leftovers(folder: Path, name: str | None = None) -> None:
    """Remove what killed writers of ``name`` (None: any) left in a folder; a result that one had moved away returns."""
    try:
        found = [(entry, _HIDDEN.fullmatch(entry)) for entry in os.listdir(folder) if entry.startswith(".")]
    except OSError:
        return
    for entry, match in found:
        if match is None or (name is not None and match["name"] != _short(name)):
            continue
        target = folder / (match["name"] if name is None else name)
        if match["kind"] == "part":
            _remove_if_free(folder / entry)
        elif target.exists():
            remove(folder / entry)
        elif name is not None or not re.search("~[0-9a-f]{16}$", match["name"]):  # a shortened name tells no target
            with suppress(OSError):  # another process did so, or has just written there
                os.rename(folder / entry, target)


def recover(path: str | Path) -> None:
    """Put back what was at ``path`` if a killed writer had moved it away and put nothing in its place."""
    path = Path(os.path.realpath(path))
    if not path.exists():
        remove_leftovers(path.parent, path.name)


def remove(path: Path) -> None:
    """Remove a file or a whole folder; what cannot be removed stays."""
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


def _short(name: str) -> str:
    # Hidden names are longer and 255 bytes is the limit; the digest keeps long names with one beginning apart.
    encoded = os.fsencode(name)
    return name if len(encoded) <= 120 else f"{name[:20]}~{hashlib.sha256(encoded).hexdigest()[:16]}"


def _lock(part: Path) -> None:
    if fcntl is None:
        locks[part] = -1
        return
    with suppress(FileNotFoundError):
        lock = os.open(part, os.O_RDONLY)
        with suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            if os.path.samestat(os.fstat(lock), os.stat(part)):
                locks[part] = lock
        finally:
            if part not in locks:
                os.close(lock)


def _remove_if_free(part: Path) -> None:
    """Remove a hidden file or folder that no process has locked, on a file system without locks what is a day old."""
    if fcntl is not None:
        try:
            lock = os.open(part, os.O_RDONLY)
        except OSError:  # gone, or another user's
            return
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove(part)  # while it is locked: a writer that has just created it waits, and creates it again
            return
        except BlockingIOError:
            return
        except OSError:
            pass
        finally:
            os.close(lock)
    with suppress(OSError):
        if time.time() - part.stat().st_mtime > limits.LEFTOVER_AGE:
            remove(part)


# the disk is full, the place is wrong or forbidden; other system errors in a block that writes have other causes
_NAMES = ["EACCES", "EBUSY", "EDQUOT", "EEXIST", "EFBIG", "EIO", "EISDIR", "EMFILE", "ENAMETOOLONG", "ENODEV", "ENOENT"]
_NAMES += ["ENOSPC", "ENOTDIR", "ENOTEMPTY", "EPERM", "EROFS", "ESTALE"]
_REFUSALS = {getattr(errno, name) for name in _NAMES if hasattr(errno, name)}


@contextmanager
def atomic_file(path: str | Path) -> Iterator[Path]:
    """Yield a path beside ``path`` to write to; it takes ``path``'s place when the block ends well.

    If ``path`` is a link, the file that it points to is replaced. Missing folders are created, and a replaced file
    keeps its permissions.

    Raises:
        WriteError: the file system refused (disk full, no permission); ``path`` is unchanged.
    """
    with _beside(path, folder=False) as (path, temporary):
        yield temporary
        if path.is_file():
            temporary.chmod(path.stat().st_mode & 0o777)
        os.replace(temporary, path)


@contextmanager
def atomic_folder(path: str | Path) -> Iterator[Path]:
    """Yield an empty folder beside ``path`` to fill; it takes ``path``'s place when the block ends well.

    If ``path`` is a link, the folder that it points to is replaced.

    Raises:
        WriteError: the file system refused; a folder that was at ``path`` is unchanged.
    """
    with _beside(path, folder=True) as (path, temporary):
        yield temporary
        _replace_folder(temporary, path)


@contextmanager
def _beside(path: str | Path, *, folder: bool) -> Iterator[tuple[Path, Path]]:
    path = Path(os.path.realpath(path))
    part = hidden_beside(path, "part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Before the disk is needed for the new result.
        remove_leftovers(path.parent, path.name)
        with hidden_part(part, folder=folder):
            yield path, part
    except FastrecError as error:  # ``path`` is named in errors about it and about its hidden ``part``
        inner = Path(error.file or path)
        if part not in inner.parents:
            raise
        about = {"column": error.column, "row": error.row, "remedy": error.remedy}
        raise type(error)(error.problem, file=path / inner.relative_to(part), **about) from error
    except OSError as error:
        place = Path(os.path.realpath(error.filename)) if isinstance(error.filename, str | os.PathLike) else path
        # A block may read other files: an error about one of them is not about this one.
        if error.errno not in _REFUSALS or not (place in (path, *path.parents) or part in (place, *place.parents)):
            raise
        remedy = "Free disk space or choose another place; what was there before is untouched"
        raise WriteError(f"could not be written ({error.strerror or error})", file=path, remedy=remedy) from error


def check_replaceable(folder: str | Path, *markers: str) -> None:
    """Refuse to replace anything but an earlier result of the same kind.

    Args:
        folder: the place to write a folder to.
        markers: file names; every earlier result, even a damaged one, contains at least one of them.

    Raises:
        WriteError: there is a file, or a folder that is not empty and contains none of ``markers``.
    """
    folder = Path(folder)
    if folder.is_file():
        raise WriteError("this is a file, not a folder", file=folder, remedy="Choose another folder")
    if folder.is_dir() and any(folder.iterdir()) and not any((folder / m).exists() for m in markers):
        problem = f"the folder holds other things and no {markers[0]}, and would be replaced whole"
        raise WriteError(problem, file=folder, remedy="Choose a new or empty folder")


def is_plain_name(name: str) -> bool:
    """Tell whether a name from a file or a user names a file or folder in the current folder."""
    return not set(name) & set("/\\:\0") and name not in ("", ".", "..") and Path(name).name == name


def _replace_folder(new: Path, path: Path) -> None:
    """Put a folder in another's place by two renames; ``recover`` puts back what a kill between them leaves hidden."""
    old = hidden_beside(path, "old")
    try:
        for last in (*[False] * 99, True):
            with suppress(FileNotFoundError):
                os.rename(path, old)
            try:
                os.rename(new, path)
                return
            except OSError:  # a reader put the old one back, or another writer was faster
                if last or not path.exists():
                    raise
                remove(old)
    finally:
        if path.exists():
            remove(old)
        elif old.exists():
            os.rename(old, path)


def read_json(path: Path, *, again: str = "Run the recipe again") -> dict[str, Any]:
    """Read a JSON file of a run directory; ``again`` is the remedy for a damaged one."""
    recover(path.parent)
    if not path.is_file():
        raise MissingFileError("there is no such file", file=path, remedy="Give a run directory")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise TypeError("it holds no JSON object")
        return found
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise UnreadableFileError(f"it cannot be read ({error})", file=path, remedy=again) from error


def task_in(path: Path) -> Any:
    """Return the task that a JSON file names; None without one, or if the file is damaged: who reads it says so."""
    try:
        return json.loads(path.read_text(encoding="utf-8")).get("task")
    except (OSError, ValueError, AttributeError):
        return None


def write_json(path: Path, content: Any) -> Path:
    """Write JSON as a person can read it, whole or not at all."""
    with atomic_file(path) as part:
        part.write_text(json.dumps(content, indent=1, ensure_ascii=False), encoding="utf-8")
    return path


def now() -> str:
    """Return the time in UTC, to the second."""
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")


def file_digest(file: Path) -> str:
    """Return the SHA-256 of a file's bytes, as hexadecimal digits."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def digests_below(folder: Path, *, but: str) -> dict[str, str]:
    """Return the digest of every file in a folder and its subfolders, by relative path, in the order of the paths.

    The file named ``but``, to which the digests are written, is left out.
    """
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p != folder / but)
    return {p.relative_to(folder).as_posix(): file_digest(p) for p in files}
