"""Frames cut into parts that the features' tests share: generators that learn from one part after the other."""

import itertools

import numpy as np
import pandas as pd
import torch

from fastrec.features import FeatureSet
from fastrec.features._engine.folds import INNER_SEED, row_folds
from fastrec.features.base import Cells
from fastrec.table import Table

PARTS = [1, 2, 7, 64]


def pieces(frame, parts):
    """The frame's rows in that many parts; where there are more parts than rows, some hold none."""
    bounds = np.linspace(0, len(frame), parts + 1).astype(int)
    return [frame.iloc[a:b] for a, b in itertools.pairwise(bounds)]


def fit_in_parts(features, frame, parts, *, key="id", seed=0):
    """A FeatureSet whose steps each learned from parts, merged in any order; and its columns for the training rows."""
    fs = FeatureSet(features, key=key)
    work = [Table.read(p, fs.fit_inputs) for p in pieces(frame, parts)]
    order = np.random.default_rng(seed).permutation(parts)
    for step in fs.steps:
        if step.kind == "fitted":
            by_fold = step.uses_target and not step.causal
            cells = [
                Cells(row_folds(t, [key], 5, seed=INNER_SEED), 5)
                if by_fold
                else Cells(torch.zeros(len(t), dtype=torch.int64, device=t.device), 1)
                for t in work
            ]
            states = [step.collect(t, c) for t, c in zip(work, cells)]
            merged = states[order[0]]
            for i in order[1:]:
                merged = step.merge(states[i], merged) if seed % 2 else step.merge(merged, states[i])
            step.learn(merged)
            excluded = torch.eye(cells[0].count, dtype=torch.bool, device=work[0].device) & by_fold
            made = [step.compute_out_of_cell(t, merged, c, excluded) for t, c in zip(work, cells)]
        else:
            made = [step.compute(t) for t in work]
        work = [t.with_columns(m) for t, m in zip(work, made)]
    found = {n: [v for t in work for v in t[n].to_arrow().to_pylist()] for n in fs.outputs}
    return fs, pd.DataFrame({n: pd.Series(v, dtype="float64") for n, v in found.items()})


def events(n=240, seed=0):
    """Rows with repeated and missing keys, one of them in most parts missing alone."""
    rng = np.random.default_rng(seed)
    item = np.array([f"i{k}" for k in rng.integers(0, 9, n)], dtype=object)
    item[rng.random(n) < 0.2] = None
    item[n // 2 : n // 2 + n // 6] = None
    user = [None if rng.random() < 0.1 else int(k) for k in rng.integers(0, 5, n)]
    return pd.DataFrame(
        {
            "id": rng.permutation(n) + 10**6,
            "item": pd.Series(item, dtype=object),
            "user": pd.array(user, dtype="Int64"),
            "price": np.where(rng.random(n) < 0.15, np.nan, np.round(rng.normal(50, 20, n), 2)),
            "y": rng.integers(0, 2, n),
            "z": rng.normal(1e8, 1, n),
        }
    )
