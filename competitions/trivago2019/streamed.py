"""The trivago recipe on logs larger than memory: the same features and trees, and a net that learns from a stream.

Run it with ``fastrec run competitions/trivago2019/streamed.py --data DIR --out DIR``, or as a script. The logs are cut
by a hash of the user into parts of some megabytes, in files beside the run directory that are gone at its end; one
tenth of the users is held out, and models are scored on their sessions' last clicks. What differs from the recipe in
memory: one split and not five folds, the net's loss is a row's and not a list's, the stack is the mean rank of those
models that score best together on the users held out.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import torch

if __package__ in (None, ""):  # run as a script, or loaded by path: the workspace's folders are found from its root
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from competitions.trivago2019.competition import Trivago2019
from competitions.trivago2019.data import COLUMNS, properties_apart, read
from fastrec.competition import CompetitionData, StreamedNet, StreamedRanking
from fastrec.errors import MissingFileError
from fastrec.models import TabularNet
from fastrec.table import Table
from fastrec.table.vocab import hash_codes

LOGS = ("train.csv", "test.csv")
ITEMS = "items.parquet"


class StreamedTrivago(StreamedRanking, Trivago2019):
    """The competition's recipe, part by part."""

    name = "RecSys Challenge 2019 (trivago), larger than memory"
    together = ("user_id", "session_id", "list_id")
    part_bytes = 8 << 20  # of the logs in one part

    def split(self, data: Path, folder: Path, *, rows: int | None) -> list[Path]:
        for name in LOGS:
            if not (data / name).is_file():
                raise MissingFileError("there is no such file", file=data / name, remedy="Give the challenge's files")
        count = max(self.held_out, sum((data / n).stat().st_size for n in LOGS) // self.part_bytes)
        parts = [folder / f"{i:05d}" for i in range(count)]
        for part in parts:
            part.mkdir(parents=True)
        for name in LOGS:
            _split_by_user(data / name, parts, rows if name == "train.csv" else None)
        if (data / "item_metadata.csv").is_file():
            _as_parquet(data / "item_metadata.csv", folder / ITEMS)
        return parts

    def load_part(self, part: Path) -> CompetitionData:
        found = read(part, device=torch.device("cpu"), part=True)
        items = part.parent / ITEMS
        if items.is_file():
            seen = [found.tables[n]["item_id"].distinct for n in ("shown", "touches")]
            listed = pc.field("item_id").isin(pa.chunked_array([s.cast(pa.string()) for s in seen]).unique())
            own = ds.dataset(items).to_table(filter=listed, batch_size=8192, use_threads=False)
            found.tables = {**found.tables, "items": properties_apart(Table.read(own))}
        return found

    def nets(self) -> Mapping[str, StreamedNet]:
        return {"net": StreamedNet(TabularNet, {"layers": [128, 64]}, lr=1e-2)}


def _split_by_user(log: Path, parts: list[Path], rows: int | None) -> None:
    """Copy the lines of a log, unparsed, to the parts' files of the same name."""
    text = pa_csv.ConvertOptions(
        include_columns=COLUMNS, column_types=dict.fromkeys(COLUMNS, pa.string()), strings_can_be_null=False
    )
    blocks = pa_csv.open_csv(log, pa_csv.ReadOptions(block_size=4 << 20), convert_options=text)
    writers = [pa_csv.CSVWriter(p / log.name, blocks.schema) for p in parts]
    left = rows
    for block in blocks:
        block = block if left is None else block.slice(0, left)
        left = None if left is None else left - len(block)
        user = block["user_id"].dictionary_encode()
        of = hash_codes(user.dictionary, len(parts), seed=5)[user.indices.to_numpy()]
        order = np.argsort(of, kind="stable")
        ordered, starts = block.take(pa.array(order)), np.searchsorted(of[order], np.arange(len(parts) + 1))
        for writer, start, stop in zip(writers, starts, starts[1:]):
            if stop > start:
                writer.write_batch(ordered.slice(start, stop - start))
        if left == 0:
            break
    for writer in writers:
        writer.close()


def _as_parquet(items: Path, path: Path) -> None:
    names = ["item_id", "properties"]
    text = pa_csv.ConvertOptions(include_columns=names, column_types=dict.fromkeys(names, pa.string()))
    with pa_csv.open_csv(items, convert_options=text) as blocks, pq.ParquetWriter(path, blocks.schema) as writer:
        for block in blocks:
            writer.write_batch(block)


if __name__ == "__main__":
    from fastrec.cli import script

    script(StreamedTrivago)
