"""Vectors in a folder, found by the digest of their source."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from fastrec._core.atomic import atomic_file
from fastrec.errors import UnreadableFileError


def digest_of(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()


class VectorStore:
    """Vectors of one encoder in files; each ``put`` writes a new one, so that processes may share a folder.

    Args:
        folder: of the vectors; it need not be there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, wanted: Sequence[bytes], dims: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the stored vectors.

        Args:
            wanted: digests; one may stand there more than once.
            dims: how many numbers a vector has.

        Returns:
            float32 ``[n, dims]``, and which of them are known, bool ``[n]``.
        """
        vectors, known = np.zeros((len(wanted), dims), dtype=np.float32), np.zeros(len(wanted), dtype=bool)
        place: dict[bytes, list[int]] = {}
        for i, digest in enumerate(wanted):
            place.setdefault(digest, []).append(i)
        for path in sorted(self.folder.glob("*.safetensors")):
            try:
                found = load_file(path)
                keys, values = found["keys"], found["vectors"]
                if keys.shape != (len(values), 16) or values.shape[1:] != (dims,):
                    raise ValueError("its arrays do not belong together")
            except (OSError, SafetensorError, KeyError, ValueError) as error:
                raise UnreadableFileError(
                    f"kept vectors cannot be read ({error})", file=path, remedy="Remove the file: they are made anew"
                ) from error
            rows = [(mine, i) for i, key in enumerate(map(bytes, keys)) for mine in place.get(key, ())]
            if rows:
                mine, theirs = (np.array(part) for part in zip(*rows, strict=True))
                vectors[mine], known[mine] = values[theirs], True
        return vectors, known

    def put(self, digests: Sequence[bytes], vectors: np.ndarray) -> None:
        """Store vectors, float32 ``[n, dims]``."""
        keys = np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(-1, 16)
        with atomic_file(self.folder / f"{uuid.uuid4().hex}.safetensors") as path:
            save_file({"keys": keys.copy(), "vectors": np.ascontiguousarray(vectors)}, path)
