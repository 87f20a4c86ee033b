# SPDX-License-Identifier: MIT
"""The study of absolute position on trained models, beside what was measured on other windows of the text."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch

import attnscope as asc
from attnscope.demo.texts import byte_tokenizer, text_windows
from attnscope.demo.training import Recipe, train
from attnscope.engine.run_study import run
from attnscope.statistics.groups import jackknife_bounds, mean_product

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
TEXTS = DATA / "text" / "wiki_dataset_sink.csv"
# means over heads by layer, and standard errors of one head, of 128 windows drawn in other places
MEASURED = {
    "stories260K": {
        "residual": [-0.011, 0.177, 0.358, 0.080, 0.154],
        "shuffled": [-0.018, 0.139, 0.350, 0.054, 0.126],
        "no_bos": [-0.010, 0.019, 0.014, 0.023, 0.009],
        "error": [0.029, 0.126, 0.055, 0.032, 0.012],
        "mask_cut": [[1.56, 1.12, 2.20, 1.78, 2.64], [0.34, 0.09, 0.49, 0.29, 0.86]],
        "sink_advantage": [3.4, 11.2, 0.1, 4.3, 2.1],
        "fingerprint": [0.22, 0.09, 0.32, 0.36, 0.32],
    },
    "llama2xs": {
        "residual": [0.04, 0.01, 5.9, 42.7, 185.0],
        "shuffled": [0.2, 0.1, 2.0, 71.0, 208.0],
        "no_bos": [0.5, 0.0, 10.7, 11.1, 18.8],
        "error": [1.3, 2.9, 8.7, 18.0, 16.0],
        "mask_cut": [[29, 98, 66, 67, 39], [7, 59, 19, 20, 8]],
        "sink_advantage": [-6.2, -7.7, 48.0, 95.0, 23.0],
        "fingerprint": [0.15, 0.46, 0.68, 0.34, 0.47],
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MEASURED)
def test_layers_are_as_measured_and_nothing_is_where_nothing_can_be(name, tmp_path):
    if not TEXTS.exists() or not (DATA / name / "hf").exists():
        pytest.skip(f"{name} or the sentences are not here")
    results = run(
        asc.Study(
            study="absolute_position",
            models={"path": str(DATA / name / "hf"), "label": name},
            texts={"path": str(TEXTS), "column": "text", "per": "window", "samples": 128},
            max_tokens=64,
            output=str(tmp_path),
            options={
                "groups": 8,
                "queries": [2, 31],
                "arms": ["zero", "no_bos"],
                "nulls": [],
                "leakage": False,
            },
        ),
        progress=False,
    )
    expected = {key: np.array(values) for key, values in MEASURED[name].items()}
    position = results.table("position")
    rows = position[(position["queries"] == "early") & (position["arm"] == "base")]
    early = position[position["queries"] == "early"]
    for measured, arm, kind in (
        ("residual", "base", "windows"),
        ("shuffled", "base", "shuffled"),
        ("no_bos", "no_bos", "windows"),
    ):
        rows_of_arm = early[(early["arm"] == arm) & (early["input"] == kind)].groupby("layer")
        standard_error = (
            rows_of_arm["residual_high"].mean() - rows_of_arm["residual"].mean()
        ) / 2.365  # t of 7 degrees of freedom
        apart = np.abs(rows_of_arm["residual"].mean() - expected[measured])
        assert (apart <= 3 * np.hypot(standard_error, expected["error"])).all(), (measured, apart.to_numpy())
    rows_of_windows = rows[rows["input"] == "windows"].groupby("layer")
    scale = np.abs(expected["sink_advantage"]).max()
    assert np.abs(rows_of_windows["sink_advantage"].mean() - expected["sink_advantage"]).max() < 0.05 * scale
    for kind in ("windows", "shuffled"):
        first = rows[(rows["layer"] == 0) & (rows["input"] == kind)]
        assert first["p_adjusted"].min() > 0.01
    bare = position[(position["arm"] == "no_bos") & (position["input"] == "repeated")]
    largest = rows["residual"].abs().max()
    assert bare["residual"].abs().max() < 1e-7 * largest
    prints = results.table("fingerprints")
    with_bos, without = (
        prints[prints["arm"] == arm].groupby("layer")["fingerprint_cosine"] for arm in ("base", "no_bos")
    )
    assert with_bos.min().min() > 1 - 1e-9
    np.testing.assert_allclose(without.mean(), expected["fingerprint"], atol=0.1)
    removed = results.table("removed").query(
        "scope == 'from_1' and queries == 'early' and measure == 'uniform'"
    )
    share = removed.set_index("arm")["energy_removed"]
    assert 0.7 < share["zero"] < 1.1
    assert 0.7 < share["no_bos"] < 1.1


@pytest.mark.parametrize("name", MEASURED)
def test_the_mask_cuts_queries_1_and_8_as_measured(name):
    """Windows of the joined sentences behind BOS; the measured ones lay in other places of the same text."""
    folder = DATA / name / "hf"
    if not TEXTS.exists() or not folder.exists():
        pytest.skip(f"{name} or the sentences are not here")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    with TEXTS.open(encoding="utf-8", newline="") as file:
        text = " ".join(row["text"] for row in csv.DictReader(file))
    token_ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    windows = torch.tensor(token_ids[: len(token_ids) // 63 * 63]).reshape(-1, 63)
    chosen = torch.randperm(len(windows), generator=torch.Generator().manual_seed(0))[:128]
    bos = torch.full((len(chosen), 1), tokenizer.bos_token_id)
    ids = torch.cat([bos, windows[chosen]], dim=1)
    profile = asc.position_profile(model, {"input_ids": ids}, n=64, groups=8)
    cut = profile.mean("mask_cut").mean(1).numpy()
    np.testing.assert_allclose(cut[:, [1, 8]].T, MEASURED[name]["mask_cut"], rtol=0.1, atol=0.02)


# the demo's model after 192 steps, means over heads by layer of 64 windows of held-out text
DEMO = {"windows": [0.0, 0.25, 0.81], "no_bos": [0.0, 0.16, 0.31]}


@pytest.mark.slow
def test_the_demo_model_is_as_measured(tmp_path):
    """Layer 0 and one token repeated are 0; a model before its first step has 1e-4 and cuts log(m/2)."""
    from transformers import AutoModelForCausalLM

    recipe = Recipe(steps=192)
    checkpoints = train(tmp_path, recipe, progress=False)
    model = AutoModelForCausalLM.from_pretrained(checkpoints / f"step{recipe.steps}").eval()
    ids = torch.tensor(byte_tokenizer()(text_windows(64, 1))["input_ids"])
    n, groups = 126, 8
    for name, read in (("windows", ids[:, :n]), ("no_bos", ids[:, 1:])):
        products = asc.position_profile(model, {"input_ids": read}, n=n, groups=groups).gram().numpy()
        value, _, high, _ = jackknife_bounds(
            np.arange(groups),
            lambda groups_kept, of=products: mean_product(of[..., groups_kept, :][..., groups_kept]).mean(1),
        )
        error = (high - value) / 2.365  # t of 7 degrees of freedom; the measured windows are as many
        assert (np.abs(value - DEMO[name]) <= 3 * np.sqrt(2) * error).all(), (name, value)
        assert abs(value[0]) <= 3 * error[0]
        assert (value[1:] > 0.1).all()
    repeated = asc.position_profile(model, {"input_ids": ids[:, 50:51].repeat(1, n)}, n=n, groups=groups)
    assert np.abs(mean_product(repeated.gram().numpy())).max() < 1e-9
    untrained = asc.position_profile(recipe.build().eval(), {"input_ids": ids[:, :n]}, n=n, groups=groups)
    assert 0 < mean_product(untrained.gram().mean(1).numpy()).max() < 5e-4
    cut = untrained.mean("mask_cut")[..., 1].mean(1)
    torch.testing.assert_close(cut, torch.full_like(cut, np.log(63 / 2)), rtol=0.05, atol=0.0)
