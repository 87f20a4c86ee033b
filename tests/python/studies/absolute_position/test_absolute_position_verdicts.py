# SPDX-License-Identifier: MIT
"""Every verdict of the study in every state, and the sentences that are made of them."""

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

import attnscope as asc
from attnscope.published import compare_published
from attnscope.studies.absolute_position import anchors, sections
from attnscope.studies.absolute_position.arms import matched_sets
from attnscope.studies.absolute_position.claims import CLAIMS, Evidence
from attnscope.studies.absolute_position.figures import FIGURES
from attnscope.studies.absolute_position.first_position import mean_cosine, project_directions
from attnscope.studies.absolute_position.options import PositionOptions
from attnscope.studies.absolute_position.removals import arm_rows
from attnscope.study_api import number_text

OPTIONS = PositionOptions()
FEW = [0.10, 0.11, 0.09, 0.10, 0.10, 0.11, 0.10, 0.09]


def judged(code, options=OPTIONS, *, learned="", controls=None, **tables):
    """The row of one claim from tables made by hand."""
    frames = {
        name: rows if isinstance(rows, pd.DataFrame) else pd.DataFrame(rows) for name, rows in tables.items()
    }
    evidence = Evidence(frames, learned, controls or {})
    return {row.claim: row for row in CLAIMS.decide({"": evidence}, options)}[code]


def overall(**statistics):
    rows = []
    for name, numbers in statistics.items():
        keys = ("estimate", "low", "high", "p_value")
        rows.append({"statistic": name.replace("__", " "), **dict(zip(keys, numbers, strict=False))})
    return pd.DataFrame(rows)


def heads(**columns):
    """Rows of `position`: two layers, two heads, windows and shuffled tokens."""
    rows = [
        {"arm": "base", "queries": "early", "input": name, "layer": layer, "head": head}
        for name in ("windows", "shuffled")
        for layer in range(2)
        for head in range(2)
    ]
    return pd.DataFrame(rows).assign(**({"p_adjusted": 0.5, "moved_p_value": 0.34} | columns))


def means(moved, low, high, share=0.5):
    rows = [
        {
            "arm": "base",
            "queries": "early",
            "input": name,
            "layer": 0,
            "mask_cut": 0.51,
            "mask_share": share,
            "moved_l2": moved**2,
            "moved_l2_low": low**2,
            "moved_l2_high": high**2,
        }
        for name in ("windows", "shuffled")
    ]
    return pd.DataFrame(rows)


def removed(energy, pattern, controls=(-1.0, -0.5)):
    """Rows of `removed_arms` of replacements with these shares and half widths of .1."""
    rows = []

    def row(arm, kind, energy, pattern, count=1):
        part = {"arm": arm, "kind": kind, "count": count}
        for name, value in (("energy", energy), ("pattern", pattern)):
            part |= {
                f"{name}_removed": value,
                f"{name}_removed_low": value - 0.1,
                f"{name}_removed_high": value + 0.1,
                f"{name}_least": value - 0.3,
                f"{name}_most": value + 0.3,
            }
        rows.append(part)

    for arm in ("zero", "mean"):
        row(arm, "replacement", energy, pattern)
    row("replacements", "all", energy, pattern, 2)
    for at, control in enumerate(controls):
        row(f"control_{at}", "control", control, 0.3)
        row(f"replacements_less_control_{at}", "difference", energy - control, pattern - 0.3)
    return pd.DataFrame(rows)


def shift(value, reason=None):
    return {"checks": [{"check": "shift", "value": value, "tolerance": 1e-5, "reason": reason}]}


def gap(value):
    return {"trajectory": [{"arm": "base", "gap": value, "tolerance": 1e-5, "across": 0.0}]}


def layer_0(*moved, share=0.5):
    return {"layer_means": means(*moved, share=share), "position": heads()}


def following(*values, middle=(0.35, 0.3, 0.4)):
    return {"overall": overall(follows_token=values, token_in_the_middle=middle)}


def entropies(*layers):
    return [{"layer": layer, "temperature": 1.0, "softmax_entropy": 0.1 * layer} for layer in layers]


STATES = [
    ("C1", shift(1e-6), "supported", "identity"),
    ("C1", shift(1e-3), "contradicted", "below"),
    ("C1", shift(math.nan, "no rotation"), "not testable here", "no rotation"),
    ("C2", layer_0(0.01, 0.0, 0.02), "supported", "cuts 0.510 nats; smallest p"),
    ("C2", layer_0(0.04, 0.03, 0.06), "undecided", "not wholly below 0.1"),
    ("C2", layer_0(0.2, 0.1, 0.3), "contradicted", "where no position is"),
    ("C2", layer_0(0.01, 0.0, 0.02, share=0.0), "not testable here", "cuts nothing"),
    ("C4", gap(1e-7), "supported", "identity"),
    ("C4", gap(1e-3), "contradicted", "not"),
    ("C4", {}, "not testable here", "out of reach"),
    ("C8", {}, "not testable here", "out of reach"),
    ("C9", {}, "not testable here", "no BOS token"),
    ("C9", {"placements": [{"placement": "as_read"}]}, "not testable here", "no head reads"),
    ("C9", following(0.3, -0.2, 0.8), "undecided", "not wholly above 0"),
    (
        "C9",
        following(-0.3, -0.4, -0.2, middle=(0.0, -0.1, 0.1)),
        "contradicted",
        "stays where the text begins",
    ),
    ("C10", {}, "not testable here", "no BOS token"),
    ("C10", {"overall": overall(loss_beyond=(0.0, -0.2, 0.2))}, "undecided", "not wholly"),
    ("C10", {"overall": overall(loss_beyond=(-0.3, -0.4, -0.2))}, "contradicted", "not above"),
    ("P1", {}, "not testable here", "one length"),
    ("P2", {}, "not testable here", "no q-values"),
    ("P4", {}, "not testable here", "could not be read"),
    ("P4", {"softmax_statistics": entropies(0, 2, 3)}, "not testable here", "of layers 0, 2, 3, some"),
]


def test_entropies_of_all_layers_are_of_neighbours():
    row = judged("P4", softmax_statistics=entropies(0, 1, 2))
    assert row.value == pytest.approx(0.1)
    assert "neighbours" not in row.reason


def test_reads_of_a_single_set_of_heads_have_no_range():
    """A range was printed of one value."""
    keys = {"scope": "from_1", "queries": "early", "measure": "uniform", "kind": "read", "model": "m"}
    rows = pd.DataFrame({"arm": "unread", "draw": [0, 1, 2, -1], "energy_removed": [0.5, 0.1, 0.3, 0.9]})
    shown = {}
    page = SimpleNamespace(frame=lambda name, caption, frame, **rest: shown.update({name: frame}))
    sections._reads_frame(page, rows.assign(**keys))
    ranges = shown["reads"].set_index("heads")["range"]
    assert ranges.to_dict() == {"readers": "–", "other sets": "0.100 to 0.300", "all heads": "–"}


@pytest.mark.parametrize(("code", "tables", "verdict", "words"), STATES)
def test_each_state_has_its_verdict_and_its_words(code, tables, verdict, words):
    row = judged(code, **tables)
    assert row.verdict == verdict
    assert words in row.reason
    if verdict == "supported":
        assert not row.p_adjusted > OPTIONS.alpha


def test_a_model_whose_positions_are_learned_says_nothing_of_layer_0():
    reason = "positions are learned: scores move"
    for code in ("C1", "C2"):
        row = judged(code, learned=reason, layer_means=means(0.2, 0.1, 0.3), position=heads(), checks=[])
        assert (row.verdict, row.reason) == ("not testable here", reason)


def test_untrained_models_take_support_away():
    """Each claim that is held against random weights: supported, as good untrained, no control, too few."""
    residual = {
        "overall": overall(
            leakage_share__windows=(0.3, 0.2, 0.4, 1e-4), leakage_share__shuffled=(0.3, 0.2, 0.4, 1e-4)
        ),
        "position": heads(p_adjusted=0.01),
    }
    mlp = {"overall": overall(mlp_ratio=(0.5, 0.4, 0.6)).assign(least=0.3, most=0.9)}
    path = pd.DataFrame(
        {"layer": [-1, 0], "distance": [1.0, 0.5], "relative_step": [math.nan, 0.4], "gain": [math.nan, 0.8]}
    )
    dynamics = {"overall": overall(contraction=(-0.4, -0.5, -0.3)), "dynamics": path}
    arms = {"removed_arms": removed(0.6, 0.8)}
    loss = {"overall": overall(loss_beyond=(0.3, 0.2, 0.4), loss_without=(0.4, 0.3, 0.5))}
    cases = {
        "C9": (following(0.3, 0.2, 0.4), "follows_token", 1.0),
        "C10": (loss, "loss_beyond", 1.0),
        "C3": (residual, "leakage_share windows", 1.0),
        "C5": (arms, "energy_removed", 1.0),
        "P3": (mlp, "mlp_ratio", -1.0),
        "C11": (dynamics, "contraction", -1.0),
    }
    for code, (tables, statistic, sign) in cases.items():
        worse = [sign * value for value in FEW] if sign > 0 else [1.0 + value for value in FEW]
        better = [sign * (0.9 + value) for value in FEW]
        assert judged(code, controls={statistic: worse}, **tables).verdict == "supported", code
        as_well = judged(code, controls={statistic: better}, **tables)
        assert as_well.verdict == "undecided", code
        assert "models with random weights: mean" in as_well.reason
        assert "do as well" in as_well.reason
        absent = judged(code, **tables)
        assert absent.verdict == "not testable here"
        assert "the control was not measured" in absent.reason
        assert "options.nulls=[random_weights]" in absent.reason
        assert judged(code, controls={statistic: worse[:4]}, **tables).verdict == "not testable here"


def test_a_residual_is_decided_by_the_input_that_says_less():
    def row(p, low):
        statistics = overall(
            leakage_share__windows=(0.3, 0.2, 0.4, 1e-4), leakage_share__shuffled=(0.1, low, 0.2, p)
        )
        controls = {"leakage_share windows": FEW}
        return judged("C3", overall=statistics, position=heads(), controls=controls)

    assert row(1e-4, 0.05).verdict == "supported"
    unsure = row(0.2, -0.05)
    assert (unsure.verdict, unsure.value, unsure.p_value) == ("undecided", 0.1, 0.2)
    assert unsure.reason.startswith("shuffled;")
    # without a share of the windows the other input is judged alone
    of_shuffled = overall(leakage_share__shuffled=(0.3, 0.2, 0.4, 1e-4))
    controls = {"leakage_share windows": FEW}
    assert judged("C3", overall=of_shuffled, position=heads(), controls=controls).verdict == "supported"


def test_heads_without_a_test_are_no_heads_that_were_tested():
    """One of three heads rejects, one does not, and one is not defined."""
    tested = heads().iloc[[0]].drop(columns="p_adjusted")
    rows = pd.concat([tested.assign(layer=1, p_adjusted=p, input="windows") for p in (0.01, 0.9, math.nan)])
    share = overall(leakage_share__windows=(0.3, 0.2, 0.4, 1e-4))
    assert "windows 50 %" in judged("C3", overall=share, position=rows).reason
    leakage = pd.DataFrame({"protocol": "exact", "p_adjusted": [0.01, 0.9, math.nan]})
    assert judged("P2", leakage_tests=leakage).value == 0.5
    assert math.isnan(judged("P2", leakage_tests=leakage.assign(p_adjusted=math.nan)).value)


def test_replacements_are_read_by_energy_and_by_pattern():
    controls = {"energy_removed": FEW}
    assert judged("C5", removed_arms=removed(0.6, 0.8), controls=controls).verdict == "supported"
    # a replacement removes the original pattern and writes its own
    replaced = judged("C5", removed_arms=removed(-0.6, 0.9), controls=controls)
    assert replaced.verdict == "undecided"
    assert "energy −0.600 [−0.700, −0.500], pattern 0.900" in replaced.reason
    neither = judged("C5", removed_arms=removed(-0.6, -0.5), controls=controls)
    assert neither.verdict == "contradicted"
    # another position removes as much
    other = judged("C5", removed_arms=removed(0.6, 0.8, controls=(0.6, 0.2)), controls=controls)
    assert other.verdict == "undecided"
    assert judged("C5", removed_arms=removed(math.nan, math.nan)).verdict == "not testable here"
    assert judged("C5").reason == "no arm replaces the first embedding"


def reads(readers, others):
    rows = [
        {"draw": 0, "energy_removed": readers},
        *({"draw": k + 1, "energy_removed": v} for k, v in enumerate(others)),
    ]
    table = pd.DataFrame(rows)
    return table.assign(
        arm="unread",
        scope="from_1",
        queries="early",
        measure="uniform",
        energy_removed_low=table["energy_removed"] - 0.05,
        energy_removed_high=table["energy_removed"] + 0.05,
    )


def test_readers_are_ranked_among_different_sets():
    twenty = np.linspace(-0.2, 0.2, 20)
    row = judged("C6", removed=reads(0.9, twenty))
    assert (row.verdict, row.p_value) == ("supported", pytest.approx(1 / 21))
    assert row.p_adjusted == row.p_value, "no other claim's p is in its family"
    assert judged("C6", removed=reads(0.15, twenty)).verdict == "undecided"
    assert judged("C6", removed=reads(-0.9, twenty)).verdict == "contradicted"
    few = judged("C6", removed=reads(0.99, [0.0] * 5))
    assert few.verdict == "not testable here"
    assert "5 different sets" in few.reason
    assert "20 are needed for a p of 0.05 (options.matched)" in few.reason
    assert judged("C6", PositionOptions(alpha=0.2), removed=reads(0.99, [0.0] * 5)).verdict == "supported"
    assert judged("C6").reason == "no head outside the last layer reads position 0"


def test_fingerprints_must_be_constant_with_bos_and_vary_without():
    base = {
        "fingerprints": [{"arm": "base", "fingerprint_cosine": 1.0}],
        "trajectory": [{"arm": "base", "across": 0.0, "gap": 0.0, "tolerance": 1e-5}],
    }
    half = judged("C8", **base)
    assert half.verdict == "not testable here"
    assert "no_bos was not measured" in half.reason
    varied = overall(fingerprint_without_bos=(0.3, 0.2, 0.4))
    assert judged("C8", overall=varied, **base).verdict == "supported"
    constant = overall(fingerprint_without_bos=(1.0, 1.0, 1.0))
    assert judged("C8", overall=constant, **base).verdict == "contradicted"
    base["fingerprints"] = [{"arm": "base", "fingerprint_cosine": 0.9}]
    assert judged("C8", overall=varied, **base).verdict == "contradicted"


@pytest.mark.parametrize("width", [40, 512])
def test_one_direction_in_every_text_has_a_cosine_of_1_however_wide_states_are(width):
    run = SimpleNamespace(rng=lambda *_: np.random.default_rng(3))
    direction = torch.nn.functional.normalize(torch.arange(1.0, width + 1, dtype=torch.float64), dim=0)
    texts = project_directions(direction.expand(8, 4, 2, width), run)
    cosine = mean_cosine(texts.sum(1).numpy(), np.full(8, 4.0))
    assert cosine.estimate == pytest.approx(1.0, abs=1e-12)
    statistic = overall(fingerprint_without_bos=(cosine.estimate, cosine.low, cosine.high))
    base = {
        "fingerprints": [{"arm": "base", "fingerprint_cosine": 1.0}],
        "trajectory": [{"arm": "base", "across": 0.0, "gap": 0.0, "tolerance": 1e-5}],
    }
    assert judged("C8", overall=statistic, **base).verdict == "contradicted"


def test_leakage_is_decided_over_all_layers_and_counts_those_without_a_share():
    slopes = pd.DataFrame(
        {
            "slope": [-2.0, -1.5, math.nan],
            "slope_low": [-3.0, -2.0, math.nan],
            "slope_high": [-1.0, -1.0, math.nan],
        }
    )
    row = judged("P1", leakage_slopes=slopes, overall=overall(leakage_slope=(-1.7, -2.0, -1.4)))
    assert row.verdict == "supported"
    assert "falls in 2 of 3 layers; 1 has no share above 0 at every length" in row.reason
    assert (row.low, row.range_low, row.range_high) == (-2.0, -2.0, -1.5)
    unsure = judged("P1", leakage_slopes=slopes, overall=overall(leakage_slope=(-1.7, -4.0, 0.6)))
    assert unsure.verdict == "undecided"
    rises = judged("P1", leakage_slopes=slopes, overall=overall(leakage_slope=(1.7, 1.0, 2.6)))
    assert rises.verdict == "contradicted"
    slopes.loc[0, ["slope_low", "slope_high"]] = math.nan  # a share that a group of texts carries
    row = judged("P1", leakage_slopes=slopes, overall=overall(leakage_slope=(-1.7, -2.0, -1.4)))
    assert "falls in 1 of 3 layers, of which 1 has a slope without an interval; 1 has no share" in row.reason
    assert (row.range_low, row.range_high) == (-2.0, -1.5)


@pytest.mark.parametrize("readers", [[(0, 1)], [(0, 1), (0, 2), (1, 3)]])
def test_few_sets_are_all_of_them_and_many_are_different(readers):
    rng = np.random.default_rng(0)
    sets = matched_sets(readers, [4] * 2, 1000, rng)
    layers = sorted(layer for layer, _ in readers)
    sizes = [layers.count(layer) for layer in sorted(set(layers))]
    total = math.prod(math.comb(4, size) for size in sizes) - 1
    assert len(sets) == len(set(sets)) == total
    assert tuple(readers) not in sets
    assert all(sorted(layer for layer, _ in members) == layers for members in sets)
    few = matched_sets(readers, [4] * 2, total - 1, rng)
    assert len(few) == len(set(few)) == total - 1
    assert tuple(readers) not in few


@pytest.mark.parametrize(("heads_of_layer", "size"), [(8, 1), (8, 3), (6, 3)])
def test_the_rank_of_a_set_is_uniform_where_heads_do_not_differ(heads_of_layer, size):
    """Sets that share no head with the readers would not be exchangeable with them."""
    rng = np.random.default_rng(1)
    sets = np.array(list(itertools.combinations(range(heads_of_layer), size)))
    effects = rng.standard_normal((20000, heads_of_layer))
    energies = effects[:, sets].sum(-1)
    readers = energies[:, [0]]
    p_values = (energies >= readers - 1e-12).sum(1) / len(sets)
    for alpha in (0.125, 0.25, 0.5):
        assert np.mean(p_values <= alpha) <= alpha + 0.01


def test_draws_widen_an_interval_and_their_range_is_no_interval():
    rng = np.random.default_rng(0)
    groups = np.concatenate([np.zeros((1, 3)), 0.01 * rng.standard_normal((8, 3))])
    groups[1:] -= groups[1:].mean(0)

    def rows(values):
        return {
            row["arm"]: row
            for row in arm_rows(
                {
                    ("token", "replacement"): [groups + value for value in values],
                    ("control_1", "control"): [groups - 1.0],
                }
            )
        }

    spread, constant = rows([-0.36, 0.35, 0.58]), rows([0.19, 0.19, 0.19])
    assert spread["token"]["energy_removed"] == pytest.approx(0.19)
    assert (spread["token"]["energy_least"], spread["token"]["energy_most"]) == (-0.36, 0.58)
    width = [
        rows_of_arms["token"]["energy_removed_high"] - rows_of_arms["token"]["energy_removed_low"]
        for rows_of_arms in (spread, constant)
    ]
    assert width[0] > 5 * width[1] > 0
    less = spread["replacements_less_control_1"]
    assert less["energy_removed"] == pytest.approx(1.19)
    assert spread["replacements"]["count"] == 1


class Stored:
    """Tables in memory, with the options of a run."""

    def __init__(self, options=None, **tables):
        self.kept, self.study = tables, {"options": options or {}}

    def tables(self):
        return list(self.kept)

    def table(self, name):
        return self.kept[name]


def line_of(table):
    keys = {"model": "a", "revision": "", "step": -1}
    (line,) = sections._removed(Stored(removed_arms=table.assign(**keys)), "a")
    return line


def test_sentences_of_what_is_removed_name_the_range_of_draws():
    table = removed(0.6, 0.8)
    table.loc[table["arm"] == "mean", ["energy_removed", "count", "energy_least", "energy_most"]] = [
        0.35,
        8,
        -0.36,
        0.58,
    ]
    line = line_of(table)
    assert "removes 35 % (the mean embedding: mean of 8, −36 % to 58 %) to 60 % (a zero vector)" in line
    assert "80 % of its original pattern are gone" in line
    assert "other positions removes −100 % to −50 %" in line


def test_a_residual_that_grows_is_not_said_to_be_removed():
    line = line_of(removed(-0.62, 0.88))
    assert "makes the residual 62 % larger, while 88 % of its original pattern" in line
    assert "removes 0." not in line
    assert "removes −62" not in line


@pytest.mark.parametrize("seed", range(40))
def test_main_numbers_never_contradict_the_claims(seed):
    """Whatever the tables hold, each sentence ends in the verdict of the claim that it is about."""
    rng = np.random.default_rng(seed)
    keys = {"model": "a", "revision": "", "step": -1}
    arms = removed(*rng.uniform(-1, 1, 2), controls=rng.uniform(-1, 1, 2)).assign(**keys)
    size, half = 0.1 * rng.standard_normal(), abs(0.1 * rng.standard_normal())
    ends = (size, size - half, size + half, rng.choice([1e-4, 0.4]))
    tables = {
        "overall": overall(leakage_share__windows=ends, leakage_share__shuffled=ends),
        "position": heads(p_adjusted=0.01),
        "removed_arms": arms,
    }
    controls = {
        name: (rng.choice([0.0, 1.0]) * rng.standard_normal(8)).tolist()
        for name in ("leakage_share windows", "energy_removed")
    }
    claims = {code: judged(code, controls=controls, **tables) for code in ("C3", "C5")}
    layers = pd.DataFrame(
        [
            {
                **keys,
                "queries": "early",
                "arm": "base",
                "input": "windows",
                "layer": layer,
                "residual": size,
                "residual_low": size - half,
                "residual_high": size + half,
            }
            for layer in range(2)
        ]
    )
    rows = pd.DataFrame([{**keys, **vars(row)} for row in claims.values()])
    residual, replaced = sections.findings(Stored(layer_means=layers, removed_arms=arms, claims=rows))
    for sentence, code in ((residual, "C3"), (replaced, "C5")):
        claim = claims[code]
        number = "" if math.isnan(claim.value) else f", {number_text.number(claim.value)}"
        interval = number_text.interval_text(claim.low, claim.high)
        assert sentence.endswith(f"({code}: {claim.verdict}{number} {interval}".rstrip() + ").")
    if "larger, while" in replaced:
        assert claims["C5"].verdict != "supported"


def test_the_threshold_of_readers_is_that_of_the_run():
    row = {
        "model": "a",
        "revision": "",
        "step": -1,
        "arm": "base",
        "layer": 0,
        "head": 1,
        "a0": 0.25,
        "a0_low": 0.2,
        "uniform": 0.1,
    }
    table = pd.DataFrame([row])
    (line,) = sections._readers(Stored({"reader": 0.2}, fingerprints=table), "a")
    assert "1 of 1 heads read position 0 with more than 0.2" in line
    (line,) = sections._readers(Stored(fingerprints=table), "a")
    assert "no head reads position 0 with more than 0.3" in line
    undefined = table.assign(head=2, a0=float("nan"), a0_low=float("nan"))
    with_undefined = Stored({"reader": 0.2}, fingerprints=pd.concat([table, undefined]))
    assert "1 of 1 heads read" in sections._readers(with_undefined, "a")[0]
    # uniform attention in a short window is more than the threshold, and no reading of position 0
    table = table.assign(a0=0.17, a0_low=0.155, uniform=0.16)
    (line,) = sections._readers(Stored({"reader": 0.08}, fingerprints=table), "a")
    assert "no head reads position 0 with more than 0.08 and more than uniform attention gives it" in line


def test_ordinary_tokens_are_held_by_texts_and_have_embeddings_of_their_own(results, folder):
    from transformers import AutoModelForCausalLM

    samples = results.table("samples")
    ids = {int(token) for tokens in samples["token_ids"] for token in tokens}
    drawn = results.table("ordinary_tokens")["token"].tolist()
    assert len(set(drawn)) == len(drawn) == 2
    assert set(drawn) <= ids
    table = AutoModelForCausalLM.from_pretrained(folder).get_input_embeddings().weight.detach()
    first, second = table[drawn]
    assert (first - second).norm() > 0.01 * first.norm()


def test_the_claims_are_decided_with_their_controls(results):
    claims = results.table("claims").set_index("claim")
    controls = results.table("control_overall")
    statistics = {"leakage_share windows", "energy_removed", "mlp_ratio", "contraction", "follows_token"}
    assert statistics | {"loss_beyond"} <= set(controls["statistic"])
    assert set(controls["draw"]) == {0, 1, 2}
    # three initialisations are too few for a verdict
    for code in ("C3", "C5", "P3", "C9", "C10", "C11"):
        assert claims.loc[code, "verdict"] != "supported", code
    assert not claims["reason"].fillna("").str.contains("silent").any()


def test_placements_keep_what_is_behind_the_middle(results):
    table = results.table("placements")
    assert set(table["placement"]) == {"as_read", "moved", "twice", "ordinary_front", "ordinary_middle"}
    assert table.groupby("placement")["sample"].nunique().eq(16).all()
    assert table["loss"].between(0, 20).all()
    dynamics = results.table("dynamics")
    assert sorted(dynamics["layer"]) == [-1, 0, 1, 2]
    assert (dynamics["gain"].dropna() > 0).all()


@pytest.mark.parametrize("most", [0.05, 0.4])
def test_untrained_heads_are_chosen_by_what_they_read_of_position_0(most):
    """Two layers of two heads; where none reads as much as a reader does, the one that reads most."""
    reads = {
        "as_read": [[0.03, 0.1], [most, 0.2], [0.02, 0.3], [0.01, 0.4]],
        "moved": [[0.0, 0.9], [0.1, 0.35], [0.0, 0.9], [0.0, 0.9]],
        "ordinary_front": [[0.0, 0.0]] * 4,
        "ordinary_middle": [[0.0, 0.0]] * 4,
    }
    losses = {"as_read": 2.0, "moved": 2.0, "ordinary_front": 2.5, "ordinary_middle": 2.2}
    sums = {
        (name,): SimpleNamespace(mean=np.append(np.ravel(pairs), losses[name]))
        for name, pairs in reads.items()
    }
    run = SimpleNamespace(reduced=lambda *_, **keys: sums if keys == {"model": "a", "seed": 3} else {})
    statistics = anchors.control_statistics(run, "a", 3, OPTIONS)
    # more than at position 0: .25; more than is there as read: .15
    assert statistics == {"follows_token": pytest.approx(0.15), "loss_beyond": pytest.approx(0.3)}
    assert anchors.control_statistics(run, "a", 4, OPTIONS) == {}


def test_no_column_of_a_table_takes_the_name_of_one_of_its_keys():
    """A measured `step` took the place of the checkpoint's: all layers but one left the figure."""
    from attnscope.studies.absolute_position.tables import TABLES

    for table in TABLES:
        assert not set(table.keys) & {column.name for column in table.columns}, table.name


def test_the_path_of_position_0_has_every_layer(results):
    table = results.table("dynamics")
    assert (table["step"] == -1).all()
    assert table.set_index("layer")["relative_step"].drop(-1).gt(0).all()
    axes = FIGURES["trajectory"](results).figure.axes
    assert axes[1].lines[0].get_xdata().tolist() == [-1, 0, 1, 2]


def test_the_published_share_is_compared_with_the_mean_over_draws_and_its_interval():
    """The interval of a mean over draws is narrower than the mean of their intervals."""
    keys = {"model": "m", "revision": "", "step": -1, "arm": "token", "kind": "replacement"}
    places = {"scope": "from_1", "layer": 1, "queries": "early", "measure": "uniform"}
    share = "energy_removed"
    removed = [
        {
            **keys,
            **places,
            "draw": draw,
            share: value,
            f"{share}_low": value - 0.5,
            f"{share}_high": value + 0.5,
        }
        for draw, value in enumerate((0.2, 0.4))
    ]
    arms = [{**keys, "count": 2, share: 0.3, f"{share}_low": 0.1, f"{share}_high": 0.5}]
    tables = {"removed": pd.DataFrame(removed), "removed_arms": pd.DataFrame(arms)}
    results = asc.Results(tables, study={"study": "absolute_position", "options": {}})
    (row,) = compare_published(results, "absolute_position").table.to_dict("records")
    assert (row["exact"], row["exact_low"], row["exact_high"]) == (0.3, 0.1, 0.5)
    assert row["difference"] == pytest.approx(-0.1)
