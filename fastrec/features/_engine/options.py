"""What several generators ask of their constructors' arguments."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fastrec.errors import DataError
from fastrec.features._inputs import as_list, names_of
from fastrec.features.base import Feature
from fastrec.features.selectors import Selector


class OfColumns:
    """A generator that treats each of ``cols`` alike, and reads nothing else."""

    cols: str | Feature | Sequence[str | Feature]

    @property
    def sources(self) -> list[str | Feature]:
        """See ``Feature.sources``."""
        return as_list(self.cols)

    @property
    def columns(self) -> list[str]:
        """The names of the columns that are treated, those that other generators make among them."""
        return [n for c in as_list(self.cols) for n in names_of(c)]


class OfGroups(OfColumns):
    """A generator that treats each of ``cols`` alike within groups ``by``, which may have an ``order``."""

    by: str | Sequence[str] | None

    @property
    def sources(self) -> list[str | Feature]:
        """See ``Feature.sources``."""
        return [*super().sources, *as_list(self.by), *as_list(getattr(self, "order", None))]


def ascending(numbers: Sequence[Any]) -> bool:
    """Whether numbers ascend, each once, none of them NaN."""
    values = [float(x) for x in numbers]
    return not any(map(math.isnan, values)) and values == sorted(set(values))


def check_scope(feature: Feature) -> None:
    """Refuse a scope that there is not.

    Raises:
        DataError: naming the generator.
    """
    if feature.scope not in ("train", "all"):
        raise DataError(f"{type(feature).__name__} has no scope {feature.scope!r}", remedy="Use 'train' or 'all'")


def is_open(cols: Any) -> bool:
    """Whether a selector among the columns has still to choose: their names are not known yet."""
    return any(isinstance(c, Selector) for c in as_list(cols))


def check_columns_of(feature: Feature, option: str, columns: Sequence[str]) -> None:
    """Refuse an option given by column that names another column.

    Args:
        feature: the generator.
        option: the argument's name; its value may be a mapping from column names.
        columns: the columns that it may name.

    Raises:
        DataError: naming the generator and the column.
    """
    given = getattr(feature, option)
    odd = next((n for n in given if n not in columns), None) if isinstance(given, Mapping) else None
    if odd is not None:
        raise DataError(
            f"{type(feature).__name__}: {option} names a column that is not among its own",
            column=odd,
            remedy="Check the spelling, or add the column to cols",
        )
