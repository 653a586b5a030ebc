"""Write ``report.html`` of a run directory: every model's score with its interval, on one page that fetches nothing.

``data.py`` reads the run, ``page.py`` arranges the page, ``charts.py`` draws, ``text.py`` formats figures;
``templates/`` holds markup and style. ``noted.py`` stores scores of a public leaderboard.
"""

from fastrec.report.data import note_leaderboard
from fastrec.report.page import write_report
from fastrec.report.text import leaderboard_table

__all__ = ["leaderboard_table", "note_leaderboard", "write_report"]
