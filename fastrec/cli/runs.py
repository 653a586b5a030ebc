"""Commands about finished runs: predict, layout, runs, compare."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fastrec._core.terminal_table import TableColumn, terminal_table
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

        found = list_runs(folder)
        console = Console()
        columns = [
            TableColumn("run", [r.name for r in found], fold=True),
            TableColumn("competition", [r.competition for r in found], drop=2, fold=True),
            TableColumn("metric", [r.metric for r in found]),
            TableColumn("out of fold", [f"{r.score:.5f}" for r in found]),
            TableColumn("95 %", ["{:.5f} to {:.5f}".format(*r.interval) if r.interval else "" for r in found], drop=1),
            TableColumn("leaderboard", ["" if r.leaderboard is None else f"{r.leaderboard:.5f}" for r in found]),
            TableColumn("features", [str(r.features) for r in found], drop=5),
            TableColumn("seconds", [f"{r.seconds:.0f}" for r in found], drop=4),
            TableColumn("git", [r.git_revision or "" for r in found], drop=3),
        ]
        console.print(terminal_table(columns, console.width))


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

        found = compare_runs(a, b, model=model, by=by)
        console = Console()
        columns = [
            TableColumn("rows", [c.segment for c in found], fold=True),
            TableColumn("n", [str(c.rows) for c in found]),
            TableColumn(a.name, [f"{c.a:.5f}" for c in found], options={"min_width": 7}),
            TableColumn(b.name, [f"{c.b:.5f}" for c in found], options={"min_width": 7}),
            TableColumn("difference", [f"{c.difference.mean:+.5f}" for c in found]),
            TableColumn("95 %", [f"{c.difference.low:+.5f} to {c.difference.high:+.5f}" for c in found]),
        ]
        console.print(terminal_table(columns, console.width))
