"""Times and numbers in text, as a recipe says they are read."""

import datetime as dt
from dataclasses import asdict

import pandas as pd
import pyarrow as pa
import pytest

from fastrec.competition import Reading, read_folder
from fastrec.errors import DataWarning, MissingFileError


def read_as(reading, *values):
    """What is read of a column."""
    return reading.convert(pa.table({"m": list(values)}))["m"].to_pylist()


def test_times():
    reading = Reading(dates={"d": "%d/%m/%Y", "c": "%d/%m/%Y", "n": "%Y%m%d", "i": None})
    table = pa.table({"d": ["03/02/2024", None], "n": [20240203, 20251231], "i": ["2024-02-03T04:05:06", "2024-02-03"]})
    made = reading.convert(table.append_column("c", table["d"].dictionary_encode())).to_pydict()
    assert made["d"] == made["c"] == [dt.datetime(2024, 2, 3), None]
    assert made["n"] == [dt.datetime(2024, 2, 3), dt.datetime(2025, 12, 31)]
    assert made["i"] == [dt.datetime(2024, 2, 3, 4, 5, 6), dt.datetime(2024, 2, 3)]


def test_numbers_have_signs_commas_and_a_few_letters_before_them():
    numbers, commas = Reading(numbers=["m"]), Reading(numbers=["m"], decimal_commas=["m"])
    assert read_as(numbers, "$1,200.50", "5 %", "-3", None, "") == [1200.5, 5.0, -3.0, None, None]
    assert read_as(numbers, "c-8", "c-21", " h 4", "", None, "12") == [8, 21, 4, None, None, 12]
    with pytest.warns(DataWarning, match="'flight8' is no number"):
        assert read_as(numbers, "flight8") == [None]
    # negatives of accountants and other minus signs
    texts = ["($1,260.00)", "$1,260.00", "\u22125", "-$7", "$-7.50", "(3)"]
    assert read_as(numbers, *texts) == [-1260, 1260, -5, -7, -7.5, -3]
    assert read_as(commas, "(1.260,50 €)", "\u22121 000,5") == [-1260.5, -1000.5]
    # decimal commas are those of the columns named
    texts = ["1.200,50", "5 %", "€ -3,125", "1 000,0"]
    assert read_as(commas, *texts) == [1200.5, 5.0, -3.125, 1000.0]
    both = Reading(numbers=["m", "n"], decimal_commas=["m"])
    assert both.convert(pa.table({"m": texts, "n": ["1,200.50"] * 4}))["n"].to_pylist() == [1200.5] * 4


def test_values_that_are_none_are_told_of_with_their_rows_and_a_remedy():
    with pytest.warns(DataWarning, match=r"'soon' is no time .*1 different"):
        assert read_as(Reading(dates={"m": None}), "2024-01-01", "soon")[1] is None
    values = ["SW2A", "7178", "EC1A", "SW2A", None, " ", "1", "2"]
    for column in (pa.array(values), pa.array(values).dictionary_encode()):
        with pytest.warns(DataWarning, match=r"'SW2A' is no number.*2 diff.*37\.5% of.*texts=\['z'\]\)") as told:
            Reading(numbers=["z"]).convert(pa.table({"z": column}))
        assert len(told) == 1
        assert told[0].filename == __file__


def test_its_text_makes_it_again():
    reading = Reading(
        files={"train": "x.data"}, tables=[], header=["a"], missing=["?"], dates={"d": None}, numbers=["m", "c"],
        decimal_commas=["c"],
    )  # fmt: skip
    assert eval(repr(reading)) == reading
    assert repr(Reading()) == "Reading()"
    assert Reading(**asdict(reading)) == reading


def test_a_file_that_is_not_there_and_other_tables_only_if_asked_for(tmp_path):
    with pytest.raises(MissingFileError, match=r"x\.csv"):
        read_folder(tmp_path, reading=Reading(files={"train": "x.csv"}))
    for name in ("train", "side", "more"):
        pd.DataFrame({"a": [1, 2]}).to_csv(tmp_path / f"{name}.csv", index=False)
    for tables, read in ((None, {"side", "more"}), (["side"], {"side"}), ([], set())):
        assert set(read_folder(tmp_path, reading=Reading(tables=tables)).tables) == read


@pytest.mark.parametrize("odd", ["1.234,56", "12,5", "1,2,3", "1 2", "(", "-", "1000,000"])
def test_a_number_or_a_time_of_another_form_is_none(odd):
    with pytest.warns(DataWarning, match="is no number"):
        assert read_as(Reading(numbers=["m"]), odd, "1") == [None, 1]
    with pytest.warns(DataWarning, match="'2024-01-01T10:00:00' is no time"):
        made = read_as(Reading(dates={"m": None}), "2024-01-01T10:00:00+02:00", "2024-01-01T10:00:00")
    assert made == [dt.datetime(2024, 1, 1, 8, tzinfo=dt.UTC), None]


def test_a_file_of_few_rows_is_read_as_one_of_many(tmp_path):
    reading = Reading(numbers=["p"], decimal_commas=["p"], dates={"d": "%d.%m.%Y"}, texts=["z"])
    (tmp_path / "a.csv").write_text("p,d,z\n1.200,01.02.2024,00715\n")
    assert reading.read(tmp_path / "a.csv").to_pylist() == [{"p": 1200, "d": dt.datetime(2024, 2, 1), "z": "00715"}]
