"""A ranking's submission in every form, scored by every metric, against plain loops over its lists."""

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression
from typer.testing import CliRunner

from fastrec._core.progress import Stages
from fastrec.cli import app
from fastrec.competition import (
    Competition,
    SavedRun,
    SubmissionForm,
    check_submission,
    compare_runs,
    predict_run,
    run_competition,
    score_submission,
)
from fastrec.competition.forms.lists import ranking_form
from fastrec.competition.scoring import Decision, click_weights, examination
from fastrec.errors import DataError, SubmissionError
from fastrec.estimators import LGBMModel
from fastrec.report import write_report
from fastrec.report.data import read_run
from fastrec.serve import export_run
from fastrec.validate import Folds
from tests.files import write_csv

METRICS = ("mrr", "mrr@3", "ndcg@5", "ndcg", "map@4", "hit_rate@2", "gauc")
SCORES = SubmissionForm(ids=("search", "product"), values=("score",))
RANKS = SubmissionForm(ids=("search", "product"), values=("rank",), ranks=True)
LISTS = SubmissionForm(
    ids=("search",), items="products", candidates="product", candidates_sep=None, answer="product", max_items=99
)
KINDS = {"scores": SCORES, "ranks": RANKS, "lists": replace(LISTS, max_items=10)}  # a limit that no list reaches


def scored(path: Path, truth: pd.DataFrame, form: object, metric: str, **options) -> object:
    truth.to_csv(path.with_name("truth.csv"), index=False)
    given = {"target": None, "label": "label", **options}
    return score_submission(path, path.with_name("truth.csv"), form, metric=metric, **given)


def of_list(metric: str, rows: list[tuple[float, float]], missing: list[float], *, shown: bool) -> tuple[float, float]:
    """A list's score and weight by a plain loop.

    ``rows`` are (score, grade) in the order of the data, ``missing`` the grades of what is not listed. Equal scores
    count against the model, or (``shown``) stand in the order of the data.
    """
    name, _, k = metric.partition("@")
    k = int(k or 10**6)
    ordered = sorted(rows, key=lambda r: (-r[0], 0 if shown else r[1]))
    grades = [g for _, g in ordered]
    relevant = sum(g > 0 for g in [*grades, *missing])
    if name == "gauc":
        listed = [(-float(i), g) for i, (_, g) in enumerate(ordered)] if shown else rows
        every = [*listed, *((-math.inf, g) for g in missing)]
        pairs = [(a, b) for (a, x), (b, y) in itertools.product(every, every) if x > 0 and not y > 0]
        return (sum((a > b) + (a == b) / 2 for a, b in pairs) / len(pairs) if pairs else 0.0), len(every) * bool(pairs)
    if not relevant:
        return 0.0, 1
    hits = [i for i, g in enumerate(grades[:k], 1) if g > 0]
    if name in ("mrr", "hit_rate"):
        best = max((s for s, g in rows if g > 0), default=None)
        if best is None:
            return 0.0, 1
        rank = next(i for i, g in enumerate(grades, 1) if g > 0) if shown else sum(s >= best for s, _ in rows)
        return (0.0 if rank > k else 1.0 if name == "hit_rate" else 1 / rank), 1
    if name == "map":
        return sum(sum(h <= i for h in hits) / i for i in hits) / min(relevant, k), 1
    ideal = sorted([*grades, *missing], reverse=True)
    made, best = (sum((2**g - 1) / math.log2(i + 1) for i, g in enumerate(gs[:k], 1)) for gs in (grades, ideal))
    return made / best, 1


def oracle(metric: str, frame: pd.DataFrame, *, shown: bool, most: int | None = None) -> float:
    """The metric of a frame with search, score and label; ``most``: lists end there."""
    if most is not None and metric in ("mrr", "ndcg", "map"):
        metric = f"{metric}@{most}"
    values = []
    for _, rows in frame.groupby("search", sort=False):
        cut = len(rows) if most is None else most
        rows = rows if most is None else rows.sort_values("score", ascending=False, kind="stable")
        pairs = list(zip(rows["score"], rows["label"], strict=True))
        values.append(of_list(metric, pairs[:cut], [g for _, g in pairs[cut:] if g > 0], shown=shown))
    return float(np.average([v for v, _ in values], weights=[w for _, w in values]))


def ranks_of(frame: pd.DataFrame) -> pd.Series:
    return frame.groupby("search")["score"].rank(ascending=False, method="first").astype(int)


def write_form(path: Path, frame: pd.DataFrame, form: str, most: int | None = None) -> Path:
    frame = frame.assign(rank=ranks_of(frame))
    frame = frame if most is None else frame[frame["rank"] <= most]
    if form == "lists":
        ordered = frame.sort_values("rank", kind="stable")
        made = ordered.groupby("search", sort=False)["product"].agg(" ".join).rename("products").reset_index()
    else:
        made = frame[["search", "product", "score" if form == "scores" else "rank"]]
    made.to_csv(path, index=False)
    return path


graded = st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=7), min_size=2)


def as_frame(lists: list[list[tuple[int, int]]]) -> pd.DataFrame:
    rows = [(f"s{i}", f"p{j}", float(s), g) for i, rows in enumerate(lists) for j, (s, g) in enumerate(rows)]
    return pd.DataFrame(rows, columns=["search", "product", "score", "label"])


@given(graded, st.sampled_from(METRICS), st.sampled_from(["scores", "ranks", "lists"]), st.booleans())
@settings(max_examples=25, deadline=None)
def test_every_form_and_metric_equal_a_plain_loop(tmp_path_factory, lists, metric, form, positives_alone):
    frame = as_frame(lists)
    if positives_alone:
        frame["label"] = frame["label"].clip(upper=1)
    both = frame.groupby("search")["label"].agg(lambda g: (g > 0).any() and not (g > 0).all())
    if not both.any():
        return
    folder = tmp_path_factory.mktemp("forms")
    truth = frame[["search", "product", "label"]].sample(frac=1.0, random_state=0)
    if positives_alone:  # lists without a relevant item are not in such a truth, and do not count
        truth = truth.loc[truth["label"] > 0, ["search", "product"]]
        frame = frame[frame["search"].isin(truth["search"])]
    found = scored(write_form(folder / "s.csv", frame, form), truth, KINDS[form], metric)
    assert found.value == pytest.approx(oracle(metric, frame, shown=form != "scores"))
    assert found.metric == metric


@given(graded, st.sampled_from(METRICS), st.sampled_from(["scores", "ranks", "lists"]), st.integers(1, 4))
@settings(max_examples=25, deadline=None)
def test_relevant_items_that_a_short_list_lacks_count(tmp_path_factory, lists, metric, form, most):
    frame = as_frame(lists)
    # No equal scores: which of them a list of a limited length leaves out is chance.
    frame["score"] = -ranks_of(frame).astype(float)
    kind = replace(KINDS[form], max_items=most)
    listed = frame[frame["search"].isin(frame.loc[frame["label"] > 0, "search"])]
    if not len(listed):
        return
    seen = listed[(ranks_of(listed) <= most) | (listed["label"] > 0)]
    if (seen["label"] > 0).all():  # such a truth is refused: its labels are likely another column's
        return
    path = write_form(tmp_path_factory.mktemp("short") / "s.csv", frame, form, most)
    found = scored(path, frame[frame["label"] > 0][["search", "product", "label"]], kind, metric)
    both = seen.groupby("search")["label"].agg(lambda g: (g > 0).any() and not (g > 0).all())
    defined = metric != "gauc" or both.any()
    value = oracle(metric, listed, shown=True, most=most) if defined else math.nan
    assert found.value == pytest.approx(value, nan_ok=True)


@given(graded, st.sampled_from(METRICS), st.sampled_from(["scores", "ranks", "lists"]), st.data())
@settings(max_examples=25, deadline=None)
def test_relevant_items_that_were_no_candidates_count_as_not_found(tmp_path_factory, lists, metric, form, data):
    frame = as_frame(lists)
    frame["score"] = -ranks_of(frame).astype(float)
    listed = frame[[data.draw(st.booleans()) for _ in range(len(frame))]]
    # Lists of which the submission has no line are refused; those without a line of the truth do not count.
    frame = frame[frame["search"].isin(listed["search"])]
    frame = frame[frame.index.isin(listed.index) | (frame["label"] > 0)]
    if not (frame["label"] > 0).any() or (frame["label"] > 0).all() or (listed["label"] > 0).all():
        return
    values, cut = [], metric
    if (form == "lists" or len(listed) < len(frame)) and metric in ("mrr", "ndcg", "map"):
        # As if all lists ended at the form's limit, else where the longest one does.
        cut = f"{metric}@{10 if form == 'lists' else listed['search'].value_counts().max()}"
    for search, rows in frame.groupby("search", sort=False):
        own = listed[listed["search"] == search]
        pairs = list(zip(own["score"], own["label"], strict=True))
        missing = rows.loc[~rows["product"].isin(own["product"]) & (rows["label"] > 0), "label"].tolist()
        values.append(of_list(cut, pairs, missing, shown=True))
    weights = [w for _, w in values]
    expected = float(np.average([v for v, _ in values], weights=weights)) if any(weights) else math.nan
    path = write_form(tmp_path_factory.mktemp("no_candidates") / "s.csv", listed, form)
    found = scored(path, frame[["search", "product", "label"]], KINDS[form], metric)
    assert found.value == pytest.approx(expected, nan_ok=True)


class Shop(Competition):
    name, task = "shop", "ranking"
    list_column, item, label = "search", "product", "bought"
    n_folds = 2

    def __init__(self, metric: str) -> None:
        self.metric = metric

    def models(self, *, bs):
        return [LGBMModel("lgbm", rounds=4, early_stopping_rounds=None)]


def candidates(seed: int, lists: int) -> pd.DataFrame:
    """Lists of 2 to 6 rows, of few prices (so that scores tie), graded; some have no relevant row."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"search": np.repeat(np.arange(lists), rng.integers(2, 7, lists))})
    frame["product"] = [f"p{i}" for i in frame.groupby("search").cumcount()]
    frame["price"] = rng.integers(1, 4, len(frame))
    frame["bought"] = (rng.random(len(frame)) < 0.5 / frame["price"]) * rng.integers(1, 4, len(frame))
    return frame.assign(search="s" + (1000 * seed + frame["search"]).astype(str).str.zfill(5))


TRAIN, TEST = candidates(1, 90), candidates(2, 40)


def sample_of(form: str) -> pd.DataFrame | None:
    """A sample submission that knows nothing: the candidates as they stand."""
    if form == "lists":
        return TEST.groupby("search")["product"].agg(",".join).rename("products").reset_index()
    place = TEST.groupby("search").cumcount()
    return TEST[["search", "product"]].assign(**({"rank": place + 1} if form == "ranks" else {"relevance": 0.5}))


@pytest.mark.parametrize(
    ("metric", "form"),
    [("mrr", "ranks"), ("ndcg@5", "lists"), ("map@4", "scores"), ("hit_rate@2", "lists"), ("gauc", "ranks")],
)
def test_a_run_scores_compares_and_reports_by_its_metric(tmp_path, metric, form):
    data, run = tmp_path / "data", tmp_path / "run"
    write_csv(data, train=TRAIN, test=TEST.drop(columns="bought"), truth=TEST[["search", "product", "bought"]])
    write_csv(data, sample_submission=sample_of(form))
    run_competition(Shop(metric), data, run, stages=Stages(quiet=True))
    scores = json.loads((run / "scores.json").read_text())
    shown = metric == "mrr"  # what a run is scored by breaks ties as a submission of lists does
    for model in ("lgbm", "stack"):
        made = {s: pd.read_parquet(run / s / f"{model}.parquet") for s in ("oof", "test")}
        made["oof"] = made["oof"].rename(columns={"bought": "label"})
        made["test"]["label"] = made["test"].merge(TEST, on=["search", "product"], how="left")["bought"].to_numpy()
        expected = {s: oracle(metric, frame, shown=shown) for s, frame in made.items()}
        assert scores["oof"][model] == pytest.approx(expected["oof"])
        assert scores["models"][model] == pytest.approx(expected["test"])
        assert model == "stack" or made["test"].duplicated(["search", "score"]).any()
    # The submission has the sample's form.
    submission = pd.read_csv(run / "submission.csv")
    assert submission.columns.tolist() == sample_of(form).columns.tolist()
    ordered = made["test"].assign(place=ranks_of(made["test"])).sort_values(["search", "place"])
    if form == "lists":
        assert dict(submission.to_numpy()) == ordered.groupby("search")["product"].agg(",".join).to_dict()
    elif form == "ranks":
        found = submission.merge(ordered, on=["search", "product"])
        assert len(found) == len(TEST)
        assert (found["rank"] == found["place"]).all()
    config = json.loads((run / "config.json").read_text())["submission"]
    assert (config["items"], config["ranks"]) == ("products" if form == "lists" else None, form == "ranks")
    # Scored and checked by the command; a sample of the form is one of its submissions.
    done = CliRunner().invoke(app, ["score", str(run / "submission.csv"), str(data / "truth.csv")])
    assert done.exit_code == 0, done.output
    written = oracle(metric, made["test"], shown=form != "scores")
    assert done.output.splitlines()[-1] == f"{metric} {written:.5f}"
    for path in (run / "submission.csv", data / "sample_submission.csv"):
        done = CliRunner().invoke(app, ["check", str(path), str(data / "test.csv"), "--run", str(run)])
        assert (done.exit_code, done.output[:3]) == (0, "ok "), done.output
    # Outside the run nothing says which form it has.
    (apart := data.parent / "three.csv").write_bytes((run / "submission.csv").read_bytes())
    done = CliRunner().invoke(app, ["score", str(apart), str(data / "truth.csv")])
    assert done.exit_code == 1
    assert "three.csv', column 'user_id'" in done.output
    assert "Give --run RUN or --competition FOLDER" in done.output
    # Compared and reported by the same figures.
    alone = compare_runs(run, run)[0]
    assert (alone.a, alone.b, alone.difference.mean) == pytest.approx((expected["oof"], expected["oof"], 0.0))
    results = read_run(run, repeats=50)
    assert results.standings["oof"]["stack"].score.mean == pytest.approx(expected["oof"])
    by_length = made["test"].groupby("search")["label"].transform("size")
    two_to_five = oracle(metric, made["test"][by_length <= 5], shown=shown)
    assert results.by_length["test"][0].means["stack"] == pytest.approx(two_to_five)
    first = made["test"].groupby("search")["label"].transform(lambda g: (g > 0).to_numpy().argmax() if g.any() else -1)
    second = oracle(metric, made["test"][first == 1], shown=shown)
    assert results.by_place["test"][1].means["stack"] == pytest.approx(second)
    lengths = TEST.groupby("search").size()
    assert results.groups["test"]["lists"] == "40"
    assert results.groups["test"]["rows of a list, mean"] == f"{lengths.mean():.2f}"
    without = (TEST.groupby("search")["bought"].max() == 0).sum()
    assert without > 0
    assert results.groups["test"]["lists without a relevant row"] == str(without)
    page = write_report(run, repeats=50).read_text()
    assert f"{metric.upper()} by place of the relevant row" in page
    assert "touched" not in page.split("Settings")[0]


@pytest.mark.parametrize(
    ("ranks", "problem"),
    [
        ([1, 1, 1], "is the rank of an earlier line of its list too"),
        ([1, 0, 1], "is no rank"),
        ([1, 1.5, 1], "is no rank"),
    ],
)
def test_ranks_that_are_none_are_refused(tmp_path, ranks, problem):
    frame = pd.DataFrame({"search": ["a", "a", "b"], "product": ["x", "y", "x"]})
    write_csv(tmp_path, test=frame, s=frame.assign(rank=ranks))
    with pytest.raises(SubmissionError, match=problem) as error:
        check_submission(tmp_path / "s.csv", tmp_path / "test.csv", RANKS)
    assert (error.value.column, error.value.row) == ("rank", 1)


PLACES = {"ids": ("search", "product"), "ranks": True}


@pytest.mark.parametrize(
    ("sample", "form"),
    [
        ("search,product,rank\na,x,1\na,y,2\nb,x,1\n", SubmissionForm(values=("rank",), max_items=2, **PLACES)),
        ("search,product,place\na,x,0\n", SubmissionForm(values=("place",), max_items=1, **PLACES)),
        ("search,product,score\na,x,1\nb,x,1\n", SCORES),
        ("search,product,score\na,x,1\na,y,1\n", SCORES),
        ("search\tproduct\tscore\na\tx\t.5\n", replace(SCORES, sep="\t")),
        ("search,products\na,x y z\nb,x\n", replace(LISTS, max_items=3)),
        ('search,product\na,"x,y"\nb,x\n', replace(LISTS, items="product", max_items=2, item_sep=",")),
        ("row,score\n1,0\n2,0\n", SubmissionForm(ids=("row",), values=("score",))),
    ],
)
def test_a_sample_decides_the_form(tmp_path, sample, form):
    (tmp_path / "sample.csv").write_text(sample)
    assert ranking_form(tmp_path / "sample.csv", "search", "product", ["row", "price"]) == form
    (tmp_path / "sample.csv").write_text("search,product\na,x\na,y\n")
    with pytest.raises(DataError, match="several lines of a list, and no column of scores or ranks"):
        ranking_form(tmp_path / "sample.csv", "search", "product")


def test_the_truth_says_the_list_of_a_row_that_an_id_names(tmp_path):
    frame = as_frame([[(1, 0), (0, 1)], [(0, 2), (1, 0), (2, 1)]]).assign(row=lambda f: "r" + f.index.astype(str))
    path = tmp_path / "s.csv"
    frame[["row", "score"]].iloc[::-1].to_csv(path, index=False)
    for metric in METRICS:
        form = SubmissionForm(ids=("row",), values=("score",))
        found = scored(path, frame[["label", "search", "row"]], form, metric, lists="search")
        assert found.value == pytest.approx(oracle(metric, frame, shown=False))


def test_a_column_of_grades_is_found_by_itself(tmp_path):
    frame = as_frame([[(1, 0), (0, 3)], [(0, 2), (1, 0)]])
    frame[["search", "product", "score"]].to_csv(tmp_path / "s.csv", index=False)
    truth = frame[["search", "product"]].assign(grade=frame["label"], price=[0.5, 1, 2, 3])
    found = scored(tmp_path / "s.csv", truth, SCORES, "ndcg", label="bought")
    assert found.relevant == "grade above 0"
    assert found.value == pytest.approx(oracle("ndcg", frame, shown=False))


# Clicks with a position bias that is known: its estimate, models without it, and scores as chances


EXAMINED = np.array([1.0, 0.6, 0.35, 0.2, 0.12, 0.08])
C = len(EXAMINED)


def impressions(seed: int, lists: int) -> pd.DataFrame:
    """Lists in the order of an old ranker that knows little of what is relevant; only what is examined is clicked."""
    rng = np.random.default_rng(seed)
    quality, old = rng.normal(size=(2, 60))
    item = np.array([rng.permutation(60)[:C] for _ in range(lists)])
    order = np.argsort(-(old[item] + 0.7 * rng.normal(size=item.shape)), axis=1)
    item = np.take_along_axis(item, order, 1)
    chance = 1 / (1 + np.exp(1.0 - 1.5 * quality[item]))
    clicked = rng.random(item.shape) < chance * EXAMINED
    frame = pd.DataFrame({"search": np.repeat(np.arange(lists), C), "product": item.ravel()})
    frame["shown_at"] = np.tile(np.arange(1, C + 1), lists)
    frame["old"], frame["quality"] = old[item].ravel(), (quality[item] + 0.8 * rng.normal(size=item.shape)).ravel()
    return frame.assign(clicked=clicked.ravel().astype(int), chance=chance.ravel())


LOG = impressions(0, 4000)


def test_the_examination_of_a_few_rows_by_hand():
    # Item 0 at place 1 (4 times, 3 clicks) and place 2 (2 times, 1 click); item 1 at places 2 and 4.
    items = [0, 0, 0, 0, 0, 0, 1, 1]
    places = [1, 1, 1, 1, 2, 2, 2, 4]
    clicks = [1, 1, 1, 0, 1, 0, 1, 0]
    # Mantel and Haenszel: (1 * 4 / 6) / (3 * 2 / 6). A ratio without a click below says nothing.
    found = examination(items, places, clicks)
    assert found == pytest.approx({1: 1.0, 2: 2 / 3, 4: 2 / 3})
    weights = click_weights([7, 7, 8, 8], [1, 2, 1, 2], [0, 1, 0, 0], {1: 1.0, 2: 0.25})
    assert weights.tolist() == [4.0, 4.0, 1.0, 1.0]
    assert click_weights([0], [2], [1], {1: 1.0, 2: 0.001}).tolist() == [20.0]
    with pytest.raises(DataError, match=r"1\.5 is no place"):
        examination([0, 1], [1, 1.5], [0, 1])


class Log(Competition):
    name, task = "log", "ranking"
    metric = "ndcg@3"
    list_column, item, label = "search", "product", "clicked"
    n_folds = 2

    def __init__(self, **options) -> None:
        vars(self).update(options)

    def models(self, *, bs):
        return [LGBMModel("lgbm", rounds=30, num_leaves=8, early_stopping_rounds=None)]


NEW = impressions(1, 400).sample(frac=1.0, random_state=0)  # not in the old ranker's order


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("places")
    test = NEW.drop(columns=["chance", "clicked", "shown_at"])
    data = write_csv(root / "data", train=LOG.drop(columns="chance"), test=test)
    recipes = {
        "plain": Log(),
        "feature": Log(position="shown_at", calibrate="platt"),
        "weights": Log(position="shown_at", position_as="weights", calibrate="isotonic"),
    }
    for name, recipe in recipes.items():
        run_competition(recipe, data, root / name, stages=Stages(quiet=True))
    return {n: root / n for n in recipes} | {"data": data}


def true_relevance(run: Path) -> float:
    """The true chance of the item that a run puts first, less that of a random one."""
    made = pd.read_parquet(run / "test" / "stack.parquet").merge(NEW, on=["search", "product"])
    best = made.sort_values("score", ascending=False, kind="stable").groupby("search").head(1)
    return float(best["chance"].mean() - made["chance"].mean())


def test_models_without_the_bias_find_what_is_relevant(runs):
    plain, feature, weights = (true_relevance(runs[n]) for n in ("plain", "feature", "weights"))
    assert feature > plain + 0.03
    assert weights > plain + 0.01
    page = write_report(runs["feature"], repeats=20).read_text()
    assert "The column shown_at is a feature of the models" in page
    told = {n: json.loads((runs[n] / "position.json").read_text()) for n in ("feature", "weights")}
    for found in told.values():
        assert list(found["examination"].values()) == pytest.approx(EXAMINED, rel=0.3)
    assert not (runs["plain"] / "position.json").exists()
    assert told["feature"]["clicked"]["1"] == pytest.approx(LOG.loc[LOG["shown_at"] == 1, "clicked"].mean())
    scores = {n: json.loads((runs[n] / "scores.json").read_text())["oof"]["lgbm"] for n in ("plain", "feature")}
    assert scores["feature"] < scores["plain"]  # judged by the biased clicks


def test_rows_to_predict_need_no_place(runs, tmp_path):
    made = predict_run(runs["feature"], runs["data"] / "test.csv", tmp_path / "p.csv")
    there = pd.read_csv(runs["feature"] / "submission.csv")
    pd.testing.assert_frame_equal(pd.read_csv(made), there, rtol=1e-6)
    given = NEW.drop(columns=["chance", "clicked"])  # a place that is there changes nothing
    saved = SavedRun(runs["feature"])
    assert "shown_at" not in saved.inputs
    joined = given.assign(made=saved.predict(given).numpy()).merge(there, on=["search", "product"])
    assert len(joined) == len(NEW)
    assert joined["made"].to_numpy() == pytest.approx(joined["score"].to_numpy(), abs=1e-6)


@pytest.mark.parametrize("name", ["feature", "weights"])
def test_a_server_gives_the_same_chances(runs, tmp_path, name):
    for package in ("onnx", "starlette"):
        pytest.importorskip(package)
    from fastrec.serve import Scorer

    export_run(runs[name], tmp_path / "served")
    scorer = Scorer(tmp_path / "served")
    assert "shown_at" not in [i.name for i in scorer.spec.sent]
    rows = NEW.sort_values("search", kind="stable").head(10 * C)
    wanted = SavedRun(runs[name]).predict(rows).numpy()
    sent = rows[["search", *(i.name for i in scorer.spec.sent)]]
    assert scorer.score(sent.to_dict("list")) == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize(("name", "how"), [("feature", "platt"), ("weights", "isotonic")])
def test_chances_are_those_of_scikit_learn(runs, name, how):
    oof = pd.read_parquet(runs[name] / "oof" / "stack.parquet")
    folds = Folds.load(runs[name] / "folds.parquet").codes.numpy()
    x, y = oof["score"].to_numpy(), oof["clicked"].to_numpy()
    fits = {"platt": lambda x, y: LogisticRegression(C=np.inf, tol=1e-8, max_iter=500).fit(x[:, None], y)}
    fits["isotonic"] = lambda x, y: IsotonicRegression(out_of_bounds="clip").fit(x, y)

    def chances(fitted, x):
        return fitted.predict_proba(x[:, None])[:, 1] if how == "platt" else fitted.predict(x)

    for fold in (0, 1):
        others = fits[how](x[folds != fold], y[folds != fold])
        assert oof["chance"].to_numpy()[folds == fold] == pytest.approx(chances(others, x[folds == fold]), abs=1e-3)
    submitted = pd.read_csv(runs[name] / "submission.csv")["score"].to_numpy()
    scores = pd.read_parquet(runs[name] / "test" / "stack.parquet")["score"].to_numpy()
    assert submitted == pytest.approx(chances(fits[how](x, y), scores), abs=1e-3)
    assert "Calibration" in write_report(runs[name], repeats=20).read_text()
    # Well calibrated: in ten parts the mean chance is near the share of clicks.
    parts = oof.groupby(pd.qcut(oof["chance"].rank(method="first"), 10))[["chance", "clicked"]].mean()
    assert np.abs(parts["chance"] - parts["clicked"]).max() < 0.05


def test_what_cannot_be_used_is_refused(tmp_path):
    with pytest.raises(DataError, match="all rows are relevant, or none"):
        Decision.calibrated("platt", torch.ones(3), torch.rand(3))
    for options in ({"position": "shown_at", "position_as": "prior"}, {"calibrate": "beta"}):
        with pytest.raises(DataError, match=r"position_as='prior'|calibrate='beta'"):
            run_competition(Log(**options), tmp_path, tmp_path / "run", stages=Stages(quiet=True))
