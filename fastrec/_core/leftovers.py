"""Hidden names for what is being written, which say who writes: what a killed process left is found and removed.

A name holds the kernel's boot, the process's namespace, number and start. A writer of the same machine is asked for by
its number and start. One of another boot can only be gone where no other machine writes to the file system; elsewhere
(a shared disk, another container), and on systems without ``/proc``, nothing can be known, and nothing is removed.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fastrec.errors import WriteError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_LONGEST = 120  # bytes of a name that are kept as they are: hidden names are longer, and 255 is the limit
_HIDDEN = re.compile(
    r"\.(?P<name>.+)\.(?P<boot>[0-9a-f]{12})-(?P<space>\d+)-(?P<pid>\d{1,9})-(?P<start>\d+)-[0-9a-f]{8}\.(?P<kind>part|old)",
    re.DOTALL,
)
_SHORTENED = re.compile("~[0-9a-f]{16}$")
# file systems that one kernel has to itself
_LOCAL = {"btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "xfs", "zfs"}


def hidden_beside(path: Path, kind: str) -> Path:
    """A hidden name in the same folder that nothing has yet.

    Args:
        path: what is written.
        kind: ``'part'`` for what is not whole yet, ``'old'`` for what is being replaced.
    """
    return path.with_name(f".{_short(path.name)}.{_this_process()}-{secrets.token_hex(4)}.{kind}")


@contextmanager
def working_folder(path: Path, *, made: Path | None = None) -> Iterator[Path]:
    """A hidden folder beside ``path`` for what is gone at the end; what killed processes left of that name goes first.

    Args:
        path: gives the name, and the folder that it is made in, which is there.
        made: this process's own, that it made before it began anew; None: it makes one.
    """
    remove_leftovers(path.parent, path.name)
    folder = hidden_beside(path, "part") if made is None else made
    folder.mkdir(exist_ok=made is not None)
    try:
        yield folder
    finally:
        remove(folder)


@contextmanager
def alone_at(path: Path) -> Iterator[None]:
    """Let no other process write to ``path`` meanwhile; the kernel gives the lock back if this one dies.

    Args:
        path: what is written; the lock is a hidden file beside it. Systems without ``flock`` have no lock.

    Raises:
        WriteError: another process is writing there, or the lock cannot be opened.
    """
    if fcntl is None:
        yield
        return
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    lock, held = path.with_name(f".{_short(path.name)}.lock"), None
    while held is None:
        try:
            held = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:  # such as another user's, who was killed before it was removed
            remedy = "Remove that file, or choose another place"
            raise WriteError(f"no lock can be had ({error.strerror})", file=lock, remedy=remedy) from error
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(held)
            raise WriteError(
                "another process is writing here", file=path, remedy="Wait for it to end, or choose another place"
            ) from None
        except OSError:  # a file system without locks
            break
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(held), os.stat(lock)):
                break
        os.close(held)  # its last holder removed the file between the two calls
        held = None
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
        os.close(held)


def is_of_this_process(path: Path) -> bool:
    """Whether a hidden name says that this process made it."""
    match = _HIDDEN.fullmatch(path.name)
    return match is not None and _this_process() == "-".join(match[n] for n in ("boot", "space", "pid", "start"))


def remove_leftovers(folder: Path, name: str | None = None) -> None:
    """Remove what writers that are gone have left; what they had moved away is put back where nothing took its place.

    Args:
        folder: where they wrote to.
        name: of what they wrote; None: whatever it was.
    """
    for found, match in _hidden(folder, name):
        if not _is_gone(match, folder):
            continue
        if match["kind"] == "part":
            remove(found)
        elif name is not None or not _SHORTENED.search(match["name"]):
            _put_back_or_remove(found, folder / (name or match["name"]))


def recover(path: str | Path) -> None:
    """Put back what was at ``path`` if a writer that is gone has moved it away and put nothing in its place."""
    path = Path(os.path.realpath(path))
    if not path.exists():
        remove_leftovers(path.parent, path.name)


def remove(path: Path) -> None:
    """Remove a file, or a folder with all in it, as far as it goes."""
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


def _short(name: str) -> str:
    """A name, or of a long one the beginning and a digest: two names never come out the same."""
    encoded = os.fsencode(name)
    return name if len(encoded) <= _LONGEST else f"{name[:20]}~{hashlib.sha256(encoded).hexdigest()[:16]}"


def _hidden(folder: Path, name: str | None) -> list[tuple[Path, re.Match[str]]]:
    short = None if name is None else _short(name)
    start = "." if short is None else f".{short}."
    try:
        found = [entry for entry in os.listdir(folder) if entry.startswith(start)]
    except OSError:
        return []
    matches = [(folder / entry, _HIDDEN.fullmatch(entry)) for entry in found]
    return [(path, match) for path, match in matches if match and short in (None, match["name"])]


def _put_back_or_remove(old: Path, path: Path) -> None:
    if path.exists():
        remove(old)
    else:
        with suppress(OSError):  # somebody else did so, or has just written there
            os.rename(old, path)


def _is_gone(match: re.Match[str], folder: Path) -> bool:
    """Whether the process that a hidden name tells of is surely gone."""
    mine = _HIDDEN.fullmatch(f".x.{_this_process()}-00000000.part")
    if mine is None:
        return False
    if match["boot"] != mine["boot"]:
        return _is_local(folder)
    return match["space"] == mine["space"] and not _runs(int(match["pid"]), match["start"])


def _runs(pid: int, start: str) -> bool:
    try:
        os.kill(pid, 0)  # also tells of those that /proc hides from other users
    except ProcessLookupError:
        return False
    except OSError:
        pass
    found = _stat(pid)
    return found is None or (found[19] == start and found[0] not in ("Z", "X"))


def _stat(pid: int | str) -> list[str] | None:
    """Fields of proc(5)'s stat from the third, ``state``, on; the twentieth of these is ``starttime``."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None


def _this_process() -> str:
    """Boot, namespace, number and start; asked for anew every time: a fork has others."""
    stat = _stat("self")
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        space = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        stat = None
    if stat is None:
        return str(os.getpid())
    return f"{hashlib.sha256(boot.encode()).hexdigest()[:12]}-{space}-{os.getpid()}-{stat[19]}"


def _is_local(folder: Path) -> bool:
    """Whether no other machine can write there."""
    try:
        device = os.stat(folder).st_dev
        number = f"{os.major(device)}:{os.minor(device)}"
        mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()]
    except OSError:
        return False
    kinds = {fields[fields.index("-") + 1] for fields in mounts if fields[2] == number}
    return bool(kinds) and kinds <= _LOCAL
