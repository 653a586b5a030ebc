"""``ObjectiveCompetition``: OTTO's kind of recipe: which items sessions will click, put into the cart and order."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import torch

from fastrec._core.atomic import atomic_file
from fastrec._core.progress import Stages
from fastrec.competition.next_items import next_item_form, write_sessions
from fastrec.competition.recipe import Competition, Kind
from fastrec.competition.run_files import run_folder, write_config
from fastrec.competition.run_record import Run
from fastrec.errors import DataError
from fastrec.retrieval import ObjectiveRanker, cut_anywhere, events_of, recall_of_sets
from fastrec.sequences import GoalNet, SessionBlend, SessionFrame, SessionModel


@dataclass
class ObjectiveData:
    """The data of a recipe of several goals.

    Args:
        known: all events that are known, those of the test's sessions as well; with times, ids and kinds of events.
        test: bool ``[sessions]``: a session that is asked for.
        wanted: goal → for each test session the items that it was reached with; None: not known.
    """

    known: SessionFrame
    test: torch.Tensor
    wanted: Mapping[str, SessionFrame] | None = None


class ObjectiveCompetition(Competition):
    """A recipe for sessions with several kinds of events: it ranks items for each kind.

    Where a source alone finds more than the trees on held-out sessions, for some kind, its order is submitted for that
    kind.

    Attributes:
        objectives: kind of event → its weight in the score, which is the weighted sum of the kinds' recalls.
        next_only: kinds of which only the next event is asked for, not all.
        event: the side feature that says what kind an event is.
        k: how many items are submitted.
        last: seconds: of the training sessions those that began in this time before the end are cut at random. Half of
            them teach the trees, the other half are scored; then all of them teach.
        ranker: options of the ``ObjectiveRanker``.
    """

    _kind: ClassVar[Kind] = Kind("competitions.otto.objectives:OBJECTIVES")
    task = "objectives"  # type: ignore[assignment]
    objectives: Mapping[str, float]
    next_only: Sequence[str] = ()
    event = "type"
    k = 20
    last = 7 * 86_400.0
    ranker: Mapping[str, Any] = {}

    @abstractmethod
    def read(self, data: Path, rows: int | None) -> ObjectiveData:
        """Read all known events.

        Args:
            data: the folder.
            rows: use only this many training sessions, the last ones.
        """

    @abstractmethod
    def sources(self) -> Mapping[str, SessionModel]:
        """Return the models that find candidates; each one's order is scored as well as the trees'."""

    def wanted(self, later: SessionFrame) -> dict[str, SessionFrame]:
        """Map each goal to the items that sessions reach it with in later events."""
        return {n: events_of(later, self.event, n, first=n in self.next_only) for n in self.objectives}

    def score(self, items: Mapping[str, torch.Tensor], wanted: Mapping[str, SessionFrame]) -> dict[str, float]:
        """Return the recall of each goal (0 if nothing is known of it) and, as ``'recall'``, their weighted sum."""
        known = {n: recall_of_sets(items[n], wanted[n]) for n in self.objectives}
        found = {n: 0.0 if math.isnan(v) else v for n, v in known.items()}  # JSON has no NaN
        return {"recall": sum(w * found[n] for n, w in self.objectives.items()), **found}


def run_objectives(run: Run) -> None:
    """Run a recipe of several goals: candidates, trees, the submission, the scores and the report.

    Raises:
        DataError: no training session can be cut, or no session is asked for.
    """
    recipe, stages = run.recipe, run.stages
    with stages.stage("read", unit="events") as advance:
        found = recipe.read(run.data, run.rows)
        advance(len(found.known.values))
    if not bool(found.test.any()):
        raise DataError("no session is asked for", file=run.data, remedy="Give the competition's test file")
    ranker = ObjectiveRanker(list(recipe.objectives), recipe.sources(), event=recipe.event, **recipe.ranker)
    held = _learn(recipe, ranker, found, run.seed, stages)
    sessions = found.known.take(found.test)
    with stages.stage("candidates", len(found.known.values), unit="events") as advance:
        ranker.find(found.known)
        advance(len(found.known.values))
    spent = ", ".join(f"{n} {s:.1f}" for n, s in ranker.candidates.seconds.items())
    stages.say(f"seconds per million events: {spent}")
    with stages.stage("predict", len(sessions), unit="sessions") as advance:
        best = ranker.recommend(sessions, recipe.k)
        advance(len(sessions))
    test = {}
    if found.wanted is not None:
        test = {n: recipe.score(_alone(recipe, ranker, sessions, n), found.wanted) for n in ranker.models}
        test["ranker"] = recipe.score(best, found.wanted)
    run.scores = {
        **{f"{n}@{recipe.k}": v for n, v in test.get("ranker", {}).items()},
        "metric": f"recall@{recipe.k}",
        "greater_is_better": True,
        "final": "ranker",
        "objectives": dict(recipe.objectives),
        "models": {n: v["recall"] for n, v in test.items()},
        "oof": {n: v["recall"] for n, v in held.items() if n != "trees"},  # a part of what is submitted
        "also": {f"{o}@{recipe.k}": {n: v[o] for n, v in test.items()} for o in recipe.objectives if test},
        "held_out": {n: {f"{m}@{recipe.k}": x for m, x in v.items()} for n, v in held.items()},
        "rows": {"events": len(found.known.values), "test sessions": len(sessions)},
        "seconds_per_million_events": ranker.candidates.seconds,
        "instead": ranker.instead,
    }
    with run_folder(run) as part, stages.stage("write"):
        write_objectives(part / "submission.csv", sessions, best)
        ranker.save(part / "models" / "ranker")
        models = {n: {"class": type(m).__name__, **m.settings()} for n, m in ranker.models.items()}
        columns = sessions.columns
        write_sessions(part, sessions.form(), sessions, item=columns["item"])
        order = tuple(columns["order"])
        form = asdict(next_item_form(columns["item"], columns["session"], recipe.k, order=order))
        net = write_net(part / "models" / "blend", ranker)
        write_config(part, run, {"models": models, "submission": form, "exclude_seen": False, **net})


OBJECTIVES = [run_objectives]


def write_net(folder: Path, ranker: ObjectiveRanker) -> dict[str, Any]:
    """Write the ``GoalNet`` among a ranker's sources for ``fastrec export``.

    Returns:
        For the run's settings: ``goals``, each with the head whose order is submitted for it, else with its own, and
        ``left_out``, what an export lacks.
    """
    nets = {n: m for n, m in ranker.models.items() if isinstance(m, GoalNet)}
    first = dict(list(nets.items())[:1])
    blend = SessionBlend(first, weights=[1.0] * len(first))
    blend.items = ranker.items
    blend.save(folder)
    alike = [{**m.settings(), "goal": None} for m in first.values()]
    heads = {n: m.settings()["goal"] for n, m in nets.items() if {**m.settings(), "goal": None} in alike}
    goals = {goal: heads.get(ranker.instead.get(goal), goal) for goal in ranker.objectives}
    known = [g for m in alike for g in m["goals"]]
    goals = {goal: head for goal, head in goals.items() if head in known}
    return {"goals": goals, "left_out": [*(n for n in ranker.models if n not in heads), "trees"]}


def _learn(
    recipe: ObjectiveCompetition, ranker: ObjectiveRanker, found: ObjectiveData, seed: int, stages: Stages
) -> dict[str, dict[str, float]]:
    """Grow the trees on the last training sessions; name → scores of half of them, by trees of the other half.

    ``'ranker'`` is what is submitted: of each goal the trees, or the source that finds more there. Each half of these
    sessions is scored with what the other half chose.
    """
    train = found.known.take(~found.test)
    if train.times is None:
        raise DataError("the events have no times", remedy="Name the column of times (order=…)")
    begun = torch.full((len(train),), -torch.inf, dtype=torch.float64)
    filled = train.lengths > 0
    begun[filled] = train.times[train.offsets[:-1][filled]]
    last = begun > float(begun.max()) - recipe.last
    asked, later = cut_anywhere(train.take(last), seed=seed)
    if len(asked) < 2:
        raise DataError(
            f"{len(asked)} of the last training sessions have two events",
            remedy="Give more sessions, or a longer last=",
        )
    with stages.stage("candidates, held out", len(train.values), unit="events") as advance:
        past = train.take(~last)
        ranker.find(joined(past, asked) if len(past.values) else asked)
        advance(len(train.values))
    half = torch.rand(len(asked), generator=torch.Generator().manual_seed(seed)) < 0.5
    half[:2] = torch.tensor([True, False])
    with stages.stage("trees, held out", int(half.sum()), unit="sessions") as advance:
        ranker.learn(asked.take(half), recipe.wanted(later.take(half)), seed=seed)
        advance(int(half.sum()))
    ranker.instead, rest, wanted = {}, asked.take(~half), recipe.wanted(later.take(~half))
    best = {n: _alone(recipe, ranker, rest, n) for n in ranker.models} | {"trees": ranker.recommend(rest, recipe.k)}

    def scored(rows: torch.Tensor) -> dict[str, dict[str, float]]:
        known = {g: sets.take(rows) for g, sets in wanted.items()}
        return {n: recipe.score({g: items[rows] for g, items in found.items()}, known) for n, found in best.items()}

    every, mixed = torch.arange(len(rest)), {}
    held, *parts = (scored(rows) for rows in (every, every[::2], every[1::2]))
    for goal in recipe.objectives:
        name, first, second = (max(("trees", *ranker.models), key=lambda n, s=s: s[n][goal]) for s in (held, *parts))
        # A choice is scored on sessions that did not make it: the best of several is too good on its own.
        mixed[goal] = torch.where((every % 2 == 0)[:, None], best[second][goal], best[first][goal])
        if name != "trees":
            ranker.instead[goal] = name
            stages.say(f"{goal}: {name} alone finds more than the trees, and is taken")
    held["ranker"] = recipe.score(mixed, wanted)
    for name, values in held.items():
        stages.say(f"held out, {name}: " + ", ".join(f"{n}@{recipe.k} {v:.4f}" for n, v in values.items()))
    with stages.stage("trees", len(asked), unit="sessions") as advance:
        ranker.learn(asked, recipe.wanted(later), seed=seed)
        advance(len(asked))
    return held


def _alone(
    recipe: ObjectiveCompetition, ranker: ObjectiveRanker, asked: SessionFrame, name: str
) -> dict[str, torch.Tensor]:
    """Return one source's best items, the same for every goal."""
    return dict.fromkeys(recipe.objectives, ranker.candidates.sources[name].best(asked, recipe.k)[0])


def joined(first: SessionFrame, second: SessionFrame) -> SessionFrame:
    """Concatenate sessions of one coding, with times and kinds of events."""
    made = first.cut(first.offsets[:-1], first.offsets[1:])
    made.values = torch.cat([first.values, second.values])
    made.offsets = torch.cat([first.offsets, second.offsets[1:] + first.offsets[-1]])
    made.sides = {n: torch.cat([v, second.sides[n]]) for n, v in first.sides.items()}
    if first.times is not None and second.times is not None:
        made.times = torch.cat([first.times, second.times])
    return made


def write_objectives(path: Path, asked: SessionFrame, best: Mapping[str, torch.Tensor]) -> None:
    """Write a submission: ``session_type,labels``, a line for every session and goal, items apart by spaces."""
    assert asked.sessions is not None
    ids = asked.sessions.to_arrow().cast(pa.string())
    sessions, goals = len(asked), list(best)
    lines = []
    for name in goals:
        items, there = best[name], best[name] > 0
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), there.sum(1).cumsum(0)]).to(torch.int32)
        text = asked.items.decode(items[there]).cast(pa.string())
        lines.append(pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets.numpy()), text), " "))
    order = torch.arange(sessions * len(goals)).view(len(goals), sessions).T.reshape(-1).numpy()
    keys = pa.concat_arrays([pc.binary_join_element_wise(ids, n, "_") for n in goals])
    table = pa.table({"session_type": keys, "labels": pa.concat_arrays(lines)}).take(pa.array(order))
    with atomic_file(path) as temporary:
        pa_csv.write_csv(table, temporary, pa_csv.WriteOptions(quoting_style="none"))
