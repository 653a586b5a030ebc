"""``fastrec tune``: better settings for one of a run's models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table as RichTable

from fastrec.cli.app import app, readable_errors

_SHOWN = 10  # trials


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
        names = list(dict.fromkeys(n for t in found.trials for n in t.settings))
        table = RichTable("trial", f"{found.metric}, out of fold", "folds", *names, title=f"{found.model} of {run}")
        for trial in [t for t in found.trials if not t.pruned][:_SHOWN]:
            number = "the run's own" if trial.number is None else str(trial.number)
            values = [f"{trial.settings[n]:g}" if n in trial.settings else "" for n in names]
            table.add_row(number, f"{trial.score:.5f}", str(trial.folds), *values)
        Console().print(table)
        pruned = sum(t.pruned for t in found.trials)
        typer.echo(f"{len(found.trials)} trials, {pruned} given up early, {found.new} new; kept in {found.storage}")
        if found.best.number is None:
            typer.echo("no trial is better than the run's own settings")
        typer.echo(found.best.line)
