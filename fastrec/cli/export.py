"""``fastrec export`` and ``fastrec verify``: a run as a graph that others can serve, and whether it says the same."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from fastrec._core import limits
from fastrec.cli.app import app, readable_errors, trusted
from fastrec.errors import DataError

_RUN = Annotated[Path, typer.Argument(help="A run directory.", show_default=False)]
_DATA = Annotated[Path | None, typer.Option(help="Score the test rows of this data; else those that the run keeps.")]
_FOLD = Annotated[int | None, typer.Option(help="The models of this fold alone: a fifth of the work of five.")]
_TRUST = Annotated[list[str] | None, typer.Option(help="A module of generators or estimators that may be imported.")]


@app.command()
def export(
    run: _RUN,
    out: Annotated[Path, typer.Option(help="The folder to make.", show_default=False)],
    data: _DATA = None,
    fold: _FOLD = None,
    parts: Annotated[bool, typer.Option("--parts", help="Features, nets, forests and stack as files too.")] = False,
    float16: Annotated[bool, typer.Option("--float16", help="The nets' weights in 16 bits.")] = False,
    quantize: Annotated[bool, typer.Option("--quantize", help="The nets' products in 8 bits.")] = False,
    triton: Annotated[Path | None, typer.Option(help="Write a Triton model repository there, too.")] = None,
    model: Annotated[str | None, typer.Option(help="Of a run for next items: which of its nets.")] = None,
    trust: _TRUST = None,
) -> None:
    """Write a run as one ONNX file, from raw columns to the score, and check that it scores as the run does.

    (It wants the extra `export`; to run the file onnxruntime is enough.)
    """
    with readable_errors("nothing is written") as stages:
        from fastrec.competition.next_items.predict import is_next_item_run

        sessions = is_next_item_run(run)
        if sessions:
            asked = {"--fold": fold is not None, "--parts": parts, "--float16": float16, "--quantize": quantize}
            _export_net(run, out, model, {**asked, "--triton": triton is not None}, trusted(trust), stages)
    if sessions:
        verify(out, run, data, fold, trust)
        return
    with readable_errors("nothing is written") as stages:
        from fastrec.serve.export import export_run

        if model is not None:
            raise DataError("--model is for runs for next items", remedy="Leave it out")
        compress: Literal["float16", "int8"] | None = "int8" if quantize else "float16" if float16 else None
        options = {"data": data, "fold": fold, "compress": compress}
        made = export_run(run, out, **options, parts=parts or triton is not None, trust=trusted(trust), stages=stages)
        sizes = {f: (out / f).stat().st_size / 1e6 for f in made.about["model"]["files"]}
        typer.echo(", ".join(f"{out / f} ({size:.1f} MB)" for f, size in sizes.items()))
        sent = [i["name"] for i in made.about["inputs"] if not i["made"]]
        rest = [i["name"] for i in made.about["inputs"] if i["made"]]
        typer.echo(f"{len(sent)} columns to send: {_some(sent)}")
        if rest:
            typer.echo(f"{len(rest)} columns that the server makes of earlier events, or of text: {_some(rest)}")
        if made.unserved is not None:
            typer.echo(f"fastrec serve cannot make these: {made.unserved}", err=True)
        if triton is not None:
            from fastrec.serve.triton import write_triton

            folders = write_triton(out, triton, name=out.resolve().name)
            typer.echo(f"{len(folders)} models of Triton in {triton}: {', '.join(f.name for f in folders)}")
        if compress is not None:
            from fastrec.serve.metric_loss import metric_loss

            loss = metric_loss(out, run, fold=fold, trust=trusted(trust))
            words = f"{loss.metric} {loss.full:.5f} in full, {loss.compressed:.5f} in {compress}"
            typer.echo(f"{words} (on {loss.rows:,} training rows: to compare the two)")
            return
    verify(out, run, data, fold, trust)


@app.command()
def verify(
    folder: Annotated[Path, typer.Argument(help="What fastrec export wrote.", show_default=False)],
    run: Annotated[Path, typer.Argument(help="The run that it is of.", show_default=False)],
    data: _DATA = None,
    fold: _FOLD = None,
    trust: _TRUST = None,
) -> None:
    """Score rows by an exported file and by its run; exit with 1 where a score differs by more than 1e-5."""
    with readable_errors("the export is as it was") as stages:
        from fastrec.competition.next_items.predict import is_next_item_run
        from fastrec.serve.next_items.verify import verify_next_items
        from fastrec.serve.verify import verify_export

        if is_next_item_run(run):
            found = verify_next_items(folder, run, data, trust=trusted(trust), stages=stages)
        else:
            found = verify_export(folder, run, data, fold=fold, trust=trusted(trust), stages=stages)
        typer.echo(f"{found.rows:,} rows: the largest difference is {found.difference:.1e}, in row {found.row}")
        if found.lists:
            typer.echo(f"{found.lists} lists are in another order")
    if not found.holds:
        typer.echo(f"error: that is more than {limits.VERIFY_DIFFERENCE}", err=True)
        raise typer.Exit(1)


def _export_net(
    run: Path, out: Path, model: str | None, asked: dict[str, bool], trust: tuple[str, ...], stages: Any
) -> None:
    """Write the net of a run for next items."""
    from fastrec.serve.next_items.export import export_next_items

    odd = next((name for name, given in asked.items() if given), None)
    if odd is not None:
        raise DataError(f"{odd} is not for runs for next items", remedy="Leave it out")
    made = export_next_items(run, out, model=model, trust=trust, stages=stages)
    sizes = {f: (out / f).stat().st_size / 1e6 for f in made.about["model"]["files"]}
    typer.echo(", ".join(f"{out / f} ({size:.1f} MB)" for f, size in sizes.items()))
    typer.echo(f"the net {made.about['net']['name']!r} of {made.about['items']:,} items")
    if made.about["left_out"]:
        rest = ", ".join(made.about["left_out"])
        typer.echo(f"not in the file: {rest} (fastrec serve {run} serves the run with all its models)")


def _some(names: list[str]) -> str:
    return ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
