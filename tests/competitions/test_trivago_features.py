"""The competition's features: against a plain loop over the events, and blind to what nobody could know at the time."""

from __future__ import annotations

import copy
import math
import random

import pytest
import torch

from competitions.trivago2019.competition import Trivago2019
from competitions.trivago2019.data import CLICK, ITEM_ACTIONS
from fastrec.features.base import Fitted
from fastrec.features.history import slug

NAN = math.nan
PROPERTIES = ["Pool", "Bar", "Spa", "WiFi", "Sauna"]


def catalogue() -> dict[str, str]:
    """Properties of most items; one item has none, and two are not there."""
    r = random.Random(5)
    found = {str(n): "|".join(r.sample(PROPERTIES, r.randrange(1, 5))) for n in range(10, 22)}
    return {**found, "13": ""}


def read(folder, rows, official):
    official.write(folder, *rows)
    official.items(folder, catalogue())
    return official.read(folder)


# ------------------------------------------------------------------------------------------------------ a plain loop


class Past:
    """What a loop over the events says of one list's candidates."""

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


@pytest.mark.parametrize("seed", range(4))
def test_features_are_what_a_plain_loop_finds(seed, tmp_path, official):
    found = read(tmp_path, official.random_rows(seed, sessions=18, steps=16), official)
    features, sessions = Trivago2019().features(), official.sessions_of(tmp_path)
    train = features.fit_transform(found.train, tables=found.tables, unlabeled=found.test)
    check(train, expected_rows(sessions, targets=False))
    check(features.transform(found.test, tables=found.tables), expected_rows(sessions, targets=True))


def test_features_without_item_properties(tmp_path, official):
    found = official.read(official.write(tmp_path, *official.random_rows(0)))
    train = Trivago2019().features().fit_transform(found.train, tables=found.tables, unlabeled=found.test)
    assert bool(train["jaccard_mean"].is_missing().all())


# ------------------------------------------------------------------------------------- what must not move a feature


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
    """Features of one list's candidates, NaN as None."""
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


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("targets", [False, True])
def test_what_comes_later_moves_no_feature(seed, targets, tmp_path, official):
    """With what was learned held fixed, nothing moves at all."""
    rows = official.random_rows(seed)
    found, sessions = read(tmp_path / "a", rows, official), official.sessions_of(tmp_path / "a")
    features = Trivago2019().features()
    features.fit(found.train, tables=found.tables, unlabeled=found.test)
    before = features.transform(found.test if targets else found.train, tables=found.tables)
    changed = 0
    for k, click in enumerate(some_clicks(sessions, targets=targets, count=3)):
        other = read(tmp_path / f"b{k}", later_things_changed(rows, click, sessions, k), official)
        after = features.transform(other.test if targets else other.train, tables=other.tables)
        assert of_list(after, click, features.outputs) == of_list(before, click, features.outputs)
        changed += other.tables["touches"].to_pandas().equals(found.tables["touches"].to_pandas())
    assert not changed  # the files did differ


@pytest.mark.parametrize("seed", [1])
def test_what_comes_later_moves_only_what_is_learned_from_all_rows(seed, tmp_path, official):
    """Learned anew, only what is learned from all rows moves: target-free counts, rates' common prior, encodings."""
    rows = official.random_rows(seed)
    found, sessions = read(tmp_path / "a", rows, official), official.sessions_of(tmp_path / "a")
    features = Trivago2019().features()
    before = features.fit_transform(found.train, tables=found.tables, unlabeled=found.test)
    learned = downstream(features, lambda s: isinstance(s, Fitted) and getattr(s, "over", "train") == "train")
    names = [n for n in features.outputs if n not in learned]
    assert set(features.transductive) <= learned
    assert len(names) > 0.8 * len(features.outputs)
    for k, click in enumerate(some_clicks(sessions, targets=False, count=2)):
        other = read(tmp_path / f"b{k}", later_things_changed(rows, click, sessions, k), official)
        after = Trivago2019().features().fit_transform(other.train, tables=other.tables, unlabeled=other.test)
        assert of_list(after, click, names) == of_list(before, click, names)


@pytest.mark.parametrize("seed", [0])
def test_a_lists_own_answer_moves_none_of_its_encodings(seed, tmp_path, official):
    rows = official.random_rows(seed)
    found, sessions = read(tmp_path / "a", rows, official), official.sessions_of(tmp_path / "a")
    features = Trivago2019().features()
    before = features.fit_transform(found.train, tables=found.tables, unlabeled=found.test)
    names = features.outputs
    assert any(n.startswith("te_") for n in names)
    encodings_moved = 0
    for k, click in enumerate(some_clicks(sessions, targets=False, count=3)):
        changed = copy.deepcopy(rows)
        row = changed[0 if click["file"] == "train" else 1][click["row"]]
        row["reference"] = next((i for i in row["impressions"].split("|") if i != row["reference"]), "99")
        other = read(tmp_path / f"b{k}", changed, official)
        after = Trivago2019().features().fit_transform(other.train, tables=other.tables, unlabeled=other.test)
        assert of_list(after, click, names) == of_list(before, click, names)
        encodings_moved += any(
            before[n].number().nan_to_num().tolist() != after[n].number().nan_to_num().tolist()
            for n in names
            if n.startswith("te_")
        )
    assert encodings_moved  # other folds' rows do learn from it
