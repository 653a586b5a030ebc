"""A competition's files → a run directory with models, submission, scores and report.

In: a recipe (``Competition``) and a folder of data. Out: a run directory; a submission that is checked and scored.
``recipe.py`` is what a competition describes, ``run.py`` carries it out: ``data_folder.py`` reads, ``prepare.py`` makes
features, ``fitting.py`` fits models, ``run_files.py`` writes, ``parts.py`` keeps what an interrupted run goes on from.
``predict.py`` predicts other rows, ``saved_recipe.py`` is the recipe of a run without its code, ``runs.py`` lists and
compares, ``mlflow_log.py`` notes a run in MLflow. ``form.py`` (ranked lists) and ``value_form.py`` (a line per row) say
how a submission looks; ``check.py``, ``score.py``, ``value_score.py`` hold it against other files.
``streamed.py`` is for rows that do not fit into memory, ``next_item.py`` for sessions whose next item is asked
(``next_item_form.py``, ``next_item_check.py``, ``next_item_predict.py``, ``session_parts.py``), ``objectives.py`` for
sessions with several goals. ``offline_script.py`` writes a recipe as one file for a machine without a network;
``self_test.py`` is the self-test of ``fastrec doctor``.
"""

from typing import TYPE_CHECKING

from fastrec._core.lazy import lazily

if TYPE_CHECKING:
    from fastrec.competition.check import CheckReport, check_submission
    from fastrec.competition.data import CompetitionData
    from fastrec.competition.data_folder import read_folder
    from fastrec.competition.form import RECSYS2019, SubmissionFormat
    from fastrec.competition.mlflow_log import log_run
    from fastrec.competition.next_item import NextItemCompetition
    from fastrec.competition.next_item_check import NextItemScore, score_items
    from fastrec.competition.next_item_form import NextItemForm
    from fastrec.competition.next_item_predict import SavedNextItems
    from fastrec.competition.objectives import ObjectiveCompetition, ObjectiveData
    from fastrec.competition.offline_script import write_script
    from fastrec.competition.ordering import RankedLists, rank_lists, ranked_strings
    from fastrec.competition.predict import SavedRun, predict_run
    from fastrec.competition.reading import Reading
    from fastrec.competition.recipe import Competition
    from fastrec.competition.run import run_competition
    from fastrec.competition.runs import compare_runs, list_runs
    from fastrec.competition.score import ScoreReport, score_submission
    from fastrec.competition.streamed import StreamedCompetition, StreamedNet
    from fastrec.competition.streamed_ranking import StreamedRanking
    from fastrec.competition.value_form import ValueForm
    from fastrec.competition.value_score import ValueScore, score_values
    from fastrec.competition.write import write_submission

__all__ = [
    "RECSYS2019",
    "CheckReport",
    "Competition",
    "CompetitionData",
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
        "RECSYS2019": "form",
        "SubmissionFormat": "form",
        "write_submission": "write",
        "write_script": "offline_script",
        "CheckReport": "check",
        "check_submission": "check",
        "ScoreReport": "score",
        "score_submission": "score",
        "RankedLists": "ordering",
        "rank_lists": "ordering",
        "ranked_strings": "ordering",
        "CompetitionData": "data",
        "Competition": "recipe",
        "NextItemCompetition": "next_item",
        "StreamedCompetition": "streamed",
        "StreamedNet": "streamed",
        "StreamedRanking": "streamed_ranking",
        "ObjectiveCompetition": "objectives",
        "ObjectiveData": "objectives",
        "NextItemForm": "next_item_form",
        "NextItemScore": "next_item_check",
        "score_items": "next_item_check",
        "SavedNextItems": "next_item_predict",
        "Reading": "reading",
        "SavedRun": "predict",
        "run_competition": "run",
        "read_folder": "data_folder",
        "compare_runs": "runs",
        "list_runs": "runs",
        "log_run": "mlflow_log",
        "predict_run": "predict",
        "score_values": "value_score",
        "ValueScore": "value_score",
        "ValueForm": "value_form",
    },
)
