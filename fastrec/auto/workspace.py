"""``new_competition``: a folder with a recipe that a person would have written, made from files alone."""

from __future__ import annotations

import ast
import json
import keyword
import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from time import monotonic
from typing import Any

import jinja2
import numpy as np
import pandas as pd

from fastrec._core import limits
from fastrec._core.atomic import atomic_folder
from fastrec._core.threads import on_free_threads
from fastrec.auto.columns import read_files
from fastrec.auto.features import Chosen, choose_features
from fastrec.auto.models import choose_models, choose_trees, own_columns
from fastrec.auto.problem import Asked, AutoDecision, Problem, feature_key
from fastrec.auto.understand import understand
from fastrec.competition.reading import ROW_NUMBER, Reading
from fastrec.competition.recipe import Competition
from fastrec.errors import DataError
from fastrec.features import FeatureSet
from fastrec.features.base import Feature

# Text for the pages of a workspace: Python as a person lays it out; names from files, which must not become code.


def laid_out(value: Any, indent: int, *, used: int = 0) -> str:
    """Return the source of a value, broken into lines if it is long; ``used``: characters before it on its line."""
    return _node(ast.parse(repr(value), mode="eval").body, indent, indent + used)


def one_line(text: str) -> str:
    """Return text as one line: line ends and invisible characters are escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def for_docstring(text: str) -> str:
    """Escape text so that it ends neither a docstring nor its line."""
    return one_line(text).replace("\\", "\\\\").replace('"', '\\"')


def for_cell(text: str) -> str:
    """Escape text so that it does not end the cell of a Markdown table."""
    return one_line(text).replace("|", "\\|")


def as_code(text: str) -> str:
    """Return text as Markdown's code, whatever backticks it holds."""
    text = one_line(text)
    ticks = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{ticks} {text} {ticks}" if len(ticks) > 1 else f"`{text}`"


def _node(node: ast.expr, indent: int, used: int) -> str:
    flat = _quoted(ast.unparse(node))
    if used + len(flat) + 1 <= limits.CODE_WIDTH:
        return flat
    if isinstance(node, ast.Call):
        parts = [("", a) for a in node.args] + [(f"{k.arg}=", k.value) for k in node.keywords]
        return _block(f"{ast.unparse(node.func)}(", parts, ")", indent)
    if isinstance(node, ast.List | ast.Tuple):
        marks = "[]" if isinstance(node, ast.List) else "()"
        if all(isinstance(e, ast.Constant) for e in node.elts):
            return _filled(node.elts, marks, indent)
        return _block(marks[0], [("", e) for e in node.elts], marks[1], indent)
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        return _block("{", [(f"{_quoted(ast.unparse(k))}: ", v) for k, v in pairs if k is not None], "}", indent)
    return flat


def _block(opening: str, parts: Sequence[tuple[str, ast.expr]], closing: str, indent: int) -> str:
    inner = indent + 4
    lines = [f"{' ' * inner}{name}{_node(value, inner, inner + len(name))}," for name, value in parts]
    return "\n".join([opening, *lines, " " * indent + closing])


def _filled(elements: Sequence[ast.expr], marks: str, indent: int) -> str:
    inner, lines = " " * (indent + 4), [""]
    for text in (_quoted(ast.unparse(e)) for e in elements):
        if lines[-1] and len(inner) + len(lines[-1]) + len(text) + 2 > limits.CODE_WIDTH:
            lines.append("")
        lines[-1] += f"{' ' if lines[-1] else ''}{text},"
    return "\n".join([marks[0], *(inner + line for line in lines), " " * indent + marks[1]])


def _quoted(text: str) -> str:
    """Put texts in double quotation marks, if that needs no escaping."""
    return text if '"' in text or "\\" in text else text.replace("'", '"')


_PAGES = jinja2.Environment(
    loader=jinja2.PackageLoader("fastrec.auto"), keep_trailing_newline=True, undefined=jinja2.StrictUndefined
)
_PAGES.filters |= {"line": one_line, "doc": for_docstring, "cell": for_cell}
Ask = Callable[[str, str], str]
WHICH_GROUP = "Which column do the candidates of one group share?"


@dataclass
class Workspace:
    """A competition's folder that was written, with the problem as it was understood, and the chosen features."""

    folder: Path
    problem: Problem
    chosen: Chosen

    @property
    def decisions(self) -> list[AutoDecision]:
        """What was decided, and why."""
        return self.problem.decisions


def new_competition(
    folder: str | Path,
    data: str | Path,
    asked: Asked | None = None,
    *,
    ask: Ask | None = None,
    seconds: float = 60.0,
    say: Callable[[str], None] | None = None,
    **more: Any,
) -> Workspace:
    """Write a competition's folder from its files: ``competition.py``, ``README.md``, ``notebook.ipynb``.

    Args:
        folder: the folder to make, such as ``competitions/flights``.
        data: a folder in Kaggle's manner (train, test, sample submission), one with other names, or one file.
        asked: the user's settings.
        ask: called with (question, default answer) where the files leave a doubt; None: nothing is asked.
        seconds: time for trying features.
        say: called with each finding.
        more: fields of ``asked`` by name, as arguments of ``fastrec.fit``.

    Raises:
        FastrecError: the files cannot be read, there is nothing to predict, or the folder holds something else.
    """
    folder, say = Path(folder), say or (lambda text: None)
    if (folder / "competition.py").is_file():
        raise DataError("there is a recipe already", file=folder, remedy="Choose another name, or remove the folder")
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise DataError("this is something else than a competition's folder", file=folder, remedy="Choose another name")
    asked = replace(asked or Asked(), **more)
    files = read_files(Path(data), asked.log)
    problem = understand(files, asked)
    if ask is not None:
        problem = _asked(problem, ask, asked)
    for d in problem.decisions:
        say(one_line(f"{d.what}: {d.value} ({d.why}){'' if d.sure else ' - please check'}"))
    began = monotonic()
    # Of a ranking no sizes of trees are tried.
    share = 1.0 if problem.task == "ranking" else 1 - limits.TREE_TRIAL_TIME
    with on_free_threads():
        chosen = choose_features(problem, seconds=share * seconds, say=say)
        if not chosen.features and not problem.kinds("number", "category"):
            roles = {problem.group: "folds go by it", problem.lists: "the group", problem.item: "the item"}
            why = {c.name: problem.drop.get(c.name) or roles.get(c.name, c.why) for c in problem.columns[:20]}
            left_out = ", ".join(f"{n} ({reason})" for n, reason in why.items()) or "there is no column but the target"
            said = f"nothing is left to learn from: {left_out}"
            remedy = f"Add columns that tell rows{' of a group' * bool(problem.lists)} apart"
            remedy += ", or name fewer as ids= (--ids)" if asked.ids else ""
            raise DataError(said, file=files.folder / files.names["train"], remedy=remedy)
        left = max(limits.TREE_TRIAL_TIME * seconds, seconds - (monotonic() - began))
        choose_trees(problem, chosen, seconds=left, say=say)
    if files.side:  # what no feature is made from need not be read
        steps = FeatureSet(chosen.features).steps if chosen.features else []
        files.reading.tables = sorted({t for s in steps for t in s.table_inputs})
    # all pages or none: a folder with a recipe would be refused the next time
    with atomic_folder(folder) as part:
        for name, text in pages(folder, problem, chosen).items():
            (part / name).write_text(text, encoding="utf-8")
    return Workspace(folder, problem, chosen)


def _asked(problem: Problem, ask: Ask, asked: Asked) -> Problem:
    """Ask a person about unsure decisions, in the order in which answers depend on each other."""
    unsure = {d.what: d for d in problem.decisions if not d.sure}
    for what, question, usual in (
        ("target", "Which column is to be predicted?", problem.target[0]),
        ("task", "Which task is it?", problem.task),
        ("group", WHICH_GROUP, str(problem.lists)),
        ("metric", "Which metric is it scored by?", problem.metric),
    ):
        if what not in unsure or (what in ("task", "metric") and getattr(asked, what) is not None):
            continue
        said = ask(f"{question} ({unsure[what].why})", usual)
        if said != usual:
            asked = replace(asked, **{what: said})
            return _asked(understand(problem.files, asked), ask, asked)
    times = [c for c in problem.kinds("time") if problem.lists is None or c.name in problem.shared]
    for which, columns, question in (
        ("time", [c.name for c in times], "Are the rows to predict later ones? Then by which column"),
        ("group", problem.keys, "Do the rows to predict have other users, or the like? Then of which column"),
    ):
        # Not of folds that were asked for, though the test may look cut otherwise.
        known = problem.time is not None or problem.group is not None
        if columns and not known and any(d.what == "folds" and not d.sure for d in problem.decisions):
            said = ask(f"{question}? ({', '.join(columns)} or no)", "no")
            if said in columns:
                setattr(problem, which, said)
                problem.decisions = [d for d in problem.decisions if d.what != "folds"]
                problem.note("folds", which, f"by {said}, as was said")
    return problem


# The pages


def pages(folder: Path, problem: Problem, chosen: Chosen) -> dict[str, str]:
    """Return the files of a workspace: name → text."""
    name, label = folder.name, " and ".join(map(as_code, problem.target))
    ranking = problem.task == "ranking"
    about = {"title": name, "ranking": ranking, "task": problem.task, "metric": problem.metric}
    about["folder"] = folder.name if folder.is_absolute() else str(folder)
    about["target_words"] = f"which rows of each {as_code(str(problem.lists))} have {label}" if ranking else label
    recipe = _PAGES.get_template("competition.py.jinja").render(**about, **_recipe(name, problem, chosen))
    columns = [
        {**vars(c), "missing": f"{c.missing:.1%}" if c.missing else "", "name": as_code(c.name)}
        for c in problem.columns
    ]
    families = [f for f in chosen.families if f.gain is not None]
    tried = [{"name": f.name, "gain": f.figures, "kept": "yes" if f.kept else "no"} for f in families]
    decisions = []
    for d in problem.decisions:
        values = d.value if isinstance(d.value, list) else [d.value]
        value = ", ".join(map(str, values[:12])) + (" …" if len(values) > 12 else "")
        decisions.append(replace(d, value=value))
    told = {"decisions": decisions, "columns": columns[:60], "families": tried}
    told |= {"trial_rows": f"{chosen.rows:,}", "trial_metric": chosen.metric}
    readme = _PAGES.get_template("README.md.jinja").render(**about, **told)
    notebook = _notebook(name, about, problem)
    return {"competition.py": recipe, "README.md": readme, "notebook.ipynb": notebook, "__init__.py": ""}


def _recipe(name: str, problem: Problem, chosen: Chosen) -> dict[str, Any]:
    models, cats = choose_models(problem, chosen), problem.kinds("category")
    features = []
    for f in (f for f in chosen.families if f.kept and f.features):
        why = f.name if f.gain is None else f"{f.name}: a trial's {chosen.metric} {f.figures}"
        features.append({"why": why, "lines": [laid_out(g, 16) for g in f.features]})
    classes = {n for f in chosen.features for n in _classes_in(f)}
    generators = ", ".join(sorted({"FeatureSet", *classes})) if features else ""
    estimators = ", ".join(sorted({"Estimator", *(m.cls for m in models)}, key=str.lower))
    return {
        "cls": _class_name(name),
        "reading": repr(problem.files.reading) != repr(Reading()),
        "estimators": estimators,
        "generators": generators,
        "own": laid_out(own_columns(problem, chosen), 0, used=6) if any("OWN" in m.text for m in models) else "",
        "attributes": _attributes(name, problem),
        "features": features,
        "key": laid_out(key, 16) if (key := feature_key(problem)) is not None else "",
        # the categories, if they are others than texts and flags
        "categories": laid_out([c.name for c in cats], 8, used=7) if any(c.whole for c in cats) else "",
        "models": [m.text for m in models],
        "trees": f"Trees are {chosen.trees_why}." if chosen.trees_why else "",
        "doubt": chosen.doubt if any("OWN" in m.text for m in models) else "",
        "imports": sorted({m.imports for m in models if m.imports}),
    }


def _classes_in(feature: Feature) -> list[str]:
    return [type(feature).__name__, *(n for s in feature.sources if isinstance(s, Feature) for n in _classes_in(s))]


def _class_name(name: str) -> str:
    words = re.findall(r"[A-Za-z0-9]+", name)
    made = "".join(w[:1].upper() + w[1:] for w in words) or "Mine"
    return made if made.isidentifier() and not keyword.iskeyword(made) else f"Competition{made}"


def _attributes(name: str, problem: Problem) -> list[str]:
    why = {d.what: d for d in problem.decisions}
    made = [f"name = {laid_out(name, 4)}"]

    def add(what: str, value: Any, reason: str = "") -> None:
        text = laid_out(value, 4, used=len(what) + 3)
        if reason and "\n" not in text and len(f"    {what} = {text}  # {reason}") <= 120:
            made.append(f"{what} = {text}  # {reason}")
        else:
            made.extend([*comment(reason), f"{what} = {text}"])

    def comment(text: str) -> list[str]:
        return [f"# {line}" for line in textwrap.wrap(one_line(text), limits.CODE_WIDTH - 6)]

    def reason(what: str) -> str:
        d = why.get(what)
        return "" if d is None else one_line(d.why if d.sure else f"{d.why} (please check)")

    add("task", problem.task, reason("task"))
    add("metric", problem.metric, reason("metric"))
    if problem.task == "ranking":
        add("also", [m for m in ("mrr", "ndcg@10", "hit_rate@3") if m != problem.metric])
        add("list_column", problem.lists, reason("group"))
        # Where no column names the candidates, their rows are numbered.
        add("item", problem.item or ROW_NUMBER, reason("item"))
        add("label", problem.target[0], reason("target"))
        made.extend(comment(f"the log {problem.log.table}: {reason('log')}") if problem.log is not None else [])
        if not problem.as_shown:
            add("as_shown", False, reason("as_shown"))
        if problem.shared:
            told = ", ".join(problem.shared[:12]) + (" …" if len(problem.shared) > 12 else "")
            made.extend(comment(f"one for a whole group: {told}"))
    else:
        add("target", problem.target if len(problem.target) > 1 else problem.target[0], reason("target"))
    if problem.task == "binary":
        add("positive", problem.classes[-1], "the class that probabilities are of")
    if problem.scale is not None:
        add("scale", problem.scale, f"{problem.metric} counts relative errors")
    if problem.ids:
        add("ids", problem.ids, reason("ids"))
    for column, told in problem.drop.items():
        made.extend(comment(f"not learned from: {column}: {told}") if len(problem.drop) <= 12 else [])
    hidden = [c.name for c in problem.kinds("list", "text")]
    if problem.drop or hidden:
        made_of = ", ".join(hidden[:12]) + " …" * (len(hidden) > 12)
        add("drop", [*problem.drop, *hidden], f"features alone are made of {made_of}" if hidden else "")
    if problem.asked.weight is not None:
        add("weight", problem.asked.weight, "how much a row counts in training; scores count all rows alike")
    if problem.asked.counted is not None:
        add("counted", problem.asked.counted, "lists where it is 0 teach, and are not scored")
    if problem.group is not None:
        add("fold_key", problem.group, reason("folds"))
    elif problem.time is not None:
        add("time", problem.time, reason("folds"))
        if problem.last_of is not None:
            add("last_of", problem.last_of)
        if problem.mirror is not None and problem.mirror.horizon is not None:  # else folds are of as many rows
            add("time_gap", _plain(problem.mirror.gap))
            add("time_horizon", _plain(problem.mirror.horizon), "folds last as long as the test")
    else:
        made.extend(comment(f"folds: {reason('folds')}") if reason("folds") else [])
    if problem.mirror is not None and problem.mirror.folds != Competition.n_folds:
        add("n_folds", problem.mirror.folds, "more would lack rows")
    elif problem.ten_folds:
        add("n_folds", 10, "of few rows nine tenths teach more than four fifths; five folds take half the time")
    if problem.refit is not None:
        add("refit", problem.refit, "predicted by models of all rows" if problem.refit else "as was asked for")
    if repr(problem.files.reading) != repr(Reading()):
        add("reading", problem.files.reading, reason("dates"))
    return made


def _plain(value: Any) -> Any:
    """Return a number, or a duration in pandas' words, for which a recipe needs no import."""
    if isinstance(value, np.timedelta64 | timedelta):
        return str(pd.Timedelta(value)).removesuffix(" 00:00:00")
    return value.item() if hasattr(value, "item") else value


def _notebook(name: str, about: dict[str, Any], problem: Problem) -> str:
    shown = f'pd.read_csv(f"{{RUN}}/submission.csv").sort_values([{problem.lists!r}, "score"], ascending=[True, False])'
    title = f"# {one_line(name)}\n\nPredict {about['target_words']}: {about['task']}, scored by {about['metric']}."
    cells = [
        ("markdown", title),
        ("code", "from fastrec.cli import load_competition\nfrom fastrec.competition import run_competition, SavedRun"),
        ("code", 'DATA, RUN = "data", "run"  # the folder of the files, the run directory to make'),
        ("code", 'run_competition(load_competition("."), DATA, RUN, resume=True, minutes=5)'),
        ("code", 'import pandas as pd\n\npd.read_json(f"{RUN}/scores.json", typ="series")["oof"]'),
        *([("code", shown)] if about["ranking"] and not problem.ids else []),
        ("markdown", "What the report shows: open `run/report.html`. Other rows are predicted by what was saved:"),
        ("code", "saved = SavedRun(RUN)\nsaved.inputs[:5]"),
    ]
    made = [
        {"cell_type": kind, "metadata": {}, "id": f"cell{i}", "source": text.splitlines(keepends=True)}
        | ({"outputs": [], "execution_count": None} if kind == "code" else {})
        for i, (kind, text) in enumerate(cells)
    ]
    about_it = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return json.dumps({"cells": made, "metadata": about_it, "nbformat": 4, "nbformat_minor": 5}, indent=1) + "\n"
