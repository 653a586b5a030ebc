"""The census's recipe and simulator: what is in the files, what nothing may learn from, and a run on small ones."""

import json
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import roc_auc_score

from competitions.census.competition import RICH, TARGET, Census
from competitions.census.simulate import FILES, simulate
from fastrec.competition import check_submission, run_competition
from fastrec.competition.forms.lists import form_of_run
from fastrec.estimators import XGBModel


class Quick(Census):
    n_folds = 3

    def models(self, *, bs):
        trees = {"eta": 0.2, "max_depth": 3, "early_stopping_rounds": None, "nthread": 1}
        return [
            XGBModel("shallow", rounds=20, columns=["age", "weeks_worked", "education"], **trees),
            XGBModel("deep", rounds=25, **trees),
        ]


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("census") / "data"
    simulate(2_000, folder, seed=1)
    return folder


@pytest.fixture(scope="module")
def run(data, tmp_path_factory) -> Path:
    return run_competition(Quick(), data, tmp_path_factory.mktemp("runs") / "run", resume=False)


def test_the_stack_is_no_worse_than_its_parts_and_scored_by_the_test_files_own_target(run, data):
    scores = json.loads((run / "scores.json").read_text())
    assert scores["metric"] == "auc"
    assert scores["oof"]["stack"] >= max(scores["oof"][m] for m in ("shallow", "deep")) > 0.8
    made = pd.read_csv(run / "submission.csv")
    rich = pd.read_parquet(data / "test.parquet")[TARGET] == RICH
    assert scores["models"]["stack"] == pytest.approx(roc_auc_score(rich, made[TARGET]))
    assert str(check_submission(run / "submission.csv", data / "test.parquet", form_of_run(run))).startswith("ok")


def test_neither_the_surveys_weight_nor_a_test_rows_target_moves_a_prediction(run, data, tmp_path):
    for name in FILES:
        frame = pd.read_parquet(data / name)
        frame["unknown"] = frame["unknown"].iloc[::-1].to_numpy()
        if name == "test.parquet":
            frame[TARGET] = frame[TARGET].iloc[::-1].to_numpy()
        (tmp_path / "data").mkdir(exist_ok=True)
        frame.to_parquet(tmp_path / "data" / name)
    other = run_competition(Quick(), tmp_path / "data", tmp_path / "run", resume=False)
    assert (other / "submission.csv").read_bytes() == (run / "submission.csv").read_bytes()
    own, found = (json.loads((r / "scores.json").read_text()) for r in (run, other))
    assert own["oof"] == found["oof"]
    assert own["models"]["stack"] != found["models"]["stack"]


def test_a_combination_is_encoded_by_its_share_of_the_rich(data):
    train, test = (pd.read_parquet(data / name) for name in FILES)
    features = Census().features()
    features.fit(train)
    made = features.transform(test.drop(columns=TARGET))
    rich = (train[TARGET] == RICH).astype(float)
    keys = ["det_occ_code", "education"]
    totals = rich.groupby([train[k] for k in keys]).agg(["sum", "count"])
    share = (totals["sum"] + 30 * rich.mean()) / (totals["count"] + 30)
    expected = test[keys].merge(share.rename("share").reset_index(), on=keys, how="left").share.fillna(rich.mean())
    column = next(n for n in features.outputs if n.startswith("te_det_occ_code_x_education"))
    assert made[column].to_numpy() == pytest.approx(expected.to_numpy())
    assets = test.capital_gains + test.stock_dividends - test.capital_losses
    assert made["assets"].to_numpy() == pytest.approx(assets.to_numpy())


def test_simulated_files_have_the_form_of_the_real_ones(data, data_dir):
    if not (real_folder := data_dir / "census-income").is_dir():
        pytest.skip(f"no census-income in {data_dir}")
    for name in FILES:
        made, real = ({f.name: _kind(f.type) for f in pq.read_schema(folder / name)} for folder in (data, real_folder))
        real.pop("__index_level_0__", None)  # where pandas kept the rows' numbers in the publisher's file
        assert list(made.items()) == list(real.items())
    made, real = (set(pd.read_parquet(f / FILES[0], columns=[TARGET])[TARGET]) for f in (data, real_folder))
    assert made == real


def _kind(dtype) -> str:
    return "text" if "string" in str(dtype) or "dictionary" in str(dtype) else str(dtype)


def test_simulated_persons_are_as_the_law_says(tmp_path):
    done = simulate(20_000, tmp_path / "data", seed=0)
    train, test = (pd.read_parquet(done.out / name) for name in FILES)
    both = pd.concat([train, test])
    assert (len(train), len(test)) == (done.train, done.test) == (16_000, 4_000)
    rich = both[TARGET] == RICH
    assert rich.mean() == pytest.approx(done.share)
    assert not rich[both.age < 16].any()
    assert 0.02 < rich.mean() < 0.1
    assert rich[both.education.str.contains("Doctorate")].mean() > 5 * rich[both.education.str.contains("High")].mean()
    assert 0.9 < done.oracle_auc < 1
    assert both.loc[both.weeks_worked == 0, "det_occ_code"].eq(0).all()
