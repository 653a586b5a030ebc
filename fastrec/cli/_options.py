"""Options that several commands have, each with the same words."""

from __future__ import annotations

from typing import Annotated

import typer

Device = Annotated[str, typer.Option(help="`auto`, `cpu` or `cuda`.")]
Every = Annotated[str, typer.Option(help="`hour`, `day`, `week`, or `value`: each value is a period.")]
Seed = Annotated[int, typer.Option(min=0, help="Of everything random.")]
Trust = Annotated[list[str] | None, typer.Option(help="A module of the run's own that may be imported.")]
