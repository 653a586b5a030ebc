"""``Thresholds``: from when on a change is one that somebody should look at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fastrec.errors import DataError

__all__ = ["Thresholds"]


@dataclass(frozen=True)
class Thresholds:
    """What makes a change a finding: it must be larger than chance **and** large enough to matter.

    With a million rows every difference is beyond chance, with a hundred none is small: so both are asked for.

    Args:
        alpha: where nothing has changed, in at most about this share of comparisons is anything found. All columns'
            tests are corrected together.
        correction: ``'bh'`` (Benjamini and Hochberg: few of the finds are false) or ``'holm'`` (hardly any is).
        psi: population stability index of a column.
        js: Jensen-Shannon distance of a column, base 2.
        ks: largest difference of a number's two distributions.
        missing: change of the share of missing values.
        unseen: share of rows with a value that the reference does not have, beyond the share that is usual for it.
        auc: how well trees tell new rows from old ones, where its interval leaves out 0.5.
        metric: by how much the metric of a period may be worse than the reference's, beyond its interval: a share of
            the reference's.
    """

    alpha: float = 0.01
    correction: Literal["bh", "holm"] = "bh"
    psi: float = 0.1
    js: float = 0.1
    ks: float = 0.1
    missing: float = 0.02
    unseen: float = 0.02
    auc: float = 0.6
    metric: float = 0.02

    def __post_init__(self) -> None:
        if not 0 < self.alpha < 1:
            raise DataError(f"alpha is {self.alpha}", remedy="Give a share between 0 and 1")
        if self.correction not in ("bh", "holm"):
            raise DataError(f"there is no correction {self.correction!r}", remedy="Give 'bh' or 'holm'")
