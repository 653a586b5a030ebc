"""Folds on disk: one Parquet file that every library reads, and that is seen to be whole."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from fastrec._core.atomic import atomic_file
from fastrec.errors import MissingFileError, UnreadableFileError

_KEY = b"fastrec.folds"


class FoldArrays(NamedTuple):
    """Contents of folds.

    Args:
        layers: int32 ``[r, n]``: folds in which each row is scored, -1 = none.
        train: fold → bool ``[n]``: rows that it trains on, where these are not all that it does not score.
        method, why: how they were cut and why, in words.
    """

    layers: torch.Tensor
    train: dict[int, torch.Tensor]
    method: str
    why: str

    def digest(self) -> str:
        """Return the SHA-256 of all of it."""
        about = [*self.layers.shape, self.method, self.why, sorted(self.train)]
        digest = hashlib.sha256(json.dumps(about).encode())
        digest.update(self.layers.numpy().astype("<i4").tobytes())
        for k in sorted(self.train):
            digest.update(np.packbits(self.train[k].numpy()).tobytes())
        return digest.hexdigest()


def write_folds(path: str | Path, folds: FoldArrays) -> None:
    """Write folds: a column ``fold`` (or ``fold_0``, ``fold_1``, …), and ``train_k`` where there are training rows."""
    one = len(folds.layers) == 1
    columns = {"fold" if one else f"fold_{i}": layer.numpy() for i, layer in enumerate(folds.layers)}
    columns |= {f"train_{k}": rows.numpy() for k, rows in sorted(folds.train.items())}
    about = {"method": folds.method, "why": folds.why, "digest": folds.digest()}
    table = pa.table(columns).replace_schema_metadata({_KEY: json.dumps(about).encode()})
    with atomic_file(path) as part:
        pq.write_table(table, part, compression="zstd")


def read_folds(path: str | Path) -> FoldArrays:
    """Read what ``write_folds`` wrote.

    Raises:
        MissingFileError: there is no such file.
        UnreadableFileError: it is damaged, or holds no folds.
    """
    if not Path(path).is_file():
        raise MissingFileError("there is no such file", file=path, remedy="Save the folds first: folds.save(path)")
    try:
        table = pq.read_table(path, partitioning=None)
        about = json.loads((table.schema.metadata or {})[_KEY])
        columns = {n: torch.from_numpy(table[n].to_numpy().copy()) for n in table.column_names}
        layers = torch.stack([v for n, v in columns.items() if n.startswith("fold")])
        train = {int(n.removeprefix("train_")): v for n, v in columns.items() if n.startswith("train_")}
        folds = FoldArrays(layers, train, about["method"], about["why"])
        whole = folds.digest() == about["digest"]
    except Exception as error:  # Arrow, JSON and torch each have errors of their own for a damaged file
        raise UnreadableFileError(
            f"the folds cannot be read ({type(error).__name__}: {error})",
            file=path,
            remedy="Save them again, or cut them anew",
        ) from error
    if not whole:
        raise UnreadableFileError(
            "the folds are not those that were saved: their digest differs",
            file=path,
            remedy="Save them again, or cut them anew",
        )
    return folds
