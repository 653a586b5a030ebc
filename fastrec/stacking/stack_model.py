"""``StackModel``: a fitted stack that predicts from base models' predictions, kept in a folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from fastrec._core.atomic import atomic_folder, check_replaceable
from fastrec.errors import DataError, MissingFileError, UnreadableFileError
from fastrec.estimators import Estimator
from fastrec.stacking.blends import level_two
from fastrec.stacking.row_inputs import by_row
from fastrec.validate import Lists, Rows

_FILE = "stack.json"


class StackModel:
    """The blends of a stack's folds, which predict by their mean, and which base models they need.

    Args:
        models: the base models' names.
        blends: fitted blends, one for each fold; one alone where nothing was fitted.
        extra: columns of level 1 that the blends see too.
    """

    def __init__(self, models: Sequence[str], blends: Sequence[Estimator], extra: Sequence[str] = ()) -> None:
        self.models, self.blends, self.extra = list(models), list(blends), list(extra)

    @property
    def name(self) -> str:
        """The blend's name."""
        return self.blends[0].name

    def predict(self, base: Mapping[str, torch.Tensor], data: Rows) -> torch.Tensor:
        """Blend predictions of the base models.

        Args:
            base: base model → float64 ``[n]`` or ``[n, k]``, each the mean of its folds' models; others are passed
                over.
            data: the rows that they are of, with their task and the ``extra`` columns; of a ranking their lists.

        Returns:
            float64 ``[n]`` or ``[n, k]``.

        Raises:
            DataError: a base model is missing, or its predictions are not of these rows.
        """
        missing = [m for m in self.models if m not in base]
        if missing:
            raise DataError(
                f"the stack needs predictions of {missing[0]}", remedy=f"It blends {', '.join(self.models)}"
            )
        two = level_two_of({m: base[m] for m in self.models}, data, self.extra)
        result = self.blends[0].predict(two) / len(self.blends)
        for blend in self.blends[1:]:
            result = result + blend.predict(two) / len(self.blends)
        return result

    def save(self, folder: str | Path) -> None:
        """Write the stack, without pickle; an earlier one at ``folder`` is replaced in one step.

        Args:
            folder: where to; made if need be.

        Raises:
            WriteError: the file system refused, or ``folder`` holds something else.
        """
        check_replaceable(folder, _FILE)
        with atomic_folder(folder) as part:
            for k, blend in enumerate(self.blends):
                blend.save(part / f"fold{k}")
            about = {"models": self.models, "extra": self.extra, "blends": len(self.blends)}
            (part / _FILE).write_text(json.dumps(about, indent=1, ensure_ascii=False), encoding="utf-8")

    @classmethod
    def load(cls, folder: str | Path) -> StackModel:
        """Read what ``save`` wrote.

        Raises:
            MissingFileError, UnreadableFileError: there is nothing usable at ``folder``.
        """
        path = Path(folder) / _FILE
        if not path.is_file():
            raise MissingFileError("there is no such file", file=path, remedy="Give the folder of a saved stack")
        try:
            about = json.loads(path.read_text(encoding="utf-8"))
            models, extra, count = list(about["models"]), list(about["extra"]), int(about["blends"])
        except (ValueError, TypeError, KeyError) as error:
            raise UnreadableFileError(
                f"the saved stack cannot be read ({type(error).__name__}: {error})", file=path, remedy="Save it again"
            ) from error
        return cls(models, [Estimator.load(path.parent / f"fold{k}") for k in range(count)], extra)


def level_two_of(predicted: Mapping[str, torch.Tensor], data: Rows, extra: Sequence[str]) -> Rows:
    """Return the rows with the level-2 inputs of their task."""
    for model, values in predicted.items():
        if len(values) != len(data):
            raise DataError(f"{model} has {len(values)} predictions for {len(data)} rows", remedy="Give one for each")
    if isinstance(data, Lists):
        return level_two(predicted, data, extra)
    if data.task == "ranking":
        raise DataError("the rows of a ranking task are no Lists", remedy="Give Lists(table, groups, …)")
    return by_row(predicted, data, extra)
