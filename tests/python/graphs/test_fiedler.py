# SPDX-License-Identifier: MIT
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_laplacian import OPTIONS, oracle, weights

import attnscope as asc
from attnscope import devices
from strategies import KINDS, attention_batch, attention_map, attention_maps

DATA = Path(__file__).resolve().parents[4] / "shared" / "data"
# both sides of every change of method (2|3 direct, 88|89 tridiagonal) and of a strip
SIZES = [3, 4, 5, 16, 32, 33, 34, 35, 64, 87, 88, 89, 96, 97, 108, 109, 130]


def lambda2(a, **options):
    values = oracle(a, **options)
    return 0.0 if len(values) == 1 else values[1]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("n", [1, 2, *SIZES])
def test_equals_numpy(n, options):
    maps = [attention_map(n, kind, seed=n) for kind in KINDS]
    result = asc.fiedler_value(torch.tensor(np.array(maps)), **options).numpy()
    expected = np.array([lambda2(a, **options) for a in maps])
    # a LAPACK eigenvalue is itself only known to a rounding of the largest one
    largest = max(1.0, max(oracle(a, **options)[-1] for a in maps))
    np.testing.assert_allclose(result, expected, rtol=1e-10, atol=1e-14 * largest)


@pytest.mark.parametrize("n", [255, 639, 640])
def test_large_maps_equal_numpy(n):
    maps = [attention_map(n, kind, seed=n) for kind in ("causal", "local")]
    for options in ({}, {"normalized": True}):
        result = asc.fiedler_value(torch.tensor(np.array(maps)), **options).numpy()
        np.testing.assert_allclose(result, [lambda2(a, **options) for a in maps], rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("n", [88, 89, 131, 200, 390])
def test_maps_whose_eigenvalues_crowd_above_the_smallest(n, normalized):
    """A sink over diffuse rest: inverse iteration crawls, and the shift has to move up to λ2."""
    logits = 0.3 * torch.randn(3, n, n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    logits[0, :, 0] += 4.0
    logits[1] = logits[1].masked_fill(~torch.ones(n, n, dtype=torch.bool).tril(), -torch.inf)
    attention = torch.softmax(logits, -1)
    expected = [lambda2(a.numpy(), normalized=normalized) for a in attention]
    np.testing.assert_allclose(asc.fiedler_value(attention, normalized=normalized), expected, rtol=1e-9)


def crowded_maps(n, seed):
    """Maps of five regimes: a sink, near keys, nearly uniform, sharp, and sharp without a causal mask."""
    rng = np.random.default_rng([seed, n])
    sharp, flat = rng.standard_normal((2, n, n))
    far = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    logits = np.stack([0.3 * flat, 0.3 * flat - far / 8.0, 0.1 * flat, 3.0 * sharp, 2.5 * sharp])
    logits[0, :, 0] += 5.0
    logits[:4] = np.where(np.tri(n, dtype=bool), logits[:4], -np.inf)
    return torch.softmax(torch.tensor(logits), -1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("n", [97, 104, 128, 129, 161, 200, 256, 288, 300])
def test_float32_factors_hold_both_bounds(n, dtype):
    """In every regime, and as it is: no map's value depends on what a neighbour needs."""
    maps = crowded_maps(n, 3).to(dtype)
    maps = torch.cat([maps, torch.full((1, n, n), torch.nan, dtype=dtype), maps[:1]])
    for options in ({}, {"normalized": True}, {"symmetrize": "max"}):
        expected = [lambda2(a.double().numpy(), **options) for a in maps[:5]]
        for precision, tolerance in (("exact", 1e-9), ("fast", 1e-6)):
            with pytest.warns(RuntimeWarning, match="1 of 7"):
                result = asc.fiedler_value(maps, precision=precision, **options)
            np.testing.assert_allclose(result[:5], expected, rtol=tolerance, atol=0)
            assert result[5].isnan()
            assert result[6] == result[0]
            assert result[3] == asc.fiedler_value(maps[3], precision=precision, **options)


@pytest.mark.parametrize("across", [1.0, 0.1, 0.01])
@pytest.mark.parametrize("n", [90, 130, 200, 386])
def test_a_vector_that_lacks_the_symmetry_of_the_degrees(n, across):
    """Mirrored halves: steps from the degrees find λ3 or higher, as the vector turns its sign there."""
    a = crowded_maps(n, 5)[[2, 4]]
    a = (a + a.mT) / 2
    half = n // 2
    a[:, half:, :half] *= across
    a[:, :half, half:] *= across
    mirrored = (a + a.flip(-1, -2)) / 2
    for options in ({}, {"normalized": True}):
        expected = [lambda2(x.numpy(), **options) for x in mirrored]
        for precision, tolerance in (("exact", 1e-9), ("fast", 1e-6)):
            result = asc.fiedler_value(mirrored, precision=precision, **options)
            np.testing.assert_allclose(result, expected, rtol=tolerance, atol=0)


@pytest.mark.parametrize("exponent", [-200, -60, -20, 20, 60, 200])
def test_weights_that_float32_cannot_hold(exponent):
    maps = crowded_maps(120, 1)
    scaled = asc.fiedler_value(maps * 2.0**exponent) * 2.0**-exponent
    np.testing.assert_allclose(scaled, asc.fiedler_value(maps), rtol=1e-9)


@pytest.mark.parametrize("bridge", [1e-2, 1e-4, 6e-5, 1e-5, 1e-6, 1e-7, 1e-9])
@pytest.mark.parametrize("n", [98, 200])
def test_a_value_at_and_below_the_rounding_of_float32(n, bridge):
    """Two sharp blocks beside a bridge; the largest degree is some ten thousand to a billion times λ2."""
    a = crowded_maps(n, 2)[[0, 3]]
    half = n // 2
    a[:, half:, :half] *= 0.0
    a[:, half, 0] = bridge
    expected = [lambda2(x.numpy()) for x in a]
    bound = n * 2.0**-50 * np.array([weights(x.numpy()).sum(0).max() for x in a])
    for precision, tolerance in (("exact", 1e-9), ("fast", 1e-6)):
        result = asc.fiedler_value(a, precision=precision).numpy()
        assert np.all(np.abs(result - expected) <= tolerance * np.array(expected) + bound)


@pytest.mark.parametrize("n", [97, 130])
def test_equal_eigenvalues_end_the_steps_at_once(n):
    """Complete graph: the Krylov space closes after one step."""
    assert asc.fiedler_value(torch.full((n, n), 1.0 / n, dtype=torch.float64)).item() == pytest.approx(1.0)


@pytest.mark.parametrize("n", [8, 32, 33, 64, 256, 640])
def test_closed_forms(n):
    k = torch.arange(n)
    a = torch.zeros(5, n, n, dtype=torch.float64)
    a[0, 1:, 0] = 1.0  # star
    a[1] = 1.0  # complete
    a[2, k[:-1], k[1:]] = 1.0  # path
    a[3, k, (k + 1) % n] = 1.0  # cycle
    a[4, k[1:], 0] = 1.0
    a[4, n - 1, 0] = 0.0  # star without one leaf: disconnected
    star, complete, path, cycle, apart = asc.fiedler_value(a, symmetrize="max").tolist()
    assert star == pytest.approx(1.0, rel=1e-10)
    assert complete == pytest.approx(n, rel=1e-10)
    assert path == pytest.approx(2 - 2 * np.cos(np.pi / n), rel=1e-9)
    assert cycle == pytest.approx(2 - 2 * np.cos(2 * np.pi / n), rel=1e-9)
    assert apart == 0.0


@pytest.mark.parametrize("n", [6, 32, 33, 64, 257])
@pytest.mark.parametrize("bridge", [6e-5, 1e-9, 1e-12])
def test_two_cliques_and_a_thin_bridge(n, bridge):
    half = n // 2
    a = torch.zeros(n, n, dtype=torch.float64)
    a[:half, :half] = 1.0 / n
    a[half:, half:] = 1.0 / n
    assert asc.fiedler_value(a).item() == 0.0
    a[half, 0] = bridge
    values = oracle(a.numpy())
    assert asc.fiedler_value(a).item() == pytest.approx(values[1], rel=1e-9, abs=2e-15)
    assert asc.fiedler_value(a).item() > 0.0


@pytest.mark.parametrize("n", [60, 89, 128, 257])
@pytest.mark.parametrize("thread", [1e-6, 1e-11, 1e-15, 1e-18, 1e-22])
def test_a_pair_that_hangs_by_a_thread_on_a_hub(n, thread):
    """The last two tokens see each other, all others a sink: the factor of L is singular to rounding."""
    logits = torch.randn(n, n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    logits[:, 0] += 6.0
    a = logits.masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf).softmax(-1)
    a[-2:] = 0.0
    a[-2:, -2] = 1.0
    a[-2:, 0] = thread
    for options in ({}, {"normalized": True}):
        values = oracle(a.numpy(), **options)
        # by the pair against all others, whose cut is `thread`
        most = thread * n / (2 * (n - 2)) * (2.1 if options else 1.0)
        for precision, tolerance in (("exact", 1e-9), ("fast", 1e-6)):
            value = asc.fiedler_value(a, precision=precision, **options).item()
            assert value == pytest.approx(values[1], rel=tolerance, abs=1e-14 * values[-1])
            assert 0.0 <= value <= most * (1 + tolerance) + 1e-14 * values[-1]


@pytest.mark.parametrize("n", [4, 20, 33, 70, 256, 640])
def test_disconnected_without_a_common_neighbour(n):
    a = torch.tensor(attention_map(n, "full", 1))
    order = torch.randperm(n, generator=torch.Generator().manual_seed(n))
    first, rest = order[: n // 3 + 1], order[n // 3 + 1 :]
    a[first[:, None], rest] = 0.0
    a[rest[:, None], first] = 0.0
    for options in ({}, {"symmetrize": "max"}, {"normalized": True}):
        assert asc.fiedler_value(a, **options).item() == 0.0
    a[rest[0], first[-1]] = 1e-3
    assert asc.fiedler_value(a).item() == pytest.approx(oracle(a.numpy())[1], rel=1e-9)


@pytest.mark.parametrize("n", [20, 50, 130])
def test_a_result_never_depends_on_its_neighbours(n):
    a = attention_batch((11,), n, torch.float32)
    a[3] = torch.eye(n)
    a[5, 2, 2] = float("nan")
    a[7] = -a[7]
    a[8] = 1.0 / n
    for options in ({}, {"normalized": True}, {"threshold": 0.02}):
        with pytest.warns(RuntimeWarning):
            together = asc.fiedler_value(a, **options)
        single_map = [asc.fiedler_value(a[i], **options) for i in range(11) if i != 5]
        assert torch.equal(
            together[torch.arange(11) != 5].nan_to_num(-7), torch.stack(single_map).nan_to_num(-7)
        )
        assert torch.isnan(together[5])


@pytest.mark.parametrize("n", [12, 40, 256])
def test_threads_do_not_change_a_bit(n):
    a = attention_batch((9,), n, torch.float32)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        single_result = asc.fiedler_value(a)
        torch.set_num_threads(2)
        two = asc.fiedler_value(a)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(single_result, two)


@settings(max_examples=80)
@given(attention_maps(smallest=2, largest=45), st.integers(0, 2**31), st.floats(1e-6, 1e6))
def test_laws(a, seed, factor):
    n = len(a)
    value = asc.fiedler_value(torch.tensor(a)).item()
    order = np.random.default_rng(seed).permutation(n)
    close = {"rel": 1e-9, "abs": 1e-14}
    assert asc.fiedler_value(torch.tensor(a[np.ix_(order, order)])).item() == pytest.approx(value, **close)
    assert asc.fiedler_value(torch.tensor(a.T)).item() == pytest.approx(value, **close)
    scaled = asc.fiedler_value(torch.tensor(a * factor)).item()
    assert scaled == pytest.approx(value * factor, rel=1e-9, abs=1e-14 * factor)
    degree = weights(a).sum(0)
    assert 0.0 <= value <= n / (n - 1) * degree.min() * (1 + 1e-9) + 1e-14
    assert asc.fiedler_value(torch.tensor(a), normalized=True).item() <= n / (n - 1) * (1 + 1e-9)
    # adding weight never lowers it
    assert asc.fiedler_value(torch.tensor(a), symmetrize="max").item() >= value * (1 - 1e-9) - 1e-14


@pytest.mark.parametrize("model", ["stories260K", "llama2xs"])
@pytest.mark.parametrize("file", ["golden_bos64.npz", "golden_nobos64.npz"])
def test_trained_heads_equal_lapack(model, file):
    path = DATA / model / file
    if not path.is_file():
        pytest.skip(f"{path} is absent")
    maps = np.load(path)["attn"].reshape(-1, 64, 64)
    for n in (17, 32, 48, 64):
        part = np.ascontiguousarray(maps[:, :n, :n])
        result = asc.fiedler_value(torch.from_numpy(part)).numpy()
        expected = np.array([lambda2(a) for a in part])
        np.testing.assert_allclose(result, expected, rtol=1e-9, atol=1e-14)
        fast = asc.fiedler_value(torch.from_numpy(part), precision="fast").numpy()
        np.testing.assert_allclose(fast, expected, rtol=1e-6, atol=1e-14)


@pytest.mark.parametrize("n", [10, 40, 100, 256])
def test_fast_is_within_a_millionth(n):
    a = attention_batch((6,), n)
    torch.testing.assert_close(
        asc.fiedler_value(a, precision="fast"), asc.fiedler_value(a), rtol=1e-6, atol=1e-13
    )


def assert_both_bounds(maps):
    """Assert that λ2 of every map, exact and fast, is within what is stated of LAPACK's."""
    expected = np.array([lambda2(a) for a in maps])
    # a ring of single edges has λ2 three orders below its largest eigenvalue, all that LAPACK resolves
    bound = maps.shape[-1] * 2.0**-50 * np.array([weights(a).sum(0).max() for a in maps])
    for precision, tolerance in (("exact", 1e-9), ("fast", 1e-6)):
        result = asc.fiedler_value(torch.tensor(maps), precision=precision).numpy()
        error = (np.abs(result - expected) - bound) / expected
        assert error.max() <= tolerance, (error.argmax(), error.max())


@pytest.mark.parametrize("n", [89, 96, 128, 160, 200])
def test_close_eigenvalues_are_distinguished(n):
    """A ring has λ2 = λ3, and noise in its weights moves them apart, by less than a first look can tell.

    A residual says that some eigenvalue is near, not that it is the second, so many rings are needed: from
    a start that has little of λ2's vector the third is found.
    """
    rng = np.random.default_rng(n)
    steps = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    steps = np.minimum(steps, n - steps)
    rings = [np.exp(-steps / rng.uniform(2, 12)) if i % 10 else steps == 1 for i in range(120)]
    maps = np.array([ring * (1 + 10.0 ** -rng.uniform(1, 7) * rng.random((n, n))) for ring in rings])
    assert_both_bounds(maps)


@pytest.mark.parametrize("n", [96, 128, 200])
@pytest.mark.parametrize("parts", [3, 4, 6])
def test_clusters_of_eigenvalues_are_distinguished(n, parts):
    """As many equal groups of tokens, joined weakly, have all but one of their eigenvalues in one place."""
    rng = np.random.default_rng([n, parts])
    group = np.arange(n) * parts // n
    blocks = np.where(group[:, None] == group, 1.0, 10.0 ** -rng.uniform(1, 3, (40, 1, 1)))
    maps = blocks * (1 + 10.0 ** -rng.uniform(2, 8, (40, 1, 1)) * rng.random((40, n, n)))
    assert_both_bounds(maps)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("n", [24, 40])
def test_half_types_are_widened_exactly(dtype, n):
    a = attention_batch((7,), n, dtype)
    assert torch.equal(asc.fiedler_value(a), asc.fiedler_value(a.double()))


@pytest.mark.parametrize("n", [20, 40])
def test_strided_views_are_read_in_place_and_untouched(n):
    base = attention_batch((2, 3), n, torch.float32)
    before = base.clone()
    wide = torch.zeros(2, 3, 2 * n, 3 * n)
    wide[:, :, ::2, ::3] = base
    plain = asc.fiedler_value(base)
    assert torch.equal(asc.fiedler_value(wide[:, :, ::2, ::3]), plain)
    torch.testing.assert_close(asc.fiedler_value(base.mT), plain, rtol=1e-12, atol=1e-15)
    assert torch.equal(asc.fiedler_value(base.transpose(0, 1)), plain.T)
    assert torch.equal(asc.fiedler_value(base[:, :1].expand(2, 3, n, n)), plain[:, :1].expand(2, 3))
    assert torch.equal(
        asc.fiedler_value(base[0, 0, n - 1].expand(n, n)), asc.fiedler_value(base[0, 0, n - 1].repeat(n, 1))
    )
    assert torch.equal(base, before)


def test_ragged_lengths_equal_the_leading_blocks():
    a = attention_batch((12,), 50)
    lengths = [50, 1, 2, 3, 33, 32, 33, 40, 50, 7, 33, 33]
    result = asc.fiedler_value(a, lengths=lengths)
    for i, m in enumerate(lengths):
        assert torch.equal(result[i], asc.fiedler_value(a[i, :m, :m])), (i, m)
    vectors = asc.fiedler_vector(a, lengths=lengths)
    for i, m in enumerate(lengths):
        assert torch.isnan(vectors[i, m:]).all()
        assert torch.equal(vectors[i, :m].nan_to_num(-7), asc.fiedler_vector(a[i, :m, :m]).nan_to_num(-7))


def test_negative_weights_are_not_hidden():
    for n in (6, 40):
        a = attention_map(n, "full", 2) - 1.5 / n
        expected = oracle(a)
        assert expected[1] < 0
        assert asc.fiedler_value(torch.tensor(a)).item() == pytest.approx(expected[1], rel=1e-10)
        assert torch.isnan(asc.fiedler_value(torch.tensor(a), normalized=True))
        vector = asc.fiedler_vector(torch.tensor(a)).numpy()
        w = weights(a)
        np.testing.assert_allclose((np.diag(w.sum(0)) - w) @ vector, expected[1] * vector, atol=1e-12)
        with pytest.raises(ValueError, match="must hold finite entries"):
            asc.fiedler_value(torch.tensor(a), validate=True)


@settings(max_examples=60)
@given(attention_maps(smallest=2, largest=30), st.booleans(), st.sampled_from(["mean", "max"]))
def test_the_vector_satisfies_its_equation(a, normalized, symmetrize):
    vector = asc.fiedler_vector(torch.tensor(a), normalized=normalized, symmetrize=symmetrize).numpy()
    value = asc.fiedler_value(torch.tensor(a), normalized=normalized, symmetrize=symmetrize).item()
    w = weights(a, symmetrize)
    d = w.sum(0)
    null = np.sqrt(d) if normalized else np.ones(len(a))
    if normalized:
        scale = np.array([0.0 if x == 0 else x**-0.5 for x in d])
        laplacian = np.diag((d > 0).astype(float)) - scale[:, None] * w * scale
    else:
        laplacian = np.diag(d) - w
    assert np.linalg.norm(laplacian @ vector - value * vector) < 1e-11 * max(1.0, d.max())
    assert np.linalg.norm(vector) == pytest.approx(1.0)
    assert abs(null @ vector) < 1e-10 * max(1.0, np.linalg.norm(null))
    assert vector[np.abs(vector) >= np.abs(vector).max() * (1 - 1e-9)][0] > 0


@pytest.mark.parametrize("n", [33, 64, 97, 150])
def test_vectors_equal_lapack(n):
    maps = [attention_map(n, kind, seed=n) for kind in KINDS]
    rng = np.random.default_rng(n)
    bridge = np.zeros((n, n))  # two blocks and a thin bridge: λ2 far below the rest
    bridge[: n // 2, : n // 2] = rng.random((n // 2, n // 2))
    bridge[n // 2 :, n // 2 :] = rng.random((n - n // 2, n - n // 2))
    bridge[0, -1] = 1e-10
    alike = np.full((n, n), 1.0 / n)  # every eigenvalue is the same
    star = np.zeros((n, n))
    star[:, 0] = 1.0
    maps = np.array([*maps, bridge, alike, star, np.eye(n)])
    for options in ({}, {"normalized": True}, {"threshold": 0.02}):
        result = asc.fiedler_vector(torch.tensor(maps), **options).numpy()
        for a, vector in zip(maps, result, strict=True):
            w = weights(a, threshold=options.get("threshold"))
            d = w.sum(0)
            laplacian, null = np.diag(d) - w, np.ones(n)
            if options.get("normalized"):
                scale = np.array([0.0 if x == 0 else x**-0.5 for x in d])
                laplacian = np.diag((d > 0).astype(float)) - scale[:, None] * w * scale
                null = np.sqrt(d)
            values, vectors = np.linalg.eigh(laplacian)
            assert np.linalg.norm(vector) == pytest.approx(1.0, abs=1e-13)
            assert abs(null @ vector) <= 1e-12 * np.linalg.norm(null)
            if null.any() and values[1] > 1e-13 * values[-1]:
                residual = np.linalg.norm(laplacian @ vector - values[1] * vector)
                assert residual <= 2e-14 * max(1.0, values[-1])
            gap = min(values[1] - values[0], values[2] - values[1])
            if gap > 1e-6 * values[-1]:
                assert abs(abs(vectors[:, 1] @ vector) - 1) < 1e-14


def test_vectors_do_not_depend_on_company_or_threads():
    a = attention_batch((9,), 70, torch.float32)
    a[2] = torch.eye(70)
    a[4, 3, 1] = float("nan")
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        with pytest.warns(RuntimeWarning):
            single_result = asc.fiedler_vector(a)
        torch.set_num_threads(7)
        with pytest.warns(RuntimeWarning):
            vectors = asc.fiedler_vector(a)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(single_result.nan_to_num(-7), vectors.nan_to_num(-7))
    assert torch.isnan(single_result[4]).all()
    for i in (0, 2, 8):
        assert torch.equal(asc.fiedler_vector(a[i]), single_result[i])


def test_uniform_causal_attention_and_one_token():
    assert asc.fiedler_value(torch.ones(1, 1)).item() == 0.0
    assert torch.isnan(asc.fiedler_vector(torch.ones(1, 1))).all()
    n = 20
    uniform = torch.tril(torch.ones(n, n, dtype=torch.float64)) / torch.arange(1, n + 1)[:, None]
    assert asc.fiedler_value(uniform).item() == pytest.approx(oracle(uniform.numpy())[1], rel=1e-10)
    assert asc.fiedler_value(torch.full((n, n), 1 / n)).item() == pytest.approx(1.0, rel=1e-7)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"threshold": 0.0}, "fiedler_value: threshold must lie strictly between 0 and 1, got 0.0"),
        ({"threshold": 1.5}, "strictly between 0 and 1, got 1.5"),
        ({"symmetrize": "sum"}, "symmetrize must be one of 'mean', 'max', got 'sum'"),
        ({"precision": "half"}, "precision must be one of 'exact', 'fast', got 'half'"),
        (
            {"attention": torch.zeros(2, 4, 7, 8)},
            r"square in its last two dimensions, got shape \(2, 4, 7, 8\)",
        ),
        ({"attention": torch.zeros(3, 0, 0)}, "at least one token"),
        ({"attention": torch.zeros(5, 5, dtype=torch.int64)}, "got torch.int64"),
        ({"lengths": [6]}, "between 1 and n = 5, got 6"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        asc.fiedler_value(**{"attention": torch.eye(5).expand(1, 5, 5), **arguments})


@pytest.mark.parametrize("sink", [0.0, 0.5, 0.95])
def test_causal_maps_are_capped_by_their_least_degree(sink):
    n = 40
    maps = torch.ones(n, n, dtype=torch.float64).tril()
    maps /= maps.sum(-1, keepdim=True)
    maps = (1 - sink) * maps
    maps[:, 0] += sink
    graph = (maps + maps.T) / 2
    graph.fill_diagonal_(0)
    least = graph.sum(-1).min().item()
    assert asc.fiedler_value(maps).item() <= n / (n - 1) * least + 1e-12
    # about one half at most, for sink and diffuse heads alike: the last key is seen by one query
    assert least <= 0.5


@pytest.mark.parametrize("scale", [1e-100, 1e-290, 1e100])
def test_the_vector_does_not_depend_on_the_scale_of_the_weights(scale):
    a = torch.rand(12, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64).tril()
    vector = asc.fiedler_vector(a)
    assert float((asc.fiedler_vector(a * scale) - vector).abs().max()) < 1e-12


def test_the_torch_path_takes_the_sign_of_the_core_where_components_tie():
    generator = torch.Generator().manual_seed(11)
    ties = 0
    for size in (4, 6, 7, 12) * 40:
        maps = torch.softmax(3 * torch.randn(size, size, generator=generator, dtype=torch.float64), -1)
        for threshold, normalized in ((0.05, True), (0.2, False), (0.2, True)):
            options = {"threshold": threshold, "normalized": normalized}
            values = asc.laplacian_eigenvalues(maps, **options)
            if not values[2] - values[1] > 1e-6 or not values[1] > 1e-6:
                continue  # any vector of the eigenspace is right
            vector = asc.fiedler_vector(maps, **options)
            largest, second = vector.abs().sort(descending=True).values[:2]
            ties += int(second > largest * (1 - 1e-12))
            with devices.use("torch"):
                on_device = asc.fiedler_vector(maps, **options)
            torch.testing.assert_close(on_device, vector, rtol=0, atol=1e-7)
    assert ties > 50
