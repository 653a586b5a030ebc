"""``check_leakage``: runs a pipeline again on changed rows, and names the columns that know what they must not."""

from fastrec.features.leakage.check import check_leakage
from fastrec.features.leakage.report import Leak, LeakageReport

__all__ = ["Leak", "LeakageReport", "check_leakage"]
