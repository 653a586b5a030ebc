"""``GraphTensor``: a symbolic tensor; torch's functions, called with one, write nodes into a graph.

The code that computes features in training writes their graph too, so that the two cannot differ. The dtype and shape
of every result are torch's own: each function also runs on ``meta`` tensors. The number of rows is ``N`` in their
shapes; a constant of that length must be the same in all rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from fastrec.errors import DataError
from fastrec.serve.graph.builder import Graph

N = 1009  # a prime that no other dimension is likely to be


class NotInGraphError(DataError):
    """An operation that has no form in a graph."""


def registrar(table: dict[str, Callable[..., Any]]) -> Callable[..., Callable[..., Any]]:
    """Create a decorator ``@register(*names)`` that puts functions into a table."""

    def register(*names: str) -> Callable[..., Any]:
        def take(function: Callable[..., Any]) -> Callable[..., Any]:
            table.update(dict.fromkeys(names, function))
            return function

        return take

    return register


# name of torch's function → handler(graph, result, *args, **kwargs), which returns a value's name or several
HANDLERS: dict[str, Callable[..., Any]] = {}
handler = registrar(HANDLERS)


class GraphTensor:
    """A symbolic tensor: a value of a graph, and a ``meta`` tensor of its dtype and shape (``N`` rows)."""

    def __init__(self, graph: Graph, value: str, meta: torch.Tensor) -> None:
        self.graph, self.value, self.meta = graph, value, meta
        self.some = False  # whether it was made by ``any``

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return call(func, args, kwargs or {})

    @property
    def dtype(self) -> torch.dtype:
        """Torch's dtype."""
        return self.meta.dtype

    @property
    def shape(self) -> torch.Size:
        """The shape, ``N`` for the rows."""
        return self.meta.shape

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return self.meta.ndim

    @property
    def device(self) -> torch.device:
        """The CPU."""
        return torch.device("cpu")

    @property
    def is_cuda(self) -> bool:
        """False: only the graph's runtime has a device."""
        return False

    @property
    def T(self) -> GraphTensor:
        """The transposed tensor."""
        return self.transpose(0, 1)

    def size(self, dim: int | None = None) -> Any:
        """Return the shape, or one of its sizes."""
        return self.meta.size() if dim is None else self.meta.size(dim)

    def dim(self) -> int:
        """Return the number of dimensions."""
        return self.meta.ndim

    def is_floating_point(self) -> bool:
        """Check if the values are floats."""
        return self.meta.is_floating_point()

    def cpu(self) -> GraphTensor:
        """Return the tensor itself."""
        return self

    def __len__(self) -> int:
        return len(self.meta)

    def __bool__(self) -> bool:
        if self.some:
            return True  # some of the later rows may be so: take the branch that handles them too
        raise NotInGraphError("something depends on rows that are not known yet", remedy="Compute it outside")

    def __iter__(self) -> Any:
        return iter(self.unbind(0))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        # a graph has no mutable values: a method in place replaces this tensor's value
        in_place = name.endswith("_") and not name.startswith("_")
        plain = name[:-1] if in_place else name
        found = getattr(torch.Tensor, plain, None)
        if not callable(found):
            raise NotInGraphError(f"a graph has no tensor's {name!r}", remedy="Compute it outside of the graph")

        def method(*args: Any, **kwargs: Any) -> Any:
            made = call(found, (self, *args), kwargs)
            if in_place:
                self.value, self.meta = made.value, made.meta
                return self
            return made

        return method

    def __index__(self) -> int:
        raise NotInGraphError("a number of the rows is read before the rows are known", remedy="Compute it outside")

    __int__ = __float__ = __index__

    def __setitem__(self, place: Any, value: Any) -> None:
        if not (isinstance(place, GraphTensor) and place.dtype == torch.bool):
            raise NotInGraphError("values are put into places of a graph's tensor", remedy="Use torch.where")
        made = torch.where(place, value, self)
        self.value, self.meta = made.value, made.meta


def _operator(name: str, *, swapped: bool = False) -> Callable[..., Any]:
    def method(self: GraphTensor, *others: Any) -> Any:
        args = (*others, self) if swapped else (self, *others)
        return call(getattr(torch, name), args, {})

    return method


for _name, _function in {
    "add": "add",
    "sub": "sub",
    "mul": "mul",
    "truediv": "div",
    "mod": "remainder",
    "floordiv": "floor_divide",
    "pow": "pow",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "lshift": "bitwise_left_shift",
    "matmul": "matmul",
}.items():
    setattr(GraphTensor, f"__{_name}__", _operator(_function))
    setattr(GraphTensor, f"__r{_name}__", _operator(_function, swapped=True))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(GraphTensor, f"__{_name}__", _operator(_name))
GraphTensor.__hash__ = object.__hash__  # type: ignore[method-assign]
GraphTensor.__neg__ = _operator("neg")  # type: ignore[attr-defined]
GraphTensor.__abs__ = _operator("abs")  # type: ignore[attr-defined]
GraphTensor.__invert__ = _operator("bitwise_not")  # type: ignore[attr-defined]
GraphTensor.__getitem__ = lambda self, place: call(torch.Tensor.__getitem__, (self, place), {})  # type: ignore[method-assign, attr-defined]


def call(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function of torch with symbolic tensors among its arguments.

    Raises:
        NotInGraphError: there is no way to write it as nodes.
    """
    name = getattr(func, "__name__", str(func))
    if name == "__get__":
        name = getattr(getattr(func, "__self__", None), "__name__", name)
    graph = next(a.graph for a in _flat((args, kwargs)) if isinstance(a, GraphTensor))
    if name not in HANDLERS:
        raise NotInGraphError(f"torch.{name} has no form in a graph", remedy="Compute this column outside of the graph")
    try:
        # torch itself computes dtype and shape of the result: no second set of rules that could differ
        metas = func(*_meta(args), **_meta(kwargs))
    except (RuntimeError, NotImplementedError, TypeError) as error:
        raise NotInGraphError(
            f"torch.{name} cannot be written as nodes ({error})", remedy="Compute this column outside of the graph"
        ) from error
    made = HANDLERS[name](graph, metas, *args, **kwargs)
    if isinstance(made, GraphTensor | torch.Tensor):
        return made
    if isinstance(metas, torch.Tensor):
        return GraphTensor(graph, made, metas)
    parts = [GraphTensor(graph, v, m) for v, m in zip(made, metas, strict=True)]
    # results such as torch.return_types.sort are named tuples, which code reads by name
    fields = getattr(type(metas), "__name__", "") not in ("list", "tuple")
    return type(metas)(parts) if fields else parts


def constant(graph: Graph, values: torch.Tensor, dtype: torch.dtype | None = None) -> str:
    """Add a tensor as a constant of the graph.

    Raises:
        NotInGraphError: it has a value of its own for every row.
    """
    values = values.detach().cpu()
    # a constant of N rows is broadcast from one, as the graph's rows are not N
    if values.ndim and values.shape[0] == N:
        if not bool((values == values[:1]).all() | values[:1].isnan().all()):
            raise NotInGraphError("a constant differs from row to row", remedy="Compute this column outside")
        values = values[:1]
    values = values if dtype is None else values.to(dtype)
    return graph.constant(values.numpy())


def value_of(graph: Graph, given: Any, dtype: torch.dtype) -> str:
    """Return the name of a value as a dtype, for a symbolic tensor, a constant tensor or a number."""
    if isinstance(given, GraphTensor):
        return given.value if given.dtype == dtype else cast(graph, given, dtype)
    if isinstance(given, torch.Tensor):
        return constant(graph, given, dtype)
    return graph.constant(torch.tensor(given, dtype=dtype).numpy())


def cast(graph: Graph, given: GraphTensor, dtype: torch.dtype) -> str:
    """Convert the values to another dtype, as torch does."""
    return graph.op("Cast", given.value, to=onnx_type(graph, dtype))


def onnx_type(graph: Graph, dtype: torch.dtype) -> int:
    """Return ONNX's number of a dtype."""
    return graph.type_of(numpy_type(dtype))


def numpy_type(dtype: torch.dtype) -> np.dtype:
    """Return the numpy dtype of a torch dtype."""
    return torch.empty(0, dtype=dtype).numpy().dtype


def _meta(given: Any) -> Any:
    if isinstance(given, GraphTensor):
        return given.meta
    if isinstance(given, torch.Tensor):
        return given.to("meta") if given.ndim else given
    if isinstance(given, list | tuple) and not isinstance(given, torch.Size):
        return type(given)(_meta(g) for g in given)
    return {n: _meta(v) for n, v in given.items()} if isinstance(given, dict) else given


def _flat(given: Any) -> Any:
    if isinstance(given, dict):
        given = given.values()
    if not isinstance(given, list | tuple | type({}.values())):
        yield given
        return
    for part in given:
        yield from _flat(part)
