"""``ImageEmbed``: a picture as the vector that a vision model makes of it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from fastrec._core.optional import require
from fastrec.errors import DataError, MissingFileError
from fastrec.features._embedded import Embedded
from fastrec.features._inputs import name_of
from fastrec.features.base import Col


class ImageEmbed(Embedded):
    """Each picture as a vector column of unit length, by a timm or Hugging Face model.

    The column names files. The net is used as it is, without its last layer: nothing is learned, and no target is read.
    Pictures are prepared as the net's own settings say. Each distinct file goes through the net once; a missing name is
    a missing vector. A model of ``fastrec.models`` takes the column by ``vector_names``, and trees take its first
    components: ``Pca(…, 16)``.

    Args:
        col: a column of file names, or a generator of one.
        model: the folder that a net was saved to (``save_pretrained`` of transformers, ``timm.models.save_for_hf``), a
            name of timm's, or one on Hugging Face's hub.
        root: the folder that the names start from; None: the current one.
        cache: a folder for vectors: a picture that went through the same net before does not again, wherever it lies.
        bs: pictures in a batch.
        device: where the net works: ``'auto'`` takes CUDA where there is one.
        name: the output's name; None: ``embed_{col}``.

    Needs the extra ``embed``. Vectors are equal to about six digits whatever the batch and the device, not to the bit.

    Example (the net is read at the first transform):
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
    ) -> None:
        self.col, self.model, self.root, self.cache = col, model, root, cache
        self.bs, self.device, self.name = bs, device, name
        self.check_options()

    def content(self, value: str, row: int) -> bytes:
        path = self._path(value)
        try:
            return path.read_bytes()
        except OSError as error:
            raise MissingFileError(
                f"there is no such picture ({error.strerror})",
                file=path, column=name_of(self.col), row=row, remedy="Give root=, or leave the name missing",
            ) from error  # fmt: skip

    def item(self, value: str, row: int) -> Any:
        image = require("PIL.Image", "Pillow", "pip install 'fastrec-tabular[embed]'")
        try:
            return image.open(io.BytesIO(self.content(value, row))).convert("RGB")
        except MissingFileError:
            raise
        except (OSError, SyntaxError, ValueError) as error:
            raise DataError(
                f"the picture cannot be read ({error})",
                file=self._path(value), column=name_of(self.col), row=row, remedy="Leave the name missing",
            ) from error  # fmt: skip

    def _path(self, value: str) -> Path:
        return Path(value) if self.root is None else Path(self.root) / value
