"""``fastrec monitor``: new rows beside old ones. ``fastrec event-metrics``: what people did with served lists."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from fastrec._core import limits
from fastrec.cli.app import Device, Every, Seed, Trust, app, readable_errors, trusted
from fastrec.competition.run import load_competition
from fastrec.errors import DataError


@app.command("event-metrics")
def event_metrics(
    served: Annotated[Path, Argument(help="Lists: a row per shown item, or per request.")],
    clicks: Annotated[Path, Argument(help="Clicks: request and item.")],
    request: Annotated[str, Option(help="Column of both with the request's id.")] = "request_id",
    item: Annotated[str, Option(help="Column of both with the item.")] = "item_id",
    time: Annotated[str | None, Option(help="Column of the lists' times.")] = None,
    every: Every = "day",
    segment: Annotated[str | None, Option(help="Column of the lists' segments.")] = None,
    k: Annotated[int | None, Option(min=1, help="Count the first places only.")] = None,
    json: Annotated[Path | None, Option(help="File for the figures, .json.")] = None,
) -> None:
    """Hit rate, MRR and click-through rate of served lists, by period and segment, with 95 % intervals."""
    with readable_errors():
        from fastrec._core.atomic import atomic_file
        from fastrec.monitor import event_metrics as measure

        options = {"request": request, "item": item, "time": time, "segment": segment, "k": k}
        found = measure(served, clicks, every=every, **options)  # type: ignore[arg-type] - it says itself what it knows
        typer.echo(found.to_string(index=False, float_format="%.4f"))
        if json is not None:
            with atomic_file(json) as part:
                found.to_json(part, orient="records", indent=1)
            typer.echo(f"figures {json}")


@app.command()
def monitor(
    reference: Annotated[Path, Argument(help="The old rows: a file, a folder with `train`, or a run.")],
    new: Annotated[Path, Argument(help="The new rows: a file, or a folder with `test`.")],
    scores: Annotated[list[Path] | None, Option(help="Predictions of the new rows; without a run of both.")] = None,
    labels: Annotated[Path | None, Option(help="The new rows' labels; needs --scores and --time.")] = None,
    time: Annotated[str | None, Option(help="Column of times of the new rows, or of the labels.")] = None,
    every: Every = "day",
    metric: Annotated[str | None, Option(help="Metric of the labels; a run's own if not given.")] = None,
    groups: Annotated[str | None, Option(help="Column of the new rows with their list, for rankings.")] = None,
    drop: Annotated[list[str] | None, Option(help="A column not to compare, such as ids that grow.")] = None,
    alpha: Annotated[float, Option(help="Level of all tests together.")] = limits.MONITOR_ALPHA,
    correction: Annotated[str, Option(help="`bh` (Benjamini-Hochberg) or `holm`.")] = "bh",
    psi: Annotated[float, Option(help="Least population stability index of a moved column.")] = limits.MOVED_PSI,
    js: Annotated[float, Option(help="Jensen-Shannon distance, likewise.")] = limits.MOVED_JS,
    ks: Annotated[float, Option(help="Kolmogorov-Smirnov distance, likewise.")] = limits.MOVED_KS,
    missing: Annotated[float, Option(help="Change of the share of missing values.")] = limits.MOVED_MISSING,
    unseen: Annotated[float, Option(help="Share of rows with unseen values, beyond the usual.")] = limits.MOVED_UNSEEN,
    auc: Annotated[float, Option(help="AUC of trees that tell new rows from old ones.")] = limits.MOVED_AUC,
    metric_loss: Annotated[float, Option(help="Share of the metric lost beyond its interval.")] = limits.MOVED_METRIC,
    trees: Annotated[bool, Option(help="Let trees tell new rows from old ones.")] = True,
    out: Annotated[Path | None, Option(help="File for the page, .html.")] = None,
    json: Annotated[Path | None, Option(help="File for all figures, .json.")] = None,
    trust: Trust = None,
) -> None:
    """Tell what has changed in new rows; exit with 3 where something is beyond a threshold.

    A finding is more than chance (all columns' tests are corrected together) and larger than its threshold.
    """
    with readable_errors():
        from fastrec.monitor import Thresholds
        from fastrec.monitor import monitor as compare
        from fastrec.monitor.over_time import over_time_of_files

        sizes = {"psi": psi, "js": js, "ks": ks, "missing": missing, "unseen": unseen, "auc": auc}
        thresholds = Thresholds(alpha=alpha, correction=correction, metric=metric_loss, **sizes)  # type: ignore[arg-type] - it says itself what it knows
        if scores and len(scores) > 2:
            remedy = "Give one, or the reference's and the new rows'"
            raise DataError(f"{len(scores)} files of predictions", remedy=remedy)
        given = None if not scores else scores[0] if len(scores) == 1 else (scores[0], scores[1])
        over_time = None
        if labels is not None:
            if given is None or time is None:
                raise DataError("labels alone give no metric over time", remedy="Give --scores and --time too")
            own = given[1] if isinstance(given, tuple) else given
            by = {"time": time, "every": every, "metric": metric, "groups": groups, "trust": trusted(trust)}
            over_time = over_time_of_files(reference, new, own, labels, **by)  # type: ignore[arg-type] - ditto
        left = [*(drop or []), *([time] if time else []), *([groups] if groups else [])]
        options = {"drop": left, "scores": given, "over_time": over_time, "adversarial": trees, "trust": trusted(trust)}
        found = compare(reference, new, thresholds=thresholds, **options)  # type: ignore[arg-type] - as declared above
        typer.echo(str(found))
        if over_time is not None:
            typer.echo(over_time.to_string(index=False, float_format="%.4f"))
        if out is not None:
            typer.echo(f"page {found.save_html(out)}")
        if json is not None:
            typer.echo(f"figures {found.save_json(json)}")
    if not found.ok:
        raise typer.Exit(3)


@app.command()
def retrain(
    run: Annotated[Path, Argument(help="The run that serves, or a registry.")],
    data: Annotated[Path, Option(help="Labelled new rows: a file, or a folder with `train` and other tables.")],
    out: Annotated[Path, Option(help="Run directory to make.")],
    registry: Annotated[Path | None, Option(help="Registry to promote it in if it is no worse.")] = None,
    time: Annotated[str | None, Option(help="Column of times; by default the recipe's.")] = None,
    every: Every = "day",
    scored: Annotated[int, Option(min=1, help="Number of newest periods to score.")] = 3,
    window: Annotated[int | None, Option(min=1, help="Learn from the newest periods only, this many.")] = None,
    warm: Annotated[bool, Option("--warm", help="Begin with the run's nets and trees where they fit.")] = False,
    margin: Annotated[float, Option(min=0, help="Share of the metric by which it may be worse.")] = 0.01,
    export: Annotated[bool | None, Option(help="Promote an export too; by default as the current version.")] = None,
    competition: Annotated[Path | None, Option(help="The recipe's folder; by default the run's own models.")] = None,
    minutes: Annotated[float | None, Option(min=0.05, help="Wall time for the training, as of run.")] = None,
    seed: Seed = 0,
    device: Device = "auto",
    trust: Trust = None,
) -> None:
    """Train a run again with new rows; exit with 3 where the gate keeps what serves.

    Each of the newest periods is scored by a model of earlier rows, and by the run that serves. The new run passes
    if the interval of the difference excludes a loss of more than the margin, and all checks hold.
    """
    with readable_errors("what serves goes on") as stages:
        from fastrec.monitor import retrain as make

        recipe = None if competition is None else load_competition(competition)
        options = {"registry": registry, "time": time, "every": every, "scored": scored, "window": window}
        options |= {"warm": warm, "margin": margin, "export": export, "competition": recipe, "minutes": minutes}
        options |= {"seed": seed, "device": device, "trust": trusted(trust), "stages": stages}
        made = make(run, data, out, **options)  # type: ignore[arg-type] - it says itself what it knows
        v = made.verdict
        if len(v.by_period):
            typer.echo(v.by_period.to_string(index=False, float_format=lambda x: f"{x:.5f}"))
        typer.echo(f"{v.metric}: serving {v.serving:.5f}, new {v.candidate:.5f}, {v.said_gain()}")
        for name, how in made.began.items():
            typer.echo(f"{name}: {how}")
        typer.echo(f"run {made.run}")
        typer.echo(f"{'passed' if v.promote else 'kept what serves'}: {'; '.join(v.reasons)}")
        if made.version is not None:
            typer.echo(f"version {made.version} is current")
    if not made.verdict.promote:
        raise typer.Exit(3)
