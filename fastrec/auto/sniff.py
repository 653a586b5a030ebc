"""How a text file is written: its separator, whether its first line names the columns, what stands for missing."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path

from fastrec._core import limits
from fastrec.errors import DataError, UnreadableFileError
from fastrec.table.read import CsvForm, open_text

_SIGNS = (",", "\t", ";", "|")
_NUMBER = re.compile(r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*$")
CODE_TEXT = r"0\d+"  # 01234: of a place, a telephone
PART_NAME = re.compile(r"year|month|mnth|day|week|dow$|dom$|hour|minute", re.IGNORECASE)  # 01 is a month
_MARKS = ("?", "-", "--", "n/a", "missing", "unknown?", "#N/A", "#NA", "(null)", "\\N")
_OTHER = {b"\x1f\x8b": "compressed by gzip", b"PAR1": "Parquet", b"PK\x03\x04": "a zip archive"}  # by first bytes
_EXCEL = re.compile(r"\"?sep=.\"?\s*$", re.IGNORECASE)  # a first line that only Excel understands


def sniff(path: Path) -> CsvForm:
    """Judge by its first lines how a text file is written; columns without names become ``c0``, ``c1``, ….

    Args:
        path: a CSV file or the like.
    """
    lines = _first_lines(path)
    if not lines:
        return CsvForm()
    sign = _separator(path, lines)
    rows = _rows(lines, sign)
    spaced = sum(v[:1] == " " for r in rows[1:] for v in r[1:]) > 0.5 * sum(len(r) - 1 for r in rows[1:])
    named = _first_line_names(rows)
    usual = "\t" if ".tsv" in path.suffixes else ","
    return CsvForm(
        header=None if named else [f"c{i}" for i in range(len(rows[0]))],
        delimiter=f"{sign} " if spaced else None if sign == usual else sign,
        missing=_marks(rows[1:] if named else rows),
    )


def columns_of_codes(path: Path, form: CsvForm) -> list[str]:
    """Find columns of whole numbers of which some begin with zeros, as 01234: codes, which are text.

    Args:
        path: a CSV file or the like.
        form: how it is written.
    """
    rows = _rows(_first_lines(path), (form.delimiter or ("\t" if ".tsv" in path.suffixes else ","))[:1])
    if not rows:
        return []
    names, rows = (list(form.header), rows) if form.header is not None else (rows[0], rows[1:])
    found = []
    for i, name in enumerate(names):
        values = [v for r in rows if i < len(r) and (v := r[i].strip())]
        codes = sum(bool(re.fullmatch(CODE_TEXT, v)) for v in values)
        if codes > (1 - limits.PARSED_SHARE) * len(values) and all(re.fullmatch(r"\d+", v) for v in values):
            found.append(name.strip())
    return [n for n in found if not PART_NAME.search(n)]


def _first_lines(path: Path) -> list[str]:
    """Read the first lines that are not empty.

    Raises:
        UnreadableFileError: it is no text.
        DataError: the first line names the separator.
    """
    with open_text(path) as file:
        begin = file.read(4)
        kind = next((k for mark, k in _OTHER.items() if begin.startswith(mark)), None)
        if kind is not None:
            raise UnreadableFileError(
                f"the file is {kind}, whatever its name says", file=path, remedy="Give it the ending of its kind"
            )
        file.seek(0)
        text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="replace")
        found = [line for _, line in zip(range(200), text, strict=False) if line.strip()]
    if found and _EXCEL.match(found[0]):
        raise DataError(
            f"the first line is {found[0].strip()!r}, not the columns' names", file=path, row=0, remedy="Delete it"
        )
    return found


def _rows(lines: Sequence[str], sign: str) -> list[list[str]]:
    before = csv.field_size_limit(2**31 - 1)  # the usual limit is less than a long text
    try:
        return [r for r in csv.reader(lines, delimiter=sign) if r]
    finally:
        csv.field_size_limit(before)


def _separator(path: Path, lines: Sequence[str]) -> str:
    """Find the character that splits most lines into the same number of columns, two at least."""

    def width(sign: str) -> tuple[bool, int]:
        counts = [len(r) for r in _rows(lines, sign)]
        usual = max(set(counts), key=counts.count)
        return usual > 1 and counts[0] == usual and counts.count(usual) > 0.9 * len(counts), usual

    if ".tsv" in path.suffixes:
        return "\t"
    good = [(width(s)[1], -i, s) for i, s in enumerate(_SIGNS) if width(s)[0]]
    return max(good)[2] if good else ","


def _first_line_names(rows: Sequence[Sequence[str]]) -> bool:
    """Return whether the first line holds names: then columns of numbers do not begin with a number."""
    first, others = rows[0], rows[1:]
    if not others:
        return True
    if len(first) >= 4 and [v.strip() for v in first] in (
        [str(i) for i in range(len(first))],
        [str(i + 1) for i in range(len(first))],
    ):
        return True  # a frame's columns that were never named
    numbers = [
        i for i in range(len(first)) if sum(bool(_NUMBER.match(r[i])) for r in others if i < len(r)) > 0.8 * len(others)
    ]
    if not numbers:
        seen = [{r[i] for r in others if i < len(r)} for i in range(len(first))]
        return not any(v in some and len(some) < 0.5 * len(others) for v, some in zip(first, seen, strict=True))
    return sum(bool(_NUMBER.match(first[i])) or first[i].strip() in _MARKS for i in numbers) <= 0.5 * len(numbers)


def _marks(rows: Sequence[Sequence[str]]) -> list[str]:
    """Find marks of missing values such as ``?``: a few of a column's values, and no text of their own."""
    found = set()
    for column in zip(*[r for r in rows if len(r) == len(rows[0])], strict=False):
        values = [v.strip() for v in column]
        found |= {m for m in _MARKS if 0 < values.count(m) < 0.5 * len(values)}
    return sorted(found)
