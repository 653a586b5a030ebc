"""``FeatureCache``: fitted states and output columns by digest."""

from __future__ import annotations

import secrets
import shutil
import threading
import warnings
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from fastrec._core.atomic import remove_leftovers
from fastrec.errors import DataError, DataWarning, FastrecError
from fastrec.features._engine.digests import NoDigestError, digest
from fastrec.features.base import Feature
from fastrec.table import Column, Keys, Table, load_state, save_state


class FeatureCache:
    """Cache of fitted states and output columns, keyed by generator, parameters and the contents of all inputs.

    One cache may serve several ``FeatureSet(…, cache=)``: only new or changed generators, and those that read them,
    are fitted again. Any change of data, fold, key or parameter makes another entry. A user's class or function is
    identified by its code and all that it uses (an installed library by name and version). A generator with an object
    that has no lasting identity (a random generator, an open file) is not cached, with a warning. Changes in files that
    code reads, and random draws of a library, are not noticed.

    Args:
        folder: the folder of entries (JSON and safetensors), shared between runs; None: in memory.
        max_bytes: drop the least recently used entries beyond this size; None: no limit.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import CountEncode, FeatureCache, FeatureSet, TargetEncode
        >>> df = pd.DataFrame({"item": ["a", "a", "b"], "clicked": [1, 0, 1]})
        >>> cache = FeatureCache()
        >>> _ = FeatureSet([CountEncode("item")], cache=cache).fit_transform(df)
        >>> _ = FeatureSet([CountEncode("item"), TargetEncode("item", "clicked")], cache=cache).fit_transform(df)
        >>> cache.hits, cache.misses
        (2, 4)
    """

    def __init__(self, folder: str | Path | None = None, *, max_bytes: int | None = 4 << 30) -> None:
        if max_bytes is not None and max_bytes < 0:
            raise DataError(f"FeatureCache: max_bytes is {max_bytes}", remedy="Use 0 or more, or None for no limit")
        self.folder = None if folder is None else Path(folder)
        self.max_bytes = max_bytes
        self.hits = self.misses = 0
        self._kept: OrderedDict[str, tuple[dict[str, Any], int]] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()
        self._told: set[str] = set()
        self._tidied = False
        if self.folder is not None and self.folder.exists() and not self.folder.is_dir():
            raise DataError("FeatureCache: this is a file, not a folder", file=folder, remedy="Choose another folder")

    @classmethod
    def of(cls, given: FeatureCache | str | Path | None) -> FeatureCache | None:
        """Return the cache that a ``cache=`` argument stands for."""
        if given is None or isinstance(given, FeatureCache):
            return given
        if isinstance(given, str | Path):
            return cls(given)
        problem = f"FeatureSet: a {type(given).__name__} is no cache"
        raise DataError(problem, remedy="Give a FeatureCache, or the path of a folder")

    def clear(self) -> None:
        """Drop all entries."""
        with self._lock:
            self._kept.clear()
            self._size = 0
            for entry in self._entries():
                _remove(entry)
            self._tidy()

    def __len__(self) -> int:
        return len(self._kept) if self.folder is None else len(self._entries())

    def __repr__(self) -> str:
        where = "in memory" if self.folder is None else f"at {self.folder}"
        return f"FeatureCache({len(self)} entries {where}, {self.hits} hits, {self.misses} misses)"

    def get(self, key: str) -> dict[str, Any] | None:
        """Return the entry of a key; None if it is missing or (with a warning) unreadable."""
        entry = None if self.folder is None else self._from_folder(key)  # outside the lock: reading files is slow
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                entry = self._kept[key][0]
            self.hits, self.misses = self.hits + (entry is not None), self.misses + (entry is None)
        return entry

    def put(self, key: str, entry: dict[str, Any]) -> None:
        """Store an entry of nested dicts and lists of tensors, Arrow arrays, ``Keys``, columns and JSON values."""
        with self._lock:
            if self.folder is None:
                self._to_memory(key, entry)
            else:
                self._to_folder(key, entry)

    def tell(self, step: Feature, why: NoDigestError) -> None:
        """Warn once that a generator is not cached."""
        text = f"{type(step).__name__} of {', '.join(map(repr, step.outputs[:3]))} is not kept in the cache ({why})"
        with self._lock:
            new = text not in self._told
            self._told.add(text)
        if new:
            warnings.warn(text, DataWarning, stacklevel=2)

    def _to_memory(self, key: str, entry: dict[str, Any]) -> None:
        size = size_of(entry)
        if self.max_bytes is not None and size > self.max_bytes:
            return
        if key in self._kept:
            self._size -= self._kept.pop(key)[1]
        self._kept[key] = (entry, size)
        self._size += size
        while self.max_bytes is not None and self._size > self.max_bytes:
            self._size -= self._kept.popitem(last=False)[1][1]

    def _place(self, key: str) -> Path:
        return self.folder / key[:2] / key

    def _entries(self) -> list[Path]:
        if self.folder is None or not self.folder.is_dir():
            return []
        return [e for e in self.folder.glob("[0-9a-f][0-9a-f]/*") if len(e.name) == 32 and (e / "state.json").exists()]

    def _tidy(self) -> None:
        # Killed processes leave half-written entries, which are missing in the size.
        if self.folder is not None:
            for shelf in self.folder.glob("[0-9a-f][0-9a-f]"):
                remove_leftovers(shelf)
        self._tidied = True

    def _from_folder(self, key: str) -> dict[str, Any] | None:
        place = self._place(key)
        if not place.is_dir():
            return None
        try:
            entry = load_state(place)
            if entry.pop("digest") != _digest_of(entry):
                raise ValueError("its contents are not those that were written")
            with suppress(OSError):
                place.touch()
            return entry
        except (FastrecError, OSError, KeyError, TypeError, ValueError, AttributeError) as error:
            if not place.is_dir():  # dropped by another process
                return None
            warnings.warn(f"the cache entry {place} is damaged and is made anew ({error})", DataWarning, stacklevel=2)
            _remove(place)
            return None

    def _to_folder(self, key: str, entry: dict[str, Any]) -> None:
        place = self._place(key)
        if not self._tidied:
            self._tidy()
        try:
            save_state(place, {**entry, "digest": _digest_of(entry)})
            self._drop_oldest()
        except (DataError, NoDigestError):  # not cached: some part cannot be written to a file
            return
        except (FastrecError, OSError) as error:
            if (place / "state.json").exists():  # written by another process
                return
            warnings.warn(f"a cache entry could not be kept ({error})", DataWarning, stacklevel=2)

    def _drop_oldest(self) -> None:
        if self.max_bytes is None:
            return
        used: dict[Path, tuple[float, int]] = {}
        for entry in self._entries():
            with suppress(OSError):  # another process may drop entries
                used[entry] = (entry.stat().st_mtime, sum(f.stat().st_size for f in entry.iterdir()))
        total = sum(size for _, size in used.values())
        for entry, (_, size) in sorted(used.items(), key=lambda item: item[1][0]):
            if total <= self.max_bytes:
                return
            total -= size
            _remove(entry)


def _remove(entry: Path) -> None:
    # Renamed first, so that other processes see the whole entry or none.
    gone = entry.with_name(f".{entry.name}.{secrets.token_hex(6)}.old")
    with suppress(OSError):
        entry.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)


def _digest_of(entry: dict[str, Any]) -> str:
    return digest(entry, [c.name for c in entry.get("columns", {}).values()])  # a column's digest leaves out its name


def size_of(value: Any) -> int:
    """Estimate the bytes of an entry's tensors and arrays."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, Column):
        return sum(map(size_of, (value.values, value.missing, value.distinct, value.elements)))
    if isinstance(value, Keys):
        return sum(c.nbytes for c in value.columns)
    if isinstance(value, Table):
        return sum(size_of(value[n]) for n in value.names)
    if isinstance(value, dict):
        return sum(map(size_of, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(size_of, value))
    return value.nbytes if hasattr(value, "nbytes") else 0
