# SPDX-License-Identifier: MIT
"""The sink study's tables against direct calls of the metrics on the model's own output."""

import numpy as np
import pytest
import torch
from pandas.testing import assert_frame_equal

import attnscope as asc
from attnscope.config.run_config import RunConfig
from attnscope.engine.run_study import run
from attnscope.protocols import ruscio2025
from attnscope.studies.attention_sinks.matched_keys import matched_keys
from folders import THRESHOLDS, model_folder, sink_study, tokenizer, with_means
from placeholders import placeholders

#: What needs a head that predicts tokens, beside one metric.
QUICK = {"extra": ["fisher", "ablation"]}


@pytest.fixture(scope="module")
def model(llama):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(llama, attn_implementation="eager").eval()


@pytest.fixture(scope="module")
def direct(results, model):
    """ids, attention [layers, h, n, n], hidden states [layers + 1, n, D] and block outputs of sentence 5."""
    ids = torch.tensor([list(results.table("samples")["token_ids"][5])])
    outputs = []
    hooks = [
        block.register_forward_hook(
            lambda _, __, out: outputs.append(out if torch.is_tensor(out) else out[0])
        )
        for block in model.model.layers
    ]
    with torch.no_grad():
        out = model(ids, output_attentions=True, output_hidden_states=True)
    for hook in hooks:
        hook.remove()
    return (
        ids,
        torch.stack([layer[0] for layer in out.attentions]).double(),
        torch.stack([state[0] for state in out.hidden_states]).double(),
        torch.stack([state.reshape(ids.shape[1], -1) for state in outputs]).double(),
    )


def rows(table, protocol, layer, **keys):
    chosen = table[(table["sample"] == 5) & (table["protocol"] == protocol) & (table["layer"] == layer)]
    for key, value in keys.items():
        chosen = chosen[chosen[key] == value]
    return chosen


def test_what_has_no_value_is_null(results):
    assert placeholders(results) == []


def test_every_table_is_there_with_its_keys(results):
    assert set(results.tables()) == {
        *("samples", "heads", "graphs", "layers", "head_means", "head_mean_graphs", "baselines"),
        *("heads_variants", "graphs_variants", "layers_variants"),
        *(
            "frames",
            "frame_evidence",
            "specialization",
            "layer_tests",
            "graph_depth",
            "sink_sums",
            "sink_heads",
        ),
        *("removal_tests", "null_tests"),
        *("fisher", "ablation", "examples", "bars"),
    }
    for name in results.tables():
        table = results.table(name)
        keys = results.key_columns(name)
        assert list(table.columns[: len(keys)]) == keys
        assert name == "bars" or not table.duplicated(keys).any(), name
        assert table[keys].drop(columns="threshold", errors="ignore").notna().all().all()
    assert len(results.table("heads")) == 7 * 2 * 4 * 2
    assert len(results.table("head_means")) == 7 * 2 * 2
    assert results.table("samples")["causal"].all()


def test_published_numbers_of_every_head_and_the_mean_are_the_protocols(results, direct):
    _, maps, hidden, _ = direct
    heads = with_means(results)
    for layer in range(2):
        maps_of_layer = torch.cat([maps[layer].mean(0, keepdim=True), maps[layer]])
        before, after = hidden[layer], hidden[layer + 1]
        result = rows(heads, "ruscio2025", layer)
        bars, answer = ruscio2025.persistence(maps_of_layer), ruscio2025.topology(maps_of_layer)
        influence = ruscio2025.reference_influence(maps_of_layer, before.expand(5, -1, -1))
        pca = ruscio2025.pca_correlation(maps_of_layer, before)
        expected = {
            "entropy": ruscio2025.attention_entropy(maps_of_layer).mean(-1),
            "entropy_bits": ruscio2025.attention_entropy(maps_of_layer, base=2).mean(-1),
            "participation_ratio": ruscio2025.participation_ratio(maps_of_layer),
            "stable_rank": ruscio2025.stable_rank(maps_of_layer),
            "spectral_ratio": ruscio2025.spectral_ratio(maps_of_layer),
            "spectral_norm": ruscio2025.spectral_norm(maps_of_layer),
            "bulk_edge": ruscio2025.bulk(maps_of_layer).edge,
            "bulk_std": ruscio2025.bulk(maps_of_layer).std,
            "sink_concentration": ruscio2025.sink_concentration(maps_of_layer),
            "marchenko_pastur_deviation": ruscio2025.marchenko_pastur_deviation(maps_of_layer),
            "bar_count_0": asc.bar_count(bars)[:, 0],
            "bar_count_1": asc.bar_count(bars)[:, 1],
            "mean_persistence_0": answer.mean_length[:, 0],
            "max_persistence_0": answer.max_length[:, 0],
            "attention_max": answer.max,
            "attention_std": answer.std,
            "matrix_entropy": answer.entropy,
            "entry_density_20": answer.density[:, 0],
            "entry_density_40": answer.density[:, 1],
            "sink_position": answer.top_key,
            "strongest_query": answer.strongest_edge[:, 0],
            "strongest_key": answer.strongest_edge[:, 1],
            "sink_count": ruscio2025.sink_tokens(maps_of_layer, rule="rmt").sum(-1),
            "alignment_hidden": ruscio2025.geometric_semantic_alignment(
                maps_of_layer, before.expand(5, -1, -1)
            ),
            "entropy_magnitude_correlation": ruscio2025.entropy_magnitude_correlation(
                maps_of_layer, before, after
            ),
            "reference_magnitude": influence.relative_magnitude.mean(-1),
            "reference_directional": influence.directional.mean(-1),
            "reference_information": influence.information_change.mean(-1),
            "reference_count": influence.reference.sum(-1),
            "pca_correlation_absolute": pca.absolute,
        }
        divergence = torch.cat([torch.full((1,), torch.nan), ruscio2025.head_divergence(maps[layer])])
        expected["head_divergence"] = divergence
        for name, values in expected.items():
            stored_values = result[name].to_numpy(float, na_value=np.nan)
            np.testing.assert_allclose(stored_values, values, rtol=2e-3, atol=2e-5, err_msg=name)
        tokens = list(results.table("samples")["tokens"][5])
        assert list(result["sink_token"]) == [tokens[at] for at in answer.top_key.tolist()]
        assert result[["fiedler_value", "sink_share", "mp_ks", "alignment_value"]].isna().all().all()


def test_published_graphs_and_layers_are_the_protocols(results, direct):
    _, maps, hidden, _ = direct
    n = maps.shape[-1]
    for layer in range(2):
        mean = maps[layer].mean(0)
        for variant, suffix in (("laplacian", ""), ("fiedler", "_fiedler")):
            answer = ruscio2025.graph_statistics(mean, THRESHOLDS, variant=variant)
            result = rows(results.table("head_mean_graphs"), "ruscio2025", layer)
            np.testing.assert_allclose(result["threshold"], [0.05, 2 / n])
            for name in ("gini", "star_likeness", "hub_share", "centralization", "degree_variance"):
                np.testing.assert_allclose(result[name + suffix], getattr(answer, name), rtol=1e-6)
        np.testing.assert_allclose(result["graph_fiedler_value"], answer.fiedler_value, rtol=1e-5, atol=1e-12)
        np.testing.assert_allclose(result["average_clustering"], answer.average_clustering, rtol=1e-9)
        assert result["components"].isna().all()
        result = rows(results.table("layers"), "ruscio2025", layer).iloc[0]
        moved = ruscio2025.transformation_magnitude(hidden[layer], hidden[layer + 1])
        assert result["transformation_magnitude"] == pytest.approx(moved.mean().item(), rel=1e-3)
        assert result["transformation_magnitude_median"] == pytest.approx(
            moved.quantile(0.5).item(), rel=1e-3
        )
        for percentile in (80, 90, 95):
            full = ruscio2025.sink_removal(maps[layer], percentile=percentile)
            fast = ruscio2025.sink_removal(maps[layer], percentile=percentile, speed=True)
            for name, value in (
                (f"kl_reduction_{percentile}", full.kl_reduction),
                (f"sink_concentration_{percentile}", full.sink_concentration),
                (f"sink_count_{percentile}", full.sinks.sum()),
                (f"p_value_{percentile}", full.p_value),
                (f"kl_reduction_speed_{percentile}", fast.kl_reduction),
                (f"sink_concentration_speed_{percentile}", fast.sink_concentration),
            ):
                assert result[name] == pytest.approx(value.item(), rel=2e-3, abs=2e-5), name


def test_the_published_last_layer_is_after_the_final_norm_and_the_exact_one_before(results, direct):
    _, _, hidden, blocks = direct
    exact, published = (
        rows(results.table("layers"), protocol, 1)["transformation_magnitude"].item()
        for protocol in ("exact", "ruscio2025")
    )
    raw, normed = ((end - hidden[1]).norm(dim=-1).mean().item() for end in (blocks[1], hidden[2]))
    assert abs(raw - normed) > 0.01 * raw
    assert exact == pytest.approx(raw, rel=1e-3)
    assert published == pytest.approx(normed, rel=1e-3)


def test_exact_layers_and_value_space_are_direct_calls(results, direct, model):
    _, maps, hidden, blocks = direct
    heads = with_means(results)
    for layer in range(2):
        maps_of_layer, mean = maps[layer], maps[layer].mean(0)
        block = model.model.layers[layer]
        with torch.no_grad():
            entered = block.input_layernorm(hidden[layer].float())
            value = block.self_attn.v_proj(entered).view(len(entered), 2, -1).transpose(0, 1)
            mixed = (maps_of_layer.float() @ value.repeat_interleave(2, 0)).transpose(0, 1).flatten(1)
            written = block.self_attn.o_proj(mixed).double()
        sinks = asc.sink_tokens(maps_of_layer, rule="test")
        influence = asc.reference_influence(maps_of_layer, value, sinks)
        expected = {
            "alignment_value": asc.geometric_semantic_alignment(maps_of_layer, value),
            "alignment_value_without_sinks": asc.geometric_semantic_alignment(
                maps_of_layer, value, without=sinks
            ),
            "alignment_hidden": asc.geometric_semantic_alignment(maps_of_layer, hidden[layer]),
            # without a sink there is no reference
            "reference_magnitude": influence.relative_magnitude.nanmean(-1).where(sinks.any(-1), torch.nan),
            "reference_information": influence.information_change.nanmean(-1).where(sinks.any(-1), torch.nan),
            "reference_count": sinks.sum(-1),
            "sink_count_frequency": asc.sink_tokens(maps_of_layer, rule="frequency").sum(-1),
            "sink_position": asc.sink_position(maps_of_layer).double().where(sinks.any(-1), torch.nan),
            "entropy_magnitude_correlation": asc.entropy_magnitude_correlation(
                maps_of_layer, hidden[layer], blocks[layer]
            ),
            "entropy_magnitude_correlation_attention": asc.entropy_magnitude_correlation(
                maps_of_layer, torch.zeros_like(written), written
            ),
        }
        result = rows(heads, "exact", layer)
        for name, values in expected.items():
            stored_values = result[result["head"] >= 0][name]
            np.testing.assert_allclose(stored_values, values, rtol=5e-3, atol=5e-4, err_msg=name)
        at_mean = result[result["head"] == -1].iloc[0]
        influence = asc.reference_influence(mean, hidden[layer], asc.sink_tokens(mean, rule="test"))
        directional = (
            influence.directional.nanmean()
            if asc.sink_tokens(mean, rule="test").any()
            else torch.tensor(torch.nan)
        )
        assert at_mean["reference_directional"] == pytest.approx(directional.item(), rel=1e-3, nan_ok=True)
        answer = rows(results.table("layers"), "exact", layer).iloc[0]
        assert answer["head_divergence"] == pytest.approx(
            asc.head_divergence(maps_of_layer).mean().item(), rel=1e-3
        )
        assert answer["transformation_magnitude_attention"] == pytest.approx(
            written.norm(dim=-1).mean().item(), rel=1e-3
        )
        check_removal(answer, maps_of_layer, mean)


def check_removal(answer, maps_of_layer, mean):
    removed = asc.sink_removal(maps_of_layer, asc.sink_tokens(mean, rule="test"))
    assert answer["kl_reduction"] == pytest.approx(removed.kl_reduction.item(), rel=1e-2, abs=1e-6)
    n = maps_of_layer.shape[-1]
    seen_by = n - np.arange(n)
    incoming = asc.incoming_attention(mean).numpy()
    eligible = seen_by >= np.ceil(0.3 * n)
    keys = torch.from_numpy(eligible & (incoming >= np.percentile(incoming[eligible], 80)))
    assert answer["sink_count_80"] == keys.sum()
    assert answer["kl_reduction_80"] == pytest.approx(
        asc.sink_removal(maps_of_layer, keys).kl_reduction.item(), rel=1e-2, abs=1e-6
    )
    share = (mean.sum(0)[keys].sum() / mean.sum()).item()
    assert answer["sink_concentration_80"] == pytest.approx(share, rel=1e-4)


def test_mean_persistence_is_total_over_count(results):
    heads = results.table("heads")
    exact = heads[heads["protocol"] == "exact"]
    np.testing.assert_allclose(
        exact["mean_persistence_0"], exact["total_persistence_0"] / (exact["bar_count_0"] - 1)
    )
    assert (exact["mean_persistence_1"].isna() == (exact["bar_count_1"] == 0)).all()


def test_the_ablation_hides_sinks_the_first_key_and_others_of_the_same_number(results, direct, model):
    ids, maps, _, _ = direct
    table = results.table("ablation")
    assert set(table["keys"]) == {"sinks", "first", "control_sinks", "control_first"}
    rows_of_text = table[table["sample"] == 5].set_index("keys")
    first = asc.output_kl(model, {"input_ids": ids}, [0])
    assert rows_of_text.loc["first", "output_kl"] == pytest.approx(first.kl.item(), rel=1e-3)
    assert rows_of_text.loc["first", "loss_change"] == pytest.approx(
        first.loss_change.item(), rel=1e-2, abs=1e-6
    )
    sinks = asc.sink_tokens(maps.mean((0, 1)), rule="test")
    for kind, count in (("sinks", int(sinks.sum())), ("first", 1)):
        assert (
            rows_of_text.loc[kind, "key_count"] == rows_of_text.loc[f"control_{kind}", "key_count"] == count
        )
    n, seed = ids.shape[1], RunConfig.model_fields["seed"].default
    drawn, _ = matched_keys(torch.eye(1, n) > 0, [n], [[seed, 5, 0xAB1A, 1]])
    divergences = [asc.output_kl(model, {"input_ids": ids}, keys).kl.item() for keys in drawn]
    assert rows_of_text.loc["control_first", "output_kl"] == pytest.approx(np.mean(divergences), rel=1e-3)
    if sinks.any():
        hidden = asc.output_kl(model, {"input_ids": ids}, sinks[None])
        assert rows_of_text.loc["sinks", "output_kl"] == pytest.approx(hidden.kl.item(), rel=1e-3)
    unmasked = table[table["key_count"] == 0]
    control = unmasked["keys"].str.startswith("control")
    assert (unmasked[~control][["output_kl", "loss_change"]] == 0).all(None)
    assert unmasked[control][["output_kl", "loss_change"]].isna().all(None)


def test_fisher_is_the_trace_of_each_sentence(results, direct, model):
    ids, *_ = direct
    table = results.table("fisher")
    longest = int(results.table("samples")["n_tokens"].max())
    assert longest > ids.shape[1]
    options = {"tokenizer": tokenizer(), "padded_to": longest}
    for protocol, trace, expected_traces in (
        ("exact", asc.fisher_trace, {}),
        ("ruscio2025", ruscio2025.fisher_trace, options),
    ):
        expected = trace(model, [{"input_ids": ids}], **expected_traces).set_index(["layer", "group"])[
            "trace"
        ]
        rows_of_text = table[(table["sample"] == 5) & (table["protocol"] == protocol)].set_index(
            ["layer", "group"]
        )
        assert set(rows_of_text.index) == set(expected.index)
        for key, value in expected.items():
            assert rows_of_text.loc[key, "trace"] == pytest.approx(value, rel=1e-3)
    drawn = table.groupby("protocol")["trace_sampled"]
    assert (drawn.apply(lambda column: column.isna().all()) == [False, True]).all()


@pytest.mark.parametrize("name", ["bert_model", "bert"])
def test_an_encoder_with_and_without_a_language_model_head(tmp_path, texts, name):
    folder = model_folder(tmp_path / "enc", "bert")
    if name == "bert":
        from transformers import AutoConfig, BertForMaskedLM

        BertForMaskedLM(AutoConfig.from_pretrained(folder)).save_pretrained(folder)
    messages = []
    results = run(
        sink_study(tmp_path, folder, texts, block=8, metrics=["fiedler_value"], options=QUICK),
        say=messages.append,
    )
    assert not results.table("samples")["causal"].any()
    assert set(results.table("baselines")["support"]) == {"full"}
    if name == "bert_model":
        assert {"fisher", "ablation"} & set(results.tables()) == set()
        assert any("fisher: enc: BertModel has no language-model head" in line for line in messages)
        assert any("ablation: enc: BertModel has no language-model head" in line for line in messages)
    else:
        assert "needs a tokenizer with a mask token" in " ".join(messages)
        assert results.table("ablation")["loss_change"].isna().all()
        assert (results.table("ablation")["output_kl"].dropna() >= 0).all()


def test_one_protocol_alone_and_chosen_metrics(tmp_path, llama, texts):
    published = run(sink_study(tmp_path, llama, texts, protocols="ruscio2025"), progress=False)
    assert set(published.table("heads")["protocol"]) == {"ruscio2025"}
    assert published.table("heads")["fiedler_value_normalized"].isna().all()
    assert set(published.table("baselines")["protocol"]) == {"ruscio2025"}
    results = run(sink_study(tmp_path, llama, texts, metrics=["sink_removal"]), name="b", progress=False)
    assert results.tables() == ["samples", "layers", "removal_tests"]
    assert set(results.table("layers")["protocol"]) == {"exact", "ruscio2025"}


def test_examples_are_the_models_own_maps_of_the_first_sentence(results, model):
    from attnscope.plots import NotDrawable
    from attnscope.studies.attention_sinks.figures import FIGURES

    table, bars = results.table("examples"), results.table("bars")
    ids = torch.tensor([list(results.table("samples")["token_ids"][0])])
    with torch.no_grad():
        attentions = torch.stack(
            [layer[0] for layer in model(ids, output_attentions=True).attentions]
        ).double()
    assert set(table["sample"]) == {0}
    for layer, part in table.groupby("layer"):
        first = attentions[layer, ..., 0].mean(-1)
        assert set(part["head"]) == {int(first.argmax()), int(first.argmin())}
        for row in part.itertuples():
            n = ids.shape[1]
            stored_map = np.array(row.attention).reshape(n, n)
            np.testing.assert_allclose(stored_map, attentions[layer, row.head], atol=1e-6)
            (result,) = [bars[(bars["layer"] == layer) & (bars["head"] == row.head)]]
            assert len(result) == int(asc.bar_count(asc.persistence(torch.from_numpy(stored_map))).sum())
    assert ids.shape[1] < 8
    with pytest.raises(NotDrawable, match="too few tokens"):
        FIGURES["examples"](results)


def test_of_an_encoder_decoder_the_encoder_is_studied_and_that_is_said(tmp_path, texts):
    messages = []
    folder = model_folder(tmp_path / "both", "t5")
    results = run(
        sink_study(tmp_path, folder, texts, block=8, metrics=["fiedler_value"], options=QUICK),
        say=messages.append,
    )
    assert "both: an encoder-decoder; its encoder is studied, its decoder is not" in messages
    assert not results.table("samples")["causal"].any()
    assert any(
        "fisher: both: T5ForConditionalGeneration predicts with a decoder" in line for line in messages
    )
    assert any(
        "ablation: both: T5ForConditionalGeneration predicts with a decoder" in line for line in messages
    )


def test_a_model_that_cannot_be_captured_is_skipped_once_with_its_null(tmp_path, texts):
    folder = model_folder(tmp_path / "none", "mamba")
    models = [str(folder), str(model_folder(tmp_path / "some"))]
    messages = []
    study = RunConfig(
        models=models,
        texts=str(texts),
        output=str(tmp_path),
        name="a",
        block=8,
        metrics=["fiedler_value"],
        options={"extra": ["random_weights"]},
    )
    result = run(study, say=messages.append)
    assert [entry["checkpoint"] for entry in result.provenance["skipped"]] == ["none"]
    assert sum("skipped none" in line for line in messages) == 1


def test_thresholds_that_are_one_number_for_a_text_are_one_row(llama, texts, tmp_path):
    """2/n is 0.2 for a text of ten tokens, and a list may name a threshold twice."""
    thresholds, metrics = [0.2, "2/n", 0.2], ["graph_statistics"]
    several, single = (
        run(
            sink_study(tmp_path / name, llama, texts, thresholds=chosen, metrics=metrics, protocols="exact"),
            progress=False,
        )
        for name, chosen in (("several", thresholds), ("single", [0.2]))
    )
    assert (several.table("samples")["n_tokens"] == 10).any()
    for name in ("graphs", "head_mean_graphs", "baselines"):
        table, keys = several.table(name), several.key_columns(name)
        assert not table.duplicated(keys).any(), name
        at = table[table["threshold"] == 0.2].reset_index(drop=True)
        rows = single.table(name)
        assert_frame_equal(at, rows[rows["threshold"] == 0.2].reset_index(drop=True))
