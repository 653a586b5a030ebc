"""Drawings as inline SVG, in the page's own colours, so that they look right in light and in dark.

``{sees}`` draws a small table and which of its cells a feature reads for one row. The first line names the columns; a
cell may begin with a mark: ``*`` the row that gets the value, ``+`` read for it, ``!`` must not be read. What follows
the last bar is a note. ``{rooms}`` draws the library's rooms.
"""

from __future__ import annotations

from html import escape
from textwrap import wrap
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

MARKS = {"*": "own", "+": "read", "!": "barred"}
LEGEND = {"own": "the row that gets the value", "read": "read for it", "barred": "must not be read"}
ROW, PAD, LETTER = 30, 12, 8.2  # heights and widths in SVG units


class Sees(SphinxDirective):
    """What a feature reads for one row; the argument says the same in words."""

    required_arguments = 1
    final_argument_whitespace = True
    has_content = True

    def run(self) -> list[nodes.Node]:
        """Return the drawing as a figure."""
        rows = [[cell.strip() for cell in line.split("|")] for line in self.content if line.strip()]
        width = len(rows[0])
        odd = [row for row in rows if len(row) not in (width, width + 1)]
        if odd:
            raise self.error(f"a row of {len(odd[0])} cells under {width} names: {odd[0]}")
        return [_figure(grid(rows, self.arguments[0]), self.arguments[0])]


class Rooms(SphinxDirective):
    """The rooms of the library and what passes between them."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        """Return the drawing as a figure."""
        return [_figure(rooms(self.arguments[0]), self.arguments[0])]


def grid(rows: list[list[str]], title: str) -> str:
    """Draw a table as SVG.

    Args:
        rows: cells by row, the names of the columns first; one more cell than names is a note.
        title: what it shows, for those who do not see it.
    """
    names = rows[0]
    plain = [[cell[1:] if cell[:1] in MARKS else cell for cell in row[: len(names)]] for row in rows]
    widths = [max(len(row[i]) for row in plain) * LETTER + 2 * PAD for i in range(len(names))]
    left = [sum(widths[:i]) for i in range(len(names) + 1)]
    parts = [_text(x + w / 2, ROW / 2, name, "head") for x, w, name in zip(left, widths, names, strict=False)]
    used = []
    for r, row in enumerate(rows[1:], 1):
        for c, cell in enumerate(row[: len(names)]):
            mark = MARKS.get(cell[:1], "idle")
            used.append(mark)
            parts.append(_box(left[c], r * ROW, widths[c], ROW, mark))
            parts.append(_text(left[c] + widths[c] / 2, (r + 0.5) * ROW, plain[r][c], mark))
            if mark == "barred":
                parts.append(_line(left[c] + 5, (r + 1) * ROW - 6, left[c] + widths[c] - 5, r * ROW + 6, "strike"))
        if len(row) > len(names) and row[-1]:
            parts.append(_text(left[-1] + PAD, (r + 0.5) * ROW, row[-1], "note", "start"))
    notes = [len(row[-1]) for row in rows if len(row) > len(names)]
    wide = left[-1] + PAD + max(notes, default=0) * 7.4
    x, y = 0.0, (len(rows) + 0.5) * ROW
    for mark, said in LEGEND.items():
        if mark in used:
            parts += [_box(x, y, 16, 16, mark), _text(x + 23, y + 8, said, "small", "start")]
            x += 23 + len(said) * 6.9 + 16
    return _svg(max(wide, x) + 4, y + 22, parts, title)


# name, what it does, x, y, width
_FLOW = [
    ("table", "names, codes, tensors", 165, 70, 150),
    ("features", "targets, counts, time …", 345, 70, 170),
    ("tabular", "procs, batches, Parquet", 545, 70, 170),
    ("training", "fastai's Learner", 745, 70, 150),
    ("segments", "sums, ranks, windows", 345, 150, 170),
    ("models", "DLRM, DCN-v2, TabM …", 545, 150, 170),
    ("losses, optim", "and metrics of lists", 735, 150, 170),
    ("retrieval", "who took what: kNN, EASE", 345, 350, 170),
    ("validate", "frozen folds", 165, 270, 150),
    ("estimators", "nets, XGBoost, rules", 345, 270, 170),
    ("stacking", "one score of many", 545, 270, 170),
    ("competition", "a recipe, carried out", 745, 270, 150),
    ("trials", "what an idea is worth", 545, 350, 170),
    ("tuning", "better settings", 165, 350, 150),
    ("sequences", "what is next", 165, 150, 150),
    ("serve", "raw columns to scores", 745, 430, 150),
    ("registry", "versions, and back", 545, 430, 170),
    ("monitor", "drift, gates, retraining", 345, 430, 170),
    ("scale", "Dask, processes, disks", 165, 430, 150),
]
_ARROWS = [
    (130, 97, 163, 97),
    (130, 297, 163, 297),
    (315, 97, 343, 97),
    (515, 97, 543, 97),
    (715, 97, 743, 97),
    (430, 150, 430, 126),
    (820, 150, 820, 126),
    (715, 165, 743, 126),
    (820, 324, 820, 356),
    (820, 398, 820, 428),
    (750, 378, 717, 378),
    (315, 297, 343, 297),
    (515, 297, 543, 297),
    (715, 297, 743, 297),
]


def rooms(title: str) -> str:
    """Draw the rooms as SVG."""
    parts = [
        _text(0, y, said, "head", "start") for y, said in ((30, "one table, one net"), (246, "many models, one score"))
    ]
    for y, word, more in (
        (70, "frames, files", "pandas, polars, Arrow, cuDF, Parquet"),
        (270, "candidates", "lists with features"),
    ):
        parts += [_text(0, y + 20, word, "strong", "start")]
        parts += [_text(0, y + 40 + 15 * i, part, "small", "start") for i, part in enumerate(wrap(more, 20))]
    for name, does, x, y, width in _FLOW:
        parts += [_box(x, y, width, 54, "room", 6), _text(x + width / 2, y + 20, name, "strong")]
        parts.append(_text(x + width / 2, y + 39, does, "small"))
    parts += [_line(*a, "arrow") for a in _ARROWS]
    parts.append(_text(905, 370, "a run directory:", "small", "end"))
    parts.append(_text(905, 385, "submission, scores, report", "small", "end"))
    parts += [_box(0, 500, 905, 34, "ground", 6)]
    parts.append(_text(452, 517, "_core: device, memory, threads, whole files", "small"))
    return _svg(910, 540, parts, title)


def _svg(width: float, height: float, parts: list[str], title: str) -> str:
    tip = (
        '<defs><marker id="fr-tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
        'orient="auto"><path d="M0 0 L8 4 L0 8 z" class="fr-tip"/></marker></defs>'
    )
    tip = tip if any("marker-end" in part for part in parts) else ""
    return (
        f'<svg class="fr" role="img" viewBox="-2 -2 {width + 4:.0f} {height + 4:.0f}" width="{width + 4:.0f}" '
        f'xmlns="http://www.w3.org/2000/svg"><title>{escape(title)}</title>{tip}{"".join(parts)}</svg>'
    )


def _box(x: float, y: float, width: float, height: float, kind: str, round_by: int = 0) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height}" rx="{round_by}" class="fr-{kind}"/>'


def _text(x: float, y: float, text: str, kind: str, anchor: str = "middle") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" dy=".35em" text-anchor="{anchor}" class="fr-text fr-text-{kind}">'
        f"{escape(text)}</text>"
    )


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    tip = ' marker-end="url(#fr-tip)"' if kind == "arrow" else ""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="fr-{kind}"{tip}/>'


def _figure(svg: str, caption: str) -> nodes.Node:
    figure = nodes.figure("", nodes.raw("", svg, format="html"), classes=["fr-figure"])
    figure += nodes.caption(caption, caption)
    return figure


def setup(app: Sphinx) -> dict[str, Any]:
    """Sphinx calls this."""
    app.add_directive("sees", Sees)
    app.add_directive("rooms", Rooms)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
