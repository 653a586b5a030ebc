"""Ways to build every public generator, one module a family; a new family's module is found by itself.

``EXAMPLES`` (class name → makers) is for the contract: every class has at least one, and every option that changes the
way it works has one of its own; they read the columns of ``tests/features/frames.py``. The others are for the leak
tests and read the columns of ``test_leaks.frames``: ``ROW_WISE`` and ``CAUSAL`` list generators, ``ENCODERS`` lists of
generators that a target passes through.
"""

from __future__ import annotations

import importlib
import pkgutil

_FAMILIES = [importlib.import_module(f"{__name__}.{m.name}") for m in pkgutil.iter_modules(__path__)]


def _all(name: str) -> list:
    return [x for family in _FAMILIES for x in getattr(family, name, [])]


EXAMPLES: dict[str, list] = {}
for _family in _FAMILIES:
    for _name, _makers in _family.EXAMPLES.items():
        EXAMPLES.setdefault(_name, []).extend(_makers)
ROW_WISE, CAUSAL, ENCODERS = _all("ROW_WISE"), _all("CAUSAL"), _all("ENCODERS")
