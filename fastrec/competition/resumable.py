"""The cache of finished parts from which an interrupted run resumes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import pyarrow.parquet as pq

from fastrec._core.atomic import atomic_folder
from fastrec.errors import FastrecError, warn
from fastrec.table import Table, load_state, save_state
from fastrec.validate import Trained

_T = TypeVar("_T")

# Each part's folder is named by a digest of its inputs: rows, features, folds, settings, seed, the library's version.
# A part is written under another name and renamed when it is complete, so that a kill leaves no partial parts.


class Parts:
    """The cache of a run directory's finished parts, in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reused = 0  # parts read from the cache
        self._used: set[str] = set()
        self._made: set[str] = set()  # parts written by this run

    @classmethod
    def beside(cls, out: Path) -> Parts:
        """Return the parts of a run directory."""
        out = Path(out).absolute()
        return cls(out.parent / f".{out.name}.parts")

    def folder_of(self, kind: str, key: str) -> Path:
        """Return the folder of a part, which exists if the part is complete."""
        self._used.add(f"{kind}-{key}")
        return self.folder / f"{kind}-{key}"

    def found(self, kind: str, key: str, read: Callable[[Path], _T]) -> _T | None:
        """Read a part by ``read(folder)``; None: absent, or damaged and removed."""
        place = self.folder_of(kind, key)
        if not place.is_dir():
            return None
        try:
            found = read(place)
        except (FastrecError, OSError, ValueError, TypeError, KeyError, RuntimeError):
            warn(f"{place}: a kept part cannot be read and is made again")
            shutil.rmtree(place, ignore_errors=True)
            return None
        self.reused += place.name not in self._made
        return found

    def keep(self, kind: str, key: str, **values: Any) -> None:
        """Store tables, states (dicts) and objects with ``save``, by name; ``key`` is a digest of the part's inputs."""
        place = self.folder_of(kind, key)
        self._made.add(place.name)
        with atomic_folder(place) as part:
            for name, value in values.items():
                if isinstance(value, Table):
                    pq.write_table(value.to_arrow(), part / f"{name}.parquet", compression="lz4")
                elif isinstance(value, dict):
                    save_state(part / name, value)
                elif value is not None:
                    value.save(part / name)

    def clear(self) -> None:
        """Remove parts that this run has not used."""
        if not self.folder.is_dir():
            return
        for place in self.folder.iterdir():
            if place.name not in self._used:
                shutil.rmtree(place, ignore_errors=True)


class KeptModels:
    """A ``fastrec.validate.crossfit.FoldStore`` in a run's parts; ``keys``: model → digest of its inputs."""

    def __init__(self, parts: Parts, keys: Mapping[str, str]) -> None:
        self.parts, self.keys = parts, keys
        self._read: dict[tuple[str, int], Trained] = {}  # read ahead by ``has``

    def has(self, name: str, fold: int) -> bool:
        """Return whether a model is cached and readable."""
        found = self.find(name, fold)
        if found is not None:
            self._read[name, fold] = found
        return found is not None

    def find(self, name: str, fold: int) -> Trained | None:
        """Return a cached model, or None."""
        from fastrec.estimators import Estimator, Trace  # loads every library of trees

        def read(place: Path) -> Trained:
            model, said = Estimator.load(place / "model"), load_state(place / "said")
            model.trace = Trace(**said["trace"])
            return Trained(model, said["oof"], said["test"])

        if (name, fold) in self._read:
            return self._read.pop((name, fold))
        return self.parts.found("model", f"{name}-{fold}-{self.keys[name]}", read) if name in self.keys else None

    def keep(self, name: str, fold: int, trained: Trained) -> None:
        """Store a trained model."""
        if name in self.keys:
            said = {"oof": trained.oof, "test": trained.test, "trace": asdict(trained.model.trace)}
            self.parts.keep("model", f"{name}-{fold}-{self.keys[name]}", model=trained.model, said=said)
