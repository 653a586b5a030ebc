"""Dataloaders and a model → a trained fastai ``Learner``.

In: dataloaders of this library or of fastai. Out: ``rec_learner``'s ``RecLearner`` and callbacks: checkpoints, mixed
precision, CUDA graphs, compiled models, several ranks, row noise.
"""

from fastrec.training.acceleration import BF16Autocast, CompiledModel, CudaGraph
from fastrec.training.checkpoint import Checkpoint, load_checkpoint
from fastrec.training.learner import RecLearner, rec_learner
from fastrec.training.noise import MoreNegatives, RowMixUp, SwapNoise, pretrain_denoising
from fastrec.training.rows import CowClip
from fastrec.training.stop_on_nan import StopOnNaN

__all__ = [
    "BF16Autocast", "Checkpoint", "CompiledModel", "CowClip", "CudaGraph", "MoreNegatives", "RecLearner", "RowMixUp",
    "StopOnNaN", "SwapNoise", "load_checkpoint", "pretrain_denoising", "rec_learner",
]  # fmt: skip
