"""Nets of other packages, small and with random weights, saved as their packages save them."""

from __future__ import annotations

import atexit
import importlib
import shutil
import tempfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "red", "blue", "shoe", "boot", "a", "hat", "one", "two", "##s"]


_OPERATORS: list[torch.library.Library] = []


def _let_torchvision_load() -> None:
    """Declare two operators, which no test calls, where torchvision is a build for CUDA and torch one for CPUs.

    It cannot be imported otherwise, and neither could timm and transformers.
    """
    found = find_spec("torchvision")
    if found is None or torch.version.cuda is not None:
        return
    if "+cu" in (Path(str(found.origin)).parent / "version.py").read_text():
        operators = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _OPERATORS.append(operators)


_let_torchvision_load()


@cache
def folder() -> Path:
    """A folder for the nets, which is gone at the end."""
    made = Path(tempfile.mkdtemp(prefix="fastrec-nets-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


@cache
def text_net(seed: int = 0) -> str:
    """A transformer of two layers, 16 wide, with a tokenizer of a few words."""
    package = pytest.importorskip("transformers")
    out = folder() / f"text{seed}"
    out.mkdir()
    (out / "vocab.txt").write_text("\n".join(WORDS))
    package.BertTokenizerFast(vocab=str(out / "vocab.txt")).save_pretrained(out)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = package.BertConfig(vocab_size=len(WORDS), max_position_embeddings=32, **sizes)
        package.BertModel(config).save_pretrained(out)
    return str(out)


@cache
def sentence_net() -> str:
    """The same as a model of sentence-transformers."""
    package = pytest.importorskip("sentence_transformers")
    out = folder() / "sentence"
    modules = importlib.import_module("sentence_transformers.sentence_transformer.modules")
    words = modules.Transformer(text_net())
    pool = modules.Pooling(16, pooling_mode="max")
    package.SentenceTransformer(modules=[words, pool], device="cpu").save_pretrained(str(out))
    return str(out)


@cache
def timm_net() -> str:
    """A small net of timm for pictures of 32 by 32."""
    package = pytest.importorskip("timm")
    out = folder() / "timm"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = package.create_model("test_resnet", pretrained=False, num_classes=5)
    config = {"input_size": [3, 32, 32], "mean": [0.5, 0.5, 0.5], "std": [0.25, 0.25, 0.25], "crop_pct": 1.0}
    config["interpolation"] = "bilinear"  # the default is another one in timm 1.0.29
    package.models.save_for_hf(net, str(out), model_config={"pretrained_cfg": config})
    return str(out)


@cache
def vision_net() -> str:
    """A small transformer for pictures."""
    package = pytest.importorskip("transformers")
    out = folder() / "vision"
    sizes = {"hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        package.ViTModel(package.ViTConfig(image_size=16, patch_size=8, **sizes)).save_pretrained(out)
    package.ViTImageProcessor(size={"height": 16, "width": 16}).save_pretrained(out)
    return str(out)


@cache
def pictures(count: int = 5) -> str:
    """A folder of pictures ``i0``, ``i1``, …"""
    image = pytest.importorskip("PIL.Image")
    out = folder() / "pictures"
    out.mkdir()
    rng = np.random.default_rng(0)
    for i in range(count):
        image.fromarray(rng.integers(0, 255, (20, 24, 3), dtype=np.uint8)).save(out / f"i{i}", format="png")
    return str(out)
