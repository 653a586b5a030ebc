"""cuDF, CuPy and cuML for a machine without a GPU: their names and arguments, their rules, values by Arrow and numpy.

What ``signatures.USED`` does not name is an AttributeError here, an argument that RAPIDS does not take a TypeError.
The rules beside a method are facts of cuDF 26.10's sources, each with its file.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import sklearn.ensemble
import sklearn.linear_model
import sklearn.neighbors
import sklearn.svm
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin

from tests.rapids.signatures import offered

OFFERED = offered()


def offered_as(owner: str, module: str) -> Callable[[type], type]:
    """Give a class's methods the arguments of RAPIDS, and its module's name."""

    def checked(name: str, run: Callable[..., Any]) -> Callable[..., Any]:
        takes = eval(f"lambda {OFFERED[owner][name]}: None", {"no_default": None})

        def method(self: Any, *args: Any, **more: Any) -> Any:
            takes(*args, **more)
            return run(self, *args, **more)

        return method

    def decorate(cls: type) -> type:
        for name, member in list(vars(cls).items()):
            if name.startswith("_") and name not in OFFERED[owner]:
                continue
            assert name in OFFERED[owner], f"{owner} of RAPIDS has no {name}"
            assert isinstance(member, property) == (OFFERED[owner][name] == "property"), f"{owner}.{name}"
            if isinstance(member, classmethod):
                setattr(cls, name, classmethod(checked(name, member.__func__)))
            elif not isinstance(member, property):
                setattr(cls, name, checked(name, member))
        cls.__module__ = module
        return cls

    return decorate


# CuPy ----------------------------------------------------------------------------------------------------------------


class Array:
    """``cupy.ndarray``: as much of it as is used."""

    def __init__(self, values: np.ndarray) -> None:
        self._values = np.ascontiguousarray(values)
        self.dtype = self._values.dtype

    def __len__(self) -> int:
        return len(self._values)

    def view(self, dtype: str) -> Array:
        return Array(self._values.view(dtype))

    def __dlpack__(self, **how: Any) -> Any:
        assert self.dtype.kind in "iuf", f"{self.dtype} is handed over as bytes"
        return self._values.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._values.__dlpack_device__()


Array.__module__ = "cupy"


def zeros(shape: int, dtype: str) -> Array:
    return Array(np.zeros(shape, dtype))


def from_dlpack(array: Any) -> Array:
    assert array.is_contiguous()
    return Array(np.from_dlpack(array).copy())


# cuDF ----------------------------------------------------------------------------------------------------------------


class Named:
    """A dtype of cuDF's own: pandas' extension dtypes print their name."""

    kind = "O"

    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return self.name


def dtype_of(kind: pa.DataType) -> Any:
    """The dtype that cuDF says for a type of Arrow's (cudf/utils/dtypes.py, cudf_dtype_from_pa_type)."""
    if pa.types.is_dictionary(kind):
        return Named("category")
    if pa.types.is_large_string(kind):
        return pd.StringDtype(na_value=np.nan) if hasattr(pd.StringDtype(), "na_value") else Named("str")
    if pa.types.is_list(kind):
        return Named("list")
    if pa.types.is_struct(kind):
        return Named("struct")
    if pa.types.is_decimal(kind):
        return Named("decimal128")
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pd.DatetimeTZDtype(kind.unit, kind.tz)
    return np.dtype("object") if pa.types.is_null(kind) else np.dtype(kind.to_pandas_dtype())


def stored(values: Any) -> pa.Array:
    """Values as cuDF stores them: text in one type, days as seconds, no lists but Arrow's plain ones."""
    kind = values.type
    if pa.types.is_fixed_size_list(kind) or pa.types.is_large_list(kind):  # column.py, _wrap_and_validate
        raise ValueError(f"dtype {kind} does not match the type of the plc_column")
    if pa.types.is_float16(kind):  # column.py, from_arrow
        raise NotImplementedError("float16")
    if pa.types.is_null(kind) or pa.types.is_string(kind):
        return values.cast(pa.large_string())
    if pa.types.is_date(kind):
        return values.cast(pa.timestamp("s"))
    if pa.types.is_list(kind):
        stored(values.flatten())
    if pa.types.is_dictionary(kind):
        return pa.DictionaryArray.from_arrays(
            values.indices.cast(pa.int32()), stored(values.dictionary), ordered=kind.ordered
        )
    return values


def _nullable(dtype: Any) -> bool:
    return isinstance(dtype, pd.ArrowDtype) or (hasattr(dtype, "numpy_dtype") and not isinstance(dtype, np.dtype))


@offered_as("cudf.Series.cat", "cudf.core.accessors.categorical")
class Categories:
    def __init__(self, parent: Series) -> None:
        self._parent = parent

    @property
    def categories(self) -> Index:
        return Index(self._parent._values.dictionary)

    @property
    def codes(self) -> Series:
        """Signed, and a null where the value is missing (accessors/categorical.py)."""
        few = len(self._parent._values.dictionary) < np.iinfo(np.int8).max
        return Series._of(self._parent._values.indices.cast(pa.int8() if few else pa.int16()))

    @property
    def ordered(self) -> bool:
        return self._parent._values.type.ordered


@offered_as("cudf.Series.dt", "cudf.core.series")
class Times:
    def __init__(self, parent: Series) -> None:
        self._parent = parent

    @property
    def tz(self) -> Any:
        return self._parent._values.type.tz


@offered_as("cudf.Index", "cudf.core.index")
class Index:
    def __init__(self, values: pa.Array) -> None:
        self._values = values

    def to_arrow(self) -> pa.Array:
        return self._values


class _Places:
    def __init__(self, parent: Any, take: Callable[[np.ndarray], Any]) -> None:
        self._parent, self._take = parent, take

    def __getitem__(self, rows: Any) -> Any:
        return self._take(np.arange(len(self._parent))[rows])


@offered_as("cudf.Series", "cudf.core.series")
class Series:
    def __init__(self, data: Any = None, index: Any = None, dtype: Any = None, name: Any = None) -> None:
        if isinstance(data, Array):  # NaN becomes null (series.py: nan_as_null)
            data = pa.array(data._values, from_pandas=True)
        elif _nullable(getattr(data, "dtype", None)):
            dtype, data = data.dtype, pa.array(data, from_pandas=True)
        self._values = stored(data if isinstance(data, pa.Array) else pa.array(data, from_pandas=True))
        self._dtype = dtype
        self._index: Any = pd.RangeIndex(len(self._values))
        if index is not None:
            self.index = index

    def __len__(self) -> int:
        return len(self._values)

    @classmethod
    def _of(cls, values: pa.Array, dtype: Any = None) -> Series:
        made = cls(values)
        made._dtype = dtype
        return made

    @classmethod
    def from_arrow(cls, array: pa.Array) -> Series:
        return cls._of(array)

    @property
    def dtype(self) -> Any:
        return dtype_of(self._values.type) if self._dtype is None else self._dtype

    @property
    def index(self) -> Any:
        return self._index

    @index.setter
    def index(self, value: Any) -> None:
        if len(value) != len(self):
            raise ValueError(f"Length mismatch: Expected axis has {len(self)} elements, new values {len(value)}")
        self._index = value

    @property
    def cat(self) -> Categories:
        return Categories(self)

    @property
    def dt(self) -> Times:
        if not pa.types.is_temporal(self._values.type):
            raise AttributeError("Can only use .dt accessor with datetimelike values")
        return Times(self)

    @property
    def has_nulls(self) -> bool:
        return self._values.null_count > 0

    @property
    def iloc(self) -> _Places:
        return _Places(self, lambda rows: Series._of(self._values.take(pa.array(rows)), self._dtype))

    def copy(self, deep: bool = True) -> Series:
        return Series._of(self._values, self._dtype)

    def isnull(self) -> Series:
        """NaN counts among floats (column/numerical.py)."""
        return Series._of(pc.is_null(self._values, nan_is_null=pa.types.is_floating(self._values.type)))

    def fillna(self, value: Any) -> Series:
        """A nullable float keeps its nulls where NaN is to fill them (column/column.py)."""
        if _nullable(self.dtype) and self.dtype.kind == "f" and value != value:
            return self.copy()
        values = self._values
        if pa.types.is_floating(values.type):
            values = pc.if_else(pc.is_nan(values), pa.scalar(None, values.type), values)
        return Series._of(values.fill_null(pa.scalar(value, values.type)), self._dtype)

    def astype(self, dtype: Any) -> Series:
        """Nulls stay nulls."""
        wanted = pa.from_numpy_dtype(np.dtype(dtype))
        values = self._values.cast(pa.uint8()) if pa.types.is_boolean(self._values.type) else self._values
        if pa.types.is_timestamp(values.type) or pa.types.is_duration(values.type):
            values = values.cast(pa.int64())
        return Series._of(values if values.type == wanted else values.cast(wanted))

    def where(self, cond: Series, other: Any = None) -> Series:
        assert other is None
        assert cond._values.type == pa.bool_()
        return Series._of(pc.if_else(cond._values, self._values, pa.scalar(None, self._values.type)))

    def take(self, indices: Array) -> Series:
        assert indices.dtype.kind in "iu"
        return Series._of(self._values.take(pa.array(indices._values)), self._dtype)

    def factorize(self) -> tuple[Array, Index]:
        """Codes int64, -1 where missing, and the distinct values (column/column.py)."""
        coded = self._values.dictionary_encode()
        return Array(coded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)), Index(
            coded.dictionary
        )

    def to_cupy(self) -> Array:
        """Numbers alone; nulls make floats of integers, and are refused among truth values (column/numerical.py)."""
        if _nullable(self.dtype) and self.has_nulls:
            raise TypeError(f"Cannot interpret {self.dtype!r} as a data type")
        if self.dtype.kind not in "iufb":
            raise NotImplementedError(f"CuPy does not support {self.dtype}")
        if self.has_nulls and self.dtype.kind == "b":
            raise ValueError(f"Column must have no nulls for dtype={self.dtype}")
        return Array(self._values.to_numpy(zero_copy_only=False).copy())

    def to_arrow(self) -> pa.Array:
        """All-null lists lose their type (column/column.py, _handle_nulls), in 26.6 all-null text too."""
        gone = self._values.null_count == len(self._values)
        nested = pa.types.is_list(self._values.type) or pa.types.is_large_string(self._values.type)
        return pa.nulls(len(self)) if gone and nested else self._values

    def to_pandas(self) -> pd.Series:
        return self._values.to_pandas()


@offered_as("cudf.DataFrame", "cudf.core.dataframe")
class DataFrame:
    def __init__(self, data: Any = None, index: Any = None) -> None:
        self._columns = {n: v.copy() if isinstance(v, Series) else Series(v) for n, v in (data or {}).items()}
        rows = len(next(iter(self._columns.values()))) if self._columns else 0
        self._index: Any = pd.RangeIndex(rows) if index is None else index

    def __len__(self) -> int:
        return len(self._index)

    @property
    def columns(self) -> pd.Index:
        return pd.Index(list(self._columns), dtype=object)

    @property
    def index(self) -> Any:
        return self._index

    @property
    def iloc(self) -> _Places:
        return _Places(self, lambda rows: self.take(Array(rows)))

    def __getitem__(self, arg: Any) -> Any:
        if isinstance(arg, str):
            found = self._columns[arg].copy()
            found.index = self._index
            return found
        return DataFrame({n: self._columns[n] for n in arg}, index=self._index)

    def __setitem__(self, arg: str, value: Series) -> None:
        assert isinstance(value, Series)
        assert value.index is self._index or value.index.equals(self._index), "rows are aligned by the index"
        self._columns[arg] = value

    def copy(self, deep: bool = True) -> DataFrame:
        return DataFrame(self._columns, index=self._index)

    def head(self, n: int = 5) -> DataFrame:
        return self.iloc[:n]

    def take(self, indices: Array) -> DataFrame:
        rows = np.arange(len(self))[indices._values]
        return DataFrame({n: s.take(Array(rows)) for n, s in self._columns.items()}, index=self._index[rows])

    def to_pandas(self) -> pd.DataFrame:
        made = pd.DataFrame({n: s.to_pandas() for n, s in self._columns.items()})
        made.index = self._index
        return made


def from_pandas(obj: pd.DataFrame) -> DataFrame:
    return DataFrame({n: pa.array(obj[n], from_pandas=True) for n in obj.columns}, index=obj.index)


# cuML ----------------------------------------------------------------------------------------------------------------


def estimator(owner: str, twin: type) -> type:
    """A class of cuML's arguments that learns by scikit-learn; ``as_sklearn`` hands over what it learned."""
    arguments, space = OFFERED[owner]["__init__"], {}
    body = "vars(self).update({n: v for n, v in locals().items() if n != 'self'})"
    exec(f"def __init__(self, {arguments}):\n    {body}", space)
    kind = ClassifierMixin if issubclass(twin, ClassifierMixin) else RegressorMixin

    def as_sklearn(self: Any) -> Any:
        if hasattr(self, "_twin"):
            return self._twin
        takes = set(twin().get_params()) - {"l1_ratio", "penalty", "solver", "verbose"}
        return twin(**{n: v for n, v in self.get_params().items() if n in takes})

    def fit(self: Any, X: Any, y: Any, sample_weight: Any = None) -> Any:
        self._twin = as_sklearn(self).fit(X, y, **({} if sample_weight is None else {"sample_weight": sample_weight}))
        return self

    def unweighted(self: Any, X: Any, y: Any) -> Any:
        return fit(self, X, y)

    def said(name: str) -> Callable[..., Any]:
        def call(self: Any, X: Any) -> Any:
            return getattr(self._twin, name)(X)

        call.__name__ = name
        return call

    own_fit = unweighted if "KNeighbors" in owner else fit  # scikit-learn looks for the argument's name
    methods: dict[str, Any] = {"__init__": space["__init__"], "as_sklearn": as_sklearn, "fit": own_fit}
    gone = {"predict_proba"} if owner.endswith("SVC") else set()  # in 26.10
    told = ("predict", "predict_proba", "decision_function")
    methods |= {n: said(n) for n in told if hasattr(twin, n) and n not in gone}
    methods["classes_"] = property(lambda self: self._twin.classes_)
    made = type(owner.rsplit(".", 1)[1], (kind, BaseEstimator), methods)
    made.__module__ = owner.lower()
    return made


# All of it -----------------------------------------------------------------------------------------------------------


def bring(patch: pytest.MonkeyPatch) -> ModuleType:
    """Let ``import cudf``, ``cupy`` and ``cuml`` find the rehearsal; return cuDF's."""
    found = {
        "cupy": {"zeros": zeros, "from_dlpack": from_dlpack, "ndarray": Array},
        "cudf": {"Series": Series, "DataFrame": DataFrame, "Index": Index, "from_pandas": from_pandas},
        "cuml": {},
    }
    twins = {"linear_model": sklearn.linear_model, "neighbors": sklearn.neighbors, "svm": sklearn.svm}
    for owner in (n for n in OFFERED if n.startswith("cuml.")):
        module, _, name = owner.rpartition(".")
        twin = getattr({**twins, "ensemble": sklearn.ensemble}[module.split(".")[1]], name)
        found.setdefault(module, {})[name] = estimator(owner, twin)
    for name, members in found.items():
        module = ModuleType(name)
        module.__dict__.update(members, __spec__=ModuleSpec(name, None), __path__=[])
        patch.setitem(sys.modules, name, module)
    return sys.modules["cudf"]
