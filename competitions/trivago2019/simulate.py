"""Simulated files in the form of the RecSys Challenge 2019 (trivago), with the true click probabilities beside them.

**World.** A city is made of districts, a district of 26 to 44 items. An item has stars and other named properties, a
typical price (district, stars, own part) and a quality (stars, some properties, a hidden part); its rating class tells
of the quality.

**Session.** A chain of episodes: searches, filters or a new sort order (they change the list), then touches (images,
info, rating, deals, a search for the item), then a clickout. A list shows up to 25 items of the district, ordered by
quality, popularity and chance, by how well they match the filters, or by the chosen sort order.

**Choice model** (conditional logit; McFadden 1974, "Conditional logit analysis of qualitative choice behavior"). Given
everything before the click, item j at place k of the list is clicked with probability proportional to ``exp(U_j)``,

    U_j = -a ln k + b [k = 1] + a_price z_j + quality_j + taste_u x_j + a_filter match_j + S_j + N_j

where ``a`` and ``b`` are larger at a session's last clickout, ``z`` is the log price standardised within the list,
``x`` are properties of the item, and ``match`` is the share of the active filters it meets. ``S`` is the memory of
touches: a touch sets it to the strength of its action (plus a little for the number of images), every later touch
multiplies it by ``memory``, every change of the list by ``memory_relist``; a new destination clears it. ``N`` favours
the places just below the item touched last. Touches are drawn from the same utility with their own place effect and
without ``S`` and ``N``, so they tell of taste and quality as well. A few clicks go to an item outside the list, never
those of test targets.

The written probabilities are the model's, given the touches that happened, so ranking by them is the best any model
can do in expectation. All of the formula can be seen in the files or estimated from them, except most of a user's
taste and what is hidden of the quality of rarely shown items.

**Sources.** Shares and sizes: the challenge's published statistics and, where those are silent, counts over a public
sample of its log (see ``Constants``, which were frozen before the competition's models were built).

Run ``fastrec simulate competitions/trivago2019 --sessions 20000 --out DIR``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from competitions.trivago2019.simulated_sessions import Block
from competitions.trivago2019.simulated_world import (
    ACTIONS,
    DEVICES,
    LIST,
    PLATFORMS,
    PROPERTIES,
    Constants,
    World,
    make_world,
)
from fastrec._core.atomic import atomic_folder
from fastrec.errors import DataError

FILES = ("train.csv", "test.csv", "item_metadata.csv", "ground_truth.csv", "true_probabilities.parquet")
LOG_HEADER = (
    "user_id,session_id,timestamp,step,action_type,reference,platform,city,device,current_filters,impressions,prices"
)
TRUTH_HEADER = "user_id,session_id,timestamp,step,reference,impressions"
USER_LETTERS = "0123456789ABCDEFGHJKLMNPQRSTUVWX"  # 32 of them: 5 bits each
SESSION_LETTERS = "0123456789abcdef"
ITEMS_AT_A_TIME = 100_000


@dataclass(frozen=True)
class SimulationSummary:
    """A summary of the simulation.

    Args:
        out: the folder.
        sessions, train_sessions, test_sessions: numbers of sessions.
        train_rows, test_rows: actions in the two logs.
        items: rows of item_metadata.csv.
        clickouts, candidates: clickouts, and places in all their lists.
        oracle_mrr: expected MRR over the test targets when ranking by the true probability.
        seconds: wall time.
    """

    out: Path
    sessions: int
    train_sessions: int
    test_sessions: int
    train_rows: int
    test_rows: int
    items: int
    clickouts: int
    candidates: int
    oracle_mrr: float
    seconds: float


def expected_mrr(probabilities: pa.ListArray | np.ndarray, offsets: np.ndarray | None = None) -> float:
    """Return the expected MRR of ranking lists by true probabilities: the mean of sum_k p_(k) / k, p_(1) ≥ p_(2) ≥ ….

    Args:
        probabilities: a list column, one list of probabilities per target; or the values of all lists, float ``[n]``.
        offsets: int ``[lists + 1]``, where each list starts in the values; only with an array of values.

    Returns:
        The mean over lists of E[1 / rank].

    Raises:
        DataError: no list, an empty list, or probabilities that do not sum to 1 (within 1e-3).
    """
    if offsets is None:
        column = probabilities.combine_chunks() if isinstance(probabilities, pa.ChunkedArray) else probabilities
        offsets, probabilities = column.offsets.to_numpy(), column.values.to_numpy(zero_copy_only=False)
    p, offsets = np.asarray(probabilities, np.float64), np.asarray(offsets, np.int64)
    sizes = np.diff(offsets)
    if not len(sizes) or sizes.min() < 1:
        raise DataError("there is no list, or an empty one", column="probabilities")
    p = p[offsets[0] : offsets[-1]]
    starts = offsets[:-1] - offsets[0]
    wrong = np.abs(np.add.reduceat(p, starts) - 1) > 1e-3
    if wrong.any():
        raise DataError("the probabilities do not sum to 1", column="probabilities", row=int(wrong.argmax()))
    rows = np.repeat(np.arange(len(sizes)), sizes)
    ranked = p[np.lexsort((-p, rows))]
    return float(np.sum(ranked / (np.arange(len(p)) - starts[rows] + 1)) / len(sizes))


def _strings(codes: np.ndarray, letters: str) -> pa.Array:
    """Make strings of equal length from letter codes ``[n, length]``."""
    data = np.frombuffer(letters.encode(), np.uint8)[codes]
    offsets = np.arange(len(codes) + 1, dtype=np.int32) * codes.shape[1]
    return pa.StringArray.from_buffers(len(codes), pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data)))


def _names(number: np.ndarray, *, bits: int, length: int, letters: str, salt: int) -> pa.Array:
    """Scramble distinct numbers to distinct names: odd multiples and shifted xors are one to one modulo 2^bits."""
    mask = np.uint64(2**bits - 1)
    x = number.astype(np.uint64) + np.uint64(salt % 2**20 << 30)
    for odd in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9):
        x = (x * np.uint64(odd)) & mask
        x ^= x >> np.uint64(bits // 2 + 1)
    width = bits // length
    digits = (x[:, None] >> (np.arange(length, dtype=np.uint64) * np.uint64(width))) & np.uint64(2**width - 1)
    return _strings(digits.astype(np.int64), letters)


def _lists(values: pa.Array, sizes: np.ndarray) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)), values)


def _csv(columns: list[pa.Array]) -> memoryview:
    """Join string columns, quoted already, to CSV lines."""
    columns = [pc.fill_null(column, "") for column in columns]
    columns[-1] = pc.binary_join_element_wise(columns[-1], "\n", "")
    lines = pc.binary_join_element_wise(*columns, ",")
    ends = np.frombuffer(lines.buffers()[1], np.int32)[lines.offset : lines.offset + len(lines) + 1]
    return memoryview(lines.buffers()[2] or b"")[ends[0] : ends[-1]] if len(lines) else memoryview(b"")


def _waits(c: Constants, action: np.ndarray, repeat: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw the seconds before every action, int64 ``[n]``."""
    spread, median, zero = (np.asarray(value) for value in (c.wait_spread, c.wait_median, c.wait_zero))
    wait = np.exp(spread[action] * rng.standard_normal(len(action))) * median[action]
    none = rng.random(len(action)) < np.where(repeat, c.wait_zero_within, zero[action])
    return np.where(none, 0, np.clip(wait, 1, c.longest_wait)).astype(np.int64)


@dataclass
class _Rows:
    """The actions of a block, one row each, in the order of the files."""

    events: dict[str, np.ndarray]
    clicks: dict[str, np.ndarray]
    event: np.ndarray  # int64 [rows], the event a row belongs to
    session: np.ndarray  # int64 [rows]
    click: np.ndarray  # int64 [rows], -1 = not a clickout
    stamp: np.ndarray  # int64 [rows], seconds
    step: np.ndarray  # int64 [rows], from 1
    target: np.ndarray  # bool [rows]

    @classmethod
    def of(cls, block: Block) -> _Rows:
        events, clicks, s = block.log.joined("events"), block.log.joined("clicks"), block.sessions
        order = np.lexsort((events["slot"], events["episode"], events["session"]))
        event = np.repeat(order, events["count"][order])
        repeat = np.concatenate([[False], event[1:] == event[:-1]])
        session, click = events["session"][event], events["click"][event]
        first = np.flatnonzero(np.concatenate([[True], session[1:] != session[:-1]]))
        lengths = np.diff(np.append(first, len(event)))
        wait = _waits(block.c, events["action"][event], repeat, block.rng)
        wait[first] = 0
        passed = np.cumsum(wait)
        stamp = s.start[session] + passed - np.repeat(passed[first], lengths)
        step = np.arange(len(event)) - np.repeat(first, lengths) + 1
        target = np.zeros(len(event), bool)
        clicked = np.flatnonzero(click >= 0)
        target[clicked] = s.test[session[clicked]] & (clicks["final"][click[clicked]] == 1)
        return cls(events, clicks, event, session, click, stamp, step, target)


def _filter_strings(world: World, codes: np.ndarray) -> tuple[pa.Array, np.ndarray]:
    """Return texts of the active filters, and for every event which text it has, -1 = none."""
    some = np.flatnonzero((codes >= 0).any(1))
    active = codes[some] >= 0
    words = world.words.take(pa.array(world.filter_at + codes[some][active]))
    which = np.full(len(codes), -1)
    which[some] = np.arange(len(some))
    return pc.binary_join(_lists(words, active.sum(1)), "|"), which


class _Texts:
    """The columns of a block's log as strings."""

    def __init__(self, world: World, block: Block, rows: _Rows, seed: int) -> None:
        self.world, self.sessions, self.rows = world, block.sessions, rows
        self.user = _names(self.sessions.user, bits=60, length=12, letters=USER_LETTERS, salt=seed)
        self.name = _names(self.sessions.number, bits=52, length=13, letters=SESSION_LETTERS, salt=seed)
        length = rows.clicks["length"]
        seen = np.arange(LIST) < length[:, None]
        price = pa.array(rows.clicks["price"][seen]).cast(pa.string())
        self.items = pc.binary_join(_lists(world.words.take(pa.array(rows.clicks["items"][seen])), length), "|")
        self.prices = pc.binary_join(_lists(price, length), "|")
        self.filters, self.filter_of = _filter_strings(world, rows.events["filters"])

    def columns(self, keep: np.ndarray) -> dict[str, pa.Array]:
        """Return the columns of some rows by name; the references of targets are still there."""

        def at(values: pa.Array, index: np.ndarray) -> pa.Array:
            return values.take(pa.array(index, mask=index < 0))

        rows, s, world = self.rows, self.sessions, self.world
        event, session, click = rows.event[keep], rows.session[keep], rows.click[keep]
        return {
            "user_id": at(self.user, session),
            "session_id": at(self.name, session),
            "timestamp": pa.array(rows.stamp[keep]).cast(pa.string()),
            "step": pa.array(rows.step[keep]).cast(pa.string()),
            "action_type": at(pa.array(ACTIONS), rows.events["action"][event]),
            "reference": at(world.words, rows.events["reference"][event]),
            "platform": at(pa.array(PLATFORMS), s.platform[session]),
            "city": at(world.words, world.city_at + rows.events["city"][event]),
            "device": at(pa.array(DEVICES), s.device[session]),
            "current_filters": at(self.filters, self.filter_of[event]),
            "impressions": at(self.items, click),
            "prices": at(self.prices, click),
        }


class _Writer:
    """Writes blocks of sessions to the files of one folder, and counts."""

    schema = pa.schema(
        {
            "split": pa.dictionary(pa.int8(), pa.string()),
            "session_id": pa.string(),
            "step": pa.int64(),
            "target": pa.bool_(),
            "impressions": pa.list_(pa.int64()),
            "probabilities": pa.list_(pa.float32()),
        }
    )

    def __init__(self, folder: Path, world: World, seed: int) -> None:
        self.world, self.seed, self.folder = world, seed, folder
        self.rows = {"train": 0, "test": 0}
        self.sessions = {"train": 0, "test": 0}
        self.clickouts = self.candidates = self.targets = 0
        self.gain = 0.0  # sum of E[1 / rank] over the targets

    def __enter__(self) -> _Writer:
        self.files = {name: (self.folder / f"{name}.csv").open("wb") for name in ("train", "test", "ground_truth")}
        for name, file in self.files.items():
            file.write(f"{TRUTH_HEADER if name == 'ground_truth' else LOG_HEADER}\n".encode())
        self.truth = pq.ParquetWriter(self.folder / FILES[-1], self.schema, compression="zstd")
        return self

    def __exit__(self, *_: object) -> None:
        for file in self.files.values():
            file.close()
        self.truth.close()

    def metadata(self) -> None:
        """Write item_metadata.csv, some items at a time: Arrow's strings hold 2 GB."""
        with (self.folder / "item_metadata.csv").open("wb") as file:
            file.write(b"item_id,properties\n")
            for start in range(0, len(self.world.has), ITEMS_AT_A_TIME):
                has = self.world.has[start : start + ITEMS_AT_A_TIME]
                names = pa.array(PROPERTIES).take(pa.array(np.nonzero(has)[1]))
                words = self.world.words[start : start + len(has)]
                file.write(_csv([words, pc.binary_join(_lists(names, has.sum(1)), "|")]))

    def block(self, block: Block) -> None:
        """Write the actions of one block of sessions."""
        rows, test = _Rows.of(block), block.sessions.test
        texts = _Texts(self.world, block, rows, self.seed)
        for split, mask in (("train", ~test), ("test", test)):
            keep = np.flatnonzero(mask[rows.session])
            columns = texts.columns(keep)
            target = rows.target[keep]
            answers = pa.array(np.flatnonzero(target))
            self.files["ground_truth"].write(_csv([columns[k].take(answers) for k in TRUTH_HEADER.split(",")]))
            columns["reference"] = pc.if_else(pa.array(target), "", columns["reference"])
            self.files[split].write(_csv(list(columns.values())))
            self.rows[split] += len(keep)
            self.sessions[split] += int(mask.sum())
        self._probabilities(rows, test, texts.name)

    def _probabilities(self, rows: _Rows, test: np.ndarray, name: pa.Array) -> None:
        """Write the true probabilities of every clickout, in the order of the logs."""
        row = np.flatnonzero(rows.click >= 0)
        click, session, target = rows.click[row], rows.session[row], rows.target[row]
        sizes = rows.clicks["length"][click]
        seen = np.arange(LIST) < sizes[:, None]
        p = rows.clicks["p"][click][seen]
        item = self.world.item_ids[rows.clicks["items"][click][seen]]
        split = pa.DictionaryArray.from_arrays(pa.array(test[session].astype(np.int8)), ["train", "test"])
        columns = [split, name.take(pa.array(session)), pa.array(rows.step[row]), pa.array(target)]
        columns += [_lists(pa.array(item), sizes), _lists(pa.array(p.astype(np.float32)), sizes)]
        self.truth.write_table(pa.table(columns, schema=self.schema))
        self.clickouts += len(click)
        self.candidates += len(p)
        if target.any():
            starts = np.concatenate([[0], np.cumsum(sizes[target])])
            self.gain += expected_mrr(p[np.repeat(target, sizes)], starts) * int(target.sum())
            self.targets += int(target.sum())


def simulate(
    sessions: int,
    out: str | Path,
    *,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
    constants: Constants | None = None,
    block_sessions: int = 20_000,
) -> SimulationSummary:
    """Write train.csv, test.csv, item_metadata.csv, ground_truth.csv and true_probabilities.parquet into ``out``.

    The same arguments give the same bytes. ``true_probabilities.parquet`` has one row per clickout: split ('train' or
    'test'), session_id, step, target (a row of ground_truth.csv), impressions (list of int64) and probabilities (list
    of float32, given that the click is on an item of the list).

    Args:
        sessions: number of sessions, both logs together, at least 100; about a quarter are test sessions.
        out: the folder to make; a former simulation there is replaced, any other folder with files is refused.
        seed: of all random numbers, at least 0.
        progress: called with (sessions done, sessions) after every block.
        constants: other constants than the frozen ones.
        block_sessions: sessions held in memory at once; another value gives other files.

    Returns:
        What was written, and the oracle's expected MRR over the test targets.

    Raises:
        DataError: a bad argument, or ``out`` holds other files.
        WriteError: the file system refused; ``out`` is as it was.
    """
    out, c, began = Path(out), constants or Constants(), time.perf_counter()
    _check(sessions, out, seed, block_sessions)
    world = make_world(c, sessions, np.random.default_rng([seed, 0]))
    with atomic_folder(out) as folder, _Writer(folder, world, seed) as writer, ThreadPoolExecutor(1) as behind:
        writer.metadata()
        waiting: Future | None = None
        for number, first in enumerate(range(0, sessions, block_sessions), start=1):
            n = min(block_sessions, sessions - first)
            block = Block(world, c, first, n, np.random.default_rng([seed, number]))
            block.run()
            if waiting is not None:
                waiting.result()
            waiting = behind.submit(writer.block, block)  # written while the next block is drawn
            if progress is not None:
                progress(first + n, sessions)
        if waiting is not None:
            waiting.result()
    return SimulationSummary(
        out, sessions, writer.sessions["train"], writer.sessions["test"], writer.rows["train"], writer.rows["test"],
        len(world.item_ids), writer.clickouts, writer.candidates, writer.gain / max(writer.targets, 1),
        time.perf_counter() - began,
    )  # fmt: skip


def _check(sessions: int, out: Path, seed: int, block_sessions: int) -> None:
    for name, value, least in (("sessions", sessions, 100), ("seed", seed, 0), ("block_sessions", block_sessions, 1)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
            raise DataError(f"{name} must be a whole number of at least {least}, not {value!r}")
    if out.exists() and not out.is_dir():
        raise DataError("is a file, not a folder", file=out, remedy="Name another folder")
    if out.is_dir():
        other = sorted(p.name for p in out.iterdir() if p.name not in FILES)
        if other:
            raise DataError(
                f"holds {other[0]!r}, which no simulation wrote", file=out, remedy="Name an empty or new folder"
            )
