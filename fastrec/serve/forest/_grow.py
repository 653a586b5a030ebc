"""``grow``: collect trees of a library into a ``Forest``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fastrec.serve.forest._columns import Derived, in_order
from fastrec.serve.forest.forest import Forest


@dataclass
class Tree:
    """One tree; row 0 is the root.

    Args:
        left, right: int ``[rows]``, the children's rows; -1 in rows that are leaves.
        feature: int ``[rows]``.
        threshold: float ``[rows]``.
        missing_left: bool ``[rows]``.
        value: float ``[rows]``, of leaves.
        target: of the leaves.
        derived: row → its column, if that is a derived one.
    """

    left: np.ndarray
    right: np.ndarray
    feature: np.ndarray
    threshold: np.ndarray
    missing_left: np.ndarray
    value: np.ndarray
    target: int = 0
    derived: Mapping[int, Derived] = field(default_factory=dict)


def grow(trees: Sequence[Tree], columns: int, base: Sequence[float] | np.ndarray, **about: Any) -> Forest:
    """Build a forest of trees, in the order in which their values are summed.

    ``about`` has ``link``, ``rule``, ``dtype`` and, if they differ from the default, ``scale`` and ``wide``.
    """
    # equal sets and statistics of several trees are one column
    derived = in_order({d for tree in trees for d in tree.derived.values()})
    place = {d: columns + i for i, d in enumerate(derived)}
    parts: dict[str, list[np.ndarray]] = {name: [] for name in (*_OF_NODES, "value", "target", "roots")}
    nodes = leaves = 0
    for tree in trees:
        feature = np.array(tree.feature, np.int64)
        for row, column in tree.derived.items():
            feature[row] = place[column]
        flat = _flat(tree, feature, nodes, leaves)
        for name, values in flat.items():
            parts[name].append(values)
        nodes, leaves = nodes + len(flat["feature"]), leaves + len(flat["value"])
    dtypes = {"threshold": np.float64, "value": np.float64} | dict.fromkeys(_FLAGS, bool)
    flat = {n: np.concatenate([np.zeros(0), *v]).astype(dtypes.get(n, np.int64)) for n, v in parts.items()}
    about = {"scale": 1.0, "wide": False, **about}
    return Forest(columns=columns, base=np.asarray(base, np.float64), derived=tuple(derived), **flat, **about)


_FLAGS = ("missing_left", "left_leaf", "right_leaf")
_OF_NODES = ("feature", "threshold", "left", "right", *_FLAGS)


def _flat(tree: Tree, feature: np.ndarray, nodes: int, leaves: int) -> dict[str, np.ndarray]:
    """Convert a tree's arrays, nodes and leaves apart; ``nodes`` and ``leaves`` count those of earlier trees."""
    left, right = np.asarray(tree.left, np.int64), np.asarray(tree.right, np.int64)
    inner = left >= 0
    if not inner[0]:  # of one leaf
        one, leaf = np.zeros(1, np.int64), np.array([leaves])
        values = {"feature": one, "threshold": one, "missing_left": one, "value": tree.value[:1], "target": one}
        values |= {"left": leaf, "right": leaf, "left_leaf": one + 1, "right_leaf": one + 1}
        return {**values, "target": one + tree.target, "roots": np.array([nodes])}
    # A leaf below the root gets the tree's last number: onnxruntime up to 1.21 takes a root for a leaf where one child
    # is a node and the other a leaf of the same number (its issue 24679). There are never fewer leaves than nodes.
    top = np.isin(np.arange(len(inner)), (left[0], right[0]))
    order = np.concatenate([np.flatnonzero(~inner & ~top), np.flatnonzero(~inner & top)])
    number = nodes + np.cumsum(inner) - 1
    number[order] = leaves + np.arange(len(order))
    left, right = left[inner], right[inner]
    return {
        "feature": feature[inner],
        "threshold": np.asarray(tree.threshold)[inner],
        "missing_left": np.asarray(tree.missing_left)[inner],
        "left": number[left],
        "right": number[right],
        "left_leaf": ~inner[left],
        "right_leaf": ~inner[right],
        "value": np.asarray(tree.value)[order],
        "target": np.full(len(order), tree.target),
        "roots": np.array([nodes]),
    }
