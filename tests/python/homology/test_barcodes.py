# SPDX-License-Identifier: MIT
"""Barcodes and the statistics of bars: layouts, closed forms, SciPy and plain loops."""

import dataclasses
import math
import re

import numpy as np
import pytest
import torch
from scipy.stats import entropy

import attnscope as asc
from attnscope.metrics.homology import barcodes
from topology_inputs import KINDS, attention_map


@pytest.fixture
def batch():
    return torch.from_numpy(np.stack([attention_map(kind, 22) for kind in KINDS])).reshape(2, 3, 22, 22)


@pytest.fixture
def bars(batch):
    return asc.persistence(batch)


def ring(n, weight):
    a = torch.zeros(n, n, dtype=torch.float64)
    a[range(n), [*range(1, n), 0]] = weight
    return a


def test_layout(bars):
    assert bars.shape == (2, 3)
    assert len(bars) == 2
    assert bars.birth.dtype == bars.death.dtype == torch.float64
    assert bars.dimension.dtype == torch.int8
    assert bars.birth_edge.dtype == bars.death_edge.dtype == torch.int32
    assert bars.offsets.dtype == torch.int64
    assert bars.offsets.shape == (7,)
    m = bars.offsets[-1].item()
    assert bars.birth.shape == bars.death.shape == bars.dimension.shape == (m,)
    assert bars.birth_edge.shape == bars.death_edge.shape == (m, 2)
    # exactly one infinite bar each, and it is H0's last
    for index in np.ndindex(2, 3):
        components, loops = bars[index]
        assert np.isinf(components[:, 1]).sum() == 1
        assert np.isinf(components[-1, 1])
        assert np.isfinite(loops).all()


def test_repr_shows_shapes(bars):
    m = bars.birth.numel()
    assert repr(bars).startswith(f"Barcodes(shape=(2, 3), bars={m}: ")
    assert repr(asc.persistence(ring(5, 0.5))) == "Barcodes(shape=(), bars=6: 5 H0, 1 H1)"


def test_indexing(bars, batch):
    for bar, expected in zip(bars[-1, 1], asc.persistence(batch[1, 1])[()], strict=True):
        np.testing.assert_array_equal(bar, expected)
    np.testing.assert_array_equal(bars[-2, -3][0], bars[0, 0][0])
    for wrong in (0, (0, 3), (2, 0), (0, -4), (0, 0, 0)):
        with pytest.raises(IndexError):
            bars[wrong]
    with pytest.raises(TypeError):
        bars[0.5, 1]
    with pytest.raises(TypeError, match=r"^len\(\) of the barcodes of a single map; .* gives its bars$"):
        len(asc.persistence(ring(4, 0.5)))


def test_edges_follow_the_bars(bars, batch):
    for index in np.ndindex(2, 3):
        w = torch.maximum(batch[index], batch[index].T).clamp(max=1).numpy()
        loops, edges = bars[index][1], bars.edges(index)[1]
        assert edges.shape == (len(loops), 2, 2)
        np.testing.assert_array_equal(1.0 - w[edges[:, 0, 0], edges[:, 0, 1]], loops[:, 0])
        np.testing.assert_array_equal(1.0 - w[edges[:, 1, 0], edges[:, 1, 1]], loops[:, 1])


def test_padded(bars):
    for dimension in (0, 1):
        lengths = {index: len(bars[index][dimension]) for index in np.ndindex(2, 3)}
        padded = bars.padded(dimension)
        assert padded.shape == (2, 3, max(lengths.values()), 2)
        for index, length in lengths.items():
            np.testing.assert_array_equal(padded[index][:length], bars[index][dimension])
            assert torch.isnan(padded[index][length:]).all()
    assert (bars.padded(1, fill=-1.0)[~torch.isfinite(bars.padded(1))] == -1.0).all()
    with pytest.raises(ValueError, match="dimension must be 0 or 1, got 2"):
        bars.padded(2)


def test_no_maps_have_no_bars():
    none = asc.persistence(torch.zeros(0, 4, 4))
    assert none.padded(0).shape == (0, 0, 2)
    assert asc.bar_count(none).shape == asc.total_persistence(none).shape == (0, 2)


@pytest.mark.filterwarnings("error")
def test_a_bar_that_vanishes_beside_the_others_adds_nothing():
    edges = torch.full((4, 2), -1, dtype=torch.int32)
    bars = barcodes.Barcodes(
        birth=torch.zeros(4, dtype=torch.float64),
        death=torch.tensor([5e-324, 1.0, 1.0, math.inf], dtype=torch.float64),
        dimension=torch.zeros(4, dtype=torch.int8),
        birth_edge=edges,
        death_edge=edges,
        offsets=torch.tensor([0, 4]),
        shape=(),
    )
    assert asc.persistent_entropy(bars).tolist() == pytest.approx([math.log(2), 0.0])


def test_statistics_equal_plain_loops(bars):
    count, total = asc.bar_count(bars), asc.total_persistence(bars)
    longest, spread = asc.max_persistence(bars), asc.persistent_entropy(bars)
    assert count.dtype == torch.int64
    for index in np.ndindex(2, 3):
        for dimension, bar in enumerate(bars[index]):
            finite = bar[np.isfinite(bar[:, 1])]
            length = finite[:, 1] - finite[:, 0]
            assert count[index][dimension] == len(bar)
            assert total[index][dimension].item() == pytest.approx(length.sum(), rel=1e-13, abs=0)
            assert longest[index][dimension].item() == (length.max() if len(length) else 0.0)
            expected = entropy(length) if len(length) else 0.0
            assert spread[index][dimension].item() == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_statistics_of_closed_forms():
    bars = asc.persistence(ring(8, 0.75))
    assert asc.bar_count(bars).tolist() == [8, 1]
    assert asc.total_persistence(bars).tolist() == [7 * 0.25, 0.75]
    assert asc.max_persistence(bars).tolist() == [0.25, 0.75]
    assert asc.persistent_entropy(bars).tolist() == pytest.approx([math.log(7), 0.0])
    single = asc.persistence(torch.ones(1, 1))
    assert asc.bar_count(single).tolist() == [1, 0]
    for statistic in (asc.total_persistence, asc.max_persistence, asc.persistent_entropy):
        assert statistic(single).tolist() == [0.0, 0.0]


def test_betti_curve_equals_a_count(bars):
    scales = torch.tensor([0.9, 0.0, 1.0, 0.5, 0.75, 0.5, 2.0, -1.0])
    curve = asc.betti_curve(bars, scales)
    assert curve.shape == (2, 3, 8, 2)
    assert curve.dtype == torch.int64
    for index in np.ndindex(2, 3):
        for k, scale in enumerate(scales.tolist()):
            alive = [int(((bar[:, 0] <= scale) & (scale < bar[:, 1])).sum()) for bar in bars[index]]
            assert curve[index][k].tolist() == alive
    with pytest.raises(ValueError, match="scales must be one or more numbers"):
        asc.betti_curve(bars, [])
    with pytest.raises(ValueError, match="scales must be one or more numbers"):
        asc.betti_curve(bars, [0.5, math.nan])


def test_non_finite_maps_are_marked(batch):
    non_finite = batch.clone()
    non_finite[0, 1, 2, 3] = torch.nan
    with pytest.warns(RuntimeWarning, match="1 of 6"):
        bars = asc.persistence(non_finite)
    clean = asc.persistence(batch)
    assert asc.bar_count(bars)[0, 1].tolist() == [-1, -1]
    assert asc.betti_curve(bars, 0.5)[0, 1].tolist() == [[-1, -1]]
    keep = torch.ones(2, 3, dtype=torch.bool)
    keep[0, 1] = False
    for statistic in (asc.total_persistence, asc.max_persistence, asc.persistent_entropy):
        assert torch.isnan(statistic(bars)[0, 1]).all()
        assert torch.equal(statistic(bars)[keep], statistic(clean)[keep])


def test_a_batch_with_one_leading_axis_is_iterated_over(bars, batch):
    row = asc.persistence(batch[0])
    for bars_of_map, index in zip(row, range(3), strict=True):
        np.testing.assert_array_equal(bars_of_map[0], bars[0, index][0])
        np.testing.assert_array_equal(bars_of_map[1], bars[0, index][1])
    # an iteration that yields nothing would be taken for maps without bars
    with pytest.raises(TypeError, match=re.escape("of shape (2, 3) are not iterated over")):
        list(bars)


@pytest.mark.parametrize(
    "statistic", [asc.bar_count, asc.total_persistence, asc.max_persistence, asc.persistent_entropy]
)
def test_attention_in_the_place_of_bars_is_refused(statistic, batch):
    with pytest.raises(TypeError, match=f"{statistic.__name__}: barcodes must be what persistence"):
        statistic(batch)
    with pytest.raises(TypeError, match="betti_curve: barcodes must be what persistence"):
        asc.betti_curve(batch, [0.5])


@pytest.mark.parametrize(
    ("field", "values", "message"),
    [
        ("offsets", [0, 3, 9], "offsets must rise from 0 to the number of bars, 4"),
        ("offsets", [0, 5, 4], "offsets must rise from 0 to the number of bars, 4"),
        ("offsets", [1, 2, 4], "offsets must rise from 0 to the number of bars, 4"),
        ("dimension", [0, 0, 2, 1], "dimension must be 0 or 1, got 2"),
        ("dimension", [0, 0, -1, 1], "dimension must be 0 or 1, got -1"),
        ("offsets", [0, 1, 3, 4], "barcodes of shape (2,) need 3 offsets, got 4"),
    ],
)
@pytest.mark.parametrize(
    "statistic",
    [asc.bar_count, asc.total_persistence, asc.max_persistence, asc.persistent_entropy, asc.betti_curve],
)
def test_fields_that_do_not_fit_each_other_are_refused(statistic, field, values, message):
    """The message named no function, and a shape of other maps ended in an error of torch."""
    fields = {
        "birth": torch.zeros(4, dtype=torch.float64),
        "death": torch.tensor([0.5, 1.0, math.inf, 0.75], dtype=torch.float64),
        "dimension": torch.zeros(4, dtype=torch.int8),
        "birth_edge": torch.full((4, 2), -1, dtype=torch.int32),
        "death_edge": torch.full((4, 2), -1, dtype=torch.int32),
        "offsets": torch.tensor([0, 3, 4]),
        "shape": (2,),
    }
    fields[field] = torch.tensor(values, dtype=fields[field].dtype)
    arguments = ([0.5],) if statistic is asc.betti_curve else ()
    with pytest.raises(ValueError, match=re.escape(f"{statistic.__name__}: {message}")):
        statistic(asc.Barcodes(**fields), *arguments)


def test_bars_in_every_second_place_of_memory_have_the_same_statistics(bars):
    ends = torch.stack([bars.birth, bars.death], -1)
    spaced = dataclasses.replace(bars, birth=ends[:, 0], death=ends[:, 1])
    for statistic in (asc.total_persistence, asc.persistent_entropy, asc.bar_count):
        torch.testing.assert_close(statistic(spaced), statistic(bars), rtol=0, atol=0)
