"""Contributions of raw columns to predictions, against enumeration by plain loops."""

import json
import shutil
from itertools import combinations
from math import factorial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec._core import limits
from fastrec.auto.auto_fit import Fit
from fastrec.competition import run_competition
from fastrec.competition.budget import Budget
from fastrec.competition.explain import Mixtures, background_rows, contributions
from fastrec.competition.predict import SavedRun
from fastrec.errors import DataError, MissingColumnError, MissingFileError
from fastrec.features import FeatureSet, Lag
from fastrec.report import write_report
from fastrec.table import Table
from tests.competition.test_table_run import TEST, TRAIN, Recipe, write

RAW = ["x", "z", "city"]


def enumerated(value, columns: int) -> np.ndarray:
    """The Shapley values of a game by its definition: for each column all subsets of the others."""
    found = []
    for j in range(columns):
        others = [i for i in range(columns) if i != j]
        total = 0.0
        for size in range(columns):
            share = factorial(size) * factorial(columns - size - 1) / factorial(columns)
            for subset in combinations(others, size):
                total += share * (value({*subset, j}) - value(set(subset)))
        found.append(total)
    return np.array(found)


def of_game(games: list[np.ndarray], columns: int, seed: int = 0) -> np.ndarray:
    """Contributions by ``Mixtures`` where the prediction of a mixture stands in each background row's own table."""
    mixtures = Mixtures(columns, len(games), seed=seed)
    background = np.arange(1, len(games) + 1)[:, None] * np.ones((1, columns), int)  # no value is the row's
    taken, numbers = mixtures.of(np.zeros(columns, int), background)
    bits = ((taken < 0) * 2 ** np.arange(columns)).sum(1)
    # A mixture without a background row is the row itself, whichever it was of.
    predicted = [[games[max(row.max(), 0)][b]] for row, b in zip(taken, bits, strict=True)]
    return mixtures.contributions(np.array(predicted), numbers)[:, 0]


def a_game(columns: int, seed: int, background: int = 3) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    games = [rng.normal(size=2**columns) for _ in range(background)]
    for game in games:
        game[-1] = games[0][-1]
    return games


def by_loops(games: list[np.ndarray], columns: int) -> np.ndarray:
    return enumerated(lambda own: np.mean([g[sum(2**i for i in own)] for g in games]), columns)


@given(columns=st.integers(1, 4), seed=st.integers(0, 999))
@settings(max_examples=25, deadline=None)
def test_few_columns_are_enumerated(columns, seed):
    games = a_game(columns, seed)
    found = of_game(games, columns)
    np.testing.assert_allclose(found[:-2], by_loops(games, columns), atol=1e-12)
    assert found[-2] == pytest.approx(np.mean([g[0] for g in games]))
    assert found[-1] == pytest.approx(games[0][-1])


@pytest.mark.parametrize("columns", [5, 8])
def test_orders_of_more_columns_come_near_enumeration(columns):
    games = a_game(columns, 1)
    drawn = np.array([of_game(games, columns, seed)[:-2] for seed in range(300)])
    error = drawn.std(0) / np.sqrt(len(drawn))
    assert (np.abs(drawn.mean(0) - by_loops(games, columns)) < 4 * error).all()


@given(columns=st.integers(1, 9), seed=st.integers(0, 999))
@settings(max_examples=25, deadline=None)
def test_contributions_add_up_and_are_exact_where_columns_only_add(columns, seed):
    found = of_game(a_game(columns, seed), columns)
    assert found[:-1].sum() == pytest.approx(found[-1], abs=1e-9)
    rng = np.random.default_rng(seed)
    own = (np.arange(2**columns)[:, None] >> np.arange(columns)) & 1
    parts, bases = rng.normal(size=(3, columns)), rng.normal(size=3)
    bases += (parts[0].sum() + bases[0]) - (parts.sum(1) + bases)  # the row's prediction is one
    found = of_game([own @ p + b for p, b in zip(parts, bases, strict=True)], columns)
    np.testing.assert_allclose(found[:-2], parts.mean(0), atol=1e-9)


def test_equal_values_are_not_mixed_and_contribute_nothing():
    rows = pd.DataFrame({"a": [1, 1], "b": ["u", None], "c": [0.5, np.nan], "d": [[1, 2], [3]], "e": [1, 2], "f": 7})
    background = pd.DataFrame({"a": [1, 1, 2], "b": ["u", "v", None], "c": 0.5, "d": [[1], [], [9]], "e": 3, "f": 7})
    asked: list[int] = []

    def predict(table: Table) -> torch.Tensor:
        asked.append(len(table))
        frame = table.to_pandas()
        assert not frame.astype(str).duplicated().any()
        told = [(r.a or 0) * (2.0 if r.b == "u" else 3.0) + len(r.d) * r.e + r.f for r in frame.itertuples()]
        return torch.tensor(told, dtype=torch.float64) + torch.tensor(frame["c"].fillna(0).to_numpy())

    tables = [Table.read(f) for f in (rows, background)]
    found = contributions(predict, *tables, list(rows))[:, :, 0]
    np.testing.assert_allclose(found[:, :-1].sum(1), found[:, -1], atol=1e-12)
    np.testing.assert_allclose(found[:, -1], [1 * 2 + 0.5 + 2 * 1 + 7, 1 * 3 + 0 + 1 * 2 + 7])
    np.testing.assert_allclose([*found[:, 5], found[0, 2]], 0, atol=1e-12)
    assert abs(found[1, 2]) > 0.1
    assert max(asked) < 2 * 3 * 6


def test_background_rows_are_evenly_spaced_by_prediction():
    torch.manual_seed(0)
    predicted = torch.randn(30).double()
    predicted[4] = torch.nan
    known = sorted((i for i in range(30) if i != 4), key=lambda i: predicted[i])
    assert background_rows(predicted, 5).tolist() == [known[int((i + 0.5) * 29 / 5)] for i in range(5)]
    assert background_rows(predicted, 99).tolist() == known
    wide = torch.rand(12, 3).double()
    order = sorted(range(12), key=lambda i: (int(wide[i].argmax()), float(wide[i].max())))
    assert background_rows(wide, 12).tolist() == order


@pytest.mark.parametrize("case", ["binary", "multiclass", "regression", "multilabel"])
def test_a_run_is_explained_as_enumeration_of_its_predictions(runs, case, tmp_path):
    saved, rows = SavedRun(runs[case]), TEST.head(4).set_index("id", drop=False)
    of = "flag2" if case == "multilabel" else None
    found = saved.explain(rows, of=of)
    assert list(found)[:5] == [*RAW, "base", "prediction"]
    assert list(found.index) == list(rows.index)
    background = pd.read_parquet(runs[case] / "background.parquet")
    assert len(background) == 64
    assert not {"binary", "multiclass", "regression", "flag1"} & set(background)
    for i, explained in enumerate(found.to_dict("records")):
        subsets = [{j for j in range(3) if k >> j & 1} for k in range(8)]
        mixed = []
        for own in subsets:
            frame = background[[*RAW, "id"]].copy()
            for j in own:
                frame[RAW[j]] = rows[RAW[j]].iloc[i]
            mixed.append(frame)
        predicted = saved.predict(pd.concat(mixed)).numpy()
        if predicted.ndim == 2:
            predicted = predicted[:, 1 if of else ["low", "mid", "top"].index(explained["class"])]
        by_own = dict(zip(map(frozenset, subsets), predicted.reshape(8, 64).mean(1)))
        shapley = enumerated(lambda own, by_own=by_own: by_own[frozenset(own)], 3)
        np.testing.assert_allclose([explained[n] for n in RAW], shapley, atol=1e-6)
        assert explained["base"] == pytest.approx(by_own[frozenset()], abs=1e-6)
        assert sum(explained[n] for n in [*RAW, "base"]) == pytest.approx(explained["prediction"], abs=1e-9)
    own = saved.predict(rows).numpy()
    if case == "binary":  # one class is explained if it is named
        yes, no = (saved.explain(rows, of=c) for c in ("Y", "N"))
        pd.testing.assert_frame_equal(yes, found)
        np.testing.assert_allclose(no[RAW], -yes[RAW], atol=1e-12)
        np.testing.assert_allclose(no[["base", "prediction"]], 1 - yes[["base", "prediction"]], atol=1e-12)
        shutil.copytree(runs[case], tmp_path / "run")
        pd.testing.assert_frame_equal(Fit(tmp_path).explain(rows), found)
    if case == "multiclass":
        mid = saved.explain(rows, of="mid")
        assert "class" not in mid
        np.testing.assert_allclose(mid["prediction"], own[:, 1], atol=1e-6)
        assert list(found["class"]) == [["low", "mid", "top"][c] for c in own.argmax(1)]
    own = own.max(1) if case == "multiclass" else own[:, 1] if case == "multilabel" else own
    np.testing.assert_allclose(found["prediction"], own, atol=1e-6)


def test_raw_columns_may_have_the_names_of_the_ends(tmp_path):
    train = TRAIN.rename(columns={"x": "class", "z": "base"})
    data = tmp_path / "data"
    data.mkdir()
    train[["id", "class", "base", "city", "multiclass"]].to_csv(data / "train.csv", index=False)

    class Named(Recipe):
        plain = ("class", "base")

    run = run_competition(Named("multiclass"), data, tmp_path / "run")
    found = SavedRun(run).explain(train.head(2), background=4)
    assert list(found) == ["class", "base", "city", "base_", "prediction_", "class_"]
    np.testing.assert_allclose(found.iloc[:, :4].sum(axis=1), found["prediction_"], atol=1e-9)
    kept = json.loads((run / "explanation.json").read_text())
    assert set(kept["class"]) <= {"low", "mid", "top"}
    assert kept["columns"] == ["class", "base", "city"]


def test_a_background_of_ones_own_and_orders(runs, monkeypatch):
    saved, rows = SavedRun(runs["regression"]), TEST.head(2)
    one = saved.explain(rows, background=TRAIN.head(1))
    np.testing.assert_allclose(one["base"], float(saved.predict(TRAIN.head(1))[0]), atol=1e-6)
    few = saved.explain(rows, background=8)
    assert len(saved.background(8)) == 8
    monkeypatch.setattr(limits, "ENUMERATED_COLUMNS", 0)
    drawn = saved.explain(rows, background=8)
    np.testing.assert_allclose(drawn[RAW].sum(axis=1) + drawn["base"], drawn["prediction"], atol=1e-9)
    np.testing.assert_allclose(drawn["prediction"], few["prediction"], atol=1e-6)
    turned = saved.explain(rows[rows.columns[::-1]], background=8)  # orders are not those of the frame's columns
    pd.testing.assert_frame_equal(turned[drawn.columns], drawn)
    assert list(turned.columns[: len(RAW)]) == [n for n in rows.columns[::-1] if n in RAW]
    monkeypatch.setattr(limits, "MIXED_CELLS", 5 * 2 * 3 * 4)
    assert len(saved.background()) == 5
    assert len(saved.explain(rows.head(0))) == 0


def test_wrong_input_is_named(runs, tmp_path):
    explain, row = SavedRun(runs["multilabel"]).explain, TEST.head(1)
    for error, said, rows, options in (
        (DataError, r"2 targets.*Give of=, one of flag1, flag2", row, {}),
        (DataError, r"'flag3' is not predicted.*flag1, flag2", row, {"of": "flag3"}),
        (DataError, "0 rows to compare with", row, {"of": "flag1", "background": 0}),
        (DataError, "0 rows to compare with", row, {"of": "flag1", "background": row.head(0)}),
        (MissingColumnError, "'city': .*lack it. Add the column; they", row.drop(columns="city"), {"of": "flag1"}),
        (MissingColumnError, "Is 'CITY' meant.*Rename it", row.rename(columns={"city": "CITY"}), {"of": "flag1"}),
    ):
        with pytest.raises(error, match=said):
            explain(rows, **options)
    run = shutil.copytree(runs["binary"], tmp_path / "run")
    (run / "background.parquet").unlink()
    with pytest.raises(MissingFileError, match=r"no rows to compare with.*background="):
        SavedRun(run).explain(TEST.head(1))
    (run / "explanation.json").unlink()
    assert "Contributions of columns" not in write_report(run).read_text()  # of an earlier run


def test_features_that_look_at_other_rows_are_not_explained_nor_a_run_without_time(tmp_path, monkeypatch):
    data = write(tmp_path / "late" / "data", "binary")
    late = Budget(10, began=-1e6, clock=lambda: 0.0)  # past its end
    run = run_competition(Recipe("binary"), data, tmp_path / "late" / "run", minutes=late)
    assert not (run / "explanation.json").exists()
    assert "Contributions of columns" not in (run / "report.html").read_text()
    recipe = Recipe("binary", features=lambda: FeatureSet([Lag("x", by="city", order="z")], key="id"))
    run = run_competition(recipe, write(tmp_path / "data", "binary"), tmp_path / "run")
    assert not (run / "explanation.json").exists()
    with pytest.raises(DataError, match=r"than a row alone \(lag1_x__city\).*permutation importance"):
        SavedRun(run).explain(TEST.head(1))


def test_the_report_has_the_contributions_of_the_lowest_the_middle_and_the_highest(runs):
    found = json.loads((runs["regression"] / "explanation.json").read_text())
    assert found["columns"] == RAW
    assert found["background"] == 64
    predicted = np.array(found["prediction"])
    assert len(predicted) == limits.EXPLAINED_ROWS
    np.testing.assert_allclose(np.sum(found["contributions"], 1) + found["base"], predicted, atol=1e-9)
    assert predicted[0] < predicted[1] < predicted[2]
    rows = pd.DataFrame(found["values"], columns=RAW).replace("missing", np.nan).astype({"x": float, "z": float})
    first = SavedRun(runs["regression"]).explain(rows.head(3), fold=0)
    np.testing.assert_allclose(first["prediction"], predicted[:3], rtol=0.05)  # of values in four digits
    page = (runs["regression"] / "report.html").read_text()
    assert "Contributions of columns" in page
    for text in ("a low prediction", "a middle prediction", "a high prediction", f"city = {rows.city[0]}"):
        assert text in page
    assert "margin-left" in page  # bars to the left


def oof_of(run: Path) -> tuple[np.ndarray, pd.DataFrame, np.ndarray]:
    """The stack's out-of-fold predictions, the rows' labels and folds, as the run's files have them."""
    rows = pd.read_parquet(run / "rows.parquet")
    rows = rows[rows.split == "oof"].reset_index(drop=True)
    predicted = pd.read_parquet(run / "oof" / "stack.parquet").filter(like="prediction").to_numpy()
    return predicted, rows.filter(like="label_"), rows["fold"].to_numpy()


def test_intervals_are_the_out_of_fold_errors_around_a_prediction(runs):
    saved, rows = SavedRun(runs["regression"]), TEST.set_index("id", drop=False)
    predicted, label, folds = oof_of(runs["regression"])
    errors = np.abs(label.to_numpy() - predicted)[:, 0]
    for level in (0.5, 0.9):
        found = saved.predict_interval(rows, level)
        bound = sorted(errors)[int(np.ceil((len(errors) + 1) * level)) - 1]
        np.testing.assert_allclose(found["prediction"], saved.predict(rows))
        np.testing.assert_allclose(found["high"] - found["prediction"], bound)
        np.testing.assert_allclose(found["prediction"] - found["low"], bound)
        assert list(found.index) == list(rows.index)
    covered = np.mean([e <= sorted(errors[folds != f])[int(np.ceil(321 * 0.9)) - 1] for e, f in zip(errors, folds)])
    page = (runs["regression"] / "report.html").read_text()
    assert "Coverage of intervals" in page
    assert f"{100 * covered:.1f} %" in page
    both = runs["regression2"]
    found = SavedRun(both).predict_interval(TEST.head(3), 0.8)
    assert list(found) == [f"{t}_{n}" for t in ("regression", "other") for n in ("low", "prediction", "high")]
    predicted, label, _ = oof_of(both)
    bound = sorted(np.abs(label.to_numpy() - predicted)[:, 1])[int(np.ceil(401 * 0.8)) - 1]
    np.testing.assert_allclose(found["other_high"] - found["other_low"], 2 * bound)
    assert len(SavedRun(both).explain(TEST.head(1), of="other", background=2)) == 1


@pytest.mark.parametrize("case", ["binary", "multiclass"])
def test_sets_hold_the_classes_that_are_likely_enough(runs, case):
    saved = SavedRun(runs[case])
    predicted, label, _ = oof_of(runs[case])
    codes = label.to_numpy()[:, 0].astype(int)
    wide = predicted if case == "multiclass" else np.concatenate([1 - predicted, predicted], 1)
    gaps = sorted(1 - wide[i, c] for i, c in enumerate(codes))
    for level in (0.3, 0.95):
        bound = gaps[int(np.ceil(401 * level)) - 1]
        found = saved.predict_set(TEST, level)
        assert list(found) == (["low", "mid", "top"] if case == "multiclass" else ["N", "Y"])
        p = saved.predict(TEST).numpy()
        p = p if case == "multiclass" else np.stack([1 - p, p], 1)
        for row, inside in zip(p, found.to_numpy(), strict=True):
            assert inside.tolist() == [bool(1 - v <= bound or v == max(row)) for v in row]
    true = TEST[case].to_numpy()
    assert np.mean([found[true[i]].iloc[i] for i in range(len(true))]) > 0.85  # of 60 rows, at .95
    assert "Coverage of sets of classes" in (runs[case] / "report.html").read_text()


def test_tasks_without_intervals_or_sets_are_named(runs, tmp_path):
    for case, what, said in (
        ("binary", "predict_interval", r"a binary task has no intervals.*Call predict_set"),
        ("regression", "predict_set", r"a regression task has no sets of classes.*Call predict_interval"),
        ("multilabel", "predict_set", r"a multilabel task has no sets of classes.*Call predict_proba"),
    ):
        with pytest.raises(DataError, match=said):
            getattr(SavedRun(runs[case]), what)(TEST)
    for level in (1.5, "0.9", 90, 0, 1, float("nan"), None):
        for call in (SavedRun(runs["regression"]).predict_interval, SavedRun(runs["binary"]).predict_set):
            with pytest.raises(DataError, match=rf"level is {level!r}\. Give a share between 0 and 1"):
                call(TEST, level)
    with pytest.raises(DataError, match=r"400 rows are too few for level 0\.999"):
        SavedRun(runs["binary"]).predict_set(TEST, 0.999)
    run = shutil.copytree(runs["binary"], tmp_path / "run")
    (run / "oof" / "stack.parquet").unlink()
    with pytest.raises(MissingFileError, match="no out-of-fold predictions"):
        SavedRun(run).predict_set(TEST)
