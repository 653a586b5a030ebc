"""Candidates for next items, and a ranker over them, on Diginetica's sessions: recall of sources, union and ranker.

The sources learn from all training sessions but the last; on these the ranker learns to put candidates in order; then
the sources learn from all, and every row of the test file is ranked. ``seconds`` of a source are for a million events.
"""

from __future__ import annotations

import time
from pathlib import Path

import torch
from _public import data_folder
from _timing import command_line, cores, heading, show, use_threads, write
from rich.console import Console
from xgboost import DMatrix, train

from fastrec.retrieval import Candidates, RepeatedItems, SegmentPopularity, sample_negatives
from fastrec.sequences import VSTAN, CoVisitation, SessionFrame, by_time, prefixes
from fastrec.table import Table
