"""What an interrupted run has finished, kept beside the run directory so that the next one goes on from there.

Each part's folder is named by a digest of all that it was made from: rows, features, folds, settings, seed, the
library's version. A part is written under another name and renamed when it is whole, so that a kill at any moment
leaves whole parts, and rubbish that is cleared away.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from fastrec._core.atomic import atomic_folder
from fastrec._core.warn import warn
from fastrec.errors import FastrecError
from fastrec.table import Table

if TYPE_CHECKING:
    from fastrec.validate import Trained


class Parts:
    """Finished parts of runs into one directory.

    Args:
        folder: where they are kept.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reused = 0  # parts that were found
        self._used: set[str] = set()
        self._made: set[str] = set()  # tables of this run's own

    @classmethod
    def beside(cls, out: Path) -> Parts:
        """Return the parts of a run directory."""
        out = Path(out).absolute()
        return cls(out.parent / f".{out.name}.parts")

    def folder_of(self, kind: str, key: str) -> Path:
        """Return the folder of a part, which exists if the part is complete."""
        self._used.add(f"{kind}-{key}")
        return self.folder / f"{kind}-{key}"

    def table(self, key: str, make: Callable[[], Table]) -> Table:
        """Return a cached table, or make and cache it.

        Args:
            key: a digest of all that it is made from.
            make: makes it.
        """
        place = self.folder_of("table", key)
        if (place / "rows.parquet").is_file():
            try:
                found = Table.read(place / "rows.parquet")
                self.reused += key not in self._made
                return found
            except FastrecError:
                say_damaged(place)
        made = make()
        self._made.add(key)
        with atomic_folder(place) as part:
            pq.write_table(made.to_arrow(), part / "rows.parquet", compression="lz4")
        return made

    def clear(self) -> None:
        """Drop parts that this run has not used: what changed has been made anew."""
        if not self.folder.is_dir():
            return
        for place in self.folder.iterdir():
            if place.name not in self._used:
                shutil.rmtree(place, ignore_errors=True)

    def models(self, keys: Mapping[str, str]) -> KeptModels:
        """Return the store of models for ``CrossFit``.

        Args:
            keys: model → a digest of all that its folds' models are made from; a model that is not there is not kept.
        """
        return KeptModels(self, keys)


class KeptModels:
    """``fastrec.validate.crossfit.FoldStore`` of a run's parts."""

    def __init__(self, parts: Parts, keys: Mapping[str, str]) -> None:
        self.parts, self.keys = parts, keys
        self._read: dict[tuple[str, int], Trained] = {}  # found, and not asked for yet

    def _place(self, name: str, fold: int) -> Path:
        return self.parts.folder_of("model", f"{name}-{fold}-{self.keys[name]}")

    def has(self, name: str, fold: int) -> bool:
        """Return whether a model is cached and readable."""
        found = self.find(name, fold)
        if found is not None:
            self._read[name, fold] = found
        return found is not None

    def find(self, name: str, fold: int) -> Trained | None:
        """Return a cached model, or None."""
        from fastrec.estimators import Estimator, Trace  # loads every library of trees
        from fastrec.validate import Trained

        if (name, fold) in self._read:
            return self._read.pop((name, fold))
        if name not in self.keys:
            return None
        place = self._place(name, fold)
        if not (place / "predictions.safetensors").is_file():
            return None
        try:
            model = Estimator.load(place / "model")
            found = load_file(place / "predictions.safetensors")
            model.trace = Trace(**json.loads((place / "trace.json").read_text(encoding="utf-8")))
        except (FastrecError, OSError, ValueError, TypeError, SafetensorError):
            say_damaged(place)
            return None
        self.parts.reused += 1
        return Trained(model, found["oof"], found["test"])

    def keep(self, name: str, fold: int, trained: Trained) -> None:
        """Keep a model that has just been trained."""
        if name not in self.keys:
            return
        with atomic_folder(self._place(name, fold)) as part:
            trained.model.save(part / "model")  # type: ignore[attr-defined]
            (part / "trace.json").write_text(json.dumps(asdict(trained.model.trace)), encoding="utf-8")
            save_file(
                {"oof": trained.oof.contiguous(), "test": trained.test.contiguous()}, part / "predictions.safetensors"
            )


def say_damaged(place: Path) -> None:
    """Warn of a kept part that cannot be read, and clear it away."""
    warn(f"{place}: a kept part cannot be read and is made again")
    shutil.rmtree(place, ignore_errors=True)
