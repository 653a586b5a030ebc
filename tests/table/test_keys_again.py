"""Keys that are looked up among many again and again are found as at the first time."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec._core import limits
from fastrec.table import keys as module
from fastrec.table.keys import Keys

WORDS = st.text("abé\x00", max_size=3)
NUMBERS = st.integers(-30, 30) | st.sampled_from([2**62, -(2**63), 2**63 - 1])


@pytest.mark.parametrize("kinds", [("t",), ("n",), ("t", "n"), ("n", "n", "t")], ids="".join)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_second_look_finds_what_the_first_found(kinds: tuple[str, ...], data: st.DataObject) -> None:
    row = st.tuples(*(WORDS if k == "t" else NUMBERS for k in kinds))
    types = [pa.large_string() if k == "t" else pa.int64() for k in kinds]
    known = data.draw(st.lists(row, min_size=20, max_size=40, unique=True))
    keys = Keys(tuple(pa.array([r[i] for r in known], t) for i, t in enumerate(types)))
    for _ in range(5):
        asked = data.draw(st.lists(row, max_size=1)) + data.draw(st.lists(st.sampled_from(known), max_size=1))
        few = Keys(tuple(pa.array([r[i] for r in asked], t) for i, t in enumerate(types)))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(limits, "FEW_KEYS_IN", 1)
            found = few.find_in(keys).tolist()
        assert found == [known.index(r) if r in known else -1 for r in asked]


def test_two_values_of_one_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_hashes", lambda values: pa.compute.utf8_length(values).to_numpy().astype("int64"))
    known = Keys((pa.array([*"abcdefghijklmnopqrstuvwxyz", "aa", "bbb"]),))
    for _ in range(5):
        assert Keys((pa.array(["z"]),)).find_in(known).tolist() == [25]
        assert Keys((pa.array(["?"]),)).find_in(known).tolist() == [-1]
        assert Keys((pa.array(["aa"]),)).find_in(known).tolist() == [26]


def test_a_copy_for_another_process_has_no_hashes_of_this_one() -> None:
    known = Keys((pa.array([f"k{i}" for i in range(100)]),))
    for _ in range(4):
        Keys((pa.array(["k7"]),)).find_in(known)
    assert "_prepared" in vars(known)
    copy = pickle.loads(pickle.dumps(known))
    assert "_prepared" not in vars(copy)
    assert Keys((pa.array(["k7"]),)).find_in(copy).tolist() == [7]
