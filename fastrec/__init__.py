"""fastrec: features, loaders, nets and stacks for competition-style tabular and recommender modelling, on fastai."""

from typing import TYPE_CHECKING

from fastrec._core.lazy import lazily

if TYPE_CHECKING:
    from fastrec.trials.trying import try_features

__version__ = "0.1.0"

_HOMES = {"fit": "auto", "Fit": "auto", "try_features": "trials"}


def __getattr__(name: str) -> object:
    """``fastrec.fit`` and its kin, loaded at first use: ``import fastrec`` stays quick."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
__all__ = ["__version__", "try_features"]

__getattr__ = lazily(__name__, {"try_features": "trials"})
