"""``run_competition``: a competition's recipe carried out, from its files to a complete run directory."""

from __future__ import annotations

import datetime as dt
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from fastai.torch_core import set_seed
from safetensors import SafetensorError
from xgboost.core import XGBoostError

from fastrec._core.atomic import atomic_folder, is_plain_name
from fastrec._core.device import DeviceLike, resolve_device
from fastrec._core.progress import Stages
from fastrec.competition.recipe import Candidates, Competition
from fastrec.competition.write import write_ranked
from fastrec.errors import DataError, WriteError
from fastrec.metrics import reciprocal_ranks
from fastrec.report import write_report
from fastrec.table import Table
from fastrec.validate import CrossFit, Lists, Predictions, group_folds

FOLDS = 5
_PACKAGES = ("fastrec-tabular", "torch", "fastai", "xgboost", "pyarrow", "pandas", "numpy")


def run_competition(
    competition: Competition,
    data: str | Path,
    out: str | Path,
    *,
    device: DeviceLike = "auto",
    rows: int | None = None,
    seed: int = 0,
    bs: int | None = None,
    stages: Stages | None = None,
    command: str | None = None,
) -> Path:
    """Carry a recipe out: features, base models, stack, submission, scores and report.

    Args:
        competition: the recipe.
        data: the folder of the competition's files.
        out: the run directory to make; an earlier run there is replaced when this one is complete, and not before.
        device: where to compute; ``'auto'`` takes CUDA where there is one.
        rows: use only about this many rows of the training log.
        seed: of everything random.
        bs: the nets' batch size in candidates; None: the recipe's.
        stages: progress; None: shown on standard error.
        command: what to note as the command in ``config.json``.

    Returns:
        The run directory.

    Raises:
        FastrecError: something in the data or the place to write to is not usable; nothing is left half written.
    """
    data, out = Path(data), Path(out)
    check_run_folder(out)
    check_models(competition, bs)
    started = _now()
    where = resolve_device(device)
    stages = stages or Stages()
    set_seed(seed)
    with stages.stage("read") as advance:
        found = competition.load(data, rows=rows, device=where)
        advance(len(found.train) + len(found.test))
    check_candidates(competition, found)
    result = _Run(competition, found, where, seed, bs, stages)
    result.fit()
    with atomic_folder(out) as part, _refusals_as_errors(out):
        with stages.stage("write"):
            about = {
                "started": started,
                "command": command,
                "data": data.resolve().name,
                "rows": rows,
                "seed": seed,
                "bs": bs,
            }
            result.write(part, {k: v for k, v in about.items() if v is not None})
        result.write_scores(part)
        write_report(part, name=out.resolve().name)
    return out


class _Run:
    """One run's state, from candidates to files."""

    def __init__(
        self, recipe: Competition, found: Candidates, device: torch.device, seed: int, bs: int | None, stages: Stages
    ):
        self.recipe, self.found, self.device, self.seed, self.bs, self.stages = recipe, found, device, seed, bs, stages
        self.features = recipe.features()
        self.folds = group_folds(found.train, recipe.fold_key, FOLDS).cpu()
        self.predictions: dict[str, Predictions] = {}
        self.stack_scores: dict[str, float] = {}
        self.train: Lists
        self.test: Lists

    def fit(self) -> None:
        found, recipe, stages = self.found, self.recipe, self.stages
        with stages.stage("features", len(found.train) + len(found.test)) as advance:
            # The training rows are for baselines and the report; models see each outer fold's own, made below.
            train, pairs = self.features.fit_transform_folds(
                found.train, self.folds.to(found.train.device), tables=found.tables, unlabeled=found.test
            )
            advance(len(train))
            test = self.features.transform(found.test, tables=found.tables)
            advance(len(test))
        self.train, self.test = self._lists(train), self._lists(test)
        rules, models = recipe.baselines(), recipe.models(bs=self.bs)
        cross = CrossFit([*rules, *models], len(train), len(test), seed=self.seed, device=self.device)
        with stages.stage("models", FOLDS * len(models) * len(train) * (FOLDS - 1) // FOLDS) as advance:
            trained = {r.name for r in models}
            cross.advance = advance
            for k, (outside, inside) in enumerate(pairs):
                rows = (self.folds == k).nonzero().squeeze(1)
                cross.fold(self._lists(outside), self._lists(inside), rows, self.test)
        self.predictions = cross.finish()
        with stages.stage("stack", len(train)) as advance:
            base = [p for n, p in self.predictions.items() if n in trained]
            made, self.stack_scores = recipe.stack().fit(
                base, self.train, self.folds, self.test, counted=self._counted(), seed=self.seed
            )
            self.predictions["stack"] = made
            advance(len(train))

    def _lists(self, table: Table) -> Lists:
        recipe = self.recipe
        groups = table[recipe.list_column].integer().cpu()
        label = table[recipe.label].number().cpu() if recipe.label in table else None
        weight = table[recipe.weight].number().cpu() if recipe.weight and label is not None else None
        cats, conts = list(recipe.categories), self._numbers
        return Lists(table, groups, cats=cats, conts=conts, label=label, weight=weight)

    @property
    def _features(self) -> list[str]:
        """All that the models see."""
        return [*self.recipe.categories, *self._numbers]

    @property
    def _numbers(self) -> list[str]:
        """The columns that are number features."""
        cats = set(self.recipe.categories)
        return [n for n in dict.fromkeys([*self.recipe.plain, *self.features.outputs]) if n not in cats]

    def _counted(self) -> torch.Tensor:
        column = self.recipe.counted
        return self.train.table[column].integer().cpu() > 0 if column else torch.ones(len(self.train), dtype=torch.bool)

    # Writing ---------------------------------------------------------------------------------------------------------

    def write(self, part: Path, about: Mapping[str, Any]) -> None:
        """Everything but scores and report."""
        self.features.save(part / "features")
        for name, made in self.predictions.items():
            for k, model in enumerate(made.models):
                model.save(part / "models" / name / f"fold{k}")
        for split, lists in (("oof", self.train), ("test", self.test)):
            (part / split).mkdir()
            for name, made in self.predictions.items():
                self._write_scores_of(
                    part / split / f"{name}.parquet", lists, made.oof if split == "oof" else made.test
                )
        pq.write_table(self._list_table(), part / "lists.parquet")
        curves = {n: p.curves for n, p in self.predictions.items() if p.curves}
        importance = {n: p.importance for n, p in self.predictions.items() if p.importance}
        _write_json(part / "curves.json", curves)
        _write_json(part / "importance.json", importance)
        _write_json(part / "config.json", self._config(about))
        items, scores = self.test.table[self.recipe.item].to_arrow(), self.predictions["stack"].test
        keys, form = self.found.targets.to_arrow(), self.recipe.submission
        write_ranked(part / "submission.csv", keys, items, scores, self.test.groups, form)

    def write_scores(self, part: Path) -> None:
        """``scores.json``."""
        lists = pq.read_table(part / "lists.parquet").to_pandas()
        names = list(self.predictions)
        means = {s: lists[lists.split == s][[f"rr_{n}" for n in names]].mean() for s in ("test", "oof")}
        known = self.found.truth is not None
        scores = {
            "metric": "mrr",
            "models": {n: float(means["test"][f"rr_{n}"]) for n in names} if known else {},
            "oof": {n: float(means["oof"][f"rr_{n}"]) for n in names},
            "oracle": self.found.oracle,
            "stack_tried": self.stack_scores,
            "seconds": {n: round(s, 3) for n, s in self.stages.seconds.items()},
            "transductive": self.features.transductive,
            "rows": {
                "train candidates": len(self.train),
                "test candidates": len(self.test),
                "train lists": len(torch.unique(self.train.groups)),
                "test lists": len(self.found.targets),
                "features": len(self._features),
            },
        }
        _write_json(part / "scores.json", scores)

    def _write_scores_of(self, path: Path, lists: Lists, scores: torch.Tensor) -> None:
        recipe = self.recipe
        path.parent.mkdir(parents=True, exist_ok=True)
        columns = {
            recipe.list_column: lists.groups.numpy(),
            recipe.item: lists.table[recipe.item].to_arrow(),
            "score": scores.numpy(),
        }
        if lists.label is not None:
            columns |= {"fold": self.folds.numpy(), recipe.label: lists.label.numpy()}
        pq.write_table(pa.table(columns), path)

    def _list_table(self) -> pa.Table:
        """One row per list that scores are about: length, whether its answer was touched before, reciprocal ranks."""
        oof = self._list_rows("oof", self.train, self.train.label, self._counted())
        truth = self.found.truth
        return pa.concat_tables(
            [oof, self._list_rows("test", self.test, truth, torch.ones(len(self.test), dtype=torch.bool))]
        )

    def _list_rows(self, split: str, lists: Lists, label: torch.Tensor | None, rows: torch.Tensor) -> pa.Table:
        groups = lists.groups[rows]
        ids, codes, length = torch.unique_consecutive(groups, return_inverse=True, return_counts=True)
        first = torch.cumsum(length, 0) - length
        key = lists.table[self.recipe.fold_key].take(rows.nonzero().squeeze(1)[first])
        columns: dict[str, Any] = {
            "split": pa.array([split] * len(ids), pa.string()),
            "fold_key": key.to_arrow().cast(pa.large_string()),
            "length": length.numpy(),
        }
        touched = torch.zeros(len(ids), dtype=torch.bool)
        if label is not None and self.recipe.touched is not None:
            known = (lists.table[self.recipe.touched].number().cpu()[rows] > 0) & (label[rows] > 0)
            touched[codes[known]] = True
        columns["touched"] = pa.array(touched.numpy(), mask=np.full(len(ids), label is None))
        for name, made in self.predictions.items():
            scores = made.oof if split == "oof" else made.test
            if label is None:
                columns[f"rr_{name}"] = np.full(len(ids), np.nan)
            else:  # ties as submitted: by display order
                columns[f"rr_{name}"] = reciprocal_ranks(scores[rows], label[rows], groups, ties="ordinal")[1].numpy()
        return pa.table(columns)

    def _config(self, about: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "competition": self.recipe.name,
            **about,
            "device": str(self.device),
            "folds": FOLDS,
            "test_predictions": "mean of the folds' models",
            "finished": _now(),
            "python": platform.python_version(),
            "machine": f"{platform.system()} {platform.machine()}, {torch.get_num_threads()} threads",
            "versions": {p: _version(p) for p in _PACKAGES},
            "git_revision": _git_revision(type(self.recipe)),
            "features": self._features,
            "submission": self.recipe.submission.to_state(),
        }


def check_candidates(recipe: Competition, found: Candidates) -> None:
    """Refuse test lists that no submission can be made of. (Found before hours of training, not after.)

    Raises:
        DataError: an item is listed twice in one test list, or there is not one target per test list.
        MissingColumnError: the test table lacks the lists or the items.
    """
    test = found.test
    lists = test[recipe.list_column].integer().cpu()
    count = len(torch.unique(lists))
    if count != len(found.targets):
        raise DataError(
            f"{recipe.name}: {count} test lists, but {len(found.targets)} targets",
            column=recipe.list_column,
            remedy="Give one target per test list, in the order of the lists",
        )
    pairs = torch.stack([lists, test[recipe.item].coded().codes.cpu()], 1)
    _, codes = torch.unique(pairs, dim=0, return_inverse=True)
    order = torch.argsort(codes, stable=True)
    again = order[1:][codes[order][1:] == codes[order][:-1]]
    if len(again):
        row = int(again.min())
        raise DataError(
            f"{recipe.name}: the item stands in the test list {int(lists[row])} twice",
            column=recipe.item,
            row=row,
            remedy="Keep one candidate per item and list",
        )


def check_models(recipe: Competition, bs: int | None) -> None:
    """Refuse models whose names are not names of files in a run directory. (Found before hours of training, not after.)

    Raises:
        DataError: naming the model.
    """
    for name in [r.name for r in (*recipe.baselines(), *recipe.models(bs=bs))]:
        if not (isinstance(name, str) and is_plain_name(name)):
            raise DataError(
                f"{recipe.name}: the model's name {name!r} cannot be that of a folder",
                remedy="Use letters, digits and _",
            )


def check_run_folder(out: Path) -> None:
    """Refuse to replace a folder that is not an earlier run.

    Raises:
        DataError: ``out`` is a file, or a folder with something else in it.
        WriteError: the folder around it cannot be written to. (Found before hours of training, not after.)
    """
    above = next(p for p in Path(os.path.abspath(out)).parents if p.exists())
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise WriteError(
            f"could not be written ({above} is not a folder to write to)", file=out, remedy="Choose another --out"
        )
    if out.is_file():
        raise DataError("this is a file, not a run directory", file=out, remedy="Choose another --out")
    if out.is_dir() and any(out.iterdir()) and not (out / "scores.json").exists():
        raise DataError(
            "the folder holds something that is not a run", file=out, remedy="Choose another --out, or empty it"
        )


@contextmanager
def _refusals_as_errors(out: Path) -> Iterator[None]:
    """XGBoost and safetensors raise classes of their own where the file system refuses."""
    try:
        yield
    except (XGBoostError, SafetensorError) as error:
        raise WriteError(
            "could not be written (the file system refused a model's or a feature's file)",
            file=out,
            remedy="Free disk space or choose another place; what was there before is untouched",
        ) from error


def _now() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False), encoding="utf-8")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git_revision(recipe: type[Competition]) -> str | None:
    """The revision of the workspace that the recipe is in."""
    file = getattr(sys.modules.get(recipe.__module__), "__file__", None)
    folder = Path(file).resolve().parent if file else Path.cwd()
    try:
        done = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, timeout=5, cwd=folder
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
