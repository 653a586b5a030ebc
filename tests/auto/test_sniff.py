"""How text files are written, found from their first lines."""

from __future__ import annotations

import gzip

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec.auto.sniff import sniff
from fastrec.table.read import CsvForm, read_file


def write(folder, text, name="x.csv"):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_usual_file(tmp_path):
    assert sniff(write(tmp_path, "a,b\n1,x\n2,y\n")) == CsvForm(None, None, [])


@pytest.mark.parametrize("sign", [";", "|", "\t"])
def test_separator(tmp_path, sign):
    form = sniff(write(tmp_path, f"a{sign}b{sign}c\n1{sign}x,y{sign}2\n2{sign}z{sign}3\n"))
    assert form.delimiter == sign
    assert read_file(tmp_path / "x.csv", form=form).to_pydict() == {"a": [1, 2], "b": ["x,y", "z"], "c": [2, 3]}


def test_no_header(tmp_path):
    form = sniff(write(tmp_path, "39, State-gov, 7\n50, ?, 8\n38, Private, 9\n", "adult.data"))
    assert form == CsvForm(["c0", "c1", "c2"], ", ", ["?"])
    assert read_file(tmp_path / "adult.data", form=form).to_pydict() == {
        "c0": [39, 50, 38], "c1": ["State-gov", None, "Private"], "c2": [7, 8, 9],
    }  # fmt: skip


def test_columns_named_by_their_number(tmp_path):
    assert sniff(write(tmp_path, "0,1,2,3\n5.5,6,7,2\n8,9,1,4\n")).header is None


def test_text_without_header(tmp_path):
    text = "".join(f"{'xyz'[i % 3]},{'ab'[i % 2]}\n" for i in range(40))
    assert sniff(write(tmp_path, text)).header == ["c0", "c1"]


def test_text_with_header(tmp_path):
    text = "letter,other\n" + "".join(f"{'xyz'[i % 3]},{'ab'[i % 2]}\n" for i in range(40))
    assert sniff(write(tmp_path, text)).header is None


def test_compressed(tmp_path):
    path = tmp_path / "x.csv.gz"
    path.write_bytes(gzip.compress(b"a;b\n1;2\n3;4\n"))
    assert sniff(path).delimiter == ";"


names = st.lists(st.text("abcdefgh", min_size=2, max_size=6), min_size=2, max_size=5, unique=True)


@settings(max_examples=40)
@given(names, st.sampled_from([",", ";", "\t", "|"]), st.booleans(), st.integers(3, 30))
def test_what_pandas_writes_is_read_back(tmp_path_factory, columns, sign, header, n):
    frame = pd.DataFrame({c: range(7 + i, 7 + i + n) for i, c in enumerate(columns)})
    path = tmp_path_factory.mktemp("x") / "x.csv"
    frame.to_csv(path, sep=sign, header=header, index=False)
    found = read_file(path, form=sniff(path))
    assert found.to_pandas().to_numpy().tolist() == frame.to_numpy().tolist()
    assert (found.column_names == columns) == header
