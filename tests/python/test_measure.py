# SPDX-License-Identifier: MIT
"""measure: the same values as the functions, shared work done once, options that go where they belong."""

import re

import pytest
import torch

import attnscope as asc
from attnscope.metrics import measure as measuring

SCALES = torch.linspace(0, 1, 5, dtype=torch.float64)


def maps(*shape, causal=True, seed=0):
    logits = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    if causal:
        logits = logits.masked_fill(~torch.ones(shape[-2:], dtype=torch.bool).tril(), -torch.inf)
    return torch.softmax(logits, -1)


def same(a, b):
    if isinstance(a, torch.Tensor):
        return (
            torch.equal(a.nan_to_num(nan=-7), b.nan_to_num(nan=-7))
            if a.is_floating_point()
            else torch.equal(a, b)
        )
    if isinstance(a, tuple):
        return all(same(x, y) for x, y in zip(a, b, strict=True))
    return all(
        same(getattr(a, name), getattr(b, name)) for name in ("birth", "death", "dimension", "offsets")
    )


def direct(name, attention, **options):
    """The value by the public function itself."""
    if name in ("betti_curve", "bar_count", "total_persistence", "max_persistence", "persistent_entropy"):
        bars = asc.persistence(attention, lengths=options.pop("lengths", None))
        return getattr(asc, name)(bars, **options)
    return getattr(asc, name)(attention, **options)


OPTIONS = {
    "graph_statistics": {"thresholds": [0.05, 0.1]},
    "betti_numbers": {"thresholds": [0.05, 0.1]},
    "betti_curve": {"scales": SCALES},
    "top_mass": {"k": 2},
}
NEEDS_MORE = ("sink_removal", "geometric_semantic_alignment", "reference_influence")
SIMPLE = [name for name in measuring.metric_names() if name not in NEEDS_MORE]


@pytest.mark.parametrize("name", SIMPLE)
def test_one_metric_equals_its_function(name):
    attention, options = maps(3, 2, 12, 12), OPTIONS.get(name, {})
    assert same(asc.measure(attention, {name: options})[name], direct(name, attention, **options))


def test_all_metrics_at_once_equal_their_functions_on_ragged_lengths():
    attention, lengths = maps(3, 2, 12, 12), torch.tensor([[12], [9], [10]])
    found = asc.measure(attention, {name: OPTIONS.get(name, {}) for name in SIMPLE}, lengths=lengths)
    assert list(found) == SIMPLE
    for name in SIMPLE:
        own = lengths[:, 0] if name in measuring.OF_LAYERS else lengths
        assert same(found[name], direct(name, attention, lengths=own, **OPTIONS.get(name, {}))), name


def test_shared_work_is_done_once(monkeypatch):
    calls = []
    function = measuring._function

    def counting(metric):
        real = function(metric)

        def wrapper(*args, **kwargs):
            calls.append(metric)
            return real(*args, **kwargs)

        wrapper.__signature__ = measuring.inspect.signature(real)
        wrapper.__name__ = real.__name__
        return wrapper

    monkeypatch.setattr(measuring, "_function", counting)
    asc.measure(
        maps(2, 9, 9), ["stable_rank", "effective_rank", "spectral_gap", "spectral_ratio", "singular_values"]
    )
    assert calls == ["singular_values"]
    calls.clear()
    asc.measure(maps(2, 9, 9), ["bar_count", "total_persistence", "max_persistence", "persistent_entropy"])
    assert calls == ["persistence"]
    calls.clear()
    asc.measure(
        maps(2, 9, 9),
        {"a": {"metric": "fiedler_value"}, "b": {"metric": "fiedler_value", "normalized": True}},
    )
    assert calls == ["fiedler_value", "fiedler_value"]


def test_common_options_reach_every_metric_that_takes_them():
    attention = maps(2, 10, 10)
    found = asc.measure(
        attention, ["fiedler_value", "betti_numbers", "stable_rank"], symmetrize="mean", thresholds=[0.2]
    )
    assert torch.equal(found["betti_numbers"], asc.betti_numbers(attention, [0.2], symmetrize="mean"))
    assert found["betti_numbers"].shape == (2, 1, 2)


@pytest.mark.parametrize(
    ("metrics", "options", "error", "message"),
    [
        (["fidler_value"], {}, ValueError, "unknown metric 'fidler_value'; did you mean 'fiedler_value'?"),
        ("zzz", {}, ValueError, "unknown metric 'zzz'; there are: attention_entropy, "),
        (["fiedler_value", {"k": 1}], {}, TypeError, "metrics must be names, or a mapping from"),
        (["betti_curve"], {}, TypeError, "betti_curve needs the option 'scales'"),
        (["sink_removal"], {}, TypeError, "sink_removal needs the option 'keys'"),
        (["fiedler_value"], {"normalised": True}, TypeError, "'normalised'; did you mean 'normalized'?"),
        (
            ["stable_rank"],
            {"thresholds": [0.1]},
            TypeError,
            "none of the metrics stable_rank takes the option 'thresholds'",
        ),
        ({"fiedler_value": {"kk": 1}}, {}, TypeError, "fiedler_value takes no option 'kk'; there are: "),
        (
            {"fiedler_value": {"normalised": 1}},
            {},
            TypeError,
            "fiedler_value takes no option 'normalised'; did you mean 'normalized'?",
        ),
    ],
)
def test_what_it_refuses(metrics, options, error, message):
    with pytest.raises(error, match=re.escape(message)):
        asc.measure(maps(4, 4), metrics, **options)


def test_bad_attention_is_refused_before_any_work():
    with pytest.raises(ValueError, match=re.escape("got torch.int64")):
        asc.measure(torch.ones(3, 3, dtype=torch.int64), ["fiedler_value"])


def test_layer_metrics_want_one_length_for_all_heads():
    with pytest.raises(ValueError, match="one length for all its heads"):
        asc.measure(maps(2, 3, 8, 8), ["head_divergence"], lengths=[[3, 4, 5], [3, 3, 3]])
