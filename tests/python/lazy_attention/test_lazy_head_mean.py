# SPDX-License-Identifier: MIT
"""The mean over heads from queries and keys, against the mean of the oracle's maps."""

import math

import numpy as np
import pytest
import torch

import attnscope as asc
from attnscope.metrics.lazy import lazy_attention
from attnscope.metrics.lazy.head_mean import HeadMeanAttention
from attnscope.metrics.lazy.passes import HEAD_MEAN, shared_pass
from lazy_oracle import dense_attention, random_vectors, row_measures

OPTIONS = {
    "causal": {},
    "full": {"causal": False},
    "window": {"window": 30},
    "two sides": {"causal": False, "window": (5, 9)},
    "learned sink": {"sink_logits": torch.tensor([0.0, 1.0, 5.0, -3.0])},
    "slopes and softcap": {"bias": torch.tensor([0.1, 0.2, 0.3, 0.4]), "softcap": 5.0},
    "mask": {"mask": torch.rand(131, 131, generator=torch.Generator().manual_seed(0)) > 0.3},
}
TOLERANCE = {"exact": 1e-12, "fast": 1e-5}


def oracle_options(options):
    """Return options of the oracle, which knows no pair of sides but as a mask."""
    if not isinstance(options.get("window"), tuple):
        return options
    before, after = options["window"]
    back = np.arange(131)[:, None] - np.arange(131)
    return {"causal": False, "mask": (back <= before) & (-back <= after)}


@pytest.mark.parametrize("precision", ["exact", "fast"])
@pytest.mark.parametrize("kind", OPTIONS)
def test_measures_are_those_of_the_mean_map(kind, precision):
    query, key = random_vectors(heads=4, rows=131, kv=2, sharpness=2.0)
    lazy = asc.LazyAttention(query, key, precision=precision, **OPTIONS[kind])
    _, maps = dense_attention(query, key, **oracle_options(OPTIONS[kind]))
    mean = maps.mean(-3, keepdims=True)
    expected = row_measures(None, mean)
    expected |= {"incoming": mean.sum(-2), "squares": (mean**2).sum(-2)}
    names = [name for name in expected if name != "log_z"]
    results = HeadMeanAttention(lazy).take([(name, None) for name in names])
    for name, values in zip(names, results, strict=True):
        scale = 131 if name == "distance" else 1.0
        np.testing.assert_allclose(
            values.numpy(), expected[name], atol=TOLERANCE[precision] * scale, rtol=0, err_msg=name
        )
    (divergence,) = lazy.take([(HEAD_MEAN, ("divergence", None))])
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(maps > 0, maps * np.log(maps / mean), 0.0)
    np.testing.assert_allclose(divergence.numpy(), terms.sum(-1), atol=TOLERANCE[precision], rtol=0)


def test_padding_and_columns_of_each_text():
    query, key = (states[None].repeat(2, 1, 1, 1) for states in random_vectors(heads=2, rows=100))
    lazy = asc.LazyAttention(query, key, lengths=torch.tensor([100, 61]), precision="exact")
    mean = HeadMeanAttention(lazy)
    maps = lazy.dense().mean(-3)
    incoming, entropy = mean.take([("incoming", None), ("entropy", None)])
    assert torch.allclose(incoming[1, 0, :61], maps[1, :61, :61].sum(-2))
    assert bool(entropy[1, 0, 61:].isnan().all())
    assert not bool(entropy[1, 0, :61].isnan().any())
    assert mean.shape == (2, 1, 100, 100)


def test_metrics_take_the_mean_under_their_names():
    query, key = random_vectors(heads=3, rows=90, sharpness=2.0)
    lazy = asc.LazyAttention(query, key, precision="exact")
    mean, maps = HeadMeanAttention(lazy), lazy.dense().mean(-3, keepdim=True)
    for metric in ("attention_entropy", "sink_share", "top_mass", "incoming_attention", "sink_rate"):
        ours = asc.measure(mean, metric)[metric]
        theirs = asc.measure(maps, metric, support="causal")[metric]
        for part, other in (
            zip(*(torch.as_tensor(x)[None] for x in (ours, theirs)), strict=True)
            if (isinstance(ours, torch.Tensor))
            else zip(ours, theirs, strict=True)
        ):
            assert torch.allclose(part.double(), other.double(), atol=1e-10, equal_nan=True), metric


def test_heads_and_mean_share_log_z(monkeypatch):
    """Heads are gone through once for themselves and once for their mean, whatever is asked for."""
    calls = []
    kernel = lazy_attention._core.lazy_measures

    def count(*arguments):
        calls.append(arguments[-1] is not None)
        return kernel(*arguments)

    monkeypatch.setattr(lazy_attention._core, "lazy_measures", count)
    lazy = asc.LazyAttention(*random_vectors(heads=3, rows=90))
    with shared_pass():
        asc.attention_entropy(lazy)
        asc.attention_entropy(HeadMeanAttention(lazy))
    assert calls == [False, True]


def test_a_head_with_nan_makes_the_mean_of_its_queries_nan():
    query, key = random_vectors(heads=3, rows=70)
    key[1, 40, 0] = math.nan
    mean = HeadMeanAttention(asc.LazyAttention(query, key))
    entropy, incoming = mean.take([("entropy", None), ("incoming", None)])
    assert bool(entropy[0, 40:].isnan().all())
    assert not bool(entropy[0, :40].isnan().any())
    assert bool(incoming[0].isnan().all())


def test_heads_of_several_lengths_are_refused():
    lazy = asc.LazyAttention(*random_vectors(heads=2, rows=50), lengths=torch.tensor([50, 20]))
    with pytest.raises(ValueError, match=r"HeadMeanAttention: heads must have one length, got \[50, 20\]"):
        HeadMeanAttention(lazy)


def test_a_layer_whose_heads_differ_in_their_tokens_is_refused():
    query, key = random_vectors(heads=2, rows=50)
    several = asc.LazyAttention(query, key, lengths=torch.tensor([50, 20]))
    places = torch.stack([torch.arange(50), torch.arange(50).flip(0)])
    turned = asc.LazyAttention(query, key, query_positions=places)
    removed = torch.arange(50) == 0
    for function, name in (
        (asc.head_divergence, "head_divergence"),
        (lambda heads: asc.sink_removal(heads, removed, keep_attention=False), "sink_removal"),
    ):
        with pytest.raises(ValueError, match=rf"{name}: lengths of the heads .* equal, got \[50, 20\]"):
            function(several)
        with pytest.raises(ValueError, match=f"{name}: query_positions of the heads .* got 0 and 49"):
            function(turned)


def test_results_do_not_depend_on_threads_and_prefixes_agree():
    query, key = random_vectors(heads=2, rows=700)
    threads = torch.get_num_threads()
    results = []
    try:
        for number in (1, 2):
            torch.set_num_threads(number)
            mean = HeadMeanAttention(asc.LazyAttention(query, key))
            results.append(torch.cat(mean.take([("incoming", None), ("entropy", None)])))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*results)
    prefix = HeadMeanAttention(asc.LazyAttention(query[:, :300], key[:, :300]))
    assert torch.allclose(prefix.take([("entropy", None)])[0], results[0][1:, :300], atol=1e-6)
