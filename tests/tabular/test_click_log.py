from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec._core import limits
from fastrec.errors import DataError, MissingFileError, MissingPackageError
from fastrec.tabular import ClickLogFrame, LogPart
from fastrec.tabular.click_log import text
from fastrec.tabular.click_log.frame import Tally

CONTS, CATS = ["I1", "I2"], ["C1", "C2", "C3"]
FORM = text.LogForm(CONTS, CATS)

pytest.importorskip("numba")


def _lines(n: int, seed: int = 0, distinct: int = 40, low: int = -3) -> str:
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(n):
        numbers = ["" if rng.random() < 0.2 else str(rng.integers(low, 200)) for _ in CONTS]
        ids = ["" if rng.random() < 0.1 else f"{int(v) * 2654435761 % 2**32:08x}" for v in rng.integers(0, distinct, 3)]
        lines.append("\t".join([str(rng.integers(0, 2)), *numbers, *ids]))
    return "\n".join(lines) + "\n"


def _frame(path, cache, **options) -> ClickLogFrame:
    return ClickLogFrame(path, cache=cache, conts=2, cats=3, **options)


def _batches(frame: ClickLogFrame, which: str = "train") -> list[torch.Tensor]:
    dls = frame.dataloaders(97, shuffle=False, drop_last=False, device="cpu")
    return [torch.cat(x) for x in zip(*getattr(dls, which), strict=True)]


def _read(path) -> pd.DataFrame:
    return pd.read_csv(path, sep="\t", header=None, names=["label", *CONTS, *CATS], dtype=dict.fromkeys(CATS, str))


value = st.one_of(st.none(), st.integers(0, 2**32 - 1))
number = st.one_of(st.none(), st.integers(-(2**31) + 1, 2**31 - 1))
line = st.tuples(st.integers(0, 1), st.tuples(number, number), st.tuples(value, value, value))


@settings(max_examples=25, deadline=None)
@given(rows=st.lists(line, min_size=1, max_size=30), end=st.sampled_from(["\n", "\r\n"]), whole=st.booleans())
def test_lines_become_the_numbers_that_they_spell(tmp_path_factory, rows, end, whole):
    spelled = [
        "\t".join([str(y), *("" if c is None else str(c) for c in n), *("" if v is None else f"{v:08x}" for v in ids)])
        for y, n, ids in rows
    ]
    path = tmp_path_factory.mktemp("log") / "a.tsv"
    path.write_bytes((end.join(spelled) + (end if whole else "")).encode())
    made = [text.parse(s, FORM) for s in text.stretches([LogPart(path)], 64)]
    got = np.concatenate([rows for rows, _ in made])
    low = np.min([low for _, low in made], 0)
    assert low.tolist() == [min(n[j] or 0 for _, n, _ in rows) for j in range(2)]
    for (y, numbers, ids), row in zip(rows, got, strict=True):
        assert row[3:5].tolist() == [n or 0 for n in numbers]
        assert row[:3].view(np.uint32).tolist() == [v or 0 for v in ids]
        assert int(row[5]) == y + sum(2 << j for j, v in enumerate(ids) if v is None)


@settings(max_examples=25, deadline=None)
@given(cuts=st.lists(st.integers(0, 900), max_size=5), size=st.integers(1, 200))
def test_parts_of_a_file_hold_each_line_once_wherever_it_is_cut(tmp_path_factory, cuts, size):
    path = tmp_path_factory.mktemp("log") / "a.tsv"
    path.write_text(_lines(20))
    ends = [0, *sorted(cuts), None]
    parts = [LogPart(path, a, b) for a, b in itertools.pairwise(ends)]
    found = b"".join(bytes(s.text[: s.stop]) for s in text.stretches(parts, size))
    whole = path.read_bytes()
    assert found == whole
    for part in [*parts, LogPart(path, 0, whole.index(b"\n") + 1)]:  # the last ends just where a line does
        lines, stop = whole.splitlines(keepends=True), len(whole) if part.stop is None else part.stop
        begins = itertools.accumulate(map(len, lines), initial=0)
        own = [line for at, line in zip(begins, lines, strict=False) if part.start <= at < stop]
        assert b"".join(bytes(s.text[: s.stop]) for s in text.stretches([part], size)) == b"".join(own)


GOOD = "1\t5\t\t0000000a\t\tffffffff"
BAD = {
    "2\t5\t\t0000000a\t\tffffffff": ("label", "'2' is not 0 or 1"),
    "\t5\t\t0000000a\t\tffffffff": ("label", "'' is not 0 or 1"),
    "1\t5.0\t\t0000000a\t\tffffffff": ("I1", "'5.0' is not a whole number"),
    "1\t-\t\t0000000a\t\tffffffff": ("I1", "'-' is not a whole number"),
    "1\t5\t2147483648\t0000000a\t\tffffffff": ("I2", "'2147483648' is not a whole number of 32 bits"),
    "1\t5\t99999999999999999999\t0000000a\t\tffffffff": ("I2", "is not a whole number of 32 bits"),
    "1\t5\t\t0000000A\t\tffffffff": ("C1", "'0000000A' is not 8 hex digits"),
    "1\t5\t\ta\t\tffffffff": ("C1", "'a' is not 8 hex digits"),
    "1\t5\t\t0000000a\t\tffffffff0": ("C3", "'ffffffff0' is not 8 hex digits"),
    "1\t5\t\t0000000a\t\tfffffff": ("C3", "'fffffff' is not 8 hex digits"),
    "1\t5\t\t0000000a\t": (None, "the line has 5 fields, not 6"),
    "1\t5\t\t0000000a\t\tffffffff\t": (None, "the line has 7 fields, not 6"),
    "": (None, "the line has 1 fields, not 6"),
}


@pytest.mark.parametrize("bad", BAD)
def test_a_line_of_another_form_is_named(tmp_path, bad):
    path = tmp_path / "a.tsv"
    path.write_text("\n".join([GOOD, GOOD, bad, GOOD]) + "\n")
    with pytest.raises(DataError) as caught:
        _frame(path, tmp_path / "cache")
    column, problem = BAD[bad]
    assert problem in caught.value.problem
    assert (caught.value.file, caught.value.row, caught.value.column) == (str(path), 2, column)
    assert not list((tmp_path / "cache").glob("train-*"))


def test_files_that_are_none_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "LOG_TEXT_BYTES", 1 << 16)
    empty, zipped, endless = tmp_path / "empty.tsv", tmp_path / "a.tsv.gz", tmp_path / "b.tsv"
    empty.touch()
    zipped.touch()
    endless.write_bytes(b"1" * 200_000)
    for path, options, error, match in (
        (empty, {}, DataError, "hold no line"),
        (zipped, {}, DataError, "compressed"),
        (endless, {}, DataError, "a line does not end"),
        (tmp_path / "none.tsv", {}, MissingFileError, "none"),
        ([], {}, DataError, "no file was given"),
        (empty, {"cats": 0}, DataError, "0 categories"),
        (empty, {"cats": ["I1"]}, DataError, "named twice"),
    ):
        with pytest.raises(error, match=match):
            ClickLogFrame(path, cache=tmp_path / "cache", **{"conts": 2, "cats": 3, **options})


@pytest.mark.parametrize("memory", [1 << 30, 6 * (1 << 15)])
def test_frequent_values_are_those_of_a_plain_count_whatever_the_memory(memory):
    rng = np.random.default_rng(3)
    rows = np.zeros((60_000, 4), dtype=np.int32)
    rows[:, 0] = rng.zipf(1.2, len(rows)).astype(np.uint32).view(np.int32)
    rows[:, 1] = rng.integers(0, 2**32, len(rows) // 3, dtype=np.uint32).repeat(3).view(np.int32)
    rows[:, 2] = 7
    rows[::5, 3] = 1 << 3  # the last category is missing in a fifth of the rows
    blocks = np.array_split(rows, 7)
    held = []
    counts = Tally(3, memory, 3)
    for block in blocks:
        counts.add(block)
        held.append(sum(c.counter.table.nbytes for c in counts.columns))
    found = counts.finish(lambda: iter(blocks))
    assert max(held) <= memory
    assert (counts.passes > 1) == (memory < 1 << 30)
    for j, got in enumerate(found):
        values, times = np.unique(rows[:, j].view(np.uint32)[rows[:, 3] >> (j + 1) & 1 == 0], return_counts=True)
        assert got.tolist() == values[times >= 3].tolist()


@pytest.fixture(scope="module")
def logs(tmp_path_factory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("logs")
    train, test = folder / "train.tsv", folder / "test.tsv"
    train.write_text(_lines(900, 0))
    test.write_text(_lines(200, 1, distinct=60, low=-90))  # new values, and lower numbers
    return train, test


def test_codes_logarithms_and_labels_are_those_of_pandas(logs, tmp_path):
    frame = _frame(logs[0], tmp_path, valid=logs[1], min_count=22)
    train = _read(logs[0])
    for which, df in (("train", train), ("valid", _read(logs[1]))):
        cats, conts, y = _batches(frame, which)
        assert cats.dtype == torch.int32
        assert conts.dtype == y.dtype == torch.float32
        for j, name in enumerate(CATS):
            times = train[name].value_counts()
            kept = sorted(times.index[times >= 22])
            assert 0 < len(kept) < len(times)
            wanted = df[name].map({v: i + 2 for i, v in enumerate(kept)}).fillna(1).where(df[name].notna(), 0)
            assert cats[:, j].tolist() == wanted.astype(int).tolist()
            assert frame.frame.classes[name][2:] == kept
        for j, name in enumerate(CONTS):
            low = train[name].fillna(0).min()
            wanted = np.log1p((df[name].fillna(0) - low).clip(lower=0)).astype(np.float32)
            np.testing.assert_array_equal(conts[:, j].numpy(), wanted)
        assert y[:, 0].tolist() == df["label"].tolist()
    new = frame.new(_read(logs[1]).drop(columns="label"))  # in memory
    assert torch.equal(new.x_cat.cpu().int(), cats)
    assert torch.equal(new.x_cont.cpu(), conts)


def test_a_shuffled_epoch_has_every_row_once_from_a_small_buffer(logs, tmp_path):
    frame = _frame(logs[0], tmp_path)
    loader = frame.dataloaders(64, buffer_rows=200, seed=1, drop_last=False, device="cpu").train
    epochs = [torch.cat([torch.cat([c.float(), x, y], 1) for c, x, y in loader]) for _ in range(2)]
    ordered = torch.cat([t.float() for t in _batches(frame)], 1)
    for rows in epochs:
        assert sorted(rows.tolist()) == sorted(ordered.tolist())
    assert not torch.equal(epochs[0], ordered)
    assert not torch.equal(epochs[0], epochs[1])


def test_packed_rows_are_used_again_until_something_differs(logs, tmp_path):
    path = tmp_path / "train.tsv"
    path.write_bytes(logs[0].read_bytes())
    first = _frame(path, tmp_path / "cache", valid=logs[1])
    again = _frame(path, tmp_path / "cache", valid=logs[1])
    assert (first.train.passes, again.train.passes) == (1, 0)
    assert again.train.folder == first.train.folder
    assert again.frame.classes["C1"] == first.frame.classes["C1"]
    for which in ("train", "valid"):
        assert all(map(torch.equal, _batches(first, which), _batches(again, which)))
    assert _frame(path, tmp_path / "cache", min_count=3).train.passes == 1
    rows = first.train.folder / "rows.bin"
    rows.write_bytes(rows.read_bytes()[:-4])
    assert _frame(path, tmp_path / "cache", valid=logs[1]).train.passes == 1  # written again
    path.write_text(_lines(900, 5))
    changed = _frame(path, tmp_path / "cache", valid=logs[1])
    assert changed.train.passes == 1
    assert changed.valid.folder != first.valid.folder  # its codes are other ones


def test_several_files_are_one_after_the_other_and_without_numba_the_remedy_is_named(logs, tmp_path, monkeypatch):
    joined = tmp_path / "joined.tsv"
    joined.write_bytes(logs[0].read_bytes() + logs[1].read_bytes())
    both, whole = (_batches(_frame(files, tmp_path, min_count=1)) for files in (list(logs), joined))
    assert all(map(torch.equal, both, whole))
    monkeypatch.setitem(sys.modules, "numba", None)
    with pytest.raises(MissingPackageError, match="numba") as caught:
        _frame(logs[0], tmp_path)
    assert "fastrec-tabular[compiled]" in caught.value.remedy
