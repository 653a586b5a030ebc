"""Mistakes in a recipe that are refused before its data are read."""

from __future__ import annotations

import difflib
import re
import sys
import traceback
from pathlib import Path
from typing import Any

from fastrec.competition.recipe import Competition
from fastrec.errors import DataError

_PACKAGE = str(Path(__file__).parents[1])
_WRONG_CALL = re.compile(r"\(\) (got an? |got some |missing |takes )")


def check_recipe(recipe: Any, *, bs: int | None) -> None:
    """Refuse misspelt attributes, and calls of generators or estimators with arguments that they do not take.

    Raises:
        DataError: naming the recipe's file, and the attribute or the call.
    """
    if not isinstance(recipe, Competition):
        remedy = f"Write {recipe.__name__}()" if isinstance(recipe, type) else "Give a Competition, or its folder"
        raise DataError(f"{recipe!r} is no recipe", remedy=remedy)
    kinds = type(recipe).__mro__
    base = next(c for c in kinds if c.__module__.partition(".")[0] == "fastrec")
    if base is type(recipe):  # the library's own recipes read models and features from the disk
        return
    file = getattr(sys.modules.get(type(recipe).__module__), "__file__", None)
    if not hasattr(recipe, "name"):
        raise DataError(f"{type(recipe).__name__} has no name", file=file, remedy="Write name = 'the competition'")
    own = {n for c in kinds if not issubclass(base, c) for n in vars(c)} | set(vars(recipe))
    known = {n for n in dir(base) if not n.startswith("_")}
    for name in sorted(n for n in own if n not in known and not n.startswith("_") and n != "name"):
        # Not of names that the recipe has too: `model` may be a helper of `models`.
        near = [n for n in difflib.get_close_matches(name, known, n=3, cutoff=0.8) if n not in own]
        if near:
            raise DataError(
                f"{type(recipe).__name__} has the attribute {name}, which no recipe knows", file=file,
                remedy=f"Write {near[0]}, or _{name} for a helper",
            )  # fmt: skip
    for call in (recipe.features, lambda: recipe.models(bs=bs)):
        # Other errors may come from data that are not read yet: they are raised where the result is needed.
        try:
            call()
        except TypeError as error:
            frames = traceback.extract_tb(error.__traceback__)
            at = next((f for f in reversed(frames) if not f.filename.startswith((_PACKAGE, "<"))), None)
            if at is not None and _WRONG_CALL.search(str(error)):
                problem = f"{recipe.name}: line {at.lineno}: {error}"
                raise DataError(problem, file=at.filename, remedy="Mend the call") from error
        except Exception:
            continue
