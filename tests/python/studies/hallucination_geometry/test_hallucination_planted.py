# SPDX-License-Identifier: MIT
"""A planted difference is found, and told apart by whether the output reads it; none is found else."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

import attnscope as asc
from attnscope.engine.planning import make_plan
from attnscope.engine.run_study import resume, run
from attnscope.statistics.exchange import max_t
from attnscope.studies.hallucination_geometry import states
from attnscope.studies.hallucination_geometry.claims import CLAIMS
from attnscope.studies.hallucination_geometry.clouds import Space, compare
from attnscope.studies.hallucination_geometry.contrasts import contrasts
from attnscope.studies.hallucination_geometry.detecting import directions_auc
from attnscope.studies.hallucination_geometry.direction_sensitivity import (
    directions_of_chance,
    p_values_of_layers,
    spread,
)
from attnscope.studies.hallucination_geometry.evidence import Evidence, exceedance
from attnscope.studies.hallucination_geometry.interventions import _Fitted, bypassed, detectors
from attnscope.studies.hallucination_geometry.options import HallucinationOptions, InterventionOptions
from attnscope.studies.hallucination_geometry.sections import findings
from folders import killed, table_bytes
from knowing_study import model_folder, questions, settings

ALONG = {
    "interventions": False,
    "answers": False,
    "lens": False,
    "nulls": ["covariance", "random_weights"],
    "random_weights": 3,
    "fewest_controls": 3,
    "others": ["unknown"],
    "sensitivity": {"prompts": 3, "directions": 30, "refusal": ["u"]},
    "permutations": 199,
}


def test_labels_of_pairs_templates_and_nests():
    import pandas as pd

    table = pd.DataFrame(
        {
            "sample": range(48),
            "bucket": ["factual", "unknown"] * 24,
            "template": [f"t{at // 12}" for at in range(48)],
            "pair": [f"p{at // 2}" for at in range(48)],
            "fold": [f"f{at // 24}" for at in range(48)],
        }
    )
    options = HallucinationOptions(others=["unknown"])
    rng = np.random.default_rng(0)
    of_pairs = contrasts(table, options, rng)[0]
    assert of_pairs.n == 24
    assert not of_pairs.nested
    assert set(np.bincount(of_pairs.pairs)) == {2}
    loose = contrasts(table.assign(pair=""), options, rng)[0]
    assert loose.pairs is None
    nested = contrasts(table.assign(pair="", template=table["bucket"]), options, rng)[0]
    assert nested.nested
    exchanged = nested.exchange(lambda drawn: drawn[:, 0].astype(float), 99, 0)
    assert np.isnan(exchanged.p_value)
    fewer = table[(table["bucket"] == "factual") | (table["sample"] < 20)].assign(pair="")
    assert contrasts(fewer, options, rng)[0].n == 10


@pytest.mark.slow
@pytest.mark.parametrize("read", [True, False])
def test_a_planted_direction_is_found_expressed_or_silent(read, tmp_path, monkeypatch):
    """Added to the last states of `unknown`: the direction that logits read most, or one they do not read."""
    folder = model_folder(tmp_path / "m")
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        model.lm_head.weight[:, 0] = 0
        model.lm_head.weight[:, 1] *= 4
    model.save_pretrained(folder)
    texts = questions(tmp_path / "q.csv")
    axis = np.eye(32)[1 if read else 0].astype(np.float32)
    plain = states.last_states

    def planted(run, batch):
        if run.unit.variant:  # the controls are models without the effect
            yield from plain(run, batch)
            return
        unknown = {
            text.sentence.sample for text in run.unit.inputs if text.sentence.extra["bucket"] == "unknown"
        }
        for layer, last in plain(run, batch):
            if layer == 1:
                size = 0.4 * np.linalg.norm(last, axis=1).mean()
                last = last + size * np.array([[sample in unknown] for sample in batch.samples]) * axis
            yield layer, last

    monkeypatch.setattr(states, "last_states", planted)
    results = run(settings(folder, texts, tmp_path, **ALONG), progress=False)
    claims = results.table("claims").set_index("claim")
    assert claims.loc["C1 unknown", "verdict"] == "supported"
    assert claims.loc["C1 unknown", "p_adjusted"] <= 0.05
    rows = results.table("contrasts")
    row = rows[(rows["quantity"] == "log_transport_ratio") & (rows["layer"] == 1)].iloc[0]
    assert (row["value"] > 0) == read
    gain = results.table("readout")
    gain = gain[(gain["layer"] == 1) & (gain["direction"] == "boundary")]["readout_gain"].iloc[0]
    assert gain > 5 if read else gain < 0.1
    assert "beyond words and length (excess" in findings(results)[0]
    assert findings(results)[0].endswith("it is expressed." if read else "it is silent.")


@pytest.mark.slow
def test_a_run_killed_in_each_stage_ends_as_one_that_was_not(tmp_path):
    folder = model_folder(tmp_path / "m")
    texts = questions(tmp_path / "q.csv", slots=5)
    how = {"protocols": ("exact", "ruscio2026"), "permutations": 19, "random_weights": 1, "least": 20}
    uninterrupted = run(settings(folder, texts, tmp_path / "whole", **how), progress=False)
    units = make_plan(settings(folder, texts, tmp_path / "plan", **how)).units
    stages = [unit.stage for unit in units]
    assert list(dict.fromkeys(stages)) == [
        "checks",
        "states",
        "answers",
        "clouds",
        "along",
        "interventions",
        "claims",
    ]
    for stage in dict.fromkeys(stages):
        before = stages.index(stage)
        if not before:
            continue
        stopped = killed(settings(folder, texts, tmp_path / f"killed_{stage}", **how), before)
        assert not (stopped / "tables" / "claims.parquet").exists()
        resume(stopped, progress=False)
        assert table_bytes(uninterrupted.path) == table_bytes(stopped), stage


@pytest.mark.slow
def test_memory_does_not_grow_with_the_prompts(tmp_path):
    """A model of 260,000 parameters in a process of its own; four times the prompts cost next to nothing."""
    folder = model_folder(
        tmp_path / "m",
        hidden_size=64,
        intermediate_size=172,
        num_hidden_layers=5,
        num_attention_heads=8,
        num_key_value_heads=4,
    )
    code = (
        "import re, torch, attnscope as asc\ntorch.set_num_threads(1)\n"
        # what the study imports on its way is no memory of the prompts
        "import pandas, pyarrow.parquet, scipy.stats, attnscope.engine.engine\n"
        "import attnscope.studies.hallucination_geometry.study\n"
        "from transformers import LlamaForCausalLM, PreTrainedTokenizerFast\n"
        # getrusage counts the memory of the process that started this one too
        "def peak():\n"
        "    return float(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1]) / 1024\n"
        "before = peak()\n"
        "asc.run(asc.Study(**{study!r}), progress=False)\n"
        "print(peak() - before)\n"
    )
    peaks, counts = [], []
    for slots in (5, 20):
        texts = questions(tmp_path / f"q{slots}.csv", pairs=8, slots=slots)
        study = settings(
            folder,
            texts,
            tmp_path,
            name=f"s{slots}",
            block=64,
            permutations=199,
            dimension_k=[10],
            primary_k=10,
            nulls=["covariance"],
            interventions=False,
            answers=False,
        )
        finished = subprocess.run(
            [sys.executable, "-c", code.format(study=study.to_dict())],
            capture_output=True,
            text=True,
            check=True,
            # a fixed threshold: what is freed goes back at once, so that runs differ by a few MB alone
            env={**os.environ, "MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "131072"},
        )
        peaks.append(float(finished.stdout.split()[-1]))
        counts.append(len(texts.read_text("utf-8").splitlines()) - 1)
    print("peak MB beside the libraries", peaks)
    assert counts == [240, 960]
    # four matrices of distances between prompts, 28 MB, and a layer's states are all that grows; the states
    # of every token of a block's prompts, kept by mistake, are 50 more
    assert peaks[1] - peaks[0] < 50
    # a block of prompts, what a backward pass takes, and the libraries' own buffers
    assert max(peaks) < 200


def simulated(seed, shift=0.0, scale=1.0):
    """Pairs of points of eight templates; the second of a pair may be moved or spread."""
    rng = np.random.default_rng(seed)
    templates = np.arange(64) // 8
    points = np.repeat(rng.standard_normal((32, 12)), 2, axis=0) + rng.standard_normal((64, 12))
    points += rng.standard_normal((8, 12))[templates]
    labels = np.arange(64) % 2
    points[labels == 1, 0] += shift
    points[labels == 1, 3:] *= scale
    return torch.from_numpy(points), labels, templates


def simulated_contrast(labels, templates, draws):
    """Options and the contrast of simulated states."""
    import pandas as pd

    table = pd.DataFrame(
        {
            "sample": range(64),
            "bucket": np.where(labels == 1, "unknown", "factual"),
            "template": templates.astype(str),
            "pair": [str(at // 2) for at in range(64)],
            "fold": (templates // 2).astype(str),
            "tokens": 5 + np.arange(64) % 7,
        }
    )
    options = HallucinationOptions(others=["unknown"], dimension_k=[8], primary_k=8, permutations=draws)
    return options, contrasts(table, options, np.random.default_rng(0))[0]


def p_values(seed, draws, **how):
    """Smallest p-values of the study's own statistics on simulated states."""
    states, labels, templates = simulated(seed, **how)
    options, contrast = simulated_contrast(labels, templates, draws)
    p_by_name = {
        name: value[4] for (name, _), value in compare(Space(states, options), contrast, seed).items()
    }
    data = states.numpy()
    area = contrast.exchange(
        lambda labelling: np.abs(directions_auc(data, labelling, contrast.folds) - 0.5), draws, seed
    )
    p_by_name["auc_direction"] = area.p_value
    # the sensitivity uᵀFu of a fixed F, along the boundary and along directions of chance
    form = torch.diag(torch.cat([torch.tensor([50.0]), torch.linspace(0.1, 3, 11)])).double()
    v = states[labels == 1].mean(0) - states[labels == 0].mean(0)
    drawn = asc.null_directions(spread(contrast, states), "covariance", draws=draws, seed=seed)
    directions = torch.cat([v[None] / v.norm(), drawn])
    logs = ((directions @ form) * directions).sum(-1).log().numpy()[:, None]
    p_by_name["log_fisher_ratio"] = p_values_of_layers(logs[0], logs[1:])[0][0]
    return {name: float(value) for name, value in p_by_name.items()}


@pytest.mark.slow
def test_levels_hold_where_there_is_nothing():
    """p < .05 in 3 to 7 % of 400 draws, for dimension, fragmentation, detection and sensitivity."""
    draws = [p_values(seed, 199) for seed in range(400)]
    for name in ("log_dimension_ratio", "fragmentation_gap", "auc_direction", "log_fisher_ratio"):
        rate = np.mean([p_by_name[name] < 0.05 for p_by_name in draws])
        assert 0.03 <= rate <= 0.07, (name, rate)


def transport_p_values(seed, shift):
    """Return p of a quadratic form along the boundary, among isotropic directions and exchanged labels."""
    states, labels, templates = simulated(seed, shift=shift)
    _, contrast = simulated_contrast(labels, templates, 199)
    form = torch.diag(torch.cat([torch.tensor([50.0]), torch.linspace(0.1, 3, 11)])).double()
    boundary = states[labels == 1].mean(0) - states[labels == 0].mean(0)
    boundary /= boundary.norm()
    drawn = directions_of_chance(contrast, states, 20, seed)
    value = float(torch.log(boundary @ form @ boundary))
    logs = {kind: torch.log(torch.einsum("md,de,me->m", d, form, d)).numpy() for kind, d in drawn.items()}
    return [exceedance(value, logs[kind]) for kind in ("isotropic", "labels")]


@pytest.mark.slow
def test_transport_holds_its_level_and_has_power():
    """Each p alone is below .05 in 3 to 7 % of 400 draws, both in fewer; planted, in 9 of 10."""
    unplanted = np.array([transport_p_values(seed, 0.0) for seed in range(400)])
    for kind, rate in zip(("isotropic", "labels"), (unplanted < 0.05).mean(0), strict=True):
        assert 0.03 <= rate <= 0.07, (kind, rate)
    assert (unplanted.max(1) < 0.05).mean() <= 0.05
    planted = np.array([transport_p_values(seed, 4.0) for seed in range(40)])
    assert (planted < 0.05).all(1).mean() >= 0.9


@pytest.mark.parametrize("shift", [0.0, 20.0])
def test_exchanged_labels_do_not_lie_along_a_large_difference(shift):
    states, labels, templates = simulated(0, shift=shift)
    _, contrast = simulated_contrast(labels, templates, 19)
    boundary = states[labels == 1].mean(0) - states[labels == 0].mean(0)
    drawn = directions_of_chance(contrast, states, 200, 0)["labels"]
    cosines = (drawn @ (boundary / boundary.norm())).abs()
    # twelve dimensions, of which the templates widen all alike: a mean of .23
    assert cosines.mean() < 0.35


def test_moves_along_random_directions_that_do_not_exist_are_not_made():
    """Equal states of a bucket have no covariance: moves of length 0 changed no answer and were a control."""
    _, labels, templates = simulated(0)
    _, contrast = simulated_contrast(labels, templates, 19)
    states = torch.zeros(len(labels), 6, dtype=torch.float64)
    states[torch.from_numpy(labels == 1), 0] = 2.0
    how = InterventionOptions(controls=2)
    fitted = _Fitted(states, contrast, np.ones(len(labels), dtype=bool), how, 0)
    named, moves = fitted.moves(torch.ones(6, dtype=torch.float64), how)
    steering = [
        (key["control"], move) for key, move in zip(named, moves, strict=True) if "steer" in key["arm"]
    ]
    assert {control for control, _ in steering} == {"boundary", "isotropic"}
    assert all(move.norm() > 0 for _, move in steering)


def bypass_claim(seed, **how):
    """C10 of detectors that are fitted to simulated states of two layers, and of logits of chance."""
    import pandas as pd

    states, labels, templates = simulated(seed, **how)
    options, contrast = simulated_contrast(labels, templates, 199)
    rng, rows = np.random.default_rng([seed, 1]), []
    logits = 3 * rng.standard_normal((64, 50))
    logits[:, 0] -= 5
    for layer in (0, 1):
        states_of_layer = states + 0.5 * torch.from_numpy(rng.standard_normal((64, 12)))
        for control, chances in detectors(contrast, states_of_layer, seed).items():
            for gain in (1, 2, 5, 10, 20, 50):
                key = {"contrast": "unknown", "layer": layer, "arm": "bypass", "control": control}
                forced = bypassed(logits, 0, gain * chances)
                rows.append(pd.DataFrame({**key, "sample": range(64), "strength": gain, "forced": forced}))
    tables = {"prompts": contrast.table, "interventions": pd.concat(rows)}
    evidence = Evidence("unknown", "factual", tables, {}, options)
    answer = CLAIMS.declared["C10"].measure(evidence, options)
    return CLAIMS.decide_measured({"C10": answer})[0]


@pytest.mark.slow
def test_the_level_of_bypass_holds_where_there_is_nothing():
    """p < .05 in at most 7 % of 400 draws; fewer than 5 %, as the points of a pair are alike."""
    p_of_draws = np.array([bypass_claim(seed).p_value for seed in range(400)])
    print("bypass", np.mean(p_of_draws < 0.05), np.quantile(p_of_draws, [0.05, 0.25, 0.5, 0.75]))
    assert np.isfinite(p_of_draws).all()
    assert np.mean(p_of_draws < 0.05) <= 0.07


def test_a_planted_bypass_is_found():
    for seed in range(2):
        claim = bypass_claim(seed, shift=4.0)
        assert (claim.verdict, claim.p_value) == ("supported", 0.005), seed


def test_planted_differences_are_found():
    """Detection and sensitivity of what moves, dimension and fragmentation of what flattens."""
    moved = [p_values(seed, 199, shift=4.0) for seed in range(3)]
    flat = [p_values(seed, 199, scale=0.05) for seed in range(3)]
    for draws, names in (
        (moved, ("auc_direction", "log_fisher_ratio")),
        (flat, ("log_dimension_ratio", "fragmentation_gap")),
    ):
        for name in names:
            assert all(p_by_name[name] < 0.05 for p_by_name in draws), (
                name,
                [p_by_name[name] for p_by_name in draws],
            )


def test_the_largest_over_layers_pays_for_the_search():
    rng = np.random.default_rng(0)
    drawn = np.abs(rng.standard_normal((199, 10)))
    of_ten_layers = max_t(np.append(2.2, np.full(9, 0.1)), drawn)
    of_one_layer = max_t([2.2], drawn[:, :1])
    assert of_ten_layers.p_adjusted[0] > 3 * of_one_layer.p_adjusted[0]


def known_model(name, tmp_path):
    """The folder of a trained model, of one of the same shape whose weights are drawn, or of the demo."""
    import shutil

    from transformers import AutoConfig

    from attnscope.demo import demo_checkpoints
    from attnscope.demo.training import last_checkpoint
    from models import DATA

    if name == "demo":
        return last_checkpoint(demo_checkpoints())
    base, _, drawn = name.partition(" ")
    folder = DATA / base / "hf"
    if not folder.exists():
        pytest.skip(f"no {folder}")
    if not drawn:
        return folder
    random_folder = tmp_path / "random"
    shutil.copytree(folder, random_folder, ignore=shutil.ignore_patterns("*.safetensors", "*.bin"))
    torch.manual_seed(7)
    AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder)).save_pretrained(random_folder)
    return random_folder


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", ["stories260K", "llama2xs", "stories260K random", "llama2xs random", "demo"])
def test_models_that_know_no_facts_show_nothing(name, seed, tmp_path):
    """On the packaged prompts no primary p is below .05, and the report says that nothing was found.

    Outside of that family, trained models may amplify the small mean difference that buckets of unlike words
    have (C14). In stories260K it is none of chance by the exchange within pairs (p .036 and .006 in two of
    five layers). Untrained models amplify none.
    """
    texts = {"path": "builtin:hallucination_geometry", "column": "question"}
    study = asc.Study(
        study="hallucination_geometry",
        models=str(known_model(name, tmp_path)),
        texts=texts,
        output=str(tmp_path),
        seed=seed,
        block=128,
        options={
            "interventions": False,
            "answers": False,
            "lens": False,
            "permutations": 199,
            "null_draws": 2,
            "dimension_k": [10],
            "sensitivity": {"prompts": 4, "directions": 20},
            "random_weights": 2,
        },
    )
    results = run(study, progress=False)
    claims = results.table("claims")
    primary = claims[claims["correction"] == "holm"]
    assert not (primary["p_adjusted"] < 0.05).any(), primary[primary["p_adjusted"] < 0.05]
    others = claims[(claims["p_adjusted"] < 0.05) & (claims["correction"] != "holm")]
    trained = name in ("stories260K", "llama2xs")
    assert set(others["claim"]) <= ({"C14 impossible", "C14 unknown"} if trained else set()), others
    assert (claims[claims["claim"].str.startswith("C1 ")]["verdict"] != "supported").all()
    for sentence in findings(results):
        assert sentence.startswith(("It is undecided whether states tell ", "States do not tell "))
        assert sentence.endswith("What follows may be chance.")
    print(name, seed, claims["p_adjusted"].min(), findings(results))
