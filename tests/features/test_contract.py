"""One suite over every public generator: a class in ``fastrec.features.__all__`` fails it until it has an example."""

import itertools
import math
import zlib

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from sklearn.base import clone

import fastrec.features as registry
from fastrec._core.device import on_host, resolve_device
from fastrec.errors import FastrecError, NotFittedError
from fastrec.features import Bucketize, Categorify, FeatureSet, GroupPick, Lag
from fastrec.features._engine.folds import row_folds
from fastrec.features.base import Cells, Context, Feature, Fitted, Grouped
from fastrec.features.columns import as_list
from fastrec.table import Keys, Table
from tests.features.examples import EXAMPLES
from tests.features.frames import MAKERS, columns, names_of, rows, tables, to_arrow, to_pandas, to_polars, to_table

CLASSES = {n: c for n in registry.__all__ if isinstance(c := getattr(registry, n), type) and issubclass(c, Feature)}

CASES = [pytest.param(make, id=f"{name}-{i}") for name, all_ in EXAMPLES.items() for i, make in enumerate(all_)]
every = pytest.mark.parametrize("make", CASES)
one_of_a_class = pytest.mark.parametrize("make", [p for p in CASES if p.id.endswith("-0")])

FOLDED = ["y", "z", "fold"]  # what transform must not need


def column_of(frame, name):
    """One column of a frame of any library as a list, None where missing."""
    return [plain(v) for v in Table.read(frame, [name])[name].to_arrow().to_pylist()]


def plain(value):
    if isinstance(value, list):
        return [plain(v) for v in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def outputs_of(frame, names):
    return {n: column_of(frame, n) for n in names}


def assert_equal(a, b, *, exact=True, near_zero=1e-12):
    assert a.keys() == b.keys()
    exact = exact and on_host(resolve_device())  # a device adds up in any order: last digits differ from call to call
    for name in a:
        assert len(a[name]) == len(b[name]), name
        for i, (x, y) in enumerate(zip(a[name], b[name], strict=True)):
            near = not exact and isinstance(x, float) and isinstance(y, float)
            near |= not exact and isinstance(x, list) and all(isinstance(v, float) for v in [*x, *(y or ())])
            ok = x == pytest.approx(y, rel=1e-9, abs=near_zero) if near else x == y
            assert ok, f"{name}, row {i}: {x!r} is not {y!r}"


def one(make, **options):
    return FeatureSet([make()], key="row", **options)


def test_every_public_generator_has_an_example():
    assert sorted(CLASSES) == sorted(EXAMPLES)
    assert list(registry.__all__) == sorted(registry.__all__)
    assert all(hasattr(registry, n) for n in registry.__all__)
    for name, makers in EXAMPLES.items():
        assert makers
        assert all(type(make()) is CLASSES[name] for make in makers)


@every
def test_it_says_what_it_is_before_it_sees_data(make):
    feature = make()
    assert feature.kind in ("row", "fitted", "grouped")
    assert feature.online in ("row", "fitted", "history")
    assert len(set(feature.outputs)) == len(feature.outputs) > 0
    assert feature.outputs == make().outputs == feature.get_feature_names_out()
    assert all(isinstance(n, str) for n in [*feature.inputs, *feature.outputs])
    assert set(feature.fit_only) <= set(feature.inputs)
    assert (type(feature).__doc__ or "").strip()
    params = feature.get_params()
    assert repr(type(feature)(**params)) == repr(feature)
    assert all(getattr(feature, n) is v for n, v in params.items())
    assert feature.set_params(**params) is feature
    with pytest.raises(FastrecError, match="no_such"):
        feature.set_params(no_such=1)
    assert repr(feature).startswith(type(feature).__name__ + "(")


@every
def test_every_library_gets_its_frame_back_with_the_declared_columns_and_the_same_values(make):
    data, new = columns(), columns(seed=9)
    random, torch_state = np.random.get_state()[1].copy(), torch.get_rng_state()  # noqa: NPY002 - the global one is meant
    found = []
    for library, maker in MAKERS.items():
        frame, feature = maker(data), one(make)
        made = feature.fit_transform(frame, tables=tables(), unlabeled=maker(columns(seed=5)))
        again = feature.transform(maker(new), tables=tables())
        for whole in (made, again):
            assert type(whole) is type(frame)
            assert names_of(whole) == [*data, *feature.outputs]
        if library == "pandas":
            pd.testing.assert_frame_equal(made[list(data)], to_pandas(data))
            assert made.index.equals(frame.index)
            pd.testing.assert_frame_equal(frame, to_pandas(data))  # what was given is as it was
        elif library == "polars":
            assert made.select(list(data)).equals(to_polars(data), null_equal=True)
            assert frame.equals(to_polars(data), null_equal=True)
        else:
            rest = made.to_arrow() if library == "table" else made
            assert rest.select(list(data)).equals(to_table(data).to_arrow() if library == "table" else to_arrow(data))
        found.append([outputs_of(f, feature.outputs) for f in (made, again)])
    for other in found[1:]:
        for first, second in zip(found[0], other, strict=True):
            assert_equal(first, second)
    assert (np.random.get_state()[1] == random).all()  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), torch_state)


@every
def test_transform_needs_no_target(make):
    feature = one(make).fit(to_pandas(columns()), tables=tables())
    data = to_pandas(columns(seed=3))
    whole = feature.transform(data, tables=tables())
    used_as_input = {n for s in feature.steps for n in s.inputs if n not in s.fit_only}
    gone = [n for n in [*FOLDED, "row", "views"] if n not in used_as_input]
    made = feature.transform(data.drop(columns=gone), tables=tables())
    assert_equal(outputs_of(made, feature.outputs), outputs_of(whole, feature.outputs))


# Without those that read another generator: its own scope stays, and what it has not seen is one value.
SCOPED = [p for p in CASES if "scope" in p.values[0]().get_params() and len(one(p.values[0]).steps) == 1]


@pytest.mark.parametrize("make", SCOPED)
def test_unlabeled_rows_count_where_asked(make):
    """As if they were rows of the training, and not at all elsewhere, though another generator counts them."""
    params, beside = make().get_params(), Categorify("row", scope="all", name="beside")
    if "over" in params:
        params["over"] = "train"
    train, other, new = (columns(seed=seed) for seed in range(3))
    for scope, known in (("train", train), ("all", {n: train[n] + other[n] for n in train})):
        plain = one(lambda: type(make())(**params | {"scope": "train"})).fit(to_arrow(known), tables=tables())
        feature = FeatureSet([type(make())(**params | {"scope": scope}), clone(beside)], key="row")
        made = feature.fit_transform(to_arrow(train), tables=tables(), unlabeled=to_arrow(other))
        assert feature.transductive == [*(plain.outputs if scope == "all" else []), *beside.outputs]
        assert clone(feature).fit(to_arrow(train), tables=tables()).transductive == []
        for which, found in ((train, made), (new, feature.transform(to_arrow(new), tables=tables()))):
            expected = plain.transform(to_arrow(which), tables=tables())
            assert_equal(outputs_of(found, plain.outputs), outputs_of(expected, plain.outputs), exact=False)


@every
def test_permuted_rows_give_permuted_values(make):
    if by_row_order(make()):
        pytest.skip("means the rows' own order")
    data = columns()
    order = np.random.default_rng(1).permutation(40).tolist()
    feature, shuffled = one(make), one(make)
    for method, given in (("fit_transform", data), ("transform", columns(seed=4))):
        plain, other = (
            outputs_of(getattr(f, method)(to_arrow(d), tables=tables()), feature.outputs)
            for f, d in ((feature, given), (shuffled, rows(given, order)))
        )
        assert_equal(rows(plain, order), other, exact=False)


def by_row_order(feature):
    """Whether the rows' own order is part of what it computes, at ties too."""
    own = isinstance(feature, Grouped) and getattr(feature, "order", "") is None
    ties = isinstance(feature, GroupPick) and feature.order != "when"
    return own or ties or any(by_row_order(s) for s in feature.sources if isinstance(s, Feature))


@every
@pytest.mark.parametrize(("n", "library"), [(0, "pandas"), (1, "polars")])
def test_a_table_of_no_or_one_row(make, n, library):
    frame = MAKERS[library](rows(columns(), range(n)))
    feature = one(make)
    made = feature.fit_transform(frame, tables=tables(), unlabeled=frame)
    assert names_of(made)[-len(feature.outputs) :] == feature.outputs
    full = MAKERS[library](columns())
    assert len(column_of(feature.transform(frame, tables=tables()), feature.outputs[0])) == n
    made = feature.transform(full, tables=tables())  # keys of a type that was not known when it was fitted
    assert len(column_of(made, feature.outputs[0])) == 40
    again = one(make).fit(full, tables=tables())
    assert len(column_of(again.transform(frame, tables=tables()), feature.outputs[0])) == n


@every
def test_output_types_do_not_depend_on_the_number_of_rows(make):
    whole = to_arrow(columns())
    feature = one(make).fit(whole, tables=tables())
    made = [feature.transform(whole, tables=tables())]
    for n in (0, 1):
        few = to_arrow(rows(columns(), range(n)))
        made += [feature.transform(few, tables=tables()), one(make).fit_transform(few, tables=tables())]
    many, *others = ([frame.schema.field(i).type for i in feature.outputs] for frame in made)
    assert others == [many] * 4


@every
def test_columns_without_any_value(make):
    data = columns(12)
    inputs = {n for s in one(make).steps for n in s.inputs} - {"when", "user", "fold", "row"}
    blank = data | {n: [None] * 12 for n in inputs & set(data)}
    frame = to_pandas(blank)
    feature = one(make)
    made = feature.fit_transform(frame, tables=tables())
    assert len(column_of(made, feature.outputs[0])) == 12
    assert_finite_or_missing(made, feature.outputs)
    full = to_pandas(columns())
    assert len(column_of(feature.transform(full, tables=tables()), feature.outputs[0])) == 40
    known = one(make).fit(full, tables=tables())
    assert len(column_of(known.transform(frame, tables=tables()), feature.outputs[0])) == 12


def assert_finite_or_missing(frame, names):
    for name in names:
        for value in column_of(frame, name):
            for v in value if isinstance(value, list) else [value]:
                assert not isinstance(v, float) or math.isfinite(v), name


@every
def test_constant_columns(make):
    data = columns(12)
    same = {n: [next(x for x in v if x is not None)] * 12 for n, v in data.items()}
    same |= {"row": data["row"], "when": data["when"], "price": [2.5] * 12, "fold": data["fold"]}
    feature = one(make)
    made = feature.fit_transform(to_arrow(same), tables=tables())
    assert_finite_or_missing(made, feature.outputs)
    if not any(isinstance(s, Grouped) or s.uses_target or s.online == "history" for s in feature.steps):
        for name in feature.outputs:
            assert len(set(map(repr, column_of(made, name)))) == 1, name


@one_of_a_class
def test_numbers_of_every_width(make):
    numbers = {"user", "clicks", "views", "when", "y", "row", "fold"}
    data = {n: [abs(x or 0) for x in v] if n in numbers else v for n, v in columns(20).items()}
    found = []
    for kind in ["int64", "int8", "uint8", "int16", "uint16", "int32", "uint32", "uint64", "float32"]:
        frame = to_pandas(data).astype(dict.fromkeys(numbers, kind))
        others = tables()
        others["log"] = others["log"].astype({"user": kind, "when": kind})
        feature = one(make)
        found.append(outputs_of(feature.fit_transform(frame, tables=others), feature.outputs))
    for other in found[1:]:
        assert_equal(other, found[0], exact=False)


def flat(state, path=""):
    """A state as a flat dict of tensors and lists."""
    if isinstance(state, dict):
        return {k: v for n, s in state.items() for k, v in flat(s, f"{path}.{n}").items()}
    if isinstance(state, list | tuple):
        return {k: v for i, s in enumerate(state) for k, v in flat(s, f"{path}.{i}").items()}
    if isinstance(state, Keys):
        return {f"{path}.{i}": (c.type, c.to_pylist()) for i, c in enumerate(state.columns)}
    return {path: state}


def assert_same_state(a, b):
    a, b = flat(a), flat(b)
    assert a.keys() == b.keys()
    for name in a:
        if isinstance(a[name], torch.Tensor):
            assert a[name].dtype == b[name].dtype, name
            if a[name].is_floating_point():
                torch.testing.assert_close(a[name], b[name], rtol=1e-9, atol=1e-12, equal_nan=True, msg=name)
            else:
                assert torch.equal(a[name], b[name]), name
        else:
            assert a[name] == b[name], name


def parts_of(feature, work, context, parts):
    """The rows of each part, and the other tables that go with it: with its groups whole where they have to be."""
    if not feature.whole_groups:
        bounds = np.linspace(0, len(work), parts + 1).astype(int)
        return [(torch.arange(a, b), context) for a, b in itertools.pairwise(bounds)]
    read = {n: part_of_row(t, feature.within, parts) for n, t in context.tables.items()}
    own, made = part_of_row(work, feature.within, parts), []
    for i in range(parts):
        others = {n: t.take(read[n] == i) for n, t in context.tables.items()}
        made.append(((own == i).nonzero().squeeze(1), Context(others)))
    return made


def part_of_row(table, names, parts):
    keys = zip(*(column_of(table, n) for n in names), strict=True)
    return torch.tensor([zlib.crc32(repr(key).encode()) % parts for key in keys], dtype=torch.int64)


@pytest.mark.parametrize("make", [p for p in CASES if isinstance(p.values[0](), Fitted)])
@pytest.mark.parametrize("parts", [7, 44])  # of 40 rows
def test_partitions_in_any_order_give_the_same_state(make, parts):
    whole = one(make)
    work = whole._read(to_arrow(columns()))
    context = whole._context(tables(), work)
    feature = whole.features[0]
    for step in whole.steps[:-1]:
        work = work.with_columns(whole._chain()._fit_step(step, work, context, None)[0])
    cells = Cells(row_folds(work, ["row"], 5), 5)
    with feature.using(context):
        expected = feature.collect(work, cells)
    states = []
    for chosen, others in parts_of(feature, work, context, parts):
        # Each part is read for itself: its dictionaries know its own values only.
        part = Table.read(work.to_arrow().take(pa.array(chosen.numpy()))) if parts == 7 else work.take(chosen)
        with feature.using(others):
            states.append(feature.collect(part, Cells(row_folds(part, ["row"], 5), 5)))
    for seed in range(2):
        order = np.random.default_rng(seed).permutation(parts) if seed else range(parts)
        merged = states[order[0]]
        for i in order[1:]:
            merged = feature.merge(merged, states[i]) if seed % 2 else feature.merge(states[i], merged)
        assert_same_state(merged, expected)
        assert_same_state(feature.finalize(merged), feature.finalize(expected))
    if len(states) > 2:
        a, b, c = states[:3]
        assert_same_state(feature.merge(feature.merge(a, b), c), feature.merge(a, feature.merge(b, c)))


@every
def test_saved_and_loaded_it_gives_the_same_values(make, tmp_path):
    feature = FeatureSet([make()], key=["row", "user"], folds=4)
    feature.fit(to_pandas(columns()), tables=tables(), unlabeled=to_pandas(columns(seed=2)))
    feature.save(tmp_path / "saved")
    kinds = {p.suffix for p in (tmp_path / "saved").rglob("*") if p.is_file()}
    assert kinds <= {".json", ".safetensors"}
    again = FeatureSet.load(tmp_path / "saved")
    assert (again.outputs, again.key, again.folds) == (feature.outputs, ["row", "user"], 4)
    assert repr(again.features[0]) == repr(feature.features[0])
    new = to_pandas(columns(seed=7))
    expected = outputs_of(feature.transform(new, tables=tables()), feature.outputs)
    assert_equal(outputs_of(again.transform(new, tables=tables()), feature.outputs), expected)
    again.save(tmp_path / "twice")
    assert (tmp_path / "twice" / "features.json").read_text() == (tmp_path / "saved" / "features.json").read_text()


@every
def test_unfitted_it_says_so(make):
    assert_unfitted(one(make))


def assert_unfitted(feature):
    """An unfitted set transforms only if nothing in it has to be fitted."""
    needs = [s for s in feature.steps if s.kind == "fitted" and getattr(s, "over", "") != "group"]
    if not needs:
        feature.transform(to_pandas(columns()), tables=tables())
        return
    with pytest.raises(NotFittedError, match=type(needs[0]).__name__):
        feature.transform(to_pandas(columns()), tables=tables())


def test_a_parameter_that_json_cannot_hold_is_named(tmp_path):
    with pytest.raises(FastrecError, match="Bucketize"):
        FeatureSet([Bucketize("a", [1.0], name=object())]).save(tmp_path / "f")
    assert list(tmp_path.iterdir()) == []
    FeatureSet([Bucketize("a", [np.float64(1.5)]), Lag("a", n=np.int64(2))]).save(tmp_path / "f")
    assert FeatureSet.load(tmp_path / "f").outputs == ["a_bucket", "lag2_a"]


@every
def test_scikit_learn_clones_it_unfitted_and_a_set_with_what_it_shares(make):
    feature = make()
    feature.fit(to_pandas(columns()), key="row", tables=tables())
    other = clone(feature)
    assert other is not feature
    assert repr(other) == repr(feature)
    if isinstance(feature, Fitted):
        assert other.state_ is None
    fs = FeatureSet([make()], key="row", folds=3)
    other = clone(fs)
    assert (other.outputs, other.key, other.folds) == (fs.outputs, "row", 3)
    assert len(other.steps) == len(fs.steps)
    other.fit(to_pandas(columns()), tables=tables())
    assert all(s.state_ is None for s in fs.steps if isinstance(s, Fitted))


@every
def test_a_missing_column_is_named(make):
    feature = one(make)
    made = {n for s in feature.steps for n in s.outputs}
    name = next(n for s in feature.steps for n in s.inputs if n not in made)
    with pytest.raises(FastrecError, match=repr(name)):
        feature.fit(to_pandas(columns()).drop(columns=name), tables=tables())


NO_TEXT = {"price", "clicks", "views", "z", "when", "y", "time", "tags", "vec"}
ANY_KIND = {"Categorify.cols", "Collect.cols", "GroupStats.cols", "HashEncode.cols", "Lag.cols", "LastAction.action"}
ANY_KIND |= {"LastKnown.cols", "NUnique.cols", "NaNPattern.cols", "Neighbours.cols", "SvdEncode.cols", "TextSvd.col"}


def of_text(feature):
    """Each parameter that names a column of no text, and ``feature`` with text there."""
    params = {n: v for n, v in feature.get_params().items() if not isinstance(v, dict)}
    if not (feature.table_inputs or hasattr(feature, "function") or params.get("classes")):
        for parameter, value in params.items():
            for i in [i for i, c in enumerate(as_list(value)) if c in feature.sources and c in NO_TEXT]:
                given = [*as_list(value)[:i], "other", *as_list(value)[i + 1 :]]
                changed = {parameter: "other" if isinstance(value, str) else given}
                yield parameter, type(feature)(**params | changed)


@pytest.mark.parametrize("name", EXAMPLES)
def test_text_in_place_of_other_values_names_generator_column_and_row(name):
    found = set()
    for parameter, feature in (case for make in EXAMPLES[name] for case in of_text(make())):
        try:
            feature.fit_transform(to_pandas(columns()), key="row")
        except FastrecError as error:
            found.add((name in str(error), error.column, error.row, bool(error.remedy)))
        else:
            found.add(f"{name}.{parameter}")
    assert found - {(True, "other", 0, True)} <= ANY_KIND


def ordered(feature):
    """Whether a missing value of its order column is an error."""
    return as_list(getattr(feature, "order", None)) == ["when"] and not isinstance(feature, GroupPick)


@pytest.mark.parametrize("make", [p for p in CASES if ordered(p.values[0]())])
def test_a_missing_order_names_generator_column_and_row(make):
    frame = to_pandas(columns())
    frame["when"] = frame["when"].astype("Int64")
    frame.iloc[4, frame.columns.get_loc("when")] = pd.NA
    with pytest.raises(FastrecError) as caught:
        make().fit_transform(frame, tables=tables())
    assert type(make()).__name__ in str(caught.value)
    assert (caught.value.column, caught.value.row) == ("when", 4)
