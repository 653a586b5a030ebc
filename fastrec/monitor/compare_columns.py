"""Compare one column of the reference with the same column of new rows."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fastrec.monitor.statistics import Test, chi_square, js_distance, ks_test, outside_test, psi, shares_test
from fastrec.table import Column
from fastrec.table.keys import Coded

__all__ = ["CellShares", "Compared", "compare_columns"]

_COMPARABLE = ("number", "datetime", "category")


@dataclass(frozen=True)
class CellShares:
    """The cells that a column's values were counted in, for a picture.

    Args:
        labels: of the cells.
        reference, new: float64 ``[k]``, share of the rows in each.
    """

    labels: list[str]
    reference: np.ndarray
    new: np.ndarray


@dataclass(frozen=True)
class Compared:
    """A column of both sides.

    Args:
        name: the column.
        kind: ``'number'`` or ``'category'``.
        rows: of the reference and of the new rows.
        missing: share of missing values of each.
        missing_test: whether these shares differ.
        psi, js: distances over the cells.
        test: ``'ks'`` or ``'chi2'``.
        shape: that test.
        values: numbers of distinct values of each.
        unseen: share of new rows with a value that the reference does not have; of a number: outside its range.
        unseen_usual: the share that would be usual where nothing has changed.
        unseen_test: whether there are more.
        grown: how many distinct values are new, of categories.
        cells: what ``psi`` and ``js`` are of.
    """

    name: str
    kind: str
    rows: tuple[int, int]
    missing: tuple[float, float]
    missing_test: Test
    psi: float
    js: float
    test: str
    shape: Test
    values: tuple[int, int]
    unseen: float
    unseen_usual: float
    unseen_test: Test
    grown: int
    cells: CellShares = field(repr=False)


def compare_columns(name: str, reference: Column, new: Column) -> Compared | None:
    """Compare a column of two tables; None if its kind is not compared or differs between them.

    Args:
        name: what to call it.
        reference: the column as it was.
        new: the column as it is now.
    """
    kinds = {_kind(reference), _kind(new)}
    if len(kinds) != 1 or None in kinds:
        return None
    compare = _numbers if kinds == {"number"} else _categories
    return compare(name, reference, new)


def _kind(column: Column) -> str | None:
    if column.kind not in _COMPARABLE:
        return None
    return "category" if column.kind == "category" else "number"


def _sorted_values(column: Column) -> np.ndarray:
    """Return the known values, ascending; infinities are values at the ends."""
    values = column.integer() if column.kind == "datetime" else column.values
    known = values[~column.is_missing()].cpu().numpy()
    return np.sort(known).astype(np.float64, copy=False)


def _numbers(name: str, reference: Column, new: Column) -> Compared:
    a, b = _sorted_values(reference), _sorted_values(new)
    rows = len(reference), len(new)
    edges = np.unique(a[(np.arange(1, 10) * len(a)) // 10]) if len(a) else np.zeros(0)  # tenths of the reference
    cells = [np.diff(np.searchsorted(v, edges, side="right"), prepend=0, append=len(v)) for v in (a, b)]
    outside = int(np.searchsorted(b, a[0])) + len(b) - int(np.searchsorted(b, a[-1], side="right")) if len(a) else 0
    labels = [f"≤ {e:.4g}" for e in edges] + ([f"> {edges[-1]:.4g}"] if len(edges) else ["all"])
    known = len(a), len(b)
    return Compared(
        name,
        "number",
        rows,
        *_missing(rows, known),
        psi(*cells),
        js_distance(*cells),
        "ks",
        ks_test(a, b),
        (_distinct(a), _distinct(b)),
        outside / max(len(b), 1),
        2 / (len(a) + 1),
        outside_test(outside, len(b), len(a)),
        0,
        _shares(labels, *cells),
    )


def _distinct(ascending: np.ndarray) -> int:
    return int((ascending[1:] != ascending[:-1]).sum()) + 1 if len(ascending) else 0


def _categories(name: str, reference: Column, new: Column) -> Compared:
    old, now = reference.coded(), new.coded()
    in_old, codes = now.recode(old.keys).cpu().numpy(), now.codes.cpu().numpy()
    a = np.bincount(old.codes.cpu().numpy(), minlength=old.size)
    b = np.bincount(in_old, minlength=old.size)
    fresh = np.bincount(codes[in_old == 0], minlength=now.size)  # values that the reference does not have
    first = np.flatnonzero(fresh[1:]) + 1
    rows = len(reference), len(new)
    known, unseen = (rows[0] - int(a[0]), rows[1] - int(fresh[0])), int(fresh[first].sum())
    # Both sides choose the common values: if the reference did, its chance values would count as a change.
    both = np.append(a[1:], np.zeros(len(first), int)), np.append(b[1:], fresh[first])
    share = sum(c / max(c.sum(), 1) for c in both)
    top = np.argsort(-share, kind="stable")[:30]  # the rarer values share a cell
    cells = [np.append(c[top], c.sum() - c[top].sum()) for c in both]
    return Compared(
        name,
        "category",
        rows,
        *_missing(rows, known),
        psi(*cells),
        js_distance(*cells),
        "chi2",
        chi_square(*both),
        (int((a[1:] > 0).sum()), int((both[1] > 0).sum())),
        unseen / max(known[1], 1),
        float((a[1:] == 1).sum()) / max(known[0], 1),
        _unseen_test(unseen, known[1], a[1:]),
        len(first),
        _shares(_labels(top, old, now, first), *cells),
    )


def _labels(values: np.ndarray, old: Coded, now: Coded, first: np.ndarray) -> list[str]:
    size = old.size - 1
    texts = [old.keys.columns[0][int(i)] if i < size else now.keys.columns[0][int(first[i - size]) - 1] for i in values]
    return [*map(str, texts), "others"]


def _unseen_test(unseen: int, new: int, counts: np.ndarray) -> Test:
    """Test whether more rows hold unseen values than usual.

    The share that is usual is that of values seen once (Good 1953), with the spread of Robbins (1968): (f1 + 2 f2) /
    n², to which the new rows' own is added. Few rows are far from normal: there the beta-binomial count of rows with a
    share of which Beta(f1 + 1, n - f1 + 1) is known is the larger probability, and the larger one is taken.
    """
    from scipy.stats import betabinom, norm

    n, once, twice = float(counts.sum()), float((counts == 1).sum()), float((counts == 2).sum())
    if not n or not new or not unseen:
        return Test(0.0, 1.0)
    usual = once / n
    # One more value seen once is possible whatever the sample: a share of 1 / n is nothing to be surprised at.
    spread = (once + 2 * twice + 1) / n**2 + max(usual * (1 - usual), 1 / n) / new
    z = (unseen / new - usual) / np.sqrt(spread)
    exact = betabinom.sf(unseen - 1, new, once + 1, n - once + 1)
    return Test(float(z), float(max(norm.sf(z), exact)))


def _missing(rows: tuple[int, int], known: tuple[int, int]) -> tuple[tuple[float, float], Test]:
    absent = rows[0] - known[0], rows[1] - known[1]
    return (absent[0] / max(rows[0], 1), absent[1] / max(rows[1], 1)), shares_test(absent, rows)


def _shares(labels: list[str], a: np.ndarray, b: np.ndarray) -> CellShares:
    return CellShares(labels, a / max(a.sum(), 1), b / max(b.sum(), 1))
