"""A model after its launch: new rows beside old ones, quality gates, retraining.

In: a run directory (or any rows) and new rows. Out: what has changed, and whether it matters. ``monitor_rows.py`` has
``monitor``, which compares two tables column by column and all together; ``sides.py`` reads them,
``compare_columns.py`` has one column's figures and ``statistics.py`` their formulas; ``thresholds.py`` says from when
on something is found; ``page.py`` writes it for people. ``over_time.py`` has the metric by day.

``retrain_run.py`` makes a run again from old and new rows (``newest_rows.py`` puts them together), and ``gate.py``
judges whether it may take the old one's place. ``event_metrics.py`` is about what was shown and clicked.
"""

from fastrec.monitor.compare import Finding, Thresholds
from fastrec.monitor.event_metrics import event_metrics
from fastrec.monitor.gate import Verdict, judge
from fastrec.monitor.monitor_rows import Monitored, monitor
from fastrec.monitor.over_time import metric_over_time
from fastrec.monitor.retrain import Retrained, retrain

__all__ = [
    "Finding",
    "Monitored",
    "Retrained",
    "Thresholds",
    "Verdict",
    "event_metrics",
    "judge",
    "metric_over_time",
    "monitor",
    "retrain",
]
