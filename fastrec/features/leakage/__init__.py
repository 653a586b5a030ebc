"""``check_leakage``: rerun a pipeline on changed rows to find the columns that leak."""

from fastrec.features.leakage.check import Leak, LeakageReport, check_leakage

__all__ = ["Leak", "LeakageReport", "check_leakage"]
