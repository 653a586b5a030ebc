"""A torch optimizer's parameter group by fastai's names of hyper-parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

__all__ = ["GroupHypers"]


class GroupHypers(MutableMapping[str, Any]):
    """One group's hyper-parameters: what is read is the group's own value, what is set the group takes.

    fastai's wrapper hands out copies, which are built anew at every look and lose what callbacks set
    (``ReduceLROnPlateau`` does).

    Args:
        group: the torch group; ``betas`` and other tuples are taken apart, as ``betas__0``.
    """

    def __init__(self, group: dict[str, Any], names: Mapping[str, str]) -> None:
        self.group = group
        self._places: dict[str, tuple[str, int | None]] = {}
        for key, value in group.items():
            if key == "params":
                continue
            parts = range(len(value)) if isinstance(value, tuple) else [None]
            for i in parts:
                torch_name = key if i is None else f"{key}__{i}"
                self._places[names.get(torch_name, torch_name)] = (key, i)

    def __getitem__(self, name: str) -> Any:
        key, i = self._places[name]
        return self.group[key] if i is None else self.group[key][i]

    def __setitem__(self, name: str, value: Any) -> None:
        if name not in self._places:
            raise KeyError(f"this optimizer has no {name!r}; it has {', '.join(self._places)}")
        key, i = self._places[name]
        if i is not None:
            value = tuple(value if j == i else old for j, old in enumerate(self.group[key]))
        self.group[key] = value

    def __delitem__(self, name: str) -> None:
        raise TypeError("a hyper-parameter cannot be removed")

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __repr__(self) -> str:
        return repr(dict(self))
