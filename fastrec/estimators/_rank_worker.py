"""One of the processes that train a net; see ``_on_ranks.py``."""

from __future__ import annotations

import importlib.util
import os
import pickle
import sys
import traceback
from pathlib import Path
from typing import Any


def main() -> None:
    """Fit the estimator in the folder named on the command line; rank 0 writes the result back."""
    folder, own = Path(sys.argv[-1]), os.environ["RANK"]
    from fastrec.errors import FastrecError
    from fastrec.estimators._on_ranks import told

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
    about: dict[str, Any] = pickle.loads((folder / "about.pkl").read_bytes())
    import torch

    from fastrec._core.ranks import is_first
    from fastrec.errors import DataError
    from fastrec.training.ranks import join_ranks

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
    if is_first():
        torch.save(fitted, folder / "fitted.pt")
