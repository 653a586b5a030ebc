import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastrec.errors import FastrecError
from fastrec.features import Combine, CountEncode, Cross, CumTarget, FeatureSet

key = st.one_of(st.none(), st.sampled_from(["a", "b", "🎉"]))
row = st.tuples(key, st.integers(0, 8), st.none() | st.integers(-5, 5), st.none() | st.integers(0, 3))


def loop(earlier, key, now, smooth, half_life):
    """The formula from ``(key, time, target, weight)`` rows that all count, decayed to ``now``."""
    known = [(k, t, y, w) for k, t, y, w in earlier if y is not None and w]
    if not known:
        return 0.0
    newest = max(t for _, t, _, _ in known)
    half_life = half_life or math.inf

    def sums(rows, at):
        left = [w * 0.5 ** (max(at - t, 0) / half_life) for _, t, _, w in rows]
        return sum(left), sum(w * r[2] for w, r in zip(left, rows, strict=True))

    count, total = sums(known, newest)
    prior = total / count
    own = [r for r in known if r[0] == key and key is not None]
    if not own:
        return prior
    if not smooth:
        count, total = sums(own, max(t for _, t, _, _ in own))
        return total / count
    count, total = sums(own, max(now, max(t for _, t, _, _ in own)))
    return (total + smooth * prior) / (count + smooth)


def frame_of(rows, unit=None):
    k, t, y, w = zip(*rows, strict=True)
    t = pd.to_datetime(pd.Series(t), unit=unit) if unit else list(t)
    return pd.DataFrame(
        {"k": pd.Series(k, dtype=object), "t": t, "y": pd.array(y, dtype="Int64"), "w": pd.array(w, dtype="Int64")}
    )


SPANS = {None: 1, "s": 1, "h": 3600, "D": 86400}


@given(
    st.lists(row, min_size=1, max_size=14),
    st.sampled_from([0, 1, 20.0]),
    st.sampled_from([None, 0.01, 1.5, 100.0]),
    st.booleans(),
    st.sampled_from(sorted(SPANS, key=str)),
)
def test_it_equals_a_loop(rows, smooth, half_life, weighted, unit):
    rows = rows if weighted else [(k, t, y, 1) for k, t, y, _ in rows]
    frame, span = frame_of(rows, unit), SPANS[unit]
    ct = CumTarget(
        "k", "y", order="t", smooth=smooth, half_life=half_life and half_life * span, weight="w" if weighted else None
    )
    made = ct.fit_transform(frame)["cumte_k__y"]
    for i, (k, t, _, _) in enumerate(rows):
        earlier = [r for r in rows if r[1] < t]
        assert made[i] == pytest.approx(loop(earlier, k, t, smooth, half_life), rel=1e-9, abs=1e-12), i
    new = [("a", 3, None, None), ("a", 20, None, None), ("never", 9, None, None), (None, 9, None, None)]
    made = ct.transform(frame_of(new, unit)[["k", "t"]])["cumte_k__y"]
    for i, (k, t, _, _) in enumerate(new):
        assert made[i] == pytest.approx(loop(rows, k, t, smooth, half_life), rel=1e-9, abs=1e-12), i


@given(st.lists(row, min_size=2, max_size=14), st.sampled_from([None, 1.5]), st.data())
def test_an_outer_fold_is_in_no_value(rows, half_life, data):
    frame = frame_of(rows)
    outer = np.array(data.draw(st.lists(st.integers(0, 1), min_size=len(rows), max_size=len(rows))))
    ct = CumTarget("k", "y", order="t", smooth=2, half_life=half_life, weight="w")
    for k, frames in enumerate(FeatureSet([ct]).cross_fit(frame.assign(i=range(len(rows))), outer)):
        for i, value in pd.concat(frames)[["i", "cumte_k__y"]].itertuples(index=False):
            seen = [r for r, fold in zip(rows, outer, strict=True) if fold != k and r[1] < rows[i][1]]
            assert value == pytest.approx(loop(seen, rows[i][0], rows[i][1], 2, half_life), rel=1e-9, abs=1e-12)


def test_decay_over_many_rows_equals_an_exponential_mean_of_pandas():
    rng = np.random.default_rng(1)
    n = 3000
    time = pd.Timestamp("2024-01-01") + pd.to_timedelta(np.sort(rng.choice(10**6, n, replace=False)), unit="s")
    frame = pd.DataFrame({"k": 1, "t": time, "y": rng.normal(size=n)})
    made = CumTarget("k", "y", order="t", smooth=0, half_life=3600).fit_transform(frame)["cumte_k__y"]
    expected = frame["y"].ewm(halflife="1h", times=frame["t"]).mean().shift(1).fillna(0)
    assert made.to_numpy() == pytest.approx(expected.to_numpy(), rel=1e-7, abs=1e-9)


def test_decay_stays_sound_over_any_span():
    far = 10**15
    frame = pd.DataFrame({"k": ["a", "b", "a", "b", "a"], "t": [-far, 0, 1, far, 2 * far], "y": [1, 0, 1, 0, 0.0]})
    ct = CumTarget("k", "y", order="t", smooth=1, half_life=0.5)
    made = ct.fit_transform(frame)["cumte_k__y"].tolist()
    # After an age nothing is left of a key but the newest rows' own mean, the prior.
    assert made == pytest.approx([0, 1, 0, 0.8, 0], abs=1e-12)
    assert ct.transform(pd.DataFrame({"k": ["a", "b"], "t": [9 * far, far]}))["cumte_k__y"].tolist() == [0, 0]
    same = ct.set_params(smooth=0).fit_transform(frame)["cumte_k__y"].tolist()
    assert same == pytest.approx([0, 1, 1, 0, 1], abs=1e-12)  # a mean alone does not wear off


def test_times_beyond_the_floats_and_of_every_unit_agree():
    seconds = [0, 1, 2, 4]
    times = pd.Timestamp("2024-05-06") + pd.Series(pd.to_timedelta(seconds, unit="s"))
    frame = pd.DataFrame({"k": [1, 1, 1, 1], "y": [1.0, 0.0, 1.0, 1.0]})
    ct = CumTarget("k", "y", order="t", smooth=1, half_life=2)
    made = [ct.fit_transform(frame.assign(t=times.astype(f"M8[{u}]"))) for u in ("s", "ms", "us", "ns")]
    later = ct.transform(pd.DataFrame({"k": [1], "t": times[:1] + pd.Timedelta("6s")}).astype({"t": "M8[ms]"}))
    rows = [(1, s, y, 1) for s, y in zip(seconds, frame["y"], strict=True)]
    assert later["cumte_k__y"][0] == pytest.approx(loop(rows, 1, 6, 1, 2))
    made.append(ct.fit_transform(frame.assign(t=[2**53 + i for i in seconds])))
    assert len({tuple(m["cumte_k__y"]) for m in made}) == 1
    # Ages are less than one where the order is.
    rows = [("a", 0.25, 1, 1), ("b", 0.5, 0, 1), ("a", 1.75, 0, 1), ("b", 1.9, 1, 1), ("a", 1.8, 1, 1)]
    new = [("a", 2.0, None, None), ("b", 2.5, None, None), ("c", 9.0, None, None)]
    made = CumTarget("k", "y", order="t", smooth=1, half_life=0.5).fit(frame_of(rows)).transform(frame_of(new))
    assert made["cumte_k__y"].tolist() == pytest.approx([loop(rows, k, t, 1, 0.5) for k, t, _, _ in new])


def test_several_columns_targets_orders_and_combinations():
    frame = pd.DataFrame({"a": [1, 1, 2, 1], "b": ["x", "y", "x", "y"], "d": [2, 1, 1, 2], "s": [1, 1, 2, 0]})
    frame = frame.assign(y=[True, False, True, True], z=[1.0, 2.0, 6.0, 4.0])
    ct = CumTarget(["a", Cross("a", "b")], ["y", "z"], order=["d", "s"], smooth=0, name="so_far")
    made = ct.fit_transform(frame)
    assert ct.outputs == ["so_far_a__y", "so_far_a__z", "so_far_a_x_b__y", "so_far_a_x_b__z"]
    assert made["so_far_a__z"].tolist() == [3.0, 0.0, 2.0, 2.0]  # the rows' own order is 1, 2, 3, 0
    assert made["so_far_a_x_b__y"].tolist() == [pytest.approx(2 / 3), 0, 0, 0]
    assert ct.transform(frame[["a", "b"]])["so_far_a__z"].tolist() == pytest.approx([7 / 3, 7 / 3, 6, 7 / 3])


def test_order_is_needed_later_only_where_sums_decay():
    frame = pd.DataFrame({"k": [1, 1], "t": [1, 2], "y": [0, 1]})
    assert FeatureSet([CumTarget("k", "y", order="t"), CountEncode("k")]).inputs == ["k"]
    assert FeatureSet([CumTarget("k", "y", order="t", half_life=1)]).inputs == ["k", "t"]
    assert FeatureSet([CumTarget("t", "y", order="t")]).inputs == ["t"]
    with pytest.raises(FastrecError, match="'t'"):
        CumTarget("k", "y", order="t", half_life=1).fit(frame).transform(frame[["k"]])


@pytest.mark.parametrize("half_life", [None, 1.0])
def test_infinite_orders_are_the_first_and_the_last(half_life):
    frame = pd.DataFrame({"k": [1, 1, 1, 1], "t": [math.inf, 0.0, -math.inf, math.inf], "y": [0.0, 1.0, 0.0, 1.0]})
    made = CumTarget("k", "y", order="t", smooth=0, half_life=half_life).fit_transform(frame)["cumte_k__y"].tolist()
    assert made == ([0.5, 0, 0, 0.5] if half_life is None else [1, 0, 0, 1])


@pytest.mark.parametrize("half_life", [None, 2.0])
def test_each_class_of_a_text_target_is_averaged_as_a_number_is(half_life):
    frame = pd.DataFrame({"i": list("abaabba"), "d": [1, 2, 3, 3, 4, 6, 7], "y": ["p", "q", "q", "p", None, "r", "p"]})
    options = {"order": "d", "smooth": 1, "half_life": half_life}
    classes = CumTarget("i", "y", classes=["p", "q"], **options)
    assert classes.outputs == ["cumte_i__y_p", "cumte_i__y_q"]
    made, later = classes.fit_transform(frame), classes.transform(frame.drop(columns="y"))
    for value in "pq":
        one = frame.assign(y=(frame["y"] == value).where(frame["y"].notna()).astype("float64"))
        plain = CumTarget("i", "y", **options)
        for found, expected in ((made, plain.fit_transform(one)), (later, plain.transform(one))):
            assert found[f"cumte_i__y_{value}"].tolist() == expected["cumte_i__y"].tolist()
    with pytest.raises(FastrecError, match=r"CumTarget: the classes \['p', 1\] are not values of one kind"):
        CumTarget("i", "y", order="d", classes=["p", 1])
    with pytest.raises(FastrecError, match="classes=\\['p', 'q', 'r'\\]"):
        CumTarget("i", "y", order="d").fit(frame)


weighed = st.tuples(
    key, st.integers(0, 8), st.one_of(st.none(), st.integers(0, 4)), st.one_of(st.none(), st.integers(-5, 5))
)


@given(st.lists(weighed, min_size=1, max_size=14), st.sampled_from([0, 1, 20.0]), st.sampled_from([None, 1.5]))
def test_numbers_are_averaged_by_what_the_target_says(rows, smooth, half_life):
    """A loop over the same rows, each a number whose weight is its target."""
    k, t, y, x = zip(*rows, strict=True)
    columns = {"y": pd.array(y, dtype="Int64"), "x": pd.array(x, dtype="Int64")}
    frame = pd.DataFrame({"k": pd.Series(k, dtype=object), "t": list(t), **columns})
    ct = CumTarget("k", "y", order="t", of=["x", Combine("x", "+", "x")], smooth=smooth, half_life=half_life)
    made = ct.fit_transform(frame)
    assert list(made)[-2:] == ct.outputs == ["cumte_k__x_by_y", "cumte_k__x_plus_x_by_y"]
    events = [(a, b, number, weight) for a, b, weight, number in rows]
    new = frame.assign(t=9)
    for frame_made, expected in (
        (made, [loop([r for r in events if r[1] < b], a, b, smooth, half_life) for a, b, *_ in rows]),
        (ct.transform(new.drop(columns="y")), [loop(events, a, 9, smooth, half_life) for a, *_ in rows]),
    ):
        np.testing.assert_allclose(frame_made["cumte_k__x_by_y"], expected, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(frame_made["cumte_k__x_plus_x_by_y"], 2 * np.array(expected), rtol=1e-9, atol=1e-12)
    with pytest.raises(FastrecError, match=r"column 'y', row 1: .*rows count by a target that is below 0"):
        CumTarget("k", "y", order="t", of="x").fit({"k": [1, 1], "t": [0, 1], "y": [1, -1], "x": [2.0, 3.0]})
