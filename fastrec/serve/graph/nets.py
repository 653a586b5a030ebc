"""Write trained nets into a graph: columns are prepared as in training, layers by torch's own exporter."""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.export import Dim

from fastrec._core import limits
from fastrec._core.imports import require
from fastrec.errors import DataError
from fastrec.estimators._trained_net import TrainedNet
from fastrec.models import EmbeddingTables, TabularNet
from fastrec.models.embedding import side_by_side
from fastrec.serve.graph.columns import GraphTable, as_graph_column, encode
from fastrec.serve.graph.lookup import interpolated
from fastrec.serve.onnx_builder import OPSET, Graph, GraphCut, GraphTensor, constant, value_of
from fastrec.tabular import FillMissing, Normalize, RankGauss, TabularFrame
from fastrec.tabular.procs import ContProc, Features

# A net whose embedding tables were multiplied by its first layer: a lookup and a sum replace a wide product.


def folded(net: nn.Module) -> nn.Module:
    """Return a net, on the CPU, for scoring that gives the same outputs in fewer operations, or the net itself.

    The first layer of a ``TabularNet`` is linear in each column's vector, so ``table @ weights`` is computed once and a
    batch sums its rows: 1,024 rows of 20 columns with 1,900 numbers took 7 ms instead of 17.
    """
    first = net.layers[0][0] if isinstance(net, TabularNet) else None
    if not isinstance(first, nn.Linear) or net.embeds is None or not net.embeds.n_columns:
        return net
    slices = net.embeds.slices[: net.embeds.n_columns]
    room, columns = limits.FOLD_TABLE_BYTES, []
    for i in sorted(range(len(slices)), key=lambda i: -slices[i].width):  # the widest first while there is room
        growth = 4 * (slices[i].stop - slices[i].start) * (first.out_features - slices[i].width)
        # a table narrower than 8 is multiplied faster than a row as wide as the hidden layer is read
        if slices[i].width >= 8 and growth <= room:
            room -= max(growth, 0)
            columns.append(i)
    return _Folded(net, sorted(columns)).eval() if columns else net


class _Folded(nn.Module):
    """A ``TabularNet`` with tables as wide as its first layer for some columns."""

    def __init__(self, net: TabularNet, columns: list[int]) -> None:
        super().__init__()
        self.net, self.columns = net, columns
        first: nn.Linear = net.layers[0][0]
        weights = first.weight.detach().double()
        slices = net.embeds.slices[: net.embeds.n_columns]
        ends = torch.tensor([s.width for s in slices]).cumsum(0).tolist()
        kept = torch.ones(first.in_features, dtype=torch.bool)
        for i in columns:
            own, s = slice(ends[i] - slices[i].width, ends[i]), slices[i]
            kept[own] = False
            table = net.embeds.weights[s.group].detach()[s.start : s.stop].double() @ weights[:, own].T
            self.register_buffer(f"table{i}", table.to(first.weight.dtype))
        self.others = [i for i in range(len(slices)) if i not in columns]
        self.register_buffer("weight", first.weight.detach()[:, kept].clone())
        self.register_buffer("bias", torch.zeros(first.out_features) if first.bias is None else first.bias.detach())
        self.after = nn.Sequential(*list(net.layers[0])[1:], *list(net.layers)[1:])

    def forward(self, x_cat: Tensor, x_cont: Tensor | None = None) -> Tensor:
        net = self.net
        net.embeds.check(x_cat)
        pieces = [net.embeds.look_up(i, x_cat[:, i]) for i in self.others]
        pieces += net.dense_pieces(x_cont, ())
        hidden = self.bias
        if pieces:
            hidden = nn.functional.linear(side_by_side(pieces), self.weight, self.bias)
        for i in self.columns:
            hidden = hidden + nn.functional.embedding(x_cat[:, i], getattr(self, f"table{i}"))
        return self.after(hidden)


def net_outputs(trained: TrainedNet, table: GraphTable) -> GraphTensor:
    """Write a net's outputs: float64 ``[rows, outputs]``."""
    columns = {flag: table[name].is_missing().double() for flag, name in trained.flags.items()}
    cats, conts = _prepared(trained.frame, table.with_columns(columns))
    graph = cats.graph if isinstance(cats, GraphTensor) else conts.graph
    inputs = [value_of(graph, cats, torch.int64), value_of(graph, conts, torch.float32)]
    # the net is a model of its own first: torch's exporter knows its layers
    proto, used, width = net_model(trained.net, [(m.shape[1], m.dtype) for m in (cats.meta, conts.meta)])
    if graph.compress is not None:
        proto = graph.compress(proto)
    output = graph.merge(proto, [v for v, is_used in zip(inputs, used, strict=True) if is_used])[0]
    cuts = [GraphCut("", v, t, m.shape[1]) for v, t, m in zip(inputs, ("int64", "float32"), (cats, conts), strict=True)]
    read = [c for c, is_used in zip(cuts, used, strict=True) if is_used]
    graph.mark("onnx", read, GraphCut("", output, "float32", width))
    return GraphTensor.of(graph, output, torch.float32, width).double()


def _prepared(frame: TabularFrame, table: GraphTable) -> tuple[Any, Any]:
    """Write codes of categories int64 ``[rows, c]`` and numbers float32 ``[rows, m]``, as ``TabularFrame`` does."""
    procs = {type(p).__name__: p for p in frame.procs.fs}
    if any(isinstance(p, Features) for p in procs.values()):
        raise DataError("a net has features of its own", remedy="Put them into the recipe's features")
    names = list(frame.cont_names)
    numbers = {n: table[n].number() for n in names}
    graph = next((v.graph for n in table.names if isinstance(v := table[n].values, GraphTensor)), None)
    if graph is None:
        raise DataError("a graph has no inputs", remedy="Give a run whose models read columns")
    cats = _matrix(graph, [_codes(procs, n, table, numbers) for n in frame.cat_names], torch.int64)
    conts = _matrix(graph, [numbers[n] for n in names], torch.float64)
    # each proc on all columns at once: few wide nodes are faster than many narrow ones
    for proc in sorted((p for p in procs.values() if isinstance(p, ContProc) and names), key=lambda p: p.order):
        if isinstance(proc, FillMissing):
            fills = torch.tensor([proc.of_column("fills", n) for n in names], dtype=torch.float64)
            conts = torch.where(conts.isnan(), fills, conts)
        elif isinstance(proc, Normalize):
            means, sds = (torch.tensor([d[n] for n in names], dtype=torch.float64) for d in (proc.means, proc.stds))
            conts = (conts - means) / sds
        elif isinstance(proc, RankGauss):
            flat = torch.tensor([0.0, 1.0]), torch.zeros(2)  # of a column that was constant in training: it becomes 0
            knots = [proc.knots[n] if len(proc.knots[n][0]) > 1 else flat for n in names]
            conts = interpolated(conts, knots, missing=0.0)
        else:
            conts = _matrix(graph, [proc.apply(n, conts[:, i]) for i, n in enumerate(names)], torch.float64)
    return cats, conts.to(torch.float32)


def _codes(procs: Mapping[str, Any], name: str, table: GraphTable, numbers: Mapping[str, Any]) -> Any:
    fill, plain = procs.get("FillMissing"), name.removesuffix("_na")
    if fill is not None and plain != name and plain in fill.flagged and name not in table:
        return numbers[plain].isnan().long() + 1  # classes #na#, False, True
    return encode(procs["Categorify"].vocab_of(name), as_graph_column(table[name]))


def _matrix(graph: Graph, columns: list[Any], dtype: torch.dtype) -> GraphTensor:
    """Stack columns to ``[rows, m]``; a column that is the same in every row is expanded."""
    some = next((c for c in columns if isinstance(c, GraphTensor)), None)
    if not columns:
        # the number of rows is that of any input
        shape = graph.op("Concat", graph.op("Shape", graph.inputs[0]), constant(graph, torch.tensor([0])), axis=0)
        empty = graph.op("ConstantOfShape", shape, value=torch.zeros(1, dtype=dtype).numpy())
        return GraphTensor.of(graph, empty, dtype, 0)
    if some is None:
        raise DataError("all columns of a net are the same in every row", remedy="Leave the net out")
    parts = []
    for column in columns:
        if not isinstance(column, GraphTensor):
            # adding 0 of another column spreads a constant over the rows
            column = (some.double() * 0).nan_to_num(0.0, 0.0, 0.0).to(dtype) + column[:1].to(dtype)
        parts.append(column.to(dtype))
    return torch.stack(parts, 1)


def net_model(net: nn.Module, inputs: list[tuple[int, torch.dtype]]) -> tuple[Any, list[bool], int]:
    """Convert a net to an ONNX model; return the model, which inputs it reads, and how many outputs it has.

    ``inputs``: width and dtype of the categories' codes and of the numbers.
    """
    net = net.cpu().eval()
    with torch.no_grad():
        width = int(net(*(torch.zeros((3, w), dtype=dtype) for w, dtype in inputs)).shape[1])
    proto = onnx_of(folded(net), inputs)  # fewer operations, equal outputs
    count = len(proto.graph.input)
    # some versions of the exporter keep inputs that nothing reads, others drop those of width 0
    used = [True] * len(inputs) if count == len(inputs) else [w > 0 for w, _ in inputs]
    if sum(used) != count or not any(node.input for node in proto.graph.node):
        raise DataError("a net's graph has other inputs than the net", remedy="Report this")
    return proto, used, width


def onnx_of(net: nn.Module, inputs: Sequence[tuple[int, torch.dtype]]) -> Any:
    """Convert a net on the CPU to an ONNX model for any number of rows; ``inputs``: width and dtype of each."""
    if any(m.placed for m in net.modules() if isinstance(m, EmbeddingTables)):
        why = "a graph cannot hold embedding tables whose rows are not on the device"
        raise DataError(why, remedy="Load the weights into a model made without placement= and export that")
    given = tuple(torch.zeros((3, width), dtype=dtype) for width, dtype in inputs)
    return exported(net.eval(), given, shapes=({0: Dim("rows")},) * len(given))


def exported(module: nn.Module, args: tuple[Tensor, ...] = (), kwargs: Any = None, *, shapes: Any) -> Any:
    """Convert a module in evaluation mode to an ``onnx.ModelProto``; ``shapes`` are torch's ``dynamic_shapes``."""
    require("onnxscript", "onnxscript", "pip install 'fastrec-tabular[export]'")
    # the exporter warns of its own parts, and logs what it does not use
    loggers = [logging.getLogger(n) for n in ("torch.onnx", "onnxscript", "onnx_ir", "torch.export")]
    levels = [logger.level for logger in loggers]
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            program = torch.export.export(module, args, kwargs, dynamic_shapes=shapes)
            return torch.onnx.export(program, dynamo=True, opset_version=OPSET, verbose=False).model_proto
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


Compress = Literal["float16", "int8"]


def compressed(model: Any, how: Compress) -> Any:
    """Convert a net's model (``onnx.ModelProto``) to weights of 16 bits, or matrix products of 8 bits.

    Inputs and outputs stay as they are. ``'int8'`` has a scale for each weight, and one for the activations of a batch.
    """
    if how not in get_args(Compress):
        raise DataError(f"a net cannot be compressed to {how!r}", remedy="Use 'float16' or 'int8'")
    hint = "pip install 'fastrec-tabular[export]'"
    if how == "float16":
        made = require("onnxruntime.transformers.float16", "onnxruntime", hint)
        return made.convert_float_to_float16(model, keep_io_types=True)
    tools = require("onnxruntime.quantization", "onnxruntime", hint)
    onnx = require("onnx", "onnx", hint)
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "net.onnx", Path(folder) / "int8.onnx"
        onnx.save_model(model, str(source))
        tools.quantize_dynamic(str(source), str(target), weight_type=tools.QuantType.QInt8)
        return onnx.load_model(str(target))
