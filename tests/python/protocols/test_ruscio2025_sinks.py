# SPDX-License-Identifier: MIT
"""Protocol ruscio2025, sinks and information: against the notebooks' steps written out in NumPy and SciPy."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from attnscope.protocols import ruscio2025


def maps(*shape, causal=True, seed=0, sharpness=2.0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    logits = sharpness * torch.randn(*shape, generator=generator, dtype=torch.float64)
    if causal:
        logits = logits.masked_fill(~torch.ones(shape[-2:], dtype=torch.bool).tril(), -torch.inf)
    return torch.softmax(logits, -1).to(dtype)


def uniform_causal(n):
    uniform = torch.ones(n, n, dtype=torch.float64).tril()
    return uniform / uniform.sum(-1, keepdim=True)


@pytest.mark.parametrize(("n", "bits"), [(10, 2.179), (20, 3.054), (30, 3.590), (40, 3.979), (50, 4.284)])
def test_entropy_in_bits_of_uniform_attention(n, bits):
    result = ruscio2025.attention_entropy(uniform_causal(n), base=2).mean().item()
    assert result == pytest.approx(bits, abs=5e-4)
    assert result == pytest.approx(math.lgamma(n + 1) / math.log(2) / n, abs=1e-6)


def test_entropy_in_nats_drops_and_renormalises():
    row = torch.tensor([0.6, 0.4 - 1e-5, 1e-5, 0.0], dtype=torch.float64)
    result = ruscio2025.attention_entropy(row.expand(4, 4))[0].item()
    assert result == pytest.approx(stats.entropy([0.6, 0.4 - 1e-5]), rel=1e-12)
    row_copy = row.clone()
    row_copy[2] = 1.2e-5
    result = ruscio2025.attention_entropy(row_copy.expand(4, 4))[0].item()
    assert result == pytest.approx(stats.entropy(row_copy[:3].numpy()), rel=1e-12)
    assert ruscio2025.attention_entropy(torch.zeros(2, 2)).tolist() == [0, 0]


@pytest.mark.parametrize("percentile", [80, 90, 95])
def test_kl_rule_is_the_percentile_of_incoming_mass(percentile):
    heads = maps(3, 4, 25, 25)
    result = ruscio2025.sink_tokens(heads.mean(1), rule="kl", percentile=percentile)
    total = heads.sum((1, 2)).numpy()
    for layer in range(3):
        expected = total[layer] >= np.percentile(total[layer], percentile) - 1e-12
        assert result[layer].tolist() == expected.tolist()
    columns = heads.sum(-2).numpy()
    expected = columns >= np.percentile(columns, 90, axis=-1, keepdims=True)
    assert ruscio2025.sink_tokens(heads, rule="rmt").tolist() == expected.tolist()


def test_reference_rule_step_by_step():
    # Strong keys, never more than 30 % of them.
    attention = torch.zeros(10, 10, dtype=torch.float64)
    attention[:, [9, 2, 5, 7]] = torch.tensor([0.3, 0.25, 0.24, 0.21], dtype=torch.float64)
    result = ruscio2025.sink_tokens(attention, rule="reference")
    assert result.nonzero().flatten().tolist() == [2, 5, 9]
    attention[:, [5, 7]] = 0.05
    assert ruscio2025.sink_tokens(attention, rule="reference").nonzero().flatten().tolist() == [2, 9]
    # Nothing above 0.1: the top tenth, the first keys on ties.
    flat = torch.full((25, 25), 1 / 25, dtype=torch.float64)
    assert ruscio2025.sink_tokens(flat, rule="reference").nonzero().flatten().tolist() == [0, 1]
    assert ruscio2025.sink_tokens(torch.ones(1, 1), rule="reference").tolist() == [True]


def test_topology_rule_marks_one_key_a_head():
    heads = maps(2, 3, 12, 12)
    result = ruscio2025.sink_tokens(heads, rule="topology")
    assert (result.sum(-1) == 1).all()
    assert torch.equal(result.int().argmax(-1), heads.mean(-2).argmax(-1))


def divergence_oracle(maps, rows):
    mean = maps.mean(0)
    return np.array([np.mean([stats.entropy(head[i], mean[i]) for i in rows]) for head in maps])


def removal_oracle(heads, percentile, speed=False):
    """KL before, KL after, sinks and concentration: sinks of the maps as they are, KL of normalised rows."""
    raw = heads.double().numpy()
    n = raw.shape[-1]
    total = raw.sum((0, 1))
    sinks = total >= np.percentile(total, percentile)
    used_heads = raw[:4] if speed else raw
    shares = [head[:, sinks].sum() / head.sum() if head.sum() > 0 else 0.0 for head in used_heads]

    rows = np.linspace(0, n - 1, 20).astype(int) if speed and n > 20 else range(n)
    a, removed = raw.copy(), raw.copy()
    for h, i in np.ndindex(raw.shape[:2]):
        a[h, i] = a[h, i] / a[h, i].sum() if a[h, i].sum() > 0 else np.full(n, 1 / n)
        removed[h, i] = np.where(sinks, 0, a[h, i])
        if removed[h, i].sum() > 0:
            removed[h, i] /= removed[h, i].sum()
        else:
            removed[h, i, ~sinks] = 1 / max(1, (~sinks).sum())
    return divergence_oracle(a, rows), divergence_oracle(removed, rows), sinks, np.mean(shares)


@pytest.mark.parametrize("percentile", [80, 90, 95])
@pytest.mark.parametrize("n", [3, 12, 40])
def test_sink_removal_equals_its_steps(n, percentile):
    # rows that do not sum to one, and two without mass: as they are for the sinks, normalised for the KL
    heads = maps(5, n, n) * torch.linspace(0.1, 3, 5 * n, dtype=torch.float64).reshape(5, n, 1)
    heads[1, n // 2] = heads[3, 0] = 0
    before, after, sinks, concentration = removal_oracle(heads, percentile)
    result = ruscio2025.sink_removal(heads, percentile=percentile)
    assert result.sinks.tolist() == sinks.tolist()
    assert result.kl_reduction.item() == pytest.approx((before - after).mean(), rel=1e-10, abs=1e-13)
    assert result.sink_concentration.item() == pytest.approx(concentration, rel=1e-12)
    assert result.p_value.item() == pytest.approx(stats.ttest_rel(before, after).pvalue, rel=1e-8)
    np.testing.assert_allclose(ruscio2025.head_divergence(heads), before, rtol=1e-10, atol=1e-14)


def test_speed_mode_looks_at_twenty_rows_and_four_heads():
    heads = maps(6, 50, 50) * torch.linspace(0.1, 3, 300, dtype=torch.float64).reshape(6, 50, 1)
    before, after, sinks, concentration = removal_oracle(heads, 90, speed=True)
    result = ruscio2025.sink_removal(heads, speed=True)
    assert result.kl_reduction.item() == pytest.approx((before - after).mean(), rel=1e-10)
    assert result.sinks.tolist() == sinks.tolist()
    assert result.sink_concentration.item() == pytest.approx(concentration, rel=1e-12)
    assert result.p_value.item() == 1
    assert ruscio2025.speed_layers(6) == [0, 1, 2, 3, 4, 5]
    assert ruscio2025.speed_layers(28) == [0, *range(1, 28, 2)]


def test_an_emptied_row_becomes_uniform_over_keys_it_cannot_see():
    star = torch.zeros(2, 4, 4, dtype=torch.float64)
    star[..., 0] = 1
    result = ruscio2025.sink_removal(star, percentile=80)
    assert result.sinks.tolist() == [True, False, False, False]
    assert result.kl_reduction.item() == 0
    assert result.sink_concentration.item() == 1


@pytest.mark.parametrize("speed", [False, True])
def test_sinks_and_concentration_are_of_the_maps_as_they_are(speed):
    heads = torch.tensor([[0.45, 0.05], [0.2, 0.8]], dtype=torch.float64).expand(2, 2, 2)
    result = ruscio2025.sink_removal(heads, percentile=90, speed=speed)
    assert result.sinks.tolist() == [False, True]
    assert result.sinks.tolist() == ruscio2025.sink_tokens(heads.mean(0), rule="kl").tolist()
    assert result.sink_concentration.item() == pytest.approx(0.85 / 1.5, rel=1e-12)
    assert round(result.sink_concentration.item(), 4) == 0.5667


def test_concentration_averages_the_heads_shares():
    # 4 of 5 and 1 of 2 on key 0; all mass together gives 5/7
    heads = torch.tensor([[[4, 1], [0, 0]], [[1, 1], [0, 0]]], dtype=torch.float64) / 4
    result = ruscio2025.sink_removal(heads, percentile=90)
    assert result.sinks.tolist() == [True, False]
    assert result.sink_concentration.item() == pytest.approx(0.65, rel=1e-12)
    # a head without mass has share 0
    result = ruscio2025.sink_removal(torch.cat([heads, torch.zeros(1, 2, 2)]), percentile=90)
    assert result.sink_concentration.item() == pytest.approx(1.3 / 3, rel=1e-12)


def test_sinks_of_half_precision_maps_are_not_of_renormalised_ones():
    heads = maps(6, 40, 40).to(torch.bfloat16)
    before, after, sinks, concentration = removal_oracle(heads, 90)
    result = ruscio2025.sink_removal(heads, percentile=90)
    assert result.sinks.tolist() == sinks.tolist()
    assert result.sink_concentration.item() == pytest.approx(concentration, rel=1e-13)
    assert result.kl_reduction.item() == pytest.approx((before - after).mean(), rel=1e-10)


def test_a_row_without_mass_is_uniform_before_the_head_mean():
    heads = torch.tensor([[[1, 0], [0, 0]], [[1, 0], [0.5, 0.5]]], dtype=torch.float64)
    np.testing.assert_allclose(ruscio2025.head_divergence(heads), [0, 0], atol=1e-15)
    three = torch.zeros(2, 3, 3, dtype=torch.float64)
    three[1] = torch.eye(3)
    expected = divergence_oracle(np.stack([np.full((3, 3), 1 / 3), np.eye(3)]), range(3))
    np.testing.assert_allclose(ruscio2025.head_divergence(three), expected, rtol=1e-12)


def test_where_every_key_is_a_sink_nothing_is_left_to_compare():
    before, after, sinks, concentration = removal_oracle(torch.full((2, 4, 4), 0.25), 90)
    assert sinks.all()
    assert np.isnan(after).all()
    result = ruscio2025.sink_removal(torch.full((2, 4, 4), 0.25, dtype=torch.float64))
    assert result.kl_reduction.isnan().item()
    assert result.p_value.isnan().item()
    assert result.sink_concentration.item() == concentration == 1
    assert ruscio2025.head_divergence(torch.full((2, 4, 4), 0.25)).tolist() == before.tolist() == [0, 0]


def test_fisher_combination_equals_scipy_up_to_its_floor():
    p_values = [0.2, 0.03, 0.7]
    expected = stats.combine_pvalues(p_values, method="fisher").pvalue
    assert ruscio2025.combine_p_values(p_values) == pytest.approx(expected, rel=1e-8)
    # One sample says at most 1e-10.
    assert ruscio2025.combine_p_values([0.0]) == pytest.approx(1e-10, rel=1e-9)
    for bad in ([], [0.1, math.nan], [1.2]):
        with pytest.raises(ValueError, match="combine_p_values: p_values must lie between 0 and 1"):
            ruscio2025.combine_p_values(bad)


def test_non_finite_maps_are_reported_and_their_neighbours_kept():
    heads = maps(2, 3, 8, 8)
    clean = ruscio2025.sink_removal(heads[1])
    heads[0, 1, 3, 3] = torch.nan
    with pytest.warns(RuntimeWarning, match=r"ruscio2025.sink_removal: 1 of 2 layers"):
        result = ruscio2025.sink_removal(heads)
    assert result.kl_reduction.isnan().tolist() == [True, False]
    assert result.kl_reduction[1].item() == pytest.approx(clean.kl_reduction.item(), rel=1e-12)
    assert not result.sinks[0].any()
    with pytest.warns(RuntimeWarning, match="1 of 2 matrices"):
        assert ruscio2025.attention_entropy(heads.mean(1)).isnan().all(-1).tolist() == [True, False]
    with pytest.warns(RuntimeWarning, match="1 of 2 matrices"):
        assert not ruscio2025.sink_tokens(heads.mean(1), rule="kl")[0].any()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ruscio2025.attention_entropy(torch.rand(3, 3), base=10), "base must be e .* or 2"),
        (lambda: ruscio2025.attention_entropy(torch.rand(3, 4)), "square in its last two dimensions"),
        (lambda: ruscio2025.sink_tokens(torch.rand(3, 3), rule="gu"), "rule must be one of"),
        (lambda: ruscio2025.sink_tokens(torch.rand(3, 3), rule="kl", percentile=101), "percentile must lie"),
        (lambda: ruscio2025.sink_removal(torch.rand(2, 3, 3), percentile=-1), "percentile must lie"),
        (lambda: ruscio2025.head_divergence(torch.rand(3, 3)), "at least three dimensions"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=r"ruscio2025\.\w+: .*" + message):
        call()


@pytest.mark.parametrize("rule", ["kl", "rmt", "reference", "topology"])
def test_no_map_has_no_sink(rule):
    assert ruscio2025.sink_tokens(torch.zeros(0, 3, 5, 5), rule=rule).shape == (0, 3, 5)


def test_no_layer_has_no_removal():
    result = ruscio2025.sink_removal(torch.zeros(0, 3, 5, 5), percentile=80)
    assert [tuple(field.shape) for field in result] == [(0,), (0,), (0, 5), (0,)]


def test_the_first_rule_is_the_default():
    uniform = torch.ones(10, 10).tril()
    uniform /= uniform.sum(-1, keepdim=True)
    assert torch.equal(
        ruscio2025.sink_tokens(uniform), ruscio2025.sink_tokens(uniform, rule="kl", percentile=90)
    )
