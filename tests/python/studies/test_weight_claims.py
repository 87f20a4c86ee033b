# SPDX-License-Identifier: MIT
"""Claims of the study of weight changes: of a pair, over pairs, over training runs, and the report's "
"sentences."""

import math

import numpy as np
import pandas as pd
import pytest

from attnscope.studies.pretraining_writes import claims as study_claims
from attnscope.studies.pretraining_writes.arm_claims import ARM_CLAIMS, Arms
from attnscope.studies.pretraining_writes.claims import (
    BASE_CLAIMS,
    PAIR_CLAIMS,
    PAIRS_CLAIMS,
    SERIES_CLAIMS,
    Series,
)
from attnscope.studies.pretraining_writes.evidence import Mean, log_moments
from attnscope.studies.pretraining_writes.options import WeightsOptions
from attnscope.studies.pretraining_writes.sections import describe_claim, findings, pair_rows
from attnscope.study_api.claims import Untestable

SUPPORTED, CONTRADICTED, UNDECIDED = "supported", "contradicted", "undecided"
NOT_TESTABLE = "not testable here"
OPTIONS = WeightsOptions()


class Pair:
    """A pair whose means are known, in octaves above isotropic.

    Args:
        read: q, k on their own inputs.
        write: o, down on theirs.
        prediction: o, down on the prediction subspace.
        texts: half of the jackknife interval; None without one.
        deviation: over random subspaces.
        nulls: variant -> octaves.
        expected: over random subspaces.
    """

    def __init__(
        self,
        read=0.0,
        write=0.0,
        prediction=0.0,
        *,
        texts=0.02,
        deviation=0.02,
        nulls=None,
        model="a",
        step=-1,
        noise=0.0,
        expected=0.0,
    ):
        self.keys = {"model": model, "step": step, "revision": "", "reference": "base"}
        self.noise, self.unchanged, self.step_ratio = noise, 0.97, 0.01
        self._values = {
            (("q", "k"), "in"): read,
            (("o", "down"), "in"): write,
            (("o", "down"), "out"): prediction,
        }
        self._texts, self._deviation, self._nulls = texts, deviation, nulls or {}
        self._expected = expected
        self.mechanism = pd.DataFrame(columns=["side", "predicted", "observed"])

    def _mean_of(self, value, spread=1.0):
        half = math.nan if self._texts is None else self._texts * spread
        return Mean(value, value - half, value + half, self._deviation * spread, self._expected)

    def mean(self, roles, side, subspace, null=""):
        if null:
            return self._mean_of(self._nulls[null]) if null in self._nulls else None
        value = self._values[tuple(roles), side]
        mean = self._mean_of(value)
        # the prediction subspace does not depend on texts
        return mean._replace(low=math.nan, high=math.nan) if subspace == "prediction" else mean

    def contrast(self, *_):
        return self._mean_of(self._values[("q", "k"), "in"] - self._values[("o", "down"), "in"], math.sqrt(2))

    def logit_isotropic(self, roles):
        return 9.0


def of_pair(pair, options=OPTIONS):
    return {row.claim: row for row in PAIR_CLAIMS.decide({"": pair}, options)}


@pytest.mark.parametrize(
    ("pair", "verdict", "reason"),
    [
        (Pair(2.0), SUPPORTED, ""),
        (Pair(0.01), CONTRADICTED, "is not above 1.25"),
        (Pair(0.4, deviation=0.1), UNDECIDED, "is not wholly above 1.25"),
        (Pair(2.0, nulls={"weights": 2.5}), UNDECIDED, "the base's own matrices give 5.66: as much as"),
        (Pair(2.0, nulls={"weights": 1.0, "other_layer": 0.5}), SUPPORTED, "the base's own matrices 2.00"),
        (Pair(2.0, nulls={"random_weights": 1.99}), UNDECIDED, "models with random weights give 3.97"),
        (Pair(2.0, texts=None), NOT_TESTABLE, "one group of texts: no interval"),
        (Pair(2.0, noise=0.9), NOT_TESTABLE, "below the rounding floor: 97 % of entries unchanged"),
    ],
)
def test_the_read_side(pair, verdict, reason):
    row = of_pair(pair)["C1"]
    assert row.verdict == verdict
    assert reason in row.reason


@pytest.mark.parametrize(
    ("pair", "verdict", "reason"),
    [
        (Pair(2.0, 0.5), SUPPORTED, "q, k 4.00 ["),
        (Pair(0.5, 2.0), CONTRADICTED, "is not above 0"),
        (Pair(1.0, 0.99), UNDECIDED, "is not wholly above 0"),
        (Pair(0.092, 0.0, texts=0.018, deviation=0.048), UNDECIDED, "neither pathway is concentrated"),
        (Pair(-0.05, 0.0, texts=0.001, deviation=0.01), UNDECIDED, "neither pathway is concentrated"),
        (Pair(2.0, 0.5, texts=None), NOT_TESTABLE, "one group of texts"),
    ],
)
def test_the_contrast_of_pathways(pair, verdict, reason):
    """The interval holds the change's own error: what the texts alone call certain is one draw of noise."""
    row = of_pair(pair)["C1b"]
    assert row.verdict == verdict
    assert reason in row.reason
    if verdict == SUPPORTED:
        assert row.p_adjusted <= 0.05


def test_both_errors_are_in_the_interval():
    mean = Mean(0.092, 0.067, 0.117, 0.05)
    low, high = mean.interval()
    assert high - 0.092 == pytest.approx(math.hypot(0.025, 1.959964 * 0.05))
    assert low < 0 < high
    assert Mean(0.5, math.nan, math.nan, 0.1).interval()[0] == pytest.approx(0.5 - 0.1959964)
    assert mean.interval(4)[1] - 0.092 == pytest.approx(math.hypot(0.025, 2.497705 * 0.05))
    assert mean.exceedance() == pytest.approx(0.032884, rel=1e-4)


@pytest.mark.parametrize(("d", "rank", "matrices"), [(64, 1, 1), (64, 1, 12), (64, 4, 12), (768, 1, 24)])
def test_changes_without_preferred_directions_of_any_rank_lie_in_their_interval(d, rank, matrices):
    """Logarithms of what strays around 1 lie below 0: of rank one, intervals held 0 in .72 of draws at 12."""
    rng, k, draws = np.random.default_rng(6), d // 16, 1500
    energy = rng.dirichlet(np.full(rank, 3.0), (draws, matrices))
    fraction = (energy * rng.beta(k / 2, (d - k) / 2, (draws, matrices, rank))).sum(-1)
    ratio = 1 / np.square(energy).sum(-1)
    deviation = np.sqrt(2 * k * (d - k) / (d**2 * (d - 1) * (d + 2)) * (d / ratio - 1))
    deviations, expected = log_moments(np.full_like(fraction, k / d), deviation)
    means = [
        Mean(value, math.nan, math.nan, float(np.sqrt(np.square(of_draw).sum())) / matrices, centre)
        for value, of_draw, centre in zip(
            np.log2(fraction * d / k).mean(1), deviations, expected.mean(1), strict=True
        )
    ]
    held = np.mean([low <= 0 <= high for low, high in (mean.interval() for mean in means)])
    assert held >= 0.94
    assert all(low <= mean.value <= high for mean in means for low, high in [mean.interval()])
    assert np.mean([mean.exceedance() <= 0.05 for mean in means]) <= 0.06


@pytest.mark.parametrize(
    ("octaves", "deviation", "verdict"),
    [(0.0, 0.02, SUPPORTED), (0.0, 0.4, UNDECIDED), (2.0, 0.02, CONTRADICTED), (-2.0, 0.02, CONTRADICTED)],
)
def test_the_write_side(octaves, deviation, verdict):
    row = of_pair(Pair(prediction=octaves, deviation=deviation))["C2"]
    assert row.verdict == verdict
    assert math.isnan(row.p_value)
    assert "independent logit errors would give the last layer 9.00" in row.reason


def test_borders_come_from_options():
    row = of_pair(Pair(0.4), WeightsOptions(band=(0.5, 2.0)))["C1"]
    assert (row.verdict, row.null) == (CONTRADICTED, 2.0)
    with pytest.raises(ValueError, match="expected a ratio below 1 and one above it"):
        WeightsOptions(band=(1.1, 1.2))


def over_pairs(pairs):
    return {row.claim: row for row in PAIRS_CLAIMS.decide({"": pairs}, OPTIONS)}


def test_pairs_are_the_unit():
    rows = over_pairs([Pair(value, 0.0) for value in (1.0, 2.0, 3.0)])
    # mean 2, deviation 1, three pairs: t(.975, 2) = 4.302653
    row = rows["C1"]
    assert row.value == pytest.approx(4.0)
    assert math.log2(row.high) - 2 == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)
    assert row.verdict == UNDECIDED
    assert row.reason.startswith("3 of 3 pairs above 1.25; pairs of one base are no independent ones")
    assert rows["C1b"].verdict == UNDECIDED
    alike = over_pairs([Pair(value, 0.1, 0.01) for value in (1.0, 1.01, 1.02)])
    assert {code: row.verdict for code, row in alike.items()} == dict.fromkeys(alike, SUPPORTED)
    flat = over_pairs([Pair(value, value) for value in (0.0, 0.01, -0.01)])
    assert flat["C1"].verdict == CONTRADICTED
    assert (flat["C1b"].verdict, "neither pathway" in flat["C1b"].reason) == (UNDECIDED, True)
    assert {row.verdict for row in over_pairs([Pair(1.0)]).values()} == {NOT_TESTABLE}


def test_over_pairs_the_read_side_has_the_nulls_of_each_pair():
    """A claim that no single pair supports, as its null is as concentrated, is not supported over all."""
    reached = [Pair(value, nulls={"weights": value + 0.5}) for value in (1.9, 2.0, 2.1)]
    assert {of_pair(pair)["C1"].verdict for pair in reached} == {UNDECIDED}
    row = over_pairs(reached)["C1"]
    assert row.verdict == UNDECIDED
    assert "the base's own matrices give 5.66: as much as the interval allows" in row.reason
    below = [Pair(value, nulls={"weights": value - 1}) for value in (1.9, 2.0, 2.1)]
    assert over_pairs(below)["C1"].verdict == SUPPORTED


def test_pairs_and_runs_of_low_rank_know_what_logarithms_lose():
    """Changes of rank one in 64 dimensions give -.4 octaves where they prefer nothing: their t intervals held
    isotropic in .16 of draws."""
    draw, k, d, pairs, matrices, draws = np.random.default_rng(3), 4, 64, 12, 8, 400
    deviation = np.sqrt(2 * k * (d - k) / (d**2 * (d + 2)))
    expected = float(log_moments(np.array([k / d]), np.array([deviation]))[1][0])
    octaves = np.log2(draw.beta(k / 2, (d - k) / 2, (draws, pairs, matrices)) * d / k).mean(-1)
    held = {"C2": 0, "C4": 0}
    for values in octaves:
        fields = {"expected": expected, "deviation": 0.1}
        rows = over_pairs([Pair(value, 0.0, value, **fields) for value in values])
        arm = [Pair(value, **fields) for value in values]
        rows["C4"] = of_arms(ce=arm, dpo=runs(3.0))["C4"]
        for code in held:
            held[code] += rows[code].low <= 1 <= rows[code].high
            assert rows[code].low <= rows[code].value <= rows[code].high
            assert rows[code].value == pytest.approx(2.0 ** values.mean())
    assert expected < -0.3
    assert min(held.values()) / draws >= 0.93


def test_runs_whose_ranks_differ_are_compared_less_what_logarithms_lose():
    low = of_arms(ce=runs(0.0), dpo=runs(-0.4, expected=-0.4))["C1c"]
    assert low.value == pytest.approx(-0.4)
    assert low.high >= 0
    graded = {
        f"contrastive_{2**power}": [
            Pair(prediction=shift * power - 0.2 * power, expected=-0.2 * power)
            for shift in (-0.01, 0.0, 0.01)
        ]
        for power in (0, 2, 4)
    }
    slope = of_arms(**graded)["C5"]
    assert slope.value == pytest.approx(-0.2)
    assert slope.low <= slope.value < 0 < slope.high


def test_the_largest_of_a_series_pays_for_the_choice():
    def last(values, **fields):
        series = Series([Pair(prediction=value, step=step, **fields) for step, value in enumerate(values)])
        return SERIES_CLAIMS.decide({"": series}, OPTIONS)[0]

    assert last([0.0, 0.5]).verdict == SUPPORTED
    assert last([0.0, 0.0]).verdict == CONTRADICTED
    # above 1.25 by 2.1 deviations: enough alone, not as the largest of four
    octaves = math.log2(1.25) + 2.1 * 0.05
    assert last([octaves, octaves], deviation=0.05).verdict == UNDECIDED
    assert "step 1 of 4 pairs" in last([0.0, 0.5, 0.1, 0.2]).reason
    assert last([1.0]).reason == "one pair; a trajectory needs a series of checkpoints"


def of_arms(**arms):
    runs = {arm: {str(at): pair for at, pair in enumerate(pairs)} for arm, pairs in arms.items()}
    return {row.claim: row for row in ARM_CLAIMS.decide({"": Arms(runs)}, OPTIONS)}


def runs(*values, **fields):
    """Three training runs that differ a little."""
    return [Pair(*(value + shift for value in values), **fields) for shift in (-0.02, 0.0, 0.02)]


def test_objectives_are_compared_over_training_runs():
    rows = of_arms(ce=runs(2.0, 1.0, 1.0), dpo=runs(3.0, 1.0, 2.0))
    assert rows["C1c"].value == pytest.approx(1.0)
    assert (rows["C1c"].verdict, rows["C2b"].verdict, rows["C4"].verdict) == (
        SUPPORTED,
        CONTRADICTED,
        SUPPORTED,
    )
    assert "dpo less ce, 3 training runs of each arm" in rows["C1c"].reason
    reversed_ = of_arms(ce=runs(2.0, 1.0, 2.0), dpo=runs(1.5, 1.0, 1.0))
    assert (reversed_["C1c"].verdict, reversed_["C2b"].verdict) == (CONTRADICTED, SUPPORTED)
    single = of_arms(ce=runs(2.0)[:1], dpo=runs(3.0)[:1])
    assert single["C1c"].verdict == NOT_TESTABLE
    assert "one training run: no interval" in single["C1c"].reason
    assert {row.verdict for row in of_arms().values()} == {NOT_TESTABLE}
    assert of_arms(ce=runs(2.0), noise=runs(0.0))["C4"].verdict == CONTRADICTED
    wide = [Pair(value) for value in (0.0, 0.7, 1.4)]
    assert of_arms(ce=runs(2.0), noise=wide)["C4"].verdict == UNDECIDED


def test_every_objective_must_be_certain_and_not_that_of_the_least_mean_alone():
    """An arm of a larger mean may reach lower, or have no interval at all."""
    wide = [Pair(value) for value in (0.5, 2.2, 3.9)]
    row = of_arms(ce=runs(2.0), dpo=wide)["C4"]
    assert row.verdict == UNDECIDED
    assert row.value == pytest.approx(2**2.2)
    single = of_arms(ce=runs(2.0), dpo=[Pair(3.0)])["C4"]
    assert single.verdict == NOT_TESTABLE
    assert "one training run: no interval" in single.reason
    # an arm that is not concentrated refutes it, whatever is known of the others
    assert of_arms(ce=runs(0.0), dpo=[Pair(3.0)])["C4"].verdict == CONTRADICTED


@pytest.mark.parametrize(
    ("white_in", "white_out", "verdict"),
    [
        ((0.2, 1.9), (1.9, 0.2), SUPPORTED),
        ((1.9, 1.9), (1.9, 0.2), CONTRADICTED),
        ((0.2, 0.2), (1.9, 0.2), CONTRADICTED),
        ((0.97, 1.9), (1.9, 0.2), UNDECIDED),
    ],
)
def test_whitening_is_judged_by_the_margin_that_says_least(white_in, white_out, verdict):
    rows = of_arms(
        plain=runs(2.0, 0.0, 2.0),
        white_in=runs(white_in[0], 0.0, white_in[1]),
        white_out=runs(white_out[0], 0.0, white_out[1]),
    )["C3"]
    assert rows.verdict == verdict
    assert "white_in leaves" in rows.reason
    assert not math.isnan(rows.low)


@pytest.mark.parametrize(
    ("slopes", "verdict"),
    [
        ((0.3, 0.31, 0.29), SUPPORTED),
        ((-0.05, -0.27, 0.18), UNDECIDED),
        ((-0.3, -0.31, -0.29), CONTRADICTED),
        ((0.3,), NOT_TESTABLE),
    ],
)
def test_the_slope_over_negatives(slopes, verdict):
    arms = {
        f"contrastive_{2**power}": [Pair(prediction=slope * power) for slope in slopes] for power in (0, 2, 4)
    }
    row = of_arms(**arms)["C5"]
    assert row.verdict == verdict
    assert row.value == pytest.approx(np.mean(slopes))


class Unmoved(Pair):
    """A pair whose changes lie in no tested subspace, as where training leaves the matrices as they are."""

    def mean(self, *_, **__):
        return None

    def contrast(self, *_):
        return None


def test_an_arm_without_a_change_is_in_no_choice():
    """An arm without a number was chosen as the least concentrated one if it stood first."""
    arms = {"ce": runs(2.0), "dpo": runs(1.0)}
    still = [Unmoved() for _ in range(3)]
    plain = of_arms(**arms)["C4"]
    for together in ({"frozen": still, **arms}, {**arms, "frozen": still}):
        row = of_arms(**together)["C4"]
        assert (row.value, row.verdict) == (plain.value, plain.verdict)
        assert "no change of q, k on their inputs: frozen" in row.reason
    assert of_arms(ce=runs(2.0), frozen=still)["C4"].verdict == NOT_TESTABLE


def test_runs_without_a_write_side_have_no_slope():
    """One arm without a number took the slope of the others with it, and K = 0 ended in an error."""
    slopes = {f"contrastive_{2**power}": runs(2.0, 0.0, 0.5 * power) for power in (0, 2, 4)}
    plain = of_arms(**slopes)["C5"]
    row = of_arms(**slopes, contrastive_64=[Unmoved() for _ in range(3)], contrastive_0=runs(0.0))["C5"]
    assert (row.value, row.verdict) == (plain.value, plain.verdict) == (pytest.approx(0.5), SUPPORTED)
    still = {f"contrastive_{number}": [Unmoved(), Unmoved()] for number in (1, 4)}
    assert of_arms(**still)["C5"].verdict == NOT_TESTABLE


def test_branches_of_no_known_step_are_pairs_of_their_own():
    """All of step -1 were one pair, the last."""
    pairs = [Pair(prediction=value, step=-1) for value in (0.1, 3.0, 0.2)]
    for pair, revision in zip(pairs, ("a", "b", "c"), strict=True):
        pair.keys["revision"] = revision
    row = SERIES_CLAIMS.decide({"": Series(pairs)}, OPTIONS)[0]
    assert row.value == pytest.approx(8.0)
    assert "revision b of 3 pairs" in row.reason


def rank_one_rows(layer, predicted=1.0, moved=1.0):
    """Changes of down whose divergences are twice as large along directions of predictions."""
    return pd.DataFrame(
        [
            {
                "sample": sample,
                "layer": layer,
                "role": "down",
                "direction": name,
                "kl": moved * kl * (1 + 0.1 * sample),
                "predicted_kl": predicted * kl,
            }
            for sample in range(4)
            for name, kl in (("prediction", 0.07), ("complement", 0.035))
        ]
    )


def test_what_is_true_by_construction_is_no_finding():
    row = BASE_CLAIMS.decide({"": rank_one_rows(1)}, OPTIONS)[0]
    assert row.verdict == NOT_TESTABLE
    assert row.reason.startswith("down of layer 1: true by construction, of any base")
    assert row.value == pytest.approx(2.0)


def test_changes_before_the_last_block_are_called_by_their_layer():
    """Nothing is true by construction there: later blocks read the change too."""
    rows = pd.concat([rank_one_rows(0, math.nan), rank_one_rows(2, math.nan)])
    row = BASE_CLAIMS.decide({"": rows}, OPTIONS)[0]
    assert row.reason.startswith("down of layer 2: more than the unembedding reads this change")
    assert "construction" not in row.reason
    assert "nan" not in row.reason
    still = BASE_CLAIMS.decide({"": rank_one_rows(2, moved=0.0)}, OPTIONS)[0]
    assert math.isnan(still.value)
    assert still.reason == "down of layer 2: predictions of fewer than two texts moved"


class Run:
    """A run that keeps what is written."""

    def __init__(self):
        self.rows, self.stored = [], self

    def tables(self):
        return {"fractions": None, "deltas": None}

    def read(self, name):
        return pd.DataFrame()

    def write(self, table, **row):
        self.rows.append(row)


def written(monkeypatch, pairs, **options):
    recorder = Run()
    monkeypatch.setattr(study_claims, "pairs_of", lambda tables: pairs)
    study_claims.write(recorder, WeightsOptions(**options))
    return pd.DataFrame(recorder.rows)


def test_what_is_of_the_run_is_written_once(monkeypatch):
    """Eight pairs: C2b, C4, C5, C6 and C7 have one row, not one for each pair."""
    table = written(monkeypatch, [Pair(2.0, 1.0, 0.0, model=f"m{at}") for at in range(8)])
    counts = table["claim"].value_counts()
    assert {code: counts[code] for code in ("C2b", "C4", "C5", "C6", "C7", "C1c")} == dict.fromkeys(
        ("C2b", "C4", "C5", "C6", "C7", "C1c"), 1
    )
    assert counts["C1"] == 9
    assert not table.duplicated(["model", "revision", "step", "reference", "claim"]).any()
    assert len(pair_rows(table[table["reference"] == "base"])) == 8
    series = written(monkeypatch, [Pair(step=step) for step in (10, 1, 2)])
    rows = series[series["claim"] == "C7"]
    assert rows["step"].tolist() == [10]
    several = written(monkeypatch, [Pair(1.0, model=name, step=step) for name in "abc" for step in (1, 2)])
    assert len(several[several["claim"] == "C7"]) == 3
    assert (
        several[(several["claim"] == "C1") & (several["model"] == "all pairs")]["reason"]
        .iloc[0]
        .startswith("3 of 3 pairs")
    )


class Results:
    """Stored claims."""

    def __init__(self, table):
        self._table = table

    def tables(self):
        return ["claims"]

    def table(self, _):
        return self._table


def test_the_top_of_the_report_speaks_of_a_few_pairs_or_of_all(monkeypatch):
    few = written(monkeypatch, [Pair(2.0, model=f"m{at}") for at in range(2)])
    lines = findings(Results(few))
    assert len(lines) == 6
    assert lines[0].startswith("m0, C1: q, k change along what they read: supported; 4 [")
    assert "times an isotropic change" in lines[0]
    table_of_eight = written(monkeypatch, [Pair(2.0 + 0.01 * at, model=f"m{at}") for at in range(8)])
    lines = findings(Results(table_of_eight))
    assert all(line.startswith("all pairs, ") for line in lines)
    assert "times an isotropic change" in lines[0]
    assert "8 of 8 pairs above 1.25" in lines[0]


@pytest.mark.parametrize("seed", range(20))
def test_main_numbers_never_contradict_the_claims(seed, monkeypatch):
    """Whatever was measured, each sentence has the verdict and the value of its row."""
    rng = np.random.default_rng(seed)
    pairs = [
        Pair(*(2 * rng.standard_normal(3)), deviation=rng.choice([0.01, 0.3]), model=f"m{at}")
        for at in range(int(rng.choice([1, 2, 4])))
    ]
    table = written(monkeypatch, pairs)
    for line in findings(Results(table)):
        name, _, sentence = line.partition(", ")
        rows = table[(table["model"] == name) & (table["claim"] == sentence.partition(":")[0])]
        (row,) = rows.to_dict("records")
        assert f": {row['verdict']};" in sentence
        assert f"{row['value']:.3g}".replace("-", "−") in sentence
        others = {SUPPORTED, CONTRADICTED, UNDECIDED, NOT_TESTABLE} - {row["verdict"]}
        assert not any(f": {verdict};" in sentence for verdict in others)


def test_sentences_are_made_of_the_case_that_holds(monkeypatch):
    """Every verdict of every claim: the sentence holds it and nothing that another verdict would need."""
    pairs = {
        SUPPORTED: Pair(2.0, 0.5, 0.0),
        CONTRADICTED: Pair(0.0, 2.0, 2.0),
        UNDECIDED: Pair(0.3, 0.3, 0.3, deviation=0.2),
        NOT_TESTABLE: Pair(2.0, noise=0.9),
    }
    for verdict, pair in pairs.items():
        rows = of_pair(pair)
        for code in ("C1", "C1b", "C2"):
            text = describe_claim(rows[code])
            assert f": {verdict};" in text or f": {verdict} (" in text, text
            assert "cannot but" not in text
        assert ("is not wholly" in describe_claim(rows["C1"])) == (verdict == UNDECIDED)
    noise = of_pair(Pair(0.055, 0.0, texts=0.02, deviation=0.06))["C1b"]
    text = describe_claim(noise)
    assert text.startswith(
        "C1b: q, k change along what they read more than o, down along what those read: undecided"
    )
    assert "neither pathway is concentrated" in text
    assert isinstance(PAIR_CLAIMS.declared["C3"].measure(Pair(), OPTIONS), Untestable)
