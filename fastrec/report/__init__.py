"""A run directory → ``report.html``: what each model is worth, and how sure that is.

In: the files of a run. Out: one page that fetches nothing. ``page.py`` lays it out, ``data.py`` reads the run,
``charts.py`` draws, ``style.py`` and ``text.py`` hold its looks and its sentences.
"""

from fastrec.report.page import write_report
from fastrec.report.text import leaderboard_table

__all__ = ["leaderboard_table", "write_report"]
