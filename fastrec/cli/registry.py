"""``fastrec promote``, ``fastrec rollback``, ``fastrec versions``: which version of a model is in use."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table as RichTable

from fastrec.cli._options import Trust
from fastrec.cli.app import app, readable_errors, trusted
from fastrec.errors import MissingFileError

_REGISTRY = Annotated[Path, typer.Option(help="The registry's folder.", show_default=False)]
_WHY = Annotated[str, typer.Option(help="A word for the history.")]


@app.command()
def promote(
    source: Annotated[str, typer.Argument(help="A run, an export, or a version's number.", show_default=False)],
    registry: _REGISTRY,
    why: _WHY = "",
    export: Annotated[bool, typer.Option(help="Of a run: make its export too, which a server needs.")] = True,
    data: Annotated[Path | None, typer.Option(help="Of a run: its data; the events so far go along.")] = None,
    trust: Trust = None,
) -> None:
    """Make a run, an export or an earlier version the current one, at once; a server of the registry takes it over."""
    with readable_errors("what was current still is"):
        from fastrec.registry import Registry

        folder = Registry(registry)
        if source.isdigit() and not Path(source).exists():
            made = folder.promote(int(source), why=why)
        elif export and (Path(source) / "decision.json").is_file():
            from fastrec.serve.export import export_run

            with tempfile.TemporaryDirectory() as beside:
                exported = export_run(source, Path(beside) / "export", data=data, trust=trusted(trust)).folder
                made = folder.promote(source, export=exported, why=why)
        else:
            made = folder.promote(source, why=why)
        typer.echo(f"version {made.number} is current: {made.folder}")


@app.command()
def rollback(registry: _REGISTRY, why: _WHY = "") -> None:
    """Make the previous version the current one again."""
    with readable_errors("what was current still is"):
        from fastrec.registry import Registry

        made = Registry(_there(registry)).rollback(why=why)
        typer.echo(f"version {made.number} is current: {made.folder}")


@app.command()
def versions(registry: _REGISTRY) -> None:
    """List a registry's versions and what was done with them."""
    with readable_errors():
        from fastrec.registry import Registry

        found = Registry(_there(registry))
        current, previous = found.current, found.previous
        table = RichTable("version", "in use", "added", "of", "holds", "why")
        for v in found.versions:
            use = "current" if v == current else "previous" if v == previous else ""
            holds = ", ".join(n for n in ("run", "export") if getattr(v, n) is not None)
            table.add_row(str(v.number), use, v.added, Path(v.source).name, holds, v.why)
        Console().print(table)
        for record in found.history[-20:]:
            typer.echo(f"{record['at']}  {record['what']} {record['version'] or ''}  {record['why']}".rstrip())


def _there(folder: Path) -> Path:
    from fastrec.registry import is_registry

    if not is_registry(folder):
        raise MissingFileError("there is no registry", file=folder, remedy="Promote a run into it first")
    return folder
