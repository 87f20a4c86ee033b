# SPDX-License-Identifier: MIT
"""What the sink study makes of its own tables: controls, baselines, frames, tests, emergence."""

import json
import shutil

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

import attnscope as asc
from attnscope.engine.run_study import resume, run
from attnscope.protocols import ruscio2025
from attnscope.results.results import Results
from attnscope.statistics import emergence_splits, holm
from attnscope.studies.attention_sinks.comparisons import _between_layers, against_control, emergence
from attnscope.studies.attention_sinks.sections import findings
from folders import model_folder, series, sink_study


def test_nulls_are_averaged_into_baselines(results):
    nulls, baselines = results.variants(), results.table("baselines")
    assert set(nulls["variant"]) == {"random_weights", "row_permutation"}
    assert set(nulls["scope"]) == {"heads", "head_mean", "layers"}
    lengths = results.table("samples").set_index("sample")["n_tokens"]
    chosen = nulls[(nulls["variant"] == "row_permutation") & (nulls["metric"] == "fiedler_value")]
    chosen = chosen[(chosen["scope"] == "heads") & chosen["threshold"].isna()]
    for n in sorted(set(lengths)):
        value = chosen[chosen["sample"].map(lengths) == n]["value"].mean()
        row = baselines[(baselines["n_tokens"] == n) & (baselines["metric"] == "fiedler_value")]
        row = row[(row["kind"] == "row_permutation") & (row["scope"] == "heads") & row["threshold"].isna()]
        assert row["value"].item() == pytest.approx(value)
    uniform = baselines[baselines["kind"] == "uniform"]
    assert (uniform["scope"] == "any").all()
    assert (uniform["model"] == "").all()
    pr = uniform[(uniform["metric"] == "participation_ratio") & (uniform["protocol"] == "ruscio2025")]
    for row in pr.itertuples():
        k = np.arange(1, row.n_tokens + 1)
        assert row.value == pytest.approx((1 / k).sum() ** 2 / (1 / k**2).sum())


def test_row_permutation_keeps_rows_and_what_no_order_changes(results):
    nulls = results.variants()
    shuffled = nulls[(nulls["variant"] == "row_permutation") & (nulls["scope"] == "heads")]
    shuffled = shuffled[shuffled["protocol"] == "exact"].pivot_table(
        index="sample", columns="metric", values="value"
    )
    heads = results.table("heads")
    heads = heads[(heads["head"] >= 0) & (heads["protocol"] == "exact")]
    means_of_texts = heads.groupby("sample")[["entropy", "sink_share", "stable_rank"]].mean()
    np.testing.assert_allclose(shuffled["entropy"], means_of_texts["entropy"], rtol=1e-6)
    assert (abs(shuffled["sink_share"] - means_of_texts["sink_share"]) > 1e-3).any()


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
    published_heads = heads[heads["protocol"] == "ruscio2025"]
    positions = published_heads.pivot(
        index="sample", columns=["layer", "head"], values="sink_position"
    ).to_numpy(np.int64)
    samples = results.table("samples")
    answer = asc.classify_frames(
        torch.tensor(positions.reshape(7, 2, 4)),
        lengths=samples["n_tokens"].tolist(),
        causal=True,
        tokens=[list(token) for token in samples["tokens"]],
    )
    row = frames.iloc[1]
    columns = ["frame", "token_frame", "margin", "probability", "chance"]
    assert row[columns].tolist() == [getattr(answer, name) for name in columns]
    assert len(results.table("frame_evidence")) == len(answer.evidence)
    modal = published_heads["sink_position"].mode()[0]
    assert row["modal_position"] == modal
    assert row["modal_position_share"] == pytest.approx((published_heads["sink_position"] == modal).mean())
    heads_of = results.table("specialization")
    published = heads[(heads["protocol"] == "ruscio2025") & (heads["head"] == 2) & (heads["layer"] == 1)]
    expected = ruscio2025.head_specialization(published["sink_token"].tolist())
    rows_of_model = heads_of[
        (heads_of["protocol"] == "ruscio2025") & (heads_of["head"] == 2) & (heads_of["layer"] == 1)
    ]
    assert rows_of_model["consistency"].item() == expected.consistency
    assert rows_of_model["modal"].item() == expected.modal
    tests = results.table("layer_tests")
    assert set(zip(tests["layer"], tests["other_layer"], strict=True)) == {(0, 1)}
    layers = results.table("layers")
    exact = layers[layers["protocol"] == "exact"].pivot(index="sample", columns="layer", values="state_norm")
    from scipy import stats

    row = tests[(tests["metric"] == "state_norm") & (tests["protocol"] == "exact")].iloc[0]
    assert row["p_value"] == pytest.approx(stats.ttest_rel(exact[1], exact[0]).pvalue, rel=1e-6)
    assert row["p_holm"] >= row["p_value"]
    mean = results.table("head_means").query("protocol == 'ruscio2025'")
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
    rows_of_layer = layers[(layers["protocol"] == "exact") & (layers["layer"] == 1)]
    values, random = rows_of_layer["kl_share_90"], rows_of_layer["kl_share_shuffled_90"]
    assert (random != 0).all()
    assert row["samples"] == 7
    assert row["kl_reduction"] == pytest.approx(rows_of_layer["kl_reduction_90"].mean())
    assert row["kl_share"] == pytest.approx(values.mean())
    assert row["kl_share_shuffled"] == pytest.approx(random.mean())
    assert row["difference"] == pytest.approx((values - random).mean())
    assert row["p_value"] == pytest.approx(stats.ttest_rel(values, random).pvalue, rel=1e-6)
    assert row["p_holm"] >= row["p_bh"] >= row["p_value"]
    row = table[
        (table["protocol"] == "ruscio2025") & (table["layer"] == 1) & (table["percentile"] == 90)
    ].iloc[0]
    p_values = layers[(layers["protocol"] == "ruscio2025") & (layers["layer"] == 1)]["p_value_90"]
    statistic = -2 * np.log(p_values + 1e-10).sum()
    assert row["p_value"] == pytest.approx(stats.chi2.sf(statistic, 2 * len(p_values)), rel=1e-6)
    assert np.isnan(row["p_holm"])


def test_every_number_is_held_against_its_nulls(results):
    """Shuffled rows by text, random weights by initialisation, the model one of them, written out."""
    from scipy import stats

    table, nulls, heads = results.table("null_tests"), results.variants(), results.table("heads")
    assert set(table["kind"]) == {"random_weights", "row_permutation"}
    for kind in ("random_weights", "row_permutation"):
        text_means = (
            heads[(heads["protocol"] == "exact") & (heads["head"] >= 0)]
            .groupby("sample")["sink_share"]
            .mean()
        )
        null = nulls[
            (nulls["variant"] == kind) & (nulls["metric"] == "sink_share") & (nulls["scope"] == "heads")
        ]
        null = null[null["protocol"] == "exact"]
        row = table[(table["kind"] == kind) & (table["metric"] == "sink_share") & (table["scope"] == "heads")]
        row = row[row["protocol"] == "exact"].iloc[0]
        if kind == "random_weights":
            values_by_seed = null.groupby("seed")["value"]
            means, within = values_by_seed.mean(), values_by_seed.var(ddof=1)
            of_texts = (
                max(text_means.var(ddof=1), within.mean()) / 7 - (within / values_by_seed.size()).mean()
            )
            variance = means.var(ddof=1) * (1 + 1 / 8) + max(0.0, of_texts)
            statistic = (text_means.mean() - means.mean()) / np.sqrt(variance)
            p_value = 2 * stats.t.sf(abs(statistic), 7)
            assert (row["controls"], row["unit"]) == (8, "initialisation")
        else:
            p_value = stats.ttest_rel(text_means, null.set_index("sample")["value"]).pvalue
            assert (row["samples"], row["unit"]) == (7, "text")
        assert row["difference"] == pytest.approx(text_means.mean() - null["value"].mean())
        assert row["p_value"] == pytest.approx(p_value, rel=1e-6)
        assert row["low"] < row["difference"] < row["high"]


def test_graphs_by_depth_are_the_notebooks_reading(tmp_path, texts):
    deep = model_folder(tmp_path / "deep", num_hidden_layers=6)
    only = {"protocols": ["ruscio2025"], "thresholds": [0.05], "block": 8}
    results = run(sink_study(tmp_path, deep, texts, metrics=[], options={}, **only), progress=False)
    table = results.table("graph_depth")
    graphs = results.table("head_mean_graphs")
    rows_at_threshold = graphs[(graphs["protocol"] == "ruscio2025") & (graphs["threshold"] == 0.05)]
    means = rows_at_threshold.groupby("layer")[["graph_fiedler_value", "gini", "density"]].mean()
    means = means.rename(columns={"graph_fiedler_value": "fiedler_value"})
    row = table[(table["protocol"] == "ruscio2025") & (table["threshold"] == 0.05)].iloc[0]
    early, middle, late = (means["fiedler_value"][k : k + 2].mean() for k in (0, 2, 4))
    assert (row["early"], row["middle"], row["late"]) == pytest.approx((early, middle, late))
    assert row["middle_peak"] == (middle > max(early, late))
    assert row["peak_factor"] == pytest.approx(min(middle / early, middle / late))
    r = np.corrcoef(means["fiedler_value"], means["gini"])[0, 1]
    assert row["correlation_gini"] == pytest.approx(r, abs=1e-9)
    seen = means["density"].between(0.05, 0.95) | (means.index % 4 == 0)
    assert row["reported_layers"] == seen.sum()


@pytest.mark.slow
def test_a_series_has_its_controls_once_and_its_emergence_in_integer_order(tmp_path, texts):
    growing = series(tmp_path / "growing", steps=(0, 4, 10, 2))
    results = run(
        sink_study(tmp_path, growing, texts, block=8, options={"extra": ["random_weights"], "controls": 2}),
        progress=False,
    )
    nulls = results.variants()
    keys = ["sample", "seed", "protocol", "scope", "table", "metric", "threshold"]
    assert not nulls.duplicated(keys).any()
    assert set(nulls["seed"]) == {0, 1}
    assert set(nulls["revision"]) == {""}
    table = results.table("emergence")
    heads = results.table("heads")
    exact = heads[(heads["protocol"] == "exact") & (heads["head"] >= 0)]
    described = asc.emergence_step(exact, "sink_share").iloc[0]
    row_of_heads = table[(table["metric"] == "sink_share") & (table["scope"] == "heads")].iloc[0]
    # four checkpoints: three do not fit on each side
    assert row_of_heads["verdict"] == described["verdict"] == "too few to tell"
    for key in ("half_way", "start", "end", "difference", "low", "high"):
        assert row_of_heads[key] == pytest.approx(described[key]), key
    row_of_head = table[(table["metric"] == "entropy") & (table["place"] == "L1H3")]
    part = exact[(exact["layer"] == 1) & (exact["head"] == 3)]
    assert row_of_head["end"].item() == pytest.approx(part[part["step"] == 10]["entropy"].mean())
    assert row_of_head["verdict"].isna().all()
    published = table[(table["protocol"] == "ruscio2025") & (table["metric"] == "spectral_norm")].iloc[0]
    assert (published["change_first_step"], published["change_last_step"]) == (0, 4)
    assert table[table["protocol"] == "exact"]["change_last_step"].isna().all()
    assert not set(table["metric"]) & {"sink_share_uniform", "mp_edge"}


@pytest.mark.slow
def test_a_resumed_run_of_everything_has_the_same_bytes(results, tmp_path):
    copy = tmp_path / "a"
    shutil.copytree(results.path, copy)
    units = sorted((copy / "units").iterdir())
    assert len(units) == 20  # two blocks of the model and of eight random weights, baselines, summaries
    shutil.rmtree(units[0])
    shutil.rmtree(units[3])
    shutil.rmtree(copy / "tables")
    resume(copy, progress=False)
    for file in sorted((results.path / "tables").glob("*.parquet")):
        assert (copy / "tables" / file.name).read_bytes() == file.read_bytes(), file.name


#: Of a run of noise: the table of emergence is one family over its quantities.
CHECKPOINTS, TEXTS, QUANTITIES = 16, 6, 8
STEPS = np.arange(CHECKPOINTS) * 10


def build_results(jump, seed=0, groups=("all",)):
    """A run of noise in eight quantities of two layers and two heads; the first jumps at checkpoint 8."""
    draw = np.random.default_rng(seed)
    keys = pd.MultiIndex.from_product(
        [STEPS, range(TEXTS), range(2), range(2)], names=["step", "sample", "layer", "head"]
    ).to_frame(index=False)
    keys = keys.assign(model="m", revision=keys["step"].astype(str), protocol="exact")
    # what all texts of a checkpoint share is noise too
    shared = draw.normal(size=(QUANTITIES, CHECKPOINTS))
    columns = {
        f"q{number}": texts_of_part[keys["step"] // 10] + 0.1 * draw.normal(size=len(keys))
        for number, texts_of_part in enumerate(shared)
    }
    columns["q0"] = columns["q0"] + jump * (keys["step"] >= 80)
    columns["design"] = 0.001 * keys["step"].astype(float)
    heads = pa.Table.from_pandas(keys.assign(**columns), preserve_index=False)
    place = heads.schema.get_field_index("design")
    heads = heads.set_column(
        place, heads.schema.field(place).with_metadata({b"kind": b"constant"}), heads.column(place)
    )
    order = ["model", "revision", "step", "sample"]
    metadata = {"name": "heads", "version": 1, "keys": [*order, "layer", "head", "protocol"]}
    heads = heads.replace_schema_metadata({b"attnscope_table": json.dumps(metadata).encode()})
    samples = keys[order].drop_duplicates()
    samples["group"] = [groups[sample % len(groups)] for sample in samples["sample"]]
    return Results({"heads": heads, "samples": samples})


def split_rows(rows):
    return {row["metric"]: row for row in rows if row["scope"] == "heads" and row["verdict"] is not None}


def test_a_planted_step_is_found_where_it_is_and_noise_beside_it_is_not():
    results = build_results(6.0)
    rows = emergence(results, 0)
    result = split_rows(rows)
    assert set(result) == {f"q{number}" for number in range(QUANTITIES)}
    assert result["q0"]["verdict"] == "step"
    assert result["q0"]["step"] == 80
    assert [result[f"q{number}"]["verdict"] for number in range(1, QUANTITIES)] == ["no change"] * 7
    assert all(result[f"q{number}"]["half_way"] is not None for number in range(1, QUANTITIES))


def test_the_family_is_that_of_the_run():
    result = split_rows(emergence(build_results(6.0), 0))
    names = sorted(result)
    corrected = holm([result[name]["p_value"] for name in names])
    assert [result[name]["p_holm"] for name in names] == pytest.approx(corrected.tolist())
    heads = build_results(6.0).table("heads")
    curve = heads.groupby(["step", "sample"])["q0"].mean().unstack("sample")
    single_split = emergence_splits([(curve.index.to_numpy(), curve.to_numpy())])[0]
    assert single_split["p_value"] <= result["q0"]["p_holm"]


def test_noise_steps_in_few_runs():
    """One family of eight in 12 runs: a step at all in about one run of twenty."""
    steps = sum(
        any(
            row["verdict"] == "step" for row in split_rows(emergence(build_results(0.0, seed), seed)).values()
        )
        for seed in range(12)
    )
    assert steps <= 2


def test_layers_are_described_and_not_tested():
    rows = emergence(build_results(6.0), 0)
    layers = [row for row in rows if row["scope"] == "layer"]
    assert {(row["place"], row["layer"], row["head"]) for row in layers} == {("L0", 0, None), ("L1", 1, None)}
    assert all(row["verdict"] is None and np.isnan(row["p_value"]) for row in layers)
    assert "design" not in {row["metric"] for row in rows}


def test_groups_of_texts_are_tested_apart():
    rows = emergence(build_results(6.0, groups=("a", "b")), 0)
    judged = [row for row in rows if row["verdict"] is not None]
    assert {row["group"] for row in judged} == {"a", "b"}
    assert all(row["step"] == 80 for row in judged if row["metric"] == "q0")


def test_what_float32_rounds_is_in_no_family():
    """Norms of normalised states are one number in every layer, up to the rounding of the model."""
    rng = np.random.default_rng(1)
    states = rng.normal(size=(2, 12, 48)).astype(np.float32)
    norms = np.linalg.norm(states / np.linalg.norm(states, axis=-1, keepdims=True), axis=-1).astype(float)
    norms[1] *= 1 + 2.0**-23
    apart = rng.random((2, 12))
    wide = pd.DataFrame(np.vstack([norms, apart]).T)
    wide.columns = pd.MultiIndex.from_product([["state_norm", "sink_share"], [0, 1]])
    rows = list(_between_layers(wide, ["state_norm", "sink_share"], "exact"))
    assert [row["metric"] for row in rows] == ["sink_share"]
    control = pd.DataFrame({"sample": range(12), "value": norms[1]})
    assert np.isnan(against_control("row_permutation", pd.Series(norms[0]), control)["p_value"])


def test_heads_without_a_value_are_none_of_those_that_attend_little():
    """They were counted among all, and a series of such heads had a strongest one of no value."""
    places = {"model": "m", "revision": "", "step": -1, "layer": 0, "protocol": "exact", "sample": 0}
    heads = pd.DataFrame({**places, "head": [0, 1, 2], "sink_share": [0.5, 0.1, np.nan]})
    (line,) = findings(Results({"heads": heads}))
    assert "1 of 2 heads give the first key more than 0.3" in line
    other = heads.assign(model="other", sink_share=np.nan)
    assert len(findings(Results({"heads": pd.concat([heads, other])}))) == 1
