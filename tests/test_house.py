"""Ceilings of the library's size: a change that passes one has to take something away first."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from pathlib import Path

import grimp
import numpy as np
import pytest
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

import fastrec.all

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted((ROOT / "fastrec").rglob("*.py"))
TEXT = {f: f.read_text(encoding="utf-8") for f in FILES}
TREES = {f: ast.parse(text) for f, text in TEXT.items()}
# First words of a docstring that is no imperative.
NOUNS = {"the", "a", "an", "what", "whether", "how", "which", "one", "of", "kept", "where", "each", "every", "those"}


def is_number(node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp):
        return is_number(node.operand)
    if isinstance(node, ast.BinOp):
        return is_number(node.left) and is_number(node.right)
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def constants() -> list[str]:
    """Numbers at module level outside ``_core/limits.py``, where each has its measurement beside it."""
    return [
        f"{f.relative_to(ROOT)}:{n.lineno}"
        for f, tree in TREES.items()
        for n in tree.body
        if isinstance(n, ast.Assign | ast.AnnAssign) and n.value is not None and is_number(n.value)
        if f.name != "limits.py"
    ]


def called_once() -> list[str]:
    everywhere = Counter(w for text in TEXT.values() for w in re.findall(r"\b_\w+", text))
    return [
        n.name
        for f, tree in TREES.items()
        for n in tree.body
        if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef) and n.name.startswith("_")
        if everywhere[n.name] == 2 == len(re.findall(rf"\b{n.name}\b", TEXT[f]))
    ]


def circles() -> list[list[str]]:
    """Files that import one another, inside functions and for types alone, too."""
    graph = grimp.build_graph("fastrec", cache_dir=None)
    names = sorted(graph.modules)
    place = {n: i for i, n in enumerate(names)}
    pairs = np.array([(place[a], place[b]) for a in names for b in graph.find_modules_directly_imported_by(a)])
    matrix = coo_matrix((np.ones(len(pairs)), pairs.T), shape=(len(names), len(names)))
    _, part = connected_components(matrix, connection="strong")
    return [[names[i] for i in np.flatnonzero(part == k)] for k in np.flatnonzero(np.bincount(part) > 1)]


def shared_names() -> list[str]:
    homes = Counter(n.name for tree in TREES.values() for n in tree.body if isinstance(n, ast.ClassDef))
    return [name for name, count in homes.items() if count > 1]


def without_verb() -> list[str]:
    found = []
    for f, tree in TREES.items():
        for n in ast.walk(tree):
            if not isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef) or n.name.startswith("_"):
                continue
            kinds = {ast.unparse(d).split(".")[-1] for d in n.decorator_list}
            first = (ast.get_docstring(n) or "-").split()[0].lower().strip("`*,")
            if first in NOUNS and not kinds & {"property", "cached_property", "setter"}:
                found.append(f"{f.relative_to(ROOT)}:{n.lineno} {n.name}")
    return found


def comments_per_100_lines() -> float:
    comments = code = 0
    passed = (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER, tokenize.STRING)
    for text in TEXT.values():
        lines = set()
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                comments += 1
            elif token.type not in passed:
                lines.add(token.start[0])
        code += len(lines)
    return 100 * comments / code


@pytest.mark.parametrize(
    ("what", "found", "ceiling"),
    [
        ("lines", lambda: range(sum(t.count("\n") for t in TEXT.values())), 80_000),
        (
            "lines of tests",
            lambda: range(sum(f.read_bytes().count(b"\n") for f in (ROOT / "tests").rglob("*.py"))),
            62_000,
        ),
        ("files", lambda: FILES, 302),
        ("numeric constants outside limits.py", constants, 23),
        ("private functions called once", called_once, 270),
        ("circles", circles, 0),
        ("class names with several homes", shared_names, 5),
        ("public docstrings that begin with no verb", without_verb, 0),
        ("names in fastrec.all", lambda: fastrec.all.__all__, 100),
    ],
)
def test_the_house_stays_below_its_ceilings(what, found, ceiling):
    things = list(found())
    assert len(things) <= ceiling, (what, len(things), things[:20] if "lines" not in what else "")


def test_comments_say_why_often_enough():
    assert comments_per_100_lines() >= 5


def test_no_limit_is_set_twice():
    nodes = ast.walk(TREES[ROOT / "fastrec/_core/limits.py"])
    names = [n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    assert len(set(names)) == len(names), sorted(names)
