"""Whatever a file's header says, the recipe that is written of it holds no code but its own."""

import ast
import json
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from fastrec.auto.columns import Files
from fastrec.auto.features import choose_features
from fastrec.auto.understand import understand
from fastrec.auto.workspace import pages
from fastrec.competition import Competition

N = 240
RNG = np.random.default_rng(0)
MARK = "RAN"
CODE = f"globals()['{MARK}'] = 1"
ENDS = ["\n", "\r", "\r\n", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029"]
SIGNS = [*ENDS, '"', "'", '"""', "'''", "\\", "{{ 7*7 }}", "{% raw %}", "{#", "}", "#", "`", "|", "\x00", "\u202e", ","]
QUICK = (Phase.explicit, Phase.reuse, Phase.generate)  # an example takes too long to be made smaller
CODES = [f"{end}{' ' * k}{CODE}{end}{' ' * k}#" for end in ENDS for k in (0, 4, 16)]
nasty = st.lists(st.sampled_from([*SIGNS, *CODES]), max_size=4)
PREFIXES = ["a", "c", "one", "twin", "gone", "tags", "when", "who", "no", "y", "side"]
BENIGN = dict.fromkeys(PREFIXES, "")
names = st.fixed_dictionaries({p: nasty.map("".join) for p in PREFIXES})


def files(cut, end):
    """Columns of every kind; ``cut``: how the test was cut; ``end``: what each name ends with."""
    n = {p: p + e for p, e in end.items()}
    days = pd.date_range("2022-01-01", periods=2 * N, freq="D")
    a = RNG.normal(size=2 * N)
    who = np.repeat(np.arange(2 * N // 4), 4)
    frame = {
        n["a"]: a,
        n["c"]: RNG.choice(list("uvw"), 2 * N),
        n["one"]: np.ones(2 * N, int),
        n["twin"]: a,
        n["tags"]: ["|".join(RNG.choice(["red", "big", "old"], 1 + i % 2, replace=False)) for i in range(2 * N)],
        n["when"]: days.strftime("%d/%m/%Y") if cut == "time" else RNG.permutation(days).astype("datetime64[us]"),
        n["who"]: who if cut == "group" else RNG.permutation(who),
        n["no"]: RNG.permutation(2 * N),
        n["gone"]: np.arange(2 * N) % 2,
        n["y"]: np.where(np.arange(2 * N) % 2, "it's", 'a"b'),
    }
    table = pa.table(frame)
    side = {n["side"]: pa.table({n["c"]: list("uvw"), "size": [1.0, 2.0, 3.0]})}
    if cut == "none":
        return n, Files(Path(), {"train": "train.csv"}, {"train": table}, side, why={"train": "it is the only table"})
    test = table.slice(N).drop_columns([n["y"], n["gone"]])
    tables = {"train": table.slice(0, N), "test": test}
    return n, Files(Path(), {"train": "train.csv", "test": "test.csv"}, tables, side, why={"train": "", "test": ""})


def written(cut, end, folder="shop"):
    n, found = files(cut, end)
    problem = understand(found, target=n["y"])
    return n, problem, pages(Path(folder), problem, choose_features(problem, seconds=0))


@cache
def usual(cut):
    return written(cut, BENIGN)[2]


def shape(text):
    """The statements of a page, whatever its texts say."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = ""
        if isinstance(node, ast.List):  # names stand in the order of the columns, features in that of their names
            node.elts.sort(key=ast.dump)
    return ast.dump(tree)


def recipe_of(text):
    names = {"__name__": "a_page"}
    exec(compile(text, "competition.py", "exec"), names)
    assert MARK not in names
    (found,) = [c for c in names.values() if isinstance(c, type) and c.__module__ == "a_page"]
    assert issubclass(found, Competition)
    return found()


@pytest.mark.parametrize("cut", ["none", "time", "group"])
@settings(max_examples=15, deadline=None, phases=QUICK)
@given(end=names)
def test_names_are_never_code(cut, end):
    benign = usual(cut)
    n, problem, made = written(cut, end)
    assert shape(made["competition.py"]) == shape(benign["competition.py"])
    recipe = recipe_of(made["competition.py"])
    assert recipe.target == n["y"]
    assert recipe.positive == "it's"
    assert set(recipe.drop) == {*problem.drop, n["tags"]} >= {n["one"], n["twin"]}
    assert list(recipe.ids) == problem.ids
    assert recipe.time == (n["when"] if cut == "time" else None)
    assert recipe.fold_key == (n["who"] if cut == "group" else None)
    assert repr(recipe.features()) == repr(type(recipe.features())(choose_features(problem, seconds=0).features))
    assert len(made["README.md"].splitlines()) == len(benign["README.md"].splitlines())
    cells = json.loads(made["notebook.ipynb"])["cells"]
    assert [c["source"] for c in cells if c["cell_type"] == "code"] == [
        c["source"] for c in json.loads(benign["notebook.ipynb"])["cells"] if c["cell_type"] == "code"
    ]


@settings(max_examples=15, deadline=None, phases=QUICK)
@given(nasty.map("".join))
def test_nor_is_the_name_of_the_folder(end):
    _, _, made = written("none", BENIGN, f"shop{end}")
    assert recipe_of(made["competition.py"]).name == Path(f"shop{end}").name
    assert len(made["README.md"].splitlines()) == len(usual("none")["README.md"].splitlines())
