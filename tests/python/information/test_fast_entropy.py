# SPDX-License-Identifier: MIT
"""Row entropies in float32 (`precision="fast"`) against NumPy in float64, on what float32 finds hard."""

import numpy as np
import pytest
import torch
from scipy.special import entr

import attnscope as asc

HALVES = (torch.float16, torch.bfloat16)


def relative_errors(maps: torch.Tensor, fast: torch.Tensor) -> np.ndarray:
    wide = maps.double().numpy()
    expected = entr(wide).sum(-1)
    scale = np.abs(entr(wide)).sum(-1)
    assert np.array_equal(fast.numpy()[scale == 0], expected[scale == 0])
    return np.abs(fast.numpy() - expected)[scale > 0] / scale[scale > 0]


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
@pytest.mark.parametrize("sharpness", [0.3, 1.0, 3.0, 12.0])
def test_softmax_rows_of_every_length_and_support(dtype: torch.dtype, sharpness: float) -> None:
    generator = torch.Generator().manual_seed(int(10 * sharpness))
    for n in [*range(1, 36), 63, 64, 65, 127, 300]:
        scores = sharpness * torch.randn(2, n, n, generator=generator)
        hidden = torch.ones(n, n, dtype=torch.bool).triu(1)
        for maps in (scores.softmax(-1), scores.masked_fill(hidden, -torch.inf).softmax(-1)):
            attention = maps.to(dtype)
            errors = relative_errors(attention, asc.attention_entropy(attention, precision="fast"))
            assert errors.size == 0 or errors.max() < 2e-6, n


def test_uniform_rows_have_the_logarithm_of_their_length() -> None:
    n = 257
    uniform = torch.ones(n, n).tril() / torch.arange(1, n + 1)[:, None]
    fast = asc.attention_entropy(uniform, precision="fast")
    np.testing.assert_allclose(fast.numpy(), np.log(np.arange(1, n + 1)), rtol=3e-7, atol=1e-7)
    assert fast[0] == 0


def test_what_float32_holds_badly() -> None:
    tiny = torch.finfo(torch.float32).smallest_normal
    rows = torch.zeros(6, 40)
    rows[0, 0] = 1.0  # one key: exactly 0
    rows[1, :2] = torch.tensor([1 - 2.0**-24, 2.0**-24])  # the logarithm of a number next to 1
    rows[2, 3:9] = tiny / 8  # subnormal numbers alone
    rows[3, 0], rows[3, 1:] = 1.0, tiny / 64  # and beside a 1
    rows[4, 5] = -0.0  # a sign, but no negative entry
    rows[5, :4] = 0.25  # exact ties
    fast = asc.attention_entropy(rows, cross=True, precision="fast")
    exact = asc.attention_entropy(rows, cross=True)
    np.testing.assert_allclose(fast.numpy(), exact.numpy(), rtol=1e-6, atol=0)
    np.testing.assert_allclose(fast.numpy(), entr(rows.double().numpy()).sum(-1), rtol=1e-6, atol=0)
    assert fast[[0, 4]].eq(0).all()


@pytest.mark.parametrize("place", [(1, 0), (4, 4), (0, 5)])
@pytest.mark.parametrize("entry", [torch.nan, torch.inf, -torch.inf])
def test_a_map_that_is_not_finite_spoils_no_neighbour(place: tuple[int, int], entry: float) -> None:
    maps = torch.rand(3, 6, 6, generator=torch.Generator().manual_seed(0)).softmax(-1)
    separate = asc.attention_entropy(maps, precision="fast")
    maps[1][place] = entry
    for options in ({}, {"support": "full"}, {"support": "causal"}):
        with pytest.warns(asc.errors.NonFiniteWarning, match="1 of 3"):
            spoilt = asc.attention_entropy(maps, precision="fast", **options)
        assert spoilt[1].isnan().all()
        if options.get("support") != "causal":
            torch.testing.assert_close(spoilt[[0, 2]], separate[[0, 2]], rtol=0, atol=0)


def test_a_negative_entry_makes_its_row_nan() -> None:
    maps = torch.full((3, 40), 1 / 40)
    maps[1, 17] = -1e-3
    fast = asc.attention_entropy(maps, cross=True, precision="fast")
    assert fast.isnan().tolist() == [False, True, False]


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
def test_strides_masks_and_lengths_change_no_bit(dtype: torch.dtype) -> None:
    maps = torch.randn(4, 37, 37, generator=torch.Generator().manual_seed(1)).softmax(-1).to(dtype)
    plain = asc.attention_entropy(maps, precision="fast")
    for strided in (maps.mT.contiguous().mT, maps.permute(1, 2, 0).contiguous().permute(2, 0, 1)):
        torch.testing.assert_close(asc.attention_entropy(strided, precision="fast"), plain, rtol=0, atol=0)
    mask = torch.ones(37, 37, dtype=torch.bool)
    masked = asc.attention_entropy(maps, support=mask, precision="fast")
    torch.testing.assert_close(masked, plain, rtol=0, atol=0)
    cut = asc.attention_entropy(maps, lengths=20, precision="fast")
    separate = asc.attention_entropy(maps[:, :20, :20].contiguous(), precision="fast")
    torch.testing.assert_close(cut[:, :20], separate, rtol=1e-6, atol=0)
    assert cut[:, 20:].isnan().all()


def test_float64_maps_are_exact_and_the_fused_read_agrees() -> None:
    maps = torch.randn(2, 3, 50, 50, generator=torch.Generator().manual_seed(2)).softmax(-1)
    wide = maps.double()
    torch.testing.assert_close(
        asc.attention_entropy(wide, precision="fast"), asc.attention_entropy(wide), rtol=0, atol=0
    )
    names = ["attention_entropy", "incoming_attention", "top_mass"]
    fused = asc.measure(maps, names, precision="fast")
    for name in names:
        separate = getattr(asc, name)(maps, precision="fast")
        torch.testing.assert_close(fused[name], separate, rtol=0, atol=0)
    assert not torch.equal(fused["attention_entropy"], asc.attention_entropy(maps))


def test_a_divergence_takes_no_fast_entropy() -> None:
    maps = torch.randn(2, 8, 40, 40, generator=torch.Generator().manual_seed(3)).mul(0.01).softmax(-1)
    fast = asc.measure(maps, ["attention_entropy", "head_divergence"], precision="fast")
    torch.testing.assert_close(fast["head_divergence"], asc.head_divergence(maps), rtol=1e-12, atol=0)
    entropy = asc.attention_entropy(maps, precision="fast")
    torch.testing.assert_close(fast["attention_entropy"], entropy, rtol=0, atol=0)
