"""What every metric of the registry asks of its inputs: numbers, one row of each for a row of the other, none missing.

Also what lies between kinds of prediction: probabilities to classes. The shapes tell what is scored:

- target ``[n]``, prediction ``[n]``: one number a row (binary, regression, ranking, or class codes);
- target ``[n]``, prediction ``[n, k]``: class codes and one number a class (multiclass);
- target ``[n, t]``, prediction ``[n, t]``: several targets (multilabel, regression).
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fastrec.errors import DataError
from fastrec.metrics.lists import check_weights, flat_tensor, plain_tensor, refuse_rows


def paired(y: Any, prediction: Any) -> tuple[Tensor, Tensor]:
    """Return targets and predictions as float64 tensors on the predictions' device.

    Args:
        y: ``[n]``, ``[n, 1]`` or ``[n, t]`` numbers without a missing one.
        prediction: ``[n]``, ``[n, 1]`` or ``[n, k]`` numbers without a missing one.

    Returns:
        Both float64; a single column is ``[n]``.
    """
    p = _columns(prediction, "prediction")
    p = (p.cpu() if p.device.type == "mps" else p).double()  # Apple's GPU has no float64
    target = _columns(y, "y").to(p.device).double()
    if not len(p):
        raise DataError("there are no rows to score", column="prediction", remedy="Give at least one row")
    if len(target) != len(p):
        raise DataError(
            f"y has {len(target)} rows, prediction has {len(p)}", column="y", remedy="Give one target per predicted row"
        )
    if target.ndim == 2 and target.shape != p.shape:
        raise DataError(
            f"y is {tuple(target.shape)}, prediction is {tuple(p.shape)}",
            column="prediction",
            remedy="Give a prediction for each target of a row",
        )
    refuse_rows(_any_column(target.isnan()), "y", "is missing", "Leave out rows without a known target")
    refuse_rows(_any_column(p.isnan()), "prediction", "is NaN", "Look at what predicted it, or fill it first")
    return target, p


def row_weights(weight: Any, prediction: Tensor) -> Tensor | None:
    """Return weights ``[n]`` as float64 on the predictions' device; None stays None."""
    if weight is None:
        return None
    w = check_weights(flat_tensor(weight, "weight").to(prediction.device), "weight")
    if len(w) != len(prediction):
        raise DataError(
            f"weight has {len(w)} rows, prediction has {len(prediction)}",
            column="weight",
            remedy="Give one weight per predicted row",
        )
    return w


def check_probabilities(prediction: Tensor, *, of_classes: bool) -> None:
    """Refuse what cannot be probabilities.

    Args:
        prediction: ``[n]`` or ``[n, k]``.
        of_classes: whether the k columns exclude each other, so that a row sums to 1.
    """
    outside = ~((prediction >= 0) & (prediction <= 1))
    remedy = "Put raw scores through a sigmoid (one column) or a softmax (a column a class) first"
    refuse_rows(_any_column(outside), "prediction", "is no probability: it is outside 0..1", remedy)
    if of_classes:
        # Sums of half-precision probabilities are off by up to .002.
        off = (prediction.sum(1) - 1).abs() > 0.01
        refuse_rows(off, "prediction", "is of a row whose classes do not sum to 1", remedy)


def to_classes(y: Tensor, prediction: Tensor, *, rounded: bool = False) -> Tensor:
    """Turn predictions into class codes.

    Several classes: the highest of a row (the first among equals). One column: whole numbers are codes already;
    for a target of 0 and 1, class 1 is above .5. Several targets: each above .5.

    Args:
        y: float64 ``[n]`` or ``[n, t]``.
        prediction: float64 ``[n]`` or ``[n, k]``.
        rounded: round values of an ordinal target to the nearest code instead of refusing them.

    Returns:
        Codes as float64, in the shape of ``y``.
    """
    if y.ndim == 2:
        return (prediction > 0.5).double()
    if prediction.ndim == 2:
        return prediction.argmax(1).double()
    fraction = prediction != prediction.round()
    if not bool(fraction.any()):
        return prediction
    if bool(((y == 0) | (y == 1)).all()):
        return (prediction > 0.5).double()
    if not rounded:
        remedy = "Give codes, or one probability for each class; best_rounding learns cuts for values"
        refuse_rows(fraction, "prediction", "is no class code", remedy)
    return prediction.round()


def check_codes(codes: Tensor, name: str, n: int | None = None) -> Tensor:
    """Return class codes as int64.

    Args:
        name: what to call them in a message.
        n: number of classes, so that codes are 0..n-1; None for any whole numbers.
    """
    bad = (codes != codes.round()) | codes.isinf()
    if n is not None:
        bad = bad | (codes < 0) | (codes >= n)
    range_ = "a class code" if n is None else f"among the {n} classes"
    refuse_rows(bad, name, f"is not {range_}", "Classes are whole numbers from 0, one for each column of probabilities")
    return codes.long()


def check_binary(y: Tensor, name: str = "y") -> None:
    """Refuse a target or classes ``[n]`` or ``[n, t]`` that is not of 0 and 1."""
    refuse_rows(_any_column((y != 0) & (y != 1)), name, "is neither 0 nor 1", "Code the two classes as 0 and 1")


def _any_column(bad: Tensor) -> Tensor:
    return bad if bad.ndim == 1 else bad.any(1)


def _columns(x: Any, name: str) -> Tensor:
    t = plain_tensor(x, name)
    if t.ndim not in (1, 2) or (t.ndim == 2 and not t.shape[1]) or t.is_complex():
        raise DataError(
            f"{name} has shape {tuple(t.shape)}", column=name, remedy="Give one value, or one row of values, per row"
        )
    return t[:, 0] if t.ndim == 2 and t.shape[1] == 1 else t


def one_column(y: Any, prediction: Any) -> tuple[Tensor, Tensor]:
    """Return targets and predictions as ``paired`` does, of one finite number a row."""
    target, p = paired(y, prediction)
    if p.ndim == 2:
        raise DataError(
            f"prediction is {tuple(p.shape)}", column="prediction", remedy="Give one number a row, such as one column"
        )
    refuse_rows(p.isinf(), "prediction", "is infinite", "Look at what predicted it")
    return target, p
