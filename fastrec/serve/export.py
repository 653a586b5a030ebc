"""``export_run``: write a run as one ONNX file, from raw columns to the score, with ``serving.json`` for servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from fastrec._core import limits
from fastrec._core.atomic import atomic_folder, check_replaceable
from fastrec._core.progress import Stages
from fastrec._version import __version__
from fastrec.competition.explain import BACKGROUND
from fastrec.competition.predict import SavedRun, rows_files
from fastrec.errors import DataError, MissingFileError
from fastrec.estimators import Estimator
from fastrec.metrics.intervals import conformal_bound, conformal_gaps
from fastrec.report.data import out_of_fold
from fastrec.serve.forest.libraries import booster_of_margins
from fastrec.serve.graph import lists as list_features  # noqa: F401 - its writers
from fastrec.serve.graph.columns import GraphTable, described, input_column, no_text_of
from fastrec.serve.graph.estimators import GraphRows, blended, mean, prediction
from fastrec.serve.graph.features import GraphGroups, Served, written
from fastrec.serve.graph.lists import COUNT, PREFIX, events_of
from fastrec.serve.graph.nets import Compress, compressed
from fastrec.serve.online import Online, write_online_state
from fastrec.serve.online.plan import HISTORY
from fastrec.serve.onnx_builder import Graph, GraphCut, GraphPart, value_of
from fastrec.serve.session import FILE, write_about
from fastrec.table import Column, Table
from fastrec.table.keys import UNITS_PER_SECOND
from fastrec.validate import ListEvents


def write_parts(graph: Graph, folder: Path, about: dict[str, Any]) -> list[dict[str, Any]]:
    """Write features, nets, forests and the stack as files of their own; return their description, in running order."""
    (folder / "parts").mkdir()  # new: the folder is written anew each time
    # width -1: as wide as the longest row of the request
    raw = [GraphCut(i["name"], i["name"], i["type"], -1 if "events" in i else None) for i in about["inputs"]]
    raw += [GraphCut(n, n, "int64", None) for n in [about.get("events_count")] if n is not None]
    ends = [
        GraphCut(o["name"], graph._outputs[o["name"]][0], o["type"], None if o["width"] == 1 else o["width"])
        for o in about["outputs"]
    ]
    for part in graph.marks:
        for i, cut in enumerate(part.inputs):
            cut.name = f"{part.name}_in{i}"
        for cut in part.outputs:
            cut.name = f"{part.name}_out"
    features = [c for p in graph.marks for c in p.inputs]
    predictions = [c for p in graph.marks for c in p.outputs]
    parts = [GraphPart("features", "onnx", raw, features)] if features else []
    # the stack computes other columns that it reads, of lists for instance, from the raw ones itself
    parts += [*graph.marks, GraphPart("stack", "onnx", [*predictions, *raw], ends)]
    written = []
    for part in parts:
        file, inputs = f"parts/{part.name}.{'ubj' if part.kind == 'xgboost' else 'onnx'}", part.inputs
        files = [Path(file).name]
        if part.kind == "xgboost":
            (folder / file).write_bytes(booster_of_margins(part.booster).save_raw("ubj"))
        else:
            model, read = graph.part(part.inputs, part.outputs)
            inputs = [c for c in part.inputs if c.name in read]
            if not inputs:
                raise DataError(f"the part {part.name} reads nothing", remedy="Export without parts")
            files = [f.name for f in graph.save(folder / file, model=model)]
        sides = {
            side: [{"name": c.name, "type": c.dtype, "width": c.width} for c in cuts]
            for side, cuts in (("inputs", inputs), ("outputs", part.outputs))
        }
        written.append({"name": part.name, "kind": part.kind, "file": file, "files": files, **sides})
    return written


SAMPLE = "sample.parquet"
LABELLED = "sample_labelled.parquet"
_SENT = ("number", "datetime", "category")  # kinds of columns that a request may have


@dataclass
class Exported:
    """An export."""

    folder: Path  #: its folder
    about: dict[str, Any]  #: the content of ``serving.json``
    served: Served = field(default_factory=Served)  #: the features that are in the graph, and why the others are not
    unserved: str | None = None  #: why ``fastrec serve`` cannot answer it, if so


def export_run(
    run: str | Path,
    out: str | Path,
    *,
    data: str | Path | Mapping[str, Table] | None = None,
    fold: int | None = None,
    parts: bool = False,
    compress: Compress | None = None,
    trust: Sequence[str] = (),
    stages: Stages | None = None,
) -> Exported:
    """Write a run as a graph from raw columns to the score.

    Features without nodes (they look back to earlier events, or split text) become inputs of the graph. They are saved
    with it, for a server to compute these columns; those that look back need ``data``.

    Args:
        run: the run directory.
        out: the folder to create; an earlier export there is replaced when this one is complete.
        data: the run's data (see ``predict_run``), or its tables by name: earlier events are written into ``events/``,
            from which a server continues; None: clients send the columns made of them.
        fold: use the models of this fold only, which is faster; None: the mean of all folds.
        parts: also write features, nets, forests and the stack as separate files in ``parts/``.
        compress: store the nets' weights in 16 bits, or compute their matrix products in 8 (see ``metric_loss``).
        trust: modules of custom generators and estimators that may be imported.
        stages: progress; None: no output.

    Raises:
        FastrecError: something in the run has no form in a graph, or cannot be read; nothing is written.
    """
    run, out = Path(run), Path(out)
    check_replaceable(out, FILE)
    stages = stages or Stages(quiet=True)
    saved = SavedRun(run, trust=trust)
    sample = read_sample(run)
    with stages.stage("graph"):
        graph, about, served = make_graph(saved, sample, fold=fold, compress=compress)
    with atomic_folder(out) as part, stages.stage("write"):
        graph.export(part, about)
        if parts:
            about["parts"] = write_parts(graph, part, about)
        made = [i["name"] for i in about["inputs"] if i["made"]]
        unserved = None
        if made and data is None:  # a server may lack the events for these columns
            try:
                online = Online(saved.features, outputs=made, history=bool(saved.config["history"]))
                odd = next((n for n in online.inputs if n in sample and sample[n].kind not in _SENT), None)
                if online.tables:
                    from_events = f"its columns are computed from events ({', '.join(online.tables)})"
                    unserved = f"{from_events}. Export the run with --data"
                elif odd is not None:
                    unserved = f"column {odd!r} is a {sample[odd].kind}, which a server takes from no request"
            except DataError as error:
                unserved = str(error)
        if made and unserved is None:
            with_events(part, saved, sample, about, {} if data is None else data)
        looks_back = bool(about["events"]) and (bool(about["events"]["tables"]) or about["events"]["history"])
        if not looks_back and (run / BACKGROUND).is_file():
            background = saved.background()
            sent = [i for i in about["inputs"] if not i["made"]]
            columns = {i["name"]: pa.array(column_feed(i, background[i["name"]]), from_pandas=False) for i in sent}
            pq.write_table(pa.table(columns), part / BACKGROUND)
        write_about(part, about)
    return Exported(out, about, served, unserved)


def with_events(
    part: Path, saved: SavedRun, sample: Table, about: dict[str, Any], data: str | Path | Mapping[str, Table]
) -> None:
    """Write the features that are made outside of the graph and the events so far, and add them to ``about``.

    ``data`` has the tables of events by name, or their files (see ``predict_run``), with ``train`` or ``history`` among
    them if features look back to the rows. A feature is refused if it cannot be made from events, or reads a column
    that requests lack.
    """
    made = [i["name"] for i in about["inputs"] if i["made"]]
    saved.features.save(part / "features")
    if isinstance(data, Mapping):
        frames = dict(data)
    else:
        frames = {n: saved.read(p, n) for n, p in rows_files(Path(data), saved.reading).items() if n != "test"}
    history = frames.pop("history", frames.pop("train", None)) if saved.config["history"] else None
    online = write_online_state(part / "events", saved.features, frames, history, outputs=made)
    types = {**frames, **({} if history is None else {HISTORY: history})}
    lacking = [t for t in online.tables if t not in types and t not in online.optional_tables]
    if lacking:
        file = None if isinstance(data, Mapping) else data
        why = f"the table of events {lacking[0]!r} is not there"
        raise DataError(why, file=file, remedy="fastrec layout writes it")
    own = {t: {n: described(n, types[t][n]) for n in names} for t, names in online.tables.items() if t in types}
    about["events"] = {"tables": {t: {"columns": c} for t, c in own.items()}, "history": history is not None}
    known = {i["name"] for i in about["inputs"]} | {about["list"]}
    for name in online.inputs:
        if name not in known and name in sample:
            if sample[name].kind not in _SENT:
                why = f"is a {sample[name].kind}, which a server takes from no request"
                remedy = "Leave out the features that read it, or export without data="
                raise DataError(why, column=name, remedy=remedy)
            about["inputs"].append({**described(name, sample[name], reading=saved.reading), "graph": False})


def read_sample(run: Path, name: str = SAMPLE) -> Table:
    """Read rows that a run keeps, with all their columns, as its models read them; some test rows by default."""
    path = run / name
    if not path.is_file():
        why = "the run does not hold it, and columns' types are read from it"
        raise MissingFileError(why, file=path, remedy="Run the recipe again")
    return Table.read(path, device="cpu")


def sample_events(saved: SavedRun, sample: Table, name: str = SAMPLE) -> ListEvents | None:
    """Read the events before the lists of rows that a run keeps; None: its models do not read them."""
    if saved.events is None:
        return None
    log = read_sample(saved.folder, name.replace(".parquet", "_events.parquet"))
    return saved.events.of(sample, saved.config["list_column"], {saved.events.table: log})


def make_graph(
    saved: SavedRun, sample: Table, *, fold: int | None = None, compress: Compress | None = None
) -> tuple[Graph, dict[str, Any], Served]:
    """Build a run's graph, its ``serving.json`` and the list of its features.

    ``sample`` has some of the run's rows, with all columns; ``fold`` and ``compress`` are those of ``export_run``.
    """
    graph = Graph()
    if compress is not None:
        graph.compress = partial(compressed, how=compress)
    loaded = _models(saved, fold)
    wanted = [*saved.cats, *saved.conts]
    steps = [] if saved.features is None else list(saved.features.steps)
    made = {n for s in steps for n in s.outputs}
    inputs: dict[str, dict[str, Any]] = {}

    @cache
    def given(name: str, outside: bool = False) -> Column:
        column = sample[name]
        inputs[name] = described(name, column, made=outside, reading=saved.reading)
        return input_column(graph, name, column, no_text=no_text_of(column))

    list_column = saved.config.get("list_column") if saved.target is None else None
    hidden = set() if saved.target is None else set(saved.target.names)
    raw = [*saved.cats, *saved.conts, *(n for s in steps for n in s.inputs if n not in set(s.fit_only))]
    raw += [*saved.stack.extra, *([] if list_column is None else [list_column])]
    if saved.events is not None:
        raw += [saved.events.item, *([saved.events.time] if saved.events.time else [])]
    # a column becomes an input when it is first read: the graph takes no others
    later = {n: (lambda n=n: given(n)) for n in raw if n in sample and n not in made | hidden}
    later |= {n: (lambda n=n: given(n, True)) for n in made if n in sample}
    later |= {
        n: (lambda n=n, at=at: Column("number", table[list_column].values * 0.0 + at, name=n))
        for n, at in saved.place.items()
    }
    table = GraphTable({}, later=later)
    lists = None if list_column is None else GraphGroups(table[list_column].values, list_column)  # type: ignore[arg-type]
    table, served = written(steps, table, lists, wanted)
    task, n_outputs = saved.task, 1 if saved.target is None else saved.target.n_outputs
    readers = [m for several in loaded.values() for m in several if m.reads_events]
    events, of_events = None, []
    if readers:
        if saved.events is None:
            raise DataError(f"{readers[0].name} reads events, and the run names none", remedy="Run the recipe again")
        log = read_sample(saved.folder, SAMPLE.replace(".parquet", "_events.parquet"))
        events, of_events = events_of(graph, readers, log, saved.events.item, saved.events.time)
    rows = GraphRows(table, task, saved.cats, saved.conts, n_outputs, lists, events)
    base = {}
    for name, several in loaded.items():
        parts = []
        for i, model in enumerate(several):
            graph.scope = f"{name}_fold{i if fold is None else fold}"
            parts.append(prediction(model, rows))
        base[name] = mean(parts)
    graph.scope = "blend"
    score = blended(saved.stack, base, rows)
    score = saved.decision.chances(score) if saved.target is None else saved.target.restore(score)
    output = "score"
    while output in inputs:  # a column has the name
        output += "_"
    ends, amounts = {output: score}, saved.task == "regression"
    known = out_of_fold(saved.folder, "stack") if amounts or saved.task in ("binary", "multiclass") else None
    # A column may have such a name, as prices of a day do.
    free = not ({"low", "high"} if amounts else {"in_set"}) & set(inputs)
    if free and known is not None and len(known[0]) >= 1 / (1 - limits.EXPORTED_LEVEL):
        gaps = conformal_gaps(*known[:2], classes=not amounts)
        bound = torch.tensor([conformal_bound(g, limits.EXPORTED_LEVEL) for g in gaps.T], dtype=torch.float64)
        if amounts:
            ends |= {"low": score - bound, "high": score + bound}
        else:
            wide = torch.stack([1 - score, score], 1) if score.ndim == 1 else score
            ends["in_set"] = (1 - wide <= bound) | (wide == wide.amax(1, keepdim=True))
    outputs = []
    for name, value in ends.items():
        kind, width = "bool" if name == "in_set" else "float64", None if value.ndim == 1 else int(value.shape[1])
        graph.output(name, value_of(graph, value, getattr(torch, kind)), np.dtype(kind), width)
        outputs.append({"name": name, "type": kind, "width": width or 1})
    used = graph.drop_unread_inputs()
    for name in graph.hashed & used:
        inputs[name]["longest"] = limits.HASHED_TEXT_BYTES
    about = _about(saved, [*(d for n, d in inputs.items() if n in used), *of_events])
    about |= {"outputs": outputs, **({"events_count": COUNT} if readers else {})}
    types = saved.reading.types.get("train", {})
    ids = saved.config["submission"].get("ids", [])
    about["ignored"] = {n: types.get(n) for n in [*types, *sample.names, *ids] if n not in used | made}
    if lists is not None:
        groups = sample[list_column].group_numbers().cpu()  # lists stand whole
        codes = {n: sample[n].coded().codes.cpu() for n in inputs if n in used}
        same = groups[1:] == groups[:-1]
        about["of_list"] = [n for n, c in codes.items() if not bool((same & (c[1:] != c[:-1])).any())]
    return graph, about, served


def _models(saved: SavedRun, fold: int | None) -> dict[str, list[Estimator]]:
    loaded = {}
    for name in saved.stack.models:
        folders = sorted((saved.folder / "models" / name).glob("fold*"), key=lambda f: int(f.name.removeprefix("fold")))
        if fold is not None and not 0 <= fold < len(folders):
            raise DataError(f"there is no fold {fold} of {name}", remedy=f"Give one from 0 to {len(folders) - 1}")
        chosen = folders if fold is None else [folders[fold]]
        if not chosen:
            raise MissingFileError("the model is not there", file=saved.folder / "models" / name, remedy="Run again")
        loaded[name] = [Estimator.load(f) for f in chosen]
    return loaded


def _about(saved: SavedRun, inputs: list[dict[str, Any]]) -> dict[str, Any]:
    target = saved.target
    classes = None if target is None or target.classes is None else target.classes.values.to_pylist()
    return {
        "format": 1,
        "fastrec": __version__,
        "name": saved.config["competition"],
        "task": saved.task,
        "metric": saved.config["metric"],
        "inputs": inputs,
        # dates and the like have no form in JSON
        "classes": classes and [c if isinstance(c, bool | int | float | str) else str(c) for c in classes],
        "target": None if target is None else (target.names[0] if len(target.names) == 1 else list(target.names)),
        "list": saved.config.get("list_column") if target is None else None,
        "item": saved.config.get("item") if target is None else None,
        "events": None,
    }


def feeds_of(about: Mapping[str, Any], table: Table) -> dict[str, np.ndarray]:
    """Convert a table's rows to the inputs of a graph that ``serving.json`` describes."""
    return {i["name"]: column_feed(i, table[i["name"]]) for i in about["inputs"] if "events" not in i}


def column_feed(about: Mapping[str, Any], column: Column) -> np.ndarray:
    """Convert a column ``[n]`` to an input of the graph, by its description in ``serving.json``."""
    kind = about["type"]
    if kind == "string":
        values = column.to_arrow().cast(pa.large_string()).to_pylist()
        return np.array([about["missing"] if v is None else v for v in values], dtype=object)
    column = column.plain()
    missing = column.is_missing().cpu().numpy()
    if kind == "int64":
        if column.kind == "number" and column.values.is_floating_point():  # whole numbers that met a missing one
            numbers = column.number().cpu().numpy()
            return np.where(missing, about["missing"], np.where(missing, 0, numbers).astype(np.int64))
        whole = column.integer().cpu().numpy()
        if about.get("time") is not None and column.unit is not None:  # a CSV of days has seconds, Parquet has none
            own, wanted = UNITS_PER_SECOND[column.unit], UNITS_PER_SECOND[about["time"]["unit"]]
            whole = whole * (wanted // own) if wanted > own else whole // (own // wanted)
        return whole if about["missing"] is None else np.where(missing, about["missing"], whole)
    return column.number().cpu().numpy().astype(kind)


def event_feeds(about: dict[str, Any], groups: torch.Tensor, events: ListEvents) -> dict[str, np.ndarray]:
    """Build a matrix ``[rows, events]`` for each column of events, and int64 ``[rows]``, the number of events.

    ``groups`` is int64 ``[rows]``, the list of each row; the rows of a list are adjacent.
    """
    columns = [i for i in about["inputs"] if "events" in i]
    ids, of_list = torch.unique_consecutive(groups, return_inverse=True)
    at = events.of(ids)
    lengths = (events.ends[at] - events.starts[at]).clamp_max(max((i["events"] for i in columns), default=0))
    place = torch.arange(int(lengths.max()) if len(lengths) else 0)
    there = place < lengths[:, None]
    where = torch.where(there, (events.ends[at] - lengths)[:, None] + place, 0)
    feeds: dict[str, np.ndarray] = {about["events_count"]: lengths[of_list].numpy()}
    for said in columns:
        flat = events.log[said["name"].removeprefix(PREFIX)].take(where[there])
        dtype = object if said["type"] == "string" else said["type"]
        made = np.full(there.shape, np.nan if said["missing"] is None else said["missing"], dtype)
        made[there.numpy()] = column_feed(said, flat)
        feeds[said["name"]] = made[of_list.numpy()]
    return feeds
