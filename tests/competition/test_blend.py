"""Blends of runs and of files from elsewhere: rows aligned, scores as the files say, predictions by heart refused."""

import json
import shutil
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from lightgbm import LGBMClassifier, LGBMRegressor
from sklearn.datasets import make_friedman1
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import log_loss, roc_auc_score, root_mean_squared_error
from sklearn.model_selection import KFold, cross_val_predict
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.tree import DecisionTreeRegressor

from fastrec._core import limits
from fastrec._core.progress import Stages
from fastrec.competition import Competition, blend_runs, compare_runs, list_runs, run_competition
from fastrec.competition.blend import seen_share
from fastrec.competition.kept_rows import KeptRows
from fastrec.competition.predict import SavedRun
from fastrec.errors import (
    DataError,
    DataWarning,
    FastrecError,
    LeakageError,
    MissingColumnError,
    SubmissionError,
    UnreadableFileError,
)
from fastrec.estimators import LGBMModel, SKModel, XGBModel
from tests.files import write_csv

N, M = 500, 150
QUIET = {"stages": Stages(quiet=True)}


def frame(n: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    a, b, c = rng.normal(size=(3, n))
    signal = a + np.sin(2 * b) + 0.5 * c + rng.normal(size=n)
    made = {"id": [f"{i:05d}" for i in rng.permutation(n) + 10_000 * seed], "house": rng.integers(0, n // 3, n)}
    made |= {"day": np.arange(n), "a": a, "b": b, "c": c, "binary": signal > 0.5, "regression": np.exp(signal / 2)}
    return pd.DataFrame({**made, "multiclass": np.array(["low", "mid", "top"])[np.digitize(signal, [-0.5, 0.8])]})


TRAIN, TEST = frame(N, 1), frame(M, 2)


class Recipe(Competition):
    ids = ("id",)
    drop = ("house", "day")

    def __init__(self, task: str, kind: str, **attributes) -> None:
        self.name, self.task, self.target, self.kind = task, task, task, kind
        vars(self).update(attributes)

    def models(self, *, bs):
        if self.kind == "trees":
            return [XGBModel("deep", rounds=20, max_depth=4, eta=0.3, early_stopping_rounds=None, nthread=1)]
        return [SKModel("linear", LogisticRegression() if self.task != "regression" else Ridge())]


def run_of(folder: Path, task: str, kind: str, **attributes) -> Path:
    data = folder / "data" / task
    if not data.exists():
        columns = ["id", "house", "day", "a", "b", "c"]
        write_csv(data, train=TRAIN[[*columns, task]], test=TEST[columns], truth=TEST[["id", task]])
    return run_competition(Recipe(task, kind, **attributes), data, folder / f"{task}_{kind}", **QUIET)


CASES = {"binary": {"fold_key": "house"}, "multiclass": {}, "regression": {"time": "day", "scale": "log"}}


@pytest.fixture(scope="module", autouse=True)
def unexplained():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "EXPLAINED_SECONDS", 0.0)
        yield


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, list[Path]]:
    folder = tmp_path_factory.mktemp("runs")
    return {task: [run_of(folder, task, k, **about) for k in ("linear", "trees")] for task, about in CASES.items()}


def read(run: Path, split: str, model: str = "stack") -> pd.DataFrame:
    rows = pd.read_parquet(run / "rows.parquet")
    said = pd.read_parquet(run / split / f"{model}.parquet").filter(like="prediction")
    return pd.concat([rows[rows.split == split].reset_index(drop=True), said], axis=1)


def score(rows: pd.DataFrame, task: str) -> float:
    rows = rows.dropna(subset=[c for c in rows if c.startswith("prediction")])
    y, p = rows[f"label_{task}"], rows.filter(like="prediction").to_numpy()
    if task == "binary":
        return roc_auc_score(y, p[:, 0])
    return log_loss(y, p) if task == "multiclass" else root_mean_squared_error(y, p[:, 0])


@pytest.mark.parametrize("task", CASES)
def test_a_blend_is_a_run_whose_scores_are_those_of_its_files(runs, task, tmp_path):
    made = blend_runs(runs[task], tmp_path / "blend", **QUIET)
    scores = json.loads((made / "scores.json").read_text())
    names = [p.name for p in runs[task]]
    assert list(scores["oof"]) == [*names, "stack"]
    for split, of in (("oof", "oof"), ("test", "models")):
        for model in (*names, "stack"):
            assert scores[of][model] == pytest.approx(score(read(made, split, model), task))
        for run in runs[task]:  # the parts are the runs' own predictions
            pd.testing.assert_frame_equal(read(made, split, run.name), read(run, split))
    # The usual blend, unless another is surely better: no worse than the better run by more than chance.
    _, low, high = scores["stack_over_best"]
    assert high >= 0 if scores["greater_is_better"] else low <= 0
    assert scores["stack_choice"]["chosen"] in scores["stack_tried"]
    # What runs are good for, blends are.
    with pytest.raises(DataError, match="a blend of runs holds predictions and no models"):
        KeptRows(made)  # of try, select and tune
    listed = {s.name: s.score for s in list_runs(tmp_path)}
    assert listed == {"blend": pytest.approx(scores["oof"]["stack"])}
    whole = compare_runs(made, runs[task][0])[0]
    assert (whole.a, whole.rows) == (pytest.approx(scores["oof"]["stack"]), read(made, "oof").iloc[:, -1].count())
    submission, own = (pd.read_csv(r / "submission.csv", dtype={"id": str}) for r in (made, runs[task][0]))
    assert submission.columns.tolist() == own.columns.tolist()
    assert submission.id.tolist() == TEST.id.tolist()
    if task != "multiclass":
        np.testing.assert_allclose(submission[task], read(made, "test").prediction)
    assert (made / "report.html").stat().st_size > 1000
    with pytest.raises(DataError, match="its own test rows only"):
        SavedRun(made)


def test_a_blend_of_blends_and_a_run_of_other_order(runs, tmp_path):
    turned = shutil.copytree(runs["binary"][1], tmp_path / "turned")
    order = np.random.default_rng(0).permutation(N)
    rows = pd.read_parquet(turned / "rows.parquet")
    rows = pd.concat([rows[:N].iloc[order], rows[N:]], ignore_index=True)
    rows.to_parquet(turned / "rows.parquet")
    pd.read_parquet(turned / "oof" / "stack.parquet").iloc[order].to_parquet(turned / "oof" / "stack.parquet")
    first = blend_runs([runs["binary"][0], turned], tmp_path / "first", **QUIET)
    pd.testing.assert_frame_equal(read(first, "oof", "turned"), read(runs["binary"][1], "oof"))
    second = blend_runs([first, runs["binary"][1]], tmp_path / "second", **QUIET)
    assert json.loads((second / "config.json").read_text())["models"] == ["first", "binary_trees"]


def features(rows: pd.DataFrame) -> np.ndarray:
    return rows[["a", "b", "c"]].to_numpy()


def file_of(run: Path, model, *, by_heart: bool = False) -> pd.DataFrame:
    """A file from elsewhere: scikit-learn's predictions on the run's folds, or by heart."""
    rows, x, y = read(run, "oof"), features(TRAIN), TRAIN.binary
    oof, test = np.zeros(N), np.zeros(M)
    for k in range(5):
        there = (rows.fold == k).to_numpy() | by_heart
        learned = ~there | by_heart
        model.fit(x[learned], y[learned])
        oof[there], test = model.predict_proba(x[there])[:, 1], test + model.predict_proba(features(TEST))[:, 1] / 5
    folds = [*("edcba"[k] for k in rows.fold), *[None] * M]
    return pd.DataFrame({"id": [*TRAIN.id, *TEST.id], "p": [*oof, *test], "fold": folds})


@pytest.fixture(scope="module")
def theirs(runs) -> pd.DataFrame:
    return file_of(runs["binary"][0], RandomForestClassifier(60, min_samples_leaf=5, random_state=0))


@pytest.mark.parametrize("kind", ["csv", "parquet", "split", "floats"])
def test_a_files_rows_are_found_in_any_order(runs, theirs, tmp_path, kind):
    shuffled = theirs.sample(frac=1, random_state=3).drop(columns="fold" if kind == "parquet" else [])
    if kind == "split":
        shuffled["split"] = np.where(shuffled.id.isin(TRAIN.id), "train", "test")
    if kind == "floats":  # as pandas has integers beside a missing value
        shuffled["id"] = shuffled.id.astype(float)
    path = tmp_path / ("theirs.parquet" if kind == "parquet" else "theirs.csv")
    shuffled.to_parquet(path) if kind == "parquet" else shuffled.to_csv(path, index=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # nothing proves that the file without folds is out of fold
        made = blend_runs([runs["binary"][0], path], tmp_path / "blend", **QUIET)
    scores = json.loads((made / "scores.json").read_text())
    assert scores["oof"]["theirs"] == pytest.approx(roc_auc_score(TRAIN.binary, theirs.p[:N]))
    assert scores["models"]["theirs"] == pytest.approx(roc_auc_score(TEST.binary, theirs.p[N:]))
    np.testing.assert_allclose(read(made, "oof", "theirs").prediction, theirs.p[:N])
    assert json.loads((made / "config.json").read_text())["blend"]["theirs"] == str(path)
    # It is better than the linear run alone, and the blend takes it.
    assert scores["oof"]["stack"] > scores["oof"]["binary_linear"]


WRONG = {
    "an id is missing": (lambda f: f.iloc[3:], SubmissionError, "training row of id .* is not there \\(3 are left out"),
    "test rows": (lambda f: f[:N], SubmissionError, f"test row of id .* is not there \\({M} are left out"),
    "an id twice": (lambda f: pd.concat([f, f.iloc[[4]]]), SubmissionError, f"row {N + M}: id .* earlier row too"),
    "an id of nobody": (lambda f: f.assign(id=["x", *f.id[1:]]), SubmissionError, "'id', row 0: id x is no row of"),
    "no number": (lambda f: f.assign(p=[*f.p[:-1], None]), SubmissionError, f"column 'p', row {N + M - 1}: .*number"),
    "no probability": (lambda f: f.assign(p=f.p - 0.9), SubmissionError, "column 'p', row 0: .* is no probability"),
    "two columns": (lambda f: f.assign(q=f.p), DataError, r"2 columns of predictions \(p, q\), not 1"),
    "no prediction": (lambda f: f[["id"]], DataError, "0 columns of predictions"),
    "no ids": (lambda f: f[["p"]], MissingColumnError, "column 'id'"),
    "other folds": (
        lambda f: f.assign(fold=["a" if f.fold[0] != "a" else "b", *f.fold[1:]]), DataError, "'fold', row 0: .* fold",
    ),
    "one fold": (lambda f: f.assign(fold="a"), DataError, "column 'fold'"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_file_is_named(runs, theirs, tmp_path, case):
    change, kind, said = WRONG[case]
    change(theirs).to_csv(tmp_path / "theirs.csv", index=False)
    with pytest.raises(kind, match=said) as caught:
        blend_runs([runs["binary"][0], tmp_path / "theirs.csv"], tmp_path / "blend", **QUIET)
    assert "theirs.csv" in caught.value.file
    assert caught.value.args[0].count(". ") == 1  # a remedy
    assert not (tmp_path / "blend").exists()


def test_classes_have_a_column_each(runs, tmp_path):
    run, path = runs["multiclass"][0], tmp_path / "theirs.csv"
    rows = pd.concat([read(run, "oof"), read(run, "test")], ignore_index=True)
    names = ["prediction_low", "prediction_mid", "prediction_top"]
    file = rows[["id", *names]].rename(columns={n: n.removeprefix("prediction_") for n in names})
    file = file[["id", "top", "low", "mid"]]
    file.round(4).to_csv(path, index=False)
    made = blend_runs([run, path], tmp_path / "blend", **QUIET)
    np.testing.assert_allclose(read(made, "oof", "theirs")[names], rows[names][:N], atol=2e-4)
    for change, said in (
        (lambda f: f.rename(columns={"top": "high"}), "column 'high'.*3 columns.*Give id, low, mid, top"),
        (lambda f: f.drop(columns="top"), "2 columns of predictions"),
        (lambda f: f.assign(top=f.top / 2), "column 'low, mid, top', row 0: the probabilities do not sum to 1"),
    ):
        change(file).to_csv(path, index=False)
        with pytest.raises(FastrecError, match=said):
            blend_runs([run, path], tmp_path / "blend", **QUIET)
    file[["low"]].rename_axis("id").to_parquet(tmp_path / "theirs.parquet")  # numbers in order are no column then
    with pytest.raises(MissingColumnError, match=r"'id': it has low.*reset_index"):
        blend_runs([run, tmp_path / "theirs.parquet"], tmp_path / "blend", **QUIET)


@pytest.mark.parametrize("case", ["csv", "csv NA", "csv without", "text"])
def test_rows_that_no_fold_scores_may_be_empty(runs, tmp_path, case):
    """Folds by time score no row of the first days: a file lacks them, or says NaN there and nowhere else."""
    run, path = runs["regression"][1], tmp_path / ("theirs.csv" if "csv" in case else "theirs.parquet")
    rows = pd.concat([read(run, "oof"), read(run, "test")], ignore_index=True)
    file = rows[["id", "prediction", "fold"]].sample(frac=1, random_state=1, ignore_index=True)
    file["prediction"] += 0.01
    nobody = file.prediction.isna().to_numpy()
    assert 0 < nobody.sum() < N
    assert not nobody[file.id.isin(TEST.id)].any()

    def write(made: pd.DataFrame) -> None:
        if case == "text":
            made = made.assign(prediction=[None if v != v else str(v) for v in made.prediction])
        if "csv" in case:
            made.to_csv(path, index=False, na_rep="NA" if case == "csv NA" else "")
        else:
            made.to_parquet(path)

    write(file[~nobody] if case == "csv without" else file)
    made = blend_runs([runs["regression"][0], path], tmp_path / "blend", **QUIET)
    np.testing.assert_allclose(read(made, "oof", "theirs").prediction, rows.prediction[:N] + 0.01)
    for rows_of in (TRAIN.id, TEST.id):
        at = int(np.flatnonzero(~nobody & file.id.isin(rows_of))[3])
        write(file.assign(prediction=file.prediction.where(file.index != at)))
        said = rf"theirs.*, column 'prediction', row {at}: .* is no finite number. Write a"
        with pytest.raises(SubmissionError, match=said):
            blend_runs([runs["regression"][0], path], tmp_path / "again", **QUIET)
    write(file.assign(prediction=-file.prediction))
    with pytest.raises(SubmissionError, match="the target has no such amounts"):  # the run learns logarithms
        blend_runs([runs["regression"][0], path], tmp_path / "again", **QUIET)
    if case == "text":  # NaN is missing, other text that is no number is wrong in any row
        write(file.assign(prediction=file.prediction.astype(object).where(file.index != nobody.argmax(), "x")))
        with pytest.raises(SubmissionError, match=rf"row {nobody.argmax()}: 'x' is no finite number"):
            blend_runs([runs["regression"][0], path], tmp_path / "again", **QUIET)


def test_runs_that_do_not_go_together_are_refused(runs, tmp_path):
    (one, two), out = runs["binary"], tmp_path / "blend"
    other = run_of(tmp_path / "other", "binary", "trees")  # at random, not by house
    nameless = run_of(tmp_path / "nameless", "binary", "linear", ids=(), fold_key="house", drop=("id", "house", "day"))
    for name in ("stack", "hill_climb"):
        (tmp_path / f"{name}.csv").write_text("id,p\n")
    out.mkdir()
    for parts, said in (
        ([one], "two predictions or more"),
        ([tmp_path / "stack.csv", tmp_path / "stack.csv"], "one of them a run's"),
        ([one, tmp_path / "nobody"], "no such run or file"),
        ([one, out], "the blend would take the place of one of its parts"),
        ([one, one], "another part, or a way to blend them, has the name"),
        ([one, tmp_path / "stack.csv"], "another part, or a way to blend them, has the name"),
        ([one, runs["multiclass"][0]], "of a multiclass task, and binary_linear of a binary task"),
        ([one, other], "column 'fold', row .*same folds"),
        ([nameless, tmp_path / "hill_climb.csv"], "another part, or a way to blend them, has the name"),
        ([one, tmp_path], "there is no such file"),
    ):
        with pytest.raises(FastrecError, match=said):
            blend_runs(parts, out, **QUIET)
    (tmp_path / "theirs.csv").write_text("id,p\n")
    with pytest.raises(DataError, match=r"names no ids.*ids = "):
        blend_runs([nameless, tmp_path / "theirs.csv"], out, **QUIET)
    # Two runs without ids stand in one order.
    made = blend_runs([nameless, two], out, **QUIET)
    np.testing.assert_allclose(read(made, "oof", "binary_trees").prediction, read(two, "oof").prediction)
    # The same rows, of another target
    changed = shutil.copytree(two, tmp_path / "changed")
    rows = pd.read_parquet(changed / "rows.parquet")
    rows.loc[7, "label_binary"] = 1 - rows.loc[7, "label_binary"]
    rows.to_parquet(changed / "rows.parquet")
    with pytest.raises(DataError, match="row 7: its rows, or their targets, are others"):
        blend_runs([one, changed], out, **QUIET)
    state = shutil.copytree(one, tmp_path / "old") / "target" / "state.json"
    state.write_text(state.read_text().replace('"given"', '"gave"'))
    for read_it in (SavedRun, lambda old: blend_runs([old, two], out, **QUIET)):
        with pytest.raises(UnreadableFileError, match=r"old/target': it holds no Target that can be read .*'given'"):
            read_it(tmp_path / "old")
    own = shutil.copytree(one, tmp_path / "own")
    config = json.loads((own / "config.json").read_text())
    (own / "config.json").write_text(json.dumps(config | {"metric": "of_mine"}))
    with pytest.raises(DataError, match=r"own.*its metric 'of_mine' is of its recipe's own"):
        blend_runs([own, two], out, **QUIET)


@pytest.mark.parametrize("model", [LGBMClassifier(n_jobs=1, verbose=-1), KNeighborsClassifier(1)])
def test_predictions_by_heart_are_refused(runs, tmp_path, model):
    honest, by_heart = (file_of(runs["binary"][0], model, by_heart=b) for b in (False, True))
    honest.to_csv(tmp_path / "honest.csv", index=False)
    blend_runs([*runs["binary"], tmp_path / "honest.csv"], tmp_path / "blend", **QUIET)
    before = (tmp_path / "blend" / "scores.json").read_bytes()
    for name, file in (("claimed", by_heart.assign(fold=honest.fold)), ("plain", by_heart.drop(columns="fold"))):
        file.to_csv(tmp_path / f"{name}.csv", index=False)
        with pytest.raises(LeakageError, match=f"{name}.csv': .* a model that has seen these rows.*out-of-fold"):
            blend_runs([*runs["binary"], tmp_path / f"{name}.csv"], tmp_path / "blend", **QUIET)
    assert (tmp_path / "blend" / "scores.json").read_bytes() == before


def test_good_predictions_without_folds_are_pointed_at(runs, tmp_path):
    """Five neighbours by heart cannot be told from a model that knows more than the runs: a word, not an error."""
    by_heart = file_of(runs["binary"][1], KNeighborsClassifier(5), by_heart=True).drop(columns="fold")
    by_heart.to_csv(tmp_path / "plain.csv", index=False)
    with pytest.warns(DataWarning, match=r"plain.csv: its training predictions explain \d+% of what the runs leave"):
        blend_runs([*runs["binary"], tmp_path / "plain.csv"], tmp_path / "blend", **QUIET)


def test_reversed_predictions_are_pointed_at(runs, theirs, tmp_path):
    theirs.assign(p=1 - theirs.p).to_csv(tmp_path / "turned.csv", index=False)
    with pytest.warns(DataWarning, match=r"turned\.csv: .* \(correlation -0\.\d\d\)\. Is a higher number better"):
        blend_runs([*runs["binary"], tmp_path / "turned.csv"], tmp_path / "blend", **QUIET)
    # One that contradicts the first run, and not the label, has seen something else.
    odd = pd.concat([TRAIN, TEST]).set_index("id").loc[theirs.id]
    odd = 1 / (1 + np.exp(0.65 * odd.a - 2 * np.sin(2 * odd.b)))
    theirs.assign(p=odd.to_numpy()).to_csv(tmp_path / "odd.csv", index=False)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        blend_runs([*runs["binary"], tmp_path / "odd.csv"], tmp_path / "blend", **QUIET)
    assert not any("higher number" in str(w.message) for w in told)


def test_no_honest_model_is_refused_and_most_by_heart_are():
    """Fifty honest models and their folds, on ten problems."""
    refused = {False: 0, True: 0}
    folds = KFold(3, shuffle=True, random_state=1)
    for seed in range(10):
        n, noise = (120, 200)[seed % 2], (2.0, 5.0, 8.0)[seed % 3]
        x, y = make_friedman1(n + 100, n_features=8, noise=noise, random_state=seed)
        a, b, known = x[:n], x[n:], y[:n]

        def said(model, a=a, b=b, known=known):
            """Predict the training rows out of fold and by heart, and the test rows."""
            oof = cross_val_predict(model, a, known, cv=folds)
            return [v[:, None] for v in (oof, model.fit(a, known).predict(a), model.predict(b))]

        honest = [said(m) for m in (Ridge(), RandomForestRegressor(8, min_samples_leaf=15, random_state=0))]
        near = [KNeighborsRegressor(1), KNeighborsRegressor(7)]
        trees = [k(random_state=0) for k in (DecisionTreeRegressor, RandomForestRegressor)]
        trees.append(LGBMRegressor(n_estimators=40, n_jobs=1, verbose=-1))
        for oof, heart, test in map(said, [*near, *trees]):
            for by_heart, own in ((False, oof), (True, heart)):
                train = [own, *(h[0] for h in honest)]
                share, ratio = seen_share(train, [test, *(h[2] for h in honest)], known[:, None])
                refused[by_heart] += share > min(ratio**2, limits.SEEN_SHARE)
    assert refused[False] == 0
    assert refused[True] >= 35  # a whole tree, one neighbour, a forest and boosting: 40


class Shop(Competition):
    name, task = "shop", "ranking"
    list_column, item, label = "search", "product", "bought"
    fold_key, counted, touched, n_folds = "user", "late", "seen", 3

    def __init__(self, depth: int) -> None:
        self.depth = depth

    def models(self, *, bs):
        return [LGBMModel("lgbm", rounds=8, num_leaves=self.depth, early_stopping_rounds=None)]


def candidates(seed: int, lists: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    made = pd.DataFrame({"search": np.repeat(np.arange(lists), rng.integers(3, 7, lists)) + 1000 * seed})
    made["product"], made["user"] = made.groupby("search").cumcount() + 5, made["search"] // 3
    noise = {"price": rng.normal(size=len(made)), "seen": rng.random(len(made))}
    made = made.assign(late=made["search"] % 4 > 0, **noise)
    made["seen"] = (made["seen"] < 0.2).astype(int)
    best = (2 * made["price"] + rng.gumbel(size=len(made))).groupby(made["search"]).idxmax()
    return made.assign(bought=made.index.isin(best).astype(int))


def mrr(rows: pd.DataFrame) -> float:
    """By pandas; ties stand as they are shown."""
    place = rows.groupby("search")["score"].rank(ascending=False, method="first")
    return float((1 / place[rows["bought"] > 0]).mean())


def test_rankings_are_blended_too(tmp_path):
    train, test = candidates(1, 150), candidates(2, 40)
    data = write_csv(tmp_path / "data", train=train, test=test.drop(columns="bought"))
    parts = [run_competition(Shop(d), data, tmp_path / f"leaves{d}", **QUIET) for d in (3, 7)]
    noisy = {s: pd.read_parquet(parts[0] / s / "stack.parquet") for s in ("oof", "test")}
    file = pd.concat(noisy.values())[["search", "product", "score"]].sample(frac=1, random_state=0)
    file.assign(score=file.score + 7.0).to_csv(tmp_path / "theirs.csv", index=False)
    made = blend_runs([*parts, tmp_path / "theirs.csv"], tmp_path / "blend", **QUIET)
    scores = json.loads((made / "scores.json").read_text())
    late = train.loc[train.late, "search"]
    for model in ("leaves3", "leaves7", "theirs", "stack"):
        oof = pd.read_parquet(made / "oof" / f"{model}.parquet")
        assert scores["oof"][model] == pytest.approx(mrr(oof[oof.search.isin(late)]))
    assert scores["oof"]["theirs"] == pytest.approx(scores["oof"]["leaves3"])
    whole, *parts_of = compare_runs(made, parts[0], by="touched")
    assert whole.a == pytest.approx(scores["oof"]["stack"])
    assert [c.segment for c in parts_of] == ["touched=false", "touched=true"]
    lists, own = (pd.read_parquet(r / "lists.parquet") for r in (made, parts[0]))
    names = ["split", "fold_key", "length", "touched"]
    pd.testing.assert_frame_equal(lists[names], own[names])
    submission, own = (pd.read_csv(r / "submission.csv") for r in (made, parts[0]))
    pd.testing.assert_frame_equal(submission.iloc[:, :2], own.iloc[:, :2])
    np.testing.assert_allclose(submission.score, pd.read_parquet(made / "test" / "stack.parquet").score)
    file.assign(score=-file.score).to_csv(tmp_path / "turned.csv", index=False)
    with pytest.warns(DataWarning, match=r"turned\.csv: .* \(correlation -0\."):
        blend_runs([parts[0], tmp_path / "turned.csv"], tmp_path / "again", **QUIET)
    # The answers by heart, and what a model would say of the test.
    heart = pd.concat([train.assign(score=3.0 * train.bought), noisy["test"]])[["search", "product", "score"]]
    heart.to_csv(tmp_path / "heart.csv", index=False)
    with pytest.raises(LeakageError, match=r"heart\.csv"):
        blend_runs([*parts, tmp_path / "heart.csv"], tmp_path / "blend", **QUIET)
