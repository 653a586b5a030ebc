"""Recipes that predict the next item of sessions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from fastrec._core.atomic import read_json, task_in
from fastrec._core.device import DeviceLike, resolve_device
from fastrec._core.progress import Stages
from fastrec._version import __version__
from fastrec.competition.forms.lists import item_texts, write_items
from fastrec.competition.forms.rows import SubmissionForm
from fastrec.competition.recipe import Competition, Kind
from fastrec.competition.resumable import Parts
from fastrec.competition.run_files import run_folder, write_config
from fastrec.competition.run_record import Run
from fastrec.errors import DataError, MissingFileError, UnreadableFileError, warn
from fastrec.features._engine.digests import NoDigestError, class_digest, digest
from fastrec.metrics import bootstrap_interval
from fastrec.sequences import SessionFrame, SessionModel
from fastrec.sequences.base import item_ranks, recommended, sequence_metrics
from fastrec.sequences.items import CoVisitation
from fastrec.sequences.neighbours import VSTAN
from fastrec.sequences.next_item_net import NextItemNet
from fastrec.sequences.session_blend import SessionBlend
from fastrec.table import Vocab, as_column, column_names, load_state, save_state
from fastrec.table.column import offsets_of
from fastrec.table.read import read_file


class SessionParts:
    """The store of a ``SessionBlend``: fitted models and chosen weights, by a digest of their inputs.

    ``about`` has further inputs: seed, device, time limit.
    """

    def __init__(self, parts: Parts, *about: Any) -> None:
        self.parts, self.about = parts, (__version__, torch.get_num_threads(), *about)

    def fit(self, model: SessionModel, sessions: SessionFrame, fit: Callable[[], object]) -> None:
        """See ``FitStore``."""

        def restore(state: dict[str, Any]) -> None:
            model.items = sessions.items
            model._restore(state["learned"])

        key = self._key("model", sessions, [model])
        self._stored(f"model-{type(model).__name__}", key, restore, fit, lambda: {"learned": model._state()})

    def choose(self, blend: SessionBlend, sessions: SessionFrame, choose: Callable[[], None]) -> None:
        """See ``FitStore``."""

        def restore(state: dict[str, Any]) -> None:
            blend.weights, blend.valid, blend.held = state["weights"], state["valid"], state["held"]

        settings = {**blend.settings(), "weights": None, "models": list(blend.models)}
        key = self._key("weights", sessions, list(blend.models.values()), settings)
        chosen = ("weights", "valid", "held")
        self._stored("weights", key, restore, choose, lambda: {n: getattr(blend, n) for n in chosen})

    def _stored(
        self,
        kind: str,
        key: str | None,
        restore: Callable[[dict[str, Any]], None],
        make: Callable[[], object],
        state: Callable[[], dict[str, Any]],
    ) -> None:
        """Restore a stored state, or make and store it; without a key it is not stored."""

        def read(place: Path) -> bool:
            restore(load_state(place / "state"))
            return True

        if key is None or self.parts.found(kind, key, read) is None:
            make()
            if key is not None:
                self.parts.keep(kind, key, state=state())

    def _key(
        self, kind: str, sessions: SessionFrame, models: Sequence[SessionModel], settings: Any = None
    ) -> str | None:
        try:
            described = [(class_digest(type(m)), str(m.settings())) for m in models]
            # Everything in the sessions that a model can be trained on.
            codings = [sessions.codings, sessions.item_codings]
            about = [str({n: (c.kind, c.mean, c.scale, c.width) for n, c in group.items()}) for group in codings]
            values = [sessions.values, sessions.offsets, sessions.times, sessions.sides, sessions.item_sides]
            content = digest(*values, sessions.target, sessions.items.values, *about)
            return digest(*self.about, kind, content, described, str(settings))[:20]
        except NoDigestError:
            return None


class NextItemCompetition(Competition):
    """A recipe for sessions: ``train`` holds sessions, ``test`` those whose next item is predicted.

    Files are ``train`` and ``test``, ``.parquet`` or ``.csv``: one session a row with its items as a list, or, with
    ``session``, one event a row.

    Attributes:
        items: the column of items.
        session: the column of sessions, in a log of events; None: a row is a session.
        order: columns that sort a session's events; none: they are sorted.
        target: the column of the next item: in ``test`` if known, in ``train`` optional.
        k: number of submitted items.
        separator: between submitted items.
        hold: the held-out data to choose the blend's weights by: the last ``'sessions'``, or each session's last of its
            ``'events'`` (see ``SessionBlend``).
        weights: of the models' scores, in order; None: chosen on held-out data, in half of the time.
        exclude_seen: exclude a session's items from its recommendations.
        minutes: wall time of all training, unless ``fastrec run --minutes`` is given.
    """

    _kind: ClassVar[Kind] = Kind(
        "fastrec.competition.next_items:SESSIONS", frozenset({"bs", "minutes"}), keeps_parts=True
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
    def submission(self) -> SubmissionForm:  # type: ignore[override]
        """The form of the submission."""
        order = (self.order,) if isinstance(self.order, str) else tuple(self.order)
        about = {"item_sep": self.separator, "answer": self.target, "order": order}
        return next_item_form(self.items, self.session, self.k, **about)

    def models(self, *, bs: int | None) -> Mapping[str, SessionModel]:  # type: ignore[override]
        """Return the models to blend, the slowest first; by default a net, session kNN and item pairs.

        Pairs count which other items followed the last one directly.

        Args:
            bs: positions in a net's batch; None: its default.
        """
        net = NextItemNet(**({} if bs is None else {"tokens": bs}))
        # If the last item alone decides, the other models miss much. Held-out mrr@20 of 4,000 simulated sessions: .554
        # without pairs, .581 with (400 items); .177, .430 (3,000 items). Of 8,000 of diginetica .142: pairs weigh 0.
        pairs = CoVisitation(window=1, before=0.0, own=1e-3, norm=0.0, again=0.0)
        return {"net": net, "knn": VSTAN(recency="held-out"), "pairs": pairs}

    def read(self, data: Path, rows: int | None) -> tuple[SessionFrame, SessionFrame]:
        """Read the sessions to train on and those to predict, with their known targets.

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


def next_item_form(items: str, session: str | None, k: int, **options: Any) -> SubmissionForm:
    """Return the form of a submission of ``k`` next items of sessions (None: of the file's rows)."""
    options = {"answer": "target", "candidates": None, **options}
    return SubmissionForm(ids=() if session is None else (session,), items=items, max_items=k, **options)


def run_sessions(run: Run) -> None:
    """Run a recipe for sessions: a blend of its models, the submission, the scores and the report.

    Without a time limit the recipe's ``minutes`` apply.
    """
    recipe, stages = run.recipe, run.stages
    with stages.stage("read", unit="sessions") as advance:
        train, test = recipe.read(run.data, run.rows)
        advance(len(train) + len(test))
    item_texts(recipe.submission, train.items)  # refuse ids that cannot be written before hours of training
    chosen: dict[str, Any] = {"weights": recipe.weights, "k": recipe.k, "hold": recipe.hold}
    blend = SessionBlend(dict(recipe.models(bs=run.bs)), **chosen, exclude_seen=recipe.exclude_seen)
    for net in (m for m in blend.models.values() if isinstance(m, NextItemNet)):
        net.device = run.device
    # Reuse models and weights of an interrupted run with the same inputs.
    if run.parts is not None:
        limit = recipe.minutes if run.budget is None else run.budget.minutes
        blend.store = SessionParts(run.parts, run.seed, run.device.type, limit)
    left = recipe.minutes if run.budget is None else max(run.budget.left / 60, 0.05)
    with stages.stage("train", unit="sessions") as advance:
        blend.fit(train, seed=run.seed, minutes=left)
        advance(len(train))
    for name, scores in blend.valid.items():
        stages.say(f"held out, {name}: " + ", ".join(f"{m} {v:.4f}" for m, v in scores.items()))
    best, popular = {}, blend.popular_beside()
    with stages.stage("predict", len(test), unit="sessions") as advance:
        if popular is not None:  # the most popular items are the baseline, if not among the models
            popular.fit(train)
            best["popularity"] = popular.recommend(test, recipe.k, recipe.exclude_seen)
        best |= blend.recommend_each(test, recipe.k, advance)
    run.scores = _scores(recipe, blend, best, test, train)
    with run_folder(run) as part, stages.stage("write"):
        last, path = best[list(best)[-1]][0], part / "submission.csv"
        write_items(recipe.submission, path, test.items, last, test.sessions)
        blend.save(part / "models" / "blend")
        pq.write_table(_ranks(recipe, blend, best, test), part / "next_items.parquet")
        write_sessions(part, train.form(), test, item=recipe.items)
        last = train.times.max() if train.times is not None and len(train.times) else None
        config = {
            "minutes": recipe.minutes if run.budget is None else run.budget.minutes,
            "submission": asdict(recipe.submission),
            "exclude_seen": recipe.exclude_seen,
            "until": None if last is None or last.isnan() else float(last),
            "models": {n: {"class": type(m).__name__, **m.settings()} for n, m in blend.models.items()},
        }
        write_config(part, run, config)


SESSIONS = [run_sessions]


def write_sessions(part: Path, form: dict[str, Any], sessions: SessionFrame, *, item: str) -> None:
    """Write how sessions were read (``SessionFrame.form``), and some of them, to verify an export."""
    save_state(part / "sessions", form)
    some = sessions.take(torch.arange(min(len(sessions), 1_000)))
    sides = {n: c.decode(some.sides[n]) for n, c in some.codings.items() if n in some.sides and c.kind != "vector"}
    sides |= {} if some.times is None else {some.columns["order"][0]: pa.array(some.times.numpy())}
    lists = {n: pa.LargeListArray.from_arrays(some.offsets.numpy(), v) for n, v in sides.items()}
    pq.write_table(pa.table({**lists, item: lists_of(some)}), part / "sample.parquet")


def _scores(
    recipe: NextItemCompetition, blend: SessionBlend, best: Mapping[str, Any], test: SessionFrame, train: SessionFrame
) -> dict[str, Any]:
    k, codes = recipe.k, len(train.items)
    known: dict[str, dict[str, float]] = {}
    if test.target is not None and len(test):
        known = {n: sequence_metrics(items, test.target, k, codes=codes) for n, (items, _) in best.items()}
    name = f"mrr@{k}"
    also = [m for m in next(iter(known.values()), {}) if m != name]
    found: dict[str, Any] = {"metric": name, "greater_is_better": True, "final": list(best)[-1]}
    found |= {
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
    """Return each model's reciprocal rank at each held-out or test session with an answer."""
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
    """Return the Parquet or CSV file of that name in a folder."""
    for path in (data / f"{name}.parquet", data / f"{name}.csv"):
        if path.exists():
            return path
    remedy = "Give a folder with train and test files"
    raise MissingFileError("there is no such file", file=data / f"{name}.parquet", remedy=remedy)


def column_names_of(path: Path) -> list[str]:
    """Return the columns of a file."""
    if path.suffix == ".parquet" and path.exists():
        try:
            return pq.ParquetDataset(path).schema.names
        except (pa.ArrowException, OSError) as error:
            problem = f"the file cannot be read ({str(error).splitlines()[0]})"
            remedy = "Check that it is whole and of the kind that its name says"
            raise UnreadableFileError(problem, file=path, remedy=remedy) from error
    return column_names(read_file(path))


def is_next_item_run(folder: str | Path, *also: str) -> bool:
    """Return whether a folder is the run directory of a recipe for sessions, or for one of the tasks ``also``."""
    return task_in(Path(folder) / "config.json") in ("next_item", *also)


class SavedNextItems:
    """A run directory for next items, loaded to predict.

    Args:
        folder: the run directory.
        trust: modules of custom models that may be imported; importing runs their code.
        device: where nets compute.

    Attributes:
        blend: the fitted models and their weights.
        form: of the submission, and of the input files.
        exclude_seen: whether a session's items are excluded.

    Raises:
        MissingFileError, UnreadableFileError: it is no run directory, or a damaged one.
        DataError: it has a model of an unknown class.
    """

    def __init__(self, folder: str | Path, *, trust: Sequence[str] = (), device: DeviceLike = None) -> None:
        self.folder = Path(folder)
        trust_modules(trust)
        path = self.folder / "config.json"
        self.config = read_json(path)
        try:
            self.form = SubmissionForm(**self.config["submission"])
            self.exclude_seen = bool(self.config["exclude_seen"])
        except (OSError, ValueError, TypeError, KeyError) as error:
            problem = f"the run's settings cannot be read ({error!r})"
            raise UnreadableFileError(problem, file=path, remedy="Run the recipe again") from error
        self.blend = SessionBlend.load(self.folder / "models" / "blend")
        for net in (m for m in self.blend.models.values() if isinstance(m, NextItemNet)):
            net.device = device
            net.model.to(resolve_device(device))
        self.empty = SessionFrame.of_form(load_state(self.folder / "sessions"), self.blend.items)

    def read(self, data: str | Path) -> SessionFrame:
        """Read the sessions of a file, or of the file ``test`` in a folder.

        Raises:
            FastrecError: there is no such file, or its columns do not fit.
        """
        data = Path(data)
        path = session_file(data, "test") if data.is_dir() else data
        return self.empty.new(path, target=self.form.answer if self.form.answer in column_names_of(path) else None)

    def recommend(self, sessions: SessionFrame, k: int | None = None, done: Any = None) -> Any:
        """Recommend items for each session, as in the run's submission.

        Args:
            sessions: any.
            k: how many; None: as many as the submission has.
            done: called with the number of sessions just scored.

        Returns:
            Codes int64 ``[n, k]``, the best first, and scores float32 ``[n, k]``; 0 and -inf if there are fewer. Scores
            are the model's, or with several models the blend's, whose mean is 0 in every session.

        Raises:
            DataError: ``sessions`` is no ``SessionFrame``.
        """
        if not isinstance(sessions, SessionFrame):
            remedy = "Call recommend_items with lists of ids, or make one by read(file) or empty.new(frame)"
            raise DataError(f"a {type(sessions).__name__} is no SessionFrame", remedy=remedy)
        k = k or self.form.max_items
        if len(self.blend.models) == 1:  # the same scores as its export
            alone = next(iter(self.blend.models.values())).recommend(sessions, k, self.exclude_seen)
            if done is not None:
                done(len(sessions))
            return alone
        sessions = sessions.recode(self.empty.items)
        return recommended(self.blend.score(sessions), sessions, k, self.exclude_seen, done)

    def recommend_items(self, sessions: Sequence[Sequence[Any]], k: int | None = None) -> list[list[Any]]:
        """Return the ids of each session's recommended items, the best first.

        Args:
            sessions: for each session the ids of its items, the latest last. Unknown ids are skipped.
            k: how many; None: as many as the submission has.

        Raises:
            DataError: ``sessions`` is one list of ids, or the run was trained on more columns than the item.
        """
        if self.empty.codings:
            problem = f"the run learned from {', '.join(self.empty.codings)} too, which lists of ids lack"
            raise DataError(problem, remedy="Give a table with these columns: recommend(saved.empty.new(frame))")
        bare = next((s for s in sessions if isinstance(s, str) or not isinstance(s, Sequence)), None)
        if bare is not None:
            raise DataError(f"{bare!r} is no session", remedy="Give a list of sessions, each a list of item ids")
        items = self.empty.items
        column = as_column([i for s in sessions for i in s] or torch.zeros(0, dtype=torch.int64), name="item")
        codes = items.encode(column) if len(column) else torch.zeros(0, dtype=torch.int64)
        made = SessionFrame.of(codes, offsets_of(torch.tensor([len(s) for s in sessions], dtype=torch.int64)), items)
        made._keep(codes >= len(items.reserved))
        best, _ = self.recommend(made, k)
        ids = self.empty.decode(best).to_pylist()
        width = best.shape[1]
        return [[i for i in ids[a * width : (a + 1) * width] if i is not None] for a in range(len(sessions))]

    def write(self, data: str | Path, out: str | Path, stages: Stages | None = None) -> Path:
        """Predict the sessions of a file, write them in the form of the run's submission, and return its path.

        Args:
            data: a file of sessions, or a folder with ``test.parquet`` or ``test.csv``.
            out: the file to write.
            stages: shows the progress; None: it is not shown.

        Raises:
            FastrecError: the data cannot be used; nothing is written.
        """
        stages = stages or Stages(quiet=True)
        with stages.stage("read", unit="sessions") as advance:
            sessions = self.read(data)
            advance(len(sessions))
        if not len(sessions):
            warn(f"{data}: it has no sessions, and nothing is predicted")
        with stages.stage("predict", len(sessions), unit="sessions") as advance:
            items, _ = self.recommend(sessions, done=advance)
        write_items(self.form, out, sessions.items, items, sessions.sessions)
        return Path(out)


def trust_modules(modules: Sequence[str]) -> None:
    """Import modules that a user trusts."""
    for module in modules:
        try:
            import_module(module)
        except ImportError as error:
            remedy = "Start from the folder that it is in, or put that folder into PYTHONPATH"
            raise DataError(f"the trusted module {module} cannot be imported ({error})", remedy=remedy) from error
