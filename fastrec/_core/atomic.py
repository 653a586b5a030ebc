"""Writing so that a crash, a full disk or Ctrl-C leaves either the old result or the new one."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fastrec._core.leftovers import hidden_beside, hidden_part, remove, remove_leftovers
from fastrec.errors import FastrecError, WriteError

# the disk is full, the place is wrong or forbidden; other system errors in a block that writes have other causes
_NAMES = ["EACCES", "EBUSY", "EDQUOT", "EEXIST", "EFBIG", "EIO", "EISDIR", "EMFILE", "ENAMETOOLONG", "ENODEV", "ENOENT"]
_NAMES += ["ENOSPC", "ENOTDIR", "ENOTEMPTY", "EPERM", "EROFS", "ESTALE"]
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
    with _beside(path, folder=False) as (path, temporary):
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
    with _beside(path, folder=True) as (path, temporary):
        yield temporary
        _replace_folder(temporary, path)


@contextmanager
def _beside(path: str | Path, *, folder: bool) -> Iterator[tuple[Path, Path]]:
    path = Path(os.path.realpath(path))
    part = hidden_beside(path, "part")
    with _named_write_error(path, part):
        path.parent.mkdir(parents=True, exist_ok=True)
        # Before the disk is needed for the new result.
        remove_leftovers(path.parent, path.name)
        with hidden_part(part, folder=folder):
            yield path, part


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


@contextmanager
def _named_write_error(path: Path, part: Path) -> Iterator[None]:
    """Name ``path`` in errors about it and about its hidden ``part``."""
    try:
        yield
    except FastrecError as error:
        inner = Path(error.file or path)
        if part not in inner.parents:
            raise
        about = {"column": error.column, "row": error.row, "remedy": error.remedy}
        raise type(error)(error.problem, file=path / inner.relative_to(part), **about) from error
    except OSError as error:
        named = isinstance(error.filename, str | os.PathLike)
        place = Path(os.path.realpath(error.filename)) if named else path
        # A block may read other files: an error about one of them is not about this one.
        if error.errno not in _REFUSALS or not (place in (path, *path.parents) or part in (place, *place.parents)):
            raise
        raise WriteError(
            f"could not be written ({error.strerror or error})",
            file=path,
            remedy="Free disk space or choose another place; what was there before is untouched",
        ) from error
