"""Examples of the generators over lists, texts and vectors."""

from __future__ import annotations

import fastrec.features as ff

EXAMPLES = {
    "ListLength": [lambda: ff.ListLength(["tags", "vec"]), lambda: ff.ListLength(ff.Tokens("text", "words"))],
    "ListSlice": [
        lambda: ff.ListSlice("tags", 1),
        lambda: ff.ListSlice("tags", 0, 2, pad="none"),
        lambda: ff.ListSlice("vec", -4, pad=0, pad_side="left", name="last4"),
        lambda: ff.ListSlice(ff.Tokens("text", "words"), -3, -1),
    ],
    "MultiHot": [
        lambda: ff.MultiHot("tags", values=["x", "🎉", "never"]),
        lambda: ff.MultiHot("tags", max_size=4, min_count=2, scope="all"),
        lambda: ff.MultiHot("vec", max_size=2, name="parts"),
        lambda: ff.MultiHot("vec", values=[1, 2]),
        lambda: ff.MultiHot(ff.Tokens("text", "words")),
    ],
    "SvdEncode": [
        lambda: ff.SvdEncode("item", "user", dims=3),
        lambda: ff.SvdEncode("user", "tags", dims=12, weight="views", log=True),
        lambda: ff.SvdEncode("city", ff.Tokens("text", "words"), dims=2, scope="all", seed=4),
        lambda: ff.SvdEncode("user", ff.Bucketize(ff.TargetEncode("city", "y"), [0.4, 0.5]), dims=2),
    ],
    "TextSvd": [
        lambda: ff.TextSvd("text", 3),
        lambda: ff.TextSvd("city", 2, pattern=r"\w", min_count=1, max_words=3, scope="all"),
        lambda: ff.TextSvd(ff.Tokens("text", "words"), 2, min_count=1),
        lambda: ff.TextSvd("tags", 9, min_count=1),
        lambda: ff.TextSvd(
            ff.VectorColumns([ff.Bucketize(ff.TargetEncode("city", "y"), [0.4, 0.5]), "views"], name="two"), 2
        ),
    ],
    "TfIdfSimilarity": [
        lambda: ff.TfIdfSimilarity(ff.Tokens("text", "words"), "tags"),
        lambda: ff.TfIdfSimilarity("tags", "tags", scope="all", name="self"),
        lambda: ff.TfIdfSimilarity(ff.Tokens("text", "words", name="a"), ff.Tokens("city", r"\w", name="b")),
    ],
    "Tokens": [
        lambda: ff.Tokens("text"),
        lambda: ff.Tokens("text", "mentions", lower=False),
        lambda: ff.Tokens("city", r"[^\x00]", name="letters"),
    ],
    "VectorColumns": [
        lambda: ff.VectorColumns("vec", dims=3),
        lambda: ff.VectorColumns(["price", "clicks", "flag"], name="three", normalise=False),
        lambda: ff.VectorColumns(["z", "views"], name="two"),
        lambda: ff.VectorColumns(ff.SvdEncode("item", "user", dims=3), name="svd"),
    ],
}

ROW_WISE = [
    ff.ListLength(["tags", "vec"]),
    ff.ListSlice("tags", 1, 2),
    ff.ListSlice("tags", -2, pad="p"),
    ff.Tokens("text", "words"),
    ff.ListLength(ff.Tokens("text")),
]

ENCODERS = [
    [ff.SvdEncode("user", ff.Bucketize(ff.TargetEncode("item", "y"), [0.3, 0.6]), dims=2)],
    [ff.SvdEncode("item", "user", dims=2, weight=ff.Bucketize(ff.TargetEncode("city", "y"), [0, 0.5]))],
    [ff.VectorColumns([ff.TargetEncode("item", "y"), "t"], name="both"), ff.MultiHot("tags")],
    [
        ff.TextSvd(
            ff.VectorColumns([ff.Bucketize(ff.TargetEncode("item", "y"), [0.3, 0.6]), "t"], name="both"), 2, min_count=1
        )
    ],
]
