"""``SavedNextItems``: what a run for next items holds to predict other sessions with, without the recipe's code."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from fastrec._core.device import DeviceLike, resolve_device
from fastrec._core.progress import Stages
from fastrec.competition.forms.next_item_form import NextItemForm
from fastrec.competition.next_items.recipe import column_names_of, session_file
from fastrec.competition.run_json import read_json
from fastrec.errors import DataError, UnreadableFileError
from fastrec.sequences import NextItemNet, SessionBlend, SessionFrame
from fastrec.table import load_state

__all__ = ["SavedNextItems", "is_next_item_run"]


def is_next_item_run(folder: str | Path) -> bool:
    """Return whether a folder is the run directory of a recipe for sessions."""
    try:
        return json.loads((Path(folder) / "config.json").read_text(encoding="utf-8")).get("task") == "next_item"
    except (OSError, ValueError, AttributeError):
        return False


class SavedNextItems:
    """What a run directory for next items holds.

    Args:
        folder: the run directory.
        trust: modules that may be imported: those of models of one's own, which runs their code.
        device: where nets compute.

    Attributes:
        blend: the fitted models, and how they are added up.
        form: of the submission, and of the files that are read.
        exclude_seen: whether a session's own items are left out.

    Raises:
        MissingFileError, UnreadableFileError: it is no run directory, or a damaged one.
        DataError: it holds a model of a class that is not known here.
    """

    def __init__(self, folder: str | Path, *, trust: Sequence[str] = (), device: DeviceLike = None) -> None:
        self.folder = Path(folder)
        trust_modules(trust)
        path = self.folder / "config.json"
        self.config = read_json(path)
        try:
            self.form = NextItemForm.from_state(self.config["submission"])
            self.exclude_seen = bool(self.config["exclude_seen"])
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise UnreadableFileError(
                f"the run's settings cannot be read ({error!r})", file=path, remedy="Run the recipe again"
            ) from error
        self.blend = SessionBlend.load(self.folder / "models" / "blend")
        for net in (m for m in self.blend.models.values() if isinstance(m, NextItemNet)):
            net.device = device
            assert net.model is not None
            net.model.to(resolve_device(device))
        items = self.blend.items
        assert items is not None
        self.empty = SessionFrame.of_form(load_state(self.folder / "sessions"), items)

    def read(self, data: str | Path) -> SessionFrame:
        """Read the sessions of a file, or of the file ``test`` in a folder.

        Raises:
            FastrecError: there is no such file, or its columns do not fit.
        """
        data = Path(data)
        path = session_file(data, "test") if data.is_dir() else data
        target = self.form.target if self.form.target in column_names_of(path) else None
        return self.empty.new(path, target=target)

    def recommend(self, sessions: SessionFrame, k: int | None = None, done: Any = None) -> Any:
        """Recommend items for each session, as the run's submission has them.

        Args:
            sessions: any.
            k: how many; None: as many as the submission has.
            done: called with the number of sessions just scored.

        Returns:
            Codes int64 ``[n, k]``, the best first, and scores float32 ``[n, k]``; 0 and -inf where there are fewer. Of
            one model these are its own scores, of several the blend's, whose mean is 0 in every session.
        """
        k = k or self.form.max_items
        if len(self.blend.models) == 1:  # its own scores, as its export gives them
            alone = next(iter(self.blend.models.values())).recommend(sessions, k, self.exclude_seen)
            if done is not None:
                done(len(sessions))
            return alone
        best = self.blend.recommend_each(sessions, k, done)
        return best[list(best)[-1]]

    def write(self, data: str | Path, out: str | Path, stages: Stages | None = None) -> Path:
        """Predict the sessions of a file, and write them in the form of the run's submission.

        Args:
            data: a file of sessions, or a folder with ``test.parquet`` or ``test.csv``.
            out: the file to write.
            stages: progress; None: none is shown.

        Returns:
            The file.

        Raises:
            FastrecError: the data cannot be used; nothing is written.
        """
        stages = stages or Stages(quiet=True)
        with stages.stage("read", unit="sessions") as advance:
            sessions = self.read(data)
            advance(len(sessions))
        with stages.stage("predict", len(sessions), unit="sessions") as advance:
            items, _ = self.recommend(sessions, done=advance)
        self.form.write(out, sessions.items, items, sessions.sessions)
        return Path(out)


def trust_modules(modules: Sequence[str]) -> None:
    """Import modules that a user trusts.

    Raises:
        DataError: one cannot be imported.
    """
    for module in modules:
        try:
            import_module(module)
        except ImportError as error:
            raise DataError(
                f"the trusted module {module} cannot be imported ({error})",
                remedy="Start from the folder that it is in, or put that folder into PYTHONPATH",
            ) from error
