"""``fastrec new``: a competition's folder from its files, without code."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from fastrec.cli.app import app, readable_errors
from fastrec.errors import DataError

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
            ask=None if yes else _ask,
            seconds=seconds,
            say=stages.say,
        )
        typer.echo(f"recipe {made.folder / 'competition.py'}")
        where = [str(made.folder), "--data", str(made.problem.files.folder), "--out", f"runs/{made.folder.name}"]
        typer.echo(f"next   {shlex.join(['fastrec', 'run', *where, '--minutes', '5'])}")


def _ask(question: str, answer: str) -> str:
    try:
        return str(typer.prompt(question, default=answer))
    except typer.Abort:
        if sys.stdin.isatty():  # Ctrl-C
            raise
        raise DataError(
            f"nobody can answer: {question}", remedy="Give --yes to take what is likeliest, or an option that says it"
        ) from None
