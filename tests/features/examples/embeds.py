"""Examples of the generators that make vectors of texts and pictures, and of components."""

from __future__ import annotations

from fastrec.features import Bucketize, ImageEmbed, Pca, TargetEncode, TextEmbed, VectorColumns
from tests.features.tiny_nets import pictures, text_net, timm_net

EXAMPLES = {
    "ImageEmbed": [lambda: ImageEmbed("item", timm_net(), root=pictures(), bs=2, name="photo")],
    "Pca": [lambda: Pca("vec", 2), lambda: Pca(VectorColumns(["z", "views"], name="two"), 3, whiten=True)],
    "TextEmbed": [lambda: TextEmbed("text", text_net(), bs=3), lambda: TextEmbed("city", text_net(), name="of_city")],
}

ENCODERS = [[Pca(VectorColumns([Bucketize(TargetEncode("item", "y"), [0.3, 0.6]), "t"], name="both"), 2)]]
