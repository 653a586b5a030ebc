from __future__ import annotations

import copy
import pickle
from collections import Counter

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from fastai.data.block import CategoryBlock
from fastai.learner import Learner, load_learner
from fastai.losses import MSELossFlat
from fastai.tabular.learner import TabularLearner
from fastai.torch_core import find_bs, set_seed, to_device
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fastrec.errors import DataError, MissingColumnError
from fastrec.table import ListBatch
from fastrec.tabular import Categorify, FillMissing, Normalize, TabularFrame
from fastrec.training import RecLearner, rec_learner
from tests.training.helpers import quiet_fit

WORDS = st.sampled_from(["a", "b", "c", "", "ä"])
EXTRAS = {"list_names": "tags", "vector_names": "v"}
NUMBERS = st.integers(-3, 4) | st.just((1 << 53) + 1)


def lists_of(elements):
    return st.lists(st.none() | st.lists(st.none() | elements, max_size=4), max_size=25)


LISTS = lists_of(WORDS) | lists_of(NUMBERS)


def coded_by_loop(lists, train, *, min_count=1, max_size=None, unseen=False):
    """Codes as ``Categorify``'s rules have them, one element at a time."""
    counts = Counter(e for i in train for e in lists[i] or () if e is not None)
    kept = {e for e, count in counts.items() if count >= min_count}
    if max_size is not None and len(kept) > max_size:
        kept = set(sorted(kept, key=lambda e: (-counts[e], e))[:max_size])
    names = ["#na#"] + (["#unseen#"] if unseen else []) + (["#rare#"] if min_count > 1 or max_size is not None else [])
    codes = {e: len(names) + i for i, e in enumerate(sorted(kept))}

    def code(element):
        if element is None:
            return 0
        return codes.get(element, names.index("#rare#") if element in counts and "#rare#" in names else int(unseen))

    return [None if x is None else [code(e) for e in x] for x in lists]


def frame_in(library, data):
    return {"pandas": pd.DataFrame, "polars": pl.DataFrame, "pyarrow": pa.table, "dict": dict}[library](data)


def numbered(lists, procs=(Categorify,), **options):
    """Row i holds the numbers i (twice: ``a`` and the vector [i, -i]) and the i-th list."""
    i = np.arange(len(lists), dtype="float64")
    data = {"a": i, "tags": pd.Series(lists, dtype=object), "v": np.stack([i, -i], 1), "y": 2.0 * i}
    if "groups" in options:
        data["g"], options["groups"] = options["groups"], "g"
    return TabularFrame(data, [*procs], None, ["a"], "y", list_names="tags", vector_names="v", **options)


def check_batch(batch, codes):
    """The rows of a batch, having checked that its parts belong together."""
    x_cat, x_cont, lists, vectors, y = batch
    rows = x_cont[:, 0].long().tolist()
    assert isinstance(lists, ListBatch)
    assert len(lists) == lists.shape[0] == len(vectors) == len(x_cat) == len(rows)
    assert lists.tolist() == [codes[i] for i in rows]
    assert (lists.offsets.dtype, vectors.dtype) == (torch.int64, torch.float32)
    assert vectors.tolist() == [[i, -i] for i in rows]
    assert y[:, 0].tolist() == [2 * i for i in rows]
    return rows


def processed(to, frame):
    new = to.new(frame)
    new.process()
    return new


@given(lists=st.lists(st.none() | st.lists(st.integers(0, 9), max_size=4), max_size=12), data=st.data())
@settings(max_examples=80, deadline=None)
def test_a_list_batch_does_what_a_list_of_lists_does(lists, data):
    batch = ListBatch.of(lists)
    n = len(lists)
    assert (batch.tolist(), len(batch), batch.shape, batch.dtype) == (lists, n, (n,), torch.int64)
    assert batch.lengths.tolist() == [len(x or []) for x in lists]
    start, stop = data.draw(st.integers(-15, 15)), data.draw(st.integers(-15, 15))
    step = data.draw(st.sampled_from([1, 2, 5]))
    assert batch[start:stop:step].tolist() == lists[start:stop:step]
    rows = data.draw(st.lists(st.integers(-n, n - 1), max_size=8)) if n else []
    assert batch[torch.tensor(rows, dtype=torch.int64)].tolist() == [lists[i] for i in rows]
    front = [i % n for i in rows]
    assert batch.index_select(0, torch.tensor(front, dtype=torch.int64)).tolist() == [lists[i] for i in rows]
    mask = data.draw(st.lists(st.booleans(), min_size=n, max_size=n))
    assert batch[torch.tensor(mask, dtype=torch.bool)].tolist() == [x for x, m in zip(lists, mask, strict=True) if m]
    assert torch.cat([batch, batch[1:], batch[:0]]).tolist() == lists + lists[1:]
    assert [part.tolist() for part in batch.split(5)] == [lists[i : i + 5] for i in range(0, n, 5)]
    part = batch[start:stop]
    for other in (part.clone(), part.detach(), pickle.loads(pickle.dumps(part)), copy.deepcopy(part), part.int()):
        assert isinstance(other, ListBatch)
        assert other.tolist() == lists[start:stop]
        assert int(other.offsets[0]) == 0
    assert part.int().values.dtype == torch.int32
    if n:
        assert batch[-1].tolist() == (lists[-1] or [])


def test_a_list_batch_goes_through_fastais_hands_and_refuses_the_rest():
    batch = ListBatch.of([[1, 2], None, [], [3]])
    moved = to_device((torch.ones(4), batch), "cpu")
    assert moved[1].tolist() == [[1, 2], None, [], [3]]
    assert find_bs((batch,)) == 4
    meta = batch.to("meta", non_blocking=True)
    assert {t.device.type for t in (meta, meta.values, meta.offsets, meta.missing)} == {"meta"}
    assert "missing" in repr(batch)
    assert "missing" not in repr(batch[2:].values)
    for act in (batch.sum, batch.float, lambda: torch.cat([batch.offsets, batch])):
        with pytest.raises(TypeError, match=r"lists"):
            act()
    batch = ListBatch.of([list(range(1000))] * 100)
    assert len(pickle.dumps(batch[:2])) < len(pickle.dumps(batch)) / 20  # a part is saved without the rest


@given(
    lists=LISTS,
    data=st.data(),
    min_count=st.sampled_from([1, 2, 3]),
    max_size=st.sampled_from([None, 0, 1, 2]),
    unseen=st.booleans(),
    library=st.sampled_from(["pandas", "polars", "pyarrow", "dict"]),
)
@settings(max_examples=80, deadline=None)
def test_elements_are_coded_by_the_training_rows_alone(lists, data, min_count, max_size, unseen, library):
    n = len(lists)
    cut = data.draw(st.integers(0, n))
    train = list(range(n))[cut:] if data.draw(st.booleans()) else list(range(n))[:cut]
    rest = [i for i in range(n) if i not in train]
    options = {"min_count": min_count, "max_size": max_size, "unseen": unseen}
    frame = frame_in(library, {"y": [float(i) for i in range(n)], "tags": lists})
    to = TabularFrame(frame, [Categorify(**options)], y_names="y", list_names=["tags"], splits=(train, rest))
    expected = coded_by_loop(lists, train, **options)
    assert to.train.extras.as_lists()["tags"] == [expected[i] for i in train]
    assert to.valid.extras.as_lists()["tags"] == [expected[i] for i in rest]
    values = to.extras.columns["tags"].values
    assert values.dtype == torch.int32
    assert values.numel() == 0 or int(values.max()) < len(to.classes["tags"])
    test = processed(to, frame_in(library, {"tags": lists}))
    assert test.extras.as_lists()["tags"] == expected
    if min_count == 1 and max_size is None and not unseen:
        known = {e for i in train for e in lists[i] or () if e is not None}
        back = [None if x is None else [e if e in known else "#na#" for e in x] for x in lists]
        assert test.decode().items["tags"].tolist() == back


def test_without_categorify_whole_numbers_are_codes():
    for three in (3, 3.0):
        to = numbered([[three, None], None, [], [0, three]], procs=[], cat_dtype=torch.int64)
        assert to.extras.as_lists()["tags"] == [[3, 0], None, [], [0, 3]]
        assert to.extras.columns["tags"].dtype == torch.int64
    assert numbered([["a"], []]).extras.columns["tags"].missing is None
    with pytest.raises(DataError, match=r"'tags', row 1.*no codes yet.*Categorify"):
        numbered([None, ["a"]], procs=[])


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_columns_first_missing_and_elements_first_seen_at_test_time(library):
    to = numbered([["a", "b"], ["b"]])
    for lists, codes in (
        ([["b", "z", None], ["z"]], [[2, 0, 0], [0]]),
        ([None, None], [None, None]),
        ([[], []], [[], []]),
        ([[None], []], [[0], []]),
    ):
        test = processed(to, frame_in(library, {"a": [0.0, 1.0], "tags": lists, "v": [None, None]}))
        assert test.extras.as_lists()["tags"] == codes
        assert test.extras.columns["v"].tolist() == [[0, 0], [0, 0]]
    never = numbered([None, []])
    test = processed(never, frame_in(library, {"a": [0.0], "tags": [["z"]], "v": [[1.0, 2.0]]}))
    assert test.extras.as_lists()["tags"] == [[0]]


GAP = [[1.5, 2], None, [3, 4]]


@pytest.mark.parametrize(
    "values",
    [
        *(np.array([[1.5, 2], [gap, gap], [3, 4]], "float32") for gap in (0, np.nan)),
        torch.tensor([[1.5, 2], [0, 0], [3, 4]]),
        *(GAP, [np.array([1.5, 2]), None, (3, 4)], [[1.5, 2], [None, 0], [3, 4]]),
        *(pl.Series(GAP), pl.Series(GAP, dtype=pl.Array(pl.Float32, 2))),
        *(pa.array(GAP), pa.array(GAP, pa.list_(pa.float64(), 2))),
    ],
    ids=lambda v: type(v).__module__.partition(".")[0],
)
def test_vectors_become_float32_of_the_frames_own_and_missing_ones_zero(values):
    to = TabularFrame({"y": [0.0, 1.0, 2.0], "v": values}, y_names="y", vector_names="v", splits=([2, 0], [1]))
    if isinstance(values, np.ndarray):
        values[:] = 7
    column = to.extras.columns["v"]
    assert (column.dtype, column.tolist()) == (torch.float32, [[3, 4], [1.5, 2], [0, 0]])


@pytest.mark.parametrize(
    ("column", "role", "message"),
    [
        ([["a"], ["b", 1], [2]], "list_names", r"'x', row 1: .*several types.*strings"),
        ([["a"], None, [1]], "list_names", r"'x', row 2: .*several types"),
        (["a b", None, "c"], "list_names", r"'x', row 0: .*no lists.*split"),
        ([None, [[1]], [[2]]], "list_names", r"'x', row 1: .*lists of lists"),
        ([[1, 2], [3, 4], [5]], "vector_names", r"'x', row 2: .*vector of 1 numbers where 2 are.*same|training rows'"),
        ([None, [1, 2], []], "vector_names", r"'x', row 2: .*vector of 0 numbers"),
        ([["a"], ["b"], ["c"]], "vector_names", r"'x', row 0: .*vectors of text.*number"),
        ([[1, 2], ["b", 3], [1, 2]], "vector_names", r"'x', row 1: .*several types"),
        ([1.0, 2.0, 3.0], "vector_names", r"'x', row 0: .*numbers, no vectors.*cont_names"),
        ([None, None, None], "vector_names", r"'x': .*no vector in any training row"),
        ([[], [], []], "vector_names", r"'x', row 0: .*vector of 0 numbers"),
    ],
)
def test_errors_name_column_row_and_remedy(column, role, message):
    frame = pd.DataFrame({"y": [0.0, 1.0, 2.0], "x": pd.Series(column, dtype=object)})
    with pytest.raises(DataError, match=message):
        TabularFrame(frame, [Categorify], y_names="y", **{role: "x"})


def test_errors_of_chosen_rows_and_of_test_rows():
    frame = pd.DataFrame({"y": [0.0] * 4, "v": [[1, 2], [3], [4, 5], [6, 7]], "t": [["a"]] * 4})
    with pytest.raises(DataError, match="'v', row 1"):
        TabularFrame(frame, y_names="y", vector_names="v", splits=([3, 2], [1, 0]))
    to = TabularFrame(frame.iloc[[0, 2]], [Categorify], y_names="y", vector_names="v", list_names="t")
    for test, message in (
        ({"v": np.ones((2, 3)), "t": [["a"], []]}, "'v', row 0: .*3 numbers where 2"),
        ({"v": np.ones((2, 2)), "t": [[], [3]]}, "'t', row 1: .*lists of whole numbers.*before"),
    ):
        with pytest.raises(DataError, match=message):
            to.new(test).process()
    with pytest.raises(DataError, match=r"'v': .*no vector in any training row"):
        TabularFrame(frame.assign(v=[None, [1], None, None]), y_names="y", vector_names="v", splits=([0, 2], [1]))
    with pytest.raises(MissingColumnError, match="'t'"):
        to.new({"v": np.ones((2, 2))}).process()
    with pytest.raises(DataError, match="named twice"):
        TabularFrame(frame, cat_names="t", y_names="y", list_names="t")


@given(
    lists=LISTS, bs=st.integers(1, 30), data=st.data(), **dict.fromkeys(["shuffle", "drop", "grouped"], st.booleans())
)
@settings(max_examples=80, deadline=None)
def test_batches_hold_the_lists_and_vectors_of_their_rows(lists, bs, data, shuffle, drop, grouped):
    codes, n = coded_by_loop(lists, range(len(lists))), len(lists)
    groups = (
        {"groups": np.array(data.draw(st.lists(st.integers(0, 5), min_size=n, max_size=n)))} if grouped and n else {}
    )
    to = numbered(lists, device="cpu", **groups)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fastrec._core.limits.GATHER_BYTES", data.draw(st.sampled_from([1, 60, 1 << 22])))
        loader = to._dl_type(to, bs=bs, shuffle=shuffle, drop_last=drop, seed=0, groups=bool(groups))
        for _ in range(2):
            seen = [i for batch in loader for i in check_batch(batch, codes)]
            assert len(set(seen)) == len(seen) == (n // bs * bs if drop and not groups else n)
            assert shuffle or groups or seen == list(range(len(seen)))
    assert loader.n_inp == 4
    if n:  # rows that are chosen
        chosen = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=5))
        assert check_batch(loader.create_batch(chosen), codes) == chosen


def test_rows_subsets_and_copies_take_their_lists_along():
    lists = [["a"], None, ["b", "c"], [], ["a"]]
    to = numbered(lists, splits=([4, 2, 0], [1, 3]))
    assert to.rows.tolist() == [4, 2, 0, 1, 3]
    codes = to.extras.as_lists()["tags"]
    assert codes == [[1], [2, 3], [1], None, []]
    for part, rows in ((to.train, [0, 1, 2]), (to.valid, [3, 4]), (to.iloc[[4, 1]], [4, 1]), (to.iloc[:2], [0, 1])):
        assert part.extras.as_lists()["tags"] == [codes[i] for i in rows]
        assert part.extras.columns["v"][:, 0].tolist() == part.rows.tolist()
    other = to.copy()
    other.extras.columns["v"].zero_()
    other.extras.columns["tags"].values.zero_()
    assert to.extras.as_lists()["tags"] == codes
    assert to.extras.columns["v"][0].tolist() == [4, -4]
    assert [len(t) for t in to.new_empty().extras.tensors] == [0, 0]
    assert to.new_empty().extras.columns["v"].shape == (0, 2)
    assert pickle.loads(pickle.dumps(to.valid)).extras.as_lists()["tags"] == [None, []]
    long = numbered([["a"]] * 1000, splits=(range(990), range(990, 1000)))
    assert len(pickle.dumps(long.valid.extras)) < len(pickle.dumps(long.extras)) / 10
    assert to.to_device("cpu") is to
    assert (list(to.list_names), list(to.vector_names)) == (["tags"], ["v"])
    assert list(to.all_col_names) == list(to.all_cols.columns) == ["a", "tags", "v", "y"]
    assert list(to.xs.columns) == ["a"]


def test_decoded_rows_and_batches():
    to = numbered([["a"], None, ["b", "a"], []], splits=([0, 1, 2], [3]))
    items = to.decode().items
    assert items["tags"].tolist() == [["a"], None, ["b", "a"], []]
    assert np.stack(items["v"]).tolist() == [[0, 0], [1, -1], [2, -2], [3, -3]]
    row = to.decode_row(to.items.iloc[2])
    assert (row["tags"], row["v"].tolist(), row["y"]) == (["b", "a"], [2, -2], 4)
    dls = to.dataloaders(bs=3, device="cpu", shuffle=False)
    assert dls.decode(dls.one_batch()).decode().items["tags"].tolist() == [["a"], None, ["b", "a"]]


@pytest.fixture
def shown(monkeypatch):
    frames = []
    monkeypatch.setattr("fastrec.tabular.frame.display_df", frames.append)
    return frames


def test_people_see_names_and_short_vectors(shown):
    lists = [["a", "b"], None, list("abcdefghijklmnop")] * 4
    data = {"y": np.arange(12.0), "tags": pd.Series(lists), "v": np.full((12, 300), 1 / 3)}
    to = TabularFrame(data, [Categorify], y_names="y", **EXTRAS)
    to.dataloaders(bs=12, device="cpu", shuffle=False).show_batch()
    (frame,) = shown
    assert frame["tags"].tolist()[:3] == ["[a, b]", None, "[a, b, c, d, e, f, g, h, i, j, … (16)]"]
    assert frame["v"].iloc[0] == "[" + "0.3333, " * 10 + "… (300)]"
    assert to.decode().items["v"].iloc[0].shape == (300,)


def test_a_raw_frame_takes_numbers_as_they_stand():
    frame = pd.DataFrame({"y": [0.0, 1.0], "t": [[2, 1], None], "v": [[1.0], [2.0]]})
    for setup in (False, True):
        raw = TabularFrame(frame, [Categorify], y_names="y", list_names="t", vector_names="v", do_setup=False)
        raw.setup() if setup else None
        assert raw.extras.as_lists()["t"] == [[2, 1], None]
    assert list(raw.classes["t"]) == ["#na#", 1, 2]


class Splitting:
    outputs = ("parts", "size")

    def fit_transform(self, df):
        parts = df["text"].str.split(" ")
        return df.assign(parts=parts, size=parts.str.len())

    transform = fit_transform


@pytest.mark.parametrize(
    ("text", "lists", "new"),
    [(["a b", "c", "b b"], [[1, 2], [2, 2], [0]], [[2, 0]]), ([None] * 3, [None] * 3, [[0, 0]])],
)
def test_features_can_make_the_lists(text, lists, new):
    frame = pd.DataFrame({"text": pd.Series(text, dtype=object), "y": [0.0, 1.0, 2.0]})
    to = TabularFrame(frame, [Categorify], y_names="y", features=Splitting(), list_names="parts", splits=([0, 2], [1]))
    assert (to.extras.as_lists()["parts"], list(to.cont_names)) == (lists, ["size"])
    assert processed(to, pd.DataFrame({"text": ["b z"]})).extras.as_lists()["parts"] == new


class Net(nn.Module):
    def __init__(self, n_tags, width, n_out=1):
        super().__init__()
        self.city = nn.Embedding(10, 2)
        self.tags = nn.EmbeddingBag(n_tags, 4, mode="sum", include_last_offset=True)
        self.norm = nn.BatchNorm1d(width)
        self.out = nn.Linear(2 + 1 + 4 + width, n_out)

    def forward(self, x_cat, x_cont, tags, vectors):
        bag = self.tags(tags.values, tags.offsets)
        return self.out(torch.cat([self.city(x_cat[:, 0]), x_cont, bag, self.norm(vectors)], 1))


def people(n=300, seed=0):
    r = np.random.default_rng(seed)
    tags = [None if r.random() < 0.1 else r.choice(list("abcde"), r.integers(0, 5)).tolist() for _ in range(n)]
    vectors = r.normal(size=(n, 3))
    df = pd.DataFrame({"city": r.choice(list("xyz"), n), "age": r.normal(40, 9, n), "tags": tags, "v": list(vectors)})
    df["y"] = [(t or []).count("a") - (t or []).count("b") for t in tags] + 2.0 * vectors[:, 1]
    return df


def by_hand(learn, df):
    """Predictions of one row at a time, from codes that were looked up one at a time."""
    to, found = learn.dls.train_ds, []
    means, stds = to.procs.normalize.means, to.procs.normalize.stds
    for _, row in df.iterrows():
        tags = ListBatch.of([[list(to.classes["tags"]).index(t) for t in row["tags"] or []]])
        age = torch.tensor([[(row["age"] - means["age"]) / stds["age"]]], dtype=torch.float32)
        city = torch.tensor([[list(to.classes["city"]).index(row["city"])]])
        v = torch.tensor(np.asarray(row["v"])[None], dtype=torch.float32)
        with torch.no_grad():
            found.append(learn.model(city, age, tags, v))
    return torch.cat(found)


@pytest.mark.filterwarnings("ignore:load_learner:UserWarning")
def test_a_hand_written_model_trains_through_a_stock_learner_predicts_and_is_exported(tmp_path, shown):
    set_seed(0)
    df, procs = people(), [Categorify, FillMissing, Normalize]
    to = TabularFrame(df, procs, "city", "age", "y", splits=(range(200), range(200, 300)), **EXTRAS)
    net = Net(len(to.classes["tags"]), 3)
    learn = quiet_fit(Learner(to.dataloaders(bs=32, device="cpu"), net, lr=0.05), 6, None, by="fit")
    naive = float(((df["y"][200:] - df["y"][:200].mean()) ** 2).mean())
    test = df.drop(columns="y").iloc[::-1][:50]
    with learn.no_bar():
        assert learn.validate()[0] < 0.2 * naive
        learn.model.eval()
        expected = by_hand(learn, test)
        # rows come back in the frame's order, whatever order they were predicted in
        shuffled = learn.dls.test_dl(test, bs=16).new(shuffle=True)
        inputs, got, targets = learn.get_preds(dl=shuffled, with_input=True)
        assert targets is None
        torch.testing.assert_close(got, expected)
        assert inputs[2].tolist() == learn.dls.test_dl(test).dataset.extras.as_lists()["tags"]
    learn = RecLearner(learn.dls, learn.model, path=tmp_path)
    learn.export("learn.pkl")
    row = test.iloc[1]
    for learner in (learn, load_learner(tmp_path / "learn.pkl"), TabularLearner(learn.dls, learn.model)):
        with learner.no_bar():
            shown_row, _, output = learner.predict(row)
            torch.testing.assert_close(output, expected[1])
            assert shown_row.decode().items["tags"].iloc[0] == row["tags"]
    with learn.no_bar():
        for given_row in (row.to_dict(), pl.DataFrame({k: [v] for k, v in row.items()})):
            torch.testing.assert_close(learn.predict(given_row)[2], expected[1])
        assert learn.predict({"city": "new", "age": None, "tags": None, "v": None})[2].isfinite().all()
        learn.show_results(max_n=4)
    (frame,) = shown
    assert {"tags", "v", "y", "y_pred"} <= set(frame)
    assert all(t is None or t.startswith("[") for t in frame["tags"])


def test_a_classifier_a_wrong_model_and_one_of_fastrec():
    class NoExtras(nn.Module):
        def forward(self, x_cat, x_cont):
            return x_cont

    df = people(80).assign(label=lambda d: np.where(d["y"] > 0, "yes", "no"))
    to = TabularFrame(df, [Categorify], "city", "age", "label", y_block=CategoryBlock, **EXTRAS)
    dls = to.dataloaders(bs=16, device="cpu")
    quiet_fit(rec_learner(dls, Net(len(to.classes["tags"]), 3, n_out=2)), 1, by="fit")
    with pytest.raises(DataError, match=r"NoExtras takes no lists or vectors.*\['tags', 'v'\].*extras"):
        rec_learner(dls, NoExtras(), loss_func=MSELossFlat())
    learn = quiet_fit(rec_learner(dls, layers=[8]), 1, by="fit")
    assert set(learn.model.embeds.list_names) == {"tags"}
    assert [tuple(n.normalized_shape) for n in learn.model.vector_norms] == [(3,)]
