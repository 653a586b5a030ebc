"""``fastrec serve``: an export behind HTTP."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from fastrec.cli.app import app, readable_errors
from fastrec.errors import DataError, MissingFileError

_TOKEN = "FASTREC_TOKEN"


@app.command()
def serve(
    export: Annotated[
        Path,
        typer.Argument(
            help="What `fastrec export` or `Recommender.save` wrote, a run directory, or a registry.",
            show_default=False,
        ),
    ],
    host: Annotated[str, typer.Option(help="Address to listen at; 0.0.0.0 is reached from other machines.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    token_file: Annotated[
        Path | None, typer.Option(help=f"File with the token that clients must send; or set {_TOKEN}.")
    ] = None,
    batch_rows: Annotated[int, typer.Option(min=1, help="Rows scored together at most; 1: no batches.")] = 256,
    max_wait: Annotated[float, typer.Option(min=0, help="Milliseconds that a batch waits for more requests.")] = 0,
    queue_rows: Annotated[int, typer.Option(min=1, help="Rows that may wait; above, 503.")] = 32_768,
    max_rows: Annotated[int, typer.Option(min=1, help="Rows of one request.")] = 10_000,
    max_body: Annotated[float, typer.Option(min=0.001, help="Megabytes of one body.")] = 32,
    timeout: Annotated[float, typer.Option(min=0.001, help="Seconds until a request is given up (504).")] = 30,
    workers: Annotated[int | None, typer.Option(min=1, help="Batches at once; one a core if not given.")] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads for one batch.")] = 1,
    device: Annotated[str, typer.Option(help="`cpu`; `cuda` or `tensorrt` with onnxruntime-gpu.")] = "cpu",
    canary: Annotated[
        str | None, typer.Option(help="Of a registry: `VERSION=SHARE`, that share of request ids goes to this version.")
    ] = None,
) -> None:
    """Answer requests: scores of rows, ranks of candidates, the Open Inference Protocol, Prometheus' metrics.

    A recommender, and a run for next items or its export, answer `/v1/recommend`.

    SIGTERM stops after what was accepted, SIGHUP loads the export anew without losing a request. Of a registry the
    current version answers, and what is promoted takes over by itself. `/` describes it.
    """
    with readable_errors("the server is gone"):
        from fastrec._core.optional import require
        from fastrec.registry import is_registry
        from fastrec.serve.server.make import make_app
        from fastrec.serve.server.online_state import open_events
        from fastrec.serve.server.service import Limits
        from fastrec.serve.server.versions import Canary

        for module in ("uvicorn", "httptools"):
            require(module, module, "pip install 'fastrec-tabular[serve]'")
        from fastrec.serve.server.process import run_app

        limits = Limits(
            batch_rows=batch_rows,
            max_wait=max_wait / 1000,
            queue_rows=queue_rows,
            max_rows=max_rows,
            max_body=int(max_body * 2**20),
            timeout=timeout,
            workers=workers,
            threads=threads,
            device=device,
        )
        export = _as_export(export)
        some = None if canary is None else Canary.read(canary)
        with nullcontext() if is_registry(export) else open_events(export) as events:
            served = make_app(export, events=events, limits=limits, token=_token(token_file), canary=some)
            run_app(served, host=host, port=port, started=lambda url: typer.echo(f"listening at {url}"))


def _as_export(folder: Path) -> Path:
    """Return the folder of an export; a run is exported first, beside it."""
    if (folder / "serving.json").is_file() or not (folder / "decision.json").is_file():
        return folder
    from fastrec.serve.export import export_run

    made = folder.parent / f".{folder.name}.served"
    typer.echo(f"exporting the run to {made}")
    return export_run(folder, made).folder


def _token(file: Path | None) -> str | None:
    """Read the token from a file, or from the environment."""
    if file is None:
        return os.environ.get(_TOKEN) or None
    try:
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise MissingFileError(f"the token cannot be read ({error})", file=file) from error
    if not token or not token.isprintable():
        raise DataError("there is no token in it", file=file, remedy="Write one line with a token into it")
    return token
