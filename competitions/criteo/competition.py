"""Criteo's click logs: is an advertisement clicked? DLRM and DCNv2 on files of any size.

Run it with ``fastrec run competitions/criteo --data DIR --out DIR``, or as a script.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

if __package__ in (None, ""):  # run as a script, or loaded by path: the workspace's folders are found from its root
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from competitions.criteo.data import first_lines, train_and_test, true_auc
from fastrec._core.progress import Stages
from fastrec.competition import StreamedCompetition, StreamedNet
from fastrec.models import DLRM, DCNv2
from fastrec.tabular import ClickLogFrame


class Criteo(StreamedCompetition):
    """A line is an advertisement shown: whether it was clicked, 13 counts, 26 hashed categories. The last day is the
    test.
    """

    name = "Criteo click logs"
    min_count = 15  # values that come less often share one vector

    def frame(self, data: Path, cache: Path, *, rows: int | None, stages: Stages) -> ClickLogFrame:
        train, test = train_and_test(data, rows)
        with stages.stage("pack", unit="lines") as advance:
            return ClickLogFrame(train, valid=test, cache=cache, min_count=self.min_count, advance=advance)

    def nets(self) -> Mapping[str, StreamedNet]:
        return {
            "dlrm": StreamedNet(DLRM, {"bottom": [512, 256, 64, 16], "top": [512, 256]}, width=16),
            "dcn": StreamedNet(DCNv2, {"cross_layers": 3, "low_rank": 64, "layers": [512, 256]}, width=16),
        }

    def sample(self, data: Path, rows: int) -> pa.Table:
        return first_lines(train_and_test(data, None)[1], rows)

    def oracle(self, data: Path) -> float | None:
        return true_auc(data)


if __name__ == "__main__":
    from fastrec.cli import script

    script(Criteo)
