"""Hash raw values in a graph, letter by letter, as ``hash_codes`` hashes their bytes."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch

from fastrec.serve.graph.builder import CONTRIBUTED, Graph
from fastrec.serve.graph.columns import GraphColumn
from fastrec.serve.graph.tensor import GraphTensor, N, NotInGraphError

_START, _PRIME = 0xCBF29CE484222325, 0x100000001B3  # FNV-1a of 64 bits
_DIGITS = "-0123456789"
_NO_LETTER = "\uffff"
_SIZE = 1 << 8 * 4  # a letter's bytes (at most 4 in UTF-8) are packed below, their number above


def hashed(column: GraphColumn, buckets: int, *, seed: int = 0) -> GraphTensor:
    """Write ``1 + hash_codes`` of each value, 0 if missing: int64 ``[rows]``.

    onnxruntime's operator ``Tokenizer`` splits text. Letters that Unicode does not have yet are ignored.

    Raises:
        NotInGraphError: a graph cannot write fractions and times as text.
    """
    return _bucket(_Letters.of(column), buckets, seed, column.is_missing())


def hashed_together(columns: Sequence[GraphColumn], buckets: int, *, seed: int = 0) -> GraphTensor:
    """Write the hash of several columns' values together, as ``Cross`` joins them; 0 if one is missing."""
    texts = [_Letters.of(c) for c in columns]
    graph = texts[0].graph
    colon, joined = graph.constant(np.array(":", dtype=object)), ""
    for text in texts:
        for part in (text.length(), text.value):
            joined = part if not joined else graph.op("StringConcat", graph.op("StringConcat", joined, colon), part)
    letters = list(dict.fromkeys([*(x for t in texts for x in t.letters), ":", *_DIGITS]))
    missing = columns[0].is_missing()
    for column in columns[1:]:
        missing = missing | column.is_missing()
    return _bucket(_Letters(graph, joined, letters), buckets, seed, missing)


class _Letters:
    """Values as text, and every letter that they may have."""

    def __init__(self, graph: Graph, value: str, letters: list[str]) -> None:
        self.graph, self.value, self.letters = graph, value, letters
        self.wide = max(len(c.encode()) for c in letters)
        # onnxruntime crashes if all texts are empty: each gets a sign that is no letter
        some = graph.op("StringConcat", value, graph.constant(np.array(_NO_LETTER, dtype=object)))
        apart = graph.op("Tokenizer", some, domain=CONTRIBUTED, mark=0, pad_value="", separators=[""], mincharnum=1)
        encoded = [letter.encode() for letter in letters]
        packed = [sum(b << 8 * i for i, b in enumerate(e)) + len(e) * _SIZE for e in encoded]
        keys = {"keys_tensor": np.array(letters, dtype=object), "values_tensor": np.array(packed, dtype=np.int64)}
        none = {"default_tensor": np.array([0], dtype=np.int64)}
        self.codes = graph.op("LabelEncoder", apart, domain="ai.onnx.ml", **keys, **none)

    @classmethod
    def of(cls, column: GraphColumn) -> _Letters:
        """Create from a column's values, see ``hashed``."""
        if column.text is not None:
            column.values.graph.hashed.add(column.text)
            return cls(column.values.graph, column.text, _letters())
        values = column.values
        if not isinstance(values, GraphTensor) or column.kind != "number" or values.is_floating_point():
            what = "times" if column.kind == "datetime" else "numbers that may have fractions"
            raise NotInGraphError(
                f"hashes of {what} have no form in a graph", column=column.name, remedy="Hash text or whole numbers"
            )
        graph = values.graph
        return cls(graph, graph.op("Cast", values.to(torch.int64).value, to=graph.type_of(object)), list(_DIGITS))

    def length(self) -> str:
        """Count the bytes of each value, as text."""
        count = self.graph.op("Div", self.codes, self.graph.constant(_SIZE, np.int64))
        total = self.graph.op("ReduceSum", count, self.graph.constant([1], np.int64), keepdims=0)
        return self.graph.op("Cast", total, to=self.graph.type_of(object))


def _one_letter(wide: int, prefix: str) -> Any:
    """Build Scan's body: the hash so far and a letter's bytes → the hash with the letter."""
    inner = Graph()
    state, packed = inner.input("state", np.int64), inner.input("letter", np.int64)
    count = inner.op("Div", packed, inner.constant(_SIZE, np.int64))
    for i in range(wide):
        byte = inner.op("Div", packed, inner.constant(1 << 8 * i, np.int64)) if i else packed
        byte = inner.op("Mod", byte, inner.constant(256, np.int64))
        mixed = inner.op("Mul", inner.op("BitwiseXor", state, byte), inner.constant(_PRIME, np.int64))
        state = inner.op("Where", inner.op("Greater", count, inner.constant(i, np.int64)), mixed, state)
    inner.output("mixed", state, np.int64)
    body = inner.model(name="letter").graph
    for part in (*body.input, *body.output, *body.initializer):  # names must be unique inside of Scan, too
        part.name = prefix + part.name
    for node in body.node:
        node.input[:] = [prefix + n for n in node.input]
        node.output[:] = [prefix + n for n in node.output]
    return body


def _bucket(text: _Letters, buckets: int, seed: int, missing: Any) -> GraphTensor:
    graph = text.graph
    start = graph.constant(np.array([(_START ^ (seed % (1 << 64)))], dtype=np.uint64).astype(np.int64))
    state = graph.op("Expand", start, graph.op("Shape", text.value))
    scanned = {
        "body": _one_letter(text.wide, graph.fresh("letter") + "_"),
        "num_scan_inputs": 1,
        "scan_input_axes": [1],
    }
    # FNV-1a depends on the bytes' order: letters are mixed in one after the other
    state = graph.op("Scan", state, text.codes, shared=False, **scanned)

    def cast(value: str, dtype: Any) -> str:
        return graph.op("Cast", value, to=graph.type_of(dtype))

    def shifted(value: str, bits: int) -> str:
        return graph.op("BitShift", value, graph.constant(bits, np.uint64), direction="RIGHT")

    whole = cast(state, np.uint64)
    mixed = cast(graph.op("BitwiseXor", whole, shifted(whole, 32)), np.int64)
    mixed = graph.op("Mul", mixed, graph.constant(_PRIME, np.int64))
    place = graph.op("Mod", cast(shifted(cast(mixed, np.uint64), 1), np.int64), graph.constant(buckets, np.int64))
    code = graph.op("Add", place, graph.constant(1, np.int64))
    return torch.where(missing, 0, GraphTensor(graph, code, torch.empty(N, dtype=torch.int64, device="meta")))


@cache
def _letters() -> list[str]:
    """List the letters of Unicode, without surrogates, unassigned code points, and the last private planes."""
    # computed once in a process: 1.1 million code points take a while
    every = (chr(i) for i in range(sys.maxunicode + 1))
    return [c for c in every if unicodedata.category(c) not in ("Cn", "Cs") and not ord(c) >= 0xF0000]
