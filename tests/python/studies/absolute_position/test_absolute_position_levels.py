# SPDX-License-Identifier: MIT
"""How often each claim is supported or contradicted without an effect, and how often one is found.

Numbers of groups of texts are drawn, and go through the study's own estimates, intervals, tests, controls
and rule. Without an effect the model is one more initialisation, and sets of heads are exchangeable. The
rates are in the tests' README.
"""

import numpy as np
import pandas as pd
import pytest
import torch
from test_absolute_position_verdicts import heads, means, reads

from attnscope.engine.run_study import run
from attnscope.metrics.positions.position_profile import PositionProfile
from attnscope.statistics.groups import jackknife, jackknife_bounds, mean_product, sign_flips
from attnscope.statistics.leakage import leakage_slope
from attnscope.statistics.residuals import removal_replicates
from attnscope.studies.absolute_position.claims import CLAIMS, CONSTANT, Evidence
from attnscope.studies.absolute_position.dynamics import contraction
from attnscope.studies.absolute_position.first_position import mean_cosine
from attnscope.studies.absolute_position.mlp_shares import of_sums
from attnscope.studies.absolute_position.options import PositionOptions
from attnscope.studies.absolute_position.removals import arm_rows
from folders import model_folder, sentences
from position_study import settings

OPTIONS = PositionOptions(permutations=999)
GROUPS, CONTROLS, TRIALS = 16, 8, 200
LARGEST = 0.05 + 3.3 * (0.05 * 0.95 / TRIALS) ** 0.5

pytestmark = pytest.mark.slow


def heavy(rng, *shape):
    """Noise with heavier tails than a normal law, of variance 1."""
    return rng.standard_t(5, shape) / (5 / 3) ** 0.5


def verdict(code, controls=None, **tables):
    evidence = Evidence(tables, "", controls or {})
    answer = CLAIMS.declared[code].measure(evidence, OPTIONS)
    (row,) = CLAIMS.decide_measured({code: answer}, None)
    return row.verdict


def rates(trial, seed, trials=TRIALS):
    rng = np.random.default_rng(seed)
    verdicts = pd.Series([trial(rng) for _ in range(trials)])
    table = verdicts.value_counts(normalize=True)
    print(f"{trial.__qualname__}: {table.to_dict()}")
    return table.get("supported", 0.0), table.get("contradicted", 0.0)


def statistic(name, numbers):
    return pd.DataFrame([{"statistic": name, **numbers}])


def residual(effect, offset):
    """C3: residuals of groups; each initialisation has a pattern of its own of size `offset`."""

    def share(rng, size):
        pattern = rng.standard_normal(30)
        vectors = (size + offset) * pattern / np.linalg.norm(pattern) + heavy(rng, GROUPS, 30) / 30**0.5
        return vectors @ vectors.T

    def trial(rng):
        rows = []
        for name in ("windows", "shuffled"):
            gram = share(rng, effect)
            value, low, high, _ = jackknife_bounds(
                np.arange(GROUPS), lambda groups, gram=gram: mean_product(gram[np.ix_(groups, groups)])
            )
            p_value = sign_flips(gram[None], draws=999, seed=0)[0]
            numbers = {"estimate": value, "low": low, "high": high, "p_value": p_value}
            rows.append(statistic(f"leakage_share {name}", numbers))
        controls = {"leakage_share windows": [float(mean_product(share(rng, 0.0))) for _ in range(CONTROLS)]}
        return verdict("C3", controls, overall=pd.concat(rows), position=heads())

    return trial


def removal(removed, control_removed, untrained):
    """C5: a base residual of size 1, of which replacements and other positions take a share away."""

    def replicates(rng, share):
        pattern = rng.standard_normal((1, 2, 1, 30)) / 30**0.5
        noise = 0.5 / 30**0.5
        base = pattern + noise * heavy(rng, GROUPS, 2, 1, 30)
        arm = (1 - share) * pattern + noise * heavy(rng, GROUPS, 2, 1, 30)
        return removal_replicates(torch.from_numpy(base), torch.from_numpy(arm), [0, 1])[..., -1]

    def trial(rng):
        arms = {(name, "replacement"): [replicates(rng, removed)] for name in ("zero", "mean")}
        arms |= {
            (name, "control"): [replicates(rng, control_removed)] for name in ("control_1", "control_late")
        }
        controls = {"energy_removed": [replicates(rng, untrained)[0, 0] for _ in range(CONTROLS)]}
        return verdict("C5", controls, removed_arms=pd.DataFrame(arm_rows(arms)))

    return trial


def readers(effect, heads_of_layer, size):
    """C6: effects of heads add up; the readers' may be larger."""

    def trial(rng):
        effects = np.abs(rng.standard_normal((2, heads_of_layer)))
        effects[0, :size] += effect
        readers_set = tuple(range(size))
        drawn = {readers_set}
        while len(drawn) < 21:
            drawn.add(tuple(sorted(rng.permutation(heads_of_layer)[:size].tolist())))
        sets = [readers_set, *(members for members in drawn if members != readers_set)]
        energies = [effects[0, list(members)].sum() / 10 for members in sets]
        return verdict("C6", removed=reads(energies[0], energies[1:]))

    return trial


def placements(effect, offset=0.0):
    """C9 and C10: means of groups of texts; each initialisation has an effect of its own of size `offset`."""

    def groups(rng, size):
        return size + offset * rng.standard_normal() + heavy(rng, GROUPS)

    def trial(code, names):
        statistic_of_controls = {"C9": "follows_token", "C10": "loss_beyond"}[code]

        def run(rng):
            rows = []
            for name in names:
                mean = jackknife(groups(rng, effect), np.mean)
                numbers = {"estimate": mean.estimate, "low": mean.low, "high": mean.high}
                rows.append(statistic(name, numbers))
            draws = [min(groups(rng, 0.0).mean() for _ in names) for _ in range(CONTROLS)]
            return verdict(code, {statistic_of_controls: draws}, overall=pd.concat(rows))

        return run

    return trial("C9", ("follows_token", "token_in_the_middle")), trial("C10", ("loss_beyond",))


def paths(factor):
    """C11: states of 9 tokens whose common part grows by a factor, or not at all.

    What is each token's own moves but keeps its size: with a factor of 1 both steps have one law.
    """

    def states(rng, growth):
        common = rng.standard_normal(16)
        entry = rng.standard_normal((9, 16))
        end = 0.91**0.5 * entry + 0.3 * rng.standard_normal((9, 16))
        return np.stack([entry + common, end + growth * common])

    def trial(rng):
        tokens_apart = states(rng, factor)
        change = jackknife(
            np.moveaxis(tokens_apart, 1, 0), lambda tokens: contraction(np.moveaxis(tokens, 0, 1))
        )
        numbers = {"estimate": change.estimate, "low": change.low, "high": change.high}
        controls = {"contraction": [contraction(states(rng, 1.0)) for _ in range(CONTROLS)]}
        path = pd.DataFrame(
            {"layer": [-1, 0], "distance": [1.0, 1.0], "relative_step": [1.0, 1.0], "gain": [1.0, 1.0]}
        )
        return verdict("C11", controls, overall=statistic("contraction", numbers), dynamics=path)

    return trial


def layer_0(size):
    """C2: attention of layer 0 that is moved by `size` of what the mask moves, beside noise of groups."""

    def trial(rng):
        pattern = rng.standard_normal(30)
        pattern *= 0.5 * size / np.linalg.norm(pattern)
        vectors = pattern + 0.02 * heavy(rng, GROUPS, 30) / 30**0.5
        gram = vectors @ vectors.T
        value, low, high, _ = jackknife_bounds(
            np.arange(GROUPS), lambda groups: mean_product(gram[np.ix_(groups, groups)])
        )
        roots = [float(np.sqrt(max(end, 0.0))) for end in (value, low, high)]
        return verdict("C2", layer_means=means(*roots), position=heads())

    return trial


def without_bos(gap):
    """C8: fingerprints without BOS whose true cosine over texts is 1 − gap, constant with BOS."""

    def trial(rng):
        common = rng.standard_normal((3, 40))
        common /= np.linalg.norm(common, axis=-1, keepdims=True)
        noise = rng.standard_normal((GROUPS, 4, 3, 40))
        noise -= (noise * common).sum(-1, keepdims=True) * common
        noise /= np.linalg.norm(noise, axis=-1, keepdims=True)
        directions = (1 - gap) ** 0.5 * common + gap**0.5 * noise
        cosine = mean_cosine(directions.sum(1), np.full(GROUPS, 4.0))
        numbers = {"estimate": cosine.estimate, "low": cosine.low, "high": cosine.high}
        base = pd.DataFrame([{"arm": "base", "fingerprint_cosine": 1.0}])
        path = pd.DataFrame([{"arm": "base", "across": 0.0}])
        overall = statistic("fingerprint_without_bos", numbers)
        return verdict("C8", fingerprints=base, trajectory=path, overall=overall)

    return trial


def lengths(shares):
    """P1: texts of 12 and 24 tokens whose scores have these true shares of position."""

    def body_variance(n):
        profile = PositionProfile(n, groups=4)
        noise = torch.randn(4000, 1, n, n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
        profile.add(noise, [text % 4 for text in range(4000)], layer=1)
        rows = profile.rows_of((2, profile.m - 1), attention_stored=False, without=())
        return float(profile.group_means("body_variance")[..., rows].mean())

    noise = {n: body_variance(n) for n in shares}

    def scores(rng, n, share):
        pattern = torch.from_numpy(rng.standard_normal((1, 1, n, n)))
        noiseless = PositionProfile(n, groups=4)
        noiseless.add(pattern.expand(16, 1, n, n), [text % 4 for text in range(16)], layer=1)
        size = float(mean_product(noiseless.gram((2, noiseless.m - 1)).numpy()).item())
        pattern = pattern * (share / (1 - share) * noise[n] / size) ** 0.5
        return pattern + torch.from_numpy(rng.standard_normal((4 * GROUPS, 1, n, n)))

    def trial(rng):
        profiles = []
        for n, share in shares.items():
            profile = PositionProfile(n, groups=GROUPS)
            profile.add(scores(rng, n, share), [text // 4 for text in range(4 * GROUPS)], layer=1)
            profiles.append(profile)
        slope = leakage_slope(profiles)
        numbers = dict(zip(("estimate", "low", "high"), map(float, slope.overall), strict=True))
        names = ("slope", "slope_low", "slope_high")
        layers = pd.DataFrame(dict(zip(names, slope.slope, strict=True)))
        return verdict("P1", leakage_slopes=layers, overall=statistic("leakage_slope", numbers))

    return trial


def mlps(ratio):
    """P3: states with a share between positions, of which the outputs keep a part."""

    def ratio_of(rng, share_left):
        terms = []
        for share in (1.0, share_left):
            pattern = rng.standard_normal((7, 8))
            pattern -= pattern.mean(0)
            # of one size, or the true ratio would be that of two drawn sizes
            pattern *= (56 * share) ** 0.5 / np.linalg.norm(pattern)
            states = pattern + rng.standard_normal((1, GROUPS, 8, 7, 8))
            squares = np.square(states).sum((-1, -2)).sum(-1)
            centre = 7 * np.square(states.mean(-2)).sum(-1).sum(-1)
            packed = np.concatenate(
                [
                    states.sum(2).reshape(1, GROUPS, -1),
                    np.full((1, GROUPS, 1), 8.0),
                    squares[..., None],
                    centre[..., None],
                ],
                axis=-1,
            )
            terms.append(packed)
        return of_sums(np.stack(terms), 7)

    def trial(rng):
        measured = ratio_of(rng, ratio)
        numbers = {
            "estimate": measured.estimate,
            "low": measured.low,
            "high": measured.high,
            "least": 0.0,
            "most": 1.0,
        }
        controls = {"mlp_ratio": [ratio_of(rng, 1.0).estimate for _ in range(CONTROLS)]}
        return verdict("P3", controls, overall=statistic("mlp_ratio", numbers))

    return trial


NULLS = {
    "C2, moved as much as the border": (layer_0(0.1), 300),
    "C3, no residual": (residual(0.0, 0.0), TRIALS),
    "C3, a residual of its own in each initialisation": (residual(0.0, 1.0), TRIALS),
    "C5, nothing removed": (removal(0.0, 0.0, 0.0), TRIALS),
    "C5, as much as untrained": (removal(0.5, 0.0, 0.5), TRIALS),
    "C6, 1 of 32 exchangeable heads": (readers(0.0, 32, 1), 4000),
    "C6, 4 of 32 exchangeable heads": (readers(0.0, 32, 4), 4000),
    "C8, a cosine at the border": (without_bos(1 - CONSTANT), 300),
    "C9, neither token nor position": (placements(0.0)[0], TRIALS),
    "C10, no loss": (placements(0.0)[1], TRIALS),
    "C9, an effect of its own in each initialisation": (placements(0.0, 1.0)[0], TRIALS),
    "C10, an effect of its own in each initialisation": (placements(0.0, 1.0)[1], TRIALS),
    "C11, paths keep their distance": (paths(1.0), 300),
    "P1, shares of one size": (lengths({12: 0.3, 24: 0.3}), 300),
    "P3, as much behind as before": (mlps(1.0), 150),
}
EFFECTS = {
    "C2": (layer_0(0.02), 100),
    "C3": (residual(2.0, 1.0), 100),
    "C5": (removal(0.5, 0.0, 0.0), 100),
    "C6": (readers(8.0, 32, 4), 100),
    "C8": (without_bos(0.3), 100),
    "C9": (placements(1.5)[0], 100),
    "C10": (placements(1.5)[1], 100),
    "C11": (paths(8.0), 100),
    "P1": (lengths({12: 0.5, 24: 0.2}), 50),
    "P3": (mlps(0.2), 50),
}


@pytest.mark.parametrize("name", NULLS)
def test_without_an_effect_no_verdict_is_more_frequent_than_its_level(name):
    trial, trials = NULLS[name]
    supported, contradicted = rates(trial, 0, trials)
    largest = 0.05 + 3.3 * (0.05 * 0.95 / trials) ** 0.5
    assert supported <= largest
    # what one initialisation has is real, so that it may contradict
    if "of its own in each initialisation" not in name:
        assert contradicted <= largest


@pytest.mark.parametrize("name", EFFECTS)
def test_a_planted_effect_is_found(name):
    trial, trials = EFFECTS[name]
    supported, contradicted = rates(trial, 1, trials)
    assert supported >= 0.8
    assert contradicted == 0


#: Claims that say something of training: what holds for any causal model is left out.
LEARNED = ("C3", "C5", "C6", "C9", "C10", "C11", "P1", "P3")


@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt_neox"])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_model_with_random_weights_supports_no_claim_about_training(name, seed, tmp_path):
    folder = model_folder(tmp_path / "m", name, seed=seed)
    texts = sentences(tmp_path / "texts.txt", 40)
    options = {
        "random_weights": 8,
        "leakage": False,
        "bands": 0,
        "inputs": ["windows", "shuffled"],
        "vectors": 4,
    }
    results = run(settings(folder, texts, tmp_path, block=16, protocols="exact", **options), progress=False)
    claims = results.table("claims").set_index("claim")
    print(name, seed, claims["verdict"].to_dict())
    supported = [code for code in LEARNED if claims.loc[code, "verdict"] == "supported"]
    # eight verdicts of a level of .05 each
    assert len(supported) <= 1, claims.loc[supported, ["value", "low", "high", "reason"]].to_string()
