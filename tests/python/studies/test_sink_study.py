# SPDX-License-Identifier: MIT
"""The sink study's tables against direct calls of the metrics on the model's own output."""

import shutil

import numpy as np
import pytest
import torch

import attnscope as asc
from attnscope.engine.config import Study
from attnscope.engine.run import resume, run
from attnscope.inference.emergence import emergence_of
from attnscope.protocols import ruscio2025
from attnscope.studies.attention_sinks.matched_keys import matched_keys
from folders import model_folder, sentences, series, tokenizer

THRESHOLDS = [0.05, "2/n"]


def study(output, model, texts, **options):
    options = {"thresholds": THRESHOLDS, "block": 4, "protocols": "both", **options}
    return Study(models=str(model), texts=str(texts), output=str(output), name="a", **options)


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return model_folder(tmp_path_factory.mktemp("models") / "tiny" / "hf")


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    return sentences(tmp_path_factory.mktemp("texts") / "texts.txt", 7, shortest=6)


@pytest.fixture(scope="module")
def results(tmp_path_factory, llama, texts):
    return run(study(tmp_path_factory.mktemp("runs"), llama, texts, options={"extra": "all"}), progress=False)


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


def test_every_table_is_there_with_its_keys(results):
    from attnscope.engine.schema import KEYS

    assert set(results.tables()) == {
        *("samples", "heads", "graphs", "layers", "baselines", "nulls"),
        *("frames", "frame_evidence", "specialization", "layer_tests", "graph_depth"),
        *("removal_tests", "null_tests"),
        *("fisher", "ablation", "examples", "bars"),
    }
    for name in results.tables():
        table = results.table(name)
        keys = list(KEYS[name])
        assert list(table.columns[: len(keys)]) == keys or name == "baselines"
        unique = [*keys, *(("protocol", "scope", "model", "revision", "step") if name == "baselines" else ())]
        assert name == "bars" or not table.duplicated(unique).any(), name
    heads = results.table("heads")
    assert len(heads) == 7 * 2 * 5 * 2
    assert results.table("samples")["causal"].all()


def test_published_numbers_of_every_head_and_the_mean_are_the_protocols(results, direct):
    _, maps, hidden, _ = direct
    heads = results.table("heads")
    for layer in range(2):
        own = torch.cat([maps[layer].mean(0, keepdim=True), maps[layer]])
        before, after = hidden[layer], hidden[layer + 1]
        found = rows(heads, "ruscio2025", layer)
        bars, told = ruscio2025.persistence(own), ruscio2025.topology(own)
        influence = ruscio2025.reference_influence(own, before.expand(5, -1, -1))
        pca = ruscio2025.pca_correlation(own, before)
        expected = {
            "entropy": ruscio2025.attention_entropy(own).mean(-1),
            "entropy_bits": ruscio2025.attention_entropy(own, base=2).mean(-1),
            "participation_ratio": ruscio2025.participation_ratio(own),
            "stable_rank": ruscio2025.stable_rank(own),
            "spectral_ratio": ruscio2025.spectral_ratio(own),
            "spectral_norm": ruscio2025.spectral_norm(own),
            "bulk_edge": ruscio2025.bulk(own).edge,
            "bulk_std": ruscio2025.bulk(own).std,
            "sink_concentration": ruscio2025.sink_concentration(own),
            "marchenko_pastur_deviation": ruscio2025.marchenko_pastur_deviation(own),
            "bar_count_0": asc.bar_count(bars)[:, 0],
            "bar_count_1": asc.bar_count(bars)[:, 1],
            "mean_persistence_0": told.mean_length[:, 0],
            "max_persistence_0": told.max_length[:, 0],
            "attention_max": told.max,
            "attention_std": told.std,
            "matrix_entropy": told.entropy,
            "entry_density_20": told.density[:, 0],
            "entry_density_40": told.density[:, 1],
            "sink_position": told.top_key,
            "strongest_query": told.strongest_edge[:, 0],
            "strongest_key": told.strongest_edge[:, 1],
            "sink_count": ruscio2025.sink_tokens(own, rule="rmt").sum(-1),
            "alignment_hidden": ruscio2025.geometric_semantic_alignment(own, before.expand(5, -1, -1)),
            "entropy_magnitude_correlation": ruscio2025.entropy_magnitude_correlation(own, before, after),
            "reference_magnitude": influence.relative_magnitude.mean(-1),
            "reference_directional": influence.directional.mean(-1),
            "reference_information": influence.information_change.mean(-1),
            "reference_count": influence.reference.sum(-1),
            "pca_correlation_absolute": pca.absolute,
        }
        divergence = torch.cat([torch.full((1,), torch.nan), ruscio2025.head_divergence(maps[layer])])
        expected["head_divergence"] = divergence
        for name, values in expected.items():
            np.testing.assert_allclose(found[name], values, rtol=2e-3, atol=2e-5, err_msg=name)
        tokens = list(results.table("samples")["tokens"][5])
        assert list(found["sink_token"]) == [tokens[at] for at in told.top_key.tolist()]
        assert found[["fiedler_value", "sink_share", "mp_ks", "alignment_value"]].isna().all().all()


def test_published_graphs_and_layers_are_the_protocols(results, direct):
    _, maps, hidden, _ = direct
    n = maps.shape[-1]
    for layer in range(2):
        mean = maps[layer].mean(0)
        for variant, suffix in (("laplacian", ""), ("fiedler", "_fiedler")):
            told = ruscio2025.graph_statistics(mean, THRESHOLDS, variant=variant)
            found = rows(results.table("graphs"), "ruscio2025", layer, head=-1)
            np.testing.assert_allclose(found["threshold"], [0.05, 2 / n])
            for name in ("gini", "star_likeness", "hub_share", "centralization", "degree_variance"):
                np.testing.assert_allclose(found[name + suffix], getattr(told, name), rtol=1e-6)
        np.testing.assert_allclose(found["fiedler_value"], told.fiedler_value, rtol=1e-5, atol=1e-12)
        np.testing.assert_allclose(found["average_clustering"], told.average_clustering, rtol=1e-9)
        assert (found["components"] == -1).all()
        found = rows(results.table("layers"), "ruscio2025", layer).iloc[0]
        moved = ruscio2025.transformation_magnitude(hidden[layer], hidden[layer + 1])
        assert found["transformation_magnitude"] == pytest.approx(moved.mean().item(), rel=1e-3)
        assert found["transformation_magnitude_median"] == pytest.approx(moved.quantile(0.5).item(), rel=1e-3)
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
                assert found[name] == pytest.approx(value.item(), rel=2e-3, abs=2e-5), name


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
    heads = results.table("heads")
    for layer in range(2):
        own, mean = maps[layer], maps[layer].mean(0)
        block = model.model.layers[layer]
        with torch.no_grad():
            entered = block.input_layernorm(hidden[layer].float())
            value = block.self_attn.v_proj(entered).view(len(entered), 2, -1).transpose(0, 1)
            mixed = (own.float() @ value.repeat_interleave(2, 0)).transpose(0, 1).flatten(1)
            written = block.self_attn.o_proj(mixed).double()
        sinks = asc.sink_tokens(own)
        influence = asc.reference_influence(own, value, sinks)
        expected = {
            "alignment_value": asc.geometric_semantic_alignment(own, value),
            "alignment_value_without_sinks": asc.geometric_semantic_alignment(own, value, without=sinks),
            "alignment_hidden": asc.geometric_semantic_alignment(own, hidden[layer]),
            # without a sink there is no reference
            "reference_magnitude": influence.relative_magnitude.nanmean(-1).where(sinks.any(-1), torch.nan),
            "reference_information": influence.information_change.nanmean(-1).where(sinks.any(-1), torch.nan),
            "reference_count": sinks.sum(-1),
            "entropy_magnitude_correlation": asc.entropy_magnitude_correlation(
                own, hidden[layer], blocks[layer]
            ),
            "entropy_magnitude_correlation_attention": asc.entropy_magnitude_correlation(
                own, torch.zeros_like(written), written
            ),
        }
        found = rows(heads, "exact", layer)
        for name, values in expected.items():
            mine = found[found["head"] >= 0][name]
            np.testing.assert_allclose(mine, values, rtol=5e-3, atol=5e-4, err_msg=name)
        at_mean = found[found["head"] == -1].iloc[0]
        influence = asc.reference_influence(mean, hidden[layer], asc.sink_tokens(mean))
        directional = (
            influence.directional.nanmean() if asc.sink_tokens(mean).any() else torch.tensor(torch.nan)
        )
        assert at_mean["reference_directional"] == pytest.approx(directional.item(), rel=1e-3, nan_ok=True)
        told = rows(results.table("layers"), "exact", layer).iloc[0]
        assert told["head_divergence"] == pytest.approx(asc.head_divergence(own).mean().item(), rel=1e-3)
        assert told["transformation_magnitude_attention"] == pytest.approx(
            written.norm(dim=-1).mean().item(), rel=1e-3
        )
        removed = asc.sink_removal(own, asc.sink_tokens(mean))
        assert told["kl_reduction"] == pytest.approx(removed.kl_reduction.item(), rel=1e-2, abs=1e-6)
        n = own.shape[-1]
        seen_by = n - np.arange(n)
        incoming = asc.incoming_attention(mean).numpy()
        eligible = seen_by >= np.ceil(0.3 * n)
        keys = torch.from_numpy(eligible & (incoming >= np.percentile(incoming[eligible], 80)))
        assert told["sink_count_80"] == keys.sum()
        assert told["kl_reduction_80"] == pytest.approx(
            asc.sink_removal(own, keys).kl_reduction.item(), rel=1e-2, abs=1e-6
        )
        share = (mean.sum(0)[keys].sum() / mean.sum()).item()
        assert told["sink_concentration_80"] == pytest.approx(share, rel=1e-4)


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
    own = table[table["sample"] == 5].set_index("keys")
    first = asc.output_kl(model, {"input_ids": ids}, [0])
    assert own.loc["first", "output_kl"] == pytest.approx(first.kl.item(), rel=1e-3)
    assert own.loc["first", "loss_change"] == pytest.approx(first.loss_change.item(), rel=1e-2, abs=1e-6)
    sinks = asc.sink_tokens(maps.mean((0, 1)))
    for kind, count in (("sinks", int(sinks.sum())), ("first", 1)):
        assert own.loc[kind, "key_count"] == own.loc[f"control_{kind}", "key_count"] == count
    drawn, _ = matched_keys(
        torch.eye(1, ids.shape[1]) > 0, [ids.shape[1]], [[Study.model_fields["seed"].default, 5, 0xAB1A, 1]]
    )
    each = [asc.output_kl(model, {"input_ids": ids}, keys).kl.item() for keys in drawn]
    assert own.loc["control_first", "output_kl"] == pytest.approx(np.mean(each), rel=1e-3)
    if sinks.any():
        hidden = asc.output_kl(model, {"input_ids": ids}, sinks[None])
        assert own.loc["sinks", "output_kl"] == pytest.approx(hidden.kl.item(), rel=1e-3)
    nothing = table[table["key_count"] == 0]
    control = nothing["keys"].str.startswith("control")
    assert (nothing[~control][["output_kl", "loss_change"]] == 0).all(None)
    assert nothing[control][["output_kl", "loss_change"]].isna().all(None)


def test_fisher_is_the_trace_of_each_sentence(results, direct, model):
    ids, *_ = direct
    table = results.table("fisher")
    longest = int(results.table("samples")["n_tokens"].max())
    assert longest > ids.shape[1]
    options = {"tokenizer": tokenizer(), "padded_to": longest}
    for protocol, trace, own in (
        ("exact", asc.fisher_trace, {}),
        ("ruscio2025", ruscio2025.fisher_trace, options),
    ):
        expected = trace(model, [{"input_ids": ids}], **own).set_index(["layer", "group"])["trace"]
        own = table[(table["sample"] == 5) & (table["protocol"] == protocol)].set_index(["layer", "group"])
        assert set(own.index) == set(expected.index)
        for key, value in expected.items():
            assert own.loc[key, "trace"] == pytest.approx(value, rel=1e-3)
    drawn = table.groupby("protocol")["trace_sampled"]
    assert (drawn.apply(lambda column: column.isna().all()) == [False, True]).all()


def test_nulls_are_averaged_into_baselines(results):
    nulls, baselines = results.table("nulls"), results.table("baselines")
    assert set(nulls["kind"]) == {"random_weights", "row_permutation"}
    assert set(nulls["scope"]) == {"heads", "head_mean", "layers"}
    lengths = results.table("samples").set_index("sample")["n_tokens"]
    chosen = nulls[(nulls["kind"] == "row_permutation") & (nulls["metric"] == "fiedler_value")]
    chosen = chosen[(chosen["scope"] == "heads") & chosen["threshold"].isna()]
    for n in sorted(set(lengths)):
        value = chosen[chosen["sample"].map(lengths) == n]["value"].mean()
        row = baselines[(baselines["n_tokens"] == n) & (baselines["metric"] == "fiedler_value")]
        row = row[(row["kind"] == "row_permutation") & (row["scope"] == "heads") & row["threshold"].isna()]
        assert row["value"].item() == pytest.approx(value)
    uniform = baselines[baselines["kind"] == "uniform_causal"]
    assert (uniform["scope"] == "any").all()
    assert (uniform["model"] == "").all()
    pr = uniform[(uniform["metric"] == "participation_ratio") & (uniform["protocol"] == "ruscio2025")]
    for row in pr.itertuples():
        k = np.arange(1, row.n_tokens + 1)
        assert row.value == pytest.approx((1 / k).sum() ** 2 / (1 / k**2).sum())


def test_row_permutation_keeps_rows_and_what_no_order_changes(results):
    nulls = results.table("nulls")
    shuffled = nulls[(nulls["kind"] == "row_permutation") & (nulls["scope"] == "heads")]
    shuffled = shuffled[shuffled["protocol"] == "exact"].pivot_table(
        index="sample", columns="metric", values="value"
    )
    heads = results.table("heads")
    heads = heads[(heads["head"] >= 0) & (heads["protocol"] == "exact")]
    own = heads.groupby("sample")[["entropy", "sink_share", "stable_rank"]].mean()
    np.testing.assert_allclose(shuffled["entropy"], own["entropy"], rtol=1e-6)
    assert (abs(shuffled["sink_share"] - own["sink_share"]) > 1e-3).any()


def test_shuffled_rows_do_not_depend_on_the_batch():
    from attnscope.studies.nulls import shuffled_rows

    maps = torch.softmax(torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0)), -1)
    causal = maps[0].tril()
    together = shuffled_rows(torch.stack([causal, maps[1]]), [8, 6], [4, 9], 1, 0)
    assert torch.equal(together[0], shuffled_rows(causal[None], [8], [4], 1, 0)[0])
    assert (together[0].triu(1) == 0).all()
    assert torch.equal(together[0].sort(-1).values, causal.sort(-1).values)
    assert torch.equal(together[1, :, :6, :6].sort(-1).values, maps[1, :, :6, :6].sort(-1).values)
    assert not torch.equal(together[0], shuffled_rows(causal[None], [8], [4], 2, 0)[0])
    assert not torch.equal(together[0], shuffled_rows(causal[None], [8], [4], 1, 1)[0])


def test_frames_specialisation_and_tests_between_layers(results):
    frames = results.table("frames")
    assert list(frames["protocol"]) == ["exact", "ruscio2025"]
    heads = results.table("heads")
    own = heads[(heads["protocol"] == "exact") & (heads["head"] >= 0)]
    positions = own.pivot(index="sample", columns=["layer", "head"], values="sink_position").to_numpy()
    samples = results.table("samples")
    told = asc.classify_frames(
        torch.tensor(positions.reshape(7, 2, 4)),
        lengths=samples["n_tokens"].tolist(),
        causal=True,
        tokens=[list(one) for one in samples["tokens"]],
    )
    row = frames.iloc[0]
    assert (row["frame"], row["token_frame"], row["margin"]) == (told.frame, told.token_frame, told.margin)
    assert len(results.table("frame_evidence")) == 2 * len(told.evidence)
    modal = own["sink_position"].mode()[0]
    assert row["modal_position"] == modal
    assert row["modal_position_share"] == pytest.approx((own["sink_position"] == modal).mean())
    heads_of = results.table("specialization")
    published = heads[(heads["protocol"] == "ruscio2025") & (heads["head"] == 2) & (heads["layer"] == 1)]
    expected = ruscio2025.head_specialization(published["sink_token"].tolist())
    mine = heads_of[
        (heads_of["protocol"] == "ruscio2025") & (heads_of["head"] == 2) & (heads_of["layer"] == 1)
    ]
    assert mine["consistency"].item() == expected.consistency
    assert mine["modal"].item() == expected.modal
    tests = results.table("layer_tests")
    assert set(zip(tests["layer"], tests["other_layer"], strict=True)) == {(0, 1)}
    layers = results.table("layers")
    exact = layers[layers["protocol"] == "exact"].pivot(index="sample", columns="layer", values="state_norm")
    from scipy import stats

    row = tests[(tests["metric"] == "state_norm") & (tests["protocol"] == "exact")].iloc[0]
    assert row["p_value"] == pytest.approx(stats.ttest_rel(exact[1], exact[0]).pvalue, rel=1e-6)
    assert row["p_holm"] >= row["p_value"]
    mean = heads[(heads["protocol"] == "ruscio2025") & (heads["head"] == -1)]
    wide = mean.pivot(index="sample", columns="layer", values="mean_persistence_0")
    row = tests[(tests["metric"] == "mean_persistence_0") & (tests["protocol"] == "ruscio2025")].iloc[0]
    assert row["p_value"] == pytest.approx(
        stats.ttest_ind(wide[1], wide[0], equal_var=False).pvalue, rel=1e-6
    )
    assert np.isnan(row["p_holm"])


def test_sink_removal_is_tested_over_sentences_and_the_authors_way(results):
    from scipy import stats

    table, layers = results.table("removal_tests"), results.table("layers")
    row = table[(table["protocol"] == "exact") & (table["layer"] == 1) & (table["percentile"] == 90)].iloc[0]
    values = layers[(layers["protocol"] == "exact") & (layers["layer"] == 1)]["kl_reduction_90"]
    assert row["kl_reduction"] == pytest.approx(values.mean())
    assert row["p_value"] == pytest.approx(stats.ttest_1samp(values, 0).pvalue, rel=1e-6)
    assert row["p_holm"] >= row["p_bh"] >= row["p_value"]
    row = table[
        (table["protocol"] == "ruscio2025") & (table["layer"] == 1) & (table["percentile"] == 90)
    ].iloc[0]
    each = layers[(layers["protocol"] == "ruscio2025") & (layers["layer"] == 1)]["p_value_90"]
    statistic = -2 * np.log(each + 1e-10).sum()
    assert row["p_value"] == pytest.approx(stats.chi2.sf(statistic, 2 * len(each)), rel=1e-6)
    assert np.isnan(row["p_holm"])


def test_every_number_is_paired_with_its_nulls(results):
    from scipy import stats

    table, nulls, heads = results.table("null_tests"), results.table("nulls"), results.table("heads")
    assert set(table["kind"]) == {"random_weights", "row_permutation"}
    for kind in ("random_weights", "row_permutation"):
        here = (
            heads[(heads["protocol"] == "exact") & (heads["head"] >= 0)]
            .groupby("sample")["sink_share"]
            .mean()
        )
        null = nulls[
            (nulls["kind"] == kind) & (nulls["metric"] == "sink_share") & (nulls["scope"] == "heads")
        ]
        null = null[null["protocol"] == "exact"].set_index("sample")["value"]
        row = table[(table["kind"] == kind) & (table["metric"] == "sink_share") & (table["scope"] == "heads")]
        row = row[row["protocol"] == "exact"].iloc[0]
        assert row["difference"] == pytest.approx((here - null).mean())
        assert row["p_value"] == pytest.approx(stats.ttest_rel(here, null).pvalue, rel=1e-6)
        assert row["low"] < row["difference"] < row["high"]


def test_graphs_by_depth_are_the_notebooks_reading(tmp_path, texts):
    deep = model_folder(tmp_path / "deep", num_hidden_layers=6)
    results = run(study(tmp_path, deep, texts, metrics=[], options={}), progress=False)
    table = results.table("graph_depth")
    graphs = results.table("graphs")
    own = graphs[
        (graphs["protocol"] == "ruscio2025") & (graphs["head"] == -1) & (graphs["threshold"] == 0.05)
    ]
    means = own.groupby("layer")[["fiedler_value", "gini", "density"]].mean()
    row = table[(table["protocol"] == "ruscio2025") & (table["threshold"] == 0.05)].iloc[0]
    early, middle, late = (means["fiedler_value"][k : k + 2].mean() for k in (0, 2, 4))
    assert (row["early"], row["middle"], row["late"]) == pytest.approx((early, middle, late))
    assert row["middle_peak"] == (middle > max(early, late))
    assert row["peak_factor"] == pytest.approx(min(middle / early, middle / late))
    r = np.corrcoef(means["fiedler_value"], means["gini"])[0, 1]
    assert row["correlation_gini"] == pytest.approx(r, abs=1e-9)
    seen = means["density"].between(0.05, 0.95) | (means.index % 4 == 0)
    assert row["reported_layers"] == seen.sum()


def test_a_resumed_run_of_everything_has_the_same_bytes(results, tmp_path):
    copy = tmp_path / "a"
    shutil.copytree(results.path, copy)
    units = sorted((copy / "units").iterdir())
    assert len(units) == 5  # two blocks of the model, two of its random weights, and the summaries
    shutil.rmtree(units[0])
    shutil.rmtree(units[3])
    shutil.rmtree(copy / "tables")
    resume(copy, progress=False)
    for file in sorted((results.path / "tables").glob("*.parquet")):
        assert (copy / "tables" / file.name).read_bytes() == file.read_bytes(), file.name


@pytest.mark.slow
def test_a_series_has_one_twin_and_its_emergence_in_integer_order(tmp_path, texts):
    growing = series(tmp_path / "growing", steps=(0, 4, 10, 2))
    results = run(
        study(tmp_path, growing, texts, block=8, options={"extra": ["random_weights"]}), progress=False
    )
    nulls = results.table("nulls")
    assert not nulls.duplicated(["sample", "protocol", "scope", "metric", "threshold"]).any()
    assert set(nulls["revision"]) == {""}
    table = results.table("emergence")
    heads = results.table("heads")
    exact = heads[(heads["protocol"] == "exact") & (heads["head"] >= 0)]
    each = exact.groupby(["step", "sample"])["sink_share"].mean().unstack("sample").sort_index()
    told = emergence_of(each.index.to_numpy(), each.to_numpy())
    overall = table[(table["metric"] == "sink_share") & (table["layer"] == -1) & (table["head"] == -2)].iloc[
        0
    ]
    assert [overall[key] for key in ("step", "low", "high", "start", "end")] == [*told.values()]
    one = table[(table["metric"] == "entropy") & (table["layer"] == 1) & (table["head"] == 3)]
    part = exact[(exact["layer"] == 1) & (exact["head"] == 3)]
    assert one["end"].item() == pytest.approx(part[part["step"] == 10]["entropy"].mean())
    published = table[(table["protocol"] == "ruscio2025") & (table["metric"] == "spectral_norm")].iloc[0]
    assert (published["change_first_step"], published["change_last_step"]) == (0, 4)
    assert (table[table["protocol"] == "exact"]["change_last_step"] == -1).all()


@pytest.mark.parametrize("name", ["bert_model", "bert"])
def test_an_encoder_with_and_without_a_language_model_head(tmp_path, texts, name):
    folder = model_folder(tmp_path / "enc", "bert")
    if name == "bert":
        from transformers import AutoConfig, BertForMaskedLM

        BertForMaskedLM(AutoConfig.from_pretrained(folder)).save_pretrained(folder)
    said = []
    results = run(
        study(tmp_path, folder, texts, block=8, options={"extra": ["fisher", "ablation"]}), say=said.append
    )
    assert not results.table("samples")["causal"].any()
    assert set(results.table("baselines")["kind"]) == {"uniform_full"}
    if name == "bert_model":
        assert {"fisher", "ablation"} & set(results.tables()) == set()
        assert any("fisher: enc: BertModel has no language-model head" in line for line in said)
        assert any("ablation: enc: BertModel has no language-model head" in line for line in said)
    else:
        assert "needs a tokenizer with a mask token" in " ".join(said)
        assert results.table("ablation")["loss_change"].isna().all()
        assert (results.table("ablation")["output_kl"].dropna() >= 0).all()


def test_one_protocol_alone_and_chosen_metrics(tmp_path, llama, texts):
    published = run(study(tmp_path, llama, texts, protocols="ruscio2025"), progress=False)
    assert set(published.table("heads")["protocol"]) == {"ruscio2025"}
    assert "fiedler_value_normalized" not in published.table("heads")
    assert set(published.table("baselines")["protocol"]) == {"ruscio2025"}
    some = run(study(tmp_path, llama, texts, metrics=["sink_removal"]), name="b", progress=False)
    assert some.tables() == ["samples", "layers", "removal_tests"]
    assert set(some.table("layers")["protocol"]) == {"exact", "ruscio2025"}


def test_examples_are_the_models_own_maps_of_the_first_sentence(results, model):
    from attnscope.plots import NotDrawable
    from attnscope.studies.attention_sinks.figures import FIGURES

    table, bars = results.table("examples"), results.table("bars")
    ids = torch.tensor([list(results.table("samples")["token_ids"][0])])
    with torch.no_grad():
        own = torch.stack([layer[0] for layer in model(ids, output_attentions=True).attentions]).double()
    assert set(table["sample"]) == {0}
    for layer, part in table.groupby("layer"):
        first = own[layer, ..., 0].mean(-1)
        assert set(part["head"]) == {int(first.argmax()), int(first.argmin())}
        for row in part.itertuples():
            n = ids.shape[1]
            kept = np.array(row.attention).reshape(n, n)
            np.testing.assert_allclose(kept, own[layer, row.head], atol=1e-6)
            (found,) = [bars[(bars["layer"] == layer) & (bars["head"] == row.head)]]
            assert len(found) == int(asc.bar_count(asc.persistence(torch.from_numpy(kept))).sum())
    assert ids.shape[1] < 8
    with pytest.raises(NotDrawable, match="too few tokens"):
        FIGURES["examples"](results)


def test_of_an_encoder_decoder_the_encoder_is_studied_and_that_is_said(tmp_path, texts):
    said = []
    folder = model_folder(tmp_path / "both", "t5")
    results = run(
        study(tmp_path, folder, texts, block=8, options={"extra": ["fisher", "ablation"]}), say=said.append
    )
    assert "both: an encoder-decoder; its encoder is studied, its decoder is not" in said
    assert not results.table("samples")["causal"].any()
    assert any("fisher: both: T5ForConditionalGeneration predicts with a decoder" in line for line in said)
    assert any("ablation: both: T5ForConditionalGeneration predicts with a decoder" in line for line in said)


def test_a_model_that_cannot_be_captured_is_skipped_once_with_its_null(tmp_path, texts):
    folder = model_folder(tmp_path / "none", "mamba")
    models = [str(folder), str(model_folder(tmp_path / "some"))]
    said = []
    asked = Study(
        models=models, texts=str(texts), output=str(tmp_path), name="a", block=8, metrics=["fiedler_value"],
        options={"extra": ["random_weights"]},
    )  # fmt: skip
    found = run(asked, say=said.append)
    assert [one["checkpoint"] for one in found.provenance["skipped"]] == ["none"]
    assert sum("skipped none" in line for line in said) == 1
