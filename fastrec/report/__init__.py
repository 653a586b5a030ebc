"""Write ``report.html`` of a run directory: every model's score with its interval, on one page that fetches nothing."""

from fastrec.report.data import note_leaderboard
from fastrec.report.page import write_report
from fastrec.report.text import leaderboard_table

__all__ = ["leaderboard_table", "note_leaderboard", "write_report"]
