# SPDX-License-Identifier: MIT
"""head_divergence in float32 (`precision="fast"`) against SciPy in float64, on what float32 finds hard."""

from collections import Counter

import numpy as np
import pytest
import torch
from scipy.special import rel_entr

import attnscope as asc
from attnscope import _precision

FLOAT_TYPES = (torch.float32, torch.float16, torch.bfloat16)


def softmax_maps(*shape: int, sharpness: float = 2.0, causal: bool = True, seed: int = 0) -> torch.Tensor:
    scores = sharpness * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    if causal:
        scores = scores.masked_fill(torch.ones(shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    return scores.softmax(-1)


def divergence_oracle(heads: torch.Tensor) -> np.ndarray:
    wide = heads.double().numpy()
    return rel_entr(wide, wide.mean(-3, keepdims=True)).sum(-1).mean(-1)


def divergence_and_fallbacks(heads: torch.Tensor, **options: object) -> tuple[torch.Tensor, int]:
    counts: Counter[str] = Counter()
    with _precision.count_fallbacks(counts):
        divergence = asc.head_divergence(heads, precision="fast", **options)  # type: ignore[arg-type]
    return divergence, counts["head_divergence"]


@pytest.mark.parametrize("dtype", FLOAT_TYPES)
@pytest.mark.parametrize("sharpness", [0.1, 0.3, 1.0, 3.0, 12.0])
def test_maps_of_every_length_and_number_of_heads(dtype: torch.dtype, sharpness: float) -> None:
    lengths = [*range(1, 36), 63, 64, 65, 130, 300]
    for at, n in enumerate(lengths):
        heads = softmax_maps(1, 1 + at % 9, n, n, sharpness=sharpness, causal=at % 3 > 0, seed=at).to(dtype)
        divergence, _ = divergence_and_fallbacks(heads)
        np.testing.assert_allclose(divergence, divergence_oracle(heads), rtol=1e-5, atol=1e-15)


def test_heads_that_differ_are_in_float32_and_heads_that_are_alike_are_exact() -> None:
    apart = softmax_maps(2, 8, 64, 64)
    divergence, fallbacks = divergence_and_fallbacks(apart)
    assert fallbacks == 0
    assert not torch.equal(divergence, asc.head_divergence(apart))
    alike = softmax_maps(2, 8, 64, 64, sharpness=0.01)
    divergence, fallbacks = divergence_and_fallbacks(alike)
    assert fallbacks == 16
    torch.testing.assert_close(divergence, asc.head_divergence(alike), rtol=1e-13, atol=0)


def test_only_the_layer_that_float32_does_not_hold_falls_back() -> None:
    layers = torch.stack([softmax_maps(8, 48, 48), softmax_maps(8, 48, 48, sharpness=0.02)])
    divergence, fallbacks = divergence_and_fallbacks(layers)
    assert fallbacks == 8
    assert torch.equal(divergence[0], divergence_and_fallbacks(layers[:1])[0][0])


def test_a_bound_is_of_the_sum_of_small_and_large_terms() -> None:
    # a head that gives nearly all to the key that all heads look at, and a little to keys of its own
    heads = torch.zeros(1, 4, 64, 64)
    heads[..., 0] = 1 - 2.0**-12
    for head in range(4):
        heads[0, head, :, 1 + head] = 2.0**-12
    divergence, _ = divergence_and_fallbacks(heads)
    np.testing.assert_allclose(divergence, divergence_oracle(heads), rtol=1e-5, atol=0)


def test_what_float32_holds_badly() -> None:
    tiny = torch.finfo(torch.float32).smallest_normal
    heads = torch.zeros(5, 3, 20, 20)
    heads[0, 0, :, 3] = tiny / 8  # a subnormal entry that one head has alone
    heads[0, 1:, :, 4] = 1.0
    heads[1, 0, :, 3], heads[1, 0, :, 5] = 2.0**-100, tiny / 64  # a quotient below the normal numbers
    heads[1, 1:, :, 5] = 1.0
    heads[2, 0, :, 0] = -0.0  # a sign, but no negative entry
    heads[2, :, :, 1] = 0.5
    heads[3, :, :, 2] = 1e38  # a sum beyond float32
    heads[4, 0, :, 7] = 3e30
    heads[4, 1, :, 7] = 1e-9
    divergence, _ = divergence_and_fallbacks(heads)
    np.testing.assert_allclose(divergence, divergence_oracle(heads), rtol=1e-5, atol=1e-15)
    assert divergence[2].eq(0).all()


def test_a_negative_entry_makes_its_head_nan() -> None:
    heads = softmax_maps(1, 4, 40, 40)
    heads[0, 2, 30, 7] = -1e-3
    expected = asc.head_divergence(heads).isnan()
    assert expected[0, 2]
    assert torch.equal(divergence_and_fallbacks(heads)[0].isnan(), expected)


@pytest.mark.parametrize("dtype", FLOAT_TYPES)
def test_strides_masks_and_threads_change_no_bit(dtype: torch.dtype) -> None:
    heads = softmax_maps(2, 6, 150, 150, causal=False).to(dtype)
    plain = asc.head_divergence(heads, precision="fast")
    for strided in (heads.mT.contiguous().mT, heads.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)):
        assert torch.equal(asc.head_divergence(strided, precision="fast"), plain)
    all_keys = torch.ones(150, 150, dtype=torch.bool)
    assert torch.equal(asc.head_divergence(heads, support=all_keys, precision="fast"), plain)
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            assert torch.equal(asc.head_divergence(heads, precision="fast"), plain)
    finally:
        torch.set_num_threads(threads)


def test_supports_and_lengths() -> None:
    heads = softmax_maps(3, 5, 40, 40, causal=False)
    window = torch.ones(40, 40, dtype=torch.bool).tril().triu(-7)
    for support in ("causal", window):
        fast = asc.head_divergence(heads, support=support, precision="fast")
        torch.testing.assert_close(fast, asc.head_divergence(heads, support=support), rtol=1e-5, atol=0)
    lengths = [1, 17, 33]
    fast = asc.head_divergence(heads, lengths=lengths, precision="fast")
    torch.testing.assert_close(
        fast, asc.head_divergence(heads, lengths=lengths), rtol=1e-5, atol=0, equal_nan=True
    )


def test_float64_maps_and_learned_sinks_are_exact() -> None:
    heads = softmax_maps(2, 4, 32, 32)
    assert torch.equal(
        asc.head_divergence(heads.double(), precision="fast"), asc.head_divergence(heads.double())
    )
    entropy_beside = asc.measure(heads.double(), ["attention_entropy", "head_divergence"], precision="fast")
    assert torch.equal(entropy_beside["head_divergence"], asc.head_divergence(heads.double()))
    mass = torch.full((2, 4, 32), 0.25)
    options = {"sink_mass": mass}
    assert torch.equal(
        asc.head_divergence(heads * 0.75, precision="fast", **options),
        asc.head_divergence(heads * 0.75, **options),
    )


def test_a_layer_that_is_not_finite_spoils_no_neighbour() -> None:
    heads = softmax_maps(3, 4, 40, 40)
    separate = asc.head_divergence(heads, precision="fast")
    heads[1, 2, 5, 3] = torch.nan
    with pytest.warns(asc.errors.NonFiniteWarning, match="1 of 3 layers"):
        spoilt = asc.head_divergence(heads, precision="fast")
    assert spoilt[1].isnan().all()
    assert torch.equal(spoilt[[0, 2]], separate[[0, 2]])


def test_a_divergence_with_a_learned_sink_is_exact_beside_a_fast_entropy():
    logits = torch.randn(2, 4, 64, 64, generator=torch.Generator().manual_seed(0))
    heads = torch.softmax(0.02 * logits, -1) * 0.9
    learned = {"metric": "head_divergence", "sink_mass": torch.full((2, 4, 64), 0.1)}
    metrics = {"attention_entropy": {}, "divergence": learned}
    exact = asc.measure(heads, metrics)["divergence"]
    assert torch.equal(asc.measure(heads, metrics, precision="fast")["divergence"], exact)
