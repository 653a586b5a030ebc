"""How text files are written, found from their first lines."""

from __future__ import annotations

import gzip
import zipfile

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec.auto.columns import read_files, sniff
from fastrec.competition.reading import Reading, read_folder
from fastrec.errors import DataError, UnreadableFileError
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


def test_names_that_stand_twice_are_no_row(tmp_path):
    path = write(tmp_path, "price,size,price,sold\n" + "".join(f"{i},{i + 1}.5,3,{'yn'[i % 2]}\n" for i in range(20)))
    assert sniff(path).header is None
    with pytest.raises(DataError, match="'price': several columns"):
        read_file(path, form=sniff(path))


def test_equal_values_are_no_names(tmp_path):
    assert sniff(write(tmp_path, "".join(f"{i % 2},{i % 2},x\n" for i in range(1, 20)))).header == ["c0", "c1", "c2"]


def test_a_line_for_excel(tmp_path):
    with pytest.raises(DataError, match=r"'sep=;'.*Delete it"):
        sniff(write(tmp_path, "sep=;\na;b\n1;2\n"))


def test_a_long_text(tmp_path):
    assert sniff(write(tmp_path, f"a,b\n1,{'q' * 200_000}\n2,z\n")) == CsvForm(None, None, [])


def test_lines_that_a_carriage_return_ends(tmp_path):
    (tmp_path / "x.csv").write_bytes(b"a;b\r1;2\r3;4\r")
    assert read_file(tmp_path / "x.csv", form=sniff(tmp_path / "x.csv")).to_pydict() == {"a": [1, 3], "b": [2, 4]}


@pytest.mark.parametrize(
    "content", [gzip.compress(b"a,b\n1,2\n"), b"PAR1...PAR1", b"PK\x03\x04..."], ids=["gz", "parquet", "zip"]
)
def test_another_kind_under_the_name_of_a_csv(tmp_path, content):
    (tmp_path / "x.csv").write_bytes(content)
    with pytest.raises(UnreadableFileError, match="whatever its name says"):
        sniff(tmp_path / "x.csv")


def test_a_zip(tmp_path):
    path = tmp_path / "train.csv.zip"
    pd.DataFrame({"a": [1, 3], "b": ["x", "y"]}).to_csv(path, sep=";", index=False)  # pandas packs it
    assert read_file(path, form=sniff(path)).to_pydict() == {"a": [1, 3], "b": ["x", "y"]}
    assert read_folder(tmp_path, reading=Reading(delimiter=";")).train.names == ["a", "b"]
    (tmp_path / "train.csv").write_text("c;b\n1;2\n")  # unpacked beside it
    assert read_folder(tmp_path, reading=Reading(delimiter=";")).train.names == ["c", "b"]
    assert list(read_files(tmp_path).tables) == ["train"]


def test_a_zip_of_several_files(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.csv.zip", "w") as archive:
        archive.writestr("a.csv", "a\n1\n")
        archive.writestr("b.csv", "b\n1\n")
    with pytest.raises(UnreadableFileError, match=r"a\.csv, b\.csv.*Unpack it"):
        sniff(tmp_path / "x.csv.zip")


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


@pytest.mark.parametrize("head", ["", "id;zip;month;amount\n"])
def test_columns_of_codes_keep_their_zeros(tmp_path, head):
    rows = [f"{i + 1};{90 * i:05d};{i % 12 + 1:02d};{i}.5" for i in range(60)]
    write(tmp_path, head + "\n".join(rows) + "\n", "train.csv")
    names = head.strip().split(";") if head else ["c0", "c1", "c2", "c3"]
    files = read_files(tmp_path)
    assert files.reading.texts == ([names[1]] if head else ["c1", "c2"])  # by its name, a month is none
    assert files.tables["train"][names[1]].to_pylist()[:3] == ["00000", "00090", "00180"]
    assert read_folder(tmp_path, reading=files.reading).train[names[1]].to_arrow().to_pylist()[1] == "00090"
