"""``NgramHash``: a text as a vector of how often its n-grams occur, by hashes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
import pyarrow as pa
import torch

from fastrec.errors import DataError
from fastrec.features._inputs import masked, name_of
from fastrec.features.base import Col, RowWise, Tensors
from fastrec.features.tokens import Tokens
from fastrec.features.vector_columns import unit
from fastrec.table import Column, Table
from fastrec.table.vocab import hash_codes


class NgramHash(RowWise):
    """Each text as a vector column of unit length: its n-grams, counted in ``dims`` hashed places.

    Nothing is learned, so that new words count at once. An n-gram adds 1 or -1 to its place, by another bit of its
    hash: those that share a place cancel out on average. Texts count in lower case. A missing text is a missing vector,
    one without an n-gram is zeros. ``Pca(NgramHash(…), 16)`` gives trees its first components.

    Args:
        col: a column of text, or a generator of one.
        dims: how many numbers a vector has.
        least, most: the lengths of n-grams.
        of: n-grams of ``'words'``, or of ``'letters'``: any characters, a space before the text and after it.
        seed: other seeds give other places.
        name: the output's name; None: ``ngrams_{col}``.

    Source: Weinberger et al. 2009, "Feature hashing for large scale multitask learning".

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import NgramHash
        >>> df = pd.DataFrame({"t": ["red shoe", "Red shoe!", "hat"]})
        >>> made = NgramHash("t", 64).fit_transform(df)["ngrams_t"]
        >>> [round(float(made[0] @ made[i]), 2) for i in (1, 2)]
        [1.0, 0.0]
    """

    def __init__(
        self,
        col: Col,
        dims: int = 256,
        *,
        least: int = 1,
        most: int = 2,
        of: Literal["words", "letters"] = "words",
        seed: int = 0,
        name: str | None = None,
    ) -> None:
        self.col, self.dims, self.least, self.most = col, dims, least, most
        self.of, self.seed, self.name = of, seed, name
        if dims < 1 or not 1 <= least <= most or of not in ("words", "letters"):
            raise DataError(
                f"NgramHash: {least} to {most} {of} in {dims} places",
                remedy="Give dims and lengths of 1 or more, the shorter first, of 'words' or 'letters'",
            )

    @property
    def outputs(self) -> list[str]:
        return [self.name or f"ngrams_{name_of(self.col)}"]

    def prepare(self, table: Table) -> Tensors:
        texts, codes = Tokens(self.col, "words")._texts(table)
        vectors = np.zeros((len(texts) + 1, self.dims), dtype=np.float32)  # the first is a missing text's
        used = np.unique(codes.cpu().numpy())
        for row, pieces in self._some([(int(i), texts[int(i) - 1].as_py()) for i in used if i]):
            place = hash_codes(pa.array(pieces, pa.large_string()), 2 * self.dims, seed=self.seed)
            np.add.at(vectors, (row, place // 2), np.where(place % 2, -1.0, 1.0))
        return {"vectors": torch.from_numpy(vectors).to(codes.device), "row": codes, "missing": codes == 0}

    def apply(self, tensors: Tensors) -> Tensors:
        return {self.outputs[0]: unit(tensors["vectors"])[tensors["row"]], "missing": tensors["missing"]}

    def compute(self, table: Table) -> dict[str, Column]:
        tensors, name = self.apply(self.prepare(table)), self.outputs[0]
        return {name: masked(name, tensors[name], tensors["missing"], "vector")}

    def _some(self, texts: list[tuple[int, str]]) -> Iterator[tuple[np.ndarray, list[str]]]:
        """Yield each n-gram's text number, and the n-grams, for some texts at a time."""
        rows: list[int] = []
        pieces: list[str] = []
        for i, text in texts:
            found = self._pieces(text)
            pieces += found
            rows += [i] * len(found)
            if len(pieces) >= 1 << 20:  # bounds the n-grams in memory
                yield np.array(rows), pieces
                rows, pieces = [], []
        if pieces:
            yield np.array(rows), pieces

    def _pieces(self, text: str) -> list[str]:
        if self.of == "letters":
            whole = f" {text.lower()} " if text else ""
            return [whole[i : i + n] for n in range(self.least, self.most + 1) for i in range(len(whole) - n + 1)]
        words = Tokens("", "words")._compiled().findall(text.lower())
        return [" ".join(words[i : i + n]) for n in range(self.least, self.most + 1) for i in range(len(words) - n + 1)]
