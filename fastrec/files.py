"""Writing so that a crash, a full disk or Ctrl-C leaves either the old result or the new one, never half of one."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fastrec.errors import WriteError


@contextmanager
def atomic_file(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; it takes ``path``'s place when the block ends well.

    Args:
        path: the file to write or replace; its folder is made if need be.

    Yields:
        A path in the same folder to write to.

    Raises:
        WriteError: the file system refused (disk full, no permission); ``path`` is as it was.
    """
    path = Path(path)
    with _named_write_error(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
        os.close(handle)
    temporary = Path(name)
    try:
        with _named_write_error(path):
            yield temporary
            temporary.chmod(0o644)
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: str | Path) -> Iterator[Path]:
    """Yield a temporary folder beside ``path``; it takes ``path``'s place when the block ends well.

    Args:
        path: the folder to make or replace.

    Yields:
        An empty folder beside ``path`` to fill.

    Raises:
        WriteError: the file system refused; a folder that was at ``path`` is as it was.
    """
    path = Path(path)
    with _named_write_error(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent))
    try:
        with _named_write_error(path):
            yield temporary
            temporary.chmod(0o755)
            _replace_folder(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _replace_folder(new: Path, path: Path) -> None:
    if not path.exists():
        os.rename(new, path)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".old", dir=path.parent))
    os.rename(path, old / "was")
    try:
        os.rename(new, path)
    except OSError:
        os.rename(old / "was", path)
        raise
    finally:
        shutil.rmtree(old, ignore_errors=True)


@contextmanager
def _named_write_error(path: Path) -> Iterator[None]:
    try:
        yield
    except WriteError:
        raise
    except OSError as error:
        if error.filename2 is None and error.errno is None:  # an OSError of a library about reading, not of the disk
            raise
        raise WriteError(
            f"could not be written ({error.strerror or error})",
            file=path,
            remedy="Free disk space or choose another place; what was there before is untouched",
        ) from error
