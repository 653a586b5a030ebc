"""A competition's folder as its recipe."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from fastrec.errors import DataError, MissingFileError

if TYPE_CHECKING:
    from fastrec.competition.recipe import Competition

_SOURCE = "__fastrec_source__"


def load_competition(folder: str | Path) -> Competition:
    """Load the recipe of a competition's folder.

    Args:
        folder: holds ``competition.py`` with one subclass of ``Competition``; the workspace is two folders above. Or
            another file of such a folder (``…/streamed.py``), with a recipe of the same data.

    Raises:
        MissingFileError: there is no such file.
        DataError: it holds no recipe, or several.
    """
    from fastrec.competition.recipe import Competition

    name = "competition.py"
    if Path(folder).suffix == ".py":
        folder, name = Path(folder).parent, Path(folder).name
    module = load_module(folder, name)
    found = [
        c
        for c in vars(module).values()
        if isinstance(c, type) and issubclass(c, Competition) and c.__module__ == module.__name__
    ]
    if len(found) != 1:
        raise DataError(
            f"holds {len(found)} subclasses of Competition",
            file=Path(folder) / name,
            remedy="Write exactly one",
        )
    return found[0]()


def load_module(folder: str | Path, name: str) -> ModuleType:
    """Import a file of a competition's folder; the workspace's root is put on the path.

    A file that has changed since it was loaded is run again.

    Args:
        folder: the competition's folder.
        name: the file.

    Raises:
        MissingFileError: there is no such file.
    """
    path = Path(folder).resolve() / name
    if not path.exists():
        raise MissingFileError(
            "there is no such file", file=path, remedy="Give a competition's folder, such as competitions/trivago2019"
        )
    root = path.parent.parent.parent
    # Of a folder that stands by itself what is two folders above is no workspace.
    if (path.parent.parent.name == "competitions" or (root / "features").is_dir()) and str(root) not in sys.path:
        sys.path.insert(0, str(root))
    module_name = f"{path.parent.parent.name}.{path.parent.name}.{path.stem}"
    source, known = path.read_bytes(), sys.modules.get(module_name)
    same_file = known is not None and getattr(known, "__file__", None) == str(path)
    if same_file and vars(known).setdefault(_SOURCE, source) == source:  # (one that was imported has no source yet)
        return known
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    vars(module)[_SOURCE] = source
    sys.modules[module_name] = module
    try:
        # Not by the loader: its cache takes an edit of the same second and length for the old file.
        exec(compile(source, str(path), "exec"), vars(module))
    except BaseException:
        del sys.modules[module_name]
        raise
    return module
