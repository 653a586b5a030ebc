"""Commands to begin with: new, candidates, script, doctor."""

from __future__ import annotations

import platform
import shlex
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Column as RichColumn
from rich.table import Table as RichTable
from rich.text import Text
from typer import Argument, Option

from fastrec._core.messages import TableColumn
from fastrec._version import __version__
from fastrec.cli.app import CompetitionFolder, Device, Seed, app, readable_errors, show_table
from fastrec.competition.run import load_competition
from fastrec.errors import DataError, FastrecError

if TYPE_CHECKING:
    from fastrec.table import Table

_Target = Annotated[list[str] | None, Option("--target", "--label", help="Column to predict; repeat it for several.")]


@app.command()
def new(
    name: Annotated[Path, Argument(help="The folder to make, such as `competitions/flights`.")],
    data: Annotated[Path, Option(help="Folder with train, test and sample submission, or one file.")],
    target: _Target = None,
    metric: Annotated[str | None, Option(help="Metric, such as `auc`.")] = None,
    task: Annotated[str | None, Option(help="`ranking`, `binary`, `multiclass`, `regression` or `multilabel`.")] = None,
    group: Annotated[str | None, Option(help="Column of groups: of candidates, or whole in every fold.")] = None,
    item: Annotated[str | None, Option(help="Of a ranking: the column of candidates.")] = None,
    time: Annotated[str | None, Option(help="A column of times: folds score later rows.")] = None,
    log: Annotated[Path | None, Option(help="Of a ranking: a file of events in `--data`.")] = None,
    owner: Annotated[str | None, Option(help="Column of log and candidates: whose an event is.")] = None,
    weight: Annotated[str | None, Option(help="Column of the rows' weights in training.")] = None,
    counted: Annotated[str | None, Option(help="Of a ranking: column that is 1 for lists that are scored.")] = None,
    positive: Annotated[str | None, Option(help="Of two classes the one that probabilities are for.")] = None,
    ids: Annotated[list[str] | None, Option(help="Column not to learn from; repeat it for several.")] = None,
    refit: Annotated[bool | None, Option("--refit/--no-refit", help="Predict by models of all rows.")] = None,
    yes: Annotated[bool, Option("--yes", "-y", help="Ask nothing.")] = False,
    seconds: Annotated[float, Option(min=0, help="Time for trying features.")] = 60.0,
) -> None:
    """Read a folder of CSV or Parquet files and write the competition's recipe, README and notebook."""
    with readable_errors() as stages:
        from fastrec.auto import new_competition

        one = (target[0] if len(target) == 1 else target) if target else None
        asked = {"target": one, "metric": metric, "task": task, "group": group, "item": item, "time": time, "log": log}
        asked |= {"owner": owner, "weight": weight, "counted": counted, "ids": ids or ()}
        asked |= {"positive": positive, "refit": refit}
        made = new_competition(name, data, ask=None if yes else _ask, seconds=seconds, say=stages.say, **asked)
        typer.echo(f"recipe {made.folder / 'competition.py'}")
        where = [str(made.folder), "--data", str(made.problem.files.folder), "--out", f"runs/{made.folder.name}"]
        typer.echo(f"next   {shlex.join(['fastrec', 'run', *where, '--minutes', '5'])}")


def _ask(question: str, answer: str) -> str:
    try:
        return str(typer.prompt(question, default=answer))
    except typer.Abort:
        if sys.stdin.isatty():  # Ctrl-C
            raise
        remedy = "Give --yes to take what is likeliest, or an option that says it"
        raise DataError(f"nobody can answer: {question}", remedy=remedy) from None


@app.command()
def candidates(
    events: Annotated[Path, Option(help="The log: a row for each event.")],
    out: Annotated[Path, Option(help="Folder to make; an earlier result there is replaced.")],
    item: Annotated[str, Option(help="Column of items.")],
    user: Annotated[str | None, Option(help="Column of users: a group is a user.")] = None,
    session: Annotated[str | None, Option(help="Column of sessions: a group is a session.")] = None,
    time: Annotated[str | None, Option(help="Column of times; without it the rows are in order.")] = None,
    kind: Annotated[str | None, Option(help="Column of the events' kinds.")] = None,
    target: Annotated[list[str] | None, Option(help="Kind to predict, by default all; repeat it for several.")] = None,
    shown: Annotated[str | None, Option(help="Kind of an item that was shown.")] = None,
    test: Annotated[Path | None, Option(help="Events, or ids, of the users or sessions to rank.")] = None,
    k: Annotated[int, Option(min=1, help="Candidates a group.")] = 100,
    sources: Annotated[str | None, Option(help="Some of `next,near,knn,ease,popular,late,own`.")] = None,
    seen: Annotated[str, Option(help="A group's own items: `keep`, `drop`, or `auto`: the data decide.")] = "auto",
    cut: Annotated[str | None, Option(help="Time from which events are labels, such as 2024-03-31.")] = None,
    negatives: Annotated[int | None, Option(min=1, help="Sample this many negatives of a training group.")] = None,
    groups: Annotated[int, Option(min=1, help="Training groups, at most.")] = 20_000,
    seed: Seed = 0,
) -> None:
    """Turn a log of clicks into the files of a ranking: candidates with labels, and candidates to rank.

    Sources learn from what is before a cut; the label says which of their candidates came after it. If the log's lists
    of shown items are known, they are the candidates: `fastrec new --task ranking` takes them as they are. Candidates
    that you were given get scores by `fastrec score-candidates`.
    """
    with readable_errors() as stages:
        from fastrec.retrieval import make_candidates
        from fastrec.table import Table
        from fastrec.table.read import read_file

        options = {"time": time, "kind": kind, "targets": target or None, "shown": shown, "test": test, "cut": cut}
        options |= {"sources": None if sources is None else [n.strip() for n in sources.split(",")], "seed": seed}
        options |= {"k": k, "seen": seen, "negatives": negatives, "groups": groups, "user": user, "session": session}
        try:
            log = events if kind is not None else read_file(events)
            if kind is None:
                _say_kinds(Table.read(log), (user, session, item, time), stages.say)
            gone = int(Table.read(log, [item])[item].is_missing().sum())
            if gone:
                stages.say(f"{gone:,} events have no item, and are left out")
            with stages.stage("candidates"):
                made = make_candidates(log, item=item, **options)  # type: ignore[arg-type]
        except FastrecError as error:
            raise (error if error.column is None else error.of_file(events)) from None
        made.write(out)
        found = made.recall.to_arrow().to_pydict()
        columns = [TableColumn("source", found["source"])]
        for name, form in (("recall", ".4f"), ("gain", ".4f"), ("candidates", ".0f")):
            head = f"recall@{k}" if name == "recall" else name
            columns.append(TableColumn(head, [format(v, form) for v in found[name]], options={"justify": "right"}))
        show_table(columns)
        some = f"{round(made.found * made.groups)} of {made.groups} groups: {made.found:.1%} have a positive"
        typer.echo(f"train {len(made.train)} candidates of {some}")
        typer.echo(f"test  {len(made.test)} candidates of {made.asked} groups")
        own = "are" if made.seen else "are no"
        typer.echo(f"{made.repeats:.1%} of positives are repeats: a group's own items {own} candidates (--seen)")
        where = ["--data", str(out), "--task", "ranking", "--group", made.group, "--item", made.item]
        typer.echo(f"next   {shlex.join(['fastrec', 'new', 'competitions/mine', *where, '--target', made.label])}")


def _say_kinds(log: Table, known: Collection[str | None], say: Callable[[str], None]) -> None:
    """Name the columns that may be kinds of events: few texts, several of them in one group."""
    import torch

    from fastrec._core import limits
    from fastrec.table.keys import is_text

    group = next((n for n in known if n in log), None)
    for name in (n for n in log.names if n not in known and group is not None):
        column = log[name]
        if column.kind != "category" or not is_text(column.distinct.type):
            continue
        values = sorted(column.distinct.to_pylist())
        if not 1 < len(values) <= limits.FEW_CLASSES:
            continue
        there = column.values > 0
        numbers = log[group].coded().codes[there]  # a group that is missing is refused where the log is read
        pairs = torch.unique(numbers * (len(values) + 1) + column.values[there])
        if len(pairs) > len(torch.unique(numbers)):
            options = shlex.join(["--kind", name, "--target", values[0]])
            say(f"column {name!r} has the values {', '.join(values)}: give {options} if only some are to be predicted")


@app.command("score-candidates")
def score_given_candidates(
    candidates: Annotated[Path, Option(help="Labelled candidates, one a row.")],
    events: Annotated[Path, Option(help="The log: a row for each event, in any order.")],
    out: Annotated[Path, Option(help="Folder to make; an earlier result there is replaced.")],
    user: Annotated[str, Option(help="Column of users.")],
    item: Annotated[str, Option(help="Column of items.")],
    label: Annotated[str, Option(help="Column of the candidates' labels.")] = "label",
    group: Annotated[str | None, Option(help="Column of lists; without it a user has one list.")] = None,
    kind: Annotated[str | None, Option(help="Column of the events' kinds.")] = None,
    target: Annotated[list[str] | None, Option(help="Kind of which events may be hidden; repeat it.")] = None,
    rating: Annotated[str | None, Option(help="Column of the events' ratings.")] = None,
    test: Annotated[Path | None, Option(help="Candidates to rank, in the same form without labels.")] = None,
    hide: Annotated[int, Option(min=0, help="Lists to make of each user by hiding an event.")] = 4,
    seed: Seed = 0,
) -> None:
    """Score given candidates by what a log says of users and items, and make more lists to learn from."""
    with readable_errors() as stages:
        from fastrec.retrieval import score_candidates

        about = {"user": user, "item": item, "label": label, "group": group, "kind": kind, "targets": target}
        with stages.stage("candidates"):
            made = score_candidates(candidates, events, **about, rating=rating, test=test, hide=hide, seed=seed)
        made.write(out)
        found = made.scores.to_arrow().to_pydict()
        mrr = TableColumn("mrr", [f"{v:.4f}" for v in found["mrr"]], options={"justify": "right"})
        show_table([TableColumn("score", found["score"]), mrr])
        problem = f"train {len(made.train)} candidates of {made.lists} lists and {made.hidden} made by hiding an event"
        typer.echo(problem)
        if made.test is not None:
            typer.echo(f"test  {len(made.test)} candidates")
        where = ["--data", str(out), "--task", "ranking", "--group", made.group, "--item", made.item]
        where += ["--target", made.label, "--weight", "weight", "--counted", "counted"]
        typer.echo(f"next   {shlex.join(['fastrec', 'new', 'competitions/mine', *where])}")


@app.command("script")
def write_offline_script(
    competition: CompetitionFolder,
    out: Annotated[Path, Option(help="Folder to make; an earlier script there is replaced.")],
    wheels: Annotated[bool, Option(help="Let pip download all packages into `wheels/` beside the script.")] = True,
    seed: Seed = 0,
    minutes: Annotated[float | None, Option(help="Time budget of the script; `--minutes` changes it.")] = None,
) -> None:
    """Write `submit.py`: input folder to `submission.csv` in one file, offline, for a kernel without internet."""
    with readable_errors() as stages:
        from fastrec.competition.offline_script import write_script

        recipe = type(load_competition(competition))
        made = write_script(competition, recipe, out, wheels=wheels, seed=seed, minutes=minutes, stages=stages)
        typer.echo(f"script {made}")


_OK, _BAD, _ABSENT = Text("ok", "green"), Text("wrong", "bold red"), Text("absent", "yellow")


@app.command()
def doctor(device: Device = "auto") -> None:
    """Say versions, device, threads, memory and optional parts, and carry a small competition out from end to end.

    The exit code is 1 where the self-test fails, or a package is older than it may be.
    """
    with readable_errors() as stages:
        from fastrec._core.environment import installed_version, is_older, machine, required
        from fastrec.competition.self_test import self_test

        console = Console()
        versions, sound = RichTable("package", "version", "at least", ""), True
        versions.add_row("fastrec", __version__, "", "")
        versions.add_row("python", platform.python_version(), "3.11", _OK)
        for name, floor in required().items():
            found = installed_version(name)
            good = found is not None and not is_older(found, floor)
            sound &= good
            versions.add_row(name, found or "none", floor, _OK if good else _BAD)
        about = RichTable("machine", "", title_justify="left")
        for name, said in machine(device).items():
            about.add_row(name, Text(said))
        parts, remedies = _parts()
        for table in (versions, about, parts):
            console.print(table)
        for remedy in remedies:  # outside the table, whole: it is there to be copied
            console.print(f"  {remedy}", soft_wrap=True, markup=False, highlight=False)
        checks = self_test(device=device, stages=stages)
        tests = RichTable("self-test", "", "", "seconds")
        for check in checks:
            tests.add_row(check.name, _OK if check.ok else _BAD, Text(check.said), f"{check.seconds:.1f}")
        console.print(tests)
        if not sound or not all(c.ok for c in checks):
            raise typer.Exit(1)


def _parts() -> tuple[RichTable, list[str]]:
    """Return a table of the optional parts, and the commands that install the absent ones."""
    from fastrec._core.environment import PARTS, install_command, installed_version, is_older, required

    table, remedies = RichTable(*(RichColumn(h, overflow="fold") for h in ("optional part", "gives", "", ""))), []
    for extra, gives in PARTS.items():
        floors = required(extra)
        found = {n: installed_version(n) for n in floors}
        lacking = [n for n, v in found.items() if v is None or is_older(v, floors[n])]
        there = Text(", ".join(f"{n} {v}" for n, v in found.items() if v is not None))
        remedies += [install_command(extra)] if lacking else []
        table.add_row(extra, gives, _ABSENT if lacking else _OK, Text() if lacking else there)
    return table, remedies
