"""The stand-in accelerator ``standin``: build it, give it to torch, and count what goes to the host.

A device for tests where there is no GPU: its memory is the host's (``standin.cpp``). It refuses what CUDA refuses,
and it counts what CUDA would have to wait for, with the line of fastrec that asked.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, ModuleType

import torch
from torch.utils import cpp_extension

NAME = "standin"
SOURCE = Path(__file__).with_suffix(".cpp")
PACKAGE = str(Path(__file__).resolve().parents[2] / "fastrec") + os.sep
KINDS = ("to host", "to device", "scalar")
_Listener = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_int64)
_loaded: list[ctypes.CDLL] = []


def missing() -> str | None:
    """Return the reason why the stand-in cannot be built here; None: it can."""
    return None if _compiler() else "the stand-in accelerator needs a C++ compiler (g++ or $CXX)"


def _compiler() -> str | None:
    return shutil.which(os.environ.get("CXX") or "g++")


def build() -> Path:
    """Compile the stand-in, once per machine, source and version of torch; return the file."""
    text = SOURCE.read_bytes() + f"{torch.__version__} {os.uname().machine}".encode()
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fastrec-tests"
    target = folder / f"standin_{hashlib.sha256(text).hexdigest()[:16]}.so"
    if target.is_file():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    headers = cpp_extension.include_paths()
    libraries = cpp_extension.library_paths()
    with tempfile.TemporaryDirectory(dir=folder) as made:  # whole or not at all: several processes may build it
        out = Path(made) / "standin.so"
        command = [_compiler(), "-O0", "-w", "-std=c++20", "-shared", "-fPIC", str(SOURCE), "-o", str(out)]
        command += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]
        command += [flag for path in headers for flag in ("-isystem", path)]
        command += [flag for path in libraries for flag in (f"-L{path}", f"-Wl,-rpath,{path}")]
        command += ["-lc10", "-ltorch_cpu", "-ltorch"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"the stand-in accelerator does not compile:\n{done.stderr[-4000:]}")
        out.replace(target)
    return target


def load() -> ctypes.CDLL:
    """Build the stand-in where that has not been done, and make it torch's accelerator in this process."""
    if not _loaded:
        built = ctypes.CDLL(str(build()))
        built.standin_begin()
        torch.utils.rename_privateuse1_backend(NAME)
        torch._register_device_module(NAME, _device_module())
        torch.utils.generate_methods_for_privateuse1_backend()
        torch.nn.Module._apply = _keeping_parameters(torch.nn.Module._apply)
        _loaded.append(built)
    return _loaded[0]


def _keeping_parameters(apply: Callable) -> Callable:
    """As on CUDA, a model that moves keeps its parameters: an optimizer made before trains them."""

    def kept(net: torch.nn.Module, *args: object, **options: object) -> torch.nn.Module:
        swaps = torch.__future__.get_swap_module_params_on_conversion()
        torch.__future__.set_swap_module_params_on_conversion(True)
        try:
            return apply(net, *args, **options)
        finally:
            torch.__future__.set_swap_module_params_on_conversion(swaps)

    return kept


def _device_module() -> ModuleType:
    """What torch looks for as ``torch.standin``."""
    module = ModuleType(f"torch.{NAME}")
    default = torch.Generator(NAME)  # the first one is the device's own (standin.cpp)
    module.default_generators = (default,)
    module.is_available = module.is_initialized = lambda: True
    module._is_in_bad_fork = lambda: False
    module.device_count = lambda: 1
    module.current_device = lambda: 0
    module.device = nullcontext
    module.set_device = lambda device: None
    module.synchronize = lambda device=None: None
    module.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
    module.manual_seed = module.manual_seed_all = lambda seed: default.manual_seed(seed) and None
    module.get_rng_state = lambda device=None: default.get_state()
    module.set_rng_state = lambda state, device=None: default.set_state(state) and None
    return module


@dataclass
class Trips:
    """What went between host and device: each kind with the operator and the line of fastrec that asked."""

    found: list[tuple[str, str, int, str]] = field(default_factory=list)  # kind, operator, bytes, line

    def count(self, *kinds: str) -> int:
        """How many of these kinds; none named: all."""
        return sum(kind in (kinds or KINDS) for kind, *_ in self.found)

    @property
    def waits(self) -> int:
        """How often the host had to wait for the device."""
        return self.count("to host", "scalar")

    def table(self) -> str:
        """The lines that asked, most frequent first."""
        lines = Counter((kind, op, line) for kind, op, _, line in self.found)
        return "\n".join(f"{n:6} {kind:9} {op:28} {line}" for (kind, op, line), n in lines.most_common())


@contextmanager
def counting() -> Iterator[Trips]:
    """Count the trips of all threads while this is open."""
    trips, built = Trips(), load()

    @_Listener
    def heard(kind: int, op: bytes, size: int) -> None:
        trips.found.append((KINDS[kind], op.decode().removeprefix("aten::"), size, _line(sys._getframe().f_back)))

    built.standin_listen(heard)
    try:
        yield trips
    finally:
        built.standin_listen(_Listener(0))


def _line(frame: FrameType | None) -> str:
    """The innermost line of fastrec, and where that is another's the innermost of all."""
    if frame is None:
        return "no line of Python (autograd)"
    last, here = _named(frame), frame
    while here is not None and not here.f_code.co_filename.startswith(PACKAGE):
        here = here.f_back
    if here is None:
        return last
    asked = f"fastrec/{here.f_code.co_filename.removeprefix(PACKAGE)}:{here.f_lineno} {here.f_code.co_name}"
    return asked if here is frame else f"{asked} ({last})"


def _named(frame: FrameType) -> str:
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}"
