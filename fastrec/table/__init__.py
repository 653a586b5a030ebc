"""Raw values of any library → named columns and codes as tensors on one device.

In: pandas, polars, Arrow, cuDF frames, dicts, CSV and Parquet files. Out: ``Table`` and ``Column``; ``attach`` gives a
user's own frame back with columns added. ``column.py`` and ``table.py`` hold the two, ``from_values.py`` makes a column
of anything, ``from_frames.py`` columns of a frame, ``frames.py`` puts them back, ``read.py`` reads files, ``vocab.py``
and ``keys.py`` turn values into codes, ``cudf.py`` is all that knows of cuDF.
"""

from fastrec.table.class_list import ClassList
from fastrec.table.column import Column
from fastrec.table.frames import attach, select_columns, take_rows, to_library
from fastrec.table.from_frames import column_names
from fastrec.table.from_values import as_column
from fastrec.table.keys import Coded, Keys
from fastrec.table.list_batch import ListBatch
from fastrec.table.state import load_state, save_state
from fastrec.table.table import Table, concat
from fastrec.table.vocab import Vocab

__all__ = [
    "ClassList",
    "Coded",
    "Column",
    "Keys",
    "ListBatch",
    "Table",
    "Vocab",
    "as_column",
    "attach",
    "column_names",
    "concat",
    "load_state",
    "save_state",
    "select_columns",
    "take_rows",
    "to_library",
]
