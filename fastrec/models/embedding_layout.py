"""How wide embedding tables are, and where each lies in the parameters that hold them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fastrec._core import limits
from fastrec.errors import DataError, MissingColumnError

Grads = Literal["dense", "rows"]
KINDS = ("host", "cached", "sharded")  # of tables whose rows are not all on the device


def emb_sz_rule(n: int, *, cap: int = 600) -> int:
    """Return fastai's width of a table of ``n`` rows: ``min(cap, round(1.6 * n ** 0.56))``, at least 1."""
    return max(1, min(cap, round(1.6 * n**0.56)))


def embedding_sizes(
    classes: Mapping[str, Sequence[Any]],
    names: Sequence[str],
    *,
    widths: Mapping[str, int] | None = None,
    cap: int = 600,
) -> list[tuple[int, int]]:
    """Return ``(rows, width)`` of every column's table.

    Args:
        classes: column name to its categories (``dls.classes``), the one for missing included.
        names: the categorical columns, in the order of the batch.
        widths: column name to the width it must have; the other columns follow ``emb_sz_rule``.
        cap: the largest width the rule gives.
    """
    widths = dict(widths or {})
    if unknown := [n for n in widths if n not in names]:
        problem = f"a width was given for {unknown[0]!r}, which is not a categorical column"
        raise MissingColumnError(problem, column=unknown[0], remedy=f"The categorical columns are {list(names)}")
    rows = [len(classes[n]) for n in names]
    return [(r, widths.get(n, emb_sz_rule(r, cap=cap))) for n, r in zip(names, rows, strict=True)]


def kind_of(group: str) -> str | None:
    """Return where a group of tables lies, one of ``KINDS``; None: on the device."""
    return next((kind for kind in KINDS if group.endswith(f"_{kind}_rows")), None)


@dataclass(frozen=True)
class TableSlice:
    """Where one column's table lies: rows ``start:stop`` of the parameter ``weights.<group>``."""

    name: str
    group: str
    start: int
    stop: int
    width: int


def check_sizes(emb_szs: Sequence[tuple[int, int]], names: Sequence[str]) -> None:
    """Refuse sizes below 1, and names that repeat or are not as many as the sizes."""
    if len(names) != len(emb_szs) or len(set(names)) != len(names):
        raise DataError(f"{len(emb_szs)} tables of the names {list(names)}", remedy="Name every column once")
    for name, (rows, width) in zip(names, emb_szs, strict=True):
        if rows < 1 or width < 1:
            raise DataError(f"a table of {rows} rows and width {width}", column=name, remedy="Both must be ≥ 1")


def padded(width: int, *, pad: bool = True) -> int:
    """Return a table's stored width: with ``pad`` rounded up to a multiple of 4 floats."""
    return -(-width // limits.ROW_ALIGN) * limits.ROW_ALIGN if pad else width


def lay_out(
    emb_szs: Sequence[tuple[int, int]],
    names: Sequence[str],
    *,
    grads: Grads = "dense",
    kinds: Mapping[str, str] | None = None,
) -> tuple[TableSlice, ...]:
    """Lay tables out: those of one width, one kind of gradient and one place (``KINDS``) share a parameter."""
    filled: dict[str, int] = {}
    slices = []
    for name, (rows, width) in zip(names, emb_szs, strict=True):
        kind = f"_{kinds[name]}" if kinds and name in kinds else ""
        group = f"w{width}{kind}" + ("_rows" if kind or (grads == "rows" and rows >= limits.SPARSE_FROM) else "")
        start = filled.get(group, 0)
        filled[group] = start + rows
        slices.append(TableSlice(name, group, start, start + rows, width))
    return tuple(slices)
