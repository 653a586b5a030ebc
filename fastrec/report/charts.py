"""Charts of the report as inline SVG and HTML, coloured by CSS variables so that they follow light and dark mode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fastrec.metrics import Interval

# Values are escaped, unless another template rendered them.
_LAYOUT: dict[str, Any] = {"undefined": StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
_TEMPLATES = Environment(loader=PackageLoader("fastrec.report"), autoescape=True, **_LAYOUT)


def render(template: str, **values: Any) -> Markup:
    """Render a template of ``templates/``."""
    return Markup(_TEMPLATES.get_template(template).render(values))


# about as wide as a phone, so that text is never scaled down
WIDTH, HEIGHT = 420, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 10, 12, 44  # margins


@dataclass(frozen=True)
class Line:
    """A line of a chart: points ``(x, y)`` and its style."""

    points: Sequence[tuple[float, float]]
    colour: str
    bold: bool = True  # thin: one of several lines with a mean
    title: str = ""


Shape = dict[str, Any]  # an SVG element: its tag, attributes, text, and its tooltip


def palette(models: Sequence[str]) -> dict[str, str]:
    """Assign a CSS colour to each model: grey to display order, eight colours in turn to the others."""
    coloured = [name for name in models if name != "display_order"]
    return {name: f"var(--c{i % 8})" for i, name in enumerate(coloured)} | {"display_order": "var(--c-grey)"}


def ticks(low: float, high: float, *, most: int = 5) -> list[float]:
    """Choose about ``most`` round numbers, from at or below ``low`` to at or above ``high``."""
    low, high = np.clip(np.nan_to_num([low, high]), -1e300, 1e300).tolist()  # a score may be infinite
    if high - low <= 1e-9 * max(abs(low), abs(high)):  # equal up to rounding
        low, high = low - 0.5, high + 0.5
    rough = (high - low) / max(1, most - 1)
    power = 10.0 ** np.floor(np.log10(rough))
    step = power * next(m for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.999)
    first, last = int(np.floor(low / step + 1e-9)), int(np.ceil(high / step - 1e-9))
    return [float(f"{i * step:.12g}") for i in range(first, last + 1)]


def line_chart(
    lines: Sequence[Line], *, x_label: str, y_label: str, x_names: Mapping[float, str] | None = None
) -> Markup:
    """Draw lines over a numeric axis, such as epochs, the last on top.

    ``x_names`` labels places of the horizontal axis; None: the numbers. Screen readers read ``y_label``.
    """
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points]
    y_ticks = ticks(min(ys), max(ys))
    x_low, x_high = min(xs), max(xs)
    if x_low == x_high:
        x_low, x_high = x_low - 0.5, x_high + 0.5
    across = _scale(x_low, x_high, _LEFT + 6, WIDTH - _RIGHT - 6)
    up = _scale(y_ticks[0], y_ticks[-1], HEIGHT - _BOTTOM, _TOP)
    counts = x_high - x_low >= 3  # epochs are whole, shares are not
    x_ticks = [t for t in ticks(x_low, x_high, most=7) if x_low <= t <= x_high and (t == int(t) or not counts)]
    names = {t: f"{t:g}" for t in x_ticks} if x_names is None else dict(x_names)
    if x_names is not None:  # as many as fit side by side
        most = max(2, int((WIDTH - _LEFT - _RIGHT) / (8 * max(map(len, names.values()), default=1))))
        names = dict(list(names.items())[:: max(1, -(-len(names) // most))])
    parts = _grid(y_ticks, up)
    parts += [_text(across(t), HEIGHT - _BOTTOM + 16, name, "middle") for t, name in names.items()]
    parts.append(_text((WIDTH + _LEFT) / 2, HEIGHT - 8, x_label, "middle"))
    for line in lines:
        places = [(across(x), up(y)) for x, y in sorted(line.points)]
        parts.append(_path(places, "bold" if line.bold else "thin", line.colour, title=line.title))
        if len(places) == 1 or (line.bold and len(places) <= 30):
            parts += [_dot(x, y, 3 if line.bold else 2, line.colour) for x, y in places]
    return _svg(parts, f"{y_label} by {x_label}")


def category_chart(
    labels: Sequence[str],
    notes: Sequence[str],
    series: Mapping[str, Sequence[float]],
    colours: Mapping[str, str],
    *,
    y_label: str,
    bars: bool,
) -> Markup:
    """Draw values of each model (``series``) over ordered categories, such as bins of the list length.

    ``notes`` has a smaller second line for each label, such as the number of lists. A model is a line or, for a few
    categories, ``bars`` from 0 with their values on top, all models side by side.
    """
    values = [*([0.0] if bars else []), *(v for of_model in series.values() for v in of_model)]
    y_ticks, band = ticks(min(values), max(values)), (WIDTH - _LEFT - _RIGHT) / len(labels)
    up = _scale(y_ticks[0], y_ticks[-1], HEIGHT - _BOTTOM, _TOP + 8)
    middles = [_LEFT + band * (i + 0.5) for i in range(len(labels))]
    parts, low = _grid(y_ticks, up), HEIGHT - _BOTTOM
    parts += [_text(x, low + 17, label, "middle", kind="name") for x, label in zip(middles, labels, strict=True)]
    parts += [_text(x, low + 32, note, "middle") for x, note in zip(middles, notes, strict=True)]
    width = min(44.0, band * 0.86 / len(series))
    for j, (name, of_model) in enumerate(series.items()):
        places = [(x, up(v)) for x, v in zip(middles, of_model, strict=True)]
        parts += [] if bars else [_path(places, "bold", colours[name])]
        for (x, y), value, label in zip(places, of_model, labels, strict=True):
            title, left = f"{name}, {label}: {value:.4f}", x + (j - len(series) / 2) * width
            if not bars:
                parts.append(_dot(x, y, 3.2, colours[name], title=title))
                continue
            size = {"width": width - 2, "height": max(0.0, up(0) - y), "rx": 2, "style": f"fill:{colours[name]}"}
            parts.append(_shape("rect", x=left + 1, y=y, **size, title=title))
            if width >= 19:
                short = f"{value:.2f}".removeprefix("0") if value < 1 else f"{value:.2f}"
                parts.append(_text(left + width / 2, y - 4, short, "middle", kind="value"))
    return _svg(parts, y_label)


def interval_chart(
    rows: Mapping[str, Interval], colours: Mapping[str, str], *, mark: float | None, mark_label: str
) -> Markup:
    """Draw a dot with its interval for each model, and a dashed line at ``mark``, if any."""
    step, left = 27, 112
    height = _TOP + step * len(rows) + (34 if mark is None else 50)
    ends = [end for row in rows.values() for end in (row.low, row.high)] + ([] if mark is None else [mark])
    x_ticks = ticks(min(ends), max(ends), most=6)
    across = _scale(x_ticks[0], x_ticks[-1], left, WIDTH - 18)
    bottom = _TOP + step * len(rows)
    parts = []
    for t in x_ticks:
        parts.append(_line("grid", across(t), across(t), _TOP, bottom))
        parts.append(_text(across(t), bottom + 17, _tick(t, x_ticks), "middle"))
    if mark is not None:
        x = across(mark)
        parts.append(_line("mark", x, x, _TOP, bottom + 22))
        parts.append(_text(x, bottom + 37, f"{mark_label} {mark:.4f}", "end" if x > WIDTH * 0.7 else "middle"))
    for i, (name, row) in enumerate(rows.items()):
        y = _TOP + step * (i + 0.5)
        colour, title = colours[name], f"{name}: {row.mean:.4f} [{row.low:.4f}, {row.high:.4f}]"
        parts.append(_text(left - 10, y + 4, _clip(name, 15), "end", kind="name"))
        parts.append(_line("whisker", across(row.low), across(row.high), y, y, style=f"stroke:{colour}"))
        parts.append(_dot(across(row.mean), y, 5, colour, title=title))
    return _svg(parts, "score and interval of each model", height=height)


def point_chart(points: Mapping[str, tuple[float, float]], marked: str, *, x_label: str, y_label: str) -> Markup:
    """Draw a dot with its name for each point, ``marked`` in colour; of more than twelve, name only the marked one."""
    top, left = _TOP + 16, _LEFT + 8
    xs, ys = zip(*points.values(), strict=True)
    x_ticks, y_ticks = ticks(min(xs), max(xs)), ticks(min(ys), max(ys))
    across = _scale(x_ticks[0], x_ticks[-1], left + 6, WIDTH - _RIGHT - 14)
    up = _scale(y_ticks[0], y_ticks[-1], HEIGHT - _BOTTOM, top)
    parts = [_line("grid", left, WIDTH - _RIGHT, up(t), up(t)) for t in y_ticks]
    parts += [_text(left - 7, up(t) + 4, _tick(t, y_ticks), "end") for t in y_ticks]
    parts += [_text(across(t), HEIGHT - _BOTTOM + 16, _tick(t, x_ticks), "middle") for t in x_ticks]
    parts += [_text((WIDTH + left) / 2, HEIGHT - 8, x_label, "middle"), _text(2, 12, y_label, "start")]
    written: list[tuple[float, float, float]] = []  # left and right end and height of names
    for name, (x, y) in points.items():
        is_marked = name == marked
        place, colour = (across(x), up(y)), "var(--c0)" if is_marked else "var(--c-grey)"
        parts.append(_dot(*place, 5 if is_marked else 4, colour, title=f"{name}: {x:.5f}, {y:.5f}"))
        if is_marked or len(points) <= 12:
            text, to_left = _clip(name, 22), place[0] > WIDTH * 0.65
            at = place[0] + (-9 if to_left else 9)
            ends = (at - 7 * len(text), at) if to_left else (at, at + 7 * len(text))
            heights = [place[1] + 4 + shift for shift in (0, 13, -13, 26, -26)]
            free = [
                h
                for h in heights
                if not any(ends[0] < end and start < ends[1] and abs(h - other) < 13 for start, end, other in written)
            ]
            written.append((*ends, (free or heights)[0]))
            parts.append(_text(at, written[-1][2], text, "end" if to_left else "start", kind="name"))
    return _svg(parts, f"{y_label} by {x_label}")


def bar_list(
    values: Mapping[str, float], texts: Sequence[str], *, colour: str = "var(--c0)", whole: float | None = None
) -> Markup:
    """Draw horizontal bars with names and texts, as HTML, whose text keeps its size on a phone.

    Bars below 0 go to the left, in another colour. ``whole`` is the value of a bar of full length, None: the largest.
    """
    low, high = min(values.values(), default=0.0), whole or max(values.values(), default=0.0)
    low = min(low, 0.0)
    length = (max(high, 0.0) - low) or 1.0
    bars = [
        {"name": name, "text": text, "from": 100 * (min(v, 0.0) - low) / length, "percent": 100 * abs(v) / length}
        | {"colour": colour if v >= 0 else "var(--c1)"}
        for (name, v), text in zip(values.items(), texts, strict=True)
    ]
    return render("bars.html", bars=bars)


def legend(names: Sequence[str], colours: Mapping[str, str]) -> Markup:
    """Render names with their colours, as HTML."""
    return render("legend.html", entries=[(name, colours[name]) for name in names])


def _scale(low: float, high: float, start: float, end: float):
    return lambda value: start + (value - low) / (high - low) * (end - start)


def _grid(y_ticks: Sequence[float], up) -> list[Shape]:
    shapes = []
    for t in y_ticks:
        shapes.append(_line("grid", _LEFT, WIDTH - _RIGHT, up(t), up(t)))
        shapes.append(_text(_LEFT - 7, up(t) + 4, _tick(t, y_ticks), "end"))
    return shapes


def _tick(value: float, all_ticks: Sequence[float]) -> str:
    # as many decimals as the step between ticks needs, so that no two ticks read the same
    step = all_ticks[1] - all_ticks[0]
    decimals = next((d for d in range(9) if abs(step - round(step, d)) < step * 1e-6), 9)
    return f"{value:,.{decimals}f}"


def _clip(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "\u2026"


def _text(x: float, y: float, text: str, anchor: str, *, kind: str = "tick") -> Shape:
    return _shape("text", class_=kind, x=x, y=y, text_anchor=anchor, text=text)


def _line(kind: str, x1: float, x2: float, y1: float, y2: float, **more: str) -> Shape:
    return _shape("line", class_=kind, x1=x1, x2=x2, y1=y1, y2=y2, **more)


def _path(places: Sequence[tuple[float, float]], kind: str, colour: str, *, title: str = "") -> Shape:
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    return _shape("polyline", class_=kind, points=points, style=f"stroke:{colour}", title=title)


def _dot(x: float, y: float, radius: float, colour: str, *, title: str = "") -> Shape:
    return _shape("circle", cx=x, cy=y, r=radius, style=f"fill:{colour}", title=title)


def _shape(tag: str, *, text: str = "", title: str = "", **attributes: float | str) -> Shape:
    # a tenth of a pixel is not visible
    texts = {n: f"{v:.1f}" if isinstance(v, float) else str(v) for n, v in attributes.items()}
    named = {n.rstrip("_").replace("_", "-"): v for n, v in texts.items()}
    return {"tag": tag, "attributes": named, "text": text, "title": title}


def _svg(shapes: Sequence[Shape], label: str, *, height: int = HEIGHT) -> Markup:
    return render("chart.svg", shapes=shapes, label=label, width=WIDTH, height=height)


@dataclass(frozen=True)
class Section:
    """One card of the page: ``data`` for its template, or ``absent``: why there is none."""

    title: str
    template: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""
    absent: str = ""


@dataclass(frozen=True)
class Panel:
    """A chart under a heading."""

    heading: str
    chart: Markup
    legend: str = ""  # markup, if any
