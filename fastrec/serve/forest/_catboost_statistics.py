"""What CatBoost knows of categories and their combinations, as tables that a graph can look up.

CatBoost calls them CTRs (Prokhorenkova et al., "CatBoost: unbiased boosting with categorical features", NeurIPS 2018);
the file that it saves has their counts, by a hash of the combination.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fastrec.errors import DataError
from fastrec.serve.forest._columns import Statistic, Statistics

_MULTIPLIER = 0x4906BA494954CB65  # of CatBoost's hashes
_NONE = (1 << 64) - 1  # the key of an empty place


def signed(number: int, bits: int = 32) -> int:
    """The lowest bits of a number as a signed one."""
    low = number & ((1 << bits) - 1)
    return low - (1 << bits) * (low >> (bits - 1))


def statistics_of(
    said: Mapping[str, Any], numbers: Mapping[int, Any], cats: Mapping[int, int], hashes: Mapping[int, int]
) -> list[Statistic]:
    """The statistics of a model in the order in which it numbers them.

    Args:
        said: the model as JSON.
        numbers: number of a numeric feature → what is said of it.
        cats: number of a categorical feature → its column.
        hashes: code of a category → its hash.
    """
    found = said["features_info"].get("ctrs", [])
    tables: dict[str, list[tuple[int, Mapping[str, Any]]]] = {}
    for i, one in enumerate(found):
        tables.setdefault(one["identifier"], []).append((i, one))
    result: list[Any] = [None] * len(found)
    for number, (identifier, ones) in enumerate(tables.items()):
        codes, above = _elements(json.loads(identifier)["identifier"], numbers, cats, hashes)
        data = said["ctr_data"][identifier]
        stride = data["hash_stride"]
        rows = [data["hash_map"][i : i + stride] for i in range(0, len(data["hash_map"]), stride)]
        rows = [row for row in rows if int(row[0]) != _NONE]
        keys = np.array([signed(int(row[0]), 64) for row in rows], np.int64)
        counts = np.array([row[1:] for row in rows] + [[0] * (stride - 1)], np.float32)
        values = np.stack([_values(one, counts, data) for _, one in ones], 1)
        of = Statistics(codes, above, keys, values)
        for index, (i, _) in enumerate(ones):
            result[i] = Statistic(of, number, index)
    return result


def _elements(
    elements: Sequence[Mapping[str, Any]],
    numbers: Mapping[int, Any],
    cats: Mapping[int, int],
    hashes: Mapping[int, int],
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """What each element of a combination adds to its hash.

    ``hash = m · (hash + m · element)`` for one element after the other, so that each counts for itself.
    """
    codes, above = [], []
    for i, element in enumerate(elements):
        factor = pow(_MULTIPLIER, len(elements) - i + 1, 1 << 64)
        kind = element["combination_element"]
        if kind == "float_feature":
            feature = numbers[element["float_feature_index"]]
            missing = feature["nan_value_treatment"] == "AsTrue"
            above.append((feature["flat_feature_index"], element["border"], signed(factor, 64), missing))
            continue
        exact = element["value"] if kind == "cat_feature_exact_value" else None
        adds = np.zeros(1 + max(hashes, default=0), np.int64)
        for code, own in hashes.items():
            adds[code] = signed(factor * (own if exact is None else own == exact), 64)
        codes.append((cats[element["cat_feature_index"]], adds))
    return tuple(codes), tuple(above)


def _values(one: Mapping[str, Any], counts: np.ndarray, data: Mapping[str, Any]) -> np.ndarray:
    """A statistic of every combination and, last, of unknown ones: float32 as CatBoost has it."""
    kind, border = one["ctr_type"], one["target_border_idx"]
    if kind == "Borders":
        good, total = counts[:, border + 1 :].sum(1), counts.sum(1)
    elif kind == "Buckets":
        good, total = counts[:, border], counts.sum(1)
    elif kind in ("Counter", "FeatureFreq"):
        good, total = counts[:, 0], np.float32(data["counter_denominator"])
    elif kind in ("BinarizedTargetMeanValue", "FloatTargetMeanValue"):
        good, total = counts[:, 0], counts[:, 1]
    else:
        raise DataError(f"CatBoost's statistic {kind!r} cannot be exported", remedy="Use another simple_ctr=")
    prior = [np.float32(one[f"prior_{part}"]) for part in ("numerator", "denomerator")]
    return ((good + prior[0]) / (total + prior[1]) + np.float32(one["shift"])) * np.float32(one["scale"])
