# SPDX-License-Identifier: MIT
"""The precursor's computations against scikit-learn's least squares, loops and its own quirks."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression
from statsmodels.stats.multitest import multipletests

from attnscope.metrics.positions.offset_fit import offset_fit
from attnscope.metrics.positions.position_profile import PositionProfile
from attnscope.protocols import ruscio2025once as once
from attnscope.statistics.leakage import leakage_share, leakage_test


def scores(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def fit(features, y):
    return LinearRegression().fit(features, y).score(features, y)


def test_leakage_is_the_gain_of_least_squares():
    s = scores(2, 3, 17, 17)
    s[..., 1, 2] = torch.nan  # above the diagonal
    result = once.leakage(s)
    i, j = np.tril_indices(17)
    for text in range(2):
        for head in range(3):
            y = s[text, head].numpy()[i, j]
            relative, full = fit(np.stack([i - j], 1), y), fit(np.stack([i - j, i, j], 1), y)
            assert result.r2_relative[text, head].item() == pytest.approx(relative, abs=1e-12)
            assert result.r2_full[text, head].item() == pytest.approx(full, abs=1e-12)
            assert result.leakage[text, head].item() == pytest.approx(full - relative, abs=1e-12)


def test_leakage_reads_256_tokens_and_nothing_undefined():
    s = scores(260, 260)
    np.testing.assert_array_equal(once.leakage(s).leakage, once.leakage(s[:256, :256]).leakage)
    assert once.leakage(torch.full((5, 5), 0.1)).leakage.isnan()
    assert once.leakage(scores(2, 2)).leakage.isnan()
    assert once.first_characters("ab cd", 3) == "ab "


def test_its_q_values_are_divided_by_the_ranks_of_other_heads():
    p = np.array([0.04, 0.001, 0.2, 0.03])
    ranks = np.array([3, 1, 4, 2])
    by_order = np.sort(p) * 4 / ranks
    expected = np.array([by_order[k:].min() for k in range(4)])
    np.testing.assert_allclose(once.rank_adjusted(p)[np.argsort(p)], expected)
    assert not np.allclose(once.rank_adjusted(p), multipletests(p, method="fdr_bh")[1])
    np.testing.assert_allclose(once.rank_adjusted(np.sort(p)), multipletests(np.sort(p), method="fdr_bh")[1])


def test_of_512_uniform_p_values_it_declares_twenty():
    rng = np.random.default_rng(0)
    declared = [(once.rank_adjusted(rng.random(512)) <= 0.05).sum() for _ in range(200)]
    assert np.mean(np.array(declared) > 0) == 1.0
    assert 17 < np.mean(declared) < 23


def test_a_head_whose_scores_do_not_vary_is_in_no_test():
    """A pruned head has no gap; it had the smallest p-value that 5,000 flips can give."""
    pruned = torch.tensor([1.0, 0.0])[None, :, None, None]

    def test(silent):
        return once.leakage_significance(
            lambda text: scores(1, 2, 8, 8, seed=text) * silent,
            lambda text, k: scores(1, 2, 8, 8, seed=100 + k) * silent,
            texts=4,
            samples=6,
            seed=3,
        )

    tested, unpruned = test(pruned), test(torch.ones_like(pruned))
    for field in tested._fields:
        assert np.isnan(getattr(tested, field)).tolist() == [[False, True]], field
    assert tested.p_value[0, 0] == unpruned.p_value[0, 0]
    np.testing.assert_array_equal(once.rank_adjusted([np.nan, 0.9, 0.3, 0.6])[1:], [1.35, 0.3, 1.35])
    assert np.isnan(once.rank_adjusted([0.1, np.nan])).tolist() == [False, True]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperatures": []}, r"temperatures must hold at least one, got \[\]"),
        ({"temperatures": [0.0]}, "temperatures must be above 0, got 0.0"),
        ({"first_row": -1}, "first_row must be at least 0, got -1"),
        ({"first_row": 1.5}, "first_row must be a whole number, got 1.5"),
    ],
)
def test_bad_arguments_of_the_softmax_statistics_are_named(options, message):
    with pytest.raises((ValueError, TypeError), match=f"softmax_statistics: {message}"):
        once.softmax_statistics(torch.zeros(6, 6), **options)


def test_significance_draws_in_the_notebooks_order():
    texts = [scores(1, 2, 8, 8, seed=k) for k in range(4)]
    calls = []

    def null(text, k):
        calls.append((text, k))
        return scores(1, 2, 8, 8, seed=100 + 10 * text + k)

    result = once.leakage_significance(lambda text: texts[text], null, texts=4, samples=6, seed=3)
    rng = np.random.default_rng(3)
    i, j = np.tril_indices(8)

    def held_out(s, order):
        cut = int(0.7 * len(i))
        out = []
        for head in range(2):
            y, errors = s[0, head].numpy()[i, j], []
            train, test = order[:cut], order[cut:]
            for columns in ([i - j], [i - j, i, j]):
                x = np.stack(columns, 1).astype(float)
                model = LinearRegression(fit_intercept=True).fit(x[train] - x[train].mean(0), y[train])
                errors.append(((y[test] - model.predict(x[test] - x[test].mean(0))) ** 2).sum())
            out.append((errors[0] - errors[1]) / ((y[test] - y[test].mean()) ** 2).sum())
        return np.array(out)

    gaps, expected_calls = [], []
    for _ in range(6):
        text = int(rng.integers(0, 4))
        first = held_out(texts[text], rng.permutation(36))
        k = int(rng.integers(1, 8))
        expected_calls.append((text, k))
        gaps.append(first - held_out(scores(1, 2, 8, 8, seed=100 + 10 * text + k), rng.permutation(36)))
    assert calls == expected_calls
    np.testing.assert_allclose(result.gap[0], np.mean(gaps, 0), atol=1e-10)
    gaps_of_head = np.array(gaps)[:, 0]
    means = gaps_of_head[rng.integers(0, 6, (2000, 6))].mean(1)
    np.testing.assert_allclose(result.low[0, 0], np.quantile(means, 0.025), atol=1e-10)
    flips = (rng.choice([-1.0, 1.0], (5000, 6)) * gaps_of_head).mean(1)
    assert result.p_value[0, 0] == pytest.approx(
        (1 + (flips >= gaps_of_head.mean() - 1e-12).sum()) / 5001, abs=3e-3
    )


def test_bands_pair_neighbours_and_round():
    q, k = scores(2, 9, 64), scores(2, 9, 64, seed=1)
    members = [np.arange(6 * band, 6 * band + 6) for band in range(9)] + [np.arange(54, 64)]
    norms = np.stack([(q[..., m] @ k[..., m].mT).norm(dim=(-2, -1)) for m in members], -1)
    np.testing.assert_allclose(once.band_shares(q, k), norms / norms.sum(-1, keepdims=True), rtol=1e-12)
    small = once.band_shares(q[..., :8], k[..., :8])
    np.testing.assert_array_equal(small, torch.tensor([0.0] * 9 + [1.0]).expand(2, 10))


def test_ablation_and_softmax_statistics_are_loops():
    q, k = scores(1, 9, 40), scores(1, 9, 40, seed=1)
    result = once.band_ablation(q, k)
    causal = torch.ones(9, 9, dtype=torch.bool).tril()
    p = torch.softmax((q @ k.mT / 40**0.5).masked_fill(~causal, -torch.inf), -1)[0].numpy()
    without = q.clone()
    without[..., 4:8] = 0
    other = torch.softmax((without @ k.mT / 40**0.5).masked_fill(~causal, -torch.inf), -1)[0].numpy()
    kl = [(p[i, : i + 1] * np.log(p[i, : i + 1] / other[i, : i + 1])).sum() for i in range(5, 9)]
    assert result[0, 1].item() == pytest.approx(np.mean(kl), rel=1e-9)
    statistics = once.softmax_statistics(q @ k.mT / 40**0.5)
    ordered = -np.sort(-p[5:], axis=1)
    assert statistics.top_1[0, 1].item() == pytest.approx(ordered[:, 0].mean())
    assert statistics.top_5[0, 1].item() == pytest.approx(ordered[:, :5].sum(1).mean())
    assert statistics.margin[0, 1].item() == pytest.approx((ordered[:, 0] - ordered[:, 1]).mean())
    entropy = [-(row[: i + 6] * np.log(row[: i + 6])).sum() for i, row in enumerate(p[5:])]
    assert statistics.entropy[0, 1].item() == pytest.approx(np.mean(entropy))


def test_the_probe_is_least_squares_and_its_null_is_that_of_noise():
    x = scores(3, 64, 10)
    result = once.position_probe(x)
    t = np.arange(64)[:, None] * np.arange(1, 9) * 2 * np.pi / 64
    features = np.hstack([np.sin(t), np.cos(t)])
    slow = np.mean([fit(features, x[0, :, d].numpy()) for d in range(10)])
    assert result.r2[0].item() == pytest.approx(slow, rel=1e-9)
    noise = once.position_probe(scores(256, 400)).r2.item()
    assert noise == pytest.approx(16 / 255, abs=0.005)
    assert once.position_probe(scores(16, 3)).r2.isnan()


def test_the_exact_fit_is_a_regression_on_every_offset():
    s = scores(2, 12, 12)
    result = offset_fit(s)
    i, j = np.tril_indices(12)
    one_hot = np.eye(12)[i - j]
    y = s[0].numpy()[i, j]
    r2 = fit(one_hot, y)
    assert result.r2[0].item() == pytest.approx(r2, rel=1e-10)
    assert result.adjusted[0].item() == pytest.approx(1 - (1 - r2) * 77 / 66, rel=1e-10)
    added = fit(np.column_stack([one_hot, i + j]), y) - r2
    assert result.added[0].item() == pytest.approx(added, rel=1e-9)
    for actual, other in zip(offset_fit(s, lengths=[12, 7]), offset_fit(s[1, :7, :7]), strict=True):
        assert actual[1].item() == pytest.approx(other.item(), rel=1e-12)
    for size in range(2, 20):  # 0.1 is no binary number, and a mean of many may differ in its last bit
        assert offset_fit(torch.full((size, size), 0.1, dtype=torch.float64)).r2.isnan()
    s[1, 3, 1] = torch.nan
    assert offset_fit(s).r2.isnan().tolist() == [False, True]


def test_the_exact_share_is_unbiased_where_the_linear_gain_is_not():
    planted = torch.zeros(16, 16, dtype=torch.float64)
    planted[2:8, 1] = 0.4
    shares = []
    for seed in range(20):
        profile = PositionProfile(16, groups=8)
        profile.add(scores(32, 1, 16, 16, seed=seed) + planted, [k // 4 for k in range(32)])
        shares.append(leakage_share(profile).estimate.item())
    variances = [planted[i, 1 : i + 1].var(unbiased=False).item() for i in range(2, 8)]
    noise = [1 - 1 / i for i in range(2, 8)]
    expected = np.mean(variances) / (np.mean(variances) + np.mean(noise))
    assert abs(np.mean(shares) - expected) < 4 * np.std(shares) / 20**0.5 + 2e-3


def test_the_exact_test_keeps_its_level():
    rng = np.random.default_rng(5)
    real, null = rng.normal(size=(2, 20, 300)) ** 3
    result = leakage_test(real, null, draws=499)
    assert np.mean(result.p_value <= 0.05) < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 300)
    np.testing.assert_allclose(result.p_adjusted, multipletests(result.p_value, method="fdr_bh")[1])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: once.leakage(torch.rand(3, 4)), r"scores must be square"),
        (
            lambda: once.band_shares(torch.rand(3, 4), torch.rand(3, 6)),
            r"one shape \[..., n, d\], got \(3, 4\)",
        ),
        (lambda: once.softmax_statistics(torch.rand(8, 8), temperatures=[0]), r"must be above 0, got 0"),
        (lambda: once.position_probe(torch.rand(8)), r"\[..., n, D\], got \(8,\)"),
        (lambda: once.leakage_significance(None, None, texts=0, seed=0), r"texts must be at least 1, got 0"),
        (
            lambda: once.leakage_significance(lambda t: torch.rand(8, 8), None, texts=1, seed=0),
            r"\[L, h, n, n\], got \(8, 8\)",
        ),
        (lambda: leakage_test([0.1], [0.2]), r"at least two texts, got \(1,\) and \(1,\)"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
