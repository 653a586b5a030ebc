"""``TreeInputs``: the columns of a table side by side, as libraries of trees take them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fastrec._core import limits
from fastrec.errors import DataError
from fastrec.table import Table, Vocab, load_state, save_state
from fastrec.table.key_types import is_text
from fastrec.validate import Rows

_FOLDER = "vocabularies"


class TreeInputs:
    """Columns that trees learn from, and the codes of those that are categories.

    Args:
        names: the columns.
        vocabs: of the categories among them, and of text among the numbers: what code a value has.
    """

    def __init__(self, names: Sequence[str], vocabs: Mapping[str, Vocab]) -> None:
        self.names, self.vocabs = list(names), dict(vocabs)

    @classmethod
    def fit(cls, rows: Rows, columns: Sequence[str] | None = None, keys: Sequence[str] = ()) -> TreeInputs:
        """Find the codes of training rows.

        Args:
            columns: the columns to use; None: all categories and numbers.
            keys: numbers among them that are categories here.
        """
        names = rows.names if columns is None else list(columns)
        odd = next((n for n in keys if n not in names), None)
        if odd is not None:
            raise DataError("a key is no column that trees learn from", column=odd, remedy=f"Name some of {names[:5]}")
        texts = {n for n in names if (c := rows.table[n]).kind == "category" and is_text(c.distinct.type)}
        coded = (n for n in names if n in rows.cats or n in keys or n in texts)
        return cls(names, {n: Vocab.fit(rows.table[n]) for n in coded})

    def codes(self, table: Table, name: str) -> torch.Tensor:
        """Encode a category: int64 ``[n]`` on the table's device, 0 if missing or unseen in training."""
        return self.vocabs[name].encode(table[name])

    def matrix(self, table: Table) -> torch.Tensor:
        """Join the columns: float32 ``[n, columns]`` on the table's device, NaN if missing; categories by code."""
        result = torch.empty((len(table), len(self.names)), dtype=torch.float32, device=table.device)
        for i, name in enumerate(self.names):
            if name in self.vocabs:
                codes = self.codes(table, name).float()
                values = torch.where(codes > 0, codes, torch.nan)
            else:
                values = table[name].number(torch.float32)
            result[:, i] = values.clamp(-limits.LARGEST_NUMBER, limits.LARGEST_NUMBER)
        return result

    def write(self, folder: Path) -> dict[str, Any]:
        """Write the vocabularies into a folder that is there.

        Returns:
            What else ``read`` is to be given, as JSON values.
        """
        save_state(folder / _FOLDER, {n: v.to_state() for n, v in self.vocabs.items()})
        return {"used": self.names}

    @classmethod
    def read(cls, folder: Path, about: Mapping[str, Any]) -> TreeInputs:
        """Restore what ``write`` wrote."""
        state = load_state(folder / _FOLDER)
        return cls(list(about["used"]), {n: Vocab.from_state(v) for n, v in state.items()})
