# SPDX-License-Identifier: MIT
"""The sink study from queries and keys: its rows are those of the maps, and no map is computed."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import (
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)

import attnscope as asc
from attnscope.config.run_config import RunConfig
from attnscope.demo.texts import byte_tokenizer, documentation
from attnscope.errors import ConfigError
from attnscope.studies.attention_sinks.study import SinkStudy
from attnscope.study_api import forward

SIZES = {
    "vocab_size": 257,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 32768,
}
KEYS = ["sample", "layer", "head"]


def write_model(folder, *, window=None, **sizes):
    """Write a small model with random weights, sharpened so that heads differ, and a tokenizer of bytes."""
    torch.manual_seed(0)
    sizes = {**SIZES, **sizes}
    if window is None:
        model = LlamaForCausalLM(LlamaConfig(**sizes))
    else:
        model = MistralForCausalLM(MistralConfig(**sizes, sliding_window=window))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(4.0)
    model.save_pretrained(folder)
    byte_tokenizer(sizes["max_position_embeddings"]).save_pretrained(folder)
    return folder


def write_texts(folder, lengths):
    book = documentation()[0].replace("\n", " ")
    path = folder / "texts.txt"
    path.write_text("\n".join(book[1000 * place :][:length] for place, length in enumerate(lengths)))
    return path


def write_model_with_learned_sinks(folder):
    torch.manual_seed(0)
    experts = {"num_local_experts": 2, "num_experts_per_tok": 1, "eos_token_id": 1, "pad_token_id": 0}
    model = GptOssForCausalLM(GptOssConfig(**SIZES, **experts, sliding_window=40))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2:
                parameter.mul_(4.0)
            if name.endswith("sinks"):
                parameter.add_(torch.linspace(-1.0, 2.0, len(parameter)))
    model.save_pretrained(folder)
    byte_tokenizer(SIZES["max_position_embeddings"]).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=[None, 40], ids=["causal", "window"])
def two_runs(request, tmp_path_factory):
    """Return the results of one run from maps and one from queries and keys."""
    folder = tmp_path_factory.mktemp("lazy")
    model = write_model(folder / "model", window=request.param)
    texts = write_texts(folder, [300, 120, 90])
    return [
        asc.run(
            "attention_sinks",
            models=str(model),
            texts=str(texts),
            output=str(folder / attention),
            attention=attention,
            progress=False,
        )
        for attention in ("maps", "lazy")
    ]


def test_rows_of_heads_are_those_of_the_maps(two_runs):
    of_maps, of_queries = (
        results.table("heads").query("protocol == 'exact'").sort_values(KEYS).reset_index(drop=True)
        for results in two_runs
    )
    assert len(of_queries) == len(of_maps) == 3 * 2 * 4
    measured = set(of_queries.columns) & {
        *("sink_share", "sink_boost", "sink_rate", "sink_position", "sink_count", "sink_excess", "top_mass"),
        *("entropy", "entropy_normalized", "sink_share_uniform"),
    }
    assert len(measured) == 10
    for name in sorted(measured):
        ours, theirs = (table[name].astype(float).to_numpy() for table in (of_queries, of_maps))
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=1e-5, err_msg=name)
    assert of_queries["support"].tolist() == of_maps["support"].tolist()
    assert of_queries["sink_token"].fillna("").tolist() == of_maps["sink_token"].fillna("").tolist()


def test_uniform_attention_and_verdicts_are_those_of_the_maps(two_runs):
    of_maps, of_queries = (
        results.table("baselines").query("scope == 'any' and metric == 'sink_share'") for results in two_runs
    )
    keys = ["n_tokens", "support"]
    merged = of_queries.merge(of_maps, on=keys, suffixes=("", "_of_maps"))
    assert len(merged) == len(of_queries) >= 3
    np.testing.assert_allclose(merged["value"], merged["value_of_maps"], rtol=1e-9)
    names = ["layer", "head", "has_sink", "pooled_label"]
    ours, theirs = (results.table("sink_heads")[names].fillna("") for results in reversed(two_runs))
    assert ours.equals(theirs)


def test_profiles_hold_every_position_once(two_runs):
    results = two_runs[1]
    profiles = results.table("position_profiles")
    heads = results.table("heads")
    for (sample, layer, head), rows in profiles.groupby(KEYS):
        width = rows["last_position"] - rows["position"] + 1
        row = heads.query(f"sample == {sample} and layer == {layer} and head == {head}").iloc[0]
        assert width.sum() == row["n_tokens"]
        # the mean over bins, weighted by their widths, is the mean over queries
        assert np.average(rows["entropy"], weights=width) == pytest.approx(row["entropy"], rel=1e-9)
        if row["support"] == "causal":
            share = np.average(rows["sink_share"], weights=width)
            assert share == pytest.approx(row["sink_share"], rel=1e-9)
    assert "position_profiles" not in two_runs[0].tables()


def test_what_needs_the_map_is_named_and_the_way_is_stored(two_runs):
    results = two_runs[1]
    notes = " ".join(results.provenance["notes"])
    for name in ("fiedler_value", "marchenko_pastur", "persistent_entropy", "graph_statistics"):
        assert name in notes
    assert "sink_share" not in notes
    assert "measured from queries and keys" in notes
    assert "attention: lazy" in (Path(results.path) / "study.yaml").read_text()


def test_rows_of_the_mean_over_heads_are_those_of_the_map(two_runs):
    of_maps, of_queries = (
        results.table("head_means").query("protocol == 'exact'").sort_values(["sample", "layer"])
        for results in two_runs
    )
    assert len(of_queries) == len(of_maps) == 3 * 2
    names = ("sink_share", "sink_rate", "sink_position", "sink_count", "top_mass", "entropy")
    for name in names:
        ours, theirs = (table[name].astype(float).to_numpy() for table in (of_queries, of_maps))
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=1e-5, err_msg=name)


ROWS_AND_COLUMNS = ("sink_share", "sink_rate", "sink_test", "attention_entropy", "head_divergence")


@pytest.mark.parametrize("write", [write_model, write_model_with_learned_sinks])
def test_what_needs_no_map_is_measured_without(write, tmp_path):
    """The default computes maps only where something that is asked for needs them."""
    model = write(tmp_path / "model")
    texts = write_texts(tmp_path, [70, 50])

    def run(name, **settings):
        folder = str(tmp_path / name)
        models = {"models": str(model), "texts": str(texts), "output": folder, "progress": False}
        return asc.run("attention_sinks", **models, metrics=ROWS_AND_COLUMNS, **settings)

    plain, of_maps = run("auto", protocols="exact"), run("maps", protocols="exact", attention="maps")
    assert "measured from queries and keys" in " ".join(plain.provenance["notes"])
    assert "queries and keys" not in " ".join(of_maps.provenance["notes"])
    for table, keys in (("heads", KEYS), ("head_means", KEYS[:2]), ("layers", KEYS[:2])):
        ours, theirs = (results.table(table).sort_values(keys) for results in (plain, of_maps))
        assert set(ours.columns) >= set(theirs.columns)
        for name in theirs.select_dtypes("number").columns:
            numbers = (rows[name].astype(float).to_numpy() for rows in (ours, theirs))
            np.testing.assert_allclose(*numbers, rtol=2e-4, atol=1e-5, err_msg=f"{table}.{name}")
    assert {*plain.tables()} == {*of_maps.tables()}
    of_protocols = run("both", protocols="both")
    assert "queries and keys" not in " ".join(of_protocols.provenance["notes"])


def test_a_model_is_asked_for_its_queries_once(tmp_path, monkeypatch):
    """Not once for every block of its texts."""
    calls = []
    find = forward._find_refusal
    monkeypatch.setattr(forward, "_find_refusal", lambda *values: calls.append(1) or find(*values))
    models = {"models": str(write_model(tmp_path / "model")), "texts": str(write_texts(tmp_path, [40] * 6))}
    settings = {"output": str(tmp_path / "run"), "progress": False, "block": 2}
    asc.run("attention_sinks", **models, **settings, metrics=ROWS_AND_COLUMNS, protocols="exact")
    assert calls == [1]


def test_the_report_has_the_section_and_its_figure(two_runs, tmp_path):
    text = two_runs[1].report(tmp_path / "report.html").read_text("utf-8")
    assert "Over positions" in text
    assert "no attention map was computed" in " ".join(text.split())
    assert "a line per layer is the mean over its heads and the texts" in " ".join(text.split())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"extra": "examples"}, "which extra: examples needs"),
        ({"protocols": "both"}, "which protocols: ruscio2025 needs"),
        ({"bars": True}, "which bars: true needs"),
        ({"metrics": ["marchenko_pastur"]}, "measures none of marchenko_pastur"),
    ],
)
def test_what_lazy_attention_cannot_do_is_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        SinkStudy(RunConfig(models="model", texts="texts.txt", attention="lazy", **settings))


_LONG = """
import json, resource, sys
from attnscope.__main__ import main
sys.argv = ["attnscope", *sys.argv[1:]]
try:
    main()
finally:
    print(json.dumps({"peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}), file=sys.stderr)
"""


@pytest.mark.slow
def test_a_text_of_32768_tokens_is_measured_in_bounded_memory(tmp_path):
    """A head's map of it would take 4.3 GB in float32, and the model has four."""
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 1}
    model = write_model(tmp_path / "model", **sizes)
    book = tmp_path / "book.txt"
    book.write_text((" ".join(documentation()) * 40).replace("\n", " ")[:40000])
    command = ["run", "attention_sinks", "--model", str(model), "--texts", str(book)]
    command += ["--set", "attention=lazy", "--output", str(tmp_path / "runs"), "--json"]
    done = subprocess.run([sys.executable, "-c", _LONG, *command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    peak = json.loads(done.stderr.splitlines()[-1])["peak"]
    assert peak < 1.2e9
    results = asc.load(json.loads(done.stdout)["folder"])
    heads = results.table("heads")
    assert heads["n_tokens"].unique().tolist() == [32768]
    assert bool(heads["entropy"].notna().all())
    assert (tmp_path / "runs").glob("**/positions.*")
