# SPDX-License-Identifier: MIT
"""`precision` of every function of maps, of `measure`, and the record of maps that fell back to exact."""

import inspect
import re
import warnings
from collections import Counter

import pytest
import torch

import attnscope as asc
from attnscope import _precision
from attnscope.metrics.discovery import registry
from attnscope.metrics.request import metric_names
from attnscope.metrics.signatures import options_of

#: Public functions that take a precision.
TAKES = sorted(
    name
    for name in dir(asc)
    if inspect.isfunction(function := getattr(asc, name))
    and "precision" in inspect.signature(function).parameters
)


def uniform_maps() -> torch.Tensor:
    maps = torch.ones(2, 3, 6, 6, dtype=torch.float64).tril()
    return maps / maps.sum(-1, keepdim=True)


def test_every_function_says_what_fast_holds() -> None:
    assert len(TAKES) > 25
    for name in TAKES:
        parameter = inspect.signature(getattr(asc, name)).parameters["precision"]
        assert parameter.default in ("exact", None), name
        assert re.search(r"^ {8}precision: .*fast", getattr(asc, name).__doc__, re.M | re.S), name


@pytest.mark.parametrize("name", [name for name in TAKES if name in metric_names()])
def test_an_unknown_precision_is_refused_by_name(name: str) -> None:
    function = registry().functions["exact", name]
    needed = {
        key: None for key, default in options_of(function).items() if default is inspect.Parameter.empty
    }
    with pytest.raises(ValueError, match=rf"^{name}: precision must be one of 'exact', 'fast', got 'quick'"):
        function(uniform_maps(), **needed, precision="quick")


def test_measure_takes_the_precision_of_all_metrics() -> None:
    maps = uniform_maps()
    exact = asc.measure(maps, ["attention_entropy", "top_mass", "stable_rank"])
    fast = asc.measure(maps, ["attention_entropy", "top_mass", "stable_rank"], precision="fast")
    for name, value in exact.items():
        torch.testing.assert_close(fast[name], value, rtol=1e-5, atol=0)
    with pytest.raises(ValueError, match=r"^measure: precision must be one of 'exact', 'fast', got 'quick'"):
        asc.measure(maps, ["top_mass"], precision="quick")  # type: ignore[arg-type]


def test_a_metric_without_a_precision_is_read_off_exact_results() -> None:
    # near uniform attention entropies differ by little more than what float32 logarithms are off
    generator = torch.Generator().manual_seed(0)
    maps = (1e-3 * torch.randn(3, 64, 64, generator=generator)).softmax(-1)
    options = {"before": torch.zeros(64, 4), "after": torch.randn(64, 4, generator=generator)}
    expected = asc.entropy_magnitude_correlation(maps, **options)
    metrics = {"attention_entropy": {}, "entropy_magnitude_correlation": options}
    measured = asc.measure(maps, metrics, precision="fast")
    assert torch.equal(measured["entropy_magnitude_correlation"], expected)
    fast = asc.attention_entropy(maps, precision="fast")
    assert torch.equal(measured["attention_entropy"], fast)
    assert not torch.equal(fast, asc.attention_entropy(maps))


def test_lazy_attention_keeps_the_precision_that_it_was_made_with() -> None:
    query, key = torch.randn(2, 2, 8, 4, generator=torch.Generator().manual_seed(0)).unbind()
    fast = asc.LazyAttention(query, key, precision="fast")
    exact = asc.LazyAttention(query, key, precision="exact")
    for lazy, precision in ((fast, "fast"), (exact, "exact")):
        asc.measure(lazy, ["attention_entropy"], precision=precision)  # type: ignore[arg-type]
        asc.measure(lazy, ["attention_entropy"])
        asc.attention_entropy(lazy, precision=precision)  # type: ignore[arg-type]
    words = "^measure: precision='{}' contradicts LazyAttention.*precision='{}'"
    with pytest.raises(ValueError, match=words.format("fast", "exact")):
        asc.measure(exact, ["attention_entropy"], precision="fast")
    with pytest.raises(ValueError, match=words.format("exact", "fast")):
        asc.measure(fast, ["attention_entropy"], precision="exact")
    with pytest.raises(ValueError, match=r"^sink_share: precision='fast' contradicts"):
        asc.sink_share(exact, precision="fast")


def test_fallbacks_count_in_every_block_around_them() -> None:
    outer: Counter[str] = Counter()
    inner: Counter[str] = Counter()
    _precision.note_fallbacks("fiedler_value", 7)  # nobody counts
    with _precision.count_fallbacks(outer):
        _precision.note_fallbacks("fiedler_value", 2)
        with _precision.count_fallbacks(inner):
            _precision.note_fallbacks("fiedler_value", 1)
            _precision.note_fallbacks("singular_values", 0)
    assert outer == {"fiedler_value": 3}
    assert inner == {"fiedler_value": 1}
    assert _precision.provenance_of("fast", outer) == {"asked": "fast", "fell_back": {"fiedler_value": 3}}


def test_a_fast_kernel_gets_the_keyword_and_its_count_is_noted() -> None:
    def kernel(maps: object, precision: str = "exact") -> tuple[object, ...]:
        return ("value", 0, 4) if precision == "fast" else ("exact value", 0)

    counts: Counter[str] = Counter()
    with _precision.count_fallbacks(counts):
        assert _precision.fast_kernel(kernel, "public_name")(None) == ("value", 0)
    assert counts == {"public_name": 4}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("n", [16, 40, 100])
def test_positions_and_rates_of_fast_are_those_of_exact_sums(n: int, dtype: torch.dtype) -> None:
    # keys whose sums differ by less than float32 adds up, a tie, and a rate at the very limit
    maps = torch.full((3, n, n), 1 / n, dtype=torch.float64)
    maps[0, n // 2, 3] += 2**-40
    maps[1, n // 3, 5] *= 1 + 2**-20
    maps = maps.to(dtype)
    epsilon = asc.incoming_attention(maps)[2, 0].item()
    counts: Counter[str] = Counter()
    with _precision.count_fallbacks(counts):
        fast = asc.sink_position(maps, rule="largest", min_visibility=0, precision="fast")
        rates = asc.sink_rate(maps, epsilon=epsilon, precision="fast")
    assert torch.equal(fast, asc.sink_position(maps, rule="largest", min_visibility=0))
    assert torch.equal(rates, asc.sink_rate(maps, epsilon=epsilon))
    assert counts["sink_position"] == 3
    assert counts["sink_rate"] >= 2


def test_a_map_with_nan_leaves_the_rates_of_its_neighbours_alone() -> None:
    maps = torch.full((3, 20, 20), 1 / 20)
    maps[1, 4, 4] = torch.nan
    epsilon = asc.incoming_attention(maps[:1])[0, 0].item() * (1 - 1e-9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert asc.sink_rate(maps, epsilon=epsilon, precision="fast").tolist() == [True, False, True]


def test_a_map_that_is_not_finite_does_not_count_its_neighbours_twice() -> None:
    maps = torch.full((3, 20, 20), 1 / 20)
    epsilon = asc.incoming_attention(maps[:1])[0, 0].item() * (1 - 1e-9)
    counts: Counter[str] = Counter()
    metrics = {"sink_rate": {"epsilon": epsilon}, "top_mass": {}}
    with warnings.catch_warnings(), _precision.count_fallbacks(counts):
        warnings.simplefilter("ignore")
        assert asc.measure(maps, metrics, precision="fast")["sink_rate"].all()
        assert counts == {"measure": 3}
        maps[1, 4, 4] = torch.nan
        rates = asc.measure(maps, metrics, precision="fast")["sink_rate"]
    assert rates.tolist() == [True, False, True]
    assert counts == {"measure": 5}
