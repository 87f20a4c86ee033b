# SPDX-License-Identifier: MIT
"""Plans of measure: which are kept, what a changed option does to them, which bars hold Betti numbers."""

import functools
from collections import Counter

import numpy as np
import pytest
import torch
from test_measure import equal_results, maps

import attnscope as asc
from attnscope.metrics import measure as measuring
from attnscope.metrics import request
from attnscope.metrics.homology.betti import bars_hold


def test_plans_are_kept_of_what_shows_in_words():
    caches = (measuring._plan_in_words, measuring._plan_of_names)
    for cache in caches:
        cache.cache_clear()
    attention = maps(6, 6)

    def count_new_plans(metrics, attention=attention, **options):
        before = [cache.cache_info().currsize for cache in caches]
        asc.measure(attention, metrics, **options)
        return sum(cache.cache_info().currsize for cache in caches) - sum(before)

    assert count_new_plans("fiedler_value") == 1
    assert count_new_plans("fiedler_value") == 0
    assert count_new_plans("fiedler_value", attention=maps(2, 6, 6)) == 0
    assert count_new_plans("fiedler_value", attention=maps(5, 5)) == 1
    assert count_new_plans(["fiedler_value", "top_mass"]) == 1
    assert count_new_plans(("fiedler_value", "top_mass")) == 0  # the same names
    assert count_new_plans({"fiedler_value": {"normalized": True}, "top_mass": {}}) == 1
    assert count_new_plans({"top_mass": {"k": 3}}) == 1
    assert count_new_plans({"top_mass": {"k": 3.0}}) == 1  # equal to 3, and another word
    assert count_new_plans({"betti_numbers": {"thresholds": (0.2, "2/n")}}) == 1
    assert count_new_plans("betti_numbers", thresholds=(0.2, 0.3)) == 1
    assert count_new_plans({"betti_numbers": {"thresholds": [0.2]}}) == 1
    assert count_new_plans({"betti_numbers": {"thresholds": (np.float64(0.2),)}}) == 0  # the same number
    assert count_new_plans(iter(["fiedler_value"])) == 0
    assert count_new_plans(["fiedler_value", np.str_("top_mass")]) == 0
    assert count_new_plans({"top_mass": Counter(k=2)}) == 1
    # What JSON does not hold is looked at again.
    assert count_new_plans({"x": {"metric": "top_mass"}, "y": {"metric": "top_mass", "k": np.int64(2)}}) == 0
    assert count_new_plans({"attention_entropy": {"support": torch.ones(6, 6, dtype=torch.bool)}}) == 0


def test_a_changed_option_is_seen():
    attention, levels = maps(8, 8), [0.2]
    first = asc.measure(attention, {"betti_numbers": {"thresholds": levels}})["betti_numbers"]
    levels[0] = 0.4
    second = asc.measure(attention, {"betti_numbers": {"thresholds": levels}})["betti_numbers"]
    assert torch.equal(first, asc.betti_numbers(attention, [0.2]))
    assert torch.equal(second, asc.betti_numbers(attention, [0.4]))
    assert not torch.equal(first, second)


def test_lists_of_long_arrays_are_options_of_their_own():
    """NumPy prints a thousand numbers and more in part."""
    n = 1001
    masks = [torch.ones(n, n, dtype=torch.bool).tril(), torch.ones(n, n, dtype=torch.bool).tril()]
    masks[1][500:, 200:400] = False
    attention = maps(n, n)
    supports = {name: [row.numpy() for row in mask] for name, mask in zip("ab", masks, strict=True)}
    measured = asc.measure(
        attention,
        {name: {"function": "incoming_attention", "support": rows} for name, rows in supports.items()},
    )
    for name, mask in zip("ab", masks, strict=True):
        torch.testing.assert_close(
            measured[name], asc.incoming_attention(attention, support=mask), rtol=0, atol=0, equal_nan=True
        )


def test_a_bounded_number_of_plans_is_kept(monkeypatch):
    cached_plan = functools.lru_cache(maxsize=3)(measuring._plan_in_words.__wrapped__)
    monkeypatch.setattr(measuring, "_plan_in_words", cached_plan)
    sizes = []
    for n in range(3, 8):
        asc.measure(maps(n, n), "fiedler_value")
        sizes.append(cached_plan.cache_info().currsize)
    assert sizes == [1, 2, 3, 3, 3]


def test_the_number_of_plans_is_bounded():
    assert measuring._plan_in_words.cache_info().maxsize == 1024


BETTI = {"thresholds": (0.2, 0.5), "symmetrize": "max", "precision": "exact", "validate": False}
BARS = {
    "metric": "attention",
    "max_dimension": 1,
    "symmetrize": "max",
    "precision": "exact",
    "validate": False,
}


@pytest.mark.parametrize(
    ("options", "bars", "held"),
    [
        ({}, {}, True),
        ({"thresholds": [0.5]}, {}, True),
        ({"thresholds": 0.5}, {}, True),
        ({"thresholds": 1e-6}, {}, True),
        ({"thresholds": np.nextafter(1e-6, 0).item()}, {}, False),
        ({"thresholds": (0.5, 1e-9)}, {}, False),
        ({"thresholds": np.nextafter(1.0, 0).item()}, {}, True),
        ({"thresholds": 1.0}, {}, False),
        ({"thresholds": 1}, {}, False),
        ({"thresholds": "2/n"}, {}, False),
        ({"thresholds": ()}, {}, False),
        ({"symmetrize": "min"}, {"symmetrize": "min"}, True),
        ({"symmetrize": "mean"}, {"symmetrize": "mean"}, False),
        ({"symmetrize": "min"}, {}, False),
        ({"precision": "fast"}, {}, False),
        ({"precision": "fast"}, {"precision": "fast"}, True),
        ({"validate": True}, {}, False),
        ({}, {"metric": "hellinger"}, False),
        ({}, {"max_dimension": 0}, False),
        ({}, {"max_dimension": 1.0}, False),
    ],
)
def test_which_bars_hold_betti_numbers(options, bars, held):
    assert bars_hold({**BETTI, **options}, {**BARS, **bars}) is held


def test_requests_hold_what_their_metric_takes():
    assert request.requests_of({"x": {"metric": "top_mass", "k": 2}}, {}) == [
        request.Request("x", "top_mass", {"k": 2})
    ]
    assert request.requests_of(iter(["top_mass", "bar_count"]), {"k": 3}) == [
        request.Request("top_mass", "top_mass", {"k": 3}),
        request.Request("bar_count", "bar_count", {}),
    ]
    attention = maps(2, 7, 7)
    result = asc.measure(attention, {"x": {"metric": "bar_count"}})
    assert equal_results(result["x"], asc.bar_count(asc.persistence(attention)))
    with pytest.raises(TypeError, match="measure: metrics must be names, got ndarray"):
        asc.measure(attention, np.array(["top_mass"]))
