"""A process that is killed ends the others, with an error that says so."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path


def test_a_killed_rank_ends_the_other_with_a_named_error():
    with socket.socket() as s:
        s.bind(("localhost", 0))
        port = s.getsockname()[1]
    common = {
        **os.environ, "MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
    }  # fmt: skip
    script = Path(__file__).parent / "lost_script.py"
    ranks = [
        subprocess.Popen(
            [sys.executable, script], env={**common, "RANK": str(i), "LOCAL_RANK": str(i)},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for i in range(2)
    ]  # fmt: skip
    try:
        ended = [p.communicate(timeout=120) for p in ranks]  # no launcher looks after them: rank 0 finds out itself
    finally:
        for p in ranks:
            p.kill()
    assert ranks[1].returncode == -signal.SIGKILL, ended[1]
    assert ranks[0].returncode == 1, ended[0]
    assert "RankError after 1 epochs: rank 0 of 2 has lost another one while" in ended[0][0], ended[0]
    assert "was killed" in ended[0][0]
