"""``FactorModel``: what models with a vector for every user and every item share."""

from __future__ import annotations

import numpy as np

from fastrec.retrieval.base import CollaborativeFilter


class FactorModel(CollaborativeFilter):
    """Scores by ``u · v + b``: user vectors ``u``, item vectors ``v``, item biases ``b``."""

    def _rows(self, users: np.ndarray) -> np.ndarray:
        learned = self._learned
        return learned["users"][users] @ learned["items"].T + learned["bias"]
