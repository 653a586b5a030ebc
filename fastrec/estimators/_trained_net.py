"""``TrainedNet``: a net and the preparation of its columns."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from fastrec._core.memory import naming_out_of_memory
from fastrec.estimators._net_training import Architecture
from fastrec.models import EmbeddingTables, EventNet
from fastrec.models.real_mlp import OneHotTables
from fastrec.table import Table, load_state, save_state
from fastrec.tabular import TabularFrame
from fastrec.tabular.procs import Categorify, proc_from_state
from fastrec.validate import Rows


@dataclass
class TrainedNet:
    """A net in evaluation mode, the arguments it was built with (``plan``), and how rows become its batches.

    ``frame``: an empty frame that holds the column preparation; ``flags``: missing-value flag → its column.
    """

    architecture: Architecture
    plan: dict[str, Any]
    net: nn.Module
    frame: TabularFrame
    flags: dict[str, str]

    @classmethod
    def begin(
        cls, architecture: Architecture, dls: Any, frame: TabularFrame, flags: dict[str, str], n_out: int = 1, *,
        start: NetStart | None = None, more: Mapping[str, Any] | None = None,
        events: Mapping[str, list[Any]] | None = None,
    ) -> Self:  # fmt: skip
        """Build a net with initial weights, or with those of ``start``; ``more``: further options of the model."""
        plan = architecture.plan(dls, n_out)
        plan = plan if start is None else start.planned(plan)
        plan["options"] = {**plan["options"], **(more or {})}
        net = architecture.build(plan)
        if start is not None:
            # before the first step: new values keep their initial weights
            start.give_to(net, frame, events=events)
        # The training rows are not kept, but in a ModernNCA.
        return cls(architecture, plan, net, frame.new_empty(), flags)

    def frame_of(self, data: Rows) -> TabularFrame:
        """Return rows with their columns prepared, without looking at labels."""
        frame = self.frame.new(net_columns(data, self.flags, [*self.frame.cat_names, *self.frame.cont_names]))
        frame.process()
        return frame

    def write(self, folder: Path) -> dict[str, Any]:
        """Write weights (``model.safetensors``), the arguments of the net (``net/``) and the preparation of columns.

        Returns what else ``read`` needs, as JSON values.
        """
        save_file({n: w.contiguous() for n, w in self.net.state_dict().items()}, folder / "model.safetensors")
        self.architecture.save(folder / "net", self.plan)
        save_state(folder / "procs", {p.name: p.to_state() for p in self.frame.procs.fs if hasattr(p, "to_state")})
        return {"cats": list(self.frame.cat_names), "conts": list(self.frame.cont_names), "flags": self.flags}

    @classmethod
    def read(cls, folder: Path, about: Mapping[str, Any], loss: Any) -> Self:
        """Restore what ``write`` wrote; the training loss determines how members are averaged."""
        architecture, plan = Architecture.load(folder / "net")
        if list(about["cats"]) != plan["cats"] or len(about["conts"]) != plan["n_cont"]:
            raise ValueError("the net is of other columns")
        with torch.random.fork_rng(devices=[]):  # initial weights are drawn but not used
            net = architecture.build(plan)
        if hasattr(net, "wrap_loss"):
            net.wrap_loss(loss)
        procs = [proc_from_state(state) for state in load_state(folder / "procs").values()]
        frame = TabularFrame(Table({}), procs, about["cats"], about["conts"], do_setup=False)
        net.load_state_dict(load_file(folder / "model.safetensors"))
        return cls(architecture, plan, net.eval(), frame, dict(about["flags"]))


def outputs_of(net: nn.Module, frame: TabularFrame, at_once: int) -> Tensor:
    """Return the outputs of a net in evaluation mode for prepared rows: float64 ``[n, outputs]`` on the CPU."""
    device = next(net.parameters()).device
    with torch.no_grad(), naming_out_of_memory("scoring rows", "Score fewer rows at once"):
        parts = zip(frame.x_cat.split(at_once), frame.x_cont.split(at_once), strict=True)
        outputs = [net(cats.to(device), conts.to(device)).double().cpu() for cats, conts in parts]
    return torch.cat(outputs)


def net_columns(
    data: Rows, flags: Mapping[str, str], names: list[str], targets: Mapping[str, Tensor] | None = None
) -> Table:
    """Return a net's columns of rows: ``names``, including missing-value flags, then targets ``[n]``."""
    columns: dict[str, Any] = {n: data.table[n] for n in names if n not in flags}
    columns |= {flag: data.table[n].is_missing().double() for flag, n in flags.items()}
    return Table({**columns, **(targets or {})}, device=data.table.device)


def missing_flags(data: Rows) -> dict[str, str]:
    """Return flag → column, with one flag for every distinct set of rows in which columns are missing."""
    seen: dict[int, str] = {}
    for name in data.conts:
        # A column that is never or always missing needs no flag.
        missing = data.table[name].is_missing().cpu()
        if bool(missing.any()) and not bool(missing.all()):
            # Columns that are missing in the same rows share a flag: duplicates only cost time.
            seen.setdefault(hash(np.packbits(missing.numpy()).tobytes()), name)
    flags: dict[str, str] = {}
    for name in seen.values():
        flag = f"{name}_is_missing"
        while flag in data.conts or flag in data.cats or flag in flags:
            flag += "_"
        flags[flag] = name
    return flags


STARTED = "began with the weights that were there"  # the trace's note for such a net


class NetStart:
    """The weights that a net begins with.

    Rows of embedding tables are matched by value, because a vocabulary may have grown; rows of new values keep their
    initial weights. An ``EventNet``'s vectors of items and of events' categories are also matched by value, the latter
    per column (``events``: column → the values of its codes, in their order). All other weights are matched by name, if
    the shapes are equal.
    """

    def __init__(self, trained: TrainedNet, *, events: Mapping[str, list[Any]] | None = None) -> None:
        self._trained, self._events = trained, dict(events or {})

    def __deepcopy__(self, memo: Any) -> NetStart:
        return self  # it is never changed and may be large

    def __repr__(self) -> str:
        digest = hashlib.sha256()
        for name, values in sorted(self._trained.net.state_dict().items()):
            digest.update(name.encode())
            digest.update(values.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
        return f"NetStart({digest.hexdigest()[:20]})"

    @property
    def model(self) -> type[nn.Module]:
        """The net's class."""
        return self._trained.architecture.model  # type: ignore[return-value]

    def planned(self, plan: Mapping[str, Any]) -> dict[str, Any]:
        """Keep embeddings as wide as they were: a larger vocabulary would make them wider."""
        old = self._trained.plan
        widths = {n: width for n, (_, width) in zip(old["cats"], old["emb_szs"], strict=True)}
        sizes = [(rows, widths.get(n, width)) for n, (rows, width) in zip(plan["cats"], plan["emb_szs"], strict=True)]
        return {**plan, "emb_szs": sizes}

    @staticmethod
    def epochs(usual: int) -> int:
        """Return the epochs of a warm start: half as many."""
        return math.ceil(usual / 2)

    def give_to(
        self, net: nn.Module, frame: TabularFrame, *, events: Mapping[str, list[Any]] | None = None
    ) -> list[str]:
        """Copy the weights into a net of the same class; return the names that keep their initial weights."""
        old, new = values_of_codes(self._trained.frame), values_of_codes(frame)
        if any(isinstance(m, OneHotTables) for m in net.modules()) and old != new:
            return list(net.state_dict())  # the assignment of codes to values has changed
        mine, theirs = dict(net.named_modules()), dict(self._trained.net.named_modules())
        by_value = {"known_cat", "known_cont", "known_y"}  # a ModernNCA's training rows are its own
        with torch.no_grad():
            for path, module in mine.items():
                other = theirs.get(path)
                if isinstance(module, EmbeddingTables):
                    prefix = f"{path}." if path else ""
                    by_value |= {f"{prefix}weights.{group}" for group in module.weights}
                    known = {s.name: s for s in other.slices} if isinstance(other, EmbeddingTables) else {}
                    for s in module.slices:
                        t = known.get(s.name)
                        if t is not None and t.width == s.width and s.name in old and s.name in new:
                            tables = module.weights[s.group], other.weights[t.group]
                            _give_rows(*tables, new[s.name], old[s.name], (s.start, t.start))
            if isinstance(net, EventNet):
                by_value |= {n for n in net.state_dict() if n == "item.weight" or n.startswith("kinds.")}
                items = new[frame.cat_names[-1]], old[self._trained.frame.cat_names[-1]]
                old_net = self._trained.net
                if isinstance(old_net, EventNet) and old_net.width == net.width:
                    if old_net.item is not None and net.item is not None:
                        _give_rows(net.item.weight, old_net.item.weight, *items)
                    # the vectors of the events' categories, for the columns that both nets have
                    known = dict(zip(self._events, old_net.kinds, strict=True))
                    for name, table in zip(events or {}, net.kinds, strict=True):
                        if name in known:
                            _give_rows(table.weight, known[name].weight, events[name], self._events[name])
            unchanged, given = [], self._trained.net.state_dict()
            for name, values in net.state_dict().items():
                if name in by_value:
                    continue
                if name in given and given[name].shape == values.shape:
                    values.copy_(given[name])
                else:
                    unchanged.append(name)
        return unchanged


def _give_rows(
    target: Tensor, given: Tensor, now: list[Any], before: list[Any], starts: tuple[int, int] = (0, 0)
) -> None:
    """Copy the rows of the values that both vocabularies have."""
    places = {value: i for i, value in enumerate(before)}
    pairs = [(starts[0] + i, starts[1] + places[v]) for i, v in enumerate(now) if v in places]
    to, source = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).unbind(1)
    target[to.to(target.device)] = given[source.to(given.device)].to(target.device, target.dtype)


def values_of_codes(frame: TabularFrame) -> dict[str, list[Any]]:
    """Return categorical column of a frame → the values of its codes, in their order."""
    procs = [p for p in frame.procs.fs if isinstance(p, Categorify)]
    return {n: list(c) for p in procs for n, c in p.classes.items()}
