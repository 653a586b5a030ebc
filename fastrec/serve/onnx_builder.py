"""Build ONNX models: nodes, constants and inputs of a ``Graph``."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fastrec._core import limits
from fastrec._core.atomic import file_digest
from fastrec._core.imports import require
from fastrec.errors import DataError

OPSET, ML_OPSET, IR = 20, 5, 10
CONTRIBUTED = "com.microsoft"  # domain of operators that onnxruntime alone has
ROWS = "rows"  # name of the first dimension of inputs and outputs


@dataclass
class GraphCut:
    """A value of a graph at which it may be cut into parts."""

    name: str
    value: str
    dtype: str  # between the parts
    width: int | None  # of ``[rows, width]``; None: ``[rows]``
    inner: str | None = None  # the dtype in the graph; None: the same


@dataclass
class GraphPart:
    """A part of a graph: ``kind`` is ``'onnx'`` or ``'xgboost'`` (with its ``booster``)."""

    name: str
    kind: str
    inputs: list[GraphCut]
    outputs: list[GraphCut]
    booster: Any = None


class Graph:
    """Nodes in the order in which they are computed; equal nodes on equal inputs share a result."""

    def __init__(self) -> None:
        how = "pip install 'fastrec-tabular[export]'"
        for module in ("onnx.helper", "onnx.numpy_helper"):
            require(module, "ONNX", how)
        self._onnx = require("onnx", "ONNX", how)
        self._nodes: list[Any] = []
        self._inputs: dict[str, tuple[Any, tuple[int | str, ...]]] = {}
        self._outputs: dict[str, tuple[str, Any, int | str | None]] = {}
        self._constants: dict[str, np.ndarray] = {}
        self._named: dict[Any, Any] = {}
        self._count = 0  # of names and merged models
        self.known: dict[str, list[tuple[str, np.ndarray]]] = {}  # value → its places among known keys, and the keys
        self.scope = "graph"  # name of the model whose nets and forests are being written
        self.compress: Callable[[Any], Any] | None = None  # applied to nets' models
        self.hashed: set[str] = set()  # inputs of text that are hashed letter by letter
        self.marks: list[GraphPart] = []  # possible parts (see ``fastrec.serve.export``)

    def input(self, name: str, dtype: Any, shape: tuple[int | str, ...] = (ROWS,)) -> str:
        """Add an input, ``[rows]`` unless another shape is given, of a numpy dtype (``object`` or ``str``: text)."""
        if name in self._inputs:
            raise DataError("two inputs of a graph have one name", column=name, remedy="Rename one")
        self._inputs[name] = self.type_of(dtype), shape
        return name

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs, in the order of their first use."""
        return tuple(self._inputs)

    def drop_unread_inputs(self) -> set[str]:
        """Remove inputs that no output depends on; return the names of the others."""
        read = {n for node in self.model().graph.node for n in node.input} & set(self._inputs)
        self._inputs = {n: t for n, t in self._inputs.items() if n in read}
        return read

    def output(self, name: str, value: str, dtype: Any, width: int | str | None = None) -> None:
        """Name a result as an output: ``[rows]``, or ``[rows, width]``."""
        self._outputs[name] = value, self.type_of(dtype), width

    def constant(self, value: Any, dtype: Any = None) -> str:
        """Add a constant; equal ones are stored once."""
        # ascontiguousarray would turn a scalar into a vector
        array = np.ascontiguousarray(np.asarray(value, dtype)) if np.ndim(value) else np.asarray(value, dtype)
        key = "constant", array.dtype.str, array.shape, _digest(array)
        if key not in self._named:
            self._named[key] = self.fresh("c")
            self._constants[self._named[key]] = array
        return self._named[key]

    def whole(self, *values: int) -> str:
        """Add a constant of int64 ``[values]``, such as a shape or axes."""
        return self.constant(values, np.int64)

    def op(self, kind: str, *inputs: str, outputs: int = 1, domain: str = "", shared: bool = True, **attributes: Any):
        """Add a node, unless an equal one exists and ``shared``; return its result's name, or a tuple of names.

        An input ``''`` is left out. Attributes are numbers, text, lists of these, or numpy arrays (tensors).
        """
        marks = []
        for name, value in sorted(attributes.items()):
            if isinstance(value, np.ndarray):
                value = value.dtype.str, value.shape, _digest(value)
            marks.append((name, tuple(value) if isinstance(value, list) else value))
        key = kind, inputs, outputs, domain, tuple(marks)
        if shared and key in self._named:
            return self._named[key]
        names = [self.fresh(kind) for _ in range(outputs)]
        tensor = self._onnx.numpy_helper.from_array
        given = {n: tensor(v) if isinstance(v, np.ndarray) else v for n, v in attributes.items()}
        self._nodes.append(self._onnx.helper.make_node(kind, list(inputs), names, domain=domain, **given))
        result: Any = names[0] if outputs == 1 else tuple(names)
        if shared:
            self._named[key] = result
        return result

    def cast(self, value: str, dtype: Any) -> str:
        """Convert a value to another numpy dtype."""
        return self.op("Cast", value, to=self.type_of(dtype))

    def lookup(self, value: str, keys: np.ndarray, values: np.ndarray, *, default: int = 0) -> str:
        """Look up int64 values of keys (int64, float64 or text), ``default`` for others."""
        tensors = {"keys_tensor": keys, "values_tensor": values, "default_tensor": np.array([default])}
        return self.op("LabelEncoder", value, domain="ai.onnx.ml", **tensors)

    def merge(self, model: Any, feeds: Sequence[str], prefix: str = "n") -> list[str]:
        """Add the nodes of another model, whose inputs are ``feeds``; return the names of its outputs here."""
        # the copied nodes would call functions that this model lacks
        if model.functions:
            raise DataError("a net's graph has functions of its own", remedy="Inline them first")
        self._count += 1
        start, graph = f"{prefix}{self._count}_", model.graph
        names = dict(zip([i.name for i in graph.input], feeds, strict=True)) | {"": ""}
        for tensor in graph.initializer:
            # equal weights of several folds or nets are stored once
            names[tensor.name] = self.constant(self._onnx.numpy_helper.to_array(tensor))
        maker = {value: i for i, node in enumerate(graph.node) for value in node.output}
        before = {i: [maker[v] for v in node.input if v in maker] for i, node in enumerate(graph.node)}
        for node in (graph.node[i] for i in TopologicalSorter(before).static_order()):
            if any(a.HasField("g") for a in node.attribute):
                raise DataError(f"a net's graph has a {node.op_type}", remedy="Export a net without control flow")
            copied = self._onnx.NodeProto()
            copied.CopyFrom(node)
            copied.name = ""
            copied.input[:] = [names[n] for n in node.input]
            for n in node.output:
                names[n] = start + n if n else ""
            copied.output[:] = [names[n] for n in node.output]
            self._nodes.append(copied)
        return [names[o.name] for o in graph.output]

    def fresh(self, word: str) -> str:
        """Return a new name."""
        self._count += 1
        return f"{word.lower()}_{self._count}"

    def mark(self, kind: str, inputs: Sequence[GraphCut], output: GraphCut, *, booster: Any = None) -> None:
        """Mark a net or a forest as a possible part, by its inputs and its output."""
        place = sum(m.name.startswith(f"{self.scope}_") for m in self.marks)
        self.marks.append(GraphPart(f"{self.scope}_{place}", kind, list(inputs), [output], booster))

    def part(self, inputs: Sequence[GraphCut], outputs: Sequence[GraphCut]) -> tuple[Any, set[str]]:
        """Build the model of the nodes from some values to others, and the set of values that it reads."""
        helper = self._onnx.helper
        begins = [
            helper.make_node("Cast", [cut.name], [cut.value], to=self.type_of(cut.inner or cut.dtype))
            for cut in inputs
            if cut.value != cut.name or cut.name not in self._inputs
        ]
        known = {c.value for c in inputs}
        body = [n for n in self._nodes if not set(n.output) & known]
        ends = [helper.make_node("Cast", [c.value], [c.name], to=self.type_of(c.dtype)) for c in outputs]
        nodes = _needed([*begins, *body, *ends], {c.name for c in outputs})
        read = {v for n in nodes for v in n.input}
        ins = [self._info(c) for c in inputs if c.name in read]
        return self._model(nodes, "part", ins, [self._info(c) for c in outputs]), read

    def _info(self, cut: GraphCut) -> Any:
        if cut.name in self._inputs:
            kind, shape = self._inputs[cut.name]
        else:
            kind, shape = self.type_of(cut.dtype), (ROWS,) if cut.width is None else (ROWS, cut.width)
        return self._onnx.helper.make_tensor_value_info(cut.name, kind, shape)

    def _model(self, nodes: list[Any], name: str, ins: list[Any], outs: list[Any]) -> Any:
        helper = self._onnx.helper
        read = {n for node in nodes for n in node.input}
        tensors = [self._onnx.numpy_helper.from_array(v, n) for n, v in self._constants.items() if n in read]
        graph = helper.make_graph(nodes, name, ins, outs, tensors)
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("ai.onnx.ml", ML_OPSET)]
        if any(n.domain == CONTRIBUTED for n in nodes):
            opsets.append(helper.make_opsetid(CONTRIBUTED, 1))
        return helper.make_model(graph, opset_imports=opsets, ir_version=IR, producer_name="fastrec")

    def model(self, *, name: str = "fastrec") -> Any:
        """Build the model, without nodes and constants that no output needs."""
        helper = self._onnx.helper
        ends = [helper.make_node("Identity", [value], [out]) for out, (value, _, _) in self._outputs.items()]
        nodes = _needed([*self._nodes, *ends], set(self._outputs))
        ins = [helper.make_tensor_value_info(n, t, list(s)) for n, (t, s) in self._inputs.items()]
        outs = [
            helper.make_tensor_value_info(n, t, [ROWS] if w is None else [ROWS, w])
            for n, (_, t, w) in self._outputs.items()
        ]
        return self._model(nodes, name, ins, outs)

    def save(self, path: Path, *, name: str = "fastrec", model: Any = None) -> list[Path]:
        """Write a model, by default the whole, and return its files: large constants go into a second one."""
        model = self.model(name=name) if model is None else model
        # protobuf's largest message is 2 GiB
        if sum(len(t.raw_data) for t in model.graph.initializer) <= limits.ONNX_FILE_BYTES:
            path.write_bytes(model.SerializeToString())
            return [path]
        data = f"{path.name}.data"
        # small constants stay in the first file
        options = {"location": data, "size_threshold": 1024, "convert_attribute": False}
        self._onnx.save_model(model, str(path), save_as_external_data=True, **options)
        return [path, path.with_name(data)]

    def export(self, folder: Path, about: dict[str, Any]) -> None:
        """Write ``model.onnx``, and add its files and digest to ``about``, the content of ``serving.json``."""
        path = folder / "model.onnx"
        files = [f.name for f in self.save(path, name=str(about["name"]))]
        about["model"] = {"file": path.name, "files": files, "sha256": file_digest(path)}

    def type_of(self, dtype: Any) -> int:
        """Return ONNX's number of a numpy dtype."""
        kind = np.dtype(dtype)
        if kind.kind in "OU":
            return self._onnx.TensorProto.STRING
        return self._onnx.helper.np_dtype_to_tensor_dtype(kind)


def _needed(nodes: list[Any], wanted: set[str]) -> list[Any]:
    needed = []
    for node in reversed(nodes):
        if wanted & set(node.output):
            needed.append(node)
            wanted |= set(node.input)
    return needed[::-1]


def _digest(array: np.ndarray) -> Any:
    # objects have no bytes to hash
    if array.dtype == object:
        return tuple(array.ravel().tolist())
    return array.tobytes() if array.nbytes < 64 else hashlib.sha256(array.tobytes()).digest()


# ``GraphTensor``: a symbolic tensor; torch's functions, called with one, write nodes into a graph.
#
# The code that computes features in training writes their graph too, so that the two cannot differ. The dtype and shape
# of every result are torch's own: each function also runs on ``meta`` tensors. The number of rows is ``N`` in their
# shapes; a constant of that length must be the same in all rows.

N = 1009  # a prime that no other dimension is likely to be


class NotInGraphError(DataError):
    """An operation that has no form in a graph."""

    def __init__(self, problem: str, *, remedy: str = "Compute this column outside of the graph", **where: Any) -> None:
        super().__init__(problem, remedy=remedy, **where)


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
    def of(cls, graph: Graph, value: str, dtype: torch.dtype, *width: int) -> GraphTensor:
        """Wrap a value ``[rows]``, or ``[rows, width]``."""
        return cls(graph, value, torch.empty((N, *width), dtype=dtype, device="meta"))

    # what torch itself tells of the meta tensor
    dtype, shape, ndim, size, dim, is_floating_point = (
        property(attrgetter(f"meta.{n}")) for n in ("dtype", "shape", "ndim", "size", "dim", "is_floating_point")
    )
    device, is_cuda = torch.device("cpu"), False  # only the graph's runtime has a device

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return call(func, args, kwargs or {})

    @property
    def T(self) -> GraphTensor:
        """The transposed tensor."""
        return self.transpose(0, 1)

    def cpu(self) -> GraphTensor:
        """Return the tensor itself."""
        return self

    def __len__(self) -> int:
        return len(self.meta)

    def __bool__(self) -> bool:
        if self.some:
            return True  # some of the later rows may be so: take the branch that handles them too
        raise NotInGraphError("something depends on rows that are not known yet")

    def __iter__(self) -> Any:
        return iter(self.unbind(0))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        # a graph has no mutable values: a method in place replaces this tensor's value
        in_place = name.endswith("_") and not name.startswith("_")
        found = getattr(torch.Tensor, name[:-1] if in_place else name, None)
        if not callable(found):
            raise NotInGraphError(f"a graph has no tensor's {name!r}")

        def method(*args: Any, **kwargs: Any) -> Any:
            made = call(found, (self, *args), kwargs)
            if in_place:
                self.value, self.meta = made.value, made.meta
                return self
            return made

        return method

    def __index__(self) -> int:
        raise NotInGraphError("a number of the rows is read before the rows are known")

    __int__ = __float__ = __index__

    def __setitem__(self, place: Any, value: Any) -> None:
        if not (isinstance(place, GraphTensor) and place.dtype == torch.bool):
            raise NotInGraphError("values are put into places of a graph's tensor", remedy="Use torch.where")
        made = torch.where(place, value, self)
        self.value, self.meta = made.value, made.meta


def _operator(name: str, *, swapped: bool = False) -> Callable[..., Any]:
    def method(self: GraphTensor, *others: Any) -> Any:
        return call(getattr(torch, name), (*others, self) if swapped else (self, *others), {})

    return method


for _name, _function in {
    **{n: n for n in ("add", "sub", "mul", "pow", "matmul")},
    **{n: f"bitwise_{n}" for n in ("and", "or", "xor")},
    "truediv": "div",
    "mod": "remainder",
    "floordiv": "floor_divide",
    "lshift": "bitwise_left_shift",
}.items():
    setattr(GraphTensor, f"__{_name}__", _operator(_function))
    setattr(GraphTensor, f"__r{_name}__", _operator(_function, swapped=True))
for _name in ("eq", "ne", "lt", "le", "gt", "ge", "neg", "abs"):
    setattr(GraphTensor, f"__{_name}__", _operator(_name))
GraphTensor.__hash__ = object.__hash__  # type: ignore[method-assign]
GraphTensor.__invert__ = _operator("bitwise_not")  # type: ignore[attr-defined]
GraphTensor.__getitem__ = lambda self, place: call(torch.Tensor.__getitem__, (self, place), {})  # type: ignore[method-assign, attr-defined]


def call(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function of torch with symbolic tensors among its arguments; refuse those without a form as nodes."""
    name = getattr(func, "__name__", str(func))
    if name == "__get__":
        name = getattr(getattr(func, "__self__", None), "__name__", name)
    graph = next(a.graph for a in _flat((args, kwargs)) if isinstance(a, GraphTensor))
    if name not in HANDLERS:
        raise NotInGraphError(f"torch.{name} has no form in a graph")
    try:
        # torch itself computes dtype and shape of the result: no second set of rules that could differ
        metas = func(*_meta(args), **_meta(kwargs))
    except (RuntimeError, NotImplementedError, TypeError) as error:
        raise NotInGraphError(f"torch.{name} cannot be written as nodes ({error})") from error
    made = HANDLERS[name](graph, metas, *args, **kwargs)
    if isinstance(made, GraphTensor | torch.Tensor):
        return made
    if isinstance(metas, torch.Tensor):
        return GraphTensor(graph, made, metas)
    parts = [GraphTensor(graph, v, m) for v, m in zip(made, metas, strict=True)]
    # results such as torch.return_types.sort are named tuples, which code reads by name
    return type(metas)(parts) if getattr(type(metas), "__name__", "") not in ("list", "tuple") else parts


def constant(graph: Graph, values: torch.Tensor, dtype: torch.dtype | None = None) -> str:
    """Add a tensor as a constant of the graph; refuse one with a value of its own for every row."""
    values = values.detach().cpu()
    # a constant of N rows is broadcast from one, as the graph's rows are not N
    if values.ndim and values.shape[0] == N:
        if not bool((values == values[:1]).all() | values[:1].isnan().all()):
            raise NotInGraphError("a constant differs from row to row")
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
    return graph.cast(given.value, torch.empty(0, dtype=dtype).numpy().dtype)


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
        given = tuple(given.values())
    if isinstance(given, list | tuple):
        for part in given:
            yield from _flat(part)
    else:
        yield given
