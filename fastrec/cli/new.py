"""``fastrec new``: a competition's folder from its files, without code."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fastrec.cli.app import app, readable_errors

_Target = Annotated[
    list[str] | None, typer.Option("--target", help="Column to predict (several: give it several times).")
]


@app.command()
def new(
    name: Annotated[Path, typer.Argument(help="The folder to make, such as `competitions/flights`.")],
    data: Annotated[Path, typer.Option(help="Folder with train, test and sample submission, or one file.")],
    target: _Target = None,
    metric: Annotated[str | None, typer.Option(help="What it is scored by, such as `auc`.")] = None,
    task: Annotated[
        str | None, typer.Option(help="`binary`, `multiclass`, `regression` or `multilabel`; else the target says.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing.")] = False,
    seconds: Annotated[float, typer.Option(min=0, help="Time for trying features.")] = 60.0,
) -> None:
    """Read a folder of CSV or Parquet files and write the competition's recipe, README and notebook."""
    with readable_errors() as stages:
        from fastrec.auto import new_competition

        made = new_competition(
            name,
            data,
            target=(target[0] if len(target) == 1 else target) if target else None,
            metric=metric,
            task=task,  # type: ignore[arg-type]
            ask=None if yes else lambda question, answer: typer.prompt(question, default=answer),
            seconds=seconds,
            say=stages.say,
        )
        typer.echo(f"recipe {made.folder / 'competition.py'}")
        out = f"--out runs/{made.folder.name} --minutes 5"
        typer.echo(f"next   fastrec run {made.folder} --data {made.problem.files.folder} {out}")
