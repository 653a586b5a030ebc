"""Commands about finished runs and versions: predict, runs, compare, try, tune, promote."""

from __future__ import annotations

import sys
import tempfile
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table as RichTable
from typer import Argument, Option

from fastrec._core import limits
from fastrec._core.messages import TableColumn
from fastrec.cli.app import (
    CompetitionFolder,
    Device,
    Json,
    RunFolder,
    Seed,
    Trust,
    app,
    own_command,
    print_json,
    readable_errors,
    show_run,
    show_table,
    trusted,
)
from fastrec.competition.run import load_competition
from fastrec.errors import DataError, MissingFileError

_RunData = Annotated[Path | None, Option(help="The run's data, to check that they are its files.")]


@app.command()
def predict(
    run: RunFolder,
    data: Annotated[Path, Option(help="The rows to predict: a file, or a folder with `test` and the other tables.")],
    out: Annotated[Path, Option(help="The file to write.")],
    device: Device = "auto",
    trust: Trust = None,
) -> None:
    """Predict rows (or sessions) with what a run holds, without the recipe's code.

    The file has the form of the run's submission: its id columns, then predictions, in the order of the data. Of a
    ranking the rows of a list stand together, lists by their ids if these are numbers: join the file by its ids.
    """
    with readable_errors() as stages:
        from fastrec._core.memory import keep_memory
        from fastrec._core.threads import on_free_threads
        from fastrec.competition.predict import predict_run

        with on_free_threads(), keep_memory():  # kept memory saves .08 of .76 ms a session
            made = predict_run(run, data, out, device=device, trust=trusted(trust), stages=stages)
        typer.echo(f"predictions {made}")


@app.command()
def embed(
    run: RunFolder,
    out: Annotated[Path | None, Option(help="Folder for `users.parquet` and `items.parquet`.")] = None,
    users: Annotated[bool, Option("--users", help="Vectors of users (of sessions).")] = False,
    items: Annotated[bool, Option("--items", help="Vectors of items. (Neither: both.)")] = False,
    data: Annotated[Path | None, Option(help="Sessions (of towers: rows): a file, or a folder with `test`.")] = None,
    similar: Annotated[str | None, Option(help="Print the items nearest to this one, by cosine.")] = None,
    k: Annotated[int, Option(min=1, help="How many.")] = 10,
    model: Annotated[str | None, Option(help="The run's model; by default its first with vectors.")] = None,
    device: Device = "auto",
    trust: Trust = None,
) -> None:
    """Write vectors of a run's users and items as Parquet: `id`, `vector`, `norm`; or print an item's nearest.

    The product of a user's vector and an item's puts items in the model's order.
    """
    with readable_errors():
        import torch

        from fastrec.competition.embed import embed_run, run_vectors

        options = {"data": data, "model": model, "device": device, "trust": trusted(trust)}
        if similar is None or out is not None:
            if out is None:
                raise DataError("there is no folder to write to", remedy="Give --out DIR, or --similar ITEM")
            sides = [n for n, asked in (("users", users), ("items", items)) if asked] or ["users", "items"]
            for path in embed_run(run, out, sides=sides, **options):  # type: ignore[arg-type] - ditto
                typer.echo(f"vectors {path}")
        if similar is not None:
            found = run_vectors(run, "items", **options)  # type: ignore[arg-type] - it says itself what it knows
            texts = [str(v) for v in found.ids.to_arrow().to_pylist()]
            if similar not in texts:
                raise DataError(f"there is no item {similar!r}", remedy=f"Such as {', '.join(texts[:5])}")
            own = found.ids.take(torch.tensor([texts.index(similar)]))
            near = found.index(metric="cosine", verbose=False).similar(own, k)
            typer.echo(near.to_pandas()[["neighbour", "score"]].to_string(index=False, float_format="%.4f"))


@app.command()
def layout(
    competition: CompetitionFolder,
    data: Annotated[Path, Option(help="Folder with the competition's files.")],
    out: Annotated[Path, Option(help="Folder to make.")],
) -> None:
    """Write the rows and tables that a recipe reads from a competition's files, as `fastrec predict` takes them."""
    with readable_errors():
        from fastrec.competition.predict import write_layout

        for path in write_layout(load_competition(competition), data, out):
            typer.echo(str(path))


@app.command()
def runs(
    folder: Annotated[Path, Argument(help="A folder of run directories.")] = Path("runs"), as_json: Json = False
) -> None:
    """List a folder's runs: score, interval, noted leaderboard score, features, seconds, git revision."""
    with readable_errors():
        from fastrec.competition.runs import list_runs

        found = list_runs(folder)
        if as_json:
            print_json(found)
            return
        columns = [
            TableColumn("run", [r.name for r in found], fold=True),
            TableColumn("competition", [r.competition for r in found], drop=2, fold=True),
            TableColumn("metric", [r.metric for r in found]),
            TableColumn("out of fold", [f"{r.score:.5f}" for r in found]),
            TableColumn("95 %", ["{:.5f} to {:.5f}".format(*r.interval) if r.interval else "" for r in found], drop=1),
            TableColumn("leaderboard", ["" if r.leaderboard is None else f"{r.leaderboard:.5f}" for r in found]),
            TableColumn("features", [str(r.features) for r in found], drop=5),
            TableColumn("seconds", [f"{r.seconds:.0f}" for r in found], drop=4),
            TableColumn("git", [r.git_revision or "" for r in found], drop=3),
        ]
        show_table(columns, None if found else f"no finished run in {folder}: give the folder of run directories")


@app.command()
def compare(
    a: RunFolder,
    b: RunFolder,
    model: Annotated[str | None, Option(help="The model to compare; by default the stack, or the blend.")] = None,
    by: Annotated[str | None, Option(help="Column of the segments.")] = None,
    as_json: Json = False,
) -> None:
    """Compare two runs on the same rows, out of fold: paired differences with 95 % intervals, by segment.

    A difference is the first run's score less the second's. The last line names the better run. Segments are the values
    of a column of the run's `rows.parquet`, or of a ranking's `lists.parquet` (`length`, `positives`, `place`,
    `touched`); of next items there is `length`.
    """
    with readable_errors():
        from fastrec.competition.runs import compare_runs

        found = compare_runs(a, b, model=model, by=by)
        names = [r.name for r in (a, b)] if a.name != b.name else [str(a), str(b)]
        if as_json:
            print_json({"a": names[0], "b": names[1], "segments": found, "sentence": found[0].sentence(*names)})
            return
        columns = [
            TableColumn("rows", [c.segment for c in found], fold=True),
            TableColumn("n", [str(c.rows) for c in found]),
            TableColumn(names[0], [f"{c.a:.5f}" for c in found], options={"min_width": 7}),
            TableColumn(names[1], [f"{c.b:.5f}" for c in found], options={"min_width": 7}),
            TableColumn("difference", [f"{c.difference.mean:+.5f}" for c in found]),
            TableColumn("95 %", [f"{c.difference.low:+.5f} to {c.difference.high:+.5f}" for c in found]),
        ]
        show_table(columns)
        whole, console = found[0], Console(highlight=False)
        way = "higher" if whole.greater_is_better else "lower"
        console.print(f"difference: {names[0]} less {names[1]}; of {whole.metric} {way} is better", markup=False)
        console.print(whole.sentence(*names), markup=False)


@app.command()
def blend(
    parts: Annotated[list[Path], Argument(help="Run directories, one at least, and files of predictions.")],
    out: Annotated[Path, Option(help="Run directory to make; an earlier run there is replaced.")],
    seed: Seed = 0,
) -> None:
    """Blend runs of one competition on the same folds, and predictions from elsewhere, by one more level of stacking.

    A file (CSV or Parquet) has the run's ids, and `fold` where it is known. It has a prediction for each test row and
    each training row that folds score. Training rows are predicted out of fold: most predictions by heart are refused.
    """
    with readable_errors() as stages:
        from fastrec.competition.blend import blend_runs

        show_run(blend_runs(parts, out, seed=seed, stages=stages, command=own_command()))


_REGISTRY = Annotated[Path, Option(help="The registry's folder.")]
_WHY = Annotated[str, Option(help="Note for the history.")]


@app.command()
def promote(
    source: Annotated[str, Argument(help="A run, an export, or a version's number.")],
    registry: _REGISTRY,
    why: _WHY = "",
    export: Annotated[bool, Option(help="Export a run too, which a server needs.")] = True,
    data: Annotated[Path | None, Option(help="A run's data, for the events so far.")] = None,
    trust: Trust = None,
) -> None:
    """Make a run, an export or an earlier version the current one, at once; a server of the registry takes it over."""
    with readable_errors("what was current still is"):
        from fastrec.registry import Registry

        folder = Registry(registry)
        if source.isdigit() and not Path(source).exists():
            now = folder.current
            if now is not None and now.number == int(source):
                typer.echo(f"version {now.number} serves already: {now.folder}")
                return
            made = folder.promote(int(source), why=why)
        # A run over a table: sessions are served by the run itself.
        elif export and (Path(source) / "decision.json").is_file():
            from fastrec.serve.export import export_run

            with tempfile.TemporaryDirectory() as beside:
                exported = export_run(source, Path(beside) / "export", data=data, trust=trusted(trust)).folder
                made = folder.promote(source, export=exported, why=why)
        else:
            made = folder.promote(source, why=why)
        typer.echo(f"version {made.number} is current: {made.folder}")


@app.command()
def rollback(registry: _REGISTRY, why: _WHY = "") -> None:
    """Make the previous version the current one again."""
    with readable_errors("what was current still is"):
        from fastrec.registry import Registry

        made = Registry(_there(registry)).rollback(why=why)
        typer.echo(f"version {made.number} is current: {made.folder}")


@app.command()
def versions(registry: _REGISTRY, as_json: Json = False) -> None:
    """List a registry's versions and what was done with them."""
    with readable_errors():
        from fastrec.registry import Registry

        found = Registry(_there(registry))
        current, previous = found.current, found.previous
        if as_json:
            print_json({"current": current, "previous": previous, "versions": found.versions, "history": found.history})
            return
        table = RichTable("version", "in use", "added", "of", "holds", "why")
        for v in found.versions:
            use = "current" if v == current else "previous" if v == previous else ""
            holds = ", ".join(n for n in ("run", "export") if getattr(v, n) is not None) or "gone"
            table.add_row(str(v.number), use, v.added, Path(v.source).name, holds, v.why)
        Console().print(table)
        for record in found.history[-20:]:
            typer.echo(f"{record['at']}  {record['what']} {record['version'] or ''}  {record['why']}".rstrip())


def _there(folder: Path) -> Path:
    from fastrec.registry import is_registry

    if not is_registry(folder):
        raise MissingFileError("there is no registry", file=folder, remedy="Promote a run into it first")
    return folder


_Model = Annotated[str | None, Option(help="Model to train; by default the best XGBoost or LightGBM.")]


@app.command(name="try")
def try_(
    on: Annotated[Path, Option(help="The run directory to try it on.")],
    file: Annotated[Path | None, Argument(help="A Python file with generators, or one function of a frame.")] = None,
    data: _RunData = None,
    drop: Annotated[list[str] | None, Option(help="A column to leave out; may be given several times.")] = None,
    model: _Model = None,
    full: Annotated[bool, Option("--full", help="Use the model's own settings, not fewer, larger steps.")] = False,
    as_json: Json = False,
) -> None:
    """Say what new columns are worth to a run, or what is lost without some of its own.

    A model is trained on the run's folds with the columns and with shuffled copies of them, over several seeds. The
    exit code is 1 if a column is a leak.
    """
    with readable_errors():
        from fastrec.trials import try_features

        # A file of features may print: standard output is for the document alone.
        with redirect_stdout(sys.stderr) if as_json else nullcontext():
            made = try_features(file, on, drop=drop or (), model=model, full=full, data=data)
        if as_json:
            print_json(made)
        else:
            Console(highlight=False, soft_wrap=True).print(str(made), markup=False)
        if made.verdict == "leak":
            raise typer.Exit(1)


@app.command()
def tries(run: RunFolder) -> None:
    """Show what was tried on a run."""
    with readable_errors():
        from fastrec.competition.kept_rows import KeptRows
        from fastrec.errors import FastrecError
        from fastrec.trials import list_tries

        found = list_tries(run)
        try:
            now = KeptRows(run).name
        except FastrecError:  # its parts are gone; what was tried is still to be seen
            now = None
        old = ["" if now in (None, t.get("rows")) else " (on an earlier run)" for t in found]
        columns = [[*t.get("columns", []), *(f"- {n}" for n in t.get("dropped", []))] for t in found]
        ends = [filter(None, [_figure(t.get("low")), _figure(t.get("high"))]) for t in found]
        shown = [
            TableColumn("when", [str(t.get("when", ""))[:16].replace("T", " ") for t in found], drop=3),
            TableColumn("columns", [", ".join(names) for names in columns], fold=True),
            TableColumn("verdict", [t.get("verdict", "") + o for t, o in zip(found, old, strict=True)], fold=True),
            TableColumn("difference", [_figure(t.get("difference")) for t in found]),
            TableColumn("98 %", [" to ".join(e) for e in ends], drop=1),
            TableColumn("file", [t.get("file") or "" for t in found], drop=2, fold=True),
            TableColumn("metric", [t.get("metric", "") for t in found], drop=4),
            TableColumn("s", [f"{t.get('seconds', 0):.1f}" for t in found], drop=5),
        ]
        show_table(shown, str(run))


@app.command()
def select(
    run: RunFolder,
    method: Annotated[str, Option(help="`null` (shuffled copies) or `permutation` (shuffled columns).")] = "null",
    model: _Model = None,
    repeats: Annotated[int, Option(min=1, help="How many shuffled copies, 9 or more.")] = 20,
) -> None:
    """Weigh every column that a run's model learns from, and say which ones it can do without."""
    with readable_errors():
        from fastrec.trials import select_features

        made = select_features(run, method=method, model=model, repeats=repeats)  # type: ignore[arg-type]
        by_chance = made.method == "null"
        heads = (made.measure, "by chance (90 %)", "p") if by_chance else (f"{made.measure} lost", "95 %", "")
        table = RichTable("column", *heads, "kept")
        for w in made.table:
            figures = f"{w.importance:.5g}", f"{w.low:.5g} to {w.high:.5g}", "" if w.p is None else f"{w.p:.3f}"
            table.add_row(w.name, *figures, "yes" if w.kept else "no")
        console = Console(soft_wrap=True, highlight=False)
        console.print(table)
        names = ", ".join(made.kept) or "no column is distinguishable from chance"
        console.print(f"kept {len(made.kept)} of {len(made.table)}: {names}", markup=False)


@app.command()
def lb(run: RunFolder, score: Annotated[float, Argument(help="The score on the leaderboard.")]) -> None:
    """Note what a run's submission scored on the leaderboard, and write the report anew."""
    with readable_errors():
        from fastrec.report import note_leaderboard, write_report

        typer.echo(f"noted {note_leaderboard(run, score)}")
        typer.echo(f"report {write_report(run)}")


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:+.5f}"


@app.command()
def tune(
    run: RunFolder,
    minutes: Annotated[float, Option(help="How long to search: enough for 20 trials or more.")],
    data: _RunData = None,
    model: Annotated[str | None, Option(help="Model to tune; by default the best trees, or the best net.")] = None,
    device: Device = "auto",
) -> None:
    """Search for better settings of a run's model, on its folds, and print the best as a line for the recipe.

    The first trial, of the run's settings, is timed, and the command says how many fit in its minutes. Trials are kept
    in `RUN.tune.db`: the same command continues from there. (It needs the extra `tune`.)
    """
    with readable_errors("the trials so far are kept, the same command goes on") as stages:
        from fastrec.tuning import tune_run

        found = tune_run(run, minutes=minutes, model=model, data=data, device=device, stages=stages)
        table = RichTable("trial", "score", "folds", "settings", title=f"{found.model} of {run}: {found.metric}")
        whole = [t for t in found.trials if not t.pruned]
        for trial in [*whole[: limits.SHOWN_TRIALS], *(t for t in whole[limits.SHOWN_TRIALS :] if t.number is None)]:
            number = "the run's" if trial.number is None else str(trial.number)
            settings = ", ".join(f"{n} {v:g}" for n, v in trial.settings.items())
            table.add_row(number, f"{trial.score:.5f}", str(trial.folds), settings or "its own")
        Console().print(table)
        pruned = sum(t.pruned for t in found.trials)
        typer.echo(f"{len(found.trials)} trials, {pruned} given up early, {found.new} new; kept in {found.storage}")
        said = "no trial is better than the run's settings"
        typer.echo(said if found.best.number is None else "the best of many is optimistic: check it on rows kept apart")
        typer.echo(found.best.line)
