"""fastrec: features, loaders, nets and stacks for competition-style tabular and recommender modelling, on fastai."""

from typing import TYPE_CHECKING

from fastrec._core.lazy import lazily

if TYPE_CHECKING:
    from fastrec.trials.trying import try_features

__version__ = "0.1.0"
__all__ = ["__version__", "try_features"]

__getattr__ = lazily(__name__, {"try_features": "trials"})
