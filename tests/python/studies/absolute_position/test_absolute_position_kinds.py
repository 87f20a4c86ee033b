# SPDX-License-Identifier: MIT
"""The study on models that hand out maps alone, tokenizers without BOS, scores that are not finite."""

import numpy as np
import pandas as pd
import pytest
import torch

import attnscope as asc
from attnscope.engine.run_study import run
from attnscope.studies.absolute_position.study import heads_by_layer
from attnscope.studies.absolute_position.sums import profile_of_sums
from folders import WORDS, model_folder, tokenizer
from models import VOCABULARY, needs_configuration
from position_study import GROUPS, TEXTS, N, settings

QUICK = {"inputs": ["windows"], "leakage": False, "bands": 0, "nulls": []}


def base(results, name="position"):
    """The base arm's rows on windows."""
    table = results.table(name)
    return table[(table["arm"] == "base") & (table["input"] == "windows")]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_of_a_model_that_hands_out_maps_alone_log_a_is_split(texts, tmp_path):
    """Row constants aside log A is the scores: the residual is that of transformers' own maps by hand."""
    from transformers import AutoModelForCausalLM

    path = model_folder(tmp_path / "bloom", "bloom")
    options = {**QUICK, "arms": ["zero", "unread"], "nulls": ["random_weights"]}
    results = run(settings(path, texts, tmp_path, **options), progress=False)
    model = AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager").eval()
    ids = torch.tensor(np.stack(results.table("samples")["token_ids"]))
    with torch.no_grad():
        maps = model(ids, attention_mask=torch.ones_like(ids), output_attentions=True).attentions
    profile = asc.PositionProfile(N, groups=GROUPS)
    for layer, map_of_layer in enumerate(maps):
        groups = [text * GROUPS // TEXTS for text in range(TEXTS)]
        profile.add(map_of_layer.double().log(), groups, layer=layer)
    rows = base(results)
    rows = rows[rows["queries"] == "early"]
    np.testing.assert_allclose(rows["residual"], asc.residual_size(profile).estimate.ravel(), rtol=1e-5)
    np.testing.assert_allclose(
        rows["mask_cut"], profile.mean("mask_cut")[..., 2:].mean(-1).ravel(), rtol=1e-5
    )
    assert rows["lse_gap"].isna().all(), "nothing is known of log Z"
    assert results.table("controls")["lse_gap"].isna().all()
    offsets = base(results, "offsets")
    assert offsets[["score", "log_z", "covariance"]].isna().all(axis=None)
    assert (offsets["mask"] > 0).all()
    assert "unread" not in set(results.table("removed")["arm"])
    assert isinstance(results.table("checks").set_index("check").loc["scores", "reason"], str)
    claims = results.table("claims").set_index("claim")
    assert claims.loc["C1", "reason"] == "scores are out of reach"
    assert results.table("encodings")["encoding"].tolist() == ["alibi"]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_layers_may_have_different_numbers_of_heads(texts, tmp_path):
    """The rows are those of each layer by itself, from transformers' own maps, and no head is made up."""
    import transformers

    needs_configuration("LagunaConfig")
    heads = [4, 2, 4]
    config = transformers.LagunaConfig(
        **{"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 3},
        **{"num_attention_heads": 4, "num_attention_heads_per_layer": heads, "num_key_value_heads": 2},
        **{"head_dim": 8, "layer_types": ["full_attention"] * 3, "mlp_layer_types": ["dense"] * 3},
        **{"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
    )
    torch.manual_seed(0)
    path = tmp_path / "laguna"
    transformers.LagunaForCausalLM(config).save_pretrained(path)
    tokenizer().save_pretrained(path)
    options = {**QUICK, "arms": ["zero"], "nulls": ["random_weights"], "random_weights": 3, "keep_sums": True}
    results = run(settings(path, texts, tmp_path, **options), progress=False)
    model = transformers.AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager").eval()
    ids = torch.tensor(np.stack(results.table("samples")["token_ids"]))
    with torch.no_grad():
        maps = model(ids, attention_mask=torch.ones_like(ids), output_attentions=True).attentions
    rows, means = (base(results, name) for name in ("position", "layer_means"))
    rows, means = (table[table["queries"] == "early"] for table in (rows, means))
    assert rows.groupby("layer").size().tolist() == heads
    for layer, map_of_layer in enumerate(maps):
        profile = asc.PositionProfile(N, groups=GROUPS)
        profile.add(map_of_layer.double().log(), [text * GROUPS // TEXTS for text in range(TEXTS)])
        expected = asc.residual_size(profile).estimate[0]
        measured = rows.loc[rows["layer"] == layer, "residual"]
        np.testing.assert_allclose(measured, expected, rtol=1e-3, atol=1e-9)
        mean = means.loc[means["layer"] == layer, "residual"].item()
        assert mean == pytest.approx(expected.mean(), rel=1e-3, abs=1e-9)
    assert results.table("controls")["residual"].notna().all()
    assert results.table("control_residuals")["residual_shared"].notna().all()
    assert profile_of_sums(base(results, "sums")).heads == heads
    assert heads_by_layer(results.table("position")) == heads


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_blocks_without_attention_have_no_rows_and_shift_no_layer(texts, tmp_path):
    """Jamba attends in its blocks 1 and 3: every row is of these, and MLPs elsewhere are passed over."""
    path = model_folder(tmp_path / "jamba", "jamba")
    options = {**QUICK, "arms": ["no_bos"], "leakage": True}
    results = run(settings(path, texts, tmp_path, **options), progress=False)
    for name in ("position", "leakage_tests", "softmax_statistics", "probes"):
        for protocol, rows in results.table(name).groupby("protocol"):
            assert set(rows["layer"]) == {1, 3}, (name, protocol)


def test_a_tokenizer_that_knows_no_first_token_says_so(texts, tmp_path):
    path = model_folder(tmp_path / "m", bos=False)
    results = run(settings(path, texts, tmp_path, arms=["no_bos"], **QUICK), progress=False)
    assert set(results.table("position")["arm"]) == {"base"}
    assert "knows no BOS or EOS token" in " ".join(results.provenance["notes"])


def test_a_tokenizer_that_sets_no_bos_reads_one_that_is_added(texts, tmp_path):
    """Base reads the bare window; the arm sets BOS before it and leaves its last token out."""
    from transformers import AutoModelForCausalLM

    path = model_folder(tmp_path / "m")
    bare = tokenizer(bos=False)
    bare.bos_token = "<s>"
    bare.save_pretrained(path)
    results = run(settings(path, texts, tmp_path, arms=["no_bos"], **QUICK), progress=False)
    assert set(results.table("position")["arm"]) == {"base", "bos_added"}
    assert "sets no BOS token, so base reads none; see bos_added" in " ".join(results.provenance["notes"])
    ids = torch.tensor(np.stack(results.table("samples")["token_ids"]))
    assert not (ids == 1).any()
    model = AutoModelForCausalLM.from_pretrained(path).eval()
    position = results.table("position").query("queries == 'early'")
    for arm, read in (("base", ids), ("bos_added", torch.cat([torch.ones_like(ids[:, :1]), ids[:, :-1]], 1))):
        profile = asc.position_profile(model, {"input_ids": read}, n=N, groups=GROUPS)
        residual = position[position["arm"] == arm]["residual"]
        np.testing.assert_allclose(
            residual, asc.residual_size(profile).estimate.ravel(), rtol=1e-4, atol=1e-8
        )
    prints = results.table("fingerprints").set_index("arm")["fingerprint_cosine"]
    assert prints["bos_added"].min() > 1 - 1e-9 > prints["base"].max()


@pytest.mark.parametrize("bad", [np.nan, pytest.param(np.inf, marks=pytest.mark.slow)])
def test_a_map_that_is_not_finite_is_left_out_and_counted(folder, texts, tmp_path, monkeypatch, bad):
    """One head of one text; the others are as they were."""
    from attnscope.studies.absolute_position import study, sums

    options = {**QUICK, "arms": []}
    unsplit = run(settings(folder, texts, tmp_path, name="whole", block=TEXTS, **options), progress=False)

    def with_one(layer):
        scores, is_softmax = sums.softmax_of(layer)
        if layer.index == 1:
            scores = scores.clone()
            scores[3, 2, 4, 1] = bad
        return scores, is_softmax

    monkeypatch.setattr(study, "softmax_of", with_one)
    less = run(settings(folder, texts, tmp_path, name="less", block=TEXTS, **options), progress=False)
    assert "1 maps of the arm base are not finite" in " ".join(less.provenance["notes"])
    first, second = (
        base(results).query("queries == 'early'").set_index(["layer", "head"]) for results in (unsplit, less)
    )
    assert second["residual"].notna().all()
    changed = first["residual"] != second["residual"]
    assert list(changed[changed].index) == [(1, 2)]


def test_a_window_that_repeats_an_earlier_one_is_left_out(folder, tmp_path):
    """Products of groups that shared a window held its noise, and intervals were those of twice the texts."""
    words = np.random.default_rng(0).choice(WORDS, TEXTS * N).tolist()
    results = []
    # wherever the first window begins, both texts hold the same windows
    for name, text in (("once", words + words[:N]), ("twice", words + words)):
        path = tmp_path / f"{name}.txt"
        path.write_text(" ".join(text) + "\n", "utf-8")
        study = settings(folder, path, tmp_path / name, samples=None, arms=["zero"], **QUICK)
        results.append(run(study, progress=False))
    once, twice = results
    assert len(twice.table("samples")) == TEXTS
    pd.testing.assert_frame_equal(base(once), base(twice))
    assert any("windows repeat an earlier one" in note for note in twice.provenance["notes"])
