"""A FeatureSet as a graph, and what onnxruntime makes of it."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch

from fastrec.serve.export import feeds_of
from fastrec.serve.graph import lists as list_features  # noqa: F401 - its writers
from fastrec.serve.graph.columns import OTHER_NO_TEXT, GraphTable, described, input_column
from fastrec.serve.graph.features import GraphGroups, written
from fastrec.serve.onnx_builder import Graph, GraphTensor, value_of
from fastrec.table import Table

ort = pytest.importorskip("onnxruntime")


def graph_feeds(columns, table):
    """A table's rows as inputs of a graph that was made of such columns, with ``OTHER_NO_TEXT`` for missing text."""
    about = [described(n, c) for n, c in columns.items()]
    about = [{**a, "missing": OTHER_NO_TEXT if a["type"] == "string" else a["missing"]} for a in about]
    return feeds_of({"inputs": about}, table)


def columns_of(graph, table, names=None):
    read = {}

    @cache
    def given(name):
        column = input_column(graph, name, table[name], no_text=OTHER_NO_TEXT)  # refuses lists
        read[name] = table[name]
        return column

    return GraphTable({}, later={n: (lambda n=n: given(n)) for n in names or table.names}), read


def session_of(graph):
    return ort.InferenceSession(graph.model().SerializeToString())


class Served:
    """A fitted set's steps in a graph; ``outside``: output → why it is not in it."""

    def __init__(self, features, table, *, lists=None):
        self.graph, self.outputs = Graph(), []
        steps = list(features.steps)
        made = {n for s in steps for n in s.outputs}
        raw = [n for s in steps for n in s.inputs if n not in made and n in table]
        columns, self.inputs = columns_of(self.graph, table, [*raw, *([lists] if lists else [])] or [""])
        groups = GraphGroups(columns[lists].values, lists) if lists else None
        wanted = [n for f in features.features for n in f.outputs]
        columns, found = written(steps, columns, groups, wanted)
        self.outside = {n: why for n, why in found.outside.items() if n in wanted}
        for name in wanted:
            if name in self.outside:
                continue
            column = columns[name]
            values = column.values if column.kind == "vector" else column.number()
            if column.kind == "vector" and column.missing is not None:
                values = torch.where(column.missing[:, None], torch.nan, values)
            if isinstance(values, GraphTensor):
                width = None if values.ndim == 1 else values.shape[1]
                self.graph.output(name, value_of(self.graph, values, torch.float64), np.float64, width)
                self.outputs.append(name)
        if self.outputs:
            self.session = session_of(self.graph)

    def __call__(self, table):
        read = {i.name for i in self.session.get_inputs()}
        feeds = {n: v for n, v in graph_feeds(self.inputs, table).items() if n in read}
        return dict(zip(self.outputs, self.session.run(self.outputs, feeds), strict=True))


def expected(table, name):
    column = table[name]
    if column.kind == "vector":
        values = column.values.double()
        return torch.where(column.is_missing()[:, None], torch.nan, values).cpu().numpy()
    return column.number().cpu().numpy()


def assert_served_alike(features, served, frame, **given):
    made = Table.read(features.transform(frame, **given))
    for name, values in served(Table.read(frame)).items():
        np.testing.assert_allclose(values, expected(made, name), rtol=1e-9, atol=1e-12, err_msg=name)
