# SPDX-License-Identifier: MIT
"""The study of knowing and saying on a model made here: its numbers by hand, its claims, its report."""

import re

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import AutoModelForCausalLM

import attnscope as asc
from attnscope.engine.run_study import run
from folders import sums_on_disk
from knowing_study import FAST, settings
from placeholders import placeholders

L = 2


@pytest.fixture(scope="module")
def results(folder, texts, tmp_path_factory):
    output = tmp_path_factory.mktemp("whole")
    return run(settings(folder, texts, output, protocols=("exact", "ruscio2026")), progress=False)


def clouds(results, layer, contrast="unknown"):
    """States of the reference and of another bucket, in the order of pairs."""
    table, prompts = results.table("states"), results.table("prompts").set_index("sample")
    by_sample = table[table["layer"] == layer].set_index("sample")["state"]
    states_of_buckets = []
    for bucket in ("factual", contrast):
        samples = prompts[prompts["bucket"] == bucket].sort_values("pair").index
        states_of_buckets.append(np.stack([by_sample[sample] for sample in samples]).astype(float))
    return states_of_buckets


def test_what_has_no_value_is_null(results):
    assert placeholders(results) == []


def test_the_disk_that_sums_take_is_known_beforehand(results):
    expected, stored = sums_on_disk(results)
    assert expected == stored > 0


def test_every_table_has_rows(results):
    expected = {
        "checks",
        "prompts",
        "states",
        "clouds",
        "contrasts",
        "detection",
        "betti",
        "boundaries",
        "sensitivity",
        "readout",
        "lens",
        "answers",
        "interventions",
        "claims",
        "detection_variants",
        "contrasts_variants",
        "clouds_variants",
        "lens_variants",
    }
    assert expected <= set(results.tables())
    prompts = results.table("prompts")
    assert prompts["bucket"].value_counts().to_dict() == {"factual": 40, "impossible": 40, "unknown": 40}
    assert sorted(results.table("states")["layer"].unique()) == [-1, 0, 1]
    assert results.table("checks")["holds"].all()
    assert set(results.table("detection_variants")["seed"]) == {0, 1}


def test_states_are_those_of_the_prompts_last_tokens(results, folder):
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    table = results.table("states")
    samples = results.table("samples").drop_duplicates("sample").set_index("sample")
    for sample in (3, 77):
        text = samples.loc[sample, "text"]
        assert text.startswith("Question: ")
        assert text.endswith("?\nAnswer:")
        ids = torch.tensor(np.asarray(samples.loc[sample, "token_ids"]))[None]
        with torch.no_grad():
            hidden = model(input_ids=ids, output_hidden_states=True).hidden_states
        for layer in (-1, 0):
            row = table[(table["sample"] == sample) & (table["layer"] == layer)]["state"].iloc[0]
            np.testing.assert_allclose(row, hidden[layer + 1][0, -1].numpy(), rtol=1e-4, atol=1e-5)


def test_the_surprisal_is_of_the_questions_letters(results, folder):
    """Not of the words around them, which are the same in every prompt."""
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    prompts = results.table("prompts").set_index("sample")
    samples = results.table("samples").drop_duplicates("sample").set_index("sample")
    for sample in (3, 77):
        ids = torch.tensor(np.asarray(samples.loc[sample, "token_ids"]))
        letters = len(prompts.loc[sample, "question"])
        end = len(ids) - len("\nAnswer:")
        with torch.no_grad():
            log_p = model(input_ids=ids[None]).logits[0].double().log_softmax(-1)
        of_letters = log_p[torch.arange(end - letters - 1, end - 1), ids[end - letters : end]]
        assert prompts.loc[sample, "surprisal"] == pytest.approx(-float(of_letters.mean()), rel=1e-5)


def test_duplicates_are_counted_where_neighbours_are_and_null_elsewhere(results):
    """A count of 0 would say that a cloud had been looked through."""
    rows = results.table("clouds")
    counted = (rows["quantity"] == "local_dimension") & (rows["protocol"] == "exact") & (rows["null"] == "")
    assert counted.any()
    for name in ("duplicates", "tied"):
        assert rows[name].notna().equals(counted)


def test_clouds_boundaries_and_contrasts_by_hand(results):
    reference, other = clouds(results, 0)
    rows = results.table("clouds")
    rows = rows[(rows["layer"] == 0) & (rows["bucket"] == "unknown") & (rows["protocol"] == "exact")]
    for k in (5, 10):
        d = np.sort(np.linalg.norm(other[:, None] - other, axis=-1), axis=1)[:, 1 : k + 1]
        s = np.log(d[:, -1:] / d[:, :-1]).sum(1)
        value = rows[(rows["quantity"] == "local_dimension") & (rows["k"] == k)]["value"].iloc[0]
        assert value == pytest.approx((k - 1) * len(s) / s.sum(), rel=1e-6)
    spectrum = np.linalg.svd(other - other.mean(0), compute_uv=False)
    p = spectrum[spectrum > 1e-9] / spectrum.sum()
    rank = rows[rows["quantity"] == "effective_rank"]["value"].iloc[0]
    assert rank == pytest.approx(np.exp(-(p * np.log(p)).sum()), rel=1e-5)
    v = other.mean(0) - reference.mean(0)
    line = results.table("boundaries")
    line = line[(line["layer"] == 0) & (line["contrast"] == "unknown")].iloc[0]
    assert line["norm"] == pytest.approx(np.linalg.norm(v), rel=1e-6)
    noise = sum(np.trace(np.cov(points.T)) / len(points) for points in (reference, other))
    assert line["distance2"] == pytest.approx(v @ v - noise, rel=1e-4, abs=1e-9)
    tests = results.table("contrasts")
    tests = tests[(tests["layer"] == 0) & (tests["contrast"] == "unknown") & (tests["protocol"] == "exact")]
    dimensions = [
        asc.local_dimension(torch.tensor(points), k=5).value.item() for points in (reference, other)
    ]
    ratio = tests[(tests["quantity"] == "log_dimension_ratio") & (tests["k"] == 5)].iloc[0]
    assert ratio["value"] == pytest.approx(np.log(dimensions[1] / dimensions[0]), rel=1e-6)
    assert ratio["null_low"] <= ratio["null_mean"] <= ratio["null_high"]
    assert 0 < ratio["p_value"] <= ratio["p_adjusted"] <= 1
    assert ratio["n_pairs"] == 40


def test_detection_by_hand(results):
    """The projection on the other folds' difference of means, scored on the fold that was left out."""
    reference, other = clouds(results, 1, "impossible")
    prompts = results.table("prompts")
    folds = prompts[prompts["bucket"] == "factual"].sort_values("pair")["fold"].to_numpy()
    scores = [[], []]
    for fold in np.unique(folds):
        train = folds != fold
        high, low = other[train].mean(0), reference[train].mean(0)
        b = (high - low) / np.linalg.norm(high - low)
        for at, points in enumerate((reference, other)):
            scores[at] += ((points[~train] - (high + low) / 2) @ b).tolist()
    value = np.mean([(x > y) + 0.5 * (x == y) for x in scores[1] for y in scores[0]])
    rows = results.table("detection")
    rows = rows[(rows["layer"] == 1) & (rows["contrast"] == "impossible")].set_index("score")["auc"]
    assert rows["auc_direction"] == pytest.approx(value, abs=1e-6)
    assert rows["auc_words"] == pytest.approx(0.5, abs=1e-9)
    assert rows["auc_excess"] == pytest.approx(
        rows["auc"] - rows[["auc_length", "auc_words", "auc_surprisal", "auc_embedding"]].max()
    )
    test = results.table("contrasts")
    test = test[
        (test["quantity"] == "auc_direction") & (test["layer"] == 1) & (test["contrast"] == "impossible")
    ]
    assert test["value"].iloc[0] == pytest.approx(value, abs=1e-6)


def test_sensitivity_by_hand(results, folder):
    """A difference of means that is really put there, by a hook on the whole prompt."""
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    reference, other = clouds(results, 0)
    v = torch.tensor(other.mean(0) - reference.mean(0))
    rows = results.table("sensitivity")
    rows = rows[(rows["layer"] == 0) & (rows["contrast"] == "unknown") & (rows["direction"] == "boundary")]
    samples = results.table("samples").drop_duplicates("sample").set_index("sample")
    buckets = results.table("prompts").set_index("sample")["bucket"]
    assert len(rows) == 4
    for row in rows.itertuples():
        ids = torch.tensor(np.asarray(samples.loc[row.sample, "token_ids"]))[None]
        sign = 1 if buckets[row.sample] == "factual" else -1
        moved = []
        for move in (0 * v, sign * v):

            def hook(_, args, output, move=move):
                new = output.clone()
                new[:, -1] += move.float()
                return new

            handle = model.model.layers[0].register_forward_hook(hook)
            with torch.no_grad():
                moved.append(model(input_ids=ids).logits[0, -1].double().log_softmax(-1))
            handle.remove()
        p, q = moved
        kl = 0.5 * float(((p.exp() - q.exp()) * (p - q)).sum())
        assert row.transport_kl == pytest.approx(kl, rel=1e-2, abs=1e-10)
        # small enough a difference for its Fisher information to say the same
        assert row.transport_fisher == pytest.approx(2 * kl, rel=0.2, abs=1e-9)
        assert row.relative_fisher == pytest.approx(row.directional_fisher * row.state_norm**2, rel=1e-9)


def test_the_lens_of_the_last_layer_is_the_model(results, folder):
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    samples = results.table("samples").drop_duplicates("sample").set_index("sample")
    rows = results.table("lens").set_index(["sample", "layer"])
    for sample in (0, 50):
        ids = torch.tensor(np.asarray(samples.loc[sample, "token_ids"]))[None]
        with torch.no_grad():
            p = model(input_ids=ids).logits[0, -1].double().softmax(-1)
        assert rows.loc[(sample, 1), "top"] == pytest.approx(float(p.max()), rel=1e-4)
        assert rows.loc[(sample, 1), "prediction_entropy"] == pytest.approx(
            float(-(p * p.log()).sum()), rel=1e-4
        )


def test_a_constant_detector_is_the_diagonal(results):
    """Whatever its gain, it forces prompts of both buckets by their own logits alone."""
    from attnscope.studies.hallucination_geometry.interventions import bypassed

    rows = results.table("interventions")
    rows = rows[rows["arm"] == "bypass"]
    assert rows[rows["strength"] == 50].groupby("control")["forced"].mean()["constant"] == 1.0
    assert not rows[rows["strength"] == 0]["forced"].any()
    rng = np.random.default_rng(0)
    logits, labels = rng.standard_normal((4000, 20)), np.arange(4000) % 2
    for gain in (0.5, 1.0, 2.0, 4.0):
        forced = bypassed(logits, 3, np.full(4000, gain * 0.5))
        assert abs(forced[labels == 1].mean() - forced[labels == 0].mean()) < 0.05
        knowing = bypassed(logits, 3, gain * labels.astype(float) * 5)
        assert knowing[labels == 1].mean() > knowing[labels == 0].mean() + 0.2


def test_steering_by_nothing_changes_nothing(folder):
    from attnscope.studies.hallucination_geometry.interventions import steered

    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    ids = torch.arange(4, 20)
    logits, new = steered(model, ids, 0, torch.zeros(3, 32), 5)
    generated = model.generate(
        ids[None], attention_mask=torch.ones_like(ids)[None], max_new_tokens=5, do_sample=False
    )
    assert torch.equal(new, generated[:, len(ids) :].expand(3, -1))
    with torch.no_grad():
        torch.testing.assert_close(
            logits[1], model(input_ids=ids[None]).logits[0, -1].double(), rtol=1e-4, atol=1e-5
        )
    far, _ = steered(model, ids, 0, 50 * torch.eye(32)[:3], 1)
    assert (far - logits).abs().max() > 0.01


def test_interventions_hold_every_arm_and_control(results):
    rows = results.table("interventions")
    assert set(rows["arm"]) == {"bypass", "bypass_gap", "steering", "steering_relative", "compression"}
    steering = rows[rows["arm"] == "steering"]
    assert set(steering["control"]) == {"boundary", "isotropic", "covariance", "labels"}
    assert set(steering["strength"]) == {-1.0, 1.0}
    assert set(rows[rows["arm"] == "compression"]["control"]) == {"reference", "haar", "other"}
    assert set(rows[rows["arm"] == "bypass"]["control"]) == {
        "probe",
        "constant",
        "shuffled",
        "length",
        "random_weights",
    }
    assert (rows["kl"].dropna() >= -1e-9).all()


def test_both_protocols_stand_beside_one_another(results):
    rows = results.table("clouds")
    theirs = rows[rows["protocol"] == "ruscio2026"]
    assert set(theirs["quantity"]) == {"local_dimension", "isotropy", "effective_rank"}
    assert set(theirs[theirs["quantity"] == "local_dimension"]["k"]) == {30}


def test_nothing_is_found_in_a_model_that_knows_nothing(results):
    claims = results.table("claims").set_index("claim")
    for contrast in ("impossible", "unknown"):
        assert claims.loc[f"C1 {contrast}", "verdict"] != "supported"
        assert claims.loc[f"C8 {contrast}", "verdict"] == "not testable here"
    assert claims["p_adjusted"].min() > 0.05
    assert claims.loc[claims["verdict"] == "not testable here", "reason"].notna().all()


def test_the_report_says_so_first(results):
    from attnscope.studies.hallucination_geometry.sections import findings

    sentences = findings(results)
    assert len(sentences) == 2
    for sentence, contrast in zip(sentences, ("impossible", "unknown"), strict=True):
        starts = ("It is undecided whether states tell", "States do not tell")
        assert sentence.startswith(
            tuple(f"{start} {contrast} from factual beyond words and" for start in starts)
        )
        assert sentence.endswith("What follows may be chance.")


@pytest.mark.slow
def test_figures_and_report_are_drawn(results):
    left_out = []
    results.figures(left_out=left_out)
    assert {omission.name for omission in left_out} <= {"training", "published"}
    page = results.report().read_text("utf-8")
    assert "tell impossible from factual beyond words and length" in page
    assert "not supported: what follows may be chance." in page
    assert "it is silent" not in page
    greyed = set(re.findall(r'<section class=greyed>\s*<h2 id="(\w+)"', page))
    assert greyed == {"detection", "geometry", "along", "interventions"}
    codes = re.findall(r">(C\d+b?) impossible: ", page)
    assert codes == sorted(codes, key=lambda code: (int(code[1:].rstrip("b")), code))


def test_order_of_units_and_names_of_columns_change_nothing(results, folder, texts, tmp_path):
    table = pd.read_csv(texts, keep_default_na=False)
    renamed = table.rename(columns={"bucket": "kind", "template": "form", "pair": "twosome", "fold": "part"})
    path = tmp_path / "q.parquet"
    renamed.to_parquet(path)
    other = run(
        settings(
            folder,
            path,
            tmp_path,
            block=7,
            bucket="kind",
            template="form",
            pair="twosome",
            fold="part",
            **{**FAST, "random_weights": 2},
        ),
        progress=False,
    )
    for name in ("contrasts", "detection", "boundaries"):
        rows, rows_of_other = results.table(name), other.table(name)
        rows = rows[rows["protocol"] == "exact"].reset_index(drop=True) if "protocol" in rows else rows
        if name == "contrasts":
            rows = rows[
                (rows["protocol"] == "exact")
                & ~rows["quantity"].str.contains("fisher|transport|gain|refusal")
            ]
            rows = rows.reset_index(drop=True)
        numbers = [column for column in rows_of_other.columns if rows_of_other[column].dtype.kind == "f"]
        np.testing.assert_allclose(rows[numbers], rows_of_other[numbers], rtol=2e-3, atol=2e-3)
