"""Saved weights of tables that lay elsewhere, as the parameters that hold them here."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fastrec.errors import DataError
from fastrec.models.embedding_layout import KINDS, TableSlice, lay_out

__all__ = ["kind_codes", "regroup"]


def kind_codes(slices: Sequence[TableSlice]) -> Tensor:
    """Return the places of tables, as saved beside weights: uint8 ``[tables]``."""
    found = [next((i for i, kind in enumerate(KINDS) if s.group.endswith(f"_{kind}_rows")), 255) for s in slices]
    return torch.tensor(found, dtype=torch.uint8)


def regroup(saved: MutableMapping[str, Any], prefix: str, slices: Sequence[TableSlice], share: Tensor | None) -> bool:
    """Rearrange saved tables to this layout; if that fails, change nothing, and loading raises the error.

    Args:
        share: which rank's rows of how many ranks' are here; None: the tables are not shared.

    Returns:
        Whether tables that ranks share are one rank's own rows.
    """
    codes, was = saved.pop(f"{prefix}where", None), saved.pop(f"{prefix}share", None)
    if codes is not None and (codes == _SHARDED).any():
        same = share is not None and was is not None and torch.equal(was.cpu(), share)
        if not same or not torch.equal(codes.cpu(), kind_codes(slices)):
            raise DataError(
                "these are one rank's rows of embedding tables that ranks share",
                remedy="Make the model with the same placement, or save what embeds.table(name) gives on all ranks",
            )
        return True
    here = {s.group: s.stop for s in slices}  # the last slice of a group ends it
    weights = {g.removeprefix(f"{prefix}weights."): w for g, w in saved.items() if g.startswith(f"{prefix}weights.")}
    if {g: len(w) for g, w in weights.items()} == here:
        return False
    sizes, names = [(s.stop - s.start, s.width) for s in slices], [s.name for s in slices]
    kinds = {} if codes is None else {n: KINDS[c] for n, c in zip(names, codes.tolist(), strict=False) if c < 255}
    for grads in ("rows", "dense"):
        there = lay_out(sizes, names, pad=False, grads=grads, kinds=kinds)
        if {s.group: (s.stop, s.width) for s in there} == {g: tuple(w.shape) for g, w in weights.items()}:
            break
    else:
        return False
    parts: dict[str, list[Tensor]] = {}
    for s, t in zip(slices, there, strict=True):
        parts.setdefault(s.group, []).append(weights[t.group][t.start : t.stop])
    for group in weights:
        del saved[f"{prefix}weights.{group}"]
    for group, tables in parts.items():
        saved[f"{prefix}weights.{group}"] = tables[0] if len(tables) == 1 else torch.cat(tables)
    return False


_SHARDED = KINDS.index("sharded")
