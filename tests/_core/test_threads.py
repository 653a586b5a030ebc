from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path
from threading import Barrier, Event, Thread

import pytest
import torch

from fastrec._core.threads import _others, on_free_threads, run_parallel, shared_out


@pytest.fixture(autouse=True)
def four_threads(set_threads) -> None:
    set_threads(4)


@pytest.mark.parametrize(("workers", "each"), [(1, 4), (2, 2), (3, 1), (9, 1)])
def test_workers_share_torchs_threads(workers: int, each: int) -> None:
    barrier = Barrier(workers)  # every worker has one of the tasks

    def count(_: int) -> int:
        barrier.wait(timeout=120)
        return torch.get_num_threads()

    with shared_out(workers) as pool:
        assert list(pool.map(count, range(workers))) == [each] * workers
    assert torch.get_num_threads() == 4


@pytest.mark.parametrize("rows", [1, 1_000_000])
def test_results_are_in_the_order_of_what_was_given_and_an_error_gives_the_threads_back(rows: int) -> None:
    barrier = Barrier(2 if rows > 1 else 1)  # few rows: no thread is started, and nobody to wait for

    def square(x: int) -> int:
        barrier.wait(timeout=120)
        return x * x

    assert run_parallel(square, iter(range(6)), rows=rows) == [x * x for x in range(6)]
    assert torch.get_num_threads() == 4
    with pytest.raises(ZeroDivisionError):
        run_parallel(lambda x: 1 // x, [1, 0, 2], rows=rows)
    assert torch.get_num_threads() == 4


@pytest.mark.skipif(not Path("/proc/loadavg").exists(), reason="this system does not say what else runs")
def test_neighbours_leave_fewer_threads(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: range(os.cpu_count() or 1))
    cores, before = os.cpu_count() or 1, torch.get_num_threads()
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(cores + 1)]
    try:
        time.sleep(1)  # they start
        with on_free_threads(cores + 1):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == before
    finally:
        for process in busy:
            process.kill()
            process.wait()


@pytest.mark.skipif(not Path("/proc/loadavg").exists(), reason="this system does not say what else runs")
def test_own_threads_are_no_neighbours(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: range(os.cpu_count() or 1))  # else all are others'
    before, stop = _others(), Event()
    busy = [Thread(target=lambda: [hashlib.sha256(bytes(1 << 22)) for _ in iter(stop.is_set, True)]) for _ in range(16)]
    for thread in busy:
        thread.start()
    try:
        assert _others() < before + 8  # hashing leaves the interpreter free: all 16 run or wait for a core
    finally:
        stop.set()
        for thread in busy:
            thread.join()


@pytest.mark.parametrize(("others", "threads"), [(0, 3), (2, 2), (3, 1), (9, 1)])
def test_each_neighbour_takes_a_core_and_errors_give_the_threads_back(others, threads, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    monkeypatch.setattr("fastrec._core.threads._others", lambda: others)

    def fail() -> None:
        with on_free_threads(3):
            assert torch.get_num_threads() == threads
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert torch.get_num_threads() == 4
