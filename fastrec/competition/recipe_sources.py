"""The source of a recipe and of all modules of its workspace that it imports."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import packages_distributions
from pathlib import Path

from fastrec.errors import MissingFileError, UnreadableFileError


@dataclass(frozen=True)
class RecipeSources:
    """What a recipe is made of.

    Args:
        entry: the module of the recipe.
        modules: module → source; of a package the source of its ``__init__.py``.
        packages: modules that are packages with an ``__init__.py``.
        others: top-level names of other libraries that are imported.
        beside: modules that ask for files beside them.
    """

    entry: str
    modules: dict[str, str]
    packages: frozenset[str]
    others: frozenset[str]
    beside: tuple[str, ...]

    @property
    def distributions(self) -> list[str]:
        """The installed packages that ``others`` belong to."""
        known = packages_distributions()
        return sorted({d for name in self.others for d in known.get(name, [])[:1]})


def recipe_sources(folder: str | Path) -> RecipeSources:
    """Find a recipe's modules by what each imports, inside functions too.

    Modules are named as ``fastrec run`` names them: from the workspace, two folders above the recipe's own. What is
    imported under a name that is computed is not found.

    Args:
        folder: holds ``competition.py``.

    Raises:
        MissingFileError: there is no such file.
        UnreadableFileError: a module is no Python.
    """
    path = Path(folder).resolve() / "competition.py"
    if not path.is_file():
        raise MissingFileError(
            "there is no such file", file=path, remedy="Give a competition's folder, such as competitions/census"
        )
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
        sources[name], tree = _parsed(file)
        if _asks_for_its_place(tree):
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


def _parsed(file: Path) -> tuple[str, ast.Module]:
    try:
        source = file.read_text(encoding="utf-8")
        return source, ast.parse(source, str(file))
    except (OSError, UnicodeDecodeError, SyntaxError, ValueError) as error:
        raise UnreadableFileError(f"it is no Python module ({error})", file=file, remedy="Mend it") from error


def _imports(tree: ast.Module, package: str) -> Iterator[str]:
    """Iterate over imported names of modules, and names that may be modules (``from a import b``)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names if alias.name != "*")


def _files(root: Path, name: str) -> Iterator[tuple[str, Path]]:
    """Iterate over the modules of a workspace that importing ``name`` runs: its packages, and itself."""
    parts = name.split(".")
    for i in range(1, len(parts) + 1):
        place = root.joinpath(*parts[:i])
        if (place / "__init__.py").is_file():
            yield ".".join(parts[:i]), place / "__init__.py"
        elif place.with_name(f"{place.name}.py").is_file():
            yield ".".join(parts[:i]), place.with_name(f"{place.name}.py")


def _asks_for_its_place(tree: ast.Module) -> bool:
    """Return whether ``__file__`` is read, except where a recipe that runs as a script finds its workspace."""
    guards = [n for n in tree.body if isinstance(n, ast.If) and "__package__" in ast.unparse(n.test)]
    allowed = {id(n) for guard in guards for n in ast.walk(guard)}
    return any(isinstance(n, ast.Name) and n.id == "__file__" and id(n) not in allowed for n in ast.walk(tree))
