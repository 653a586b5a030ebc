"""A net's class and options: checked at once, built for columns, saved without pickle."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import fastrec.models
from fastrec._core.ranks import world_size
from fastrec.errors import DataError
from fastrec.models import embedding_sizes
from fastrec.models.field_net import InputOptions
from fastrec.table import load_state, save_state
from fastrec.training.joined_grads import is_sharded

_GIVEN = ("emb_szs", "n_cont", "out_sz", "cat_names", "list_szs", "list_names", "vector_szs")  # by the columns


@dataclass(frozen=True)
class Architecture:
    """A class of models and its options.

    Args:
        model: a class of ``fastrec.models`` or its name, or a class of one's own that is called alike.
        options: its options: plain values, tensors, and classes of ``torch.nn``.

    Raises:
        DataError: there is no such model, or it takes no such option.
    """

    model: type[nn.Module] | str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "model", _class_of(self.model))  # the dataclass is frozen
        accepted = _accepted(self.model)
        for name, value in self.options.items():
            if name in _GIVEN or (accepted is not None and name not in accepted):
                raise DataError(
                    f"{self.model.__name__} takes no option {name!r} here",
                    remedy="Its options are " + ", ".join(sorted(set(accepted or ()) - set(_GIVEN))),
                )
            if _class_name(value) is None and not _is_plain(value):
                raise DataError(
                    f"the option {name!r} is a {type(value).__name__}, which no saved net could be made with again",
                    remedy="Give plain values, tensors, or a class of torch.nn, as in act_cls=nn.GELU",
                )

    def plan(self, dls: Any, n_out: int = 1) -> dict[str, Any]:
        """Return all that the net is made with: sizes and names of columns, outputs and options."""
        names = list(dls.cat_names)
        learnt = getattr(self.model, "options_for", lambda dls, given: {})(dls, dict(self.options))
        sizes = embedding_sizes(dls.train_ds.classes if names else {}, names)
        options = {**learnt, **self.options}
        return {"emb_szs": sizes, "cats": names, "n_cont": len(dls.cont_names), "n_out": n_out, "options": options}

    def build(self, plan: Mapping[str, Any]) -> nn.Module:
        """Build a net with first weights."""
        options = dict(plan["options"])
        accepted = _accepted(self.model)
        if accepted is None or "cat_names" in accepted:
            options["cat_names"] = plan["cats"] or None
        net = self.model([tuple(z) for z in plan["emb_szs"]], plan["n_cont"], plan["n_out"], **options)
        if world_size() > 1 and any(is_sharded(p) for p in net.parameters()):
            raise DataError(
                "an estimator keeps a whole net, and ranks would share its tables",
                remedy="Leave out placement='row-sharded', or train with rec_learner and distributed",
            )
        return net

    def save(self, folder: Path, plan: Mapping[str, Any]) -> None:
        """Write what ``load`` needs."""
        options = plan["options"]
        classes = {n: c for n, v in options.items() if (c := _class_name(v)) is not None}
        plain = {n: v for n, v in options.items() if n not in classes}
        given = [n for n in self.options if n not in classes]
        state = {
            **plan,
            "options": plain,
            "classes": classes,
            "own": [*given, *(n for n in classes if n in self.options)],
        }
        save_state(folder, {"model": name_of(self.model), **state})

    @classmethod
    def load(cls, folder: Path) -> tuple[Architecture, dict[str, Any]]:
        """Read the architecture and the plan of a saved net."""
        state = load_state(folder)
        classes = {n: getattr(nn, v) for n, v in state["classes"].items()}
        if not all(_class_name(c) for c in classes.values()):
            raise ValueError(f"torch.nn lacks one of {', '.join(state['classes'].values())}")
        options = {**state["options"], **classes}
        architecture = cls(state["model"], {n: options[n] for n in state["own"]})
        return architecture, {**{n: state[n] for n in ("emb_szs", "cats", "n_cont", "n_out")}, "options": options}


def _class_of(model: type[nn.Module] | str) -> type[nn.Module]:
    """Return a model's class; no module that a name mentions is imported."""
    found: Any = model
    if isinstance(model, str):
        module, _, name = model.rpartition(":")
        found = sys.modules.get(module) if module else fastrec.models
        for part in name.split("."):
            found = getattr(found, part, None)
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        known = [n for n in fastrec.models.__all__ if hasattr(getattr(fastrec.models, n), "forward")]
        raise DataError(
            f"{model!r} is no class of models that is known here",
            remedy=f"Give one of fastrec.models ({', '.join(known)}), or import the module of your own first",
        )
    return found


def name_of(model: type[nn.Module]) -> str:
    """Return the name that a saved net's class is found by, of a class of one's own with its module."""
    own = getattr(fastrec.models, model.__name__, None) is model
    return model.__name__ if own else f"{model.__module__}:{model.__qualname__}"


def _accepted(model: type[nn.Module]) -> list[str] | None:
    """Return the names of a model's options; None: it takes any."""
    parameters = inspect.signature(model).parameters
    names = [n for n, p in parameters.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    rest = next((n for n, p in parameters.items() if p.kind is p.VAR_KEYWORD), None)
    if rest is None:
        return names
    return [*names, *InputOptions.__annotations__] if rest == "inputs" else None


def _class_name(value: Any) -> str | None:
    known = isinstance(value, type) and issubclass(value, nn.Module) and getattr(nn, value.__name__, None) is value
    return value.__name__ if known else None


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(k, str) and not k.startswith("$") and _is_plain(v) for k, v in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str | Tensor | np.generic)


def load_weights(net: nn.Module, weights: Mapping[str, Tensor]) -> nn.Module:
    """Load these weights, and no others, into the net, ready to score."""
    with torch.no_grad():
        net.load_state_dict(dict(weights), strict=True)
    return net.eval()
