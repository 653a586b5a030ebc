"""Tables of odd shapes, from files to predictions."""

import datetime as dt
from contextlib import nullcontext
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

import fastrec
from fastrec.auto import new_competition
from fastrec.auto.columns import read_files
from fastrec.auto.features import _arithmetic, choose_features
from fastrec.auto.models import choose_models
from fastrec.auto.trial import QuickTrial
from fastrec.auto.understand import understand
from fastrec.cli import load_competition
from fastrec.competition import run_competition
from fastrec.competition.predict import SavedRun
from fastrec.errors import DataError, DataWarning
from fastrec.estimators import XGBModel
from fastrec.features import Combine, FeatureSet
from tests.files import scores_of, write_csv

RNG = np.random.default_rng(5)


def wide():
    made = {f"v{i}": np.where(RNG.random(500) < 0.7, 0, RNG.normal(size=500)) for i in range(130)}
    made |= {"v7": np.zeros(500), "v9": made["v8"]}
    return pd.DataFrame(made | {"y": (made["v1"] + made["v2"] > 0).astype(int)}), {}


def noisy(x):
    return x + RNG.normal(size=len(x)) * 0.3


def many_classes():
    c = RNG.integers(0, 110, 2_200)
    c[:1_100] = np.repeat(np.arange(110), 10)
    return pd.DataFrame({"x": c + RNG.normal(size=2_200) * 0.1, "z": c % 7, "y": [f"k{v}" for v in c]}), {"rounds": 4}


def dates_only():
    days = pd.to_datetime("2022-01-01") + pd.to_timedelta(RNG.integers(0, 700, 900), unit="D")
    frame = pd.DataFrame(
        {"a": days.strftime("%Y-%m-%d"), "b": (days + pd.to_timedelta(3, unit="D")).strftime("%d.%m.%Y")}
    )
    return frame.assign(y=np.where(days.day_of_week >= 5, "weekend", "week")), {}


def text_only():
    good, bad, other = (w.split() for w in ("fine lovely sound great", "broken awful poor cheap", "the a it of on was"))
    y = RNG.integers(0, 2, 800)
    words = [[*RNG.choice(good if v else bad, 2), *RNG.choice(other, 5)] for v in y]
    return pd.DataFrame({"review": [" ".join(RNG.permutation(w)) for w in words], "y": np.where(y, "good", "bad")}), {}


def amounts_of_one_sign():
    x = RNG.normal(size=700)
    return pd.DataFrame({"x": x, "price": np.exp(2 * noisy(x)) * 100}), {"metric": "rmsle", "target": "price"}


def infinite_and_missing():
    x = RNG.normal(size=600)
    frame = pd.DataFrame({"x": x, "z": np.where(RNG.random(600) < 0.1, np.inf, x), "w": np.where(x > 1, np.nan, x)})
    return frame.assign(y=(noisy(x) > 0).astype(int)), {}


def flags_and_objects():
    x = RNG.random(500) < 0.5
    y = np.where(x ^ (RNG.random(500) < 0.1), 1, 0)
    return pd.DataFrame({"flag": x, "mixed": np.where(x, "1", "x"), "y": y}), {}


TABLES = [
    wide, many_classes, dates_only, text_only, amounts_of_one_sign, infinite_and_missing, flags_and_objects
]  # fmt: skip


def run_it(tmp_path, frame, test=None, *, rounds=25, **options):
    data = write_csv(tmp_path / "data", train=frame, test=test)
    made = new_competition(tmp_path / "mine", data, seconds=2, **{"target": "y"} | options)
    recipe = load_competition(made.folder)
    recipe.models = lambda *, bs: [XGBModel("xgb", rounds=rounds, eta=0.3, max_depth=3, early_stopping_rounds=None)]
    run = run_competition(recipe, data, tmp_path / "run")
    return made, scores_of(run), pd.read_csv(run / "submission.csv")


@pytest.mark.parametrize("make", TABLES, ids=lambda f: f.__name__)
def test_it_learns(make, tmp_path):
    frame, options = make()
    _, scores, submission = run_it(tmp_path, frame, **options)
    found, trivial = scores["oof"]["stack"], scores["oof"]["constant"]
    assert (found > trivial) if scores["greater_is_better"] else (found < trivial)
    assert len(submission) == len(frame)
    assert submission.notna().all().all()


@pytest.mark.parametrize("test", [False, True])
def test_rows_without_a_target_are_predicted_or_left_out(tmp_path, test):
    x = RNG.normal(size=400)
    y = pd.Series(np.where(noisy(x) > 0, "a", "b")).where(np.arange(400) < 300)
    frame = pd.DataFrame({"key": np.arange(400), "x": x, "y": y})
    with pytest.warns(DataWarning, match="100 training rows have no target") if test else nullcontext():
        made, scores, submission = run_it(tmp_path, frame, frame.drop(columns="y").head(50) if test else None)
    assert (made.problem.task, scores["rows"]["train rows"]) == ("binary", 300)
    assert submission.key.tolist() == list(range(50) if test else range(300, 400))


def test_a_column_that_is_the_target_is_kept_where_there_is_nothing_else(tmp_path):
    x = RNG.normal(size=300)
    made, scores, _ = run_it(tmp_path, pd.DataFrame({"x": x, "y": (x > 0).astype(int)}))
    assert made.problem.drop == {}
    assert not next(d for d in made.decisions if d.what == "columns").sure
    assert scores["oof"]["stack"] > 0.99


def test_a_class_of_one_row_is_told_of(tmp_path):
    frame = pd.DataFrame({"x": RNG.normal(size=200), "y": ["rare", *RNG.choice(["a", "b"], 199)]})
    with pytest.warns(DataWarning) as told:
        _, scores, _ = run_it(tmp_path, frame)
    assert scores["task"] == "multiclass"
    # once: trials of features have folds of their own
    said = "column 'y': 1 class has fewer rows than the 5 folds, class 'rare' 1: some folds are without it"
    assert [str(w.message) for w in told] == [said]


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (
            {"x": np.arange(5.0), "y": [0, 1, 0, 1, 1]},
            r"column 'y': no class has as many rows as there are folds \(5\)",
        ),
        ({"y": np.arange(50.0) ** 2}, "there is no column but the target. Add columns that tell rows"),
    ],
)
def test_fit_says_why_there_is_too_little_to_learn_from(frame, words):
    with pytest.raises(DataError, match=words):
        fastrec.fit(pd.DataFrame(frame), "y", minutes=0.05, quiet=True)


def test_later_days_of_stores(tmp_path):
    """Kaggle's manner with dates in text: folds by time, and a side table that is joined."""
    days = pd.date_range("2022-01-01", periods=60)
    frame = pd.MultiIndex.from_product([range(12), days], names=["shop", "date"]).to_frame(index=False)
    frame["promo"] = frame.date.dt.day_of_week % 2
    frame["sold"] = 100 + 50 * frame.promo + 30 * frame["shop"] + RNG.normal(size=len(frame))
    shops = pd.DataFrame({"shop": range(12), "size": RNG.normal(size=12)})
    test = frame[frame.date >= days[50]].drop(columns="sold")
    tables = {"train": frame[frame.date < days[50]], "test": test, "shops": shops}
    data = write_csv(tmp_path / "data", **tables, notes=pd.DataFrame({"note": ["nothing"]}))
    made = new_competition(tmp_path / "mine", data, seconds=0)
    recipe = load_competition(made.folder)
    assert (recipe.time, recipe.target, recipe.time_horizon) == ("date", "sold", "10 days")
    assert recipe.n_folds == 4  # the first ten days are left to learn from
    assert (recipe.reading.tables, "shops_size" in recipe.features().outputs) == (["shops"], True)
    read = recipe.load(data, rows=None, device=torch.device("cpu"))
    size = recipe.features().fit_transform(read.train, tables=read.tables)["shops_size"].number()
    np.testing.assert_allclose(size, shops["size"].to_numpy()[read.train["shop"].integer()])
    assert read_files(data / "train.csv").side == {}  # one file was given: the others are not looked at
    recipe.models = lambda *, bs: [XGBModel("xgb", rounds=30, eta=0.3, early_stopping_rounds=None)]
    run = run_competition(recipe, data, tmp_path / "run")
    assert len(pd.read_csv(run / "submission.csv")) == 120


def test_a_european_file(tmp_path):
    x = RNG.gamma(2, 900, size=400)
    frame = pd.DataFrame({"Betrag": x, "Tag": pd.date_range("2020-01-01", periods=400), "Preis": 2 * x})
    text = frame.assign(Tag=frame.Tag.dt.strftime("%d.%m.%Y"))
    for name in ("Betrag", "Preis"):
        text[name] = [f"{v:,.2f}".translate(str.maketrans(",.", ".,")) for v in frame[name]]
    for name, rows in (("train", text[:50]), ("test", text[300:].drop(columns="Preis"))):
        rows.to_csv(tmp_path / f"{name}.csv", sep=";", index=False, encoding="utf-8-sig")
    made = new_competition(tmp_path / "mine", tmp_path, seconds=0)
    assert (made.problem.task, made.problem.target) == ("regression", ["Preis"])
    reading = load_competition(made.folder).reading
    for name, rows in (("train", frame[:50]), ("test", frame[300:])):
        found = reading.read(tmp_path / f"{name}.csv").to_pandas()
        for column in found.columns.drop("Tag"):
            np.testing.assert_allclose(found[column], rows[column].round(2))


AT = pd.date_range("2019-01-01", periods=900, freq="1177min")
CLOCK = {"DepTime": 100 * AT.hour + AT.minute}
OTHER = {"weekday_day": AT.day_of_week, "weekday_month": AT.month}


@pytest.mark.parametrize(
    ("columns", "outputs", "year"),
    [
        ({"Year": AT.year, "Month": AT.month, "Day": AT.day, **OTHER}, "date date_dayofweek date_dayofyear", None),
        # a year that the table does not say
        ({"Month": AT.strftime("c-%-m"), "DayofMonth": AT.strftime("c-%-d"), **CLOCK}, "date DepTime_on_date", "2000"),
        ({"date": AT.strftime("%d/%m/%Y"), **CLOCK}, "DepTime_on_date", "2019"),
    ],
)
def test_months_days_and_clocks_become_dates_and_moments(tmp_path, columns, outputs, year):
    frame = pd.DataFrame(columns).assign(y=RNG.normal(size=900))
    frame.sample(frac=1, random_state=0).to_csv(tmp_path / "train.csv", index=False)
    made = new_competition(tmp_path / "mine", tmp_path / "train.csv", target="y", seconds=0)
    features = next(f for f in made.chosen.families if f.name == "dates put together").features
    assert [o for f in features for o in f.outputs] == outputs.split()
    if year is not None:
        table = load_competition(made.folder).reading.convert(pa.Table.from_pandas(frame))
        moments = features[-1].fit_transform(table)["DepTime_on_date"].to_numpy()[:50]
        np.testing.assert_array_equal(moments - pd.Timestamp(year).timestamp(), (AT - AT[0]).total_seconds()[:50])


def test_a_column_of_clock_times(tmp_path):
    hours = RNG.integers(0, 24, 300)
    frame = pd.DataFrame({"opens": [f"{h:02d}:30" for h in hours], "x": RNG.normal(size=300)})
    _, scores, _ = run_it(tmp_path, frame.assign(y=np.where(noisy(frame.x) + (hours > 17) > 0.5, "a", "b")))
    assert scores["oof"]["stack"] > 0.8
    saved = SavedRun(tmp_path / "run")
    assert saved.reading.types["train"]["opens"] == "clock"
    times = frame.assign(opens=[dt.time(int(h), 30) for h in hours])
    np.testing.assert_array_equal(saved.predict(frame), saved.predict(times))


@pytest.mark.filterwarnings("ignore:folds. rows at random")
def test_fit_takes_names_and_columns_as_pandas_has_them():
    x = RNG.normal(size=200)
    frame = pd.DataFrame(
        {
            0: x,
            ("a", 1): pd.period_range("2020-01", periods=200, freq="D"),
            "cut": pd.cut(pd.Series(x), 4),
            "at": [dt.time(i % 24, 30) for i in range(200)],
            "cost": [Decimal(f"{v:.2f}") for v in x],
            3: pd.Categorical(np.where(noisy(x) > 0, "hi", "lo")),
        }
    )
    fitted = fastrec.fit(frame, 3, minutes=0.05, quiet=True)
    assert fitted.score > 0.8
    said = fitted.predict(frame.drop(columns=[3]))
    assert (said == frame[3].to_numpy()).mean() > 0.8
    np.testing.assert_array_equal(said, fitted.predict(frame.rename(columns=str).drop(columns="3")))


FRAME = pd.DataFrame({"a": np.arange(20), "y": np.arange(20) % 2})


@pytest.mark.parametrize(
    ("column", "values", "words"),
    [
        ("m", [1, "x"] * 10, "column 'm', row 1: holds values of several or unknown types"),
        ("m", [pd.Timestamp("2020"), "x"] * 10, "column 'm', row 1: holds values of several"),
        ("m", np.arange(20) + 1j, "column 'm'.*complex"),
        ("m", [object() for _ in range(20)], "column 'm'.*object"),
        ("1", np.arange(20.0), "column '1': several columns have this name"),
    ],
)
def test_fit_refuses_odd_columns_by_name(column, values, words):
    frame = pd.DataFrame({1: np.arange(20), "y": np.arange(20) % 2})
    frame[column] = values
    with pytest.raises(DataError, match=words):
        fastrec.fit(frame, "y", minutes=0.05, quiet=True)


@pytest.mark.parametrize(
    "target", [FRAME["y"], FRAME["y"].to_numpy(), FRAME[["y"]], [["y"]], 3, None], ids=lambda t: type(t).__name__
)
def test_a_target_is_a_name(target):
    with pytest.raises(DataError, match=r"target= names a column or several, and this is of type .*give its name"):
        fastrec.fit(FRAME, target, minutes=0.05, quiet=True)


# Three columns that say something together are found after the pairs.

pytest.importorskip("lightgbm")


def test_a_habit_of_three_columns_is_kept_beside_that_of_two(tmp_path):
    rng, n = np.random.default_rng(0), 8_000
    codes = rng.integers(0, 9, (n, 4))
    pair, three = rng.normal(0, 0.8, (9, 9)), rng.normal(0, 1.2, (9, 9, 9))
    chance = 1 / (1 + np.exp(-pair[codes[:, 0], codes[:, 1]] - three[codes[:, 0], codes[:, 1], codes[:, 2]]))
    frame = pd.DataFrame({c: np.char.add(c, codes[:, i].astype(str)) for i, c in enumerate("abcd")})
    frame.assign(late=(rng.random(n) < chance).astype(int)).to_csv(tmp_path / "train.csv", index=False)
    problem = understand(read_files(tmp_path), target="late")
    chosen = choose_features(problem, seconds=600)
    families = {f.name: f for f in chosen.families}
    found = families["target means of triples"]
    assert found.kept
    assert found.gain > 0.005
    (means,) = found.features
    assert sorted(means.cols[0].columns) == ["a", "b", "c"]
    assert list(families).index("target means of triples") == list(families).index("target means of pairs") + 1


# Arithmetic of two numbers is found where the target hangs on it, and noise is left alone.


def measured(folder, label, **more):
    rng = np.random.default_rng(3)
    frame = pd.DataFrame(np.exp(rng.normal(size=(3_000, 4))), columns=list("abcd")).assign(**more)
    frame.assign(y=label(frame, rng)).to_parquet(folder / "train.parquet")
    return understand(read_files(folder), target="y")


def first_tried(problem):
    chosen = choose_features(problem, seconds=600)
    first = next(f for f in chosen.families if f.gain is not None)  # no column holds categories
    assert (first.name, first.kept) == ("arithmetic of two numbers", True)
    return chosen, first


def quotient(f, rng):
    return f["b"] / f["c"] + rng.normal(0, 0.3, len(f))


def test_a_quotient_is_found_and_kept(tmp_path):
    problem = measured(tmp_path, quotient)
    chosen, first = first_tried(problem)
    assert first.gain > 2 * first.error
    assert repr(first.features[0]) == repr(Combine("b", "/", "c"))
    # none orders rows as another does: Spearman's correlation of each two
    ranks = FeatureSet(first.features).fit_transform(pd.read_parquet(tmp_path / "train.parquet"))
    alike = ranks[[f.outputs[0] for f in first.features]].rank().corr().to_numpy() ** 2
    assert (alike[~np.eye(len(alike), dtype=bool)] <= 0.9).all()
    # CatBoost has no arithmetic of its own: it sees what was found
    (cat,) = [m.text for m in choose_models(problem, chosen) if m.cls == "CatBoostModel"]
    assert "OWN" not in cat


def test_arithmetic_comes_after_means_where_there_are_categories_and_without_reason_is_left_out(tmp_path):
    kinds = {"kind": np.resize([f"k{i}" for i in range(9)], 3_000)}
    problem = measured(tmp_path, lambda f, rng: rng.normal(size=len(f)), **kinds)
    tried = [f for f in choose_features(problem, seconds=600).families if f.gain is not None]
    names = [f.name for f in tried]
    assert names.index("arithmetic of two numbers") == names.index("target means of values") + 1
    assert not tried[names.index("arithmetic of two numbers")].kept


def test_arithmetic_of_noise_is_no_gain_where_other_rows_choose_it(tmp_path):
    gains, file = [], tmp_path / "train.parquet"
    for seed in range(4):
        rng = np.random.default_rng(seed)
        pd.DataFrame(rng.normal(size=(400, 20))).add_prefix("x").assign(y=rng.permutation(400) % 2).to_parquet(file)
        trial = QuickTrial(problem := understand(read_files(tmp_path), target="y"), [], 60.0)
        found, *nested = _arithmetic(problem, trial)
        tried = [trial.family("pairs", found, times=1e9, nested=parts) for parts in ([], nested)]
        gains.append([f.gain / f.error for f in tried])
    flattered, honest = np.mean(gains, 0)
    assert flattered > 1.5  # chosen by the rows that score them: an AUC of .6 in place of .5
    assert honest < 1


def test_a_column_named_as_a_pair_is_no_hindrance(tmp_path):
    _, first = first_tried(measured(tmp_path, quotient, b_over_c=0.5))
    assert "b_over_c" not in [f.outputs[0] for f in first.features]


@pytest.mark.parametrize(("metric", "scored_by"), [("mae", "mae"), ("pinball@0.9", "pinball@0.9"), ("mape", "rmse")])
def test_trials_learn_and_score_distances_where_these_were_asked_for(tmp_path, metric, scored_by):
    measured(tmp_path, lambda f, rng: 5 * f["a"] + np.exp(rng.normal(size=len(f))))  # a median is 1, a mean 1.65
    trial = QuickTrial(understand(read_files(tmp_path), target="y", metric=metric), [], 600.0)
    said, score = trial._base_score()
    miss = pd.read_parquet(tmp_path / "train.parquet")["y"].to_numpy() - said.numpy()
    losses = {"rmse": (miss**2).mean() ** 0.5, "mae": np.abs(miss).mean()}
    losses["pinball@0.9"] = np.maximum(0.9 * miss, -0.1 * miss).mean()
    assert trial.metric.name == scored_by
    assert score == pytest.approx(losses[scored_by])
    balance = {"mae": (miss < 0).mean() - 0.5, "rmse": miss.mean(), "pinball@0.9": (miss < 0).mean() - 0.9}
    assert abs(balance[scored_by]) < 0.05


# Trials learn by the rows' weights, as the run does; their score counts all rows alike, as the run's does.


@pytest.mark.parametrize("asked", [{"weight": "w"}, {"ids": ["w"]}])
def test_an_idea_that_only_rows_of_weight_0_speak_for_is_left_out(tmp_path, asked):
    """Half of the rows have weight 0 and hang on b / c; the target of the others is noise."""
    false = {"w": np.resize([0, 1], 3_000), "kind": np.random.default_rng(7).choice(["k", "l", "m"], 3_000)}
    measured(tmp_path, lambda f, rng: rng.normal(size=len(f)) + (f["w"] == 0) * (4 * (f["b"] > f["c"]) - 2), **false)
    train = pd.read_parquet(tmp_path / "train.parquet")[:2_000]
    train.to_parquet(tmp_path / "train.parquet")
    trial = QuickTrial(understand(read_files(tmp_path), target="y", **asked), [], 600.0)
    said, score = trial._base_score()
    assert trial.family("quotient", [Combine("b", "/", "c")]).kept is ("weight" not in asked)
    # the score is of all rows, whatever their weights
    assert score == pytest.approx(((said.numpy() - train["y"]) ** 2).mean() ** 0.5)
