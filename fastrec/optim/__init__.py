"""Optimizers: AdamW and LAMB with row-wise updates of embedding tables, and learning rates for other batch sizes.

They take a model's parameters, with dense gradients or gradients of a batch's rows, and are torch optimizers, used as
fastai's ``opt_func``. Optimizers of other packages work too: ``rec_learner(dls, opt_func=torch_optimizer.Lamb)``.
"""

from fastrec.optim.torch_optimizers import AdamW, Lamb
from fastrec.optim.wrapper import TorchOptim, adamw, as_opt_func, lamb, scale_lr, scale_moms, split_embeddings

__all__ = ["AdamW", "Lamb", "TorchOptim", "adamw", "as_opt_func", "lamb", "scale_lr", "scale_moms", "split_embeddings"]
