"""The interface of estimators: they learn a target from rows and predict it for other rows."""

from __future__ import annotations

import copy
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
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

    #: One record per epoch: ``{'epoch': 0, 'train_loss': …, 'valid_loss': …, 'mrr': …}``. Boosted trees have one per
    #: round: ``{'round': 0, 'held_out': …}``, the value monitored for early stopping.
    curves: list[dict[str, float]] = field(default_factory=list)
    importance: dict[str, float] = field(default_factory=dict)  #: feature → total gain
    began: str = ""  #: after ``start_from``: what training began with, or why it began from scratch


class Estimator(ABC):
    """Base class of estimators, which learn from labelled rows and then predict.

    Predictions depend on the task of the rows. Ranking: scores ``[n]`` (higher is nearer the top). Binary: the
    probability of class 1 ``[n]``. Multiclass and multilabel: probabilities ``[n, k]`` (multiclass ones sum to 1).
    Regression: values ``[n]`` or ``[n, t]``.

    A subclass of your own defines ``fit`` and ``predict``. To be saved, it keeps each constructor argument as an
    attribute of the same name (``**params`` as ``params``), and lists in ``learned`` the attributes that ``fit`` sets.
    Its early-stopping hold-out must be part of the training rows.

    Attributes:
        name: the name used in tables and files.
        tasks: the tasks it supports.
        learns: False for a rule, which has nothing to train.
        beside: whether it may train in its own thread: it uses no global random state and releases the interpreter.
        keeps_time: whether ``fit`` respects ``time_limit``.
        time_limit: seconds that ``fit`` may take; None: no limit. It applies to one fit and is not saved.
        wants_unlabeled: whether ``fit`` also takes ``unlabeled=``, rows without labels.
        reads_events: whether its lists need the events before them (``Lists(…, events=…)``).
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
        """Learn from labelled rows.

        Args:
            train: rows with labels.
            valid: other rows with labels, only for reporting during training; they influence no choice.
            seed: the seed of all random numbers.
            device: the device to train on.
        """

    @abstractmethod
    def predict(self, data: Rows) -> torch.Tensor:
        """Return predictions: float64 ``[n]`` or ``[n, k]`` on the CPU."""

    def check_task(self, data: Rows) -> None:
        """Refuse rows of a task that this estimator does not support, and name those that it does."""
        if not hasattr(data, "task"):
            remedy = "Give Rows(Table.read(df), 'binary', conts=['price'], label=df['clicked'])"
            raise DataError(f"{type(self).__name__} learns from Rows, not from a {type(data).__name__}", remedy=remedy)
        if data.task not in self.tasks:
            remedy = f"It does {', '.join(self.tasks)}: take another estimator, or name another task"
            raise DataError(f"{self.name} ({type(self).__name__}) cannot learn a {data.task} task", remedy=remedy)

    def suit(self, metric: str) -> None:  # noqa: B027 - most classes learn by their task only
        """Learn what a regression metric rewards, unless an objective was given.

        Args:
            metric: a metric's name, such as ``'pinball@0.9'``.
        """

    def forget(self) -> None:
        """Drop what was learned: set the attributes of ``learned`` to None, except for estimators among them."""
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
        """Let the next ``fit`` begin with what another trained estimator has learned, rather than from scratch.

        Args:
            other: a trained estimator of the same class.

        Returns:
            Whether it will try; False: this class always trains from scratch. ``trace.began`` tells what happened.
        """
        return False

    def start_anew(self) -> None:  # noqa: B027 - most kinds always do
        """Let the next ``fit`` begin from scratch, even after ``start_from``."""

    def not_fitted(self) -> NotFittedError:
        """Return the error of an untrained estimator."""
        return NotFittedError(f"{self.name} has not been trained", remedy="Call fit first")

    def settings(self) -> dict[str, Any]:
        """Return the constructor's arguments, as JSON values.

        Raises:
            DataError: an argument is not an attribute, or nothing defines how to save what was learned.
        """
        # Otherwise it would be saved without what it learned, and this would be noticed only after loading.
        if self.learns and not self.learned and type(self).write is Estimator.write:
            remedy = "Name the attributes that fit sets in learned, or define settings(), write() and read()"
            raise DataError(f"{type(self).__name__} does not say what it has learned", remedy=remedy)
        return settings_of(self)

    def write(self, folder: Path) -> dict[str, Any]:
        """Write what was learned into an existing folder, without pickle.

        Returns:
            Further values that ``read`` needs, as JSON values.
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

        Raises:
            NotFittedError: nothing was learned.
            DataError: a setting cannot be stored as JSON.
            WriteError: the file system refused, or ``folder`` holds something else.
        """
        check_replaceable(folder, "estimator.json")
        with atomic_folder(folder) as part:
            about = {"class": saved_name(type(self)), "settings": self.settings(), **self.write(part)}
            if (trace := getattr(self, "trace", None)) is not None:  # a user's own estimator may have no trace
                about |= {"importance": dict(trace.importance), "began": trace.began}
            # last: digests of all files except the one that holds the digests
            about["digests"] = digests_below(part, but="estimator.json")
            try:
                text = json.dumps(about, indent=1, ensure_ascii=False)
            except (TypeError, ValueError) as error:
                remedy = "Use text, numbers and lists"
                raise DataError(f"{self.name} has a setting that cannot be saved ({error})", remedy=remedy) from error
            (part / "estimator.json").write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read what ``save`` wrote; the loaded estimator predicts as the saved one did.

        Returns:
            An estimator of the saved class: one of the library's, or one that is already defined. Nothing that a file
            names is imported.

        Raises:
            MissingFileError, UnreadableFileError: there is nothing usable at ``folder``.
            DataError: it holds an estimator of another or an unknown class.
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
            # a file may name any class: only known classes are accepted, and nothing is imported for it
            kind = class_named(Estimator, name, cls)
        except DataError as error:
            raise DataError(error.problem, file=path, remedy=error.remedy) from None
        try:
            # XGBoost's reader ends the process on some damaged files: they must not reach it
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
        except Exception as error:  # safetensors and XGBoost raise their own exceptions for a damaged file
            raise _unreadable(path, error) from error
        return estimator


def _unreadable(path: Path, error: Exception) -> UnreadableFileError:
    return UnreadableFileError(
        f"the saved estimator cannot be read ({type(error).__name__}: {error})", file=path, remedy="Save it again"
    )


class Ranker(Estimator):
    """An estimator that only ranks the candidates of lists.

    Its ``fit`` and ``predict`` are given ``Lists``.
    """

    tasks = ("ranking",)


class Rule(Estimator):
    """An estimator with nothing to learn."""

    learns = False

    def fit(self, train: Rows, valid: Rows | None = None, *, seed: int = 0, device: torch.device | None = None) -> Self:
        """Return the rule unchanged: there is nothing to learn."""
        return self


class Wrapper(Estimator):
    """An estimator around another one, ``model``, whose name it takes; None: ``read`` sets it."""

    model: Any
    learned = ("model",)

    @property
    def name(self) -> str:  # type: ignore[override]
        """The name of the wrapped estimator."""
        return type(self).__name__ if self.model is None else self.model.name

    @property
    def learns(self) -> bool:  # type: ignore[override]
        """Same as for the wrapped estimator."""
        return self.model is None or self.model.learns

    @property
    def beside(self) -> bool:  # type: ignore[override]
        """Same as for the wrapped estimator."""
        return self.model is not None and self.model.beside

    def forget(self) -> None:
        """Drop what was learned."""
        super().forget()
        if self.model is not None:
            self.model = self.model.fresh()

    def begin(self, train: Rows) -> None:
        """Drop what was learned before fitting these rows; refuse rows that cannot be learned from."""
        self.check_task(train)
        if train.label is None:
            raise DataError(f"{self.name} was given rows without labels to learn from", remedy="Give label=")
        if self.model is None:
            raise self.not_fitted()
        self.forget()

    def start_from(self, other: Estimator) -> bool:
        """Let the wrapped estimator begin with the other's."""
        known = isinstance(other, type(self)) and other.model is not None and self.model is not None
        return known and self.model.start_from(other.model)

    def start_anew(self) -> None:
        """Let the wrapped estimator begin from scratch."""
        if self.model is not None:
            self.model.start_anew()

    def predict(self, data: Rows) -> torch.Tensor:
        """Return the predictions of the wrapped estimator."""
        if self.model is None:
            raise self.not_fitted()
        return self.model.predict(data)

    def settings(self) -> dict[str, Any]:
        """Return the constructor's arguments except ``model``, which is saved as a whole."""
        return {**super().settings(), "model": None}


ClassWeight = Literal["balanced"] | Mapping[int, float] | None


def learnable(rows: Rows, *, name: str) -> Rows:
    """Return rows of positive weight (ranking: those of ``whole_lists``); ``name``: the learner, for messages."""
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


def outputs_of(rows: Rows) -> list[torch.Tensor]:
    """Return the label ``[n]`` of each output: one per column if the label has columns, otherwise one."""
    return [rows.label] if rows.label.ndim == 1 else list(rows.label.unbind(1))


def output_weight(rows: Rows, label: torch.Tensor, class_weight: ClassWeight) -> torch.Tensor | None:
    """Return each row's weight for one output, times its class weight: float64 ``[n]``; None: equal weights.

    ``'balanced'``: all classes have the same total weight, and the sum over all rows is unchanged. Classes without a
    given weight have weight 1.
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
    """Return class weights with class numbers as keys, even if a file stored them as text."""
    if class_weight is None or class_weight == "balanced":
        return class_weight
    with suppress(AttributeError, TypeError, ValueError):
        weights = {int(number): float(value) for number, value in class_weight.items()}  # type: ignore[union-attr]
        if all(number >= 0 and 0 <= value < float("inf") for number, value in weights.items()):
            return weights
    remedy = "Give 'balanced', or {class number: weight}"
    raise DataError(f"{name} cannot use class_weight={class_weight!r}", remedy=remedy)


def check_classes(rows: Rows, class_weight: ClassWeight, *, name: str) -> None:
    """Refuse class weights for classes that do not exist."""
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
    """Join the predictions of all outputs: float64 ``[n]`` or ``[n, k]``; rows of a multiclass task then sum to 1."""
    if task == "multiclass":
        return parts[0] / parts[0].sum(1, keepdim=True)
    return parts[0] if len(parts) == 1 else torch.stack(parts, 1)


def held_out(rows: Rows, share: float = 1 / 8, seed: int = 0) -> Tensor:
    """Choose a share of the training rows as a hold-out for early stopping: bool ``[n]``.

    It is taken from the training rows so that the scored fold stays unseen. Groups stay whole. If there is an order,
    the last rows are held out (groups: by their last row), rows of equal time together. Otherwise rows are sampled by a
    hash of their number, stratified by class, or groups by a hash of their id; ``seed`` varies the hash. Rows with a
    guessed label are never held out. At least one row, time or group remains for training, and one row of every sampled
    class. If that is impossible, nothing is held out.
    """
    n = len(rows)
    if rows.guessed is not None and bool(rows.guessed.any()):
        known = ~rows.guessed
        held = torch.zeros(n, dtype=torch.bool)
        # without the columns: choosing rows does not need them, and taking rows would copy them
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
    """Return ``held_out``; None if nothing can be held out or too few classes remain for training."""
    held = held_out(rows, seed=seed)
    if not bool(held.any()) or bool(held.all()):
        return None
    if rows.task in ("binary", "multiclass") and rows.label is not None and len(rows.label[~held].unique()) < 2:
        return None
    return held


def some_held_out(rows: Rows, *, name: str) -> Tensor:
    """Return ``rows_to_stop_by``, and raise an error if it is None; ``name``: the learner, for messages."""
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
    """Choose the last rows, with rows of equal time together: the nearest number to the share, but never all."""
    times, counts = torch.unique(order, return_counts=True)
    if len(times) < 2:
        return torch.zeros(len(order), dtype=torch.bool)
    after = counts.flip(0).cumsum(0).flip(0)[1:]  # rows from each time on; the first time is always for training
    return order >= times[1:][(after - len(order) * share).abs().argmin()]


def _groups_out(rows: Rows, share: float, seed: int) -> Tensor:
    """Choose whole groups: the last ones if there is an order, otherwise those of the lowest hashes."""
    ids, codes, sizes = torch.unique(rows.groups, return_inverse=True, return_counts=True)
    if len(ids) < 2:
        return torch.zeros(len(codes), dtype=torch.bool)
    if rows.order is not None:
        _, places = torch.unique(rows.order, return_inverse=True)
        rank = -torch.zeros_like(ids).scatter_reduce_(0, codes, places, "amax", include_self=False)
    else:
        rank = row_folds(Table({"group": ids}), ["group"], limits.HELD_OUT_HASHES, seed=seed + limits.HELD_OUT_SEED)
    order = torch.argsort(rank, stable=True)
    sums = sizes[order].cumsum(0)[:-1]  # at least one group is for training
    many = int((sums - len(codes) * share).abs().argmin()) + 1
    held = torch.zeros(len(ids), dtype=torch.bool)
    held[order[:many]] = True
    return held[codes]
