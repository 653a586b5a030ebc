"""The trivago recipe served from events: every feature at each list of some sessions, as the batch has it."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from competitions.trivago2019.competition import Trivago2019
from competitions.trivago2019.simulate import simulate
from fastrec.errors import DataWarning
from fastrec.features import FeatureSet
from fastrec.serve import Online
from fastrec.table import Table
from tests.serve.online_frames import equal

LOGS = ["log", "touches", "shown", "clicked"]


def load(folder: Path) -> tuple[FeatureSet, Table, dict[str, Table]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        data = Trivago2019().load(folder, rows=None, device=torch.device("cpu"))
    features = Trivago2019().features()
    features.keep = "outputs"
    features.fit(data.train, tables=data.tables, unlabeled=data.test)
    return features, data.test, data.tables


def replay(features: FeatureSet, lists: Table, tables: dict[str, Table], count: int, **options: object) -> None:
    """The events in order of time, those of the asking session one by one, and every list when its turn comes."""
    online = Online(features, tables=tables, history=False, outputs=features.outputs, **options)
    items = {n: t for n, t in tables.items() if n == "items"}  # the real files lack it
    for name, table in items.items():
        online.observe(table, name)
    number, time = lists["list_id"].integer(), lists["timestamp"].integer()
    asked = [int(i) for i in torch.unique(number)]
    asked = sorted(asked, key=lambda i: int(time[number == i][0]))[:: max(len(asked) // count, 1)]
    times = {n: tables[n]["timestamp"].integer().numpy() for n in LOGS}
    waiting = {n: np.argsort(t, kind="stable") for n, t in times.items()}
    seen: dict[str, list[int]] = {n: [] for n in LOGS}
    for i in asked:
        rows = lists.take(number == i)
        now, session = int(time[number == i][0]), rows["session_id"].to_arrow()[0].as_py()
        for name in LOGS:  # events at the list's own time are there already, and must not be seen
            due = waiting[name][: np.searchsorted(times[name][waiting[name]], now, side="right")]
            waiting[name] = waiting[name][len(due) :]
            own = np.array([s == session for s in tables[name]["session_id"].to_arrow().take(due).to_pylist()], bool)
            parts = [due[~own], *(due[k : k + 1] for k in np.flatnonzero(own))]
            for part in parts:
                online.observe(tables[name].take(torch.from_numpy(part)), name)
                seen[name] += part.tolist()
        given = {n: tables[n].take(torch.tensor(seen[n], dtype=torch.int64)) for n in LOGS}
        want = features.transform(rows, tables={**given, **items})
        equal(online.features(rows), want.to_arrow())
    assert online.observed("touches") > 0


def test_simulated_lists_get_the_features_of_the_batch(tmp_path: Path) -> None:
    simulate(100, tmp_path)
    replay(*load(tmp_path), 12, keep=4, late=0)


def test_real_lists_get_the_features_of_the_batch(data_dir: Path) -> None:
    """Some seconds: the batch goes over the whole log for each list."""
    if not (data_dir / "trivago2019" / "train.csv").is_file():
        pytest.skip("no trivago files in FASTREC_DATA")
    replay(*load(data_dir / "trivago2019"), 3)
