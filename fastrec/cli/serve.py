"""``fastrec serve``: an export behind HTTP."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer import Argument, Option

from fastrec._core import limits
from fastrec.cli.app import RunFolder, Trust, app, readable_errors, trusted
from fastrec.errors import DataError, MissingFileError

_TOKEN = "FASTREC_TOKEN"


@app.command()
def serve(
    export: Annotated[Path, Argument(help="An export, a saved `Recommender`, a run directory, or a registry.")],
    host: Annotated[str, Option(help="Address to listen at; 0.0.0.0 is reached from other machines.")] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    token_file: Annotated[Path | None, Option(help=f"File with the token that clients send; or set {_TOKEN}.")] = None,
    batch_rows: Annotated[int, Option(min=1, help="Rows scored together at most; 1: no batches.")] = 256,
    max_wait: Annotated[float, Option(min=0, help="Milliseconds that a batch waits for more requests.")] = 0,
    queue_rows: Annotated[int, Option(min=1, help="Rows that may wait; above, 503.")] = 32_768,
    max_rows: Annotated[int, Option(min=1, help="Rows of one request.")] = 10_000,
    max_body: Annotated[float, Option(min=0.001, help="Megabytes of one body.")] = 32,
    timeout: Annotated[float, Option(min=0.001, help="Seconds until a request is given up (504).")] = 30,
    workers: Annotated[int | None, Option(min=1, help="Batches at once; one a core if not given.")] = None,
    threads: Annotated[int, Option(min=1, help="Threads for one batch.")] = 1,
    device: Annotated[str, Option(help="`cpu`; `cuda` or `tensorrt` with onnxruntime-gpu.")] = "cpu",
    canary: Annotated[str | None, Option(help="Of a registry: `VERSION=SHARE` of the request ids go to it.")] = None,
) -> None:
    """Answer requests: scores of rows, ranks of candidates, the Open Inference Protocol, Prometheus' metrics.

    A recommender, and a run for next items or its export, answer `/v1/recommend`.

    SIGTERM stops after what was accepted, SIGHUP loads the export anew without losing a request. Of a registry the
    current version answers, and what is promoted takes over by itself. `/` describes it.
    """
    with readable_errors("the server is gone"):
        from fastrec.registry import is_registry
        from fastrec.serve.server.app import make_app, open_events, run_app
        from fastrec.serve.server.call import Limits
        from fastrec.serve.server.versions import Canary

        sizes = {"batch_rows": batch_rows, "queue_rows": queue_rows, "max_rows": max_rows}
        sizes |= {"max_body": int(max_body * 2**20), "max_wait": max_wait / 1000, "timeout": timeout}
        limits = Limits(**sizes, workers=workers, threads=threads, device=device)
        export = _as_export(export)
        some = None if canary is None else Canary.read(canary)
        with nullcontext() if is_registry(export) else open_events(export) as events:
            served = make_app(export, events=events, limits=limits, token=_token(token_file), canary=some)
            run_app(served, host=host, port=port, started=lambda url: typer.echo(f"listening at {url}"))


def _as_export(folder: Path) -> Path:
    """Return the export to serve: of a run one that is made beside it, else the folder itself."""
    if (folder / "serving.json").is_file() or not (folder / "decision.json").is_file():
        return folder
    from fastrec.serve.export import export_run

    made = folder.parent / f".{folder.name}.served"
    typer.echo(f"exporting the run to {made}")
    return export_run(folder, made).folder


def _token(file: Path | None) -> str | None:
    """Return the token that requests must carry: a file's, else the environment's; None: there is none."""
    if file is None:
        return os.environ.get(_TOKEN) or None
    try:
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise MissingFileError(f"the token cannot be read ({error})", file=file) from error
    if not token or not token.isprintable():
        raise DataError("there is no token in it", file=file, remedy="Write one line with a token into it")
    return token


_DATA = Annotated[Path | None, Option(help="Score the test rows of this data, not the run's.")]
_FOLD = Annotated[int | None, Option(help="Models of this fold alone, a fifth of the work.")]


@app.command()
def export(
    run: RunFolder,
    out: Annotated[Path, Option(help="The folder to make.")],
    data: _DATA = None,
    fold: _FOLD = None,
    parts: Annotated[bool, Option("--parts", help="Features, nets, forests and stack as files too.")] = False,
    float16: Annotated[bool, Option("--float16", help="The nets' weights in 16 bits.")] = False,
    quantize: Annotated[bool, Option("--quantize", help="The nets' products in 8 bits.")] = False,
    triton: Annotated[Path | None, Option(help="Write a Triton model repository there, too.")] = None,
    model: Annotated[str | None, Option(help="Of a run for next items: which of its nets.")] = None,
    trust: Trust = None,
) -> None:
    """Write a run as one ONNX file, from raw columns to the score, and check that it scores as the run does.

    (It wants the extra `export`; to run the file onnxruntime is enough.)
    """
    with readable_errors("nothing is written") as stages:
        from fastrec.competition.next_items import is_next_item_run

        if is_next_item_run(run, "objectives"):
            from fastrec.serve.next_items import export_next_items

            asked = {"--fold": fold is not None, "--parts": parts, "--float16": float16, "--quantize": quantize}
            odd = next((name for name, given in {**asked, "--triton": triton is not None}.items() if given), None)
            if odd is not None:
                raise DataError(f"{odd} is not for runs for next items", remedy="Leave it out")
            made = export_next_items(run, out, model=model, trust=trusted(trust), stages=stages)
            _say_files(out, made.about)
            typer.echo(f"the net {made.about['net']['name']!r} of {made.about['items']:,} items")
            goals, rest = made.about["goals"], ", ".join(made.about["left_out"])
            for goal, head in (goals or {}).items():
                typer.echo(f"{goal}: the head of {head}")
            if rest:
                whole = f" (fastrec serve {run} serves the run with all its models)" if goals is None else ""
                typer.echo(f"not in the file: {rest}{whole}")
        else:
            from fastrec.serve.export import export_run

            if model is not None:
                raise DataError("--model is for runs for next items", remedy="Leave it out")
            compress: Literal["float16", "int8"] | None = "int8" if quantize else "float16" if float16 else None
            options = {"data": data, "fold": fold, "compress": compress, "parts": parts or triton is not None}
            made = export_run(run, out, **options, trust=trusted(trust), stages=stages)
            _say_files(out, made.about)
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
                from fastrec.serve.verify import metric_loss

                loss = metric_loss(out, run, fold=fold, trust=trusted(trust))
                words = f"{loss.metric} {loss.full:.5f} in full, {loss.compressed:.5f} in {compress}"
                typer.echo(f"{words} (on {loss.rows:,} training rows: to compare the two)")
                return
    verify(out, run, data, fold, trust)


@app.command()
def verify(
    folder: Annotated[Path, Argument(help="What fastrec export wrote.")],
    run: Annotated[Path, Argument(help="The run that it is of.")],
    data: _DATA = None,
    fold: _FOLD = None,
    trust: Trust = None,
) -> None:
    """Score rows by an exported file and by its run; exit with 1 where a score differs by more than 1e-5."""
    with readable_errors("the export is as it was") as stages:
        from fastrec.competition.next_items import is_next_item_run
        from fastrec.serve.next_items import verify_next_items
        from fastrec.serve.verify import verify_export

        if is_next_item_run(run, "objectives"):
            found = verify_next_items(folder, run, data, trust=trusted(trust), stages=stages)
        else:
            found = verify_export(folder, run, data, fold=fold, trust=trusted(trust), stages=stages)
        typer.echo(f"{found.rows:,} rows: the largest difference is {found.difference:.1e}, in row {found.row}")
        if found.lists:
            typer.echo(f"{found.lists} lists are in another order")
    if not found.holds:
        typer.echo(f"error: that is more than {limits.VERIFY_DIFFERENCE}", err=True)
        raise typer.Exit(1)


def _say_files(out: Path, about: dict[str, Any]) -> None:
    sizes = {f: (out / f).stat().st_size / 1e6 for f in about["model"]["files"]}
    typer.echo(", ".join(f"{out / f} ({size:.1f} MB)" for f, size in sizes.items()))


def _some(names: list[str]) -> str:
    return ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
