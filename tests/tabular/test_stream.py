from __future__ import annotations

import copy
import itertools
import os
import pickle
import threading
import warnings
from functools import partial
from pathlib import Path

import fastai.callback.progress
import fastai.callback.schedule  # noqa: F401 - gives every Learner fit_one_cycle, lr_find, no_bar
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from fastai.data.block import CategoryBlock, RegressionBlock
from fastai.tabular.learner import tabular_learner
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec._core.device import on_host
from fastrec.errors import DataError, DataWarning, MissingColumnError, MissingFileError, UnreadableFileError, WriteError
from fastrec.features import CountEncode, Cyclic, FeatureSet, HashEncode, Lag, ListLength, TargetEncode, Tokens
from fastrec.tabular import Categorify, FillMissing, Normalize, ParquetFrame, RankGauss, TabularFrame
from fastrec.tabular.stream.frame import MedianSearch
from fastrec.tabular.stream.loader import StreamLoader
from tests.tabular.test_recipe import raw

PROCS = [Categorify, FillMissing, Normalize]


def write(folder: Path, frame: pd.DataFrame, files: int = 1, group: int = 100, **options) -> Path:
    """A frame as Parquet files of about equal size, in order."""
    folder.mkdir(parents=True, exist_ok=True)
    bounds = np.linspace(0, len(frame), files + 1).astype(int)
    for i, (start, stop) in enumerate(itertools.pairwise(bounds)):
        part = frame.iloc[start:stop]
        part.to_parquet(folder / f"part{i:03d}.parquet", row_group_size=max(group, 1), index=False, **options)
    return folder


def numbered(n: int) -> pd.DataFrame:
    return pd.DataFrame({"x": np.arange(n, dtype=np.float32), "row": np.arange(n)})


def rows_of(loader) -> list[list[int]]:
    """The rows of every batch; the number beside each is its own."""
    batches = list(loader)
    assert all(torch.equal(x[:, 0].long(), y[:, 0].long()) for _, x, y in batches)
    return [y[:, 0].tolist() for _, _, y in batches]


def flat_rows(loader) -> list[int]:
    return [row for batch in rows_of(loader) for row in batch]


def stream_of(folder, **options) -> ParquetFrame:
    return ParquetFrame(folder, None, None, "x", "row", RegressionBlock, **options)


@settings(max_examples=40)
@given(
    n=st.integers(0, 90),
    files=st.integers(1, 4),
    group=st.integers(1, 40),
    bs=st.integers(1, 100),
    buffer=st.integers(1, 120),
    world=st.integers(1, 4),
    drop_last=st.booleans(),
    shuffle=st.booleans(),
    cached=st.booleans(),
    block=st.sampled_from([7, 1000]),
)
def test_every_row_comes_exactly_once(
    n, files, group, bs, buffer, world, drop_last, shuffle, cached, block, tmp_path_factory
):
    folder = tmp_path_factory.mktemp("stream")
    write(folder / "pq", numbered(n), files, group)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fastrec._core.limits.DECODED_ROWS", block)  # row groups are larger than a block, or smaller
        patch.setattr("fastrec._core.limits.PACKED_ROWS", 5)
        frame = stream_of(folder / "pq", cache=folder / "cache" if cached else None)

        def loader(rank: int) -> StreamLoader:
            return StreamLoader(
                frame, frame.train, bs, shuffle, drop_last, buffer_rows=buffer, seed=3, rank=rank, world_size=world
            )

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataWarning)
            if 0 < n < world:
                with pytest.raises(DataError, match="ranks"):
                    len(loader(0))
                return
            loaders = [loader(rank) for rank in range(world)]
        for _ in range(2):
            got = [rows_of(one) for one in loaders]
            assert [len(g) for g in got] == [len(one) for one in loaders]
            assert len({len(g) for g in got}) == 1  # as many batches on every rank
            assert all(batch for g in got for batch in g)
            flat = [row for g in got for batch in g for row in batch]
            assert len(flat) == len(set(flat))
            if drop_last:
                assert all(len(batch) == bs for g in got for batch in g)
                assert len(flat) == (n // world) // bs * bs * world
            else:
                assert sorted(flat) == list(range(n))
                if world == 1:
                    assert [len(b) for b in got[0]] == [bs] * (n // bs) + ([n % bs] if n % bs else [])
            if not shuffle and not drop_last:
                assert flat == list(range(n))
    assert not readers()


def readers() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "fastrec-reader"]


def test_same_seed_same_order_and_another_order_every_epoch(tmp_path):
    frame = stream_of(write(tmp_path, numbered(500), 2, 20))
    first, second, other, *both = (frame.dataloaders(32, buffer_rows=100, seed=s).train for s in (5, 5, 6, 5, 6))
    one, two, elsewhere = rows_of(first), rows_of(first), rows_of(other)
    assert [rows_of(second), rows_of(second)] == [one, two]
    assert one != two
    assert elsewhere != one
    together = list(zip(*both, strict=True))  # two loaders at once do not disturb each other
    for i, alone in enumerate((one, elsewhere)):
        assert [batches[i][2][:, 0].tolist() for batches in together] == alone


@pytest.mark.parametrize(("group", "cached"), [(50, False), (100, False), (20_000, True)])
def test_rows_travel_all_over_the_file(group, cached, tmp_path):
    n = 20_000
    cache = tmp_path / "cache" if cached else None
    frame = stream_of(write(tmp_path / "pq", numbered(n), 1, group), cache=cache)
    loader = frame.dataloaders(100, buffer_rows=n // 10, seed=0, drop_last=False).train
    for _ in range(3):
        flat = np.array(flat_rows(loader))
        assert abs(np.corrcoef(flat, np.arange(n))[0, 1]) <= 0.05
        # Every tenth of the epoch sees every fifth of the file, none of them less than half as often as it should.
        for part in flat.reshape(10, -1):
            counts = np.bincount(part * 5 // n, minlength=5)
            assert counts.min() >= 0.5 * n / 50
        # Neighbours in the file are apart in the epoch.
        place = np.argsort(flat)
        assert np.median(np.abs(np.diff(place))) > 250  # 293 expected of 1,000 rows that are permuted uniformly


def test_what_fits_into_the_buffer_is_permuted_uniformly_and_one_large_row_group_is_warned_of(tmp_path):
    frame = stream_of(write(tmp_path / "small", numbered(6), 2, 2))
    loader = frame.dataloaders(6, buffer_rows=6, seed=0).train
    orders = [tuple(rows_of(loader)[0]) for _ in range(400)]
    first = np.bincount([o[0] for o in orders], minlength=6)
    assert first.min() > 33
    assert first.max() < 101
    assert len(set(orders)) > 280  # 400 draws of 720 see 307 on average
    frame = stream_of(write(tmp_path / "large", numbered(2000), 1, 2000))
    with pytest.warns(DataWarning, match="smaller row groups"):
        frame.dataloaders(10, buffer_rows=200)


def mixed(n: int) -> pd.DataFrame:
    large = np.random.default_rng(0).normal(1e8, 1, n)
    return raw(n).assign(large=large, steady=3.5, y=lambda df: np.where(df["y"] > 5, "yes", "no"))


CATS, CONTS = ["near", "far", "word", "flag", "day"], ["a", "large", "c", "steady", "e"]


@pytest.mark.parametrize(
    "procs",
    [
        PROCS,
        [Categorify(min_count=30, max_size=6, unseen=True), FillMissing("mode", add_col=False), Normalize],
        [Categorify, FillMissing("constant", fill_vals={"a": 7.0})],
        [Categorify, FillMissing(lambda column, fill: column.max()), Normalize],
        [Categorify, FillMissing, RankGauss],
        [Categorify, Normalize],
    ],
    ids=["usual", "options", "constant", "function", "rank", "unfilled"],
)
@pytest.mark.parametrize("cached", [False, True])
def test_what_is_learned_and_made_equals_the_frame_in_memory(procs, cached, tmp_path):
    df = mixed(900)
    expected = TabularFrame(df, copy.deepcopy(procs), CATS, CONTS, "y", CategoryBlock)
    folder, options = write(tmp_path / "pq", df, 3, 70), {"cache": tmp_path / "cache" if cached else None}
    frame = ParquetFrame(folder, procs, CATS, CONTS, "y", CategoryBlock, valid=df.iloc[:50], **options)
    dls = frame.dataloaders(128, buffer_rows=300, shuffle=False)
    batches = list(dls.train)
    x_cat, x_cont, y = (torch.cat([b[i] for b in batches]) for i in range(3))
    assert list(frame.frame.cat_names) == list(expected.cat_names)
    for name in expected.cat_names:
        assert list(frame.frame.classes[name]) == list(expected.classes[name])
    assert torch.equal(x_cat, expected.x_cat)
    assert torch.equal(y, expected.y)
    torch.testing.assert_close(x_cont, expected.x_cont, atol=1e-6, rtol=1e-6, equal_nan=True)
    valid = expected.new(df.iloc[:50])
    valid.process()
    assert torch.equal(torch.cat([b[0] for b in dls.valid]), valid.x_cat)


@given(
    st.lists(
        st.floats(allow_nan=False, width=64) | st.sampled_from([0.0, -0.0, 1.0, 1.0 + 2**-40, -5e-324]),
        min_size=1,
        max_size=60,
    ),
    st.integers(1, 7),
)
def test_the_median_of_blocks_is_numpys(values, blocks):
    search, parts = MedianSearch(), np.array_split(np.array(values, dtype=np.float64), blocks)
    for look in (search.look, search.look_again):
        for part in parts:
            look(part)
    ordered = sorted(values)
    low, high = ordered[(len(values) - 1) // 2], ordered[len(values) // 2]
    middle = low if low == high else (low + high) / 2
    assert search.result() == middle or (np.isnan(middle) and np.isnan(search.result()))


def test_targets_of_every_kind(tmp_path):
    df = pd.DataFrame({"x": np.arange(60.0), "a": np.arange(60) % 3, "b": np.arange(60) / 7})
    df["gap"] = pd.array([None, *range(59)], dtype="Int64")
    folder = write(tmp_path, df, 2, 10)
    for y, block in (("a", CategoryBlock), ("a", None), ("b", None), (["a", "b"], RegressionBlock), ("gap", None)):
        expected = TabularFrame(df, None, None, "x", y, block)
        frame = ParquetFrame(folder, None, None, "x", y, block)
        got = torch.cat([b[2] for b in frame.dataloaders(16, shuffle=False).train])
        assert got.dtype == expected.y.dtype
        torch.testing.assert_close(got, expected.y, equal_nan=True)
    assert len(next(iter(ParquetFrame(folder, None, None, "x").dataloaders(16).train))) == 2


@pytest.mark.parametrize("in_memory", [False, True])
def test_features_are_out_of_fold_in_training_and_full_after(tmp_path, in_memory):
    rng = np.random.default_rng(0)
    df = pd.DataFrame({"city": rng.integers(0, 9, 300), "t": np.arange(300), "y": rng.integers(0, 2, 300)})
    df["text"] = ["#a " * (i % 4) for i in range(300)]
    made = lambda: FeatureSet(  # noqa: E731 - some are lists that others are made of
        [
            *(TargetEncode("city", "y"), CountEncode("city"), HashEncode("city", 5)),
            *(Lag("t", by="city", order="t"), Cyclic("t", 24), Tokens("text"), ListLength(Tokens("text"))),
        ]
    )
    whole = TabularFrame(df, PROCS, "city", ["t"], "y", CategoryBlock, splits=(range(200), range(200, 300)),
                         features=made())  # fmt: skip
    write(tmp_path / "train", df[:200], 2, 30)
    write(tmp_path / "valid", df[200:], 1, 30)
    valid = df[200:] if in_memory else tmp_path / "valid"
    frame = ParquetFrame(tmp_path / "train", PROCS, "city", ["t"], "y", CategoryBlock, valid=valid, features=made())
    dls = frame.dataloaders(64, shuffle=False)
    for loader, expected in ((dls.train, whole.train), (dls.valid, whole.valid)):
        torch.testing.assert_close(torch.cat([b[1] for b in loader]), expected.x_cont, atol=1e-5, rtol=1e-5)
        assert torch.equal(torch.cat([b[0] for b in loader]), expected.x_cat)
    test = frame.new(df[200:].drop(columns="y"), history=df[:200])
    torch.testing.assert_close(test.x_cont, whole.valid.x_cont, atol=1e-5, rtol=1e-5)
    with pytest.warns(DataWarning, match="look back to earlier rows"):
        frame.new_rows(tmp_path / "valid")


@pytest.mark.parametrize("valid", ["paths", "frame"])
def test_a_stock_learner_trains_predicts_and_is_exported(valid, tmp_path, capsys):
    df = mixed(600)
    folder = write(tmp_path / "pq", df, 3, 50)
    held = folder / "part002.parquet"
    frame = ParquetFrame(
        [folder / "part000.parquet", folder / "part001.parquet"], PROCS, CATS, CONTS, "y", CategoryBlock,
        valid=held if valid == "paths" else df[400:],
    )  # fmt: skip
    dls = frame.dataloaders(64, buffer_rows=200, seed=0, path=tmp_path)
    torch.manual_seed(0)
    learn = tabular_learner(dls, layers=[8])
    with learn.no_bar():
        learn.fit_one_cycle(1)
        scores, targets = learn.get_preds()
        memory, _ = learn.get_preds(dl=dls.test_dl(df[400:]))
        # batches that a stream copies to a device are packed there: kernels of other strides may round otherwise
        rounding = 0.0 if on_host(dls) else torch.finfo(scores.dtype).eps
        torch.testing.assert_close(scores, memory, rtol=0, atol=rounding)
        expected = TabularFrame(df, PROCS, CATS, CONTS, "y", CategoryBlock).y[400:, 0].cpu()
        assert torch.equal(targets.flatten(), expected)
        chances = learn.predict(df.iloc[450])[2]
    torch.testing.assert_close(chances, scores[50], atol=1e-6, rtol=1e-5)
    dls.show_batch(max_n=2)
    capsys.readouterr()
    learn.export("model.pkl")
    weights = sum(p.numel() * 4 for p in learn.model.parameters())
    assert (tmp_path / "model.pkl").stat().st_size < weights + 100_000


def test_leaving_early_leaves_no_thread_and_the_next_epoch_is_whole(tmp_path):
    loader = stream_of(write(tmp_path, numbered(300), 3, 10)).dataloaders(7, buffer_rows=40, seed=0).train
    next(iter(loader))
    assert not readers()
    assert loader.one_batch()[1].shape == (7, 1)
    assert not readers()
    flat = flat_rows(loader)
    assert len(flat) == len(set(flat)) == 300 // 7 * 7


def test_nothing_there_files_without_rows_and_hidden_folders(tmp_path):
    for path in (tmp_path, tmp_path / "no.parquet", tmp_path / "*.parquet", []):
        with pytest.raises(MissingFileError):
            stream_of(path)
    df = numbered(40)
    write(tmp_path, df, 2, 10)
    df[:0].to_parquet(tmp_path / "part000b.parquet")
    assert sorted(flat_rows(stream_of(tmp_path).dataloaders(7, shuffle=False).train)) == list(range(40))
    df[:0].to_parquet(tmp_path / "empty.parquet")
    empty = stream_of(tmp_path / "empty.parquet").dataloaders(4).train
    assert list(empty) == []
    assert len(empty) == 0
    for name in (".2026.0123.part", "_temporary"):
        write(tmp_path / name / "deep", numbered(10))
    write(tmp_path / "more", numbered(5))
    assert len(stream_of(tmp_path)) == 45
    assert len(stream_of(tmp_path / "_temporary")) == 10
    with pytest.raises(DataError, match="no column was named"):
        ParquetFrame(tmp_path / "more", cache=tmp_path / "cache")


def spoil(file: Path, group: int) -> None:
    column = pq.read_metadata(file).row_group(group).column(0)
    data = bytearray(file.read_bytes())
    start = column.dictionary_page_offset or column.data_page_offset
    data[start : start + column.total_compressed_size] = b"\xff" * column.total_compressed_size
    file.write_bytes(data)


def test_spoilt_pages_are_an_error_at_once_and_later_after_the_rows_before_them(tmp_path):
    write(tmp_path, numbered(100), 2, 10, compression="snappy")
    loader = stream_of(tmp_path).dataloaders(7, buffer_rows=20, shuffle=False).train
    spoil(tmp_path / "part001.parquet", 2)  # rows 70 to 79
    got = []
    with pytest.raises(UnreadableFileError, match="part001"):
        got.extend(row for _, _, y in loader for row in y[:, 0].tolist())
    assert got == list(range(70))
    assert not readers()
    with pytest.raises(UnreadableFileError, match=r"row group 2.*part001|part001.*row group 2"):
        stream_of(tmp_path)
    bad = tmp_path / "part000.parquet"
    bad.write_bytes(bad.read_bytes()[:-20])
    with pytest.raises(UnreadableFileError, match="part000"):  # cut short
        stream_of(tmp_path)


@pytest.mark.parametrize("other", ["rows", "size", "nothing", "gone"])
def test_a_file_that_is_replaced_between_epochs_is_named(other, tmp_path):
    folder = write(tmp_path, numbered(100), 2, 10, compression="NONE", use_dictionary=False)
    loader = stream_of(folder).dataloaders(10, buffer_rows=30, seed=0).train
    assert sorted(flat_rows(loader)) == list(range(100))
    file = folder / "part001.parquet"
    size, stamp = file.stat().st_size, file.stat().st_mtime_ns
    rows = {"rows": numbered(100).assign(row=range(1000, 1100)), "size": numbered(90)}.get(other, numbered(100))
    write(folder, rows, 2, 10, compression="NONE", use_dictionary=False)
    os.utime(file, ns=(stamp + 1, stamp + 1))  # clocks of files are coarse
    assert (file.stat().st_size == size) == (other != "size")
    if other == "nothing":
        assert sorted(flat_rows(loader)) == list(range(100))
        return
    if other == "gone":
        file.unlink()
    with pytest.raises(UnreadableFileError, match="any more") as caught:
        list(loader)
    assert Path(caught.value.file).parent == folder


def test_files_that_come_twice_or_do_not_agree_are_named(tmp_path, monkeypatch):
    folder = write(tmp_path / "a", numbered(90), 3, 30)
    monkeypatch.chdir(tmp_path)
    with pytest.warns(DataWarning, match=r"share 1 of their files \(the first is .*not to be trusted"):
        ParquetFrame(folder, [], [], "x", valid="a/part001.parquet")
    with pytest.raises(DataError, match=r"named 2 times among the training files. Name each once"):
        ParquetFrame([folder, "a/part001.parquet"], [], [], "x")
    tmp_path = write(tmp_path / "b", numbered(40), 2, 10)
    other = numbered(10).assign(x=[str(i) for i in range(10)])
    other.to_parquet(tmp_path / "part002.parquet")
    with pytest.raises(DataError, match=r"(?s)(?=.*string)(?=.*part002).*'x'"):
        stream_of(tmp_path)
    numbered(10).drop(columns="x").to_parquet(tmp_path / "part002.parquet")
    with pytest.raises(MissingColumnError, match="part002"):
        stream_of(tmp_path)
    # Other widths of the same kind are no drift, nor is a column without values.
    numbered(10).astype({"x": "float64", "row": "int32"}).to_parquet(tmp_path / "part002.parquet")
    pq.write_table(pa.table({"x": pa.nulls(3), "row": pa.array([1, 2, 3])}), tmp_path / "part003.parquet")
    assert len(stream_of(tmp_path)) == 53


def test_a_bad_row_is_named_with_its_file(tmp_path):
    df = pd.DataFrame({"x": np.arange(40.0), "y": ["a", "b"] * 20})
    folder = write(tmp_path / "train", df, 2, 5)
    df.loc[33, "y"] = "c"
    valid = write(tmp_path / "valid", df, 2, 5)
    frame = ParquetFrame(folder, None, None, "x", "y", CategoryBlock, valid=valid)
    with pytest.raises(DataError, match="'c'") as found:
        list(frame.dataloaders(4).valid)
    assert found.value.row == 13
    assert Path(found.value.file).name == "part001.parquet"


@pytest.mark.parametrize("seed", [0, None])
@pytest.mark.parametrize("options", [{"rank": 2, "world_size": 2}, {"rank": 0}, {"world_size": 2}])
def test_ranks_that_cannot_be(seed, options, tmp_path):
    frame = stream_of(write(tmp_path, numbered(40)))
    with pytest.raises(DataError, match="rank"):
        frame.dataloaders(4, seed=seed, **options)
    with pytest.raises(DataError, match="seed="):
        frame.dataloaders(4, rank=0, world_size=2)


def cached_rows(cache: Path, name: str = "train") -> list[Path]:
    return sorted(cache.glob(f"{name}*/rows.bin"), key=lambda p: p.stat().st_mtime_ns)


def test_the_cache_is_written_once_and_another_beside_it_when_files_or_settings_change(tmp_path):
    df = numbered(100).assign(z=-1.0, w=-2.0)
    folder, options = write(tmp_path / "pq", df, 2, 10), {"cache": tmp_path / "cache"}

    def loader_of(*names: str) -> StreamLoader:
        frame = ParquetFrame(folder, None, None, names, "row", RegressionBlock, **options)
        return frame.dataloaders(10, buffer_rows=20, seed=0).train

    def stamps() -> list[int]:
        return [p.stat().st_mtime_ns for p in cached_rows(tmp_path / "cache")]

    first = loader_of("x")
    written = stamps()
    loader_of("x")
    assert len(written) == 1
    assert stamps() == written
    with pytest.warns(DataWarning, match=r"1 'train' caches of other files or settings, 0\.0 MB"):
        second = loader_of("x", "z", "w")
    assert (stamps()[:1], len(stamps())) == (written, 2)
    for loader, width in ((first, 1), (second, 3), (first, 1)):  # a second configuration leaves the rows alone
        assert sorted(flat_rows(loader)) == list(range(100))
        assert loader.one_batch()[1].shape[1] == width
    write(folder, df.assign(z=-3.0), 2, 10)
    with pytest.warns(DataWarning, match="2 'train' caches"):
        loader_of("x", "z", "w")
    assert len(stamps()) == 3


def test_written_again_while_it_is_read_it_holds_the_same_rows(tmp_path):
    folder, cache = write(tmp_path / "pq", numbered(200), 2, 10), tmp_path / "cache"
    loader = stream_of(folder, cache=cache).dataloaders(10, buffer_rows=20, seed=0).train
    copied, batches = pickle.loads(pickle.dumps(loader.rows)), iter(loader)
    seen = next(batches)[2][:, 0].tolist()
    (path,) = cached_rows(cache)
    (path.parent / "about.json").unlink()  # spoilt: somebody else writes it again
    before = path.stat().st_ino
    stream_of(folder, cache=cache)
    assert path.stat().st_ino != before
    assert sorted(seen + [r for _, _, y in batches for r in y[:, 0].tolist()]) == list(range(200))
    assert sorted(flat_rows(loader)) == list(range(200))
    loader.rows = copied
    assert sorted(flat_rows(loader)) == list(range(200))


@pytest.mark.parametrize(
    "options",
    [
        [{"features": FeatureSet([TargetEncode("c", "y", smooth=s)], key=None)} for s in (1, 50)],
        [{"y_block": partial(CategoryBlock, add_na=add), "y_names": "t"} for add in (False, True)],
        [{"cat_dtype": dtype} for dtype in (torch.int32, torch.int64)],
    ],
)
def test_rows_of_other_settings_are_never_taken_for_these(options, tmp_path):
    rng = np.random.default_rng(0)
    df = pd.DataFrame({"c": rng.integers(0, 5, 100), "x": rng.random(100), "y": rng.integers(0, 2, 100).astype(float)})
    folder, rows = write(tmp_path / "pq", df.assign(t=df.c.map(str)), 2, 10), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        for given in options:
            common = {"procs": [Categorify], "cat_names": "c", "cont_names": "x", "y_names": "y", **given}
            rows.append(ParquetFrame(folder, **common, cache=tmp_path / "cache").train.folder / "rows.bin")
    assert rows[0].read_bytes() != rows[1].read_bytes()


@settings(max_examples=30)
@given(
    n=st.integers(1, 90),
    chunk=st.integers(1, 40),
    block=st.integers(1, 40),
    buffer=st.integers(1, 100),
    place=st.floats(0, 1, exclude_max=True),
    bit=st.integers(0, 7),
    again=st.booleans(),
)
def test_a_flipped_bit_in_the_cache_is_an_error(n, chunk, block, buffer, place, bit, again, tmp_path_factory):
    folder = tmp_path_factory.mktemp("flip")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fastrec._core.limits.CACHED_ROWS", chunk)  # checksums and blocks differ
        patch.setattr("fastrec._core.limits.SCANNED_ROWS", block)
        write(folder / "pq", numbered(n), 1, max(1, block // 2))
        stream_of(folder / "pq", cache=folder / "cache")
        loader = stream_of(folder / "pq", cache=folder / "cache").dataloaders(7, buffer_rows=buffer, seed=0).train
        loader.drop_last = False
        (path,) = cached_rows(folder / "cache")
        if again:  # it was sound when it was first read
            assert sorted(flat_rows(loader)) == list(range(n))
        spoilt = bytearray(path.read_bytes())
        spoilt[int(place * len(spoilt))] ^= 1 << bit
        stamp = path.stat().st_mtime_ns
        path.write_bytes(spoilt)
        os.utime(path, ns=(stamp + 1, stamp + 1))  # clocks of files are coarse
        with pytest.raises(UnreadableFileError, match="not those that were written"):
            list(loader)
    assert readers() == []


def test_a_spoilt_cache_is_an_error_and_a_foreign_folder_is_left_alone(tmp_path):
    folder, cache = write(tmp_path / "pq", numbered(100), 2, 10), tmp_path / "cache"
    loader = stream_of(folder, cache=cache).dataloaders(10, buffer_rows=20, seed=0).train
    (path,) = cached_rows(cache)
    with path.open("r+b") as file:
        file.truncate(400)
    with pytest.raises(UnreadableFileError, match="cache"):
        list(loader)
    assert rows_of(stream_of(folder, cache=cache).dataloaders(100, shuffle=False).train) == [list(range(100))]
    assert cached_rows(cache) == [path]
    mine = tmp_path / "mine" / path.parent.name
    mine.mkdir(parents=True)
    (mine / "letter.txt").write_text("dear")
    with pytest.raises(WriteError):
        stream_of(folder, cache=tmp_path / "mine")
    assert (mine / "letter.txt").read_text() == "dear"
