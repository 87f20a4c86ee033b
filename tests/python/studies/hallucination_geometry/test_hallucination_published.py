# SPDX-License-Identifier: MIT
"""The published protocol in the study, and a run's numbers beside the paper's, each with its control."""

import math

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from attnscope.cli.application import app
from attnscope.engine.run_study import run
from attnscope.protocols import ruscio2026
from attnscope.published import compare_published, published_numbers
from knowing_study import QUICK, letters, model_folder, questions, settings


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return model_folder(tmp_path_factory.mktemp("m") / "m", hidden_size=128, num_attention_heads=4)


@pytest.fixture(scope="module")
def results(folder, tmp_path_factory):
    torch.set_num_threads(1)
    texts = questions(tmp_path_factory.mktemp("t") / "q.csv")
    changed = {**QUICK["interventions"], "gains": [0, 20], "alphas": [2], "lambdas": [0.2]}
    study = settings(
        folder,
        texts,
        tmp_path_factory.mktemp("r"),
        protocols=("exact", "ruscio2026"),
        nulls=["covariance"],
        sensitivity={**QUICK["sensitivity"], "prompts": 6},
        interventions=changed,
        readout_k=[100],
    )
    return run(study, progress=False)


@pytest.fixture(scope="module")
def comparison(results):
    return compare_published(results, "ruscio2026")


def states(results, layer, bucket):
    prompts = results.table("prompts")
    table = results.table("states")
    by_sample = table[table["layer"] == layer].set_index("sample")["state"]
    samples = prompts[prompts["bucket"] == bucket].sort_values("sample")["sample"]
    return torch.tensor(np.stack([by_sample[sample] for sample in samples]))


def test_the_notebooks_numbers_are_those_of_their_functions(results, folder):
    """Their batches of four, padded on the right, by this test's own tokenizer call."""
    tokenizer, model = letters(), AutoModelForCausalLM.from_pretrained(folder).eval()
    table = results.table("contrasts")
    table = table[(table["protocol"] == "ruscio2026") & (table["contrast"] == "unknown")]
    rows = table[table["layer"] == 0].set_index(["quantity", "k"])["value"]
    b = ruscio2026.boundary(states(results, 0, "factual"), states(results, 0, "unknown"))
    sensitivity = results.table("sensitivity")
    prompts = results.table("prompts").set_index("sample")
    texts = results.table("samples").drop_duplicates("sample").set_index("sample")["text"]
    samples = sensitivity[(sensitivity["contrast"] == "unknown") & (sensitivity["layer"] == 0)][
        "sample"
    ].unique()
    tokenizer.padding_side = "right"
    for bucket, suffix in (("unknown", ""), ("factual", "_reference")):
        samples_of_bucket = sorted(sample for sample in samples if prompts.loc[sample, "bucket"] == bucket)
        assert len(samples_of_bucket) == 6
        fisher_of_batches = []
        for start in (0, 4):
            batch = tokenizer(
                [texts[sample] for sample in samples_of_bucket[start : start + 4]],
                padding=True,
                return_tensors="pt",
            )
            inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
            fisher_of_batches.append(ruscio2026.fisher(model, inputs, model.model.layers[0], b))
        assert rows["fisher" + suffix, 0] == pytest.approx(np.mean(fisher_of_batches), rel=1e-2, abs=1e-6)
        points = states(results, 0, bucket)
        topology = ruscio2026.topology(points, b, draw=np.random.RandomState(0))
        assert rows["beta0" + suffix, 0] == topology.beta0
        assert {
            "hessian" + suffix,
            "jacobian" + suffix,
            "grad_blockage" + suffix,
            "grad_alignment" + suffix,
        } <= {quantity for quantity, _ in rows.index}
    head = model.lm_head.weight.detach()
    assert rows["vocab_alignment", 100] == pytest.approx(ruscio2026.vocab_alignment(head, b, k=100), rel=1e-6)
    # read where padding may stand, so not half of the exact one
    exact = sensitivity[
        (sensitivity["contrast"] == "unknown")
        & (sensitivity["layer"] == 0)
        & (sensitivity["direction"] == "boundary")
    ]
    assert rows["fisher", 0] > 0
    assert math.isfinite(exact["directional_fisher"].mean())


def test_every_published_number_stands_beside_its_control_and_ours(results, comparison):
    numbers = published_numbers("ruscio2026")
    table = comparison.table
    assert len(table) == len(numbers) == 292
    row = table[(table["published_model"] == "Llama-3.2-3B") & (table["quantity"] == "local_dimension")]
    row = row[(row["published_layer"] == 15) & row["token"].str.startswith("impossible")].iloc[0]
    assert (row["published"], row["control"]) == (17.80, 10.92)
    assert row["token"] == "impossible, control 10.92"
    points = states(results, row["layer"], "impossible")
    assert row["measured"] == pytest.approx(ruscio2026.lid(points).item(), rel=1e-6)
    assert row["exact"] == pytest.approx(_dimension(points), rel=1e-6)
    for quantity in ("directional_fisher", "amplification", "refusal_alignment", "top_norm", "beta0", "norm"):
        of_quantity = table[(table["quantity"] == quantity) & (table["published_model"] == "Llama-3.2-3B")]
        assert of_quantity["measured"].notna().all(), quantity
        assert of_quantity["control"].notna().all() or quantity in ("norm", "top_norm"), quantity
    whole_run = table[table["published_model"] == "Qwen2.5-3B"].set_index("quantity")["exact"]
    assert (
        whole_run[["steering_changed", "steering_loops", "bypass_refusal", "compression_loops"]].notna().all()
    )


def _dimension(points):
    import attnscope as asc

    return asc.local_dimension(points.double(), k=10).value.item()


def test_mistral_is_void_with_the_reason(comparison):
    rows = comparison.table[comparison.table["published_model"] == "Mistral-7B-v0.1"]
    assert len(rows) == 2
    assert rows["token"].str.endswith("void").all()
    assert rows[["published", "measured", "exact", "difference"]].isna().all().all()
    assert rows["about"].str.startswith("152 of 1,000 states are exact duplicates").all()
    statements = [statement for statement in comparison.statements if "void" in statement]
    assert len(statements) == 2
    assert "states of a padding or BOS token" in statements[0]


@pytest.mark.slow
def test_the_command_prints_them(results):
    answer = CliRunner().invoke(app, ["compare", str(results.path), "--published", "ruscio2026"])
    assert answer.exit_code == 0, answer.output
    assert "Mistral-7B-v0.1, stability: void, 152 of 1,000" in answer.output
    assert "--against MODEL chooses one of " in answer.output
    answer = CliRunner().invoke(
        app, ["compare", str(results.path), "--published", "ruscio2026", "--against", "Llama-3.2-3B"]
    )
    assert "beside Llama-3.2-3B" in answer.output
    line = next(
        text_line
        for text_line in answer.output.splitlines()
        if "'impossible, control 17.25'" in text_line or "control 10.34" in text_line
    )
    assert "17.25" in line or "12.95" in line
    against = CliRunner().invoke(
        app, ["compare", str(results.path), "--published", "ruscio2026", "--against", "Qwen3-8B"]
    )
    assert "beside Qwen3-8B" in against.output
    assert "Llama" not in against.output
