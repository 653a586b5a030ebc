"""What ``config.json`` says of a recipe, so that ``saved_recipe.py`` can carry it out again without its code."""

from __future__ import annotations

from typing import Any

import pandas as pd

from fastrec.competition.recipe import Competition

RECORDED = ("fold_key", "time", "weight", "counted", "touched")  # attributes of a recipe that are kept as they are


def about_recipe(recipe: Competition) -> dict[str, Any]:
    """Those attributes, and the metrics that are counted also."""
    also = [m for m in recipe.also if isinstance(m, str)]
    gap = recipe.time_gap
    gap = gap if isinstance(gap, str | int | float) else str(pd.Timedelta(gap))
    return {**{n: getattr(recipe, n) for n in RECORDED}, "time_gap": gap, "also": also}
