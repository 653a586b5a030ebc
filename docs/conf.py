"""How the site is built: ``make docs``. Everything comes from what pip installs; nothing is fetched."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import re
import sys
import tomllib
import warnings
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(ROOT), str(HERE / "_ext")]
# Notebooks run in processes of their own: they find the workspace, and the `fastrec` command of this environment.
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
warnings.simplefilter("ignore")  # others' deprecations while fastai is imported; the tests look at ours

import rooms  # noqa: E402
from jupyter_cache.cache.db import create_db  # noqa: E402
from nbformat import read, write  # noqa: E402
from sphinx.ext.napoleon import GoogleDocstring  # noqa: E402

import fastrec  # noqa: E402

project = "fastrec"
author = "the fastrec authors"
version = release = fastrec.__version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "drawings"]
exclude_patterns = ["_build", "_ext", "_static", "**/.ipynb_checkpoints"]
nitpicky = True
html_title = "fastrec"
html_theme = "pydata_sphinx_theme"
html_static_path = ["_static"]
html_css_files = ["fastrec.css"]
html_copy_source = html_show_sourcelink = False
html_show_copyright = html_show_sphinx = False
html_theme_options = {
    "logo": {"text": "fastrec"},
    "navbar_align": "left",
    "navbar_end": ["theme-switcher"],
    "header_links_before_dropdown": 9,
    "show_toc_level": 2,
    "footer_start": [],
    "footer_center": [],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
    "show_prev_next": True,
}
html_context = {"default_mode": "auto"}
# pages that stand alone have nothing to show beside them
html_sidebars = {page: [] for page in ("how_it_works", "batches", "training", "benchmarks", "GPU")}

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

# Notebooks -----------------------------------------------------------------------------------------------------------
# Outputs are kept by code: the cache is named by what the library's files hold, so that a changed library runs anew.
_sources = sorted([*ROOT.glob("fastrec/**/*.py"), *ROOT.glob("features/*.py"), *ROOT.glob("competitions/**/*.py")])
_digest = hashlib.sha256(b"".join(p.read_bytes() for p in _sources)).hexdigest()[:16]
nb_execution_mode = "cache"
nb_execution_cache_path = str(HERE / "_build" / "executed" / _digest)
Path(nb_execution_cache_path).mkdir(parents=True, exist_ok=True)
nb_execution_timeout = 900
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_output_stderr = "remove"
nb_merge_streams = True
nb_ipywidgets_js = {}  # its default is fetched from elsewhere when a page is looked at


def _copy_notebooks() -> None:
    """Copy the notebooks of ``nbs/`` for the site: what nbdev hides is hidden, what it does not run is not run."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["nbdev"]
    skipped = {"eval:false", *settings["tst_flags"].split()}
    folder = HERE / "notebooks"
    folder.mkdir(exist_ok=True)
    wanted = set()
    for source in sorted(ROOT.glob("nbs/*.ipynb")):
        notebook = read(source, as_version=4)
        for cell in notebook.cells:
            flags = {line[2:].replace(" ", "") for line in cell.source.splitlines() if line.startswith("#|")}
            tags = cell.metadata.setdefault("tags", [])
            tags += ["skip-execution"] if flags & skipped else []
            tags += ["remove-cell"] if "hide" in flags else []
        target = folder / source.name
        wanted.add(target)
        text = json.dumps(notebook)
        if not target.exists() or json.dumps(read(target, as_version=4)) != text:  # an equal file keeps its time
            write(notebook, target)
    for left in set(folder.glob("*.ipynb")) - wanted:
        left.unlink()


_copy_notebooks()

# API -----------------------------------------------------------------------------------------------------------------
autodoc_default_options = {"members": True}
autodoc_inherit_docstrings = False  # a generator's methods are those of the contract, and are told of there
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_custom_sections = [("Source", "notes_style")]
toc_object_entries_show_parents = "hide"
for _room in rooms.ROOMS:  # names that a room loads at first use: autodoc looks for those that are there
    _module = importlib.import_module(_room)
    for _name in getattr(_module, "__all__", ()):
        vars(_module).setdefault(_name, getattr(_module, _name))

# Types of other libraries have no page here.
_LIBRARIES = "torch fastai fastcore numpy np pandas pd pyarrow pa scipy sklearn xgboost rich starlette"
_STANDARD = "inspect abc contextlib threading typing collections pathlib"
nitpick_ignore_regex = [("py:.*", rf"({'|'.join(f'{_LIBRARIES} {_STANDARD}'.split())})(\..*)?")]
# names of other libraries without the library's, and an alias of a Literal
nitpick_ignore = [
    ("py:class", name)
    for name in (
        "Client",
        "FillRule",
        "Path",
        "Scale",
        "Stages",
        "Starlette",
        "Task",
        "Tensor",
        "fasttransform.transform.Pipeline",
        "nn.Module",
    )
]
_PUBLIC = {name for room in rooms.ROOMS for name in rooms.public_names(room)}


def _apart(app: Any, env: Any, names: list[str]) -> None:
    """Notebooks among the other pages: processes take pages one after the other, and one would run all of them."""
    notebooks = [n for n in names if n.startswith("notebooks/")]
    others = [n for n in names if n not in notebooks]
    places = {n: (i + 0.5) / len(part) for part in (notebooks, others) for i, n in enumerate(part)}
    names.sort(key=lambda n: places[n])


def _private_is_no_link(app: Any, env: Any, node: Any, contnode: Any) -> Any:
    """Bases and types that no room offers are named without a link; a public name that has no page is an error."""
    target = node.get("reftarget", "")
    return contnode if target.startswith("fastrec.") and target.split(".")[-1] not in _PUBLIC else None


def _readable(app: Any, what: str, name: str, obj: Any, options: Any, signature: Any, returns: Any) -> Any:
    """Defaults that are objects (``<factory>``) are no Python: they are shown as dots."""
    return (re.sub(r"<[^<>]+>", "...", signature), returns) if signature else None


def _as_napoleon_reads(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Two forms that napoleon takes for others: text after ``Source:``, and a colon in a property's first line."""
    in_source = False
    for i, line in enumerate(lines):
        in_source = line.startswith("Source: ") or (in_source and bool(line.strip()))
        if in_source:  # a section of its own, as Args is
            start, text = ("Source:\n", line[8:]) if line.startswith("Source: ") else ("", line.strip())
            lines[i] = f"{start}    {text}"
    lines[:] = "\n".join(lines).split("\n")
    if what in ("property", "attribute", "data") and lines:  # it would take what stands before the colon for a type
        lines[:] = ["..", "", *GoogleDocstring(lines, app.config, app, "method", name, obj, options).lines()]


def setup(app: Any) -> None:
    """Sphinx calls this."""
    create_db(Path(nb_execution_cache_path))  # here, as two processes at once would fail
    app.connect("env-before-read-docs", _apart)
    app.connect("autodoc-process-docstring", _as_napoleon_reads, priority=400)  # before napoleon
    app.connect("missing-reference", _private_is_no_link)
    app.connect("autodoc-process-signature", _readable)
