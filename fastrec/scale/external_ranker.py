"""``fit_on_parts``: an ``XGBRanker`` of lists larger than memory, read part by part."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
import xgboost as xgb

from fastrec.errors import DataError
from fastrec.estimators import XGBRanker
from fastrec.estimators._tree_inputs import TreeInputs
from fastrec.estimators._xgb_calls import names_for_xgboost
from fastrec.scale.external_trees import TurnIterator, need_external_memory
from fastrec.table import Vocab, as_column
from fastrec.validate import Lists, whole_lists


def fit_on_parts(
    ranker: XGBRanker, parts: Sequence[Callable[[], Lists]], cache: str | Path, *, seed: int = 0
) -> XGBRanker:
    """Grow a ranker's trees from lists read a part at a time, by XGBoost's external memory.

    The trees are those of ``ranker.fit`` on all lists, but for the bins of numbers, which are found part by part.

    Args:
        ranker: its settings are used; it is fitted in place, and predicts, saves and loads as ever.
        parts: functions that read some lists each, with labels; all have the same columns. Each is called three times.
        cache: a folder for XGBoost's files: made if need be; they are gone at the end.
        seed: of everything random.

    Returns:
        The ranker.

    Raises:
        DataError: no list teaches a ranking, or the ranker is to stop early.
    """
    need_external_memory()
    if ranker.early_stopping_rounds is not None or ranker.margin:
        raise DataError(
            f"{ranker.name} stops early, or starts from a column, which lists in parts do not allow",
            remedy="Give rounds= alone",
        )
    inputs = _inputs(ranker, parts)
    params = ranker.params_in_full(seed)
    Path(cache).mkdir(parents=True, exist_ok=True)

    def batches() -> Iterator[dict[str, Any]]:
        before = 0
        for lists in _teaching(parts):
            made = _batch(ranker, lists, inputs, before)
            before += int(made.pop("lists"))
            yield made

    if next(batches(), None) is None:
        raise DataError(
            f"{ranker.name} has no list to learn from",
            remedy="Give lists of two candidates or more, one of them relevant",
        )
    rows = TurnIterator(batches, str(Path(cache) / ranker.name))
    data = xgb.ExtMemQuantileDMatrix(rows, max_bin=params["max_bin"], nthread=params["nthread"])
    ranker.adopt(xgb.train(params, data, ranker.rounds), inputs.names, inputs.vocabs)
    return ranker


def _inputs(ranker: XGBRanker, parts: Sequence[Callable[[], Lists]]) -> TreeInputs:
    """Return the columns, with the codes of the values that categories have in any part."""
    values: dict[str, list[pa.Array]] = {}
    names: list[str] = []
    for lists in _teaching(parts):
        own = TreeInputs.fit(lists, ranker.columns)
        names = own.names
        for name in own.vocabs:
            values.setdefault(name, []).append(lists.table[name].coded().keys.columns[0])
    vocabs = {n: Vocab.fit(as_column(_distinct(arrays), name=n)) for n, arrays in values.items()}
    return TreeInputs(names, vocabs)


def _distinct(arrays: list[pa.Array]) -> pa.Array:
    kind = next((a.type for a in arrays if not pa.types.is_null(a.type)), pa.string())
    return pa.chunked_array([a.cast(kind) for a in arrays], kind).unique()


def _teaching(parts: Sequence[Callable[[], Lists]]) -> Iterator[Lists]:
    for read in parts:
        lists = read()
        try:
            yield whole_lists(lists)
        except DataError:  # of this part no list teaches anything; another one's may
            if lists.label is None:
                raise


def _batch(ranker: XGBRanker, lists: Lists, inputs: TreeInputs, before: int) -> dict[str, Any]:
    _, codes, sizes = torch.unique_consecutive(lists.groups, return_inverse=True, return_counts=True)
    assert lists.label is not None
    made = {"data": inputs.matrix(lists.table).numpy(), "label": lists.label.float().numpy(), "lists": len(sizes)}
    if ranker.ranks:
        made["qid"] = (codes + before).numpy()
    if lists.weight is not None:
        first = torch.cumsum(sizes, 0) - sizes
        made["weight"] = (lists.weight[first] if ranker.ranks else lists.weight).double().numpy()
    return {**made, "feature_names": names_for_xgboost(inputs.names)}
