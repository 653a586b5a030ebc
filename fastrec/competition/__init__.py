"""A competition's files → a run directory with models, submission, scores and report.

In: a recipe (``Competition``) and a folder of data. Out: a run directory, and a submission that is checked and scored.
A recipe class names the steps of its kind: rows and lists in memory, sessions (``next_items.py``), files larger than
memory (``streamed/``). Each step adds to one record of the run.
"""

from typing import TYPE_CHECKING

from fastrec._core.imports import lazily

if TYPE_CHECKING:
    from fastrec.competition.forms.check import CheckReport, ScoreReport, check_submission, score_submission
    from fastrec.competition.forms.lists import RECSYS2019, SubmissionFormat, write_submission
    from fastrec.competition.forms.next_items import NextItemForm, NextItemScore, score_items
    from fastrec.competition.forms.rows import RankedLists, rank_lists, ranked_strings
    from fastrec.competition.forms.values import ValueForm, ValueScore, score_values
    from fastrec.competition.next_items import NextItemCompetition, SavedNextItems
    from fastrec.competition.offline_script import write_script
    from fastrec.competition.predict import SavedRun, predict_run
    from fastrec.competition.reading import CompetitionData, Reading, read_folder
    from fastrec.competition.recipe import Competition, EventsBefore
    from fastrec.competition.run import run_competition
    from fastrec.competition.runs import compare_runs, list_runs, log_run
    from fastrec.competition.streamed.recipe import StreamedCompetition, StreamedNet, StreamedRanking

__all__ = [
    "RECSYS2019",
    "CheckReport",
    "Competition",
    "CompetitionData",
    "EventsBefore",
    "NextItemCompetition",
    "NextItemForm",
    "NextItemScore",
    "RankedLists",
    "Reading",
    "SavedNextItems",
    "SavedRun",
    "ScoreReport",
    "StreamedCompetition",
    "StreamedNet",
    "StreamedRanking",
    "SubmissionFormat",
    "ValueForm",
    "ValueScore",
    "check_submission",
    "compare_runs",
    "list_runs",
    "log_run",
    "predict_run",
    "rank_lists",
    "ranked_strings",
    "read_folder",
    "run_competition",
    "score_items",
    "score_submission",
    "score_values",
    "write_script",
    "write_submission",
]

# `fastrec check` needs no models: each name is loaded at first use.
__getattr__ = lazily(
    __name__,
    {
        "RECSYS2019": "forms.lists",
        "SubmissionFormat": "forms.lists",
        "write_submission": "forms.lists",
        "write_script": "offline_script",
        "CheckReport": "forms.check",
        "check_submission": "forms.check",
        "ScoreReport": "forms.check",
        "score_submission": "forms.check",
        "RankedLists": "forms.rows",
        "rank_lists": "forms.rows",
        "ranked_strings": "forms.rows",
        "CompetitionData": "reading",
        "EventsBefore": "recipe",
        "Competition": "recipe",
        "NextItemCompetition": "next_items",
        "StreamedCompetition": "streamed.recipe",
        "StreamedNet": "streamed.recipe",
        "StreamedRanking": "streamed.recipe",
        "NextItemForm": "forms.next_items",
        "NextItemScore": "forms.next_items",
        "score_items": "forms.next_items",
        "SavedNextItems": "next_items",
        "Reading": "reading",
        "SavedRun": "predict",
        "run_competition": "run",
        "read_folder": "reading",
        "compare_runs": "runs",
        "list_runs": "runs",
        "log_run": "runs",
        "predict_run": "predict",
        "score_values": "forms.values",
        "ValueScore": "forms.values",
        "ValueForm": "forms.values",
    },
)
