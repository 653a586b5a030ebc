"""What ``config.json`` says of a recipe, so that ``saved_recipe.py`` can carry it out again without its code."""

from __future__ import annotations

from typing import Any

from fastrec.competition.recipe import Competition

RECORDED = ("fold_key", "time", "weight", "counted", "touched")  # attributes of a recipe that are kept as they are


def about_recipe(recipe: Competition) -> dict[str, Any]:
    """Those attributes, and the metrics that are counted also."""
    also = [m for m in recipe.also if isinstance(m, str)]
    return {**{n: getattr(recipe, n) for n in RECORDED}, "also": also}
