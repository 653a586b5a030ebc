"""The contract of estimators: they learn a target from rows and predict it for other rows."""

from __future__ import annotations

import copy
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from fastrec._core import limits
from fastrec._core.atomic import atomic_folder, check_replaceable, digests_below
from fastrec.errors import DataError, MissingFileError, NotFittedError, UnreadableFileError
from fastrec.features._engine.folds import row_folds
from fastrec.metrics.registry import TASKS
from fastrec.table import Table, load_state, save_state
from fastrec.table.state import class_named, saved_name, settings_of
from fastrec.validate import Rows, whole_lists
from fastrec.validate.target import Task


@dataclass
class Trace:
    """A record of training."""

    #: one record per epoch: ``{'epoch': 0, 'train_loss': …, 'valid_loss': …, 'mrr': …}``; of boosted trees per round:
    #: ``{'round': 0, 'held_out': …}``, the figure that training stops by
    curves: list[dict[str, float]] = field(default_factory=list)
    importance: dict[str, float] = field(default_factory=dict)  #: feature → total gain
    began: str = ""  #: after ``start_from``: what it began with, or why it was trained from nothing all the same


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
        """Refuse rows of a task that this estimator cannot do, by name of those that it can."""
        if not hasattr(data, "task"):
            remedy = "Give Rows(Table.read(df), 'binary', conts=['price'], label=df['clicked'])"
            raise DataError(f"{type(self).__name__} learns from Rows, not from a {type(data).__name__}", remedy=remedy)
        if data.task not in self.tasks:
            remedy = f"It does {', '.join(self.tasks)}: take another estimator, or name another task"
            raise DataError(f"{self.name} ({type(self).__name__}) cannot learn a {data.task} task", remedy=remedy)

    def suit(self, metric: str) -> None:  # noqa: B027 - most kinds learn what their task says
        """Learn what a metric of amounts is best at, where no other objective was asked for.

        Args:
            metric: a metric's name, such as ``'pinball@0.9'``.
        """

    def forget(self) -> None:
        """Drop what was learned: the attributes of ``learned`` are None again, but for estimators among them."""
        self.trace = Trace()
        for name in self.learned:
            if not isinstance(getattr(self, name, None), Estimator):
                setattr(self, name, None)

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

    def settings(self) -> dict[str, Any]:
        """Return the constructor's arguments, as JSON values.

        Raises:
            DataError: an argument is no attribute, or nothing says how to save what was learned.
        """
        # Else it would be saved without what it has learned, and found out when it is loaded.
        if self.learns and not self.learned and type(self).write is Estimator.write:
            remedy = "Name the attributes that fit sets in learned, or define settings(), write() and read()"
            raise DataError(f"{type(self).__name__} does not say what it has learned", remedy=remedy)
        return settings_of(self)

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
            # last: of all files but the one that the digests stand in
            about["digests"] = digests_below(part, but="estimator.json")
            try:
                text = json.dumps(about, indent=1, ensure_ascii=False)
            except (TypeError, ValueError) as error:
                remedy = "Use text, numbers and lists"
                raise DataError(f"{self.name} has a setting that cannot be saved ({error})", remedy=remedy) from error
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
            # a file may name any class: only those that are known are taken, and nothing is imported for it
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


class Rule(Estimator):
    """An estimator with nothing to learn."""

    learns = False

    def fit(self, train: Rows, valid: Rows | None = None, *, seed: int = 0, device: torch.device | None = None) -> Self:
        """Return it as it is: there is nothing to learn."""
        return self


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

    def begin(self, train: Rows) -> None:
        """Drop what was learned, to learn from these rows; refuse rows that nothing can be learned from."""
        self.check_task(train)
        if train.label is None:
            raise DataError(f"{self.name} was given rows without labels to learn from", remedy="Give label=")
        if self.model is None:
            raise self.not_fitted()
        self.forget()

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


ClassWeight = Literal["balanced"] | Mapping[int, float] | None


def learnable(rows: Rows, *, name: str) -> Rows:
    """Return the rows of a weight above 0, in ranking the lists of ``whole_lists``; ``name``: who is to learn, for
    messages.
    """
    if rows.task == "ranking":
        return whole_lists(rows, name=name)  # type: ignore[arg-type]
    if rows.label is None:
        raise DataError(f"{name} was given rows without labels to learn from", remedy="Give label=")
    if rows.weight is not None and not bool((rows.weight > 0).all()):
        rows = rows.take(rows.weight > 0)
    if not len(rows):
        raise DataError(f"{name} has no row to learn from", remedy="Give rows of a weight above 0")
    if rows.task in ("binary", "multiclass") and bool((rows.label == rows.label[0]).all()):
        problem = f"{name} was given rows of one class only ({int(rows.label[0])}) to learn from"
        raise DataError(problem, remedy="Give rows of both classes")
    return rows


def check_whole(name: str, **given: object) -> None:
    """Refuse what is no whole number of 1 or more where one is needed; None is passed over."""
    for argument, value in given.items():
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
            remedy = f"Give {argument} as a whole number of 1 or more"
            raise DataError(f"{name}: {argument} is {value!r}", remedy=remedy)


def outputs_of(rows: Rows) -> list[torch.Tensor]:
    """Return each output's label ``[n]``: one of a ranking, binary or multiclass task, else one for each column."""
    assert rows.label is not None
    return [rows.label] if rows.label.ndim == 1 else list(rows.label.unbind(1))


def output_weight(rows: Rows, label: torch.Tensor, class_weight: ClassWeight) -> torch.Tensor | None:
    """Return each row's weight for one output times that of its class, float64 ``[n]``; None: all rows alike.

    ``'balanced'``: classes have the same weight in all, and the rows as much as before; classes that are not named: 1.
    """
    if class_weight is None:
        return None if rows.weight is None else rows.weight.double()
    weight = torch.ones(len(rows), dtype=torch.float64) if rows.weight is None else rows.weight.double()
    codes = label.long()
    if class_weight == "balanced":
        of_class = torch.zeros(int(codes.max()) + 1, dtype=torch.float64).index_add_(0, codes, weight)
        factor = weight.sum() / (of_class * (of_class > 0).sum())
    else:
        factor = torch.ones(max(rows.n_outputs, 2), dtype=torch.float64)
        for number, value in class_weight.items():
            factor[number] = value
    return weight * factor[codes]


def check_class_weight(class_weight: ClassWeight, *, name: str) -> ClassWeight:
    """Return class weights with numbers of classes as keys, also if a file gave them as text."""
    if class_weight is None or class_weight == "balanced":
        return class_weight
    try:
        weights = {int(number): float(value) for number, value in class_weight.items()}  # type: ignore[union-attr]
        if all(number >= 0 and 0 <= value < float("inf") for number, value in weights.items()):
            return weights
    except (AttributeError, TypeError, ValueError):
        pass
    remedy = "Give 'balanced', or {class number: weight}"
    raise DataError(f"{name} cannot use class_weight={class_weight!r}", remedy=remedy)


def check_classes(rows: Rows, class_weight: ClassWeight, *, name: str) -> None:
    """Refuse class weights where there are no such classes."""
    if class_weight is None:
        return
    if rows.task in ("ranking", "regression"):
        raise DataError(f"{name} has class weights, and a {rows.task} task no classes", remedy="Leave out class_weight")
    last = rows.n_outputs - 1 if rows.task == "multiclass" else 1
    odd = [] if class_weight == "balanced" else [n for n in class_weight if n > last]
    if odd:
        raise DataError(f"{name} has a weight for class {odd[0]}", remedy=f"The classes are 0 to {last}")


def constant_of(label: torch.Tensor, weight: torch.Tensor | None) -> float:
    """Return the mean of an output: the share of class 1, or the mean value."""
    label = label.double()
    if bool((label == label[0]).all()):
        return float(label[0])  # a mean of equal values may differ in its last bit
    return float(label.mean() if weight is None else (label * weight).sum() / weight.sum())


def assembled(parts: list[torch.Tensor], task: Task) -> torch.Tensor:
    """Join outputs' predictions, float64 ``[n]`` (of a multiclass task ``[n, k]``, whose rows then sum to 1)."""
    if task == "multiclass":
        return parts[0] / parts[0].sum(1, keepdim=True)
    return parts[0] if len(parts) == 1 else torch.stack(parts, 1)


def held_out(rows: Rows, share: float = 1 / 8, seed: int = 0) -> Tensor:
    """Choose about a share of the training rows to stop by, so that the fold that is scored stays unseen: bool ``[n]``.

    Groups stay whole. Where there is an order the last rows (groups: by their last row) are held out, rows of one time
    together; else rows are drawn by a hash of their number, class by class, or groups by a hash of their id (other
    seeds draw others). Rows whose label is a guess are left aside: one would stop where the guesses come true. One
    row, time or group at least is left to train on, and where rows are drawn, one of every class; where that cannot
    be, nothing is held out.
    """
    n = len(rows)
    if rows.guessed is not None and bool(rows.guessed.any()):
        known = ~rows.guessed
        held = torch.zeros(n, dtype=torch.bool)
        # without the columns, which a choice of rows does not need: taking them would copy them
        held[known] = held_out(replace(rows, table=Table({})).take(known), share, seed)
        return held
    if n < 2:
        return torch.zeros(n, dtype=torch.bool)
    if rows.groups is not None:
        return _groups_out(rows, share, seed)
    if rows.order is not None:
        held = _last(rows.order, share)
        if bool(held.any()):
            return held
    hashed = row_folds(Table({"row": torch.arange(n)}), [], limits.HELD_OUT_HASHES, seed=seed + limits.HELD_OUT_SEED)
    strata = rows.label.long() if rows.task in ("binary", "multiclass") and rows.label is not None else None
    return _drawn(hashed, strata, share)


def rows_to_stop_by(rows: Rows, seed: int = 0) -> Tensor | None:
    """Return ``held_out``, or None if too few rows, times, groups or classes would be left, or none can be held out."""
    held = held_out(rows, seed=seed)
    if not bool(held.any()) or bool(held.all()):
        return None
    if rows.task in ("binary", "multiclass") and rows.label is not None and len(rows.label[~held].unique()) < 2:
        return None
    return held


def some_held_out(rows: Rows, *, name: str) -> Tensor:
    """Return ``rows_to_stop_by``, which must not be None; ``name``: who is to learn from the others."""
    held = rows_to_stop_by(rows)
    if held is not None:
        return held
    grouped = "lists" if rows.task == "ranking" else "groups"
    what = grouped if rows.groups is not None else "rows" if rows.order is None else "moments"
    remedy = f"Give more {what}, or early_stopping_rounds=None"
    raise DataError(f"{name} has too few {what} to hold an eighth of them out", remedy=remedy)


def _drawn(hashed: Tensor, strata: Tensor | None, share: float) -> Tensor:
    """Choose the rows of the lowest hashes, the same share of each stratum."""
    # stable sorts: equal hashes keep the order of the rows on every machine
    order = torch.argsort(hashed, stable=True)
    if strata is not None:
        order = order[torch.argsort(strata[order], stable=True)]  # by stratum, then by hash
        _, sizes = torch.unique_consecutive(strata[order], return_counts=True)
    else:
        sizes = torch.tensor([len(hashed)])
    starts = torch.repeat_interleave(sizes.cumsum(0) - sizes, sizes)
    wanted = torch.minimum((sizes * share).round().long(), sizes - 1)
    held = torch.zeros(len(hashed), dtype=torch.bool)
    held[order] = torch.arange(len(hashed)) - starts < torch.repeat_interleave(wanted, sizes)
    return held


def _last(order: Tensor, share: float) -> Tensor:
    """Choose the last rows, those of one time together, as near to the share as possible, but never all."""
    times, counts = torch.unique(order, return_counts=True)
    if len(times) < 2:
        return torch.zeros(len(order), dtype=torch.bool)
    after = counts.flip(0).cumsum(0).flip(0)[1:]  # rows from each time on; the first time always trains
    first = times[1:][(after - len(order) * share).abs().argmin()]
    return order >= first


def _groups_out(rows: Rows, share: float, seed: int) -> Tensor:
    """Choose whole groups: the last ones if there is an order, else those of the lowest hashes."""
    assert rows.groups is not None
    ids, codes, sizes = torch.unique(rows.groups, return_inverse=True, return_counts=True)
    if len(ids) < 2:
        return torch.zeros(len(codes), dtype=torch.bool)
    if rows.order is not None:
        _, places = torch.unique(rows.order, return_inverse=True)
        rank = -torch.zeros_like(ids).scatter_reduce_(0, codes, places, "amax", include_self=False)
    else:
        rank = row_folds(Table({"group": ids}), ["group"], limits.HELD_OUT_HASHES, seed=seed + limits.HELD_OUT_SEED)
    order = torch.argsort(rank, stable=True)
    sums = sizes[order].cumsum(0)[:-1]  # one group at least trains
    many = int((sums - len(codes) * share).abs().argmin()) + 1
    held = torch.zeros(len(ids), dtype=torch.bool)
    held[order[:many]] = True
    return held[codes]
