# SPDX-License-Identifier: MIT
"""The control of sink removal: the strongest keys of shuffled rows, chosen as those of the maps are."""

import numpy as np
import pandas as pd
import pytest
import torch

import attnscope as asc
from attnscope import statistics
from attnscope.metrics.information.sink_sets import _keys_by_percentile
from attnscope.studies.attention_sinks.questions import questions
from attnscope.studies.attention_sinks.shuffled_removal import SHARE, SHUFFLED, removal_shares, share_without
from attnscope.study_api.forward import head_mean

N, HEADS = 24, 3


def layer(seed, texts, deviation, n=N, heads=HEADS):
    """Heads that have nothing in common and no preferred key."""
    generator = torch.Generator().manual_seed(seed)
    logits = deviation * torch.randn(texts, heads, n, n, generator=generator, dtype=torch.float64)
    return torch.softmax(logits.masked_fill(~torch.ones(n, n).tril().bool(), -torch.inf), -1)


def measured(maps):
    texts, _, n, _ = maps.shape
    return removal_shares(maps, torch.full((texts,), n), range(texts), 0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("deviation", [0.05, 1.0, 3.0])
def test_independent_heads_agree_more_in_one_of_twenty_studies(deviation):
    """Against random keys nearby it was 95 to 100 %: those are not chosen as the strongest."""
    trials, texts, rates = 300, 12, []
    result = measured(layer(5, trials * texts, deviation))
    for at in SHARE:
        pairs = zip(*(np.split(result[name[at]], trials) for name in (SHARE, SHUFFLED)), strict=True)
        rates.append(np.mean([statistics.paired_test(*pair).p_value <= 0.05 for pair in pairs]))
    print(f"deviation {deviation}: {np.round(rates, 3).tolist()} at {list(SHARE)}")
    assert np.mean(rates) <= 0.06
    assert max(rates) <= 0.08  # 300 trials each


def test_the_strongest_keys_of_noise_do_no_more_than_those_of_shuffled_rows():
    """More than as many other keys, because they are the strongest: that was taken for a finding."""
    maps = layer(8, 40, 2.0)
    result = measured(maps)
    keys = _keys_by_percentile(head_mean(maps))[90][:, 0]
    others = share_without(maps, keys.roll(-2, -1) & ~keys)
    assert statistics.paired_test(result["kl_share_90"], others).p_value < 1e-6
    for at, column in SHUFFLED.items():
        assert statistics.paired_test(result[SHARE[at]], result[column]).p_value > 0.05


def test_a_key_that_sets_heads_apart_is_more_than_chance():
    """Heads that agree but for how much they give the first key."""
    maps = layer(8, 30, 2.0, heads=1).expand(30, HEADS, N, N)
    shares = torch.tensor([0.1, 0.4, 0.7], dtype=torch.float64).reshape(1, HEADS, 1, 1)
    maps = maps * (1 - shares)
    maps[..., 0] += shares[..., 0]
    result = measured(maps)
    test = statistics.paired_test(result["kl_share_95"], result["kl_share_shuffled_95"])
    assert test.p_value < 1e-4
    assert test.difference > 0.5


@pytest.mark.parametrize("learned", [False, True])
def test_the_share_is_that_of_sink_removal(learned):
    maps = layer(3, 2, 1.5)
    keys = torch.zeros(2, N, dtype=torch.bool)
    keys[:, [0, 1, 5]] = True  # without a learned sink the first two queries have nothing left
    mass = torch.full((2, HEADS, N), 0.3, dtype=torch.float64) if learned else None
    rows = torch.cat([0.7 * maps, mass[..., None]], -1) if learned else maps
    full_result = asc.sink_removal(
        0.7 * maps if learned else maps, keys, sink_mass=mass, keep_attention=False
    )
    divergences = (torch.xlogy(rows, rows) - torch.xlogy(rows, rows.mean(1, keepdim=True))).sum(-1)
    before = divergences[..., 0 if learned else 2 :].mean((1, 2))
    torch.testing.assert_close(
        share_without(rows, keys), full_result.kl_reduction / before, rtol=1e-10, atol=1e-12
    )
    empty_share = share_without(rows, torch.zeros_like(keys))
    assert empty_share.isnan().all()
    assert share_without(torch.full((1, 2, 4, 4), 0.25), torch.eye(1, 4) > 0).isnan().all()


def test_a_text_has_its_own_draws_whatever_the_batch():
    maps = layer(2, 3, 1.0)
    lengths = torch.tensor([N, 17, N])
    maps[1] = 0
    maps[1, :, :17, :17] = layer(3, 1, 1.0, n=17)[0]
    together = removal_shares(maps, lengths, [4, 7, 9], 1, 5)
    for place, sample in enumerate((4, 7, 9)):
        n = int(lengths[place])
        maps_of_text = maps[place : place + 1, :, :n, :n]
        single_shares = removal_shares(maps_of_text, lengths[place : place + 1], [sample], 1, 5)
        for column, values in together.items():
            assert values[place] == pytest.approx(single_shares[column].item(), rel=1e-12)
    other = removal_shares(maps, lengths, [4, 7, 9], 1, 6)
    assert (other["kl_share_shuffled_90"] != together["kl_share_shuffled_90"]).all()


def test_a_support_and_a_learned_sink_are_those_of_the_layer():
    window = torch.ones(N, N).tril().triu(-11).bool()
    maps = torch.softmax(layer(4, 2, 1.0).log().masked_fill(~window, -torch.inf), -1)
    lengths = torch.tensor([N, N])
    plain = removal_shares(maps, lengths, [0, 1], 0, 0, support=window)
    learned = torch.full((2, HEADS, N), 0.25, dtype=torch.float64)
    less = removal_shares(0.75 * maps, lengths, [0, 1], 0, 0, support=window, learned=learned)
    for column in SHUFFLED.values():
        assert np.isfinite(plain[column]).all()
        assert (less[column] != plain[column]).all()


def test_a_difference_from_shuffled_rows_is_certain_in_its_layer():
    row = {"model": "m", "revision": "", "step": -1, "layer": 0, "percentile": 90, "protocol": "exact"}
    row |= {"kl_reduction": 0.1, "kl_random": 0.05, "difference": 0.05, "low": 0.04, "high": 0.06}
    row |= {"p_value": 1e-9, "p_holm": 1e-8, "p_bh": 1e-8, "samples": 9}
    row |= {"kl_share": 0.3, "kl_share_shuffled": 0.2}
    (question,) = questions({"removal_tests": pd.DataFrame([row])}, None)
    assert question.certain == (0,)
    (question,) = questions({"removal_tests": pd.DataFrame([row | {"p_holm": 0.2}])}, None)
    assert question.certain == ()
