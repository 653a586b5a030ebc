import json
import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import jensenshannon
from scipy.stats import betabinom, chi2_contingency, false_discovery_control, fisher_exact, ks_2samp
from sklearn.metrics import roc_auc_score
from typer.testing import CliRunner

from fastrec.cli import app
from fastrec.competition import Competition, predict_run, run_competition
from fastrec.competition.reading import Reading
from fastrec.errors import DataError, MissingColumnError
from fastrec.estimators import XGBModel
from fastrec.monitor import Thresholds, event_metrics, metric_over_time, monitor, monitor_rows
from fastrec.monitor.compare import (
    _unseen_test,
    benjamini_hochberg,
    chi_square,
    holm,
    js_distance,
    ks_test,
    outside_test,
    psi,
)
from fastrec.monitor.monitor_rows import read_sides
from fastrec.monitor.over_time import periods_of
from tests.files import write_csv

COLOURS = ["red", "green", "blue", "grey", "black"]


def week(rows=3000, seed=0):
    rng = np.random.default_rng(seed)
    city = rng.zipf(1.4, rows) % 4000
    frame = pd.DataFrame(
        {
            "price": rng.lognormal(4, 0.5, rows),
            "age": rng.integers(18, 80, rows),
            "rating": rng.normal(0, 1, rows),
            "other": rng.normal(0, 1, rows),
            "income": rng.normal(50, 9, rows),
            "colour": rng.choice(COLOURS, rows, p=[0.4, 0.3, 0.15, 0.1, 0.05]),
            "city": [f"c{k}" for k in city],
            "seen": rng.random(rows) < 0.3,
        }
    )
    frame["twin"] = frame["rating"] + rng.normal(0, 0.1, rows)  # moves with the rating
    frame.loc[rng.random(rows) < 0.1, "income"] = np.nan
    return frame


def some(f, share):
    return np.random.default_rng(9).random(len(f)) < share


def drawn(f, p):
    return np.random.default_rng(9).choice(COLOURS, len(f), p=p)


HUMPS = lambda f: np.where(some(f, 0.5), -0.95, 0.95) + np.random.default_rng(8).normal(0, 0.31, len(f))  # noqa: E731
# name → (column, what is found, its new values)
DRIFTS = {
    "mean": ("rating", "shape", lambda f: f["rating"] + 0.5),
    "spread": ("rating", "shape", lambda f: f["rating"] * 1.6),
    "two humps of the same mean and spread": ("other", "shape", HUMPS),
    "another unit in some rows": ("price", "unseen", lambda f: f["price"] * np.where(some(f, 0.05), 100, 1)),
    "a stuck sensor": ("age", "shape", lambda f: 40),
    "more missing values": ("income", "missing", lambda f: f["income"].mask(some(f, 0.1))),
    "other shares": ("colour", "shape", lambda f: drawn(f, [0.1, 0.3, 0.15, 0.1, 0.35])),
    "values not seen before": ("colour", "unseen", lambda f: f["colour"].mask(some(f, 0.05), "violet")),
    "new ids": ("city", "unseen", lambda f: f["city"].mask(some(f, 0.4), f["city"] + "x")),
    "a column that is gone": ("age", "gone", None),
    "numbers that came as text": ("price", "type", lambda f: "EUR " + f["price"].round(2).astype(str)),
    "columns that no longer go together": ("twin", "joint", lambda f: np.random.default_rng(9).permutation(f["twin"])),
}


def drifted(name, week):
    column, _, values = DRIFTS[name]
    return week.drop(columns=column) if values is None else week.assign(**{column: values(week)})


@pytest.fixture(scope="module")
def reference():
    return week(6000)


@pytest.mark.parametrize("name", DRIFTS)
def test_planted_drifts_are_found_and_nothing_else(reference, name):
    column, kind, _ = DRIFTS[name]
    column = "all columns" if kind == "joint" else column
    found = monitor(reference, drifted(name, week(seed=5)), adversarial=kind == "joint")
    assert not found.ok
    assert (kind == "gone") == ("(--drop age)" in str(found))
    assert (column, kind) in {(f.about, f.kind) for f in found.findings}
    assert {f.about for f in found.findings} == {column}


def test_nothing_is_found_in_clean_weeks(reference):
    for seed in range(8):
        again = reference.sample(3000, replace=True, random_state=seed)  # rows of the same weeks, drawn again
        other = week(seed=100 + seed)
        for some in (again, other):
            found = monitor(reference, some, adversarial=False)
            assert found.ok, (seed, found.findings)
    trees = monitor(reference, week(seed=200))
    assert trees.ok
    assert trees.adversarial.auc.mean < 0.55


def test_without_the_thresholds_of_size_the_stated_rate_holds(reference):
    """Of clean weeks in which the level alone decides, at most about that share has a finding."""
    strict = Thresholds(alpha=0.2, correction="holm", psi=0, js=0, ks=0, missing=0, unseen=-1)
    numbers, options = ["price", "rating", "other", "income"], {"adversarial": False, "thresholds": strict}
    share = np.mean([not monitor(reference[numbers], week(600, s)[numbers], **options).ok for s in range(60)])
    assert 0.02 < share < 0.2 + 3 * np.sqrt(0.2 * 0.8 / 60)


def test_the_figures_of_a_column_are_those_of_plain_loops(reference):
    new = week(seed=3)
    frame = monitor(reference, new, adversarial=False).columns.set_index("column")
    assert frame.loc["income", "missing_new"] == pytest.approx(new["income"].isna().mean())
    known = set(reference["city"])
    assert frame.loc["city", "unseen"] == pytest.approx(np.mean([c not in known for c in new["city"]]))
    assert frame.loc["city", "unseen_usual"] == pytest.approx((reference["city"].value_counts() == 1).sum() / 6000)
    assert frame.loc["city", "values_grown"] == len(set(new["city"]) - known)
    assert frame.loc["city", "values_new"] == new["city"].nunique()
    low, high = reference["price"].min(), reference["price"].max()
    assert frame.loc["price", "unseen"] == pytest.approx(((new["price"] < low) | (new["price"] > high)).mean())
    edges = np.sort(reference["rating"].to_numpy())[[600 * k for k in range(1, 10)]]
    cells = np.array([np.bincount(np.searchsorted(edges, f["rating"]), minlength=10) for f in (reference, new)])
    a, b = cells / cells.sum(1, keepdims=True)
    assert frame.loc["rating", "psi"] == pytest.approx(((b - a) * np.log(b / a)).sum())


def test_predictions_are_compared_too(reference):
    rng, new = np.random.default_rng(0), week(seed=4)
    old = rng.beta(2, 5, 6000)
    assert monitor(reference, new, scores=(old, rng.beta(2, 5, 3000)), adversarial=False).ok
    found = monitor(reference, new, scores=(old, rng.beta(5, 2, 3000)), adversarial=False)
    assert {f.about for f in found.findings} == {"prediction"}
    assert found.findings[0].kind == "prediction"
    # a column may be called as the predictions are
    both, scores = (reference.assign(prediction=0.0), new.assign(prediction=1.0)), (old, old[:3000] * 2)
    found = monitor(*both, scores=scores, adversarial=False)
    assert ("prediction", "shape") in {(f.about, f.kind) for f in found.findings}
    assert found.columns.set_index("column").loc["prediction (scores)", "kind"] == "prediction"


def test_a_metric_over_time_and_its_interval():
    rng = np.random.default_rng(1)
    day = np.repeat(np.arange(5), 400)
    y = (rng.random(2000) < 0.3).astype(float)
    p = y * (day < 3) + rng.normal(0, 1, 2000)  # from the fourth day on predictions say nothing
    seconds = day * 86_400 + rng.integers(0, 86_400, 2000)
    order = rng.permutation(2000)
    found = metric_over_time("auc", y[order], p[order], seconds[order])
    assert list(found["period"]) == [f"1970-01-0{k}" for k in range(1, 6)]
    for k in range(5):
        assert found["value"][k] == pytest.approx(roc_auc_score(y[day == k], p[day == k]))
        assert found["low"][k] < found["value"][k] < found["high"][k]
    times = metric_over_time("auc", y, p, pd.Series(pd.to_datetime(seconds, unit="s")))
    assert times["value"].tolist() == pytest.approx(found["value"].tolist())
    by_value = metric_over_time("auc", y, p, day, every="value")
    assert by_value["period"].tolist() == ["0", "1", "2", "3", "4"]
    weeks = metric_over_time("auc", y, p, seconds, every="week")  # 1970-01-01 was a Thursday
    assert weeks[["period", "rows"]].values.tolist() == [["1969-12-29", 1600], ["1970-01-05", 400]]
    assert np.isnan(metric_over_time("auc", np.zeros(4), np.arange(4.0), np.arange(4))["value"][0])


def test_only_the_same_metric_is_compared_with_the_runs(reference, monkeypatch):
    def of_a_run(*args, **options):
        sides = read_sides(*args, **options)
        sides.metric = 0.45, False, "logloss"
        return sides

    monkeypatch.setattr(monitor_rows, "read_sides", of_a_run)
    y = np.tile([0.0, 1.0], 500)
    for metric, known, kinds in (("auc", None, []), ("logloss", 0.45, ["metric"])):
        table = metric_over_time(metric, y, np.clip(0.5 + (0.5 - y) * 0.8, 0, 1), np.zeros(1000))
        found = monitor(reference, week(seed=1), over_time=table, adversarial=False)
        assert ([f.kind for f in found.findings], found.reference_metric) == (kinds, known)
    # the threshold is a share of the run's: of 900 a loss of 9 is 1 %
    table = pd.DataFrame({"period": ["a", "b"], "rows": 9, "value": 909.0, "low": [908.0, 870.0], "high": 910.0})
    for value, greater, worse in ((900.0, False, []), (880.0, False, ["a"]), (950.0, True, ["a", "b"])):
        told = monitor_rows._of_metric(table, (value, greater, "rmse"), Thresholds())
        assert [f.about for f in told] == worse


def test_periods_are_named_or_refused():
    hours = np.arange(900) * 3600
    names, codes = periods_of(hours, "hour", most=None)
    assert (len(names), names[-1], codes[-1]) == (900, "1970-02-07 11:00", 899)
    odd = [(np.array([t]), "no seconds since 1970") for t in (1_790_000_000_000, 1.79e12, 1e300, -1e13)]
    for times, says in [(hours, "more than 400 periods"), (np.array([np.inf]), "infinite"), *odd]:
        with pytest.raises(DataError, match=says):
            periods_of(times, "hour" if times is hours else "day")


def test_the_page_and_the_figures(reference, tmp_path):
    rng, y = np.random.default_rng(0), np.tile([0.0, 1.0], 500)
    table = metric_over_time("auc", y, y + rng.normal(0, 1, 1000), np.repeat([10, 11, 12, 13], 250), every="value")
    new = drifted("mean", week(seed=6)).assign(**{"<b>": 1})
    found = monitor(reference, new, drop=["city"], over_time=table)
    said = json.loads(found.save_json(tmp_path / "a.json").read_text())
    assert (said["ok"], said["columns"][0]["column"]) == (False, "price")
    assert said["left_out"] == {"city": "as asked for"}
    text = found.save_html(tmp_path / "a.html").read_text()
    assert "&lt;b&gt;" in text
    assert "<b>, " not in text
    assert not re.search(r"https?://(?!www\.w3\.org)", text)
    assert found.adversarial.columns[0].name in ("rating", "twin")
    assert str(found).startswith("3,000 rows beside 6,000")
    calm = monitor(reference, week(seed=1), adversarial=False).save_html(tmp_path / "b.html").read_text()
    assert "Columns that moved" not in calm
    # pictures name the periods, and bars are shares of the whole
    chart = text[text.index("By period") :]
    names = re.findall(r'text-anchor="middle">(\w+)<', chart[: chart.index("</svg>")])
    assert names == ["10", "11", "12", "13", "period"]
    widths = [float(w) for w in re.findall(r"bar-fill\" style=\"width:([\d.]+)%", text)]
    assert widths == pytest.approx([100 * c.gain for c in found.adversarial.columns if c.gain > 0][:12], abs=0.01)


def test_what_cannot_be_compared_is_said(reference):
    number, other = np.zeros(6000), reference[["age"]].rename(columns={"age": "b"})
    for call, says in (
        (lambda: monitor(reference, reference.head(3)), "new has 3 rows"),
        (lambda: monitor(reference[["age"]], other), "no column in common"),
        (lambda: monitor(reference, reference, scores=(number, number[1:])), "5999 predictions of 6000 new rows"),
        (lambda: monitor(reference, reference, scores=number), "nothing to be compared with"),
        (lambda: Thresholds(correction="none"), "correction"),
        (lambda: Thresholds(alpha=1.0), "alpha"),
    ):
        with pytest.raises(DataError, match=says):
            call()
    times = reference.assign(at=pd.Timestamp("2026-01-01"), tags=[["a"]] * len(reference))
    found = monitor(times, times, adversarial=False)
    assert found.left_out == {"at": "times: they go on", "tags": "a list"}
    absent = reference.assign(colour=None)
    assert ("colour", "missing") in {(f.about, f.kind) for f in monitor(reference, absent, adversarial=False).findings}


values = st.lists(st.integers(-4, 4).map(float) | st.floats(-3, 3), min_size=1, max_size=40)
counts = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), min_size=2, max_size=12).filter(
    lambda pairs: sum(a for a, _ in pairs) > 0 and sum(b for _, b in pairs) > 0
)


@given(*[values.filter(lambda v: len(v) > 1)] * 2)  # with one and one value scipy divides by zero
def test_ks_is_scipys(a, b):
    found = ks_test(np.sort(a), np.sort(b))
    known = ks_2samp(a, b, method="asymp")
    assert found.statistic == pytest.approx(known.statistic, abs=1e-12)
    assert found.p == pytest.approx(known.pvalue, abs=1e-9)


@given(counts)
def test_js_is_scipys_and_psi_a_plain_sum(pairs):
    a, b = (np.array(c) for c in zip(*pairs, strict=True))
    # scipy's, of equal shares, is the root of a rounding error
    assert js_distance(a, b) == pytest.approx(jensenshannon(a, b, base=2), abs=1e-7)
    total = 0.0
    for x, y in zip(a / a.sum(), b / b.sum(), strict=True):
        x, y = max(x, 1e-4), max(y, 1e-4)
        total += (y - x) * np.log(y / x)
    assert psi(a, b) == pytest.approx(total)


@given(counts)
def test_chi_square_is_scipys_with_rare_cells_together(pairs):
    n, m = (sum(c) for c in zip(*pairs, strict=True))
    kept, rare = [], [0, 0]
    for a, b in pairs:
        if min(n, m) * (a + b) / (n + m) < 5:
            rare = [rare[0] + a, rare[1] + b]
        else:
            kept.append([a, b])
    table = np.array([c for c in [*kept, rare] if sum(c)]).T
    found = chi_square(*(np.array(c) for c in zip(*pairs, strict=True)))
    if table.shape[1] < 2:
        assert found.p == 1
        return
    known = chi2_contingency(table, correction=False)
    assert found.statistic == pytest.approx(known.statistic, abs=1e-9)
    if table.shape[1] == 2 and known.expected_freq.min() < 5:
        assert found.p == pytest.approx(fisher_exact(table).pvalue, abs=1e-9)
        return
    assert found.p == pytest.approx(known.pvalue, abs=1e-9)


def test_a_few_unseen_values_of_a_small_batch_are_no_alarm():
    """Of 20 000 values two were seen once: that one of 20 new rows has an unseen one is rare, by 1 to 700 at most."""
    counts = np.r_[np.full(100, 200), 1, 1]
    found = _unseen_test(1, 20, counts)
    plain = sum(betabinom.pmf(k, 20, 3, counts.sum() - 1) for k in range(1, 21))
    assert found.p >= plain * (1 - 1e-9)
    # small batches of nothing changed: at a level of 0.001 about that share alarms
    rng = np.random.default_rng(0)
    alarms = 0
    for _ in range(3000):
        values = rng.zipf(1.6, 320)
        old, new = values[:300], values[300:]
        held = np.unique(old, return_counts=True)[1]
        alarms += _unseen_test(int((~np.isin(new, old)).sum()), 20, held).p < 0.001
    assert alarms <= 9


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_corrections(p):
    assert benjamini_hochberg(np.array(p)) == pytest.approx(false_discovery_control(p, method="bh"))
    order, worst, by_hand = sorted(range(len(p)), key=p.__getitem__), 0.0, [0.0] * len(p)
    for rank, i in enumerate(order):
        worst = max(worst, min(1.0, p[i] * (len(p) - rank)))
        by_hand[i] = worst
    assert holm(np.array(p)) == pytest.approx(by_hand)


@settings(max_examples=3)
@given(st.integers(0, 2**32 - 1))
def test_values_outside_the_range_are_as_rare_as_it_says(seed):
    rng = np.random.default_rng(seed)
    a, b = rng.random((4000, 50)), rng.random((4000, 30))
    outside = ((b < a.min(1, keepdims=True)) | (b > a.max(1, keepdims=True))).sum(1)
    for k in (1, 3, 5):
        share = (outside >= k).mean()
        assert outside_test(k, 30, 50).p == pytest.approx(share, abs=4 * np.sqrt(share / 4000) + 0.002)
    assert outside_test(0, 30, 50).p == 1


class Flats(Competition):
    name, task, target, metric = "flats", "regression", "rent", "rmse"
    reading = Reading(header=["price", "place", "rent"], delimiter=";", numbers=["price", "rent"])
    categories = ("place",)

    def models(self, *, bs):
        return [XGBModel("xgb", rounds=5, early_stopping_rounds=None, nthread=1)]


def flats(rows: int, seed: int, dearer: float = 0.0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    price = rng.normal(1500, 200, rows) + dearer
    frame = pd.DataFrame({"price": [f"${p:,.2f}" for p in price], "place": rng.choice(["a, b", "c"], rows)})
    return frame.assign(rent=[f"${p / 100:.2f}" for p in price])


def written(frame, path):
    path.parent.mkdir(exist_ok=True)
    frame.to_csv(path, index=False, header=False, sep=";")
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("flats")
    written(flats(400, 0), folder / "data" / "train.csv")
    return run_competition(Flats(), folder / "data", folder / "run", resume=True)


def test_files_are_read_as_the_runs(run, tmp_path):
    for name, dearer in (("same", 0.0), ("dear", 400.0)):
        written(flats(300, 1, dearer), tmp_path / name / "test.csv")
    for same in (tmp_path / "same", tmp_path / "same" / "test.csv", flats(300, 1)):  # a folder, a file, a frame
        assert monitor(run, same, adversarial=False).ok
    found = monitor(run, tmp_path / "dear", adversarial=False)
    assert {f.about for f in found.findings} == {"price"}
    assert {f.kind for f in found.findings} <= {"shape", "unseen"}


def test_what_predict_writes_is_compared_with_the_runs_own(run, tmp_path):
    for name, dearer in (("same", 0.0), ("dear", 400.0)):
        new, scores = tmp_path / f"{name}.csv", tmp_path / f"{name}_scores.csv"
        rows = flats(300, 3, dearer)
        written(rows[["price", "place"]].assign(rent="$1"), new)
        predict_run(run, new, scores)
        found = monitor(run, new, scores=scores, adversarial=False)
        assert ("prediction" in {f.kind for f in found.findings}) == (name == "dear")
    rows[["rent"]].assign(at=0).to_csv(tmp_path / "labels.csv", index=False)
    words = ["monitor", run, new, "--scores", scores, "--no-trees", "--labels", tmp_path / "labels.csv"]
    done = CliRunner().invoke(app, [*map(str, words), "--time", "at", "--trust", "json"])
    error = pd.read_csv(scores).rent - rows["rent"].str[1:].astype(float)
    assert f"1970-01-01   300 {np.sqrt((error**2).mean()):.4f}" in done.output


def test_classes_and_what_predict_has_written_and_a_time_that_is_not_compared(tmp_path):
    class Read(Competition):
        name, task, target, ids, n_folds, time = "read", "binary", "bought", ("id",), 3, "at"

        def models(self, *, bs):
            return [XGBModel("xgb", rounds=5, early_stopping_rounds=None, nthread=1)]

    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"id": range(700), "price": rng.normal(size=700), "at": np.arange(700)})
    rows["bought"] = np.where(rows.price + rng.normal(size=700) > 0, "Y", "N")
    data, new = write_csv(tmp_path / "data", train=rows[:400]), write_csv(tmp_path, new=rows[400:]) / "new.csv"
    run = run_competition(Read(), data, tmp_path / "run")
    scores = predict_run(run, new, tmp_path / "scores.csv")
    words = ["monitor", run, new, "--scores", scores, "--no-trees", "--labels", new, "--time", "at", "--metric", "auc"]
    done = CliRunner().invoke(app, [*map(str, words)])
    auc = roc_auc_score(rows.bought[400:], pd.read_csv(scores).bought)
    assert f"1970-01-01   300 {auc:.4f}" in done.output
    assert "at" in monitor(run, rows[400:], adversarial=False).left_out


def log(requests=400, seed=0):
    """Lists of two to six items on three days, and clicks: some of items that were not shown, some twice."""
    rng = np.random.default_rng(seed)
    shown, clicks = [], []
    for r in range(requests):
        items = rng.permutation(30)[: rng.integers(2, 7)]
        where = rng.choice(["phone", "desk"])
        at = pd.Timestamp("2026-01-01") + pd.Timedelta(hours=int(rng.integers(0, 72)))
        shown += [{"request_id": f"r{r}", "item_id": f"i{i}", "at": at, "where": where} for i in items]
        for i in items:
            if rng.random() < 0.15:
                clicks += [{"request_id": f"r{r}", "item_id": f"i{i}"}] * int(rng.integers(1, 3))
        if rng.random() < 0.1:
            clicks.append({"request_id": f"r{r}", "item_id": "elsewhere"})
    return pd.DataFrame(shown), pd.DataFrame(clicks)


FIGURES = ["hit_rate", "mrr", "ctr"]


def by_hand(shown, clicks, k=99):
    clicked = set(zip(clicks["request_id"], clicks["item_id"], strict=True))
    hits, ranks, seen, taken = [], [], 0, 0
    for request, rows in shown.groupby("request_id", sort=False):
        places = [p for p, i in enumerate(rows["item_id"].head(k), 1) if (request, i) in clicked]
        hits.append(bool(places))
        ranks.append(1 / places[0] if places else 0)
        seen += min(len(rows), k)
        taken += len(places)
    return [np.mean(hits), np.mean(ranks), taken / seen]


def test_figures_are_those_of_plain_loops(tmp_path):
    shown, clicks = log()
    mixed = shown.sample(frac=1, random_state=1).sort_values("request_id", kind="stable", key=lambda s: s.str[-1])
    for rows in (shown, mixed):
        for k in (None, 1, 3):
            row = event_metrics(rows, clicks, k=k).iloc[0]
            assert row[FIGURES].tolist() == pytest.approx(by_hand(rows, clicks, k or 99))
            assert all(row[f"{name}_low"] < row[name] < row[f"{name}_high"] for name in FIGURES)
    assert row["requests"] == 400
    shown.to_parquet(tmp_path / "lists.parquet")
    files, out = (tmp_path / "lists.parquet", write_csv(tmp_path, clicks=clicks) / "clicks.csv"), tmp_path / "f.json"
    call("event-metrics", *files, "--time", "at", "--json", out)
    assert len(json.loads(out.read_text())) == 4


def test_by_day_and_segment():
    shown, clicks = log()
    found = event_metrics(shown, clicks, time="at", segment="where").set_index(["period", "segment"])
    assert len(found) == (1 + 3) * (1 + 2)
    wide = shown.groupby("request_id", sort=False).agg({"item_id": list, "at": "first"}).reset_index()
    by_day = event_metrics(shown, clicks, time="at")
    pd.testing.assert_frame_equal(event_metrics(wide, clicks, time="at"), by_day)  # lists in one row
    day = shown["at"].dt.strftime("%Y-%m-%d")
    for period in ("all", "2026-01-02"):
        for segment in ("all", "desk"):
            rows = shown[((day == period) | (period == "all")) & ((shown["where"] == segment) | (segment == "all"))]
            assert found.loc[(period, segment), FIGURES].tolist() == pytest.approx(by_hand(rows, clicks))


def test_the_interval_of_the_rate_is_that_of_whole_requests():
    """Within a request all or nothing is clicked: the spread is that of requests, not of items."""
    rng = np.random.default_rng(0)
    liked = rng.random(200) < 0.5
    shown = pd.DataFrame({"request_id": np.repeat(np.arange(200), 10), "item_id": np.tile(np.arange(10), 200)})
    clicks = shown[np.repeat(liked, 10)]
    row = event_metrics(shown, clicks).iloc[0]
    width = row["ctr_high"] - row["ctr_low"]
    assert width == pytest.approx(2 * 1.96 * np.sqrt(0.25 / 200), rel=0.15)


def test_what_is_missing_is_said():
    shown, clicks = log(10)
    for lists, clicked, options, error, says in (
        (shown, clicks.drop(columns="item_id"), {}, MissingColumnError, "the clicks lack it"),
        (shown, clicks, {"time": "when"}, MissingColumnError, "the lists lack it"),
        (shown.head(0), clicks, {}, DataError, "nothing was served"),
        (shown, clicks, {"k": 0}, DataError, "places"),
    ):
        with pytest.raises(error, match=says):
            event_metrics(lists, clicked, **options)


def call(*words, code=0):
    done = CliRunner().invoke(app, [str(w) for w in words])
    assert done.exit_code == code, done.output
    return done.output


@pytest.fixture
def files(tmp_path):
    rng = np.random.default_rng(0)
    y = (rng.random(2000) < 0.4).astype(float)
    pd.DataFrame({"y": y}).to_csv(tmp_path / "labels.csv", index=False)
    pd.DataFrame({"prediction": y + rng.normal(size=2000)}).to_csv(tmp_path / "scores.csv", index=False)
    pd.DataFrame({"prediction": 0.1 + 0.1 * y}).to_csv(tmp_path / "low.csv", index=False)
    made = {"folder": tmp_path}
    for name, shift in (("old", 0.0), ("same", 0.0), ("new", 1.0)):
        day = np.repeat(np.arange(4), 500) * 86_400
        frame = pd.DataFrame({"x": rng.normal(shift, 1, 2000), "c": rng.choice(list("abc"), 2000), "at": day})
        made[name] = tmp_path / f"{name}.parquet"
        frame.to_parquet(made[name])
    return made


def test_the_exit_code_says_whether_something_was_found(files):
    assert call("monitor", files["folder"] / "nothing.csv", files["same"], code=1).startswith("error: ")
    pair, limits = ("monitor", files["old"], files["new"], "--drop", "at"), ("--psi", 9, "--js", 9, "--ks", 9)
    assert "nothing found" in call("monitor", files["old"], files["same"], "--drop", "at", "--no-trees")
    out, figures = files["folder"] / "a.html", files["folder"] / "a.json"
    assert "x: values are spread otherwise" in call(*pair, "--out", out, "--json", figures, code=3)
    assert json.loads(figures.read_text())["adversarial"]["auc"][0] > 0.6
    assert out.read_text().startswith("<!doctype html>")
    call(*pair, *limits, "--no-trees")


def test_labels_give_the_metric_over_time(files):
    pair = ("monitor", files["old"], files["same"], "--no-trees")
    labels = ("--labels", files["folder"] / "labels.csv", "--time", "at")
    scores, low = (("--scores", files["folder"] / name) * 2 for name in ("scores.csv", "low.csv"))
    assert "1970-01-04" in call(*pair, *scores, *labels, "--metric", "auc")
    assert "Give --scores and --time too" in call(*pair, *labels, "--metric", "auc", code=1)
    assert "which metric is not known" in call(*pair, *scores, *labels, code=1)
    # classes are cut as a run's are: the best threshold is far from 0.5
    done = CliRunner().invoke(app, [str(w) for w in (*pair, *low, *labels, "--metric", "f1")])
    assert "1970-01-04   500 1.0000" in done.output, done.output


def test_a_run_of_sessions_is_refused_with_a_remedy(files):
    run = files["folder"] / "run"
    run.mkdir()
    (run / "config.json").write_text('{"task": "next_item"}')
    labels = ("--labels", files["new"], "--scores", files["new"], "--time", "at")
    again = ("retrain", run, "--data", files["new"], "--out", files["folder"] / "next")
    for words in (("monitor", run, files["new"]), ("monitor", run, files["new"], *labels), again):
        said = call(*words, code=1)
        assert "has sessions, not rows" in said
        assert "run the recipe again" in said
