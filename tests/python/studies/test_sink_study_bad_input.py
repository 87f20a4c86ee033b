# SPDX-License-Identifier: MIT
"""The whole sink study on what people bring: no BOS, one token, too long, broken, constant, overflowing."""

import hashlib
import json
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from attnscope.config.run_config import RunConfig
from attnscope.engine.run_study import run
from folders import WORDS, model_folder, sentences, series, with_means


def study(tmp_path, model, texts, **options):
    all_options = {"extra": "all", "controls": 1}
    options = {"thresholds": [0.05, "2/n"], "protocols": "both", "options": all_options, **options}
    return RunConfig(models=model, texts=str(texts), output=str(tmp_path / "runs"), name="a", **options)


def lines(path, *texts):
    path.write_text("\n".join(texts) + "\n", "utf-8")
    return path


def numbers(table):
    return table.select_dtypes("number")


@pytest.mark.parametrize("bos", ["keep", pytest.param("drop", marks=pytest.mark.slow), "replace"])
def test_a_tokenizer_that_adds_no_special_token(tmp_path, bos):
    folder = model_folder(tmp_path / "plain", bos=False)
    texts = sentences(tmp_path / "texts.txt", 3, shortest=8)
    messages = []
    only = {"protocols": ["exact"], "options": {"extra": ["ablation"]}}
    results = run(study(tmp_path, str(folder), texts, bos=bos, **only), say=messages.append)
    samples = results.table("samples")
    assert not samples["bos"].any()
    assert [len(ids) for ids in samples["token_ids"]] == [8, 9, 10]
    frames = results.table("frames")
    assert set(frames["frame"]) <= {"centralized", "distributed", "none"}
    tokens = results.table("heads").query("sample == 0")["sink_token"]
    # a head without a sink by the test has no token
    assert set(tokens.dropna()) <= set(WORDS)
    first = results.table("ablation").query("keys == 'first'")
    assert first["output_kl"].gt(0).all()
    assert sum("no sentence starts with a BOS token" in line for line in messages) == (bos == "keep")


def test_token_ids_without_any_tokenizer(tmp_path):
    folder = model_folder(tmp_path / "bare")
    for file in folder.glob("tokenizer*"):
        file.unlink()
    rows = tmp_path / "ids.jsonl"
    rows.write_text("".join(json.dumps({"token_ids": [5, 6, 7, 8, 9, k]}) + "\n" for k in (10, 11)), "utf-8")
    results = run(study(tmp_path, str(folder), rows, options={"extra": ["fisher"]}), progress=False)
    # a token without a tokenizer is its id; without a sink by the test there is none
    modal = results.table("frames").set_index("protocol")["modal_token"]
    assert modal["ruscio2025"] in [str(index) for index in range(97)]
    assert results.table("fisher")["trace"].gt(0).any()


def test_one_token_sentences_have_defined_numbers_or_none(tmp_path):
    folder = model_folder(tmp_path / "plain", bos=False)
    texts = lines(
        tmp_path / "texts.txt", "the", "cat", "the cat", "the cat sat", "rain fell over town and sea"
    )
    results = run(study(tmp_path, str(folder), texts), progress=False)
    assert results.provenance["sentences"]["plain"]["of_one_token"] == 2
    heads = results.table("heads")
    rows_of_text = heads[heads["sample"] == 0]
    exact, published = (
        rows_of_text[rows_of_text["protocol"] == protocol] for protocol in ("exact", "ruscio2025")
    )
    assert (exact["fiedler_value"] == 0).all()
    assert (exact["sink_share"] == 1).all()
    assert (exact["entropy"] == 0).all()
    assert exact["laplacian_gap"].isna().all()
    assert (exact["bar_count_0"] == 1).all()
    assert np.isinf(published["spectral_ratio"]).all()
    assert (published["bar_count_0"] <= 1).all()
    graphs = results.table("graphs").query("sample == 0 and protocol == 'ruscio2025'")
    assert graphs["degenerate"].astype(bool).all()
    # a sentence of one token predicts nothing; the published loss counts the padding behind it
    samples = results.table("fisher").groupby("protocol")["sample"].unique().map(sorted).to_dict()
    assert samples == {"exact": [2, 3, 4], "ruscio2025": [0, 1, 2, 3, 4]}
    ablation = results.table("ablation").query("sample == 0")
    assert ablation["loss_change"].isna().all()
    assert (ablation["output_kl"].dropna() == 0).all()  # a query that would see nothing keeps what it sees
    assert results.variants()["value"].notna().all()


def test_only_one_token_sentences_still_make_a_run(tmp_path):
    folder = model_folder(tmp_path / "plain", bos=False)
    results = run(study(tmp_path, str(folder), lines(tmp_path / "texts.txt", "the", "cat")), progress=False)
    assert set(results.table("samples")["n_tokens"]) == {1}
    assert "fisher" not in results.tables()
    frames = results.table("frames").set_index("protocol")["frame"]
    assert frames.to_dict() == {
        "exact": "untested",
        "ruscio2025": "centralized",
    }  # there is one position only


def test_sentences_longer_than_the_context_are_cut_counted_and_said(tmp_path):
    folder = model_folder(tmp_path / "tiny")
    texts = lines(tmp_path / "texts.txt", "the cat sat on a mat", " ".join(["cat", "sat", "the"] * 50))
    messages = []
    results = run(
        study(tmp_path, str(folder), texts, options={"extra": ["fisher", "ablation"]}), say=messages.append
    )
    assert list(results.table("samples")["n_tokens"]) == [7, 64]
    assert list(results.table("samples")["truncated"]) == [False, True]
    assert results.provenance["sentences"]["tiny"]["cut"] == 1
    assert any("1 of 2 sentences were longer than 64 tokens and are cut" in line for line in messages)
    assert results.table("fisher").query("sample == 1")["trace"].gt(0).all()


@pytest.mark.slow
def test_a_checkpoint_that_fails_in_mid_sweep_is_skipped_named_and_in_the_exit_code(tmp_path):
    growing = series(tmp_path / "growing", steps=(0, 4, 16))
    weights = growing / "step4" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:3000])
    texts = sentences(tmp_path / "texts.txt", 3, shortest=8)
    command = [
        *(sys.executable, "-m", "attnscope", "run", "attention_sinks", "--no-draw", "--model", str(growing)),
        *("--texts", str(texts), "--protocol", "both", "--set", "options.extra=[random_weights]"),
        *("--output", str(tmp_path / "runs"), "--name", "a", "--set", "thresholds=[0.05]"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 3, done.stderr
    assert "skipped growing step4" in done.stderr
    import attnscope as asc

    results = asc.load(tmp_path / "runs" / "a")
    assert [entry["checkpoint"] for entry in results.provenance["skipped"]] == ["growing step4"]
    assert sorted(set(results.table("heads")["step"])) == [0, 16]
    emergence = results.table("emergence")
    assert set(emergence["change_last_step"].dropna()) == {16}
    assert "random_weights" in set(results.table("baselines")["kind"])


def test_constant_value_vectors_have_no_alignment(tmp_path):
    from safetensors.torch import load_file, save_file

    folder = model_folder(tmp_path / "qwen2", "qwen2")
    weights = load_file(folder / "model.safetensors")
    name = next(name for name in weights if "layers.0.self_attn.v_proj.weight" in name)
    weights[name].zero_()
    weights[name.replace("weight", "bias")].fill_(0.5)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    texts = sentences(tmp_path / "texts.txt", 3, shortest=8)
    heads = run(study(tmp_path, str(folder), texts, options={}), progress=False).table("heads")
    exact = heads[(heads["protocol"] == "exact") & (heads["head"] >= 0)]
    constant, others = exact[exact["layer"] == 0], exact[exact["layer"] > 0]
    assert constant["alignment_value"].isna().all()
    assert constant["alignment_value_without_sinks"].isna().all()
    assert others["alignment_value"].notna().all()
    assert constant["alignment_hidden"].notna().all()
    # every part of a head's output points the same way; its size is the share of attention on the reference
    answer = constant[constant["reference_magnitude"].notna()]
    np.testing.assert_allclose(answer["reference_directional"], 1, atol=1e-6)
    assert answer["reference_magnitude"].between(0, 1.000001).all()


def test_heads_that_overflow_in_half_precision_are_nan_and_counted(tmp_path):
    from safetensors.torch import load_file, save_file

    folder = model_folder(tmp_path / "half")
    weights = load_file(folder / "model.safetensors")
    name = next(name for name in weights if "layers.1.self_attn.q_proj.weight" in name)
    weights[name][:8] *= 60000 / weights[name][:8].abs().max()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    texts = sentences(tmp_path / "texts.txt", 3, shortest=8)
    messages = []
    results = run(
        study(tmp_path, {"path": str(folder), "dtype": "float16"}, texts, bars=True), say=messages.append
    )
    heads = with_means(results)
    head = heads["layer"].eq(1) & heads["head"].isin([-1, 0])
    broken, intact = heads[head], heads[~head]
    assert len(broken) == 3 * 2 * 2
    for protocol, columns, counts in (
        ("exact", ["sink_share", "fiedler_value", "entropy", "mp_ks", "alignment_hidden"], ["sink_count"]),
        (
            "ruscio2025",
            ["entropy", "entropy_bits", "participation_ratio", "attention_max", "alignment_hidden"],
            ["sink_position", "strongest_key"],
        ),
    ):
        bad, good = (table[table["protocol"] == protocol] for table in (broken, intact))
        assert bad[columns].isna().all().all()
        assert bad[counts].isna().all().all()
        assert bad["sink_token"].isna().all()
        assert good[columns].notna().all().all()
    layers = results.table("layers").query("layer == 1")
    assert layers[["kl_reduction_90", "head_divergence"]].isna().all().all()
    assert layers["sink_count_90"].isna().all()
    assert results.provenance["non_finite"]["fiedler_value"] >= 6
    assert any("matrices held NaN or infinite entries; their results are NaN" in line for line in messages)
    assert any("fisher: half: gradients of float16" in line for line in messages)
    assert "fisher" not in results.tables()
    assert results.table("ablation")["output_kl"].isna().all()


REVISIONS = ("step0", "step2", "step10")
SCRIPT = """
import json, os, sys
from pathlib import Path
import attnscope as asc
from attnscope.cli.dry_run import dry_run
study = asc.Study(
    study="attention_sinks",
    models={"path": "acme/pythia-tiny", "revisions": ["step10", "step0", "step2"], "free_disk": True},
    texts=sys.argv[1], output=sys.argv[2], name="a", metrics=["sink_share", "sink_position"],
    options={"extra": ["random_weights"]},
)
files = sorted(Path(os.environ["HF_HOME"], "hub").rglob("*"))
dry_run(study)
assert sorted(Path(os.environ["HF_HOME"], "hub").rglob("*")) == files, "a dry run removed weights"
results = asc.run(study, progress=False)
print(json.dumps(sorted(set(results.table("heads")["step"].tolist()))))
"""


@pytest.fixture
def hub_cache(tmp_path):
    """A Hugging Face cache of three revisions: blobs, links to them, refs."""
    cache = tmp_path / "hub" / "models--acme--pythia-tiny"
    for number, revision in enumerate(REVISIONS):
        commit = f"{number + 1:040x}"
        folder = model_folder(tmp_path / "made" / revision, seed=number)
        snapshot = cache / "snapshots" / commit
        snapshot.mkdir(parents=True)
        (cache / "blobs").mkdir(exist_ok=True)
        (cache / "refs").mkdir(exist_ok=True)
        (cache / "refs" / revision).write_text(commit, "utf-8")
        for file in folder.iterdir():
            blob = cache / "blobs" / hashlib.sha256(file.read_bytes()).hexdigest()
            if not blob.exists():
                blob.write_bytes(file.read_bytes())
            (snapshot / file.name).symlink_to(blob)
    return cache


@pytest.mark.slow
def test_revisions_leave_the_hub_cache_after_use(tmp_path, hub_cache):
    texts = sentences(tmp_path / "texts.txt", 3)
    environment = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    environment.pop("HF_HUB_CACHE", None)
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT), "utf-8")
    done = subprocess.run(
        [sys.executable, str(script), str(texts), str(tmp_path / "runs")],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [0, 2, 10]
    left = list((hub_cache / "snapshots").iterdir()) if hub_cache.exists() else []
    assert left == []
    blobs = list((hub_cache / "blobs").iterdir()) if hub_cache.exists() else []
    assert blobs == []
    for revision in REVISIONS:
        assert f"acme/pythia-tiny {revision}: " in done.stderr
    assert done.stderr.count("of disk freed") == 3
    stored = json.loads((tmp_path / "runs" / "a" / "provenance.json").read_text("utf-8"))["models"]
    assert {entry["commit"] for entry in stored.values()} == {f"{number + 1:040x}" for number in range(3)}
