# SPDX-License-Identifier: MIT
"""Measures in torch operations against the compiled core, on the CPU and on an accelerator."""

import math

import numpy as np
import pytest
import torch

import attnscope as asc
from on_device import CPU, DEVICES, DTYPES, assert_equal, attention, on_device

pytestmark = pytest.mark.filterwarnings(
    "ignore::attnscope.errors.NonFiniteWarning", "ignore::attnscope.errors.NotAttentionWarning"
)


@pytest.fixture(autouse=True)
def every_size_on_the_device(monkeypatch):
    """Measure small maps on the device too, where the CPU would be faster."""
    from attnscope.devices import placement

    monkeypatch.setattr(placement, "FEWEST_BYTES", 0)
    monkeypatch.setattr(placement, "CUDA_IS_SLOWER", {})


def lengths_of(n: int) -> torch.Tensor:
    return torch.tensor([[max(1, n - 3)], [n]])


SUPPORTS = ("auto", "causal", "full", "mask")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n", [1, 2, 9, 34])
@pytest.mark.parametrize("kind", ["causal", "full", "sink", "two components"])
def test_row_and_key_measures_equal_the_core(device, dtype, n, kind):
    if kind == "two components" and n < 2:
        pytest.skip("one token has no two components")
    maps = attention(kind, n, dtype)
    mask = torch.rand(n, n, generator=torch.Generator().manual_seed(1)) < 0.7
    for lengths in (None, lengths_of(n)):
        for support in SUPPORTS:
            options = {"lengths": lengths, "support": mask if support == "mask" else support}
            assert_equal(asc.attention_entropy, device, maps, **options)
            assert_equal(asc.attention_entropy, device, maps, normalized=True, **options)
            assert_equal(asc.incoming_attention, device, maps, **options)
            assert_equal(asc.sink_share, device, maps, first=2, queries=4, **options)
            assert_equal(asc.top_mass, device, maps, 2, **options)
            assert_equal(asc.sink_test, device, maps, **options)
            assert_equal(asc.sink_tokens, device, maps, rule="frequency", **options)
            assert_equal(asc.sink_tokens, device, maps, rule="frequency", tau=0.1, **options)
            assert_equal(asc.local_global_ratio, device, maps, window=0.2, drop_first=True, **options)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("n", [1, 2, 9, 34])
@pytest.mark.parametrize("kind", ["causal", "full", "sink"])
def test_measures_of_layers_and_states_equal_the_core(device, n, kind):
    maps = attention(kind, n, torch.float32)
    states = torch.randn(2, 1, n, 4, generator=torch.Generator().manual_seed(2))
    marked = torch.arange(n) % 3 == 0
    learned = torch.full((2, 3, n), 0.25, dtype=torch.float64)
    for lengths in (None, lengths_of(n)):
        for support in ("auto", "causal", "full"):
            options = {"lengths": lengths, "support": support}
            assert_equal(asc.head_divergence, device, maps, **options)
            assert_equal(asc.head_divergence, device, maps, sink_mass=learned, **options)
            assert_equal(asc.sink_removal, device, maps, marked, **options)
            assert_equal(
                asc.sink_removal, device, maps, marked, sink_mass=learned, keep_attention=False, **options
            )
            assert_equal(asc.geometric_semantic_alignment, device, maps, states, bound=1e-9, **options)
            assert_equal(asc.reference_influence, device, maps, states, marked, **options)
            for start in {0, max(1, n - 3) - 1}:  # few queries of a causal map see the second
                assert_equal(asc.span_attention, device, maps, (start, start + 1), **options)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("n", [2, 9])
@pytest.mark.parametrize("batch", [(), (2,), (0,)], ids=str)
def test_states_of_grouped_queries_are_those_of_their_heads(device, n, batch):
    """Four heads read the states of two, as in models whose keys are fewer than their queries."""
    generator = torch.Generator().manual_seed(5)
    maps = torch.randn(*batch, 4, n, n, generator=generator).softmax(-1)
    states = torch.randn(*batch, 2, n, 3, generator=generator)
    marked = torch.arange(n) % 2 == 0
    assert_equal(asc.geometric_semantic_alignment, device, maps, states, bound=1e-9)
    assert_equal(asc.reference_influence, device, maps, states, marked)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n", [2, 9, 34])
@pytest.mark.parametrize("kind", ["causal", "full", "sink"])
def test_answers_and_patterns_equal_the_core(device, dtype, n, kind):
    maps = attention(kind, n, dtype)
    generator = torch.Generator().manual_seed(4)
    mask = torch.rand(n, n, generator=generator) < 0.7
    tokens = torch.randint(0, 4, (2, 1, n), generator=generator)
    marked = torch.rand(2, 1, 1, n, generator=generator) < 0.3
    patterns = ["first", "self", "previous", "next", "duplicate", "induction"]
    stop = max(2, n - 3)
    answers_of_layers = torch.tensor([[[1, stop]], [[-1, -1]]])
    for lengths in (None, torch.tensor([[stop], [n]])):
        for support in SUPPORTS:
            options = {"lengths": lengths, "support": mask if support == "mask" else support}
            for answer in ((1, 2), (n // 2, stop) if n > 4 else (0, 2), answers_of_layers):
                assert_equal(asc.lookback, device, maps, answer, rows="own", **options)
                assert_equal(asc.prompt_divergence, device, maps, answer, **options)
            assert_equal(asc.lookback, device, maps, (1, stop), context=1, **options)
            for over in ("matching", "all"):
                assert_equal(asc.pattern_share, device, maps, patterns, tokens=tokens, over=over, **options)
                assert_equal(asc.pattern_share, device, maps, marked, over=over, **options)
            assert_equal(asc.causal_spectrum, device, maps, **options)


@pytest.mark.parametrize("device", DEVICES)
def test_a_weight_that_rounding_lifts_above_1_is_1_in_the_tree_of_an_answer(device):
    rows = torch.eye(6, dtype=torch.float64).roll(1, -1).tril()
    rows[3:, 0] = 1.005
    assert_equal(asc.prompt_divergence, device, rows, (3, 6))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("n", [1, 2, 9, 34])
@pytest.mark.parametrize("kind", ["causal", "full", "sink"])
def test_shapes_of_laplacians_equal_the_core(device, n, kind):
    for lengths in (None, lengths_of(n)):
        for normalized in (False, True):
            options = {"lengths": lengths, "normalized": normalized}
            assert_equal(
                asc.laplacian_shape, device, attention(kind, n, torch.float64), bound=1e-9, **options
            )


@pytest.mark.parametrize("device", DEVICES)
def test_chains_degrees_below_0_and_entries_at_the_threshold_equal_the_core(device):
    n = 34
    # one component, whose first two nodes are its ends, n − 1 steps apart
    nodes = torch.tensor([0, *range(2, n), 1])
    chain = torch.zeros(n, n, dtype=torch.float64)
    chain[nodes[:-1], nodes[1:]] = 0.5
    opposed = chain.clone()
    opposed[0, 2] = -0.5  # one node of a degree below 0, which has no root
    maps = torch.stack([chain, opposed])
    for normalized in (False, True):
        for threshold in (None, 0.5):
            options = {"normalized": normalized, "threshold": threshold}
            assert_equal(asc.laplacian_eigenvalues, device, maps, **options)
            assert_equal(asc.fiedler_value, device, maps, bound=1e-9, **options)


@pytest.mark.parametrize("device", DEVICES)
def test_the_last_rows_are_measured_by_the_core(device):
    rows = attention("causal", 9, torch.float32)[..., 4:, :]
    assert_equal(asc.lookback, device, rows, (6, 9))
    assert_equal(asc.prompt_divergence, device, rows, (6, 9))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("n", [1, 2, 3, 9, 34, 130])
@pytest.mark.parametrize("kind", ["causal", "full", "sink", "two components"])
def test_spectra_equal_the_core(device, n, kind):
    if kind == "two components" and n < 2:
        pytest.skip("one token has no two components")
    maps = attention(kind, n, torch.float32)
    for lengths in (None, lengths_of(n)):
        for threshold in (None, 0.1):
            for normalized in (False, True):
                options = {"threshold": threshold, "normalized": normalized, "lengths": lengths}
                assert_equal(asc.fiedler_value, device, maps, bound=1e-9, **options)
                assert_equal(asc.laplacian_eigenvalues, device, maps, **options)
        assert_equal(asc.participation_ratio, device, maps, lengths=lengths)
        assert_equal(asc.participation_ratio, device, maps, spectrum="laplacian", lengths=lengths)
        assert_equal(asc.singular_values, device, maps, lengths=lengths)


@pytest.mark.parametrize("device", DEVICES)
def test_graphs_with_known_spectra(device):
    """A star has 1, a path 2 − 2cos(π/n), a ring 2 − 2cos(2π/n), a complete graph n, two parts 0."""
    n = 24
    path = torch.zeros(n, n, dtype=torch.float64)
    path[range(n - 1), range(1, n)] = 1
    ring = path.clone()
    ring[n - 1, 0] = 1
    star = torch.zeros(n, n, dtype=torch.float64)
    star[1:, 0] = 1
    complete = 1 - torch.eye(n, dtype=torch.float64)
    parts = complete.clone()
    parts[: n // 2, n // 2 :] = 0
    parts[n // 2 :, : n // 2] = 0
    graphs = torch.stack([star, path, ring, complete, parts])
    expected = [1, 2 - 2 * math.cos(math.pi / n), 2 - 2 * math.cos(2 * math.pi / n), n, 0]
    for scale in (1.0, 2.0**-200, 2.0**200):
        values = on_device(asc.fiedler_value, device, graphs * scale, symmetrize="max")
        np.testing.assert_allclose(values / scale, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("device", DEVICES)
def test_strides_and_heads_in_front_are_read_where_they_lie(device):
    maps = attention("causal", 20, torch.float32)
    packed = maps.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3)
    transposed = maps.mT.contiguous().mT
    shared = maps[:, :1].expand(2, 3, 20, 20)
    for view in (packed, transposed, shared):
        assert_equal(asc.attention_entropy, device, view)
        assert_equal(asc.incoming_attention, device, view)
        assert_equal(asc.fiedler_value, device, view, bound=1e-9)


@pytest.mark.parametrize("device", DEVICES)
def test_measure_gives_the_results_of_the_functions(device):
    maps = attention("causal", 16, torch.float32)
    names = ["fiedler_value", "incoming_attention", "total_persistence", "stable_rank", "sink_share"]
    assert_equal(lambda tensor: tuple(asc.measure(tensor, names).values())[:4], device, maps)


def test_slabs_give_the_results_of_the_whole_batch(monkeypatch):
    """Temporaries that fit one map at a time change no bit."""
    from attnscope.devices import slabs

    maps = attention("causal", 16, torch.float32)
    calls = (asc.attention_entropy, asc.sink_test, asc.head_divergence, asc.fiedler_value)
    together = [on_device(call, CPU, maps) for call in calls]
    monkeypatch.setattr(slabs, "DEFAULT_BYTES", 1)
    for call, expected in zip(calls, together, strict=True):
        on_cpu = on_device(call, CPU, maps)
        pairs = (
            [(on_cpu, expected)] if isinstance(on_cpu, torch.Tensor) else zip(on_cpu, expected, strict=True)
        )
        for have, want in pairs:
            assert torch.equal(have.nan_to_num(-7), want.nan_to_num(-7))


def test_a_device_without_memory_gets_smaller_slabs_and_then_a_clear_error(monkeypatch):
    from attnscope.devices import slabs

    maps = attention("causal", 8, torch.float32)
    sizes = []
    original = slabs.Slab.attention.func

    def scarce(slab, most):
        sizes.append(len(slab.maps))
        if len(slab.maps) > most:
            raise torch.OutOfMemoryError("no memory left")
        return original(slab)

    expected = on_device(asc.attention_entropy, CPU, maps)
    monkeypatch.setattr(slabs.Slab, "attention", property(lambda slab: scarce(slab, 2)))
    assert torch.equal(on_device(asc.attention_entropy, CPU, maps).nan_to_num(-7), expected.nan_to_num(-7))
    assert max(sizes) > 2
    monkeypatch.setattr(slabs.Slab, "attention", property(lambda slab: scarce(slab, 0)))
    with pytest.raises(MemoryError, match=r"cpu has no memory for 1 map\(s\) of 8 tokens"):
        on_device(asc.attention_entropy, CPU, maps)


def test_an_unknown_implementation_is_refused_by_name():
    with pytest.raises(ValueError, match=r"use: implementation must be 'core' or 'torch', got 'gpu'"):
        asc.devices.use("gpu").__enter__()


def test_every_counterpart_has_the_parameters_of_the_core():
    """Names of parameters in the stub of the core and in its counterpart are the same, in the same order.

    But for the precision: outside the core few have a fast way.
    """
    import ast
    import importlib
    import inspect
    from pathlib import Path

    from attnscope.devices.placement import MODULES

    stub = ast.parse(Path(asc.__file__).with_name("_core.pyi").read_text(encoding="utf-8"))
    core = {
        node.name: [a.arg for a in node.args.args if a.arg != "precision"]
        for node in stub.body
        if isinstance(node, ast.FunctionDef)
    }
    for name, module in MODULES.items():
        function = getattr(importlib.import_module(f"attnscope.devices.{module}"), name)
        parameters = [word for word in inspect.signature(function).parameters if word != "precision"]
        assert parameters == core[name], name


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
def test_a_copy_to_the_cpu_does_not_wait_for_other_streams():
    other = torch.cuda.Stream()
    maps = attention("causal", 32, torch.float32).cuda()
    with torch.cuda.stream(other):
        torch.cuda._sleep(2_000_000_000)
        event = torch.cuda.Event()
        event.record(other)
    asc.persistence(maps)
    assert not event.query()
    other.synchronize()
