"""``fastrec retrain``: a run made again from old and new rows, promoted if it is no worse."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fastrec.cli._options import Device, Every, Seed, Trust
from fastrec.cli.app import app, load_competition, readable_errors, trusted

if TYPE_CHECKING:
    from fastrec.monitor import Retrained


@app.command()
def retrain(
    run: Annotated[Path, typer.Argument(help="The run that serves, or a registry.", show_default=False)],
    data: Annotated[Path, typer.Option(help="Labelled new rows: a file, or a folder with `train` and other tables.")],
    out: Annotated[Path, typer.Option(help="Run directory to make.", show_default=False)],
    registry: Annotated[
        Path | None, typer.Option(help="Where it is promoted if it is no worse.", show_default=False)
    ] = None,
    time: Annotated[str | None, typer.Option(help="Column that says when a row was; else the recipe's.")] = None,
    every: Every = "day",
    scored: Annotated[int, typer.Option(min=1, help="So many of the newest periods are scored.")] = 3,
    window: Annotated[
        int | None, typer.Option(min=1, help="Learn from so many of the newest periods only; all if not given.")
    ] = None,
    warm: Annotated[bool, typer.Option("--warm", help="Begin with the run's nets and trees where they fit.")] = False,
    margin: Annotated[float, typer.Option(min=0, help="Share of the metric by which it may be worse.")] = 0.01,
    export: Annotated[
        bool | None, typer.Option(help="Promote its export too; if not given, as the current version has it.")
    ] = None,
    competition: Annotated[
        Path | None, typer.Option(help="The recipe's folder; without it the run's own features and models.")
    ] = None,
    minutes: Annotated[float | None, typer.Option(min=0.05, help="Wall time for the training, as of run.")] = None,
    seed: Seed = 0,
    device: Device = "auto",
    trust: Trust = None,
) -> None:
    """Train a run again with new rows; exit with 3 where the gate keeps what serves.

    Each of the newest periods is scored by a model of the rows before it, and by the run that serves: the new run
    passes where the interval of the difference leaves out a loss of more than the margin, and all checks hold.
    """
    with readable_errors("what serves goes on") as stages:
        from fastrec.monitor import retrain as make

        made = make(
            run,
            data,
            out,
            registry=registry,
            time=time,
            every=every,  # type: ignore[arg-type] - it says itself what it knows
            scored=scored,
            window=window,
            warm=warm,
            margin=margin,
            export=export,
            competition=None if competition is None else load_competition(competition),
            minutes=minutes,
            seed=seed,
            device=device,
            trust=trusted(trust),
            stages=stages,
        )
        _tell(made)
    if not made.verdict.promote:
        raise typer.Exit(3)


def _tell(made: Retrained) -> None:
    """Print the result, the verdict last but for the version."""
    v = made.verdict
    if len(v.by_period):
        typer.echo(v.by_period.to_string(index=False, float_format=lambda x: f"{x:.5f}"))
    typer.echo(f"{v.metric}: serving {v.serving:.5f}, new {v.candidate:.5f}, better by {v.gain}")
    for name, how in made.began.items():
        typer.echo(f"{name}: {how}")
    typer.echo(f"run {made.run}")
    typer.echo(f"{'passed' if v.promote else 'kept what serves'}: {'; '.join(v.reasons)}")
    if made.version is not None:
        typer.echo(f"version {made.version} is current")
