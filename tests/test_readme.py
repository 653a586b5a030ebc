"""The README's example runs as it stands (the pages of docs/: ``test_docs.py``); fastrec needs no optional library."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, flags=re.S)
OPTIONAL = """
catboost cudf cupy dask distributed faiss lightgbm mlflow numba onnx onnxruntime onnxscript optuna orjson polars
rmm sentence_transformers timm transformers
"""
# by what we ask for: fastai shows its progress by a web framework
BROUGHT = """
PIL cloudpickle fastcore fasttransform joblib markupsafe scipy sklearn starlette threadpoolctl torchvision uvicorn
"""


def test_the_readme_is_a_page_and_has_an_example_of_about_ten_lines():
    assert len(TEXT.splitlines()) <= 120
    assert len([line for line in BLOCKS[0].splitlines() if line.strip()]) <= 12


@pytest.mark.parametrize("code", BLOCKS)
def test_readme_examples_run(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a run of an earlier test would be found complete
    names: dict = {}
    exec(compile(code, "README.md", "exec"), names)
    if "learn" not in names:  # a recipe: it is made, the files are the reader's
        assert names["Census"]().metric == "auc"
        return
    learn = names["learn"]
    assert learn.recorder.metric_names[-2] == "mrr"
    assert learn.recorder.values[-1][-1] > 0.5  # the cheapest of ten is clicked; chance is .29


def imported_by(path: Path) -> set[str]:
    """The libraries that a module imports, at its top or later, by name or through ``require`` and the like."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(node.module)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("require", "import_module")):
            found |= {a.value for a in node.args[:1] if isinstance(a, ast.Constant)}
    return {name.split(".")[0] for name in found} - sys.stdlib_module_names - {"fastrec"}


def test_all_imports_without_optional_libraries():
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    needed = {re.match(r"[\w-]+", line)[0] for line in asked} | set(BROUGHT.split())
    imported = set.union(*map(imported_by, (ROOT / "fastrec").rglob("*.py")))
    assert imported - needed == set(OPTIONAL.split())  # these, all of these, and no others are blocked
    code = f"""
import sys, warnings
warnings.simplefilter("ignore")
for name in {sorted(set(OPTIONAL.split()))!r}:
    sys.modules[name] = None  # import raises ImportError
import fastrec
assert "torch" not in sys.modules and "pandas" not in sys.modules
import fastrec.all, fastrec.cli
missing = [n for n in fastrec.all.__all__ if not hasattr(fastrec.all, n)]
assert not missing, missing
from fastrec.errors import MissingPackageError
from fastrec.serve import export_run, verify_export  # an export needs no package of the server
try:
    from fastrec.serve import make_app
except MissingPackageError as error:
    assert "fastrec-tabular[serve]" in str(error), error
else:
    raise AssertionError("the server has been imported without its packages")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
