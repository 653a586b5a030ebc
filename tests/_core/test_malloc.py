from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from fastai.callback.core import Callback

from fastrec._core import memory
from fastrec.tabular import TabularFrame
from fastrec.training import rec_learner
from tests.training.helpers import quiet_fit

pytestmark = pytest.mark.skipif(memory._glibc() is None, reason="only glibc is told what to keep")

BLOCKS = """
import os, time, warnings
import numpy as np
from fastrec._core import limits, memory
from fastrec._core.memory import give_back, keep_memory, keeping_memory

# A tenth of the limits that hold for users: blocks above 32 MB have mappings of their own at any size.
limits.MEMORY_PAUSE, limits.MEMORY_MUCH, limits.MEMORY_LEFT = 60, 100 << 20, 50 << 20

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20

before = resident()

def use():
    blocks = [np.ones(5_000_000) for _ in range(4)]  # 160 MB
    del blocks

def show():
    print(resident() - before)

def call():
    with keeping_memory():
        use()
    show()
"""
KEPT, GIVEN_BACK, AT_ONCE = range(120, 200), range(100), range(30)


def process(code: str, setting: str = "") -> list[int]:
    """The numbers that a process of its own prints, with ``FASTREC_KEEP_MEMORY`` set so."""
    env = {**os.environ, "FASTREC_KEEP_MEMORY": setting}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    assert not done.stderr
    return [int(x) for x in done.stdout.split()]


def test_the_allocator_is_left_alone_unless_a_context_asks_for_what_is_done_inside() -> None:
    code = """
call()
assert not memory._changed; give_back()
with keep_memory():
    call()
with keeping_memory():
    assert not memory._users
show()"""
    outside, inside, after = process(BLOCKS + code)
    assert outside in AT_ONCE
    assert inside in KEPT
    assert after in GIVEN_BACK  # given back on leaving it
    assert set(process(BLOCKS + code, "0")) <= set(AT_ONCE)  # zero is stronger than a context


def test_freed_memory_is_kept_until_it_is_given_back_or_a_pause_is_over() -> None:
    code = """
call()
give_back(); show()

call()
limits.MEMORY_PAUSE = 0.2
with keeping_memory():
    pass
for _ in range(600):
    if resident() - before < 100:
        break
    time.sleep(0.1)
show()

call()
timer = memory._waiting
with keeping_memory():
    timer.join(30)
    assert not timer.is_alive()
    give_back()  # a call is under way
limits.MEMORY_PAUSE = 60
show()

with memory._lock, warnings.catch_warnings():
    warnings.simplefilter("ignore")
    child = os.fork()  # begins anew: no user, no timer, a free lock
    if not child:
        with keeping_memory():
            pass
        os._exit(7 if memory._users else 0)
assert os.waitpid(child, 0)[1] == 0"""
    first, given, second, paused, third, used = process(BLOCKS + code, "1")
    assert {first, second, third, used} <= set(KEPT)
    assert {given, paused} <= set(GIVEN_BACK)


@pytest.mark.host_only(reason="training on a GPU keeps no memory of the host")
def test_training_keeps_the_memory_of_its_batches(monkeypatch) -> None:
    class Look(Callback):
        def after_batch(self):
            self.learn.users = memory._users

    frame = {"x": np.arange(8.0), "y": np.arange(8.0)}
    learn = rec_learner(TabularFrame(frame, cont_names=["x"], y_names="y").dataloaders(8, device="cpu"), cbs=Look())
    for setting, users in (("", 0), ("1", 1)):
        monkeypatch.setenv("FASTREC_KEEP_MEMORY", setting)
        quiet_fit(learn, 1, by="fit")
        assert (learn.users, memory._users) == (users, 0)


GROWN = """
import numpy as np
from fastrec._core.memory import Growth, held

growth = Growth(100 << 20)
before = held()
blocks = [np.ones(12_500) for _ in range(4000)]  # 100 kB each: none has a mapping of its own
stay = blocks[::100]  # the heap's top cannot go down
del blocks
kept = held() - before
growth.check()
given = held() - before
more = [np.ones(12_500) for _ in range(500)]
del more
growth.check()  # has not grown by so much since
print(kept >> 20, given >> 20, (held() - before) >> 20)
"""


def test_free_memory_between_what_stays_is_given_back_when_the_process_has_grown():
    kept, given, later = process(GROWN)
    assert kept > 300
    assert given < 60
    assert 30 < later < 100
