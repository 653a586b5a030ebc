"""The results of a comparison, apart from the code that computes and shows them."""

from __future__ import annotations

from dataclasses import dataclass, field

import pandas as pd

from fastrec.monitor.compare_columns import Compared
from fastrec.monitor.thresholds import Thresholds
from fastrec.validate import AdversarialReport

__all__ = ["Drift", "Finding"]


@dataclass(frozen=True)
class Finding:
    """A change beyond its threshold.

    Args:
        about: a column, ``'all columns'``, or a period.
        kind: ``'gone'``, ``'type'``, ``'missing'``, ``'unseen'``, ``'shape'``, ``'prediction'``, ``'joint'`` or
            ``'metric'``.
        says: the change, in a sentence.
    """

    about: str
    kind: str
    says: str


@dataclass(frozen=True)
class Drift:
    """Figures and findings of a comparison.

    Args:
        columns: one row per column: every figure, ``p`` as adjusted for all tests, and ``finding`` ('' = none).
        findings: changes beyond the thresholds.
        adversarial: how well trees tell the two sides apart; None: no trees were fitted.
        over_time: the metric by period (see ``metric_over_time``); None: no labels were given.
        reference_metric: the metric that a run had out of fold; None: not known, or another than that by period.
        rows: of the reference and of the new rows.
        names: of the two sides.
        new_columns: columns that only the new rows have.
        left_out: columns that were not compared, and why.
        thresholds: the thresholds in use.
        compared: the columns with their cells.
    """

    columns: pd.DataFrame
    findings: list[Finding]
    adversarial: AdversarialReport | None
    over_time: pd.DataFrame | None
    reference_metric: float | None
    rows: tuple[int, int]
    names: tuple[str, str]
    new_columns: list[str]
    left_out: dict[str, str]
    thresholds: Thresholds
    compared: list[Compared] = field(repr=False)

    @property
    def ok(self) -> bool:
        """No finding."""
        return not self.findings
