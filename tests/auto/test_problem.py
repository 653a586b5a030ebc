"""Target, task, metric, ids, folds and what is left out, found from files in the usual forms."""

import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fastrec.auto import new_competition
from fastrec.auto.columns import Files, names_something, read_files
from fastrec.auto.trial import QuickTrial
from fastrec.auto.understand import understand
from fastrec.cli import load_competition
from fastrec.errors import DataError, MissingColumnError, MissingFileError
from tests.files import write_csv

N = 600
RNG = np.random.default_rng(1)


def frame(**more):
    made = {"id": np.arange(N), "x": RNG.normal(size=N), "c": RNG.choice(list("abc"), N)}
    return pd.DataFrame(made | more)


def folder(tmp_path, train, test=None, sample=None, names=("train", "test", "sample_submission")):
    return write_csv(tmp_path, **dict(zip(names, (train, test, sample), strict=True)))


def known(data, **options):
    return understand(read_files(data), **options)


def decision(problem, what):
    (one,) = [d for d in problem.decisions if d.what == what]
    return one


def test_kaggle_folder(tmp_path):
    train = frame(bought=RNG.integers(0, 2, N), only_here=1.5)
    test, sample = frame(), pd.DataFrame({"id": np.arange(N), "bought": 0.5})
    found = known(folder(tmp_path, train, test, sample))
    assert (found.target, found.task, found.metric, found.ids) == (["bought"], "binary", "auc", ["id"])
    assert found.drop["only_here"]
    assert [c.name for c in found.learned] == ["x", "c"]
    assert found.files.reading.files == {}


def test_the_one_column_that_the_test_lacks_whatever_the_files_are_called(tmp_path):
    found = known(folder(tmp_path, frame(z=RNG.normal(size=N)), frame(), None, names=("my_train", "my_test", "x")))
    assert (found.target, found.task, found.metric) == (["z"], "regression", "rmse")
    assert found.files.reading.files == {"train": "my_train.csv", "test": "my_test.csv"}


def test_one_file(tmp_path):
    train = frame(a=1.0, y=RNG.choice(["no", "yes"], N))
    train.to_csv(tmp_path / "people.csv", index=False)
    for data in (tmp_path, tmp_path / "people.csv"):
        found = known(data)
        assert (found.target, found.task, found.classes) == (["y"], "binary", ["no", "yes"])
        assert found.files.reading.files == {"train": "people.csv"}


@pytest.mark.parametrize(
    ("values", "task"),
    [
        (lambda: RNG.choice([0, 1], N), "binary"),
        (lambda: RNG.choice(["u", "v", "w"], N), "multiclass"),
        (lambda: RNG.integers(0, 5, N), "multiclass"),
        (lambda: RNG.normal(size=N), "regression"),
        (lambda: RNG.integers(0, 500, N), "regression"),
        (lambda: RNG.choice([10, 500], N), "binary"),
        (lambda: RNG.choice([1, 7, 30], N), "regression"),
    ],
)
def test_task(tmp_path, values, task):
    y = values()
    found = known(folder(tmp_path, frame(y=y), frame()))
    assert found.task == task
    few = y.dtype.kind == "i" and 2 < len(set(y)) < 20  # amounts or classes: nobody but a person knows
    assert decision(found, "task").sure is not few


def test_classes_that_are_written_in_several_ways_are_told_of(tmp_path):
    found = known(folder(tmp_path, frame(y=RNG.choice(["yes", "Yes ", "no", "no answer"], N)), None), target="y")
    assert "the classes 'Yes ', 'yes' differ in nothing but case and spaces" in decision(found, "classes").why
    found = known(folder(tmp_path, frame(y=RNG.choice(["yes", "no"], N)), None), target="y")
    assert [d for d in found.decisions if d.what == "classes"] == []


def test_a_test_that_lacks_columns_or_has_the_target_is_told_of(tmp_path):
    train = frame(y=RNG.integers(0, 2, N))
    found = known(folder(tmp_path, train, train[["x", "y"]].assign(p=1, q=2, r=3)), target="y")
    assert [c.name for c in found.learned] == ["x"]
    assert "c: the test rows lack them" in decision(found, "test columns").why
    assert "the test rows have y, which is not used" in decision(found, "test target").why
    found = known(folder(tmp_path, train, train.drop(columns="y")), target="y")
    assert {d.what for d in found.decisions} == {"train", "test", "target", "task", "metric", "ids", "folds"}
    with pytest.raises(DataError, match="the test has none of the training rows' columns: it has p, q"):
        known(folder(tmp_path, train, pd.DataFrame({"p": [1], "q": 2})), target="y")


def test_task_of_a_metric(tmp_path):
    data = folder(tmp_path, frame(y=RNG.integers(0, 5, N)), frame())
    assert known(data, metric="Quadratic_Kappa").metric == "quadratic_kappa"
    assert [known(data, metric="rmsle").task, known(data, metric="rmsle").scale] == ["regression", "log1p"]
    assert known(data, task="regression").metric == "rmse"
    assert known(data, metric="quadratic_kappa").metric == "quadratic_kappa"


PETS = RNG.choice(["dog", "cat"], N)
CHANCES = {"Class_2": 0.3, "Class_5": 0.3, "Class_60": 0.4}


@pytest.mark.parametrize(
    ("columns", "sample", "target", "task", "metric"),
    [
        ({"y": RNG.choice([2, 5, 60], N)}, CHANCES, ["y"], "multiclass", "logloss"),
        ({"y": PETS}, {"y": PETS[::-1]}, ["y"], "binary", "accuracy"),  # a sample with classes wants classes
        (dict(zip("pq", RNG.integers(0, 2, (2, N)))), {"p": 0.5, "q": 0.5}, ["p", "q"], "multilabel", None),
    ],
)
def test_a_sample_says_targets_and_what_is_wanted_of_them(tmp_path, columns, sample, target, task, metric):
    found = known(folder(tmp_path, frame(**columns), frame(), pd.DataFrame({"id": np.arange(N), **sample})))
    assert (found.target, found.task) == (target, task)
    assert metric in (None, found.metric)


AMOUNT = RNG.normal(size=N).round(1)
YES = AMOUNT > 0
AT = pd.Series(pd.Timestamp("2024-03-01") + pd.to_timedelta(RNG.integers(0, 9_000, N), unit="h"))
FREE = pd.Series([" ".join(f"w{v}" for v in row) for row in RNG.integers(0, 999, (N, 6))])
THIRDS = np.array(["mid", "low", "top"])[pd.qcut(AMOUNT, 3, labels=False)]
CODES = RNG.permutation(500)[np.unique(AMOUNT, return_inverse=True)[1]]


@pytest.mark.parametrize(
    ("leak", "near", "y", "said"),
    [
        (AT.where(YES), AT.where(YES | (RNG.random(N) < 0.1)), YES, r"by where it is missing \(1.0000\)"),
        (FREE.where(YES), FREE.where(YES & (RNG.random(N) < 0.9)), YES, "by where it is missing"),
        (AMOUNT, AMOUNT + RNG.normal(size=N) / 9, THIRDS, r"orders the target \(1.0000\)"),
        ([f"{v}x" for v in AMOUNT], [f"{v:.0f}x" for v in AMOUNT], AMOUNT, "all rows of one leak share it"),
        (CODES, CODES // 20, AMOUNT, "all rows of one leak share it"),
        (2 * AMOUNT + 1, AMOUNT + RNG.normal(size=N), AMOUNT, "the target"),
        ([("n", "j")[v] for v in YES.astype(int)], RNG.choice(["n", "j"], N), YES.astype(int), "the target"),
        ((20 * AMOUNT).astype(int) // 2, (4 * AMOUNT).astype(int), AMOUNT + (AMOUNT > 1), "the target"),
    ],
)
def test_what_tells_the_target_is_dropped_with_its_figure_and_how_to_keep_it(tmp_path, leak, near, y, said):
    """Of times and texts by where they are missing, and of any task; what hardly less is known of stays."""
    rows = pd.DataFrame({"leak": leak, "near": near, "x": RNG.normal(size=N), "y": y})
    rows.to_parquet(tmp_path / "train.parquet")
    found = known(tmp_path, target="y")
    assert list(found.drop) == ["leak"]
    leak = decision(found, "leak")
    assert re.search(f"leak is left out: it alone .*{said}.*remove it from the recipe's drop", leak.why)
    assert not leak.sure


@pytest.mark.parametrize("patients", [60, 300])
@pytest.mark.parametrize("named", [False, True])
def test_all_rows_of_a_patient_share_the_target(tmp_path, patients, named):
    who = np.repeat(RNG.permutation(900)[:patients], 10)
    rows = pd.DataFrame({"patient": [f"p{v}" for v in who] if named else who, "pulse": RNG.normal(size=len(who))})
    rows["ill"] = RNG.integers(0, 2, 900)[who]
    rows.sample(frac=1, random_state=0).to_csv(tmp_path / "train.csv", index=False)
    found = known(tmp_path, target="ill")
    said = "all rows of one patient share the target: if the rows to predict are of another patient, they are predicted"
    assert f"{said} worse than the score says: give group='patient'" in decision(found, "folds").why
    assert "it alone tells the target: all rows of one patient share it" in decision(found, "leak").why
    found = known(tmp_path, target="ill", group="patient")
    assert [d for d in found.decisions if d.what == "leak"] == []  # it is no feature anyhow


@pytest.mark.parametrize("name", ["user_id", "who"])
def test_a_key_that_repeats_is_asked_about_where_no_test_says(tmp_path, name):
    """The target is a property of the user: at random the same user is learned and scored."""
    user = np.repeat(np.arange(100), 6)
    told = frame(**{name: [f"u{v}" for v in user]}, y=RNG.integers(0, 2, 100)[user])
    found = known(folder(tmp_path, told, None), target="y")
    assert found.keys == [name]
    folds = decision(found, "folds")
    assert not folds.sure
    assert f"fold_key = '{name}'" in folds.why
    test = frame(**{name: [f"new{v}" for v in user]})
    assert known(folder(tmp_path, told, test)).group == name  # a test says it, and nothing is asked


@pytest.mark.parametrize("columns", [{"code_id": RNG.permutation(N) * 7}, {"x": RNG.integers(0, 9, N), "id": 1}])
def test_ids_of_every_row_and_few_values_that_come_again_by_chance_leave_no_doubt(tmp_path, columns):
    found = known(folder(tmp_path, frame(**columns, y=RNG.integers(0, 2, N))), target="y")
    assert (found.keys, decision(found, "folds").sure) == ([], True)


@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize("test", [False, True])
def test_copies_of_rows_are_told_of_with_their_share(tmp_path, test, few):
    columns = {f"k{i}": RNG.integers(0, 10, N) for i in range(9)} if few else {"x2": RNG.normal(size=N)}
    rows = frame(**columns, y=RNG.integers(0, 2, N)).drop(columns=["id", "x"] if few else "id")
    again = pd.concat([rows] * 3, ignore_index=True).sample(frac=1, random_state=0)
    again["id"] = np.arange(len(again))  # a number of their own makes them no other rows
    found = known(folder(tmp_path, again, frame(**columns) if test else None), target="y")
    folds = decision(found, "folds")
    assert f"{again.drop(columns='id').duplicated().mean():.3g} of the rows is a copy" in folds.why
    assert not folds.sure


@pytest.mark.parametrize(("last", "sure"), [(12, False), (13, True)])
def test_dates_that_may_be_month_first_are_told_of(tmp_path, last, sure):
    day, month = 1 + np.arange(N) % last, 1 + np.arange(N) % 11
    dates = [f"{d:02}/{m:02}/20{20 + i % 3}" for i, (d, m) in enumerate(zip(day, month, strict=True))]
    found = known(folder(tmp_path, frame(at=dates, y=RNG.normal(size=N)), None), target="y")
    assert found.files.reading.dates == {"at": "%d/%m/%Y"}
    assert [d.value for d in found.decisions if d.what == "dates"] == ([] if sure else [["at"]])


def test_what_pandas_notes_of_a_file_is_not_read(tmp_path):
    """It holds all columns, and would be read for each of them."""
    table = pa.Table.from_pandas(frame(y=RNG.integers(0, 2, N)))
    pq.write_table(table.replace_schema_metadata({"pandas": "no JSON"}), tmp_path / "train.parquet")
    assert known(tmp_path, target="y").task == "binary"


DAYS, LISTS = pd.date_range("2024-01-01", periods=N), [[1, 2, 3], [4], []] * (N // 3)


@pytest.mark.parametrize(
    ("column", "asked", "said"),
    [
        ([1.0] * N, {}, "one value only"),
        ([1.0] * N, {"target": "nope"}, "'nope'"),
        ([f"t{i}" for i in range(N)], {}, "is no number"),
        ([None] * N, {}, "no value"),
        ([], {}, r"train.parquet': there are no rows"),
        (np.arange(N) * 1e300, {}, "row 1: rmse does not score 1e.300. Give the target in a larger unit"),
        (np.arange(N) / 7, {"metric": "auc"}, "no metric of a regression"),
        *((v, {"task": "regression"}, "a regression learns numbers") for v in (DAYS, [f"k{i % 3}" for i in range(N)])),
        ([1.0] * N, {"task": "sessions"}, "'sessions' is not one of ranking, .* write a NextItemCompetition .docs/"),
        *((LISTS, {"task": t}, "competitions/diginetica") for t in (None, "multiclass")),
    ],
)
def test_refusals(tmp_path, column, asked, said):
    frame()[: len(column)].assign(y=column).to_parquet(tmp_path / "train.parquet")
    with pytest.raises((DataError, MissingColumnError), match=said):
        known(tmp_path, **{"target": "y", **asked})


def test_a_folder_without_a_table_is_refused(tmp_path):
    with pytest.raises(MissingFileError):
        known(tmp_path / "nowhere")
    with pytest.raises(MissingFileError, match="no table"):
        known(tmp_path)


def test_features_are_tried_on_folds_as_the_runs(tmp_path):
    """By blocks of time or by whole groups, where the run's folds are."""
    days = pd.date_range("2024-01-01", periods=N)
    order = RNG.permutation(N)
    train = frame(day=days[order], y=RNG.normal(size=N))
    by_time = QuickTrial(known(folder(tmp_path, train, frame(day=pd.date_range("2025-12-01", periods=N)))), [], 1.0)
    blocks = [days[order][inside.numpy()] for _, inside in by_time.folds]
    assert all(a.max() < b.min() for a, b in pairwise(blocks))
    patients = RNG.integers(0, 60, N)
    grouped = frame(patient_id=patients, y=RNG.normal(size=N))
    by_group = QuickTrial(known(folder(tmp_path, grouped, frame(patient_id=RNG.integers(60, 120, N)))), [], 1.0)
    held = [set(patients[inside.numpy()]) for _, inside in by_group.folds]
    assert not set.intersection(*held)
    assert sum(map(len, held)) == len(set(patients))


def test_texts_of_which_one_in_each_list_is_rarer_stay_classes(tmp_path):
    clicked = np.where(RNG.integers(0, 4, 60)[:, None] == np.arange(4), "yes", "no").ravel()
    rows = {"search": np.repeat(np.arange(60), 4), "price": RNG.normal(size=240), "clicked": clicked}
    pd.DataFrame(rows).to_csv(tmp_path / "train.csv", index=False)
    task = decision(known(tmp_path), "task")
    assert (task.value, task.sure) == ("binary", False)
    assert "one row of each search is chosen (make the label 1 for it, and 0 for the others): to rank" in task.why


# Whole numbers that name something


def of_ids(n=3_000, ids=150, seed=0):
    """Ids in text and as numbers, each with an effect of its own, beside an amount with a smooth one."""
    rng = np.random.default_rng(seed)
    who, amount, shop = rng.integers(0, ids, n), rng.integers(0, ids, n), rng.integers(0, ids, n)
    effect = rng.normal(size=ids)
    chance = 1 / (1 + np.exp(-1.5 * effect[who] - effect[shop] - 0.03 * (amount - ids / 2)))
    names = rng.permutation(10 * ids)[:ids] + 1_000
    columns = {"who": names[who], "amount": amount, "shop": names[shop]}
    return pd.DataFrame(columns).assign(y=(rng.random(n) < chance).astype(int))


def kinds(frame):
    files = Files(Path(), {"train": "train.csv"}, {"train": pa.Table.from_pandas(frame)}, why={"train": ""})
    return {c.name: c for c in understand(files, target="y").columns}


def test_whole_numbers_in_text_are_categories_where_others_are_numbers():
    frame = of_ids()
    found = kinds(frame.assign(who=frame.who.astype(str), few=(frame.amount % 4).astype(str)))
    assert (found["who"].kind, found["few"].kind, found["amount"].kind) == ("category", "category", "number")
    assert found["who"].key
    # amounts in text stay numbers, and so do columns with blanks
    income, x = np.arange(3_000) * 7 % 2_999, np.linspace(0, 1, 3_000)
    found = kinds(frame[["y"]].assign(income=income.astype(str), amount=frame.amount.astype(str), x=x))
    assert {n: c.kind for n, c in found.items()} == {"income": "number", "amount": "number", "x": "number"}
    few = (frame.amount % 4).astype(str).mask(frame.index == 5, " ")
    assert kinds(frame.assign(few=few))["few"].kind == "number"


def test_where_all_is_text_or_most_columns_name_something_the_target_says_which_numbers_do():
    """Else numbers by type stay numbers that are keys."""
    frame = of_ids()
    for rows in (frame, frame.astype({"who": str, "amount": str, "shop": str})):
        found = {n: c.kind for n, c in kinds(rows).items()}
        assert found == {"who": "category", "amount": "number", "shop": "category"}
    few = kinds(frame.assign(x=np.arange(3_000) % 7 / 3, z=np.arange(3_000) % 11 / 3))
    assert few["who"].kind == few["shop"].kind == "number"
    assert few["who"].why == "numbers that name something"


@pytest.mark.parametrize("seed", range(3))
def test_numbers_name_something_as_a_plain_loop_says(seed):
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 40, 400).astype(float)
    label = (rng.normal(size=40)[values.astype(int)] * (seed + 0.3) + values / 20 + rng.normal(size=400))[:, None]
    mean, own, near = label.mean(), [], []
    ordered = np.unique(values)
    for i, v in enumerate(values):
        rows = [j for j in range(400) if values[j] == v and j != i]
        own.append(sum(label[j, 0] - mean for j in rows) / (len(rows) + 10))
        at, sides = np.searchsorted(ordered, v), []
        for side in (ordered[:at][::-1], ordered[at + 1 :]):
            taken = 0
            for other in side:  # whole values, until 50 rows or more are there
                if taken >= 50:
                    break
                sides += list(label[values == other, 0] - mean)
                taken += (values == other).sum()
        near.append(sum(sides) / (len(sides) + 10))
    y = label[:, 0] - mean
    by_own, by_near = (y**2 - (y - np.array(said)) ** 2 for said in (own, near))
    apart = by_own - by_near
    wanted = apart.mean() > 2 * apart.std() / 20 and by_near.sum() < by_own.sum() / 4
    assert names_something(values, label) == wanted


@pytest.mark.parametrize(
    ("rows", "more", "asked", "ten"),
    [
        (400, {}, {}, True),
        (399, {}, {}, False),  # fewer than were measured
        (3_001, {}, {}, False),
        (600, {}, {"minutes": 5.0}, True),
        (600, {}, {"minutes": 4.9}, False),
        (600, {"y": ["rare"] * 9 + ["often"] * 591}, {}, False),  # a fold would be without the class
        (600, {"y": ["rare"] * 10 + ["often"] * 590}, {}, True),
        (600, {"y": [None] * 201 + [*RNG.normal(size=399)]}, {}, False),  # rows without a target teach nothing
        (600, {"u": np.arange(600) // 4}, {"group": "u"}, False),
        (600, {"t": np.arange(600)}, {"time": "t"}, False),
    ],
)
def test_few_rows_at_random_are_cut_into_ten(tmp_path, rows, more, asked, ten):
    table = pd.DataFrame({"x": RNG.normal(size=rows), "y": RNG.normal(size=rows)} | more)
    table.to_csv(tmp_path / "rows.csv", index=False)
    new_competition(tmp_path / "mine", tmp_path / "rows.csv", target="y", seconds=0, **asked)
    assert load_competition(tmp_path / "mine").n_folds == (10 if ten else 5)
