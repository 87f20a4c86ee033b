# SPDX-License-Identifier: MIT
from pathlib import Path

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse.csgraph import connected_components

import attnscope as asc
from strategies import KINDS, attention_batch, attention_map, attention_maps

DATA = Path(__file__).resolve().parents[4] / "shared" / "data"


def weights(a, symmetrize="mean", threshold=None):
    a = np.asarray(a, dtype=np.float64)
    larger = np.maximum(a, a.T)
    w = (larger >= threshold).astype(float) if threshold else larger if symmetrize == "max" else (a + a.T) / 2
    np.fill_diagonal(w, 0.0)
    return w


def oracle(a, symmetrize="mean", threshold=None, normalized=False):
    """All eigenvalues in NumPy, from the definition."""
    w = weights(a, symmetrize, threshold)
    d = w.sum(0)
    if not normalized:
        return np.linalg.eigvalsh(np.diag(d) - w)
    scale = np.array([0.0 if x == 0 else x**-0.5 for x in d])
    return np.linalg.eigvalsh(np.diag((d > 0).astype(float)) - scale[:, None] * w * scale)


OPTIONS = [
    {},
    {"symmetrize": "max"},
    {"normalized": True},
    {"symmetrize": "max", "normalized": True},
    {"threshold": 0.05},
    {"threshold": 0.05, "normalized": True},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("n", [1, 2, 3, 9, 40, 150, 256, 257, 290])
def test_equals_numpy(n, options):
    for kind in KINDS:
        a = attention_map(n, kind, seed=n)
        result = asc.laplacian_eigenvalues(torch.tensor(a), **options).numpy()
        expected = oracle(a, **options)
        np.testing.assert_allclose(result, expected, rtol=1e-10, atol=1e-13 * max(1.0, expected[-1]))


def test_closed_forms():
    n = 7
    k = np.arange(n)
    a = torch.zeros(4, n, n)
    a[0, 1:, 0] = 0.5  # star
    a[1] = 0.5  # complete
    a[2, k[:-1], k[1:]] = 0.5  # path
    a[3, k, (k + 1) % n] = 0.5  # cycle
    star, complete, path, cycle = asc.laplacian_eigenvalues(a, threshold=0.3).numpy()
    np.testing.assert_allclose(star, [0] + [1] * (n - 2) + [n], atol=1e-12)
    np.testing.assert_allclose(complete, [0] + [n] * (n - 1), atol=1e-12)
    np.testing.assert_allclose(path, 2 - 2 * np.cos(np.pi * k / n), atol=1e-12)
    np.testing.assert_allclose(cycle, np.sort(2 - 2 * np.cos(2 * np.pi * k / n)), atol=1e-12)


@settings(max_examples=60)
@given(attention_maps(largest=16), st.floats(0.01, 0.9), st.booleans())
def test_zeros_count_components(a, threshold, normalized):
    values = asc.laplacian_eigenvalues(torch.tensor(a), threshold=threshold, normalized=normalized)
    components = connected_components(weights(a, threshold=threshold), directed=False)[0]
    assert int((values == 0).sum()) == components
    assert (values >= 0).all()


@settings(max_examples=60)
@given(
    attention_maps(smallest=2, largest=16),
    st.integers(0, 2**31),
    st.floats(1e-3, 1e3),
    st.sampled_from(["mean", "max"]),
)
def test_relabelling_scaling_trace_and_bounds(a, seed, factor, symmetrize):
    values = asc.laplacian_eigenvalues(torch.tensor(a), symmetrize=symmetrize)
    order = np.random.default_rng(seed).permutation(len(a))
    close = {"rtol": 1e-10, "atol": 1e-12}
    torch.testing.assert_close(
        asc.laplacian_eigenvalues(torch.tensor(a[np.ix_(order, order)]), symmetrize=symmetrize),
        values,
        **close,
    )
    scaled = asc.laplacian_eigenvalues(torch.tensor(a * factor), symmetrize=symmetrize)
    torch.testing.assert_close(scaled, values * factor, rtol=1e-10, atol=1e-12 * factor)
    degree = weights(a, symmetrize).sum(0)
    assert values.sum().item() == pytest.approx(degree.sum())
    assert values[-1] <= 2 * degree.max() + 1e-12
    normalized = asc.laplacian_eigenvalues(torch.tensor(a), symmetrize=symmetrize, normalized=True)
    assert normalized[-1] <= 2 + 1e-12


def test_k_smallest_and_ragged_lengths():
    a = attention_batch((5,), 9)
    all_eigenvalues = asc.laplacian_eigenvalues(a)
    assert torch.equal(asc.laplacian_eigenvalues(a, 3), all_eigenvalues[:, :3])
    result = asc.laplacian_eigenvalues(a, 4, lengths=[9, 5, 2, 1, 4])
    for i, m in enumerate([9, 5, 2, 1, 4]):
        eigenvalues_of_map = asc.laplacian_eigenvalues(a[i, :m, :m], min(m, 4))
        assert torch.equal(result[i, : min(m, 4)], eigenvalues_of_map)
        assert torch.isnan(result[i, min(m, 4) :]).all()


def test_gap():
    a = attention_batch((6,), 12)
    values = asc.laplacian_eigenvalues(a)
    torch.testing.assert_close(asc.laplacian_gap(a), values[:, 2] - values[:, 1])
    pairs = asc.laplacian_gap(a[:, :2, :2].reshape(3, 2, 2, 2))
    assert pairs.dtype == torch.float64
    assert pairs.shape == (3, 2)
    assert torch.isnan(pairs).all()
    ragged = asc.laplacian_gap(a, lengths=[12, 3, 2, 1, 4, 5])
    assert torch.isnan(ragged).tolist() == [False, False, True, True, False, False]


@pytest.mark.parametrize("options", [*OPTIONS, {"threshold": 0.05, "symmetrize": "max"}], ids=str)
def test_the_gap_takes_every_option(options):
    for kind in KINDS:
        a = attention_map(12, kind, seed=3)
        values = oracle(a, **options)
        result = asc.laplacian_gap(torch.tensor(a), **options).item()
        assert result == pytest.approx(values[2] - values[1], rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_half_types_are_widened_exactly(dtype):
    a = attention_batch((6,), 11, dtype)
    assert torch.equal(asc.laplacian_eigenvalues(a), asc.laplacian_eigenvalues(a.double()))


def test_negative_weights_are_not_hidden():
    a = attention_map(8, "full", 2) - 0.2
    result = asc.laplacian_eigenvalues(torch.tensor(a)).numpy()
    expected = oracle(a)
    assert expected[0] < -0.1
    np.testing.assert_allclose(result, expected, rtol=1e-10, atol=1e-13)
    assert torch.isnan(asc.laplacian_eigenvalues(torch.tensor(a), normalized=True)).all()
    with pytest.raises(ValueError, match="must hold finite entries"):
        asc.laplacian_eigenvalues(torch.tensor(a), validate=True)


def test_non_finite_maps_leave_their_neighbours_alone():
    a = attention_batch((4,), 6)
    clean = asc.laplacian_eigenvalues(a)
    a[2, 3, 1] = float("nan")
    with pytest.warns(RuntimeWarning, match="laplacian_eigenvalues: 1 of 4 matrices"):
        result = asc.laplacian_eigenvalues(a)
    assert torch.isnan(result[2]).all()
    assert torch.equal(result[[0, 1, 3]], clean[[0, 1, 3]])


@pytest.mark.parametrize("n", [4, 33, 130, 258])
def test_a_result_never_depends_on_its_neighbours_or_threads(n):
    a = attention_batch((19,), n, torch.float32)
    a[3] = torch.eye(n)
    a[5, 2, 2] = float("nan")
    a[7] = -a[7]
    a[8] = 1.0 / n
    a[9] = 0.0
    a[11] *= 1e-30
    threads = torch.get_num_threads()
    try:
        for options in ({}, {"normalized": True}, {"threshold": 0.02}):
            torch.set_num_threads(1)
            with pytest.warns(RuntimeWarning):
                together = asc.laplacian_eigenvalues(a, **options)
            for count in (2, 7):
                torch.set_num_threads(count)
                with pytest.warns(RuntimeWarning):
                    again = asc.laplacian_eigenvalues(a, **options)
                assert torch.equal(again.nan_to_num(-7), together.nan_to_num(-7))
            for i in (0, 3, 7, 8, 9, 11, 18):
                single_result = asc.laplacian_eigenvalues(a[i], **options)
                assert torch.equal(single_result.nan_to_num(-7), together[i].nan_to_num(-7)), i
            assert torch.isnan(together[5]).all()
    finally:
        torch.set_num_threads(threads)


def test_strided_views():
    a = attention_batch((6,), 40, torch.float32)
    expected = asc.laplacian_eigenvalues(a)
    wide = torch.zeros(6, 80, 120)
    wide[:, ::2, ::3] = a
    assert torch.equal(asc.laplacian_eigenvalues(wide[:, ::2, ::3]), expected)
    assert torch.equal(asc.laplacian_eigenvalues(a.mT.contiguous().mT), expected)


@pytest.mark.parametrize("scale", [1e-250, 1e-60, 1e80, 1e200])
def test_the_scale_of_the_weights_is_that_of_the_eigenvalues(scale):
    a = attention_batch((3,), 20).double()
    result = asc.laplacian_eigenvalues(a * scale) / scale
    torch.testing.assert_close(result, asc.laplacian_eigenvalues(a), rtol=1e-10, atol=1e-13)


def test_a_thin_bridge_against_mpmath():
    # two cliques of four and a bridge of 1e-12: λ2 is half the bridge, and the rest crowds at 4
    n = 8
    a = torch.zeros(n, n, dtype=torch.float64)
    a[:4, :4] = a[4:, 4:] = 1.0
    a[3, 4] = a[4, 3] = 1e-12
    with mpmath.workdps(60):
        exact = mpmath.matrix(n, n)
        for i in range(n):
            for j in range(n):
                if i != j:
                    exact[i, j] -= mpmath.mpf(a[i, j].item())
                    exact[i, i] += mpmath.mpf(a[i, j].item())
        values = sorted(float(v) for v in mpmath.eigsy(exact, eigvals_only=True))
    result = asc.laplacian_eigenvalues(a).tolist()
    assert result[0] == 0.0
    for ours, true in zip(result, values, strict=True):
        assert abs(ours - true) < 1e-14


@pytest.mark.parametrize("model", ["stories260K", "llama2xs"])
def test_trained_heads_equal_lapack(model):
    path = DATA / model / "golden_bos64.npz"
    if not path.is_file():
        pytest.skip(f"{path} is absent")
    maps = np.load(path)["attn"].reshape(-1, 64, 64)
    for normalized in (False, True):
        result = asc.laplacian_eigenvalues(torch.from_numpy(maps), normalized=normalized).numpy()
        expected = np.array([oracle(a, normalized=normalized) for a in maps])
        error = np.abs(result - expected).max(-1) / expected[:, -1]
        assert error.max() < 1e-13, f"off by {error.max():.1e} of the largest eigenvalue"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"k": 0}, "laplacian_eigenvalues: k must lie between 1 and n = 5, got 0"),
        ({"k": 6}, "k must lie between 1 and n = 5, got 6"),
        ({"threshold": 1.0}, "threshold must lie strictly between 0 and 1, got 1.0"),
        ({"symmetrize": "sum"}, "symmetrize must be one of 'mean', 'max', got 'sum'"),
        ({"attention": torch.zeros(5, 4)}, r"got shape \(5, 4\)"),
        ({"attention": torch.zeros(5, 5, dtype=torch.int64)}, "got torch.int64"),
        ({"lengths": [0]}, "between 1 and n = 5, got 0"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        asc.laplacian_eigenvalues(**{"attention": torch.eye(5).expand(1, 5, 5), **arguments})


def test_the_gap_speaks_of_itself():
    non_finite = torch.full((4, 4), torch.nan)
    with pytest.warns(RuntimeWarning, match=r"^laplacian_gap: 1 of 1 matrices"):
        asc.laplacian_gap(non_finite)
    with pytest.raises(ValueError, match=r"^laplacian_gap: symmetrize must be"):
        asc.laplacian_gap(torch.eye(4), symmetrize="men")


@pytest.mark.parametrize("n", [1, 2])
def test_a_gap_of_too_few_tokens_leaves_no_gradient_in_a_loss_that_leaves_it_out(n):
    attention = torch.full((3, n, n), 1 / n, dtype=torch.float64, requires_grad=True)
    gap = asc.laplacian_gap(attention)
    assert gap.isnan().all()
    gap.nansum().backward()
    assert attention.grad.eq(0).all()
