"""The contract of estimators: they learn a target from rows and predict it for other rows."""

from __future__ import annotations

import copy
import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import torch

from fastrec._core.atomic import atomic_folder, check_replaceable
from fastrec._core.file_digests import digests_below
from fastrec.errors import DataError, MissingFileError, NotFittedError, UnreadableFileError
from fastrec.table import load_state, save_state
from fastrec.table.saved_class import class_named, saved_name
from fastrec.validate import Rows
from fastrec.validate.tasks import TASKS, Task


@dataclass
class Trace:
    """A record of training.

    Args:
        curves: one record per epoch: ``{'epoch': 0, 'train_loss': …, 'valid_loss': …, 'mrr': …}``; of boosted trees per
            round: ``{'round': 0, 'held_out': …}``, the figure that training stops by.
        importance: feature → total gain.
        began: after ``start_from``: what it began with, or why it was trained from nothing all the same.
    """

    curves: list[dict[str, float]] = field(default_factory=list)
    importance: dict[str, float] = field(default_factory=dict)
    began: str = ""


class Estimator(ABC):
    """Learns from rows with labels, then predicts.

    What is predicted follows from the task of the rows: scores ``[n]`` for ranking (the higher, the nearer the top),
    the probability of class 1 ``[n]`` for binary, probabilities ``[n, k]`` for multiclass (they sum to 1) and
    multilabel, values ``[n]`` or ``[n, t]`` for regression.

    One of your own defines ``fit`` and ``predict``. To be saved, it keeps the constructor's arguments as attributes of
    their names (``**params`` as ``params``), and names in ``learned`` the attributes that ``fit`` sets. Rows held out
    to stop by are part of the rows it was given.

    Attributes:
        name: names it in tables and files.
        tasks: what it can do.
        learns: False for a rule, with nothing to train.
        beside: it may train in a thread of its own: it draws on no global random state and lets the interpreter go.
        keeps_time: ``fit`` keeps ``time_limit``.
        time_limit: seconds that ``fit`` may take; None: as many as it takes. It is a limit of one fit, not a setting:
            it is not saved.
        wants_unlabeled: its ``fit`` takes ``unlabeled=``, rows without labels, too.
        reads_events: its lists come with the events before them (``Lists(…, events=…)``).
        learned: attributes that ``fit`` sets, None before: plain values, tensors or estimators.
    """

    name: str
    trace: Trace
    tasks: Sequence[Task] = TASKS
    learns = True
    beside = False
    keeps_time = False
    time_limit: float | None = None
    wants_unlabeled = False
    reads_events = False
    learned: ClassVar[Sequence[str]] = ()

    @abstractmethod
    def fit(
        self, train: Rows, valid: Rows | None = None, *, seed: int = 0, device: torch.device | None = None
    ) -> Estimator:
        """Learn.

        Args:
            train: rows with labels.
            valid: other rows with labels, only to report on while training; nothing is chosen by them.
            seed: of everything random.
            device: where to train.
        """

    @abstractmethod
    def predict(self, data: Rows) -> torch.Tensor:
        """Return predictions: float64 ``[n]`` or ``[n, k]`` on the CPU."""

    def check_task(self, data: Rows) -> None:
        """Refuse rows of a task that this estimator cannot do.

        Raises:
            DataError: naming the task, and what can be done.
        """
        if data.task not in self.tasks:
            raise DataError(
                f"{self.name} ({type(self).__name__}) cannot learn a {data.task} task",
                remedy=f"It does {', '.join(self.tasks)}: take another estimator, or name another task",
            )

    def suit(self, metric: str) -> None:  # noqa: B027 - most kinds learn what their task says
        """Learn what a metric of amounts is best at, where no other objective was asked for.

        Args:
            metric: a metric's name, such as ``'pinball@0.9'``.
        """

    def forget(self) -> None:
        """Drop what was learned."""
        self.trace = Trace()

    def fresh(self) -> Self:
        """Return an untrained copy with the same settings."""
        untrained = copy.copy(self)
        untrained.forget()  # before the deep copy: a trained model may be large
        return copy.deepcopy(untrained)

    def start_from(self, other: Estimator) -> bool:
        """Let the next ``fit`` begin with what another, trained one has learned, and not from nothing.

        Args:
            other: a trained estimator of the same class.

        Returns:
            Whether it will try; False: this kind is always trained from nothing. ``trace.began`` says what came of it.
        """
        return False

    def start_anew(self) -> None:  # noqa: B027 - most kinds always do
        """Let the next ``fit`` begin from nothing, whatever ``start_from`` was given."""

    def not_fitted(self) -> NotFittedError:
        """Return the error of an untrained estimator."""
        return NotFittedError(f"{self.name} has not been trained", remedy="Call fit first")

    # Saving ----------------------------------------------------------------------------------------------------------

    def settings(self) -> dict[str, Any]:
        """Return the constructor's arguments, as JSON values.

        Raises:
            DataError: an argument is no attribute, or nothing says how to save what was learned.
        """
        # Else it would be saved without what it has learned, and found out when it is loaded.
        if self.learns and not self.learned and type(self).write is Estimator.write:
            raise DataError(
                f"{type(self).__name__} does not say what it has learned",
                remedy="Name the attributes that fit sets in learned, or define settings(), write() and read()",
            )
        given: dict[str, Any] = {}
        for name, parameter in inspect.signature(type(self)).parameters.items():
            if not hasattr(self, name):
                raise DataError(
                    f"{type(self).__name__} keeps no attribute {name!r} to be saved by",
                    remedy="Keep the constructor's arguments as attributes of their names, or define settings()",
                )
            value = getattr(self, name)
            given |= value if parameter.kind is parameter.VAR_KEYWORD else {name: value}
        return given

    def write(self, folder: Path) -> dict[str, Any]:
        """Write what was learned into an existing folder, without pickle.

        Returns:
            What else ``read`` is to be given, as JSON values.

        Raises:
            NotFittedError: an attribute of ``learned`` is None.
        """
        values = {n: getattr(self, n) for n in self.learned}
        if any(v is None for v in values.values()):
            raise self.not_fitted()
        parts = {n: v for n, v in values.items() if isinstance(v, Estimator)}
        for name, part in parts.items():
            part.save(folder / name)
        if len(parts) < len(values):
            save_state(folder / "learned", {n: v for n, v in values.items() if n not in parts})
        return {}

    def read(self, folder: Path, about: Mapping[str, Any]) -> None:
        """Restore what ``write`` wrote and returned; any exception raised here means that the files are damaged."""
        state = load_state(folder / "learned") if (folder / "learned").is_dir() else {}
        for name in self.learned:
            setattr(self, name, state[name] if name in state else Estimator.load(folder / name))

    def save(self, folder: str | Path) -> None:
        """Write settings and what was learned, without pickle; an earlier save at ``folder`` is replaced in one step.

        Args:
            folder: where to; made if need be.

        Raises:
            NotFittedError: nothing was learned.
            DataError: a setting is of a kind that no JSON file holds.
            WriteError: the file system refused, or ``folder`` holds something else.
        """
        check_replaceable(folder, "estimator.json")
        with atomic_folder(folder) as part:
            about = {"class": saved_name(type(self)), "settings": self.settings(), **self.write(part)}
            if (trace := getattr(self, "trace", None)) is not None:  # one of a user's own may keep none
                about |= {"importance": dict(trace.importance), "began": trace.began}
            about["digests"] = digests_below(part, but="estimator.json")
            try:
                text = json.dumps(about, indent=1, ensure_ascii=False)
            except (TypeError, ValueError) as error:
                raise DataError(
                    f"{self.name} has a setting that cannot be saved ({error})", remedy="Use text, numbers and lists"
                ) from error
            (part / "estimator.json").write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read what ``save`` wrote: it predicts as the estimator that was saved did.

        Args:
            folder: where it was saved.

        Returns:
            An estimator of the class that was saved: one of the library's, or one that has been defined already.
            Nothing is imported that a file names.

        Raises:
            MissingFileError, UnreadableFileError: there is nothing usable at ``folder``.
            DataError: it holds an estimator of another class, or of one that is not known.
        """
        folder = Path(folder)
        path = folder / "estimator.json"
        if not path.is_file():
            raise MissingFileError("there is no such file", file=path, remedy="Give the folder of a saved estimator")
        try:
            about = json.loads(path.read_text(encoding="utf-8"))
            name, settings = str(about["class"]), dict(about["settings"])
        except (ValueError, TypeError, KeyError) as error:
            raise _unreadable(path, error) from error
        try:
            kind = class_named(Estimator, name, cls)
        except DataError as error:
            raise DataError(error.problem, file=path, remedy=error.remedy) from None
        try:
            # XGBoost's reader ends the process at some damaged files: they must not reach it
            if digests_below(folder, but="estimator.json") != about["digests"]:
                raise ValueError("its files are not those that were written")
            estimator = kind(**settings)
            estimator.read(folder, about)
            if "began" in about:
                estimator.trace = replace(
                    getattr(estimator, "trace", Trace()), importance=about["importance"], began=str(about["began"])
                )
        except (MissingFileError, UnreadableFileError):
            raise
        except Exception as error:  # safetensors and XGBoost raise classes of their own for a damaged file
            raise _unreadable(path, error) from error
        return estimator


def _unreadable(path: Path, error: Exception) -> UnreadableFileError:
    return UnreadableFileError(
        f"the saved estimator cannot be read ({type(error).__name__}: {error})", file=path, remedy="Save it again"
    )


class Ranker(Estimator):
    """An estimator that ranks the candidates of lists, and does no other task.

    Its ``fit`` and ``predict`` are given ``Lists``.
    """

    tasks = ("ranking",)


class Wrapper(Estimator):
    """An estimator around another one, ``model``, which it is named after; None: ``read`` brings it."""

    model: Any
    learned = ("model",)

    @property
    def name(self) -> str:  # type: ignore[override]
        """The name of the estimator within."""
        return type(self).__name__ if self.model is None else self.model.name

    @property
    def learns(self) -> bool:  # type: ignore[override]
        """As the estimator within."""
        return self.model is None or self.model.learns

    @property
    def beside(self) -> bool:  # type: ignore[override]
        """As the estimator within."""
        return self.model is not None and self.model.beside

    def forget(self) -> None:
        """Drop what was learned."""
        super().forget()
        if self.model is not None:
            self.model = self.model.fresh()

    def start_from(self, other: Estimator) -> bool:
        """Let the estimator within begin with another's."""
        known = isinstance(other, type(self)) and other.model is not None and self.model is not None
        return known and self.model.start_from(other.model)

    def start_anew(self) -> None:
        """Let the estimator within begin from nothing."""
        if self.model is not None:
            self.model.start_anew()

    def predict(self, data: Rows) -> torch.Tensor:
        """Return the predictions of the estimator within."""
        if self.model is None:
            raise self.not_fitted()
        return self.model.predict(data)

    def settings(self) -> dict[str, Any]:
        """Return the constructor's arguments but ``model``, which is saved whole."""
        return {**super().settings(), "model": None}
