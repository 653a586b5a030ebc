"""Templates → markup. What is put into a template is text and is escaped, unless another template made it."""

from __future__ import annotations

from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup


def render(template: str, **values: Any) -> Markup:
    """Fill in one of the templates.

    Args:
        template: its file's name.
        values: what it calls for.

    Returns:
        The markup, which other templates take as it is.
    """
    return Markup(_environment().get_template(template).render(values))


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("fastrec.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
