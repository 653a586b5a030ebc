"""Protocol-buffer text, as Triton's ``config.pbtxt`` is written: no more of it than is needed here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


class Enum(str):
    """The name of a constant, which stands without quotes."""

    __slots__ = ()


def pbtxt(fields: Mapping[str, Any], indent: str = "") -> str:
    """Write fields as text.

    Args:
        fields: name → a number, a bool, a string, an ``Enum``, a mapping (a message), or a list of one of these; fields
            that are None are left out.
        indent: what every line begins with.
    """
    lines = []
    for name, value in fields.items():
        if isinstance(value, list) and not any(isinstance(v, Mapping) for v in value):
            lines.append(f"{indent}{name}: [{', '.join(map(_scalar, value))}]")
            continue
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, Mapping):
                lines += [f"{indent}{name} {{", *pbtxt(one, f"{indent}  ").splitlines(), f"{indent}}}"]
            elif one is not None:
                lines.append(f"{indent}{name}: {_scalar(one)}")
    return "".join(f"{line}\n" for line in lines)


def _scalar(value: Any) -> str:
    if isinstance(value, Enum):
        return str(value)
    return json.dumps(value, ensure_ascii=False)  # numbers, bools and quoted text are written alike in both
