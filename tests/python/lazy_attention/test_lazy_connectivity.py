# SPDX-License-Identifier: MIT
"""λ2 of all weights of lazy attention lies in its certified interval, or is said to be undecided."""

import math

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

import attnscope as asc
from attnscope.demo.texts import documentation
from attnscope.metrics.lazy import connectivity
from lazy_oracle import random_vectors


def trained_attention(n):
    """Return the lazy attention of every head of the model that the package ships, for one text."""
    model = AutoModelForCausalLM.from_pretrained(asc.demo.demo_model()).eval()
    text = documentation()[0].encode()[:n]
    ids = torch.tensor([list(text)])
    with asc.capture(model, lazy=True) as recording:
        layers = [layer.attention for layer in recording.run(input_ids=ids)]
    return tuple(torch.cat([getattr(layer, name)[0] for layer in layers]) for name in ("query", "key"))


def assert_encloses(result, expected, *, decided):
    slack = 1e-9 * expected + 1e-12
    assert bool((result.low <= expected + slack).all())
    assert bool((expected <= result.high + slack).all())
    is_decided = ~result.value.isnan()
    assert float(is_decided.double().mean()) >= decided
    np.testing.assert_allclose(result.value[is_decided], expected[is_decided], rtol=1e-2)
    width = (result.high - result.low)[is_decided] / result.high[is_decided]
    assert bool((width <= 1e-2 + 1e-6).all())


@pytest.mark.parametrize("normalized", [False, True])
def test_trained_heads_of_512_tokens_are_enclosed(normalized):
    query, key = trained_attention(512)
    lazy = asc.LazyAttention(query[::3], key[::3])
    expected = asc.fiedler_value(lazy_map(lazy), normalized=normalized)
    assert_encloses(asc.fiedler_value(lazy, normalized=normalized), expected, decided=1.0)


@pytest.mark.slow
@pytest.mark.parametrize("n", [512, 1024])
def test_all_trained_heads_are_enclosed(n):
    query, key = trained_attention(n)
    lazy = asc.LazyAttention(query, key)
    assert_encloses(asc.fiedler_value(lazy), asc.fiedler_value(lazy_map(lazy)), decided=1.0)


def lazy_map(lazy):
    return asc.LazyAttention(lazy.query, lazy.key, precision="exact").dense()


def planted(n, parts, log_ratio):
    """Return attention between equal parts, e^log_ratio more inside of one, and the λ2 that it has."""
    place = torch.nn.functional.one_hot(torch.arange(n) // (n // parts), parts).double()[None]
    lazy = asc.LazyAttention(place, log_ratio * place, causal=False, scaling=1.0)
    return lazy, parts / (math.exp(log_ratio) + parts - 1)


@pytest.mark.parametrize(("parts", "log_ratio"), [(2, 3.0), (4, 9.0), (8, 20.0)])
def test_planted_partitions_are_found(parts, log_ratio):
    lazy, expected = planted(1024, parts, log_ratio)
    result = asc.fiedler_value(lazy)
    assert result.value.item() == pytest.approx(expected, rel=1e-6, abs=1e-11)
    assert result.low.item() <= expected * (1 + 1e-9) + 1e-15
    assert expected <= result.high.item() * (1 + 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(("parts", "log_ratio"), [(2, 3.0), (8, 9.0)])
def test_planted_partitions_of_8192_tokens_are_found(parts, log_ratio):
    lazy, expected = planted(8192, parts, log_ratio)
    result = asc.fiedler_value(lazy)
    assert result.value.item() == pytest.approx(expected, rel=1e-6)
    assert result.low.item() <= expected <= result.high.item() * (1 + 1e-9)


def test_more_parts_than_vectors_are_not_decided():
    """λ2 of 32 weakly joined parts has a multiplicity of 31, of which a block of 16 finds a part."""
    lazy, expected = planted(512, 32, 14.0)
    with pytest.warns(asc._warn.UndefinedWarning, match="1 of 1 matrices was not enclosed"):
        result = asc.fiedler_value(lazy)
    assert result.value.isnan().item()
    assert 0.0 <= result.low.item() <= expected <= result.high.item() * (1 + 1e-6)


@pytest.mark.parametrize("kind", ["diffuse", "sharp", "sink", "local", "previous", "window", "learned sink"])
def test_kinds_of_attention_are_enclosed(kind):
    query, key = random_vectors(heads=2, rows=300, width=16)
    options = {
        "sink": {},
        "local": {"bias": torch.tensor([0.3, 0.1])},
        "previous": {"bias": torch.tensor([1.0, 2.0])},
        "window": {"window": 40},
        "learned sink": {"sink_logits": torch.tensor([1.0, 5.0])},
    }.get(kind, {})
    if kind in ("local", "previous"):
        key = torch.zeros_like(key)
    if kind == "sink":
        query, key[:, 0] = query + 1, key[:, 0] + 2
    query = 4 * query if kind == "sharp" else query
    lazy = asc.LazyAttention(query, key, precision="exact", **options)
    maps = lazy.dense()
    with pytest.MonkeyPatch.context() as patch, asc_warnings():
        patch.setattr(connectivity, "_DENSE_TOKENS", 2)
        for normalized in (False, True):
            expected = asc.fiedler_value(maps, normalized=normalized)
            assert_encloses(asc.fiedler_value(lazy, normalized=normalized), expected, decided=0.5)


def asc_warnings():
    """Return a context in which sums of rows below one and undecided maps are not warned of."""
    import warnings

    context = warnings.catch_warnings()
    warnings.simplefilter("ignore")
    return context


def test_lengths_heads_and_nan():
    query, key = random_vectors(heads=4, rows=300, kv=2, width=8)
    query, key = torch.stack([query, query + 0.1]), torch.stack([key, key])
    query[1, 2, 7] = torch.nan
    lengths = torch.tensor([300, 280])
    lazy = asc.LazyAttention(query, key, lengths=lengths, precision="exact")
    with pytest.warns(asc._warn.NonFiniteWarning, match="1 of 8"):
        result = asc.fiedler_value(lazy)
    assert result.value.shape == (2, 4)
    assert result.value.isnan().sum() == 1
    assert result.value[1, 2].isnan()
    expected = asc.fiedler_value(lazy.dense()[1, 3, :280, :280])
    assert float(result.low[1, 3]) <= float(expected) <= float(result.high[1, 3])


def test_small_maps_and_tokens_that_nothing_joins():
    lazy = asc.LazyAttention(*random_vectors(heads=1, rows=30), precision="exact")
    result = asc.fiedler_value(lazy)
    assert result.value.item() == pytest.approx(asc.fiedler_value(lazy.dense()).item(), rel=1e-9)
    isolated = asc.LazyAttention(*random_vectors(heads=1, rows=300), window=1)
    result = asc.fiedler_value(isolated)
    assert (result.value.item(), result.low.item()) == (0.0, 0.0)


def test_a_count_fails_where_a_vector_is_below():
    """A bound above λ2 is never certified, whatever the random starts."""
    lazy = asc.LazyAttention(*random_vectors(heads=1, rows=300), precision="exact")
    exact = float(asc.fiedler_value(lazy.dense()))
    laplacian = connectivity.make_laplacian(lazy, normalized=False)
    assert connectivity.is_least_above(laplacian, laplacian.null[:, None], 0.98 * exact)
    assert not connectivity.is_least_above(laplacian, laplacian.null[:, None], 1.001 * exact)


def test_the_other_graph_needs_a_threshold():
    with pytest.raises(ValueError, match="expected symmetrize='mean', got 'max'"):
        asc.fiedler_value(asc.LazyAttention(*random_vectors()), symmetrize="max")
