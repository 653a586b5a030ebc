"""What each column of a table is: an id, a category, a number, a time, a list in text, free text, or nothing."""

from __future__ import annotations

import csv
import io
import re
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from fastrec._core import limits
from fastrec.competition.reading import COMMA_TEXT, ENDINGS, LETTERS, NUMBER_TEXT, Reading
from fastrec.errors import DataError, MissingFileError, UnreadableFileError
from fastrec.table import Table
from fastrec.table.column_types import as_type, differing, types_of
from fastrec.table.read import CsvForm, open_text, read_file

# How a text file is written: its separator, whether its first line names the columns, what stands for missing.

_SIGNS = (",", "\t", ";", "|")
_NUMBER = re.compile(r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*$")
CODE_TEXT = r"0\d+"  # 01234: of a place, a telephone
PART_NAME = re.compile(r"year|month|mnth|day|week|dow$|dom$|hour|minute", re.IGNORECASE)  # 01 is a month
_MARKS = ("?", "-", "--", "n/a", "missing", "unknown?", "#N/A", "#NA", "(null)", "\\N")
_OTHER = {b"\x1f\x8b": "compressed by gzip", b"PAR1": "Parquet", b"PK\x03\x04": "a zip archive"}  # by first bytes
_EXCEL = re.compile(r"\"?sep=.\"?\s*$", re.IGNORECASE)  # a first line that only Excel understands


def sniff(path: Path) -> CsvForm:
    """Judge by its first lines how a text file is written; columns without names become ``c0``, ``c1``, …."""
    lines = _first_lines(path)
    if not lines:
        return CsvForm()
    sign = _separator_sniff(path, lines)
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
    """Find columns of whole numbers of which some begin with zeros, as 01234: codes, which are text."""
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
    """Read the first lines that are not empty; refuse what is no text, or names the separator in its first line."""
    with open_text(path) as file:
        begin = file.read(4)
        kind = next((k for mark, k in _OTHER.items() if begin.startswith(mark)), None)
        if kind is not None:
            problem = f"the file is {kind}, whatever its name says"
            raise UnreadableFileError(problem, file=path, remedy="Give it the ending of its kind")
        file.seek(0)
        text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="replace")
        found = [line for _, line in zip(range(200), text, strict=False) if line.strip()]
    if found and _EXCEL.match(found[0]):
        problem = f"the first line is {found[0].strip()!r}, not the columns' names"
        raise DataError(problem, file=path, row=0, remedy="Delete it")
    return found


def _rows(lines: Sequence[str], sign: str) -> list[list[str]]:
    before = csv.field_size_limit(2**31 - 1)  # the usual limit is less than a long text
    try:
        return [r for r in csv.reader(lines, delimiter=sign) if r]
    finally:
        csv.field_size_limit(before)


def _separator_sniff(path: Path, lines: Sequence[str]) -> str:
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
    counted = [[str(i + start) for i in range(len(first))] for start in (0, 1)]
    if len(first) >= 4 and [v.strip() for v in first] in counted:
        return True  # a frame's columns that were never named
    below = [[r[i] for r in others if i < len(r)] for i in range(len(first))]
    numbers = [i for i, values in enumerate(below) if sum(map(bool, map(_NUMBER.match, values))) > 0.8 * len(others)]
    if not numbers:
        return not any(v in some and len({*some}) < 0.5 * len(others) for v, some in zip(first, below, strict=True))
    return sum(bool(_NUMBER.match(first[i])) or first[i].strip() in _MARKS for i in numbers) <= 0.5 * len(numbers)


def _marks(rows: Sequence[Sequence[str]]) -> list[str]:
    """Find marks of missing values such as ``?``: a few of a column's values, and no text of their own."""
    found = set()
    for column in zip(*[r for r in rows if len(r) == len(rows[0])], strict=False):
        values = [v.strip() for v in column]
        found |= {m for m in _MARKS if 0 < values.count(m) < 0.5 * len(values)}
    return sorted(found)


Kind = Literal["constant", "duplicate", "id", "category", "number", "time", "list", "text", "other"]

_ID_NAME = re.compile(
    r"(^|[_\W])(id|uuid|guid|key|index|row(num|id|name)?)s?\d*$|(Id|ID)$|^Unnamed|^__index_level_", re.IGNORECASE
)
_TIME_NAME = re.compile(
    r"(?<![a-z])(date|time|timestamp|day|dt|ts|when|datetime)(?![a-z])|(Date|Time)$|_at$", re.IGNORECASE
)
_DATE_FORMS = (
    None, "%Y-%m-%d", "%Y/%m/%d", "%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y-%m-%d %H:%M:%S",
    "%Y-%m-%d %H:%M", "%d/%m/%Y %H:%M", "%m/%d/%Y %H:%M", "%d/%m/%Y %H:%M:%S", "%m/%d/%Y %H:%M:%S", "%d.%m.%Y %H:%M",
    "%Y/%m/%d %H:%M:%S", "%m/%d/%Y %I:%M %p", "%m/%d/%Y %I:%M:%S %p", "%d %b %Y", "%b %d, %Y", "%d-%b-%Y", "%d-%b-%y",
    "%B %d, %Y", "%m/%d/%y", "%d/%m/%y", "%m/%d/%y %H:%M", "%d/%m/%y %H:%M", "%m/%d/%y %I:%M %p", "%d.%m.%y",
    "%d.%m.%y %H:%M", "%d.%m.%Y %H:%M:%S", "%a %b %d %H:%M:%S %Y", "%a, %d %b %Y %H:%M:%S",
)  # fmt: skip
_SEPARATORS = ("|", ";", ",", " ")
_BARE = r"-?\d+"
_LONG = r"\d{16,}"  # so many digits in one are an id
_COMMA_DECIMALS = re.compile(r",(?:\d{1,2}|\d{4,})(?:\D|$)|\.\d{3},|(?:^|\D)0,\d")  # no comma between thousands is so


@dataclass
class ColumnInfo:
    """The kind of a column, and its properties.

    ``missing``: the share of missing values; ``form``: the format of times in text, or the separator of lists in text;
    ``whole``: whole numbers; ``key``: values repeat often enough to learn something about each; ``numeric_text``:
    numbers in text; ``decimal_comma``: with decimal commas; ``parse``: times in text or whole numbers.
    """

    name: str
    kind: Kind
    distinct: int
    missing: float
    why: str = ""
    form: str | None = None
    whole: bool = False
    key: bool = False
    numeric_text: bool = False
    decimal_comma: bool = False
    parse: bool = False


def look_at(table: pa.Table, skip: Sequence[str] = (), test: pa.Table | None = None) -> list[ColumnInfo]:
    """Find out what each training column but ``skip`` is; the test rows' values of a column of text count too."""
    made: list[ColumnInfo] = []
    seen: dict[tuple[object, ...], str] = {}
    for name in table.column_names:
        if name in skip:
            continue
        column = table[name]
        if test is not None and name in test.column_names:
            column = pa.chunked_array([*column.cast(pa.string()).chunks, *test[name].cast(pa.string()).chunks])
        info = look_at_column(name, column)
        if info.kind not in ("constant", "other", "list"):
            # A few values tell most different columns apart.
            own, n = table[name], len(table)
            some = own.take(pa.array(sorted({min(int(i * n / 50), n - 1) for i in range(50)})))
            twin = seen.setdefault((str(own.type), own.null_count, *some.to_pylist()), name)
            if twin != name and table[twin].combine_chunks().equals(table[name].combine_chunks()):
                info = ColumnInfo(name, "duplicate", info.distinct, info.missing, f"the same values as {twin}")
        made.append(info)
    return made


def look_at_column(name: str, column: pa.ChunkedArray) -> ColumnInfo:
    """Find out what a column is."""
    kind, n = column.type, len(column)
    missing = column.null_count / max(n, 1)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return ColumnInfo(name, "list", 0, missing, "lists")
    if pa.types.is_nested(kind) or pa.types.is_binary(kind):
        return ColumnInfo(name, "other", 0, missing, f"of type {kind}, which nothing learns from")
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
        kind = column.type
    if pa.types.is_floating(kind):
        column = pc.if_else(pc.is_nan(column), pa.scalar(None, kind), column)
        missing = column.null_count / max(n, 1)
    distinct = 0 if pa.types.is_null(kind) else pc.count_distinct(column, mode="only_valid").as_py()
    if distinct == 0 or (distinct == 1 and missing == 0):
        why = "one value in all rows" if distinct else "no value at all"
        return ColumnInfo(name, "constant", distinct, missing, why)
    if pa.types.is_temporal(kind):
        return ColumnInfo(name, "time", distinct, missing, "times")
    if pa.types.is_boolean(kind):
        return ColumnInfo(name, "category", distinct, missing, "yes or no")
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _look_at_text(name, column, distinct, missing, n)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return _look_at_numbers(name, column, distinct, missing, n)
    return ColumnInfo(name, "other", distinct, missing, f"of type {kind}, which nothing learns from")


def _look_at_numbers(name: str, column: pa.ChunkedArray, distinct: int, missing: float, n: int) -> ColumnInfo:
    values = column.cast(pa.float64(), safe=False).drop_null()
    whole = bool(pc.all(pc.and_(pc.equal(values, pc.floor(values)), pc.is_finite(values))).as_py())
    low, high = (v.as_py() for v in pc.min_max(values).values())
    filled = n * (1 - missing)
    if whole and missing == 0 and distinct == n and n > 20 and (_ID_NAME.search(name) or high - low == n - 1):
        return ColumnInfo(name, "id", distinct, missing, "another whole number in every row", whole=True)
    if whole and _TIME_NAME.search(name) and low >= 19_000_101 and high <= 21_001_231 and _are_times(column, "%Y%m%d"):
        why = "dates written as whole numbers"
        return ColumnInfo(name, "time", distinct, missing, why, form="%Y%m%d", parse=True)
    # A number may be a key if each value has five rows or more.
    key = whole and 2 < distinct <= 20_000 and filled / distinct >= 5.0
    if whole and _ID_NAME.search(name) and distinct > 30 and key:
        return ColumnInfo(name, "category", distinct, missing, "numbers that name something", whole=True, key=True)
    return ColumnInfo(name, "number", distinct, missing, "numbers", whole=whole, key=key)


def _look_at_text(name: str, column: pa.ChunkedArray, distinct: int, missing: float, n: int) -> ColumnInfo:
    counted = pc.value_counts(column.drop_null()).slice(0, limits.SNIFFED_TEXTS)
    texts = pd.Series(counted.field("values").cast(pa.string()).to_pandas(), dtype="object").str.strip()
    rows = pd.Series(counted.field("counts").to_pandas())[texts != ""]
    texts = texts[texts != ""]
    filled = n * (1 - missing)
    if not len(texts):
        return ColumnInfo(name, "constant", distinct, missing, "empty texts")
    written = not texts.str.fullmatch(_LONG).any()
    padded = PART_NAME.search(name) is not None  # 01 is a month, 01234 a code
    if written and _are_numbers(texts, rows, COMMA_TEXT, padded) and texts.str.contains(_COMMA_DECIMALS).any():
        why = "numbers with a decimal comma"
        return ColumnInfo(name, "number", distinct, missing, why, numeric_text=True, decimal_comma=True)
    if written and _are_numbers(texts, rows, NUMBER_TEXT, padded):
        # A blank among numbers made the column text: nobody meant it to be.
        blank = len(texts) < len(counted)
        whole = bool(texts.str.fullmatch(_BARE).all()) and not padded and not blank
        why = "whole numbers in text" if whole else "numbers with signs around them"
        return ColumnInfo(name, "number", distinct, missing, why, whole=whole, numeric_text=True)
    letters = texts.str.extract(f"^({LETTERS})", expand=False)
    if PART_NAME.search(name) and distinct > 2 and bool(letters.notna().all() and letters.nunique() == 1):
        why = "numbers with the same letters before them"
        return ColumnInfo(name, "number", distinct, missing, why, whole=True, key=True, numeric_text=True)
    some = texts.iloc[:2_000]  # enough to tell what cannot be times
    if all(some.str.contains(part).mean() >= limits.PARSED_SHARE for part in (r"\d", r"[-/.:, ]")):
        for form in _DATE_FORMS:
            if _are_times(some, form) and _are_times(texts, form):
                return ColumnInfo(name, "time", distinct, missing, "times in text", form=form, parse=True)
    # times were looked for first: they too have separators
    words = texts.str.split().str.len()
    separator = _separator(texts)
    if separator is not None:
        return ColumnInfo(name, "list", distinct, missing, f"values separated by {separator!r}", form=separator)
    if words.mean() >= 4 and distinct > 0.2 * filled and distinct > 50:
        return ColumnInfo(name, "text", distinct, missing, f"texts of {words.mean():.0f} words on average")
    if distinct > 0.95 * filled and distinct > 50:
        if words.mean() >= 2:
            return ColumnInfo(name, "text", distinct, missing, "short texts, hardly one twice")
        return ColumnInfo(name, "id", distinct, missing, "another text in every row")
    return ColumnInfo(name, "category", distinct, missing, f"{distinct} different texts", key=filled / distinct >= 2)


def names_something(values: np.ndarray, label: np.ndarray) -> bool:
    """Tell whether whole numbers (float64 ``[n]``) name something: a value predicts more than the values next to it.

    A row is predicted by the mean label (float64 ``[n, k]``: flags of classes, or an amount) of the other rows of its
    value, and by that of the rows with the nearest other values, both shrunk towards the mean of all. Numbers are names
    if the first is better by two standard errors, and the second gains less than a quarter of it.
    """
    _, code, count = np.unique(values, return_inverse=True, return_counts=True)
    y, smooth = label - label.mean(0), limits.NAMES_SMOOTH
    total = np.zeros((len(count), y.shape[1]))
    np.add.at(total, code, y)
    own = (total[code] - y) / (count[code, None] - 1 + smooth)
    ends, sums = np.append(0, count.cumsum()), np.vstack([np.zeros(y.shape[1]), total.cumsum(0)])
    low = np.maximum(np.searchsorted(ends, ends[:-1] - limits.NAMES_NEAR, side="right") - 1, 0)
    high = np.minimum(np.searchsorted(ends, ends[1:] + limits.NAMES_NEAR), len(count))
    near = (sums[high] - sums[low] - total) / (ends[high] - ends[low] - count + smooth)[:, None]
    by_own, by_near = ((y**2 - (y - said) ** 2).sum(1) for said in (own, near[code]))
    better = by_own - by_near
    return bool(better.mean() > 2 * better.std() / len(y) ** 0.5 and by_near.sum() < by_own.sum() / 4)


def _are_numbers(texts: pd.Series, rows: pd.Series, pattern: str, padded: bool) -> bool:
    """Return whether the texts of nearly all rows are numbers; ``padded``: numbers may begin with zeros."""
    fit = texts.str.fullmatch(pattern)
    if not padded:
        fit &= ~texts.str.fullmatch(CODE_TEXT)
    share = rows[fit].sum() / rows.sum()
    return bool(share >= limits.PARSED_SHARE and fit.sum() > 2 and texts.str.contains(r"\d").all())


def _are_times(values: pd.Series | pa.ChunkedArray, form: str | None) -> bool:
    if not isinstance(values, pd.Series):
        whole = pc.unique(values).drop_null().slice(0, limits.SNIFFED_TEXTS).cast(pa.int64())
        values = pd.Series(whole.to_pandas()).astype(str)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = pd.to_datetime(values, format=form or "ISO8601", errors="coerce", utc=True)
    return bool(made.notna().mean() >= limits.PARSED_SHARE)


def _separator(texts: pd.Series) -> str | None:
    """Find the separator of lists in text: few distinct values, which occur in many lists."""
    for sign in _SEPARATORS:
        held = texts.str.contains(sign, regex=False).mean()
        if held < (0.3 if sign in "|;" else 0.5):
            continue
        parts = texts.str.split(sign).explode().str.strip()
        different = parts.nunique()
        again = len(parts) / max(different, 1)
        longest = parts.str.len().quantile(0.95)
        if sign == " " and (held < 0.8 or parts.str.contains(r"[\d_]").mean() < 0.8):
            continue  # words of a text
        if different <= 2_000 and again >= 3 and longest <= 40 and len(texts) > 1.5 * different:
            return sign
    return None


# Which of a folder's files are the training rows, the test rows, the sample submission, and side tables.

_PLAIN_TEXT = (".data", ".txt", ".dat", ".tab")
_SHEETS = {".xls", ".xlsx", ".ods"}
_SAMPLE = re.compile(r"sample|submission", re.IGNORECASE)
_TRAIN, _TEST = re.compile(r"train", re.IGNORECASE), re.compile(r"test|predict|unlabel", re.IGNORECASE)
_TRUTH = re.compile(r"truth|solution", re.IGNORECASE)


@dataclass
class Files:
    """A folder's tables by role (``train``, ``test``, ``sample``), side tables by name; ``log``: the file of events."""

    folder: Path
    names: dict[str, str]
    tables: dict[str, pa.Table]
    side: dict[str, pa.Table] = field(default_factory=dict)
    reading: Reading = field(default_factory=Reading)
    why: dict[str, str] = field(default_factory=dict)
    log: Path | None = None


def read_files(data: Path, log: str | Path | None = None) -> Files:
    """Read a folder in Kaggle's manner (train, test, sample submission), a folder with other names, or one file.

    ``log`` is the file in that folder with the events of a ranking. A folder without plain training rows is refused.
    """
    paths = _paths(data)
    folder = data if data.is_dir() else data.parent
    events = None if log is None else folder / Path(log).name
    if events is not None:
        if not events.is_file() or (Path(log).is_file() and not events.samefile(log)):
            remedy = f"Put it there: a run reads candidates and log from one folder, {folder}"
            raise MissingFileError("the log is not in the folder of the candidates", file=events, remedy=remedy)
        paths = list(dict.fromkeys([*paths, events]))
    rows = [p for p in paths if p != events]
    forms = {p: CsvForm() if p.suffix.lower() in (".parquet", ".pq") else sniff(p) for p in paths}
    # one file alone is the training rows, whatever its name
    sample = next((p for p in rows if _SAMPLE.search(_stem(p))), None) if len(rows) > 1 else None
    rest = [p for p in paths if p != sample and not (len(rows) > 1 and p in rows and _TRUTH.search(_stem(p)))]
    tables = {p: read_file(p, form=forms[p]) for p in rest}
    of_rows = {p: t for p, t in tables.items() if p != events}
    train, why = _train_of(of_rows, data)
    test = _test_of(of_rows, train)
    made = Files(folder, {"train": train.name}, {"train": tables[train]}, why={"train": why}, log=events)
    if test is not None:
        made.names["test"], made.tables["test"] = test.name, tables[test]
        made.why["test"] = f"{test.name} has its columns"
    if sample is not None:
        made.names["sample"], made.tables["sample"] = sample.name, read_file(sample, form=forms[sample])
        made.why["sample"] = "its name says so"
    form = forms[train]
    usual = {"train": "train", "test": "test", "sample": "sample_submission"}
    odd = {r: n for r, n in made.names.items() if _stem(folder / n) != usual[r] or not n.lower().endswith(ENDINGS)}
    names = {("sample_submission" if r == "sample" else r): n for r, n in odd.items()}
    made.reading = Reading(files=names, header=form.header, delimiter=form.delimiter, missing=list(form.missing))
    codes = [] if train.suffix.lower() in (".parquet", ".pq") else columns_of_codes(train, form)
    made.reading.texts = list(dict.fromkeys([*differing(made.tables["train"], made.tables.get("test")), *codes]))
    if made.reading.texts:  # numbers that should be text are read again, as they are written: 00715
        text = dict.fromkeys(made.reading.texts, pa.string())
        for role in (r for r in ("train", "test") if r in made.tables):
            read = read_file(folder / made.names[role], form=forms[folder / made.names[role]], types=text)
            made.tables[role] = made.reading.convert(read, role)
        for p in (p for p in tables if p not in (train, test) and set(text) & set(tables[p].column_names)):
            tables[p] = made.reading.convert(read_file(p, form=forms[p], types=text), _stem(p))
    made.side = {_stem(p): _settled(t) if p == events else t for p, t in tables.items() if p not in (train, test)}
    made.tables = {r: _settled(t) for r, t in made.tables.items()}
    return made


def _settled(table: pa.Table) -> pa.Table:
    """Give columns the types of a run: decimals and times of day are numbers, dictionaries are decoded."""
    types = types_of(table)
    for i, name in enumerate(table.column_names):
        if pa.types.is_dictionary(table[name].type) and types.get(name) == "text":
            table = table.set_column(i, name, table[name].cast(table[name].type.value_type))
        elif pa.types.is_decimal(table[name].type):
            table = table.set_column(i, name, as_type(table[name], types.get(name, "number"), column=name))
        elif types.get(name) == "clock":
            table = table.set_column(i, name, Table.read(table.select([name]))[name].to_arrow())
    return table


def _paths(data: Path) -> list[Path]:
    if data.is_file():
        if data.suffix.lower() in _SHEETS:
            remedy = _how_to_read({data.suffix.lower()})
            raise UnreadableFileError("the file is no table in text", file=data, remedy=remedy)
        return [data]
    if not data.is_dir():
        raise MissingFileError("there is no such file or folder", file=data, remedy="Give the folder of the files")
    own = [p for p in sorted(data.iterdir()) if p.is_file() and not p.name.startswith(".")]
    unpacked = {p.name for p in own}
    found = [p for p in own if p.name.lower().endswith(ENDINGS) and not (p.suffix == ".zip" and p.stem in unpacked)]
    if not found:
        for p in (p for p in own if p.suffix.lower() in _PLAIN_TEXT):
            with suppress(Exception):  # whatever it is, it cannot be read as a table; of one column it is prose
                found += [p] if len(read_file(p, form=sniff(p)).column_names) > 1 else []
    if not found:
        problem = f"there is no table in it (there is {', '.join(p.name for p in own) or 'nothing'})"
        raise MissingFileError(problem, file=data, remedy=_how_to_read({p.suffix.lower() for p in own}))
    return found


def _how_to_read(endings: set[str]) -> str:
    if endings & {".zip", ".7z", ".rar", ".tar", ".tgz"}:
        return "Unpack it: give a folder with CSV or Parquet files"
    if endings & _SHEETS:
        return "Save its sheet as CSV: give a folder with CSV or Parquet files"
    return "Give a folder with CSV or Parquet files"


def _stem(path: Path) -> str:
    ending = next((e for e in ENDINGS if path.name.lower().endswith(e)), path.suffix)
    return path.name[: len(path.name) - len(ending)] if ending else path.name


def _train_of(tables: dict[Path, pa.Table], data: Path) -> tuple[Path, str]:
    if len(tables) == 1:
        return next(iter(tables)), "it is the only table"
    named = [p for p in tables if _TRAIN.search(_stem(p)) and not _TEST.search(_stem(p))]
    if named:
        best = min(named, key=lambda p: (_stem(p).lower() != "train", -tables[p].num_rows))
        return best, "its name says so"
    for p, table in sorted(tables.items(), key=lambda kv: -kv[1].num_columns):
        for other, rows in tables.items():
            if other != p and set(rows.column_names) < set(table.column_names) and rows.num_columns > 1:
                return p, f"it has the columns of {other.name}, and more"
    largest = max(tables, key=lambda p: tables[p].nbytes)
    if tables[largest].nbytes > 3 * sum(t.nbytes for p, t in tables.items() if p != largest):
        return largest, "it is by far the largest table"
    problem = f"which file has the training rows? There are {', '.join(p.name for p in tables)}"
    remedy = "Name it train.csv (or train.parquet), or give the file itself as --data"
    raise DataError(problem, file=data, remedy=remedy)


def _test_of(tables: dict[Path, pa.Table], train: Path) -> Path | None:
    """Return the table with most of the training rows' columns; one named as a test before others."""
    own = set(tables[train].column_names)
    found = []
    for p, table in tables.items():
        names = set(table.column_names)
        named = bool(_TEST.search(_stem(p)))
        if p != train and _stem(p).lower() == "test":  # a run reads it as the test, whatever it holds
            if not names & own:
                there = ", ".join(table.column_names[:12])
                problem = f"the test has none of the training rows' columns: it has {there}"
                raise DataError(problem, file=p, remedy="Give rows with the columns that are learned from")
            return p
        shared = 0.5 * len(names) if named else max(0.8 * (len(own) - 1), 1)
        if p != train and len(names & own) >= shared and (named or len(names - own) <= 0.2 * len(names)):
            found.append(p)
    return min(found, key=lambda p: (not _TEST.search(_stem(p)), p.name)) if found else None
