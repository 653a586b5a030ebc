"""Run a recipe on a folder of data, into a run directory and a checked and scored submission.

A recipe class names the steps of its kind: rows and lists in memory, sessions (``next_items.py``), files larger than
memory (``streamed/``). Each step adds to one record of the run.
"""

# ruff: noqa: F401 - names are imported here for readers and type checkers
from typing import TYPE_CHECKING

from fastrec._core.imports import lazily

if TYPE_CHECKING:
    from fastrec.competition.blend import blend_runs
    from fastrec.competition.embed import embed_run, run_vectors
    from fastrec.competition.forms.check import CheckReport, ScoreReport, check_submission, score_submission
    from fastrec.competition.forms.lists import RECSYS2019, write_submission
    from fastrec.competition.forms.rows import RankedLists, SubmissionForm, rank_lists, ranked_strings
    from fastrec.competition.next_items import NextItemCompetition, SavedNextItems
    from fastrec.competition.offline_script import write_script
    from fastrec.competition.predict import SavedRun, predict_run
    from fastrec.competition.reading import CompetitionData, Reading, read_folder
    from fastrec.competition.recipe import Competition, EventsBefore
    from fastrec.competition.run import run_competition
    from fastrec.competition.runs import compare_runs, list_runs, log_run
    from fastrec.competition.streamed.recipe import StreamedCompetition, StreamedNet, StreamedRanking

# `fastrec check` needs no models: each name is loaded at first use.
_HOMES = {
    "blend": ("blend_runs",),
    "embed": ("embed_run", "run_vectors"),
    "forms.check": ("CheckReport", "ScoreReport", "check_submission", "score_submission"),
    "forms.lists": ("RECSYS2019", "write_submission"),
    "forms.rows": ("RankedLists", "SubmissionForm", "rank_lists", "ranked_strings"),
    "next_items": ("NextItemCompetition", "SavedNextItems"),
    "offline_script": ("write_script",),
    "predict": ("SavedRun", "predict_run"),
    "reading": ("CompetitionData", "Reading", "read_folder"),
    "recipe": ("Competition", "EventsBefore"),
    "run": ("run_competition",),
    "runs": ("compare_runs", "list_runs", "log_run"),
    "streamed.recipe": ("StreamedCompetition", "StreamedNet", "StreamedRanking"),
}
__getattr__ = lazily(__name__, {name: home for home, names in _HOMES.items() for name in names})
__all__ = sorted(name for names in _HOMES.values() for name in names)
