"""``TreeModel``: the common parts of boosted trees from every library: outputs, weights, early stopping, saving."""

from __future__ import annotations

import hashlib
import inspect
import math
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch

from fastrec._core import limits
from fastrec._core.messages import nearest
from fastrec.errors import DataError, OutOfTimeError, check_whole
from fastrec.estimators.base import (
    ClassWeight,
    Estimator,
    Trace,
    assembled,
    check_class_weight,
    check_classes,
    constant_of,
    learnable,
    output_weight,
    outputs_of,
    rows_to_stop_by,
)
from fastrec.table import Table, Vocab, load_state, save_state
from fastrec.table.keys import is_text
from fastrec.validate import Rows
from fastrec.validate.target import Task

_FOLDER = "vocabularies"


class TreeInputs:
    """The columns that trees learn from (``names``), and the codes of categories and text columns (``vocabs``)."""

    def __init__(self, names: Sequence[str], vocabs: Mapping[str, Vocab]) -> None:
        self.names, self.vocabs = list(names), dict(vocabs)

    @classmethod
    def fit(cls, rows: Rows, columns: Sequence[str] | None = None, keys: Sequence[str] = ()) -> TreeInputs:
        """Learn the codes of training rows; ``columns``: None: all; ``keys``: numbers to treat as categories."""
        names = rows.names if columns is None else list(columns)
        if not names or len(set(names)) < len(names):
            problem = (
                f"columns to learn from are named twice ({names})" if names else "there is no column to learn from"
            )
            raise DataError(problem, remedy="Name each once, in cats=[…] or conts=[…] of the rows")
        if (odd := next((n for n in keys if n not in names), None)) is not None:
            raise DataError("a key is no column that trees learn from", column=odd, remedy=f"Name some of {names[:5]}")
        texts = {n for n in names if (c := rows.table[n]).kind == "category" and is_text(c.distinct.type)}
        coded = (n for n in names if n in rows.cats or n in keys or n in texts)
        return cls(names, {n: Vocab.fit(rows.table[n]) for n in coded})

    def codes(self, table: Table, name: str) -> torch.Tensor:
        """Encode a category: int64 ``[n]`` on the table's device, 0 if missing or unseen in training."""
        return self.vocabs[name].encode(table[name])

    def matrix(self, table: Table) -> torch.Tensor:
        """Join the columns: float32 ``[n, columns]`` on the table's device, NaN if missing; categories by code."""
        result = torch.empty((len(table), len(self.names)), dtype=torch.float32, device=table.device)
        for i, name in enumerate(self.names):
            if name in self.vocabs:
                codes = self.codes(table, name).float()
                values = torch.where(codes > 0, codes, torch.nan)
            else:
                values = table[name].number(torch.float32)
            # libraries refuse infinite values
            result[:, i] = values.clamp(-limits.LARGEST_NUMBER, limits.LARGEST_NUMBER)
        return result

    def write(self, folder: Path) -> dict[str, Any]:
        """Write the vocabularies into an existing folder, and return what ``read`` needs besides."""
        save_state(folder / _FOLDER, {n: v.to_state() for n, v in self.vocabs.items()})
        return {"used": self.names}

    @classmethod
    def read(cls, folder: Path, about: Mapping[str, Any]) -> TreeInputs:
        """Restore what ``write`` wrote."""
        return cls(list(about["used"]), {n: Vocab.from_state(v) for n, v in load_state(folder / _FOLDER).items()})


class TreeStart:
    """The trees that a model begins with: for each output a booster, or a constant.

    A split knows a category only by its code. Trees are therefore continued only if every value keeps its code; with a
    new value they are grown anew. ``texts``, the boosters in the library's own format, determine the digest.
    """

    def __init__(
        self, inputs: TreeInputs, parts: Sequence[Any], task: Task | None, n_outputs: int, texts: Sequence[bytes]
    ) -> None:
        self.inputs, self.parts, self.task, self.n_outputs = inputs, list(parts), task, n_outputs
        digest = hashlib.sha256(repr([p for p in parts if isinstance(p, float)]).encode())
        for text in texts:
            digest.update(text)
        self._digest = digest.hexdigest()[:20]

    def __deepcopy__(self, memo: Any) -> TreeStart:
        return self  # it is never changed and may be large

    def __repr__(self) -> str:
        return f"TreeStart({self._digest})"

    def differs(self, inputs: TreeInputs, rows: Rows) -> str:
        """Return why the trees cannot be continued on rows of these inputs; empty: they can."""
        if (self.task, self.n_outputs) != (rows.task, rows.n_outputs):
            return "the classes or targets are others"
        if self.inputs.names != inputs.names:
            other = sorted(set(self.inputs.names) ^ set(inputs.names))
            return f"the columns are others ({', '.join(other[:3])})" if other else "the columns are in another order"
        if self.inputs.vocabs.keys() != inputs.vocabs.keys():
            return "other columns are categories"
        for name, vocab in inputs.vocabs.items():
            # A new value shifts the codes of all values after it in sorted order.
            if new := set(vocab.classes) - set(self.inputs.vocabs[name].classes):
                return f"{name} has new values ({', '.join(map(str, sorted(new, key=str)[:3]))})"
        return ""


@dataclass
class Deadline:
    """The time limit of a fit, or of one booster in it: ``seconds`` from now on, measured by ``clock``."""

    seconds: float
    clock: Callable[[], float] = time.monotonic
    may_hurry: bool = True  #: False: the learning rate is not raised; trees just stop when the time is over
    hurried: bool = field(default=False, init=False)  #: whether the learning rate was raised
    _first: float | None = field(default=None, init=False)
    _is_judged: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.began = self.clock()

    @property
    def is_over(self) -> bool:
        """Whether the time is used up."""
        return self.left == 0

    @property
    def left(self) -> float:
        """Seconds that are left, at least 0."""
        return max(self.seconds - (self.clock() - self.began), 0.0)

    def share(self, parts: int) -> Deadline:
        """Return an equal share of the remaining time, for the next of ``parts`` remaining parts."""
        return Deadline(self.left / parts, self.clock)

    def faster(self, done: int, wanted: int) -> float:
        """Return the factor by which to raise the learning rate after some rounds; 1: keep it.

        ``wanted``: rounds needed at the current rate. The first round is not timed because it includes preparation.
        """
        if self._first is None:
            self._first = self.clock()
            return 1.0
        took = self.clock() - self._first
        if self._is_judged or not self.may_hurry or (done < limits.JUDGED_ROUNDS and took < 0.1 * self.seconds):
            return 1.0
        self._is_judged = True
        possible = self.left / max(took / (done - 1), 1e-9)
        self.hurried = wanted > possible
        return min(max(wanted / max(possible, 1.0), 1.0), limits.FASTEST_TREES)

    def after_round(self, done: int, wanted: int, rate: float, set_rate: Callable[[float], Any]) -> bool:
        """Raise the rate if the rounds would not fit; return whether to stop. ``wanted``: the maximum of rounds."""
        times = self.faster(done, min(limits.BOOSTED_ROUNDS, wanted))
        if times > 1:
            set_rate(rate * times)
        return self.is_over


def catboost_in_time(
    deadline: Deadline, library: Any, params: Mapping[str, Any], pool: Any, rounds: int
) -> dict[str, Any]:
    """Return CatBoost's parameters with as many rounds as fit into the time and a learning rate to match.

    CatBoost cannot change its rate during training, so a few rounds are timed beforehand.
    """
    if not deadline.may_hurry:
        return dict(params)

    def seconds(few: int) -> float:
        began = deadline.clock()
        library.CatBoost({**params, "iterations": few}).fit(pool)
        return deadline.clock() - began

    first = each = seconds(1)
    beside = 0.0
    if first > deadline.left:
        raise OutOfTimeError(f"CatBoost takes {first:.1f} s for a round, and {deadline.left:.1f} s are left")
    if limits.JUDGED_ROUNDS * first <= deadline.left:
        each = max(seconds(limits.JUDGED_ROUNDS) - first, 1e-4) / (limits.JUDGED_ROUNDS - 1)
        beside = max(first - each, 0.0)  # preparation before the first round; training repeats it
    # plan for 85 % of the time, as rounds get slower
    possible = max(int(0.85 * (deadline.left - beside) / max(each, 1e-4)), 1)
    faster = min(max(min(limits.CATBOOST_ROUNDS, rounds) / possible, 1.0), limits.FASTEST_TREES)
    deadline.hurried = faster > 1
    return {**params, "iterations": min(rounds, possible), "learning_rate": params["learning_rate"] * faster}


def seconds_for(n: int, fit: Callable[[int], Any], deadline: Deadline) -> float:
    """Estimate the seconds of a fit on ``n`` rows from fits on few rows, doubling their number each time.

    The estimate may take a twentieth of the time. Return 0 if there are too few rows to judge by.
    """
    sizes, times = [500], []
    while sizes[-1] <= n // 2 and sum(times) <= 0.05 * deadline.seconds:
        began = deadline.clock()
        fit(sizes[-1])
        times.append(max(deadline.clock() - began, 1e-9))
        sizes.append(2 * sizes[-1])
    if not times:
        return 0.0
    far = min(len(times) - 1, 2)  # the growth over two doublings, as that over one is lost in noise
    power = math.log2(times[-1] / times[-1 - far]) / far if far else 1.0
    return times[-1] * (n / sizes[len(times) - 1]) ** min(max(power, 1.0), 3.0)  # at most cubic, to limit outliers


@dataclass
class TreeData:
    """Rows in the form that a tree library takes.

    ``values``: result of ``TreeModel._values``; ``label``, ``weight``: float64 ``[n]``; ``groups``: the list of each
    row, int64 from 0, ascending; None: not a ranking.
    """

    values: Any
    label: np.ndarray
    weight: np.ndarray | None
    groups: np.ndarray | None

    @property
    def sizes(self) -> np.ndarray:
        """The number of rows in each list."""
        return np.bincount(self.groups)


class TreeModel(Estimator):
    """Boosted trees for any task; a task with several targets gets one booster per target."""

    beside = True
    keeps_time = True
    objectives: ClassVar[Mapping[Task, tuple[str, ...]]]
    """Allowed prefixes of each task's objectives; the first is the default."""
    defaults: ClassVar[Mapping[str, Any]]
    aliases: ClassVar[Mapping[str, str]]
    """Aliases of parameters that have a default here or are tuned: alias → the name that is used."""
    suits: ClassVar[Mapping[str, tuple[str, str]]] = {}
    """Regression metric → the objective that optimises it, and the parameter that takes the metric's number."""
    elsewhere: ClassVar[Mapping[str, str]]
    """The library's parameters that are set by another argument here: parameter → that argument."""
    suffix: ClassVar[str]
    keys: Sequence[str] = ()
    """Numbers to treat as categories."""
    regrows = True
    """Whether to regrow trees on all rows after early stopping; False: it takes too long, as in trials."""
    margin: str | None = None
    """A column of scores that the trees start from."""

    def __init__(
        self, name: str, rounds: int, early_stopping_rounds: int | None, columns: Sequence[str] | None,
        class_weight: ClassWeight, objective: str | None, params: Mapping[str, Any],
    ) -> None:  # fmt: skip
        if (odd := next((n for n in params if n in self.elsewhere), None)) is not None:
            raise DataError(f"{type(self).__name__} does not take {odd}", remedy=f"Give it as {self.elsewhere[odd]}")
        check_whole(name, rounds=rounds, early_stopping_rounds=early_stopping_rounds)
        self.name, self.rounds, self.early_stopping_rounds = name, rounds, early_stopping_rounds
        self.columns = None if columns is None else list(columns)
        self.class_weight = check_class_weight(class_weight, name=name)
        self.objective, self.params = objective, dict(params)
        self.start_anew()
        self.forget()

    def suit(self, metric: str) -> None:
        """Take the objective that optimises a metric, unless one was given."""
        base, _, number = metric.partition("@")
        if self.objective is not None or base not in self.suits:
            return
        self.objective, parameter = self.suits[base]
        if self.objective.endswith("="):
            self.objective += number
        elif parameter:
            self.params = {parameter: float(number), **self.params}

    def forget(self) -> None:
        """Drop the trees."""
        super().forget()
        self._inputs = TreeInputs([], {})
        self._task: Task | None = None
        self._n_outputs = 1
        self._deadline: Deadline | None = None  # deadline of the output whose trees are being grown
        self._before: Any = None  # trees to continue, while an output's trees are being grown
        self._rounds = self.rounds  # the maximum for the current output; half as many for continued trees
        self._parts: list[Any] = []  # for each output, its trees or a constant

    def start_from(self, other: Estimator) -> bool:
        """Continue from another model's trees if columns, category values and outputs match; half the rounds follow."""
        alike = ("objective", "native_cats", "keys", "margin")
        if type(other) is not type(self) or any(getattr(other, n, None) != getattr(self, n, None) for n in alike):
            return False
        if other._task is None:
            return False
        texts = [self._text_of(part) for part in other._parts if not isinstance(part, float)]
        self._start = TreeStart(other._inputs, other._parts, other._task, other._n_outputs, texts)
        self.began_with = repr(self._start)
        return True

    def start_anew(self) -> None:
        """Let the next fit grow trees from scratch."""
        self._start: TreeStart | None = None
        self.began_with = ""  # identifies the initial trees: cached results of a run depend on it

    def fit(self, train: Rows, valid: Rows | None = None, *, seed: int = 0, device: torch.device | None = None) -> Self:
        """Grow the trees, without looking at ``valid``."""
        self.check_task(train)
        check_classes(train, self.class_weight, name=self.name)
        train = learnable(train, name=self.name)
        params = self._params(train, seed, device)
        # The early-stopping hold-out is part of the training rows: the fold that is scored stays unseen.
        held = None if self.early_stopping_rounds is None else rows_to_stop_by(train)
        used, rest = (train, None) if held is None else (train.take(~held), train.take(held))
        # Stopped trees are regrown on all rows only if the default loss stopped them.
        own = {"metric", "eval_metric"} & self._over_defaults().keys()  # unknown whether they are to be high or low
        guessed = train.guessed is not None and bool(train.guessed.any())
        regrown = held is not None and self.regrows and train.task != "ranking" and not own and not guessed
        # only now: if something above is refused, the existing trees are kept
        self.forget()
        self._inputs = TreeInputs.fit(train if regrown else used, self.columns, self.keys)
        start, began = self._started(used, device)
        parts = [(rows, self._values(rows, params)) for rows in (used, rest) if rows is not None]
        trace = Trace([], dict.fromkeys(self._inputs.names, 0.0), began)
        whole, outputs = None if self.time_limit is None else Deadline(self.time_limit), outputs_of(train)
        for i, label in enumerate(outputs):
            self._deadline = None if whole is None else whole.share(len(outputs) - i)
            # Libraries reject a constant target, or warn of it.
            if self.margin is None and bool((outputs_of(used)[i] == outputs_of(used)[i][0]).all()):
                self._parts.append(constant_of(label, None if train.weight is None else train.weight.double()))
                continue
            self._before = None if start is None or isinstance(start.parts[i], float) else start.parts[i]
            self._rounds = self.rounds if self._before is None else math.ceil(self.rounds / 2)
            with self._refusals_as_errors():
                trees, curve = self._stopped(parts, params, i)
                if regrown:
                    if i + 1 == len(outputs):
                        parts.clear()  # the columns of all rows take their place in memory
                    trees, curve = self._regrown(train, params, i, trees, curve)
                for name, gain in zip(self._inputs.names, self._gains(trees), strict=True):
                    trace.importance[name] += float(gain)
            self._parts.append(trees)
            which = {"output": i} if len(outputs) > 1 else {}
            trace.curves += [{"round": number, "held_out": float(v), **which} for number, v in enumerate(curve)]
        self._task, self._n_outputs, self._deadline, self._before = train.task, train.n_outputs, None, None
        self.trace = trace
        return self

    def _stopped(self, parts: Sequence[tuple[Rows, Any]], params: Mapping[str, Any], output: int) -> Any:
        matrices: list[Any] = []
        for rows, values in parts:  # the hold-out is binned by the bins of the training part
            matrices.append(self._matrix(self._data(rows, values, output), params, *matrices))
        return self._train(params, *matrices)

    def _regrown(
        self, train: Rows, params: Mapping[str, Any], output: int, trees: Any, curve: Sequence[float]
    ) -> tuple[Any, Sequence[float]]:
        """Grow trees on all rows, with the number of rounds that was best on the hold-out (scaled to more rows).

        For few rows, one hold-out of an eighth is too noisy, so the loss curves of several hold-outs are averaged.
        Trees whose learning rate was raised are kept.
        """
        deadline, curves = self._deadline, [np.asarray(curve)]
        each = 0.0 if deadline is None else 1.25 * (deadline.seconds - deadline.left)  # the last fit has more rows
        if not len(curve) or (deadline is not None and (deadline.hurried or deadline.left < each)):
            return trees, curve
        # if rows are ordered, only the last ones represent future rows
        several = len(train) <= limits.FEW_ROWS and train.order is None
        for seed in range(1, limits.STOP_DRAWS if several else 1):
            # half of the time is left to models that gain more from it
            late = deadline is not None and deadline.left < 2 * each + deadline.seconds / 2
            held = None if late else rows_to_stop_by(train, seed)
            if held is None:
                break
            sides = train.take(~held), train.take(held)
            label = outputs_of(sides[0])[output]
            if bool((label == label[0]).all()):
                continue
            if deadline is not None:
                self._deadline = Deadline(deadline.left - each, deadline.clock, may_hurry=False)
            parts = [(rows, self._values(rows, params)) for rows in sides]
            curves.append(np.asarray(self._stopped(parts, params, output)[1]))
        longest = max(map(len, curves))
        mean = np.mean([np.pad(c, (0, longest - len(c)), mode="edge") for c in curves], axis=0)
        if not np.isfinite(mean).all():
            return trees, curve
        self._deadline = None if deadline is None else Deadline(deadline.left, deadline.clock, may_hurry=False)
        self._rounds = math.ceil((int(mean.argmin()) + 1) * 8 / 7)  # the best number is of seven eighths of the rows
        return self._stopped([(train, self._values(train, params))], params, output)[0], mean.tolist()

    def refuse_unknown(self, known: Iterable[str]) -> None:
        """Refuse a parameter that the library does not know: it would ignore it silently."""
        known = {*known, *inspect.signature(type(self)).parameters}
        if (odd := next((n for n in self.params if n not in known), None)) is not None:
            near = nearest(odd, known)
            remedy = "Leave it out" if near is None else f"Did you mean {near}?"
            raise DataError(f"{self.name}: {type(self).__name__} does not use a parameter {odd!r} here", remedy=remedy)

    @contextmanager
    def _refusals_as_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            library = type(error).__module__.split(".")[0].strip("_")
            if library not in ("lightgbm", "xgboost", "catboost"):
                raise
            # A library's message may contain a stack trace.
            message = " ".join(str(error).split())[:300]
            remedy = f"Check the parameters {self.params}"
            raise DataError(f"{self.name}: {library} refuses to learn ({message})", remedy=remedy) from error

    def _started(self, used: Rows, device: torch.device | None) -> tuple[TreeStart | None, str]:
        """Return the trees to continue from, whose column encoding is reused, and a note for the trace."""
        if self._start is None:
            return None, ""
        differs = self._start.differs(self._inputs, used) or self._cannot_go_on(device)
        if differs:
            return None, f"grown anew: {differs}"
        # the existing trees split by their own codes
        self._inputs = self._start.inputs
        return self._start, "grown on the trees that were there"

    def _cannot_go_on(self, device: torch.device | None) -> str:
        """Return why the library cannot continue from trees of these columns; empty: it can."""
        return ""

    def _data(self, rows: Rows, values: Any, output: int) -> TreeData:
        label = outputs_of(rows)[output]
        weight = output_weight(rows, label, self.class_weight)
        groups = None
        if rows.task == "ranking":
            groups = torch.unique_consecutive(rows.groups, return_inverse=True)[1].numpy()
        return TreeData(values, label.double().numpy(), None if weight is None else weight.numpy(), groups)

    def _objective(self, task: Task) -> str:
        known = self.objectives[task]
        if self.objective is None:
            return known[0]
        if not self.objective.startswith(known):
            problem = f"{self.name} cannot learn a {task} task by the objective {self.objective!r}"
            raise DataError(problem, remedy=f"For this task it may be or begin with {', '.join(known)}")
        return self.objective

    def _over_defaults(self) -> dict[str, Any]:
        return {**self.defaults, **{self.aliases.get(n, n): v for n, v in self.params.items()}}

    def _by_place(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Convert constraints to the order of the columns."""
        monotone = params.get("monotone_constraints")
        if not isinstance(monotone, Mapping):
            return dict(params)
        names = self._inputs.names
        if (odd := next((n for n in monotone if n not in names), None)) is not None:
            problem = f"{self.name} has a constraint of a column that it does not use"
            raise DataError(problem, column=odd, remedy=f"Its columns are {', '.join(names[:5])}")
        return {**params, "monotone_constraints": [int(monotone.get(n, 0)) for n in names]}

    @abstractmethod
    def _params(self, train: Rows, seed: int, device: torch.device | None) -> dict[str, Any]:
        """Return the library's parameters, defaults included."""

    @abstractmethod
    def _values(self, rows: Rows, params: Mapping[str, Any]) -> Any:
        """Return the columns of rows in the form that the library takes."""

    @abstractmethod
    def _matrix(self, data: TreeData, params: Mapping[str, Any], ref: Any = None) -> Any:
        """Return labelled rows in the form that the library takes; ``ref``: the matrix whose bins to use."""

    @abstractmethod
    def _train(self, params: Mapping[str, Any], matrix: Any, held: Any = None) -> tuple[Any, Sequence[float]]:
        """Grow the trees of one output on top of ``_before``, within ``_deadline``.

        Returns the trees up to the best round, and the monitored value on ``held`` after each round. Without ``held``
        all rounds are grown.
        """

    @abstractmethod
    def _gains(self, trees: Any) -> Iterable[float]:
        """Return the total gain of each column."""

    @abstractmethod
    def _predicted(self, trees: Any, values: Any) -> torch.Tensor:
        """Predict with one output's trees: float64 ``[n]``, or ``[n, k]`` for a multiclass task."""

    def predict(self, data: Rows) -> torch.Tensor:
        """Return scores, probabilities or values, depending on the task: float64 ``[n]`` or ``[n, k]`` on the CPU."""
        if self._task is None:
            raise self.not_fitted()
        if not len(data):
            wide = self._task not in ("ranking", "binary") and self._n_outputs > 1
            return torch.zeros((0, self._n_outputs) if wide else 0, dtype=torch.float64)
        # Constants need no columns.
        values = self._values(data, {}) if any(not isinstance(part, float) for part in self._parts) else None
        constant = (len(data),)
        return assembled(
            [
                torch.full(constant, p, dtype=torch.float64) if isinstance(p, float) else self._predicted(p, values)
                for p in self._parts
            ],
            self._task,
        )

    @abstractmethod
    def _text_of(self, trees: Any) -> bytes:
        """Serialise one output's trees in the library's own format."""

    def _write_trees(self, trees: Any, path: Path) -> None:
        path.write_bytes(self._text_of(trees))  # the libraries' own writers raise their own errors for a full disk

    @abstractmethod
    def _read_trees(self, path: Path) -> Any:
        """Restore what ``_write_trees`` wrote."""

    def write(self, folder: Path) -> dict[str, Any]:
        """Write the trees of each output in the library's own format, and the vocabularies."""
        if self._task is None:
            raise self.not_fitted()
        constants = [part if isinstance(part, float) else None for part in self._parts]
        for i, part in enumerate(self._parts):
            if constants[i] is None:
                self._write_trees(part, folder / f"trees{i}{self.suffix}")
        learned = {"task": self._task, "n_outputs": self._n_outputs, "constants": constants}
        return {**self._inputs.write(folder), **learned}

    def read(self, folder: Path, about: Mapping[str, Any]) -> None:
        """Restore what ``write`` wrote."""
        self._inputs = TreeInputs.read(folder, about)
        self._n_outputs, self._task = int(about["n_outputs"]), about["task"]
        self._parts = [
            self._read_trees(folder / f"trees{i}{self.suffix}") if constant is None else float(constant)
            for i, constant in enumerate(about["constants"])
        ]
