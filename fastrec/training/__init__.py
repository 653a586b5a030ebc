"""Dataloaders and a model → a trained fastai ``Learner``.

In: dataloaders of this library or of fastai. Out: ``rec_learner``'s ``RecLearner``, callbacks. ``learner.py`` is the
way in, ``amp.py`` trains in 16 bits, ``checkpoint.py`` saves and goes on after a crash, ``stop_on_nan.py`` names the
batch where a loss went astray, ``cuda_graph.py`` and ``torch_compile.py`` make steps cheaper, ``cow_clip.py`` clips.
"""

from fastrec.training.amp import BF16Autocast
from fastrec.training.checkpoint import Checkpoint, load_checkpoint
from fastrec.training.cow_clip import CowClip
from fastrec.training.cuda_graph import CudaGraph
from fastrec.training.learner import RecLearner, rec_learner
from fastrec.training.stop_on_nan import StopOnNaN
from fastrec.training.torch_compile import CompiledModel

__all__ = [
    "BF16Autocast",
    "Checkpoint",
    "CompiledModel",
    "CowClip",
    "CudaGraph",
    "RecLearner",
    "StopOnNaN",
    "load_checkpoint",
    "rec_learner",
]
