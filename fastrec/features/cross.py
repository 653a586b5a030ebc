"""Crosses of columns, and the search for useful ones."""

from __future__ import annotations

import itertools
import string
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from fastrec._core import limits
from fastrec.errors import DataError, refuse
from fastrec.features._engine.folds import given_folds, row_folds
from fastrec.features._engine.keyed import key_text, of_codes, sum_kept
from fastrec.features._engine.options import OfColumns
from fastrec.features.base import Cells, Col, Cols, Feature, Names, State, Tensors
from fastrec.features.columns import as_list, masked, name_of
from fastrec.features.encode import SumsByKey, count_keys
from fastrec.features.feature_set import FeatureSet
from fastrec.features.target import TargetEncode
from fastrec.segments import rank_in_group
from fastrec.table import Coded, Column, Keys, Table
from fastrec.table.vocab import hash_codes


class Cross(OfColumns, SumsByKey):
    """Integer code of a combination of values: 1, 2, … in sorted order of the combinations in training rows.

    An unseen combination, or one with a missing part, is missing.

    Args:
        cols: two columns or more, or generators of one column each: ``Cross('a', 'b')`` or ``Cross(['a', 'b'])``.
        min_count: combinations in fewer training rows are missing.
        buckets: hash the values into this many codes (1 … buckets) and learn nothing.
        seed: the seed of the hash.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import Cross
        >>> df = pd.DataFrame({"a": ["x", "x", "y"], "b": [1, 2, 1]})
        >>> Cross("a", "b").fit_transform(df)["a_x_b"].tolist()
        [1, 2, 3]
    """

    by_key = (("keys", "count"),)
    codes = True
    _least: ClassVar = {"buckets": 1}

    def __init__(self, cols: Cols, *more: Col, min_count: int = 1, buckets: int | None = None, seed: int = 0) -> None:
        self.cols = [*as_list(cols), *more] if more else cols
        given = as_list(self.cols)
        if len(given) < 2 or any(c in given[:i] for i, c in enumerate(given)):
            raise DataError("Cross needs two columns or more, each once", remedy="Name them: Cross('a', 'b')")

    @property
    def outputs(self) -> list[str]:
        return ["_x_".join(name_of(c) for c in as_list(self.cols))]

    def collect(self, table: Table, cells: Cells | None = None) -> State:
        if self.buckets is not None:
            nothing = table.coded(self.columns).keys.take(torch.zeros(0, dtype=torch.int64))
            return {"keys": nothing, "count": torch.zeros(1, 0, dtype=torch.int64)}
        return dict(zip(("keys", "count"), count_keys(table, self.columns, cells), strict=True))

    def finalize(self, state: State, keep: torch.Tensor | None = None) -> State:
        kept = sum_kept(state["count"], keep) >= max(self.min_count, 1)
        return {self.outputs[0]: torch.cat([kept.new_zeros(1).long(), torch.cumsum(kept, 0) * kept])}

    def prepare(self, state: State, table: Table) -> Tensors:
        coded = table.coded(self.columns)
        if self.buckets is None:
            return {"key": coded.recode(state["keys"])}
        parts = []
        for text in map(key_text, coded.keys.columns):  # with its length, so that different tuples join to other texts
            parts += [pc.binary_length(text).cast(pa.large_string()), text]
        joined = pc.binary_join_element_wise(*parts, pa.scalar(":", pa.large_string()))
        return {"hash": of_codes(coded, torch.from_numpy(hash_codes(joined, self.buckets, seed=self.seed)) + 1)}

    def lookups(self) -> dict[str, str] | None:
        return {self.outputs[0]: "key"} if self.buckets is None else None

    def apply(self, fit: State, tensors: Tensors) -> Tensors:
        return super().apply(fit, tensors) if self.buckets is None else {self.outputs[0]: tensors["hash"]}

    def compute_from(self, table: Table, state: State) -> dict[str, Column]:
        if self.buckets is None and self.min_count <= 1:
            coded = table.coded(self.columns).in_order()
            if coded.keys is state["keys"]:  # the training rows: their codes are known
                made = self.wrap({self.outputs[0]: coded.codes})
                kept = Keys((pa.array(np.arange(1, coded.size)),), (self.outputs[0],))
                made[self.outputs[0]]._cache["coded"] = Coded(coded.codes, kept, True)
                return made
        return super().compute_from(table, state)

    def wrap(self, tensors: Tensors) -> dict[str, Column]:
        name, codes = self.outputs[0], tensors[self.outputs[0]]
        return {name: masked(name, codes, codes == 0)}


Metric = Literal["auto", "logloss", "auc", "r2"]
_FIGURES = ("alone", "together", "gain", "error", "kept")


@dataclass(frozen=True)
class CrossGain:
    """Gain of a cross of two columns or more."""

    columns: tuple[str, ...]
    alone: float  # held-out score of a model of the columns' encodings (of a triple: of its pairs' encodings)
    together: float  # held-out score with the cross's encoding added
    gain: float  # mean improvement over the folds; above 0 is better for every metric
    # standard error of the gain, over folds or (if larger) rows, corrected for training rows shared by folds
    error: float
    kept: bool  # whether the gain passes the thresholds


@dataclass(frozen=True)
class CrossSearch:
    """Result of ``search_crosses``."""

    pairs: list[CrossGain]  # all pairs tried (triples with ``extend=``), the largest gain first
    metric: str
    target: str
    sources: dict[str, Col] = field(default_factory=dict)  # column or generator by column name

    @property
    def kept(self) -> list[tuple[str, ...]]:
        """The pairs that pass the thresholds, best first."""
        return [p.columns for p in self.pairs if p.kept]

    def crosses(self) -> list[Cross]:
        """Return a ``Cross`` of each pair in ``kept``."""
        return [Cross(*(self.sources.get(n, n) for n in pair)) for pair in self.kept]

    def features(self, target: str | None = None, **options: Any) -> list[TargetEncode]:
        """Return a ``TargetEncode`` of each pair in ``kept``.

        Args:
            target: the target column; None: the search's.
            **options: options of ``TargetEncode``.
        """
        return [TargetEncode(cross, target or self.target, **options) for cross in self.crosses()]

    def table(self) -> Any:
        """Return all pairs as a pandas frame: ``a``, ``b`` (``c``, …), ``alone``, ``together``, ``gain``, …."""
        import pandas as pd

        names = [string.ascii_lowercase[i] for i in range(max((len(p.columns) for p in self.pairs), default=2))]
        rows = [dict(zip(names, p.columns, strict=False)) | {n: getattr(p, n) for n in _FIGURES} for p in self.pairs]
        return pd.DataFrame(rows, columns=[*names, *_FIGURES])

    def __str__(self) -> str:
        pairs = [" × ".join(p.columns) for p in self.pairs]
        width = max(map(len, pairs), default=0)
        lines = [f"{len(self.kept)} of {len(pairs)} pairs kept, by {self.metric}"]
        for p, pair in zip(self.pairs, pairs, strict=True):
            mark = "+" if p.kept else " "
            lines.append(f"{mark} {pair:<{width}}  {p.gain:+.5f} ± {p.error:.5f}  ({p.alone:.5f} → {p.together:.5f})")
        return "\n".join(lines)


def search_crosses(
    df: Any,
    cols: Sequence[Col],
    target: str,
    *,
    folds: Any = 5,
    key: Names | None = None,
    metric: Metric = "auto",
    max_pairs: int | None = None,
    min_gain: float = 0.0,
    errors: float = 2.0,
    smooth: float = 20.0,
    extend: Sequence[Sequence[str]] | None = None,
) -> CrossSearch:
    """Find pairs of columns whose cross, target encoded, improves a model of the two columns' target encodings.

    The models are logistic regressions on log-odds for 0/1 targets, else ridge regressions. They are scored on fold k
    and fitted on the other folds. Encodings are nested: rows of fold k are encoded from the other folds, all other rows
    out of fold without fold k. A pair is kept if its mean gain is above ``min_gain`` and ``errors`` standard errors.
    The gains of kept pairs are biased upwards by the selection, so validate the final model separately.

    Source: Nadeau, Bengio 2003, "Inference for the generalization error", section 4 (the corrected standard error).

    Args:
        df: training rows of any supported library.
        cols: columns of text, categories or codes, or generators of one column each without a target: use
            ``Bucketize('age')`` for numbers.
        target: the target column: 0/1, bool or numbers; rows without a target are dropped.
        folds: the number of folds, by a hash of ``key``; or integers ``[n]`` from 0, or a column's name.
        key: the column(s) of rows that belong together; None: the row's number.
        metric: ``logloss`` or ``auc`` (0/1 targets), ``r2``; ``'auto'``: ``logloss`` for 0/1 targets, else ``r2``.
        max_pairs: the largest number of pairs to keep, best first; None: all that pass.
        min_gain: the least gain, in the metric's unit.
        errors: the least gain in standard errors.
        smooth: the smoothing of the target encodings.
        extend: pairs (another search's ``kept``) to try with each other column instead; a triple is compared with its
            three pairs.

    Returns:
        The search, with ``kept``, ``table()`` and ``features()``.

    Raises:
        DataError: fewer than two columns or folds, a repeated column, a target that does not fit the metric, or
            ``extend`` with columns not in ``cols``.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import search_crosses
        >>> a, b, c = [0, 0, 1, 1] * 50, [0, 1, 0, 1] * 50, [0, 1] * 30 + [1, 0] * 70
        >>> df = pd.DataFrame({"a": a, "b": b, "c": c, "y": [int(i != j) for i, j in zip(a, b)]})
        >>> search = search_crosses(df, ["a", "b", "c"], "y")
        >>> search.kept, search.features()
        ([('a', 'b')], [TargetEncode(cols=Cross(cols=['a', 'b']), target='y')])
    """
    sources = _sources(cols)
    fold_names = as_list(folds) if isinstance(folds, str) else []
    table = _read(df, sources, [target, *as_list(key), *fold_names])
    cell = row_folds(table, as_list(key), max(folds, 1)) if isinstance(folds, int) else given_folds(df, folds, table)
    known = (~table[target].is_missing()).nonzero().squeeze(1)
    present, codes = torch.unique(cell[known], return_inverse=True)
    if len(present) < 2:
        where = f"search_crosses: the rows are in {len(present)} fold{'' if len(present) == 1 else 's'}"
        raise DataError(where, remedy="Use 2 folds or more, and more rows than folds")
    table, cells = table.take(known), Cells(codes, len(present))
    y, metric = _target(table[target], target, metric)
    trial = _CrossTrial(table.with_columns({"y": y}), y, cells, metric, smooth)
    pairs = [trial.gain(*names) for names in _sets(list(sources), extend)]
    pairs = sorted(pairs, key=lambda p: (-p.gain, p.columns))
    good = [p.columns for p in pairs if p.gain > max(min_gain, 0.0) and p.gain > errors * p.error]
    good = good if max_pairs is None else good[: max(max_pairs, 0)]
    return CrossSearch([replace(p, kept=p.columns in good) for p in pairs], metric, target, sources)


def _sources(cols: Sequence[Col]) -> dict[str, Col]:
    listed = as_list(cols)
    if (odd := next((c for c in listed if not isinstance(c, Col)), None)) is not None:
        raise DataError(f"search_crosses: {odd!r} is neither a column nor a generator", remedy="List names")
    names = [name_of(c) for c in listed]
    if (twice := next((n for i, n in enumerate(names) if n in names[:i]), None)) is not None:
        raise DataError("search_crosses was given this column twice", column=twice, remedy="Name it once")
    if len(names) < 2:
        raise DataError("search_crosses needs two columns or more", remedy="Name them: search_crosses(df, ['a', 'b'])")
    return dict(zip(names, listed, strict=True))


def _sets(names: list[str], extend: Sequence[Sequence[str]] | None) -> list[tuple[str, ...]]:
    if extend is None:
        return list(itertools.combinations(names, 2))
    if (odd := next((n for known in extend for n in known if n not in names), None)) is not None:
        raise DataError("search_crosses: extend names a column that is not searched", column=odd, remedy="Add to cols")
    if (short := next((known for known in extend if len(set(known)) < 2), None)) is not None:
        raise DataError(f"search_crosses: {list(short)} is no pair to extend", remedy="Name two columns or more")
    larger = [{*known, n} for known in extend for n in names if n not in known]
    return list(dict.fromkeys(tuple(n for n in names if n in s) for s in larger))


def _read(df: Any, sources: dict[str, Col], others: Sequence[str]) -> Table:
    generators = FeatureSet([s for s in sources.values() if isinstance(s, Feature)])
    own = others[0] if others[0] in {*sources, *generators.fit_inputs} else None  # the target itself
    if (using := next((s for s in generators.steps if s.uses_target), own)) is not None:
        problem = f"search_crosses: {using!r} uses a target, which would leak into its own rows"
        raise DataError(problem, remedy="Pair columns and generators that use none")
    plain = [n for n, s in sources.items() if isinstance(s, str)]
    table = Table.read(df, list(dict.fromkeys([*plain, *generators.fit_inputs, *others])))
    return generators.fit_transform(table) if generators.features else table


def _target(column: Column, name: str, metric: Metric) -> tuple[torch.Tensor, str]:
    """Return the target as float64 ``[n]`` and the resolved metric."""
    if metric not in ("auto", "logloss", "auc", "r2"):
        raise DataError(f"search_crosses has no metric {metric!r}", remedy="Use 'auto', 'logloss', 'auc' or 'r2'")
    try:
        y = column.number()
    except DataError as error:
        raise DataError(f"search_crosses: {error.problem}", column=name, row=error.row, remedy="Use numbers") from error
    refuse(y.isinf(), name, "search_crosses: a target is infinite", "Clip or drop such rows")
    other = (y != 0) & (y != 1)
    if metric in ("logloss", "auc"):
        refuse(other, name, f"search_crosses: {metric} needs a target of 0 and 1", "Use 'r2'")
    binary = not bool(other.any())
    if len(y) == 0 or bool((y == y[0]).all()):
        raise DataError("search_crosses: the target has one value only", column=name, remedy="Give more rows")
    return y, ("logloss" if binary else "r2") if metric == "auto" else metric


class _CrossTrial:
    """Nested target encodings of columns, pairs and triples, and models of them."""

    def __init__(self, table: Table, y: torch.Tensor, cells: Cells, metric: str, smooth: float) -> None:
        self.table, self.y, self.cells, self.metric, self.smooth = table, y, cells, metric, smooth
        self.encoded: dict[tuple[str, ...], torch.Tensor] = {}
        mixed = torch.randperm(len(y), generator=torch.Generator().manual_seed(0)).to(y.device)
        self.fold_rows = [(cells.codes == k).nonzero().squeeze(1) for k in range(cells.count)]
        self.fit_rows = [mixed[cells.codes[mixed] != k][: limits.CROSS_FIT_ROWS] for k in range(cells.count)]

    def gain(self, *names: str) -> CrossGain:
        """Compare a pair with its columns, or a triple with its pairs."""
        parts = list(itertools.combinations(names, len(names) - 1))
        for part in parts:
            if part not in self.encoded:
                self.encoded[part] = self._together(part)
        apart = torch.stack([self.encoded[part] for part in parts], 2)
        alone, base = self._scores(apart)
        together, rows = self._scores(torch.cat([apart, self._together(names).unsqueeze(2)], 2))
        gains = together - alone
        # A few folds may agree by chance, so the rows bound the error too. The factor is Nadeau and Bengio's.
        error = max(float(gains.std()) / len(gains) ** 0.5, float((rows - base).std()) / len(rows) ** 0.5)
        error *= (1 + len(gains) / (len(gains) - 1)) ** 0.5
        sign = -1.0 if self.metric == "logloss" else 1.0
        scores = (sign * float(alone.mean()), sign * float(together.mean()))
        return CrossGain(names, *scores, float(gains.mean()), error, False)

    def _together(self, names: tuple[str, ...]) -> torch.Tensor:
        if len(names) == 1:
            return self._encode(self.table[names[0]])
        joint = self.table.select([*names]).coded([*names])  # a new table, as a table caches its codes
        numbers = pa.array(range(len(joint.keys)))
        return self._encode(Column("category", joint.codes.int(), name="together", distinct=numbers))

    def _encode(self, column: Column) -> torch.Tensor:
        """Target encode a column for every outer fold: float64 ``[folds, n]``."""
        table = Table({"x": column, "y": self.y})
        encode = TargetEncode("x", "y", smooth=self.smooth)
        state = encode.collect(table, self.cells)
        folds = []
        for k in range(self.cells.count):
            excluded = torch.eye(self.cells.count, dtype=torch.bool)
            excluded[:, k] = True
            means = encode.compute_out_of_cell(table, state, self.cells, excluded)["te_x__y"].values
            folds.append(torch.logit(means, eps=1e-6) if self.metric != "r2" else means)
        return torch.stack(folds)

    def _scores(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Score models of encodings ``[folds, n, columns]`` on held-out rows: by fold, and by row up to a constant."""
        scores, parts = [], []
        for k in range(self.cells.count):
            train, valid = x[k][self.fit_rows[k]], x[k][self.fold_rows[k]]
            mean, spread = train.mean(0), train.std(0).nan_to_num(0)
            spread = torch.where(spread > 1e-12, spread, 1)
            inputs, y = _with_one((train - mean) / spread), self.y[self.fit_rows[k]]
            fit = _ridge if self.metric == "r2" else _logistic
            raw = _with_one((valid - mean) / spread) @ fit(inputs, y)
            score, rows = self._score(raw, self.y[self.fold_rows[k]], y.mean())
            scores.append(score)
            parts.append(rows)
        return torch.stack(scores), torch.cat(parts)

    def _score(self, raw: torch.Tensor, y: torch.Tensor, mean: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.metric == "auc":
            return _auc(raw, y)
        if self.metric == "logloss":
            rows = -torch.nn.functional.binary_cross_entropy_with_logits(raw, y, reduction="none")
        else:
            total = ((y - mean) ** 2).mean()
            rows = 1 - (y - raw) ** 2 / torch.where(total > 0, total, 1)
        return rows.mean(), rows


def _with_one(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x, x.new_ones(len(x), 1)], 1)


def _penalty(x: torch.Tensor) -> torch.Tensor:
    # A weak ridge: equal encodings would make the system singular.
    scale = x.new_full((x.shape[1],), 1e-4 * len(x))
    scale[-1] = 1e-9 * len(x)  # the intercept
    return torch.diag(scale)


def _ridge(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.linalg.solve(x.T @ x + _penalty(x), x.T @ y)


def _logistic(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Fit a logistic regression by Newton's method with halved steps."""
    penalty, weights = _penalty(x), x.new_zeros(x.shape[1])

    def loss(w: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.binary_cross_entropy_with_logits(x @ w, y, reduction="sum") + w @ penalty @ w / 2

    now = loss(weights)
    for _ in range(limits.CROSS_NEWTON_STEPS):
        p = torch.sigmoid(x @ weights)
        slope = x.T @ (p - y) + penalty @ weights
        step = torch.linalg.solve((x * (p * (1 - p)).unsqueeze(1)).T @ x + penalty, slope)
        size = 1.0
        while size > 1e-6 and not bool((new := loss(weights - size * step)) <= now):
            size /= 2
        if size <= 1e-6:
            break
        weights, before, now = weights - size * step, now, new
        if bool(before - now <= 1e-10 * before.abs()):
            break
    return weights


def _auc(scores: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the AUC, and each row's influence times ``n`` (DeLong, DeLong, Clarke-Pearson 1988, eq. 5)."""
    positive = y > 0
    count = positive.sum()
    others = len(y) - count
    if not bool((count > 0) & (others > 0)):
        return scores.new_tensor(0.5), torch.zeros_like(scores)
    among_all = rank_in_group(scores, torch.zeros_like(positive, dtype=torch.int64), method="average")
    among_own = rank_in_group(scores, positive.long(), method="average")
    below = (among_all - among_own) / torch.where(positive, others, count)  # share of the other class below the row
    auc = below[positive].mean()
    return auc, torch.where(positive, (below - auc) / count, (1 - below - auc) / others) * len(y)
