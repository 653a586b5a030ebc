"""``embed_run``: write vectors of users and items of a run's model as Parquet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from fastrec._core.device import DeviceLike, resolve_device
from fastrec.competition.next_items import SavedNextItems, is_next_item_run
from fastrec.competition.predict import SavedRun, read_rows
from fastrec.errors import DataError
from fastrec.estimators import Estimator, NetModel
from fastrec.estimators._trained_net import values_of_codes
from fastrec.models import MatrixFactorization, TwoTower
from fastrec.retrieval.index import Vectors
from fastrec.sequences import NextItemNet
from fastrec.table import as_column

Side = Literal["users", "items"]


def embed_run(
    run: str | Path,
    out: str | Path,
    *,
    sides: Sequence[Side] = ("users", "items"),
    data: str | Path | None = None,
    model: str | None = None,
    trust: Sequence[str] = (),
    device: DeviceLike = "auto",
) -> list[Path]:
    """Write vectors of a run's users and items as ``users.parquet`` and ``items.parquet``; return the paths.

    Args:
        run: the run directory.
        out: the folder to write to; its files hold ``Vectors``.
        sides, data, model, trust, device: see ``run_vectors``.

    Raises:
        FastrecError: the run has no vectors, or the data cannot be used; nothing is written.
    """
    options = {"data": data, "model": model, "trust": trust, "device": device}
    made = {side: run_vectors(run, side, **options) for side in sides}  # type: ignore[arg-type] - it says itself what it knows
    for side, vectors in made.items():
        vectors.save(Path(out) / f"{side}.parquet")
    return [Path(out) / f"{side}.parquet" for side in made]


def run_vectors(
    run: str | Path,
    side: Side,
    *,
    data: str | Path | None = None,
    model: str | None = None,
    trust: Sequence[str] = (),
    device: DeviceLike = "auto",
) -> Vectors:
    """Return vectors of a run's users or items, whose products rank items as the model does.

    In a run for sessions, a user is a session. A user or item of two towers in several rows has its last row's vector.
    With folds, the first fold's model is used: vectors of different folds are not comparable.

    Args:
        run: the run directory.
        side: ``'users'`` or ``'items'``.
        data: the sessions, or rows with all columns that the run reads, as in ``predict_run``. Needed for users of
            sessions and both sides of two towers.
        model: the run's model; None: the first that has vectors.
        trust: modules of custom generators and models that may be imported.
        device: where to compute.

    Raises:
        DataError: no model of the run has vectors, or data are needed.
    """
    if is_next_item_run(run):
        return _of_sessions(SavedNextItems(run, trust=trust, device=device), side, data, model)
    saved = SavedRun(run, trust=trust)
    known = {}
    for name in saved.names:
        folder = saved.folder / "models" / name / "fold0"
        found = Estimator.load(folder) if folder.is_dir() else None
        nets = found._nets if isinstance(found, NetModel) else [getattr(found, "_trained", None)]
        trained = next(iter(nets), None)
        if trained is not None and isinstance(trained.net, TwoTower | MatrixFactorization):
            known[name] = trained
    name = _chosen(known, model, saved.names, saved.folder)
    trained, about = known[name], {"run": saved.folder.name, "model": name, "side": side}
    net: Any = trained.net.eval().to(resolve_device(device))
    if isinstance(net, MatrixFactorization):
        column = trained.frame.cat_names[side == "items"]
        with torch.no_grad():
            values = (net.user_vectors() if side == "users" else net.item_vectors()).float().cpu()
        ids = values_of_codes(trained.frame)[column]
        kept = [i for i, value in enumerate(ids) if i and value is not None]  # code 0 is unknown
        return Vectors(as_column([ids[i] for i in kept], name="id"), values[kept], None, about)
    if data is None:
        raise DataError("two towers make vectors of rows", remedy="Give the rows with all columns that the run reads")
    _, rows = read_rows(saved, data, device=device)
    own = trained.plan["options"][{"users": "query", "items": "item"}[side]]
    named = next((n for n in own if n in trained.plan["cats"]), None)
    if side == "items" and net.item_column is not None:
        named = trained.plan["cats"][net.item_column]
    if named is None:
        raise DataError(f"no categorical column of the tower tells {side} apart", remedy=f"It reads {', '.join(own)}")
    coded = rows.table[named].coded()
    last = torch.full((coded.size,), -1, dtype=torch.int64)
    last.scatter_reduce_(0, coded.codes.cpu(), torch.arange(len(rows)), "amax")
    kept = last[1:][last[1:] >= 0].sort().values
    rows = rows.take(kept)
    frame, make = trained.frame_of(rows), net.query_vectors if side == "users" else net.item_vectors
    with torch.no_grad():
        values = make(frame.x_cat.to(resolve_device(device)), frame.x_cont.to(resolve_device(device))).float().cpu()
    return Vectors(rows.table[named], values, None, about)


def _of_sessions(saved: SavedNextItems, side: Side, data: str | Path | None, model: str | None) -> Vectors:
    known = dict(_nets(saved.blend.models))
    name = _chosen(known, model, list(saved.blend.models), saved.folder)
    net, until = known[name], saved.config.get("until")
    about = {"run": saved.folder.name, "model": name, "side": side, "until": until}
    if side == "items":
        codes = torch.arange(len(saved.empty.items.reserved), len(saved.empty.items))
        ends = None if until is None else torch.full((len(codes),), float(until), dtype=torch.float64)
        return Vectors(as_column(saved.empty.decode(codes), name="id"), net.item_vectors()[codes], ends, about)
    if data is None:
        remedy = "Name their file or folder (--data), or ask for --items alone"
        raise DataError("a run keeps no sessions", remedy=remedy)
    sessions = saved.read(data)
    ids = torch.arange(len(sessions)) if sessions.sessions is None else sessions.sessions
    ends = None
    if until is not None and sessions.ends is not None:  # only the net has a vector of an empty session
        ends = sessions.ends.nan_to_num(float(until)).clamp_min(float(until))
    return Vectors(as_column(ids, name="id"), net.session_vectors(sessions), ends, about)


def _nets(models: Mapping[str, Any]) -> Iterator[tuple[str, NextItemNet]]:
    """Yield nets by name, those inside another model as ``outer.inner``."""
    for name, model in models.items():
        if isinstance(model, NextItemNet):
            yield name, model
        else:
            yield from ((f"{name}.{inner}", net) for inner, net in _nets(getattr(model, "models", {})))


def _chosen(known: Mapping[str, Any], model: str | None, names: Sequence[str], run: Path) -> str:
    if model is None and known:
        return next(iter(known))
    if model in known:
        return str(model)
    problem = "no model of the run has" if model is None else f"{model!r} has no"
    have = ", ".join(known) or "none; nets of sessions, TwoTower and MatrixFactorization have them"
    remedy = f"Its models: {', '.join(names)}; with vectors: {have}"
    raise DataError(f"{problem} vectors of users and items", file=run, remedy=remedy)
