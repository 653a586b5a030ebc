"""``fastrec doctor``: what is installed here, and whether it works."""

from __future__ import annotations

import platform
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Column as RichColumn
from rich.table import Table as RichTable
from rich.text import Text

from fastrec._version import __version__
from fastrec.cli.app import app, readable_errors

_OK, _BAD, _ABSENT = Text("ok", "green"), Text("wrong", "bold red"), Text("absent", "yellow")


@app.command()
def doctor(device: Annotated[str, typer.Option(help="`auto`, `cpu` or `cuda`.")] = "auto") -> None:
    """Say versions, device, threads, memory and optional parts, and carry a small competition out from end to end.

    The exit code is 1 where the self-test fails, or a package is older than it may be.
    """
    with readable_errors() as stages:
        from fastrec._core.environment import machine
        from fastrec.competition.self_test import self_test

        console = Console()
        versions, sound = _versions()
        about = RichTable("machine", "", title_justify="left")
        for name, said in machine(device).items():
            about.add_row(name, Text(said))
        parts, remedies = _parts()
        for table in (versions, about, parts):
            console.print(table)
        for remedy in remedies:  # outside the table, whole: it is there to be copied
            console.print(f"  {remedy}", soft_wrap=True, markup=False, highlight=False)
        checks = self_test(device=device, stages=stages)
        tests = RichTable("self-test", "", "", "seconds")
        for check in checks:
            tests.add_row(check.name, _OK if check.ok else _BAD, Text(check.said), f"{check.seconds:.1f}")
        console.print(tests)
        if not sound or not all(c.ok for c in checks):
            raise typer.Exit(1)


def _versions() -> tuple[RichTable, bool]:
    """Return a table of the required packages, and whether each is new enough."""
    from fastrec._core.environment import REQUIRED, installed_version, is_older

    table = RichTable("package", "version", "at least", "")
    table.add_row("fastrec", __version__, "", "")
    table.add_row("python", platform.python_version(), "3.11", _OK)
    sound = True
    for name, floor in REQUIRED.items():
        found = installed_version(name)
        good = found is not None and not is_older(found, floor)
        sound &= good
        table.add_row(name, found or "none", floor, _OK if good else _BAD)
    return table, sound


def _parts() -> tuple[RichTable, list[str]]:
    """Return a table of the optional parts, and the commands that install the absent ones."""
    from fastrec._core.environment import PARTS, installed_version, is_older

    table, remedies = RichTable(*(RichColumn(h, overflow="fold") for h in ("optional part", "gives", "", ""))), []
    for part in PARTS:
        found = {n: installed_version(n) for n in part.packages}
        lacking = [n for n, v in found.items() if v is None or is_older(v, part.packages[n])]
        there = Text(", ".join(f"{n} {v}" for n, v in found.items() if v is not None))
        remedies += [part.install] if lacking else []
        table.add_row(part.extra, part.gives, _ABSENT if lacking else _OK, Text() if lacking else there)
    return table, remedies
