# SPDX-License-Identifier: MIT
"""The study on models that hand out maps alone, tokenizers without BOS, scores that are not finite."""

import numpy as np
import pytest
import torch

import attnscope as asc
from attnscope.engine.run_study import run
from folders import model_folder, tokenizer
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
