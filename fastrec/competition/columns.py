"""Which columns a recipe's models learn from, where it does not say."""

from __future__ import annotations

from collections.abc import Collection, Sequence

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
    """Choose the categories and the numbers that models see.

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
    plain = own[1] if recipe.plain is None else list(recipe.plain)
    conts = [n for n in dict.fromkeys([*plain, *made]) if n not in set(cats)]
    if not cats and not conts:
        raise DataError(
            f"{recipe.name}: no column is left to learn from", remedy="Name columns in the recipe, or make features"
        )
    return cats, conts


def _own_columns(recipe: Competition, found: CompetitionData, target: Target | None) -> tuple[list[str], list[str]]:
    """Return categories and numbers among the columns that training and test rows share."""
    apart = {*_roles(recipe, target), recipe.item} if target is None else _roles(recipe, target)
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


def _roles(recipe: Competition, target: Target | None) -> set[str | None]:
    """Return the columns that the recipe uses for something else than learning."""
    if target is not None:
        return {*recipe.ids, *recipe.drop, recipe.weight, recipe.fold_key, *target.names}
    session = None if recipe.events is None else recipe.events.session
    own = {recipe.list_column, recipe.label, recipe.counted, session}
    return {*recipe.ids, *recipe.drop, recipe.weight, recipe.fold_key, *own}


def not_learned_from(
    recipe: Competition, found: CompetitionData, target: Target | None, used: Collection[str]
) -> list[str]:
    """Return the training rows' unused columns, except those that the recipe has another use for.

    Args:
        recipe, found, target: as for ``choose_columns``.
        used: columns that models see, or that features are made from.
    """
    other = {*used, *_roles(recipe, target)}
    return [n for n in found.train.names if n not in other and not n.startswith(_INDEX)]


def _is_flag(column: Column) -> bool:
    return column.kind == "number" and column.values.dtype == torch.bool
