# SPDX-License-Identifier: MIT
"""The study of absolute position on models made here: what must be zero is, what is stored is reproduced."""

import numpy as np
import pandas as pd
import pytest
import torch

import attnscope as asc
from attnscope.engine.run_study import resume, run
from folders import killed, model_folder, sums_on_disk, table_bytes
from placeholders import placeholders
from position_study import FULL_OPTIONS, GROUPS, TEXTS, N, settings


def early(results, arm="base", kind="windows"):
    table = results.table("position")
    return table[(table["queries"] == "early") & (table["arm"] == arm) & (table["input"] == kind)]


def test_what_has_no_value_is_null(results):
    assert placeholders(results) == []


def test_every_arm_and_input_has_rows(results):
    position, removed = results.table("position"), results.table("removed")
    assert set(zip(position["arm"], position["input"], strict=True)) == {
        ("base", "windows"),
        ("base", "shuffled"),
        ("base", "repeated"),
        ("no_bos", "windows"),
        ("no_bos", "repeated"),
    }
    assert set(position["queries"]) == {"early", "2", "3-4", "5-7"}
    assert len(early(results)) == 3 * 4
    expected = {"zero", "mean", "token", "gaussian", "special", "control_1", "control_late", "no_bos"}
    assert expected <= set(removed["arm"])
    assert {"unread", "hidden"} <= set(removed["arm"])
    assert set(removed[removed["arm"] == "token"]["draw"]) == {0, 1}
    assert {"claims", "checks", "trajectory", "fingerprints", "position_shares", "controls"} <= set(
        results.tables()
    )


def test_one_token_repeated_without_bos_has_no_residual(results):
    rows = early(results, "no_bos", "repeated")
    assert rows["residual"].abs().max() < 1e-9
    assert rows["moved_tv"].max() < 1e-6
    behind = early(results, "base", "repeated")
    assert behind[behind["layer"] == 0]["residual"].abs().max() < 1e-9
    assert (behind[behind["layer"] >= 1]["plain"] > 1e-6).all()


def test_layer_0_of_a_rotary_model_has_none_on_windows(results):
    rows = early(results)
    first = rows[rows["layer"] == 0]
    assert (first["residual_low"] <= 0).all()
    assert first["p_adjusted"].min() > 0.01


def test_the_residual_is_that_of_a_slow_loop(results, folder):
    """Scores of the model by hand, means of groups by hand, products of different groups by hand."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    samples = results.table("samples")
    m, layer, head = N // 2, 1, 2
    residuals = [[] for _ in range(GROUPS)]
    cuts = []
    with asc.capture(model, sites=("scores",)) as recording:
        for at, ids in enumerate(samples["token_ids"]):
            layers = list(recording.run(input_ids=torch.tensor(np.asarray(ids))[None]))
            s = layers[layer].scores[0, head].double().numpy()
            profile = [np.mean([s[i, i - d] for i in range(m, 2 * m)]) for d in range(m)]
            rest = np.array([[s[i, j] - profile[i - j] if j <= i else 0 for j in range(m)] for i in range(m)])
            residuals[at * GROUPS // len(samples)].append(rest)
            near = [np.exp([s[i, i - d] for d in range(m)]).cumsum() for i in range(m, 2 * m)]
            left = [sums / sums[-1] for sums in near]
            cuts.append(-np.log(left).mean(0))
    means = [np.mean(part, axis=0) for part in residuals]
    products = []
    for g in range(GROUPS):
        for f in range(GROUPS):
            if g == f:
                continue
            value = []
            for i in range(2, m):
                a, b = means[g][i, 1 : i + 1], means[f][i, 1 : i + 1]
                value.append(np.mean((a - a.mean()) * (b - b.mean())))
            products.append(np.mean(value))
    row = early(results)
    row = row[(row["layer"] == layer) & (row["head"] == head)].iloc[0]
    assert row["residual"] == pytest.approx(np.mean(products), rel=1e-5, abs=1e-9)
    assert row["mask_cut"] == pytest.approx(np.mean(cuts, axis=0)[2:m].mean(), rel=1e-6)
    plain = np.mean(means, axis=0)
    size = np.mean([np.var(plain[i, 1 : i + 1]) for i in range(2, m)])
    assert row["plain"] == pytest.approx(size, rel=1e-5)


def test_the_interval_of_a_layers_share_is_of_its_mean(results):
    """Errors of heads that are not alike cancel, so it is narrower than the mean of their intervals."""
    means = results.table("layer_means")
    means = means[(means["queries"] == "early") & (means["arm"] == "base") & (means["input"] == "windows")]
    means = means.set_index("layer")
    heads = early(results).groupby("layer")[["leakage_share", "leakage_share_low"]].mean()
    of_means = means["leakage_share"] - means["leakage_share_low"]
    of_heads = heads["leakage_share"] - heads["leakage_share_low"]
    assert means["leakage_share"].to_numpy() == pytest.approx(heads["leakage_share"].to_numpy())
    assert (of_means < 0.99 * of_heads).all()


def test_variances_at_an_offset_add_up(results):
    """Var[log A] in both forms; the noise of the residual's own variance is what sets the second apart."""
    rows = results.table("offsets")
    rows = rows[rows["arm"] == "base"]
    first = rows["score"] + rows["log_z"] + rows["covariance"]
    np.testing.assert_allclose(first, rows["log_attention"], rtol=1e-9, atol=1e-12)


def test_nothing_after_it_changes_position_0(results):
    path = results.table("trajectory")
    assert (path["gap"] <= path["tolerance"]).all()
    assert (path[path["arm"] == "base"]["across"] == 0).all()
    assert (path[path["arm"] == "no_bos"]["across"] > 0.1).all()
    assert sorted(set(path["layer"])) == [-1, 0, 1, 2]
    prints = results.table("fingerprints")
    assert (prints[prints["arm"] == "base"]["fingerprint_cosine"] >= 1 - 1e-9).all()
    assert (prints[prints["arm"] == "no_bos"]["fingerprint_cosine"] < 0.999).all()


def test_norms_of_other_positions_are_quantiles_of_each_text(results, folder):
    """Quantiles of a batch depend on the texts that are read together."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    ids = torch.tensor(np.stack(results.table("samples")["token_ids"]))
    with torch.no_grad():
        states = model(input_ids=ids, output_hidden_states=True).hidden_states
    path = results.table("trajectory")
    path = path[path["arm"] == "base"].set_index("layer")
    # the last of the hidden states is behind the final norm
    for layer, state in enumerate(states[:-1], -1):
        norms = state.double().norm(dim=-1).numpy()
        assert path.loc[layer, "norm"] == pytest.approx(norms[:, 0].mean(), rel=1e-5)
        expected = np.quantile(norms[:, 1:], (0.05, 0.5, 0.95), axis=1).mean(1)
        np.testing.assert_allclose(
            path.loc[layer, ["other_05", "other_50", "other_95"]].tolist(), expected, rtol=1e-5
        )


def test_a_query_0_that_reads_itself_keeps_its_states(folder, texts, tmp_path):
    """Reads of position 0 are taken from later queries alone: its own trajectory is that of the base arm."""
    from attnscope.capture import Forward, forward
    from attnscope.engine.engine import Engine
    from attnscope.engine.prepared_run import prepare, with_absolute_paths
    from attnscope.studies.absolute_position.arms import reading_arms
    from attnscope.study_api.stage_run import StageRun

    engine = Engine(
        prepare(with_absolute_paths(settings(folder, texts, tmp_path))), progress=False, say=lambda text: None
    )
    plan = engine.plan
    unit = next(unit for unit in plan.units if unit.stage == "reads")
    stage = plan.stages[unit.stage]
    hand = StageRun(engine, unit, stage.reads, stage.writes)
    arms = list(reading_arms([(0, 1), (1, 3)], [4] * 3, hand, engine.study.options))
    assert {(arm.name, arm.draw) for arm in arms} == {
        (name, draw) for name in ("unread", "hidden") for draw in (-1, 0, 1, 2)
    }
    batch = next(iter(hand.batches()))
    model = hand.model().model

    def states(edits):
        with forward(model, hand.inputs(batch), Forward(("block_output",), edits=edits)) as layers:
            return torch.stack([layer.block_output for layer in layers])

    plain = states((asc.edits.SubtractRead([0], heads=[], skip_queries=[0]),))
    for arm in arms:
        changed = states(arm.edits)
        assert torch.equal(changed[:, :, 0], plain[:, :, 0]), arm
        assert not torch.equal(changed[:, :, 1:], plain[:, :, 1:]), arm


def test_matched_sets_are_different_sets_of_as_many_heads_of_the_same_layers(folder, texts, tmp_path):
    from attnscope.engine.engine import Engine
    from attnscope.engine.prepared_run import prepare, with_absolute_paths
    from attnscope.studies.absolute_position.arms import reading_arms
    from attnscope.study_api.stage_run import StageRun

    engine = Engine(
        prepare(with_absolute_paths(settings(folder, texts, tmp_path))), progress=False, say=lambda text: None
    )
    plan = engine.plan
    unit, stage = next((unit, plan.stages["reads"]) for unit in plan.units if unit.stage == "reads")
    hand = StageRun(engine, unit, stage.reads, stage.writes)
    readers = [(0, 1), (1, 3), (2, 0)]
    drawn = []
    for arm in reading_arms(readers, [4] * 3, hand, engine.study.options):
        heads = arm.edits[0].heads
        assert all(layer < 2 for layer, _ in heads), "the last layer's reads act on no score"
        if arm.draw > 0:
            assert [layer for layer, _ in heads] == [0, 1]
            assert set(heads) != {(0, 1), (1, 3)}
            drawn.append((arm.name, tuple(heads)))
    assert len(set(drawn)) == len(drawn) == 2 * engine.study.options.matched


def test_positions_with_a_step_keep_what_lies_behind_visible(folder):
    """Steps other than 1 pass for the borders of packed texts where no mask says otherwise."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    ids = torch.tensor([[1, 5, 6, 7, 8, 9]])
    edit = asc.edits.SetPositionIds(ids=torch.arange(6) * 2)
    with asc.edit(model, edit), asc.capture(model) as recording:
        for layer in recording.run(input_ids=ids):
            assert (layer.attention.tril(-1).sum(-1)[..., 1:] > 1e-6).all()


def test_random_weights_cut_like_uniform_attention(results):
    rows = results.table("controls")
    rows = rows[rows["queries"] == "early"]
    assert len(rows) == 3 * 3
    # 5 % of what uniform attention gives; scores of an untrained model are next to none
    np.testing.assert_allclose(rows["mask_cut"], rows["uniform_cut"], rtol=0.05)
    assert (rows["residual"].abs() < 1e-2).all()
    shared = results.table("control_residuals")
    assert shared["layer"].tolist() == [0, 1, 2]
    assert (shared["drawings"] == 3).all()
    assert (shared["residual_shared_low"] <= 0).all()
    assert (shared["residual_shared_high"] >= 0).all()


def test_leakage_of_every_text_without_bos_beside_the_same_turned_round(results, folder):
    from transformers import AutoModelForCausalLM

    from attnscope.protocols import ruscio2025once

    table = results.table("leakage")
    assert len(table) == 2 * 2 * TEXTS * 3 * 4
    ids = np.asarray(results.table("samples")["token_ids"].iloc[3])
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    with asc.capture(model, sites=("scores",)) as recording:
        # the window's last token, which the base arm leaves out, is not stored: all but it
        layer = next(iter(recording.run(input_ids=torch.tensor(ids[1:])[None])))
    leakage = ruscio2025once.leakage(layer.scores.double()).leakage[0]
    row = table[(table["sample"] == 3) & (table["layer"] == 0) & (table["protocol"] == "ruscio2025once")]
    row = row[row["input"] == "windows"]["leakage"].to_numpy()
    assert row.shape == leakage.shape
    assert np.corrcoef(row, leakage)[0, 1] > 0.8
    exact = table[table["protocol"] == "exact"]
    assert (exact["r2_full"] >= exact["r2_relative"] - 1e-12).all()
    tests = results.table("leakage_tests").set_index("protocol")["correction"]
    assert set(tests["exact"]) == {"Benjamini–Hochberg"}
    assert set(tests["ruscio2025once"]) == {"over the head's rank (no q-value)"}


def test_claims_have_verdicts(results):
    claims = results.table("claims").set_index("claim")
    codes = [f"C{k}" for k in range(1, 12)] + [f"P{k}" for k in range(1, 5)]
    assert sorted(claims.index) == sorted(codes)
    verdicts = {"supported", "contradicted", "undecided", "not testable here"}
    assert set(claims["verdict"]) <= verdicts
    assert (
        claims.loc["C1", "verdict"]
        == claims.loc["C4", "verdict"]
        == claims.loc["C8", "verdict"]
        == "supported"
    )
    assert claims.loc["C7", "verdict"] == "not testable here"
    assert claims[claims["verdict"] == "not testable here"]["reason"].notna().all()
    checks = results.table("checks")
    assert checks["holds"].all()
    assert {"scores", "shift", "own_embedding", "repeated_token", "first_token", "head_writes"} <= set(
        checks["check"]
    )


@pytest.mark.slow
def test_the_same_texts_in_other_blocks_give_the_same_estimates(results, folder, texts, tmp_path):
    other = run(settings(folder, texts, tmp_path, block=8, arms=["zero"]), progress=False)
    columns = ["residual", "felt", "moved_l2", "mask_cut"]
    np.testing.assert_allclose(early(results)[columns], early(other)[columns], rtol=1e-5, atol=1e-8)


@pytest.mark.slow
def test_a_killed_run_ends_as_one_that_was_left_in_peace(results, folder, texts, tmp_path):
    stopped = killed(settings(folder, texts, tmp_path, **FULL_OPTIONS))
    assert not (stopped / "tables" / "claims.parquet").exists()
    resume(stopped, progress=False)
    assert table_bytes(results.path) == table_bytes(stopped)


@pytest.mark.slow
def test_learned_positions_show_in_layer_0(texts, tmp_path):
    path = model_folder(tmp_path / "gpt2", "gpt2", n_positions=64)
    results = run(settings(path, texts, tmp_path, arms=["no_bos"], samples=32), progress=False)
    claims = results.table("claims").set_index("claim")
    assert claims.loc["C1", "verdict"] == "not testable here"
    assert "positions are learned" in claims.loc["C1", "reason"]
    rows = early(results, kind="shuffled")
    assert (rows[rows["layer"] == 0]["residual"] > 0).all()
    assert rows[rows["layer"] == 0]["p_value"].max() < 0.2


@pytest.mark.usefixtures("unarranged")
def test_every_figure_is_drawn_or_says_why(results):
    from attnscope.errors import NotDrawable
    from attnscope.studies.absolute_position.figures import FIGURES

    undrawn = {}
    for name, figure in FIGURES.items():
        try:
            drawn = figure(results)
        except NotDrawable as error:
            undrawn[name] = str(error)
            continue
        assert drawn.caption.endswith(".")
        for ax in drawn.figure.axes:
            assert ax.lines or ax.images or ax.collections, (name, ax.get_title())
    assert set(undrawn) <= {"encodings", "removed"}, undrawn


def test_the_noise_of_a_cell_stands_on_the_bar_of_the_split(results):
    from attnscope.studies.absolute_position.figures import FIGURES

    shown = results.table("residual_maps").iloc[0]
    head = early(results).set_index(["layer", "head"]).loc[(shown["layer"], shown["head"])]
    noise = (head["plain"] - head["residual"]) ** 0.5
    bar = FIGURES["score_split"](results).figure.axes[-1]
    assert [line.get_ydata()[0] for line in bar.lines] == pytest.approx([-noise, noise])


def test_random_weights_in_the_figure_of_depth_are_those_of_its_model(results):
    """A second model of the run has controls of its own."""
    from attnscope.results.results import Results
    from attnscope.studies.absolute_position.figures import FIGURES

    tables = {name: results.table(name) for name in ("layer_means", "controls")}
    other = tables["controls"].assign(model="another", felt=99.0, moved_tv=99.0)
    tables["controls"] = pd.concat([tables["controls"], other])
    expected = tables["controls"][tables["controls"]["model"] != "another"]
    expected = expected[expected["queries"] == "early"].groupby("layer")[["felt", "moved_tv"]].mean()
    drawn = FIGURES["residual_depth"](Results(tables, study=dict(results.study))).figure
    for ax, column in zip(drawn.axes, expected, strict=True):
        line = next(line for line in ax.lines if line.get_label() == "random weights")
        np.testing.assert_allclose(line.get_ydata(), expected[column])


@pytest.mark.usefixtures("unarranged", "unpictured")
def test_the_report_says_what_is_there_and_what_is_not(results):
    from attnscope.studies.absolute_position.sections import findings

    lines = findings(results)
    assert any("the mean residual by layer is" in line for line in lines)
    assert any("uniform attention" in line for line in lines)
    text = results.report().read_text("utf-8")
    for title in ("Claims", "Mask and residual", "Position 0", "What interventions remove", "The precursor"):
        assert f">{title}" in text
    assert "names neither its vector nor its statistic" in text
    assert "cannot be q-values" in text


def test_the_published_share_stands_beside_every_replacement(results):
    from attnscope.published import compare_published

    compared = compare_published(results, "absolute_position")
    assert set(compared.table["published"]) == {0.4}
    assert {"zero", "mean", "token", "gaussian", "no_bos"} <= set(compared.table["token"])
    assert not compared.table["same_model"].any()
    assert "names neither its vector nor its statistic" in str(compared)


def test_packaged_configurations_are_of_windows():
    for name in ("", "/llama-3.2-3b", "/qwen2.5-7b", "/mistral-7b-v0.1", "/llama-3.2-1b"):
        models = {} if name else {"models": "x"}
        study = asc.Study.from_yaml(f"absolute_position{name}", **models)
        assert study.study == "absolute_position"
        assert [source.per for source in study.texts] == ["window"]
        assert study.options.get("nulls", ["random_weights"]) == ["random_weights"]
        assert study.options.get("matched", 20) >= 19, "fewer sets give no p of .05"
        expected = (256, 16, 64) if name == "/llama-3.2-1b" else (64, 16, 256)
        assert (study.max_tokens, study.block, study.texts[0].samples) == expected


def test_a_dry_run_says_how_many_passes_and_how_much_disk(folder, texts, tmp_path):
    from attnscope.cli.dry_run import dry_run

    notes = " ".join(dry_run(settings(folder, texts, tmp_path, random_weights=1)).notes)
    # base 3, without BOS 2, token and Gaussian 2 each, 3 single vectors, controls 4, reads 2 x 4, leakage 2,
    # placements of BOS 5
    assert "31 passes over 16 windows, up to 8 of them where heads read position 0" in notes
    assert "7 passes over them of each of 1 models with random weights" in notes
    assert "of sums on disk; texts.samples" in notes
    assert not (tmp_path / "a").exists()


def test_the_disk_that_sums_take_is_known_beforehand(results):
    expected, stored = sums_on_disk(results)
    assert 0.8 * stored < expected < 1.6 * stored
