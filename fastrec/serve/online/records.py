"""Events as rows of fixed width, and back: what a store keeps of a table, whatever its columns' types.

Numbers and times are kept as they are; of text and lists a 64-bit name, under which the store has the value once.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from fastrec.errors import DataError, UnreadableFileError
from fastrec.serve.online.store import EventStore
from fastrec.table import Column, Table, as_column

ROW = "\x00row"  # the number of a row of the frame's own history, by which one fetched twice is one


class Values:
    """Text and lists by 64-bit names; each is in the store once.

    Args:
        store: where they are.
    """

    def __init__(self, store: EventStore) -> None:
        self.store = store
        self._known: dict[int, str] = {}
        self._lists: dict[int, list[Any] | None] = {}
        self.fresh: dict[bytes, bytes] = {}  # to be written with the events that use them

    def names(self, texts: Iterable[str]) -> list[int]:
        """Return the name of each text: int64, not 0.

        Raises:
            DataError: another text has the same name (of a billion texts some two have, with a chance of 3 %).
        """
        made = []
        for text in texts:
            raw = text.encode("utf-8", "surrogatepass")
            name = int.from_bytes(blake2b(raw, digest_size=8).digest(), "little", signed=True) or 1
            known = self._known.get(name)
            if known is None:
                self._known[name] = text
                self.fresh[_key(name)] = raw
            elif known != text:
                raise DataError(f"{text!r} and {known!r} cannot be told apart", remedy="Change one of them")
            made.append(name)
        return made

    def texts(self, names: Sequence[int]) -> list[str]:
        """Return the texts of names that the store knows."""
        absent = [n for n in names if n not in self._known]
        for name, raw in zip(absent, self.store.get([_key(n) for n in absent]) if absent else [], strict=True):
            if raw is None:
                raise UnreadableFileError("a value of the events is not in the store", remedy="Export the state again")
            self._known[name] = bytes(raw).decode("utf-8", "surrogatepass")
        return [self._known[n] for n in names]

    def lists(self, names: Sequence[int]) -> list[list[Any] | None]:
        """Return the lists of names that the store knows."""
        absent = [n for n in names if n not in self._lists]
        for name, text in zip(absent, self.texts(absent), strict=True):
            self._lists[name] = json.loads(text)
        return [self._lists[n] for n in names]

    def written(self, fresh: Iterable[bytes]) -> None:
        """Mark values as stored."""
        for key in fresh:
            self.fresh.pop(key, None)


def _key(name: int) -> bytes:
    return b"v" + name.to_bytes(8, "little", signed=True)


class RecordLayout:
    """How the rows of one table are kept.

    Args:
        schema: the columns' types, as ``Column.to_arrow`` gives them.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema

    @classmethod
    def of(cls, table: Table, names: Sequence[str]) -> RecordLayout:
        """Derive the layout of a table's columns.

        Raises:
            DataError: a column holds what cannot be kept.
        """
        fields = []
        for name in names:
            column = table[name]
            kind = (column.slice(0, 0) if column.kind != "opaque" else column).to_arrow().type
            if column.kind in ("opaque", "vector") or (pa.types.is_list(kind) and not _is_plain(kind.value_type)):
                raise DataError(
                    f"holds values of type {kind}, which are not kept as events",
                    column=name,
                    remedy="Use numbers, times, text, or lists of text or numbers",
                )
            if pa.types.is_floating(kind) and len(table) and bool(column.is_missing().all()):
                raise DataError(
                    "has no value in the first events, so that its type is not known",
                    column=name,
                    remedy="Give the types when the Online is made: tables={name: a frame or an Arrow schema}",
                )
            fields.append(pa.field(name, kind))
        return cls(pa.schema(fields))

    def to_text(self) -> str:
        """Serialize the layout."""
        return base64.b64encode(self.schema.serialize().to_pybytes()).decode("ascii")

    @classmethod
    def from_text(cls, text: str) -> RecordLayout:
        """Parse the output of ``to_text``."""
        return cls(pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text))))

    def dtype(self, names: Sequence[str]) -> np.dtype:
        """Return the dtype of a row of these columns; an integer or a time has a flag that marks it as missing."""
        parts: list[tuple[str, str]] = []
        for name in names:
            held = None if name == ROW else self.schema.field(name).type
            kind = np.dtype(held.to_pandas_dtype() if held is not None and _is_number(held) else "i8")
            parts.append((name, kind.str))
            if name != ROW and self._is_flagged(name):
                parts.append((name + "\x00", "u1"))
        return np.dtype(parts)

    def _is_flagged(self, name: str) -> bool:
        kind = self.schema.field(name).type
        return pa.types.is_timestamp(kind) or (_is_number(kind) and not pa.types.is_floating(kind))

    def conform(self, table: Table) -> Table:
        """Convert the columns to the types of the first events.

        Raises:
            MissingColumnError, DataError: a column is not there, or holds another type.
        """
        return Table({f.name: self._conformed(table[f.name], f) for f in self.schema})

    def _conformed(self, column: Column, field: pa.Field) -> Column:
        array = column.to_arrow()
        if array.type == field.type:
            return column
        zones = [t.tz is None for t in (array.type, field.type) if pa.types.is_timestamp(t)]
        same = array.null_count == len(array) or _family(array.type) == _family(field.type)
        try:
            if not same or len(set(zones)) > 1:
                raise pa.ArrowInvalid("another kind")
            if pa.types.is_floating(array.type) and not pa.types.is_floating(field.type):
                array = pa.array(array.to_numpy(zero_copy_only=False), from_pandas=True)  # NaN is missing
            return as_column(array.cast(field.type), name=field.name)
        except pa.ArrowInvalid as error:
            raise DataError(
                f"holds values of type {array.type}, and the events before it {field.type}",
                column=field.name,
                remedy="Give every event the same type",
            ) from error

    def encode(self, table: Table, names: Sequence[str], values: Values, rows: np.ndarray | None = None) -> np.ndarray:
        """Encode rows of a table that conforms as records ``[n]``.

        Args:
            table: the rows.
            names: the columns.
            values: what names text.
            rows: int64 ``[n]``, the rows' numbers where ``ROW`` is among the names.
        """
        made = np.zeros(len(table), self.dtype(names))
        for name in names:
            if name == ROW:
                made[ROW] = rows
                continue
            column, kind = table[name], self.schema.field(name).type
            gone = column.is_missing().numpy()
            if not (_is_number(kind) or pa.types.is_timestamp(kind) or column.kind == "list"):
                coded = column.coded()  # small numbers above 0 among those that only an unsigned type holds are numbers
                texts = coded.keys.columns[0].cast(kind).cast(pa.string()).to_pylist()
                made[name] = np.array([0, *values.names(texts)], np.int64)[coded.codes.numpy()]
            elif column.kind == "list":
                lists = [None if v is None else json.dumps(v) for v in column.to_arrow().to_pylist()]
                made[name] = [0 if v is None else values.names([v])[0] for v in lists]
            elif pa.types.is_floating(kind):
                made[name] = np.where(gone, np.nan, column.values.numpy())
            else:
                made[name], made[name + "\x00"] = np.where(gone, 0, column.values.numpy()), gone
        return made

    def decode(self, records: np.ndarray, names: Sequence[str], values: Values) -> dict[str, Column]:
        """Decode records to columns of the layout's types (without ``ROW``)."""
        return {n: self._column(records, n, values) for n in names if n != ROW}

    def _column(self, records: np.ndarray, name: str, values: Values) -> Column:
        kind, held = self.schema.field(name).type, records[name].copy()
        if self._is_flagged(name):
            gone = records[name + "\x00"] != 0
            missing = torch.from_numpy(gone) if gone.any() else None
            tensor = torch.from_numpy(held)
            if pa.types.is_timestamp(kind):
                return Column("datetime", tensor, name=name, missing=missing, unit=kind.unit, zone=kind.tz)
            return Column("number", tensor, name=name, missing=missing)
        if pa.types.is_floating(kind):
            return Column("number", torch.from_numpy(held), name=name)
        # Of text and lists the distinct ones are fetched; 0 is missing.
        distinct = np.unique(held)
        distinct = distinct[distinct != 0]
        codes = np.where(held == 0, 0, np.searchsorted(distinct, held) + 1).astype(np.int32)
        if pa.types.is_large_list(kind):
            lists = [None, *values.lists(distinct.tolist())]
            return as_column(pa.array([lists[c] for c in codes.tolist()], kind), name=name)
        texts = values.texts(distinct.tolist())
        is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        words = pa.array(texts, kind) if is_text else pa.array(texts, pa.string()).cast(kind)
        return Column("category", torch.from_numpy(codes), name=name, distinct=words)


def _is_number(kind: pa.DataType) -> bool:
    """Tell whether a column of this type holds a tensor of numbers; other types hold codes."""
    whole = pa.types.is_integer(kind) and kind != pa.uint64()
    return whole or pa.types.is_floating(kind) or pa.types.is_boolean(kind)


def _is_plain(kind: pa.DataType) -> bool:
    return any(f(kind) for f in (pa.types.is_string, pa.types.is_large_string, pa.types.is_integer)) or (
        pa.types.is_floating(kind)
    )


def _family(kind: pa.DataType) -> str:
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return "number"
    return "text" if pa.types.is_string(kind) or pa.types.is_large_string(kind) else str(kind.id)


def union(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Merge records of one type, each row once, by their numbers."""
    whole = np.concatenate(parts)
    return whole[np.unique(whole[ROW], return_index=True)[1]]
