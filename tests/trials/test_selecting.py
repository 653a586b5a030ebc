"""``select_features``: planted columns kept and noise dropped, figures beside plain loops, wrong input."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import roc_auc_score

from fastrec.errors import DataError, MissingFileError
from fastrec.estimators import CatBoostModel, ColumnRanker, PseudoLabelled, XGBModel
from fastrec.metrics import get_metric
from fastrec.report.data import noted_score
from fastrec.table import Table
from fastrec.trials import list_tries, select_features
from fastrec.trials.reference import permuted_losses
from fastrec.trials.selecting import null_importance
from fastrec.validate import Folds, Lists, Rows
from tests.cli.test_cli import invoke
from tests.trials import planted

MODEL = XGBModel("m", rounds=20, eta=0.3, max_depth=3, early_stopping_rounds=None, nthread=1)
NAMES = ["x", "h", "z", "day", "user"]


def some_rows(n: int = 800) -> Rows:
    frame = planted.rows(n)
    return Rows(Table.read(frame), "binary", conts=NAMES, label=torch.tensor(frame["bought"].to_numpy()))


@pytest.fixture(scope="module")
def shop(tmp_path_factory) -> Path:
    return planted.make_run(tmp_path_factory.mktemp("shop"), planted.Shop, planted.rows(800))


@pytest.mark.parametrize(("method", "metric"), [("null", None), ("permutation", None), ("permutation", "logloss")])
def test_planted_columns_are_kept_and_noise_is_dropped(method, metric):
    made = select_features(some_rows(), method=method, model=MODEL, metric=metric)
    assert {"x", "h"} <= set(made.kept)
    assert {"z", "day", "user"} >= set(made.dropped)
    assert len(made.dropped) >= 2
    assert {w.name for w in made.table} == set(NAMES)
    assert made.table[0].name == "h"
    assert made.table[0].importance > 0  # of a loss, too
    assert made.measure == ("gain" if method == "null" else metric or "auc")


def test_null_gains_are_those_of_shuffled_copies_and_p_values_their_shares():
    rows = some_rows(300)
    gains, nulls = null_importance(MODEL, rows, repeats=19)
    draw, found = torch.Generator().manual_seed(0), {n: [] for n in NAMES}
    frame = rows.table.to_pandas()
    for i in range(19):
        order = torch.randperm(300, generator=draw).numpy()
        beside = frame.assign(**{f"copy {n}": frame[n].to_numpy()[order] for n in NAMES})
        names = [*NAMES, *(f"copy {n}" for n in NAMES)]
        names = [names[k] for k in torch.randperm(len(names), generator=(torch.randperm(0, generator=draw), draw)[1])]
        expected = MODEL.fresh().fit(Rows(Table.read(beside), "binary", conts=names, label=rows.label), seed=0)
        gain = expected.trace.importance
        assert {n: v[i] for n, v in nulls.items()} == pytest.approx({n: gain.get(f"copy {n}", 0.0) for n in NAMES})
        for n in NAMES:
            found[n].append(gain.get(n, 0.0))
    assert gains == pytest.approx({n: np.mean(v) for n, v in found.items()})
    made = select_features(rows, model=MODEL, repeats=19)
    for w in made.table:
        assert w.importance == gains[w.name]
        assert w.p == pytest.approx((1 + sum(v >= gains[w.name] for v in nulls[w.name])) / 20)
        assert w.kept == (w.p <= 0.1)
    assert select_features(rows, model=MODEL, repeats=9).kept  # 1 / 10 is not above the level


@pytest.mark.parametrize("wrapped", [False, True])
def test_columns_that_a_model_names_have_copies(wrapped):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(500, 5)), columns=list("abcde")).assign(k=rng.integers(0, 30, 500) * 7 % 61)
    effect = rng.normal(size=61)
    label = torch.tensor((frame.a + effect[frame.k] + rng.normal(size=500)).to_numpy())
    rows = Rows(Table.read(frame), "regression", conts=list(frame), label=label)
    model = XGBModel("m", rounds=20, eta=0.3, early_stopping_rounds=None, nthread=1, columns=list("abcd"))
    made = select_features(rows, model=PseudoLabelled(model) if wrapped else model)
    assert {"a"} <= set(made.kept) <= {"a", "b", "c", "d"}
    assert len(made.kept) <= 2
    keyed = CatBoostModel("cat", rounds=20, keys=["k"], early_stopping_rounds=None, thread_count=1)
    assert {"a", "k"} <= set(select_features(rows, model=keyed, repeats=9).kept)


def test_weak_columns_beside_a_strong_one_are_kept():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(600, 4)), columns=["strong", "weak", "noise", "more"])
    label = 3 * frame.strong + frame.weak + rng.normal(size=600)
    rows = Rows(Table.read(frame), "regression", conts=list(frame), label=torch.tensor(label.to_numpy()))
    assert set(select_features(rows, model=MODEL).kept) == {"strong", "weak"}


def of_lists() -> tuple[pd.DataFrame, Lists]:
    frame = planted.lists()
    label, groups = (torch.tensor(frame[n].to_numpy()) for n in ("clicked", "list_id"))
    return frame, Lists(Table.read(frame), groups, conts=["price", "stars", "noise"], label=label.double())


def test_noise_of_lists_is_dropped():
    made = select_features(of_lists()[1])
    assert "price" in made.kept
    assert "noise" in made.dropped


def test_a_permuted_column_costs_what_a_plain_loop_says():
    rows, folds = some_rows(400), Folds.kfold(400, 3)
    sides = [(inside, rows.take(outside), rows.take(inside)) for outside, inside in folds]
    losses = permuted_losses(MODEL, sides, get_metric("auc"), None, None, seed=2)
    draw = torch.Generator().manual_seed(2)
    base, shuffled = np.zeros(400), {n: np.zeros(400) for n in NAMES}
    for k, (outside, inside) in enumerate(folds):
        model = MODEL.fresh().fit(rows.take(outside), seed=2 + k)
        frame = rows.take(inside).table.to_pandas()
        base[inside] = model.predict(rows.take(inside))
        for name in NAMES:
            order = torch.randperm(len(inside), generator=draw).numpy()
            other = frame.assign(**{name: frame[name].to_numpy()[order]})
            shuffled[name][inside] = model.predict(Rows(Table.read(other), "binary", conts=NAMES))
    y = rows.label.numpy()
    for name in NAMES:
        expected = roc_auc_score(y, base) - roc_auc_score(y, shuffled[name])
        assert losses[name].mean == pytest.approx(expected, abs=1e-12)
        assert losses[name].low <= losses[name].mean <= losses[name].high


def test_early_stopping_does_not_empty_the_null_gains():
    stops = XGBModel("m", rounds=200, eta=0.1, max_depth=3, early_stopping_rounds=5, nthread=1)
    grows = XGBModel("m", rounds=67, eta=0.3, max_depth=3, early_stopping_rounds=None, nthread=1)
    rows = some_rows(400)
    assert select_features(rows, model=stops, repeats=19) == select_features(rows, model=grows, repeats=19)


def test_many_rows_are_thinned_lists_whole():
    made = select_features(of_lists()[1], max_rows=400)
    assert set(made.kept) <= {"price", "stars"}
    assert "noise" in made.dropped


def test_wrong_input_is_named(tmp_path, shop):
    few = some_rows(50)
    copied = replace(few, table=few.table.with_columns({"__shuffled__x": few.label}), conts=["__shuffled__x"])
    for call, said in (
        (lambda: select_features(shop, method="gain"), "no method 'gain'"),
        (lambda: select_features(few, model="m"), "no model 'm'"),
        # the smallest p-value is a ninth
        (lambda: select_features(shop, repeats=8), r"8 shuffled copies: no column could be kept.*9 or more"),
        (lambda: select_features(tmp_path), r"config\.json"),
        (lambda: null_importance(ColumnRanker("rule", ["x"]), few), "has no gains"),
        (lambda: null_importance(MODEL, replace(few, label=None)), "no target to learn"),
        (lambda: null_importance(MODEL, copied), "column '__shuffled__x': shuffled copies .* Rename the column"),
    ):
        with pytest.raises((DataError, MissingFileError), match=said):
            call()


# ``fastrec try``, ``tries``, ``select``, ``lb`` and ``runs`` as a person types them


def test_an_idea_is_tried_and_shown_in_the_list(shop, tmp_path):
    (tmp_path / "idea.py").write_text("def h_again(df):\n    return df.h\n")
    code, out, _ = invoke("try", tmp_path / "idea.py", "--on", shop, "--data", shop.parent / "data", columns=200)
    assert code == 0
    assert out.startswith("better: + h_again\n  auc out of fold 0.")
    assert "model boosted" in out
    code, out, _ = invoke("try", "--on", shop, "--drop", "x", "--drop", "city", "--model", "boosted", "--full")
    assert code == 0
    assert out.startswith("worse: - x, - city")
    (tmp_path / "leak.py").write_text("def rate(df):\n    return df.groupby('shop').bought.transform('mean')\n")
    code, out, _ = invoke("try", tmp_path / "leak.py", "--on", shop)
    assert code == 1
    assert out.startswith("leak: + rate\n  rate: ")
    code, out, _ = invoke("tries", shop, columns=200)
    assert code == 0
    lines = [line for line in out.splitlines() if "│" in line]
    assert len(lines) == len(list_tries(shop)) == 3
    assert all(v in line for v, line in zip(("better", "worse", "leak"), lines, strict=True))
    assert "idea.py" in lines[0]
    assert "- x, - city" in lines[1]
    assert "earlier run" not in out


def test_columns_are_weighed(shop):
    code, out, _ = invoke("select", shop)
    assert code == 0
    assert out.splitlines()[-1] == "kept 1 of 4: x"
    code, out, _ = invoke("select", shop, "--method", "permutation", "--model", "stump")
    assert code == 0
    assert "auc lost" in out


def test_a_leaderboard_score_is_noted_and_listed(shop):
    code, out, _ = invoke("lb", shop, "0.7312")
    assert code == 0
    assert noted_score(shop) == 0.7312
    assert "report" in out
    code, out, _ = invoke("runs", shop.parent, columns=200)
    assert code == 0
    assert "0.73120" in out
