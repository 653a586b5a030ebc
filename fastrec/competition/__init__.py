"""A competition's files → a run directory with models, submission, scores and report.

In: a recipe (``Competition``) and a folder of data. Out: a run directory; a submission that is checked and scored.
``recipe.py`` is what a competition describes, ``run.py`` chooses who carries it out: ``table_run.py`` (rows and lists
in memory: ``data_folder.py`` reads, ``prepare.py`` makes features, ``fitting.py`` fits models, ``run_files.py`` writes,
``events_before.py`` says what rankers read of a session, ``parts.py`` keeps what an interrupted run goes on from),
``next_items/`` (sessions whose next item is asked), ``streamed/`` (files larger than memory), ``objectives.py``
(sessions with several goals). ``forms/`` says how a submission looks, writes it, and holds it against other files.
``predict.py`` predicts other rows, ``saved_recipe.py`` is the recipe of a run without its code, ``runs.py`` lists and
compares, ``mlflow_log.py`` notes a run in MLflow.
``offline_script.py`` writes a recipe as one file for a machine without a network; ``self_test.py`` is the self-test of
``fastrec doctor``.
"""

from typing import TYPE_CHECKING

from fastrec._core.lazy import lazily

if TYPE_CHECKING:
    from fastrec.competition.data import CompetitionData
    from fastrec.competition.data_folder import read_folder
    from fastrec.competition.events_before import EventsBefore
    from fastrec.competition.forms.check import CheckReport, check_submission
    from fastrec.competition.forms.list_form import RECSYS2019, SubmissionFormat
    from fastrec.competition.forms.next_item_check import NextItemScore, score_items
    from fastrec.competition.forms.next_item_form import NextItemForm
    from fastrec.competition.forms.ordering import RankedLists, rank_lists, ranked_strings
    from fastrec.competition.forms.score import ScoreReport, score_submission
    from fastrec.competition.forms.value_form import ValueForm
    from fastrec.competition.forms.value_score import ValueScore, score_values
    from fastrec.competition.forms.write import write_submission
    from fastrec.competition.mlflow_log import log_run
    from fastrec.competition.next_items.predict import SavedNextItems
    from fastrec.competition.next_items.recipe import NextItemCompetition
    from fastrec.competition.objectives import ObjectiveCompetition, ObjectiveData
    from fastrec.competition.offline_script import write_script
    from fastrec.competition.predict import SavedRun, predict_run
    from fastrec.competition.reading import Reading
    from fastrec.competition.recipe import Competition
    from fastrec.competition.run import run_competition
    from fastrec.competition.runs import compare_runs, list_runs
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
    "ObjectiveCompetition",
    "ObjectiveData",
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
        "RECSYS2019": "forms.list_form",
        "SubmissionFormat": "forms.list_form",
        "write_submission": "forms.write",
        "write_script": "offline_script",
        "CheckReport": "forms.check",
        "check_submission": "forms.check",
        "ScoreReport": "forms.score",
        "score_submission": "forms.score",
        "RankedLists": "forms.ordering",
        "rank_lists": "forms.ordering",
        "ranked_strings": "forms.ordering",
        "CompetitionData": "data",
        "EventsBefore": "events_before",
        "Competition": "recipe",
        "NextItemCompetition": "next_items.recipe",
        "StreamedCompetition": "streamed.recipe",
        "StreamedNet": "streamed.recipe",
        "StreamedRanking": "streamed.recipe",
        "ObjectiveCompetition": "objectives",
        "ObjectiveData": "objectives",
        "NextItemForm": "forms.next_item_form",
        "NextItemScore": "forms.next_item_check",
        "score_items": "forms.next_item_check",
        "SavedNextItems": "next_items.predict",
        "Reading": "reading",
        "SavedRun": "predict",
        "run_competition": "run",
        "read_folder": "data_folder",
        "compare_runs": "runs",
        "list_runs": "runs",
        "log_run": "mlflow_log",
        "predict_run": "predict",
        "score_values": "forms.value_score",
        "ValueScore": "forms.value_score",
        "ValueForm": "forms.value_form",
    },
)
