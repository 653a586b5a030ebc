"""What RAPIDS offers of what fastrec calls: read from sources, or from ``recorded.json`` where it is not installed.

``python -m tests.rapids.signatures FOLDER`` records anew from a folder of unpacked wheels (cuDF, dask-cuDF, cuML, RMM).
"""

from __future__ import annotations

import ast
import json
import re
import sys
from importlib.util import find_spec
from pathlib import Path

RECORDED = Path(__file__).with_name("recorded.json")
# class or module → the files, and classes in them, in the order in which Python looks for a name
FRAME = ("cudf/core/indexed_frame.py:IndexedFrame", "cudf/core/frame.py:Frame")
SINGLE = "cudf/core/single_column_frame.py:SingleColumnFrame"
SOURCES: dict[str, tuple[str, ...]] = {
    "cudf": ("cudf/core/dataframe.py",),
    "cudf.DataFrame": ("cudf/core/dataframe.py:DataFrame", *FRAME),
    "cudf.Series": ("cudf/core/series.py:Series", SINGLE, *FRAME),
    "cudf.Index": ("cudf/core/index.py:Index", SINGLE, FRAME[1]),
    "cudf.Series.cat": ("cudf/core/accessors/categorical.py:CategoricalAccessor",),
    "cudf.Series.dt": ("cudf/core/series.py:DatetimeProperties",),
    "dask_cudf": ("dask_cudf/core.py",),
    "rmm": ("rmm/rmm.py",),
    "rmm.allocators.cupy": ("rmm/allocators/cupy.py",),
    "cuml.linear_model.LogisticRegression": ("cuml/linear_model/logistic_regression.py:LogisticRegression",),
    "cuml.linear_model.Ridge": ("cuml/linear_model/ridge.pyx:Ridge",),
    "cuml.neighbors.KNeighborsClassifier": ("cuml/neighbors/kneighbors_classifier.pyx:KNeighborsClassifier",),
    "cuml.neighbors.KNeighborsRegressor": ("cuml/neighbors/kneighbors_regressor.pyx:KNeighborsRegressor",),
    "cuml.ensemble.RandomForestClassifier": ("cuml/ensemble/randomforestclassifier.py:RandomForestClassifier",),
    "cuml.ensemble.RandomForestRegressor": ("cuml/ensemble/randomforestregressor.py:RandomForestRegressor",),
    "cuml.svm.SVC": ("cuml/svm/svc.py:SVC",),
    "cuml.svm.SVR": ("cuml/svm/svr.py:SVR", "cuml/svm/svm_base.pyx:SVMBase"),
}
USED = {  # a name that fastrec calls and that is missing here is not in the rehearsal either
    "cudf": "from_pandas",
    "cudf.DataFrame": "__init__ __getitem__ __setitem__ columns copy head iloc index take to_pandas",
    "cudf.Series": "__init__ astype cat copy dt dtype factorize fillna from_arrow has_nulls iloc index isnull take "
    "to_arrow to_cupy to_pandas where",
    "cudf.Index": "to_arrow",
    "cudf.Series.cat": "categories codes ordered",
    "cudf.Series.dt": "tz",
    "dask_cudf": "from_cudf",
    "rmm": "reinitialize",
    "rmm.allocators.cupy": "rmm_cupy_allocator",
}


def read(folder: Path) -> dict[str, dict[str, str]]:
    """Return the arguments of every name of ``USED`` in a folder of sources; ``property`` where it takes none.

    Packages that are not in the folder are left out: cuDF is of use without cuML.
    """
    return {
        owner: {name: _found(folder, owner, places, name) for name in USED.get(owner, "__init__").split()}
        for owner, places in SOURCES.items()
        if (folder / owner.partition(".")[0]).is_dir()
    }


def _found(folder: Path, owner: str, places: tuple[str, ...], name: str) -> str:
    for place in places:
        file, _, holder = place.partition(":")
        lines, decorators = (folder / file).read_text(encoding="utf-8").splitlines(), []
        inside, indent = not holder, "    " if holder else ""
        # Cython's files are no Python, but the heads of their methods are
        for at, line in enumerate(lines):
            if holder and line.startswith(("class ", "cdef class ")):
                inside = line.removeprefix("cdef ").removeprefix(f"class {holder}")[0] in "(:"
            if line.startswith(f"{indent}@"):
                decorators.append(line.strip())
            elif line.startswith(f"{indent}def "):
                if inside and line.startswith(f"{indent}def {name}("):
                    return "property" if "@property" in decorators else plain(_head(lines[at:]))
                decorators = []
            elif inside and (alias := re.match(rf"{indent}{name} = (\w+)$", line)):
                return _found(folder, owner, places, alias[1])
    raise LookupError(f"{owner} has no {name!r}: RAPIDS has changed, and fastrec calls it")


def _head(lines: list[str]) -> str:
    text = ""
    for line in lines:
        text += line.split("  #")[0] + "\n"
        if text.count("(") == text.count(")") and text.rstrip().endswith(":"):
            break
    return text.strip()


def plain(head: str) -> str:
    """Return the arguments of a function without annotations, and without the object itself."""
    made = ast.parse(f"{head} pass").body[0]
    assert isinstance(made, ast.FunctionDef)
    for arg in (*made.args.posonlyargs, *made.args.args, *made.args.kwonlyargs):
        arg.annotation = None
    return re.sub(r"^(self|cls)(, )?", "", ast.unparse(made.args))


def installed() -> Path | None:
    """Return the folder of packages that cuDF is installed in, None without it."""
    found = find_spec("cudf")
    return None if found is None or found.origin is None else Path(found.origin).parents[1]


def offered() -> dict[str, dict[str, str]]:
    """Return what RAPIDS offers: of each package what is installed, else what was recorded."""
    recorded, folder = json.loads(RECORDED.read_text(encoding="utf-8"))["names"], installed()
    return recorded if folder is None else recorded | read(folder)


if __name__ == "__main__":
    made = {"version": sys.argv[2], "names": read(Path(sys.argv[1]))}
    assert made["names"].keys() == SOURCES.keys(), f"{sys.argv[1]} lacks a package"
    RECORDED.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
