"""``export_pt2``: the nets of an estimator as programs that torch runs without fastrec (``torch.export``, ``.pt2``).

A program is a net alone: codes and prepared numbers in, outputs out. TorchScript is not written: torch 2.13 warns that
``torch.jit.trace`` and ``torch.jit.script`` are deprecated, and names ``torch.export`` in their place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from fastrec._core.atomic import atomic_folder, check_replaceable
from fastrec.errors import DataError
from fastrec.estimators import Estimator, NetModel, NetRanker
from fastrec.models import EmbeddingTables
from fastrec.sequences import NextItemNet
from fastrec.serve.session_scores import session_program

_FIRST = "net_0.pt2"


def export_pt2(estimator: Estimator | NextItemNet, out: str | Path) -> list[Path]:
    """Write the nets of a trained estimator, each as a file; or the net of sessions of a ``NextItemNet``.

    ``torch.export.load(path).module()(x_cat, x_cont)`` gives what the net gives: float32 ``[b, outputs]``, of codes
    int64 ``[b, categories]`` and numbers float32 ``[b, numbers]`` as the estimator prepares them, for any ``b``. The
    program of a ``NextItemNet`` takes codes of sessions int64 ``[b, length]``, 0 for no event, for any ``b`` and
    ``length``, and gives scores of all codes, ``[b, codes]``.

    Args:
        estimator: a ``NetRanker``, a ``NetModel`` or a ``NextItemNet``.
        out: the folder to make or replace.

    Returns:
        ``net_0.pt2``, … one for each net of the bag.

    Raises:
        NotFittedError: it has not learned yet.
        DataError: it has no nets, or one that reads events (``SessionRanker``).
        WriteError: the folder holds other things.
    """
    if isinstance(estimator, NextItemNet):
        return _write([session_program(estimator)], out)
    if isinstance(estimator, NetModel):
        nets = estimator._nets
    elif isinstance(estimator, NetRanker):
        if estimator.reads_events:
            kind = type(estimator).__name__
            raise DataError(
                f"{estimator.name} ({kind}) reads the events before a list, which a program has no input for",
                remedy="Give a NetRanker, or serve the run itself",
            )
        nets = [] if estimator._trained is None else [estimator._trained]
    else:
        kind = type(estimator).__name__
        raise DataError(f"{estimator.name} ({kind}) has no nets", remedy="Give a NetRanker or a NetModel")
    if not nets:
        raise estimator.not_fitted()
    inputs = [[(len(t.plan["cats"]), torch.int64), (t.plan["n_cont"], torch.float32)] for t in nets]
    return _write((program_of(t.net, i) for t, i in zip(nets, inputs, strict=True)), out)


def _write(programs: Iterable[ExportedProgram], out: str | Path) -> list[Path]:
    out, names = Path(out), []
    check_replaceable(out, _FIRST)
    with atomic_folder(out) as folder:
        for i, program in enumerate(programs):
            names.append(f"net_{i}.pt2")
            torch.export.save(program, folder / names[-1])
    return [out / name for name in names]


def program_of(net: nn.Module, inputs: Sequence[tuple[int, torch.dtype]], n_lists: int = 0) -> ExportedProgram:
    """A net in evaluation as a program for any number of rows.

    Args:
        net: a model of ``fastrec.models``, or one that is called alike.
        inputs: width and dtype of codes, of numbers, and of each vector column.
        n_lists: how many list columns come between numbers and vectors. The program takes each as int64 ``[b, values]``
            with -1 where a list has ended, as wide as the longest.

    Returns:
        A program of as many tensors ``[b, width]``.
    """
    device = next(net.parameters()).device
    given = [torch.zeros((3, width), dtype=dtype, device=device) for width, dtype in inputs]
    given[2:2] = [torch.zeros((3, 2), dtype=torch.int64, device=device) for _ in range(n_lists)]
    rows = Dim("rows")
    shapes = [{0: rows} for _ in given]
    for i in range(n_lists):
        shapes[2 + i][1] = Dim(f"values{i}")
    was_training = net.training
    try:
        with torch.no_grad(), _pooling_padded(net):
            program = _Called(net.eval(), n_lists)
            return torch.export.export(program, tuple(given), dynamic_shapes={"inputs": tuple(shapes)})
    finally:
        net.train(was_training)


class _Called(nn.Module):
    """A net that is given all its inputs as tensors."""

    def __init__(self, net: nn.Module, n_lists: int) -> None:
        super().__init__()
        self.net, self.n_lists = net, n_lists

    def forward(self, *inputs: Tensor) -> Tensor:
        first, lists, vectors = inputs[:2], inputs[2 : 2 + self.n_lists], inputs[2 + self.n_lists :]
        return self.net(*first, *map(_Padded, lists), *vectors)


@dataclass
class _Padded:
    """Lists side by side, int64 ``[b, values]``, -1 where a list has ended."""

    values: Tensor


@contextmanager
def _pooling_padded(net: nn.Module) -> Iterator[None]:
    """Tables of a net that pool padded lists: the lengths of bags would tie a program to batches of 2 rows or more."""
    tables = [m for m in net.modules() if isinstance(m, EmbeddingTables)]
    if any(one.placed for one in tables):
        raise DataError(
            "a program cannot hold embedding tables whose rows are not on the device",
            remedy="Load the weights into a model made without placement= and export that",
        )
    for one in tables:
        one._bag = _pooled.__get__(one)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for one in tables:
            del one._bag


def _pooled(tables: EmbeddingTables, name: str, lists: _Padded) -> Tensor:
    """What ``EmbeddingTables`` makes of a list column: ``[b, width]``, 0 where a list is empty."""
    slice_ = tables.slice_of(name)
    there = (lists.values >= 0).unsqueeze(2)
    vectors = tables.weights[slice_.group][lists.values.clamp(min=0) + slice_.start]
    counts = there.sum(1)
    if tables.pool == "max":
        return torch.where(counts > 0, vectors.masked_fill(~there, -torch.inf).amax(1), 0.0)
    total = (vectors * there).sum(1)
    return total if tables.pool == "sum" else total / counts.clamp(min=1)
