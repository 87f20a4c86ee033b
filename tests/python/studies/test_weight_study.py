# SPDX-License-Identifier: MIT
"""The study of weight changes on tiny pairs: what its tables hold, nulls, floors, resume, bad input."""

import json
import math
import random
import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file

import attnscope as asc
from attnscope.config.run_config import RunConfig
from attnscope.engine.run_study import resume, run
from attnscope.errors import ConfigError, NotDrawable
from attnscope.models import LoadError
from attnscope.studies.pretraining_writes.figures import FIGURES
from attnscope.studies.pretraining_writes.sections import SECTIONS, findings
from weight_models import tiny

pytestmark = pytest.mark.usefixtures("unarranged")

FAST = {"random_weights": 2, "rank_one": {"texts": 3, "directions": 2}}
#: The fewest things that a pair is measured by.
BARE = {"nulls": [], "rank_one": False, "gradients": False, "curve": 0}
DRAWN = ("asymmetry", "fraction_curves", "depth", "mechanism", "rounding", "rank_one")


def texts_in(folder, count=12, length=20):
    drawn = random.Random(5)
    rows = [[drawn.randrange(3, 97) for _ in range(length + n % 3)] for n in range(count)]
    (folder / "texts.jsonl").write_text("\n".join(json.dumps({"token_ids": row}) for row in rows), "utf-8")
    return rows


def trained(folder, rows, steps=4, rate=0.05, dtype=torch.float32):
    """A plain gradient descent from the base."""
    model = tiny("llama", num_hidden_layers=3)
    optimiser = torch.optim.SGD(model.parameters(), lr=rate)
    for _ in range(steps):
        for row in rows[:6]:
            ids = torch.tensor([row])
            optimiser.zero_grad()
            model(input_ids=ids, labels=ids).loss.backward()
            optimiser.step()
    model.to(dtype).save_pretrained(folder)
    return folder


def noisy(folder, size=1e-3):
    """The base with Gaussian noise in every matrix."""
    model = tiny("llama", num_hidden_layers=3)
    draw = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.add_(size * torch.randn(parameter.shape, generator=draw))
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs")
    rows = texts_in(folder)
    tiny("llama", num_hidden_layers=3).save_pretrained(folder / "base")
    trained(folder / "tuned", rows)
    noisy(folder / "noise")
    return folder


def study(home, out, *models, **overrides):
    options = {**FAST, **overrides.pop("options", {})}
    return RunConfig(
        study="pretraining_writes",
        models=[str(home / name) for name in models],
        texts={"path": str(home / "texts.jsonl")},
        output=str(out),
        name="a",
        block=4,
        options=options,
        **overrides,
    )


@pytest.fixture(scope="module")
def results(home, tmp_path_factory):
    return run(study(home, tmp_path_factory.mktemp("runs"), "base", "tuned", "noise"), say=lambda text: None)


def of(results, table, model, **keys):
    rows = results.table(table)
    rows = rows[rows["model"] == model]
    for name, value in keys.items():
        rows = rows[rows[name] == value]
    return rows


def test_fractions_are_those_of_the_captured_inputs(results, home):
    model = tiny("llama", num_hidden_layers=3)
    seen = []
    hook = model.model.layers[1].self_attn.o_proj.register_forward_pre_hook(
        lambda _, args: seen.append(args[0])
    )
    with torch.no_grad():
        for line in (home / "texts.jsonl").read_text().splitlines():
            model(input_ids=torch.tensor([json.loads(line)["token_ids"]]))
    hook.remove()
    x = torch.cat([states[0, 1:] for states in seen]).double().numpy()
    vectors = np.linalg.eigh(x.T @ x)[1][:, ::-1]
    name = "model.layers.1.self_attn.o_proj.weight"
    before, after = (
        load_file(home / name_of_model / "model.safetensors")[name].double()
        for name_of_model in ("base", "tuned")
    )
    delta = (after - before).numpy()
    rows = of(results, "fractions", "tuned", layer=1, role="o", side="in", subspace="inputs")
    assert list(rows["k"]) == [1, 2, 3, 4, 8, 16, 32]
    for row in rows.itertuples():
        expected = np.linalg.norm(delta @ vectors[:, : row.k]) ** 2 / np.linalg.norm(delta) ** 2
        assert row.fraction == pytest.approx(expected, rel=1e-4)
        assert row.tested == (row.k == 3)
    prediction = asc.prediction_subspace(home / "base", 3).basis.numpy()
    (row,) = of(results, "fractions", "tuned", layer=1, role="o", subspace="prediction", k=3).itertuples()
    expected = np.linalg.norm(prediction.T @ delta) ** 2 / np.linalg.norm(delta) ** 2
    assert (row.side, row.fraction) == ("out", pytest.approx(expected, rel=1e-5))
    statistics = asc.delta_statistics(before.float(), after.float())
    (row,) = of(results, "deltas", "tuned", layer=1, role="o").itertuples()
    assert row.delta_energy == pytest.approx(float(statistics.energy), rel=1e-12)
    assert row.step_ratio == pytest.approx(float(statistics.step_ratio), rel=1e-12)


def test_every_fraction_stands_beside_what_it_must_be_read_with(results):
    rows = of(results, "fractions", "tuned", tested=True)
    for name in ("deviation", "ceiling", "p_adjusted", "share_of_energy"):
        assert rows[name].notna().all(), name
    assert (rows["p_adjusted"] >= rows["p_value"]).all()
    assert rows[rows["subspace"] == "inputs"]["low"].notna().all()
    controls = of(results, "fractions_variants", "tuned")
    of_weights = {"weights", "decay_removed", "random_weights"}
    assert set(controls["variant"]) == {*of_weights, "other_layer"}
    assert set(controls[controls["subspace"] == "prediction"]["variant"]) == of_weights
    drawn = controls[controls["variant"] == "random_weights"]
    assert (drawn["low"] < drawn["relative"]).all()
    deltas = of(results, "deltas", "tuned")
    assert deltas[["unchanged_share", "step_ratio", "noise_share"]].notna().all().all()
    checks = results.table("checks")
    assert set(checks["check"]) == {"weight_map", "gradient_identity"}
    assert checks["holds"].all()


def test_training_is_concentrated_and_noise_is_not(results):
    claims = results.table("claims").set_index(["model", "claim"])
    assert claims.loc[("tuned", "C1"), "verdict"] == "supported"
    assert claims.loc[("tuned", "C1"), "low"] > claims.loc[("tuned", "C1"), "null"]
    noise = claims.loc["noise"]
    assert noise.loc["C1", "verdict"] != "supported"
    assert noise.loc["C1b", "verdict"] == "undecided"
    assert "neither pathway is concentrated" in noise.loc["C1b", "reason"]
    assert noise.loc["C1", "low"] < 1 < noise.loc["C1", "high"]
    assert claims.loc[("base", "C6"), "reason"].startswith("down of layer 2: true by construction")
    inputs = of(results, "fractions", "noise", tested=True, subspace="inputs")
    assert (inputs["p_adjusted"] > 0.001).all()
    assert any("neither pathway is concentrated" in sentence for sentence in findings(results))


def test_a_text_that_is_given_twice_counts_once(results, home, tmp_path):
    """Intervals leave out a group of texts at a time: of twice the texts they were shorter."""
    rows = [line for line in (home / "texts.jsonl").read_text("utf-8").splitlines() for _ in range(2)]
    (tmp_path / "texts.jsonl").write_text("\n".join(rows), "utf-8")
    settings = study(home, tmp_path, "base", "tuned", options={"rank_one": {"texts": 6, "directions": 2}})
    texts = [settings.texts[0].model_copy(update={"path": str(tmp_path / "texts.jsonl")})]
    twice = run(settings.model_copy(update={"texts": texts}), say=lambda text: None)
    for name, model in (("fractions", "tuned"), ("moments", "base"), ("gains", "tuned")):
        # the error of an identity is rounding of the first text of each block
        once, again = (
            table.drop(columns="identity_error", errors="ignore").reset_index(drop=True)
            for table in (of(results, name, model), twice.table(name))
        )
        pd.testing.assert_frame_equal(once, again, rtol=1e-6, atol=1e-9)
    of_run = twice.table("rank_one").set_index(["layer", "role", "direction", "sample"]).sort_index()
    assert sorted({sample for *_, sample in of_run.index}) == [0, 2, 4]


def test_changes_of_rank_one_are_as_the_closed_form_says(results):
    rows = results.table("rank_one")
    down = rows[rows["role"] == "down"]
    assert set(down["direction"]) == {"prediction", "complement", "haar", "gradients"}
    assert set(rows["sample"]) == {0, 1, 2}
    np.testing.assert_allclose(down["kl"], down["predicted_kl"], rtol=0.25)
    assert rows[rows["role"] == "o"]["predicted_kl"].isna().all()


@pytest.fixture(scope="module")
def drawn(results):
    return {name: FIGURES[name](results) for name in DRAWN}


@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_drawn_from_stored_tables(results, drawn, name):
    if name in DRAWN:
        assert drawn[name].caption
        return
    with pytest.raises(NotDrawable, match=r"the run has no series|has an arm"):
        FIGURES[name](results)


def test_the_report_says_the_claims_first(results, drawn):
    from attnscope.report.section import Page

    page = Page(results, drawn)
    kinds = [block.kind for section in SECTIONS for block in page.written(section)]
    assert kinds.count("figure") == len(DRAWN)
    assert kinds.count("table") == 3


def test_a_killed_run_resumes_byte_for_byte(home, tmp_path, monkeypatch):
    from attnscope.results import store

    options = {**BARE, "roles": ["q", "down"]}
    settings = study(home, tmp_path / "killed", "base", "tuned", layers=[0], options=options)
    whole_run = run(
        study(home, tmp_path / "whole", "base", "tuned", layers=[0], options=options), progress=False
    )
    written = store.Store.write
    done = []

    def killed(self, *args, **keys):
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(1)
        return written(self, *args, **keys)

    with monkeypatch.context() as patched:
        patched.setattr(store.Store, "write", killed)
        with pytest.raises(KeyboardInterrupt):
            run(settings, say=lambda text: None)
    again = resume(tmp_path / "killed" / "a", say=lambda text: None)
    assert again.tables() == whole_run.tables()
    for name in whole_run.tables():
        first, second = ((r.path / "tables" / f"{name}.parquet").read_bytes() for r in (whole_run, again))
        assert first == second, name


def test_a_series_is_compared_with_its_first_or_its_previous_checkpoint(home, tmp_path):
    rows = [json.loads(line)["token_ids"] for line in (home / "texts.jsonl").read_text().splitlines()]
    tiny("llama", num_hidden_layers=3).save_pretrained(tmp_path / "growing" / "step0")
    for step in (2, 10):
        trained(tmp_path / "growing" / f"step{step}", rows, step)
    shutil.copy(home / "texts.jsonl", tmp_path)
    options = {**BARE, "roles": ["o", "down"]}
    results = run(study(tmp_path, tmp_path / "r", "growing", layers=[0], options=options), progress=False)
    deltas = results.table("deltas")
    references = set(zip(deltas["step"], deltas["reference"], strict=True))
    assert references == {(2, "growing step0"), (10, "growing step0")}
    assert FIGURES["trajectory"](results).caption
    claims = results.table("claims").set_index(["step", "claim"])
    assert claims.loc[(10, "C7"), "verdict"] in ("supported", "contradicted", "undecided")
    assert (2, "C7") not in claims.index
    options |= {"base": "previous"}
    other = study(tmp_path, tmp_path / "p", "growing", layers=[0], options=options)
    stored_deltas = run(other, say=lambda text: None).table("deltas")
    references = set(zip(stored_deltas["step"], stored_deltas["reference"], strict=True))
    assert references == {(2, "growing step0"), (10, "growing step2")}


def test_an_adapter_is_compared_without_its_product(home, tmp_path):
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    for name in ("base", "texts.jsonl"):
        (tmp_path / name).symlink_to(home / name)
    draw = torch.Generator().manual_seed(0)
    factors = {}
    for layer in range(3):
        prefix = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        factors[f"{prefix}.lora_A.weight"] = torch.randn(4, 48, generator=draw)
        factors[f"{prefix}.lora_B.weight"] = torch.randn(48, 4, generator=draw)
    save_file(factors, adapter / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}
    (adapter / "adapter_config.json").write_text(json.dumps(config), "utf-8")
    results = run(study(tmp_path, tmp_path / "r", "base", "adapter", options=BARE), say=lambda text: None)
    deltas = results.table("deltas")
    assert set(deltas["role"]) == {"q"}
    assert deltas["unchanged_share"].isna().all()
    a, b = (factors[f"base_model.model.model.layers.0.self_attn.q_proj.lora_{x}.weight"] for x in "AB")
    merged = 2.0 * b.double() @ a.double()
    energy = deltas[deltas["layer"] == 0]["delta_energy"].item()
    assert energy == pytest.approx(float(merged.square().sum()), rel=1e-6)


def test_a_pair_below_the_rounding_floor_enters_no_claim(home, tmp_path):
    rows = [json.loads(line)["token_ids"] for line in (home / "texts.jsonl").read_text().splitlines()]
    shutil.copy(home / "texts.jsonl", tmp_path)
    tiny("llama", num_hidden_layers=3).to(torch.bfloat16).save_pretrained(tmp_path / "base")
    trained(tmp_path / "tuned", rows, 1, 1e-3, torch.bfloat16)
    options = {"nulls": [], "rank_one": False, "curve": 0}
    notes = []
    results = run(
        study(tmp_path, tmp_path / "r", "base", "tuned", layers=[1], options=options), say=notes.append
    )
    assert results.table("deltas")["below_floor"].any()
    claims = results.table("claims").set_index("claim")
    assert set(claims.loc[["C1", "C1b", "C2", "C3", "C7"], "verdict"]) == {"not testable here"}
    assert "entries unchanged, step ratio" in claims.loc["C1", "reason"]
    assert any("gradients are taken in float32" in note for note in notes)


def test_arms_are_compared_over_training_runs(home, tmp_path):
    (tmp_path / "texts.jsonl").symlink_to(home / "texts.jsonl")
    (tmp_path / "base").symlink_to(home / "base")
    rows = [json.loads(line)["token_ids"] for line in (home / "texts.jsonl").read_text().splitlines()]
    arms, names = {}, []
    for arm, rate in (("ce", 0.02), ("dpo", 0.05), ("contrastive_1", 0.03), ("contrastive_4", 0.04)):
        for seed in (0, 1):
            names.append(f"{arm}-{seed}")
            trained(tmp_path / names[-1], rows[seed:], 2, rate)
            arms[names[-1]] = arm
    options = {**BARE, "roles": ["q", "up", "o", "down"], "arms": arms}
    study_of_run = study(tmp_path, tmp_path / "r", "base", *names, layers=[0], options=options)
    results = run(study_of_run, say=lambda text: None)
    claims = of(results, "claims", "all arms").set_index("claim")
    for claim in ("C1c", "C2b", "C4", "C5"):
        assert claims.loc[claim, "verdict"] in ("supported", "contradicted", "undecided"), claim
        assert math.isfinite(claims.loc[claim, "low"])
    assert claims.loc["C3", "verdict"] == "not testable here"
    for name in ("objectives", "graded"):
        FIGURES[name](results).figure.canvas.draw()


def broken(home, tmp_path, change):
    """A copy of the tuned folder whose tensors were changed."""
    folder = tmp_path / "odd"
    shutil.copytree(home / "tuned", folder)
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    for name in ("base", "texts.jsonl"):
        (tmp_path / name).symlink_to(home / name)


def test_one_matrix_that_is_not_finite_is_named_and_the_others_go_on(home, tmp_path):
    def change(tensors):
        tensors["model.layers.1.mlp.up_proj.weight"][0, 0] = math.nan

    broken(home, tmp_path, change)
    notes = []
    options = {**BARE, "roles": ["q", "up"]}
    results = run(study(tmp_path, tmp_path / "r", "base", "odd", options=options), say=notes.append)
    assert any("layer 1 up" in note for note in notes)
    row = of(results, "deltas", "odd", layer=1, role="up").iloc[0]
    assert math.isnan(row["delta_energy"])
    assert row["note"] == "not finite"
    assert of(results, "fractions", "odd", layer=1, role="up").empty
    assert len(of(results, "fractions", "odd", layer=0, role="up"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: None, "hold the same weights"),
        (
            lambda tensors: tensors.update(
                {name: tensor[:, :40].contiguous() for name, tensor in tensors.items() if "gate_proj" in name}
            ),
            "not one architecture",
        ),
        (
            lambda tensors: tensors.update(
                {name: tensor.to(torch.int8) for name, tensor in tensors.items() if "gate_proj" in name}
            ),
            "quantised",
        ),
    ],
)
def test_pairs_that_are_none_are_refused(home, tmp_path, change, message):
    broken(home, tmp_path, change)
    if message.startswith("hold"):
        shutil.copy(home / "base" / "model.safetensors", tmp_path / "odd" / "model.safetensors")
    with pytest.raises(ConfigError, match=message):
        run(study(tmp_path, tmp_path / "r", "base", "odd", options=BARE), say=lambda text: None)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"options": {"nulls": ["random_weight"]}}, "random_weights"),
        ({"options": {"k": 0}}, "at least 1"),
        ({"options": {"base": "tunedd"}}, "tuned"),
        ({"options": {"rolse": ["q"]}}, "roles"),
        ({"protocols": ["ruscio2025"]}, "follows exact"),
    ],
)
def test_settings_that_make_no_study(home, tmp_path, overrides, message):
    with pytest.raises(ConfigError, match=message):
        run(study(home, tmp_path, "base", "tuned", **overrides), say=lambda text: None)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"options": {"roles": ["query"]}}, "no matrix has the role 'query'"),
        ({"layers": [7]}, r"layers: base has layers 0 to 2, got \[7\]"),
        ({"options": {"k": 48}, "max_tokens": 3}, "24 tokens, too few for k = 48"),
        (
            {"options": {"k": 20, "groups": 2}, "texts": {"samples": 2}},
            # in layer 0 equal tokens have equal inputs
            r"layer 0 q has 16 directions, got k = 20, one group of texts left out \(options.groups\)",
        ),
        ({"max_tokens": 2}, "text 0 has 2 tokens, of which 1 behind the first, and two are needed"),
    ],
)
def test_what_the_models_do_not_have(home, tmp_path, overrides, message):
    options = {"nulls": [], "rank_one": False, "gradients": False, **overrides.pop("options", {})}
    settings = study(home, tmp_path, "base", "tuned", options=options)
    texts = {**settings.to_dict()["texts"][0], **overrides.pop("texts", {})}
    with pytest.raises(ConfigError, match=message):
        run(RunConfig(**{**settings.to_dict(), "texts": texts, **overrides}), say=lambda text: None)


def test_one_model_makes_no_pair(home, tmp_path):
    with pytest.raises(LoadError, match="two checkpoints are needed to be compared, got one"):
        run(study(home, tmp_path, "base"), say=lambda text: None)


def test_gradients_of_a_model_without_a_vocabulary_head_are_refused_by_name(home, tmp_path):
    """It was Python's own error about an attribute of what the model returns."""
    shutil.copy(home / "texts.jsonl", tmp_path)
    for name, seed in (("base", 0), ("tuned", 1)):
        model = tiny("llama", seed=seed).model
        model.save_pretrained(tmp_path / name)
    with pytest.raises(LoadError, match=r"LlamaModel has no vocabulary head.*options\.gradients=false"):
        asc.second_moments(model, [[5, 6, 7]], gradients=True)
    settings = study(tmp_path, tmp_path / "r", "base", "tuned", options={"nulls": [], "rank_one": False})
    with pytest.raises(LoadError, match="LlamaModel has no vocabulary head"):
        run(settings, say=lambda text: None)


def test_gradients_of_a_classifier_are_refused_by_name():
    """ELECTRA's discriminator has a score for each token, no vocabulary: the loss ended in torch's error."""
    from transformers import ElectraConfig, ElectraForPreTraining

    shape = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    model = ElectraForPreTraining(ElectraConfig(**shape, vocab_size=97, embedding_size=32)).eval()
    with pytest.raises(LoadError, match=r"ElectraForPreTraining predicts no tokens: .*shape \(1, 3\)"):
        asc.second_moments(model, [[5, 6, 7]], gradients=True)


def test_an_encoder_has_no_prediction_subspace_and_says_so(home, tmp_path):
    shutil.copy(home / "texts.jsonl", tmp_path)
    for name, seed in (("base", 0), ("tuned", 1)):
        tiny("bert", seed=seed).save_pretrained(tmp_path / name)
    notes = []
    options = {"nulls": ["weights"], "gradients": False}
    results = run(
        study(tmp_path, tmp_path / "r", "base", "tuned", layers=[0], options=options), say=notes.append
    )
    assert any("has a transform before its unembedding" in note for note in notes)
    assert set(results.table("fractions")["subspace"]) == {"inputs", "inputs_centred", "own_weights"}
    claims = results.table("claims").set_index("claim")
    assert claims.loc["C2", "verdict"] == "not testable here"
