"""Handlers of torch's functions in a graph; see ``GraphTensor``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from fastrec.serve.onnx_builder import Graph, GraphTensor, N, NotInGraphError, cast, handler, value_of

INT64 = torch.int64


def common(*given: Any) -> torch.dtype:
    """Return the dtype in which torch compares or joins values."""
    metas = [g.meta if isinstance(g, GraphTensor) else g for g in given]
    found = metas[0].dtype if isinstance(metas[0], torch.Tensor) else None
    for other in metas[1:]:
        # of as many dimensions: torch's rules for dtypes need no more
        a = metas[0] if found is None else torch.empty((1,) * np.ndim(metas[0]), dtype=found, device="meta")
        found = torch.result_type(a, other if not isinstance(other, torch.Tensor) else other.to("meta"))
    return found


def both(graph: Graph, a: Any, b: Any, dtype: torch.dtype | None = None) -> tuple[str, str, torch.dtype]:
    """Convert two operands to values of one dtype."""
    dtype = dtype or common(a, b)
    return value_of(graph, a, dtype), value_of(graph, b, dtype), dtype


def pick(graph: Graph, value: str, place: int, axis: int) -> str:
    """Take one place of an axis, and drop the axis."""
    return graph.op("Gather", value, graph.constant(np.array(place, dtype=np.int64)), axis=axis)


def _binary(graph: Graph, made: torch.Tensor, a: Any, b: Any, *, kind: str, alpha: Any = 1, **more: int) -> str:
    if alpha != 1:
        b = b * alpha
    if made.dtype == torch.bool and kind in ("Add", "Mul"):  # ONNX adds no bools: a sum is an or, a product an and
        return graph.op("Or" if kind == "Add" else "And", *both(graph, a, b, torch.bool)[:2])
    return graph.op(kind, *both(graph, a, b, made.dtype)[:2], **more)


for _kind, _names in {
    "Add": ("add", "__add__", "__radd__"),
    "Sub": ("sub", "subtract", "__sub__"),
    "Mul": ("mul", "multiply", "__mul__", "__rmul__"),
    "Max": ("maximum",),
    "Min": ("minimum",),
}.items():
    handler(*_names)(partial(_binary, kind=_kind))
handler("fmod")(partial(_binary, kind="Mod", fmod=1))


@handler("div", "true_divide", "divide", "__truediv__")
def _div(graph: Graph, made: torch.Tensor, a: Any, b: Any, *, rounding_mode: str | None = None) -> Any:
    x, y, _ = both(graph, a, b, made.dtype)
    quotient = GraphTensor(graph, graph.op("Div", x, y), made)
    if made.dtype.is_floating_point:
        return quotient if rounding_mode is None else getattr(quotient, rounding_mode)()
    if rounding_mode == "trunc":  # ONNX divides integers towards zero, torch's floor division does not
        return quotient
    rest = GraphTensor(graph, x, made) - quotient * b
    return quotient - (rest.sign() * GraphTensor(graph, y, made).sign() < 0).to(made.dtype)


@handler("remainder", "__mod__")
def _remainder(graph: Graph, made: torch.Tensor, a: Any, b: Any) -> Any:
    x, y, _ = both(graph, a, b, made.dtype)
    if not made.dtype.is_floating_point:
        return graph.op("Mod", x, y)
    rest, by = GraphTensor(graph, graph.op("Mod", x, y, fmod=1), made), GraphTensor(graph, y, made)
    return torch.where((rest != 0) & ((rest < 0) != (by < 0)), rest + by, rest)


@handler("pow", "__pow__", "__rpow__", "square")
def _pow(graph: Graph, made: torch.Tensor, a: Any, b: Any = 2) -> str:
    if b == 2 and isinstance(a, GraphTensor):
        x = value_of(graph, a, made.dtype)
        return graph.op("Mul", x, x)
    return graph.op("Pow", *both(graph, a, b, made.dtype)[:2])


for _kind, _names in {
    "Neg": ("neg", "negative", "__neg__"),
    "Abs": ("abs", "absolute", "__abs__"),
    "Sign": ("sign", "sgn"),
    **{n.capitalize(): (n,) for n in ("sqrt", "exp", "log", "sin", "cos", "tanh", "sigmoid", "reciprocal")},
}.items():
    handler(*_names)(lambda graph, made, a, *, kind=_kind: graph.op(kind, value_of(graph, a, made.dtype)))
for _name, _kind in {"floor": "Floor", "ceil": "Ceil", "round": "Round"}.items():
    handler(_name)(
        lambda graph, made, a, *, kind=_kind: graph.op(kind, a.value) if made.dtype.is_floating_point else a.value
    )


def _test(graph: Graph, made: torch.Tensor, a: GraphTensor, *, kind: str) -> Any:
    # the constant stays a tensor until a node reads it
    return graph.op(kind, a.value) if a.dtype.is_floating_point else torch.zeros_like(made, device="cpu")


handler("isnan")(partial(_test, kind="IsNaN"))
handler("isinf")(partial(_test, kind="IsInf"))


@handler("nan_to_num")
def _nan_to_num(
    graph: Graph, made: torch.Tensor, a: GraphTensor, nan: Any = 0.0, posinf: Any = None, neginf: Any = None
) -> str:
    if not a.dtype.is_floating_point:
        return a.value
    limits = torch.finfo(a.dtype)
    value = graph.op("Where", graph.op("IsNaN", a.value), value_of(graph, nan or 0.0, a.dtype), a.value)
    for given, usual, other in ((posinf, limits.max, "negative"), (neginf, limits.min, "positive")):
        bound = usual if given is None else given
        if not (isinstance(bound, float) and math.isinf(bound)):
            value = graph.op(
                "Where", graph.op("IsInf", a.value, **{f"detect_{other}": 0}), value_of(graph, bound, a.dtype), value
            )
    return value


def _compare(graph: Graph, made: torch.Tensor, a: Any, b: Any, *, kind: str) -> str:
    x, y, dtype = both(graph, a, b)
    if dtype == torch.bool and kind != "Equal":
        x, y, _ = both(graph, a, b, torch.int64)
    return graph.op(kind, x, y)


for _name, _kind in {"eq": "Equal", "lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual"}.items():
    handler(_name, f"__{_name}__")(partial(_compare, kind=_kind))


def _logic(graph: Graph, made: torch.Tensor, a: Any, b: Any, *, kind: str) -> str:
    x, y, dtype = both(graph, a, b, made.dtype)
    return graph.op(kind if dtype == torch.bool else f"Bitwise{kind}", x, y)


for _name in ("and", "or", "xor"):
    _names = (f"bitwise_{_name}", f"logical_{_name}", f"__{_name}__", f"__r{_name}__")
    handler(*_names)(partial(_logic, kind=_name.capitalize()))


@handler("bitwise_not", "logical_not", "__invert__")
def _not(graph: Graph, made: torch.Tensor, a: GraphTensor) -> str:
    return graph.op("Not" if made.dtype == torch.bool else "BitwiseNot", value_of(graph, a, made.dtype))


@handler("where")
def _where(graph: Graph, made: torch.Tensor, condition: Any, a: Any, b: Any) -> str:
    x, y, _ = both(graph, a, b, made.dtype)
    if made.dtype == torch.bool:  # onnxruntime's Where takes no bool
        mask = value_of(graph, condition, torch.bool)
        return graph.op("Or", graph.op("And", mask, x), graph.op("And", graph.op("Not", mask), y))
    return graph.op("Where", value_of(graph, condition, torch.bool), x, y)


@handler("clamp", "clip", "clamp_min")
def _clamp(graph: Graph, made: torch.Tensor, a: GraphTensor, min: Any = None, max: Any = None) -> str:
    value = value_of(graph, a, made.dtype)
    value = value if min is None else graph.op("Max", value, value_of(graph, min, made.dtype))
    return value if max is None else graph.op("Min", value, value_of(graph, max, made.dtype))


@handler("index_select")
def _looked_up(graph: Graph, made: Any, table: Any, dim: int, index: Any) -> str:
    value = _table(graph, table)
    place = value_of(graph, index, INT64)
    if table.ndim > 1 or not index.ndim:
        return graph.op("Gather", value, place, axis=dim)
    # onnxruntime copies single numbers by GatherElements five times as fast
    if index.ndim == 1:
        return graph.op("GatherElements", value, place, axis=0)
    found = graph.op("GatherElements", value, graph.op("Reshape", place, graph.whole(-1)), axis=0)
    return reshape(graph, found, index.shape)


def _table(graph: Graph, table: Any) -> str:
    # a constant stays whole, even if its length is N by chance
    return table.value if isinstance(table, GraphTensor) else graph.constant(table.detach().cpu().numpy())


@handler("__getitem__")
def _getitem(graph: Graph, made: Any, a: Any, place: Any) -> Any:
    if isinstance(place, GraphTensor):
        if place.dtype == torch.bool:
            raise NotInGraphError("some rows are taken out")
        return _looked_up(graph, made, a, 0, place)
    places = place if isinstance(place, tuple) else (place,)
    value, axis = _table(graph, a), 0
    for p in places:
        if p is None:
            value = graph.op("Unsqueeze", value, graph.whole(axis))
            axis += 1
        elif isinstance(p, GraphTensor):
            value = graph.op("Gather", value, p.value, axis=axis)
            axis += p.ndim
        elif isinstance(p, slice):
            if p != slice(None):
                ends = (p.start or 0, np.iinfo(np.int64).max if p.stop is None else p.stop, axis, p.step or 1)
                value = graph.op("Slice", value, *[graph.whole(e) for e in ends])
            axis += 1
        elif isinstance(p, torch.Tensor) and p.dtype == torch.int64:
            value = graph.op("Gather", value, graph.constant(p.numpy()), axis=axis)
            axis += p.ndim
        elif isinstance(p, int):
            value = pick(graph, value, p, axis)
        else:
            raise NotInGraphError(f"rows are taken at {p!r}")
    return value


@handler("gather")
def _gather(graph: Graph, made: torch.Tensor, a: Any, dim: int, index: Any) -> str:
    value, place = value_of(graph, a, made.dtype), value_of(graph, index, INT64)
    return graph.op("GatherElements", value, place, axis=dim % made.ndim)


@handler("searchsorted")
def _searchsorted(
    graph: Graph, made: torch.Tensor, edges: torch.Tensor, values: GraphTensor, *, right: bool = False, **_: Any
) -> Any:
    # NaN is above all edges
    if isinstance(edges, GraphTensor):
        raise NotInGraphError("edges are searched that are not learned")
    # a whole number beyond 2^53 is rounded, but not across an edge that is not
    exact = common(values, edges).is_floating_point or not len(edges) or int(edges.abs().max()) < 1 << 53
    # few edges are compared with all at once: fewer nodes than a bisection (8 is not measured)
    if len(edges) > 8 and values.ndim == 1 and exact:
        from fastrec.serve.graph.lookup import count_below

        return count_below(values[:, None], [edges], right=right)[:, 0]
    edges = edges.detach().cpu().to(common(values, edges))
    value = value_of(graph, values, edges.dtype)
    axis = graph.whole(values.ndim)
    wide = graph.op("Unsqueeze", value, axis)
    above = graph.op("Less" if right else "LessOrEqual", wide, graph.constant(edges.numpy()))  # NaN is below none
    return graph.op("ReduceSum", graph.cast(graph.op("Not", above), np.int64), axis, keepdims=0)


handler("bucketize")(lambda graph, made, a, edges, **how: _searchsorted(graph, made, edges, a, **how))


def _log1p(a: GraphTensor) -> Any:
    # Kahan: log(u) · x / (u - 1), u = 1 + x, keeps the digits of small x. Source: Goldberg 1991, theorem 4.
    u = a + 1
    same, rest, log = u == 1, u - 1, torch.log(u)
    fine = log * (a / torch.where(same, 1, rest))
    return torch.where(same, a, torch.where(rest.isinf() | (u == 0), log, fine))


def _expm1(a: GraphTensor) -> Any:
    # Kahan again: (u - 1) · x / log(u), u = exp(x); onnxruntime has no Sinh of float64
    u = a.exp()
    rest = u - 1
    far = (rest == -1) | rest.isinf()  # there log(u) may be inexact, and the difference is exact
    fine = rest * (a / torch.where(far | (rest == 0), 2, u).log())
    return torch.where(rest == 0, a, torch.where(far, rest, fine))


def _composed(graph: Graph, made: torch.Tensor, *args: Any, function: Callable[..., Any], **options: Any) -> Any:
    found = function(*args, **options)
    return found.to(made.dtype) if isinstance(found, GraphTensor) else found


for _names, _written in {
    ("rsub", "__rsub__"): lambda a, b: b - a,
    ("__rtruediv__", "__rdiv__"): lambda a, b: b / a,
    ("floor_divide", "__floordiv__"): lambda a, b: torch.div(a, b, rounding_mode="floor"),
    ("bitwise_left_shift", "__lshift__"): lambda a, b: a * (1 << b),
    ("trunc", "fix"): lambda a: a.abs().floor() * a.sign(),
    ("log1p",): lambda a: _log1p(a.to(torch.promote_types(a.dtype, torch.float32))),
    ("expm1",): lambda a: _expm1(a.to(torch.promote_types(a.dtype, torch.float32))),
    ("logit",): lambda a, eps=None: (a / (1 - a)).log() if eps is None else torch.logit(a.clamp(eps, 1 - eps)),
    ("isfinite",): lambda a: ~(a.isnan() | a.isinf()),
    ("ne", "not_equal", "__ne__"): lambda a, b: ~torch.eq(a, b),
    ("masked_fill",): lambda a, mask, value: torch.where(mask, value, a),
    ("clamp_max",): lambda a, max: torch.clamp(a, None, max),
}.items():
    handler(*_names)(partial(_composed, function=_written))


def _reduce(
    graph: Graph, made: torch.Tensor, a: GraphTensor, dim: Any = None, keepdim: bool = False, *, kind: str, **_: Any
) -> str:
    dims = [d % a.ndim for d in ([dim] if isinstance(dim, int) else dim or range(a.ndim))]
    if a.shape and a.shape[0] == N and 0 in dims:
        raise NotInGraphError("a value depends on all rows at once")
    return graph.op(kind, value_of(graph, a, made.dtype), graph.whole(*dims), keepdims=int(keepdim))


for _name, _kind in {"sum": "ReduceSum", "mean": "ReduceMean", "amax": "ReduceMax", "amin": "ReduceMin"}.items():
    handler(_name)(partial(_reduce, kind=_kind))


@handler("any")
def _any(graph: Graph, made: torch.Tensor, a: GraphTensor, dim: int | None = None, keepdim: bool = False) -> Any:
    if dim is None:  # asked of all rows: only whether there may be some
        found = GraphTensor(graph, a.value, made)
        found.some = True
        return found
    return GraphTensor(graph, cast(graph, a, torch.int64), a.meta.long()).amax(dim, keepdim=keepdim) > 0


@handler("all")
def _all(graph: Graph, made: torch.Tensor, a: GraphTensor, *_: Any, **__: Any) -> Any:
    raise NotInGraphError("something depends on all rows")


@handler("sort")
def _sort(
    graph: Graph, made: Any, a: GraphTensor, dim: int = -1, descending: bool = False, stable: bool = False
) -> Any:
    axis = dim % a.ndim
    if a.shape[axis] == N:
        raise NotInGraphError("rows are sorted")
    value, big = a.value, value_of(graph, math.inf if not descending else -math.inf, a.dtype)
    # NaN comes last, as in torch: it is sorted as infinity and put back by its number in the row
    gone, size = graph.op("IsNaN", value), graph.whole(a.shape[axis])
    count = graph.op("ReduceSum", graph.cast(gone, np.int64), graph.whole(axis), keepdims=1)
    filled = graph.op("Where", gone, big, value)
    values, places = graph.op("TopK", filled, size, outputs=2, axis=axis, largest=int(descending), sorted=1)
    place = np.arange(a.shape[axis]).reshape([-1 if i == axis else 1 for i in range(a.ndim)])
    tail = graph.op("GreaterOrEqual", graph.op("Add", graph.constant(place), count), size)
    return [graph.op("Where", tail, value_of(graph, math.nan, a.dtype), values), places]


def _softmax(graph: Graph, made: torch.Tensor, a: GraphTensor, dim: int = -1, *, kind: str, **_: Any) -> str:
    return graph.op(kind, value_of(graph, a, made.dtype), axis=dim % a.ndim)


handler("softmax")(partial(_softmax, kind="Softmax"))
handler("log_softmax")(partial(_softmax, kind="LogSoftmax"))


@handler("matmul", "mm", "mv", "__matmul__", "__rmatmul__")
def _matmul(graph: Graph, made: torch.Tensor, a: Any, b: Any) -> str:
    x, y, _ = both(graph, a, b, made.dtype)
    if b.ndim == 1:  # onnxruntime 1.32 joins a transposition with a product by a vector, and gets it wrong
        axis = graph.whole(1)
        return graph.op("Squeeze", graph.op("MatMul", x, graph.op("Unsqueeze", y, axis)), axis)
    return graph.op("MatMul", x, y)


@handler("einsum")
def _einsum(graph: Graph, made: torch.Tensor, equation: str, *parts: Any) -> str:
    values = [value_of(graph, p, made.dtype) for p in (parts[0] if isinstance(parts[0], list | tuple) else parts)]
    return graph.op("Einsum", *values, equation=equation.replace(" ", ""))


@handler("linalg_vector_norm", "norm")
def _norm(graph: Graph, made: torch.Tensor, a: GraphTensor, ord: Any = 2, dim: Any = None, **options: Any) -> Any:
    if ord not in (2, "fro") or dim is None:
        raise NotInGraphError(f"a norm of order {ord}")
    wide = a.to(made.dtype)
    return (wide * wide).sum(dim, keepdim=options.get("keepdim", False)).sqrt()


@handler("to", "long", "double", "float", "int", "bool", "type", "type_as", "half", "byte")
def _to(graph: Graph, made: torch.Tensor, a: GraphTensor, *_: Any, **__: Any) -> Any:
    return a if a.dtype == made.dtype else cast(graph, a, made.dtype)


@handler("clone", "detach", "contiguous", "cpu", "as_subclass", "requires_grad_", "pin_memory")
def _same(graph: Graph, made: torch.Tensor, a: GraphTensor, *_: Any, **__: Any) -> str:
    return a.value


def _constants(
    graph: Graph, made: torch.Tensor, a: GraphTensor, *given: Any, name: str, device: Any = None, **options: Any
) -> torch.Tensor:
    function = getattr(torch, name) if name.endswith("_like") else getattr(torch.Tensor, name)
    return function(torch.empty(a.shape, dtype=a.dtype), *given, **options)


for _name in ("zeros_like", "new_zeros", "ones_like", "new_ones", "full_like", "new_full", "new_tensor"):
    handler(_name)(partial(_constants, name=_name))


def reshape(graph: Graph, value: str, shape: Sequence[int]) -> str:
    """Reshape a value; ``N`` is the number of rows."""
    if sum(s == N for s in shape) > 1:
        raise NotInGraphError("a tensor has rows twice")
    return graph.op("Reshape", value, graph.whole(*(-1 if s == N else s for s in shape)))


@handler("reshape", "view", "unsqueeze", "squeeze", "flatten", "ravel", "view_as", "reshape_as")
def _reshape(graph: Graph, made: torch.Tensor, a: GraphTensor, *given: Any, **options: Any) -> str:
    if given and isinstance(given[0], torch.dtype):  # the same bits: a bool and a byte
        if {a.dtype, made.dtype} <= {torch.bool, torch.int8, torch.uint8}:
            return cast(graph, a, made.dtype)
        raise NotInGraphError(f"the bits of {a.dtype} as {made.dtype} have no form in a graph")
    return a.value if made.shape == a.shape else reshape(graph, a.value, made.shape)


@handler("expand", "broadcast_to", "expand_as")
def _expand(graph: Graph, made: torch.Tensor, a: GraphTensor, *_: Any) -> str:
    if a.shape and a.shape[0] == N and list(made.shape).count(N) == 1 and made.shape[0] == N:
        return graph.op("Expand", a.value, graph.whole(1, *made.shape[1:]))
    return a.value  # it is broadcast where it is read


def _transpose(graph: Graph, made: torch.Tensor, a: GraphTensor, *given: Any, name: str, **options: Any) -> str:
    # torch itself says where the dimensions go, each known by its size
    sized = torch.empty(tuple(range(2, 2 + a.ndim)), device="meta")
    order = [d - 2 for d in getattr(torch.Tensor, name)(sized, *given, **options).shape]
    return graph.op("Transpose", a.value, perm=order)


for _name in ("transpose", "t", "permute", "movedim"):
    handler(_name)(partial(_transpose, name=_name))


@handler("stack")
def _stack(graph: Graph, made: torch.Tensor, parts: Sequence[Any], dim: int = 0) -> str:
    axis = dim % made.ndim
    if made.ndim == 2 and axis == 1 and len(parts) > 2:  # three nodes, however many columns there are
        joined = graph.op("Concat", *[_rows(graph, p, made.dtype) for p in parts], axis=0)
        return graph.op("Transpose", graph.op("Reshape", joined, graph.whole(len(parts), -1)), perm=[1, 0])
    at = graph.whole(axis)
    return graph.op("Concat", *[graph.op("Unsqueeze", _rows(graph, p, made.dtype), at) for p in parts], axis=axis)


@handler("cat", "concat", "concatenate")
def _cat(graph: Graph, made: torch.Tensor, parts: Sequence[Any], dim: int = 0) -> str:
    if dim % made.ndim == 0 and made.shape[0] != N:
        raise NotInGraphError("rows are joined to rows")
    if len(parts) == 1:
        return value_of(graph, parts[0], made.dtype)
    return graph.op("Concat", *[_rows(graph, p, made.dtype) for p in parts], axis=dim % made.ndim)


def _rows(graph: Graph, part: Any, dtype: torch.dtype) -> str:
    if isinstance(part, torch.Tensor):
        raise NotInGraphError("a constant column is joined to others", remedy="Leave the column out")
    return value_of(graph, part, dtype)


handler("unbind")(lambda graph, made, a, dim=0: [pick(graph, a.value, i, dim % a.ndim) for i in range(len(made))])
handler("select")(lambda graph, made, a, dim, index: pick(graph, a.value, index, dim % a.ndim))
