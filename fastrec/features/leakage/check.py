"""``check_leakage``: run a pipeline again on changed rows to find the columns that leak."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastrec.errors import DataError
from fastrec.features._engine.folds import given_folds
from fastrec.features._inputs import as_list
from fastrec.features.leakage.many import draws, leave_one_out, made_beforehand
from fastrec.features.leakage.report import LeakageReport
from fastrec.features.leakage.rows import CheckedRows, sample_rows
from fastrec.features.leakage.runs import FunctionRunner, Runner, SetRunner, as_features
from fastrec.features.leakage.tries import LeakCheck
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
    """Check whether a pipeline's columns give away the target or the future, by running it on changed rows.

    *Own target*: one row's target is changed, then many at random; no value may move with its own row's target.
    *Leave-one-out*: no value may tell its row's target within a key (columns of few distinct values, at most pairs),
    whatever the targets. *Outside*, *copy*, *row order*: a column that no target moves (in other tables or the frame
    too; tables are not varied) may not be a statistic of the target by key over all rows, nor map one to one to it, nor
    be the row number of a frame sorted by it. *Future* (with ``order``): rows from a time on are dropped, then
    shuffled; no earlier value may move. *Outer folds* (with ``folds``): a fold's targets are changed; no value of its
    rows may move, of a FeatureSet no value that ``cross_fit`` yields for it. Random runs and copies come first.

    A column without a leak found is not proved clean: means computed beforehand from other folds, or a noisy table of
    targets, pass. Effects that a very good column may show too are notes, not leaks.

    Args:
        pipeline: a FeatureSet, a generator, or a function from a frame to it with columns added (or only those), row
            for row. It runs some twenty times, thirty with ``order`` and ``folds``; a FeatureSet's state is unchanged.
        df: training rows of any supported library, with the target; not changed.
        target: the target column(s).
        order: the column(s) of time or steps. Rows of one time do not count as earlier.
        key: the column(s) of rows that belong together (a session); for one generator also the key of its folds. None:
            a FeatureSet's own.
        folds: the folds of the model's validation: integers ``[n]`` from 0, or a column's name.
        tables: other tables that a FeatureSet reads, by name; not changed.
        probes: the number of rows, of rare and of frequent keys, whose targets are changed one by one.
        seed: the seed of the choice of rows.
        max_rows: the largest number of rows checked: whole keys, or the earliest rows, or random ones.
        strict: report, instead of note, statistics that a FeatureSet learns from later training rows too (counts).

    Returns:
        The report: ``report.ok``, ``report.columns``, ``print(report)``, ``report.raise_for_leaks()``.

    Raises:
        DataError: nothing can be changed (one row, a constant target), or the pipeline fails or returns other rows.

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
    choice = CheckedRows.of(df, targets, times, keys, seed)
    outer = None if folds is None else given_folds(df, folds, choice.table).cpu()
    rows, given, whole = sample_rows(choice, max_rows), df, choice
    if len(rows) < len(whole.table):
        df, choice = take_rows(df, rows), choice.take(rows)
        outer = None if outer is None else outer[rows]
    runner: Runner = (
        SetRunner(features, tables) if features is not None else FunctionRunner(pipeline, targets, [*fixed, *targets])
    )
    check = LeakCheck(runner, runner.prepare(df, [*targets, *fixed]), choice, rows, strict)
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
