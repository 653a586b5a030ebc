"""Events that become columns: taken in before they are acknowledged, and seen by what is scored after."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fastrec.errors import DataError
from fastrec.serve import make_app
from tests.serve.server.calls import get, post, refused, scores, serve
from tests.serve.server.exports import by_hand, columns, write_export
from tests.serve.server.test_v1 import ARROW, stream

LOG = {
    "user": {"type": "int64", "missing": None, "time": None},
    "at": {"type": "int64", "missing": None, "time": {"unit": "us", "zone": "UTC"}},
    "page": {"type": "string", "missing": None, "time": None},
    "value": "float64",
}


class Counts:
    """How often a user was seen, kept in a file: as small as an ``Online`` can be."""

    def __init__(self, file: Path) -> None:
        self.file, self.asked = file, []
        self.schemas: list[pa.Schema] = []
        self.tables: list[pa.Table] = []

    def observe(self, events: pa.Table, table: str) -> None:
        assert table == "log"
        if any(v is not None and v < 0 for v in events["user"].to_pylist()):
            raise DataError("a user is below 0", column="user", row=0)
        self.schemas.append(events.schema)
        self.tables.append(events)
        with self.file.open("a", encoding="utf-8") as file:
            for row in events.to_pylist():
                file.write(json.dumps([row["user"], row["page"]]) + "\n")

    def features(self, requests: pa.Table) -> pa.Table:
        self.asked.append(requests)
        seen = [json.loads(line)[0] for line in self.file.read_text().splitlines()] if self.file.exists() else []
        return pa.table({"ratio": [float(seen.count(user)) for user in requests["user"].to_pylist()]})


@pytest.fixture
def served(tmp_path: Path) -> Any:
    events, counts = {"tables": {"log": {"columns": LOG}}, "history": False}, Counts(tmp_path / "events")
    return serve(write_export(tmp_path / "export", made="ratio", events=events), events=counts), counts


def event(user: int | None, page: str | None = "home") -> dict[str, Any]:
    return {"user": user, "at": "2026-01-01T00:00:00Z", "page": page, "value": 1}


def without_ratio(rows: int) -> dict[str, list[Any]]:
    return {k: v for k, v in columns(rows).items() if k != "ratio"}


def test_events_change_what_is_scored_after_them(served: Any) -> None:
    app, counts = served
    rows = {**without_ratio(3), "user": [5, None, 2**53 + 1]}
    assert scores(app, {"columns": rows}) == pytest.approx(by_hand({**rows, "ratio": [0, 0, 0]}), abs=1e-6)
    answer = post(app, "/v1/events", {"table": "log", "rows": [event(5), event(2**53 + 1), event(5), event(None)]})
    assert answer.json() == {"table": "log", "events": 4}
    assert len(counts.file.read_text().splitlines()) == 4  # before the answer was given
    assert scores(app, {"columns": rows}) == pytest.approx(by_hand({**rows, "ratio": [2, 1, 1]}), abs=1e-6)
    # features get the rows with nulls and times
    assert counts.asked[-1]["user"].to_pylist() == rows["user"]
    assert counts.asked[-1].schema.field("seen").type == pa.timestamp("s", "Europe/Berlin")
    assert 'fastrec_events_total{table="log"} 4' in get(app, "/metrics").body.decode()


def test_every_form_of_events_is_one_table(served: Any) -> None:
    app, counts = served
    rows = [event(1), event(None, None), event(3, "")]
    lists = {k: [r[k] for r in rows] for k in rows[0]}
    arrow = pa.table({**lists, "at": pa.array([datetime(2026, 1, 1, tzinfo=UTC)] * 3, pa.timestamp("ms", "UTC"))})
    assert post(app, "/v1/events", {"table": "log", "rows": rows}).status == 200
    assert post(app, "/v1/events", {"table": "log", "columns": lists}).status == 200
    assert post(app, "/v1/events?table=log", stream(arrow), ARROW).status == 200
    lines = counts.file.read_text().splitlines()
    assert lines == ['[1, "home"]', "[null, null]", '[3, ""]'] * 3  # null is not ""
    wanted = {"user": pa.int64(), "at": pa.timestamp("us", "UTC"), "page": pa.string(), "value": pa.float64()}
    assert counts.schemas == [pa.schema(wanted)] * 3
    assert post(app, "/v1/events", {"table": "log", "rows": [{**rows[0], "at": None, "value": None}]}).status == 200
    timeless = arrow.slice(0, 1).set_column(1, "at", pa.nulls(1))
    assert post(app, "/v1/events?table=log", stream(timeless), ARROW).status == 200
    assert [t["at"].to_pylist() for t in counts.tables[3:]] == [[None], [None]]
    assert counts.tables[3]["value"].to_pylist() == [None]


@pytest.mark.parametrize(
    ("body", "column"),
    [
        ({"rows": [event(1)]}, None),
        ({"table": "other", "rows": [event(1)]}, None),
        ({"table": ["log"], "rows": [event(1)]}, None),
        ({"table": "log", "rows": [{"user": 1}]}, "at"),
        ({"table": "log", "rows": [{**event(1), "more": 1}]}, "more"),
        ({"table": "log", "rows": [event(1), {**event(1), "user": "one"}]}, "user"),
        ({"table": "log", "columns": {"user": [1], "at": [1, 2]}}, "at"),
        ({"table": "log", "columns": {"user": 1}}, None),
        ({"table": "log", "rows": [event(-1)]}, "user"),  # which the state itself refuses
    ],
)
def test_bad_events_are_refused_and_not_taken_in(served: Any, body: Any, column: str | None) -> None:
    refused(served[0], "/v1/events", body, 422, column=column)
    assert not served[1].file.exists()


def test_columns_that_are_made_cannot_be_sent_nor_served_without_events(served: Any) -> None:
    refused(served[0], "/v1/score", {"columns": columns(2)}, 422, "from events", column="ratio")
    with pytest.raises(DataError, match="ratio"):
        make_app(served[0].state.service.scorer.folder)


def test_a_reload_with_other_events_is_refused(served: Any) -> None:
    app, _ = served
    file = app.state.service.scorer.folder / "serving.json"
    said = json.loads(file.read_text())
    said["events"]["tables"]["clicks"] = {"columns": {"user": "int64"}}
    file.write_text(json.dumps(said))
    with pytest.raises(Exception, match="Start the server anew"):
        asyncio.run(app.state.service.reload())
    assert len(scores(app, {"columns": without_ratio(1)})) == 1
