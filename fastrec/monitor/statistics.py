"""How far two samples lie apart, and how likely that is by chance: plain numbers in, plain numbers out."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fastrec._core import limits

__all__ = [
    "Test",
    "benjamini_hochberg",
    "chi_square",
    "holm",
    "js_distance",
    "ks_test",
    "outside_test",
    "psi",
    "shares_test",
]


class Test(NamedTuple):
    """A test's statistic, and the probability of one at least as large where nothing has changed."""

    statistic: float
    p: float


def psi(reference: np.ndarray, new: np.ndarray) -> float:
    """Compute the population stability index: sum over cells of (b - a) ln(b / a).

    By the usual rule of thumb less than 0.1 is no change and more than 0.25 a large one (Siddiqi 2006, "Credit Risk
    Scorecards", chapter 9).

    Args:
        reference: counts ``[k]`` of the cells.
        new: counts ``[k]`` of the same cells.
    """
    # The logarithm of an empty cell would be infinite.
    a, b = (np.clip(c / max(c.sum(), 1), 1e-4, None) for c in (reference, new))
    return float(((b - a) * np.log(b / a)).sum())


def js_distance(reference: np.ndarray, new: np.ndarray) -> float:
    """Compute the Jensen-Shannon distance, base 2: 0 = the same shares, 1 = none in common (Endres, Schindelin 2003).

    Args:
        reference: counts ``[k]`` of the cells.
        new: counts ``[k]`` of the same cells.
    """
    a, b = (c / max(c.sum(), 1) for c in (reference, new))
    middle = (a + b) / 2

    def against_middle(p: np.ndarray) -> float:
        some = p > 0
        return float((p[some] * np.log2(p[some] / middle[some])).sum())

    return float(np.sqrt(max(against_middle(a) + against_middle(b), 0.0) / 2))


def ks_test(reference: np.ndarray, new: np.ndarray) -> Test:
    """Run the two-sample Kolmogorov-Smirnov test, two-sided, by the limiting distribution.

    Where values repeat it is on the safe side: the probability is too large.

    Args:
        reference: float64 ``[n]``, ascending.
        new: float64 ``[m]``, ascending.
    """
    from scipy.stats import kstwo

    n, m = len(reference), len(new)
    if not n or not m:
        return Test(0.0, 1.0)
    # Between two values of `new` its share below is constant: the gap is largest at a value, or just before the next.
    ends = np.flatnonzero(np.append(new[1:] != new[:-1], True))
    starts = np.append(0, ends[:-1] + 1)
    values = new[ends]
    upto = np.searchsorted(reference, values, side="right")
    before = upto.copy()
    shared = np.flatnonzero(reference[np.maximum(upto - 1, 0)] == values)
    before[shared] = np.searchsorted(reference, values[shared], side="left")
    over = ((ends + 1) / m - upto / n).max()
    under = (before / n - starts / m).max()
    statistic = float(np.clip(max(over, under), 0.0, 1.0))
    return Test(statistic, float(kstwo.sf(statistic, max(round(n * m / (n + m)), 1))))


def chi_square(reference: np.ndarray, new: np.ndarray) -> Test:
    """Run Pearson's chi-square test of equal shares; rare cells are merged.

    Two cells are compared by ``shares_test``.

    Args:
        reference: counts ``[k]`` of the cells.
        new: counts ``[k]`` of the same cells.
    """
    from scipy.stats import chi2

    n, m = float(reference.sum()), float(new.sum())
    if not n or not m:
        return Test(0.0, 1.0)
    both = (reference + new) * (min(n, m) / (n + m))
    rare = both < limits.LEAST_EXPECTED
    a, b = (np.append(c[~rare], c[rare].sum()).astype(np.float64) for c in (reference, new))
    kept = a + b > 0
    a, b = a[kept], b[kept]
    if len(a) < 2:
        return Test(0.0, 1.0)
    if len(a) == 2:
        return shares_test((int(a[0]), int(b[0])), (int(n), int(m)))
    expected = (a + b) * n / (n + m), (a + b) * m / (n + m)
    statistic = sum((((c - e) ** 2) / e).sum() for c, e in zip((a, b), expected, strict=True))
    return Test(float(statistic), float(chi2.sf(statistic, len(a) - 1)))


def shares_test(some: tuple[int, int], of: tuple[int, int]) -> Test:
    """Test whether two samples hold the same share: the chi-square of the table of two by two.

    Where a cell of it would hold fewer than five if nothing had changed: Fisher's exact test (1935, "The Design of
    Experiments", section 21), as the chi-square would take a few for many. The statistic is the chi-square's.

    Args:
        some: how many there are in each.
        of: the sizes of the samples.
    """
    rest = [n - k for k, n in zip(some, of, strict=True)]
    if min(of) == 0 or sum(some) == 0 or sum(rest) == 0:
        return Test(0.0, 1.0)
    from scipy.stats import chi2

    share = sum(some) / sum(of)
    spread = share * (1 - share) * (1 / of[0] + 1 / of[1])
    statistic = (some[0] / of[0] - some[1] / of[1]) ** 2 / spread
    if min(of) * min(share, 1 - share) < limits.LEAST_EXPECTED:
        return Test(float(statistic), _fisher(some, of))
    return Test(float(statistic), float(chi2.sf(statistic, 1)))


def _fisher(some: tuple[int, int], of: tuple[int, int]) -> float:
    from scipy.stats import hypergeom

    total, few = sum(of), min(sum(some), sum(of) - sum(some))  # the rarer of the two has the same test
    held = some[0] if few == sum(some) else of[0] - some[0]
    k = np.arange(max(0, few - of[1]), min(few, of[0]) + 1)
    p = hypergeom.pmf(k, total, few, of[0])
    own = hypergeom.pmf(held, total, few, of[0])
    return float(min(p[p <= own * (1 + 1e-7)].sum(), 1.0))


def outside_test(outside: int, new: int, reference: int) -> Test:
    """Test how many new values lie below the smallest or above the largest of the reference.

    Of values of one continuous distribution the share outside has the Beta(2, n - 1) distribution, so that the count
    is beta-binomial (David and Nagaraja 2003, "Order Statistics", section 7.2); of discrete ones it is smaller.

    Args:
        outside: how many lie outside.
        new: how many new values there are.
        reference: how many values the reference has.
    """
    if outside == 0 or reference < 2:
        return Test(float(outside), 1.0)
    from scipy.stats import betabinom

    return Test(float(outside), float(betabinom.sf(outside - 1, new, 2, reference - 1)))


def benjamini_hochberg(p: np.ndarray) -> np.ndarray:
    """Adjust probabilities so that the share of false finds stays below a level (Benjamini and Hochberg 1995).

    Args:
        p: float64 ``[k]``.
    """
    p = np.asarray(p, np.float64)
    order = np.argsort(p)
    scaled = p[order] * len(p) / np.arange(1, len(p) + 1)
    made = np.empty_like(p)
    made[order] = np.minimum(np.minimum.accumulate(scaled[::-1])[::-1], 1.0)
    return made


def holm(p: np.ndarray) -> np.ndarray:
    """Adjust probabilities so that the chance of even one false find stays below a level (Holm 1979).

    Args:
        p: float64 ``[k]``.
    """
    p = np.asarray(p, np.float64)
    order = np.argsort(p)
    scaled = p[order] * (len(p) - np.arange(len(p)))
    made = np.empty_like(p)
    made[order] = np.minimum(np.maximum.accumulate(scaled), 1.0)
    return made
