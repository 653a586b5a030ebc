"""``write_script``: a competition as one file that runs without a network, and the wheels that it needs."""

from __future__ import annotations

import ast
import subprocess
import sys
import warnings
from pathlib import Path

from fastrec._core.atomic import atomic_folder, check_replaceable
from fastrec._core.environment import PACKAGE, PARTS, REQUIRED, installed_version
from fastrec._core.own_wheel import write_own_wheel
from fastrec._core.progress import Stages
from fastrec._version import __version__
from fastrec.competition.recipe import Competition
from fastrec.competition.recipe_sources import RecipeSources, recipe_sources
from fastrec.errors import DataError, DataWarning, MissingPackageError

_MARK = "# fastrec script: what follows is copied\n"
_ALONG = ("trees", "compiled")  # optional parts that a recipe may use without importing them: what is here goes along


def write_script(
    folder: str | Path,
    recipe: type[Competition],
    out: str | Path,
    *,
    wheels: bool = True,
    seed: int = 0,
    minutes: float | None = None,
    stages: Stages | None = None,
) -> Path:
    """Write ``submit.py``, which makes a recipe's submission without a network, and the wheels it needs beside it.

    ``python -I submit.py --data IN --out submission.csv`` gives what ``fastrec run`` gives with the same seed and the
    same versions. The recipe and every module of its workspace that it imports stand in the file, as they are. Where
    fastrec or a package of the recipe is not installed, they are taken from the wheels, for that process alone.

    Args:
        folder: the competition's folder, with ``competition.py``.
        recipe: its recipe.
        out: the folder to make; an earlier script there is replaced.
        wheels: let pip download the packages, in the versions that are installed here and for this kind of machine.
        seed: of everything random, unless the script is told otherwise.
        minutes: the script's time budget, unless it is told otherwise; None: none.
        stages: progress; None: shown on standard error.

    Returns:
        The script.

    Raises:
        MissingFileError, UnreadableFileError: the recipe's modules cannot be read.
        MissingPackageError: pip could not download the packages.
        DataError: the minutes are no time.
        WriteError: the file system refused, or ``out`` holds something else.
    """
    out, stages = Path(out), stages or Stages()
    if minutes is not None and not minutes > 0:
        raise DataError(f"a budget of {minutes:g} minutes is no time", remedy="Give a number above 0")
    check_replaceable(out, "submit.py")
    sources = recipe_sources(folder)
    for name in sources.beside:
        warnings.warn(f"{name} asks for its __file__: files beside it are not in the script", DataWarning, stacklevel=2)
    packages = _packages(sources)
    with atomic_folder(out) as part:
        text = _script(sources, recipe, packages, seed=seed, minutes=minutes, wheels=wheels)
        (part / "submit.py").write_text(text, encoding="utf-8")
        if wheels:
            (part / "wheels").mkdir()
            write_own_wheel(part / "wheels", version=__version__)
            with stages.stage("wheels", unit="files") as advance:
                _download(part / "wheels", [*REQUIRED, *packages])
                advance(len(list((part / "wheels").iterdir())))
    return out / "submit.py"


def _packages(sources: RecipeSources) -> list[str]:
    """Return what the script needs beyond fastrec's own requirements."""
    parts = [n for p in PARTS if p.extra in _ALONG for n in p.packages if installed_version(n) is not None]
    own = [n for n in sources.distributions if n.lower() not in REQUIRED and n != PACKAGE]
    return sorted({*parts, *own})


def _download(folder: Path, packages: list[str]) -> None:
    """Let pip download packages and all that they need, in the versions that are installed here."""
    pins = [f"{n}=={v.partition('+')[0]}" for n in packages if (v := installed_version(n)) is not None]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:", "--dest", str(folder), *pins]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        said = next((line for line in done.stderr.splitlines() if line.startswith("ERROR")), done.stderr.strip())
        raise MissingPackageError(
            f"pip could not download the wheels ({said[:300]})",
            remedy="Mend its settings, or give --no-wheels and have fastrec installed where the script runs",
        )


def _script(
    sources: RecipeSources,
    recipe: type[Competition],
    packages: list[str],
    *,
    seed: int,
    minutes: float | None,
    wheels: bool,
) -> str:
    runtime = (Path(__file__).parent / "_submit_runtime.py").read_text(encoding="utf-8")
    head, copied = runtime.split(_MARK)
    imports = head[head.index("from __future__") : head.index("\nRECIPE")]
    beside = "the folder wheels/ beside it, or an installed fastrec" if wheels else "an installed fastrec"
    about = f"""{recipe.name}: a folder of files in, the submission out. Written by fastrec {__version__}.

    python -I submit.py --data IN --out submission.csv

It needs no network, and {beside}. The recipe is in MODULES.
"""
    modules = "".join(f"    {name!r}: {_literal(source)},\n" for name, source in sources.modules.items())
    requirements = [f"{PACKAGE}=={__version__}", *packages]
    settings = [
        f"RECIPE = ({sources.entry!r}, {recipe.__name__!r})",
        f"VERSION = {__version__!r}",
        f"REQUIREMENTS = {requirements!r}",
        f"SEED = {seed!r}",
        f"MINUTES = {minutes!r}",
        f"PACKAGES = set({sorted(sources.packages)!r})",
        f"MODULES = {{\n{modules}}}",
    ]
    return "\n".join([_literal(about), imports, *settings, "", copied])


def _literal(text: str) -> str:
    """Return text as a Python literal, between quotation marks that it does not hold."""
    for quote in ('"""', "'''"):
        made = f"r{quote}{text}{quote}"
        if quote not in text and not text.endswith(("\\", quote[0])) and _reads_as(made, text):
            return made
    return repr(text)


def _reads_as(literal: str, text: str) -> bool:
    try:
        return bool(ast.literal_eval(literal) == text)
    except (SyntaxError, ValueError):
        return False
