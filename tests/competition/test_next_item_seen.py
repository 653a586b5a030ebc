"""Sessions in which nothing comes twice: what was seen is left out when weights are chosen and in the submission."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import torch

from fastrec.competition import NextItemCompetition, run_competition
from fastrec.competition.run import load_competition
from fastrec.errors import DataError
from fastrec.sequences import CoVisitation, PopularItems, SessionBlend, SessionFrame

# some sessions hold no item that the model knows
pytestmark = pytest.mark.filterwarnings("ignore:no item of")


class Once(NextItemCompetition):
    name, k, minutes = "Once", 5, 1.0
    hold, exclude_seen = "events", True

    def models(self, *, bs):
        return {"near": CoVisitation(before=0.0), "popular": PopularItems()}


def lines(n, seed):
    rng = np.random.default_rng(seed)
    return [((int(rng.integers(40)) + np.arange(int(rng.integers(3, 9)))) % 40).tolist() for _ in range(n)]


def test_what_was_seen_is_left_out(tmp_path):
    train, test = lines(300, 0), lines(50, 1)
    pd.DataFrame({"items": train}).to_parquet(tmp_path / "train.parquet")
    asked = pd.DataFrame({"items": [line[:-1] for line in test], "target": [line[-1] for line in test]})
    asked.to_parquet(tmp_path / "test.parquet")
    run_competition(Once(), tmp_path, tmp_path / "run")
    shown = pd.read_csv(tmp_path / "run/submission.csv")["items"]
    for line, answer in zip(asked["items"], shown, strict=True):
        assert not set(map(int, answer.split())) & set(line)
    assert json.loads((tmp_path / "run/scores.json").read_text())["hr@5"] > 0.9  # the next number of the circle


def test_the_last_event_of_each_is_held_out():
    sessions = SessionFrame(pd.DataFrame({"items": lines(200, 2)}), item="items")
    blend = SessionBlend({"near": CoVisitation(), "popular": PopularItems()}, k=5, hold="events", exclude_seen=True)
    blend.fit(sessions)
    before = SessionFrame(pd.DataFrame({"items": [s[:-1] for s in lines(200, 2)]}), item="items")
    alone = CoVisitation().fit(before)
    items, _ = alone.recommend(before, 5, True)
    wanted = torch.tensor([alone.items.classes.index(s[-1]) for s in lines(200, 2)])
    assert blend.valid["near"]["hr@5"] == pytest.approx(float((items == wanted[:, None]).any(1).float().mean()))
    with pytest.raises(DataError, match="hold out 'days'"):
        SessionBlend({}, hold="days")


def test_the_recipe_for_movielens_reads_its_files(tmp_path):
    recipe = load_competition("competitions/movielens")
    lines_of = {"train_input": "1 2 3\n2 3 4 1\n", "test_input": "1 2 3\n2 3 4 1\n", "test_output": "4\n5\n"}
    for name, text in lines_of.items():
        (tmp_path / f"gsasrec_{name}.txt").write_text(text)
    train, test = recipe.read(tmp_path, None)
    assert train.decode(train.values).to_pylist() == [1, 2, 3, 2, 3, 4, 1]
    assert test.target.tolist() == [test.items.classes.index(4), 0]  # nobody saw film 5
