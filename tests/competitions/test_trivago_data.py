"""The official files as tables: against plain loops over their rows; and what is said of files that are amiss."""

import copy
import csv
import math
import random
from pathlib import Path

import pytest
import torch

from competitions.trivago2019.competition import Trivago2019
from competitions.trivago2019.data import CLICK, ITEM_ACTIONS, read
from fastrec.errors import DataError, DataWarning, FastrecError
from fastrec.features.base import Fitted
from fastrec.features.history import slug

CPU = torch.device("cpu")


@pytest.fixture
def small(tmp_path, official):
    """Rows of a small good pair of files, and a function that writes and reads them."""
    e = official.event
    train = [e("a", 1, "interaction item image", "12"), e("a", 2, CLICK, "12"), e("b", 1, CLICK, "13")]
    test = [e("c", 1, "search for item", "11"), e("c", 2, CLICK, "11"), e("c", 3, CLICK)]
    truth = [{**e("c", 3, CLICK), "reference": "13"}]

    def load(*, quiet: bool = False, **options: object):
        official.write(tmp_path, train, test, truth)
        return official.read(tmp_path, **options) if quiet else read(tmp_path, device=CPU, **options)

    load.train, load.test, load.truth, load.folder = train, test, truth, tmp_path
    return load


def lists_by_loop(sessions: dict[str, list[dict]]) -> tuple[list[dict], list[dict], list[dict]]:
    shown, number = [], -1
    for events in sessions.values():
        clicks = [e for e in events if e["action_type"] == CLICK]
        for e in clicks:
            number += 1
            ids, prices = e["impressions"].split("|"), e["prices"].split("|")
            for k, item in enumerate(ids):
                if item in ids[:k]:
                    continue
                row = {n: e[n] for n in ("user_id", "session_id", "timestamp", "step", "platform", "place", "target")}
                row |= {"list_id": number, "item_id": item, "position": k + 1, "price": float(prices[k])}
                row |= {"list_length": len(ids), "exposure": 1 / (k + 2), "is_last": int(e is clicks[-1])}
                row |= {"weight": 1.0 if e is clicks[-1] else 0.5, "reference": e["reference"]}
                row["filters"] = len(e["current_filters"].split("|")) if e["current_filters"] else 0
                shown.append(row)
    labelled = [{**r, "clicked": float(r["item_id"] == r["reference"])} for r in shown if r["reference"]]
    return shown, labelled, [r for r in shown if r["target"]]


def touches_by_loop(sessions: dict[str, list[dict]]) -> list[dict]:
    found = []
    for events in sessions.values():
        run, start, before = 0, 0, None
        for e in events:
            if e["action_type"] not in ITEM_ACTIONS or not e["reference"]:
                continue
            run, start = (run + 1, start) if e["reference"] == before else (1, e["timestamp"])
            before = e["reference"]
            row = {n: e[n] for n in ("session_id", "user_id", "timestamp", "place", "action_type", "dwell")}
            found.append({**row, "item_id": e["reference"], "run": run, "run_seconds": e["timestamp"] - start})
    return found


def compare(table, expected: list[dict], names: list[str]) -> None:
    assert len(table) == len(expected) > 0
    for name in names:
        got = table[name].to_arrow().to_pylist()
        want = [row[name] for row in expected]
        assert got == pytest.approx(want, abs=1e-6) if isinstance(want[0], float) else got == want, name


COMMON = ["user_id", "session_id", "timestamp", "step", "platform", "place", "list_id", "item_id", "position", "price"]
COMMON += ["list_length", "exposure", "is_last", "weight", "filters"]


def check_against_loops(folder: Path, official) -> None:
    found, sessions = official.read(folder), official.sessions_of(folder)
    shown, labelled, targets = lists_by_loop(sessions)
    compare(found.train, labelled, [*COMMON, "clicked"])
    compare(found.test, targets, COMMON)
    compare(found.tables["shown"], shown, COMMON)
    touches = touches_by_loop(sessions)
    compare(found.tables["touches"], touches, list(touches[0]))
    log = [e for events in sessions.values() for e in events]
    compare(found.tables["log"], log, ["session_id", "timestamp", "step", "place", "dwell", "action_type"])
    mean = {}
    for row in labelled:
        mean.setdefault(row["list_id"], []).append(row["price"])
    clicked = [r for r in labelled if r["clicked"]]
    for row in clicked:
        row["price_over_mean"] = row["price"] / (sum(mean[row["list_id"]]) / len(mean[row["list_id"]]))
    compare(found.tables["clicked"], clicked, ["session_id", "timestamp", "place", "position", "price_over_mean"])
    answers = {}
    with (folder / "ground_truth.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            answers[row["session_id"], int(row["step"])] = row["reference"]
    truth = [float(answers[r["session_id"], r["step"]] == r["item_id"]) for r in targets]
    assert found.truth.tolist() == truth
    keys = list(dict.fromkeys((r["user_id"], r["session_id"], r["timestamp"], r["step"]) for r in targets))
    assert list(zip(*found.targets.to_arrow().to_pydict().values())) == keys


@pytest.mark.parametrize("seed", range(3))
def test_random_files_as_plain_loops_read_them(seed, tmp_path, official):
    check_against_loops(official.write(tmp_path, *official.random_rows(seed)), official)


def test_real_files_as_plain_loops_read_them(data_dir, official):
    if not (data_dir / "trivago2019").is_dir():
        pytest.skip(f"no trivago2019 in {data_dir}")
    with pytest.warns(DataWarning, match=r"share session and step|outside their list"):
        found = read(data_dir / "trivago2019", device=CPU)
    _, labelled, targets = lists_by_loop(official.sessions_of(data_dir / "trivago2019"))
    compare(found.train, labelled, [*COMMON, "clicked"])
    compare(found.test, targets, COMMON)
    assert len(found.targets) == 1257


def test_duplicates_are_kept_in_order_of_time_step_and_file(small, official):
    e = official.event
    small.train[:] = [
        e("a", 2, CLICK, "13", timestamp=1_020),
        e("a", 1, "interaction item image", "12", timestamp=1_020),
        e("a", 1, "interaction item info", "11", timestamp=1_020),
        e("a", 3, CLICK, "12", timestamp=1_010),
    ]
    with pytest.warns(DataWarning, match=r"train\.csv: 2 rows share session and step.*the first is row 1") as caught:
        found = small()
    assert len(caught) == 1
    log = found.tables["log"].to_pandas().query("session_id == 'a'")
    assert log[["timestamp", "step", "place", "reference"]].values.tolist() == [
        [1_010, 3, 0, "12"],
        [1_020, 1, 1, "12"],
        [1_020, 1, 2, "11"],
        [1_020, 2, 3, "13"],
    ]
    assert found.train.to_pandas().query("session_id == 'a'").is_last.tolist() == [0] * 3 + [1] * 3


def test_an_answer_in_no_list_is_warned_of_and_kept_and_scores_nothing(small):
    small.truth[0]["reference"] = "99"
    assert small().truth.tolist() == [0, 0, 0]
    small.train[1]["reference"] = "99"
    with pytest.warns(DataWarning, match=r"1 clicks are on an item outside their list"):
        found = small()
    rows = found.train.to_pandas()
    assert rows[rows.session_id == "a"].clicked.tolist() == [0, 0, 0]


def test_a_train_click_without_an_answer_teaches_nothing(small, official):
    small.train.append(official.event("x", 1, CLICK))
    found = small()
    assert "x" not in found.train["session_id"].to_arrow().to_pylist()
    assert "x" in found.tables["shown"]["session_id"].to_arrow().to_pylist()
    assert len(found.targets) == 1


def test_an_item_file_without_rows_or_properties_is_usable(small, official):
    official.items(small.folder, {})
    assert len(small().tables["items"]) == 0
    official.items(small.folder, {"11": "", "987654": "Never listed", "12": "Pool|Bar"})
    assert small().tables["items"]["properties"].to_arrow().to_pylist() == [None, ["Pool", "Bar"]]


@pytest.mark.parametrize(("rows", "sessions"), [(1, ["a"]), (2, ["a"]), (3, ["a", "b"]), (99, ["a", "b"])])
def test_rows_takes_whole_sessions(small, official, rows, sessions):
    small.train.append(official.event("a", 9, CLICK, "11"))  # apart from the other rows of its session
    found = small(rows=rows)
    kept = found.tables["log"].to_pandas()
    assert kept[~kept.in_test].session_id.unique().tolist() == sessions
    assert kept[kept.session_id == "a"].step.tolist() == [1, 2, 9]
    assert found.test["item_id"].to_arrow().to_pylist() == ["11", "12", "13"]


def refused(load, kind: type[FastrecError], message: str, **places: object) -> None:
    """Reading fails with ``kind``, naming the places given (``file``, ``column``, ``row``)."""
    with pytest.raises(kind, match=message) as caught:
        load(quiet=True)
    for name, value in places.items():
        found = getattr(caught.value, name)
        assert (Path(found).name if name == "file" else found) == value, (name, found)
    assert caught.value.remedy


def test_the_row_named_is_the_files_own(small, official):
    e = official.event
    small.train[:] = [
        e("b", 5, CLICK, "13"),
        e("a", 2, CLICK, "12"),
        e("b", 1, CLICK, "13", prices="50|x|60"),
        e("a", 1, "interaction item image", "12"),
    ]
    refused(small, DataError, "'x' is not a number", file="train.csv", column="prices", row=2)
    with pytest.raises(DataError) as caught:
        small(quiet=True, rows=1)
    assert caught.value.row == 2


CELLS = [
    ("test", 1, "prices", "50|70", "has 2 elements where 'impressions' has 3"),
    ("train", 2, "prices", "50|70|60|80", "has 4 elements where 'impressions' has 3"),
    *(("test", 2, "prices", f"50|{price}|60", "is not a number") for price in ("dear", "", "nan", "1,5")),
    *(("test", 1, column, "", "has none") for column in ("impressions", "prices")),
    *(("train", 1, name, value, value) for name, value in (("timestamp", "yesterday"), ("step", "1.5"), ("step", "x"))),
    *(("test", 1, c, "", "a value is missing") for c in ("user_id", "session_id", "timestamp", "step", "action_type")),
]


@pytest.mark.parametrize(("file", "row", "column", "value", "message"), CELLS)
def test_a_cell_that_cannot_be_used(small, file, row, column, value, message):
    getattr(small, file)[row][column] = value
    refused(small, DataError, message, file=f"{file}.csv", column=column, row=row)


def test_a_test_file_without_any_target_and_the_ground_truth_of_another(small):
    small.truth[0]["session_id"] = "other"
    refused(small, DataError, "1 target rows of test.csv have no answer", file="ground_truth.csv")
    small.test[-1]["reference"] = "12"
    refused(small, DataError, "nothing to rank", file="test.csv", column="reference")


# The competition's features: against a plain loop over the events, and blind to what nobody could know at the time

NAN = math.nan
PROPERTIES = ["Pool", "Bar", "Spa", "WiFi", "Sauna"]


def catalogue() -> dict[str, str]:
    """Properties of most items; one item has none, and two are not there."""
    r = random.Random(5)
    found = {str(n): "|".join(r.sample(PROPERTIES, r.randrange(1, 5))) for n in range(10, 22)}
    return {**found, "13": ""}


def trivago_features_read(folder, rows, official):
    official.write(folder, *rows)
    official.items(folder, catalogue())
    return official.read(folder)


class Past:
    def __init__(self, sessions: dict[str, list[dict]], events: list[dict], click: dict) -> None:
        self.sessions, self.click = sessions, click
        self.time, self.place = click["timestamp"], click["place"]
        self.before = events[: click["place"]]
        self.touches = [e for e in self.before if e["action_type"] in ITEM_ACTIONS and e["reference"]]
        ids, prices = click["impressions"].split("|"), click["prices"].split("|")
        first = [k for k, item in enumerate(ids) if item not in ids[:k]]
        self.items = [ids[k] for k in first]
        self.positions = [k + 1 for k in first]
        self.prices = [float(prices[k]) for k in first]
        self.last = [self._last(item) for item in self.items]
        self.steps = [self.place - e["place"] if e else NAN for e in self.last]

    def _last(self, item: str) -> dict | None:
        return next((e for e in reversed(self.touches) if e["reference"] == item), None)

    def rows(self) -> list[dict]:
        return [
            {**self._touched(k), **self._in_list(k), **self._elsewhere(k), **self._jaccard(k)}
            for k in range(len(self.items))
        ]

    def _touched(self, k: int) -> dict:
        on = [e for e in self.touches if e["reference"] == self.items[k]]
        clicks = [e for e in on if e["action_type"] == CLICK]
        any_click = [e for e in self.touches if e["action_type"] == CLICK]
        row = {
            "touch_count": len(on),
            "touch_since": self.time - on[-1]["timestamp"] if on else NAN,
            "touch_steps": self.steps[k],
            "touch_since_first": self.time - on[0]["timestamp"] if on else NAN,
            "touch_is_last": int(bool(on) and self.touches[-1] is on[-1]),
            "touch_last_action_type": on[-1]["action_type"] if on else None,
            "touch_sum_dwell": sum(e["dwell"] for e in on),
            "touch_share": len(on) / len(self.touches) if self.touches else NAN,
            "session_touch_count": len(self.touches),
            "session_touch_since": self.time - self.touches[-1]["timestamp"] if self.touches else NAN,
            "session_count": len(self.before),
            "session_since": self.time - self.before[-1]["timestamp"] if self.before else NAN,
            "session_last_action_type": self.before[-1]["action_type"] if self.before else None,
            "click_count": len(clicks),
            "click_steps": self.place - clicks[-1]["place"] if clicks else NAN,
            "session_click_count": len(any_click),
        }
        return row | {f"touch_count_{slug(a)}": sum(e["action_type"] == a for e in on) for a in ITEM_ACTIONS}

    def _in_list(self, k: int) -> dict:
        known = sorted((s, p) for s, p in zip(self.steps, self.positions) if s == s)
        touched = sorted(p for _, p in known)
        here, price = self.positions[k], self.prices[k]
        above, below = [p for p in touched if p < here], [p for p in touched if p > here]
        smaller, equal = sum(p < price for p in self.prices), sum(p == price for p in self.prices)

        def neighbour(values: list, by: int):
            return values[k + by] if 0 <= k + by < len(values) else NAN

        counts = [sum(e["reference"] == i for e in self.touches) for i in self.items]
        last = known[0][1] if known else None
        return {
            "offset_touched1": here - last if known else NAN,
            "offset_touched2": here - known[1][1] if len(known) > 1 else NAN,
            "offset_highest": here - touched[0] if known else NAN,
            "offset_lowest": here - touched[-1] if known else NAN,
            "offset_above": here - above[-1] if above else NAN,
            "offset_below": here - below[0] if below else NAN,
            "rank_touch_steps__list_id": NAN
            if math.isnan(self.steps[k])
            else 1 + sum(s < self.steps[k] for s, _ in known),
            "lag1_touch_steps__list_id": neighbour(self.steps, -1),
            "lead1_touch_steps__list_id": neighbour(self.steps, 1),
            "lag1_touch_count__list_id": neighbour(counts, -1),
            "lead1_touch_count__list_id": neighbour(counts, 1),
            "rank_price__list_id": smaller + (equal + 1) / 2,
            "price_over_mean": price / (sum(self.prices) / len(self.prices)),
            "price_over_min": price / min(self.prices),
            "diff1_price__list_id": price - neighbour(self.prices, -1),
            "price_over_cheapest_above": price / min(self.prices[:k]) if k else NAN,
            "price_over_touched1": price / self.prices[self.positions.index(last)] if known else NAN,
        }

    def _elsewhere(self, k: int) -> dict:
        """Other sessions, strictly earlier in time."""
        item, row = self.items[k], dict.fromkeys(("others_clicks", "others_touches", "user_touch", "user_click"), 0)
        for name, events in self.sessions.items():
            for e in events:
                mine = e["action_type"] in ITEM_ACTIONS and e["reference"] == item and e["timestamp"] < self.time
                if name == self.click["session_id"] or not mine:
                    continue
                clicked, same = e["action_type"] == CLICK, e["user_id"] == self.click["user_id"]
                row["others_touches"] += 1
                row["others_clicks"] += clicked
                row["user_touch"] += same
                row["user_click"] += clicked and same
        return row

    def _jaccard(self, k: int) -> dict:
        sets = {item: {p for p in text.split("|") if p} for item, text in catalogue().items()}
        past = [e["reference"] for e in self.touches[-3:] if e["reference"] in sets]
        if self.items[k] not in sets or not past:
            return {"jaccard_mean": NAN, "jaccard_max": NAN}
        mine = sets[self.items[k]]
        like = [len(mine & sets[i]) / len(mine | sets[i]) if mine | sets[i] else 0.0 for i in past]
        return {"jaccard_mean": sum(like) / len(like), "jaccard_max": max(like)}


def expected_rows(sessions: dict[str, list[dict]], *, targets: bool) -> list[dict]:
    rows = []
    for events in sessions.values():
        for e in events:
            if e["action_type"] == CLICK and e["target"] == targets and (targets or e["reference"]):
                rows += Past(sessions, events, e).rows()
    return rows


def check(table, expected: list[dict]) -> None:
    assert len(table) == len(expected) > 0
    for name in expected[0]:
        got, want = table[name].to_arrow().to_pylist(), [row[name] for row in expected]
        got = [NAN if g is None and isinstance(w, float) else g for g, w in zip(got, want)]
        if any(isinstance(w, str) for w in want):
            assert got == want, name
        else:
            assert got == pytest.approx(want, rel=1e-6, nan_ok=True), name  # likeness is a float32


@pytest.mark.parametrize("seed", range(2))
def test_features_are_what_a_plain_loop_finds(seed, tmp_path, official):
    found = trivago_features_read(tmp_path, official.random_rows(seed, sessions=18, steps=16), official)
    features, sessions = Trivago2019().features(), official.sessions_of(tmp_path)
    train = features.fit_transform(found.train, tables=found.tables, unlabeled=found.test)
    check(train, expected_rows(sessions, targets=False))
    check(features.transform(found.test, tables=found.tables), expected_rows(sessions, targets=True))


def test_features_without_item_properties(tmp_path, official):
    found = official.read(official.write(tmp_path, *official.random_rows(0)))
    train = Trivago2019().features().fit_transform(found.train, tables=found.tables, unlabeled=found.test)
    assert bool(train["jaccard_mean"].is_missing().all())


def change(row: dict, r: random.Random, *, target: bool) -> None:
    """Another event at the same time or later; a target stays one, with another list."""
    if not target:
        row["action_type"] = CLICK if row["action_type"] == CLICK else r.choice([*ITEM_ACTIONS[:5], "filter selection"])
        row["reference"] = str(r.randrange(10, 24))
        row["timestamp"] = str(int(row["timestamp"]) + r.choice([0, 0, 3, 4000]))
    if row["action_type"] == CLICK:
        ids = [str(r.randrange(10, 24)) for _ in range(r.randrange(1, 5))]
        row["impressions"], row["prices"] = "|".join(ids), "|".join("77" for _ in ids)


def later_things_changed(rows, click: dict, sessions, seed: int):
    """The files with every event that is not before the list changed or gone, and the list's own answer changed."""
    r = random.Random(seed)
    place = {(e["file"], e["row"]): e["place"] for e in sessions[click["session_id"]]}
    made = []
    for file, log in zip(("train", "test"), rows[:2]):
        kept = []
        for number, row in enumerate(copy.deepcopy(log)):
            own = row["session_id"] == click["session_id"]
            hidden = place[file, number] > click["place"] if own else int(row["timestamp"]) >= click["timestamp"]
            target = file == "test" and row["action_type"] == CLICK and not row["reference"]
            if (file, number) == (click["file"], click["row"]):
                if row["reference"]:  # another answer
                    others = [item for item in row["impressions"].split("|") if item != row["reference"]]
                    row["reference"] = r.choice(others or ["99"])
            elif hidden and not target and r.random() < 0.4:
                continue
            elif hidden:
                change(row, r, target=target)
            kept.append(row)
        made.append(kept)
    return made[0], made[1], rows[2]


def of_list(table, click: dict, names: list[str]) -> dict[str, list]:
    key = ("session_id", "timestamp", "step")
    keys = zip(*(table[n].to_arrow().to_pylist() for n in key))
    rows = table.take(torch.tensor([k == tuple(click[n] for n in key) for k in keys]))
    return {n: [None if v != v else v for v in rows[n].to_arrow().to_pylist()] for n in [*names, "item_id"]}


def some_clicks(sessions: dict[str, list[dict]], *, targets: bool, count: int) -> list[dict]:
    clicks = [e for events in sessions.values() for e in events if e["action_type"] == CLICK and e["target"] == targets]
    key = lambda e: (e["session_id"], e["timestamp"], e["step"])  # noqa: E731
    once = [e for e in clicks if [key(o) for o in clicks].count(key(e)) == 1 and (targets or e["reference"])]
    return random.Random(1).sample(once, min(count, len(once)))


def downstream(features, first) -> set[str]:
    """Outputs of the steps that ``first`` picks, and of all that is made from these."""
    moved: set[str] = set()
    for step in features.steps:
        if first(step) or moved & set(step.inputs):
            moved |= set(step.outputs)
    return moved


def a_world(seed: int, folder: Path, official):
    """Random rows, what is read of their files, their sessions by a loop, and the recipe's features."""
    rows = official.random_rows(seed)
    found = trivago_features_read(folder, rows, official)
    return rows, found, official.sessions_of(folder), Trivago2019().features()


@pytest.mark.parametrize("targets", [False, True])
def test_what_comes_later_moves_no_feature(targets, tmp_path, official):
    """Learned anew, only what is learned from all rows moves; with what was learned held fixed, nothing at all."""
    rows, found, sessions, features = a_world(1, tmp_path / "a", official)
    before = features.fit_transform(found.train, tables=found.tables, unlabeled=found.test)
    held = features.transform(found.test if targets else found.train, tables=found.tables)
    learned = downstream(features, lambda s: isinstance(s, Fitted) and getattr(s, "over", "train") == "train")
    names = [n for n in features.outputs if n not in learned]
    assert set(features.transductive) <= learned
    assert len(names) > 0.8 * len(features.outputs)
    for k, click in enumerate(some_clicks(sessions, targets=targets, count=2)):
        other = trivago_features_read(tmp_path / f"b{k}", later_things_changed(rows, click, sessions, k), official)
        assert not other.tables["touches"].to_pandas().equals(found.tables["touches"].to_pandas())
        after = features.transform(other.test if targets else other.train, tables=other.tables)
        assert of_list(after, click, features.outputs) == of_list(held, click, features.outputs)
        if not targets:
            after = Trivago2019().features().fit_transform(other.train, tables=other.tables, unlabeled=other.test)
            assert of_list(after, click, names) == of_list(before, click, names)


def test_a_lists_own_answer_moves_none_of_its_encodings(tmp_path, official):
    rows, found, sessions, features = a_world(0, tmp_path / "a", official)
    before = features.fit_transform(found.train, tables=found.tables, unlabeled=found.test)
    names = features.outputs
    encodings = [n for n in names if n.startswith("te_")]
    assert encodings
    moved = 0
    for k, click in enumerate(some_clicks(sessions, targets=False, count=3)):
        changed = copy.deepcopy(rows)
        row = changed[0 if click["file"] == "train" else 1][click["row"]]
        row["reference"] = next((i for i in row["impressions"].split("|") if i != row["reference"]), "99")
        other = trivago_features_read(tmp_path / f"b{k}", changed, official)
        after = Trivago2019().features().fit_transform(other.train, tables=other.tables, unlabeled=other.test)
        assert of_list(after, click, names) == of_list(before, click, names)
        values = [[t[n].number().nan_to_num().tolist() for n in encodings] for t in (before, after)]
        moved += values[0] != values[1]
    assert moved  # other folds' rows do learn from it
