"""``Categorify``: categories to codes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fastrec.errors import NotFittedError
from fastrec.table import ClassList, Coded, Column, Vocab
from fastrec.tabular.procs.base import FrameProc, _refuse_columns

__all__ = ["Categorify"]


class Categorify(FrameProc):
    """Categorical columns to codes: 0 = ``#na#`` (missing or never seen), then the training rows' values, sorted.

    Args:
        min_count: values in fewer training rows share the code ``#rare#``; a number, or column → number.
        max_size: keep at most this many values of a column, the most frequent; a number, or column → number.
        unseen: give values never seen in training a code of their own, ``#unseen#``.
    """

    order = 1

    def __init__(
        self,
        *columns: Any,
        min_count: int | Mapping[str, int] = 1,
        max_size: int | Mapping[str, int] | None = None,
        unseen: bool = False,
    ) -> None:
        super().__init__()
        _refuse_columns(self, columns)
        self.min_count, self.max_size, self.unseen = min_count, max_size, unseen
        self.classes: dict[str, ClassList] = {}

    def reset(self, names: Sequence[str]) -> None:
        """Forget what was learnt and prepare to fit these columns."""
        self.classes = dict.fromkeys(names)

    def fit(self, column: Column) -> None:
        """Fit a column's classes on its training rows."""
        self.classes[column.name] = ClassList(Vocab.fit(column, **self.options_of(column.name)))

    def options_of(self, name: str) -> dict[str, Any]:
        """Return the options of ``Vocab.fit`` for a column."""
        minimum = self.min_count.get(name, 1) if isinstance(self.min_count, Mapping) else self.min_count
        largest = self.max_size.get(name) if isinstance(self.max_size, Mapping) else self.max_size
        return {"min_count": minimum, "max_size": largest, "unseen": self.unseen}

    def set_vocab(self, name: str, vocab: Vocab) -> None:
        """Set a column's vocabulary."""
        self.classes[name] = ClassList(vocab)

    def vocab_of(self, name: str) -> Vocab:
        """Return the vocabulary of a column.

        Raises:
            NotFittedError: it was not learnt.
        """
        if self.classes.get(name) is None:
            raise NotFittedError(f"Categorify has not seen column {name!r}", remedy="Fit it in a TabularFrame first")
        return self.classes[name].vocab

    def encode(self, name: str, column: Column | Coded) -> torch.Tensor:
        """Encode any rows, int64 ``[m]``."""
        return self.vocab_of(name).encode(column)

    def __getitem__(self, name: str) -> ClassList:
        return self.classes[name]

    def to_state(self) -> dict[str, Any]:
        """Return the fitted state as plain values and Arrow arrays."""
        options = {"min_count": self.min_count, "max_size": self.max_size, "unseen": self.unseen}
        return {"kind": self.name, **options, "vocabs": {n: c.vocab.to_state() for n, c in self.classes.items()}}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Categorify:
        """Make the proc of a state."""
        proc = cls(min_count=state["min_count"], max_size=state["max_size"], unseen=state["unseen"])
        proc.classes = {n: ClassList(Vocab.from_state(s)) for n, s in state["vocabs"].items()}
        return proc
