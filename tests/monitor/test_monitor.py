import json
import re

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

from fastrec.errors import DataError
from fastrec.monitor import Thresholds, metric_over_time, monitor
from fastrec.monitor.monitor_rows import read_sides
from fastrec.monitor.over_time import periods_of

COLOURS = ["red", "green", "blue", "grey", "black"]


def week(rows=3000, seed=0):
    """A week of rows of which nothing changes."""
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


def drifts():
    """Ten kinds of drift: name → (column, what is found, the change)."""
    rng = np.random.default_rng(9)

    def put(column, kind, values):
        return column, kind, lambda f: f.assign(**{column: values(f)})

    def some(f, share):
        return rng.random(len(f)) < share

    humps = lambda f: np.where(some(f, 0.5), -0.95, 0.95) + rng.normal(0, 0.31, len(f))  # noqa: E731
    return {
        "mean": put("rating", "shape", lambda f: f["rating"] + 0.5),
        "spread": put("rating", "shape", lambda f: f["rating"] * 1.6),
        "two humps of the same mean and spread": put("other", "shape", humps),
        "another unit in some rows": put("price", "unseen", lambda f: f["price"] * np.where(some(f, 0.05), 100, 1)),
        "a stuck sensor": put("age", "shape", lambda f: 40),
        "more missing values": put("income", "missing", lambda f: f["income"].mask(some(f, 0.1))),
        "other shares": put("colour", "shape", lambda f: rng.choice(COLOURS, len(f), p=[0.1, 0.3, 0.15, 0.1, 0.35])),
        "values not seen before": put("colour", "unseen", lambda f: f["colour"].mask(some(f, 0.05), "violet")),
        "new ids": put("city", "unseen", lambda f: f["city"].mask(some(f, 0.4), f["city"] + "x")),
        "a column that is gone": ("age", "gone", lambda f: f.drop(columns="age")),
        "numbers that came as text": put("price", "type", lambda f: "EUR " + f["price"].round(2).astype(str)),
        "columns that no longer go together": (
            "all columns", "joint", lambda f: f.assign(twin=rng.permutation(f["twin"].to_numpy())),
        ),
    }  # fmt: skip


@pytest.fixture(scope="module")
def reference():
    return week(6000)


@pytest.mark.parametrize("name", drifts())
def test_planted_drifts_are_found_and_nothing_else(reference, name):
    column, kind, change = drifts()[name]
    found = monitor(reference, change(week(seed=5)), adversarial=kind == "joint")
    assert not found.ok
    assert (column, kind) in {(f.about, f.kind) for f in found.findings}
    assert {f.about for f in found.findings} == {column}


def test_nothing_is_found_in_twenty_clean_weeks(reference):
    for seed in range(20):
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
    numbers = ["price", "rating", "other", "income"]
    weeks = [
        monitor(reference[numbers], week(600, s)[numbers], adversarial=False, thresholds=strict) for s in range(60)
    ]
    share = np.mean([not w.ok for w in weeks])
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
    with pytest.raises(DataError, match="2999 predictions of 3000 new rows"):
        monitor(reference, new, scores=(old, rng.random(2999)), adversarial=False)
    with pytest.raises(DataError, match="nothing to be compared with"):
        monitor(reference, new, scores=rng.random(3000), adversarial=False)


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


def test_a_period_that_is_worse_than_the_run_is_found(tmp_path):
    from fastrec.monitor.monitor_rows import _of_metric

    table = pd.DataFrame({"period": ["a", "b"], "rows": [9, 9], "value": [0.8, 0.6], "low": [0.7, 0.55]})
    table["high"] = [0.85, 0.69]
    assert [f.about for f in _of_metric(table, (0.78, True, "auc"), Thresholds())] == ["b"]
    assert [f.about for f in _of_metric(table, (0.5, False, "auc"), Thresholds())] == ["a", "b"]
    assert not list(_of_metric(table, (0.70, True, "auc"), Thresholds()))

    # the threshold is a share of the run's: of 900 a loss of 9 is 1 %
    large = table.assign(low=908.0, high=910.0)
    assert not list(_of_metric(large, (900.0, False, "rmse"), Thresholds()))
    assert len(list(_of_metric(large, (880.0, False, "rmse"), Thresholds()))) == 2


def test_only_the_same_metric_is_compared_with_the_runs(reference, monkeypatch):
    from fastrec.monitor import monitor_rows

    def of_a_run(*args, **options):
        sides = read_sides(*args, **options)
        sides.metric = 0.45, False, "logloss"
        return sides

    monkeypatch.setattr(monitor_rows, "read_sides", of_a_run)
    rng, y = np.random.default_rng(0), np.tile([0.0, 1.0], 500)
    table = metric_over_time("auc", y, y + rng.normal(0, 1, 1000), np.zeros(1000))
    found = monitor(reference, week(seed=1), over_time=table, adversarial=False)
    assert found.ok, str(found)
    assert found.reference_metric is None
    same = metric_over_time("logloss", y, np.clip(0.5 + (0.5 - y) * 0.8, 0, 1), np.zeros(1000))
    found = monitor(reference, week(seed=1), over_time=same, adversarial=False)
    assert [f.kind for f in found.findings] == ["metric"]
    assert found.reference_metric == 0.45


def test_periods_are_named_or_refused():
    names, codes = periods_of(np.arange(900) * 3600, "hour", most=None)
    assert (len(names), names[-1], codes[-1]) == (900, "1970-02-07 11:00", 899)
    with pytest.raises(DataError, match="more than 400 periods"):
        periods_of(np.arange(900) * 3600, "hour")
    for times in ([1_790_000_000_000], [1.79e12], [1e300], [-1e13]):
        with pytest.raises(DataError, match="no seconds since 1970"):
            periods_of(np.array(times), "day")
    with pytest.raises(DataError, match="infinite"):
        periods_of(np.array([np.inf]), "day")


def test_a_column_that_is_called_as_the_predictions_are(reference):
    old, new = reference.assign(prediction=reference["rating"]), week(seed=4).assign(prediction=5.0)
    scores = (np.arange(6000.0), np.arange(3000.0) * 2)
    found = monitor(old, new, scores=scores, adversarial=False)
    assert ("prediction", "shape") in {(f.about, f.kind) for f in found.findings}
    assert found.columns.set_index("column").loc["prediction (scores)", "kind"] == "prediction"


def test_the_page_and_the_figures(reference, tmp_path):
    new = drifts()["mean"][2](week(seed=6)).assign(**{"<b>": 1})
    found = monitor(reference, new, drop=["city"])
    said = json.loads(found.save_json(tmp_path / "a.json").read_text())
    assert said["ok"] is False
    assert said["columns"][0]["column"] == "price"
    assert said["left_out"] == {"city": "as asked for"}
    text = found.save_html(tmp_path / "a.html").read_text()
    assert "&lt;b&gt;" in text
    assert "<b>, " not in text
    assert not re.search(r"https?://(?!www\.w3\.org)", text)
    assert "rating" in text
    assert found.adversarial.columns[0].name in ("rating", "twin")
    assert str(found).startswith("3,000 rows beside 6,000")


def test_pictures_name_the_periods_and_bars_are_shares_of_the_whole(reference, tmp_path):
    rng, y = np.random.default_rng(0), np.tile([0.0, 1.0], 500)
    table = metric_over_time("auc", y, y + rng.normal(0, 1, 1000), np.repeat([10, 11, 12, 13], 250), every="value")
    found = monitor(reference, week(seed=6), over_time=table)
    text = found.save_html(tmp_path / "a.html").read_text()
    chart = text[text.index("By period") :]
    names = re.findall(r'text-anchor="middle">(\w+)<', chart[: chart.index("</svg>")])
    assert names == ["10", "11", "12", "13", "period"]
    widths = [float(w) for w in re.findall(r"bar-fill\" style=\"width:([\d.]+)%", text)]
    assert widths == pytest.approx([100 * c.gain for c in found.adversarial.columns if c.gain > 0][:12], abs=0.01)


def test_what_cannot_be_compared_is_said(reference):
    with pytest.raises(DataError, match="new has 3 rows"):
        monitor(reference, reference.head(3))
    with pytest.raises(DataError, match="no column in common"):
        monitor(reference[["age"]], reference[["age"]].rename(columns={"age": "b"}))
    with pytest.raises(DataError, match="correction"):
        Thresholds(correction="none")
    times = reference.assign(at=pd.Timestamp("2026-01-01"), tags=[["a"]] * len(reference))
    found = monitor(times, times, adversarial=False)
    assert found.left_out == {"at": "times: they go on", "tags": "a list"}
    absent = reference.assign(colour=None)
    assert ("colour", "missing") in {(f.about, f.kind) for f in monitor(reference, absent, adversarial=False).findings}
