"""fastrec: features, loaders, nets and stacks for competition-style tabular and recommender modelling, on fastai."""

from typing import TYPE_CHECKING

from fastrec._core.imports import lazily
from fastrec._version import __version__

if TYPE_CHECKING:
    from fastrec.auto.auto_fit import Fit, fit, load
    from fastrec.retrieval import make_candidates
    from fastrec.trials.trying import try_features


__all__ = ["Fit", "__version__", "fit", "load", "make_candidates", "try_features"]

# `import fastrec` stays quick: each name is loaded at first use.
_HOMES = {"Fit": "auto", "fit": "auto", "load": "auto", "make_candidates": "retrieval", "try_features": "trials"}
__getattr__ = lazily(__name__, _HOMES)
