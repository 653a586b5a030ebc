"""Parts of the report's page: cards with panels and tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup


@dataclass(frozen=True)
class Section:
    """One card of the page: ``data`` for its template, or in ``absent`` why there is none."""

    title: str
    template: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""
    absent: str = ""


@dataclass(frozen=True)
class Panel:
    """A picture under a heading."""

    heading: str
    chart: Markup
    legend: str = ""  # markup, if any
