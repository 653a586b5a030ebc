"""Groups, items and context of a table of candidates: which rows are one group, what they have in common."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from fastrec._core import limits, messages
from fastrec.auto.columns import _ID_NAME, ColumnInfo, Files
from fastrec.auto.problem import AutoDecision, Problem
from fastrec.errors import DataError, refuse_rows
from fastrec.table import Table

_WHOSE = r"(_?(id|key|uuid|no|nr|code))?s?$"
_GROUPS = re.compile(
    r"(?<![a-z])(session|search|srch|query|qid|q|group|list|slate|impressions?|request|user|customer|visitor|visit|"
    rf"display|page_?view|basket|order|auction|race|choice){_WHOSE}"
)
_PEOPLE = re.compile(r"user|customer|visitor|group")  # whose rows may be candidates, or samples of one person
_SIGNS = re.compile(r"\s*[|;,\s]\s*")  # between the candidates of a list in text
_ITEMS = re.compile(
    r"(?<![a-z])(item|product|prod|article|doc|document|movie|film|song|track|hotel|prop|property|ad|offer|candidate|"
    rf"url|news|sku|asin|isbn|book|video|recipe|business|poi|place|job|horse|option){_WHOSE}"
)


def words(name: str) -> str:
    """Return a column's name in snake case: ``sessionId`` is ``session_id``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def codes_of(column: pa.ChunkedArray) -> np.ndarray:
    """Return each row's number of its value, in order of appearance from 0; -1 for missing ones."""
    return pd.factorize(column.to_pandas())[0]


def is_number(kind: pa.DataType) -> bool:
    """Return whether values of a type are numbers or flags."""
    return any(f(kind) for f in (pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal))


def named_as_groups(name: str) -> bool:
    """Return whether a column's name says that its values are groups, as ``searchId`` does."""
    return _GROUPS.search(words(name)) is not None


def find_groups(known: pa.Table, columns: list[ColumnInfo], chosen: np.ndarray) -> tuple[list[str], bool]:
    """Find the columns of ``known`` whose values may be the groups of candidates, the likeliest first.

    ``chosen``: bool ``[n]``: whether the label is above 0. Returned is, too, whether one row of each group of the first
    column is chosen, which is so of hardly any other.
    """
    found = []
    for c in columns:
        if c.kind not in ("category", "number", "id", "text") or (c.kind == "number" and not c.whole) or c.missing:
            continue
        # A group has two candidates or more on average.
        if not limits.FEW_CLASSES < c.distinct <= len(known) / 2:
            continue
        codes = codes_of(known[c.name])
        rows, positives = np.bincount(codes), np.bincount(codes, chosen)
        one = bool((positives == 1).all())
        mixed = float(((positives > 0) & (positives < rows)).mean())
        named = named_as_groups(c.name)
        if one or (named and mixed >= limits.GROUPS_WITH_BOTH):
            found.append(((one, named, _ITEMS.search(words(c.name)) is None, c.distinct), c.name))
    found.sort(reverse=True)
    return [n for _, n in found], bool(found and found[0][0][0])


def are_candidates(
    known: pa.Table, target: str, group: str, look: Callable[[], list[ColumnInfo]]
) -> AutoDecision | None:
    """Decide whether rows that share a value of ``group`` are candidates; None: each row is predicted by itself.

    They are if one row of each group is chosen, or at most one though by chance some groups would have two. With more
    positives in a group they are if the candidates or the groups (session, query) are named so. Labels that are equal
    in a group, amounts and texts rank nothing. ``known``: rows with a target; ``look`` describes their columns.
    """
    column = known[target]
    codes = pd.factorize(known[group].to_pandas(), use_na_sentinel=False)[0]
    rows = np.bincount(codes)
    sure = AutoDecision("task", "ranking", f"rows of one {group} are candidates, one of which is chosen")
    number = is_number(column.type)
    distinct = 0 if pa.types.is_nested(column.type) else pc.count_distinct(column).as_py()
    # A ranking says why it cannot be learned: one value, or candidates in one row.
    if not distinct or (distinct == 1 and number):
        return sure
    if not number and any(_offers(known[n], column) for n in known.column_names if n not in (target, group)):
        return sure
    values = column.to_pandas()
    counted = number and bool((values >= 0).all())
    if distinct != 2 and not (counted and distinct <= limits.FEW_CLASSES and (values == np.floor(values)).all()):
        return None
    chosen = (values > 0 if counted else values == values.value_counts().idxmin()).to_numpy()
    positives = np.bincount(codes, chosen)
    if not ((positives > 0) & (positives < rows)).any():
        return None
    if (positives == 1).all():
        return sure
    one = positives.max() == 1 and (rows * (rows - 1) / 2).sum() * chosen.mean() ** 2 >= limits.PAIRS_BY_CHANCE
    named = named_as_groups(group) and not _PEOPLE.search(words(group))
    named = named or any(key[:2] == (True, True) for key, _ in _like_items(known, look(), group))
    if not one and not (named and counted):
        return None
    why = f"rows of one {group} are taken for candidates, of which {'one is' if one else 'some are'} chosen; for a "
    why += f"prediction of each row by itself, and folds that split no {group}, ask for task = 'binary' (or another)"
    return AutoDecision("task", "ranking", why, sure=one and named)


def refuse_absent(
    files: Files, name: str, what: str, roles: Sequence[str] = ("train", "test"), *, filled: bool = True
) -> None:
    """Refuse tables (``roles``) without a column, or (``filled``) without a value of it; ``what`` is for messages."""
    for role in (r for r in roles if r in files.tables):
        table, file = files.tables[role], files.folder / files.names.get(role, role)
        messages.refuse_absent([name], table.column_names, f"the {role} rows lack it", file=file)
        row = pc.index(table[name].is_null(nan_is_null=True), True).as_py() if filled else -1
        if row >= 0:
            remedy = f"Drop such rows, or give each its {what}"
            raise DataError(f"the row has no {what}", file=file, column=name, row=row, remedy=remedy)


def _offers(lists: pa.ChunkedArray, chosen: pa.ChunkedArray) -> bool:
    """Return whether what was chosen stands in lists of candidates, each in one row."""
    for pair in zip(lists.slice(0, 50).to_pylist(), chosen.slice(0, 50).to_pylist(), strict=True):
        offered, taken = (_SIGNS.split(v) if isinstance(v, str) else v if isinstance(v, list) else [] for v in pair)
        if not taken or len(offered) < 2 or not set(taken) <= set(offered):
            return False
    return True


def relevance(made: Problem, lists: str | None = None) -> np.ndarray:
    """Return each training row's label: float64 ``[n]``, 0 = not chosen, NaN = missing; refuse labels of other forms.

    ``lists``: the column of groups: groups without any label are dropped, all others must be labelled completely.
    """
    name, file = made.target[0], made.files.folder / made.files.names["train"]
    column = made.train[name]
    if not is_number(column.type):
        remedy = "Make it 1 for what was chosen and 0 for the others, or a grade from 0"
        offered = next((n for n in made.train.column_names if n != name and _offers(made.train[n], column)), None)
        if offered is not None:
            remedy = f"Give a row for each of {offered} (in pandas df.explode({offered!r}), of texts after "
            remedy += f".str.split), and label 1 where it is of {name}, else 0"
        raise DataError(f"the label is of type {column.type}, no number", file=file, column=name, remedy=remedy)
    flags = pa.types.is_boolean(column.type)
    values = (column.cast(pa.int8()) if flags else column).cast(pa.float64(), safe=False).to_numpy()
    missing = np.isnan(values)
    bad = ~missing & ~((values >= 0) & (values == np.floor(values)) & np.isfinite(values))
    remedy, about = "Give 0 or 1, or grades such as 0 to 4", {"file": file, "column": name}
    refuse_rows(bad, lambda row: f"the label is {values[row]:g}, no whole number from 0", remedy=remedy, **about)
    if missing.all():
        raise DataError("the label has no value", file=file, column=name, remedy="Name another label")
    if not (values > 0).any():
        remedy = "Give 1, or a grade, to what was chosen, or name another label"
        raise DataError("no row is a positive: the label is 0 in every row", file=file, column=name, remedy=remedy)
    if lists is None or not missing.any():
        return values
    codes = codes_of(made.train[lists])
    remedy = "Give 0 to what was not chosen; the rows of a group to predict have no label at all"
    said = "the label is missing, and other rows of the group {!r} have one"
    wrong = missing & (np.bincount(codes, ~missing) > 0)[codes]
    refuse_rows(wrong, lambda r: said.format(made.train[lists][r].as_py()), remedy=remedy, **about)
    made.files.tables["train"] = made.train.filter(pa.array(~missing))
    return values[~missing]


def understand_groups(made: Problem, label: np.ndarray, *, item: str | None, why: str, sure: bool) -> None:
    """Bring the rows of each group together, and find the column of the items (``item``, if it was asked for).

    ``label``: float64 ``[n]``; ``why``, ``sure``: about the column of groups. Groups from which nothing can be learned,
    or with an item twice, are refused.
    """
    lists, file = str(made.lists), made.files.folder / made.files.names["train"]
    codes = codes_of(made.train[lists])
    rows, positives = np.bincount(codes), np.bincount(codes, label > 0)
    if rows.max() == 1:
        remedy = "Name the column whose value the candidates of one group share"
        raise DataError("every group has one row: there is nothing to rank", file=file, column=lists, remedy=remedy)
    if not (positives < rows).any():
        problem = "every row is a positive: no group has a candidate that was not chosen"
        remedy = "Add the candidates that were not chosen, with label 0"
        raise DataError(problem, file=file, column=made.target[0], remedy=remedy)
    stretches = int((np.diff(codes) != 0).sum()) + 1
    positive_groups, single = int((positives > 0).sum()), int((rows == 1).sum())
    said = f"{len(rows):,} groups of {rows.mean():.3g} rows on average, "
    said += "one positive in each" if (positives == 1).all() else f"{positives.mean():.3g} positives in each"
    if positive_groups < len(rows):
        said += f"; {len(rows) - positive_groups:,} groups have no positive: they teach nothing and count 0"
    said += f"; {single:,} groups have one row" if single else ""
    said += "; rows of one group stand apart, and are brought together" if stretches > len(rows) else ""
    made.note("group", lists, f"{why}: {said}", sure=sure)
    _tell_of_order(made, codes, label > 0)
    _find_item(made, item)
    # The order in which a run lays the groups out.
    order = np.argsort(Table.read(made.train.select([lists]))[lists].group_numbers().cpu().numpy(), kind="stable")
    if (np.diff(order) != 1).any():
        made.files.tables["train"] = made.train.take(order)


def check_counted(made: Problem, label: np.ndarray) -> None:
    """Refuse a list of which some rows count and others do not, and lists that count without a positive."""
    real, codes = counted_rows(made), codes_of(made.train[str(made.lists)])
    about = {"file": made.files.folder / made.files.names["train"], "column": made.asked.counted}
    wrong = real != real[np.unique(codes, return_index=True)[1]][codes]
    refuse_rows(wrong, "other rows of its list have another value", remedy="Give a list one value", **about)
    if not (real & (label > 0)).any():
        raise DataError("no list that counts has a positive", remedy="Give 1 for lists with a positive", **about)


def counted_rows(made: Problem) -> np.ndarray:
    """Return which rows are of lists that count: bool ``[n]``."""
    return made.train[str(made.asked.counted)].cast(pa.float64()).to_numpy() > 0


def owner_of_lists(made: Problem) -> str:
    """Return the column that says whose a list is, such as the user: one may have lists that count, and others."""
    lists = codes_of(made.train[str(made.lists)])
    first = np.unique(lists, return_index=True)[1]
    for c in sorted((c for c in made.columns if c.name not in (made.lists, made.item)), key=lambda c: -c.distinct):
        column = made.train[c.name]
        if c.distinct > limits.FEW_CLASSES and (c.kind in ("category", "id") or pa.types.is_integer(column.type)):
            codes = codes_of(column)
            if (codes == codes[first][lists]).all():
                return c.name
    file, remedy = made.files.folder / made.files.names["train"], "Add it, as text or whole numbers"
    raise DataError("no column says whose the lists are that do not count", file=file, remedy=remedy)


def _tell_of_order(made: Problem, codes: np.ndarray, chosen: np.ndarray) -> None:
    """Note where the place in its group tells the positive: rows were not written in the order they were shown in."""
    order = np.argsort(codes, kind="stable")
    rows = np.bincount(codes)
    ends = rows.cumsum()
    first, last = chosen[order][ends - rows], chosen[order][ends - 1]
    several = (rows > 1) & (np.bincount(codes, chosen) > 0)
    for place, there in (("first", first), ("last", last)):
        # Among a few groups, or groups of two, it may be chance or the best place.
        if several.sum() >= limits.GROUPS_IN_ORDER and there[several].mean() >= limits.SAME_PLACE:
            made.as_shown = False
            why = f"a positive is the {place} row of its group nearly always: the file was written so, and other rows "
            why += "come in another order. Rows are shuffled within groups; write as_shown = True if they were shown so"
            made.note("as_shown", False, why, sure=False)
            return


def _like_items(rows: pa.Table, columns: Sequence[ColumnInfo], lists: str) -> list[tuple[tuple[Any, ...], str]]:
    """Return the columns that may name the candidates; the first of a key: its name says so."""
    like, groups = [], codes_of(rows[lists])
    for c in (c for c in columns if c.name != lists):
        whole = c.kind in ("category", "id", "text") or (c.kind == "number" and c.whole)
        named = _ITEMS.search(words(c.name)) is not None
        if not whole or c.missing or c.distinct < 2 or not (named or _ID_NAME.search(c.name)):
            continue
        twice = pd.DataFrame({"g": groups, "v": codes_of(rows[c.name])}).duplicated().mean()
        # Of a column that is one for a group, nearly every row has a value again; items come again in other groups.
        if twice <= limits.TWICE_IN_GROUP:
            like.append(((named, c.distinct < len(rows), -twice), c.name))
    return like


def _find_item(made: Problem, asked: str | None) -> None:
    like = [] if asked is not None else _like_items(made.train, made.columns, str(made.lists))
    found = asked or max(like, default=(None, None))[1]
    if found is None:
        made.note("item", None, "no column names what the candidates are: rows are numbered")
        return
    made.item = found
    for role in (r for r in ("train", "test") if r in made.files.tables):
        rows = made.files.tables[role]
        pairs = pd.DataFrame({n: codes_of(rows[n]) for n in (str(made.lists), made.item)})
        items, groups = (rows[n] for n in (made.item, made.lists))
        about = {"file": made.files.folder / made.files.names[role], "column": made.item}
        about["remedy"] = "Keep one row for each item of a group, or name another column of items"
        said = "the item {!r} stands twice in the group {!r}"
        twice = pairs.duplicated()
        refuse_rows(twice, lambda r, i=items, g=groups, s=said: s.format(i[r].as_py(), g[r].as_py()), **about)
    c = next((c for c in made.columns if c.name == made.item), None)
    why = "as was asked for" if asked is not None else "it names the candidates: hardly one is twice in a group"
    distinct = f", {c.distinct:,} different ones" if c is not None else ""
    made.note("item", made.item, why + distinct)


def shared_in_groups(made: Problem) -> list[str]:
    """Return the learned columns that have one value in all rows of a group: the context."""
    groups = codes_of(made.train[made.lists])
    starts = np.flatnonzero(np.diff(groups, prepend=-1))
    first = np.repeat(starts, np.diff([*starts, len(groups)]))
    columns = ((c.name, codes_of(made.train[c.name])) for c in made.learned if c.kind != "list")
    return [name for name, values in columns if (values == values[first]).all()]
