"""Convert CatBoost's statistics of categories and their combinations to tables that a graph can look up.

CatBoost calls them CTRs (Prokhorenkova et al., "CatBoost: unbiased boosting with categorical features", NeurIPS 2018);
its file has their counts, by a hash of the combination.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fastrec.errors import DataError
from fastrec.serve.forest._statistics import Statistic, Statistics, begun


def statistics_of(
    saved: Mapping[str, Any], numbers: Mapping[int, Any], cats: Mapping[int, int], hashes: np.ndarray
) -> list[Statistic]:
    """Convert the statistics of a model, in the order of their numbers.

    Args:
        saved: the model as JSON.
        numbers: number of a numeric feature → its description.
        cats: number of a categorical feature → its column.
        hashes: int32 ``[codes]``, of the codes of categories.

    Raises:
        DataError: a kind of statistics is unknown, or two combinations have one hash.
    """
    found = saved["features_info"].get("ctrs", [])
    if not found:
        return []
    by_elements: dict[str, list[int]] = {}
    for i, one in enumerate(found):
        by_elements.setdefault(json.dumps(one["elements"], sort_keys=True), []).append(i)
    elements = _Elements(numbers, cats)
    combinations = [elements.places(found[ones[0]]["elements"]) for ones in by_elements.values()]
    longest = max(map(len, combinations))
    keys, starts, unknown, values = [], [], [], []
    of, index = np.zeros(len(found), np.int64), np.zeros(len(found), np.int64)
    size = 0
    for i, ones in enumerate(by_elements.values()):
        own, table = _table([found[j] for j in ones], saved["ctr_data"])
        keys.append(own + np.uint64(begun(i, longest)))
        starts.append(size + np.arange(len(own)) * len(ones))
        unknown.append(size + len(own) * len(ones))
        values.append(table.ravel())
        size += table.size
        of[ones], index[ones] = i, np.arange(len(ones))
    # one table for all combinations, told apart by the hashes' starts
    hashed = np.concatenate(keys).astype(np.int64)
    if len(np.unique(hashed)) < len(hashed):
        remedy = "Train again with another max_ctr_complexity="
        raise DataError("two combinations of categories of CatBoost's trees have the same hash", remedy=remedy)
    every = np.array([[0] * (longest - len(c)) + c for c in elements.numbered(combinations)], np.int64)
    statistics = Statistics(
        # codes above the known ones get the hash of unknown categories in the models that CatBoost writes in Python
        np.append(hashes, 0x7FFFFFFF).astype(np.int64), tuple(elements.above), tuple(elements.cats),
        tuple(elements.exact), every, hashed, np.concatenate(starts), np.array(unknown), np.concatenate(values),
        of, index,
    )  # fmt: skip
    return [Statistic(statistics, i) for i in range(len(found))]


class _Elements:
    """The elements of all combinations, each once."""

    def __init__(self, numbers: Mapping[int, Any], cats: Mapping[int, int]) -> None:
        self.numbers, self.columns = numbers, cats
        self.above: list[tuple[int, float, bool]] = [(0, np.inf, False)]
        self.cats: list[int] = []
        self.exact: list[tuple[int, int]] = []

    def places(self, elements: Sequence[Mapping[str, Any]]) -> list[tuple[int, int]]:
        """Return the list of each element, and its place there."""
        return [self._place(element) for element in elements]

    def numbered(self, combinations: Sequence[Sequence[tuple[int, int]]]) -> list[list[int]]:
        """Convert places to numbers, after all combinations are known."""
        before = (0, len(self.above), len(self.above) + len(self.cats))
        return [[before[kind] + place for kind, place in places] for places in combinations]

    def _place(self, element: Mapping[str, Any]) -> tuple[int, int]:
        kind = element["combination_element"]
        if kind == "float_feature":
            feature = self.numbers[element["float_feature_index"]]
            missing = feature["nan_value_treatment"] == "AsTrue"
            return 0, _index(self.above, (feature["flat_feature_index"], element["border"], missing))
        cat = _index(self.cats, self.columns[element["cat_feature_index"]])
        if kind == "cat_feature_value":
            return 1, cat
        return 2, _index(self.exact, (cat, element["value"]))


def _index(known: list[Any], value: Any) -> int:
    """Return the place of a value in a list, appending it if necessary."""
    if value not in known:
        known.append(value)
    return known.index(value)


def _table(ones: Sequence[Mapping[str, Any]], tables: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Compute statistics of one combination: hashes of its rows, uint64, and float32 ``[rows + 1, statistics]``."""
    read = {one["identifier"]: _counts(tables[one["identifier"]]) for one in ones}
    keys = np.unique(np.concatenate([own for own, _ in read.values()]))
    columns = []
    for one in ones:
        own, counts = read[one["identifier"]]
        every = np.zeros((len(keys) + 1, counts.shape[1]))
        every[np.searchsorted(keys, own)] = counts
        columns.append(_values(one, every, tables[one["identifier"]]["counter_denominator"]))
    return keys, np.stack(columns, 1)


def _counts(table: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Read hashes and their counts, float64."""
    rows = np.array(table["hash_map"], dtype=object).reshape(-1, table["hash_stride"])
    keys = rows[:, 0].astype(np.uint64)
    there = keys != (1 << 64) - 1  # the key of an empty place
    return keys[there], rows[there, 1:].astype(np.float64)


def _values(one: Mapping[str, Any], counts: np.ndarray, denominator: int) -> np.ndarray:
    """Compute a statistic of every row, float32 as in CatBoost."""
    kind, border = one["ctr_type"], one["target_border_idx"]
    if kind == "Borders":
        good, total = counts[:, border + 1 :].sum(1), counts.sum(1)
    elif kind == "Buckets":
        good, total = counts[:, border], counts.sum(1)
    elif kind in ("Counter", "FeatureFreq"):
        good, total = counts[:, 0], np.float64(denominator)
    elif kind in ("BinarizedTargetMeanValue", "FloatTargetMeanValue"):
        good, total = counts[:, 0], counts[:, 1]
    else:
        raise DataError(f"CatBoost's statistic {kind!r} cannot be exported", remedy="Use another simple_ctr=")
    prior = [np.float32(one[f"prior_{part}"]) for part in ("numerator", "denomerator")]
    share = (good.astype(np.float32) + prior[0]) / (total.astype(np.float32) + prior[1])
    return (share + np.float32(one["shift"])) * np.float32(one["scale"])
