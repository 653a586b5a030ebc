"""Gradients → steps: AdamW and LAMB that know rows of embedding tables, and rates for another batch size.

In: a model's parameters, gradients dense or of a batch's rows. Out: torch optimizers, as ``opt_func`` for fastai.
``torch_adamw.py`` and ``torch_lamb.py`` hold the optimizers, ``row_optimizer.py`` what both share, ``row_sparse.py``
what rows missed, ``wrapper.py`` their fastai form, ``scaling.py`` the rules for large batches. Other packages' go as
they are, ``rec_learner(dls, opt_func=torch_optimizer.Lamb)``; ``lamb`` alone tells fused embedding tables apart.
"""

from fastrec.optim.torch_optimizers import AdamW, Lamb
from fastrec.optim.wrapper import TorchOptim, adamw, as_opt_func, lamb, scale_lr, scale_moms, split_embeddings

__all__ = [
    "AdamW",
    "Lamb",
    "TorchOptim",
    "adamw",
    "as_opt_func",
    "lamb",
    "scale_lr",
    "scale_moms",
    "split_embeddings",
]
