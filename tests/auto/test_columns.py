"""How a text file is written, and what each column of a table is."""

import gzip
import zipfile

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec.auto.columns import look_at, read_files, sniff
from fastrec.competition.reading import Reading, read_folder
from fastrec.errors import DataError, UnreadableFileError
from fastrec.table.read import CsvForm, read_file

N = 400
RNG = np.random.default_rng(0)
WORDS = "the quick brown fox jumps over a lazy dog while seven wizards brew potent tea in kettles".split()  # noqa: SIM905
COLUMNS = {
    "constant": [3] * N,
    "empty": [None] * N,
    "row_id": list(range(1000, 1000 + N)),
    "serial": list(range(N)),
    "name": [f"u{i:05d}x" for i in range(N)],
    "color": [("red", "green", "blue")[i % 3] for i in range(N)],
    "store_id": [10_000 + i % 40 for i in range(N)],
    "amount": RNG.normal(size=N).tolist(),
    "age": RNG.integers(18, 90, N).tolist(),
    "flag": [i % 2 == 0 for i in range(N)],
    "when": pd.date_range("2024-01-01", periods=N, freq="h").tolist(),
    "sold": [f"{1 + i % 28:02d}/{1 + i % 12:02d}/2023" for i in range(N)],
    "iso": [f"2023-{1 + i % 12:02d}-{1 + i % 28:02d} 10:{i % 60:02d}:00" for i in range(N)],
    "day_date": [20230100 + 1 + i % 28 for i in range(N)],
    "tags": ["|".join(RNG.choice(["a", "b", "c", "d"], 1 + i % 3, replace=False)) for i in range(N)],
    "genres": [", ".join(RNG.choice(["Drama", "War", "Crime", "Sci Fi"], 2, replace=False)) for i in range(N)],
    "review": [" ".join(RNG.choice(WORDS, 8)) for _ in range(N)],
    "price": [f"${1000 + 7 * i:,}" for i in range(N)],
    "rate": [f"{i % 50}%" for i in range(N)],
    "negatives": [f"(${v:,.2f})" if v % 2 else f"${v:,.2f}" for v in range(1000, 1000 + N)],
    "minus": [f"\u2212{v}" if v % 2 else str(v) for v in range(N)],
    "long": [str(10**25 + i) for i in range(N)],
    "long_code": [str(10**25 + i % 9) for i in range(N)],
    "zips": [f"SW{i}A 8BN" for i in range(10)] * 8 + [str(10_000 + i) for i in range(320)],  # 20 % of the rows
    "years": [f"{i} years" for i in range(5)] + [str(i % 100) for i in range(395)],  # 1 % of the rows, 5 % of the texts
    "digits": [",".join(map(str, RNG.choice([3, 12, 7, 5], 1 + i % 3, replace=False))) for i in range(N)],
    "vectors": [[1.0, 2.0]] * N,
    "struct": [{"a": 1}] * N,
}
KINDS = {
    "constant": "constant", "empty": "constant", "row_id": "id", "serial": "id", "name": "id", "color": "category",
    "store_id": "category", "amount": "number", "age": "number", "flag": "category", "when": "time", "sold": "time",
    "iso": "time", "day_date": "time", "tags": "list", "genres": "list", "review": "text", "price": "number",
    "rate": "number", "negatives": "number", "minus": "number", "long": "id", "long_code": "category",
    "zips": "category", "years": "number", "digits": "list", "vectors": "list", "struct": "other",
}  # fmt: skip


@pytest.mark.parametrize("name", COLUMNS)
def test_kind(name):
    (info,) = look_at(pa.table({name: COLUMNS[name]}))
    assert (info.name, info.kind) == (name, KINDS[name]), info


def infos(*names):
    return {c.name: c for c in look_at(pa.table({n: COLUMNS[n] for n in names}))}


def test_formats_numbers_in_text_and_keys_are_found():
    found = infos("sold", "iso", "day_date", "tags", "genres")
    forms = {"sold": "%d/%m/%Y", "iso": None, "day_date": "%Y%m%d", "tags": "|", "genres": ","}  # days above 12
    assert {n: c.form for n, c in found.items()} == forms
    assert all(found[n].parse for n in ("sold", "iso", "day_date"))
    found = infos("price", "age", "amount", "store_id", "negatives", "years", "zips")
    assert [n for n, c in found.items() if c.numeric_text] == ["price", "negatives", "years"]
    assert {n for n, c in found.items() if c.key} == {"age", "store_id"}
    (info,) = look_at(pa.table({"x": [1.5, float("nan"), None, 2.5]}))
    assert (info.missing, info.distinct) == (0.5, 2)


@pytest.mark.parametrize(
    ("values", "comma"),
    [
        (["1.234,50", "12,75", "7"], True),
        (["0,125", "0,250", "1,375"], True),
        (["€ 1 234,5", "17,0", "12"], True),
        (["1,200", "12,300", "999,000"], False),
        (["1,234.50", "12.75", "7"], False),
        (["$5", "$17", "$1,200"], False),
    ],
)
def test_decimal_commas_are_told_from_commas_between_thousands(values, comma):
    (info,) = look_at(pa.table({"x": values * 20}))
    assert (info.kind, info.numeric_text, info.decimal_comma) == ("number", True, comma), info


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("zip", "{:05d}", "category"), ("phone", "0{}", "category"), ("share", "0.{:02d}", "number"),
        ("share", "0,{:03d}", "number"), ("month", "{:02d}", "number"), ("zip", "{}", "number"),
    ],
)  # fmt: skip
def test_digits_after_a_zero_are_a_code(name, text, kind):
    values = [text.format(i % 12 if name == "month" else 90 * (i % 300)) for i in range(900)]
    assert look_at(pa.table({name: values}))[0].kind == kind


def test_the_second_of_two_equal_columns_is_a_duplicate_unless_one_row_differs():
    table = pa.table({"a": COLUMNS["amount"], "b": COLUMNS["amount"], "c": COLUMNS["amount"][::-1]})
    assert [c.kind for c in look_at(table)] == ["number", "duplicate", "number"]
    assert "same values as a" in look_at(table)[1].why
    other = list(COLUMNS["amount"])
    other[237] += 1
    assert [c.kind for c in look_at(pa.table({"a": COLUMNS["amount"], "b": other}))] == ["number", "number"]


def test_text_of_the_test_rows_counts_where_it_is_told():
    train, test = pa.table({"a": ["1", "2", "3"] * 9}), pa.table({"a": ["x", "1", "2"]})
    assert look_at(train)[0].kind == "number"
    assert look_at(train, (), test)[0].kind == "category"


# How text files are written, found from their first lines.


def write(folder, text, name="x.csv"):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


LETTERS = "".join(f"{'xyz'[i % 3]},{'ab'[i % 2]}\n" for i in range(40))


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("a,b\n1,x\n2,y\n", CsvForm(None, None, [])),
        (f"a,b\n1,{'q' * 200_000}\n2,z\n", CsvForm(None, None, [])),
        ("0,1,2,3\n5.5,6,7,2\n8,9,1,4\n", CsvForm(None, None, [])),  # columns named by their number
        (LETTERS, CsvForm(["c0", "c1"], None, [])),
        ("letter,other\n" + LETTERS, CsvForm(None, None, [])),
        # equal values are no names
        ("".join(f"{i % 2},{i % 2},x\n" for i in range(1, 20)), CsvForm(["c0", "c1", "c2"], None, [])),
    ],
)
def test_header_delimiter_and_missing_values(tmp_path, text, form):
    assert sniff(write(tmp_path, text)) == form


@pytest.mark.parametrize(
    ("name", "content", "read"),
    [
        ("x.csv", "a;b;c\n1;x,y;2\n2;z;3\n", {"a": [1, 2], "b": ["x,y", "z"], "c": [2, 3]}),
        *(("x.csv", f"a{s}b\n1{s}x,y\n2{s}z\n", {"a": [1, 2], "b": ["x,y", "z"]}) for s in "|\t"),
        (
            "adult.data", "39, State-gov, 7\n50, ?, 8\n38, Private, 9\n",
            {"c0": [39, 50, 38], "c1": ["State-gov", None, "Private"], "c2": [7, 8, 9]},
        ),
        ("x.csv", "a;b\r1;2\r3;4\r", {"a": [1, 3], "b": [2, 4]}),
        ("x.csv.gz", gzip.compress(b"a;b\n1;2\n3;4\n"), {"a": [1, 3], "b": [2, 4]}),
    ],
)  # fmt: skip
def test_separator_header_and_compression_are_found(tmp_path, name, content, read):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    assert read_file(tmp_path / name, form=sniff(tmp_path / name)).to_pydict() == read


ODD = "price,size,price,sold\n" + "".join(f"{i},{i + 1}.5,3,{'yn'[i % 2]}\n" for i in range(20))


@pytest.mark.parametrize(
    ("content", "error", "said"),
    [
        (ODD.encode(), DataError, "'price': several columns"),  # names that stand twice are no row
        (b"sep=;\na;b\n1;2\n", DataError, r"'sep=;'.*Delete it"),  # a line for Excel
        *((c, UnreadableFileError, "whatever its name says") for c in (b"PAR1...PAR1", b"PK\x03\x04...")),
        (gzip.compress(b"a,b\n1,2\n"), UnreadableFileError, "whatever its name says"),
    ],
)
def test_what_is_no_table_in_text_is_refused(tmp_path, content, error, said):
    (tmp_path / "x.csv").write_bytes(content)
    with pytest.raises(error, match=said):
        read_file(tmp_path / "x.csv", form=sniff(tmp_path / "x.csv"))


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
