from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest

from fastrec._core import limits

dask = pytest.importorskip("dask")
dd = pytest.importorskip("dask.dataframe")


import fastrec.features as ff  # noqa: E402
from fastrec.errors import DataError, DataWarning, MissingColumnError, NotFittedError  # noqa: E402
from fastrec.estimators import XGBRanker  # noqa: E402
from fastrec.features import category, number  # noqa: E402
from fastrec.features._dask import states  # noqa: E402
from fastrec.scale import fit_on_dask  # noqa: E402
from fastrec.table import Table  # noqa: E402
from tests._core.refusals import refused  # noqa: E402
from tests.features.examples import EXAMPLES  # noqa: E402
from tests.features.frames import columns, tables, to_pandas  # noqa: E402
from tests.features.test_contract import assert_equal, outputs_of  # noqa: E402
from tests.fresh import run  # noqa: E402
from tests.scale.dask_parts import events, parted  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("in_this_thread"),
    pytest.mark.filterwarnings("ignore:.*come together on one worker"),
    # pandas, of the way in which Dask puts partitions with categories and many columns together
    pytest.mark.filterwarnings("ignore:DataFrame is highly fragmented"),
]


def in_files(frame, ends, folder):
    """The same from a folder of small files, which Dask's optimization puts together as it likes."""
    folder.mkdir()
    for i, part in enumerate(dask.compute(parted(frame, ends).to_delayed())[0]):
        part.to_parquet(folder / f"part-{i}.parquet")
    return dd.read_parquet(folder)


def sets():
    found: list[tuple[tuple[bool, bool], list]] = []
    for feature in (make() for makers in EXAMPLES.values() for make in makers):
        tainted = bool(ff.FeatureSet([feature])._chain().tainted), _of_a_net(feature)  # targets' ways are nested
        for kind, own in found:
            try:
                ff.FeatureSet([*own, feature])._chain().check_targets()
            except DataError:
                continue
            if kind == tainted:
                own.append(feature)
                break
        else:
            found.append((tainted, [feature]))
    return [own for _, own in found]


def _of_a_net(feature):
    return isinstance(feature, ff.ImageEmbed | ff.TextEmbed)


SETS = sets()


def fresh(features, **options):
    return ff.FeatureSet(features, key="row", **options).__sklearn_clone__()


def frames(seed):
    return to_pandas(columns(seed=seed)).reset_index(drop=True)


def test_all_examples_are_compared():
    assert sum(map(len, SETS)) == sum(map(len, EXAMPLES.values()))


# How files are read does not depend on the generators: one set of them is read from files.
@pytest.mark.parametrize(("chosen", "files"), [*((i, False) for i in range(len(SETS))), (0, True)])
def test_every_generator_gives_what_one_frame_gives(chosen, files, tmp_path):
    def cut(frame, name, ends=(11, 20, 30) if files else (11, 11, 30)):
        return in_files(frame, ends, tmp_path / name) if files else parted(frame, ends)

    whole, parts = fresh(SETS[chosen]), fresh(SETS[chosen])
    train, new, others = frames(0), frames(5), tables()
    near = {"exact": False, "near_zero": 1e-6 if all(map(_of_a_net, SETS[chosen])) else 1e-12}
    expected = whole.fit_transform(train, tables=others, unlabeled=new)
    log = {"log": cut(others["log"], "log", (7, 20)), "items": parted(others["items"], [2])}
    more = cut(new, "new")
    made = parts.fit_transform(cut(train, "train"), tables=log, unlabeled=more)
    got = made.compute()
    assert_equal(outputs_of(expected, whole.outputs), outputs_of(got, whole.outputs), **near)
    if not files:
        pd.testing.assert_frame_equal(got[list(train)], train)
        assert list(made.dtypes) == list(got.dtypes) == list(made._meta.dtypes)
    expected = whole.transform(new, tables=others)
    got = parts.transform(more, tables=log).compute()
    assert_equal(outputs_of(expected, whole.outputs), outputs_of(got, whole.outputs), **near)
    assert files or got.index.equals(new.index)


@pytest.mark.parametrize("key", ["id", None])
def test_groups_and_folds_of_a_folder_are_those_of_the_frame(key, tmp_path):
    train = events(160).assign(wide="w" * 50, more=1.0, rest=2.0)
    features = [ff.GroupRank("price", by="user"), ff.Lag("price", by="user", order="id"), ff.TargetEncode("item", "y")]
    whole, parts = ff.FeatureSet(features, key=key), ff.FeatureSet(features, key=key).__sklearn_clone__()
    files = in_files(train, range(40, 160, 40), tmp_path / "train")
    assert files.npartitions == 4
    expected, made = whole.fit_transform(train), parts.fit_transform(files)
    assert made.npartitions == 4
    assert_equal(outputs_of(expected, whole.outputs), outputs_of(made.compute(), whole.outputs), exact=False)
    given = ff.FeatureSet([ff.TargetEncode("item", "y")], key=key)
    made = given.__sklearn_clone__().fit_transform(files.drop(columns="y"), files["y"]).compute()
    expected = given.fit_transform(train)
    assert_equal(outputs_of(expected, given.outputs), outputs_of(made, given.outputs), exact=False)
    folds = np.arange(160) % 4
    for a, b in zip(whole.cross_fit(train, folds), parts.cross_fit(files, folds), strict=True):
        for mine, theirs in zip(a, b, strict=True):
            assert_equal(outputs_of(mine, whole.outputs), outputs_of(theirs.compute(), whole.outputs), exact=False)


def nested(by_column):
    item = ff.TargetEncode(["item", ff.Cross("item", "user")], "y", smooth=2)
    return [
        ff.GroupStats(item, by="user", stats=["median", "max", "mean"]),
        ff.GroupRank(ff.TargetEncode("item", "y", stats="count"), by="user"),
        ff.CumTarget("user", "y", order="id", smooth=1),
        ff.Lag("y", by="user", order="id"),
        ff.Combine(
            ff.CountEncode("item"), "*", ff.TargetEncode("user", "y", fold_column="fold" if by_column else None)
        ),
        ff.DeviationFromGroup(ff.TargetEncode("item", "y", stats="count"), by="user"),
    ]


@pytest.mark.parametrize("key", ["id", None, "user"])
def test_cross_fit_hides_the_same_rows(key):
    train = events(150)
    train["fold"] = np.arange(150) % 4
    folds = train["user"].fillna(9).astype("int64") % 2 if key == "user" else np.arange(150) % 2
    train = train.assign(outer=np.asarray(folds, dtype="int64"))
    whole, parts = (ff.FeatureSet(nested(key == "id"), key=key, folds=2) for _ in "ab")
    frame = parted(train, [40, 41])
    done, pairs = parts.fit_transform_folds(frame, "outer")
    expected = whole.fit_transform(train)
    assert_equal(outputs_of(expected, whole.outputs), outputs_of(done.compute(), whole.outputs), exact=False)
    numbers = parts.cross_fit(frame, train["outer"].to_numpy(), only=[1]) if key is None else iter(())
    for k, (pair, mine) in enumerate(zip(whole.cross_fit(train, "outer"), pairs, strict=True)):
        for side, got in zip(pair, mine, strict=True):
            got = got.compute()
            assert got["id"].tolist() == side["id"].tolist()
            assert_equal(outputs_of(side, whole.outputs), outputs_of(got, whole.outputs), exact=False)
        for again in numbers if k == 1 else ():
            for side, got in zip(pair, again, strict=True):
                assert_equal(outputs_of(side, whole.outputs), outputs_of(got.compute(), whole.outputs), exact=False)


def test_history_and_y_and_what_is_kept():
    train, new = events(60), events(30, seed=2)
    features = [ff.Lag("price", by="user", order="id"), ff.TargetEncode("item", "y")]
    a, b = ff.FeatureSet(features, key="id", keep=["id"]), ff.FeatureSet(features, key="id", keep=["id"])
    bare = train.drop(columns="y")
    expected = a.fit_transform(bare, train["y"])
    got = b.fit_transform(parted(bare, [20]), parted(train, [20])["y"]).compute()
    assert list(got) == list(expected) == b.get_feature_names_out()
    assert_equal(outputs_of(expected, a.outputs), outputs_of(got, a.outputs), exact=False)
    expected = a.transform(new, history=train)
    for history in (train, parted(train, [10, 50])):
        got = b.transform(parted(new, [3]), history=history).compute()
        assert_equal(outputs_of(expected, a.outputs), outputs_of(got, a.outputs), exact=False)
        assert got.index.equals(new.index)


def test_selectors_choose_what_they_choose_in_memory():
    train = events(90)
    train["flag"] = train["y"] > 0
    # No partition by itself has as many values as all have together.
    cards = [ff.CountEncode(category(min_card=9)), ff.GroupRank(number() - ["y", "z"], by="user")]
    a, b = ff.FeatureSet(cards), ff.FeatureSet(cards).__sklearn_clone__()
    a.fit(train)
    b.fit(parted(train.sort_values("item", ignore_index=True), [30, 60]))
    assert a.outputs == b.outputs
    assert "count_item" in a.outputs
    assert "count_flag" not in a.outputs


MANY = [
    ff.CountEncode(["item", ff.Cross("item", "user")], normalise=True),
    ff.CountEncode("item", by="user", normalise=True),
    ff.TargetEncode(["item", "id"], ["y", "q"], stats=["mean", "std", "count"], weight="w"),
    ff.GroupStats("price", by="item", stats=["mean", "max", "count"]),
    ff.NUnique("item", by="user"),
    ff.Categorify(["item", "user"], min_count=3),
]


@pytest.mark.parametrize("bucket", [40, 70])
def test_many_keys_are_merged_by_their_hash(bucket, monkeypatch):
    train = events(150).assign(w=lambda f: f["id"] % 3, q=lambda f: f["price"] / 7)
    whole, parts = ff.FeatureSet(MANY, key="id"), ff.FeatureSet(MANY, key="id").__sklearn_clone__()
    whole.fit(train)
    monkeypatch.setattr(limits, "MANY_KEYS", 1)
    monkeypatch.setattr(limits, "BUCKET_KEYS", bucket)
    buckets, by_hash = [], states._by_hash
    monkeypatch.setattr(states, "_by_hash", lambda *given: buckets.append(by_hash(*given)) or buckets[-1])
    parts.fit(parted(train, [30, 60, 100]))
    assert all(len(b) > 1 for b in buckets)
    a, b = whole.transform(train), parts.transform(train)
    assert_equal(outputs_of(a, whole.outputs), outputs_of(b, whole.outputs), exact=False)


def test_errors_are_those_of_frames_in_memory():
    train = events(40)
    frame, te = parted(train, [10]), ff.TargetEncode("user", "y")
    polars = ff.FeatureSet([ff.CountEncode("item")]).set_output(transform="polars")
    weighted, below = ff.TargetEncode("item", "y", weight="w"), parted(train.assign(w=train.index - 10), [9])
    for error, words, call in (
        (MissingColumnError, "no_such", lambda: ff.CountEncode("no_such").fit(frame)),
        (NotFittedError, "has not been fitted", lambda: ff.CountEncode("item").transform(frame)),
        (DataError, "TargetEncode: the target holds classes", lambda: ff.TargetEncode("user", "item").fit(frame)),
        (DataError, r"'w', row 0: .*\(the row is counted in its partition\)", lambda: weighted.fit(below)),
        (DataError, "y is not of Dask", lambda: te.fit(frame.drop(columns="y"), train["y"])),
        (DataError, "39 folds for 40 rows", lambda: next(te.cross_fit(frame, np.zeros(39, dtype=int)))),
        (DataError, "cannot come back as polars", lambda: polars.fit(frame)),
        (DataError, "a row has no fold", lambda: ff.TargetEncode("user", "y", fold_column="item").fit(frame)),
        (
            *(DataError, "there is no Dask cluster"),
            lambda: fit_on_dask(XGBRanker("xgb"), frame, columns=["price"], target="y", groups="id"),
        ),
    ):
        refused(error, words, call)
    with pytest.warns(DataWarning, match="cache is not used on Dask"):
        ff.FeatureSet([ff.CountEncode("item")], cache=ff.FeatureCache()).fit(frame)


def test_a_table_that_travels_is_the_same_and_weighs_what_it_holds():
    table = Table.read(to_pandas(columns()).reset_index(drop=True))
    table.coded(["user", "item"])  # what is kept for later stays behind
    again = pickle.loads(pickle.dumps(table))
    assert again.to_arrow().equals(table.to_arrow())
    assert [c.kind for c in again._columns.values()] == [c.kind for c in table._columns.values()]
    long = Table({"x": np.arange(100_000)})
    assert len(pickle.dumps(long.slice(0, 10))) < 2_000
    from dask.sizeof import sizeof

    table = Table({"x": np.arange(100_000), "city": [f"c{i}" for i in range(100_000)], "few": ["a", None] * 50_000})
    weight = 100_000 * (8 + 4 + 4) + table["city"].distinct.nbytes
    assert weight < sizeof(table) < weight + 5_000
    state = ff.CountEncode("city").fit(table).state_
    assert sizeof(state) > 100_000 * 8 + table["city"].distinct.nbytes / 2


def test_dask_computes_after_a_fit_in_a_fresh_process():
    program = (
        "import dask.dataframe as dd, pandas as pd; from fastrec.features import CountEncode, FeatureSet;"
        "rows = dd.from_pandas(pd.DataFrame({'a': [1, 2, 1]}), npartitions=2);"
        "print(FeatureSet([CountEncode('a')]).fit_transform(rows).compute()['count_a'].tolist())"
    )
    assert run(program).split() == ["[2,", "1,", "2]"]
