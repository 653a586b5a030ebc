"""``NextItemCompetition``: which item comes next in a session; ``fastrec run`` carries it out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from fastrec.competition.forms.next_item_form import NextItemForm
from fastrec.competition.next_items.parts import SessionParts
from fastrec.competition.recipe import Competition, Kind
from fastrec.competition.run_files import run_folder, write_config, write_scores
from fastrec.competition.run_record import Run
from fastrec.errors import MissingFileError, UnreadableFileError
from fastrec.metrics import bootstrap_interval
from fastrec.sequences import SessionFrame, SessionModel
from fastrec.sequences.next_item_net import NextItemNet
from fastrec.sequences.sequence_scores import item_ranks, sequence_metrics
from fastrec.sequences.session_blend import SessionBlend
from fastrec.sequences.vstan import VSTAN
from fastrec.table import Vocab, column_names, save_state
from fastrec.table.read import read_file


class NextItemCompetition(Competition):
    """A recipe for sessions: ``train`` holds sessions, ``test`` those whose next item is asked.

    Files are ``train`` and ``test``, ``.parquet`` or ``.csv``: one session a row with its items as a list, or, with
    ``session``, one event a row.

    Attributes:
        items: the column of items.
        session: the column of sessions, in a log of events; None: a row is a session.
        order: columns by which a session's events are put in order; none: they are.
        target: the column with the item that follows: in ``test`` where it is known, in ``train`` if need be.
        k: how many items are submitted.
        separator: what stands between them.
        hold: what is held out to choose the blend's weights by: the last ``'sessions'``, or each one's last of its
            ``'events'`` (see ``SessionBlend``).
        weights: of the models' scores, in their order, where they are known; None: chosen on what is held out, in half
            of the time.
        exclude_seen: nothing comes twice in a session: its own items are left out.
        minutes: wall time of all training, unless ``fastrec run --minutes`` says another.
    """

    _kind: ClassVar[Kind] = Kind(
        "fastrec.competition.next_items.recipe:SESSIONS", frozenset({"bs", "minutes"}), keeps_parts=True
    )
    task = "next_item"  # type: ignore[assignment]
    items = "items"
    session: str | None = None
    order: str | tuple[str, ...] = ()
    target = "target"
    k = 20
    separator = " "
    hold: Literal["sessions", "events"] = "sessions"
    weights: Sequence[float] | None = None
    exclude_seen = False
    minutes = 14.0

    @property
    def submission(self) -> NextItemForm:  # type: ignore[override]
        """The form of the submission."""
        order = (self.order,) if isinstance(self.order, str) else tuple(self.order)
        about = {"session": self.session, "target": self.target, "order": order}
        return NextItemForm(items=self.items, sep=self.separator, max_items=self.k, **about)

    def models(self, *, bs: int | None) -> Mapping[str, SessionModel]:  # type: ignore[override]
        """Return the models to blend, the slowest first; by default a net and session kNN.

        Args:
            bs: positions in a net's batch; None: its own.
        """
        return {"net": NextItemNet(**({} if bs is None else {"tokens": bs})), "knn": VSTAN()}

    def read(self, data: Path, rows: int | None) -> tuple[SessionFrame, SessionFrame]:
        """Read the sessions to learn from and those to predict for, with their known targets.

        Args:
            data: the folder.
            rows: use only this many training sessions, the last ones.
        """
        common: dict[str, Any] = {"item": self.items, "session": self.session, "order": self.order}
        path = session_file(data, "train")
        known = self.target if self.target in column_names_of(path) else None
        train = SessionFrame(path, target=known, **common).with_target()
        if rows is not None and rows < len(train):
            train = train.take(torch.arange(len(train) - rows, len(train)))
        path = session_file(data, "test")
        return train, train.new(path, target=self.target if self.target in column_names_of(path) else None)


def run_sessions(run: Run) -> None:
    """Carry a recipe for sessions out: a blend of its models, the submission, the scores and the report.

    Without a limit of time the recipe's minutes hold.
    """
    recipe, stages = run.recipe, run.stages
    with stages.stage("read", unit="sessions") as advance:
        train, test = recipe.read(run.data, run.rows)
        advance(len(train) + len(test))
    recipe.submission.texts(train.items)  # ids that cannot be written are refused before hours of training, not after
    blend = _blend(run)
    left = recipe.minutes if run.budget is None else max(run.budget.left / 60, 0.05)
    with stages.stage("train", unit="sessions") as advance:
        blend.fit(train, seed=run.seed, minutes=left)
        advance(len(train))
    for name, scores in blend.valid.items():
        stages.say(f"held out, {name}: " + ", ".join(f"{m} {v:.4f}" for m, v in scores.items()))
    with stages.stage("predict", len(test), unit="sessions") as advance:
        best = {**_popular(recipe, blend, train, test), **blend.recommend_each(test, recipe.k, advance)}
    scores = _scores(recipe, blend, best, test, train)
    with run_folder(run) as part:
        with stages.stage("write"):
            recipe.submission.write(part / "submission.csv", test.items, best[list(best)[-1]][0], test.sessions)
            blend.save(part / "models" / "blend")
            save_state(part / "sessions", train.form())
            pq.write_table(_ranks(recipe, blend, best, test), part / "next_items.parquet")
            # By some test sessions an export is verified.
            some = test.take(torch.arange(min(len(test), 1_000)))
            pq.write_table(pa.table({recipe.items: lists_of(some)}), part / "sample.parquet")
            config = {
                "minutes": recipe.minutes if run.budget is None else run.budget.minutes,
                "submission": recipe.submission.to_state(),
                "exclude_seen": recipe.exclude_seen,
                "models": {n: {"class": type(m).__name__, **m.settings()} for n, m in blend.models.items()},
            }
            write_config(part, run, config)
        write_scores(part, run, scores)


SESSIONS = [run_sessions]


def _blend(run: Run) -> SessionBlend:
    recipe = run.recipe
    chosen: dict[str, Any] = {"weights": recipe.weights, "k": recipe.k, "hold": recipe.hold}
    blend = SessionBlend(dict(recipe.models(bs=run.bs)), **chosen, exclude_seen=recipe.exclude_seen)
    for net in (m for m in blend.models.values() if isinstance(m, NextItemNet)):
        net.device = run.device
    if run.parts is not None:
        limit = recipe.minutes if run.budget is None else run.budget.minutes
        blend.store = SessionParts(run.parts, run.seed, run.device.type, limit)
    return blend


def _popular(
    recipe: NextItemCompetition, blend: SessionBlend, train: SessionFrame, test: SessionFrame
) -> dict[str, Any]:
    """Recommend the most popular items, which any model must beat; empty if they are among the models."""
    model = blend.popular_beside()
    if model is None:
        return {}
    model.fit(train)
    return {"popularity": model.recommend(test, recipe.k, recipe.exclude_seen)}


def _scores(
    recipe: NextItemCompetition, blend: SessionBlend, best: Mapping[str, Any], test: SessionFrame, train: SessionFrame
) -> dict[str, Any]:
    k, codes = recipe.k, len(train.items)
    known: dict[str, dict[str, float]] = {}
    if test.target is not None and len(test):
        known = {n: sequence_metrics(items, test.target, k, codes=codes) for n, (items, _) in best.items()}
    name = f"mrr@{k}"
    also = [m for m in next(iter(known.values()), {}) if m != name]
    found: dict[str, Any] = {
        "metric": name,
        "greater_is_better": True,
        "final": list(best)[-1],
        "models": {n: v[name] for n, v in known.items()},
        "oof": {n: v[name] for n, v in blend.valid.items()},
        "also": {m: {n: v[m] for n, v in known.items()} for m in also},
        "held_out": blend.valid,
        "weights": dict(zip(blend.models, blend.weights or [], strict=False)),
        "rows": {"train sessions": len(train), "train events": len(train.values), "test sessions": len(test)},
    }
    final = blend.held.get(list(best)[-1])
    if final is not None:
        found["intervals"] = {list(best)[-1]: list(bootstrap_interval(reciprocal(final, k)))}
    return {**(known[list(best)[-1]] if known else {}), **found}


def reciprocal(ranks: torch.Tensor, k: int) -> torch.Tensor:
    """Return 1 / rank of ranks int64 ``[n]``, 0 above ``k``: float64 ``[n]``."""
    return torch.where(ranks <= k, 1 / ranks.double(), 0.0)


def _ranks(recipe: NextItemCompetition, blend: SessionBlend, best: Mapping[str, Any], test: SessionFrame) -> pa.Table:
    """Return each model's reciprocal rank at each session with an answer: held-out ones, and the test's."""
    parts = []
    if blend.held:
        ranks = {n: reciprocal(blend.held[n], recipe.k) for n in best}
        parts.append(_rank_rows("oof", test.items, blend.held["target"], blend.held["length"], ranks))
    if test.target is not None:
        target, k = test.target, recipe.k
        ranks = {n: reciprocal(item_ranks(items, target, k), k) for n, (items, _) in best.items()}
        parts.append(_rank_rows("test", test.items, target, test.lengths, ranks))
    empty = torch.zeros(0, dtype=torch.int64)
    none = _rank_rows("oof", test.items, empty, empty, dict.fromkeys(best, torch.zeros(0, dtype=torch.float64)))
    return pa.concat_tables([none, *parts])


def lists_of(sessions: SessionFrame) -> pa.LargeListArray:
    """Return the ids of sessions' items, a list for each."""
    return pa.LargeListArray.from_arrays(pa.array(sessions.offsets.numpy()), sessions.decode(sessions.values))


def _rank_rows(
    split: str, items: Vocab, target: torch.Tensor, length: torch.Tensor, ranks: Mapping[str, torch.Tensor]
) -> pa.Table:
    columns = {"split": pa.array([split] * len(target), pa.string()), "length": pa.array(length.numpy())}
    columns["target"] = items.decode(target).cast(pa.large_string())
    return pa.table({**columns, **{f"rr_{n}": pa.array(v.numpy()) for n, v in ranks.items()}})


def session_file(data: Path, name: str) -> Path:
    """Return the file of that name in a folder.

    Raises:
        MissingFileError: there is none.
    """
    for path in (data / f"{name}.parquet", data / f"{name}.csv"):
        if path.exists():
            return path
    raise MissingFileError(
        "there is no such file", file=data / f"{name}.parquet", remedy="Give a folder with train and test files"
    )


def column_names_of(path: Path) -> list[str]:
    """Return the columns of a file.

    Raises:
        MissingFileError, UnreadableFileError: there is none, or it is damaged.
    """
    if path.suffix == ".parquet" and path.exists():
        try:
            return pq.ParquetDataset(path).schema.names
        except (pa.ArrowException, OSError) as error:
            raise UnreadableFileError(
                f"the file cannot be read ({str(error).splitlines()[0]})",
                file=path,
                remedy="Check that it is whole and of the kind that its name says",
            ) from error
    return column_names(read_file(path))
