"""``Embedded``: the base of ``TextEmbed`` and ``ImageEmbed``."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from fastrec._core.device import resolve_device
from fastrec._core.oom import naming_out_of_memory
from fastrec.errors import DataError
from fastrec.features._inputs import masked, name_of
from fastrec.features.base import Col, RowWise, Tensors
from fastrec.features.vector_columns import unit
from fastrec.table import Column, Table
from fastrec.table.key_types import is_text


class Embedded(RowWise):
    """A generator of unit-length vectors that a net computes from a text column's distinct values, each once.

    Subclasses define the net's input (``item``) and the bytes that identify it in the cache (``content``).
    """

    encodes: ClassVar[Literal["text", "image"]]
    col: Col
    model: str
    cache: str | Path | None
    device: str
    bs: int
    name: str | None

    def check_options(self) -> None:
        if self.bs < 1:
            raise DataError(f"{type(self).__name__}: {self.bs} values in a batch", remedy="Give 1 or more")

    @property
    def outputs(self) -> list[str]:
        return [self.name or f"embed_{name_of(self.col)}"]

    @abstractmethod
    def content(self, value: str, row: int) -> bytes:
        """Return the bytes that decide the vector; ``row`` is a row with the value, for messages."""

    @abstractmethod
    def item(self, value: str, row: int) -> Any:
        """Return the net's input for a value."""

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
        tensors, name = self.apply(self.prepare(table)), self.outputs[0]
        return {name: masked(name, tensors[name], tensors["missing"], "vector")}

    def _values(self, table: Table) -> tuple[list[str], torch.Tensor]:
        """Return the distinct values, and each row's number among them from 1 (0: missing), on the host."""
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
        # Both are long and few pipelines embed: they are imported at the first use.
        from fastrec.features._engine.encoders import load_encoder
        from fastrec.features._engine.vector_store import VectorStore, digest_of

        encoder = load_encoder(str(self.model), self.encodes, str(resolve_device(self.device)))
        # The first row of each value, for messages.
        first = torch.full((len(values) + 1,), len(codes), dtype=torch.int64)
        first.scatter_reduce_(0, codes, torch.arange(len(codes)), "amin")
        named = [(values[i - 1], int(first[i])) for i in chosen.tolist()]
        vectors, known, digests = np.zeros((len(named), encoder.dims), dtype=np.float32), np.zeros(len(named), bool), []
        store = None if self.cache is None else VectorStore(Path(self.cache) / encoder.digest)
        if store is not None:
            digests = [digest_of(self.content(*n)) for n in named]
            vectors, known = store.get(digests, encoder.dims)
        # A batch holds values of similar length (little padding), in an order that depends on the values alone:
        # the last digits of a vector depend on its batch, so they must not depend on the order of the rows.
        left = sorted(np.flatnonzero(~known).tolist(), key=lambda i: (len(named[i][0]), named[i][0]))
        for at in range(0, len(left), self.bs):
            batch = left[at : at + self.bs]
            what = f"a batch of {len(batch)} values through {self.model}"
            with naming_out_of_memory(what, "Lower bs=, or compute on the CPU (device='cpu')"):
                vectors[batch] = encoder.encode([self.item(*named[i]) for i in batch]).cpu().numpy()
        if store is not None and left:
            store.put([digests[i] for i in left], vectors[left])
        return vectors
