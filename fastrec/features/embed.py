"""Embeddings of texts and images by pretrained nets."""

from __future__ import annotations

import hashlib
import importlib
import io
import json
import os
import uuid
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from torch import Tensor, nn

from fastrec._core.atomic import atomic_file
from fastrec._core.device import resolve_device
from fastrec._core.imports import require
from fastrec._core.memory import naming_out_of_memory
from fastrec.errors import DataError, FastrecError, MissingFileError, MissingPackageError, UnreadableFileError
from fastrec.features.base import Col, RowWise, Tensors
from fastrec.features.columns import masked, name_of
from fastrec.features.vectors import distinct_texts, unit
from fastrec.table import Column, Table


class Embedded(RowWise):
    """Generator of unit-length vectors that a net computes from the distinct values of a text column."""

    encodes: ClassVar[Kind]
    _least: ClassVar = {"bs": 1}

    def __init__(
        self,
        col: Col,
        model: str,
        *,
        cache: str | Path | None = None,
        bs: int = 64,
        device: str = "auto",
        name: str | None = None,
    ) -> None: ...

    @property
    def outputs(self) -> list[str]:
        return [self.name or f"embed_{name_of(self.col)}"]

    @abstractmethod
    def content(self, value: str, row: int) -> bytes:
        """Return the bytes that identify a value in the cache; ``row`` is a row with the value, for messages."""

    @abstractmethod
    def item(self, value: str, row: int) -> Any:
        """Return the net's input for a value."""

    def prepare(self, table: Table) -> Tensors:
        what = "text" if self.encodes == "text" else "the names of files"
        problem = f"{type(self).__name__} needs {what}"
        texts, codes = distinct_texts(table, name_of(self.col), problem, "Choose another column")
        values, codes = texts.to_pylist(), codes.cpu()
        used, place = torch.unique(codes, return_inverse=True)
        chosen = used[used > 0]
        made = torch.from_numpy(self._vectors(values, chosen, codes)).to(table.device)
        missing = codes == 0
        zero = made.new_zeros(1, made.shape[1])
        rows = torch.where(missing, 0, place + (1 if len(chosen) == len(used) else 0))
        return {"vectors": torch.cat([zero, made]), "row": rows.to(table.device), "missing": missing.to(table.device)}

    def apply(self, tensors: Tensors) -> Tensors:
        return {self.outputs[0]: unit(tensors["vectors"])[tensors["row"]], "missing": tensors["missing"]}

    def compute(self, table: Table) -> dict[str, Column]:
        tensors, name = self.apply(self.prepare(table)), self.outputs[0]
        return {name: masked(name, tensors[name], tensors["missing"], "vector")}

    def _vectors(self, values: list[str], chosen: torch.Tensor, codes: torch.Tensor) -> np.ndarray:
        encoder = load_encoder(str(self.model), self.encodes, str(resolve_device(self.device)))
        # The first row of each value, for messages.
        first = torch.full((len(values) + 1,), len(codes), dtype=torch.int64)
        first.scatter_reduce_(0, codes, torch.arange(len(codes)), "amin")
        named = [(values[i - 1], int(first[i])) for i in chosen.tolist()]
        vectors, known, digests = np.zeros((len(named), encoder.dims), dtype=np.float32), np.zeros(len(named), bool), []
        folder = None if self.cache is None else Path(self.cache) / encoder.digest
        if folder is not None:
            digests = [hashlib.blake2b(self.content(*n), digest_size=16).digest() for n in named]
            vectors, known = stored_vectors(folder, digests, encoder.dims)
        # Batches hold values of similar length, for little padding. They do not depend on the order of rows, as the
        # last digits of a vector depend on its batch.
        left = sorted(np.flatnonzero(~known).tolist(), key=lambda i: (len(named[i][0]), named[i][0]))
        for at in range(0, len(left), self.bs):
            batch = left[at : at + self.bs]
            what = f"a batch of {len(batch)} values through {self.model}"
            with naming_out_of_memory(what, "Lower bs=, or compute on the CPU (device='cpu')"):
                vectors[batch] = encoder.encode([self.item(*named[i]) for i in batch]).cpu().numpy()
        if folder is not None and left:
            store_vectors(folder, [digests[i] for i in left], vectors[left])
        return vectors


class TextEmbed(Embedded):
    """Text embeddings of unit length by a pretrained sentence-transformers or Hugging Face model.

    The net is not trained. A folder with ``modules.json`` is read by sentence-transformers; any other transformer gives
    the mean of its last layer over the tokens. Each distinct text is encoded once; a missing text gives a missing
    vector. A model of ``fastrec.models`` reads the column by ``vector_names``; trees read components: ``Pca(…, 16)``.

    Args:
        col: a text column, or a generator of one.
        model: the folder of a saved net (``save_pretrained``), or its name on Hugging Face's hub.
        cache: the folder of vectors to reuse for the same net and text.
        bs: the batch size.
        device: the device of the net; ``'auto'`` takes CUDA if there is one.
        name: the output's name; None: ``embed_{col}``.

    Needs the extra ``embed``. Vectors agree to about six digits across batches and devices, not to the bit.

    Source: Reimers, Gurevych 2019, "Sentence-BERT".

    Example (the net is loaded at the first transform):
        >>> from fastrec.features import Pca, TextEmbed
        >>> texts = TextEmbed("description", "models/all-MiniLM-L6-v2", cache="cache")
        >>> texts.outputs, Pca(texts, 2).outputs
        (['embed_description'], ['pca0_embed_description', 'pca1_embed_description'])
    """

    encodes = "text"

    def content(self, value: str, row: int) -> bytes:
        return value.encode()

    def item(self, value: str, row: int) -> str:
        return value


class ImageEmbed(Embedded):
    """Image embeddings of unit length by a pretrained timm or Hugging Face model.

    The net is not trained and has no last layer; its settings define the preprocessing. Each distinct file is encoded
    once; a missing name gives a missing vector. For the use of the column and its precision see ``TextEmbed``.

    Args:
        col: a column of file names, or a generator of one.
        model: the folder of a saved net (``save_pretrained`` of transformers, ``timm.models.save_for_hf``), or its name
            in timm or on Hugging Face's hub.
        root: the folder of relative names; None: the current folder.
        cache: the folder of vectors to reuse for the same net and image, whatever the file's name.
        bs, device, name: as for ``TextEmbed``.

    Needs the extra ``embed``.

    Example (the net is loaded at the first transform):
        >>> from fastrec.features import ImageEmbed, Pca
        >>> photos = ImageEmbed("photo", "models/resnet50", root="photos", cache="cache")
        >>> photos.outputs, Pca(photos, 2).outputs
        (['embed_photo'], ['pca0_embed_photo', 'pca1_embed_photo'])
    """

    encodes = "image"

    def __init__(
        self,
        col: Col,
        model: str,
        *,
        root: str | Path | None = None,
        cache: str | Path | None = None,
        bs: int = 64,
        device: str = "auto",
        name: str | None = None,
    ) -> None: ...

    def content(self, value: str, row: int) -> bytes:
        path = self._path(value)
        try:
            return path.read_bytes()
        except OSError as error:
            problem, where = f"there is no such picture ({error.strerror})", {"file": path, "column": name_of(self.col)}
            raise MissingFileError(problem, **where, row=row, remedy="Give root=, or leave the name missing") from error

    def item(self, value: str, row: int) -> Any:
        image = require("PIL.Image", "Pillow", _INSTALL)
        try:
            return image.open(io.BytesIO(self.content(value, row))).convert("RGB")
        except MissingFileError:
            raise
        except (OSError, SyntaxError, ValueError) as error:
            problem, where = f"the picture cannot be read ({error})", {"file": self._path(value), "row": row}
            raise DataError(problem, **where, column=name_of(self.col), remedy="Leave the name missing") from error

    def _path(self, value: str) -> Path:
        return Path(value) if self.root is None else Path(self.root) / value


def stored_vectors(folder: Path, wanted: Sequence[bytes], dims: int) -> tuple[np.ndarray, np.ndarray]:
    """Read an encoder's vectors by digest: float32 ``[n, dims]``, and a mask of those found, bool ``[n]``."""
    vectors, known = np.zeros((len(wanted), dims), dtype=np.float32), np.zeros(len(wanted), dtype=bool)
    place: dict[bytes, list[int]] = {}
    for i, digest in enumerate(wanted):
        place.setdefault(digest, []).append(i)
    for path in sorted(folder.glob("*.safetensors")):
        try:
            found = load_file(path)
            keys, values = found["keys"], found["vectors"]
            if keys.shape != (len(values), 16) or values.shape[1:] != (dims,):
                raise ValueError("its arrays do not belong together")
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            remedy = "Remove the file: they are made anew"
            raise UnreadableFileError(f"kept vectors cannot be read ({error})", file=path, remedy=remedy) from error
        rows = [(mine, i) for i, key in enumerate(map(bytes, keys)) for mine in place.get(key, ())]
        if rows:
            mine, theirs = (np.array(part) for part in zip(*rows, strict=True))
            vectors[mine], known[mine] = values[theirs], True
    return vectors, known


def store_vectors(folder: Path, digests: Sequence[bytes], vectors: np.ndarray) -> None:
    """Write vectors (float32 ``[n, dims]``) to a new file, as processes may share the folder."""
    keys = np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(-1, 16)
    with atomic_file(folder / f"{uuid.uuid4().hex}.safetensors") as path:
        save_file({"keys": keys.copy(), "vectors": np.ascontiguousarray(vectors)}, path)


Kind = Literal["text", "image"]
_INSTALL = "pip install 'fastrec-tabular[embed]'"


@dataclass
class PretrainedEncoder:
    """Pretrained net with its preprocessing."""

    net: nn.Module  # in evaluation mode
    encode: Callable[[Sequence[Any]], Tensor]  # texts or images (``PIL.Image``) → float32 ``[n, dims]``
    digest: str  # of weights, architecture and settings
    dims: int


@lru_cache(maxsize=4)
def load_encoder(model: str, kind: Kind, device: str) -> PretrainedEncoder:
    """Load the encoder of a saved net's folder, or of a name in timm or on Hugging Face's hub."""
    folder = Path(model).expanduser()
    local = folder.is_dir()
    if not local and (folder.is_absolute() or model.startswith((".", "~")) or folder.is_file()):
        raise MissingFileError("there is no such folder", file=model, remedy="Give the folder that a net was saved to")
    _check_torchvision()
    read = _of_folder(folder, kind) if local else _of_name(model, kind)
    # Initial weights are drawn and then overwritten, so the random state is restored.
    with _weights_named(model, local), _no_bars(), torch.random.fork_rng(devices=[]):
        net, encode = read(str(folder) if local else model, device)
    probe = [""] if kind == "text" else [require("PIL.Image", "Pillow", _INSTALL).new("RGB", (32, 32))]
    # The digest of weights and settings is the key of stored vectors, wherever the files are.
    digest = hashlib.sha256(f"{read.__name__}\0{net!r}\0".encode())
    if not local:
        digest.update(model.encode())
    for path in sorted(p for p in folder.rglob("*") if p.suffix in (".json", ".txt", ".model")) if local else []:
        # Settings of tokens, pooling and scaling.
        digest.update(path.relative_to(folder).as_posix().encode() + hashlib.sha256(path.read_bytes()).digest())
    for name, values in net.state_dict().items():
        digest.update(name.encode())
        digest.update(values.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return PretrainedEncoder(net, encode, digest.hexdigest()[:16], int(encode(probe).shape[1]))


Loaded = tuple[nn.Module, Callable[[Sequence[Any]], Tensor]]  # a net, and the function that encodes a batch
Reader = Callable[[str, str], Loaded]


def _of_folder(folder: Path, kind: Kind) -> Reader:
    if (folder / "modules.json").is_file():
        return _sentence_transformer
    try:
        about = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        about = {}
    if "architecture" in about and kind == "text":
        raise DataError("the folder holds a net for pictures", file=folder, remedy="Use ImageEmbed")
    if "architecture" in about:
        return _timm
    if "model_type" in about:
        return _hugging_face_text if kind == "text" else _hugging_face_image
    problem = "the folder holds no net of sentence-transformers, timm or transformers"
    raise DataError(problem, file=folder, remedy="Save one with its save_pretrained, or timm.models.save_for_hf")


def _of_name(model: str, kind: Kind) -> Reader:
    if kind == "text":
        return _sentence_transformer if find_spec("sentence_transformers") else _hugging_face_text
    if find_spec("timm"):
        import timm

        if model.startswith(("timm/", "hf_hub:", "hf-hub:")) or timm.is_model(model):
            return _timm
    return _hugging_face_image


def _check_torchvision() -> None:
    """Raise an error if torchvision was built for another torch, which timm and transformers would hide."""
    if find_spec("torchvision") is None:
        return
    try:
        importlib.import_module("torchvision")
    except (RuntimeError, OSError) as error:
        problem = f"torchvision cannot be loaded beside torch {torch.__version__} ({str(error).splitlines()[0]})"
        remedy = "Install the build of torchvision that belongs to this torch (both for CPUs, or both for one CUDA)"
        raise MissingPackageError(problem, remedy=remedy) from error


@contextmanager
def _weights_named(model: str, local: bool) -> Iterator[None]:
    """Give errors of the hub or of a damaged folder a remedy."""
    try:
        yield
    except (FastrecError, ImportError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # each of these packages has its own classes of errors
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if local:
            raise DataError(f"the net cannot be read ({reason})", file=model, remedy="Save it again") from error
        offline = " (HF_HUB_OFFLINE is set)" if os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0") else ""
        problem = f"the weights of {model!r} are neither on this machine nor could they be fetched ({reason})"
        remedy = f"Give the folder of a saved net, or a name that the hub has, with a network{offline}"
        raise MissingFileError(problem, remedy=remedy) from error


@contextmanager
def _no_bars() -> Iterator[None]:
    bars = importlib.import_module("transformers.utils.logging") if find_spec("transformers") else None
    on = bars is not None and bars.is_progress_bar_enabled()
    if on:
        bars.disable_progress_bar()
    try:
        yield
    finally:
        if on:
            bars.enable_progress_bar()


def _sentence_transformer(model: str, device: str) -> Loaded:
    package = require("sentence_transformers", "sentence-transformers", _INSTALL)
    net = package.SentenceTransformer(model, device=device).eval()

    def encode(texts: Sequence[str]) -> Tensor:
        with torch.no_grad():
            options = {"batch_size": max(len(texts), 1), "convert_to_tensor": True, "show_progress_bar": False}
            return net.encode(list(texts), **options).float()

    return net, encode


def _hugging_face_text(model: str, device: str) -> Loaded:
    """Load a text transformer whose vector is the mean of its last layer over the tokens."""
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


def _timm(model: str, device: str) -> Loaded:
    package = require("timm", "timm", _INSTALL)
    name = f"local-dir:{model}" if Path(model).is_dir() else model.replace("timm/", "hf-hub:timm/", 1)
    net = package.create_model(name, pretrained=True)
    net.reset_classifier(0)  # not num_classes=0 above: timm 1.0.29 then refuses a folder with the last layer
    net = net.eval().to(device)
    prepare = package.data.create_transform(**package.data.resolve_model_data_config(net), is_training=False)

    def encode(pictures: Sequence[Any]) -> Tensor:
        with torch.no_grad():
            return net(torch.stack([prepare(p) for p in pictures]).to(device)).float()

    return net, encode


def _hugging_face_image(model: str, device: str) -> Loaded:
    """Load an image transformer: CLIP's features, else the pooled output, else the mean of the last layer."""
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
