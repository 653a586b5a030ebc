"""Three columns that say something together are found after the pairs."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from fastrec.auto.columns import read_files
from fastrec.auto.features import choose_features
from fastrec.auto.problem import understand

pytest.importorskip("lightgbm")


def test_a_habit_of_three_columns_is_kept_beside_that_of_two(tmp_path):
    rng, n = np.random.default_rng(0), 8_000
    codes = rng.integers(0, 9, (n, 4))
    pair, three = rng.normal(0, 0.8, (9, 9)), rng.normal(0, 1.2, (9, 9, 9))
    chance = 1 / (1 + np.exp(-pair[codes[:, 0], codes[:, 1]] - three[codes[:, 0], codes[:, 1], codes[:, 2]]))
    frame = pd.DataFrame({c: np.char.add(c, codes[:, i].astype(str)) for i, c in enumerate("abcd")})
    frame.assign(late=(rng.random(n) < chance).astype(int)).to_csv(tmp_path / "train.csv", index=False)
    problem = understand(read_files(tmp_path), target="late")
    chosen = choose_features(problem, seconds=600)
    families = {f.name: f for f in chosen.families}
    found = families["target means of triples"]
    assert found.kept
    assert found.gain > 0.005
    (means,) = found.features
    best = means.cols[0]
    assert sorted(best.columns) == ["a", "b", "c"]
    assert list(families).index("target means of triples") == list(families).index("target means of pairs") + 1
