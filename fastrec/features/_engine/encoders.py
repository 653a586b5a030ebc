"""Nets of other packages that turn a text or a picture into a vector: loaded from a folder, or by name from a hub."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fastrec._core.optional import require
from fastrec.errors import DataError, FastrecError, MissingFileError, MissingPackageError

Kind = Literal["text", "image"]
_INSTALL = "pip install 'fastrec-tabular[embed]'"


@dataclass
class PretrainedEncoder:
    """A net and its preprocessing of a batch.

    Args:
        net: the net, in evaluation.
        encode: texts, or pictures (``PIL.Image``), to float32 ``[n, dims]`` on the net's device.
        digest: of the net's weights, its form, and the files that say how it reads and pools.
        dims: how many numbers a vector has.
    """

    net: nn.Module
    encode: Callable[[Sequence[Any]], Tensor]
    digest: str
    dims: int


@lru_cache(maxsize=4)
def load_encoder(model: str, kind: Kind, device: str) -> PretrainedEncoder:
    """Load the encoder of a name or folder.

    Args:
        model: a folder that a net was saved to, or a name on Hugging Face's hub (or of ``timm``).
        kind: what it encodes.
        device: where it works.
    """
    folder = Path(model).expanduser()
    local = folder.is_dir()
    if not local and (folder.is_absolute() or model.startswith((".", "~")) or folder.is_file()):
        raise MissingFileError("there is no such folder", file=model, remedy="Give the folder that a net was saved to")
    _check_torchvision()
    read = _of_folder(folder, kind) if local else _of_name(model, kind)
    with (
        _weights_named(model, local),
        _no_bars(),
        torch.random.fork_rng(devices=[]),
    ):  # first weights are drawn, and not used
        net, encode = read(str(folder) if local else model, device)
    probe = [""] if kind == "text" else [require("PIL.Image", "Pillow", _INSTALL).new("RGB", (32, 32))]
    about = f"{read.__name__}\0{net!r}\0".encode() + (_settings_of(folder) if local else model.encode())
    # The digest of weights and settings is the key of stored vectors, wherever the files are.
    digest = hashlib.sha256(about)
    for name, values in net.state_dict().items():
        digest.update(name.encode())
        digest.update(values.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return PretrainedEncoder(net, encode, digest.hexdigest()[:16], int(encode(probe).shape[1]))


def _settings_of(folder: Path) -> bytes:
    """Return words, pooling and scaling from the files with the weights; independent of the folder."""
    found = sorted(p for p in folder.rglob("*") if p.suffix in (".json", ".txt", ".model") and p.is_file())
    contents = (hashlib.sha256(p.read_bytes()).digest() for p in found)
    return b"".join(p.relative_to(folder).as_posix().encode() + c for p, c in zip(found, contents, strict=True))


Reader = Callable[[str, str], tuple[nn.Module, Callable[[Sequence[Any]], Tensor]]]


def _of_folder(folder: Path, kind: Kind) -> Reader:
    if (folder / "modules.json").is_file():
        return _sentence_transformer
    try:
        about = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        about = {}
    if "architecture" in about:
        reader: Reader = _timm
    elif "model_type" in about:
        reader = _hugging_face_text if kind == "text" else _hugging_face_image
    else:
        raise DataError(
            "the folder holds no net of sentence-transformers, timm or transformers", file=folder,
            remedy="Save one with its save_pretrained, or timm.models.save_for_hf",
        )  # fmt: skip
    if reader is _timm and kind == "text":
        raise DataError("the folder holds a net for pictures", file=folder, remedy="Use ImageEmbed")
    return reader


def _of_name(model: str, kind: Kind) -> Reader:
    if kind == "text":
        return _sentence_transformer if _installed("sentence_transformers") else _hugging_face_text
    if _installed("timm"):
        import timm

        if model.startswith(("timm/", "hf_hub:", "hf-hub:")) or timm.is_model(model):
            return _timm
    return _hugging_face_image


def _installed(module: str) -> bool:
    return find_spec(module) is not None


def _check_torchvision() -> None:
    """Name a torchvision built for another torch, which timm and transformers would hide."""
    if not _installed("torchvision"):
        return
    try:
        importlib.import_module("torchvision")
    except (RuntimeError, OSError) as error:
        raise MissingPackageError(
            f"torchvision cannot be loaded beside torch {torch.__version__} ({str(error).splitlines()[0]})",
            remedy="Install the build of torchvision that belongs to this torch (both for CPUs, or both for one CUDA)",
        ) from error


@contextmanager
def _weights_named(model: str, local: bool) -> Iterator[None]:
    """Turn errors of the hub or of a damaged folder into ones with a remedy."""
    try:
        yield
    except (FastrecError, ImportError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # each of these packages, and what they build on, has classes of its own
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if local:
            raise DataError(f"the net cannot be read ({reason})", file=model, remedy="Save it again") from error
        offline = " (HF_HUB_OFFLINE is set)" if os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0") else ""
        raise MissingFileError(
            f"the weights of {model!r} are neither on this machine nor could they be fetched ({reason})",
            remedy=f"Give the folder of a saved net, or a name that the hub has, with a network{offline}",
        ) from error


@contextmanager
def _no_bars() -> Iterator[None]:
    bars = importlib.import_module("transformers.utils.logging") if _installed("transformers") else None
    on = bars is not None and bars.is_progress_bar_enabled()
    if on:
        bars.disable_progress_bar()
    try:
        yield
    finally:
        if on:
            bars.enable_progress_bar()


# Text ----------------------------------------------------------------------------------------------------------------


def _sentence_transformer(model: str, device: str) -> tuple[nn.Module, Callable[[Sequence[Any]], Tensor]]:
    package = require("sentence_transformers", "sentence-transformers", _INSTALL)
    net = package.SentenceTransformer(model, device=device).eval()

    def encode(texts: Sequence[str]) -> Tensor:
        with torch.no_grad():
            return net.encode(
                list(texts), batch_size=max(len(texts), 1), convert_to_tensor=True, show_progress_bar=False
            ).float()

    return net, encode


def _hugging_face_text(model: str, device: str) -> tuple[nn.Module, Callable[[Sequence[Any]], Tensor]]:
    """Load a transformer: the mean of its last layer over the words of the text."""
    package = require("transformers", "transformers", _INSTALL)
    words = package.AutoTokenizer.from_pretrained(model)
    net = package.AutoModel.from_pretrained(model).eval().to(device)
    longest = min(words.model_max_length, getattr(net.config, "max_position_embeddings", 512))

    def encode(texts: Sequence[str]) -> Tensor:
        batch = words(list(texts), padding=True, truncation=True, max_length=longest, return_tensors="pt").to(device)
        with torch.no_grad():
            states = net(**batch).last_hidden_state.float()
        weight = batch["attention_mask"].unsqueeze(2).float()
        return (states * weight).sum(1) / weight.sum(1).clamp(min=1)

    return net, encode


# Pictures ------------------------------------------------------------------------------------------------------------


def _timm(model: str, device: str) -> tuple[nn.Module, Callable[[Sequence[Any]], Tensor]]:
    package = require("timm", "timm", _INSTALL)
    name = f"local-dir:{model}" if Path(model).is_dir() else model.replace("timm/", "hf-hub:timm/", 1)
    net = package.create_model(name, pretrained=True, num_classes=0).eval().to(device)
    prepare = package.data.create_transform(**package.data.resolve_model_data_config(net), is_training=False)

    def encode(pictures: Sequence[Any]) -> Tensor:
        with torch.no_grad():
            return net(torch.stack([prepare(p) for p in pictures]).to(device)).float()

    return net, encode


def _hugging_face_image(model: str, device: str) -> tuple[nn.Module, Callable[[Sequence[Any]], Tensor]]:
    """Load a picture transformer: its pooled output, else the mean of its last layer; CLIP: its features."""
    package = require("transformers", "transformers", _INSTALL)
    prepare = package.AutoImageProcessor.from_pretrained(model)
    net = package.AutoModel.from_pretrained(model).eval().to(device)

    def encode(pictures: Sequence[Any]) -> Tensor:
        batch = prepare(images=list(pictures), return_tensors="pt").to(device)
        with torch.no_grad():
            if hasattr(net, "get_image_features"):
                found = net.get_image_features(**batch)
                return (found if isinstance(found, Tensor) else found.pooler_output).float()
            made = net(**batch)
        pooled = getattr(made, "pooler_output", None)
        states = made.last_hidden_state
        found = pooled if pooled is not None else states.mean(1) if states.ndim == 3 else states.mean((2, 3))
        return found.flatten(1).float()

    return net, encode
