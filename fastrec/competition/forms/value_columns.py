"""Which prediction each value column of a submission has."""

from __future__ import annotations

from fastrec.validate import Target


def class_columns(columns: tuple[str, ...], target: Target) -> dict[str, int]:
    """Map each value column to its prediction: by its name, or the end of it (``Class_3``), else by place."""
    outputs = target.outputs
    if target.task == "binary" and len(columns) == 2 and target.classes is not None:
        outputs = [str(v) for v in target.classes.values.to_pylist()]
    if set(columns) == set(outputs):
        return {n: outputs.index(n) for n in columns}
    ends = [[i for i, o in enumerate(outputs) if n.endswith(o) and not n[: -len(o)][-1:].isalnum()] for n in columns]
    if all(len(e) == 1 for e in ends) and len({e[0] for e in ends}) == len(columns):
        return {n: e[0] for n, e in zip(columns, ends, strict=True)}
    return {n: i for i, n in enumerate(columns)}
