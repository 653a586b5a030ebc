"""Fresh processes without the wait for imports: forks of one that knows the libraries and nothing of fastrec."""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from contextlib import suppress
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Their import takes 3 s of a processor, that of fastrec's own modules less than 1.
LIBRARIES = ["fastai.tabular.all", "pandas", "pyarrow.dataset", "pyarrow.parquet", "safetensors.torch", "torch"]

SERVER = """
import importlib, json, os, socket, sys
requests = socket.socket(fileno=int(sys.argv[1]))
for name in sys.argv[2:]:
    importlib.import_module(name)
assert not [m for m in sys.modules if m.startswith("fastrec")]
child = None
while child != 0:
    said, handed, _, _ = socket.recv_fds(requests, 1 << 16, 3)
    while said and not said.endswith(b"\\n"):
        said += requests.recv(1 << 16)
    if not said:
        os._exit(0)
    watcher = os.fork()
    if watcher:
        for number in handed:
            os.close(number)
        continue
    requests.close()
    out, err, status = handed
    child = os.fork()
    if child:
        os.close(out)
        os.close(err)
        os.write(status, b"%d\\n" % child)
        os.write(status, b"%d\\n" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        os._exit(0)
os.dup2(out, 1)
os.dup2(err, 2)
for number in handed:
    os.close(number)
asked = json.loads(said)
os.environ.clear()
os.environ.update(asked["env"])
os.chdir(asked["cwd"])
sys.argv[:] = ["-c", *asked["arguments"]]
sys.path[:] = asked["path"]
for name in [n for n in globals() if not n.startswith("__") and n != "asked"]:
    del globals()[name]
exec(compile(asked.pop("code"), "<string>", "exec"))
"""


@cache
def _server() -> socket.socket:
    ours, its = socket.socketpair()
    command = [sys.executable, "-c", SERVER, str(its.fileno()), *LIBRARIES]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    nothing = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    server = subprocess.Popen(command, pass_fds=[its.fileno()], env=env, cwd=ROOT, **nothing)
    its.close()

    @atexit.register
    def end() -> None:
        ours.close()
        server.wait()

    return ours


class Forked:
    """A running fork, with what is used of ``subprocess.Popen``; both outputs are pipes of text."""

    def __init__(self, asked: dict) -> None:
        (out, to_out), (err, to_err), (status, to_status) = (os.pipe() for _ in range(3))
        handed = [to_out, to_err, to_status]
        text = json.dumps(asked).encode() + b"\n"
        sent = socket.send_fds(_server(), [text], handed)
        _server().sendall(text[sent:])
        for number in handed:
            os.close(number)
        self.stdout, self.stderr, self._status = (os.fdopen(n) for n in (out, err, status))
        self.pid, self.returncode = int(self._status.readline()), None

    def __enter__(self) -> Forked:
        return self

    def __exit__(self, *error: object) -> None:
        self.stdout.close()
        self.stderr.close()
        self.wait()

    def send_signal(self, number: int) -> None:
        with suppress(ProcessLookupError):  # it may have ended, which is known a moment later
            os.kill(self.pid, number)

    def kill(self) -> None:
        if self.returncode is None:
            self.send_signal(signal.SIGKILL)

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self, timeout: float = 300) -> int:
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.pid, timeout)
            self.returncode = int(self._status.readline())
            self._status.close()
        return self.returncode

    def communicate(self, timeout: float = 300) -> tuple[str, str]:
        said = {}
        pipes = {"out": self.stdout, "err": self.stderr}
        readers = [threading.Thread(target=lambda n=n: said.update({n: pipes[n].read()})) for n in pipes]
        for reader in readers:
            reader.start()
        try:
            self.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        finally:
            for reader in readers:
                reader.join()
            self.stdout.close()
            self.stderr.close()
        return said["out"], said["err"]


def start(code: str, *arguments: object, cwd: Path = ROOT, **env: str) -> Forked | subprocess.Popen:
    """Start ``python -c code arguments`` with one thread, the repository on its path and ``env`` in its environment.

    The libraries of ``LIBRARIES`` are there already. Code that asks whether they are, that sets what they read when
    they are imported, or that looks at the memory of the process needs ``subprocess``.
    """
    code, words = textwrap.dedent(code), [str(a) for a in arguments]
    if env.get("FASTREC_DEVICE", os.environ.get("FASTREC_DEVICE", "")).startswith("standin"):
        code = f"from tests.device import standin\nstandin.load()\n{code}"  # torch of another process knows none
    path = ["", str(ROOT), *(p for p in sys.path if p and p != str(ROOT))]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(path[1:]), **env}
    if sys.platform.startswith("linux"):
        return Forked({"code": code, "arguments": words, "env": env, "cwd": str(cwd), "path": path})
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", code, *words], env=env, cwd=cwd, text=True, **pipes)


def run(code: str, *arguments: object, timeout: float = 300, cwd: Path = ROOT, **env: str) -> str:
    """Run ``python -c code arguments`` as ``start`` does, to a good end: its standard output."""
    with start(code, *arguments, cwd=cwd, **env) as child:
        out, err = child.communicate(timeout=timeout)
    assert child.returncode == 0, err
    return out
