"""The types of columns are part of a run: every file and frame that it is given later is read by them."""

import datetime as dt
import json
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from fastrec.auto import new_competition
from fastrec.cli import load_competition
from fastrec.competition import Competition, Reading, predict_run, run_competition
from fastrec.competition.predict import SavedRun
from fastrec.errors import DataError, DataWarning
from fastrec.estimators import XGBModel
from fastrec.features import CountEncode, DatePart, FeatureSet
from fastrec.monitor import monitor, retrain
from tests.files import write_csv

N, M = 300, 60
ZONE = "America/New_York"


class Recipe(Competition):
    name, task, target, ids, n_folds = "types", "regression", "y", ("id",), 3
    categories = ("zip", "title", "flag")
    plain = ("age", "open", "price", "cost")
    reading = Reading(numbers=["price"], dates={"day": "%d/%m/%Y"})

    def features(self):
        return FeatureSet([DatePart("t", ["hour"]), DatePart("day", ["month"]), CountEncode("zip")], key="id")

    def models(self, *, bs):
        return [XGBModel("x", rounds=20, eta=0.3, max_depth=3, early_stopping_rounds=None, nthread=1)]


def rows(n: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    zips = rng.choice(["00715", "10115", "20095", "K1A0B1"], n)
    times = pd.date_range("2024-01-01", periods=n, freq="3h", tz=ZONE)
    amount = rng.lognormal(7, 1, n).round(2)
    frame = pd.DataFrame(
        {
            "id": [f"r{seed}-{i}" for i in range(n)],
            "zip": zips,
            "title": rng.choice(["1984", "Emma", "Ulysses"], n),
            "age": rng.normal(40, 9, n).round(1),
            "flag": rng.random(n) < 0.5,
            "t": times,
            "day": (pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 300, n), "D")).strftime("%d/%m/%Y"),
            "open": [dt.time(int(h), 30) for h in rng.integers(0, 24, n)],
            "price": [f"${v:,.2f}" for v in amount],
            "cost": [Decimal(str(v)) for v in rng.normal(size=n).round(2)],
        }
    )
    evening = np.isin(times.hour, [18, 19, 20, 21, 22, 23])
    y = 2 * (zips == "00715") + (frame.title == "1984") + frame.flag + 2 * evening + frame.age / 20 + np.log(amount) / 4
    return frame.assign(y=y + pd.to_numeric(frame.cost) + 0.1 * rng.normal(size=n))


TRAIN, TEST = rows(N, 1), rows(M, 2)
DIGITS = TEST[TEST.zip != "K1A0B1"].drop(columns="y").reset_index(drop=True)  # what a CSV says are numbers


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("types")
    data = write_csv(folder / "data", train=TRAIN, test=DIGITS)
    return run_competition(Recipe(), data, folder / "run", resume=True)


@pytest.fixture(scope="module")
def saved(run):
    return SavedRun(run)


@pytest.fixture(scope="module")
def submitted(run):
    return pd.read_csv(run / "submission.csv").y.to_numpy()


def test_a_run_keeps_the_types_of_train_and_test(run):
    types = json.loads((run / "config.json").read_text())["reading"]["types"]
    assert types["train"] == {
        **dict.fromkeys(["id", "zip", "title"], "text"), **dict.fromkeys(["age", "price", "cost", "y"], "number"),
        "flag": "bool", "t": "time in UTC", "day": "time", "open": "clock",
    }  # fmt: skip


AS = {
    "as it is": lambda df: df,
    "another zone": lambda df: df.assign(t=df.t.dt.tz_convert("Asia/Tokyo")),
    "text with offsets": lambda df: df.assign(t=df.t.astype(str)),
    "what pandas reads of the CSV": lambda df: df.astype({"t": str, "open": str}).assign(cost=df.cost.astype(float)),
    "numbers in text": lambda df: df.assign(age=df.age.astype(str), cost=df.cost.astype(str)),
    "flags in text": lambda df: df.assign(flag=df.flag.astype(str)),
    "flags as numbers": lambda df: df.assign(flag=df.flag.astype(float)),
    "amounts as numbers": lambda df: df.assign(price=df.price.str.replace(r"[$,]", "", regex=True).astype(float)),
    "days in ISO": lambda df: df.assign(day=pd.to_datetime(df.day, format="%d/%m/%Y").dt.strftime("%Y-%m-%d")),
    "days as times": lambda df: df.assign(day=pd.to_datetime(df.day, format="%d/%m/%Y")),
    "categories": lambda df: df.astype({"zip": "category", "title": "category", "age": "category"}),
    "times of day with seconds": lambda df: df.assign(open=df.open.astype(str)),
    "a target of junk": lambda df: df.assign(y="?"),
    "a column that is not learned from": lambda df: df.assign(note=b"?"),
    "one of several types": lambda df: df.assign(note=pd.Series([1, "a", 2.0] * len(df), dtype=object)),
}


@pytest.mark.parametrize("how", AS)
def test_a_frame_of_other_types_is_the_same_rows(saved, submitted, how):
    np.testing.assert_allclose(saved.predict(AS[how](DIGITS)).numpy(), submitted, atol=1e-9)


def test_integers_are_text_and_no_values_are_missing_ones(saved):
    plain = DIGITS[DIGITS.zip != "00715"]
    numbers = plain.assign(zip=plain.zip.astype(int))
    np.testing.assert_array_equal(saved.predict(numbers), saved.predict(plain))
    for name in ("zip", "age", "t", "flag", "day", "open", "price", "title"):
        none = [saved.predict(plain.assign(**{name: v})).numpy() for v in (None, np.nan, pd.NaT)]
        np.testing.assert_array_equal(none[0], none[1])
        np.testing.assert_array_equal(none[0], none[2])


@pytest.mark.parametrize(
    ("column", "values", "words"),
    [
        ("age", "old", r"'old' is no number"),
        ("age", DIGITS.t, "holds times in a zone"),
        ("t", DIGITS.t.dt.tz_localize(None), r"without a zone.*tz_localize\('UTC'\)"),
        ("t", DIGITS.t.dt.tz_convert("UTC").astype("int64"), r"holds numbers.*unit="),
        ("t", DIGITS.t.dt.tz_localize(None).astype(str), "an offset or Z"),
        ("day", pd.to_datetime(DIGITS.day, format="%d/%m/%Y").dt.tz_localize("UTC"), "tz_localize.None"),
        ("price", "1.234,56", "'1.234,56' has a decimal comma"),
        ("price", "soon", "'soon' is no number.*as in the training rows"),
        ("day", "soon", "'soon' is no time of the format %d/%m/%Y"),
        ("flag", "perhaps", "is no bool"),
        ("zip", DIGITS.t, "is text in the run"),
    ],
)
def test_what_cannot_be_read_so_is_refused_by_name(saved, column, values, words):
    with pytest.raises(DataError, match=words) as error:
        saved.predict(DIGITS.assign(**{column: values}))
    assert (error.value.column, error.value.row) == (column, 0)


def test_text_in_no_known_form_is_told_of_where_values_may_be_missing(tmp_path):
    train = TRAIN.assign(price=["soon", *TRAIN.price[1:]], day=["soon", *TRAIN.day[1:]])
    train.to_csv(tmp_path / "train.csv", index=False)
    with pytest.warns(DataWarning, match="'soon' is no"):
        saved = SavedRun(run_competition(Recipe(), tmp_path, tmp_path / "run"))
    assert saved.reading.gaps == ["day", "price"]
    for column, words in {"price": "'soon' is no number", "day": "'soon' is no time of the format"}.items():
        with pytest.warns(DataWarning, match=words):
            found = saved.predict(DIGITS.assign(**{column: ["soon", *DIGITS[column][1:]]}))
        none = DIGITS.assign(**{column: [None, *DIGITS[column][1:]]})
        np.testing.assert_array_equal(found, saved.predict(none))


def test_a_file_tells_file_column_and_row_and_parquet_may_hold_numbers(run, submitted, tmp_path):
    DIGITS.assign(age=["40", "old", *["41"] * (len(DIGITS) - 2)]).to_csv(tmp_path / "new.csv", index=False)
    with pytest.raises(DataError, match=r"file '.*new.csv', column 'age', row 1: 'old' is no number"):
        predict_run(run, tmp_path / "new.csv", tmp_path / "out.csv")
    frame = DIGITS.assign(age=DIGITS.age.astype("float32").round(1).astype(str), cost=DIGITS.cost.astype(float))
    frame.to_parquet(tmp_path / "new.parquet")
    predict_run(run, tmp_path / "new.parquet", tmp_path / "out.csv")
    np.testing.assert_allclose(pd.read_csv(tmp_path / "out.csv").y, submitted, atol=1e-9)


def test_monitor_compares_columns_by_the_types_of_the_run(run, tmp_path):
    DIGITS.to_csv(tmp_path / "new.csv", index=False)
    found = monitor(run, tmp_path / "new.csv")
    assert not [f for f in found.findings if f.kind == "type"]
    DIGITS.assign(age="old").to_csv(tmp_path / "odd.csv", index=False)
    assert [f.about for f in monitor(run, tmp_path / "odd.csv").findings if f.kind == "type"] == ["age"]


def test_a_retrain_reads_new_rows_by_the_types_of_the_run(run, tmp_path):
    new = rows(90, 3)
    new[new.zip != "K1A0B1"].to_csv(tmp_path / "new.csv", index=False)
    made = retrain(run, tmp_path / "new.csv", tmp_path / "again")
    types = [json.loads((f / "config.json").read_text())["reading"]["types"] for f in (run, made.run)]
    assert types[0] == types[1]


def test_columns_that_are_text_in_the_test_alone(tmp_path):
    reading = Reading(texts=["zip"])
    assert eval(repr(reading)) == reading
    assert reading.convert(pa.table({"zip": [715, None]}))["zip"].to_pylist() == ["715", None]
    train = TRAIN[["id", "age", "y"]].assign(code=[f"{i % 7:03d}" for i in range(N)])
    test = TEST[["id", "age"]].assign(code=["0x", *[f"{i % 7:03d}" for i in range(M - 1)]])
    data = write_csv(tmp_path / "data", train=train, test=test)
    made = new_competition(tmp_path / "mine", data, target="y", seconds=0.5)
    assert made.problem.files.reading.texts == ["code"]
    assert {c.name: c.kind for c in made.problem.columns}["code"] == "category"
    recipe = load_competition(made.folder)
    assert recipe.reading.texts == ["code"]
    recipe.models = lambda *, bs: Recipe().models(bs=bs)
    run = run_competition(recipe, data, tmp_path / "run")
    kept = pd.read_parquet(run / "sample_labelled.parquet")
    assert set(kept.code) == {f"{i:03d}" for i in range(7)}


def test_a_served_run_takes_values_as_the_training_files_have_them(run, submitted, tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    from fastrec.serve import Scorer, export_run

    export_run(run, tmp_path / "served")
    sent = {n: DIGITS[n].astype(str).tolist() for n in ("zip", "title", "age", "t", "day", "open", "price", "cost")}
    sent["flag"] = DIGITS.flag.tolist()
    scorer = Scorer(tmp_path / "served")
    np.testing.assert_allclose(np.ravel(scorer.score(sent)), submitted, atol=1e-5)
    numbers = [int(z) if z != "00715" else z for z in DIGITS.zip]
    np.testing.assert_allclose(np.ravel(scorer.score({**sent, "zip": numbers})), submitted, atol=1e-5)
