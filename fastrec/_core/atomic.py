"""Writing so that a crash, a full disk or Ctrl-C leaves either the old result or the new one, never half of one."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from fastrec._core.leftovers import hidden_beside, remove, remove_leftovers
from fastrec.errors import FastrecError, WriteError

# the disk is full, the place is wrong or forbidden; other system errors in a block that writes have other causes
_NAMES = ["EACCES", "EBUSY", "EDQUOT", "EEXIST", "EFBIG", "EIO", "EISDIR", "EMFILE", "ENAMETOOLONG", "ENODEV", "ENOENT"]
_NAMES += ["ENOSPC", "ENOTDIR", "ENOTEMPTY", "EPERM", "EROFS", "ESTALE"]
_HERE, _EXCHANGE = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of renameat2(2)
_REFUSALS = {getattr(errno, name) for name in _NAMES if hasattr(errno, name)}


@contextmanager
def atomic_file(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; it takes ``path``'s place when the block ends well.

    Args:
        path: the file to write or replace (a link: the file it points to); its folder is made if need be. A replaced
            file's permissions are kept.

    Yields:
        A path in the same folder to write to.

    Raises:
        WriteError: the file system refused (disk full, no permission); ``path`` is as it was.
    """
    with _beside(path) as (path, temporary):
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        yield temporary
        if path.is_file():
            temporary.chmod(path.stat().st_mode & 0o777)
        os.replace(temporary, path)


@contextmanager
def atomic_folder(path: str | Path) -> Iterator[Path]:
    """Yield a temporary folder beside ``path``; it takes ``path``'s place when the block ends well.

    Args:
        path: the folder to make or replace (a link: the folder it points to).

    Yields:
        An empty folder beside ``path`` to fill.

    Raises:
        WriteError: the file system refused; a folder that was at ``path`` is as it was.
    """
    with _beside(path) as (path, temporary):
        temporary.mkdir()
        yield temporary
        _replace_folder(temporary, path)


@contextmanager
def _beside(path: str | Path) -> Iterator[tuple[Path, Path]]:
    """Where a path leads, and a hidden one beside it, which is gone at the end; the folder of both is made."""
    path = Path(os.path.realpath(path))
    temporary = hidden_beside(path, "part")
    try:
        with _named_write_error(path, temporary):
            path.parent.mkdir(parents=True, exist_ok=True)
            remove_leftovers(path.parent, path.name)
            yield path, temporary
    finally:
        remove(temporary)


def check_replaceable(folder: str | Path, *markers: str) -> None:
    """Refuse to replace what is not an earlier result of the same kind.

    Args:
        folder: the place to write a folder to.
        markers: files of which every earlier result, even a damaged one, has at least one.

    Raises:
        WriteError: there is a file, or a folder with something in it and none of ``markers``.
    """
    folder = Path(folder)
    if folder.is_file():
        raise WriteError("this is a file, not a folder", file=folder, remedy="Choose another folder")
    if folder.is_dir() and any(folder.iterdir()) and not any((folder / m).exists() for m in markers):
        raise WriteError(
            f"the folder holds other things and no {markers[0]}, and would be replaced whole",
            file=folder,
            remedy="Choose a new or empty folder",
        )


def is_plain_name(name: str) -> bool:
    """Whether a name read from a file, or given by a user, is one of a file or folder in the folder at hand."""
    return not set(name) & set("/\\:\0") and name not in ("", ".", "..") and Path(name).name == name


def _replace_folder(new: Path, path: Path) -> None:
    """Put a folder in another's place; the other is then in the folder's, or gone."""
    if not path.exists():
        try:
            os.rename(new, path)
            return
        except OSError:  # somebody else put something there, perhaps
            if not path.exists():
                raise
    if _exchange(new, path):
        return
    old = hidden_beside(path, "old")
    try:
        os.rename(path, old)
        os.rename(new, path)
    except BaseException:  # Ctrl-C between the two as well; a process that is killed there: see leftovers.recover
        if old.exists() and not path.exists():
            os.rename(old, path)
        raise
    finally:
        if path.exists():
            remove(old)


def _exchange(one: Path, other: Path) -> bool:
    """Let two things change places in one step; False where the system or the file system does not know how."""
    call = _renameat2()
    return call is not None and call(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0


@cache
def _renameat2() -> Callable[..., int] | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        call = ctypes.CDLL(None).renameat2  # glibc 2.28 and later
    except (OSError, AttributeError):
        return None
    call.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
    return call


@contextmanager
def _named_write_error(path: Path, temporary: Path) -> Iterator[None]:
    try:
        yield
    except FastrecError as error:
        inner = Path(error.file or path)
        if temporary not in inner.parents:
            raise
        # what was written inside goes by the name that it would have had
        about = {"column": error.column, "row": error.row, "remedy": error.remedy}
        raise type(error)(error.problem, file=path / inner.relative_to(temporary), **about) from error
    except OSError as error:
        if isinstance(error, FastrecError) or error.errno not in _REFUSALS or _is_elsewhere(error, path, temporary):
            raise
        raise WriteError(
            f"could not be written ({error.strerror or error})",
            file=path,
            remedy="Free disk space or choose another place; what was there before is untouched",
        ) from error


def _is_elsewhere(error: OSError, path: Path, temporary: Path) -> bool:
    """True if the error is about another file: one that the block read, say."""
    if not isinstance(error.filename, str | os.PathLike):
        return False
    found = Path(os.path.realpath(error.filename))
    return not (found == path or found in path.parents or temporary in (found, *found.parents))
