"""``TextEmbed``: a text as the vector that a language model makes of it."""

from __future__ import annotations

from pathlib import Path

from fastrec.features._embedded import Embedded
from fastrec.features.base import Col


class TextEmbed(Embedded):
    """Each text as a vector column of unit length, by a sentence-transformers or Hugging Face model.

    The net is used as it is: nothing is learned, and no target is read. A model with ``modules.json`` is
    sentence-transformers' own; of another transformer the last layer's mean over the words is taken. Each distinct text
    goes through the net once, longer ones in other batches than short ones; a missing text is a missing vector. A model
    of ``fastrec.models`` takes the column by ``vector_names``, and trees take its first components: ``Pca(…, 16)``.

    Args:
        col: a column of text, or a generator of one.
        model: the folder that a net was saved to (``save_pretrained``), or its name on Hugging Face's hub.
        cache: a folder for vectors: a text that went through the same net before does not again.
        bs: texts in a batch.
        device: where the net works: ``'auto'`` takes CUDA where there is one.
        name: the output's name; None: ``embed_{col}``.

    Needs the extra ``embed``. Vectors are equal to about six digits whatever the batch and the device, not to the bit.

    Source: Reimers, Gurevych 2019, "Sentence-BERT".

    Example (the net is read at the first transform):
        >>> from fastrec.features import Pca, TextEmbed
        >>> texts = TextEmbed("description", "models/all-MiniLM-L6-v2", cache="cache")
        >>> texts.outputs, Pca(texts, 2).outputs
        (['embed_description'], ['pca0_embed_description', 'pca1_embed_description'])
    """

    encodes = "text"

    def __init__(
        self,
        col: Col,
        model: str,
        *,
        cache: str | Path | None = None,
        bs: int = 64,
        device: str = "auto",
        name: str | None = None,
    ) -> None:
        self.col, self.model, self.cache, self.bs, self.device, self.name = col, model, cache, bs, device, name
        self.check_options()

    def content(self, value: str, row: int) -> bytes:
        return value.encode()

    def item(self, value: str, row: int) -> str:
        return value
