"""What every collaborative filter keeps: ids of any kind, repeats, errors, recommendations, saving."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec._core import limits
from fastrec.errors import DataError, MissingFileError, NotFittedError, UnreadableFileError, WriteError
from fastrec.retrieval import (
    EASE,
    CollaborativeFilter,
    ImplicitALS,
    ItemKNN,
    Popularity,
    RP3Beta,
    SpectralFilter,
    UserKNN,
)
from fastrec.table.state import known_classes
from tests._core.refusals import refused

MODELS = {
    "EASE": lambda: EASE(reg=2.0),
    "EASE of few": lambda: EASE(reg=2.0, max_items=5),
    "ImplicitALS": lambda: ImplicitALS(factors=3, iterations=3, power=1.0),
    "ItemKNN": lambda: ItemKNN(k=5, shrink=1.0),
    "Popularity": Popularity,
    "RP3Beta": lambda: RP3Beta(k=5),
    "SpectralFilter": lambda: SpectralFilter(factors=3),
    "UserKNN": lambda: UserKNN(k=5),
}
RNG = np.random.default_rng(5)
PAIRS = pd.DataFrame({"user": RNG.integers(20, size=120), "item": RNG.integers(15, size=120)}).drop_duplicates()
EVERY = pd.DataFrame(np.indices((20, 15)).reshape(2, -1).T, columns=["user", "item"])


@pytest.fixture(params=MODELS)
def make(request):
    return MODELS[request.param]


def fitted(make, pairs=PAIRS, weight=None) -> CollaborativeFilter:
    return make().fit(pairs.user, pairs.item, weight)


def test_every_class_is_tried():
    ours = {n for n in known_classes(CollaborativeFilter) if ":" not in n}
    assert ours == {type(make()).__name__ for make in MODELS.values()}


def test_ids_may_be_of_any_kind(make):
    expected = fitted(make).score(EVERY.user, EVERY.item)
    assert expected.dtype == torch.float64
    text = [pa.array([f"{prefix}{v:03d}" for v in values]) for prefix, values in (("u", PAIRS.user), ("i", PAIRS.item))]
    asked = [f"u{v:03d}" for v in EVERY.user], [f"i{v:03d}" for v in EVERY.item]
    torch.testing.assert_close(make().fit(*text).score(*asked), expected, rtol=0, atol=0)
    tensors = [torch.tensor(PAIRS[n].to_numpy()) for n in ("user", "item")]
    torch.testing.assert_close(make().fit(*tensors).score(EVERY.user, EVERY.item), expected, rtol=0, atol=0)


def test_order_of_rows_and_repeats_do_not_matter(make):
    expected = fitted(make, weight=np.full(len(PAIRS), 2.0)).score(EVERY.user, EVERY.item)
    twice = pd.concat([PAIRS, PAIRS.iloc[:30]]).assign(w=np.r_[np.full(len(PAIRS), 2.0), np.ones(30)])
    twice = twice.sample(frac=1, random_state=0)
    torch.testing.assert_close(fitted(make, twice, twice.w).score(EVERY.user, EVERY.item), expected, rtol=0, atol=0)


def test_a_pair_scores_the_same_among_others_and_alone(make):
    model = fitted(make)
    some = EVERY.sample(40, random_state=1, replace=True)
    expected = [float(model.score([u], [i])[0]) for u, i in some.itertuples(index=False)]
    np.testing.assert_allclose(model.score(some.user, some.item), expected, atol=1e-12)


def test_blocks_do_not_change_scores(make, monkeypatch):
    model = fitted(make)
    expected, best = model.score(EVERY.user, EVERY.item), model.recommend(range(20), 4).to_pandas()
    monkeypatch.setattr(limits, "BLOCK", 20)
    torch.testing.assert_close(model.score(EVERY.user, EVERY.item), expected, rtol=0, atol=1e-12)
    pd.testing.assert_frame_equal(model.recommend(range(20), 4).to_pandas(), best)


def test_unknown_and_missing_score_zero(make):
    model = fitted(make)
    assert model.score([99, 0, None, 0], [0, 99, 0, None]).tolist() == [0, 0, 0, 0]
    assert len(model.score([], [])) == 0


def test_weights_matter(make):
    heavy = fitted(make, weight=np.linspace(1, 9, len(PAIRS))).score(EVERY.user, EVERY.item)
    assert not torch.equal(heavy, fitted(make).score(EVERY.user, EVERY.item))


def test_seen_are_the_pairs_of_fit(make):
    pairs = set(PAIRS.itertuples(index=False, name=None))
    asked = pd.concat([EVERY, pd.DataFrame({"user": [99, 0], "item": [0, 99]})])
    found = fitted(make).seen(asked.user, asked.item)
    assert found.tolist() == [pair in pairs for pair in asked.itertuples(index=False, name=None)]


@pytest.mark.parametrize("exclude_seen", [True, False])
def test_recommends_the_best(make, exclude_seen):
    model = fitted(make)
    pairs = set(PAIRS.itertuples(index=False, name=None))
    popularity = PAIRS.item.value_counts()
    rows = []
    for user in (7, 3, 99):
        scores = model.score([user] * 15, range(15)).tolist()
        ranked = sorted(range(15), key=lambda i: (-scores[i], -popularity[i], i))
        open_items = [i for i in ranked if not (exclude_seen and (user, i) in pairs)]
        rows += [(user, i, scores[i], place) for place, i in enumerate(open_items[:6])]
    found = model.recommend([7, 3, 99], 6, exclude_seen=exclude_seen).to_pandas()
    expected = pd.DataFrame(rows, columns=["user", "item", "score", "place"])
    pd.testing.assert_frame_equal(found, expected, check_dtype=False, rtol=1e-9, atol=1e-12)


def test_recommends_no_more_than_there_is(make):
    found = fitted(make).recommend([2], 1000).to_pandas()
    assert sorted(found.item) == sorted(set(range(15)) - set(PAIRS.item[PAIRS.user == 2]))
    assert len(fitted(make).recommend([], 3)) == 0
    refused(DataError, "k=0", lambda: fitted(make).recommend([2], 0))


def test_one_user_or_one_item(make):
    for pairs in ([[1, 1, 1], [1, 2, 3]], [[1, 2, 3], [1, 1, 1]], [[1], [1]]):
        assert torch.isfinite(make().fit(*pairs).score(*pairs)).all()


def test_save_and_load(make, tmp_path):
    model = fitted(make, weight=np.linspace(1, 2, len(PAIRS)))
    model.save(tmp_path / "m")
    for cls in (CollaborativeFilter, type(model)):
        again = cls.load(tmp_path / "m")
        assert again.settings() == model.settings()
        assert torch.equal(again.score(EVERY.user, EVERY.item), model.score(EVERY.user, EVERY.item))
        pd.testing.assert_frame_equal(again.recommend([1, 2], 3).to_pandas(), model.recommend([1, 2], 3).to_pandas())
    again.save(tmp_path / "m")  # over the earlier one
    other = EASE if not isinstance(model, EASE) else ItemKNN
    refused(DataError, rf"{type(model).__name__}.*no {other.__name__}", lambda: other.load(tmp_path / "m"))


def test_damage_is_named(tmp_path):
    with pytest.raises(MissingFileError):
        CollaborativeFilter.load(tmp_path)
    refused(NotFittedError, "ItemKNN", lambda: ItemKNN().save(tmp_path / "none"))
    fitted(MODELS["ItemKNN"]).save(tmp_path / "m")
    path = tmp_path / "m" / "state.json"
    whole = path.read_text()
    path.write_text(whole.replace('"shrink"', '"shrunk"'))
    refused(UnreadableFileError, "shrunk", lambda: CollaborativeFilter.load(tmp_path / "m"))
    path.write_text(whole.replace('"ItemKNN"', '"Nobody"'))
    refused(DataError, r"'Nobody'.*not known", lambda: CollaborativeFilter.load(tmp_path / "m"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("years of work")
    with pytest.raises(WriteError):
        fitted(MODELS["ItemKNN"]).save(tmp_path / "other")


def test_bad_input_is_named(make):
    with pytest.raises(NotFittedError):
        make().score([1], [1])
    with pytest.raises(NotFittedError):
        make().recommend([1], 1)
    refused(DataError, "no interaction", lambda: make().fit([], []))
    refused(DataError, r"column 'items', row 1: an id is missing", lambda: make().fit([1, 2], [1, None]))
    for weight in (0.0, -1.0, np.nan, np.inf):
        with pytest.raises(DataError, match=r"column 'weight', row 1"):
            make().fit([1, 2], [1, 2], [1.0, weight])
    refused(DataError, "unequal lengths", lambda: make().fit([1, 2], [1, 2, 3]))
    refused(DataError, "2 users and 3 items", lambda: fitted(make).score([1, 2], [1, 2, 3]))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(1, 5)), min_size=1, max_size=30))
def test_any_small_history_is_learned(rows):
    users, items, weights = map(list, zip(*rows))
    largest: dict[tuple[int, int], int] = {}
    for u, i, w in rows:
        largest[u, i] = max(w, largest.get((u, i), 0))
    for make in MODELS.values():
        scores = make().fit(users, items, weights).score(*np.indices((7, 7)).reshape(2, -1))
        assert torch.isfinite(scores).all()
    model = Popularity().fit(users, items, weights)
    for i in set(items):
        assert model.score([users[0]], [i]).item() == sum(w for (_, item), w in largest.items() if item == i)
