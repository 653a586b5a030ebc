"""The ``fastrec`` command: simulate, run, check, score, report; ``runs.py`` has what concerns finished runs."""

from __future__ import annotations

import inspect
import json
import shlex
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from typer import Argument, Option

from fastrec._core.fresh_process import owns_process
from fastrec._core.messages import TableColumn, plain, terminal_table
from fastrec._version import __version__
from fastrec.competition.run import load_competition, load_module
from fastrec.errors import DataError, DataWarning, FastrecError, MissingColumnError

if TYPE_CHECKING:
    from fastrec.competition.forms.rows import SubmissionForm
    from fastrec.competition.recipe import Competition


app = typer.Typer(
    help="Tabular and recommender competitions: raw logs in, a scored and ranked submission out.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)

# Options that several commands have, each with the same words.
CompetitionFolder = Annotated[Path, Argument(help="A competition's folder, such as `competitions/trivago2019`.")]
Device = Annotated[str, Option(help="`auto` (a GPU where there is one), `cpu` or `cuda`.")]
Every = Annotated[str, Option(help="`hour`, `day`, `week`, or `value`: each value is a period.")]
RunFolder = Annotated[Path, Argument(help="A run directory.")]
Seed = Annotated[int, Option(min=0, help="Seed of all random draws.")]
Trust = Annotated[list[str] | None, Option(help="A module of your own generators or estimators to import.")]
Json = Annotated[bool, Option("--json", help="Print one JSON document instead, for programs.")]
_Submission = Annotated[Path, Argument(help="The submission.")]
_FormOf = Annotated[Path | None, Option("--competition", help="A competition's folder: the form is its recipe's.")]
_RunOf = Annotated[Path | None, Option("--run", help="A run directory: the form is its recipe's.")]


@app.callback(invoke_without_command=True)
def _main(
    version: Annotated[bool, Option("--version", help="Print the version and stop.", is_eager=True)] = False,
) -> None:
    if version:
        typer.echo(f"fastrec {__version__}")
        raise typer.Exit


@app.command()
def run(
    competition: CompetitionFolder,
    data: Annotated[Path, Option(help="Folder with the competition's files.")],
    out: Annotated[Path, Option(help="Run directory to make; an earlier run there is replaced at the end.")],
    device: Device = "auto",
    rows: Annotated[int | None, Option(min=1, help="Use only about this many rows of the training log.")] = None,
    seed: Seed = 0,
    bs: Annotated[int | None, Option(min=1, help="Batch size of the nets, in rows; up to the whole set.")] = None,
    resume: Annotated[bool, Option(help="Continue an interrupted run; keep parts to continue from.")] = True,
    minutes: Annotated[float | None, Option(min=0.05, help="Wall time; the first models come first.")] = None,
    ranks: Annotated[int, Option(min=1, help="Processes that train each net together, one per GPU.")] = 1,
    scheduler: Annotated[str | None, Option(help="Dask cluster for features: `tcp://host:8786` or `local:N`.")] = None,
) -> None:
    """Make features, train the base models and the stack, write the submission, the scores and the report."""
    options = {"device": device, "rows": rows, "seed": seed, "bs": bs, "resume": resume, "ranks": ranks}
    _run(lambda: load_competition(competition), data, out, minutes=minutes, scheduler=scheduler, **options)


def main() -> None:
    """Run the ``fastrec`` command."""
    owns_process()
    app()


def script(recipe: type[Competition]) -> None:
    """Run a recipe with the options of ``fastrec run``: what a competition's file does when it is a plain script.

    Args:
        recipe: the recipe's class.
    """
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown")

    def run_recipe(**options: Any) -> None:
        _run(recipe, **options)

    # Its options are those of `run`, the competition aside: Typer reads them from signature and annotations.
    signature = inspect.signature(run, eval_str=True)
    options = [p for p in signature.parameters.values() if p.name != "competition"]
    run_recipe.__signature__ = signature.replace(parameters=options)  # type: ignore[attr-defined]
    run_recipe.__annotations__ = {p.name: p.annotation for p in options}
    what = f"{recipe.name}: make features, train the models and the stack, write submission and report."
    alone.command(help=what)(run_recipe)
    owns_process()
    alone()


def _run(recipe: Callable[[], Competition], data: Path, out: Path, *, minutes: float | None, **options: Any) -> None:
    began = time.monotonic()  # before the libraries are loaded
    kept: list[bool] = []  # known when the recipe is loaded

    def stopped() -> str:
        return "the same command goes on from what is finished" if any(kept) else "nothing was written"

    with readable_errors(stopped) as stages:
        from fastrec._core.memory import keep_memory
        from fastrec.competition import run as library
        from fastrec.competition.budget import Budget

        # The allocator keeps freed memory: steps of a run ask for the same sizes again.
        with keep_memory():
            options["minutes"] = None if minutes is None else Budget(minutes, began=began)
            loaded = recipe()
            kept.append(bool(options.get("resume")) and loaded._kind.keeps_parts)
            made = library.run_competition(loaded, data, out, stages=stages, command=own_command(), **options)
        show_run(made)


@app.command()
def simulate(
    competition: CompetitionFolder,
    sessions: Annotated[int, Option("--sessions", "--rows", min=1, help="Sessions (rows) of train and test.")],
    out: Annotated[Path, Option(help="Folder to make; an earlier simulation there is replaced.")],
    seed: Seed = 0,
) -> None:
    """Write files in the competition's official form, with ground truth and the true click probabilities."""
    with readable_errors() as stages:
        module = load_module(competition, "simulate.py")
        with stages.stage("simulate", sessions, unit="sessions") as advance:
            before = 0

            def progress(done: int, total: int) -> None:
                nonlocal before
                advance(done - before)
                before = done

            summary = module.simulate(sessions, out, seed=seed, progress=progress)
        for name, value in vars(summary).items():
            typer.echo(f"{name} {value:.5g}" if isinstance(value, float) else f"{name} {value}")


@app.command()
def check(
    submission: _Submission,
    test: Annotated[Path, Argument(help="The competition's test file.")],
    competition: _FormOf = None,
    run: _RunOf = None,
) -> None:
    """Check a submission's form: the official columns, exactly the rows of the test file or the sample submission."""
    with readable_errors():
        from fastrec.competition.forms.check import check_submission

        form, about = _form(submission, competition, run)
        any_order = not form.items and about.get("task") == "ranking"
        metric = about.get("metric") if about.get("task") == "binary" else None  # of more classes a form may hold names
        typer.echo(str(check_submission(submission, test, form, any_order=any_order, metric=metric)))


@app.command()
def score(
    submission: _Submission,
    truth: Annotated[Path, Argument(help="The ground truth.")],
    competition: _FormOf = None,
    run: _RunOf = None,
) -> None:
    """Score a submission by the competition's metric; the last line is its name and the score."""
    with readable_errors():
        from fastrec.competition.forms.check import score_submission

        form, about = _form(submission, competition, run)
        task, target = about.pop("task", None), about.pop("target", None)
        if not form.items and task != "ranking":
            try:
                about["target"] = target(truth)
            except FastrecError as error:
                raise error.of_file(truth) from None
        typer.echo(str(score_submission(submission, truth, form, **about)))


# Typer shows it as their help, which says where the form comes from.
for _command in (check, score):
    _command.__doc__ = f"""{_command.__doc__}

The form is that of --competition or --run; without them that of the run directory in which the submission lies;
elsewhere that of the RecSys Challenge 2019."""


def _form(submission: Path, competition: Path | None, run: Path | None) -> tuple[SubmissionForm, dict[str, Any]]:
    """Return the form, and the task, metric and columns of the recipe or the run; the target by the truth's file."""
    from fastrec._core.atomic import read_json
    from fastrec.competition.forms.lists import RECSYS2019, form_of_run, ranking_form, run_around
    from fastrec.competition.forms.values import sample_form
    from fastrec.table import Table
    from fastrec.table.read import csv_header, read_file
    from fastrec.validate import Target

    if competition is not None and run is not None:
        raise DataError("--competition and --run were both given", remedy="Give one of them")
    if competition is None:
        run = run or run_around(submission)
        if run is not None:
            form, config = form_of_run(run), read_json(run / "config.json")
            about = {n: config.get(n) for n in ("task", "metric", "label")} | {"lists": config.get("list_column")}
            return form, {**about, "target": lambda _: Target.load(run / "target")}
        header = csv_header(submission)
        if (absent := next((n for n in RECSYS2019.header if n not in header), None)) is not None:
            problem = "no run directory says the file's form, and that of the RecSys Challenge 2019 has this column"
            remedy = "Give --run RUN or --competition FOLDER, whose form the file has"
            raise MissingColumnError(problem, file=submission, column=absent, remedy=remedy)
        return RECSYS2019, {}
    recipe = load_competition(competition)
    about = {"task": recipe.task, "metric": recipe.metric, "label": recipe.label, "lists": recipe.list_column}
    about["target"] = lambda truth: recipe.find_target(Table.read(read_file(truth)))
    if recipe.submission is not None:
        return recipe.submission, about
    if recipe.task == "ranking":
        return ranking_form(submission, recipe.list_column, recipe.item, recipe.ids), about
    return sample_form(submission, recipe.ids), about


@app.command()
def report(run_directory: RunFolder, as_json: Json = False) -> None:
    """Write a run's report.html anew and print its leaderboard."""
    with readable_errors():
        from fastrec.report.page import write_report
        from fastrec.report.text import leaderboard_figures

        path = write_report(run_directory)
        if as_json:
            print_json({"report": path, **leaderboard_figures(run_directory)})
        else:
            show_run(run_directory, submission=False)


def show_run(run: Path, *, submission: bool = True) -> None:
    """Print a run's leaderboard, and where its submission and its report are."""
    from fastrec.report.text import leaderboard_table

    console = Console()
    console.print(leaderboard_table(run, width=console.width))
    if submission:
        typer.echo(f"submission {run / 'submission.csv'}")
    typer.echo(f"report {run / 'report.html'}")


def show_table(columns: Sequence[TableColumn], title: str | None = None) -> None:
    """Print a table that fits the terminal."""
    console = Console()
    console.print(terminal_table(columns, console.width, title=title))


def own_command() -> str:
    """Return the command that this process was started by."""
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])


def print_json(found: Any) -> None:
    """Print results as one JSON document, as ``plain`` makes it."""
    typer.echo(json.dumps(plain(found), indent=1, ensure_ascii=False, allow_nan=False))


def trusted(modules: list[str] | None) -> tuple[str, ...]:
    """Return modules that a user trusts; they are searched in the current folder too."""
    if modules and "" not in sys.path:
        sys.path.insert(0, "")
    return tuple(modules or ())


@contextmanager
def readable_errors(stopped: str | Callable[[], str] = "nothing was written") -> Iterator[Any]:
    """Show errors as one line (exit code 1), data warnings as lines, Ctrl-C (130) and SIGTERM (143) as a word."""
    from fastrec._core.progress import Stages

    stages = Stages()

    def show(message: Any, category: type[Warning], *rest: Any, **options: Any) -> None:
        if issubclass(category, DataWarning):
            stages.say(f"warning: {message}")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", DataWarning)
        warnings.showwarning = show
        try:
            with _stopping_at_sigterm():
                yield stages
        except KeyboardInterrupt as error:
            typer.echo(f"stopped; {stopped if isinstance(stopped, str) else stopped()}", err=True)
            raise typer.Exit(143 if isinstance(error, _Terminated) else 130) from None
        except Exception as error:
            said = " ".join(str(error).splitlines()) if isinstance(error, FastrecError) else _out_of_memory(error)
            if said is None:
                raise
            typer.echo(f"error: {said}", err=True)
            raise typer.Exit(1) from None


class _Terminated(KeyboardInterrupt):
    """SIGTERM has come."""


@contextmanager
def _stopping_at_sigterm() -> Iterator[None]:
    """Raise at the first SIGTERM, unless it has another handler; a second one ends the process as ever."""
    alone = threading.current_thread() is threading.main_thread()
    if not alone or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def stop(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise _Terminated

    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _out_of_memory(error: Exception) -> str | None:
    """Describe an error of memory in one line: the innermost stage, and its own text; None: it is another error."""
    if not isinstance(error, MemoryError):
        if "torch" not in sys.modules:  # no library is loaded where there is no room
            return None
        from fastrec._core.memory import is_out_of_memory

        if not is_out_of_memory(error):
            return None
    from fastrec._core.progress import STAGE_NOTE

    notes = [n.removeprefix(STAGE_NOTE) for n in getattr(error, "__notes__", ()) if n.startswith(STAGE_NOTE)]
    where = f" in the stage '{notes[0]}'" if notes else ""
    said = " ".join(str(error).split())
    return f"out of memory{where}{f' ({said})' if said else ''}; nothing was written. Give fewer rows, or more memory."
