"""An export that is loaded, and scores as it was written down by hand."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastrec.errors import MissingFileError, UnreadableFileError
from fastrec.serve import Scorer
from fastrec.serve.server.call import Refusal
from tests.serve.server.exports import by_hand, columns, write_export


def test_scores_are_those_of_plain_python(exports: dict[str, Path]) -> None:
    rows = columns(200)
    scores = Scorer(exports["binary"]).score(rows)
    assert scores.dtype == np.float64
    np.testing.assert_allclose(scores, by_hand(rows), atol=1e-6)


def test_integers_that_doubles_cannot_tell_apart_are_told_apart(exports: dict[str, Path]) -> None:
    rows = {**{k: v * 3 for k, v in columns(1).items()}, "user": [2**53, 2**53 + 1, 2**53 + 2]}
    scores = Scorer(exports["binary"]).score(rows)
    np.testing.assert_allclose(scores, by_hand(rows), atol=1e-6)
    assert len(set(scores.tolist())) == 3


def test_arrays_of_numpy_are_read_by_their_types(exports: dict[str, Path]) -> None:
    rows = columns(20)
    plain = {k: np.array(v, object) for k, v in rows.items()}
    plain["price"] = np.array([np.nan if v is None else v for v in rows["price"]])
    plain["mobile"] = np.array(rows["mobile"])
    plain["at"] = np.array(rows["at"], "M8[ms]")
    plain["seen"] = np.array(rows["seen"], "M8[s]")  # numpy's times are UTC
    scorer = Scorer(exports["binary"])
    np.testing.assert_array_equal(scorer.score(plain), scorer.score(rows))


def test_several_scores_a_row(exports: dict[str, Path]) -> None:
    rows = columns(5)
    scores = Scorer(exports["multiclass"]).score(rows)
    assert scores.shape == (5, 2)
    np.testing.assert_allclose(scores[:, 1], by_hand(rows), atol=1e-6)
    np.testing.assert_allclose(scores.sum(1), 1)


def test_no_rows_have_no_scores(exports: dict[str, Path]) -> None:
    empty: dict[str, list[Any]] = {name: [] for name in columns(1)}
    assert Scorer(exports["binary"]).score(empty).shape == (0,)
    assert Scorer(exports["multiclass"]).score(empty).shape == (0, 2)


def test_lists_are_told_apart_and_without_ids_all_rows_are_one(exports: dict[str, Path]) -> None:
    rows, scorer = columns(6), Scorer(exports["ranking"])
    alone = np.array(by_hand(rows))  # a score has 100 more for each row of its list
    np.testing.assert_allclose(scorer.score(rows), alone + 600, atol=1e-5)
    listed = scorer.score({**rows, "list_id": ["b", "a", "b", 7, "b", "a"]})
    np.testing.assert_allclose(listed, alone + 100 * np.array([3, 2, 3, 1, 3, 2]), atol=1e-5)


def test_columns_are_checked(exports: dict[str, Path]) -> None:
    scorer, rows = Scorer(exports["binary"]), columns(3)
    with pytest.raises(Refusal, match=r"column 'citty': the model has no such column. Is 'city' meant"):
        scorer.score({**rows, "citty": [1, 2, 3]})
    with pytest.raises(Refusal, match="column 'price': the column is missing"):
        scorer.score({k: v for k, v in rows.items() if k != "price"})
    with pytest.raises(Refusal, match=r"column 'city': its shape is \(3, 1\)"):
        scorer.score({**rows, "city": np.array([["a"]] * 3)})


def test_a_column_may_be_left_out_where_the_export_says_so(exports: dict[str, Path]) -> None:
    rows = {k: v for k, v in columns(4).items() if k not in ("ratio", "at", "seen")}
    np.testing.assert_allclose(Scorer(exports["binary"]).score(rows), by_hand(rows), atol=1e-6)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"format": 2}, "format is 2"),
        ({"model": {"file": "../model.onnx", "sha256": ""}}, "no plain name"),
        ({"model": {"file": "model.onnx", "sha256": "0" * 64}}, "SHA-256"),
        ({"inputs": []}, "does not fit"),
        ({"inputs": [{"name": "a", "type": "int32"}]}, "type 'int32'"),
        ({"inputs": [{"name": "a", "type": "int64"}] * 2}, "two inputs have one name"),
        ({"inputs": [{"name": "a", "type": "int64", "missing": "no"}]}, "missing value 'no'"),
        ({"inputs": [{"name": "a", "type": "int64", "required": False}]}, "left out, but has no missing value"),
        ({"inputs": [{"name": "a", "type": "string", "time": {"unit": "us"}}]}, "is a time of type"),
        ({"outputs": [{"name": "other", "type": "float64", "width": 1}]}, "no such output"),
        ({"outputs": []}, "no output at all"),
        ({"outputs": 3}, "its form is not that of an export"),
    ],
)
def test_an_export_that_does_not_fit_is_named(exports: dict[str, Path], tmp_path: Path, change: Any, says: str) -> None:
    folder = shutil.copytree(exports["binary"], tmp_path / "export")
    said = json.loads((folder / "serving.json").read_text())
    (folder / "serving.json").write_text(json.dumps({**said, **change}))
    with pytest.raises(UnreadableFileError, match=says):
        Scorer(folder)


def test_files_that_are_not_there_or_damaged(exports: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match=r"serving\.json"):
        Scorer(tmp_path)
    folder = shutil.copytree(exports["binary"], tmp_path / "export")
    (folder / "serving.json").write_bytes(b"{")
    with pytest.raises(UnreadableFileError, match="no JSON"):
        Scorer(folder)
    folder = shutil.copytree(exports["binary"], tmp_path / "other")
    with (folder / "model.onnx").open("ab") as file:
        file.write(b"x")
    with pytest.raises(UnreadableFileError, match="SHA-256"):
        Scorer(folder)
    (folder / "model.onnx").unlink()
    with pytest.raises(MissingFileError, match="graph"):
        Scorer(folder)


def test_a_graph_that_is_none(tmp_path: Path) -> None:
    import hashlib

    folder, raw = write_export(tmp_path / "export"), b"\x80\x04K\x01."  # a pickle, which nothing here reads
    (folder / "model.onnx").write_bytes(raw)
    said = json.loads((folder / "serving.json").read_text())
    said["model"]["sha256"] = hashlib.sha256(raw).hexdigest()
    (folder / "serving.json").write_text(json.dumps(said))
    with pytest.raises(UnreadableFileError, match="onnxruntime cannot load it"):
        Scorer(folder)
