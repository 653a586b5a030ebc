"""Commands about finished runs: predict, layout, runs, compare."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table as RichTable

from fastrec.cli.app import app, load_competition, readable_errors, trusted

_Run = Annotated[Path, typer.Argument(help="A run directory.", show_default=False)]


@app.command()
def predict(
    run: _Run,
    data: Annotated[
        Path, typer.Option(help="The rows to predict: a file, or a folder with `test` and the other tables.")
    ],
    out: Annotated[Path, typer.Option(help="The file to write.", show_default=False)],
    device: Annotated[str, typer.Option(help="`auto`, `cpu` or `cuda`.")] = "auto",
    trust: Annotated[
        list[str] | None, typer.Option(help="A module of generators or estimators of your own that may be imported.")
    ] = None,
) -> None:
    """Predict rows (or sessions) with what a run holds, without the recipe's code."""
    with readable_errors() as stages:
        from fastrec.competition.predict import predict_run

        made = predict_run(run, data, out, device=device, trust=trusted(trust), stages=stages)
        typer.echo(f"predictions {made}")


@app.command()
def layout(
    competition: Annotated[Path, typer.Argument(help="A competition's folder.", show_default=False)],
    data: Annotated[Path, typer.Option(help="Folder with the competition's files.", show_default=False)],
    out: Annotated[Path, typer.Option(help="Folder to make.", show_default=False)],
) -> None:
    """Write the rows and tables that a recipe reads from a competition's files, as `fastrec predict` takes them."""
    with readable_errors():
        from fastrec.competition.predict import write_layout

        for path in write_layout(load_competition(competition), data, out):
            typer.echo(str(path))


@app.command()
def runs(folder: Annotated[Path, typer.Argument(help="A folder of run directories.")] = Path("runs")) -> None:
    """List a folder's runs: score, interval, noted leaderboard score, features, seconds, git revision."""
    with readable_errors():
        from fastrec.competition.runs import list_runs

        table = RichTable(
            "run", "competition", "metric", "out of fold", "95 %", "leaderboard", "features", "seconds", "git"
        )
        for r in list_runs(folder):
            interval = "" if r.interval is None else f"{r.interval[0]:.5f} to {r.interval[1]:.5f}"
            board = "" if r.leaderboard is None else f"{r.leaderboard:.5f}"
            about = (r.name, r.competition, r.metric, f"{r.score:.5f}", interval, board)
            table.add_row(*about, str(r.features), f"{r.seconds:.0f}", r.git_revision or "")
        Console().print(table)


@app.command()
def compare(
    a: _Run,
    b: _Run,
    model: Annotated[str | None, typer.Option(help="The model that is compared; the stack, or the blend.")] = None,
    by: Annotated[str | None, typer.Option(help="A column of the rows (of lists: `length`, `touched`).")] = None,
) -> None:
    """Compare two runs on the same rows, out of fold: paired differences with 95 % intervals, by segment."""
    with readable_errors():
        from fastrec.competition.runs import compare_runs

        table = RichTable("rows", "n", a.name, b.name, "difference", "95 %")
        for c in compare_runs(a, b, model=model, by=by):
            d = c.difference
            table.add_row(
                c.segment, str(c.rows), f"{c.a:.5f}", f"{c.b:.5f}", f"{d.mean:+.5f}", f"{d.low:+.5f} to {d.high:+.5f}"
            )
        Console().print(table)
