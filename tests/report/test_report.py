"""The report of a run directory: its figures against pandas, its page as a browser would parse it."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from fastrec._core.atomic import file_digest
from fastrec._core.messages import TableColumn, terminal_table
from fastrec.competition import list_runs
from fastrec.errors import DataError, DataWarning, MissingColumnError, MissingFileError, UnreadableFileError, WriteError
from fastrec.metrics import Interval
from fastrec.report import charts, leaderboard_table, note_leaderboard, write_report
from fastrec.report.data import noted_runs, noted_score, read_run

STRENGTH = {"display_order": 0.0, "recency": 0.5, "net": 0.9, "xgb": 1.0, "stack": 1.2}
VOID = {"meta", "br"}


def some_lists(n: int = 240, *, truth: bool = True) -> pd.DataFrame:
    rng = np.random.default_rng(5)
    parts = []
    for split in ("oof", "test"):
        length = rng.integers(1, 26, n)
        touched = rng.random(n) < 0.5
        part = {"split": split, "fold_key": [f"{split}{i // 3}" for i in range(n)], "length": length}
        part["touched"] = touched
        for name, strength in STRENGTH.items():
            rank = np.clip(np.ceil(length * rng.random(n) ** (1 + strength + touched)), 1, length)
            part[f"rr_{name}"] = 1.0 / rank if truth or split == "oof" else np.full(n, np.nan)
        parts.append(pd.DataFrame(part).astype({"touched": object}))
    lists = pd.concat(parts, ignore_index=True)
    if not truth:
        lists.loc[lists["split"] == "test", "touched"] = None
    return lists


def make_run(folder: Path, lists: pd.DataFrame | None = None, **changes) -> Path:
    """A run directory with every file that a run writes; ``changes`` replace parts of scores.json."""
    folder.mkdir(parents=True, exist_ok=True)
    lists = some_lists() if lists is None else lists
    lists.to_parquet(folder / "lists.parquet")
    means = {s: {m: lists.loc[lists["split"] == s, f"rr_{m}"].mean() for m in STRENGTH} for s in ("oof", "test")}
    known = {s: {m: v for m, v in of.items() if v == v} for s, of in means.items()}
    scores = {
        "metric": "mrr",
        "models": known["test"],
        "oof": known["oof"],
        "oracle": 0.9 if known["test"] else None,
        "seconds": {"read": 0.5, "features": 12.25, "net": 61.0, "total": 75.0},
        "transductive": ["count_item_id"],
        "rows": {"candidates": 123456},
    }
    losses = [{"train_loss": 1 / (e + 1), "valid_loss": 1.1 / (e + 1), "mrr": 0.5 + 0.01 * e} for e in range(4)]
    curves = [{"fold": f, "epoch": e, **loss} for f in range(3) for e, loss in enumerate(losses)]
    files = {
        "scores.json": scores | changes,
        "curves.json": {"net": curves},
        "importance.json": {"xgb": {f"feature_{i}": float(100 - i) for i in range(40)}},
        "config.json": {"competition": "trivago2019", "seed": 3, "versions": {"torch": "2.13.0"}, "device": "cpu"},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    return folder


class Page(HTMLParser):
    """Parses a page, checks that tags close in order, and keeps what the tests ask about."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open, self.tags, self.texts, self.numbers, self.links = [], [], [], [], []
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name in ("href", "src", "srcset", "data", "xlink:href"):
                self.links.append(value)
            if name in ("x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "width", "height", "points"):
                self.numbers += [float(v) for v in re.findall(r"[^\s,]+", value) if tag != "meta"]

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if data.strip():
            self.texts.append(data.strip())


@pytest.fixture
def run(tmp_path) -> Path:
    return make_run(tmp_path / "demo")


def test_page_stands_alone_and_is_well_formed(run):
    path = write_report(run, repeats=50)
    assert path == run / "report.html"
    text = path.read_text(encoding="utf-8")
    assert write_report(run, repeats=50).read_text(encoding="utf-8") == text  # the same bytes
    page = Page(text)
    assert not page.links
    assert "script" not in page.tags
    assert not re.search(r"https?:|@import|url\(", text)
    assert 'name="viewport"' in text
    assert "prefers-color-scheme:dark" in text
    assert page.tags.count("svg") == 2 + 2 + 2 + 2  # intervals, curves, lengths, touched
    assert page.numbers
    assert all(np.isfinite(page.numbers))
    assert min(page.numbers) >= 0
    assert max(page.numbers) <= 420  # nothing is drawn outside its picture
    names = re.findall(r'<td><i style="[^"]*"></i>(\w+)</td>', text)
    assert names == [*read_run(run, repeats=10).models[::-1], "oracle"]
    for part in ("trivago2019", "count_item_id", "feature_0", "123,456", "2.13.0", "1 min 15 s", *STRENGTH):
        assert part in page.texts, part
    assert "feature_24" in page.texts
    assert "feature_25" not in page.texts


def test_figures_equal_pandas(run):
    lists, results = some_lists(), read_run(run, repeats=200)
    oof = {m: lists.loc[lists["split"] == "oof", f"rr_{m}"].mean() for m in STRENGTH}
    assert results.models == sorted(STRENGTH, key=oof.get)
    assert results.best == results.models[-1]
    for split in ("test", "oof"):
        part = lists[lists["split"] == split]
        for model in STRENGTH:
            standing = results.standings[split][model]
            assert standing.score.mean == pytest.approx(part[f"rr_{model}"].mean())
            assert standing.score.low < standing.score.mean < standing.score.high
            if model == results.best:
                assert standing.to_best is None
            else:
                gap = (part[f"rr_{model}"] - part[f"rr_{results.best}"]).mean()
                assert standing.to_best.mean == pytest.approx(gap)
        for piece in results.by_touched[split]:
            chosen = part[part["touched"] == (piece.label == "touched before")]
            assert piece.n_lists == len(chosen)
            assert piece.means["net"] == pytest.approx(chosen["rr_net"].mean())
        bins = pd.cut(part["length"], [1, 5, 10, 15, 20, 24, 25])
        expected = part.groupby(bins, observed=True)["rr_xgb"].agg(["size", "mean"])
        assert [piece.n_lists for piece in results.by_length[split]] == expected["size"].tolist()
        assert [piece.means["xgb"] for piece in results.by_length[split]] == pytest.approx(expected["mean"].tolist())
    assert [piece.label for piece in results.by_length["oof"]] == ["2–5", "6–10", "11–15", "16–20", "21–24", "25"]
    # the way to the oracle
    floor, top = results.scores["test"]["display_order"], results.scores["test"][results.best]
    assert results.share_of_way == pytest.approx((top - floor) / (0.9 - floor))
    assert f"{100 * (top - floor) / (0.9 - floor):.0f} %" in write_report(run, repeats=10).read_text()


def test_intervals_are_of_sessions_and_models_compared_on_lists_that_all_know(tmp_path):
    lists = some_lists()
    copies = pd.concat([lists] * 9, ignore_index=True)  # the same sessions, nine times as many lists
    once, many = (read_run(make_run(tmp_path / "run", some), repeats=300) for some in (lists, copies))
    assert many.standings["oof"]["net"].score == pytest.approx(once.standings["oof"]["net"].score)
    lists.loc[lists.index[:40], "rr_net"] = np.nan  # the first 40 out-of-fold lists
    results = read_run(make_run(tmp_path / "run", lists), repeats=20)
    assert results.n_lists == {"oof": 200, "test": 240}
    known = lists[(lists["split"] == "oof") & lists["rr_net"].notna()]
    assert results.standings["oof"]["xgb"].score.mean == pytest.approx(known["rr_xgb"].mean())


def test_without_ground_truth(tmp_path):
    run = make_run(tmp_path / "run", some_lists(truth=False), transductive=[])
    results = read_run(run, repeats=20)
    assert list(results.standings) == list(results.by_touched) == ["oof"]
    text = write_report(run, repeats=20).read_text()
    Page(text)
    assert "no ground truth was given" in text
    assert "Test MRR" not in text
    assert "every feature was fitted on training rows alone" in text


def test_scores_alone_are_enough_and_may_be_none(tmp_path):
    run = make_run(tmp_path / "run", seconds={}, transductive=None, rows={}, oracle=None)
    for name in ("lists.parquet", "curves.json", "importance.json", "config.json"):
        (run / name).unlink()
    text = write_report(run).read_text()
    Page(text)
    assert re.findall("<h2>(.*?)</h2>", text) == ["Leaderboard"]  # no card says what there is not
    assert "no lists.parquet, so there are no intervals" in text
    (run / "scores.json").write_text('{"metric": "mrr", "models": {}, "oof": {}}')
    text = write_report(run).read_text()
    Page(text)
    assert "reported no scores" in text


def test_names_are_never_markup(tmp_path):
    name = '<script>alert("x")</script> & [bold]b[/bold]'
    lists = some_lists().rename(columns={"rr_net": f"rr_{name}"})
    folder = make_run(tmp_path / "run", some_lists())
    lists.to_parquet(folder / "lists.parquet")
    (folder / "importance.json").write_text(json.dumps({name: {name: 1.0}}))
    (folder / "config.json").write_text(json.dumps({"competition": name, name: name}))
    page = Page(write_report(folder, repeats=10).read_text(encoding="utf-8"))
    assert "script" not in page.tags
    assert name in page.texts
    assert name in shown(folder, width=160)
    odd = '"><img src=x>'
    folder = make_run(folder, metric=odd, seconds={odd: 1.0}, transductive=[odd, 3], rows={odd: 2})
    curves = [{"fold": fold, "epoch": 0, odd: 1.0} for fold in (0, 1)]
    (folder / "curves.json").write_text(json.dumps({odd: curves}))
    (folder / "config.json").write_text(json.dumps({"device": odd, "started": odd, odd: {odd: odd}}))
    page = Page(write_report(folder, name=odd, repeats=10).read_text(encoding="utf-8"))
    assert "img" not in page.tags
    assert f"Run {odd} \u00b7 started {odd} \u00b7 device {odd}" in page.texts
    assert any(text.startswith(f"reaches {odd.upper()} 0.") for text in page.texts)


@pytest.mark.parametrize(
    "curves",
    [
        {"net": [{"fold": 0, "epoch": 0, "train_loss": 0.5, "valid_loss": float("nan"), "mrr": None}]},  # one point
        {"net": [{"fold": f, "epoch": e, "mrr": 0.5} for f in range(2) for e in range(3)]},  # a flat line
        {"net": [], "other": [{"epoch": 3, "loss_ratio": 1e6}, {"epoch": 4, "loss_ratio": 2e6}]},
        {"net": []},
    ],
)
def test_curves_of_any_shape(run, curves):
    (run / "curves.json").write_text(json.dumps(curves))
    page = Page(write_report(run, repeats=10).read_text())
    assert all(np.isfinite(page.numbers))
    assert max(page.numbers) <= 420


def shown(run: Path, width: int = 80) -> str:
    console = Console(width=width, color_system=None, file=None, force_terminal=False)
    with console.capture() as captured:
        console.print(leaderboard_table(run, repeats=100))
    return captured.get()


def test_table_fits_a_terminal(run):
    text = shown(run)
    assert "…" not in text
    rows = [line.split() for line in text.splitlines() if line.strip()]
    names = [row[0] for row in rows if row[0] in STRENGTH]
    results = read_run(run, repeats=100)
    assert names == results.models[::-1]
    net = next(row for row in rows if row[0] == "net")
    score = results.standings["oof"]["net"].score
    assert net[1] == f"{results.scores['test']['net']:.4f}"
    assert net[3] == f"{score.mean:.4f}"
    assert net[4] == f"{score.low:.3f}–{score.high:.3f}".replace("0.", ".")
    assert next(row for row in rows if row[0] == results.best)[-1] == "best"
    assert next(row for row in rows if row[0] == "oracle")[1] == "0.9000"
    (run / "lists.parquet").unlink()
    assert "stack" in shown(run)
    assert "best" not in shown(run)


def test_figures_of_several_words_are_not_cut_but_left_out():
    gap, figures = "-0.0134 (-.032, +.006)", ["0.123 0.456"]
    columns = [TableColumn("model", ["net"], fold=True), TableColumn("gap", [gap]), TableColumn("x", figures, drop=1)]
    console = Console(width=36)
    with console.capture() as captured:
        console.print(terminal_table(columns, 36, plain=True))
    text = captured.get()
    assert re.search(rf"net +{re.escape(gap)}", text)
    assert "not shown in 36 characters: x" in text


DEEP = '{"rows": {"a": ' + "[" * 100_000 + "]" * 100_000 + "}}"


@pytest.mark.parametrize("name", ["scores.json", "curves.json", "config.json", "lists.parquet"])
def test_unreadable_files_are_named(run, name):
    for text in ("{no", DEEP):
        (run / name).write_text(text)
        with pytest.raises(UnreadableFileError, match=re.escape(name)):
            write_report(run)
    if name == "scores.json":
        (run / name).write_text("[1]")
        with pytest.raises(UnreadableFileError, match=r"scores\.json"):
            write_report(run)
        (run / name).unlink()
        with pytest.raises(MissingFileError, match=r"scores\.json"):
            write_report(run)
    if name == "lists.parquet":
        some_lists().drop(columns="touched").to_parquet(run / name)
        with pytest.raises(MissingColumnError, match="touched"):
            write_report(run)
    assert not (run / "report.html").exists()


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("scores.json", {"models": ["net"]}),
        ("scores.json", {"oof": {"net": "0.5"}}),
        ("scores.json", {"rows": [1]}),
        ("curves.json", {"net": [[1, 2]]}),
        ("importance.json", {"net": {"a": "b"}}),
    ],
)
def test_json_with_parts_of_another_shape_is_refused(run, name, change):
    content = json.loads((run / name).read_text())
    (run / name).write_text(json.dumps({**content, **change}))
    for call in (write_report, leaderboard_table):
        with pytest.raises(UnreadableFileError, match="the run's files cannot be read"):
            call(run)


def test_a_part_that_the_page_cannot_show_is_refused(run):
    content = json.loads((run / "scores.json").read_text())
    (run / "scores.json").write_text(json.dumps({**content, "transductive": 5}))
    with pytest.raises(UnreadableFileError, match="the run's files cannot be read"):
        write_report(run)
    (run / "lists.parquet").unlink()  # without it, rows have the intervals of scores.json
    (run / "scores.json").write_text(json.dumps({**content, "task": "binary", "intervals": [1]}))
    with pytest.raises(UnreadableFileError, match="the run's files cannot be read"):
        leaderboard_table(run)


def test_nothing_half_written(run):
    (run / "report.html").mkdir()  # a place that no file can take
    before = sorted(p.name for p in run.iterdir())
    with pytest.raises(WriteError, match=r"report\.html"):
        write_report(run, repeats=10)
    assert sorted(p.name for p in run.iterdir()) == before


def test_nulls_and_numbers_out_of_range_are_left_out(run):
    scores = json.loads((run / "scores.json").read_text())
    parts = dict.fromkeys(("metric", "oracle", "seconds", "transductive", "rows"))
    models = {"net": 10**400, "xgb": None, "stack": float("nan"), "display_order": float("inf")}
    (run / "scores.json").write_text(json.dumps({**scores, **parts, "models": models}))
    (run / "curves.json").write_text(json.dumps({"net": None, "xgb": [None, {"epoch": 0, "train_loss": 10**400}]}))
    (run / "importance.json").write_text(json.dumps({"net": None, "xgb": {"a": None, "b": 10**400, "c": 1}}))
    (run / "config.json").write_text(json.dumps({"competition": None, "seed": [1, {"a": None}], "rows": 3}))
    assert write_report(run).exists()
    assert read_run(run).scores["test"] == {}


def boosted(rounds: dict[int, int], **more) -> list[dict]:
    return [{"fold": f, "round": i, "held_out": f + i / 10, **more} for f, n in rounds.items() for i in range(n)]


def curves_card(run: Path, curves: dict[str, list[dict]]) -> str:
    (run / "curves.json").write_text(json.dumps(curves))
    text = write_report(run, repeats=10).read_text()
    return text[text.index("Learning curves") : text.index("MRR by list length")]


def test_boosting_has_rounds_and_a_mean_as_far_as_all_folds_go(run):
    card = curves_card(run, {"lgbm": boosted({0: 4, 1: 70, 2: 84})})
    assert ">round</text>" in card
    assert "epoch" not in card
    lines = re.findall(r'<polyline class="(\w+)" points="(.*?)"', card)
    found = [(kind, len(points.split())) for kind, points in lines]
    assert found == [("thin", 4), ("thin", 70), ("thin", 84), ("bold", 4)]
    assert card.count("<circle") == 4  # a dot for each of few points, none for each of many
    # outputs and seeds are lines, not figures
    card = curves_card(run, {"xgb": [*boosted({0: 3, 1: 3}, output=0), *boosted({0: 3, 1: 3}, output=1)]})
    assert re.findall("<h3>(.*?)</h3>", card) == ["xgb: held out"]
    assert card.count("<polyline") == 5


TITLE = "Out of fold and on the leaderboard"


def scored_run(folder: Path, oof: float, *, competition: str = "a", metric: str = "auc") -> Path:
    folder.mkdir(parents=True)
    scores = {"metric": metric, "task": "binary", "models": {}, "oof": {"stack": oof, "one": oof - 0.01}}
    (folder / "scores.json").write_text(json.dumps(scores))
    (folder / "config.json").write_text(json.dumps({"competition": competition}))
    (folder / "submission.csv").write_text(f"id,p\n1,{oof}\n")
    return folder


def test_a_score_is_noted_with_its_submission_and_replaced(tmp_path):
    run, second = scored_run(tmp_path / "one", 0.8), scored_run(tmp_path / "two", 0.9)
    assert noted_score(run) is None
    path = note_leaderboard(run, 0.7)
    note_leaderboard(run, 0.79)
    assert noted_score(run) == 0.79
    assert json.loads(path.read_text())["submission"] == file_digest(run / "submission.csv")
    assert [p.name for p in run.iterdir() if "leaderboard" in p.name] == ["leaderboard.json"]
    assert {r.name: r.leaderboard for r in list_runs(tmp_path)} == {"one": 0.79, "two": None}
    assert [r.name for r in noted_runs(second)] == ["one"]


def test_what_is_no_score_or_no_run_is_refused(tmp_path):
    run = scored_run(tmp_path / "one", 0.8)
    with pytest.raises(DataError, match="nan is no score"):
        note_leaderboard(run, float("nan"))
    with pytest.raises(DataError, match=r"93\.6 is no score of auc, which is at most 1\. Is it in percent"):
        note_leaderboard(run, 93.6)
    note_leaderboard(scored_run(tmp_path / "own", 0.8, metric="profit"), 93.6)
    note_leaderboard(scored_run(tmp_path / "loss", 0.8, metric="rmse"), 93.6)
    with pytest.raises(MissingFileError, match=r"scores\.json"):
        note_leaderboard(tmp_path, 0.5)
    (run / "leaderboard.json").write_text("{}")
    with pytest.raises(UnreadableFileError, match="fastrec lb RUN SCORE"):
        noted_score(run)


def test_only_runs_of_one_competition_and_metric_are_beside_each_other(tmp_path):
    runs = [
        scored_run(tmp_path / "a1", 0.8),
        scored_run(tmp_path / "a2", 0.7),
        scored_run(tmp_path / "b", 0.9, competition="b"),
        scored_run(tmp_path / "c", 0.9, metric="logloss"),
    ]
    for i, run in enumerate(runs):
        note_leaderboard(run, 0.5 + i / 10)
    (tmp_path / "no run").mkdir()
    (tmp_path / "no run" / "leaderboard.json").write_text("{}")
    assert [(r.name, r.score, r.leaderboard) for r in noted_runs(runs[0])] == [("a2", 0.7, 0.6), ("a1", 0.8, 0.5)]


def test_the_report_draws_them_from_two_on(tmp_path):
    runs = [scored_run(tmp_path / f"run{i}", 0.8 + i / 100) for i in range(3)]
    note_leaderboard(runs[0], 0.78)
    assert TITLE not in write_report(runs[0]).read_text()
    note_leaderboard(runs[1], 0.80)
    note_leaderboard(runs[2], 0.77)
    page = write_report(runs[0]).read_text()
    section = page[page.index(TITLE) :]
    assert "3 runs of this folder" in section
    # 0 to 1 rises on both, 0 to 2 and 1 to 2 fall on the leaderboard
    assert "Of 3 pairs of runs both put 1 in the same order" in section
    assert "between −0.0500 and −0.0100" in section
    svg = re.search(r"<svg.*?</svg>", section, flags=re.S).group()
    dots = re.findall(r"<circle[^>]*>", svg)
    across, up = ([float(re.search(rf'c{axis}="([\d.]+)"', d).group(1)) for d in dots] for axis in "xy")
    assert len(dots) == 3
    assert across == sorted(across)
    assert up[1] < up[0] < up[2]  # .80 is drawn above .78, and .78 above .77
    assert ["--c0" in d for d in dots] == [True, False, False]  # the page's own run
    # another run's damage costs no report
    (runs[2] / "leaderboard.json").write_text("{")
    with pytest.warns(DataWarning, match="run2"):
        page = write_report(runs[0]).read_text()
    assert "2 runs of this folder" in page


# Axes and colours of the report's pictures


@given(st.floats(-1e6, 1e6), st.floats(1e-2, 1e6), st.integers(3, 8))
def test_ticks_cover_the_data_in_even_steps(low, extent, most):
    high = low + extent
    found = charts.ticks(low, high, most=most)
    steps = [b - a for a, b in pairwise(found)]
    assert found[0] <= low + extent * 1e-6
    assert found[-1] >= high - extent * 1e-6
    assert 2 <= len(found) <= 2 * most + 1
    assert max(steps) == pytest.approx(min(steps), rel=1e-3)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.31, 0.57, [0.3, 0.4, 0.5, 0.6]),
        (5.0, 5.0, [4.5, 4.75, 5, 5.25, 5.5]),
        (0.0, float("inf"), [0, 2.5e299, 5e299, 7.5e299, 1e300]),
        (float("nan"), 1.0, [0, 0.25, 0.5, 0.75, 1]),
    ],
)
def test_ticks_are_round(low, high, expected):
    assert charts.ticks(low, high) == pytest.approx(expected)


def test_a_point_lies_where_its_value_says():
    up = [(0, 0.0), (1, 1.0)]
    svg = charts.line_chart([charts.Line(up, "red")], x_label="epoch", y_label="loss")
    (x0, y0), (x1, y1) = re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', svg)
    labels = {text: float(y) for y, text in re.findall(r'y="([\d.]+)" text-anchor="end">([^<]+)<', svg)}
    assert float(x0) < float(x1)
    assert float(y0) > float(y1)  # up is more
    assert float(y0) == pytest.approx(labels["0.00"] - 4)  # level with the tick of its own value
    assert float(y1) == pytest.approx(labels["1.00"] - 4)


def test_interval_chart_marks_the_oracle_and_bars_are_in_proportion():
    for mark in (0.7, None):
        made = charts.interval_chart({"net": Interval(0.5, 0.4, 0.6)}, {"net": "red"}, mark=mark, mark_label="oracle")
        assert ("oracle 0.7000" in made) == ("oracle" in made) == (mark is not None)
    html = charts.bar_list({"a": 4.0, "b": 1.0, "c": 0.0}, ["4 s", "1 s", "0 s"])
    assert re.findall(r"width:([\d.]+)%", html) == ["100.00", "25.00", "0.00"]
