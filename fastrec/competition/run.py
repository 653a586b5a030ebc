"""``run_competition``: runs a recipe, from its files to a complete run directory."""

from __future__ import annotations

import importlib.util
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType

from fastrec._core.atomic import alone_at
from fastrec._core.device import DeviceLike, resolve_device
from fastrec._core.progress import Stages
from fastrec._core.threads import on_free_threads
from fastrec.competition.budget import Budget
from fastrec.competition.recipe import Competition, check_recipe
from fastrec.competition.resumable import Parts
from fastrec.errors import DataError, MissingFileError, WriteError

_SOURCE = "__fastrec_source__"


def load_competition(folder: str | Path) -> Competition:
    """Load the recipe of a competition's folder.

    Args:
        folder: has ``competition.py`` with one subclass of ``Competition``; the workspace is two folders above. Or
            another file of such a folder (``…/streamed.py``), with a recipe of the same data.

    Raises:
        MissingFileError: there is no such file.
        DataError: it has no recipe, or several.
    """
    name = "competition.py"
    if Path(folder).suffix == ".py":
        folder, name = Path(folder).parent, Path(folder).name
    module = load_module(folder, name)
    own = [c for c in vars(module).values() if isinstance(c, type) and c.__module__ == module.__name__]
    found = [c for c in own if issubclass(c, Competition)]
    if len(found) != 1:
        remedy = "Write exactly one"
        raise DataError(f"holds {len(found)} subclasses of Competition", file=Path(folder) / name, remedy=remedy)
    return found[0]()


def load_module(folder: str | Path, name: str) -> ModuleType:
    """Import a file of a competition's folder; the workspace's root is put on the path.

    A file that has changed since it was loaded is run again. An absent one is a ``MissingFileError``.
    """
    path = Path(folder).resolve() / name
    if not path.exists():
        remedy = "Give a competition's folder, such as competitions/trivago2019"
        raise MissingFileError("there is no such file", file=path, remedy=remedy)
    root = path.parent.parent.parent
    # Two folders above a single recipe's folder may be no workspace.
    if (path.parent.parent.name == "competitions" or (root / "features").is_dir()) and str(root) not in sys.path:
        sys.path.insert(0, str(root))
    module_name = f"{path.parent.parent.name}.{path.parent.name}.{path.stem}"
    source, known = path.read_bytes(), sys.modules.get(module_name)
    same_file = known is not None and getattr(known, "__file__", None) == str(path)
    if same_file and vars(known).setdefault(_SOURCE, source) == source:  # (an imported one has no source yet)
        return known
    spec = importlib.util.spec_from_file_location(module_name, path)
    module = importlib.util.module_from_spec(spec)
    vars(module)[_SOURCE] = source
    sys.modules[module_name] = module
    try:
        # The loader's cache would miss an edit of the same second and length.
        exec(compile(source, str(path), "exec"), vars(module))
    except SyntaxError as error:
        del sys.modules[module_name]
        problem = f"line {error.lineno} is no Python ({error.msg})"
        raise DataError(problem, file=error.filename or path, remedy="Correct it") from error
    except BaseException:
        del sys.modules[module_name]
        raise
    return module


def run_competition(
    competition: Competition | str | Path,
    data: str | Path,
    out: str | Path,
    *,
    device: DeviceLike = "auto",
    rows: int | None = None,
    seed: int = 0,
    bs: int | None = None,
    stages: Stages | None = None,
    command: str | None = None,
    resume: bool = False,
    minutes: float | Budget | None = None,
    ranks: int = 1,
    scheduler: str | None = None,
) -> Path:
    """Run a recipe (features, base models, stack, submission, scores, report) and return the run directory.

    With ``resume``, finished parts are cached beside the run directory (``.NAME.parts``). An interrupted run continues
    from there; a run after a change recomputes only the affected parts.

    Args:
        competition: the recipe, or the folder of its ``competition.py``.
        data: the folder of the competition's files.
        out: the run directory to write; it replaces an earlier run there only when it is complete.
        device: where to compute; ``'auto'`` uses CUDA if available.
        rows: use only about this many training rows.
        seed: of everything random.
        bs: the nets' batch size in rows; None: the recipe's.
        stages: progress; None: shown on standard error.
        command: the command to note in ``config.json``.
        resume: cache finished parts, and use those of an earlier run, as ``fastrec run`` does.
        minutes: the wall time of the whole run; None: no limit. Models are fitted in the recipe's order, each in its
            share of the remaining time; one that exceeds it is left out.
        ranks: processes on this machine that train each net together; all else runs in this process. ``bs`` is their
            total batch size.
        scheduler: the Dask cluster that computes the features: the address of its scheduler (``tcp://…``), or
            ``local:N`` for N worker processes on this machine, which end with the run; None: this process. Files are
            read, and models trained, in this process. Workers read the rows from a folder beside ``out``.

    Raises:
        FastrecError: the recipe, the data or the output folder is not usable; no partial run is left.
    """
    if isinstance(competition, str | Path):
        competition = load_competition(competition)
    out = Path(out)
    # First, as it takes no time.
    check_run_folder(out)
    check_recipe(competition, bs=bs)
    kind = competition._kind
    record, steps = kind.load()
    where = {"data": Path(data), "out": out, "device": resolve_device(device), "stages": stages or Stages()}
    options = {"rows": rows, "seed": seed, "bs": bs, "command": command, "ranks": ranks, "scheduler": scheduler}
    options["budget"] = minutes if minutes is None or isinstance(minutes, Budget) else Budget(minutes)
    options["parts"] = Parts.beside(out) if resume and kind.keeps_parts else None
    run = record(recipe=competition, **where, **options)
    useless = sorted(run.notes.keys() & {"bs", "minutes", "ranks", "scheduler"} - kind.options)
    if useless:
        raise DataError(f"{competition.name}: {useless[0]} is of no use to it", remedy=f"Run it without --{useless[0]}")
    with alone_at(out), run.context:
        for step in steps:
            with nullcontext() if run.budget is None else on_free_threads(run.budget.threads):
                step(run)
    return out


def check_run_folder(out: Path) -> None:
    """Refuse a folder that cannot be written, or holds no earlier run, before hours of training."""
    above = next(p for p in Path(os.path.abspath(out)).parents if p.exists())
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        remedy = "Choose another --out"
        raise WriteError(f"could not be written ({above} is not a folder to write to)", file=out, remedy=remedy)
    if out.is_file():
        raise DataError("this is a file, not a run directory", file=out, remedy="Choose another --out")
    if out.is_dir() and any(out.iterdir()) and not (out / "scores.json").exists():
        remedy = "Choose another --out, or empty it"
        raise DataError("the folder holds something that is not a run", file=out, remedy=remedy)
