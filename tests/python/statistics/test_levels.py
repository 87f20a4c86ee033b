# SPDX-License-Identifier: MIT
"""Levels of every test and coverage of every interval of `statistics`; the table is in tests/README.md.

Each case draws data in which nothing is to be found, the measured model being one draw among its controls. A
rate is the share of trials in which a test at .05 rejects or a nominal 95 % interval misses. The table holds
the rates as they were measured with these seeds; a case without a row fails here.
"""

from __future__ import annotations

import functools
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import attnscope as asc
from attnscope import statistics
from attnscope.statistics.intervals import Interval
from attnscope.statistics.leakage import leakage_share, leakage_slope, leakage_test
from attnscope.statistics.residuals import moved_distance

README = Path(__file__).resolve().parents[2] / "README.md"
#: No test and no interval errs more often than this, but for those with a reason.
MOST = 0.06
#: Intervals that err more often, and as often as they do at most.
ACCEPTED_LEVELS = {
    "bootstrap, lognormal of sigma 1, n = 12": 0.1,
    "bootstrap, lognormal of sigma 1, n = 40": 0.09,
}


def misses(interval, truth):
    return not interval.low <= truth <= interval.high


def lognormal(draw, size, sigma=1.0):
    return np.exp(sigma * draw.standard_normal(size))


def paired(draw):
    return statistics.paired_test(draw.normal(size=12), draw.normal(size=12)).p_value <= 0.05


def paired_lognormal(draw):
    return statistics.paired_test(lognormal(draw, 12), lognormal(draw, 12)).p_value <= 0.05


def paired_counts(draw):
    return statistics.paired_test(draw.choice([-1.0, 1.0], size=3), np.zeros(3)).p_value <= 0.05


def welch(draw):
    return statistics.welch_test(draw.normal(size=8), 3 * draw.normal(size=20)).p_value <= 0.05


def holm(draw):
    shared = draw.normal(size=12)
    p_values = [
        statistics.paired_test(shared + draw.normal(size=12), np.zeros(12)).p_value for _ in range(10)
    ]
    return (statistics.holm(p_values) <= 0.05).any()


def control(number, texts, texts_of_controls, between=1.0, within=0.3):
    """A model that is one more initialisation."""

    def trial(draw):
        def texts_of(count):
            return between * draw.normal() + within * draw.normal(size=count)

        controls = [texts_of(texts_of_controls) for _ in range(number)]
        return statistics.control_test(texts_of(texts), controls).p_value <= 0.05

    return trial


def association(method, n, law, *, interval=False):
    def trial(draw):
        x, y = law(draw, n)
        result = statistics.correlation(x, y, method=method)
        return misses(result, 0) if interval else result.p_value <= 0.05

    return trial


def independent(draw, n):
    return draw.normal(size=n), draw.normal(size=n)


def skewed(draw, n):
    return lognormal(draw, n), lognormal(draw, n)


def uneven(draw, n):
    """No correlation, and noise that grows with x."""
    x = draw.normal(size=n)
    return x, x * draw.normal(size=n)


def partial_of_ranks(draw):
    """A cause that correlates by .95 with both."""
    cause = draw.normal(size=40)
    return statistics.partial_correlation(*(3 * cause + draw.normal(size=(2, 40))), cause).p_value <= 0.05


def partial(*, interval):
    def trial(draw):
        cause = draw.normal(size=(15, 2))
        x, y = cause.sum(1) + draw.normal(size=15), cause.sum(1) + draw.normal(size=15)
        result = statistics.partial_correlation(x, y, cause, method="pearson")
        return misses(result, 0) if interval else result.p_value <= 0.05

    return trial


def within(texts, versions):
    def trial(draw):
        x, y = draw.normal(size=(2, texts * versions))
        return statistics.within_correlation(x, y, np.arange(len(x)) // versions, draws=1).p_value <= 0.05

    return trial


def mean(n, law, truth=0.0):
    def trial(draw):
        values = law(draw, n)
        return misses(statistics.bootstrap(values, draws=1000, seed=int(draw.integers(2**31))), truth)

    return trial


def clustered(draw):
    clusters = np.repeat(np.arange(12), draw.integers(2, 8, 12))
    values = draw.normal(size=12)[clusters] + 0.5 * draw.normal(size=len(clusters))
    return misses(statistics.bootstrap(values, clusters=clusters, draws=1000), 0)


def together(draw):
    low, high = statistics.mean_intervals(draw.normal(size=(40, 12)), draws=500, together=True)
    return ((low > 0) | (high < 0)).any()


def median(draw):
    return misses(statistics.median_interval(draw.standard_cauchy(12)), 0)


def jackknife(draw):
    return misses(statistics.jackknife(draw.normal(size=8), lambda values: values.mean()), 0)


def flips(draw):
    return statistics.sign_flips(draw.standard_cauchy(10), draws=499, seed=1) <= 0.05


def flips_of_products(draw):
    vectors = draw.normal(size=(8, 5))
    return statistics.sign_flips(vectors @ vectors.T, draws=499, seed=1) <= 0.05


def exchanged(draw):
    values = draw.normal(size=24)
    result = statistics.exchange_labels(
        lambda labels: np.abs(np.where(labels, 1, -1) @ values),
        draw.permutation(np.arange(24) % 2),
        draws=199,
    )
    return result.p_value <= 0.05


def largest(draw):
    values = draw.normal(size=(24, 6)) + draw.normal(size=(24, 1))
    result = statistics.exchange_labels(
        lambda labels: np.abs(np.where(labels, 1, -1) @ values),
        draw.permutation(np.arange(24) % 2),
        draws=199,
    )
    return statistics.max_t(result.observed, result.drawn).p_value <= 0.05


def emerges(draw):
    import pandas as pd

    # what all texts of a checkpoint share is noise too
    values = draw.normal(size=(14, 1)) + draw.normal(size=(14, 6))
    table = pd.DataFrame(
        {"step": np.repeat(np.arange(14), 6), "sample": np.tile(np.arange(6), 14), "x": values.ravel()}
    )
    return statistics.emergence_step(table, "x", draws=199)["verdict"][0] in ("step", "trend")


def emerges_where_a_text_ends(draw):
    import pandas as pd

    values = draw.normal(size=(14, 6)) + np.arange(6.0)
    values[8:, 0] = math.nan
    table = pd.DataFrame(
        {"step": np.repeat(np.arange(14), 6), "sample": np.tile(np.arange(6), 14), "x": values.ravel()}
    )
    return statistics.emergence_step(table, "x", draws=199)["verdict"][0] in ("step", "trend")


@functools.cache
def held_out(trials):
    """Of states and a baseline that know nothing of the labels, in 20 templates of four texts: intervals."""
    draw, result = np.random.default_rng(17), []
    for _ in range(trials):
        template = np.repeat(np.arange(20), 4)
        labels = draw.permutation(np.arange(80) % 2)
        states, other = draw.normal(size=(80, 12)), draw.normal(size=(80, 2))
        result.append(
            asc.detection(
                states, labels, folds=template % 5, baselines={"other": other}, clusters=template, draws=300
            ).set_index("score")[["low", "high"]]
        )
    return result


def detected(column, *, one_sided=False):
    """Return the share of intervals that miss, or that lie above what noise has."""

    def rate(trials):
        truth = 0.0 if column == "auc_excess" else 0.5
        low, high = np.array([table.loc[column] for table in held_out(trials)]).T
        return float(np.mean(low > truth if one_sided else (low > truth) | (high < truth)))

    return rate


def leaks(draw):
    real, null = draw.normal(size=(2, 12, 1))
    return leakage_test(real, null, draws=499).p_value.item() <= 0.05


def residual(*, interval):
    """Scores of 32 texts in eight groups that share nothing."""

    def trial(draw):
        scores = torch.from_numpy(draw.normal(size=(32, 1, 8, 8)))
        profile = asc.PositionProfile(8, groups=8)
        profile.add(scores, group=[text // 4 for text in range(32)])
        size = asc.residual_size(profile, draws=499)
        return bool(size.low[0, 0] > 0) if interval else bool(size.p_value[0, 0] <= 0.05)

    return trial


def share(draw):
    scores = torch.from_numpy(draw.normal(size=(32, 1, 8, 8)))
    profile = asc.PositionProfile(8, groups=8)
    profile.add(scores, group=[text // 4 for text in range(32)])
    return bool(leakage_share(profile).low[0, 0] > 0)


def removal(part, factor, *, size=1.0):
    """An arm whose scores are the base's times a factor, with noise of their own: intervals that miss.

    Without a residual (`size` 0) nothing can be removed, and an interval at all is a miss.
    """
    truth = {"energy": 1 - factor**2, "size": 1 - factor, "pattern": 1 - factor}[part]

    def trial(draw):
        pattern = size * draw.normal(size=(8, 8))
        profiles = []
        for scale in (1.0, factor):
            scores = torch.from_numpy(scale * pattern + draw.normal(size=(32, 1, 8, 8)))
            profiles.append(asc.PositionProfile(8, groups=8))
            profiles[-1].add(scores, group=[text // 4 for text in range(32)])
        share = getattr(asc.removed(*profiles), part).layers[0]
        return misses(share, truth) if size and not math.isnan(share.low) else not math.isnan(share.low)

    return trial


def moved(draw):
    scores = torch.from_numpy(draw.normal(size=(32, 1, 8, 8)))
    profile = asc.PositionProfile(8, groups=8)
    profile.add(scores, group=[text // 4 for text in range(32)])
    return bool(moved_distance(profile, draws=499).p_value[0, 0] <= 0.05)


def slope_of(draw, texts):
    """The slope of texts of 12 and of 24 tokens that share the same two patterns in every trial."""
    profiles = []
    for n in (12, 24):
        pattern = np.random.default_rng(n).normal(size=(1, n, n))
        profiles.append(asc.PositionProfile(n, groups=8))
        for start in range(0, texts, 800):
            chosen = range(start, min(start + 800, texts))
            scores = pattern + draw.normal(size=(len(chosen), 1, n, n))
            profiles[-1].add(torch.from_numpy(scores), group=[8 * text // texts for text in chosen])
    return leakage_slope(profiles).slope


@functools.cache
def true_slope():
    return float(slope_of(np.random.default_rng(1), 16_000).estimate[0])


def slope(texts):
    def trial(draw):
        result = slope_of(draw, texts)
        return misses(Interval(0.0, float(result.low[0]), float(result.high[0]), 8), true_slope())

    return trial


def framed(draw):
    """Heads of random scores: none has a sink, so none has a frame."""
    scores = torch.from_numpy(3 * draw.normal(size=(6, 3, 4, 40, 40)))
    hidden = torch.ones(40, 40).triu(1).bool()
    positions = asc.sink_test(scores.masked_fill(hidden, -math.inf).softmax(-1)).position
    return asc.classify_frames(positions, lengths=40, causal=True).frame != "none"


def framed_anywhere(draw):
    """Sinks at keys that are drawn for every head: they have no common place."""
    positions = torch.from_numpy(draw.integers(0, 40, (6, 3, 4)))
    return asc.classify_frames(positions, lengths=40, causal=False).frame in ("centralized", "bidirectional")


def normal(draw, n):
    return draw.normal(size=n)


#: What is tested, by the words of its row in the table: trials, and one trial or the rate of them.
CASES = {
    "paired_test, n = 12": (1000, paired),
    "paired_test, lognormal, n = 12": (1000, paired_lognormal),
    "paired_test, differences of 1 or −1, n = 3": (1000, paired_counts),
    "welch_test, 8 and 20 of unequal variance": (1000, welch),
    "holm, any of ten correlated tests": (1000, holm),
    "control_test, 8 controls, 40 texts": (1000, control(8, 40, 10)),
    "control_test, 20 controls, 40 texts": (1000, control(20, 40, 40)),
    "control_test, 8 controls, 3 texts": (1000, control(8, 3, 100, between=0.0, within=1.0)),
    "correlation, Pearson's p, n = 12": (1000, association("pearson", 12, independent)),
    "correlation, Pearson's p, lognormal, n = 12": (5000, association("pearson", 12, skewed)),
    "correlation, Spearman's p, n = 6": (1000, association("spearman", 6, independent)),
    "correlation, Spearman's p, n = 12": (4000, association("spearman", 12, independent)),
    "correlation, Pearson's interval, n = 5": (1000, association("pearson", 5, independent, interval=True)),
    "correlation, Pearson's interval, lognormal, n = 12": (
        1000,
        association("pearson", 12, skewed, interval=True),
    ),
    "correlation, Pearson's interval, noise that grows, n = 30": (
        1000,
        association("pearson", 30, uneven, interval=True),
    ),
    "correlation, Spearman's interval, n = 12": (
        1000,
        association("spearman", 12, independent, interval=True),
    ),
    "partial_correlation, p, n = 15, two covariates": (3000, partial(interval=False)),
    "partial_correlation, interval, n = 15, two covariates": (1000, partial(interval=True)),
    "partial_correlation, Spearman's p, n = 40, a cause of both": (1000, partial_of_ranks),
    "within_correlation, p, 2 texts of 3 versions": (1000, within(2, 3)),
    "within_correlation, p, 8 texts of 5 versions": (1000, within(8, 5)),
    "bootstrap, n = 8": (4000, mean(8, normal)),
    "bootstrap, n = 29": (4000, mean(29, normal)),
    "bootstrap, n = 30": (4000, mean(30, normal)),
    "bootstrap, lognormal of sigma 1, n = 12": (1000, mean(12, lognormal, math.exp(0.5))),
    "bootstrap, lognormal of sigma 1, n = 40": (1000, mean(40, lognormal, math.exp(0.5))),
    "bootstrap, 12 clusters": (1000, clustered),
    "mean_intervals, any of 40 at once, n = 12": (1000, together),
    "median_interval, Cauchy, n = 12": (1000, median),
    "jackknife, 8 groups": (4000, jackknife),
    "sign_flips, Cauchy, 10 groups": (1000, flips),
    "sign_flips, products of 8 groups": (1000, flips_of_products),
    "exchange_labels, n = 24": (4000, exchanged),
    "max_t, any of 6": (1000, largest),
    "emergence_step, 14 checkpoints": (500, emerges),
    "emergence_step, a text of another mean that ends": (2000, emerges_where_a_text_ends),
    "detection, auc, 20 templates": (300, detected("auc")),
    "detection, auc above .5": (300, detected("auc", one_sided=True)),
    "detection, auc_direction, 20 templates": (300, detected("auc_direction")),
    "detection, auc_excess above 0": (300, detected("auc_excess", one_sided=True)),
    "leakage_test, 12 texts": (1000, leaks),
    "leakage_share, interval above 0": (300, share),
    "residual_size, p, 8 groups": (300, residual(interval=False)),
    "residual_size, interval above 0": (300, residual(interval=True)),
    "removed, energy, nothing removed": (1000, removal("energy", 1.0)),
    "removed, energy, half the scores": (2000, removal("energy", 0.5)),
    "removed, size, half the scores": (1000, removal("size", 0.5)),
    "removed, pattern, nothing removed": (1000, removal("pattern", 1.0)),
    "removed, pattern, half the scores": (1000, removal("pattern", 0.5)),
    "removed, a share of no residual": (1000, removal("energy", 1.0, size=0.0)),
    "moved_distance, p, 8 groups": (300, moved),
    "leakage_slope, interval, 8 groups of 4 texts": (1000, slope(32)),
    "classify_frames, a frame of heads without a sink": (300, framed),
    "classify_frames, a common place of sinks anywhere": (300, framed_anywhere),
}


def rows():
    """Rates of the table by the words of their rows."""
    text = README.read_text("utf-8").partition("## Levels\n")[2].partition("\n## ")[0]
    return {name: float(rate) for name, rate in re.findall(r"^\| ([^|]+?) \| (0?\.\d+|0) \|", text, re.M)}


def test_the_table_has_a_row_for_every_case_and_none_above():
    stored = rows()
    assert set(CASES) <= set(stored)
    for name in CASES:
        assert stored[name] <= ACCEPTED_LEVELS.get(name, MOST), name


def rate_of(name):
    trials, trial = CASES[name]
    if name.startswith("detection"):
        return trial(trials)
    draw = np.random.default_rng(17)
    return float(np.mean([trial(draw) for _ in range(trials)]))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_level_is_kept(name):
    rate = rate_of(name)
    print(f"| {name} | {rate:.3f} |")
    assert rate <= ACCEPTED_LEVELS.get(name, MOST)
    # the same seeds elsewhere: what differs is rounding
    assert rate == pytest.approx(rows()[name], abs=0.01)
