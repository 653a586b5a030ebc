"""Compare new rows with training rows, judge candidate models, retrain."""

from fastrec.monitor.compare import Finding, Thresholds
from fastrec.monitor.gate import Verdict, judge
from fastrec.monitor.monitor_rows import Monitored, monitor
from fastrec.monitor.over_time import event_metrics, metric_over_time
from fastrec.monitor.retrain import Retrained, retrain

__all__ = [
    "Finding", "Monitored", "Retrained", "Thresholds", "Verdict", "event_metrics", "judge", "metric_over_time",
    "monitor", "retrain",
]  # fmt: skip
