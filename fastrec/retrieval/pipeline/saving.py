"""A recommender on disk: its stages as plain state, its ranker's files beside them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastrec._core.atomic import atomic_folder, check_replaceable
from fastrec._core.leftovers import recover
from fastrec.errors import DataError, MissingFileError, UnreadableFileError
from fastrec.estimators import Estimator
from fastrec.retrieval._saved import part_of, state_of
from fastrec.retrieval.candidates import Candidates
from fastrec.table import load_state, save_state

if TYPE_CHECKING:
    from fastrec.retrieval.pipeline.recommender import Recommender

__all__ = ["ABOUT", "RANKER", "load_recommender", "save_recommender"]

ABOUT, RANKER, _STAGES = "recommender.json", "ranker", "stages"


def save_recommender(shop: Recommender, folder: str | Path) -> None:
    """See ``Recommender.save``."""
    check_replaceable(folder, ABOUT)
    state = {
        "retriever": shop.retriever.to_state(),
        "filters": [state_of(f) for f in shop.filters],
        "order": [state_of(o) for o in shop.order],
        "features": None if shop.features is None else state_of(shop.features),
        "form": shop.form,
    }
    kind = _kind_of(shop.ranker)
    with atomic_folder(folder) as part:
        save_state(part / _STAGES, state)
        if kind == "estimator":
            shop.ranker.save(part / RANKER)
        elif kind == "run":
            shutil.copytree(shop.ranker.folder, part / RANKER)
        about = {"format": 1, "ranker": kind, "items": len(shop.items) - 1}
        (part / ABOUT).write_text(json.dumps(about, indent=1), encoding="utf-8")


def load_recommender(cls: Any, folder: str | Path, ranker: Any) -> Any:
    """See ``Recommender.load``."""
    folder = Path(folder)
    recover(folder)
    if not (folder / ABOUT).is_file():
        raise MissingFileError("there is no such file", file=folder / ABOUT, remedy="Give a saved recommender")
    try:
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        if about["format"] != 1:
            raise ValueError(f"its form is {about['format']}, not {1}")
        kind = about["ranker"]
        state = load_state(folder / _STAGES)
        parts = {n: [part_of(p) for p in state[n]] for n in ("filters", "order")}
        features = None if state["features"] is None else part_of(state["features"])
        retriever, form = Candidates.from_state(state["retriever"]), state["form"]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, DataError):
            raise
        raise UnreadableFileError(
            f"the saved recommender cannot be read ({error!r})", file=folder, remedy="Save it again"
        ) from error
    if kind == "estimator":
        ranker = Estimator.load(folder / RANKER)
    elif kind is not None and ranker is None:
        raise DataError(
            f"its ranker is a {kind}, which this room cannot open", file=folder / RANKER,
            remedy="Give it: Recommender.load(folder, ranker=fastrec.competition.SavedRun(folder / 'ranker'))",
        )  # fmt: skip
    made = cls(retriever, filters=parts["filters"], ranker=ranker, features=features, order=parts["order"])
    made.form = form
    return made


def _kind_of(ranker: Any) -> str | None:
    """``estimator``, ``run`` or nothing.

    Raises:
        DataError: it is something else.
    """
    if ranker is None:
        return None
    if isinstance(ranker, Estimator):
        return "estimator"
    folder = getattr(ranker, "folder", None)
    if isinstance(folder, Path) and (folder / "config.json").is_file():
        return "run"
    raise DataError(
        f"a ranker of class {type(ranker).__name__} cannot be saved", remedy="Use an estimator, or a run directory"
    )
