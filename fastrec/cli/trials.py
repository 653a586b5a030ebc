"""Commands that try ideas on a finished run: try, tries, select, lb."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table as RichTable

from fastrec._core.terminal_table import TableColumn, terminal_table
from fastrec.cli.app import app, readable_errors

_Run = Annotated[Path, typer.Argument(help="A run directory.", show_default=False)]
_Model = Annotated[str | None, typer.Option(help="The run's model to train; else its best XGBoost or LightGBM model.")]


@app.command(name="try")
def try_(
    on: Annotated[Path, typer.Option(help="The run directory to try it on.", show_default=False)],
    file: Annotated[
        Path | None, typer.Argument(help="A Python file with generators, or one function of a frame.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="The run's data: refused where they are other files.")] = None,
    drop: Annotated[list[str] | None, typer.Option(help="A column to leave out; may be given several times.")] = None,
    model: _Model = None,
    full: Annotated[bool, typer.Option("--full", help="The model's own settings, not fewer and larger steps.")] = False,
) -> None:
    """Say what new columns are worth to a run, or what is lost without some of its own.

    A model is trained on the run's folds with the columns and with shuffled copies of them, over several seeds.
    """
    with readable_errors():
        from fastrec.trials import try_features

        made = try_features(file, on, drop=drop or (), model=model, full=full, data=data)
        Console(highlight=False, soft_wrap=True).print(str(made), markup=False)


@app.command()
def tries(run: _Run) -> None:
    """Show what was tried on a run."""
    with readable_errors():
        from fastrec.competition.kept_rows import KeptRows
        from fastrec.errors import FastrecError
        from fastrec.trials import list_tries

        found = list_tries(run)
        try:
            now = KeptRows(run).name
        except FastrecError:  # its parts are gone; what was tried is still to be seen
            now = None
        old = ["" if now in (None, t.get("rows")) else " (on an earlier run)" for t in found]
        columns = [[*t.get("columns", []), *(f"- {n}" for n in t.get("dropped", []))] for t in found]
        ends = [filter(None, [_figure(t.get("low")), _figure(t.get("high"))]) for t in found]
        shown = [
            TableColumn("when", [str(t.get("when", ""))[:16].replace("T", " ") for t in found], drop=2),
            TableColumn("file", [t.get("file") or "" for t in found], fold=True),
            TableColumn("columns", [", ".join(names) for names in columns], fold=True),
            TableColumn("metric", [t.get("metric", "") for t in found], drop=3),
            TableColumn("difference", [_figure(t.get("difference")) for t in found]),
            TableColumn("98 %", [" to ".join(e) for e in ends], drop=1),
            TableColumn("verdict", [t.get("verdict", "") + o for t, o in zip(found, old, strict=True)], fold=True),
            TableColumn("s", [f"{t.get('seconds', 0):.1f}" for t in found], drop=4),
        ]
        console = Console()
        console.print(terminal_table(shown, console.width, title=str(run)))


@app.command()
def select(
    run: _Run,
    method: Annotated[
        str, typer.Option(help="`null` (shuffled targets) or `permutation` (shuffled columns).")
    ] = "null",
    model: _Model = None,
    repeats: Annotated[int, typer.Option(min=1, help="How many shuffled targets.")] = 20,
) -> None:
    """Weigh every column that a run's model learns from, and say which ones it can do without."""
    with readable_errors():
        from fastrec.trials import select_features

        options: dict[str, Any] = {"method": method, "model": model, "repeats": repeats}
        made = select_features(run, **options)
        by_chance = made.method == "null"
        heads = (made.measure, "by chance (90 %)", "p") if by_chance else (f"{made.measure} lost", "95 %", "")
        table = RichTable("column", *heads, "kept")
        for w in made.table:
            ends = f"{w.low:.5g} to {w.high:.5g}"
            p = "" if w.p is None else f"{w.p:.3f}"
            table.add_row(w.name, f"{w.importance:.5g}", ends, p, "yes" if w.kept else "no")
        console = Console(soft_wrap=True, highlight=False)
        console.print(table)
        console.print(f"kept {len(made.kept)} of {len(made.table)}: {', '.join(made.kept)}", markup=False)


@app.command()
def lb(
    run: _Run, score: Annotated[float, typer.Argument(help="What the leaderboard shows.", show_default=False)]
) -> None:
    """Note what a run's submission scored on the leaderboard, and write the report anew."""
    with readable_errors():
        from fastrec.report import note_leaderboard, write_report

        typer.echo(f"noted {note_leaderboard(run, score)}")
        typer.echo(f"report {write_report(run)}")


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:+.5f}"
