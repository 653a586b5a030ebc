"""Training of a net by several processes, with torch's elastic launcher (like ``torchrun``).

The rows are written once to a temporary folder that every process reads. The first process writes the trained estimator
there. An error in one process ends all of them.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import pickle
import signal
import sys
import tempfile
import threading
import traceback
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fastrec._core import ranks
from fastrec.errors import DataError, DeviceError, FastrecError, RankError
from fastrec.validate import Rows

if TYPE_CHECKING:
    from fastrec.estimators.base import Estimator

_WANTED = [1]


@contextmanager
def training_on_ranks(count: int) -> Iterator[None]:
    """Train every net that an estimator fits within this context with ``count`` processes of this machine."""
    check_ranks(count)
    _WANTED.append(count)
    try:
        yield
    finally:
        _WANTED.pop()


def check_ranks(count: int, device: torch.device | None = None) -> None:
    """Refuse more processes than are possible, before hours of other work."""
    if count < 1:
        raise DataError(f"{count} processes", remedy="Give 1 or more")
    if count > 1 and not torch.distributed.is_available():
        raise DataError("this torch has no torch.distributed", remedy="Install torch with it, or train in one process")
    if device is not None and device.type == "cuda" and torch.cuda.device_count() < count:
        remedy = "Ask for as many ranks as there are GPUs"
        raise DeviceError(f"{count} processes for {torch.cuda.device_count()} GPUs", remedy=remedy)


def wanted_ranks() -> int:
    """Return how many processes train a net."""
    return _WANTED[-1]


def is_for_ranks() -> bool:
    """Return whether the next fit starts processes: several are wanted, and this is not one of them."""
    return wanted_ranks() > 1 and ranks.world_size() == 1


def share_of(bs: int) -> int:
    """Return how many rows of a batch of ``bs`` rows each rank gets."""
    return -(-bs // ranks.world_size())


def fit_on_ranks(
    estimator: Estimator, train: Rows, valid: Rows | None, *, seed: int, device: torch.device | None
) -> None:
    """Fit an estimator with ``wanted_ranks()`` processes; it then holds what the first of them learned."""
    count, device = wanted_ranks(), device or torch.device("cpu")
    check_ranks(count, device)
    with tempfile.TemporaryDirectory(prefix="fastrec-ranks-") as name:
        folder = Path(name)
        events = getattr(train, "events", None)  # they are matched by the candidates' item, even if it is not a feature
        # Columns that are not used for training are not written.
        names = list(dict.fromkeys([*train.names, *([] if events is None else [events.item])]))
        parts = [None if r is None else r.with_table(r.table.select(names)) for r in (train, valid)]
        given = {"train": parts[0], "valid": parts[1], "estimator": estimator.fresh()}
        torch.save(given, folder / "given.pt", pickle_protocol=pickle.HIGHEST_PROTOCOL)
        modules = []  # name and file of modules that no import statement finds, such as a competition's own
        for module_name, module in list(sys.modules.items()):
            spec, package = getattr(module, "__spec__", None), module_name.rpartition(".")[0]
            if package and package not in sys.modules and spec is not None and spec.has_location:
                modules.append((module_name, str(spec.origin)))
        threads = max(1, torch.get_num_threads() // count)
        about = {"modules": modules, "seed": seed, "device": device.type, "threads": threads}
        (folder / "about.pkl").write_bytes(pickle.dumps(about))
        _launch(count, folder)
        fitted = torch.load(folder / "fitted.pt", weights_only=False, map_location=device)
    vars(estimator).update(vars(fitted))


def _launch(count: int, folder: Path) -> None:
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    meet = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", "local_addr": "localhost"}
    end = {"max_restarts": 0, "signals_to_handle": "SIGTERM", "shutdown_timeout": 10}  # Ctrl-C keeps its meaning
    logs = DefaultLogsSpecs(log_dir=str(folder / "logs"))
    config = LaunchConfig(1, 1, nproc_per_node=count, run_id=uuid.uuid4().hex, logs_specs=logs, **meet, **end)
    code = f"import sys; sys.path[:] = {sys.path!r}; from fastrec.estimators._on_ranks import main; main()"
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # errors are raised below
    alone = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM) if alone else None  # the launcher replaces it by its own
    try:
        elastic_launch(config, sys.executable)("-c", code, str(folder))
    except SignalException as error:
        raise SystemExit(128 + error.sigval) from error
    except ChildFailedError as error:
        told: list[Exception] = [pickle.loads(p.read_bytes()) for p in sorted(folder.glob("error*.pkl"))]
        own = [e for e in told if not isinstance(e, RankError)]
        if own or (told and all(f.exitcode >= 0 for f in error.failures.values())):
            raise (own or told)[0] from error
        ended = ", ".join(
            f"rank {r} by {'signal' if f.exitcode < 0 else 'exit code'} {abs(f.exitcode)}"
            for r, f in sorted(error.failures.items())
        )
        remedy = "Where it was killed the machine may have run out of memory: use fewer ranks, or smaller batches"
        raise RankError(f"a process that trained the net has ended: {ended}", remedy=remedy) from error
    finally:
        if alone:
            signal.signal(signal.SIGTERM, before)


def main() -> None:
    """Fit the estimator in the folder named on the command line; rank 0 writes the result back."""
    folder, own = Path(sys.argv[-1]), os.environ["RANK"]
    try:
        _fit(folder)
    except Exception as error:
        (folder / f"error{own}.part").write_bytes(told(error))
        (folder / f"error{own}.part").rename(folder / f"error{own}.pkl")
        if not isinstance(error, FastrecError):
            traceback.print_exc()
        sys.exit(1)
    # Skip the interpreter's shutdown: torch's threads may still run and abort a process whose work is done.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _fit(folder: Path) -> None:
    from fastrec.training.ranks import join_ranks

    about: dict[str, Any] = pickle.loads((folder / "about.pkl").read_bytes())
    torch.set_num_threads(about["threads"])
    on_gpu = about["device"] == "cuda"
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    files = dict(about["modules"])
    while True:
        try:
            given = torch.load(folder / "given.pt", weights_only=False, map_location="cpu")
            break
        except ModuleNotFoundError as error:
            # Modules that no import statement finds, such as a competition's, are read from their files.
            name = error.name or ""
            found = [n for n in files if n == name or n.startswith(f"{name}.")]
            if not found:
                raise
            for one in found:
                spec = importlib.util.spec_from_file_location(one, files.pop(one))
                if spec is not None and spec.loader is not None:
                    sys.modules[one] = module = importlib.util.module_from_spec(spec)
                    spec.loader.exec_module(module)
        except AttributeError as error:
            problem = f"a process that is to train cannot find what the estimator is made of ({error})"
            remedy = "Define classes and functions of your own in a module, not in the script that is run"
            raise DataError(problem, remedy=remedy) from error
    # A long timeout, because the first rank scores held-out rows alone; the launcher notices at once if a process dies.
    join_ranks(device, timeout=1_800.0)
    fitted = given["estimator"].fit(given["train"], given["valid"], seed=about["seed"], device=device)
    if ranks.is_first():
        torch.save(fitted, folder / "fitted.pt")


def told(error: Exception) -> bytes:
    """Pickle an error for the process that started this one."""
    try:
        data = pickle.dumps(error)
        pickle.loads(data)
    except Exception:  # a user's own exception may not unpickle
        return pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))
    return data
