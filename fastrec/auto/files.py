"""Which of a folder's files are the training rows, the test rows, the sample submission, and side tables."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from fastrec.auto.sniff import columns_of_codes, sniff
from fastrec.competition.data_folder import ENDINGS
from fastrec.competition.reading import Reading
from fastrec.errors import DataError, MissingFileError, UnreadableFileError
from fastrec.table import Table
from fastrec.table.column_types import as_type, differing, types_of
from fastrec.table.read import CsvForm, read_file

_PLAIN_TEXT = (".data", ".txt", ".dat", ".tab")
_SHEETS = {".xls", ".xlsx", ".ods"}
_SAMPLE = re.compile(r"sample|submission", re.IGNORECASE)
_TRAIN, _TEST = re.compile(r"train", re.IGNORECASE), re.compile(r"test|predict|unlabel", re.IGNORECASE)
_TRUTH = re.compile(r"truth|solution", re.IGNORECASE)


@dataclass
class Files:
    """A folder's tables and what each is.

    Args:
        folder: the folder.
        names: role → file name, of ``train``, ``test`` and ``sample`` as far as there are such.
        tables: role → table.
        side: other tables by name.
        reading: how the files are read.
        why: role → what says so.
    """

    folder: Path
    names: dict[str, str]
    tables: dict[str, pa.Table]
    side: dict[str, pa.Table] = field(default_factory=dict)
    reading: Reading = field(default_factory=Reading)
    why: dict[str, str] = field(default_factory=dict)


def read_files(data: Path) -> Files:
    """Read a folder, or one file, and tell which table is which.

    Args:
        data: a folder in Kaggle's manner (train, test, sample submission), with other names, or with one file; or the
            file itself.

    Raises:
        MissingFileError: there is nothing to read.
        DataError: no file can be told to hold the training rows.
    """
    paths = _paths(data)
    folder = data if data.is_dir() else data.parent
    forms = {p: _form(p) for p in paths}
    sample = next((p for p in paths if _SAMPLE.search(_stem(p))), None) if len(paths) > 1 else None
    rest = [p for p in paths if p != sample and not (len(paths) > 1 and _TRUTH.search(_stem(p)))]
    tables = {p: read_file(p, form=forms[p]) for p in rest}
    train, why = _train_of(tables, data)
    test = _test_of(tables, train)
    made = Files(folder, {"train": train.name}, {"train": tables[train]}, why={"train": why})
    if test is not None:
        made.names["test"], made.tables["test"] = test.name, tables[test]
        made.why["test"] = f"{test.name} has its columns"
    if sample is not None:
        made.names["sample"], made.tables["sample"] = sample.name, read_file(sample, form=forms[sample])
        made.why["sample"] = "its name says so"
    form = forms[train]
    usual = {"train": "train", "test": "test", "sample": "sample_submission"}
    odd = {r: n for r, n in made.names.items() if _stem(folder / n) != usual[r] or not _known_ending(n)}
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
    made.side = {_stem(p): t for p, t in tables.items() if p not in (train, test)}
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
            raise UnreadableFileError(
                "the file is no table in text", file=data, remedy=_how_to_read({data.suffix.lower()})
            )
        return [data]
    if not data.is_dir():
        raise MissingFileError("there is no such file or folder", file=data, remedy="Give the folder of the files")
    own = [p for p in sorted(data.iterdir()) if p.is_file() and not p.name.startswith(".")]
    unpacked = {p.name for p in own}
    found = [p for p in own if _known_ending(p.name) and not (p.suffix == ".zip" and p.stem in unpacked)]
    found = found or [p for p in own if p.suffix.lower() in _PLAIN_TEXT and not _is_prose(p)]
    if not found:
        raise MissingFileError(
            f"there is no table in it (there is {', '.join(p.name for p in own) or 'nothing'})", file=data,
            remedy=_how_to_read({p.suffix.lower() for p in own}),
        )  # fmt: skip
    return found


def _how_to_read(endings: set[str]) -> str:
    if endings & {".zip", ".7z", ".rar", ".tar", ".tgz"}:
        return "Unpack it: give a folder with CSV or Parquet files"
    if endings & _SHEETS:
        return "Save its sheet as CSV: give a folder with CSV or Parquet files"
    return "Give a folder with CSV or Parquet files"


def _known_ending(name: str) -> bool:
    return name.lower().endswith(ENDINGS)


def _stem(path: Path) -> str:
    ending = next((e for e in ENDINGS if path.name.lower().endswith(e)), path.suffix)
    return path.name[: len(path.name) - len(ending)] if ending else path.name


def _is_prose(path: Path) -> bool:
    try:
        form = sniff(path)
        return len(read_file(path, form=form).column_names) < 2
    except Exception:  # whatever it is, it cannot be read as a table
        return True


def _form(path: Path) -> CsvForm:
    return CsvForm() if path.suffix.lower() in (".parquet", ".pq") else sniff(path)


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
    raise DataError(
        f"which file has the training rows? There are {', '.join(p.name for p in tables)}", file=data,
        remedy="Name it train.csv (or train.parquet), or give the file itself as --data",
    )  # fmt: skip


def _test_of(tables: dict[Path, pa.Table], train: Path) -> Path | None:
    """Return the table with most of the training rows' columns; one named as a test before others."""
    own = set(tables[train].column_names)
    found = []
    for p, table in tables.items():
        names = set(table.column_names)
        named = bool(_TEST.search(_stem(p)))
        shared = 0.5 * len(names) if named else max(0.8 * (len(own) - 1), 1)
        if p != train and len(names & own) >= shared and (named or len(names - own) <= 0.2 * len(names)):
            found.append(p)
    return min(found, key=lambda p: (not _TEST.search(_stem(p)), p.name)) if found else None
