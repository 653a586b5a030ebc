"""Build ONNX models: nodes, constants and inputs of a ``Graph``."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fastrec._core import limits
from fastrec.errors import DataError
from fastrec.serve.forest._onnx import onnx

OPSET, ML_OPSET, IR = 20, 5, 10
CONTRIBUTED = "com.microsoft"  # domain of operators that onnxruntime alone has
ROWS = "rows"  # name of the first dimension of inputs and outputs


@dataclass
class GraphCut:
    """A value of a graph at which it may be cut into parts.

    Args:
        name: in the parts.
        value: in the graph.
        dtype: numpy's name of its type between the parts.
        width: of ``[rows, width]``; None: ``[rows]``.
        inner: its type in the graph; None: the same.
    """

    name: str
    value: str
    dtype: str
    width: int | None
    inner: str | None = None


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
        self._onnx = onnx()
        self._nodes: list[Any] = []
        self._inputs: dict[str, tuple[Any, tuple[int | str, ...]]] = {}
        self._outputs: dict[str, tuple[str, Any, int | str | None]] = {}
        self._constants: dict[str, np.ndarray] = {}
        self._named: dict[Any, Any] = {}
        self._count = 0
        self.known: dict[str, list[tuple[str, np.ndarray]]] = {}  # value → its places among known keys, and the keys
        self.scope = "graph"  # name of the model whose nets and forests are being written
        self.compress: Callable[[Any], Any] | None = None  # applied to nets' models
        self.hashed: set[str] = set()  # inputs of text that are hashed letter by letter
        self.marks: list[GraphPart] = []  # possible parts (see ``fastrec.serve.parts``)

    def input(self, name: str, dtype: Any, shape: tuple[int | str, ...] = (ROWS,)) -> str:
        """Add an input, ``[rows]`` unless another shape is given, of a numpy dtype (``object`` or ``str``: text).

        Raises:
            DataError: there is an input of that name already.
        """
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

    def merge(self, model: Any, feeds: Sequence[str], prefix: str = "n") -> list[str]:
        """Add the nodes of another model (an ``onnx.ModelProto``); return the names of its outputs here.

        Args:
            model: a model of the same opset.
            feeds: one value for each of its inputs.
            prefix: of its names here; a number follows.
        """
        # the copied nodes would call functions that this model lacks
        if model.functions:
            raise DataError("a net's graph has functions of its own", remedy="Inline them first")
        self._count += 1
        start, graph = f"{prefix}{self._count}_", model.graph
        names = dict(zip([i.name for i in graph.input], feeds, strict=True)) | {"": ""}
        for tensor in graph.initializer:
            # equal weights of several folds or nets are stored once
            names[tensor.name] = self.constant(self._onnx.numpy_helper.to_array(tensor))
        for node in _in_order(graph):
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

    def add(self, nodes: Sequence[Any], constants: Sequence[Any]) -> None:
        """Add nodes that name values of this graph, and constants (``onnx.TensorProto``) with new names."""
        self._nodes += nodes
        self._constants |= {t.name: self._onnx.numpy_helper.to_array(t) for t in constants}

    def fresh(self, word: str) -> str:
        """Return a new name."""
        self._count += 1
        return f"{word.lower()}_{self._count}"

    def mark(self, kind: str, inputs: Sequence[GraphCut], output: GraphCut, *, booster: Any = None) -> None:
        """Mark a net or a forest as a possible part, by its inputs and its output."""
        place = sum(m.name.startswith(f"{self.scope}_") for m in self.marks)
        self.marks.append(GraphPart(f"{self.scope}_{place}", kind, list(inputs), [output], booster))

    def output_value(self, name: str) -> str:
        """Return the value of an output."""
        return self._outputs[name][0]

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
        """Write a model, by default the whole; large constants go into a second file.

        Returns:
            The files.
        """
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
        sha = hashlib.sha256(path.read_bytes()).hexdigest()
        about["model"] = {"file": path.name, "files": files, "sha256": sha}

    def type_of(self, dtype: Any) -> int:
        """Return ONNX's number of a numpy dtype."""
        kind = np.dtype(dtype)
        if kind.kind in "OU":
            return self._onnx.TensorProto.STRING
        return self._onnx.helper.np_dtype_to_tensor_dtype(kind)


def _in_order(graph: Any) -> list[Any]:
    """Sort a graph's nodes topologically."""
    known = {i.name for i in graph.input} | {t.name for t in graph.initializer} | {""}
    left, ordered = list(graph.node), []
    while left:
        ready = [n for n in left if set(n.input) <= known]
        if not ready:
            raise DataError("a net's graph goes in circles", remedy="Report this")
        ordered += ready
        known |= {v for n in ready for v in n.output}
        chosen = {id(n) for n in ready}
        left = [n for n in left if id(n) not in chosen]
    return ordered


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
