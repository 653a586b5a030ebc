"""fastrec: features, loaders, nets and stacks for competition-style tabular and recommender modelling, on fastai."""

from typing import TYPE_CHECKING

from fastrec._core.imports import lazily
from fastrec._version import __version__

if TYPE_CHECKING:
    from fastrec.auto.auto_fit import Fit, fit
    from fastrec.trials.trying import try_features


__all__ = ["Fit", "__version__", "fit", "try_features"]

# `import fastrec` stays quick: each name is loaded at first use.
__getattr__ = lazily(__name__, {"Fit": "auto", "fit": "auto", "try_features": "trials"})
