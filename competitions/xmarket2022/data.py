"""The four files of a market as lists of candidates: read, checked, and more lists made by hiding interactions."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import torch

from competitions.xmarket2022.describe import Lists, describe
from fastrec.competition import CompetitionData
from fastrec.errors import DataError, DataWarning, MissingFileError, UnreadableFileError
from fastrec.table import Table, Vocab, as_column, concat

RATED, CORE, RUN, QREL, TRUTH = "train.tsv", "train_5core.tsv", "valid_run.tsv", "valid_qrel.tsv", "test_qrel.tsv"
ROUNDS = 4  # how many interactions of a user are hidden in turn, to learn ranking from
LEAST = 3  # interactions: a user with fewer has none hidden
KEPT = 0.3  # of the other candidates of such a list: they teach as well as all do
HIDDEN_WEIGHT = 0.7  # of a list made so, beside a real one
_TYPES = {"userId": pa.string(), "itemId": pa.string(), "rating": pa.float64()}


@dataclass(frozen=True)
class Interactions:
    """Users and items, int64 ``[n]`` numbers, and float64 ``[n]`` ratings."""

    users: np.ndarray
    items: np.ndarray
    ratings: np.ndarray

    def take(self, rows: np.ndarray) -> Interactions:
        """Select ``rows`` (bool ``[n]`` or int64)."""
        return Interactions(self.users[rows], self.items[rows], self.ratings[rows])


@dataclass(frozen=True)
class Market:
    """A market's files by number.

    Args:
        user_ids, item_ids: what the numbers stand for (numbers are from 1).
        rated: ``train.tsv``.
        core: ``train_5core.tsv``.
        lists: the candidates of ``valid_run.tsv``.
        answers: int64 ``[lists]``: the item that a list's user took; 0: not known.
    """

    user_ids: Vocab
    item_ids: Vocab
    rated: Interactions
    core: Interactions
    lists: Lists
    answers: np.ndarray


def read(folder: Path, *, rows: int | None = None, device: torch.device) -> CompetitionData:
    """Read the files into a table of candidates, described by their scores.

    Lists whose user has a line in ``valid_qrel.tsv`` are for training, the others are the test.

    Args:
        folder: holds the four files; ``test_qrel.tsv``, the answers of the test, is used for the final score
            where it is there.
        rows: use only the first training lists, of about this many candidates.
        device: where the tables go.

    Raises:
        FastrecError: a file is missing, unreadable, or not of this form.
    """
    market = read_market(folder)
    known = market.answers > 0
    if rows is not None:
        before = np.concatenate([[0], np.cumsum(market.lists.sizes * known)[:-1]])
        known &= before < rows
    if not known.any():
        raise DataError(
            "no user of the run file has a line", file=folder / QREL, remedy="Give the answers to learn from"
        )
    lists = market.lists
    scored = describe(market.rated, market.core, lists)
    real = lists.rows(known)
    parts = [_table(market, lists.take(known), {n: v[real] for n, v in scored.items()}, market.answers[known])]
    for turn in range(ROUNDS):
        parts.append(_hidden(market, known, turn))
    train = concat(_numbered([p for p in parts if len(p)]))
    asked = market.answers == 0
    test = _table(market, lists.take(asked), {n: v[lists.rows(asked)] for n, v in scored.items()})
    targets = Table({"userId": market.user_ids.decode(torch.from_numpy(lists.users[asked]))})
    truth_file = folder / TRUTH
    truth = _truth(truth_file, market, asked) if truth_file.exists() and asked.any() else None
    return CompetitionData(train.to(device), test.to(device), targets, truth=truth)


def read_market(folder: Path) -> Market:
    """Read and check the files, users and items by number."""
    if not folder.is_dir():
        raise MissingFileError("there is no such folder", file=folder, remedy=f"Give the folder of {RUN} with --data")
    rated, core = (_read_ratings(folder / name) for name in (RATED, CORE))
    users, items, sizes = _read_run(folder / RUN)
    qrel = _read_ratings(folder / QREL)
    user_ids, item_ids = (
        Vocab.fit(as_column(pa.concat_arrays([*(_whole(t[n]) for t in (rated, core)), more]), name=n))
        for n, more in (("userId", users), ("itemId", items))
    )
    lists = Lists(_codes(user_ids, users), _codes(item_ids, items), sizes)
    _refuse_repeats(lists, folder / RUN)
    answers = _answers(qrel, folder / QREL, user_ids, item_ids, lists)
    numbered = (_by_number(t, user_ids, item_ids) for t in (rated, core))
    kept = [_without_candidates(t, lists, folder / n) for t, n in zip(numbered, (RATED, CORE))]
    return Market(user_ids, item_ids, *kept, lists, answers)


# Reading -------------------------------------------------------------------------------------------------------------


def _read_ratings(path: Path) -> Table:
    table = Table.read(path, list(_TYPES), types=_TYPES, device="cpu")
    for name in _TYPES:
        missing = table[name].is_missing()
        if bool(missing.any()):
            row = int(missing.nonzero()[0])
            raise DataError("a value is missing", file=path, column=name, row=row, remedy="Mend or drop the row")
    return table


def _read_run(path: Path) -> tuple[pa.Array, pa.Array, np.ndarray]:
    """Read users, their concatenated candidates, and how many each has. The file has no header."""
    if not path.is_file():
        raise MissingFileError("there is no such file", file=path, remedy="Put the market's run file there")
    try:
        table = pa_csv.read_csv(
            path,
            read_options=pa_csv.ReadOptions(column_names=["userId", "candidates"]),
            parse_options=pa_csv.ParseOptions(delimiter="\t", quote_char=False),
            convert_options=pa_csv.ConvertOptions(column_types={"userId": pa.string(), "candidates": pa.string()}),
        )
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise UnreadableFileError(
            f"it cannot be read ({str(error).splitlines()[0]})",
            file=path,
            remedy="A line is a user, a tab, and the candidates with commas between them; there is no header",
        ) from error
    users, text = _whole(table["userId"]), _whole(table["candidates"])
    split = pc.split_pattern(text, ",")
    items = split.flatten()
    empty = np.flatnonzero(pc.equal(items, "").to_numpy(zero_copy_only=False))
    sizes = pc.list_value_length(split).to_numpy(zero_copy_only=False)
    if len(empty):
        row = int(np.searchsorted(np.cumsum(sizes), empty[0], side="right"))
        raise DataError("a candidate is empty", file=path, row=row, remedy="Put one comma between two ids")
    codes = users.dictionary_encode().indices.to_numpy()
    again = np.flatnonzero(np.diff(np.maximum.accumulate(codes), prepend=-1) == 0)
    if len(again):
        problem = f"the user {users[int(again[0])].as_py()!r} has an earlier line too"
        raise DataError(problem, file=path, row=int(again[0]), remedy="Keep one line a user")
    return users, items, sizes.astype(np.int64)


def _refuse_repeats(lists: Lists, path: Path) -> None:
    pairs = np.stack([lists.of, lists.items])
    order = np.lexsort(pairs[::-1])
    twice = (pairs[:, order[1:]] == pairs[:, order[:-1]]).all(0)
    if twice.any():
        row = int(lists.of[order[1:][twice]].min())
        raise DataError("a candidate is listed twice", file=path, row=row, remedy="Keep it once")


def _answers(qrel: Table, path: Path, user_ids: Vocab, item_ids: Vocab, lists: Lists) -> np.ndarray:
    """Return the answer of each list; 0: not known. One that is no candidate is not used, and counts as not found."""
    users, items = user_ids.encode(qrel["userId"]).numpy(), item_ids.encode(qrel["itemId"]).numpy()
    line = np.full(len(user_ids), -1)
    line[lists.users] = np.arange(len(lists.users))
    at = np.where(users > 0, line[users], -1)
    for bad, problem in ((at < 0, "the user has no line in the run file"), (_repeated(at), "the user has two answers")):
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            raise DataError(problem, file=path, column="userId", row=row, remedy=f"Give the answers to {RUN}")
    listed = np.isin(at * len(item_ids) + items, lists.of * len(item_ids) + lists.items) & (items > 0)
    if not listed.all():
        warnings.warn(
            f"{path}: {int((~listed).sum())} answers are not among their user's candidates (the first is in row "
            f"{int(np.flatnonzero(~listed)[0])}): they are left out",
            DataWarning,
            stacklevel=2,
        )
    answers = np.zeros(len(lists.users), dtype=np.int64)
    answers[at[listed]] = items[listed]
    return answers


def _repeated(values: np.ndarray) -> np.ndarray:
    first = np.unique(values, return_index=True)[1]
    return ~np.isin(np.arange(len(values)), first)


def _by_number(table: Table, user_ids: Vocab, item_ids: Vocab) -> Interactions:
    users, items = user_ids.encode(table["userId"]).numpy(), item_ids.encode(table["itemId"]).numpy()
    return Interactions(users, items, table["rating"].number().numpy())


def _without_candidates(known: Interactions, lists: Lists, path: Path) -> Interactions:
    """Drop interactions that are candidates too, as they would tell the answers."""
    asked = np.isin(_pairs(known.users, known.items), _pairs(lists.users[lists.of], lists.items))
    if asked.any():
        warnings.warn(
            f"{path}: {int(asked.sum())} interactions are candidates of their user too (the first is row "
            f"{int(np.flatnonzero(asked)[0])}): they are left out",
            DataWarning,
            stacklevel=2,
        )
    return known.take(~asked)


def _truth(path: Path, market: Market, asked: np.ndarray) -> torch.Tensor:
    lists = market.lists.take(asked)
    answers = _answers(_read_ratings(path), path, market.user_ids, market.item_ids, lists)
    return torch.from_numpy((answers[lists.of] == lists.items).astype(float))


# Lists to learn from -------------------------------------------------------------------------------------------------


def _hidden(market: Market, known: np.ndarray, turn: int) -> Table:
    """Make lists like the real ones: of every training user one interaction is hidden, and takes the answer's place.

    Scores are learned anew without the hidden interactions. Other candidates are the user's own of the run file.
    """
    lists, core = market.lists, market.core
    users = np.where(known, lists.users, -1)
    chosen = hidden_rows(core, lists.users[known], turn)
    item_of = np.zeros(len(market.user_ids), dtype=np.int64)
    item_of[core.users[chosen]] = core.items[chosen]
    has = known & (item_of[lists.users] > 0)
    if not has.any():
        return Table({})
    gone = _pairs(core.users[chosen], core.items[chosen])
    rated, core = (x.take(~np.isin(_pairs(x.users, x.items), gone)) for x in (market.rated, core))
    part = lists.take(has)
    answers, hidden = market.answers[has], item_of[users[has]]
    items = np.where(part.items == answers[part.of], hidden[part.of], part.items)
    part = replace(part, items=items)
    scored = describe(rated, core, part)  # places and gaps are those in the whole list
    kept = (items == hidden[part.of]) | (np.random.default_rng(turn).random(len(items)) < KEPT)
    sizes = np.bincount(part.of[kept], minlength=len(part.sizes))
    less = replace(part, items=items[kept], sizes=sizes)
    return _table(market, less, {n: v[kept] for n, v in scored.items()}, hidden, weight=HIDDEN_WEIGHT)


def hidden_rows(core: Interactions, users: np.ndarray, turn: int) -> np.ndarray:
    """Return rows to hide: of each user the one in place ``turn`` of an order drawn once, or none.

    Args:
        core: the interactions to choose from.
        users: whose are hidden.
        turn: from 0.
    """
    pairs, rows = np.unique(_pairs(core.users, core.items), return_index=True)
    owner = core.users[rows]
    drawn = np.random.default_rng(0).random(len(pairs))
    order = np.lexsort([drawn, owner])
    counts = np.bincount(owner)
    place = np.arange(len(order)) - (np.cumsum(counts) - counts)[owner[order]]
    left = counts[owner[order]]
    chosen = (place == turn) & (left >= LEAST) & np.isin(owner[order], users)
    return rows[order[chosen]]


def _pairs(users: np.ndarray, items: np.ndarray) -> np.ndarray:
    return users.astype(np.int64) << 32 | items


def _table(
    market: Market,
    lists: Lists,
    scored: dict[str, np.ndarray],
    answers: np.ndarray | None = None,
    *,
    weight: float = 1.0,
) -> Table:
    """Return candidates as a table: ids, the list, descriptions, and the label where answers are known."""
    columns = {
        "list_id": lists.of,
        "userId": market.user_ids.decode(torch.from_numpy(lists.users[lists.of])),
        "itemId": market.item_ids.decode(torch.from_numpy(lists.items)),
        **scored,
    }
    if answers is not None:
        columns["taken"] = (lists.items == answers[lists.of]).astype(float)
        columns["weight"] = np.full(len(lists.items), weight)
        columns["is_real"] = np.full(len(lists.items), int(weight == 1.0))
    return Table(columns)


def _numbered(tables: list[Table]) -> list[Table]:
    """Concatenate tables; the numbers of lists continue from one to the next."""
    made, start = [], 0
    for table in tables:
        numbers = table["list_id"].integer()
        made.append(table.with_columns({"list_id": numbers + start}))
        start += int(numbers[-1]) + 1
    return made


def _codes(vocab: Vocab, values: pa.Array) -> np.ndarray:
    return vocab.encode(as_column(values)).numpy()


def _whole(column: object) -> pa.Array:
    """Return a column of text as one Arrow array."""
    array = column.to_arrow() if hasattr(column, "to_arrow") else column.combine_chunks()
    return array.cast(pa.string())
