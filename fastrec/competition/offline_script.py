"""``write_script``: write a recipe as one file that runs without a network, and the wheels that it needs."""

from __future__ import annotations

import ast
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import packages_distributions
from pathlib import Path

from fastrec._core.atomic import atomic_folder, check_replaceable
from fastrec._core.environment import PACKAGE, installed_version, required, write_own_wheel
from fastrec._core.progress import Stages
from fastrec._version import __version__
from fastrec.competition.recipe import Competition
from fastrec.errors import DataError, DataWarning, MissingFileError, MissingPackageError, UnreadableFileError


@dataclass(frozen=True)
class RecipeSources:
    """A recipe's module, and module → source (of a package that of its ``__init__.py``).

    ``packages`` are those with an ``__init__.py``, ``others`` top-level names of other libraries, ``beside`` modules
    that read files beside them.
    """

    entry: str
    modules: dict[str, str]
    packages: frozenset[str]
    others: frozenset[str]
    beside: tuple[str, ...]

    @property
    def distributions(self) -> list[str]:
        """The installed packages of ``others``."""
        known = packages_distributions()
        return sorted({d for name in self.others for d in known.get(name, [])[:1]})


def recipe_sources(folder: str | Path) -> RecipeSources:
    """Find a recipe's modules by what each imports, inside functions too.

    Modules are named from the workspace, two folders above the recipe's, as by ``fastrec run``. Imports by a computed
    name are not found.
    """
    path = Path(folder).resolve() / "competition.py"
    if not path.is_file():
        remedy = "Give a competition's folder, such as competitions/census"
        raise MissingFileError("there is no such file", file=path, remedy=remedy)
    root = path.parents[2]
    entry = ".".join((path.parent.parent.name, path.parent.name, path.stem))
    found: dict[str, Path] = {}
    sources: dict[str, str] = {}
    others: set[str] = set()
    beside: list[str] = []
    waiting = [(entry, path)]
    while waiting:
        name, file = waiting.pop(0)
        if name in found:
            continue
        found[name] = file
        try:
            sources[name] = file.read_text(encoding="utf-8")
            tree = ast.parse(sources[name], str(file))
        except (OSError, UnicodeDecodeError, SyntaxError, ValueError) as error:
            raise UnreadableFileError(f"it is no Python module ({error})", file=file, remedy="Correct it") from error
        # A recipe that runs as a script may read `__file__` to find its workspace.
        guards = [n for n in tree.body if isinstance(n, ast.If) and "__package__" in ast.unparse(n.test)]
        allowed = {id(n) for guard in guards for n in ast.walk(guard)}
        if any(isinstance(n, ast.Name) and n.id == "__file__" and id(n) not in allowed for n in ast.walk(tree)):
            beside.append(name)
        package = name if file.name == "__init__.py" else name.rpartition(".")[0]
        for wanted in _imports(tree, package):
            top = wanted.partition(".")[0]
            if top == "fastrec" or top in sys.stdlib_module_names:
                continue
            own = list(_files(root, wanted))
            waiting += own
            if not own and not (root / top).is_dir():
                others.add(top)
    packages = frozenset(n for n, file in found.items() if file.name == "__init__.py")
    return RecipeSources(entry, sources, packages, frozenset(others), tuple(beside))


def _imports(tree: ast.Module, package: str) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names if alias.name != "*")


def _files(root: Path, name: str) -> Iterator[tuple[str, Path]]:
    """Iterate over the workspace's modules that importing ``name`` runs: its packages and itself."""
    parts = name.split(".")
    for i in range(1, len(parts) + 1):
        place = root.joinpath(*parts[:i])
        if (place / "__init__.py").is_file():
            yield ".".join(parts[:i]), place / "__init__.py"
        elif place.with_name(f"{place.name}.py").is_file():
            yield ".".join(parts[:i]), place.with_name(f"{place.name}.py")


_MARK = "# fastrec script: what follows is copied\n"
_ALONG = ("trees", "compiled")  # optional parts that a recipe may use without importing them


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
    """Write ``submit.py``, which creates a recipe's submission without a network, and its wheels; return its path.

    ``python -I submit.py --data IN --out submission.csv`` gives the result of ``fastrec run`` with the same seed and
    versions. The file contains the recipe and every module of its workspace that it imports. If fastrec or a package of
    the recipe is not installed, it is taken from the wheels, for that process only.

    Args:
        folder: the competition's folder, with ``competition.py``.
        recipe: its recipe.
        out: the folder to write; an earlier script there is replaced.
        wheels: download the packages by pip, in the installed versions and for this kind of machine.
        seed: default seed of everything random in the script.
        minutes: default time budget of the script; None: none.
        stages: progress; None: shown on standard error.

    Raises:
        MissingFileError, UnreadableFileError: the recipe's modules cannot be read.
        MissingPackageError: pip could not download the packages.
        DataError: the minutes are invalid.
        WriteError: the file system refused, or ``out`` holds something else.
    """
    out, stages = Path(out), stages or Stages()
    if minutes is not None and not minutes > 0:
        raise DataError(f"a budget of {minutes:g} minutes is no time", remedy="Give a number above 0")
    # Before pip downloads anything.
    check_replaceable(out, "submit.py")
    sources = recipe_sources(folder)
    for name in sources.beside:
        warnings.warn(f"{name} asks for its __file__: files beside it are not in the script", DataWarning, stacklevel=2)
    # Requirements beyond fastrec's.
    parts = [n for extra in _ALONG for n in required(extra) if installed_version(n) is not None]
    own = [n for n in sources.distributions if n.lower() not in required() and n != PACKAGE]
    packages = sorted({*parts, *own})
    with atomic_folder(out) as part:
        text = _script(sources, recipe, packages, seed=seed, minutes=minutes, wheels=wheels)
        (part / "submit.py").write_text(text, encoding="utf-8")
        if wheels:
            (part / "wheels").mkdir()
            write_own_wheel(part / "wheels", version=__version__)
            with stages.stage("wheels", unit="files") as advance:
                # Their requirements are included, in the installed versions.
                versions = {n: v for n in [*required(), *packages] if (v := installed_version(n)) is not None}
                pins = [f"{n}=={v.partition('+')[0]}" for n, v in versions.items()]
                options = ["--quiet", "--only-binary=:all:", "--dest", str(part / "wheels"), *pins]
                command = [sys.executable, "-m", "pip", "download", *options]
                stages.say(f"pip downloads {len(pins)} packages and what they need")
                done = subprocess.run(command, capture_output=True, text=True)
                if done.returncode:
                    lines = done.stderr.strip().splitlines()
                    said = next((v[:300] for v in lines if v.startswith("ERROR")), " ".join(lines[-3:])[-300:])
                    remedy = "Mend its settings, or give --no-wheels and have fastrec installed where the script runs"
                    raise MissingPackageError(f"pip could not download the wheels ({said})", remedy=remedy)
                advance(len(list((part / "wheels").iterdir())))
    return out / "submit.py"


def _script(
    sources: RecipeSources,
    recipe: type[Competition],
    packages: list[str],
    *,
    seed: int,
    minutes: float | None,
    wheels: bool,
) -> str:
    head, copied = (Path(__file__).parent / "_submit_runtime.py").read_text(encoding="utf-8").split(_MARK)
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
    """Return text as a Python literal, between quotation marks that it does not contain."""
    for quote in ('"""', "'''"):
        made = f"r{quote}{text}{quote}"
        with suppress(SyntaxError, ValueError):
            if quote not in text and not text.endswith(("\\", quote[0])) and ast.literal_eval(made) == text:
                return made
    return repr(text)
