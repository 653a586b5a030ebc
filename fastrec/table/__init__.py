"""Raw values of any library → named columns and codes as tensors on one device; ``attach`` returns a user's frame with
columns added.
"""

from fastrec.table.column import Column
from fastrec.table.convert import as_column, column_names
from fastrec.table.frames import attach, select_columns, take_rows, to_library
from fastrec.table.keys import Coded, Keys
from fastrec.table.list_batch import ListBatch
from fastrec.table.state import load_state, save_state
from fastrec.table.table import Table, concat
from fastrec.table.vocab import ClassList, Vocab

__all__ = [
    "ClassList", "Coded", "Column", "Keys", "ListBatch", "Table", "Vocab", "as_column", "attach", "column_names",
    "concat", "load_state", "save_state", "select_columns", "take_rows", "to_library",
]  # fmt: skip
