"""Text for the pages of a workspace: Python as a person lays it out; names from files, which must not become code."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import Any

from fastrec._core import limits


def laid_out(value: Any, indent: int, *, used: int = 0) -> str:
    """Return the expression that makes a value, broken into lines if it is long.

    Args:
        value: anything whose ``repr`` is Python: numbers, texts, lists, generators.
        indent: of the line that it stands in, in spaces.
        used: how much of its first line is taken by what stands before it.
    """
    return _node(ast.parse(repr(value), mode="eval").body, indent, indent + used)


def one_line(text: str) -> str:
    """Return text as one line: line ends and invisible characters are escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def for_docstring(text: str) -> str:
    """Escape text so that it ends neither a docstring nor its line."""
    return one_line(text).replace("\\", "\\\\").replace('"', '\\"')


def for_cell(text: str) -> str:
    """Escape text so that it does not end the cell of a Markdown table."""
    return one_line(text).replace("|", "\\|")


def as_code(text: str) -> str:
    """Return text as Markdown's code, whatever backticks it holds."""
    text = one_line(text)
    ticks = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{ticks} {text} {ticks}" if len(ticks) > 1 else f"`{text}`"


def _node(node: ast.expr, indent: int, used: int) -> str:
    flat = _quoted(ast.unparse(node))
    if used + len(flat) + 1 <= limits.CODE_WIDTH:
        return flat
    if isinstance(node, ast.Call):
        parts = [("", a) for a in node.args] + [(f"{k.arg}=", k.value) for k in node.keywords]
        return _block(f"{ast.unparse(node.func)}(", parts, ")", indent)
    if isinstance(node, ast.List | ast.Tuple):
        marks = "[]" if isinstance(node, ast.List) else "()"
        if all(isinstance(e, ast.Constant) for e in node.elts):
            return _filled(node.elts, marks, indent)
        return _block(marks[0], [("", e) for e in node.elts], marks[1], indent)
    if isinstance(node, ast.Dict):
        parts = [
            (f"{_quoted(ast.unparse(k))}: ", v) for k, v in zip(node.keys, node.values, strict=True) if k is not None
        ]
        return _block("{", parts, "}", indent)
    return flat


def _block(opening: str, parts: Sequence[tuple[str, ast.expr]], closing: str, indent: int) -> str:
    inner = indent + 4
    lines = [f"{' ' * inner}{name}{_node(value, inner, inner + len(name))}," for name, value in parts]
    return "\n".join([opening, *lines, " " * indent + closing])


def _filled(elements: Sequence[ast.expr], marks: str, indent: int) -> str:
    inner, lines = " " * (indent + 4), [""]
    for text in (_quoted(ast.unparse(e)) for e in elements):
        if lines[-1] and len(inner) + len(lines[-1]) + len(text) + 2 > limits.CODE_WIDTH:
            lines.append("")
        lines[-1] += f"{' ' if lines[-1] else ''}{text},"
    return "\n".join([marks[0], *(inner + line for line in lines), " " * indent + marks[1]])


def _quoted(text: str) -> str:
    """Put texts in double quotation marks, if that needs no escaping."""
    if '"' in text or "\\" in text or '"' in text:
        return text
    return text.replace("'", '"')
