"""Examples of the generators over lists, texts and vectors."""

from __future__ import annotations

from fastrec.features import (
    Bucketize,
    ListLength,
    ListSlice,
    MultiHot,
    SvdEncode,
    TargetEncode,
    TextSvd,
    TfIdfSimilarity,
    Tokens,
    VectorColumns,
)

EXAMPLES = {
    "ListLength": [lambda: ListLength(["tags", "vec"]), lambda: ListLength(Tokens("text", "words"))],
    "ListSlice": [
        lambda: ListSlice("tags", 1),
        lambda: ListSlice("tags", 0, 2, pad="none"),
        lambda: ListSlice("vec", -4, pad=0, pad_side="left", name="last4"),
        lambda: ListSlice(Tokens("text", "words"), -3, -1),
    ],
    "MultiHot": [
        lambda: MultiHot("tags", values=["x", "🎉", "never"]),
        lambda: MultiHot("tags", max_size=4, min_count=2, scope="all"),
        lambda: MultiHot("vec", max_size=2, name="parts"),
        lambda: MultiHot("vec", values=[1, 2]),
        lambda: MultiHot(Tokens("text", "words")),
    ],
    "SvdEncode": [
        lambda: SvdEncode("item", "user", dims=3),
        lambda: SvdEncode("user", "tags", dims=12, weight="views", log=True),
        lambda: SvdEncode("city", Tokens("text", "words"), dims=2, scope="all", seed=4),
        lambda: SvdEncode("user", Bucketize(TargetEncode("city", "y"), [0.4, 0.5]), dims=2),
    ],
    "TextSvd": [
        lambda: TextSvd("text", 3),
        lambda: TextSvd("city", 2, pattern=r"\w", min_count=1, max_words=3, scope="all"),
        lambda: TextSvd(Tokens("text", "words"), 2, min_count=1),
        lambda: TextSvd("tags", 9, min_count=1),
        lambda: TextSvd(VectorColumns([Bucketize(TargetEncode("city", "y"), [0.4, 0.5]), "views"], name="two"), 2),
    ],
    "TfIdfSimilarity": [
        lambda: TfIdfSimilarity(Tokens("text", "words"), "tags"),
        lambda: TfIdfSimilarity("tags", "tags", scope="all", name="self"),
        lambda: TfIdfSimilarity(Tokens("text", "words", name="a"), Tokens("city", r"\w", name="b")),
    ],
    "Tokens": [
        lambda: Tokens("text"),
        lambda: Tokens("text", "mentions", lower=False),
        lambda: Tokens("city", r"[^\x00]", name="letters"),
    ],
    "VectorColumns": [
        lambda: VectorColumns("vec", dims=3),
        lambda: VectorColumns(["price", "clicks", "flag"], name="three", normalise=False),
        lambda: VectorColumns(["z", "views"], name="two"),
        lambda: VectorColumns(SvdEncode("item", "user", dims=3), name="svd"),
    ],
}

ROW_WISE = [
    ListLength(["tags", "vec"]),
    ListSlice("tags", 1, 2),
    ListSlice("tags", -2, pad="p"),
    Tokens("text", "words"),
    ListLength(Tokens("text")),
]

ENCODERS = [
    [SvdEncode("user", Bucketize(TargetEncode("item", "y"), [0.3, 0.6]), dims=2)],
    [SvdEncode("item", "user", dims=2, weight=Bucketize(TargetEncode("city", "y"), [0, 0.5]))],
    [VectorColumns([TargetEncode("item", "y"), "t"], name="both"), MultiHot("tags")],
    [TextSvd(VectorColumns([Bucketize(TargetEncode("item", "y"), [0.3, 0.6]), "t"], name="both"), 2, min_count=1)],
]

NOT_NUMBERS = [
    ListLength("other"),
    ListSlice("other", 1),
    MultiHot("other"),
    SvdEncode("item", "user", weight="other"),
    TfIdfSimilarity("tags", "other"),
    VectorColumns("other"),
    VectorColumns(["z", "other"], name="two"),
]
