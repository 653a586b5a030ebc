"""``fastrec tune``: better settings for one of a run's models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table as RichTable

from fastrec._core import limits
from fastrec.cli.app import app, readable_errors


@app.command()
def tune(
    run: Annotated[Path, typer.Argument(help="A run directory.", show_default=False)],
    minutes: Annotated[float, typer.Option(help="How long to search.", show_default=False)],
    data: Annotated[Path | None, typer.Option(help="The run's data: refused where they are other files.")] = None,
    model: Annotated[str | None, typer.Option(help="The run's model; else its best trees, else its best net.")] = None,
    device: Annotated[str, typer.Option(help="`auto`, `cpu` or `cuda`.")] = "auto",
) -> None:
    """Search for better settings of a run's model, on its folds, and print the best as a line for the recipe.

    What was tried is kept in `RUN.tune.db`: the same command goes on from there. (It wants the extra `tune`.)
    """
    with readable_errors("the trials so far are kept, the same command goes on") as stages:
        from fastrec.tuning import tune_run

        found = tune_run(run, minutes=minutes, model=model, data=data, device=device, stages=stages)
        table = RichTable("trial", "score", "folds", "settings", title=f"{found.model} of {run}: {found.metric}")
        whole = [t for t in found.trials if not t.pruned]
        for trial in [*whole[: limits.SHOWN_TRIALS], *(t for t in whole[limits.SHOWN_TRIALS :] if t.number is None)]:
            number = "the run's" if trial.number is None else str(trial.number)
            settings = ", ".join(f"{n} {v:g}" for n, v in trial.settings.items())
            table.add_row(number, f"{trial.score:.5f}", str(trial.folds), settings or "its own")
        Console().print(table)
        pruned = sum(t.pruned for t in found.trials)
        typer.echo(f"{len(found.trials)} trials, {pruned} given up early, {found.new} new; kept in {found.storage}")
        if found.best.number is None:
            typer.echo("no trial is better than the run's settings")
        typer.echo(found.best.line)
