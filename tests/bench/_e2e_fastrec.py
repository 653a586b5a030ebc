"""fastrec's side of the end-to-end benchmark: the same columns from the same files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import _e2e_data as data
import numpy as np
import torch
from fastai.data.block import CategoryBlock

from fastrec.all import Combine, CountEncode, Cross, FeatureSet, GroupPick, GroupRank, GroupStats, History, TargetEncode
from fastrec.features import explode
from fastrec.segments import segment_min
from fastrec.table import Table, concat
from fastrec.tabular import Categorify, FillMissing, Normalize, TabularFrame


def read(folder: Path, *, device: str = "cpu") -> tuple[Table, Table]:
    """Return the log, and a row per candidate, those of training sessions first."""
    file = data.log_file(folder)
    if file.suffix == ".parquet" and device != "cpu" and find_spec("cudf") is not None:
        import cudf  # straight to the GPU

        log = Table.read(cudf.read_parquet(file, columns=list(data.COLUMNS)))
    else:
        log = Table.read(file, data.COLUMNS, device="cpu", types=data.TYPES if file.suffix == ".csv" else None)
    session = log["session_id"].coded()
    start = segment_min(log["timestamp"].integer(), session.codes, session.size)[session.codes]
    is_valid = start >= data.LAST_DAY
    log = log.with_columns({"fold": torch.where(is_valid, data.FOLDS, start % data.FOLDS), "is_valid": is_valid})
    clicks = _clicks(log).drop(["action_type"])
    names = {"impressions": "item_id", "prices": "price"}
    rows = explode(clicks, names, numbers=["prices"], row="list_id")
    clicked = rows["item_id"].coded().codes == rows["reference"].coded().recode(rows["item_id"].coded().keys)
    rows = rows.with_columns({data.TARGET: clicked.long()}).drop(["reference"])
    return log.to(device), rows.to(device)


def _clicks(log: Table) -> Table:
    """Return the clicks, those of training sessions first."""
    clicks = log.take(_is(log, [data.CLICK]))
    held = clicks["is_valid"].values
    return clicks.take(torch.cat([(~held).nonzero(), held.nonzero()]).squeeze(1))


def _is(table: Table, words: Sequence[str]) -> torch.Tensor:
    """Mark the rows, bool ``[n]``, whose action is one of the words."""
    actions = table["action_type"]
    chosen = [False, *(w in words for w in actions.distinct.to_pylist())]
    return torch.tensor(chosen, device=table.device)[actions.values.long()]


def features(log: Table, rows: Table) -> data.Prepared:
    # what the session did before the click, and how long before it: found for clicks, then spread over their lists
    order = ["timestamp", "step"]
    clicks = _clicks(log.select(["session_id", *order, "action_type", "is_valid"])).drop(["action_type", "is_valid"])
    before = History("session_id", order=order, table="log", stats=["since"], values=["action_type"], name="session")
    session = FeatureSet([before], keep="outputs").fit_transform(clicks, tables={"log": log})
    session = session.rename({"session_last_action_type": "last_action"}).take(rows["list_id"].integer())
    rows = rows.with_columns({n: session[n] for n in session})
    n = int((~rows["is_valid"].values).sum())
    made = feature_set()
    tables = {"touches": log.take(_is(log, data.ITEM_ACTIONS)).rename({"reference": "item_id"})}
    train = made.fit_transform(rows.slice(0, n), tables=tables)
    valid = made.transform(rows.slice(n, len(rows)), tables=tables)
    frame = concat([part.select([*data.USED, "list_id", "timestamp"]) for part in (train, valid)])
    rest = (frame[c].integer().cpu().numpy() for c in ("list_id", data.TARGET, "timestamp"))
    return data.Prepared(frame.select([*data.USED]), (np.arange(n), np.arange(n, len(frame))), *rest)


def feature_set() -> FeatureSet:
    history = {"table": "touches", "stats": ["count", "steps"], "values": ["timestamp"], "name": "touch"}
    touched = GroupPick("position", by="list_id", order="touch_steps", name="touched")
    return FeatureSet(
        [
            TargetEncode("item_id", data.TARGET, fold_column="fold", smooth=data.SMOOTH),
            TargetEncode(Cross("item_id", "city"), data.TARGET, fold_column="fold", smooth=data.SMOOTH),
            CountEncode(["item_id", "user_id"]),
            GroupRank("count_item_id", by="list_id", descending=True),
            GroupRank("price", by="list_id"),
            Combine("price", "/", GroupStats("price", by="list_id", over="group"), name="price_over_mean"),
            History(["session_id", "item_id"], order="step", **history),
            Combine("timestamp", "-", "touch_last_timestamp", name="touch_since"),
            Combine("position", "-", touched, name="offset_touched"),
        ]
    )


def as_pandas(made: data.Prepared) -> data.Prepared:
    """Convert to a pandas frame for fastai's ``TabularPandas``, text as categories."""
    import pandas as pd

    frame = {}
    for name in made.frame.names:
        column = made.frame[name]
        values = column.values.cpu().numpy()
        text = column.kind == "category"
        frame[name] = pd.Categorical.from_codes(values - 1, column.distinct.to_pandas()) if text else values
    splits = tuple(s.tolist() for s in made.splits)
    return replace(made, frame=pd.DataFrame(frame, copy=False), splits=splits)


def preprocess(made: data.Prepared, *, device: str = "cpu") -> Any:
    about = [Categorify, FillMissing, Normalize], data.CATS, data.CONTS, data.TARGET, CategoryBlock
    return TabularFrame(made.frame, *about, splits=made.splits, device=torch.device(device))


def columns(made: data.Prepared, step: int = 1) -> dict[str, np.ndarray]:
    frame = made.frame.take(torch.arange(0, len(made.frame), step)).to_pandas().astype(dict.fromkeys(data.CATS, object))
    return {n: frame[n].to_numpy() for n in data.USED}
