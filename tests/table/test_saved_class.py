"""Saved classes are found by name in a process that has imported none of them, and nothing else is."""

import subprocess
import sys

import pytest

from fastrec.errors import DataError
from fastrec.estimators import Estimator, XGBModel
from fastrec.sequences import VSTAN, SessionModel
from fastrec.table.state import class_named, known_classes, saved_name

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
    done = subprocess.run([sys.executable, "-c", FRESH], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


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
