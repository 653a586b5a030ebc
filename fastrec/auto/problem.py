"""What is to be predicted: target, task, metric, ids of the submission, and how the test was cut from the rows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from fastrec._core import limits
from fastrec.auto.columns import _ID_NAME, ColumnInfo, Files, look_at, numbers_in_text
from fastrec.errors import DataError, FastrecError, MissingColumnError
from fastrec.metrics import default_metric, get_metric, metrics_for
from fastrec.table import Table
from fastrec.validate.mirror import AUTO, Mirror, mirror
from fastrec.validate.target import Task

_NAMES = re.compile(
    r"^(target|label|class|y|outcome|response|churn(ed)?|survived|default|click(ed)?|sale_?price|sales|price|income.*|"
    r"is_.*|has_.*|.*_(target|label|class|flag))$",
    re.IGNORECASE,
)
_OF_ERRORS = ("rmsle", "rmspe", "mape", "smape")  # metrics of relative errors: amounts are learned as logarithms
_ALONE = "it alone"  # so begins the reason for leaving out a column that gives the target away
_DAY_FIRST = ("%d/%m", "%d-%m")  # formats of dates that others write month first


@dataclass
class AutoDecision:
    """A recipe's attribute that was decided, and why; not ``sure``: a person may know better."""

    what: str
    value: Any
    why: str
    sure: bool = True


@dataclass
class Problem:
    """A competition as it is understood.

    ``columns``: what each column but the target is; ``ids``, ``drop``: columns that are not learned from, the latter
    with the reason; ``mirror``: how the test was cut from the rows, where there is one; ``time``, ``group``: what the
    folds go by; ``scale``: how amounts are learned.
    """

    files: Files
    columns: list[ColumnInfo]
    target: list[str]
    task: Task
    metric: str
    classes: list[Any] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    drop: dict[str, str] = field(default_factory=dict)
    mirror: Mirror | None = None
    time: str | None = None
    group: str | None = None
    scale: str | None = None
    positive: Any = None
    decisions: list[AutoDecision] = field(default_factory=list)

    @property
    def train(self) -> pa.Table:
        """The training rows."""
        return self.files.tables["train"]

    @property
    def learned(self) -> list[ColumnInfo]:
        """The columns that are learned from."""
        apart = {*self.ids, *self.drop}
        return [c for c in self.columns if c.name not in apart]

    @property
    def keys(self) -> list[str]:
        """Columns whose values come again and name what a row is of: a user, a patient."""
        told = [n for n, why in self.drop.items() if why.startswith(_ALONE)]
        # A key has 1.5 rows a value or more: a row's own number is no key.
        most = len(self.train) / 1.5
        known = [c for c in self.columns if c.kind == "category" or (c.kind == "number" and c.whole)]
        known = [c for c in known if limits.FEW_CLASSES <= c.distinct <= most and c.name not in self.ids]
        return [c.name for c in known if _ID_NAME.search(c.name) or (c.key and c.name in told)]

    def kinds(self, *kinds: str) -> list[ColumnInfo]:
        """Return the learned columns of some kinds."""
        return [c for c in self.learned if c.kind in kinds]


def understand(
    files: Files, *, target: str | Sequence[str] | None = None, metric: str | None = None, task: Task | None = None
) -> Problem:
    """Find out what is to be predicted; target, task and metric where they are not given.

    Raises:
        DataError: there is no target, or it cannot be one; the task is a ranking.
        MissingColumnError: the training rows lack the column that was named.
    """
    if task == "ranking":
        raise DataError(
            "no recipe of a ranking is made by itself: files do not say which rows are one list",
            remedy="Write one with task = 'ranking', list_column, item and label, as 'A ranking of your own' in the "
            "docs (competitions) shows, and run it by fastrec run",
        )
    decisions = [AutoDecision(r, n, files.why[r]) for r, n in files.names.items()]
    names, how = _target(files, target)
    amounts = [numbers_in_text(n, files.tables["train"][n]) for n in names]
    amounts = [c for c in amounts if c is not None and c.distinct > limits.FEW_CLASSES]
    if amounts:
        _read_numbers(files, amounts)
    known = _with_known_target(files, names)
    found_task, why_task = _task(files, names, known, task, metric)
    decisions += [how, why_task]
    sample = files.tables.get("sample")
    holds_classes = False
    if sample is not None and found_task in ("binary", "multiclass") and names[0] in sample.column_names:
        values, classes = (set(map(str, pc.unique(t[names[0]]).to_pylist())) for t in (sample, known))
        holds_classes = len(values) > 1 and values <= classes
    if metric is None and holds_classes:
        metric, why = "accuracy", "the sample submission holds classes, not probabilities"
        decisions.append(AutoDecision("metric", metric, why, sure=False))
    elif metric is None:
        metric = default_metric(found_task)
        others = ", ".join(n for n in metrics_for(found_task) if n != metric)
        decisions.append(AutoDecision("metric", metric, f"the usual one; others are {others}", sure=False))
    elif found_task not in get_metric(metric).tasks:
        known_ones = f"Use {', '.join(metrics_for(found_task))}"
        raise DataError(f"{metric} is no metric of a {found_task} task", remedy=known_ones)
    else:
        decisions.append(AutoDecision("metric", metric, "as was asked for"))
    test = files.tables.get("test")
    mixed = [n for n in files.reading.texts if test is not None and n not in names and n in test.column_names]
    columns = look_at(known, names, test.select(mixed) if mixed else None)
    made = Problem(files, columns, names, found_task, metric, decisions=decisions)
    if found_task in ("binary", "multiclass"):
        made.classes = sorted(pc.unique(known[names[0]]).drop_null().to_pylist())
    lists = _one_in_each(known, made)
    if lists is not None and task is None:
        why_task.why += f"; one row of each {lists} is chosen: to rank them, see 'A ranking of your own' in the docs"
        why_task.sure = False
    _reading(made)
    known = _with_known_target(files, names)  # its times and numbers as such
    _ids(made)
    _drop(made, known)
    _split(made, known)
    made.scale = _scale(made, known)
    return made


def _target(files: Files, asked: str | Sequence[str] | None) -> tuple[list[str], AutoDecision]:
    train = files.tables["train"]
    if asked is not None:
        names = [asked] if isinstance(asked, str) else list(asked)
        absent = next((n for n in names if n not in train.column_names), None)
        if absent is not None:
            raise MissingColumnError(
                f"there is no such column; there are {', '.join(train.column_names[:20])}",
                file=files.folder / files.names["train"], column=absent, remedy="Check the spelling of the target",
            )  # fmt: skip
        return names, AutoDecision("target", names if len(names) > 1 else names[0], "as was asked for")
    test, sample = files.tables.get("test"), files.tables.get("sample")
    own = [n for n in train.column_names if not n.startswith("__index_level_")]
    only = [n for n in own if test is not None and n not in test.column_names]
    wanted = sample.column_names if sample else []
    values = [n for n in wanted if n in own and (test is None or n not in test.column_names)]
    if values:
        why = "the column that the sample submission wants"
        return values, AutoDecision("target", values if len(values) > 1 else values[0], why)
    if len(only) == 1:
        return only, AutoDecision("target", only[0], "the one column that the test rows lack")
    named = [n for n in (only or own) if _NAMES.match(n)]
    if named:
        best = max(named, key=lambda n: (n.lower() in ("target", "label", "y", "class"), own.index(n)))
        return [best], AutoDecision("target", best, "its name says so", sure=False)
    if only:
        why = f"one of {', '.join(only)}, which the test rows lack"
        return [only[-1]], AutoDecision("target", only[-1], why, sure=False)
    return [own[-1]], AutoDecision("target", own[-1], "the last column: nothing else says which it is", sure=False)


def _read_numbers(files: Files, columns: list[ColumnInfo]) -> None:
    """Note in the recipe's reading that columns are numbers in text, and convert the tables by it."""
    reading = files.reading
    reading.numbers = [*reading.numbers, *(c.name for c in columns)]
    reading.decimal_commas = [*reading.decimal_commas, *(c.name for c in columns if c.decimal_comma)]
    reading.texts = [n for n in reading.texts if n not in reading.dates and n not in reading.numbers]
    if reading.dates or reading.numbers:
        files.tables |= {r: reading.convert(t) for r, t in files.tables.items() if r in ("train", "test")}


def _with_known_target(files: Files, names: list[str]) -> pa.Table:
    """Return the training rows whose target is known."""
    train = files.tables["train"]
    known = pc.is_valid(train[names[0]])
    for n in names[1:]:
        known = pc.and_(known, pc.is_valid(train[n]))
    if not pc.any(known).as_py():
        raise DataError("the target has no value", column=names[0], remedy="Name another target")
    return train if pc.all(known).as_py() else train.filter(known)


def _task(
    files: Files, names: list[str], known: pa.Table, asked: Task | None, metric: str | None
) -> tuple[Task, AutoDecision]:
    columns = [known[n] for n in names]
    for n, c in zip(names, columns, strict=True):
        if pa.types.is_nested(c.type):
            raise DataError(
                "the target is a list, no single value", column=n,
                remedy="Name another target; to say which item follows a list of items, run competitions/diginetica",
            )  # fmt: skip
    numbers = [_is_number(c.type) for c in columns]
    if asked is not None:
        if asked == "regression" and not all(n or pa.types.is_boolean(c.type) for n, c in zip(numbers, columns)):
            odd = numbers.index(False)
            raise DataError(
                f"the target is of type {columns[odd].type}, and a regression learns numbers", column=names[odd],
                remedy="Make it a number, such as days since a date, or ask for another task",
            )  # fmt: skip
        return asked, AutoDecision("task", asked, "as was asked for")
    if len(names) > 1:
        flags = all(set(pc.unique(c).to_pylist()) <= {0, 1} for c in columns)
        task: Task = "multilabel" if flags else "regression"
        return task, AutoDecision("task", task, f"{len(names)} targets{', each 0 or 1' if flags else ''}")
    column, distinct = columns[0], pc.count_distinct(columns[0]).as_py()
    if metric is not None:
        fits = [t for t in get_metric(metric).tasks if t not in ("ranking", "multilabel")]
        may_be = {"binary": distinct == 2, "multiclass": 2 < distinct <= limits.MANY_CLASSES, "regression": numbers[0]}
        fits = [t for t in fits if may_be[t]]
        if len(fits) == 1:
            return fits[0], AutoDecision("task", fits[0], f"what {metric} scores")
    if distinct < 2:
        problem = "the target has one value only: there is nothing to learn"
        raise DataError(problem, column=names[0], remedy="Name another")
    if distinct == 2:
        return "binary", AutoDecision("task", "binary", f"{names[0]} has two values")
    if not numbers[0]:
        if pa.types.is_temporal(column.type) or distinct > max(limits.MANY_CLASSES, 0.2 * len(column)):
            raise DataError(
                f"the target has {distinct} different values and is no number", column=names[0],
                remedy="Name another target",
            )  # fmt: skip
        return "multiclass", AutoDecision("task", "multiclass", f"{names[0]} has {distinct} texts")
    sample = files.tables.get("sample")
    texts = {str(c) for c in pc.unique(column).to_pylist()} if sample is not None else set()
    of_classes = [n for n in sample.column_names if {n, n.rpartition("_")[2]} & texts] if sample is not None else []
    if len(of_classes) >= max(len(texts), 3):
        return "multiclass", AutoDecision("task", "multiclass", "the sample submission has a column for each class")
    values = np.asarray(column.drop_null().cast(pa.float64(), safe=False))
    if (values == np.floor(values)).all() and distinct <= limits.FEW_CLASSES and len(values) >= 5 * distinct:
        steps = np.diff(np.unique(values))
        if (steps == 1).all():
            why = f"{names[0]} has {distinct} whole numbers; are they amounts, write task = 'regression'"
            return "multiclass", AutoDecision("task", "multiclass", why, sure=False)
    return "regression", AutoDecision("task", "regression", f"{names[0]} has {distinct} different numbers")


def _one_in_each(known: pa.Table, made: Problem) -> str | None:
    """Find a column of lists in which one row each has the rarer class: one candidate of each was chosen."""
    if made.task != "binary" or len(made.target) > 1:
        return None
    counts = pc.value_counts(known[made.target[0]]).to_pylist()
    rarer = min(counts, key=lambda c: c["counts"])
    chosen = known.filter(pc.equal(known[made.target[0]], pa.scalar(rarer["values"], known[made.target[0]].type)))
    # A list has two candidates or more on average.
    most = len(known) / 2
    found = [c for c in made.columns if len(chosen) == c.distinct <= most and c.distinct > limits.FEW_CLASSES]
    return next((c.name for c in found if pc.count_distinct(chosen[c.name]).as_py() == c.distinct), None)


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def _reading(made: Problem) -> None:
    """Note times and numbers in text in the recipe's reading; what an earlier look has made stands there already."""
    reading = made.files.reading
    reading.dates = {**reading.dates, **{c.name: c.form for c in made.columns if c.kind == "time" and c.parse}}
    _read_numbers(made.files, [c for c in made.columns if c.numeric_text])
    dates = [n for n, form in reading.dates.items() if (form or "").startswith(_DAY_FIRST)]
    dates = [n for n in dates if pc.max(pc.day(made.train[n])).as_py() <= 12]
    if dates:
        why = "read day first; month first would fit too: if so, write '%m/%d/%Y' or the like in `reading`"
        made.decisions.append(AutoDecision("dates", dates, why, sure=False))


def _ids(made: Problem) -> None:
    test, sample = made.files.tables.get("test"), made.files.tables.get("sample")
    named = [n for n in sample.column_names if n not in made.target] if sample is not None else []
    if test is not None:
        named = [n for n in named if n in test.column_names]
    found = [c.name for c in made.columns if c.kind == "id"]
    submission = [n for n in named if n in made.train.column_names or test is not None]
    made.ids = list(dict.fromkeys([*submission, *found]))
    if made.ids:
        says = "the sample submission's" if submission else "another value in every row"
        made.decisions.append(AutoDecision("ids", made.ids, says))


def _drop(made: Problem, known: pa.Table) -> None:
    test = made.files.tables.get("test")
    for c in made.columns:
        if c.name in made.ids:
            continue
        if c.kind in ("constant", "duplicate", "other"):
            made.drop[c.name] = c.why
        elif test is not None and c.name not in test.column_names:
            made.drop[c.name] = "the test rows do not have it"
        else:
            told = _tells_all(known, c, made)
            if told is not None:
                made.drop[c.name] = told
    told = [n for n, reason in made.drop.items() if reason.startswith(_ALONE)]
    if told and not made.learned:  # then they are all that there is
        made.drop = {n: reason for n, reason in made.drop.items() if n not in told}
        why = f"{', '.join(told)} alone tell the target, and there is nothing else: are they known when one predicts?"
        made.decisions.append(AutoDecision("columns", told, why, sure=False))
    if made.drop:
        why = "nothing can be learned from them, or they tell too much"
        made.decisions.append(AutoDecision("drop", list(made.drop), why))


def _tells_all(known: pa.Table, c: ColumnInfo, made: Problem) -> str | None:
    """Return why a column alone gives the target away: it is computed from it and unknown at prediction time."""
    if len(known) < 100 or c.kind not in ("number", "category") or made.task == "multilabel" or len(made.target) > 1:
        return None
    some = known.select([c.name, made.target[0]])
    # evenly spread, as rows may be sorted
    some = some if len(some) <= 50_000 else some.take(np.linspace(0, len(some) - 1, 50_000).astype(int))
    frame = some.replace_schema_metadata(None).to_pandas().dropna()  # pandas' own has all columns: slow for each
    if len(frame) < 100:
        return None
    x, y = frame[c.name], frame[made.target[0]]
    if c.kind == "category" or (c.whole and c.distinct <= limits.MANY_CLASSES):
        if made.task == "regression":
            return None
        if frame.groupby(c.name, observed=True)[made.target[0]].nunique().max() == 1 and x.nunique() <= len(frame) / 5:
            return f"{_ALONE} tells the target: made of it, and not known when one predicts"
        if c.kind == "category":
            return None
    if made.task == "regression":
        same = abs(float(x.astype(float).rank().corr(y.astype(float).rank())))
    elif made.task == "binary":
        ranks, one = x.astype(float).rank(), (y == made.classes[-1]).to_numpy()
        pos, neg = one.sum(), (~one).sum()
        auc = (float(ranks[one].sum()) - pos * (pos + 1) / 2) / max(pos * neg, 1)
        same = max(auc, 1 - auc)
    else:
        return None
    if same < 0.9995:
        return None
    return f"{_ALONE} orders the target ({same:.4f}): made of it, and not known when one predicts"


def _split(made: Problem, known: pa.Table) -> None:
    """Choose folds as the test was split: in order of time, by group, or at random."""
    test = made.files.tables.get("test")
    if test is None:
        notes, otherwise = ["rows at random, as no test says otherwise"], "give test= or write"
        for c in made.kinds("time")[:1]:
            notes.append(f"if the rows to predict are later ones, {otherwise} time = {c.name!r} in the recipe")
        for n in made.keys[:1]:
            notes.append(f"if they have other values of {n}, {otherwise} fold_key = {n!r} in the recipe")
        made.decisions.append(_at_random(made, known, notes, sure=len(notes) == 1))
        return
    shared = [n for n in test.column_names if n in made.train.column_names and n not in made.target]
    try:
        train, rows = (Table.read(t.select(shared)) for t in (made.train, test))
        found = mirror(train, rows, target=None, time=AUTO, group=AUTO, folds=5)
    except FastrecError as error:
        made.decisions.append(AutoDecision("folds", "random", f"rows at random ({error.problem})", sure=False))
        return
    made.mirror = found
    made.time = found.column if found.by == "time" else None
    made.group = found.column if found.by == "group" else None
    if found.column in made.ids:
        made.ids = [n for n in made.ids if n != found.column] if found.by == "time" else made.ids
    at_random = found.by == "random"
    made.decisions.append(
        _at_random(made, known, [found.why]) if at_random else AutoDecision("folds", found.by, found.why)
    )


def _at_random(made: Problem, known: pa.Table, notes: list[str], *, sure: bool = True) -> AutoDecision:
    share = _copies(known, made)
    if share:
        said = "is a copy of another in all columns, and of copies some are learned and others scored"
        notes = [*notes, f"{share:.3g} of the rows {said}: the score is flattered unless you remove them"]
    return AutoDecision("folds", "random", "; ".join(notes), sure=sure and not share)


def _copies(known: pa.Table, made: Problem) -> float:
    """Return the share of rows that copy another row; 0: few, or as many as chance gives with few values."""
    n, columns = len(known), sorted((c for c in made.learned if c.kind != "list"), key=lambda c: -c.distinct)
    rows, distinct = np.zeros(n, dtype="int64"), 0
    for name in [*(c.name for c in columns), *made.target]:
        codes, values = pd.factorize(known[name].to_pandas(), use_na_sentinel=False)
        rows, found = pd.factorize(rows * len(values) + codes)
        distinct = len(found)
        # Copies of less than 1 % of the rows are not reported.
        if distinct > (1 - 0.01) * n:
            return 0.0
    return 1 - distinct / n if columns and columns[0].distinct > distinct / 2 else 0.0


def _scale(made: Problem, known: pa.Table) -> str | None:
    if made.task != "regression" or len(made.target) > 1 or made.metric not in _OF_ERRORS:
        return None
    low = pd.Series(known[made.target[0]].to_pandas()).min()
    return None if low < 0 else "log1p" if low == 0 or made.metric == "rmsle" else "log"
