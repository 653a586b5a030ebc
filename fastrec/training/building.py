"""The model of ``rec_learner``: made for the columns of the data, of options that are checked by name before."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from itertools import islice
from numbers import Integral
from typing import Any

from torch import nn

from fastrec.errors import DataError
from fastrec.models import FieldNet, embedding_sizes
from fastrec.models.field_net import InputOptions
from fastrec.tabular import TabularFrame

__all__ = ["build_model", "check_options", "check_takes_extras", "refuse_options"]


def check_options(given: Iterable[str], model: Callable[..., nn.Module] | nn.Module, known: Iterable[str]) -> None:
    """Refuse options that a model does not take."""
    built, known = isinstance(model, nn.Module), set(known)
    own = _options_of(type(model) if built else model)
    # what a model that is there already would take, or others do, is another mistake
    unknown = [] if own is None else [n for n in given if n not in own and not (built and n in known)]
    if not unknown:
        return
    made = type(model) if built else _made_by(model)
    name = getattr(made, "__name__", type(made).__name__)
    near = [] if unknown[0] in known else get_close_matches(unknown[0], sorted(own | known), 1)
    raise DataError(
        f"{name} takes no {', '.join(map(repr, unknown))}"
        + ("" if unknown[0] in known else ", nor do rec_learner and Learner")
        + "".join(f"; did you mean {n!r}?" for n in near),
        remedy=f"{name} takes {', '.join(sorted(own))}; rec_learner and Learner {', '.join(sorted(known))}",
    )


def refuse_options(options: Iterable[str]) -> None:
    """Refuse options for a model that is already built."""
    if given := sorted(options):
        raise DataError(f"{given} cannot change a model that is already built", remedy="Pass the model's class instead")


def build_model(
    dls: Any, model: Callable[..., nn.Module], emb_szs: Any, n_out: int, options: Mapping[str, Any]
) -> nn.Module:
    """Build a model for the columns of dataloaders."""
    if not isinstance(n_out, Integral) or n_out < 1:  # fastai's dls.c may be a column of that name
        raise DataError("the number of outputs cannot be told from the targets", remedy="Pass n_out, or set dls.c")
    names, frame = list(dls.cat_names), dls.train_ds
    lists = list(frame.list_names) if isinstance(frame, TabularFrame) else []
    emb_szs, list_szs = _sizes(emb_szs, names, lists, frame)
    own = frame.extras.columns if isinstance(frame, TabularFrame) and frame.extras is not None else {}
    vectors = [own[n].shape[1] for n in own if n not in lists]
    inputs = {"cat_names": names or None, "list_szs": list_szs, "list_names": lists, "vector_szs": vectors}
    accepted = inspect.signature(model).parameters
    defaults = {k: v for k, v in inputs.items() if k in accepted or _takes_inputs(model)}
    if "layers" in accepted and accepted["layers"].default is inspect.Parameter.empty:
        defaults["layers"] = [200, 100]
    learnt = getattr(_made_by(model), "options_for", None)
    if learnt is not None:
        defaults |= learnt(dls, {**getattr(model, "keywords", {}), **options})
    return model(emb_szs, len(dls.cont_names), n_out, **(defaults | dict(options)))


def check_takes_extras(net: nn.Module, dls: Any) -> None:
    """Refuse a model without inputs for the frame's lists and vectors."""
    frame = dls.train_ds
    names = [*frame.list_names, *frame.vector_names] if isinstance(frame, TabularFrame) else []
    if not names:
        return
    try:
        inspect.signature(net.forward).bind(*range(2 + len(names)))
    except TypeError:
        raise DataError(
            f"{type(net).__name__} takes no lists or vectors, but the frame has {names}",
            remedy="Pass a model with forward(x_cat, x_cont, *extras), or leave out list_names and vector_names",
        ) from None


def _sizes(given: Any, names: list[str], lists: list[str], frame: Any) -> tuple[list[Any], list[Any]]:
    every = [*names, *lists]
    if given is None or isinstance(given, Mapping):
        given = embedding_sizes(frame.classes if every else {}, every, widths=given)
    elif len(given) != len(every):
        raise DataError(
            f"{len(given)} embedding sizes for {len(names)} categorical columns and {len(lists)} list columns",
            remedy=f"Give one each for {every}",
        )
    return list(given[: len(names)]), list(given[len(names) :])


def _made_by(model: Callable[..., nn.Module]) -> Any:
    return getattr(model, "func", model)


def _takes_inputs(model: Callable[..., nn.Module]) -> bool:
    """Return whether a model passes options on to ``FieldNet``, by its class or its keywords' type."""
    made, rest = _made_by(model), _rest(inspect.signature(model).parameters.values())
    is_field_net = isinstance(made, type) and issubclass(made, FieldNet)
    return rest is not None and (is_field_net or _is_typed(rest))


def _options_of(model: Callable[..., nn.Module]) -> set[str] | None:
    """Return a model's options, except its sizes; None if it takes any."""
    parameters = list(inspect.signature(model).parameters.values())
    rest = _rest(parameters)
    if rest is not None and not _is_typed(rest):
        return None
    names = {p.name for p in islice(parameters, 3, None) if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    return names if rest is None else names | set(InputOptions.__annotations__)


def _rest(parameters: Iterable[inspect.Parameter]) -> inspect.Parameter | None:
    return next((p for p in parameters if p.kind is p.VAR_KEYWORD), None)


def _is_typed(rest: inspect.Parameter) -> bool:
    return InputOptions.__name__ in str(rest.annotation)
