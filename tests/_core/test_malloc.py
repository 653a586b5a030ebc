"""What is freed stays at hand between calls, and goes back to the system when it is asked for or after a pause."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from fastrec._core import memory

pytestmark = pytest.mark.skipif(memory._glibc() is None, reason="only glibc is told what to keep")

BLOCKS = """
import os, time
import numpy as np
from fastrec._core import memory
from fastrec._core.memory import give_back, keep_memory, keeping_memory

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20

memory.limits.MEMORY_PAUSE = {pause}
before = resident()
with {asking}keeping_memory():
    blocks = [np.ones(12_500_000) for _ in range(12)]
    del blocks
kept = resident() - before
{then}
print(kept, resident() - before)
"""


def process(code: str, setting: str | None) -> list[int]:
    """The numbers that a process of its own prints, with ``FASTREC_KEEP_MEMORY`` set so (None: not at all)."""
    env = {k: v for k, v in os.environ.items() if k != "FASTREC_KEEP_MEMORY"}
    env |= {} if setting is None else {"FASTREC_KEEP_MEMORY": setting}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120, env=env
    )
    assert not done.stderr
    return [int(x) for x in done.stdout.split()]


def run(then: str, pause: float = 60, setting: str | None = "1", asking: str = "") -> tuple[int, int]:
    """MB kept when a call is over, and those kept after something else was done."""
    kept, left = process(BLOCKS.format(then=then, pause=pause, asking=asking), setting)
    return kept, left


@pytest.mark.parametrize("setting", [None, "0", ""])
def test_the_allocator_is_left_alone_unless_somebody_asks(setting) -> None:
    kept, _ = run("assert not memory._changed; give_back()", setting=setting)
    assert kept < 50


def test_a_context_asks_for_what_is_done_inside() -> None:
    then = """
with keep_memory():
    with keeping_memory():
        blocks = [np.ones(12_500_000) for _ in range(12)]
        del blocks
    print(resident() - before)
with keeping_memory():
    assert not memory._users"""
    inside, outside, after = process(BLOCKS.format(then=then, pause=60, asking=""), None)
    assert outside < 50
    assert inside > 1000
    assert after < 600  # given back on leaving it


def test_zero_is_stronger_than_a_context() -> None:
    kept, _ = run("", setting="0", asking="keep_memory(), ")
    assert kept < 50


def test_freed_memory_is_kept_until_it_is_given_back() -> None:
    kept, left = run("give_back()")
    assert kept > 1000
    assert left < 600


def test_freed_memory_is_given_back_after_a_pause() -> None:
    then = """
memory.limits.MEMORY_PAUSE = 0.2
with keeping_memory():
    pass
for _ in range(600):
    if resident() - before < 600:
        break
    time.sleep(0.1)"""
    kept, left = run(then)
    assert kept > 1000
    assert left < 600


def test_a_call_under_way_keeps_its_memory() -> None:
    then = """
timer = memory._waiting
with keeping_memory():
    timer.join(30)
    assert not timer.is_alive()
    give_back()"""
    kept, left = run(then)
    assert kept > 1000
    assert left > 1000


def test_a_child_process_starts_anew() -> None:
    then = """
with memory._lock:
    child = os.fork()
    if not child:
        with keeping_memory():
            pass
        os._exit(7 if memory._users else 0)
assert os.waitpid(child, 0)[1] == 0"""
    run("import warnings\nwarnings.simplefilter('ignore')" + then)


def test_training_keeps_the_memory_of_its_batches() -> None:
    code = """
import os, warnings
warnings.simplefilter("ignore")
import numpy as np, pandas as pd
from fastai.callback.core import Callback
from fastrec._core import memory
from fastrec.training import rec_learner
from fastrec.tabular import TabularFrame

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20

class Much(Callback):
    def after_batch(self):
        before = resident()
        blocks = [np.ones(12_500_000) for _ in range(4)]
        del blocks
        self.learn.kept = resident() - before

frame = pd.DataFrame({"x": np.arange(8.0), "y": np.arange(8.0)})
learn = rec_learner(TabularFrame(frame, cont_names=["x"], y_names="y").dataloaders(8), cbs=Much())
with learn.no_bar(), learn.no_logging():
    learn.fit(1)
print(learn.kept, memory._users)
"""
    kept, users = process(code, "1")
    assert kept > 300
    assert users == 0
    kept, users = process(code, None)
    assert kept < 50
    assert users == 0


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
    kept, given, later = process(GROWN, None)
    assert kept > 300
    assert given < 60
    assert 30 < later < 100
