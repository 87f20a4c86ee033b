# SPDX-License-Identifier: MIT
import inspect
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse.csgraph import connected_components

import attnscope as asc
from strategies import attention_batch, attention_map, attention_maps

THRESHOLDS = [0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2]
NAN = float("nan")


def oracle(a, t):
    """Every field from its formula, in NumPy, for one map and one threshold."""
    a = np.asarray(a, dtype=np.float64)
    n = len(a)
    off = ~np.eye(n, dtype=bool)
    graph = ((np.maximum(a, a.T) >= t) & off).astype(float)
    degree = graph.sum(0)
    in_degree = ((a >= t) & off).sum(0).astype(float)
    laplacian = np.diag(degree) - graph
    values = np.linalg.eigvalsh(laplacian)
    components = connected_components(graph, directed=False)[0]
    hub = int(degree.argmax())
    rest = np.delete(np.delete(graph, hub, 0), hub, 1)

    def gini(d):
        ranks = np.arange(1, n + 1)
        return 0.0 if d.sum() == 0 else float(((2 * ranks - n - 1) * np.sort(d)).sum() / (n * d.sum()))

    density = graph.sum() / (n * (n - 1)) if n > 1 else NAN
    return {
        "fiedler_value": 0.0 if n == 1 or components > 1 else values[1],
        "laplacian_gap": NAN if n < 3 else values[2] - values[1],
        "components": components,
        "density": density,
        "hub_share": degree.max() / (n - 1) if n > 1 else NAN,
        "gini": gini(degree),
        "centralization": (degree.max() - degree).sum() / ((n - 1) * (n - 2)) if n > 2 else NAN,
        "degree_variance": degree.var(),
        "star_likeness": NAN if n < 3 else degree.max() / (n - 1) * (1 - rest.sum() / ((n - 1) * (n - 2))),
        "in_degree_gini": gini(in_degree),
        "in_degree_centralization": (in_degree.max() - in_degree).sum() / (n - 1) ** 2 if n > 1 else NAN,
        "effective": bool(0.05 <= density <= 0.95),
        "strong_components": connected_components((a >= t) & off, directed=True, connection="strong")[0],
    }


def assert_matches(result, a, thresholds):
    for k, t in enumerate(thresholds):
        for field, expected in oracle(a, t).items():
            value = getattr(result, field)[..., k].item()
            scale = len(a) if field in ("fiedler_value", "laplacian_gap") else 1.0
            assert value == pytest.approx(expected, rel=1e-10, abs=1e-11 * scale, nan_ok=True), (field, t)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 16, 33, 70])
@pytest.mark.parametrize("kind", ["causal", "full", "sparse", "sink", "local", "tied"])
def test_equals_the_formulas(n, kind):
    a = attention_map(n, kind, seed=n)
    assert_matches(asc.graph_statistics(torch.tensor(a), THRESHOLDS), a, THRESHOLDS)


def test_more_rows_than_a_byte_counts():
    a = attention_map(300, "full", seed=4, sharpness=3.0)
    assert_matches(asc.graph_statistics(torch.tensor(a), [0.001, 0.05]), a, [0.001, 0.05])


def test_more_thresholds_than_a_byte_counts():
    a = attention_map(9, "full", seed=4)
    thresholds = np.linspace(0.001, 0.6, 600)[::-1].copy()
    result = asc.graph_statistics(torch.tensor(a), torch.tensor(thresholds))
    assert_matches(result, a, thresholds)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_compares_each_entry_as_the_number_it_stands_for(dtype):
    batch = attention_batch((2, 6), 19, dtype)
    # thresholds that entries meet exactly, and ones just above them in float64
    exact = [float(batch[0, 1, 5, 2]), float(batch[1, 3, 7, 7])]
    thresholds = sorted({t for e in exact for t in (e, np.nextafter(e, 1.0))})
    result = asc.graph_statistics(batch, thresholds)
    for i in range(2):
        for h in range(6):
            single_result = asc.GraphStatistics(*(field[i, h] for field in result))
            assert_matches(single_result, batch[i, h].double().numpy(), thresholds)


def graph(n, edges):
    a = torch.zeros(n, n)
    for i, j in edges:
        a[i, j] = 0.5
    return a


def test_closed_forms():
    n = 8
    star = asc.graph_statistics(graph(n, [(i, 0) for i in range(1, n)]), 0.3)
    complete = asc.graph_statistics(torch.full((n, n), 0.4), 0.3)
    cycle = asc.graph_statistics(graph(n, [(i, (i + 1) % n) for i in range(n)]), 0.3)
    path = asc.graph_statistics(graph(n, [(i, i + 1) for i in range(n - 1)]), 0.3)
    two = asc.graph_statistics(graph(n, [(0, 1), (1, 2), (0, 2), (3, 4)]), 0.3)
    assert star.fiedler_value.item() == pytest.approx(1.0)
    assert star.laplacian_gap.item() == pytest.approx(0.0, abs=1e-12)
    assert (star.centralization.item(), star.star_likeness.item(), star.hub_share.item()) == (1, 1, 1)
    assert star.in_degree_centralization.item() == 1
    assert star.in_degree_gini.item() == pytest.approx((n - 1) / n)
    assert star.density.item() == pytest.approx(2 / n)
    assert complete.fiedler_value.item() == pytest.approx(n)
    assert (complete.density.item(), complete.effective.item(), complete.star_likeness.item()) == (
        1,
        False,
        0,
    )
    assert cycle.fiedler_value.item() == pytest.approx(2 - 2 * np.cos(2 * np.pi / n))
    assert cycle.laplacian_gap.item() == pytest.approx(0, abs=1e-12)
    assert (cycle.gini.item(), cycle.degree_variance.item()) == (0, 0)
    assert path.fiedler_value.item() == pytest.approx(2 - 2 * np.cos(np.pi / n))
    assert two.components.item() == 5
    assert (two.fiedler_value.item(), two.laplacian_gap.item()) == (0, 0)


def test_two_components_have_an_exact_zero_and_the_smaller_half_decides_the_gap():
    result = asc.graph_statistics(
        graph(7, [(0, 1), (1, 2), (3, 4), (4, 5), (5, 6), (3, 5), (3, 6), (4, 6)]), 0.3
    )
    assert result.fiedler_value.item() == 0.0
    assert result.laplacian_gap.item() == pytest.approx(1.0)  # path of 3 against complete of 4


def test_no_edge_at_all():
    result = asc.graph_statistics(torch.eye(5), 0.2)
    assert result.components.item() == 5
    assert [f.item() for f in (result.gini, result.in_degree_gini, result.density, result.hub_share)] == [
        0,
        0,
        0,
        0,
    ]
    assert not result.effective.item()


def test_small_maps():
    single_result = asc.graph_statistics(torch.ones(1, 1), 0.2)
    assert (
        single_result.fiedler_value.item(),
        single_result.components.item(),
        single_result.gini.item(),
    ) == (0, 1, 0)
    for field in ("laplacian_gap", "density", "hub_share", "centralization", "star_likeness"):
        assert torch.isnan(getattr(single_result, field)).all(), field
    two = asc.graph_statistics(torch.full((2, 2), 0.5), 0.2)
    assert (two.fiedler_value.item(), two.density.item(), two.hub_share.item()) == (pytest.approx(2), 1, 1)
    for field in ("laplacian_gap", "centralization", "star_likeness"):
        assert torch.isnan(getattr(two, field)).all(), field


def test_k_over_n_is_each_maps_own_n():
    a = attention_batch((4,), 12)
    lengths = torch.tensor([12, 7, 3, 1])
    result = asc.graph_statistics(a, ["1/n", 0.1, "2/n", "4/n"], lengths=lengths)
    for i, m in enumerate(lengths.tolist()):
        single_result = asc.graph_statistics(
            a[i, :m, :m], [1 / m, 0.1, 2 / m, 4 / m] if m > 4 else ["1/n", 0.1, "2/n", "4/n"]
        )
        for field, value in result._asdict().items():
            torch.testing.assert_close(
                value[i], getattr(single_result, field), equal_nan=True, rtol=0, atol=0, msg=field
            )
    assert result.components[3].tolist() == [1, 1, 1, 1]
    assert result.components[2, 3].item() == 3  # 4/3 is above every entry


def test_non_finite_maps_leave_their_neighbours_alone():
    a = attention_batch((3, 2), 10)
    clean = asc.graph_statistics(a, THRESHOLDS)
    a[1, 0, 4, 9] = float("inf")
    with pytest.warns(RuntimeWarning, match="graph_statistics: 1 of 6 matrices"):
        result = asc.graph_statistics(a, THRESHOLDS)
    for field, value in result._asdict().items():
        bad = value[1, 0]
        if value.dtype == torch.int64:
            assert (bad == -1).all()
        elif value.dtype == torch.bool:
            assert not bad.any()
        else:
            assert torch.isnan(bad).all(), field
        value[1, 0] = getattr(clean, field)[1, 0]
        assert torch.equal(value, getattr(clean, field)), field


def test_strided_views_are_read_in_place_and_untouched():
    base = attention_batch((3, 4), 20, torch.float32)
    before = base.clone()
    wide = torch.zeros(3, 4, 40, 60)
    wide[:, :, ::2, ::3] = base
    for view, plain in [
        (wide[:, :, ::2, ::3], base),
        (base.transpose(-1, -2), base.transpose(-1, -2).contiguous()),
        (base.transpose(0, 1), base.transpose(0, 1).contiguous()),
        (base[:, :1].expand(3, 4, 20, 20), base[:, :1].repeat(1, 4, 1, 1)),
        (base[0, 0, 0].expand(20, 20), base[0, 0, 0].repeat(20, 1)),
    ]:
        for a, b in zip(
            asc.graph_statistics(view, THRESHOLDS), asc.graph_statistics(plain, THRESHOLDS), strict=True
        ):
            assert torch.equal(a.nan_to_num(-7), b.nan_to_num(-7))
    assert torch.equal(base, before)


def test_threads_do_not_change_a_bit():
    a = attention_batch((30,), 21)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        single_result = asc.graph_statistics(a, THRESHOLDS)
        torch.set_num_threads(2)
        two = asc.graph_statistics(a, THRESHOLDS)
    finally:
        torch.set_num_threads(threads)
    for x, y in zip(single_result, two, strict=True):
        assert torch.equal(x, y)


@settings(max_examples=60)
@given(attention_maps(largest=20), st.integers(0, 2**31), st.floats(0.001, 0.9))
def test_laws(a, seed, threshold):
    n = len(a)
    result = asc.graph_statistics(torch.tensor(a), [threshold, min(0.95, 2 * threshold)])
    order = np.random.default_rng(seed).permutation(n)
    relabelled = asc.graph_statistics(
        torch.tensor(a[np.ix_(order, order)]), [threshold, min(0.95, 2 * threshold)]
    )
    for x, y in zip(result, relabelled, strict=True):
        torch.testing.assert_close(x, y, equal_nan=True, rtol=1e-10, atol=1e-10 * n)
    # more edges never disconnect, and every share stays within its range
    assert result.components[0] <= result.components[1]
    assert result.fiedler_value[0] >= result.fiedler_value[1] - 1e-10 * n
    for field in (
        "density",
        "hub_share",
        "gini",
        "centralization",
        "star_likeness",
        "in_degree_gini",
        "in_degree_centralization",
    ):
        value = getattr(result, field)
        assert ((value >= 0) & (value <= 1 + 1e-15) | torch.isnan(value)).all(), field
    assert ((result.components == 1) == (result.fiedler_value > 1e-10)).all() or n == 1
    # zeros of the thresholded Laplacian count the components
    values = asc.laplacian_eigenvalues(torch.tensor(a), threshold=threshold)
    assert int((values == 0).sum()) == result.components[0].item()


def test_order_and_repetition_of_thresholds_do_not_matter():
    a = torch.tensor(attention_map(15, "full", 3))
    up = asc.graph_statistics(a, [0.02, 0.02, 0.1])
    down = asc.graph_statistics(a, [0.1, 0.02])
    for x, y in zip(up, down, strict=True):
        assert torch.equal(x[[2, 1]], y)
        assert torch.equal(x[0], x[1])


def test_printing_shows_shapes():
    text = repr(asc.graph_statistics(attention_batch((2, 3), 5), [0.1, 0.2]))
    assert text.startswith("GraphStatistics(fiedler_value=float64[2, 3, 2]")
    assert "components=int64[2, 3, 2]" in text
    assert "effective=bool[2, 3, 2]" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"thresholds": [0.1, 0.0]},
            "graph_statistics: thresholds must lie strictly between 0 and 1, got 0.0",
        ),
        ({"thresholds": [1.0]}, "strictly between 0 and 1, got 1.0"),
        ({"thresholds": [NAN]}, "strictly between 0 and 1, got nan"),
        ({"thresholds": []}, "at least one value"),
        ({"thresholds": ["2/m"]}, "must read \"k/n\" with k > 0, got '2/m'"),
        ({"thresholds": ["-1/n"]}, 'must read "k/n"'),
        ({"thresholds": ["n"]}, 'must read "k/n"'),
        (
            {"attention": torch.zeros(2, 4, 7, 8)},
            r"square in its last two dimensions, got shape \(2, 4, 7, 8\)",
        ),
        ({"attention": torch.zeros(0, 0)}, "at least one token"),
        ({"attention": torch.zeros(4)}, "at least two dimensions"),
        ({"attention": torch.zeros(4, 4, dtype=torch.int32)}, "got torch.int32"),
        ({"attention": torch.zeros(4, 4, dtype=torch.complex64)}, "got torch.complex64"),
        ({"lengths": 9}, "between 1 and n = 5, got 9"),
        ({"attention": -torch.ones(5, 5), "validate": True}, r"got -1.0 at index \(0, 0\)"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        asc.graph_statistics(**{"attention": torch.eye(5), "thresholds": [0.1], **arguments})


def test_an_empty_batch_is_an_empty_result():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = asc.graph_statistics(torch.zeros(0, 3, 5, 5), [0.1, 0.2])
    assert result.components.shape == (0, 3, 2)


def test_signature():
    assert list(inspect.signature(asc.graph_statistics).parameters) == [
        "attention",
        "thresholds",
        "precision",
        "lengths",
        "validate",
    ]
    with pytest.raises(TypeError, match="symmetrize"):
        asc.graph_statistics(torch.eye(3), 0.1, symmetrize="max")
