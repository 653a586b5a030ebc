"""The simulator: official form, published shares, probabilities that are the stated model's, and its own oracle."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from competitions.trivago2019 import alive
from competitions.trivago2019.simulate import expected_mrr, simulate
from competitions.trivago2019.simulated_sessions import Block
from competitions.trivago2019.simulated_world import (
    ACTIONS,
    CLICKOUT,
    DESTINATION,
    FILTER,
    FILTERS,
    IMAGE,
    POI,
    PROPERTIES,
    SEARCH_ITEM,
    SORT,
    SORT_FILTERS,
    Constants,
    make_world,
)
from fastrec.errors import DataError

SESSIONS = 6000
LOG = "user_id session_id timestamp step action_type reference platform city device current_filters impressions prices"
ITEM_ACTIONS = {a for a in ACTIONS if a.startswith(("interaction", "clickout", "search for item"))}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("simulated") / "data"
    summary = simulate(SESSIONS, folder, seed=7)
    text = {"reference": str, "current_filters": str}
    return {
        "summary": summary,
        "train": pd.read_csv(folder / "train.csv", dtype=text),
        "test": pd.read_csv(folder / "test.csv", dtype=text),
        "items": pd.read_csv(folder / "item_metadata.csv"),
        "answers": pd.read_csv(folder / "ground_truth.csv", dtype=text),
        "truth": pq.read_table(folder / "true_probabilities.parquet"),
    }


def both(made) -> pd.DataFrame:
    return pd.concat([made["train"], made["test"]], ignore_index=True)


def answered(made) -> pd.DataFrame:
    """All clickouts in the order of the truth, with the item that was clicked."""
    clicks = both(made).query("action_type == 'clickout item'")
    answers = made["answers"].set_index(["session_id", "step"]).reference
    known = pd.MultiIndex.from_frame(clicks[["session_id", "step"]]).map(answers)
    clicks = clicks.assign(clicked=clicks.reference.fillna(pd.Series(known, index=clicks.index)))
    truth = made["truth"].to_pandas()
    return truth.merge(clicks, on=["session_id", "step"], how="left", suffixes=("", "_text"), validate="one_to_one")


def test_columns_and_types_are_the_official_ones(made):
    for split in ("train", "test"):
        frame = made[split]
        assert list(frame.columns) == LOG.split()
        assert frame.timestamp.dtype == np.int64
        assert frame.step.dtype == np.int64
        assert frame.drop(columns=["reference", "current_filters", "impressions", "prices"]).notna().all().all()
        assert set(frame.action_type) == set(ACTIONS)
        assert set(frame.device) == {"mobile", "desktop", "tablet"}
        assert frame.user_id.str.fullmatch("[0-9A-Z]{12}").all()
        assert frame.session_id.str.fullmatch("[0-9a-f]{13}").all()
        assert frame.city.str.fullmatch("[A-Z][a-z]+, [A-Za-z]+").all()
        is_item = frame.action_type.isin(ITEM_ACTIONS) & frame.reference.notna()
        assert frame.reference[is_item].str.fullmatch(r"\d+").all()
        assert not frame.reference[~frame.action_type.isin(ITEM_ACTIONS)].str.fullmatch(r"\d+").any()
    assert list(made["answers"].columns) == ["user_id", "session_id", "timestamp", "step", "reference", "impressions"]
    assert list(made["items"].columns) == ["item_id", "properties"]
    assert made["items"].item_id.is_unique
    assert set(made["items"].properties.str.split("|").explode()) <= set(PROPERTIES)
    assert len(set(PROPERTIES)) == 157
    head = (made["summary"].out / "train.csv").read_text(encoding="utf-8").splitlines()[:2000]
    assert head[0] == LOG.replace(" ", ",")
    assert all("," in quoted for line in head[1:] for quoted in line.split('"')[1::2])  # only such cells are quoted


def test_sessions_are_whole_ordered_and_in_one_file(made):
    for split in ("train", "test"):
        frame = made[split]
        grouped = frame.groupby("session_id", sort=False)
        assert (frame.step == grouped.cumcount() + 1).all()
        assert (grouped.timestamp.diff().fillna(0) >= 0).all()
        starts = frame.session_id != frame.session_id.shift()
        assert starts.sum() == frame.session_id.nunique() == getattr(made["summary"], f"{split}_sessions")
        assert len(frame) == getattr(made["summary"], f"{split}_rows")
        assert (grouped[["user_id", "device", "platform"]].nunique() == 1).all().all()
    assert not set(made["train"].session_id) & set(made["test"].session_id)
    assert made["summary"].train_sessions + made["summary"].test_sessions == SESSIONS


def test_lists_and_prices(made):
    frame = both(made)
    clicks = frame[frame.action_type == "clickout item"]
    assert frame[frame.action_type != "clickout item"][["impressions", "prices"]].isna().all().all()
    items, prices = clicks.impressions.str.split("|"), clicks.prices.str.split("|")
    assert (items.str.len() == prices.str.len()).all()
    assert items.str.len().between(1, 25).all()
    assert all(len(set(row)) == len(row) for row in items)
    assert prices.explode().astype(int).between(5, 9999).all()
    assert set(items.explode().astype(int)) <= set(made["items"].item_id)


def test_test_sessions_end_at_their_target_and_the_answers_are_exactly_these(made):
    test, answers = made["test"], made["answers"]
    last = test.groupby("session_id").tail(1)
    assert (last.action_type == "clickout item").all()
    assert last.reference.isna().all()
    assert test.reference.isna().sum() == len(last) == len(answers)
    key = ["user_id", "session_id", "timestamp", "step", "impressions"]
    pd.testing.assert_frame_equal(last[key].reset_index(drop=True), answers[key])
    assert all(r in row.split("|") for r, row in zip(answers.reference, answers.impressions, strict=True))
    assert made["train"].reference.notna().all()


def test_train_comes_before_test_and_few_users_are_in_both(made):
    train, test = made["train"], made["test"]
    split = Constants().start + 6 * 86400
    starts = train.groupby("session_id").timestamp.min()
    assert starts.max() < split <= test.timestamp.min()
    assert 0 < train.timestamp.max() - test.timestamp.min() < 86400
    shared = len(set(train.user_id) & set(test.user_id)) / test.user_id.nunique()
    assert 0 < shared < 0.1


def test_published_shares(made):
    train = made["train"]
    published = {
        "interaction item image": 0.7444, "clickout item": 0.0996, "filter selection": 0.0437,
        "search for destination": 0.0253, "change of sort order": 0.0251, "interaction item info": 0.0179,
        "interaction item rating": 0.0136, "interaction item deals": 0.0122, "search for item": 0.0096,
        "search for poi": 0.0086,
    }  # fmt: skip
    share = train.action_type.value_counts(normalize=True)
    for action, expected in published.items():
        assert share[action] == pytest.approx(expected, rel=0.25), action
    lengths = train.groupby("session_id").size()
    assert lengths.mean() == pytest.approx(17.5, rel=0.15)
    shares = [(lengths == 1).mean(), (lengths == 2).mean(), lengths.between(3, 10).mean(), (lengths > 10).mean()]
    assert shares == pytest.approx([0.21, 0.14, 0.37, 0.28], abs=0.055)
    assert lengths.max() > 400
    device = train.drop_duplicates("session_id").device.value_counts(normalize=True)
    assert device[["mobile", "desktop", "tablet"]].tolist() == pytest.approx([0.587, 0.333, 0.080], abs=0.03)
    clicks = train[train.action_type == "clickout item"]
    assert clicks.groupby("session_id").size().mean() == pytest.approx(1.9, abs=0.15)
    assert (clicks.impressions.str.count(r"\|") == 24).mean() == pytest.approx(0.78, abs=0.03)
    assert clicks.current_filters.notna().mean() == pytest.approx(0.258, abs=0.04)
    assert both(made).platform.nunique() == 55
    outside = [r not in row.split("|") for r, row in zip(clicks.reference, clicks.impressions, strict=True)]
    assert 0.001 < np.mean(outside) < 0.02
    following = clicks.impressions[clicks.session_id == clicks.session_id.shift()]
    assert (following == clicks.impressions.shift()[following.index]).mean() == pytest.approx(0.67, abs=0.06)


def test_truth_has_every_clickout_with_its_list(made):
    joined = answered(made)
    clicks = both(made).query("action_type == 'clickout item'")
    assert len(joined) == len(clicks) == made["summary"].clickouts
    assert ["|".join(map(str, row)) for row in joined.impressions] == joined.impressions_text.tolist()
    assert (joined.split == np.where(joined.session_id.isin(made["train"].session_id), "train", "test")).all()
    assert (joined.target == joined.reference.isna()).all()
    sums = np.array([p.astype(float).sum() for p in joined.probabilities])
    assert np.abs(sums - 1).max() < 1e-5
    assert min(p.min() for p in joined.probabilities) > 0


def test_clicks_are_drawn_from_the_true_probabilities(made):
    joined = answered(made)
    p, hit, place, log_gap, log_var = [], [], [], [], []
    for row, chance, clicked in zip(joined.impressions, joined.probabilities, joined.clicked, strict=True):
        chosen = row == int(clicked)
        if chosen.any():
            chance = chance.astype(float)
            p.append(chance), hit.append(chosen), place.append(np.arange(len(row)))
            mean = np.sum(chance * np.log(chance))
            log_gap.append(math.log(chance[chosen][0]) - mean)
            log_var.append(np.sum(chance * np.log(chance) ** 2) - mean**2)
    p, hit, place = map(np.concatenate, (p, hit, place))
    groups = [np.digitize(p, np.quantile(p, np.linspace(0, 1, 21)[1:-1])), place]
    for group in groups:
        expected, seen = np.bincount(group, p), np.bincount(group, hit)
        z = (seen - expected) / np.sqrt(np.bincount(group, p * (1 - p)))
        assert np.abs(z).max() < 4.5
        assert np.sum(z**2) < 60  # chi-square with at most 25 degrees of freedom: P < 1e-4
    assert abs(sum(log_gap)) < 4.5 * math.sqrt(sum(log_var))


def test_probabilities_are_the_stated_model_by_a_plain_loop():
    c = Constants()
    world = make_world(c, 400, np.random.default_rng(11))
    block = Block(world, c, 0, 400, np.random.default_rng(12))
    block.run()
    events, clicks = block.log.joined("events"), block.log.joined("clicks")
    order = np.lexsort((events["slot"], events["episode"], events["session"]))
    checked = 0
    for session in range(400):
        memory, last, relisted = {}, None, -1
        for e in (k for k in order if events["session"][k] == session):
            action, item = events["action"][e], int(events["reference"][e])
            episode = int(events["episode"][e])
            if action in (DESTINATION, POI, SORT, FILTER):
                if action == DESTINATION and episode:
                    memory, last = {}, None
                elif relisted != episode:
                    memory = {k: v * c.memory_relist for k, v in memory.items()}
                relisted = episode
                continue
            if action == CLICKOUT:
                check_click(world, c, block, events, clicks, e, memory, last)
                checked += 1
            memory = {k: v * c.memory for k, v in memory.items()}
            memory[item] = c.strength[action - SEARCH_ITEM]
            if action == IMAGE:
                memory[item] += c.per_log_image * math.log(events["count"][e])
            last = item
    assert checked == len(clicks["length"]) > 500


def check_click(world, c, block, events, clicks, e, memory, last):
    """One clickout's probabilities, from the formula in the module's docstring."""
    click, session = events["click"][e], events["session"][e]
    size, final = clicks["length"][click], clicks["final"][click]
    items = clicks["items"][click][:size].tolist()
    logs = [math.log(x) for x in clicks["price"][click][:size].tolist()]
    mean = sum(logs) / size
    sd = math.sqrt(sum((x - mean) ** 2 for x in logs) / size + 1e-4)
    codes = events["filters"][e]
    filters = [FILTERS[k - len(SORT_FILTERS)] for k in codes[1:] if k >= 0]
    a_price = c.price * c.price_device[block.sessions.device[session]] * (c.price_sorted if codes[0] == 0 else 1)
    utility = []
    for k, item in enumerate(items):
        u = -c.position[final] * math.log(k + 1) + (c.first_place[final] if k == 0 else 0)
        u += a_price * min(max((logs[k] - mean) / sd, -2.5), 2.5)
        u += world.quality[item] + sum(
            a * b for a, b in zip(block.sessions.taste[session], world.taste[item], strict=True)
        )
        if filters:
            u += c.filter_match * sum(world.has[item, PROPERTIES.index(f)] for f in filters) / len(filters)
        u += memory.get(item, 0)
        if last in items and k > items.index(last):
            u += c.below * math.exp((1 - (k - items.index(last))) / c.below_reach)
        utility.append(math.exp(u))
    expected = [x / sum(utility) for x in utility]
    np.testing.assert_allclose(clicks["p"][click][:size], expected, rtol=2e-4, atol=1e-9)
    assert (clicks["p"][click][size:] == 0).all()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.floats(0.001, 1), min_size=1, max_size=6), min_size=1, max_size=8))
def test_expected_mrr_against_brute_force(weights):
    lists = [[w / sum(row) for w in row] for row in weights]
    total = 0.0
    for row in lists:
        for p in row:  # the item with probability p is clicked: its place in the order of the probabilities
            ahead, equal = sum(q > p for q in row), sum(q == p for q in row)
            total += p * sum(1 / (ahead + k + 1) for k in range(equal)) / equal
    column = pa.array(lists)
    assert expected_mrr(column) == pytest.approx(total / len(lists))
    assert expected_mrr(pa.chunked_array([column[:1], column[1:]])) == pytest.approx(total / len(lists))
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in lists])])
    assert expected_mrr(np.concatenate(lists), offsets) == pytest.approx(total / len(lists))


def test_expected_mrr_refuses_what_is_no_distribution():
    with pytest.raises(DataError, match="row 1: the probabilities do not sum to 1"):
        expected_mrr(pa.array([[0.5, 0.5], [0.5, 0.4]]))
    for empty in (pa.array([[1.0], []]), pa.array([], pa.list_(pa.float64()))):
        with pytest.raises(DataError, match="no list, or an empty one"):
            expected_mrr(empty)


def test_blocks_share_no_session_or_user_and_report_progress(tmp_path):
    seen = []
    simulate(500, tmp_path / "d", block_sessions=150, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(150, 500), (300, 500), (450, 500), (500, 500)]
    frame = pd.concat([pd.read_csv(tmp_path / "d" / f"{name}.csv") for name in ("train", "test")])
    assert frame.session_id.nunique() == 500
    assert frame.groupby("session_id").user_id.nunique().max() == 1


# The demo of a model that stays good: where it may write


class _Begun(Exception):
    """The folder is ready."""


def test_a_folder_of_others_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def simulated(folder: Path, *_: object) -> None:
        raise _Begun(folder)

    monkeypatch.setattr(alive.Days, "simulated", simulated)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "registry").mkdir()
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(DataError, match="holds other things"):
        alive.stay_alive(Path())
    assert (tmp_path / "thesis.txt").read_text() == "mine"
    for _ in range(2):  # a relative folder is made, and then replaced; what is noted are whole paths, as a registry has
        with pytest.raises(_Begun) as begun:
            alive.stay_alive(Path("out"))
        assert begun.value.args[0] == tmp_path / "out" / "log"
        (tmp_path / "out" / "more").touch()
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [".alive", "more"]
