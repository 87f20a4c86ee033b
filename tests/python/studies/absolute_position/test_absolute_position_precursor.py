# SPDX-License-Identifier: MIT
"""The precursor's tables in the study: tests, bands and lengths, beside the same by hand."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

import attnscope as asc
from attnscope.engine.run_study import run
from attnscope.errors import ConfigError
from attnscope.protocols import ruscio2025once
from attnscope.published import compare_published, published_numbers
from attnscope.studies.absolute_position import published
from folders import model_folder
from position_study import TEXTS, N, settings

QUICK = {"arms": ["no_bos"], "inputs": ["windows"], "nulls": []}


@pytest.fixture(scope="module")
def results(folder, texts, tmp_path_factory):
    place = tmp_path_factory.mktemp("whole")
    return run(settings(folder, texts, place, lengths=[8, 16], **QUICK), progress=False)


def bare_texts(results):
    """The token ids of every batch of windows, nothing before them."""
    from attnscope.engine.engine import Engine
    from attnscope.engine.prepared_run import prepare, with_absolute_paths
    from attnscope.studies.absolute_position import precursor
    from attnscope.studies.absolute_position.arms import token_ids
    from attnscope.study_api.stage_run import StageRun

    engine = Engine(
        prepare(with_absolute_paths(asc.Study(**results.study))), progress=False, say=lambda text: None
    )
    plan = engine.plan
    unit = next(unit for unit in plan.units if unit.stage == "precursor")
    assert len(unit.inputs) == TEXTS
    stage = plan.stages[unit.stage]
    hand = StageRun(engine, unit, stage.reads, stage.writes)
    return [token_ids(hand, batch, precursor.BARE) for batch in hand.batches()]


@pytest.fixture(scope="module")
def model(folder):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder).eval()


def test_the_share_of_a_band_is_that_of_a_slow_loop(results, model):
    table = results.table("bands")
    exact = table[(table["protocol"] == "exact") & (table["layer"] == 1) & (table["head"] == 2)]
    assert set(exact["layout"]) == {"half"}
    assert exact["share"].sum() == pytest.approx(1)
    shares = []
    for ids in bare_texts(results):
        with asc.capture(model, sites=("query", "key", "scores")) as recording:
            layer = list(recording.run(input_ids=ids))[1]
        for text in range(len(ids)):
            q = layer.query[text, 2].double().numpy()
            k = layer.key[text, layer.kv_heads[2]].double().numpy()
            d = q.shape[-1]
            parts = []
            for pairs in np.array_split(np.arange(d // 2), 3):
                chosen = [*pairs, *(pairs + d // 2)]
                parts.append(
                    [sum(q[i, c] * k[j, c] for c in chosen) / d**0.5 for i in range(N) for j in range(i + 1)]
                )
            total = np.sum(parts, axis=0)
            seen = [float(layer.scores[text, 2, i, j]) for i in range(N) for j in range(i + 1)]
            np.testing.assert_allclose(total, seen, atol=1e-5)
            shares.append([np.cov(part, total)[0, 1] / np.var(total, ddof=1) for part in parts])
    np.testing.assert_allclose(exact["share"], np.mean(shares, axis=0), atol=1e-5)


def test_the_notebooks_leakage_is_of_products_that_no_softcap_has_changed(texts, tmp_path):
    from transformers import AutoModelForCausalLM

    path = model_folder(tmp_path / "gemma2", "gemma2", attn_logit_softcapping=0.05, num_hidden_layers=2)
    chosen = {"arms": [], "inputs": ["windows"], "nulls": [], "bands": 0}
    results = run(settings(path, texts, tmp_path, **chosen), progress=False)
    ids = torch.cat(bare_texts(results))
    model = AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager").eval()
    with asc.capture(model, sites=("query", "key", "scores")) as recording:
        layer = list(recording.run(input_ids=ids))[1]
    products = layer.query.double() @ layer.key[:, list(layer.kv_heads)].double().mT
    expected = ruscio2025once.leakage(products).leakage
    rows = results.table("leakage")
    rows = rows[(rows["layer"] == 1) & (rows["input"] == "windows")]
    published = rows[rows["protocol"] == "ruscio2025once"].pivot_table("leakage", "sample", "head").to_numpy()
    np.testing.assert_allclose(published, expected, rtol=1e-3, atol=1e-7)
    capped = ruscio2025once.leakage(layer.scores.double()).leakage
    assert (abs(capped - expected) > 0.01).any(), "the cap bends these scores"
    exact = rows[rows["protocol"] == "exact"].pivot_table("leakage", "sample", "head").to_numpy()
    np.testing.assert_allclose(exact, asc.offset_fit(layer.scores).added, rtol=1e-3, atol=1e-7)


def test_what_is_stored_as_q_is_the_notebooks_rule(results):
    table = results.table("leakage_tests")
    published = table[table["protocol"] == "ruscio2025once"].sort_values(["layer", "head"])
    assert len(published) == 3 * 4
    np.testing.assert_allclose(published["p_adjusted"], ruscio2025once.rank_adjusted(published["p_value"]))
    assert (published["p_value"] >= 1 / 5001).all()
    assert (published["gap_low"] <= published["gap"]).all()


def test_every_length_reads_the_same_tokens(results):
    table = results.table("leakage_lengths")
    counts = table.groupby("tokens")["texts"].first()
    assert (counts.index * counts == TEXTS * N).all()
    assert set(counts.index) == {8, 16}
    slopes = results.table("leakage_slopes").set_index("layer")["slope"]
    shares = table.pivot_table(index="layer", columns="tokens", values="leakage_share")
    positive = (shares > 0).all(axis=1)
    by_hand = (np.log(shares[16][positive]) - np.log(shares[8][positive])) / np.log(2)
    np.testing.assert_allclose(slopes[positive], by_hand)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["exact", "ruscio2025once"])
def test_only_what_was_asked_for_is_computed(folder, texts, tmp_path, protocol):
    results = run(settings(folder, texts, tmp_path, protocols=protocol, **QUICK), progress=False)
    for name in ("leakage", "leakage_tests", "bands"):
        assert set(results.table(name)["protocol"]) == {protocol}, name
    assert results.report().exists()


def test_lengths_that_do_not_divide_are_refused(folder, texts, tmp_path):
    with pytest.raises(ConfigError, match=r"must divide max_tokens, 16, .* got \[7\]"):
        run(settings(folder, texts, tmp_path, lengths=[7, 8]), progress=False)
    with pytest.raises(ConfigError, match=r"two different lengths or more, or none, got \[8\]"):
        run(settings(folder, texts, tmp_path, lengths=[8]), progress=False)
    unbounded = settings(folder, texts, tmp_path, lengths=[8, 16]).model_copy(update={"max_tokens": None})
    with pytest.raises(ConfigError, match=r"options.lengths: .*needs max_tokens, got null"):
        run(unbounded, progress=False)


def test_a_model_without_rotation_has_no_bands(texts, tmp_path):
    path = model_folder(tmp_path / "gpt2", "gpt2", n_positions=64)
    results = run(settings(path, texts, tmp_path, leakage=False, **QUICK), progress=False)
    assert "bands" not in results.tables() or results.table("bands").empty
    assert any("rotates no queries" in note for note in results.provenance["notes"])


def test_published_numbers_stand_beside_both_counts_of_heads(results):
    compared = compare_published(results, "ruscio2025once")
    assert len(compared.table) == len(published_numbers("ruscio2025once"))
    row = compared.table.set_index("quantity").loc["significant_heads"]
    tests = results.table("leakage_tests").set_index("protocol")["p_adjusted"]
    assert row["published"] == 85
    assert row["measured"] == (tests["ruscio2025once"] <= 0.05).sum()
    assert row["exact"] == (tests["exact"] <= 0.05).sum()
    assert "cannot be q-values" in str(compared)
    gap = compared.table.set_index("quantity").loc["leakage_gap"]
    assert gap["layer"] == 5
    assert np.isnan(gap["measured"]), "the model has three layers"


def test_probes_stand_beside_the_published_ones():
    """Mean, least and most over layers and sides of MLPs; exact: the share of variance without BOS."""
    series = {"model": "a", "revision": "", "step": -1}
    tests = pd.DataFrame(
        [{**series, "layer": 0, "head": 0, "protocol": "exact", "p_value": 1.0, "p_adjusted": 1.0}]
    )
    sites = ("mlp_input", "mlp_output")
    probes = pd.DataFrame(
        [{**series, "layer": 0, "site": site, "r2": r2} for site, r2 in zip(sites, (0.1, 0.4), strict=True)]
    )
    shares = pd.DataFrame(
        [
            {**series, "layer": 0, "arm": arm, "site": site, "position_share": share}
            for arm, share in (("base", 0.9), ("no_bos", 0.02))
            for site in (*sites, "hidden")
        ]
    )
    tables = {"leakage_tests": tests, "probes": probes, "position_shares": shares}
    stored = SimpleNamespace(tables=lambda: list(tables), table=tables.__getitem__)
    compared = published.compare(stored, published_numbers("ruscio2025once"), None, draws=1, seed=0).table
    rows = compared[compared["quantity"] == "position_probe"]
    assert list(rows["published"]) == [0.108, 0.299, 0.264]
    for column, value in (("measured", 0.25), ("low", 0.1), ("high", 0.4), ("exact", 0.02)):
        np.testing.assert_allclose(rows[column], value)
    assert rows["about"].str.contains("neither layer nor side").all()


def test_entropies_over_temperatures_are_those_of_a_slow_loop(results, model):
    table = results.table("softmax_statistics")
    assert set(table["temperature"]) == {0.5, 1.0, 2.0}
    row = table[(table["layer"] == 1) & (table["head"] == 2) & (table["temperature"] == 2.0)].iloc[0]
    entropies = []
    for ids in bare_texts(results):
        with asc.capture(model, sites=("scores",)) as recording:
            maps = list(recording.run(input_ids=ids))[1].scores[:, 2].double().numpy()
        for scores in maps:
            for i in range(5, N):
                p = np.exp(scores[i, : i + 1] / 2.0)
                p = np.sort(p / p.sum())[::-1]
                entropies.append([-(p * np.log(p)).sum(), p[0], p[:5].sum(), p[0] - p[1]])
    columns = ["softmax_entropy", "top_1", "top_5", "margin"]
    np.testing.assert_allclose(row[columns].to_numpy(dtype=float), np.mean(entropies, axis=0), rtol=1e-5)


@pytest.mark.usefixtures("unarranged", "unpictured")
def test_the_q_sentence_stands_beside_the_numbers(results):
    text = results.report().read_text("utf-8")
    assert text.index("cannot be q-values") < text.index("T_precursor-leakage")
    assert text.index("the slope of its logarithm") < text.index("T_precursor-lengths")
    assert text.index("Bands of rotary frequencies") < text.index("T_precursor-bands")
