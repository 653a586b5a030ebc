"""What exported trees say against scikit-learn's own predictions."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import ensemble, linear_model, tree

from fastrec.errors import DataError
from fastrec.serve.forest import forest_of_sklearn

ONE, FOREST = ("DecisionTree", "ExtraTree"), ("RandomForest", "ExtraTrees", "GradientBoosting")
SMALL = {
    getattr(home, f"{name}{task}"): few
    for names, home, few in (
        (ONE, tree, {}),
        (FOREST, ensemble, {"n_estimators": 9}),
        (("HistGradientBoosting",), ensemble, {"max_iter": 9}),
    )
    for name in names
    for task in ("Classifier", "Regressor")
}
TAKES_NO_NAN = (ensemble.GradientBoostingClassifier, ensemble.GradientBoostingRegressor)


def expected_of(model, rows: np.ndarray, targets: int) -> np.ndarray:
    if not hasattr(model, "classes_"):
        return model.predict(rows)[:, None]
    return model.predict_proba(rows)[:, -targets:]


@pytest.mark.parametrize("every_class", [False, True])
@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("kind", SMALL)
def test_every_kind(kind, n_classes, every_class, rows, amounts, margins, linked):
    rows = np.nan_to_num(rows) if kind in TAKES_NO_NAN else rows
    label = np.clip(amounts.round(), 0, n_classes - 1) if "Classifier" in kind.__name__ else amounts
    model = kind(random_state=0, **SMALL[kind]).fit(rows, label)
    forest = forest_of_sklearn(model, every_class=every_class)
    got = linked(forest, margins(forest, rows))
    if hasattr(model, "classes_"):
        assert got.shape[1] == (n_classes if every_class or n_classes > 2 else 1)
    np.testing.assert_allclose(got, expected_of(model, rows, forest.targets), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    "model",
    [
        ensemble.GradientBoostingClassifier(n_estimators=5, loss="exponential"),
        ensemble.GradientBoostingClassifier(n_estimators=5, init="zero"),
        ensemble.GradientBoostingRegressor(n_estimators=5, loss="huber"),
        ensemble.GradientBoostingRegressor(n_estimators=5, init="zero"),
        ensemble.HistGradientBoostingRegressor(max_iter=5, loss="poisson"),
        ensemble.HistGradientBoostingRegressor(max_iter=5, loss="gamma"),
        ensemble.HistGradientBoostingRegressor(max_iter=5, loss="absolute_error"),
        ensemble.HistGradientBoostingClassifier(max_iter=40, early_stopping=True, n_iter_no_change=2),
        tree.DecisionTreeRegressor(max_depth=None, min_samples_leaf=400),
    ],
    ids=str,
)
def test_losses_and_starts(model, rows, amounts, margins, linked):
    rows = np.nan_to_num(rows)
    label = amounts > 1 if "Classifier" in type(model).__name__ else abs(amounts) + 0.1
    model.fit(rows, label)
    forest = forest_of_sklearn(model)
    got = linked(forest, margins(forest, rows))
    np.testing.assert_allclose(got, expected_of(model, rows, 1), rtol=1e-12, atol=1e-14)


def test_histograms_take_rows_as_wide_as_they_were_trained_on(margins):
    rows = 1 + np.arange(200.0)[:, None] * 1e-12  # one and the same number in float32
    model = ensemble.HistGradientBoostingRegressor(max_iter=3, min_samples_leaf=5).fit(rows, np.arange(200.0))
    forest = forest_of_sklearn(model)
    assert forest.wide
    np.testing.assert_array_equal(margins(forest, rows)[:, 0], model.predict(rows))


def test_what_cannot_be_exported_is_named(rows, amounts):
    filled = np.nan_to_num(rows)
    with pytest.raises(DataError, match="AdaBoostRegressor has no trees"):
        forest_of_sklearn(ensemble.AdaBoostRegressor(n_estimators=2).fit(filled, amounts))
    with pytest.raises(DataError, match="several targets"):
        forest_of_sklearn(tree.DecisionTreeRegressor().fit(filled, np.stack([amounts, amounts], 1)))
    started = ensemble.GradientBoostingRegressor(n_estimators=2, init=linear_model.LinearRegression())
    with pytest.raises(DataError, match="LinearRegression"):
        forest_of_sklearn(started.fit(filled, amounts))
    by_set = ensemble.HistGradientBoostingRegressor(max_iter=2, categorical_features=[2])
    with pytest.raises(DataError, match="categories of its own"):
        forest_of_sklearn(by_set.fit(filled, amounts))
