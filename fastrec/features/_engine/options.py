"""Checks of constructor arguments that several generators share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fastrec.errors import DataError
from fastrec.features._inputs import as_list, names_of
from fastrec.features.base import Feature
from fastrec.features.selectors import Selector


class OfColumns:
    """Generator that treats each of ``cols`` alike, and reads nothing else."""

    cols: str | Feature | Sequence[str | Feature]

    @property
    def sources(self) -> list[str | Feature]:
        return as_list(self.cols)

    @property
    def columns(self) -> list[str]:
        """Names of the treated columns, including those that other generators make."""
        return [n for c in as_list(self.cols) for n in names_of(c)]


class OfGroups(OfColumns):
    """Generator that treats each of ``cols`` alike within groups ``by``, which may have an ``order``."""

    by: str | Sequence[str] | None

    @property
    def sources(self) -> list[str | Feature]:
        return [*super().sources, *as_list(self.by), *as_list(getattr(self, "order", None))]


def ascending(numbers: Sequence[Any]) -> bool:
    values = [float(x) for x in numbers]
    return not any(map(math.isnan, values)) and values == sorted(set(values))


def check_scope(feature: Feature) -> None:
    if feature.scope not in ("train", "all"):
        raise DataError(f"{type(feature).__name__} has no scope {feature.scope!r}", remedy="Use 'train' or 'all'")


def is_open(cols: Any) -> bool:
    """Tell whether a selector among the columns has not been resolved."""
    return any(isinstance(c, Selector) for c in as_list(cols))


def check_columns_of(feature: Feature, option: str, columns: Sequence[str]) -> None:
    """Refuse an option by column that names another column.

    Args:
        feature: the generator.
        option: the argument's name; its value may be a mapping from column names.
        columns: the columns that it may name.
    """
    given = getattr(feature, option)
    odd = next((n for n in given if n not in columns), None) if isinstance(given, Mapping) else None
    if odd is not None:
        raise DataError(
            f"{type(feature).__name__}: {option} names a column that is not among its own",
            column=odd,
            remedy="Check the spelling, or add the column to cols",
        )
