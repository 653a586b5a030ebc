"""``Tokens``: the hashtags, mentions or words of a text, as a list."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import torch

from fastrec.errors import DataError
from fastrec.features._inputs import masked, name_of
from fastrec.features.base import Col, RowWise, Tensors
from fastrec.table import Column, Table, as_column
from fastrec.table.key_types import is_text
from fastrec.table.offsets import offsets_of, runs

_PATTERNS = {
    "hashtags": r"(?<!\w)#(\w+)",
    "mentions": r"(?<![\w@])@(\w+)",  # not the domain of an e-mail address
    "words": r"\w+",
}


class Tokens(RowWise):
    """The pieces of a text that match a pattern, in order, as a list of strings.

    A missing text gives a missing list, one without a match an empty list.

    Args:
        col: a column of text (a categorical is text, too), or a generator of one.
        pattern: ``'hashtags'`` (``#word``, without the sign), ``'mentions'`` (``@word``, likewise), ``'words'`` (runs
            of letters, digits and underscores of any script), or a regular expression of Python's: all that it matches,
            or what its one group holds. ``r'[^|]+'`` takes ``'a|b'`` apart.
        lower: give the pieces in lower case.
        name: the output's name; None: ``hashtags_{col}``, ``mentions_{col}``, ``words_{col}``, else ``tokens_{col}``.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import Tokens
        >>> df = pd.DataFrame({"text": ["#New from @Ann: #deals", "nothing"]})
        >>> [list(x) for x in Tokens("text", "hashtags").fit_transform(df)["hashtags_text"]]
        [['new', 'deals'], []]
    """

    def __init__(self, col: Col, pattern: str = "hashtags", *, lower: bool = True, name: str | None = None) -> None:
        self.col, self.pattern, self.lower, self.name = col, pattern, lower, name
        self._compiled()

    def _compiled(self) -> re.Pattern[str]:
        try:
            compiled = re.compile(_PATTERNS.get(self.pattern, self.pattern))
        except (re.error, TypeError) as error:
            words = ", ".join(map(repr, _PATTERNS))
            raise DataError(
                f"Tokens: {self.pattern!r} is no pattern ({error})", remedy=f"Use {words} or a regular expression"
            ) from error
        if compiled.groups > 1:
            raise DataError(
                f"Tokens: the pattern {self.pattern!r} has {compiled.groups} groups",
                remedy="Leave one group, and write the others as (?:…)",
            )
        return compiled

    @property
    def outputs(self) -> list[str]:
        word = self.pattern if self.pattern in _PATTERNS else "tokens"
        return [self.name or f"{word}_{name_of(self.col)}"]

    def prepare(self, table: Table) -> Tensors:
        return self._read(table)[0]

    def apply(self, tensors: Tensors) -> Tensors:
        offsets, rows = tensors["offsets"], tensors["text"]
        new, places = runs(offsets[rows], offsets[rows + 1] - offsets[rows])
        return {"offsets": new, "piece": tensors["piece"][places]}

    def compute(self, table: Table) -> dict[str, Column]:
        tensors, pieces = self._read(table)
        lists, name = self.apply(tensors), self.outputs[0]
        elements = Column("category", lists["piece"], name=name, distinct=pieces)
        return {name: masked(name, lists["offsets"], tensors["text"] == 0, "list", elements=elements)}

    def _read(self, table: Table) -> tuple[Tensors, pa.Array]:
        """Return the rows' texts by code, the pieces of each distinct text by code, and the distinct pieces."""
        texts, codes = self._texts(table)
        find = self._compiled().findall  # on distinct texts only: the slowest part
        found = [[piece for piece in find(text) if piece] for text in texts.to_pylist()]
        lengths = np.fromiter((0, *map(len, found)), dtype=np.int64, count=len(found) + 1)  # first: a missing text
        pieces = [piece.lower() if self.lower else piece for some in found for piece in some]
        column = as_column(pa.array(pieces, pa.large_string()))
        tensors = {"offsets": offsets_of(torch.from_numpy(lengths)), "piece": column.values}
        return {"text": codes, **{n: t.to(codes.device) for n, t in tensors.items()}}, column.distinct

    def _texts(self, table: Table) -> tuple[pa.Array, torch.Tensor]:
        name = name_of(self.col)
        column = table[name]
        if column.kind == "category" and is_text(column.distinct.type):
            return column.distinct, column.values.long()
        known = (~column.is_missing()).nonzero()
        if len(known):
            raise DataError("Tokens needs text", column=name, row=int(known[0]), remedy="Convert it to text first")
        return pa.array([], pa.large_string()), torch.zeros(len(column), dtype=torch.int64, device=table.device)
