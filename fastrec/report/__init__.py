"""A run directory → ``report.html``: what each model is worth, and how sure that is.

In: the files of a run. Out: one page that fetches nothing. ``data.py`` reads the run, ``page.py`` says
what stands where, ``charts.py`` draws, ``text.py`` writes figures as text; ``templates/`` holds markup and style.
``noted.py`` keeps what submissions scored on a public leaderboard.
"""

from fastrec.report.noted import note_leaderboard
from fastrec.report.page import write_report
from fastrec.report.text import leaderboard_table

__all__ = ["leaderboard_table", "note_leaderboard", "write_report"]
