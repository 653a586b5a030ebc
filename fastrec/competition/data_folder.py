"""A folder of files as people have them: ``train``, ``test``, ``sample_submission`` and others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from fastrec.competition.data import CompetitionData
from fastrec.competition.reading import Reading
from fastrec.errors import DataError, MissingFileError
from fastrec.table import Table
from fastrec.table.column_types import differing, shared_types, types_of

ENDINGS = (".parquet", ".pq", ".csv", ".csv.gz", ".csv.zip", ".tsv")
SAMPLES = ("sample_submission", "sampleSubmission", "sample")  # what a form of the submission is called
_TRUTHS = ("ground_truth", "truth", "solution")


def table_files(folder: Path, roles: Mapping[str, str] | None = None) -> dict[str, Path]:
    """Map the tables of a folder by name (without its ending), in order of their names.

    Args:
        folder: the folder.
        roles: name → the file that goes by it, whatever it is called itself.

    Raises:
        MissingFileError: there is no such folder, or a file of ``roles`` is not in it.
        DataError: two files have one name.
    """
    if not folder.is_dir():
        raise MissingFileError("there is no such folder", file=folder, remedy="Give the folder of the files")
    found = {role: folder / name for role, name in (roles or {}).items()}
    absent = next((p for p in found.values() if not p.is_file()), None)
    if absent is not None:
        raise MissingFileError(
            "there is no such file", file=absent, remedy="Put it there, or mend the recipe's reading"
        )
    for path in sorted(folder.iterdir()):
        ending = next((e for e in ENDINGS if path.name.lower().endswith(e)), None)
        beside = path.suffix == ".zip" and path.with_suffix("").exists()  # it was unpacked where it lies
        if ending is None or beside or path.name.startswith(".") or path in found.values():
            continue
        name = path.name[: -len(ending)]
        if name in found:
            raise DataError(f"{found[name].name} and {path.name} have one name", file=folder, remedy="Keep one of them")
        found[name] = path
    return found


def truth_file(folder: Path, roles: Mapping[str, str] | None = None) -> Path | None:
    """Return the file with the truth of the test rows; None: there is none."""
    files = table_files(folder, roles) if folder.is_dir() else {}
    return next((files[n] for n in _TRUTHS if n in files), None)


def read_folder(
    folder: Path, *, rows: int | None = None, device: torch.device | None = None, reading: Reading | None = None
) -> CompetitionData:
    """Read ``train``, ``test``, the truth of the test if it is there, and every other table by its name.

    Args:
        folder: holds ``train`` and, mostly, ``test`` as CSV or Parquet; ``ground_truth`` scores the test.
        rows: use only the first so many training rows.
        device: where the tables go.
        reading: how the files are read; None: as they are.

    Raises:
        MissingFileError: there is no folder, or no ``train`` in it.
        FastrecError: a file cannot be read.
    """
    reading = reading or Reading()
    files = table_files(folder, reading.files)
    if "train" not in files:
        raise MissingFileError(
            f"there is no train file (there is {', '.join(p.name for p in files.values()) or 'nothing'})",
            file=folder,
            remedy="Name the training rows train.csv or train.parquet, or write load() in the recipe",
        )
    if reading.tables is not None:
        asked = {"train", "test", *_TRUTHS, *SAMPLES, *reading.files, *reading.tables}
        files = {n: p for n, p in files.items() if n in asked}
    read = {n: reading.read(p, n) for n, p in files.items() if n not in SAMPLES}
    mixed = differing(read["train"], read.get("test"))
    if mixed:  # numbers are read again, as they are written: 00715
        reading = replace(reading, texts=[*reading.texts, *mixed])
        read |= {n: reading.read(files[n], n) for n in ("train", "test") if n in read}
    side = [n for n in read if n not in ("train", "test", *_TRUTHS)]
    types = {"train": shared_types(read["train"], read.get("test")), **{n: types_of(read[n]) for n in side}}
    tables = {n: Table.read(t, device=device) for n, t in read.items()}
    train = tables.pop("train")
    truth = next((tables.pop(n) for n in _TRUTHS if n in tables), None)
    if rows is not None and rows < len(train):
        train = train.slice(0, rows)
    return CompetitionData(train, tables.pop("test", None), tables=tables, truth=truth, types=types)
