"""Which columns a recipe's models learn from, where it does not say."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fastrec.competition.data import CompetitionData
from fastrec.competition.recipe import Competition
from fastrec.errors import DataError
from fastrec.table import Column
from fastrec.validate import Target

_INDEX = "__index_level_"  # so begin the columns of Parquet files in which pandas keeps a frame's index


def choose_columns(
    recipe: Competition, found: CompetitionData, target: Target | None, made: Sequence[str]
) -> tuple[list[str], list[str]]:
    """The categories and the numbers that models see.

    Args:
        recipe: says them, or that its files' own columns are to be taken.
        found: the rows: a column that the test rows lack is not taken by itself.
        target: what is predicted; None in a ranking task.
        made: the columns that the features make.

    Returns:
        Names of categories, names of numbers: those of the files first, then features.

    Raises:
        DataError: no column is left to learn from.
    """
    own = _own_columns(recipe, found, target)
    cats = own[0] if recipe.categories is None else list(recipe.categories)
    if recipe.plain is not None:
        plain = list(recipe.plain)
    else:
        plain = [] if target is None else own[1]
    conts = [n for n in dict.fromkeys([*plain, *made]) if n not in set(cats)]
    if not cats and not conts:
        raise DataError(
            f"{recipe.name}: no column is left to learn from", remedy="Name columns in the recipe, or make features"
        )
    return cats, conts


def _own_columns(recipe: Competition, found: CompetitionData, target: Target | None) -> tuple[list[str], list[str]]:
    """Categories and numbers among the columns that training and test rows share."""
    apart = {*recipe.ids, *recipe.drop, recipe.weight, recipe.fold_key, *([] if target is None else target.names)}
    apart |= set() if recipe.events is None else {recipe.events.session}
    cats, conts = [], []
    for name in found.train.names:
        if name in apart or name.startswith(_INDEX) or (found.test is not None and name not in found.test):
            continue
        column = found.train[name].plain()
        if column.kind == "category" or _is_flag(column):
            cats.append(name)
        elif column.kind == "number":
            conts.append(name)
    return cats, conts


def _is_flag(column: Column) -> bool:
    return column.kind == "number" and column.values.dtype == torch.bool
