"""Keys of rows as bytes: the same for equal values, whatever type a frame gave them."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
import pyarrow as pa

from fastrec.features._engine.keyed import key_text
from fastrec.table import Table


def row_keys(
    table: Table, names: Sequence[str], prefix: bytes, memory: dict[str, list[bytes | None]] | None = None
) -> list[bytes | None]:
    """Build each row's key; None if a part of it is missing.

    Args:
        table: the rows.
        names: the key columns; none: all rows have one key.
        prefix: what the keys begin with.
        memory: the digests of these rows' columns that were made before, and will be asked for again.

    Returns:
        ``[n]``: the prefix and, for each column, 16 bytes of a digest of the value (two of a billion billion values
        have the same one with a chance of one in a billion).
    """
    if not names:
        return [prefix] * len(table)
    made = {} if memory is None else memory
    made |= {name: _digests(table, name) for name in names if name not in made}
    parts = [made[name] for name in names]
    if len(parts) == 1:
        return [None if part is None else prefix + part for part in parts[0]]
    return [None if None in row else prefix + b"".join(row) for row in zip(*parts)]


def _digests(table: Table, name: str) -> list[bytes | None]:
    coded = table[name].coded()
    codes = coded.codes.tolist()
    used = sorted(set(codes) - {0})
    values = coded.keys.columns[0].take(pa.array([c - 1 for c in used], pa.int64()))
    is_text = pa.types.is_string(values.type) or pa.types.is_large_string(values.type)
    texts = (t.encode("utf-8", "surrogatepass") for t in (values if is_text else key_text(values)).to_pylist())
    made = {c: blake2b(t, digest_size=16).digest() for c, t in zip(used, texts, strict=True)}
    return [made.get(c) for c in codes]


def by_key(keys: Sequence[bytes | None], records: np.ndarray) -> dict[bytes, bytes]:
    """Group records by key, as bytes."""
    size = records.dtype.itemsize
    if len(keys) == 1:
        return {} if keys[0] is None else {keys[0]: records.tobytes()}
    places: dict[bytes, int] = {}
    codes = np.array([-1 if k is None else places.setdefault(k, len(places)) for k in keys])
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes + 1, minlength=len(places) + 1))
    data = records[order].tobytes()
    return {k: data[ends[i] * size : ends[i + 1] * size] for k, i in places.items()}
