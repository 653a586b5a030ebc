# The code of a script of `fastrec script`, copied into it. It needs only Python's standard library until fastrec is
# installed. The script replaces the lines up to the mark.
from __future__ import annotations

import argparse
import atexit
import importlib
import importlib.metadata
import importlib.util
import inspect
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

RECIPE, VERSION, REQUIREMENTS = ("module", "Class"), "0", ["fastrec-tabular==0"]
SEED: int = 0
MINUTES: float | None = None
PACKAGES: set[str] = set()
MODULES: dict[str, str] = {}
# fastrec script: what follows is copied


def _have_fastrec(wheels: Path) -> None:
    """Make fastrec importable: the installed one, else from the wheels, for this process only."""
    names = [r.partition("==")[0] for r in REQUIREMENTS]
    there = {n: _version(n) for n in names}
    found = there["fastrec-tabular"]
    if found == VERSION and None not in there.values():
        return
    if wheels.is_dir():
        # Only missing packages are unpacked, into a folder that is removed when the process ends.
        place = Path(tempfile.mkdtemp(prefix="fastrec-wheels-"))
        atexit.register(shutil.rmtree, place, ignore_errors=True)
        offline = ["--no-index", "--find-links", str(wheels)]
        _pip(*offline, "--dry-run", "--report", str(place / "plan.json"), *REQUIREMENTS)
        plan = [i["metadata"] for i in json.loads((place / "plan.json").read_text(encoding="utf-8"))["install"]]
        print("installing " + ", ".join(f"{p['name']} {p['version']}" for p in plan), file=sys.stderr)
        if plan:
            options = ["--no-deps", "--no-compile", "--target", str(place)]  # most of it is never imported
            _pip(*offline, *options, *[f"{p['name']}=={p['version']}" for p in plan])
        sys.path.insert(0, str(place))
        importlib.invalidate_caches()
    elif importlib.util.find_spec("fastrec") is None:
        sys.exit(f"error: fastrec is not installed, and there is no folder of wheels: {wheels}")
    elif found != VERSION:
        print(f"warning: written by fastrec {VERSION}, run by {found or 'another'}: scores may differ", file=sys.stderr)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "install", "--isolated", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"error: pip could not install fastrec from the wheels\n{done.stderr.strip()}")


def _end_at(ends: float, minutes: float, folder: Path) -> threading.Thread:
    """End the process when its time is up, whatever library is running: a late submission counts as none."""

    def end() -> None:
        print(f"error: out of time after {minutes:g} minutes; nothing was written", file=sys.stderr, flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(3)

    timer = threading.Timer(max(ends - time.monotonic(), 0.0), end)
    timer.daemon = True
    timer.start()
    return timer


def _submit(options: argparse.Namespace, folder: Path, began: float) -> None:
    from fastrec._core.memory import keep_memory
    from fastrec.competition import run_competition
    from fastrec.errors import DataWarning, FastrecError

    warnings.simplefilter("ignore")
    warnings.simplefilter("always", DataWarning)
    recipe = getattr(importlib.import_module(RECIPE[0]), RECIPE[1])()
    more = {}
    if options.minutes is not None and "minutes" in inspect.signature(run_competition).parameters:
        more["minutes"] = max(options.minutes - (time.monotonic() - began) / 60, 0.01)  # the remaining minutes
    try:
        with keep_memory():
            run = run_competition(
                recipe, options.data, folder / "run", device=options.device, seed=options.seed, **more
            )
    except FastrecError as error:
        sys.exit(f"error: {' '.join(str(error).splitlines())}")
    scores = json.loads((run / "scores.json").read_text(encoding="utf-8"))
    for name, score in scores["oof"].items():
        print(f"{name} {scores['metric']} {score:.5f} out of fold")
    part = options.out.with_name(f".{options.out.name}.part")
    shutil.copyfile(run / "submission.csv", part)
    os.replace(part, options.out)
    print(f"submission {options.out}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Turn an input folder into a submission."""
    began = time.monotonic()
    here = Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(description="Train on a folder of files and write the submission, offline.")
    parser.add_argument("--data", type=Path, required=True, help="folder of the competition's files")
    parser.add_argument("--out", type=Path, default=Path("submission.csv"), help="the submission to write")
    parser.add_argument("--wheels", type=Path, default=here / "wheels", help="folder of wheels, if fastrec is lacking")
    parser.add_argument("--seed", type=int, default=SEED, help="of everything random")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="time budget; the process ends 10 %% after it")
    options = parser.parse_args(arguments)
    if options.minutes is not None and not options.minutes > 0:
        parser.error(f"--minutes {options.minutes:g} is no time")
    if not options.out.absolute().parent.is_dir():
        parser.error(f"--out {options.out}: there is no such folder")
    with tempfile.TemporaryDirectory(prefix="fastrec-run-") as folder:
        # The process ends a tenth above the minutes, whatever it is doing.
        ends = began + 66 * (options.minutes or math.inf)
        timer = None if options.minutes is None else _end_at(ends, options.minutes, Path(folder))
        try:
            _have_fastrec(options.wheels)
            modules = Path(folder) / "modules"  # the modules above, to be imported
            for name, source in MODULES.items():
                file = modules.joinpath(*name.split("."), "__init__.py")
                file = file if name in PACKAGES else file.parent.with_suffix(".py")
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(source, encoding="utf-8")
            for place in [p for p in modules.rglob("*") if p.is_dir()]:  # a package of that name would go first
                (place / "__init__.py").touch()
            sys.path.insert(0, str(modules))
            _submit(options, Path(folder), began)
        except BaseException:
            if timer is not None and time.monotonic() >= ends:
                timer.join()  # the timer removes the folder, which may cause this error, and ends the process
            raise


if __name__ == "__main__":
    main()
