# SPDX-License-Identifier: MIT
"""Maps [..., q, k] that are not square, against NumPy by loops and against the rows of square maps."""

import warnings

import numpy as np
import pytest
import torch

import attnscope as asc

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
#: Queries and keys, the queries at the last keys.
SIZES = ((1, 1), (1, 9), (3, 7), (8, 33), (40, 64), (64, 65), (5, 5))


def causal_rows(q, k, *leading, seed=0, sharpness=1.5, dtype=torch.float64):
    """Causal attention of the last q of k tokens."""
    generator = torch.Generator().manual_seed(seed)
    logits = sharpness * torch.randn(*leading, q, k, generator=generator, dtype=torch.float64)
    hidden = torch.arange(k) > torch.arange(q)[:, None] + k - q
    return logits.masked_fill(hidden, -torch.inf).softmax(-1).to(dtype)


def full_rows(q, k, *leading, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*leading, q, k, generator=generator, dtype=torch.float64).softmax(-1).to(dtype)


def square_map(n, *leading, seed=0, dtype=torch.float32):
    return causal_rows(n, n, *leading, seed=seed, dtype=dtype)


# --- the rows of a square map, taken as a rectangle

#: Numbers per query of a map, each a function of the maps and of options.
ROW_METRICS = {
    "attention_entropy": lambda maps, **options: [asc.attention_entropy(maps, **options)],
    "normalized": lambda maps, **options: [asc.attention_entropy(maps, normalized=True, **options)],
    "power_spectrum": lambda maps, **options: list(asc.power_spectrum(maps, min_keys=8, **options)),
    "spectral_uncertainty": lambda maps, **options: list(
        asc.spectral_uncertainty(maps, min_keys=8, **options)
    ),
    "wavelet_transform": lambda maps, **options: list(asc.wavelet_transform(maps, min_keys=8, **options)[:4]),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ROW_METRICS)
def test_the_last_rows_of_a_causal_map_give_its_numbers_to_the_bit(name, dtype):
    n = 65
    maps = square_map(n, 2, dtype=dtype)
    of_square = ROW_METRICS[name](maps)
    for q in (1, 2, 17, n):
        for support in ("auto", "causal"):
            of_rows = ROW_METRICS[name](maps[:, n - q :], support=support)
            for expected, part in zip(of_square, of_rows, strict=True):
                np.testing.assert_array_equal(part, expected[:, n - q :])


def test_influence_and_divergence_of_the_last_rows_are_those_of_the_square():
    n, q = 40, 9
    heads = square_map(n, 3)
    states, reference = torch.randn(3, n, 5), torch.rand(3, n) < 0.3
    for expected, part in zip(
        asc.reference_influence(heads, states, reference),
        asc.reference_influence(heads[:, n - q :], states, reference),
        strict=True,
    ):
        np.testing.assert_array_equal(part, expected[:, n - q :])
    # the mean over all rows is that over the first and that over the last ones, weighted
    first = asc.head_divergence(heads[:, : n - q], query_positions=torch.arange(n - q), support="causal")
    last = asc.head_divergence(heads[:, n - q :])
    np.testing.assert_allclose(((n - q) * first + q * last) / n, asc.head_divergence(heads), rtol=1e-13)


# --- a square map is the rectangle with q = k

PLAIN = {
    "attention_entropy": {},
    "incoming_attention": {},
    "sink_rate": {},
    "sink_tokens": {},
    "sink_position": {},
    "sink_excess": {},
    "sink_share": {},
    "sink_test": {},
    "top_mass": {},
    "local_global_ratio": {"window": 2},
    "power_spectrum": {"min_keys": 6},
    "spectral_uncertainty": {"min_keys": 6},
    "wavelet_transform": {"min_keys": 6, "signal": "mean"},
    "morlet_scalogram": {"min_keys": 6, "signal": "offset", "scales": [2.0, 3.0]},
    "singular_values": {},
    "participation_ratio": {},
    "stable_rank": {},
    "effective_rank": {},
    "spectral_gap": {},
    "spectral_ratio": {},
    "marchenko_pastur": {},
    "marchenko_pastur_deviation": {"null": "permutation"},
    "head_divergence": {},
}


def tensors(result):
    return [result] if isinstance(result, torch.Tensor) else [value for value in result if value is not None]


@pytest.mark.parametrize("kind", ["causal", "full"])
@pytest.mark.parametrize("name", PLAIN)
def test_a_square_map_given_with_its_places_has_the_same_bits(name, kind):
    for n in (1, 7, 24):
        maps = causal_rows(n, n, 3) if kind == "causal" else full_rows(n, n, 3)
        plain = getattr(asc, name)(maps, **PLAIN[name])
        placed = getattr(asc, name)(maps, query_positions=torch.arange(n), query_lengths=n, **PLAIN[name])
        for expected, result in zip(tensors(plain), tensors(placed), strict=True):
            np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("name", PLAIN)
def test_a_square_map_inside_of_a_larger_batch_has_the_bits_that_it_has_alone(name):
    n, q, k = 12, 15, 20
    maps = torch.full((2, q, k), 7.0, dtype=torch.float64)
    square = causal_rows(n, n, 2)
    maps[:, :n, :n] = square
    expected_numbers = getattr(asc, name)(square, **PLAIN[name])
    inside = getattr(asc, name)(maps, lengths=n, query_lengths=n, **PLAIN[name])
    for expected, result in zip(tensors(expected_numbers), tensors(inside), strict=True):
        if result.dtype.is_floating_point:
            result, expected = result.nan_to_num(-9.0), expected.nan_to_num(-9.0)
        cut = tuple(slice(size) for size in expected.shape)
        np.testing.assert_array_equal(result[cut], expected)


# --- NumPy by loops


class Reference:
    """Every number by the words of its definition, for one map with the places of its queries."""

    def __init__(self, attention, positions, visible):
        self.a, self.p, self.visible = attention.double().numpy(), positions, visible

    def rows(self):
        return [(i, [j for j in range(self.a.shape[1]) if self.visible[i, j]]) for i in range(len(self.a))]

    def entropy(self):
        return [
            -sum(self.a[i, j] * np.log(self.a[i, j]) for j in keys if self.a[i, j] > 0)
            for i, keys in self.rows()
        ]

    def incoming(self):
        seen = self.visible.sum(0)
        with np.errstate(invalid="ignore"):
            return np.where(self.visible, self.a, 0).sum(0) / np.where(seen == 0, np.nan, seen)

    def share(self, first, queries):
        rows = [(i, keys) for i, keys in self.rows() if keys][-queries:]
        share = np.mean([sum(self.a[i, j] for j in keys if j < first) for i, keys in rows])
        uniform = np.mean([sum(j < first for j in keys) / len(keys) for _, keys in rows])
        return share, uniform

    def local_over_global(self, window):
        near = sum(self.a[i, j] for i, keys in self.rows() for j in keys if abs(self.p[i] - j) <= window)
        far = sum(self.a[i, j] for i, keys in self.rows() for j in keys if abs(self.p[i] - j) > window)
        return near / far

    def far(self):
        k = self.a.shape[1]
        distance = max(-(-k // 10), min(4, k // 4), 1)
        sums = np.zeros((4, k))
        for i, keys in self.rows():
            far = [j for j in keys if self.p is None or abs(self.p[i] - j) >= distance]
            for j in far:
                row = self.a[i, far]
                sums[:, j] += [self.a[i, j], row.mean(), row.var(), 1]
        return sums

    def span(self, start, stop):
        place = [-1 if self.p is None else self.p[i] for i in range(len(self.a))]
        inside = [i for i in range(len(self.a)) if start <= place[i] < stop]
        masked = np.where(self.visible, self.a, 0)
        share = np.mean([masked[i, start:stop].sum() for i in inside]) if inside else np.nan
        outside = [i for i in range(len(self.a)) if i not in inside and self.visible[i, start:stop].any()]
        received = np.mean([masked[i, start:stop].sum() for i in outside]) if outside else np.nan
        return share, received

    def alignment(self, states, queries):
        unit, of_query = ((x / np.linalg.norm(x, axis=-1, keepdims=True)) for x in (states, queries))
        pairs = [
            (self.a[i, j], of_query[i] @ unit[j])
            for i, keys in self.rows()
            for j in keys
            if self.p is None or j != self.p[i]
        ]
        return np.corrcoef(np.array(pairs).T)[0, 1] if len(pairs) > 1 else np.nan

    def influence(self, states, marked):
        masked = np.where(self.visible, self.a, 0)
        result = []
        for i in range(len(masked)):
            if self.p is not None and marked[self.p[i]]:
                result.append(np.nan)
                continue
            part, output = (masked[i] * marked) @ states, masked[i] @ states
            result.append(np.linalg.norm(part) / np.linalg.norm(output))
        return result


def cases():
    """Maps, their options, positions and visible keys."""
    for q, k in ((1, 9), (3, 7), (8, 33), (12, 12)):
        maps = causal_rows(q, k, seed=q)
        positions = np.arange(q) + k - q
        yield maps, {}, positions, np.arange(k) <= positions[:, None]
        yield full_rows(q, k, seed=q), {"support": "full"}, positions, np.ones((q, k), bool)
        window = (np.arange(k) <= positions[:, None]) & (np.arange(k) > positions[:, None] - 4)
        yield maps, {"support": torch.from_numpy(window)}, positions, window
        cross = {"cross": True}
        yield full_rows(q, k, seed=k), cross, None, np.ones((q, k), bool)
    yield full_rows(9, 4, seed=3), {"cross": True}, None, np.ones((9, 4), bool)
    # queries in any order, each causal by its own key
    order = np.array([7, 2, 5, 10])
    square = causal_rows(12, 12, seed=5)
    yield square[order], {"query_positions": torch.from_numpy(order)}, order, np.arange(12) <= order[:, None]


@pytest.mark.parametrize("case", range(len(list(cases()))))
def test_every_metric_is_its_definition_by_loops(case):
    maps, options, positions, visible = list(cases())[case]
    reference = Reference(maps, positions, visible)
    q, k = maps.shape
    close = {"rtol": 1e-11, "atol": 1e-13}
    np.testing.assert_allclose(asc.attention_entropy(maps, **options), reference.entropy(), **close)
    np.testing.assert_allclose(asc.incoming_attention(maps, **options), reference.incoming(), **close)
    share = asc.sink_share(maps, first=2, queries=3, **options)
    np.testing.assert_allclose([share.share, share.uniform], reference.share(2, 3), **close)
    mass = np.where(visible, maps, 0).sum(0)
    top = np.sort(mass)[::-1][:2].sum() / mass.sum()
    np.testing.assert_allclose(asc.top_mass(maps, 2, **options), top, **close)
    result = asc.sink_test(maps, **options)
    fields = [result.mass, result.expected, result.variance, result.queries]
    np.testing.assert_allclose(torch.stack([field.double() for field in fields]), reference.far(), **close)
    span = asc.span_attention(maps, (k - 2 if k > 2 else 0, k), **options)
    expected = reference.span(k - 2 if k > 2 else 0, k)
    np.testing.assert_allclose([span.share, span.received], expected, **close)
    generator = torch.Generator().manual_seed(4)
    states = torch.randn(k, 5, generator=generator, dtype=torch.float64)
    query_states = torch.randn(q, 5, generator=generator, dtype=torch.float64)
    alignment = asc.geometric_semantic_alignment(maps, states, query_states=query_states, **options)
    np.testing.assert_allclose(alignment, reference.alignment(states.numpy(), query_states.numpy()), **close)
    marked = torch.arange(k) % 3 == 0
    influence = asc.reference_influence(maps, states, marked, **options).relative_magnitude
    np.testing.assert_allclose(influence, reference.influence(states.numpy(), marked.numpy()), **close)
    if positions is None:
        with pytest.raises(
            ValueError, match="local_global_ratio: in cross attention queries stand at no key"
        ):
            asc.local_global_ratio(maps, **options)
        with pytest.raises(ValueError, match="stand at no key; give query_states"):
            asc.geometric_semantic_alignment(maps, states, **options)
        return
    ratio = asc.local_global_ratio(maps, window=2, **options)
    np.testing.assert_allclose(ratio, reference.local_over_global(2), **close)
    alignment = asc.geometric_semantic_alignment(maps, states, **options)
    at_keys = states[torch.as_tensor(positions)].numpy()
    np.testing.assert_allclose(alignment, reference.alignment(states.numpy(), at_keys), **close)


def test_divergence_and_removal_by_loops():
    heads = full_rows(5, 9, 3, seed=2)
    a = heads.numpy()
    mean = a.mean(0)
    expected = (a * np.log(a / mean)).sum(-1).mean(-1)
    np.testing.assert_allclose(asc.head_divergence(heads, cross=True), expected, rtol=1e-12)
    removed = asc.sink_removal(heads, [1], cross=True)
    rest = np.delete(a, 1, -1)
    rest /= rest.sum(-1, keepdims=True)
    after = (rest * np.log(rest / rest.mean(0))).sum(-1).mean(-1)
    np.testing.assert_allclose(removed.after, after, rtol=1e-12)
    np.testing.assert_allclose(np.delete(removed.attention.numpy(), 1, -1), rest, rtol=1e-12)
    assert tuple(removed.attention.shape) == (3, 5, 9)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("q", "k"), [*SIZES, (9, 4), (200, 3), (3, 200)])
def test_singular_values_and_ranks_are_numpys(q, k, dtype):
    maps = full_rows(q, k, 2, dtype=dtype)
    sigma = np.linalg.svd(maps.double().numpy(), compute_uv=False)
    result = asc.singular_values(maps, cross=True)
    assert result.shape == (2, min(q, k))
    np.testing.assert_allclose(result, sigma, atol=1e-12)
    energy = sigma**2
    ratio = energy.sum(-1) ** 2 / (energy**2).sum(-1)
    np.testing.assert_allclose(asc.participation_ratio(maps, cross=True), ratio, rtol=1e-11)
    np.testing.assert_allclose(asc.stable_rank(maps, cross=True), energy.sum(-1) / energy[:, 0], rtol=1e-10)


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_singular_values_of_very_large_and_small_rectangles_keep_their_digits(scale):
    maps = full_rows(4, 9)
    expected = np.linalg.svd(maps.numpy(), compute_uv=False) * scale
    np.testing.assert_allclose(asc.singular_values(maps * scale), expected, rtol=1e-11)


# --- lengths, neighbours, strides


def metrics_with_lengths():
    """Metrics, their options, and whether the maps are of cross attention, where nothing is near or far."""
    names = ("attention_entropy", "incoming_attention", "sink_share", "top_mass", "sink_test")
    spectra = ("singular_values", "participation_ratio", "marchenko_pastur")
    for cross in (False, True):
        for name in (*names, *spectra):
            yield name, {}, cross
        yield "power_spectrum", {"signal": "last", "min_keys": 4}, cross
    yield "local_global_ratio", {"window": 2}, False
    yield "power_spectrum", {"signal": "offset", "min_keys": 4}, False


@pytest.mark.parametrize(("name", "options", "cross"), metrics_with_lengths())
def test_a_batch_is_a_loop(name, options, cross):
    q, k = 12, 20
    sizes = [(12, 20), (9, 17), (12, 12), (8, 20), (1, 3)]
    maps = torch.full((len(sizes) + 1, q, k), torch.nan, dtype=torch.float64)
    maps_by_size = [(full_rows if cross else causal_rows)(m, n, seed=m) for m, n in sizes]
    for index, rows in enumerate(maps_by_size):
        maps[index, : rows.shape[0], : rows.shape[1]] = rows
    queries, keys = zip(*sizes, (q, k), strict=True)
    function = getattr(asc, name)
    with pytest.warns(asc.errors.NonFiniteWarning, match="1 of 6 matrices hold NaN"):
        result = function(maps, lengths=keys, query_lengths=queries, cross=cross, **options)
    for index, rows in enumerate(maps_by_size):
        single = function(rows, cross=cross, **options)
        for batch_values, part in zip(tensors(result), tensors(single), strict=True):
            entries = batch_values[index]
            if entries.dtype.is_floating_point:
                entries, part = entries.nan_to_num(-9.0), part.nan_to_num(-9.0)
            np.testing.assert_array_equal(entries[tuple(slice(size) for size in part.shape)], part)


def test_a_map_without_queries_is_not_taken_for_one_that_is_not_finite():
    maps, states = full_rows(4, 6, 2), torch.randn(2, 6, 3, generator=torch.Generator().manual_seed(0))
    sizes = {"query_lengths": [0, 4], "cross": True}
    reference = torch.arange(6) == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        results = {
            "alignment": asc.geometric_semantic_alignment(maps, states, query_states=states[:, :4], **sizes),
            "influence": asc.reference_influence(maps, states, reference, **sizes)[0][:, -1],
            "divergence": asc.head_divergence(maps[:, None], query_lengths=[[0], [4]], cross=True)[:, 0],
        }
    for name, values in results.items():
        assert values.isnan().tolist() == [True, False], name


def test_without_query_lengths_queries_behind_the_last_real_key_are_padding():
    maps = causal_rows(4, 10, 2)
    entropy = asc.attention_entropy(maps, lengths=[10, 8])
    np.testing.assert_array_equal(entropy[0], asc.attention_entropy(maps[0]))
    np.testing.assert_array_equal(entropy[1, :2], asc.attention_entropy(maps[1, :2, :8]))
    assert entropy[1, 2:].isnan().all()
    # all of them, where the real keys end before the first query
    assert asc.attention_entropy(maps, lengths=[10, 5])[1].isnan().all()
    # queries of cross attention do not stand at keys
    assert not asc.attention_entropy(maps, lengths=[10, 5], cross=True).isnan().any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_strides_and_shared_memory_are_read_in_place(dtype):
    maps = causal_rows(6, 11, 2, dtype=dtype)
    wide = torch.zeros(2, 12, 33, dtype=dtype)
    wide[:, ::2, ::3] = maps
    turned = maps.mT.contiguous().mT
    for name in (
        "attention_entropy",
        "incoming_attention",
        "singular_values",
        "top_mass",
        "local_global_ratio",
    ):
        expected = getattr(asc, name)(maps)
        for view in (wide[:, ::2, ::3], turned):
            np.testing.assert_array_equal(getattr(asc, name)(view), expected, err_msg=name)
    expanded = maps[:1].expand(3, 6, 11)
    np.testing.assert_array_equal(asc.attention_entropy(expanded)[2], asc.attention_entropy(maps)[0])


def test_ties_and_rows_of_zeros():
    maps = torch.zeros(2, 3, 8, dtype=torch.float64)
    maps[:, :, 1] = maps[:, :, 4] = 0.5
    maps[1, 1] = 0
    assert asc.sink_position(maps, rule="largest", cross=True).tolist() == [1, 1]
    np.testing.assert_allclose(
        asc.attention_entropy(maps, cross=True)[1], [np.log(2), 0, np.log(2)], atol=1e-15
    )
    removed = asc.sink_removal(maps, [1], cross=True)
    assert removed.excluded.tolist() == [0, 1]


# --- the law of a trapezoid


def trapezoid(q, k, seed):
    generator = np.random.default_rng(seed)
    return np.where(np.arange(k) <= np.arange(q)[:, None] + k - q, generator.standard_normal((q, k)), 0)


@pytest.mark.parametrize("aspect", [0.05, 0.3, 0.7, 0.95])
def test_the_law_of_causal_rectangles_is_that_of_gaussian_trapezoids(aspect):
    from attnscope import _core

    k = 400
    q = round(aspect * k)
    draws = np.concatenate(
        [np.linalg.svd(trapezoid(q, k, seed), compute_uv=False) ** 2 / k for seed in range(4)]
    )
    draws.sort()
    law = np.array(_core.null_law_cdf(draws.tolist(), q / k, True))
    steps = np.arange(len(draws)) / len(draws)
    # of independent draws of one matrix; eigenvalues of one repel each other and are more even
    assert np.abs(law - steps).max() < max(0.02, 0.6 / np.sqrt(len(draws)))
    # the mean of the law, ∫ (1 − F), is the share of visible entries
    grid = np.linspace(0, 4, 4001)
    values = 1 - np.array(_core.null_law_cdf(grid.tolist(), q / k, True))
    mean = ((values[1:] + values[:-1]) / 2).sum() * (grid[1] - grid[0])
    assert abs(mean - (1 - q / k / 2)) < 1e-4


def test_the_trapezoid_of_almost_all_queries_is_almost_the_triangle():
    from attnscope import _core

    x = np.linspace(0.05, 2.9, 58).tolist()
    triangle, trapezoid_law = _core.null_law_cdf(x, None, False), _core.null_law_cdf(x, 0.9999, True)
    np.testing.assert_allclose(trapezoid_law, triangle, atol=2e-4)


def test_random_rows_are_near_their_law_and_far_from_that_of_squares():
    causal = asc.marchenko_pastur(causal_rows(64, 256, 8, sharpness=1.0))
    assert causal.ks.max() < 0.15
    assert causal.edge.unique().numel() == 1
    full = asc.marchenko_pastur(full_rows(64, 256, 8), cross=True)
    np.testing.assert_allclose(full.edge, (1 + np.sqrt(64 / 256)) ** 2)
    assert full.ks.max() < 0.1
    tall = asc.marchenko_pastur(full_rows(256, 64, 8), cross=True)
    np.testing.assert_allclose(tall.edge, (1 + np.sqrt(64 / 256)) ** 2)
    assert tall.ks.max() < 0.1


def test_the_distance_from_the_law_is_that_of_numpy():
    from scipy.integrate import quad

    from attnscope import _core

    q, k = 16, 40
    maps = causal_rows(q, k, sharpness=1.0)
    x = np.zeros((q, k))
    for i in range(q):
        row = maps[i, : k - q + i + 1].numpy()
        x[i, : len(row)] = (row - row.mean()) / row.std()
    values = np.sort(np.linalg.svd(x, compute_uv=False) ** 2 / k)

    def law(at):
        return np.array(_core.null_law_cdf(np.atleast_1d(at).tolist(), q / k, True))

    upper, lower = np.arange(1, q + 1) / q, np.arange(q) / q
    ks = max(np.abs(law(values) - upper).max(), np.abs(law(values) - lower).max())
    result = asc.marchenko_pastur(maps)
    np.testing.assert_allclose(result.ks, ks, atol=1e-10)
    np.testing.assert_allclose(result.largest, values[-1], rtol=1e-11)
    distance = quad(
        lambda at: abs((values <= at).mean() - law(at)[0]), 0, 4, points=values.tolist(), limit=400
    )[0]
    np.testing.assert_allclose(result.wasserstein, distance, atol=1e-5)


def test_fewer_than_eight_queries_have_too_few_eigenvalues():
    with pytest.warns(asc.errors.UndefinedWarning, match="fewer than 8"):
        assert asc.marchenko_pastur(causal_rows(7, 40)).ks.isnan()


# --- errors, and metrics of square maps


@pytest.mark.parametrize(
    "name",
    [
        "fiedler_value",
        "fiedler_vector",
        "laplacian_eigenvalues",
        "laplacian_gap",
        "persistence",
        "toeplitz_split",
    ],
)
def test_metrics_of_square_maps_give_both_sizes_and_the_way_out(name):
    words = r"square .*\(2, 3, 8\), 3 queries x 8 keys; of decoding steps `recording.assembled\(\)`"
    with pytest.raises(ValueError, match=f"{name}: (attention|scores) must be {words}"):
        getattr(asc, name)(full_rows(3, 8, 2))
    with pytest.raises(ValueError, match="participation_ratio: attention must be square"):
        asc.participation_ratio(full_rows(3, 8, 2), spectrum="eigen")
    for function in (asc.graph_statistics, asc.betti_numbers):
        with pytest.raises(ValueError, match="3 queries x 8 keys"):
            function(full_rows(3, 8, 2), [0.1])


@pytest.mark.parametrize(
    ("shape", "options", "words"),
    [
        ((9, 4), {}, "9 queries cannot stand at the last of 4 keys; give cross=True"),
        ((3, 8), {"cross": True, "support": "causal"}, "in cross attention nothing is causal"),
        (
            (3, 8),
            {"cross": True, "query_positions": [0, 1, 2]},
            "queries of cross attention have no position",
        ),
        ((3, 8), {"query_positions": [0, 1, 8]}, r"between 0 and 7, the last key, got 8"),
        ((3, 8), {"query_positions": [0, 1]}, "query_positions of shape"),
        ((3, 8), {"query_positions": [0.0, 1.0, 2.0]}, "query_positions must be integers"),
        ((3, 8), {"query_lengths": 4}, "query_lengths must lie between 0 and n = 3, got 4"),
        (
            (3, 8),
            {"query_lengths": 3, "lengths": 2},
            "a map of 3 queries and 2 keys has no last key for each",
        ),
        ((3, 8), {"lengths": 0}, "lengths must lie between 1 and n = 8"),
        ((0, 8), {}, "at least one token"),
    ],
)
def test_what_contradicts_itself_is_refused_with_its_numbers(shape, options, words):
    maps = torch.full(shape, 1 / shape[1])
    with pytest.raises(ValueError, match=words):
        asc.attention_entropy(maps, **options)


# --- together


def test_measure_takes_rectangles_and_shares_its_reads():
    heads = causal_rows(5, 12, 2, 3)
    names = [
        "attention_entropy",
        "sink_share",
        "top_mass",
        "head_divergence",
        "stable_rank",
        "singular_values",
    ]
    together = asc.measure(heads, names, lengths=[[12], [10]], k=1)
    for name in ("attention_entropy", "top_mass", "stable_rank", "singular_values"):
        np.testing.assert_array_equal(together[name], getattr(asc, name)(heads, lengths=[[12], [10]]))
    np.testing.assert_array_equal(together["head_divergence"], asc.head_divergence(heads, lengths=[12, 10]))
    share = asc.sink_share(heads, lengths=[[12], [10]])
    np.testing.assert_array_equal(together["sink_share"].share, share.share)
    crossed = asc.measure(heads, ["incoming_attention", "sink_position"], cross=True, rule="largest")
    np.testing.assert_array_equal(crossed["incoming_attention"], asc.incoming_attention(heads, cross=True))
    with pytest.raises(ValueError, match="fiedler_value: attention must be square"):
        asc.measure(heads, ["top_mass", "fiedler_value"], k=1)
    with pytest.raises(ValueError, match="fiedler_value: takes square maps of self-attention only"):
        asc.measure(square_map(6), ["fiedler_value"], cross=True)


def test_quantities_that_rectangles_have_not_are_undefined():
    from attnscope.metrics.discovery import quantity
    from attnscope.metrics.measured import measure_quantities

    maps = causal_rows(5, 12, 2, 3)
    columns = [quantity("sink_share"), quantity("fiedler_value"), quantity("participation_ratio_eigen")]
    measured = measure_quantities({"attention": maps}, columns, lengths=[12, 12])
    share, connectivity, eigen = (measured.values[column] for column in columns)
    np.testing.assert_array_equal(share, asc.sink_share(maps).share)
    assert connectivity.isnan().all()
    assert eigen.isnan().all()


@pytest.mark.parametrize("positions", [[0, 4, 1], [[4, 0, 1], [0, 1, 4]]])
def test_a_real_query_behind_one_at_padding_is_refused(positions):
    """Queries of padding come last: a number for this one would be left out in silence."""
    maps = full_rows(3, 5, 2)
    with pytest.raises(ValueError, match=r"attention_entropy: queries at padding must come last, got .* key"):
        asc.attention_entropy(maps, query_positions=positions, lengths=3)
    entropy = asc.attention_entropy(maps, query_positions=[0, 1, 4], lengths=3)
    assert torch.equal(entropy.isnan(), torch.tensor([[False, False, True]] * 2))
