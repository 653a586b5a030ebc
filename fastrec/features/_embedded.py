"""What ``TextEmbed`` and ``ImageEmbed`` share: distinct values through a net, once each, to vectors of unit length."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from fastrec._core.device import resolve_device
from fastrec._core.oom import naming_out_of_memory
from fastrec.errors import DataError
from fastrec.features._engine.encoders import Kind, PretrainedEncoder, load_encoder
from fastrec.features._engine.vector_store import VectorStore, digest_of
from fastrec.features._inputs import name_of
from fastrec.features.base import Feature, RowWise, Tensors
from fastrec.features.vector_columns import unit
from fastrec.table import Column, Table
from fastrec.table.key_types import is_text


class Embedded(RowWise):
    """A generator of vectors that a net makes of a text column's distinct values.

    Subclasses say what the net is given (``item``), and what decides it (``content``). A net's last digits depend on
    which values are in a batch; the same values are in the same batches whatever the order of the rows.
    """

    encodes: ClassVar[Kind]
    col: str | Feature
    model: str
    cache: str | Path | None
    device: str
    bs: int
    name: str | None

    def check_options(self) -> None:
        """Refuse options that cannot be."""
        if self.bs < 1:
            raise DataError(f"{type(self).__name__}: {self.bs} values in a batch", remedy="Give 1 or more")

    @property
    def sources(self) -> list[str | Feature]:
        return [self.col]

    @property
    def outputs(self) -> list[str]:
        return [self.name or f"embed_{name_of(self.col)}"]

    @abstractmethod
    def content(self, value: str, row: int) -> bytes:
        """What a vector is made of, and found again by; ``row`` is one that has the value, for messages."""

    @abstractmethod
    def item(self, value: str, row: int) -> Any:
        """What the net is given of a value."""

    def prepare(self, table: Table) -> Tensors:
        values, codes = self._values(table)
        used, place = torch.unique(codes, return_inverse=True)
        chosen = used[used > 0]
        made = torch.from_numpy(self._vectors(values, chosen, codes)).to(table.device)
        missing = codes == 0
        zero = made.new_zeros(1, made.shape[1])
        rows = torch.where(missing, 0, place + (1 if len(chosen) == len(used) else 0))
        return {"vectors": torch.cat([zero, made]), "row": rows.to(table.device), "missing": missing.to(table.device)}

    def apply(self, tensors: Tensors) -> Tensors:
        return {self.outputs[0]: unit(tensors["vectors"])[tensors["row"]], "missing": tensors["missing"]}

    def compute(self, table: Table) -> dict[str, Column]:
        made, name = self.apply(self.prepare(table)), self.outputs[0]
        missing = made["missing"] if bool(made["missing"].any()) else None
        return {name: Column("vector", made[name], name=name, missing=missing)}

    def _values(self, table: Table) -> tuple[list[str], torch.Tensor]:
        """The column's distinct values, and each row's, from 1 (0: missing), on the host."""
        name = name_of(self.col)
        column = table[name]
        if column.kind == "category" and is_text(column.distinct.type):
            return column.distinct.to_pylist(), column.values.long().cpu()
        known = (~column.is_missing()).nonzero()
        if len(known):
            what = "text" if self.encodes == "text" else "the names of files"
            raise DataError(
                f"{type(self).__name__} needs {what}", column=name, row=int(known[0]), remedy="Choose another column"
            )
        return [], torch.zeros(len(column), dtype=torch.int64)

    def _vectors(self, values: list[str], chosen: torch.Tensor, codes: torch.Tensor) -> np.ndarray:
        """The vectors of some of the values, float32 ``[chosen, dims]``."""
        encoder = load_encoder(str(self.model), self.encodes, str(resolve_device(self.device)))
        first = _first_rows(codes, len(values))
        named = [(values[i - 1], int(first[i])) for i in chosen.tolist()]
        made, known, digests = np.zeros((len(named), encoder.dims), dtype=np.float32), np.zeros(len(named), bool), []
        store = None if self.cache is None else VectorStore(Path(self.cache) / encoder.digest)
        if store is not None:
            digests = [digest_of(self.content(*n)) for n in named]
            made, known = store.get(digests, encoder.dims)
        # Batches hold values of about one length, in an order that is the values' own.
        left = sorted(np.flatnonzero(~known).tolist(), key=lambda i: (len(named[i][0]), named[i][0]))
        for at in range(0, len(left), self.bs):
            some = left[at : at + self.bs]
            made[some] = self._encoded(encoder, [self.item(*named[i]) for i in some])
        if store is not None and left:
            store.put([digests[i] for i in left], made[left])
        return made

    def _encoded(self, encoder: PretrainedEncoder, items: Sequence[Any]) -> np.ndarray:
        what = f"a batch of {len(items)} values through {self.model}"
        with naming_out_of_memory(what, "Lower bs=, or compute on the CPU (device='cpu')"):
            return encoder.encode(items).cpu().numpy()


def _first_rows(codes: torch.Tensor, count: int) -> torch.Tensor:
    """The first row that has each code, int64 ``[1 + count]``; the number of rows where none has."""
    first = torch.full((count + 1,), len(codes), dtype=torch.int64)
    return first.scatter_reduce_(0, codes, torch.arange(len(codes)), "amin")
