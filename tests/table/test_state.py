from __future__ import annotations

import datetime as dt
import math
import sys

import numpy as np
import pyarrow as pa
import pytest
import scipy
import torch

from fastrec.errors import DataError, FastrecError, MissingFileError, UnreadableFileError, WriteError
from fastrec.estimators import Estimator, XGBModel
from fastrec.sequences import VSTAN, SessionModel
from fastrec.table import Keys, Vocab, load_state, save_state
from fastrec.table.state import Saved, class_named, known_classes, saved_name
from tests.fresh import run

ARRAYS = {
    "text": pa.array(["a", "", "🎉", "naïve", "a\x00b", "x" * 5000], pa.large_string()),
    "short text": pa.array(["a", "日本"], pa.string()),
    "no text": pa.array([], pa.large_string()),
    "bool": pa.array([True, False]),
    **{k: pa.array([0, 127], k) for k in ("int8", "uint8", "int16", "uint16", "int32", "uint32")},
    "int64": pa.array([-(2**63), 2**53 + 1, 2**63 - 1]),
    "uint64": pa.array([2**63, 2**64 - 1, 0], pa.uint64()),
    "float32": pa.array([1.5, -math.inf], pa.float32()),
    "float64": pa.array([0.1, math.inf, -0.0, 5e-324]),
    "no numbers": pa.array([], pa.int64()),
    "naive time": pa.array([dt.datetime(1969, 12, 31, 23), dt.datetime(2024, 2, 29)], pa.timestamp("us")),
    "zoned time": pa.array([0, 2**62], pa.int64()).cast(pa.timestamp("ns", "Asia/Kathmandu")),
    "seconds": pa.array([-1, 10**12], pa.int64()).cast(pa.timestamp("s", "+05:30")),
    "slice of text": pa.array(["left", "a", "🎉", "right"], pa.large_string()).slice(1, 2),
    "slice of bools": pa.array([True, False, True]).slice(1, 2),
}


@pytest.mark.parametrize("name", sorted(ARRAYS))
def test_keys_of_every_type_come_back(name, tmp_path):
    array = ARRAYS[name]
    save_state(tmp_path / "s", {"array": array, "keys": Keys((array, array), ("a", "🎉"))})
    again = load_state(tmp_path / "s")
    wanted = pa.large_string() if array.type == pa.string() else array.type
    assert again["array"].type == wanted
    assert again["array"].equals(array.cast(wanted))
    assert again["keys"].names == ("a", "🎉")
    assert all(c.equals(array.cast(wanted)) for c in again["keys"].columns)
    assert again["keys"].find_in(again["keys"]).tolist() == list(range(len(array)))


@pytest.mark.parametrize(
    "dtype", ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int8", "uint8", "bool"]
)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0), (2, 3)])
def test_tensors_come_back(dtype, shape, tmp_path):
    tensor = torch.randint(0, 2, shape).to(getattr(torch, dtype))
    turned = tensor.t() if tensor.dim() == 2 else tensor
    save_state(tmp_path / "s", {"t": tensor, "turned": turned})
    again = load_state(tmp_path / "s")
    assert again["t"].dtype == tensor.dtype
    assert torch.equal(again["t"], tensor)
    assert torch.equal(again["turned"], turned)


def test_the_structure_comes_back(tmp_path):
    state = {
        "a": [1, 2**70, 2.5, "x", "é\0", None, True, {"b": [[]], "c": {}}],
        "inf": [math.inf, -math.inf],
        "🎉 k.e.y": "é",
        "any text": {"$price": 1.0, "$tensor": [], "": None},
    }
    save_state(tmp_path / "s", state)
    assert load_state(tmp_path / "s") == state
    save_state(tmp_path / "s", {"nan": math.nan, "np": np.int64(3), "tuple": (1, 2)})
    again = load_state(tmp_path / "s")
    assert math.isnan(again["nan"])
    assert (again["np"], again["tuple"]) == (3, [1, 2])
    save_state(tmp_path / "s", {"one": np.array(2.5)})
    assert load_state(tmp_path / "s")["one"].shape == ()


def test_paths_that_read_the_same_and_tensors_that_share_memory_do_not_collide(tmp_path):
    state = {"a.b": torch.tensor([1]), "a": {"b": torch.tensor([2])}, "a.b.bytes": torch.tensor([3])}
    save_state(tmp_path / "s", state | {"c": {"a.b": pa.array(["x"], pa.large_string())}, "c.a": {"b": pa.array([7])}})
    again = load_state(tmp_path / "s")
    assert [again["a.b"].item(), again["a"]["b"].item(), again["a.b.bytes"].item()] == [1, 2, 3]
    assert again["c"]["a.b"].to_pylist() == ["x"]
    assert again["c.a"]["b"].to_pylist() == [7]
    whole = torch.arange(6.0)
    save_state(tmp_path / "s", {"a": whole[:3], "b": whole[1:4], "c": torch.ones(2, requires_grad=True)})
    again = load_state(tmp_path / "s")
    assert (again["a"].tolist(), again["b"].tolist()) == ([0, 1, 2], [1, 2, 3])
    again["a"][0] = 9
    assert whole[0] == 0


NO_STATE = [object(), {1, 2}, b"bytes", np.array(["x"]), pa.array([1, None]), pa.array([[1]]), torch.eye(2).to_sparse()]


@pytest.mark.parametrize("value", [*NO_STATE, {1: "a key that is no text"}], ids=lambda v: type(v).__name__)
def test_what_cannot_be_saved_is_named_and_leaves_the_old_state(value, tmp_path):
    save_state(tmp_path / "s", {"old": 1})
    with pytest.raises(FastrecError, match=r"state\.here"):
        save_state(tmp_path / "s", {"fine": torch.ones(1), "here": value})
    assert load_state(tmp_path / "s") == {"old": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["s"]


class Part(Saved):
    learned = ("sums",)

    def __init__(self, vocab, sums=None, *, parts=()):
        self.vocab, self.sums, self.parts = vocab, sums, list(parts)


def test_parts_come_back_and_what_stands_twice_is_one(tmp_path):
    vocab = Vocab(pa.array(["a", "b"], pa.large_string()), name="v")
    rows = scipy.sparse.csr_matrix(np.array([[0.0, 2.0], [3.0, 0.0]]))
    inner = Part(vocab, np.arange(6.0).reshape(2, 3))
    Part(vocab, {"rows": rows, "own": vocab}, parts=[inner, inner]).save(tmp_path / "s")
    again = Saved.load(tmp_path / "s")
    assert again.vocab is again.sums["own"] is again.parts[0].vocab
    assert again.parts[0] is again.parts[1]
    assert again.vocab.values.equals(vocab.values)
    np.testing.assert_array_equal(again.parts[0].sums, inner.sums)
    assert (again.sums["rows"] != rows).nnz == 0
    named = (tmp_path / "s" / "state.json").read_text().replace(':Part"', ':Other"')
    (tmp_path / "s" / "state.json").write_text(named)
    with pytest.raises(DataError, match="Other', which is not known here"):
        load_state(tmp_path / "s")


class Widths(Saved):
    learned, sums = ("sums",), torch.zeros(2)

    def _restore(self, state):
        super()._restore({**state, "sums": torch.zeros(2).copy_(state["sums"])} if "sums" in state else state)


@pytest.mark.parametrize("learned", [{}, [], {"sums": torch.zeros(3)}], ids=["nothing", "a list", "another shape"])
def test_a_part_that_lacks_what_it_learned_is_refused(learned, tmp_path):
    Widths().save(tmp_path / "s")
    state = load_state(tmp_path / "s")
    save_state(tmp_path / "s", {**state, "learned": learned})
    with pytest.raises(UnreadableFileError, match="no Widths that can be read"):
        Widths.load(tmp_path / "s")


def test_missing_files_are_named_and_what_is_no_state_is_not_replaced(tmp_path):
    with pytest.raises(MissingFileError, match="nowhere"):
        load_state(tmp_path / "nowhere")
    for name in ("state.json", "state.safetensors"):
        save_state(tmp_path / "s", {"t": torch.arange(100)})
        (tmp_path / "s" / name).unlink()
        with pytest.raises(MissingFileError, match=name.replace(".", r"\.")):
            load_state(tmp_path / "s")
    (tmp_path / "mine.csv").write_text("mine")
    for place, problem in ((tmp_path, "no state.json"), (tmp_path / "mine.csv", "this is a file")):
        with pytest.raises(WriteError, match=problem):
            save_state(place, {"a": 1})
    assert (tmp_path / "mine.csv").read_text() == "mine"


def test_damaged_files_a_reference_to_nothing_and_offsets_out_of_bounds_are_named(tmp_path):
    save_state(tmp_path / "s", {"t": torch.arange(100), "k": ARRAYS["text"]})
    for name in ("state.json", "state.safetensors"):
        path = tmp_path / "s" / name
        whole = path.read_bytes()
        for damaged in (b"", whole[: len(whole) // 2], b"\xff\xfe" * 50, whole.replace(b"state.t", b"state.l")):
            path.write_bytes(damaged)
            with pytest.raises(UnreadableFileError) as caught:
                load_state(tmp_path / "s")
            assert caught.value.file == str(tmp_path / "s")
            assert caught.value.remedy
        path.write_bytes(whole)
    save_state(tmp_path / "s", {"k": pa.array(["ab", "c"], pa.large_string())})
    whole = (tmp_path / "s" / "state.safetensors").read_bytes()
    offsets, beyond = (np.array([0, 2, end], "<i8").tobytes() for end in (3, 10**6))
    assert whole.count(offsets) == 1
    (tmp_path / "s" / "state.safetensors").write_bytes(whole.replace(offsets, beyond))
    with pytest.raises(UnreadableFileError):
        load_state(tmp_path / "s")
    rows = scipy.sparse.csr_matrix(np.eye(3))
    rows.indices[1] = 10**8  # SciPy's loops would read beyond its memory
    save_state(tmp_path / "s", {"rows": rows})
    with pytest.raises(UnreadableFileError):
        load_state(tmp_path / "s")


FRESH = """
import sys
from fastrec.table.state import class_named

def check(base, room, *names):
    assert f"fastrec.{room}" not in sys.modules
    for name in names:
        found = class_named(base, name)
        assert found.__name__ == name and found.__module__.startswith(f"fastrec.{room}."), found

from fastrec.sequences.base import SessionModel
check(SessionModel, "retrieval", "RankedCandidates", "HistoryFilter")
from fastrec.estimators.base import Estimator
check(Estimator, "stacking", "TreeBlend", "HillClimb")
assert "fastrec.competition" not in sys.modules
"""


def test_a_fresh_process_finds_the_classes_of_rooms_above():
    run(FRESH)


def test_every_class_of_ours_is_found_by_its_saved_name():
    for base in (Estimator, SessionModel):
        known = {n: c for n, c in known_classes(base).items() if ":" not in n}
        assert len(known) > 5
        assert all(class_named(base, saved_name(c)) is c for c in known.values())


class Mine(VSTAN):
    pass


@pytest.mark.parametrize("name", ["os", "best_items", "SessionFrame", "XGBModel", "os:path", "nowhere:X", "", None, 3])
def test_what_is_no_class_on_the_base_is_refused_and_not_imported(name):
    before = set(sys.modules)
    with pytest.raises(DataError, match="is not known here"):
        class_named(SessionModel, name)
    assert not {m for m in set(sys.modules) - before if not m.startswith("fastrec.")}


def test_a_users_class_stays_apart_from_ours_of_the_same_name():
    class VSTAN(Mine):
        pass

    assert saved_name(VSTAN) == f"{__name__}:{VSTAN.__qualname__}"
    assert class_named(SessionModel, saved_name(VSTAN)) is VSTAN
    assert class_named(SessionModel, "VSTAN") is Mine.__base__
    assert class_named(SessionModel, "elsewhere:Mine", Mine) is Mine  # its module has moved
    with pytest.raises(DataError, match="'XGBModel', which is no Mine"):
        class_named(Estimator, "XGBModel", type("Mine", (XGBModel,), {}))
