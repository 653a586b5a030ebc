"""A run exported: the file says what the run says, of rows of any kind, whole and in parts."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from fastrec.cli import app
from fastrec.competition import Competition, run_competition
from fastrec.competition.predict import SavedRun
from fastrec.errors import DataError, MissingFileError, WriteError
from fastrec.estimators import NetModel, NetRanker, XGBModel, XGBRanker
from fastrec.features import (
    Cross,
    Cyclic,
    DatePart,
    FeatureSet,
    GroupRank,
    GroupStats,
    Lag,
    ListLength,
    TargetEncode,
    TextSvd,
)
from fastrec.serve import Online, export_run, metric_loss, verify_export, write_triton
from fastrec.serve.export import feeds_of
from fastrec.serve.graph.columns import described
from fastrec.serve.verify import score_rows
from fastrec.table import Table
from tests.serve.test_triton import by_ensemble, parse  # noqa: F401 - a fixture

ort = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


class Sales(Competition):
    name, task, target, metric, n_folds = "Sales", "regression", "amount", "rmse", 3
    history, categories = True, ["city", "code"]

    def features(self):
        encoded = TargetEncode(["city", Cross("city", "code")], "amount")
        times = [DatePart("when", ["hour", "dayofweek"]), Cyclic("when", "hour")]
        return FeatureSet([encoded, *times, Lag("amount", by="shop", order="when")])

    def models(self, *, bs):
        trees = XGBModel("xgb", rounds=20, max_depth=3, early_stopping_rounds=None)
        return [NetModel("net", model="TabularNet", epochs=2), trees]


def shop_sales(n, seed):
    rng = np.random.default_rng(seed)
    when = pd.Timestamp("2026-03-28", tz="Europe/Berlin") + pd.to_timedelta(np.sort(rng.integers(0, 5_000_000, n)), "s")
    data = pd.DataFrame(
        {
            "shop": rng.integers(0, 9, n),
            "city": rng.choice(["Köln", "Zürich", "東京", None], n),
            "code": pd.array(rng.integers(0, 30, n) + (1 << 53) + 1, dtype="Int64"),
            "price": np.where(rng.random(n) < 0.2, np.nan, rng.normal(size=n)),
            "when": when,
        }
    )
    data.loc[rng.random(n) < 0.1, "code"] = pd.NA
    data["amount"] = rng.normal(size=n) + data["price"].fillna(2) + (data["city"] == "Köln") + data["shop"] / 3
    return data


class Clicks(Competition):
    name, task, n_folds = "Clicks", "ranking", 3
    fold_key, plain, categories = "list_id", ("price", "place"), ("city",)

    def features(self):
        stats = GroupStats("price", by="list_id", stats=["mean", "min"], over="group")
        steps = [TargetEncode("city", "clicked"), GroupRank("price", by="list_id"), stats]
        return FeatureSet(steps, key="list_id")

    def models(self, *, bs):
        return [NetRanker("net", layers=[8], epochs=1), XGBRanker("xgb", rounds=15, max_depth=3)]


def click_lists(n, seed):
    rng = np.random.default_rng(seed)
    size = rng.integers(1, 9, n)
    data = pd.DataFrame({"list_id": np.repeat(np.arange(n) + 1000 * seed, size)})
    rows = len(data)
    data["item_id"] = np.arange(rows) + 7
    data["place"] = data.groupby("list_id").cumcount()
    data["price"] = rng.integers(1, 9, rows) * 10.0
    data["city"] = rng.choice(["a", "b", "ç"], rows)
    noisy = data["price"] + rng.normal(size=rows) * 9
    data["clicked"] = (noisy == noisy.groupby(data["list_id"]).transform("min")).astype(int)
    return data


def run_of(recipe, folder, train, test):
    (folder / "data").mkdir()
    train.to_parquet(folder / "data/train.parquet")
    test.to_parquet(folder / "data/test.parquet")
    run_competition(recipe, folder / "data", folder / "run")
    return folder


@pytest.fixture(scope="module")
def sales(tmp_path_factory):
    both = shop_sales(900, 0)
    return run_of(Sales(), tmp_path_factory.mktemp("sales"), both[:700], both[700:].drop(columns="amount"))


@pytest.fixture(scope="module")
def clicks(tmp_path_factory):
    test = click_lists(60, 1).drop(columns="clicked")
    return run_of(Clicks(), tmp_path_factory.mktemp("clicks"), click_lists(200, 0), test)


@pytest.fixture(scope="module")
def exported(sales, clicks):
    export_run(sales / "run", sales / "out", data=sales / "data")
    return export_run(clicks / "run", clicks / "out")


def test_a_file_says_what_the_run_says(sales, clicks, exported):
    for folder in (sales, clicks):
        for data in (None, folder / "data"):
            found = verify_export(folder / "out", folder / "run", data)
            assert found.holds, found
            assert found.rows > 100


def test_the_models_of_one_fold(sales, tmp_path):
    export_run(sales / "run", tmp_path / "one", fold=2)
    assert verify_export(tmp_path / "one", sales / "run", fold=2).holds
    assert not verify_export(tmp_path / "one", sales / "run").holds
    with pytest.raises(DataError, match="no fold 9"):
        export_run(sales / "run", tmp_path / "none", fold=9)
    assert not (tmp_path / "none").exists()


def test_what_is_said_of_the_inputs(sales, exported):
    about = json.loads((sales / "out/serving.json").read_text())
    inputs = {i["name"]: i for i in about["inputs"]}
    assert inputs["city"]["type"] == "string"
    assert inputs["code"]["type"] == "int64"
    assert inputs["when"]["time"]["zone"] == "Europe/Berlin"
    assert [n for n, i in inputs.items() if i["made"]] == ["lag1_amount__shop"]
    assert "amount" not in inputs
    assert about["target"] == "amount"
    assert json.loads((exported.folder / "serving.json").read_text()) == exported.about


def test_parts_say_together_what_the_file_says(clicks, tmp_path, parse):  # noqa: F811
    made = export_run(clicks / "run", tmp_path / "out", fold=0, parts=True)
    table = Table.read(clicks / "run/sample.parquet")
    assert {part["kind"] for part in made.about["parts"]} == {"onnx", "xgboost"}
    for dynamic in (True, False):
        score = by_ensemble(tmp_path / "out", tmp_path / "repo", feeds_of(made.about, table), parse, dynamic=dynamic)
        np.testing.assert_allclose(score, score_rows(tmp_path / "out", table), atol=1e-5)


@pytest.mark.parametrize("how", ["float16", "int8"])
def test_nets_in_fewer_bits(clicks, tmp_path, how):
    export_run(clicks / "run", tmp_path / "out", fold=0, compress=how)
    loss = metric_loss(tmp_path / "out", clicks / "run", fold=0)
    assert loss.full > 0.5
    assert loss.compressed == pytest.approx(loss.full, abs=0.03)


def test_events_go_along(sales, exported):
    assert json.loads((sales / "out/serving.json").read_text())["events"]["history"]
    online = Online.load(sales / "out/events")
    test = pd.read_parquet(sales / "data/test.parquet")
    features = SavedRun(sales / "run").features
    train = pd.read_parquet(sales / "data/train.parquet")
    expected = features.transform(test.assign(amount=np.nan), history=train)["lag1_amount__shop"]
    first = test.groupby("shop").head(1).index  # later ones look back to test rows, whose amounts nobody knows
    said = [online.features(test.loc[[i]].assign(amount=np.nan))["lag1_amount__shop"][0].as_py() for i in first]
    online.close()
    np.testing.assert_array_equal(np.array(said, float), expected.loc[first].to_numpy(float))


class Notes(Competition):
    name, task, target, metric = "Notes", "binary", "good", "auc"

    def features(self):
        return FeatureSet([TextSvd("note", 2, min_count=1), ListLength("tags")])

    def models(self, *, bs):
        return [XGBModel("xgb", rounds=5, max_depth=2, early_stopping_rounds=None)]


def notes(seed=0):
    rng = np.random.default_rng(seed)
    words = rng.choice(["red shoe", "Red boot!", "a hat", None], 120)
    data = pd.DataFrame({"note": words, "tags": [["x"] * k for k in rng.integers(0, 4, 120)], "price": rng.random(120)})
    return data.assign(good=((words == "a hat") ^ (rng.random(120) < 0.2)).astype(int))


def test_text_and_lists_that_a_graph_does_not_make(tmp_path):
    data = notes()
    run_of(Notes(), tmp_path, data, data.drop(columns="good"))
    made = export_run(tmp_path / "run", tmp_path / "out")
    assert {i["name"] for i in made.about["inputs"] if i["made"]} == {"svd0_note", "svd1_note", "length_tags"}
    assert verify_export(tmp_path / "out", tmp_path / "run").holds
    with pytest.raises(DataError, match="takes from no request") as found:
        export_run(tmp_path / "run", tmp_path / "served", data=tmp_path / "data")
    assert found.value.column == "tags"
    assert made.unserved is not None
    assert "'tags' is a list" in made.unserved  # it is said when the file is made


class Texts(Notes):
    categories = ()

    def features(self):
        return FeatureSet([TextSvd("note", 2, min_count=1)])


def test_a_run_without_events_is_served_without_data(tmp_path):
    pytest.importorskip("starlette")
    from fastrec.serve import make_app
    from fastrec.serve.server.app import open_events
    from tests.serve.server.calls import post

    data = notes().drop(columns="tags")
    test = data.drop(columns="good")
    run_of(Texts(), tmp_path, data, test)
    done = CliRunner().invoke(app, ["export", str(tmp_path / "run"), "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert "cannot make" not in done.output
    folder = write_triton(tmp_path / "out", tmp_path / "triton", name="model")[0]
    assert 'name: "note"' not in (folder / "config.pbtxt").read_text()  # the graph takes what is made of it
    with open_events(tmp_path / "out") as events:
        served = make_app(tmp_path / "out", events=events)
        rows = json.loads(test.head(20).to_json(orient="records"))
        said = post(served, "/v1/score", {"rows": rows}).json()
        why = post(served, "/v1/explain", {"rows": rows[:4]}).json()
        served.state.service.close()
    saved = SavedRun(tmp_path / "run")
    np.testing.assert_allclose(said["scores"], saved.predict(test.head(20)).numpy(), atol=1e-6)
    expected = saved.explain(test.head(4))
    for name, values in {**why["contributions"], "base": why["base"], "prediction": why["predictions"]}.items():
        np.testing.assert_allclose(values, expected[name], atol=1e-6)
    assert expected["note"].abs().max() > 0.01  # the text tells something


class Amounts(Competition):
    name, task, target, metric, n_folds, plain = "Amounts", "regression", ["a", "b"], "rmse", 3, ("x",)

    def models(self, *, bs):
        return [XGBModel("xgb", rounds=10, max_depth=3, early_stopping_rounds=None)]


@pytest.mark.parametrize("target", [["a", "b"], "a"])
def test_amounts_are_answered_with_their_intervals(target, tmp_path, monkeypatch):
    pytest.importorskip("starlette")
    from fastrec.serve import make_app
    from tests.serve.server.calls import post

    monkeypatch.setattr(Amounts, "target", target)
    x = np.random.default_rng(0).normal(size=(3, 400))
    rows = pd.DataFrame({"x": x[0], "a": x[0] + x[1], "b": 5 * x[0] + 9 * x[2]})
    run_of(Amounts(), tmp_path, rows[:300], rows[300:][["x"]])
    export_run(tmp_path / "run", tmp_path / "out")
    served = make_app(tmp_path / "out")
    said = post(served, "/v1/score", {"columns": {"x": rows["x"][300:].tolist()}}).json()
    served.state.service.close()
    expected = SavedRun(tmp_path / "run").predict_interval(rows[300:][["x"]], 0.9)
    for name, end in (("low", "low"), ("scores", "prediction"), ("high", "high")):
        own = expected[[n for n in expected if n.endswith(end)]].to_numpy()
        np.testing.assert_allclose(np.array(said[name]).reshape(own.shape), own, atol=1e-6)


@pytest.mark.parametrize(("task", "levels"), [("binary", 2), ("multiclass", 3)])
def test_classes_are_answered_with_sets_of_them(task, levels, tmp_path, monkeypatch):
    pytest.importorskip("starlette")
    from fastrec.serve import make_app
    from tests.serve.server.calls import post

    for name, value in (("task", task), ("target", "a"), ("metric", "logloss")):
        monkeypatch.setattr(Amounts, name, value)
    x = np.random.default_rng(0).normal(size=(2, 400))
    kind = pd.qcut(x[0] + x[1], levels, labels=[f"k{i}" for i in range(levels)]).astype(str)
    rows = pd.DataFrame({"x": x[0], "a": kind})
    run_of(Amounts(), tmp_path, rows[:300], rows[300:][["x"]])
    export_run(tmp_path / "run", tmp_path / "out")
    served = make_app(tmp_path / "out")
    said = post(served, "/v1/score", {"columns": {"x": rows["x"][300:].tolist()}}).json()
    served.state.service.close()
    expected = SavedRun(tmp_path / "run").predict_set(rows[300:][["x"]], 0.9)
    assert said["classes"] == list(expected)
    assert said["in_set"] == expected.to_numpy().tolist()
    assert 0 < expected.to_numpy().sum(1).mean() - 1 < levels - 1  # some sets are larger than others
    true = expected.to_numpy()[np.arange(100), [list(expected).index(k) for k in kind[300:]]]
    assert true.mean() > 0.8


class Days(Amounts):
    target, plain = "a", ()

    def features(self):
        return FeatureSet([DatePart("day", ["dayofyear"]), DatePart("day", "elapsed")])


def test_days_of_a_csv_are_fed_in_the_units_of_the_graph(tmp_path):
    day = pd.Timestamp("1969-11-01") + pd.to_timedelta(np.random.default_rng(0).permutation(150), "D")
    rows = pd.DataFrame({"day": day.strftime("%Y-%m-%d"), "a": day.day_of_year * 1.0})
    (tmp_path / "data").mkdir()
    rows[:100].to_csv(tmp_path / "data/train.csv", index=False)
    rows[100:][["day"]].to_csv(tmp_path / "data/test.csv", index=False)
    run_competition(Days(), tmp_path / "data", tmp_path / "run")
    # The run's own rows are in Parquet, which has no whole seconds; those of the CSV have them.
    made = export_run(tmp_path / "run", tmp_path / "out")
    assert [i["time"]["unit"] for i in made.about["inputs"]] == ["ms"]
    for data in (None, tmp_path / "data"):
        assert verify_export(tmp_path / "out", tmp_path / "run", data).holds


def test_columns_of_the_outputs_names(tmp_path, monkeypatch):
    data = pd.DataFrame({"low": np.arange(60.0), "score": np.arange(60.0)[::-1], "a": np.arange(60.0)})
    for name, outputs in (("low", ["score"]), ("score", ["score_", "low", "high"])):
        monkeypatch.setattr(Amounts, "target", "a")
        monkeypatch.setattr(Amounts, "plain", (name,))
        (tmp_path / name).mkdir()
        run_of(Amounts(), tmp_path / name, data, data[[name]])
        made = export_run(tmp_path / name / "run", tmp_path / name / "out")
        assert [o["name"] for o in made.about["outputs"]] == outputs
        assert verify_export(tmp_path / name / "out", tmp_path / name / "run").holds


def test_an_old_run_and_a_file_of_another_run(sales, clicks, tmp_path):
    shutil.copytree(sales / "run", tmp_path / "old")
    (tmp_path / "old/sample.parquet").unlink()
    with pytest.raises(MissingFileError, match="Run the recipe again"):
        export_run(tmp_path / "old", tmp_path / "out")
    (tmp_path / "else").mkdir()
    (tmp_path / "else/notes.txt").write_text("mine")
    with pytest.raises(WriteError):
        export_run(sales / "run", tmp_path / "else")


def test_commands(sales, tmp_path):
    runner = CliRunner()
    done = runner.invoke(app, ["export", str(sales / "run"), "--out", str(tmp_path / "out"), "--fold", "0"])
    assert done.exit_code == 0, done.output
    assert "the largest difference is" in done.output
    assert "fastrec serve cannot make these: its columns are computed from events (history)" in done.output
    wrong = runner.invoke(app, ["verify", str(tmp_path / "out"), str(sales / "run"), "--fold", "1"])
    assert wrong.exit_code == 1
    assert "more than 1e-05" in wrong.output


@pytest.mark.parametrize(("gone", "damaged"), [("serving.json", False), ("model.onnx", False), ("model.onnx", True)])
def test_verify_looks_at_the_export_before_it_computes_features(clicks, exported, tmp_path, gone, damaged):
    folder = shutil.copytree(clicks / "out", tmp_path / "out")
    if damaged:
        (folder / gone).write_bytes((folder / gone).read_bytes()[:-1])
    else:
        (folder / gone).unlink()
    done = CliRunner().invoke(app, ["verify", str(folder), str(clicks / "run"), "--data", str(clicks / "data")])
    assert done.exit_code == 1
    assert done.output.startswith(f"error: file '{folder / gone}'"), done.output
    assert len(done.output.splitlines()) == 1  # no line of a stage


def test_empty_text_is_a_value_where_it_is_one():
    table = Table.read({"a": ["", "x", None], "b": ["y", "x", None]})
    said = {n: described(n, table[n])["missing"] for n in table.names}
    assert said == {"a": "\0", "b": ""}
