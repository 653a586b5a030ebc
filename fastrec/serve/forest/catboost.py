"""Convert CatBoost's trees, from its JSON format."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from fastrec.errors import DataError
from fastrec.serve.forest.forest import CategorySet, Derived, Forest, Link, Statistic, Statistics, Tree, begun, grow

# Convert CatBoost's statistics of categories and their combinations to tables that a graph can look up.
#
# CatBoost calls them CTRs (Prokhorenkova et al., "CatBoost: unbiased boosting with categorical features", NeurIPS
# 2018); its file has their counts, by a hash of the combination.


def statistics_of(
    saved: Mapping[str, Any], numbers: Mapping[int, Any], cats: Mapping[int, int], hashes: np.ndarray
) -> list[Statistic]:
    """Convert the statistics of a model, in the order of their numbers.

    ``numbers`` and ``cats`` have the features by their number (of a category: its column), ``hashes`` those of its
    codes, int32 ``[codes]``. Unknown kinds are refused, and two combinations with one hash.
    """
    found = saved["features_info"].get("ctrs", [])
    if not found:
        return []
    by_elements: dict[str, list[int]] = {}
    for i, one in enumerate(found):
        by_elements.setdefault(json.dumps(one["elements"], sort_keys=True), []).append(i)
    # elements of all combinations, each once: numbers above borders (the first never is), categories, single codes
    known: tuple[list[Any], list[Any], list[Any]] = ([(0, np.inf, False)], [], [])

    def place(element: Mapping[str, Any]) -> tuple[int, int]:
        kind = element["combination_element"]
        if kind == "float_feature":
            feature = numbers[element["float_feature_index"]]
            missing = feature["nan_value_treatment"] == "AsTrue"
            return 0, _index(known[0], (feature["flat_feature_index"], element["border"], missing))
        cat = _index(known[1], cats[element["cat_feature_index"]])
        return (1, cat) if kind == "cat_feature_value" else (2, _index(known[2], (cat, element["value"])))

    combinations = [[place(e) for e in found[ones[0]]["elements"]] for ones in by_elements.values()]
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
    before = (0, len(known[0]), len(known[0]) + len(known[1]))
    filled = [[0] * (longest - len(c)) + [before[kind] + at for kind, at in c] for c in combinations]
    statistics = Statistics(
        # codes above the known ones get the hash of unknown categories in the models that CatBoost writes in Python
        np.append(hashes, 0x7FFFFFFF).astype(np.int64), *map(tuple, known), np.array(filled, np.int64), hashed,
        np.concatenate(starts), np.array(unknown), np.concatenate(values), of, index,
    )  # fmt: skip
    return [Statistic(statistics, i) for i in range(len(found))]


def _index(known: list[Any], value: Any) -> int:
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
    rows = np.array(table["hash_map"], dtype=object).reshape(-1, table["hash_stride"])
    keys = rows[:, 0].astype(np.uint64)
    there = keys != (1 << 64) - 1  # the key of an empty place
    return keys[there], rows[there, 1:].astype(np.float64)


def _values(one: Mapping[str, Any], counts: np.ndarray, denominator: int) -> np.ndarray:
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


# CatBoost's hashes of categories that are codes: the lower half of CityHash64 of a code's digits.

_K2, _K3, _MIX = (np.uint64(k) for k in (0x9AE16A3B2F90404F, 0xC949D7C7509E6557, 0x9DDFEA08EB382D69))


def code_hashes(n: int) -> np.ndarray:
    """Compute hashes of the codes 0 to n - 1, at most 10^8: int32 ``[n]``.

    Version 1.0 of CityHash (Pike and Alakuijala, https://github.com/google/cityhash), of texts of up to 8 bytes.
    """
    lengths = [(0, 10), *((10**i, 10 ** (i + 1)) for i in range(1, 8))]
    hashes = [_of_length(np.arange(first, min(end, n))) for first, end in lengths if first < n]
    return np.concatenate([np.zeros(0, np.uint64), *hashes]).astype(np.uint32).view(np.int32)


def _of_length(codes: np.ndarray) -> np.ndarray:
    """Compute CityHash64 of codes with the same number of digits: uint64."""
    length = len(str(codes[0]))
    digits = [np.uint64(ord("0")) + (codes // 10**i % 10).astype(np.uint64) for i in reversed(range(length))]
    if length < 4:
        y = digits[0] + (digits[length // 2] << np.uint64(8))
        z = np.uint64(length) + (digits[-1] << np.uint64(2))
        return _shifted(y * _K2 ^ z * _K3) * _K2
    head, tail = (sum(d << np.uint64(8 * i) for i, d in enumerate(part)) for part in (digits[:4], digits[-4:]))
    low = np.uint64(length) + (head << np.uint64(3))
    return _shifted((tail ^ _shifted((low ^ tail) * _MIX)) * _MIX) * _MIX


def _shifted(x: np.ndarray) -> np.ndarray:
    return x ^ (x >> np.uint64(47))


_LINKS: dict[str, Link] = {
    **dict.fromkeys(("Logloss", "CrossEntropy", "Focal", "MultiClassOneVsAll"), "logistic"),
    "MultiClass": "softmax",
    **dict.fromkeys(("Poisson", "Tweedie"), "exp"),
}


def forest_of_catboost(model: Any, n_codes: Mapping[int, int] | None = None) -> Forest:
    """Convert the trees of a CatBoost model; ``n_codes``: column → number of codes of a category (NaN: code 0)."""
    import catboost

    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.json"
        try:
            model.save_model(str(path), format="json")
        except catboost.CatBoostError as error:
            remedy = "Train on numbers and categories, not on text or embeddings"
            raise DataError(f"CatBoost's trees cannot be exported: {error}", remedy=remedy) from error
        saved = json.loads(path.read_text(encoding="utf-8"))
    features = saved["features_info"]
    if features.get("categorical_features") and not n_codes:
        raise DataError("CatBoost's trees read categories whose codes are not given", remedy="Give n_codes=")
    kinds = ("float_features", "categorical_features")
    columns = 1 + max(f["flat_feature_index"] for kind in kinds for f in features.get(kind, ()))
    scale, base = saved["scale_and_bias"]
    base = np.atleast_1d(np.asarray(base, float))  # a number if there is one target
    splits = _Splits(saved, code_hashes(max((n_codes or {}).values(), default=0)))
    shape, of_saved = (_oblivious, "oblivious_trees") if "oblivious_trees" in saved else (_of_any_shape, "trees")
    trees = [t for tree in saved[of_saved] for t in _trees(*shape(tree, splits, len(base)), scale)]
    loss = saved["model_info"].get("params", {}).get("loss_function", {}).get("type", "")
    return grow(trees, columns, base, link=_LINKS.get(loss, "identity"), rule="le", dtype="float64")


class _Splits:
    """CatBoost's splits: a column, a threshold, the side of NaN, and the derived column if it is one."""

    def __init__(self, saved: Mapping[str, Any], hashes: np.ndarray) -> None:
        features = saved["features_info"]
        self.numbers = {f["feature_index"]: f for f in features.get("float_features", ())}
        self.cats = {f["feature_index"]: f["flat_feature_index"] for f in features.get("categorical_features", ())}
        self.hashes = hashes
        self.statistics = statistics_of(saved, self.numbers, self.cats, self.hashes)
        # splits are numbered: those by numbers, by single categories, by statistics
        # "split_index" counts them in this order
        before = sum(len(f["borders"]) for f in features.get("float_features", ()))
        self.before = before + sum(len(f.get("values", ())) for f in features.get("categorical_features", ()))
        self.ends = np.cumsum([len(c["borders"]) for c in features.get("ctrs", ())])

    def of(self, split: Mapping[str, Any]) -> tuple[int, float, bool, Derived | None]:
        kind = split["split_type"]
        if kind == "FloatFeature":
            feature = self.numbers[split["float_feature_index"]]
            return feature["flat_feature_index"], split["border"], feature["nan_value_treatment"] != "AsTrue", None
        if kind == "OneHotFeature":
            column = self.cats[split["cat_feature_index"]]
            members = tuple(np.flatnonzero(self.hashes == split["value"]).tolist())
            return column, 0.5, 0 not in members, CategorySet(column, members)
        if kind == "OnlineCtr":
            number = int(np.searchsorted(self.ends, split["split_index"] - self.before, side="right"))
            return 0, split["border"], True, self.statistics[number]
        remedy = "Train on numbers and categories"
        raise DataError(f"CatBoost's trees have splits of the kind {kind!r}, which cannot be exported", remedy=remedy)


_LEAF = (0, 0.0, False, None)  # a split that a leaf does not have
_Rows = tuple[np.ndarray, np.ndarray, list[Any], np.ndarray]  # of a tree: children left and right, splits, leaf values


def _oblivious(tree: Mapping[str, Any], splits: _Splits, targets: int) -> _Rows:
    """Read a tree with one split per level; the first split is the lowest bit of a leaf's number."""
    levels = [splits.of(s) for s in reversed(tree.get("splits") or ())]
    leaves = 1 << len(levels)
    rows, pad = np.arange(leaves - 1), np.full(leaves, -1)  # node i has the children 2i + 1 and 2i + 2
    of_nodes = [split for depth, split in enumerate(levels) for _ in range(1 << depth)]
    values = np.asarray(tree["leaf_values"], float).reshape(leaves, targets)
    sides = (np.concatenate([2 * rows + side, pad]) for side in (1, 2))
    return *sides, [*of_nodes, *[_LEAF] * leaves], np.concatenate([np.zeros((leaves - 1, targets)), values])


def _of_any_shape(tree: Mapping[str, Any], splits: _Splits, targets: int) -> _Rows:
    rows: list[tuple[int, int, Any, Any]] = []

    def put(node: Mapping[str, Any]) -> int:
        place = len(rows)
        if "split" not in node:
            rows.append((-1, -1, _LEAF, np.atleast_1d(node["value"])))
            return place
        rows.append((0, 0, _LEAF, np.zeros(targets)))
        left, right = put(node["left"]), put(node["right"])
        rows[place] = (left, right, splits.of(node["split"]), np.zeros(targets))
        return place

    put(tree)
    left, right, found, values = zip(*rows, strict=True)
    return np.array(left), np.array(right), list(found), np.array(values, float)


def _trees(left: np.ndarray, right: np.ndarray, found: list[Any], values: np.ndarray, scale: float) -> list[Tree]:
    feature, threshold, missing_left, derived = zip(*found, strict=True)
    shape = {
        "left": left,
        "right": right,
        "feature": np.array(feature),
        "threshold": np.array(threshold, float),
        "missing_left": np.array(missing_left, bool),
        "derived": {i: column for i, column in enumerate(derived) if column is not None},
    }
    return [Tree(**shape, value=column * scale, target=k) for k, column in enumerate(values.T)]
