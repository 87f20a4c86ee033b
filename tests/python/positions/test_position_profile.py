# SPDX-License-Identifier: MIT
"""PositionProfile and the sizes made of it: sums against one loop, planted residuals, levels, laws."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import attnscope as asc
from attnscope.statistics.residuals import moved_distance

N, M = 16, 8


def noise(texts, heads=2, n=N, seed=0):
    generator = torch.Generator().manual_seed(seed)
    s = torch.randn(texts, heads, n, n, generator=generator, dtype=torch.float64)
    return s.masked_fill(~torch.ones(n, n, dtype=torch.bool).tril(), -torch.inf)


def planted(size=0.3, n=N, seed=1):
    """A residual of the early queries that no profile, row constant or key 0 can take up."""
    generator = torch.Generator().manual_seed(seed)
    residual = torch.zeros(n, n, dtype=torch.float64)
    for i in range(2, n // 2):
        row = torch.randn(i, generator=generator, dtype=torch.float64)
        residual[i, 1 : i + 1] = size * (row - row.mean())
    return residual


def truth(residual, low=2, high=M - 1):
    return float(np.mean([residual[i, 1 : i + 1].var(unbiased=False) for i in range(low, high + 1)]))


def ranks(texts, groups):
    return [rank * groups // texts for rank in range(texts)]


def profile_of(scores, groups=8, batch=None, **options):
    profile = asc.PositionProfile(scores.shape[-1], groups=groups, **options)
    of = ranks(len(scores), groups)
    for start in range(0, len(scores), batch or len(scores)):
        profile.add(
            scores[start : start + (batch or len(scores))], of[start : start + (batch or len(scores))]
        )
    return profile


def test_sums_are_those_of_a_loop_over_texts():
    s = noise(12)
    profile = profile_of(s, groups=4)
    expected = {name: [] for name in profile.SUMS}
    for text in range(12):
        split = asc.toeplitz_split(s[text])
        mask = asc.mask_only(s[text], queries=range(1, M), body=True)
        attention = torch.softmax(s[text], -1)[:, 1:M, :M]
        body = attention / (1 - attention[..., :1])
        body[..., 0] = 0
        expected["residual"].append(split.residual.nan_to_num(0.0))
        expected["first"].append(split.first)
        expected["mask_cut"].append(mask.cut)
        expected["moved"].append(body - mask.attention)
        expected["offsets"].append(asc.offset_variance(s[text]).mean)
    for name, values in expected.items():
        if values:
            np.testing.assert_allclose(profile.mean(name)[0], torch.stack(values).mean(0), atol=1e-12)
            groups = torch.stack(values).reshape(4, 3, *values[0].shape).mean(1)
            np.testing.assert_allclose(profile.group_means(name)[:, 0], groups, atol=1e-12)
    assert profile.texts == 12
    assert profile.present == [0, 1, 2, 3]
    assert profile.counts().tolist() == [[[3, 3]]] * 4


def test_the_gram_is_that_of_the_definition():
    profile = profile_of(noise(8), groups=4)
    means = profile.group_means("residual")[:, 0]
    felt = profile.mean("cut")[0]
    for weights in ("uniform", "felt"):
        expected = torch.zeros(2, 4, 4, dtype=torch.float64)
        for h in range(2):
            for g in range(4):
                for f in range(4):
                    for i in range(2, M):
                        w = (
                            torch.ones(i, dtype=torch.float64) / i
                            if weights == "uniform"
                            else felt[h, i - 1, 1 : i + 1]
                        )
                        a, b = means[g, h, i, 1 : i + 1], means[f, h, i, 1 : i + 1]
                        a, b = a - (w * a).sum(), b - (w * b).sum()
                        expected[h, g, f] += (w * a * b).sum() / (M - 2)
        np.testing.assert_allclose(profile.gram(weights=weights)[0], expected, atol=1e-12)
    moved = profile.group_means("moved")[:, 0, :, 1:]
    expected = torch.einsum("ghij,fhij->hgf", moved, moved) / (M - 2)
    np.testing.assert_allclose(profile.gram(weights="moved")[0], expected, atol=1e-12)


def test_other_batches_give_the_same_bits():
    s = noise(24)
    full_state = profile_of(s).state()
    for batch in (1, 5, 7):
        for name, values in profile_of(s, batch=batch).state().items():
            np.testing.assert_array_equal(values, full_state[name], err_msg=name)


def test_two_runs_merged_are_one_over_all_texts():
    s, of = noise(32), ranks(32, 8)
    first, two = asc.PositionProfile(N, groups=8), asc.PositionProfile(N, groups=8)
    first.add(s[:11], of[:11])
    two.add(s[11:], of[11:])
    first.merge(two)
    for name, values in profile_of(s).state().items():
        np.testing.assert_allclose(first.state()[name], values, atol=1e-12, err_msg=name)
    again = asc.PositionProfile.from_state({k: v.numpy() for k, v in first.state().items()})
    for name, values in first.state().items():
        np.testing.assert_array_equal(again.state()[name], values, err_msg=name)
    np.testing.assert_array_equal(asc.residual_size(again).p_value, asc.residual_size(first).p_value)


def test_a_bad_map_is_left_out_and_counted():
    s = noise(16)
    good = profile_of(s, groups=4).mean("residual")
    s[3, 1, 4, 2] = torch.nan
    profile = profile_of(s, groups=4)
    assert profile.left_out == 1
    assert profile.counts()[:, 0].tolist() == [[4, 3], [4, 4], [4, 4], [4, 4]]
    np.testing.assert_array_equal(profile.mean("residual")[0, 0], good[0, 0])
    rest = [text for text in range(16) if text != 3]
    single_result = asc.toeplitz_split(s[rest, 1]).residual.nan_to_num(0.0).mean(0)
    np.testing.assert_allclose(profile.mean("residual")[0, 1], single_result, atol=1e-12)


def test_a_head_without_a_single_map_has_no_mean():
    """A mean of 0 would count as one more head in means over the heads of a layer."""
    s = noise(16)
    s[:, 1, 4, 2] = torch.nan
    profile = profile_of(s, groups=4)
    assert profile.counts()[:, 0, 1].tolist() == [0] * 4
    for name in ("mask_cut", "mask_share", "lse", "residual"):
        assert profile.mean(name)[0, 1].isnan().all(), name
        assert profile.mean(name)[0, 0].isfinite().any(), name


def test_a_layer_with_fewer_heads_is_that_layer_alone():
    wide, narrow = noise(16, seed=3), noise(16, heads=1, seed=4) + planted(0.8)
    profile = asc.PositionProfile(N, groups=4)
    for layer, scores in enumerate((wide, narrow)):
        profile.add(scores, ranks(16, 4), layer=layer)
    again = asc.PositionProfile.from_state(profile.state())
    assert profile.heads == again.heads == [2, 1]
    expected = asc.residual_size(profile_of(narrow, groups=4)).estimate[0]
    for measured in (profile, again):
        size = asc.residual_size(measured).estimate
        np.testing.assert_array_equal(size[1, :1], expected)
        assert math.isnan(size[1, 1])
    assert again.counts().tolist() == profile.counts().tolist()


def test_row_constants_profiles_and_key_0_leave_nothing():
    generator = torch.Generator().manual_seed(3)
    s = noise(16)
    rows = 30 * torch.randn(16, 2, N, 1, generator=generator, dtype=torch.float64)
    columns = torch.zeros(N, dtype=torch.float64)
    columns[0] = 100.0
    by_offset = torch.randn(N, generator=generator, dtype=torch.float64)
    offsets = torch.arange(N)[:, None] - torch.arange(N)
    before, after = (
        asc.residual_size(profile_of(x, groups=4)).estimate
        for x in (s, s + rows + columns + by_offset[offsets.clamp(min=0)])
    )
    np.testing.assert_allclose(after, before, atol=1e-10)


def test_scaling_and_relabelling():
    s = noise(32) + planted()
    base = asc.residual_size(profile_of(s))
    np.testing.assert_allclose(asc.residual_size(profile_of(3 * s)).estimate, 9 * base.estimate, rtol=1e-10)
    profile = asc.PositionProfile(N, groups=8)
    profile.add(s, [(5 * group + 3) % 8 for group in ranks(32, 8)])
    other = asc.residual_size(profile)
    for name in ("estimate", "plain", "low", "high"):
        np.testing.assert_allclose(getattr(other, name), getattr(base, name), atol=1e-12, err_msg=name)


def test_of_a_planted_residual_the_estimate_is_unbiased_and_the_plain_size_is_not():
    residual = planted(0.3)
    estimates, plains = [], []
    for seed in range(25):
        size = asc.residual_size(profile_of(noise(32, 1, seed=100 + seed) + residual), draws=1)
        estimates.append(size.estimate.item())
        plains.append(size.plain.item())
    error = np.std(estimates, ddof=1) / 5
    assert abs(np.mean(estimates) - truth(residual)) < 4 * error
    assert np.mean(plains) - truth(residual) > 4 * np.std(plains, ddof=1) / 5


@pytest.mark.slow
def test_of_no_residual_the_test_keeps_its_level_and_intervals_cover():
    heads, rounds = 40, 10
    p, covered = [], []
    for seed in range(rounds):
        draw = noise(64, heads, seed=seed)
        draw = draw.sign() * draw.abs() ** 1.5  # heavy tails
        size = asc.residual_size(
            profile_of(draw.tril().masked_fill(draw == -torch.inf, -torch.inf), 16), draws=999
        )
        p.append(size.p_value)
        covered.append((size.low <= 0) & (size.high >= 0))
    assert np.mean(np.concatenate(p) <= 0.05) < 0.05 + 3 * math.sqrt(0.05 * 0.95 / (heads * rounds))
    assert np.mean(np.concatenate(covered)) > 0.9


def test_removed_knows_energy_from_pattern():
    residual, other = planted(0.8), planted(0.8, seed=9)
    s = noise(64, 2, seed=5)
    base = profile_of(s + residual)
    result = asc.removed(base, profile_of(s + residual / 2))
    for share, expected in zip(result, (0.75, 0.5, 0.5), strict=True):
        share_of_first = share.layers[0]
        assert share_of_first.low <= expected + 0.02
        assert share_of_first.high >= expected - 0.02
        assert abs(share_of_first.estimate - expected) < 0.05
        assert math.isnan(share.overall.estimate)  # no layer from 1 on
    result = asc.removed(base, profile_of(s + other))
    shared = np.mean([(residual[i, 1 : i + 1] * other[i, 1 : i + 1]).mean() for i in range(2, M)])
    assert result.energy.layers[0].estimate == pytest.approx(1 - truth(other) / truth(residual), abs=0.1)
    assert result.pattern.layers[0].estimate == pytest.approx(1 - shared / truth(residual), abs=0.1)
    assert result.pattern.layers[0].estimate > result.energy.layers[0].estimate + 0.3  # it writes its own
    same_result = asc.removed(base, base)
    assert [share.layers[0].estimate for share in same_result] == pytest.approx([0, 0, 0], abs=1e-12)


def test_where_nothing_is_nothing_can_be_removed():
    s = noise(64, 2, seed=8)
    result = asc.removed(profile_of(s), profile_of(s / 2))
    for share in result:
        assert math.isnan(share.layers[0].estimate)
        assert math.isnan(share.layers[0].low)


def test_layers_stay_apart():
    profile = asc.PositionProfile(N, groups=4)
    for layer, size in ((0, 0.0), (1, 0.8), (2, 0.8)):
        profile.add(noise(32, seed=layer) + planted(size), ranks(32, 4), layer=layer)
    size = asc.residual_size(profile)
    assert size.estimate.shape == (3, 2)
    assert (size.p_value[1:] < 0.2).all()
    assert (size.reliability[1:] > 0.7).all()
    result = asc.removed(profile, profile)
    assert math.isnan(result.energy.layers[0].estimate)
    assert result.energy.overall.estimate == pytest.approx(0, abs=1e-12)


@pytest.mark.filterwarnings("error")
def test_where_nothing_is_nothing_is_removed_and_nothing_is_warned_of():
    profile = asc.PositionProfile(8, groups=4)
    for layer in (0, 1):
        profile.add(torch.zeros(16, 1, 8, 8, dtype=torch.float64), ranks(16, 4), layer=layer)
    result = asc.removed(profile, profile)
    assert np.isnan([result.energy.overall.estimate, result.energy.layers[1].estimate]).all()


def test_positions_that_are_left_out_play_no_part():
    s = noise(32, seed=2) + planted()
    other = s.clone()
    other[..., :M, 3] += torch.randn(32, 2, M, dtype=torch.float64).where(torch.arange(M) >= 3, 0.0)
    other[..., 3, :4] *= 7
    a, b = (asc.residual_size(profile_of(x), without=[3]).estimate for x in (s, other))
    np.testing.assert_allclose(a, b, atol=1e-12)
    assert not np.allclose(
        asc.residual_size(profile_of(s)).estimate, asc.residual_size(profile_of(other)).estimate
    )


def test_the_distance_of_noise_is_its_floor():
    result = moved_distance(profile_of(noise(64, 4)))
    assert (np.abs(result.value / result.floor - 1) < 0.35).all()
    assert (result.p_value > 0.02).all()
    strong = moved_distance(profile_of(noise(64, 4) + planted(3.0)))
    assert (strong.value > 2 * strong.floor).all()
    assert (strong.p_value < 0.02).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: asc.PositionProfile(1), r"n must be at least 2, got 1"),
        (lambda: asc.PositionProfile(8, groups=0), r"groups must be at least 1, got 0"),
        (lambda: asc.PositionProfile(8, queries=[0, 1]), r"within 1 … m - 1 = 3, got \[0, 1\]"),
        (lambda: asc.PositionProfile(8, queries=[3, 2]), r"must ascend"),
        (lambda: asc.PositionProfile(8).add(torch.zeros(2, 6, 6), 0), r"n = 8, got \(2, 6, 6\)"),
        (lambda: asc.PositionProfile(6, groups=4).add(torch.zeros(2, 6, 6), 4), r"between 0 and 3, got 4"),
        (lambda: asc.PositionProfile(6).add(torch.zeros(2, 2, 6, 6), [0]), r"must hold 2 numbers, got 1"),
        (lambda: asc.PositionProfile(6).mean("profile"), r"no text was added"),
        (lambda: profile_of(noise(8)).mean("sizes"), r"must be one of .* got 'sizes'"),
        (lambda: profile_of(noise(8)).merge(asc.PositionProfile(8)), r"n, groups and queries must be"),
        (lambda: profile_of(noise(8)).gram((20, 30)), r"no query between 20 and 30"),
        (lambda: profile_of(noise(8)).gram(weights="flat"), r"'uniform', 'felt', 'moved', got 'flat'"),
        (
            lambda: asc.residual_size(profile_of(noise(9), groups=3)),
            r"at least 4 groups must hold texts, got 3",
        ),
        (lambda: asc.residual_size(profile_of(noise(8))), r"8 groups need at least 32 texts, got 8"),
        (
            lambda: asc.removed(profile_of(noise(32)), profile_of(noise(32), groups=4)),
            r"the same groups, layers and heads",
        ),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.slow
def test_a_trained_model_shows_nothing_at_layer_0_and_a_residual_behind_it():
    """stories260K on windows of sentences; expected numbers were measured by another program."""
    folder = Path(__file__).resolve().parents[4] / "shared" / "data"
    if not (folder / "stories260K" / "hf").is_dir():
        pytest.skip(f"no trained model in {folder}")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder / "stories260K" / "hf").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder / "stories260K" / "hf")
    texts = pd.read_csv(folder / "text" / "wiki_dataset_sink.csv")["text"]
    ids = [token for text in texts for token in tokenizer(text, add_special_tokens=False).input_ids]
    starts = np.sort(np.random.default_rng(0).integers(0, len(ids) - 64, 128))
    windows = torch.tensor([[tokenizer.bos_token_id, *ids[start : start + 63]] for start in starts])
    profile = asc.PositionProfile(64, groups=8)
    for start in range(0, 128, 16):
        part, groups = windows[start : start + 16], [rank // 16 for rank in range(start, start + 16)]
        with asc.capture(model, sites=("scores",)) as recording:
            for layer in recording.run(input_ids=part, attention_mask=torch.ones_like(part)):
                profile.add(layer.scores, groups, layer=layer.index)
    size = asc.residual_size(profile, queries=(2, 31))
    assert np.abs(size.estimate[0].mean()) < 0.03
    assert size.plain[0].mean() > 0.05
    assert (size.p_adjusted[0] > 0.05).all()
    assert (size.p_adjusted[2] < 0.05).all()
    assert size.estimate[2:].mean(1) == pytest.approx([0.358, 0.08, 0.154], abs=0.05)
    cut = profile.mean("mask_cut")[:, :, 1].mean(1).numpy()
    assert cut == pytest.approx([1.56, 1.12, 2.20, 1.78, 2.64], abs=0.05)
    first = profile.mean("first")[:, :, 2:].mean((1, 2)).numpy()
    assert first == pytest.approx([3.4, 11.2, 0.1, 4.3, 2.1], abs=0.2)
