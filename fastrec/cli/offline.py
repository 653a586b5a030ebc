"""``fastrec script``: a competition as one file for a machine without a network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fastrec.cli.app import app, load_competition, readable_errors


@app.command("script")
def write_offline_script(
    competition: Annotated[
        Path, typer.Argument(help="A competition's folder, such as `competitions/census`.", show_default=False)
    ],
    out: Annotated[Path, typer.Option(help="Folder to make; an earlier script there is replaced.", show_default=False)],
    wheels: Annotated[
        bool, typer.Option(help="Let pip download all packages into `wheels/` beside the script.")
    ] = True,
    seed: Annotated[int, typer.Option(min=0, help="Of everything random, as in `fastrec run`.")] = 0,
    minutes: Annotated[float | None, typer.Option(help="Time budget of the script; `--minutes` changes it.")] = None,
) -> None:
    """Write `submit.py`: input folder to `submission.csv` in one file, offline, for a kernel without internet."""
    with readable_errors() as stages:
        from fastrec.competition.offline_script import write_script

        recipe = type(load_competition(competition))
        made = write_script(competition, recipe, out, wheels=wheels, seed=seed, minutes=minutes, stages=stages)
        typer.echo(f"script {made}")
