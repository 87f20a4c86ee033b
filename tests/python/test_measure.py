# SPDX-License-Identifier: MIT
"""measure: the same values as the functions, shared work done once, options that go where they belong."""

import functools
import re

import numpy as np
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


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("symmetrize", ["max", "min", "mean"])
def test_betti_numbers_from_bars_equal_their_own(dtype, symmetrize):
    torch.manual_seed(3)
    a = torch.softmax(3 * torch.randn(5, 2, 14, 14), -1).to(dtype)
    a[1, 0, 3, 4] = 1.0
    a[2] = 0.0
    a[3, 1] = (a[3, 1].double() * 8).round().to(dtype) / 8  # many ties
    # entries themselves, where a comparison is a tie, and what lies just beside them; in any order, twice
    entries = [float(x) for x in a[0, 0, 2:9, 5] if x > 1e-5] + [0.125, 0.25]
    levels = tuple(float(np.nextafter(x, to)) for x in entries for to in (1.0, x, 0.0))
    lengths = torch.tensor([[14, 9], [14, 14], [3, 1], [14, 14], [12, 2]])
    found = asc.measure(
        a,
        {
            "betti_numbers": {"thresholds": levels},
            "one": {"metric": "betti_numbers", "thresholds": 0.3},
            "bar_count": {},
            "persistence": {},
        },
        symmetrize=symmetrize,
        lengths=lengths,
    )
    assert torch.equal(
        found["betti_numbers"], asc.betti_numbers(a, levels, symmetrize=symmetrize, lengths=lengths)
    )
    assert torch.equal(found["one"], asc.betti_numbers(a, 0.3, symmetrize=symmetrize, lengths=lengths))
    assert found["betti_numbers"].dtype == torch.int64


@pytest.mark.parametrize(
    ("betti", "bars", "dtype", "calls"),
    [
        ({"thresholds": (0.2, 0.5)}, {}, torch.float32, 0),
        ({"thresholds": (0.2, 0.5)}, {}, torch.float64, 1),
        ({"thresholds": ("2/n",)}, {}, torch.float32, 1),
        ({"thresholds": (1e-9,)}, {}, torch.float32, 1),
        ({"thresholds": (0.2,), "symmetrize": "min"}, {}, torch.float32, 1),
        ({"thresholds": (0.2,)}, {"max_dimension": 0}, torch.float32, 1),
    ],
)
def test_betti_numbers_are_read_from_bars_only_where_these_hold_them(monkeypatch, betti, bars, dtype, calls):
    a = torch.softmax(3 * torch.randn(4, 9, 9, dtype=dtype), -1)
    expected = asc.betti_numbers(a, **betti)
    made = []
    function = measuring._function

    @functools.wraps(asc.betti_numbers)
    def counted(*given, **options):
        made.append(options)
        return asc.betti_numbers(*given, **options)

    monkeypatch.setattr(
        measuring, "_function", lambda name: counted if name == "betti_numbers" else function(name)
    )
    measuring._PLANS.clear()
    found = asc.measure(a, {"betti_numbers": betti, "persistence": bars})
    assert torch.equal(found["betti_numbers"], expected)
    assert len(made) == calls


def test_betti_numbers_of_a_spoiled_map_are_its_own_call():
    a = torch.softmax(torch.randn(3, 6, 6), -1)
    a[1, 2, 2] = float("nan")
    with pytest.warns(RuntimeWarning) as warned:
        found = asc.measure(a, {"betti_numbers": {"thresholds": (0.2,)}, "bar_count": {}})
    assert {str(one.message).split(" matrices")[0] for one in warned} == {
        "persistence: 1 of 3",
        "betti_numbers: 1 of 3",
    }
    assert (found["betti_numbers"][1] == -1).all()
    assert (found["betti_numbers"][[0, 2]] >= 0).all()
