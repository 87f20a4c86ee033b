# SPDX-License-Identifier: MIT
"""Public metrics of lazy attention equal those of its map, and `measure` makes few passes."""

import numpy as np
import pytest
import torch

import attnscope as asc
from attnscope.metrics.lazy import lazy_attention
from lazy_oracle import KINDS, assert_equal_results, random_vectors, sink_like_vectors

CALLS = {
    "attention_entropy": [{}, {"base": 2}, {"normalized": True}],
    "incoming_attention": [{}],
    "sink_rate": [{}, {"epsilon": 0.05, "position": 3}],
    "sink_position": [{}, {"rule": "largest"}, {"rule": "largest", "min_visibility": 0.6}],
    "sink_share": [{}, {"first": 4}, {"first": 200}, {"queries": 20}],
    "sink_tokens": [
        {},
        {"rule": "frequency", "tau": 0.03, "gamma": 0.1},
        {"rule": "frequency"},
    ],
    "sink_excess": [{}],
    "sink_test": [{}, {"alpha": 0.3}],
    "top_mass": [{}, {"k": 5}, {"k": 500}],
    "local_global_ratio": [{}, {"window": 0.1}, {"window": 3, "drop_first": True}],
}


@pytest.mark.filterwarnings("ignore::attnscope.errors.NotAttentionWarning")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("function", CALLS)
def test_a_metric_equals_that_of_the_map(function, kind):
    options, support = KINDS[kind]
    lazy = asc.LazyAttention(*sink_like_vectors(), precision="exact", **options)
    maps = lazy.dense()
    metric = getattr(asc, function)
    for arguments in CALLS[function]:
        if function == "local_global_ratio" and kind == "mask" and arguments.get("drop_first"):
            continue
        assert_equal_results(metric(lazy, **arguments), metric(maps, support=support, **arguments), 1e-9)


@pytest.mark.parametrize("function", CALLS)
def test_a_fast_metric_is_close_to_that_of_the_map(function):
    query, key = sink_like_vectors()
    maps = asc.LazyAttention(query, key, precision="exact").dense()
    for arguments in CALLS[function]:
        assert_equal_results(
            getattr(asc, function)(asc.LazyAttention(query, key), **arguments),
            getattr(asc, function)(maps, support="causal", **arguments),
            1e-4,
        )


@pytest.mark.parametrize("function", CALLS)
def test_lengths_are_those_of_the_call_or_of_the_attention(function):
    query, key = sink_like_vectors()
    lengths = torch.tensor([96, 50, 2])
    lazy = asc.LazyAttention(query, key, precision="exact")
    maps = lazy.dense()
    metric, arguments = getattr(asc, function), CALLS[function][-1]
    expected = metric(maps, support="causal", lengths=lengths, **arguments)
    assert_equal_results(metric(lazy, lengths=lengths, **arguments), expected, 1e-9)
    assert_equal_results(metric(lazy.with_lengths(lengths), **arguments), expected, 1e-9)


@pytest.mark.filterwarnings("ignore::attnscope.errors.NotAttentionWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_functions_of_all_heads_equal_those_of_the_maps(kind, monkeypatch):

    monkeypatch.setattr(lazy_attention, "_SLAB_ENTRIES", 3 * 96 * 17)  # several slabs, the last a part
    options, support = KINDS[kind]
    lazy = asc.LazyAttention(*sink_like_vectors(), precision="exact", **options)
    maps = lazy.dense()
    divergence = asc.head_divergence(maps, support=support)
    np.testing.assert_allclose(asc.head_divergence(lazy).numpy(), divergence.numpy(), atol=1e-10)
    ours = asc.sink_removal(lazy, [0, 3], keep_attention=False)
    theirs = asc.sink_removal(maps, [0, 3], keep_attention=False, support=support)
    assert torch.equal(ours.excluded, theirs.excluded)
    for field in ("kl_reduction", "before", "after"):
        np.testing.assert_allclose(getattr(ours, field).numpy(), getattr(theirs, field).numpy(), atol=1e-10)


def test_a_spoiled_layer_and_lengths_of_functions_of_all_heads():
    query, key = random_vectors(heads=4, rows=40)
    query, key = torch.stack([query, query + 1]), torch.stack([key, key])
    lazy = asc.LazyAttention(query, key, precision="exact")
    lengths = torch.tensor([40, 23])
    expected = asc.head_divergence(lazy.dense(), lengths=lengths, support="causal")
    np.testing.assert_allclose(
        asc.head_divergence(lazy, lengths=lengths).numpy(), expected.numpy(), atol=1e-10
    )
    query[0, 2, 7] = torch.nan
    with pytest.warns(asc._warn.NonFiniteWarning, match="1 of 2 layers"):
        divergence = asc.head_divergence(asc.LazyAttention(query, key, precision="exact"))
    assert divergence.isnan().all(-1).tolist() == [True, False]
    with pytest.raises(ValueError, match="give keep_attention=False"):
        asc.sink_removal(lazy, [0])


def test_measure_makes_one_pass(monkeypatch):
    lazy = asc.LazyAttention(*sink_like_vectors(), precision="exact")
    metrics = {
        "attention_entropy": {},
        "incoming_attention": {},
        "sink_share": {"first": 1},
        "four": {"metric": "sink_share", "first": 4},
        "sink_test": {},
        "local_global_ratio": {},
        "top_mass": {},
    }
    expected = asc.measure(lazy.dense(), metrics)
    passes = []
    kernel = lazy_attention._core.lazy_measures

    def count(*arguments):
        passes.append(arguments[10])
        return kernel(*arguments)

    monkeypatch.setattr(lazy_attention._core, "lazy_measures", count)
    results = asc.measure(lazy, metrics)
    assert len(passes) == 1
    assert list(results) == list(metrics)
    for key, result in results.items():
        assert_equal_results(result, expected[key], 1e-9)
    asc.measure(lazy, {"near": {"metric": "local_global_ratio", "window": 2}, "local_global_ratio": {}})
    assert len(passes) == 3


@pytest.mark.parametrize(("share", "expected"), [(0.07, 93), (0.08, 92)])
def test_a_share_of_the_queries_that_is_a_whole_number_is_that_number(share, expected):
    # Key 93 of 100 is seen by seven queries, and in float64 0.07·100 is above 7.
    key = torch.zeros(1, 100, 1, dtype=torch.float64)
    key[0, 92], key[0, 93] = 5.0, 9.0
    lazy = asc.LazyAttention(torch.ones_like(key), key, scaling=1.0)
    for attention in (lazy, lazy.dense()):
        assert asc.sink_position(attention, rule="largest", min_visibility=share).item() == expected


def test_a_spoiled_map_is_warned_of():
    query, key = sink_like_vectors()
    query[1, 5] = torch.nan
    lazy = asc.LazyAttention(query, key)
    with pytest.warns(asc._warn.NonFiniteWarning, match="1 of 3"):
        entropy = asc.attention_entropy(lazy)
    assert torch.equal(entropy.isnan().nonzero(), torch.tensor([[1, 5]]))
    with pytest.warns(asc._warn.NonFiniteWarning):
        share = asc.sink_share(lazy)
    assert share.share.isnan().tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda lazy: asc.attention_entropy(lazy, support="full"), "its own causal, window and mask"),
        (lambda lazy: asc.attention_entropy(lazy, validate=True), "needs the entries of the map"),
        (lambda lazy: asc.marchenko_pastur(lazy), "ks alone is known"),
        (lambda lazy: asc.power_spectrum(lazy), "needs the map"),
    ],
)
def test_what_needs_the_map_says_so(call, words):
    with pytest.raises((TypeError, ValueError), match=words):
        call(asc.LazyAttention(*random_vectors()))


SINK_MASS_CALLS = {
    "attention_entropy": [{}, {"base": 2}, {"normalized": True}],
    "sink_share": [{}, {"first": 4, "queries": 20}],
    "top_mass": [{}, {"k": 5}, {"k": 500}],
    "head_divergence": [{}],
}


@pytest.mark.filterwarnings("ignore::attnscope.errors.NotAttentionWarning")
@pytest.mark.parametrize("lengths", [None, [96, 60, 20]], ids=["", "padding"])
@pytest.mark.parametrize("window", [None, 30])
@pytest.mark.parametrize("function", SINK_MASS_CALLS)
def test_the_mass_of_learned_sinks_counts_as_in_maps(function, window, lengths):
    query, key = sink_like_vectors()
    options = {"sink_logits": torch.tensor([0.0, 1.0, 5.0]), "window": window, "precision": "exact"}
    if function == "head_divergence" and lengths is not None:
        lengths = [60, 60, 60]  # heads of a layer have one length
    lazy = asc.LazyAttention(
        query, key, lengths=None if lengths is None else torch.tensor(lengths), **options
    )
    support = torch.ones(96, 96).tril().triu(-95 if window is None else 1 - window).bool()
    mass = lazy.sink_mass
    of_maps = {"support": support, "sink_mass": mass.nan_to_num(0.0)}
    if lengths is not None:
        of_maps["lengths"] = torch.tensor(lengths[:1] if function == "head_divergence" else lengths)[..., :]
    for arguments in SINK_MASS_CALLS[function]:
        ours = getattr(asc, function)(lazy, sink_mass=mass, **arguments)
        theirs = getattr(asc, function)(lazy.dense(), **of_maps, **arguments)
        assert_equal_results(ours, theirs, 1e-9)
        assert float(mass[:, 1:19].max()) > 0.5  # a term left out would show


def test_metrics_of_one_pass_do_not_change_each_other():
    lazy = asc.LazyAttention(*sink_like_vectors(), sink_logits=torch.zeros(3), precision="exact")
    options = {"sink_mass": lazy.sink_mass}
    calls = {"nats": {}, "bits": {"base": 2}, "normalized": {"normalized": True}, "mass": options}
    measured = asc.measure(
        lazy, {key: {"metric": "attention_entropy", **values} for key, values in calls.items()}
    )
    for key, values in calls.items():
        assert_equal_results(measured[key], asc.attention_entropy(lazy, **values), 1e-12)


#: Measures that take queries and keys at any length, with what each of them must be told.
AT_ANY_LENGTH = {
    "attention_entropy": {},
    "incoming_attention": {},
    "local_global_ratio": {},
    "sink_excess": {},
    "sink_position": {},
    "sink_rate": {},
    "sink_share": {},
    "sink_test": {},
    "sink_tokens": {},
    "top_mass": {},
    "lookback": {"answer": (200, 300)},
    "head_divergence": {},
    "sink_removal": {"keys": [0], "keep_attention": False},
    "graph_statistics": {"thresholds": [0.05]},
    "betti_numbers": {"thresholds": [0.05]},
    "laplacian_eigenvalues": {"k": 3, "threshold": 0.05},
    "laplacian_gap": {"threshold": 0.05},
    "fiedler_value": {},
    "persistence": {"at_least": 0.05},
    "participation_ratio": {},
    "stable_rank": {},
    "effective_rank": {},
    "singular_values": {},
    "spectral_gap": {},
    "spectral_ratio": {},
    "marchenko_pastur_deviation": {},
}


@pytest.mark.parametrize("function", AT_ANY_LENGTH)
def test_a_measure_takes_queries_and_keys_under_its_name(function, monkeypatch):
    """It never makes the map: of 300 tokens, because small maps may be made where they are exact."""
    lazy = asc.LazyAttention(*random_vectors(heads=2, rows=300, sharpness=2.0))
    monkeypatch.setattr(asc.LazyAttention, "dense", lambda _: pytest.fail("the map was made"))
    options = AT_ANY_LENGTH[function]
    result = getattr(asc, function)(lazy, **options)
    measured = asc.measure(lazy, {function: options})[function]
    assert type(measured) is type(result)
    if isinstance(result, torch.Tensor):
        torch.testing.assert_close(measured, result, equal_nan=True)


PADDED = torch.tensor([96, 50, 2])


def test_padding_of_lazy_attention_counts_in_no_result():
    query, key = sink_like_vectors()
    lazy = asc.LazyAttention(query, key, precision="exact", lengths=PADDED)
    maps = lazy.dense().nan_to_num(0.0)
    generator = torch.Generator().manual_seed(2)
    before, after = torch.randn(2, 96, 3, generator=generator).unbind()
    ours = asc.entropy_magnitude_correlation(lazy, before, after)
    theirs = asc.entropy_magnitude_correlation(maps, before, after, lengths=PADDED)
    np.testing.assert_allclose(ours, theirs, atol=1e-10)
    assert ours.isfinite().all()
    options = {"before": before, "after": after}
    measured = asc.measure(lazy, {"entropy_magnitude_correlation": options})
    assert torch.equal(measured["entropy_magnitude_correlation"], ours)
    ours, theirs = asc.causal_spectrum(lazy), asc.causal_spectrum(maps, lengths=PADDED)
    assert_equal_results(ours, theirs, 1e-10)
    assert ours.log_determinant.isfinite().all()


def test_lengths_of_a_call_make_no_key_of_padding():
    query, key = sink_like_vectors()
    lazy = asc.LazyAttention(query, key, precision="exact", lengths=PADDED)
    longer, shorter = torch.tensor([96, 96, 96]), torch.tensor([70, 96, 1])
    for function in ("attention_entropy", "incoming_attention"):
        metric = getattr(asc, function)
        assert_equal_results(metric(lazy, lengths=longer), metric(lazy), 0.0)
        expected = metric(lazy.with_lengths([70, 50, 1]))
        assert_equal_results(metric(lazy, lengths=shorter), expected, 0.0)


def test_a_query_at_padding_alone_has_no_sums_of_keys():
    query, key = sink_like_vectors()
    lazy = asc.LazyAttention(query[:, :1], key, precision="exact", lengths=PADDED, query_positions=[60])
    maps = lazy.dense().nan_to_num(0.0)
    theirs = asc.sink_test(maps, lengths=PADDED, query_positions=[60], support="causal")
    assert_equal_results(asc.sink_test(lazy), theirs, 1e-10)
    assert theirs.mass[1].isnan().all()
    assert theirs.mass[0].isfinite().all()


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda lazy: asc.geometric_semantic_alignment(lazy, torch.ones(96, 2)), "geometric_semantic_alig"),
        (lambda lazy: asc.reference_influence(lazy, torch.ones(96, 2), torch.arange(96) < 1), "reference_in"),
        (asc.offset_fit, "offset_fit"),
        (asc.toeplitz_split, "toeplitz_split"),
        (asc.mask_only, "mask_only"),
        (asc.laplacian_shape, "laplacian_shape"),
        (lambda lazy: asc.offset_variance(lazy, validate=True), "offset_variance"),
        (asc.protocols.ruscio2025.attention_entropy, "ruscio2025.attention_entropy"),
        (asc.protocols.ruscio2025.head_divergence, "ruscio2025.head_divergence"),
        (asc.protocols.ruscio2025.persistence, "ruscio2025.persistence"),
        (asc.protocols.ruscio2025.spectral_norm, "ruscio2025.spectral_norm"),
        (asc.protocols.ruscio2025.stable_rank, "ruscio2025.stable_rank"),
        (lambda lazy: asc.protocols.ruscio2025.graph_statistics(lazy, [0.1]), "ruscio2025.graph_statistics"),
        (lambda lazy: asc.protocols.ruscio2025.sink_tokens(lazy, rule="kl"), "ruscio2025.sink_tokens"),
    ],
)
def test_functions_without_a_lazy_way_name_themselves_and_the_way_out(call, name):
    lazy = asc.LazyAttention(*sink_like_vectors(), precision="exact")
    with pytest.raises(
        TypeError, match=rf"^{name}.* needs the map, and LazyAttention\(.*dense\(\) makes one"
    ):
        call(lazy)
