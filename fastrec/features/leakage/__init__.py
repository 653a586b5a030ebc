"""``check_leakage``: rerun a pipeline on changed rows to find the columns that leak."""

from fastrec.features.leakage.check import check_leakage
from fastrec.features.leakage.report import Leak, LeakageReport

__all__ = ["Leak", "LeakageReport", "check_leakage"]
