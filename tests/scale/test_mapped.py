from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from fastrec._core import limits

pytest.importorskip("dask")
distributed = pytest.importorskip("distributed")
import dask.dataframe as dd  # noqa: E402
from dask.sizeof import sizeof  # noqa: E402

from fastrec.features import Categorify, CountEncode, FeatureSet, GroupStats  # noqa: E402
from fastrec.features._dask.blocks import task  # noqa: E402
from fastrec.features._dask.files import Mapped  # noqa: E402
from fastrec.features._dask.states import quietly, share  # noqa: E402
from fastrec.table import Keys  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def sent(thing):
    buffers = []
    text = pickle.dumps(thing, protocol=5, buffer_callback=buffers.append)
    return pickle.loads(text, buffers=[memoryview(bytes(b)) for b in buffers])


def test_here_it_is_the_value_itself_and_what_has_arrived_weighs_until_it_is_in_the_file():
    value = {"n": torch.arange(4_000_000), "none": torch.zeros(0, 3), "turned": torch.arange(6.0).view(2, 3).t()}
    value |= {"half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16), "wide": torch.arange(6).view(2, 3)}
    keys = Keys((pa.array(["a", "é", ""]), pa.array([3, 2, 1])), ("x", "y"))
    assert Mapped(value).value is value
    found = sent(sent(Mapped({**value, "keys": [keys]})))  # passed on by one who has not looked at it
    assert sizeof(found) > 32_000_000
    for name, tensor in value.items():
        assert torch.equal(found.value[name], tensor), name
    assert [c.to_pylist() for c in found.value["keys"][0].columns] == [["a", "é", ""], [3, 2, 1]]
    assert sizeof(found) < 10_000
    whole = pickle.loads(pickle.dumps(Mapped(value["wide"]), protocol=5))  # in one piece; so little stays in memory
    assert torch.equal(whole.value, value["wide"])


def own():
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines["RssAnon"].split()[0]) << 10


def looked_at(found):
    before, value = own(), found.value
    some, files = value["n"][::100_000].tolist(), Path("/proc/self/maps").read_text().splitlines()
    there = [line.split(maxsplit=5)[5] for line in files if "(deleted)" in line]
    return some, [t for t in there if "/dev/" not in t], own() - before, os.getpid()


def all_in_files():
    limits.MAPPED_BYTES = 0


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="there is no /proc")
def test_a_worker_has_it_in_a_file_without_a_name(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"item": rng.permutation(40_000).astype(np.int64) * 7, "price": rng.normal(0, 1, 40_000)})
    steps = [CountEncode("item"), GroupStats("price", by="item", stats=["mean"]), Categorify("item")]
    here, there = FeatureSet(steps, keep="outputs"), FeatureSet(steps, keep="outputs").__sklearn_clone__()
    options = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": ":0", "local_directory": str(tmp_path)}
    with distributed.LocalCluster(processes=True, **options) as cluster, distributed.Client(cluster) as client:
        numbers = torch.arange(8_000_000)
        with quietly():
            some, files, grown, pid = task(looked_at, share(Mapped({"n": numbers}))).compute()
        assert pid != os.getpid()
        assert some == numbers[::100_000].tolist()
        assert [f for f in files if str(tmp_path) in f], files
        assert grown < 16_000_000  # of 64 MB
        assert not [p for p in tmp_path.rglob("*") if p.is_file() and p.stat().st_size > 1_000_000]
        # the features themselves, with every state in a file
        client.run(all_in_files)
        made = there.fit_transform(dd.from_pandas(frame, npartitions=3, sort=False)).compute()
    pd.testing.assert_frame_equal(made.astype("float64"), here.fit_transform(frame).astype("float64"), rtol=1e-12)
