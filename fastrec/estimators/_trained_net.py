"""``TrainedNet``: a net, and how its columns are prepared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from fastrec._core.oom import naming_out_of_memory
from fastrec.estimators._architecture import Architecture, load_weights
from fastrec.table import Table, load_state, save_state
from fastrec.tabular import TabularFrame
from fastrec.tabular.procs import proc_from_state
from fastrec.validate import Rows

if TYPE_CHECKING:
    from fastrec.estimators._net_start import NetStart


@dataclass
class TrainedNet:
    """A net, and how rows become its batches.

    Args:
        architecture: its class and options.
        plan: all that it was made with.
        net: the net, in evaluation.
        frame: a frame without rows, which knows the prepared columns.
        flags: flag of missing values → the column that it is of.
    """

    architecture: Architecture
    plan: dict[str, Any]
    net: nn.Module
    frame: TabularFrame
    flags: dict[str, str]

    @classmethod
    def begin(
        cls,
        architecture: Architecture,
        dls: Any,
        frame: TabularFrame,
        flags: dict[str, str],
        n_out: int = 1,
        *,
        start: NetStart | None = None,
        more: Mapping[str, Any] | None = None,
        events: Mapping[str, list[Any]] | None = None,
    ) -> Self:
        """Build a net with first weights, or with those of ``start``.

        Args:
            dls: dataloaders of the training rows.
            start: the net to begin with.
            more: further options of the model.
        """
        plan = architecture.plan(dls, n_out)
        plan = plan if start is None else start.planned(plan)
        plan["options"] = {**plan["options"], **(more or {})}
        net = architecture.build(plan)
        if start is not None:
            start.give_to(net, frame, events=events)
        return cls(architecture, plan, net, frame.new_empty(), flags)  # the training rows are not kept

    def frame_of(self, data: Rows) -> TabularFrame:
        """Return rows with their columns prepared; labels are not looked at."""
        frame = self.frame.new(net_columns(data, self.flags, [*self.frame.cat_names, *self.frame.cont_names]))
        frame.process()
        return frame

    def outputs(self, data: Rows, at_once: int) -> Tensor:
        """Return the net's outputs of rows, ``at_once`` rows at a time: float64 ``[n, outputs]`` on the CPU."""
        return outputs_of(self.net, self.frame_of(data), at_once)

    def write(self, folder: Path) -> dict[str, Any]:
        """Write weights (``model.safetensors``), what the net is made with (``net/``) and how columns are prepared.

        Returns:
            What else ``read`` needs, as JSON values.
        """
        weights = {n: w.contiguous() for n, w in self.net.state_dict().items()}
        save_file(weights, folder / "model.safetensors")
        self.architecture.save(folder / "net", self.plan)
        procs = {p.name: p.to_state() for p in self.frame.procs.fs if hasattr(p, "to_state")}
        save_state(folder / "procs", procs)
        return {"cats": list(self.frame.cat_names), "conts": list(self.frame.cont_names), "flags": self.flags}

    @classmethod
    def read(cls, folder: Path, about: Mapping[str, Any], loss: Any) -> Self:
        """Restore what ``write`` wrote.

        Args:
            folder: what ``write`` wrote to.
            loss: the loss that the net was trained with: it settles how members are averaged.
        """
        architecture, plan = Architecture.load(folder / "net")
        if list(about["cats"]) != plan["cats"] or len(about["conts"]) != plan["n_cont"]:
            raise ValueError("the net is of other columns")
        with torch.random.fork_rng(devices=[]):  # first weights are drawn, and not used
            net = architecture.build(plan)
        if hasattr(net, "wrap_loss"):
            net.wrap_loss(loss)
        procs = [proc_from_state(state) for state in load_state(folder / "procs").values()]
        frame = TabularFrame(Table({}), procs, about["cats"], about["conts"], do_setup=False)
        net = load_weights(net, load_file(folder / "model.safetensors"))
        return cls(architecture, plan, net, frame, dict(about["flags"]))


def outputs_of(net: nn.Module, frame: TabularFrame, at_once: int) -> Tensor:
    """Return the outputs of a net in evaluation for prepared rows: float64 ``[n, outputs]`` on the CPU."""
    device = next(net.parameters()).device
    with torch.no_grad(), naming_out_of_memory("scoring rows", "Score fewer rows at once"):
        parts = zip(frame.x_cat.split(at_once), frame.x_cont.split(at_once), strict=True)
        outputs = [net(cats.to(device), conts.to(device)).double().cpu() for cats, conts in parts]
    return torch.cat(outputs)


def net_columns(
    data: Rows, flags: Mapping[str, str], names: list[str], targets: Mapping[str, Tensor] | None = None
) -> Table:
    """Return a net's columns of rows: those of ``names``, flags of missing values among them, then targets.

    Args:
        flags: flag → the column that it is of.
        names: the columns, flags or not.
        targets: name → values ``[n]``.
    """
    columns: dict[str, Any] = {n: data.table[n] for n in names if n not in flags}
    columns |= {flag: data.table[n].is_missing().double() for flag, n in flags.items()}
    return Table({**columns, **(targets or {})}, device=data.table.device)


def missing_flags(data: Rows) -> dict[str, str]:
    """Return flag → column, one flag for every distinct set of rows in which columns are missing."""
    seen: dict[int, str] = {}
    for name in data.conts:
        # A column that is never or always missing needs no flag.
        missing = data.table[name].is_missing().cpu()
        if bool(missing.any()) and not bool(missing.all()):
            # Columns that are missing in the same rows share a flag: copies of it only cost time.
            seen.setdefault(hash(np.packbits(missing.numpy()).tobytes()), name)
    flags: dict[str, str] = {}
    for name in seen.values():
        flag = f"{name}_is_missing"
        while flag in data.conts or flag in data.cats or flag in flags:
            flag += "_"
        flags[flag] = name
    return flags
