"""``check_leakage``: runs a pipeline again on changed rows, and names the columns that know what they must not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastrec.errors import DataError
from fastrec.features._engine.folds import given_folds
from fastrec.features._inputs import as_list
from fastrec.features.leakage.many import draws, leave_one_out, made_beforehand
from fastrec.features.leakage.report import LeakageReport
from fastrec.features.leakage.rows import Choice, sample_rows
from fastrec.features.leakage.runs import FunctionRunner, Runner, SetRunner, as_features
from fastrec.features.leakage.tries import Check
from fastrec.table import take_rows


def check_leakage(
    pipeline: Any,
    df: Any,
    target: str | Sequence[str],
    order: str | Sequence[str] | None = None,
    *,
    key: str | Sequence[str] | None = None,
    folds: Any = None,
    tables: Mapping[str, Any] | None = None,
    probes: int = 8,
    seed: int = 0,
    max_rows: int = 5000,
    strict: bool = False,
) -> LeakageReport:
    """Whether a pipeline's columns give away the target or the future, found by changing rows and running it again.

    *Own target*: one row's target is changed, and none of its values may move; then those of many rows at random, seven
    times, to find the few rows that move with their own, and one of them is tried alone. *Leave-one-out*: whatever the
    targets are, no value may say its row's within a key (columns of few distinct values, two by two at most).
    *Outside*, *copy* and *row order* are of columns that no target moves, those of other tables and of the frame itself
    too (tables are not varied): none may be, exactly, a mean, sum or other statistic of the target by key over all rows
    given, nor stand one to one for it, nor be the place of a row in a frame that is sorted by it. *Future* (with
    ``order``): rows at or after a time are dropped, then mixed up, and no value before it may move. *Outer folds* (with
    ``folds``): a fold's targets are changed, and no value of its rows may move; of a FeatureSet, no value at all of
    what ``cross_fit`` gives for that fold. Runs that differ by themselves, and copies of the target, are told first.

    A column that stays still is not proved clean, only not caught: means that were made out of fold beforehand from
    other folds than the model's, say, or a table of targets with noise. What a very good column may do by right too
    (rows in the target's order, values that move with folds drawn by the targets) is noted, and is no leak.

    Args:
        pipeline: a FeatureSet, a generator, or any function that takes a frame and returns it with columns added (or
            only those), a row for every row. It is run some twenty times, with ``order`` and ``folds`` thirty; what a
            FeatureSet has learned stays as it is.
        df: training rows of any supported library, with the target; not changed.
        target: the target column(s).
        order: the column(s) that say what is earlier: a time, or a step. Rows of one time do not count as earlier.
        key: the column(s) of rows that belong together (a session); for one generator also the key of its folds. None:
            a FeatureSet's own.
        folds: the folds of the model's validation: integers ``[n]`` from 0, or a column's name.
        tables: other tables that a FeatureSet reads, by name (a function closes over its own); taken as they are.
        probes: how many rows' targets are changed, one after the other: rows of rare keys and of frequent ones.
        seed: of the choice of rows.
        max_rows: of more rows a part is checked: whole keys, or the earliest rows, or any.
        strict: also report what a FeatureSet learns from all training rows, later ones included (out of fold or not)
            (a count, say). It is only noted otherwise.

    Returns:
        The report: ``report.ok``, ``report.columns``, ``print(report)``, ``report.raise_for_leaks()``.

    Raises:
        DataError: there is nothing to change (one row, a constant target), or the pipeline fails or returns other rows.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import check_leakage
        >>> df = pd.DataFrame({"item": ["a", "a", "b", "b"], "clicked": [1, 0, 1, 1]})
        >>> def rates(df):
        ...     return df.assign(rate=df.groupby("item")["clicked"].transform("mean"))
        >>> report = check_leakage(rates, df, "clicked")
        >>> report.ok, report.columns, report.leaks[0].kind
        (False, ['rate'], 'own target')
    """
    if probes < 1 or max_rows < 2:
        raise DataError(
            f"check_leakage: probes={probes}, max_rows={max_rows} leave nothing to try",
            remedy="Use at least 1 probe and 2 rows",
        )
    features = as_features(pipeline, key)
    if features is None and not callable(pipeline):
        raise DataError(
            f"check_leakage: a {type(pipeline).__name__} is neither a FeatureSet nor a function",
            remedy="Give a FeatureSet, a generator, or a function from frame to frame",
        )
    targets, times = as_list(target), as_list(order)
    keys = as_list(key) or as_list(features.key if features is not None else None)
    fixed = list(dict.fromkeys([*keys, *times, *([folds] if isinstance(folds, str) else [])]))
    choice = Choice.of(df, targets, times, keys, seed)
    outer = None if folds is None else given_folds(df, folds, choice.table).cpu()
    rows, given, whole = sample_rows(choice, max_rows), df, choice
    if len(rows) < len(whole.table):
        df, choice = take_rows(df, rows), choice.take(rows)
        outer = None if outer is None else outer[rows]
    runner: Runner = (
        SetRunner(features, tables) if features is not None else FunctionRunner(pipeline, targets, [*fixed, *targets])
    )
    check = Check(runner, runner.prepare(df, [*targets, *fixed]), choice, rows, strict)
    check.twice()
    check.copies(fixed)
    check.own_targets(probes)
    drawn = draws(check)
    leave_one_out(check, drawn, df)
    made_beforehand(check, drawn, df, given, whole, fixed)
    if times:
        check.future()
    if outer is not None:
        check.outer_folds(outer)
    return check.report(len(whole.table))
