"""Gradients → steps: AdamW and LAMB that know rows of embedding tables, and learning rates for another batch size.

In: a model's parameters, gradients dense or of a batch's rows. Out: torch optimizers, as ``opt_func`` for fastai.
Optimizers of other packages work too: ``rec_learner(dls, opt_func=torch_optimizer.Lamb)``.
"""

from fastrec.optim.torch_optimizers import AdamW, Lamb
from fastrec.optim.wrapper import TorchOptim, adamw, as_opt_func, lamb, scale_lr, scale_moms, split_embeddings

__all__ = ["AdamW", "Lamb", "TorchOptim", "adamw", "as_opt_func", "lamb", "scale_lr", "scale_moms", "split_embeddings"]
