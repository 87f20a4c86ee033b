# SPDX-License-Identifier: MIT
"""The published protocol in the likelihood study: an encoder made here against a loop over its texts."""

import numpy as np
import pytest
import torch
from scipy import stats

from attnscope.engine.run_study import run
from attnscope.published import compare_published
from likelihood_study import encoder_folder, settings, texts_of

pytestmark = pytest.mark.usefixtures("unarranged", "unpictured")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return encoder_folder(tmp_path_factory.mktemp("m") / "bert-base-uncased")


@pytest.fixture(scope="module")
def results(folder, tmp_path_factory):
    torch.set_num_threads(1)
    texts = texts_of(tmp_path_factory.mktemp("t") / "texts.txt", 16)
    return run(settings(folder, texts, tmp_path_factory.mktemp("r"), protocols="both"), progress=False)


def published(results, name):
    table = results.table(name)
    return table[table["protocol"] == "ruscio2023"]


def test_probabilities_attention_and_correlation_are_those_of_a_loop(results, folder):
    from transformers import AutoModelForMaskedLM

    model = AutoModelForMaskedLM.from_pretrained(folder, attn_implementation="eager").eval()
    words, spans = published(results, "words"), published(results, "head_mean_spans")
    samples = results.table("samples").set_index("sample")["token_ids"]
    probabilities = []
    for row in words[words["mode"] == "low"].to_dict("records"):
        ids = [int(token) for token in samples[row["sample"]]]
        a, b = row["start"], row["stop"]
        with torch.no_grad():
            real = model(input_ids=torch.tensor([ids]), output_attentions=True)
            ids[a:b] = [int(piece) for piece in row["replacement_ids"]]
            moved = model(input_ids=torch.tensor([ids]), output_attentions=True)
        p = moved.logits[0].softmax(-1)[a, ids[a]].item()
        maps = [out.attentions[1][0].double().mean(0) for out in (real, moved)]
        probabilities.append((p, maps[1][a, a].item()))
        rows = spans[(spans["sample"] == row["sample"]) & (spans["mode"] == "low") & (spans["layer"] == 1)]
        assert row["own_probability"] == pytest.approx(p, rel=1e-4)
        assert rows["inner"].item() == pytest.approx(maps[1][a, a].item(), rel=1e-5)
        assert rows["map_mean"].item() == pytest.approx(1 / len(ids), rel=1e-5)
        outside = [[x for at, x in enumerate(map_of_rows[a].tolist()) if at != a] for map_of_rows in maps]
        expected = stats.mannwhitneyu(*outside, alternative="two-sided")
        assert rows["mann_whitney_p"].item() == pytest.approx(expected.pvalue, rel=1e-2)
        total = rows["mann_whitney_u"].item() + rows["mann_whitney_u_replaced"].item()
        assert total == pytest.approx((len(ids) - 1) ** 2)
    table = published(results, "head_mean_associations")
    row = table[(table["layer"] == 1) & (table["mode"] == "low")].iloc[0]
    assert row["estimate"] == pytest.approx(stats.spearmanr(*np.transpose(probabilities))[0], abs=1e-5)
    assert (table["low"].isna() & table["slope"].notna()).all()


def test_words_of_one_piece_get_the_same_rank_and_outer_follows_from_inner(results):
    words = published(results, "words")
    assert set(words["mode"]) == {"real", "lowest", "low", "mid", "high", "highest"}
    spans = published(results, "head_mean_spans")
    n = spans.merge(words[["sample", "mode", "n_tokens", "pieces"]], on=["sample", "mode"])
    size, m = n["n_tokens"].astype(float), n["pieces"].astype(float)
    expected = (size - m**2 * n["inner"]) / (size**2 - m**2)
    np.testing.assert_allclose(n["outer"], expected, rtol=1e-5)


def test_the_best_layer_stands_beside_the_published_one(results):
    best = published(results, "best_layers").iloc[0]
    table = published(results, "head_mean_associations")
    words = published(results, "words")
    p = words.groupby("mode")["own_probability"].mean()
    lower = [mode for mode in p.index if mode != "real" and p[mode] < p["real"]]
    rows = table[table["mode"].isin(lower)]
    assert best["rho"] == pytest.approx(rows["estimate"].max())
    assert best["likelihood_real"] == pytest.approx(p["real"])
    compared = compare_published(results, "ruscio2023").table
    row = compared[(compared["quantity"] == "rho") & compared["same_model"]].iloc[0]
    assert (row["published"], row["measured"]) == (0.642901, pytest.approx(best["rho"]))
    assert np.isfinite(row["exact"])
    layers = compared[(compared["quantity"] == "layer_rho") & compared["same_model"]].set_index("layer")
    assert np.isfinite(layers.loc[[0, 1, 2], "measured"]).all()


def test_both_protocols_stand_side_by_side_in_the_map(results):
    from attnscope.studies.attention_likelihood.figures import FIGURES

    # of one model, a row for each design
    axes = FIGURES["likelihood_map"](results).figure.axes
    rows = [label.get_text() for ax in axes for label in ax.get_yticklabels()]
    assert {"within texts", "as published"} <= set(rows)
    assert "ruscio2023" in results.report().read_text("utf-8")


def test_the_published_protocol_alone_has_no_exact_rows(folder, tmp_path):
    texts = texts_of(tmp_path / "texts.txt", 6)
    results = run(settings(folder, texts, tmp_path, protocols="ruscio2023"), progress=False)
    assert set(results.table("words")["protocol"]) == {"ruscio2023"}
    assert "claims" not in results.tables()
    assert results.report().is_file()
