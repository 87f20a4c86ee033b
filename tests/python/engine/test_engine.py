# SPDX-License-Identifier: MIT
"""The engine on tiny models: numbers equal to direct calls, errors in words, nothing half-written."""

import shutil
import threading
import time

import numpy as np
import pytest
import torch

import attnscope as asc
from attnscope.config.run_config import RunConfig
from attnscope.engine.planning import make_plan
from attnscope.engine.run_study import run
from attnscope.errors import ConfigError
from attnscope.study_api.batches import batches
from attnscope.study_api.study import study_class
from folders import id_lines, model_folder, sentences, series, study
from models import MapCount


def test_a_run_measures_what_direct_calls_measure(tmp_path, llama, texts, messages):
    results = run(study(tmp_path, str(llama), str(texts)), say=messages.append)
    assert messages == []
    assert results.tables() == [
        *("samples", "baselines", "graphs", "head_mean_graphs", "head_means", "heads"),
    ]
    heads, samples = results.table("heads"), results.table("samples")
    assert list(heads.columns[:7]) == ["model", "revision", "step", "sample", "layer", "head", "protocol"]
    assert set(heads["model"]) == {"tiny"}
    assert heads[["sample", "layer", "head"]].to_numpy().tolist() == [
        [sample, layer, head] for sample in range(7) for layer in range(2) for head in range(4)
    ]
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(llama, attn_implementation="eager").eval()
    cube = results.to_xarray("graphs")["density"]
    for sample in (0, 6):
        ids = torch.tensor([list(samples["token_ids"][sample])])
        assert samples["n_tokens"][sample] == ids.shape[1] == 4 + sample
        with torch.no_grad():
            maps = model(ids, output_attentions=True).attentions
        for layer, attention in enumerate(maps):
            rows, mean = (
                table.loc[(table["sample"] == sample) & (table["layer"] == layer), "fiedler_value"]
                for table in (heads, results.table("head_means"))
            )
            np.testing.assert_allclose(rows, asc.fiedler_value(attention[0]), rtol=1e-4)
            expected = asc.fiedler_value(attention[0].double().mean(0))
            np.testing.assert_allclose(mean.item(), expected, rtol=1e-4)
            fixed = asc.graph_statistics(attention[0], [0.05]).density[:, 0]
            stored = cube.sel(sample=sample, layer=layer, threshold=0.05, head=[0, 1, 2, 3]).squeeze()
            np.testing.assert_allclose(stored, fixed, atol=1e-12)


def test_baselines_are_uniform_attention_of_every_length(tmp_path, llama, texts):
    results = run(study(tmp_path, str(llama), str(texts)), progress=False)
    table = results.table("baselines")
    assert sorted(set(table["n_tokens"])) == list(range(4, 11))
    assert (set(table["kind"]), set(table["support"])) == ({"uniform"}, {"causal"})
    assert not table.duplicated(["n_tokens", "metric", "kind", "support", "threshold"]).any()
    n = 9
    row = table[(table["n_tokens"] == n) & (table["metric"] == "fiedler_value") & table["threshold"].isna()]
    uniform = torch.ones(n, n, dtype=torch.float64).tril() / torch.arange(1, n + 1)[:, None]
    graph = (uniform + uniform.T) / 2
    graph.fill_diagonal_(0)
    expected = torch.linalg.eigvalsh(torch.diag(graph.sum(-1)) - graph)[1]
    assert row["value"].item() == pytest.approx(expected.item(), rel=1e-10)
    # 2/n of 9 tokens: row i of the uniform causal map reaches it while 1/(i+1) >= 2/9, the first four rows
    graphs = table[
        (table["n_tokens"] == n) & (table["metric"] == "density") & np.isclose(table["threshold"], 2 / n)
    ]
    assert graphs["value"].item() == pytest.approx(6 / 36)


def test_divergence_and_alignment_of_every_head(tmp_path, llama, texts):
    settings = study(
        tmp_path, str(llama), str(texts), metrics=["head_divergence", "geometric_semantic_alignment"]
    )
    results = run(settings)
    heads, samples = results.table("heads"), results.table("samples")
    mean = results.table("head_means")
    assert mean.filter(["head_divergence", "alignment_value"]).isna().all().all()
    assert mean["alignment_hidden"].notna().all()
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(llama, attn_implementation="eager").eval()
    ids = torch.tensor([list(samples["token_ids"][5])])
    with torch.no_grad():
        out = model(ids, output_attentions=True, output_hidden_states=True)
        block = model.model.layers[1]
        value = block.self_attn.v_proj(block.input_layernorm(out.hidden_states[1]))
    value = value.view(1, ids.shape[1], 2, -1).transpose(1, 2).repeat_interleave(2, 1)
    rows = heads[(heads["sample"] == 5) & (heads["layer"] == 1)]
    maps, hidden = out.attentions[1][0].double(), out.hidden_states[1][0].double()
    average = maps.mean(0)
    inside = torch.ones_like(average).tril().bool()
    terms = torch.where(inside, maps * (maps.clamp_min(1e-300) / average.clamp_min(1e-300)).log(), 0.0)
    np.testing.assert_allclose(rows["head_divergence"], terms.sum(-1).mean(-1), rtol=1e-4)
    pairs = inside & ~torch.eye(len(average), dtype=torch.bool)
    for column, states in (
        ("alignment_value", value[0].double()),
        ("alignment_hidden", hidden.expand(4, -1, -1)),
    ):
        unit = torch.nn.functional.normalize(states, dim=-1)
        cosine = unit @ unit.mT
        expected = [np.corrcoef(maps[head][pairs], cosine[head][pairs])[0, 1] for head in range(4)]
        np.testing.assert_allclose(rows[column], expected, atol=1e-4)


def test_bars_are_stored_when_asked_for(tmp_path, llama, texts):
    results = run(
        study(tmp_path, str(llama), str(texts), bars=True, metrics=["bar_count", "total_persistence"])
    )
    bars, heads = results.table("bars"), results.table("heads")
    keys = ["sample", "layer", "head"]
    finite = bars[np.isfinite(bars["death"])]
    counted = bars.groupby([*keys, "dimension"]).size()
    for row in heads.itertuples():
        for dimension in (0, 1):
            diagram = (row.sample, row.layer, row.head, dimension)
            assert getattr(row, f"bar_count_{dimension}") == counted.get(diagram, 0)
    length = (finite["death"] - finite["birth"]).groupby([finite[key] for key in keys]).sum()
    total = heads.set_index(keys)[["total_persistence_0", "total_persistence_1"]].sum(axis=1)
    np.testing.assert_allclose(length.reindex(total.index).fillna(0), total, atol=1e-12)


def test_an_encoder_gets_the_full_baseline(tmp_path, texts):
    folder = model_folder(tmp_path / "bert", "bert")
    results = run(study(tmp_path, str(folder), str(texts), metrics=["fiedler_value"]))
    table = results.table("baselines")
    assert (set(table["kind"]), set(table["support"])) == ({"uniform"}, {"full"})
    complete = table[table["metric"] == "fiedler_value"]
    np.testing.assert_allclose(complete["value"], 1.0, rtol=1e-10)


def test_units_know_the_longest_sentence_where_their_numbers_depend_on_it(tmp_path, llama, monkeypatch):
    lines = sentences(tmp_path / "texts.txt", 10).read_text("utf-8").splitlines()
    ids = {}
    for name, count in (("longer", 10), ("shorter", 8)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "texts.txt").write_text("\n".join([*lines[:8], *["x " * 40] * (count - 8)]) + "\n", "utf-8")
        monkeypatch.chdir(folder)
        for padded in (False, True):
            controls = {"protocols": "both", "options": {"extra": ["fisher"]}} if padded else {}
            plan = make_plan(study(tmp_path, str(llama), "texts.txt", block=4, **controls))
            ids[name, padded] = {unit.id for unit in plan.units if unit.checkpoint}
    assert not ids["longer", True] & ids["shorter", True]
    assert ids["shorter", False] < ids["longer", False]


def test_groups_token_ids_and_source_columns_reach_the_samples(tmp_path, llama, texts):
    rows = id_lines(tmp_path / "ids.jsonl", [[1, 5, 6, 5, 6], [1, 7, 8, 9]])
    inputs = [{"path": str(texts), "samples": 2}, {"path": str(rows), "group": "copying"}]
    samples = run(study(tmp_path, str(llama), inputs, metrics=["fiedler_value"])).table("samples")
    assert list(samples["group"]) == ["text", "text", "copying", "copying"]
    assert list(samples["token_ids"][2]) == [1, 5, 6, 5, 6]
    assert list(samples["kind"].fillna("")) == ["", "", "made", "made"]
    assert list(samples["source"]) == ["texts.txt", "texts.txt", "ids.jsonl", "ids.jsonl"]
    assert list(samples["source_row"]) == [0, 1, 0, 1]
    assert samples["tokens"][2][0] == "<s>"


def test_bad_token_ids_are_named(tmp_path, llama):
    rows = id_lines(tmp_path / "ids.jsonl", [[1, 5]])
    rows.write_text('{"token_ids": [1, 5000]}\n', "utf-8")
    with pytest.raises(
        ConfigError, match=r"ids\.jsonl, row 0: .*token id 5000 is outside the vocabulary of 97"
    ):
        run(study(tmp_path, str(llama), str(rows)))


def test_long_short_and_bare_sentences_are_counted(tmp_path, texts, messages):
    folder = model_folder(tmp_path / "plain", bos=False)
    texts.write_text("\n".join(["the", " ".join(["cat"] * 100), "the cat sat"]), "utf-8")
    results = run(study(tmp_path, str(folder), str(texts)), say=messages.append)
    samples = results.table("samples")
    assert list(samples["n_tokens"]) == [1, 64, 3]
    assert list(samples["truncated"]) == [False, True, False]
    assert not samples["bos"].any()
    assert results.provenance["sentences"]["plain"] == {
        "sentences": 3,
        "cut": 1,
        "of_one_token": 1,
        "empty": 0,
        "without_bos": 3,
        "repeated": 0,
    }
    for part in (
        "1 of 3 sentences were longer than 64 tokens",
        "have one token",
        "no sentence starts with a BOS",
    ):
        assert any(part in line for line in messages), part
    one_token_heads = results.table("heads").query("sample == 0")
    assert (one_token_heads["fiedler_value"] == 0).all()


def test_bos_can_be_dropped_or_replaced(tmp_path, llama, texts):
    plans = {
        bos: make_plan(study(tmp_path, str(llama), str(texts), bos=bos))
        for bos in ("keep", "drop", "replace")
    }
    ids = {
        bos: [text.encoded.ids.tolist() for unit in plan.units for text in unit.inputs]
        for bos, plan in plans.items()
    }
    assert all(ids_of_text[0] == 1 for ids_of_text in ids["keep"])
    assert ids["drop"] == [ids_of_text[1:] for ids_of_text in ids["keep"]]
    assert [ids_of_text[1:] for ids_of_text in ids["replace"]] == ids["drop"]
    assert all(ids_of_text[0] > 3 for ids_of_text in ids["replace"])
    again = make_plan(study(tmp_path, str(llama), str(texts), bos="replace"))
    assert [text.encoded.ids.tolist() for unit in again.units for text in unit.inputs] == ids["replace"]


def test_max_tokens_cuts_below_the_context(tmp_path, llama, texts):
    plan = make_plan(study(tmp_path, str(llama), str(texts), max_tokens=5))
    assert max(text.n_tokens for unit in plan.units for text in unit.inputs) == 5


def test_a_memory_bound_that_cannot_hold_is_refused_in_words(tmp_path, llama, texts):
    with pytest.raises(ConfigError, match=r"max_memory: a sentence of 10 tokens needs .*set max_tokens"):
        make_plan(study(tmp_path, str(llama), str(texts), max_memory=100))


def test_a_bound_on_disk_that_sums_would_exceed_is_refused_in_words(tmp_path, llama, texts, monkeypatch):
    def bounded(most):
        return study(tmp_path, str(llama), str(texts), max_disk=most)

    plan = make_plan(bounded(None))
    reading = [unit.id for unit in plan.units if unit.inputs]
    size = lambda self, unit, plan: (unit.id in reading) * 1024**2  # noqa: E731
    monkeypatch.setattr(study_class(plan.settings.study), "stored_bytes", size)
    need = len(reading)
    assert make_plan(bounded(f"{need}MB")).digest == plan.digest
    messages = (
        f"max_disk: the sums of attention_sinks take about {need} MB on disk, {need - 1} MB are allowed"
    )
    with pytest.raises(ConfigError, match=messages):
        run(bounded(f"{need - 1}MB"), progress=False)
    assert not (tmp_path / "runs").exists()


def test_batches_hold_every_sentence_once_and_obey_the_bound(tmp_path, llama):
    texts = sentences(tmp_path / "many.txt", 40)
    unit = make_plan(study(tmp_path, str(llama), str(texts), block=40)).units[0]
    groups = batches(unit, heads=4, layer_bytes=4 * 30 * 30 * 4 * 4)
    assert sorted(text.sentence.sample for group in groups for text in group) == list(range(40))
    assert max(map(len, groups)) > 1
    for group in groups:
        lengths = [text.n_tokens for text in group]
        assert len(group) == 1 or len(group) * max(lengths) ** 2 * 16 <= 4 * 30 * 30 * 16
        assert max(lengths) <= 1.25 * min(lengths) + 8


def test_the_numbers_do_not_depend_on_the_order_of_the_sentences(tmp_path, llama, texts):
    forward = run(study(tmp_path, str(llama), str(texts), block=1)).table("heads")
    lines = texts.read_text("utf-8").splitlines()
    texts.write_text("\n".join(reversed(lines)), "utf-8")
    backward = run(study(tmp_path, str(llama), str(texts), block=1), name="b").table("heads")
    backward["sample"] = 6 - backward["sample"]
    backward = backward.sort_values(["sample", "layer", "head"], ignore_index=True)
    assert (forward["fiedler_value"] == backward["fiedler_value"]).all()


def test_nan_heads_are_counted_never_mapped_to_zero(tmp_path, llama, texts, messages):
    from safetensors.torch import load_file, save_file

    copy = tmp_path / "broken"
    shutil.copytree(llama, copy)
    weights = load_file(copy / "model.safetensors")
    name = next(name for name in weights if "layers.1.self_attn.q_proj" in name)
    weights[name][:8] = float("nan")
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    results = run(study(tmp_path, str(copy), str(texts), metrics=["fiedler_value"]), say=messages.append)
    heads = results.table("heads")
    broken = heads[(heads["layer"] == 1) & (heads["head"] == 0)]
    assert len(broken) == 7
    assert broken["fiedler_value"].isna().all()
    assert heads[(heads["layer"] == 1) & (heads["head"] > 0)]["fiedler_value"].notna().all()
    assert results.provenance["non_finite"]["fiedler_value"] >= 14
    assert any("matrices held NaN" in line for line in messages)


def test_no_more_than_two_layers_are_alive_in_a_whole_study(tmp_path, texts, monkeypatch):
    """Every metric of the study, eight layers, batches of several sentences."""
    folder = model_folder(tmp_path / "deep", num_hidden_layers=8)
    count = MapCount(monkeypatch)
    results = run(RunConfig(models=str(folder), texts=str(texts), output=str(tmp_path / "runs"), name="deep"))
    assert len(results.table("heads")) == 7 * 8 * 4
    assert count.born > 8
    assert count.most == 2


def test_the_next_layer_is_computed_while_a_kernel_runs(monkeypatch):
    """The worker reaches its second layer after a kernel was entered and before the kernel came back."""
    import models

    model = models.tiny("llama", num_hidden_layers=3)
    entered, born = threading.Event(), []

    def late(module, arguments):
        assert entered.wait(30)
        time.sleep(0.01)
        born.append(time.monotonic())

    maps = torch.rand(600, 128, 128)
    with asc.capture(model) as recording:
        run_ = recording.run(input_ids=torch.arange(6)[None])
        handle = model.model.layers[1].register_forward_pre_hook(late)
        try:
            next(run_)
            began = time.monotonic()
            entered.set()
            asc.singular_values(maps)
            ended = time.monotonic()
        finally:
            handle.remove()
        run_.close()
    assert ended - began > 0.03, "the kernel was too fast to tell"
    assert began < born[0] < ended


def test_a_revision_of_no_step_in_a_series_is_reported(tmp_path, texts):
    """A report would take step 0 for the last checkpoint, though `main` is the trained model."""
    folder = series(tmp_path / "grown", steps=(0,))
    assert not any("no step" in note for note in make_plan(study(tmp_path, str(folder), texts)).notes)
    model_folder(folder / "main", seed=5)
    notes = make_plan(study(tmp_path, str(folder), texts)).notes
    (note,) = (note for note in notes if "no step" in note)
    assert note.startswith("grown: no step is known of main")
    assert note.endswith("the last checkpoint is step0")


def test_fewer_texts_than_were_asked_for_are_reported(tmp_path, llama, texts):
    sources = [{"path": str(texts), "samples": count, "group": str(count)} for count in (5, 500)]
    notes = make_plan(study(tmp_path, str(llama), sources)).notes
    assert notes[0] == f"{texts}: 500 texts were asked for, and it holds 7"
    # five of the seven are of both sources
    assert notes[1:] == [note for note in notes if note.startswith("tiny: 5 of 12 sentences are read as an")]
