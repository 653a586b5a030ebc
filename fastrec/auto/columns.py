"""What each column of a table is: an id, a category, a number, a time, a list in text, free text, or nothing."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from fastrec._core import limits
from fastrec.auto.sniff import CODE_TEXT, PART_NAME
from fastrec.competition.reading import COMMA_TEXT, LETTERS, NUMBER_TEXT

Kind = Literal["constant", "duplicate", "id", "category", "number", "time", "list", "text", "other"]

_ID_NAME = re.compile(
    r"(^|[_\W])(id|uuid|guid|key|index|row|rownum|rowid|rowname)s?\d*$|(Id|ID)$|^Unnamed|^__index_level_|^rownames$",
    re.I,
)
_TIME_NAME = re.compile(
    r"(?<![a-z])(date|time|timestamp|day|dt|ts|when|datetime)(?![a-z])|(Date|Time)$|_at$", re.IGNORECASE
)
_DATE_FORMS = (
    None, "%Y-%m-%d", "%Y/%m/%d", "%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y-%m-%d %H:%M:%S",
    "%Y-%m-%d %H:%M", "%d/%m/%Y %H:%M", "%m/%d/%Y %H:%M", "%d/%m/%Y %H:%M:%S", "%m/%d/%Y %H:%M:%S", "%d.%m.%Y %H:%M",
    "%Y/%m/%d %H:%M:%S", "%m/%d/%Y %I:%M %p", "%m/%d/%Y %I:%M:%S %p", "%d %b %Y", "%b %d, %Y", "%d-%b-%Y", "%d-%b-%y",
    "%B %d, %Y", "%m/%d/%y", "%d/%m/%y", "%m/%d/%y %H:%M", "%d/%m/%y %H:%M", "%m/%d/%y %I:%M %p", "%d.%m.%y",
    "%d.%m.%y %H:%M", "%d.%m.%Y %H:%M:%S", "%a %b %d %H:%M:%S %Y", "%a, %d %b %Y %H:%M:%S", "%Y%m%d",
)  # fmt: skip
_SEPARATORS = ("|", ";", ",", " ")
_LONG = r"\d{16,}"  # so many digits in one are an id
_COMMA_DECIMALS = re.compile(r",(?:\d{1,2}|\d{4,})(?:\D|$)|\.\d{3},|(?:^|\D)0,\d")  # no comma between thousands is so


@dataclass
class ColumnInfo:
    """What a column is.

    Args:
        name: the column.
        kind: what it is.
        distinct: how many different values it has, missing ones not counted.
        missing: the share of missing values.
        why: what says so, in plain words.
        form: of ``time`` in text its format; of ``list`` in text its separator.
        whole: its numbers are whole.
        key: its values come again often enough for what is known of one value to be known of the next row with it.
        numeric_text: its numbers stand in text, with signs around them.
        decimal_comma: of numbers in text: a comma parts the decimals.
        parse: its times stand in text or whole numbers.
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
    """Find out what each column of the training rows is.

    Args:
        table: the training rows.
        skip: columns that are not looked at: the target.
        test: columns of text whose values in the test rows count too.
    """
    made: list[ColumnInfo] = []
    seen: dict[tuple[object, ...], str] = {}
    for name in table.column_names:
        if name in skip:
            continue
        column = table[name]
        if test is not None and name in test.column_names:
            column = pa.chunked_array([*column.cast(pa.string()).chunks, *test[name].cast(pa.string()).chunks])
        info = _look(name, column)
        if info.kind not in ("constant", "other", "list"):
            print_of = _print_of(table[name])
            twin = seen.setdefault(print_of, name)
            if twin != name and table[twin].combine_chunks().equals(table[name].combine_chunks()):
                info = ColumnInfo(name, "duplicate", info.distinct, info.missing, f"the same values as {twin}")
        made.append(info)
    return made


def _look(name: str, column: pa.ChunkedArray) -> ColumnInfo:
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
        return ColumnInfo(
            name, "constant", distinct, missing, "one value in all rows" if distinct else "no value at all"
        )
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
    whole = bool(pa.types.is_integer(column.type)) or bool(
        pc.all(pc.equal(values, pc.floor(values))).as_py() and pc.all(pc.is_finite(values)).as_py()
    )
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
        return ColumnInfo(name, "number", distinct, missing, "numbers with signs around them", numeric_text=True)
    if PART_NAME.search(name) and distinct > 2 and _same_letters(texts):
        why = "numbers with the same letters before them"
        return ColumnInfo(name, "number", distinct, missing, why, whole=True, key=True, numeric_text=True)
    form = _time_form(name, texts)
    if form != "":
        return ColumnInfo(name, "time", distinct, missing, "times in text", form=form, parse=True)
    words = texts.str.split().str.len()
    separator = _separator(texts)
    if separator is not None:
        return ColumnInfo(name, "list", distinct, missing, f"values separated by {separator!r}", form=separator)
    if words.mean() >= 4 and distinct > 0.2 * filled and distinct > 50:
        return ColumnInfo(name, "text", distinct, missing, f"texts of {words.mean():.0f} words on average")
    if distinct > 0.95 * filled and distinct > 50:
        kind, why = (
            ("text", "short texts, hardly one twice") if words.mean() >= 2 else ("id", "another text in every row")
        )
        return ColumnInfo(name, kind, distinct, missing, why)  # type: ignore[arg-type]
    return ColumnInfo(name, "category", distinct, missing, f"{distinct} different texts", key=filled / distinct >= 2)


def numbers_in_text(name: str, column: pa.ChunkedArray) -> ColumnInfo | None:
    """Describe a column of numbers in text; None: it has none.

    Args:
        name: the column.
        column: its values.
    """
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return None
    info = _look(name, column)
    return info if info.numeric_text else None


def _same_letters(texts: pd.Series) -> bool:
    """Return whether each text is the same few letters and a number."""
    found = texts.str.extract(f"^({LETTERS})", expand=False)
    return bool(found.notna().all() and found.nunique() == 1)


def _are_numbers(texts: pd.Series, rows: pd.Series, pattern: str, padded: bool) -> bool:
    """Return whether the texts of nearly all rows are numbers, of three values or more.

    Args:
        texts: different texts.
        rows: how many rows have each.
        pattern: how numbers are written.
        padded: whether numbers may begin with zeros; else such texts are codes (of places, telephones).
    """
    fit = texts.str.fullmatch(pattern)
    if not padded:
        fit &= ~texts.str.fullmatch(CODE_TEXT)
    share = rows[fit].sum() / rows.sum()
    return bool(share >= limits.PARSED_SHARE and fit.sum() > 2 and texts.str.contains(r"\d").all())


def _time_form(name: str, texts: pd.Series) -> str | None:
    """Return the format of times in text, None for ISO 8601; '': they are no times."""
    some = texts.iloc[:2_000]
    if (
        not some.str.contains(r"\d").mean() >= limits.PARSED_SHARE
        or not some.str.contains(r"[-/.:, ]").mean() >= limits.PARSED_SHARE
    ):
        return ""
    for form in _DATE_FORMS:
        if form == "%Y%m%d":
            continue
        if _are_times(some, form) and _are_times(texts, form):
            return form
    return ""


def _are_times(values: pd.Series | pa.ChunkedArray, form: str | None) -> bool:
    if not isinstance(values, pd.Series):
        values = pd.Series(
            pc.unique(values).drop_null().slice(0, limits.SNIFFED_TEXTS).cast(pa.int64()).to_pandas()
        ).astype(str)
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


def _print_of(column: pa.ChunkedArray) -> tuple[object, ...]:
    """Return a few values that tell most different columns apart."""
    n = len(column)
    some = column.take(pa.array(sorted({min(int(i * n / 50), n - 1) for i in range(50)})))
    return (str(column.type), column.null_count, *some.to_pylist())
