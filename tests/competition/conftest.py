"""Runs that several files look at: made once by each worker."""

from pathlib import Path

import pytest

from fastrec.competition import run_competition


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of each case of ``test_table_run.py``, its files in ``data/CASE`` beside them; to be read alone."""
    from tests.competition.test_table_run import TARGETS, Recipe, write

    folder = tmp_path_factory.mktemp("runs")
    made = {}
    for case in TARGETS:
        data = write(folder / "data" / case, case)
        made[case] = run_competition(Recipe(case), data, folder / case, resume=False)
    return made
