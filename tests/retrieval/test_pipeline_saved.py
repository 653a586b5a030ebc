"""A saved recommender gives what it gave, and says what it cannot save or read."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pandas as pd
import pytest
import torch

from fastrec.errors import DataError, MissingFileError, NotFittedError, UnreadableFileError, WriteError
from fastrec.estimators import XGBModel
from fastrec.retrieval import (
    EASE,
    MMR,
    Available,
    Boost,
    Candidates,
    CandidateSource,
    HistoryFilter,
    InSegment,
    NearestVectors,
    Quota,
    RankedCandidates,
    Recommender,
    RepeatedItems,
    Saved,
    Seen,
    SegmentPopularity,
)
from fastrec.sequences import VSTAN, CoVisitation, NextItemNet, PopularItems, SessionFrame
from fastrec.table import Table
from tests._core.refusals import refused
from tests.retrieval.walks import chains
from tests.sequences.helpers import frame

LOG = frame(chains(1, 150, 15))
ASKED = frame([*chains(2, 20, 15), [], [99], [3]], items=LOG.items)


def segments() -> SessionFrame:
    lists = [c[:3] for c in chains(3, 120, 12)]
    logged = pd.DataFrame({"s": np.repeat(np.arange(120), [len(c) for c in lists]), "item": np.concatenate(lists)})
    logged["land"] = np.where(logged.s % 2 == 0, "dé", "fr")
    return SessionFrame(logged, item="item", session="s", features=["land"])


class OddOnes(Saved):
    def to_state(self):
        return {}

    def __call__(self, table, sessions):
        return table["item"].values % 2 == 1


class Mine(CandidateSource):
    def _fit(self, sessions):
        pass

    def _best(self, sessions, k):
        return torch.ones(len(sessions), k, dtype=torch.int64), torch.ones(len(sessions), k)


def vectors(n: int) -> torch.Tensor:
    return torch.randn(n, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "shop",
    [
        Recommender(CoVisitation(hops=2), filters=[Seen(), Available(range(2, 12))], order=[Boost([3, 4], 0.5)]),
        Recommender(HistoryFilter(EASE()), order=[Quota([1, 2, 3], ["a", "a", "b"], 1), MMR(vectors(5), range(5))]),
        Recommender(
            Candidates(
                {
                    "near": VSTAN(k=20),
                    "own": RepeatedItems(decay=2.0),
                    "popular": SegmentPopularity(most=7),
                    "like": NearestVectors(vectors(9), range(3, 12)),
                },
                {"near": 9, "own": 3, "popular": 4, "like": 5},
            ),
            filters=[OddOnes()],
        ),
        Recommender(Candidates({"near": CoVisitation(), "popular": PopularItems()}, 8), ranker=XGBModel(rounds=5)),
        Recommender(RankedCandidates(rounds=5), depth=12),
        Recommender(NextItemNet(width=8, epochs=1), depth=12),
    ],
    ids=["filters", "orders", "sources", "ranker", "ranked", "net"],
)
def test_what_was_saved_gives_the_same(shop, tmp_path):
    refused((NotFittedError, DataError), r"fitted|trained", lambda: shop.save(tmp_path / "shop"))
    shop.fit(LOG)
    shop.save(tmp_path / "shop")
    again = Recommender.load(shutil.copytree(tmp_path / "shop", tmp_path / "moved"))
    for k in (1, 6):
        assert again.recommend(ASKED, k).to_arrow().equals(shop.recommend(ASKED, k).to_arrow())
    assert again.recommend_one([3, 4], 3).to_arrow().equals(shop.recommend_one([3, 4], 3).to_arrow())
    assert list(again.seconds) == ["retrieve", "filter", "score", "order"]
    shop.save(tmp_path / "shop")  # over the earlier one
    files = {p.suffix for p in (tmp_path / "shop").rglob("*") if p.is_file()}
    assert files <= {".json", ".safetensors", ".ubj", ".parquet"}


def test_side_features_are_read_as_before(tmp_path):
    log = segments()
    sources = Candidates({"of": SegmentPopularity("land"), "near": CoVisitation()}, 6)
    shop = Recommender(sources, filters=[InSegment("land", {"dé": [1, 2, 3]})]).fit(log)
    shop.save(tmp_path / "shop")
    again = Recommender.load(tmp_path / "shop")
    asked = pd.DataFrame({"s": [1, 1, 2], "item": [4, 5, 4], "land": ["dé", "dé", "fr"]})
    read = SessionFrame.of_form(again.form, again.items).new(asked)
    assert torch.equal(read.values, log.new(asked).values)
    found = again.recommend(read, 5)
    assert found.to_arrow().equals(shop.recommend(log.new(asked), 5).to_arrow())
    items = found.to_arrow().to_pandas()
    assert set(items[items.session == 0]["item"]) <= {1, 2, 3}
    assert len(SessionFrame.of_form(again.form, again.items)) == 0


class ByWeight:
    """A ranker of its own: it sees the context's columns by session."""

    def predict(self, table):
        assert table["weight"].values.tolist() == [float(s) for s in table["session"].values]
        return table["weight"].values * 0 - table["item"].values


def test_context_reaches_a_ranker(tmp_path):
    shop = Recommender(PopularItems(), ranker=ByWeight(), depth=4).fit(LOG)
    context = Table({"weight": torch.arange(len(ASKED)).double()})
    found = shop.recommend(ASKED, 2, context=context).to_arrow().to_pandas()
    assert (found.groupby("session")["item"].apply(list).map(lambda v: v == sorted(v))).all()
    with pytest.raises(DataError, match="1 rows of context for 23 sessions"):
        shop.recommend(ASKED, 2, context=context.take(torch.tensor([0])))
    refused(DataError, "ByWeight cannot be saved", lambda: shop.save(tmp_path / "shop"))


def test_what_cannot_be_saved_or_read_is_named(tmp_path):
    with pytest.raises(DataError, match=r"lambda.* cannot be saved"):
        Recommender(PopularItems(), filters=[lambda table, sessions: None]).fit(LOG).save(tmp_path / "shop")
    refused(DataError, "Mine cannot be saved", lambda: Recommender(Mine()).fit(LOG).save(tmp_path / "shop"))
    assert not (tmp_path / "shop").exists()
    refused(MissingFileError, r"recommender\.json", lambda: Recommender.load(tmp_path))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("dear")
    shop = Recommender(PopularItems(), filters=[OddOnes()]).fit(LOG)
    refused(WriteError, "holds other things", lambda: shop.save(tmp_path / "other"))
    shop.save(tmp_path / "shop")
    about = tmp_path / "shop" / "recommender.json"
    state = tmp_path / "shop" / "stages" / "state.json"
    text = state.read_text()
    state.write_text(text.replace('OddOnes"', 'EvenOnes"'))
    refused(DataError, "EvenOnes', which is not known here", lambda: Recommender.load(tmp_path / "shop"))
    state.write_text(text.replace('"filters"', '"filtres"'))
    refused(UnreadableFileError, "cannot be read", lambda: Recommender.load(tmp_path / "shop"))
    state.write_text(text)
    about.write_text(json.dumps({"ranker": "run"}))
    refused(DataError, "its ranker is a run", lambda: Recommender.load(tmp_path / "shop"))
    about.write_text("{}")
    refused(UnreadableFileError, "cannot be read", lambda: Recommender.load(tmp_path / "shop"))
