"""A packed frame as pandas frames, made when they are looked at: for people, not for models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from fastcore.foundation import L

from fastrec.errors import MissingColumnError
from fastrec.table import Table


class PandasViews:
    """The properties of fastai's ``Tabular`` that hold pandas frames."""

    def __getitem__(self, k: Any) -> Any:
        return self.items[list(k) if isinstance(k, L) else k]

    def __iter__(self) -> Any:
        return iter(self.items)

    @property
    def items(self) -> Any:
        """The named columns as a pandas frame."""
        if self._raw is not None:
            return self._raw if hasattr(self._raw, "iloc") else Table.read(self._raw).to_pandas()
        import pandas as pd

        parts = [self.cats, self.conts] + ([self.ys] if self.y is not None else [])
        if self.extras is not None:
            parts.insert(2, pd.DataFrame(self.extras.as_lists(), index=self._index()))
        return pd.concat(parts, axis=1)

    def _frame_of(self, values: torch.Tensor, names: Sequence[str]) -> Any:
        import pandas as pd

        return pd.DataFrame(values.cpu().numpy(), columns=list(names), index=self._index())

    @property
    def cats(self) -> Any:
        """Codes as a pandas frame."""
        return self._frame_of(self.x_cat, self.cat_names)

    @cats.setter
    def cats(self, values: Any) -> None:
        self.x_cat.copy_(torch.as_tensor(np.array(values)))

    @property
    def conts(self) -> Any:
        """Prepared numbers as a pandas frame."""
        return self._frame_of(self.x_cont, self.cont_names)

    @conts.setter
    def conts(self, values: Any) -> None:
        self.x_cont.copy_(torch.as_tensor(np.array(values, dtype=np.float64)))

    @property
    def ys(self) -> Any:
        """Targets as a pandas frame."""
        if self.y is None:
            raise MissingColumnError("these rows have no targets", remedy="Give y_names, and the columns in the frame")
        return self._frame_of(self.y, self.y_names)

    @ys.setter
    def ys(self, values: Any) -> None:
        self.y.copy_(torch.as_tensor(np.array(values)))

    targ = ys

    @property
    def xs(self) -> Any:
        """Codes and prepared numbers as a pandas frame."""
        import pandas as pd

        return pd.concat([self.cats, self.conts], axis=1)

    @xs.setter
    def xs(self, values: Any) -> None:
        self.cats, self.conts = values[list(self.cat_names)], values[list(self.cont_names)]

    @property
    def all_cols(self) -> Any:
        """``xs``, and ``ys`` where there are targets."""
        return self.items

    @property
    def all_col_names(self) -> L:
        """The names of ``all_cols``."""
        names = self.x_names + self.list_names + self.vector_names
        return names + self.y_names if self.y is not None else names

    @property
    def iloc(self) -> Any:
        """Rows by position, as a frame: ``to.iloc[[0, 5]]``."""
        return _RowView(self)


class _RowView:
    def __init__(self, frame: Any) -> None:
        self.frame = frame

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, tuple):
            return self.frame[index[1]].iloc[index[0]]
        frame = self.frame
        rows = torch.from_numpy(_places(index, len(frame)))
        packed = frame.packed.take(rows.to(frame.packed.device))
        groups = None if frame.groups is None else frame.groups[rows]
        extras = None if frame.extras is None else frame.extras.take(rows)
        return frame._like(_packed=packed, _extras=extras, _rows=frame.rows[rows], groups=groups)


def _places(index: Any, n: int) -> np.ndarray:
    """Return the row numbers of an index of pandas' ``iloc``: int64 ``[m]``, all of them below ``n``."""
    given = np.asarray(index) if not isinstance(index, slice) else None
    if given is None or given.dtype.kind not in "iu" or (given.size and (given.min() < 0 or given.max() >= n)):
        return np.atleast_1d(np.arange(n)[index])  # slices, masks, places from the end, and IndexError
    return np.atleast_1d(given.astype(np.int64, copy=False))
