"""Vectors of texts and pictures, against what the nets' own packages make; and a vector's components."""

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from sklearn.decomposition import PCA

from fastrec.errors import DataError, FastrecError, MissingFileError, UnreadableFileError
from fastrec.features import ImageEmbed, Pca, TextEmbed
from fastrec.features import embed as encoders
from tests.features.tiny_nets import pictures, sentence_net, text_net, timm_net, vision_net

TEXTS = ["red shoe", None, "a blue hat", "red shoe", "", "boots two one red blue"]
FILES = ["i0", "i3", None, "i0", "i1", "i2"]


def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def vectors(frame, name):
    """The rows that are not missing, ``[m, d]``, and which they are."""
    column = frame[name].tolist()
    known = [i for i, v in enumerate(column) if v is not None]
    return np.array([column[i] for i in known], dtype=np.float64), known


def alone(texts):
    """Each text by itself, as transformers' documentation has it: the mean over the words that are there."""
    package = pytest.importorskip("transformers")
    words, net = package.AutoTokenizer.from_pretrained(text_net()), package.AutoModel.from_pretrained(text_net()).eval()
    with torch.no_grad():
        return np.stack([net(**words(t, return_tensors="pt")).last_hidden_state[0].mean(0).numpy() for t in texts])


def test_texts_are_the_mean_of_a_transformers_last_layer():
    made, known = vectors(TextEmbed("t", text_net(), bs=2).transform(pd.DataFrame({"t": TEXTS})), "embed_t")
    assert known == [0, 2, 3, 4, 5]
    np.testing.assert_allclose(made, unit(alone([TEXTS[i] for i in known])), atol=1e-5)
    whole, _ = vectors(TextEmbed("t", text_net()).transform(pd.DataFrame({"t": [TEXTS[i] for i in known]})), "embed_t")
    np.testing.assert_allclose(whole, made, atol=1e-5)  # none is missing


def test_a_sentence_transformer_pools_as_it_was_saved_to():
    package = pytest.importorskip("sentence_transformers")
    made, known = vectors(TextEmbed("t", sentence_net()).transform(pd.DataFrame({"t": TEXTS})), "embed_t")
    theirs = package.SentenceTransformer(sentence_net(), device="cpu").encode([TEXTS[i] for i in known])
    np.testing.assert_allclose(made, unit(theirs), atol=1e-5)
    mean, _ = vectors(TextEmbed("t", text_net()).transform(pd.DataFrame({"t": TEXTS})), "embed_t")
    assert np.abs(made - mean).max() > 0.01


def test_pictures_are_what_timm_makes_of_them_without_the_last_layer():
    timm, image = pytest.importorskip("timm"), pytest.importorskip("PIL.Image")
    net = timm.create_model(f"local-dir:{timm_net()}", pretrained=True).eval()
    small, mean, sd = (32, 32), 0.5, 0.25
    feature = ImageEmbed("f", timm_net(), root=pictures(), bs=2)
    made, known = vectors(feature.transform(pd.DataFrame({"f": FILES})), "embed_f")
    assert known == [0, 1, 3, 4, 5]
    for row, i in zip(made, known, strict=True):
        picture = image.open(Path(pictures()) / FILES[i]).convert("RGB")
        width, height = picture.size  # the shorter side becomes 32, the middle is taken
        scaled = picture.resize((round(width * 32 / height), 32), image.Resampling.BILINEAR)
        left = round((scaled.width - 32) / 2)
        pixels = np.asarray(scaled.crop((left, 0, left + 32, 32)).resize(small)) / 255
        x = torch.from_numpy((pixels - mean) / sd).permute(2, 0, 1)[None].float()
        with torch.no_grad():
            theirs = net.forward_head(net.forward_features(x), pre_logits=True).numpy()
        np.testing.assert_allclose(row, unit(theirs)[0], atol=2e-3)


def test_pictures_of_a_transformer_are_its_pooled_output():
    package, image = pytest.importorskip("transformers"), pytest.importorskip("PIL.Image")
    net = package.ViTModel.from_pretrained(vision_net()).eval()
    feature = ImageEmbed("f", vision_net(), root=pictures())
    made, known = vectors(feature.transform(pd.DataFrame({"f": FILES})), "embed_f")
    for row, i in zip(made, known, strict=True):
        picture = image.open(Path(pictures()) / FILES[i]).convert("RGB").resize((16, 16), image.Resampling.BILINEAR)
        x = torch.from_numpy(np.asarray(picture) / 255).permute(2, 0, 1)[None].float() * 2 - 1
        with torch.no_grad():
            theirs = net(pixel_values=x).pooler_output.numpy()
        np.testing.assert_allclose(row, unit(theirs)[0], atol=2e-2)


def test_distinct_values_go_through_the_net_once_and_kept_vectors_are_found_by_what_they_were_made_of(
    monkeypatch, tmp_path
):
    seen, one = [], encoders.PretrainedEncoder.__init__  # the size of each batch

    def noted(self, net, encode, digest, dims):
        one(self, net, lambda batch: (seen.append(len(batch)), encode(batch))[1], digest, dims)

    monkeypatch.setattr(encoders.PretrainedEncoder, "__init__", noted)
    encoders.load_encoder.cache_clear()
    TextEmbed("t", text_net(), bs=3).transform(pd.DataFrame({"t": TEXTS * 10}))
    assert seen == [3, 1]
    seen.clear()
    df, cache = pd.DataFrame({"t": TEXTS}), tmp_path / "cache"
    first = TextEmbed("t", text_net(), cache=cache).transform(df)
    assert seen == [4]
    again = TextEmbed("t", text_net(), cache=cache).transform(df.iloc[::-1])
    assert seen == [4]
    for a, b in zip(first["embed_t"], again["embed_t"].iloc[::-1], strict=True):
        assert (a is None and b is None) or a.tolist() == b.tolist()
    TextEmbed("t", text_net(), cache=cache).transform(pd.DataFrame({"t": ["red shoe", "new"]}))
    assert seen == [4, 1]
    TextEmbed("t", text_net(1), cache=cache).transform(df)  # another net's are others
    assert seen == [4, 1, 4]
    moved = tmp_path / "moved"  # a picture is its bytes, not its name
    moved.mkdir()
    shutil.copy(Path(pictures()) / "i0", moved / "renamed.png")
    one = ImageEmbed("f", timm_net(), root=pictures(), cache=cache).transform(pd.DataFrame({"f": ["i0"]}))
    del seen[:]
    two = ImageEmbed("f", timm_net(), root=moved, cache=cache).transform(pd.DataFrame({"f": ["renamed.png"]}))
    assert not seen
    assert one["embed_f"][0].tolist() == two["embed_f"][0].tolist()
    for kept in cache.rglob("*.safetensors"):
        kept.write_bytes(kept.read_bytes()[:-3])
    with pytest.raises(UnreadableFileError, match="Remove the file"):
        TextEmbed("t", text_net(), cache=cache).transform(df)
    encoders.load_encoder.cache_clear()


def test_kept_vectors_are_of_the_encoder_not_only_of_its_weights(tmp_path):
    """The same weights read words in another way, or pool in another."""
    pytest.importorskip("transformers")
    other = tmp_path / "other"
    shutil.copytree(text_net(), other)
    for path in (other / "vocab.txt", other / "tokenizer.json"):
        text = path.read_text()
        path.write_text(text.replace("red", "dre").replace("blue", "red").replace("dre", "blue"))
    df, cache = pd.DataFrame({"t": TEXTS}), tmp_path / "cache"
    first, _ = vectors(TextEmbed("t", text_net(), cache=cache).transform(df), "embed_t")
    own, _ = vectors(TextEmbed("t", str(other)).transform(df), "embed_t")
    assert np.abs(own - first).max() > 0.01
    kept, _ = vectors(TextEmbed("t", str(other), cache=cache).transform(df), "embed_t")
    np.testing.assert_array_equal(kept, own)
    copied = tmp_path / "copied"
    shutil.copytree(text_net(), copied)
    again = encoders.load_encoder(str(copied), "text", "cpu").digest  # wherever it lies
    assert again == encoders.load_encoder(text_net(), "text", "cpu").digest
    encoders.load_encoder.cache_clear()


def test_neither_weights_nor_a_network_is_an_error_that_says_what_to_do(monkeypatch, tmp_path):
    from huggingface_hub import constants

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)  # read when the package is imported
    damaged = tmp_path / "damaged"
    shutil.copytree(text_net(), damaged)
    weights = damaged / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    far = r"neither on this machine .*HF_HUB_OFFLINE is set"
    for feature, error, message in (
        (TextEmbed("t", "nobody/no-such-net"), MissingFileError, far),
        (ImageEmbed("t", "nobody/no-such-net"), MissingFileError, far),
        (TextEmbed("t", str(tmp_path / "gone")), MissingFileError, "no such folder"),
        (TextEmbed("t", str(tmp_path)), DataError, "holds no net"),
        (TextEmbed("t", timm_net()), DataError, "for pictures"),
        (TextEmbed("t", str(damaged)), FastrecError, "the net cannot be read"),
    ):
        with pytest.raises(error, match=message):
            feature.transform(pd.DataFrame({"t": ["a"]}))


def test_a_value_that_is_none_is_named(tmp_path):
    (tmp_path / "bad.png").write_bytes(b"no picture")
    feature = ImageEmbed("f", timm_net(), root=tmp_path)
    for files, error, message in (
        ([None, "bad.png"], DataError, r"bad\.png.*cannot be read"),
        ([None, None, "gone.png"], MissingFileError, r"gone\.png"),
    ):
        with pytest.raises(error, match=message) as caught:
            feature.transform(pd.DataFrame({"f": files}))
        assert (caught.value.column, caught.value.row) == ("f", len(files) - 1)
    with pytest.raises(DataError, match="needs text"):
        TextEmbed("t", text_net()).transform(pd.DataFrame({"t": [1, 2]}))
    with pytest.raises(DataError, match="TextEmbed: bs is 0"):
        TextEmbed("t", text_net(), bs=0)


@pytest.mark.parametrize("whiten", [False, True])
def test_components_are_scikit_learns_but_for_their_signs(whiten):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 6)) @ rng.normal(size=(6, 6)) + 100
    train, test = x[:150], x[150:]
    theirs = PCA(4, whiten=whiten).fit(train)
    scale = np.sqrt(149 / 150) if whiten else 1.0  # theirs divides by n - 1
    ours = Pca("v", 4, whiten=whiten).fit(pd.DataFrame({"v": list(train)}))
    made = ours.transform(pd.DataFrame({"v": list(test)}))[ours.outputs].to_numpy()
    wanted = theirs.transform(test) / scale
    signs = np.sign((made * wanted).sum(0))
    np.testing.assert_allclose(made, wanted * signs, rtol=1e-8, atol=1e-8)
    largest = ours.fit_["components"].abs().argmax(0)
    assert (ours.fit_["components"][largest, torch.arange(4)] > 0).all()


def test_components_past_the_rank_are_0_and_of_missing_vectors_missing():
    line = pd.DataFrame({"v": [[float(i), 2.0 * i] for i in range(5)] + [None, [np.inf, 0.0]]})
    made = Pca("v", 3).fit_transform(line, key=None)
    assert made["pca1_v"][:5].tolist() == made["pca2_v"][:5].tolist() == [0.0] * 5
    assert made[["pca0_v", "pca2_v"]][5:].isna().all().all()
    assert np.abs(np.diff(made["pca0_v"][:5])) == pytest.approx(5**0.5)


def test_without_a_vector_there_are_no_components():
    empty = Pca("v", 2).fit(pa.table({"v": pa.array([None, None], pa.list_(pa.float64()))}))
    made = empty.transform(pd.DataFrame({"v": [[1.0, 2.0]]}))
    assert made[["pca0_v", "pca1_v"]].isna().all().all()
