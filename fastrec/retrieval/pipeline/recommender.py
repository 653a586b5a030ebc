"""``Recommender``: from sessions to the items shown, in four stages."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from fastrec._core import limits
from fastrec._core.atomic import atomic_folder, check_replaceable, recover
from fastrec.errors import DataError, MissingFileError, UnreadableFileError, check_whole
from fastrec.estimators import Estimator
from fastrec.retrieval.base import best_first
from fastrec.retrieval.candidates.sources import CandidateSource
from fastrec.retrieval.candidates.union import CandidateFeatures, Candidates, numeric, sample_negatives
from fastrec.sequences import SessionFrame, SessionModel, by_time, prefixes
from fastrec.table import Table, Vocab, as_column, concat, load_state, save_state
from fastrec.table.column import offsets_of
from fastrec.validate import Lists

# Files of a saved recommender.
ABOUT, RANKER, _STAGES = "recommender.json", "ranker", "stages"
STAGES = ("retrieve", "filter", "score", "order")


class Recommender:
    """Retrieves candidates, filters them, scores them by a ranker, and orders them.

    Args:
        retriever: ``Candidates``, one source, or a session model.
        filters: ``Seen()``, ``Available(ids)``, ``InSegment(…)``, or functions like these.
        ranker: a ranking estimator, which gets the candidates' numeric columns; or an object with ``predict(table)``,
            such as a ``SavedRun``, which gets them with the items' ids. None: the source's scores; for several sources,
            ``Candidates.fused``.
        features: adds columns for the ranker, called with table and sessions; it may have ``fit(sessions)``. None:
            ``CandidateFeatures()`` for an estimator.
        order: ``Boost(…)``, ``Quota(…)``, ``MMR(…)``, or functions like these, one after the other.
        depth: candidates of a single source or model.

    Attributes:
        seconds: time of each stage in the last call.
        form: how the sessions of ``fit`` were read and coded, see ``SessionFrame.form``.

    Example:
        >>> import pandas as pd
        >>> from fastrec.retrieval import Recommender, Seen
        >>> from fastrec.sequences import CoVisitation, SessionFrame
        >>> log = SessionFrame(pd.DataFrame({"items": [["a", "b"], ["a", "b"], ["a", "c"]]}), item="items")
        >>> shop = Recommender(CoVisitation(), filters=[Seen()]).fit(log)
        >>> shop.recommend_one(["a"], 2)["item"].to_arrow().to_pylist()
        ['b', 'c']
    """

    def __init__(
        self,
        retriever: Candidates | CandidateSource | SessionModel,
        *,
        filters: Sequence[Callable[[Table, SessionFrame], Tensor]] = (),
        ranker: Any = None,
        features: Any = None,
        order: Sequence[Callable[..., tuple[Tensor, Tensor]]] = (),
        depth: int = 200,
    ) -> None:
        self.retriever = retriever if isinstance(retriever, Candidates) else Candidates({"found": retriever}, depth)
        if ranker is not None and not hasattr(ranker, "predict"):
            remedy = "Give an estimator, or a run directory as fastrec.competition.SavedRun(folder)"
            raise DataError(f"a {type(ranker).__name__} is no ranker: it has no predict", remedy=remedy)
        self.filters, self.ranker, self.order = list(filters), ranker, list(order)
        self.features = CandidateFeatures() if features is None and isinstance(ranker, Estimator) else features
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self.form: dict[str, Any] | None = None

    def fit(
        self, sessions: SessionFrame, *, share: float = 0.12, most: int = 30_000, negatives: int = 60, seed: int = 0
    ) -> Self:
        """Fit the retriever, and a ranker that is an estimator.

        The ranker learns on the last sessions, from candidates of a retriever fitted to the earlier ones; then the
        retriever learns from all sessions.

        Args:
            sessions: the log, in the order of time or with times.
            share: of the sessions, the last, for the ranker.
            most: maximum of their events, drawn at random.
            negatives: wrong candidates per event for the ranker.
            seed: of all draws, and of the ranker.

        Raises:
            DataError: no candidate of the last sessions is right.
        """
        if isinstance(self.ranker, Estimator):
            past, late = by_time(sessions, share)
            asked = prefixes(late, drawn=most, seed=seed, longest=limits.PREFIX_LONGEST)
            self._fit_ranker(past, asked, negatives, seed)
        self._fit_retriever(sessions)
        self.form = sessions.form()
        return self

    @property
    def items(self) -> Vocab:
        """The items' codes.

        Raises:
            DataError: ``fit`` was not called.
        """
        found = next(iter(self.retriever.sources.values())).items
        if found is None:
            raise DataError("the recommender has not been fitted", remedy="Call fit first")
        return found

    def save(self, folder: str | Path) -> None:
        """Write all stages as JSON, safetensors and a ranker's own files, without pickle.

        An earlier save is replaced in one step. A run directory used as ranker is copied.

        Raises:
            NotFittedError: ``fit`` was not called.
            DataError: a stage is a function, or of your own class without a state.
            WriteError: the file system refused, or ``folder`` holds something else.
        """
        check_replaceable(folder, ABOUT)
        state = {n: getattr(self, n) for n in ("retriever", "filters", "order", "features", "form")}
        at = getattr(self.ranker, "folder", None)
        is_run = isinstance(at, Path) and (at / "config.json").is_file()
        kind = None if self.ranker is None else "run" if is_run else "estimator"
        if kind == "estimator" and not isinstance(self.ranker, Estimator):
            name = type(self.ranker).__name__
            raise DataError(f"a ranker of class {name} cannot be saved", remedy="Use an estimator, or a run directory")
        with atomic_folder(folder) as part:
            save_state(part / _STAGES, state)
            if kind == "estimator":
                self.ranker.save(part / RANKER)
            elif kind == "run":
                shutil.copytree(at, part / RANKER)
            about = {"ranker": kind, "items": len(self.items) - 1}
            (part / ABOUT).write_text(json.dumps(about, indent=1), encoding="utf-8")

    @classmethod
    def load(cls, folder: str | Path, *, ranker: Any = None) -> Self:
        """Read what ``save`` wrote.

        Args:
            folder: of the save.
            ranker: a ranker that is no estimator: for a run, ``SavedRun(folder / "ranker")``.

        Raises:
            MissingFileError, UnreadableFileError: there is nothing usable at ``folder``.
            DataError: it holds an unknown class, or its ranker has to be given.
        """
        folder = Path(folder)
        recover(folder)
        if not (folder / ABOUT).is_file():
            raise MissingFileError("there is no such file", file=folder / ABOUT, remedy="Give a saved recommender")
        try:
            kind = json.loads((folder / ABOUT).read_text(encoding="utf-8"))["ranker"]
            state = load_state(folder / _STAGES)
            form, parts = state["form"], {n: state[n] for n in ("retriever", "filters", "features", "order")}
        except DataError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            problem = f"the saved recommender cannot be read ({error!r})"
            raise UnreadableFileError(problem, file=folder, remedy="Save it again") from error
        if kind == "estimator":
            ranker = Estimator.load(folder / RANKER)
        elif kind is not None and ranker is None:
            remedy = "Give it: Recommender.load(folder, ranker=fastrec.competition.SavedRun(folder / 'ranker'))"
            raise DataError(f"its ranker is a {kind}, which this room cannot open", file=folder / RANKER, remedy=remedy)
        shop = cls(**parts, ranker=ranker)
        shop.form = form
        return shop

    def _fit_retriever(self, sessions: SessionFrame) -> None:
        self.retriever.fit(sessions)
        if hasattr(self.features, "fit"):
            self.features.fit(sessions)

    def _fit_ranker(self, past: SessionFrame, asked: SessionFrame, negatives: int, seed: int) -> None:
        self._fit_retriever(past)
        parts, labels, groups = [], [], []
        for table in self.retriever.stream(asked):
            label = self.retriever.label(table, asked.target)
            rows = sample_negatives(table, label, negatives, seed=seed)
            full = table if self.features is None else self.features(table, asked)
            parts.append(full.take(rows))
            labels.append(label[rows])
            groups.append(table["session"].values[rows])
        table, label = concat(parts), torch.cat(labels)
        if not bool(label.any()):
            raise DataError("no candidate of the last sessions is right", remedy="Give more sources or sessions")
        self.ranker.fit(Lists(table, torch.cat(groups), conts=numeric(table), label=label), None, seed=seed)

    def recommend(self, sessions: SessionFrame, k: int = 20, *, context: Table | None = None) -> Table:
        """Return the items to show for each session.

        Args:
            k: number of items, at most.
            context: more columns for a ranker that is no estimator, one row per session.

        Returns:
            ``session`` (number), ``item`` (id), ``score`` (float32) and ``rank`` (from 1), by session and rank.

        Raises:
            DataError: ``k`` is below 1.
        """
        check_whole("recommend", k=k)
        self.seconds = dict.fromkeys(STAGES, 0.0)
        if context is not None and len(context) != len(sessions):
            problem = f"{len(context)} rows of context for {len(sessions)} sessions"
            raise DataError(problem, remedy="Give one for each session")
        sessions = sessions.recode(self.items)
        found: list[tuple[Tensor, Tensor, Tensor]] = []
        stream = self.retriever.stream(sessions)
        while True:
            with self._timed("retrieve"):
                table = next(stream, None)
            if table is None:
                break
            found.append(self._block(table, sessions, k, context))
        session, item, score = (torch.cat(x) for x in zip(*found, strict=True))
        rank = torch.arange(len(session)) - torch.searchsorted(session, session) + 1
        return Table({"session": session, "item": sessions.decode(item), "score": score, "rank": rank})

    def recommend_one(self, items: Any, k: int = 20) -> Table:
        """Return the items to show for one session, as ``recommend`` does.

        Args:
            items: ids of its items so far, the last one last; unknown ones are dropped.
            k: number of items, at most.
        """
        known = self.items
        codes = known.encode(as_column(items, name="item")) if len(items) else torch.zeros(0, dtype=torch.int64)
        codes = codes[codes >= len(known.reserved)]
        return self.recommend(SessionFrame.of(codes, offsets_of(torch.tensor([len(codes)])), known), k)

    def _block(
        self, table: Table, sessions: SessionFrame, k: int, context: Table | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        with self._timed("filter"):
            for keep in self.filters:
                table = table.take(keep(table, sessions))
        with self._timed("score"):
            score = self._scores(table, sessions, context)
        with self._timed("order"):
            session, item = table["session"].values, table["item"].values
            rows = best_first(session, score)
            session, item, score = session[rows], item[rows], score[rows]
            for put in self.order:
                rows, score = put(session, item, score, sessions.items, k)
                session, item = session[rows], item[rows]
            shown = torch.arange(len(session)) - torch.searchsorted(session, session) < k
        return session[shown], item[shown], score[shown]

    def _scores(self, table: Table, sessions: SessionFrame, context: Table | None) -> Tensor:
        if self.ranker is None:
            only, *more = self.retriever.sources
            return self.retriever.fused(table) if more else table[f"{only}_score"].values
        full = table if self.features is None else self.features(table, sessions)
        if isinstance(self.ranker, Estimator):
            said = self.ranker.predict(Lists(full, table["session"].values, conts=numeric(full)))
        else:
            taken = {} if context is None else context.take(table["session"].values)
            more = {n: taken[n] for n in taken}
            said = self.ranker.predict(full.with_columns({**more, "item": sessions.decode(table["item"].values)}))
        return torch.as_tensor(said).float()

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[stage] += time.perf_counter() - started
