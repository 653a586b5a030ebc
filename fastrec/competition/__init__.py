"""A competition's files → a run directory with models, submission, scores and report.

In: a recipe (``Competition``) and a folder of data. Out: a run directory; a submission that is checked and scored.
``recipe.py`` is what a competition describes, ``run.py`` carries it out, ``ordering.py`` makes ranked lists of
scores, ``form.py`` says how a submission looks and ``write.py`` writes one, ``check.py`` and ``score.py`` hold it
against test file and ground truth.
"""

from typing import TYPE_CHECKING

from fastrec._core.lazy import lazily

if TYPE_CHECKING:
    from fastrec.competition.check import CheckReport, check_submission
    from fastrec.competition.form import RECSYS2019, SubmissionFormat
    from fastrec.competition.ordering import RankedLists, rank_lists, ranked_strings
    from fastrec.competition.recipe import Candidates, Competition
    from fastrec.competition.run import run_competition
    from fastrec.competition.score import ScoreReport, score_submission
    from fastrec.competition.write import write_submission

__all__ = [
    "RECSYS2019",
    "Candidates",
    "CheckReport",
    "Competition",
    "RankedLists",
    "ScoreReport",
    "SubmissionFormat",
    "check_submission",
    "rank_lists",
    "ranked_strings",
    "run_competition",
    "score_submission",
    "write_submission",
]

# `fastrec check` needs no models: each name is loaded at first use.
__getattr__ = lazily(
    __name__,
    {
        "RECSYS2019": "form",
        "SubmissionFormat": "form",
        "write_submission": "write",
        "CheckReport": "check",
        "check_submission": "check",
        "ScoreReport": "score",
        "score_submission": "score",
        "RankedLists": "ordering",
        "rank_lists": "ordering",
        "ranked_strings": "ordering",
        "Candidates": "recipe",
        "Competition": "recipe",
        "run_competition": "run",
    },
)
