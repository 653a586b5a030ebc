"""Render templates. Values are text and are escaped, unless another template rendered them."""

from __future__ import annotations

from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup


def render(template: str, **values: Any) -> Markup:
    """Render a template of ``templates/``; the result is not escaped again in another template."""
    return Markup(_environment().get_template(template).render(values))


@cache  # templates are compiled once in a process
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("fastrec.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
