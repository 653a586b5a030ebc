"""What is to be predicted: target, task, metric, ids of the submission, and how the test was cut from the rows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from fastrec._core import limits
from fastrec.auto.columns import ColumnInfo, Files, look_at, look_at_column, names_something
from fastrec.auto.lists import (
    are_candidates,
    check_counted,
    codes_of,
    counted_rows,
    find_groups,
    is_number,
    named_as_groups,
    owner_of_lists,
    refuse_absent,
    relevance,
    shared_in_groups,
    understand_groups,
)
from fastrec.auto.logs import find_log
from fastrec.auto.problem import ALONE, Asked, AutoDecision, Problem
from fastrec.errors import DataError, FastrecError, refuse_rows, warn
from fastrec.features._engine.folds import row_folds
from fastrec.metrics import default_metric, get_metric, metrics_for
from fastrec.metrics.registry import TASKS
from fastrec.table import Table
from fastrec.validate.cuts import given_times
from fastrec.validate.mirror import AUTO, Mirror, mirror
from fastrec.validate.target import Task

_NAMES = re.compile(
    r"^(target|label|class|y|outcome|response|churn(ed)?|survived|default|click(s|ed)?|bought|booked|purchased?|ordered|chosen|relevance|sale_?price|sales|price|income.*|"
    r"is_.*|has_.*|.*_(target|label|class|flag))$",
    re.IGNORECASE,
)
_LARGEST = float(np.finfo("float32").max)  # models learn amounts as such
_SHARED = "share it"  # so ends the reason for leaving out what names a patient or the like
_LACKING = "the test rows do not have it"
_OF_ERRORS = ("rmsle", "rmspe", "mape", "smape")  # metrics of relative errors: amounts are learned as logarithms
_DAY_FIRST = ("%d/%m", "%d-%m")  # formats of dates that others write month first


def understand(files: Files, asked: Asked | None = None, **more: Any) -> Problem:
    """Find out what is to be predicted, and all that the user has not set in ``asked``.

    ``more`` has fields of ``asked`` by name.

    Raises:
        DataError: there is no usable target, a ranking's groups are not plain, or a setting does not fit the rows.
        MissingColumnError: the training rows lack a column that was named.
    """
    asked = replace(asked or Asked(), **more)
    asked = replace(asked, ids=[asked.ids] if isinstance(asked.ids, str) else asked.ids)
    if asked.task not in (None, *TASKS):
        remedy = "Choose one; for the next items of sessions write a NextItemCompetition (docs/sessions.md)"
        raise DataError(f"task={asked.task!r} is not one of {', '.join(TASKS)}", remedy=remedy)
    if asked.metric is not None:
        asked = replace(asked, metric=get_metric(asked.metric).name)
    if asked.owner is not None and files.log is None:
        problem = f"owner={asked.owner!r} says whose the events of a log are, and there is no log"
        raise DataError(problem, remedy="Give the log, log= (--log), or leave owner= (--owner) out")
    of_rankings = {"item": asked.item, "log": files.log, "owner": asked.owner, "counted": asked.counted}
    given = [n for n, v in of_rankings.items() if v is not None]
    if given and asked.task not in (None, "ranking"):
        raise DataError(f"{given[0]}= is of a ranking, and the task is {asked.task}", remedy="Leave it out")
    decisions = [AutoDecision(r, n, files.why[r]) for r, n in files.names.items()]
    names, how = _target(files, asked.target)
    decisions.append(how)
    _refuse_columns(files, names, asked)
    of_groups = asked.metric is not None and asked.task is None and get_metric(asked.metric).needs_groups
    if given or of_groups or asked.task == "ranking":
        return _ranking(files, names, decisions, asked, AutoDecision("task", "ranking", "as asked"))
    if asked.group is not None and asked.task is None and asked.positive is None and len(names) == 1:
        rows = _with_known_target(files, names)
        why = are_candidates(rows, names[0], asked.group, lambda: _look(files, rows, names, asked))
        if why is not None:
            try:
                return _ranking(files, names, decisions, asked, why)
            except DataError as error:  # it was a guess
                remedy = f"{error.remedy}. To predict each row by itself, with folds that split no {asked.group}, give "
                about = {"file": error.file, "column": error.column, "row": error.row}
                raise DataError(error.problem, **about, remedy=f"{remedy}task= (--task)") from None
    targets = [look_at_column(n, files.tables["train"][n]) for n in names]
    if amounts := [c for c in targets if c.numeric_text and c.distinct > limits.FEW_CLASSES]:
        _read_numbers(files, amounts)
    known = _with_known_target(files, names)
    found_task, why_task = _task(files, names, known, asked.task, asked.metric)
    decisions.append(why_task)
    sample = files.tables.get("sample")
    usual = None
    if sample is not None and found_task in ("binary", "multiclass") and names[0] in sample.column_names:
        shown, classes = (set(map(str, pc.unique(t[names[0]]).to_pylist())) for t in (sample, known))
        usual = "accuracy" if len(shown) > 1 and shown <= classes else None  # it holds classes, not probabilities
    columns = _look(files, known, names, asked)
    lists = None
    # One row of each group may have the rarer class: it was chosen.
    if found_task == "binary" and asked.task is None and asked.group is None and asked.positive is None:
        counts = pc.value_counts(known[names[0]]).to_pylist()
        rarer = pa.scalar(min(counts, key=lambda c: c["counts"])["values"], known[names[0]].type)
        found, one = find_groups(known, columns, pc.equal(known[names[0]], rarer).to_numpy(zero_copy_only=False))
        lists = found[0] if one else None
    if lists is not None:
        chosen = f"one row of each {lists} is chosen"
        flag = set(pc.unique(known[names[0]]).to_pylist()) == {0, 1}
        if flag and (asked.metric is None or "ranking" in get_metric(asked.metric).tasks):
            why = f"{chosen}; for a probability of each row by itself ask for task = 'binary'"
            return _ranking(files, names, decisions[:-1], asked, AutoDecision("task", "ranking", why, sure=False))
        chosen += "" if flag else " (make the label 1 for it, and 0 for the others)"
        why_task.why += f"; {chosen}: to rank them, ask for task = 'ranking'"
        why_task.sure = False
    values = np.zeros((0, len(names)))
    if found_task == "regression":
        scored_by, train = asked.metric or default_metric("regression"), files.tables["train"]
        values = np.stack([train[n].cast(pa.float64(), safe=False).to_numpy() for n in names], axis=1)
        if (bad := _unscored(scored_by, values)).any():
            row, at = np.argwhere(bad)[0].tolist()
            problem, file = f"{scored_by} does not score {values[row, at]:g}", files.folder / files.names["train"]
            remedy = "Give another metric, or drop such rows" if np.isfinite(values[row, at]) else "Drop such rows"
            remedy = "Give the target in a larger unit" if _LARGEST < abs(values[row, at]) < np.inf else remedy
            raise DataError(problem, file=file, column=names[at], row=row, remedy=remedy)
    metric = _metric(decisions, found_task, asked.metric, usual, values)
    made = Problem(files, columns, names, found_task, metric, decisions=decisions, asked=asked, refit=asked.refit)
    if found_task in ("binary", "multiclass"):
        made.classes = sorted(pc.unique(known[names[0]]).drop_null().to_pylist())
        alike = pd.Series([str(c).strip().casefold() for c in made.classes]).duplicated(keep=False)
        if alike.any():
            told = ", ".join(repr(c) for c, twice in zip(made.classes, alike, strict=True) if twice)
            why = f"the classes {told} differ in nothing but case and spaces: write them alike if they are the same"
            made.note("classes", told, why, sure=False)
    if asked.positive is not None:
        _positive(made, asked.positive)
    _names(made, known)
    _reading(made)
    known = _with_known_target(files, names)  # its times and numbers as such
    _ids(made, known)
    _drop(made, known)
    _split(made, known)
    _tell_leaks(made)
    made.scale = _scale(made, known)
    return made


def _refuse_columns(files: Files, names: list[str], asked: Asked) -> None:
    """Refuse columns that were asked for and are not there, are the target, or whose values cannot be used so."""
    for what in ("group", "item", "time", "owner", "weight", "counted", "ids"):
        given = getattr(asked, what)
        for name in given if what == "ids" else [] if given is None else [given]:
            if not isinstance(name, str):
                remedy = "Make the values a column of the table, and give its name"
                raise DataError(f"{what}= names a column, and this is of type {type(name).__name__}", remedy=remedy)
            if name in names:
                raise DataError(f"the target is {what}=, too", column=name, remedy="Name another column")
            if what in ("group", "weight", "counted", "ids"):
                refuse_absent(files, name, what, ["train"], filled=what == "group")
    train, file = files.tables["train"], files.folder / files.names["train"]
    if asked.counted is not None:
        flags = train[asked.counted]
        if pa.types.is_nested(flags.type) or not {0, 1} >= set(pc.unique(flags).to_pylist()) >= {1}:
            problem = "it does not say by 1 and 0 which lists are scored"
            remedy = "Give 1 for some lists, 0 for the others"
            raise DataError(problem, file=file, column=asked.counted, remedy=remedy)
    if asked.weight is None:
        return
    column, known = train[asked.weight], np.ones(len(train), dtype=bool)
    for n in names:  # rows to predict have no weight
        known &= train[n].is_valid().to_numpy()
    weight = np.full(len(train), np.nan)
    if is_number(column.type):
        weight = column.to_pandas().to_numpy(dtype="float64", na_value=np.nan)
    about = {"file": file, "column": asked.weight, "remedy": "Give a finite number, 0 for rows that are not to count"}
    wrong = known & ~((weight >= 0) & np.isfinite(weight))
    refuse_rows(wrong, lambda row: f"the weight is {column[row].as_py()!r}, no number of 0 or more", **about)
    if not weight[known].any():
        raise DataError("no row has a weight above 0", file=file, column=asked.weight, remedy="Name another column")


def _unscored(metric: str, amounts: np.ndarray) -> np.ndarray:
    """Return which amounts a metric does not score: those out of its range or of a model's, but no missing ones."""
    within = {"gamma_deviance": amounts > 0, "poisson_deviance": amounts >= 0, "rmsle": amounts > -1}
    within["quadratic_kappa"] = (amounts >= 0) & (amounts == np.floor(amounts))  # classes in order
    return ~(np.isnan(amounts) | (within.get(metric, True) & (np.abs(amounts) <= _LARGEST)))


def _positive(made: Problem, asked: Any) -> None:
    """Put the class that probabilities are of last; on the command line it is text."""
    known, column = ", ".join(map(str, made.classes[:12])), made.target[0]
    if made.task != "binary":
        remedy = "Leave it out" + f": each of {known} has its probability" * bool(known)
        raise DataError(f"positive= is of a binary task, and the task is {made.task}", column=column, remedy=remedy)
    one = next((c for c in made.classes if c == asked or str(c) == str(asked)), None)
    if one is None:
        raise DataError(f"no row has the class {asked!r}", column=column, remedy=f"Give one of {known} as positive=")
    made.positive, made.classes = one, [*(c for c in made.classes if c != one), one]


def _look(files: Files, known: pa.Table, names: list[str], asked: Asked) -> list[ColumnInfo]:
    test, skip = files.tables.get("test"), [*names, *filter(None, (asked.weight, asked.counted))]
    mixed = [n for n in files.reading.texts if test is not None and n not in skip and n in test.column_names]
    return look_at(known, skip, test.select(mixed) if mixed else None)


def _metric(decisions: list[AutoDecision], task: Task, asked: str | None, usual: str | None, values: np.ndarray) -> str:
    """Note the metric, and return it: what was asked for, or the usual one; others are those that score ``values``."""
    if asked is None:
        metric = usual or default_metric(task)
        others = ", ".join(n for n in metrics_for(task) if n != metric and not _unscored(n, values).any())
        why = "as the sample submission holds classes" if metric == "accuracy" else "the usual one"
        decisions.append(AutoDecision("metric", metric, f"{why}; others are {others}", sure=False))
        return metric
    if task not in get_metric(asked).tasks:
        raise DataError(f"{asked} is no metric of a {task} task", remedy=f"Use {', '.join(metrics_for(task))}")
    decisions.append(AutoDecision("metric", asked, "as was asked for"))
    return asked


def _ranking(
    files: Files, names: list[str], decisions: list[AutoDecision], asked: Asked, why_task: AutoDecision
) -> Problem:
    """Understand a ranking: which rows are one group, what names the items, what groups have in common."""
    if len(names) > 1:
        raise DataError(f"a ranking has one label, and there are {', '.join(names)}", remedy="Name one of them")
    files = replace(files, tables=dict(files.tables))  # its rows are put in order; another look begins with the file's
    decisions = [*decisions, why_task]
    made = Problem(files, [], names, "ranking", "", decisions=decisions, asked=asked, refit=asked.refit)
    for name, what in ((asked.group, "group"), (asked.item, "item")):
        if name is not None:
            refuse_absent(files, name, what)
    if asked.positive is not None:
        _positive(made, asked.positive)
    label = relevance(made)
    made.columns = _look(files, made.train, names, asked)
    made.lists, why, sure = _group(made, asked.group, label > 0)
    refuse_absent(files, made.lists, "group")
    label = relevance(made, made.lists)  # of the groups that have one
    graded = label.max() > 1 or pd.Series(label > 0).groupby(made.train[made.lists].to_pandas()).sum().max() > 1
    made.metric = _metric(made.decisions, "ranking", asked.metric, "ndcg@10" if graded else None, np.zeros(0))
    if asked.counted is not None:
        check_counted(made, label)
    understand_groups(made, label, item=asked.item, why=why, sure=sure)
    _reading(made)
    _ids(made, made.train)
    _drop(made, made.train)
    made.shared = shared_in_groups(made)
    _split_groups(made, asked.time)
    _tell_leaks(made)
    if files.log is not None:
        made.log = find_log(made, owner=asked.owner, time=asked.time)
    return made


def _group(made: Problem, asked: str | None, chosen: np.ndarray) -> tuple[str, str, bool]:
    """Return the column of groups, why, and whether it is plain."""
    if asked is not None:
        return asked, "as was asked for", True
    found, one = find_groups(made.train, made.columns, chosen)
    if not found:
        file, most = made.files.folder / made.files.names["train"], len(made.train) / 2
        single = [c.name for c in made.columns if c.distinct == len(made.train) and named_as_groups(c.name)]
        if single:
            problem = "there is one row for each value: of groups of one row there is nothing to rank"
            remedy = "Name the column whose value the candidates of one group share (group=, --group)"
            raise DataError(problem, file=file, column=single[0], remedy=remedy)
        may = []
        full = [c for c in made.columns if c.kind != "list" and not c.missing]
        for c in (c for c in full if limits.FEW_CLASSES < c.distinct <= most):
            codes = codes_of(made.train[c.name])
            if ((np.bincount(codes) > 1) & (np.bincount(codes, chosen) > 0)).any():
                may.append(c.name)
        if not may:
            problem = f"no column of more than {limits.FEW_CLASSES} values has several rows with a positive among them"
            remedy = "Add the column that candidates share; to predict each row by itself, leave task= (--task) out"
            raise DataError(problem, file=file, remedy=remedy)
        remedy = f"Name the column that they share (group=, --group): {', '.join(may[:12])}"
        raise DataError("it is not plain which rows are candidates of one group", file=file, remedy=remedy)
    why = "one row of each of its values is chosen" if one else "its name says so, and rows of most values are chosen"
    other = f"; it might be {', '.join(found[1:6])}" if len(found) > 1 and not one else ""
    return found[0], why + other, one or len(found) == 1


def _split_groups(made: Problem, asked: str | None) -> None:
    """Choose folds of whole groups as the test was split: in order of time, by user or the like, or at random."""
    if asked is not None:
        refuse_absent(made.files, asked, "time", ["train"], filled=False)
    if made.asked.counted is not None and asked is None and not counted_rows(made).all():
        made.group = owner_of_lists(made)
        made.shared = [n for n in made.shared if n != made.group]
        why = f"lists that do not count may be of the same {made.group} as others"
        made.note("folds", "group", f"whole groups of {made.lists}, by {made.group}: {why}")
        return
    names = [*made.shared, *([asked] if asked is not None and asked not in made.shared else [])]
    test, shared = made.files.tables.get("test"), [n for n in names if n in made.columns_of("test")]
    made.time = asked
    if test is None or not shared:
        notes = [f"whole groups of {made.lists} at random"]
        if test is None and asked is None:
            for c in (c for c in made.kinds("time")[:1] if c.name in made.shared):
                notes.append(f"if the groups to predict are later ones, give time={c.name!r} (--time {c.name})")
            for n in made.keys[:1]:
                notes.append(f"if they are of other values of {n}, write fold_key = {n!r} in the recipe")
        said = f"by {asked}, as was asked for" if asked is not None else "; ".join(notes)
        if odd := asked is not None and asked not in made.shared:
            said += f"; {asked} differs within groups, and a group's time is that of its first row"
        sure = len(notes) == 1 and not odd
        made.note("folds", "time" if asked else "random", said, sure=sure)
        return
    try:  # one row says all of a group
        first = (np.unique(codes_of(t[made.lists]), return_index=True)[1] for t in (made.train, test))
        rows = [Table.read(t.select(shared).take(at)) for t, at in zip((made.train, test), first, strict=True)]
        found = mirror(*rows, target=None, time=asked or AUTO, group=AUTO, folds=5)
    except FastrecError as error:
        made.note("folds", "random", f"whole groups at random ({error.problem})", sure=False)
        return
    if found.by == "random" and (last := _last_groups(made, *rows)) is not None:
        made.last_of, made.time, share = last
        why = f"the groups to predict are the last ones of their {made.last_of}, by {made.time}, and of {share:.0%} of "
        why += "them earlier ones are known: folds score the last group of each"
        made.note("folds", "last", why)
        return
    made.mirror = found
    made.time = found.column if found.by == "time" else None
    made.group = found.column if found.by == "group" else None
    made.shared = [n for n in made.shared if n != made.group]
    at_random = f"at random: {found.why.rpartition(': ')[2]}" if found.by == "random" else found.why
    made.note("folds", found.by, f"whole groups of {made.lists}, {at_random}")


def _last_groups(made: Problem, train: Table, test: Table) -> tuple[str, str, float] | None:
    """Find of what the groups to predict are the last ones, by which time, and what share of them has earlier ones."""
    for time in (c.name for c in made.kinds("time") if c.name in test and not c.missing):
        for name in (n for n in made.keys if n in test):
            ours, theirs = (pd.DataFrame(t.select([name, time]).to_pandas()).dropna() for t in (train, test))
            before = theirs.merge(ours.groupby(name)[time].max().rename("last"), left_on=name, right_index=True)
            share = len(before) / max(len(theirs), 1)
            if share >= limits.OWNED_GROUPS and (before[time] > before["last"]).mean() >= limits.SAME_PLACE:
                return name, time, share
    return None


def _target(files: Files, asked: str | Sequence[str] | None) -> tuple[list[str], AutoDecision]:
    train = files.tables["train"]
    if asked is not None:
        names = [asked] if isinstance(asked, str) else list(asked)
        if len(set(names)) < max(len(names), 1):
            problem = f"targets are named twice: {', '.join(names)}" if names else "no target is named"
            raise DataError(problem, remedy="Name each column to predict, once")
        for name in names:
            refuse_absent(files, name, "target", ["train"], filled=False)
        return names, AutoDecision("target", names if len(names) > 1 else names[0], "as was asked for")
    test, sample = files.tables.get("test"), files.tables.get("sample")
    own = [n for n in train.column_names if not n.startswith("__index_level_")]
    only = [n for n in own if test is not None and n not in test.column_names]
    wanted = sample.column_names if sample else []
    if values := [n for n in wanted if n in own and (test is None or n not in test.column_names)]:
        why = "the column that the sample submission wants"
        return values, AutoDecision("target", values if len(values) > 1 else values[0], why)
    if len(only) == 1:
        return only, AutoDecision("target", only[0], "the one column that the test rows lack")
    if named := [n for n in (only or own) if _NAMES.match(n)]:
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
    if not len(train):
        raise DataError("there are no rows", file=files.folder / files.names["train"], remedy="Give rows to learn from")
    known = reduce(pc.and_, (pc.is_valid(train[n]) for n in names))
    if not pc.any(known).as_py():
        raise DataError("the target has no value", column=names[0], remedy="Name another target")
    return train if pc.all(known).as_py() else train.filter(known)


def _task(
    files: Files, names: list[str], known: pa.Table, asked: Task | None, metric: str | None
) -> tuple[Task, AutoDecision]:
    columns = [known[n] for n in names]
    for n, c in zip(names, columns, strict=True):
        if pa.types.is_nested(c.type):
            remedy = "Name another target; to say which item follows a list of items, run competitions/diginetica"
            raise DataError("the target is a list, no single value", column=n, remedy=remedy)
    flags = [pa.types.is_boolean(c.type) for c in columns]
    numbers = [is_number(c.type) and not flag for c, flag in zip(columns, flags, strict=True)]
    if asked is not None:
        if asked == "regression" and not all(map(any, zip(numbers, flags, strict=True))):
            odd = numbers.index(False)
            problem = f"the target is of type {columns[odd].type}, and a regression learns numbers"
            remedy = "Make it a number, such as days since a date, or ask for another task"
            raise DataError(problem, column=names[odd], remedy=remedy)
        return asked, AutoDecision("task", asked, "as was asked for")
    if len(names) > 1:
        odd = next((i for i, both in enumerate(zip(numbers, flags, strict=True)) if not any(both)), None)
        if odd is not None:
            problem = f"several targets are numbers, or each 0 or 1, and this is of type {columns[odd].type}"
            remedy = "Fit it by itself, or make 0 and 1 of each of its classes"
            raise DataError(problem, column=names[odd], remedy=remedy)
        each = all(set(pc.unique(c).to_pylist()) <= {0, 1} for c in columns)
        task: Task = "multilabel" if each else "regression"
        return task, AutoDecision("task", task, f"{len(names)} targets{', each 0 or 1' * each}")
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
            problem = f"the target has {distinct} different values and is no number"
            raise DataError(problem, column=names[0], remedy="Name another target")
        if look_at(known.select(names))[0].kind == "time":
            told = f"the target's texts are dates, and each of the {distinct} is a class"
            warn(f"column {names[0]!r}: {told}. To predict when, make numbers of them, such as days since a date")
        return "multiclass", AutoDecision("task", "multiclass", f"{names[0]} has {distinct} texts")
    sample = files.tables.get("sample")
    texts = {str(c) for c in pc.unique(column).to_pylist()} if sample is not None else set()
    of_classes = [n for n in sample.column_names if {n, n.rpartition("_")[2]} & texts] if sample is not None else []
    if len(of_classes) >= max(len(texts), 3):
        return "multiclass", AutoDecision("task", "multiclass", "the sample submission has a column for each class")
    values = np.asarray(column.drop_null().cast(pa.float64(), safe=False))
    if (values == np.floor(values)).all() and distinct <= limits.FEW_CLASSES and len(values) >= 5 * distinct:
        steps = np.diff(np.unique(values))
        may_be: tuple[Task, str, Task] = ("multiclass", "amounts", "regression")
        if (steps > 1).any():
            may_be = ("regression", "classes", "multiclass")
        why = f"{names[0]} has {distinct} whole numbers; are they {may_be[1]}, write task = '{may_be[2]}'"
        return may_be[0], AutoDecision("task", may_be[0], why, sure=False)
    return "regression", AutoDecision("task", "regression", f"{names[0]} has {distinct} different numbers")


def _names(made: Problem, known: pa.Table) -> None:
    """Make keys of columns of whole numbers that name something, and categories of those in text, or if most do so.

    Text of few values names something if other columns are numbers by type; of all others the target decides.
    """
    typed = any(c.kind == "number" and not c.numeric_text for c in made.columns)
    if len(known) > limits.NAMES_ROWS:
        known = known.take(np.linspace(0, len(known) - 1, limits.NAMES_ROWS).astype(np.int64))
    labels = [known[n].to_pandas() for n in made.target]
    amounts = [pd.to_numeric(t).rank() for t in labels] if made.task == "regression" else []
    flags = [(t == v) * 1.0 for t in labels for v in t.value_counts().index[:10]]
    label = np.stack(amounts or flags, axis=1).astype(float)
    found = []
    # months such as c-8 are keys already, and have an order
    for c in (c for c in made.columns if c.kind == "number" and c.whole and not (c.numeric_text and c.key)):
        few = c.numeric_text and typed and c.distinct < limits.NAMES_FROM
        values = pd.to_numeric(known[c.name].to_pandas(), errors="coerce").astype(float).dropna()
        counts = values.value_counts()
        come_again = limits.NAMES_FROM <= len(counts) <= len(values) / 2
        rare = len(counts) and counts.iloc[0] <= limits.NAMES_COMMONEST * len(values)
        if few or (come_again and rare and names_something(values.to_numpy(), label[values.index])):
            c.key = 2 * len(counts) <= len(values)
            c.why = "whole numbers in text" if c.numeric_text else "numbers that name something"
            found.append(c)
    most = 2 * len(found) > len(made.learned)
    for c in found:
        if c.numeric_text or most:
            c.kind, c.whole, c.numeric_text = "category", not c.numeric_text, False


def _reading(made: Problem) -> None:
    """Note times and numbers in text in the recipe's reading; what an earlier look has made stands there already."""
    reading = made.files.reading
    reading.dates = {**reading.dates, **{c.name: c.form for c in made.columns if c.kind == "time" and c.parse}}
    _read_numbers(made.files, [c for c in made.columns if c.numeric_text])
    dates = [n for n, form in reading.dates.items() if (form or "").startswith(_DAY_FIRST)]
    if dates := [n for n in dates if pc.max(pc.day(made.train[n])).as_py() <= 12]:
        why = "read day first; month first would fit too: if so, write '%m/%d/%Y' or the like in `reading`"
        made.note("dates", dates, why, sure=False)


def _ids(made: Problem, known: pa.Table) -> None:
    test, sample = made.files.tables.get("test"), made.files.tables.get("sample")
    named = [n for n in sample.column_names if n not in made.target] if sample is not None else []
    if test is not None:
        named = [n for n in named if n in test.column_names]
    own = [c for c in made.columns if c.name in made.asked.ids and c.distinct == len(known)]
    # a fraction has no exact text, by which a submission would name the row
    found = [c.name for c in made.columns if c.kind == "id" or (c in own and (c.kind != "number" or c.whole))]
    submission = [n for n in named if n in made.train.column_names or test is not None]
    if made.task == "ranking":
        found = []  # a candidate is named by its group and its item
    made.ids = list(dict.fromkeys([*submission, *found]))
    if made.ids:
        made.note("ids", made.ids, "the sample submission's" if submission else "another value in every row")


def _drop(made: Problem, known: pa.Table) -> None:
    test = made.files.tables.get("test")
    for c in made.columns:
        if c.name in (*made.ids, made.lists, made.item):
            continue
        if c.name in made.asked.ids:  # not in every row another value: no id of a submission
            made.drop[c.name] = "as was asked for"
        elif (made.task == "ranking" and c.kind == "id") or c.kind in ("constant", "duplicate", "other"):
            made.drop[c.name] = c.why
        elif test is not None and c.name not in test.column_names:
            made.drop[c.name] = _LACKING
        elif (told := _tells_all(known, c, made)) is not None:
            made.drop[c.name] = told
    told = [n for n, reason in made.drop.items() if reason.startswith(ALONE)]
    if told and not made.learned:  # then they are all that there is
        made.drop = {n: reason for n, reason in made.drop.items() if n not in told}
        why = f"{', '.join(told)} alone tell the target, and there is nothing else: are they known when one predicts?"
        made.note("columns", told, why, sure=False)
    if lacking := [n for n, reason in made.drop.items() if reason == _LACKING]:
        why = f"{', '.join(lacking[:12])}: the test rows lack them, so they are not learned from"
        made.note("test columns", lacking, why, sure=False)
    told = [n for n in made.target if test is not None and n in test.column_names and test[n].null_count < len(test)]
    if told:
        why = f"the test rows have {', '.join(told)}, which is not used: compare their predictions with it"
        made.note("test target", told, why, sure=False)
    if made.drop:
        why = "as was asked for, or " * bool(made.asked.ids) + "nothing can be learned from them, or they tell too much"
        made.note("drop", list(made.drop), why)


def _tells_all(known: pa.Table, c: ColumnInfo, made: Problem) -> str | None:
    """Return why a column alone gives the target away, by its values or by where it has some; None: it does not."""
    of_values = c.kind in ("number", "category")
    if len(known) < 100 or made.task == "multilabel" or len(made.target) > 1 or not (of_values or c.missing):
        return None
    some = known.select([c.name, made.target[0]])
    # evenly spread, as rows may be sorted
    some = some if len(some) <= 50_000 else some.take(np.linspace(0, len(some) - 1, 50_000).astype(int))
    frame = some.replace_schema_metadata(None).to_pandas()  # pandas' own has all columns: slow for each
    frame = frame[frame[made.target[0]].notna()]
    if c.missing and made.task != "regression":
        same = _told_apart(frame[c.name].notna(), frame[made.target[0]], made)
        if same is not None:
            return f"{ALONE} tells the target by where it is missing ({same:.4f}): it may be known only afterwards"
    frame = frame.dropna()
    if len(frame) < 100 or not of_values:
        return None
    x, y = frame[c.name], frame[made.target[0]]
    if c.kind == "category" or (c.whole and (c.key or c.distinct <= limits.MANY_CLASSES)):
        distinct, amounts = x.nunique(), made.task == "regression"
        told = frame.groupby(c.name, observed=True)[made.target[0]].nunique().max() == 1 and distinct <= len(frame) / 5
        # Of amounts, things of several names may have one, as a price: a target in disguise has a name for each.
        if told and (not amounts or y.nunique() > max(0.95 * distinct, 1)):
            if c.key and distinct >= limits.FEW_CLASSES:
                return f"{ALONE} tells the target: all rows of one {c.name} {_SHARED}"
            return f"{ALONE} tells the target: it may be made of it, or known only afterwards"
        if c.kind == "category":
            return None
    if made.task == "regression":
        corr = abs(float(x.astype(float).rank().corr(y.astype(float).rank())))
        same = corr if corr >= limits.TOLD else None
    else:
        same = _told_apart(x.astype(float), y, made)
    return same and f"{ALONE} orders the target ({same:.4f}): it may be made of it, or known only afterwards"


def _tell_leaks(made: Problem) -> None:
    """Note each column that gives the target away, and how to keep it; what the folds go by is no feature anyhow."""
    for n, reason in made.drop.items():
        if reason.startswith(ALONE) and n not in (made.group, made.time):
            why = f"{n} is left out: {reason}. If it is known when one predicts, remove it from the recipe's drop"
            made.note("leak", n, why, sure=False)


def _told_apart(x: pd.Series, y: pd.Series, made: Problem) -> float | None:
    """Return the least AUC by which ``x`` tells classes apart that follow each other in its order; None: a low one."""
    x, y = x.rank(), y > 0 if made.task == "ranking" else y
    order, auc, least = x.groupby(y).mean().sort_values().index, get_metric("auc"), 1.0
    for a, b in pairwise(order):
        pair = y.isin([a, b])
        least = min(least, auc((y[pair] == b).astype(float), x[pair]))
        if least < limits.TOLD:
            return None
    return least


def _split(made: Problem, known: pa.Table) -> None:
    """Choose folds as was asked for, else as the test was split: in order of time, by group, or at random."""
    test, found, wrong = made.files.tables.get("test"), None, ""
    if test is not None:
        shared = [n for n in test.column_names if n in made.train.column_names and n not in made.target]
        try:
            train, rows = (Table.read(t.select(shared)) for t in (made.train, test))
            found = mirror(train, rows, target=None, time=AUTO, group=AUTO, folds=5)
        except FastrecError as error:
            wrong = error.problem
    if made.asked.group is not None or made.asked.time is not None:
        _split_as_asked(made, known, found)
        return
    if test is None:
        notes = ["rows at random, as no test says otherwise"]
        for c in made.kinds("time")[:1]:
            notes.append(f"if the rows to predict are later ones, give time= (--time), or write time = {c.name!r}")
        for n in made.keys[:1]:
            told = f"all rows of one {n} share the target: " if made.drop.get(n, "").endswith(_SHARED) else ""
            told += f"if the rows to predict are of another {n}, they are predicted worse than the score says"
            notes.append(f"{told}: give group={n!r} (--group {n}), or write fold_key = {n!r}")
        made.decisions.append(_folds(made, known, notes, sure=len(notes) == 1))
        return
    if found is None:
        made.note("folds", "random", f"rows at random ({wrong})", sure=False)
        return
    made.mirror = found
    made.time = found.column if found.by == "time" else None
    made.group = found.column if found.by == "group" else None
    made.ids = [n for n in made.ids if n != made.time]
    made.decisions.append(_folds(made, known, [found.why], by=found.by))


def _split_as_asked(made: Problem, known: pa.Table, found: Mirror | None) -> None:
    """Choose folds of whole groups, or forward in time, and note it if the test, ``found``, looks cut otherwise."""
    made.group, made.time = made.asked.group, made.asked.time
    name, by = (str(made.time), "time") if made.group is None else (made.group, "group")
    if made.group is not None and made.time is not None:
        remedy = "Give group= if the rows to predict are of new groups, time= if they are later rows of known ones"
        raise DataError("folds go by group= or by time=, and both are given", remedy=remedy)
    refuse_absent(made.files, name, by, ["train"])
    file, rows = made.files.folder / made.files.names["train"], Table.read(known.select([name]))
    if by == "time":
        try:
            distinct = len(given_times(rows, name, "time").ticks.unique())
        except FastrecError as error:
            raise error.of_file(file) from None
        folds, why = min(5, distinct - 1), "as was asked for: each fold learns from earlier rows alone"
        if folds < 2:
            remedy = "Name a column of three times or more, or leave time= (--time) out"
            problem = f"it has {distinct} different time{'s' * (distinct > 1)}, too few for folds"
            raise DataError(problem, file=file, column=name, remedy=remedy)
        if made.refit is None and "test" not in made.files.tables:
            made.refit = True
    else:
        distinct, why = pc.count_distinct(known[name]).as_py(), f"whole groups of {name}, as was asked for"
        # A trial has three folds: they are filled if five are.
        folds = next((n for n in (5, 3) if len(row_folds(rows, [name], n).unique()) == n), 0)
        if distinct == len(known) or not folds:
            few = f"its {distinct} groups do not fill three folds" if distinct > 1 else "there is one group only"
            problem = "every group has one row" if folds else few
            remedy = "Name the column whose value the rows of one group share, or leave group= out"
            raise DataError(problem, file=file, column=name, remedy=remedy)
        if made.asked.task is None:
            why += f"; to rank the rows of each {name} ask for task = 'ranking'"
    if sure := found is None or (found.by == by and (by == "time" or found.column == name)):
        made.mirror = found if found is not None and found.column == name else Mirror(by, name, why, folds)
        why = made.mirror.why
    else:
        made.mirror, why = Mirror(by, name, why, folds), f"{why}, though the test looks cut otherwise: {found.why}"
    made.ids = [n for n in made.ids if n != made.time]
    made.decisions.append(_folds(made, known, [why], by=by, sure=sure))


def _folds(made: Problem, known: pa.Table, notes: list[str], *, by: str = "random", sure: bool = True) -> AutoDecision:
    if share := _copies(known, made):
        said = "is a copy of another in all columns, and of copies some are learned and others scored"
        notes = [*notes, f"{share:.3g} of the rows {said}: the score is flattered unless you remove them"]
    return AutoDecision("folds", by, "; ".join(notes), sure=sure and not share)


def _copies(known: pa.Table, made: Problem) -> float:
    """Return the share of rows that copy another row; 0: few, as many as chance gives, or all in one group or time."""
    n, columns = len(known), sorted((c for c in made.learned if c.kind != "list"), key=lambda c: -c.distinct)
    keys = [k for k in (made.group, made.time) if k is not None and k in known.column_names]
    names, draw = [c.name for c in columns if c.name not in keys], np.random.default_rng(0)

    def distinct(names: Sequence[str], *, shuffled: bool = False) -> int:
        rows, found = np.zeros(n, dtype="int64"), 1
        for name in names:
            codes, values = pd.factorize(known[name].to_pandas(), use_na_sentinel=False)
            rows, of = pd.factorize(rows * len(values) + (draw.permutation(codes) if shuffled else codes))
            found = len(of)
            if found > (1 - 0.01) * n:  # copies of less than 1 % of the rows are not reported
                break
        return found

    copies = n - (several := distinct([*names, *made.target]))
    if copies < 0.01 * n or not names or (keys and distinct([*names, *made.target, *keys]) == several):
        return 0.0
    # Of few values rows are alike by chance: then their targets differ, or rows of shuffled columns are alike, too.
    chance = max(several - distinct(names), n - distinct(names, shuffled=True))
    return copies / n if chance < copies / 10 else 0.0


def _scale(made: Problem, known: pa.Table) -> str | None:
    if made.task != "regression" or len(made.target) > 1 or made.metric not in _OF_ERRORS:
        return None
    low = pd.Series(known[made.target[0]].to_pandas()).min()
    return None if low < 0 else "log1p" if low == 0 or made.metric == "rmsle" else "log"
