# SPDX-License-Identifier: MIT
"""The table of emergence: one family over the quantities of a run, and nothing emerges from noise."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from attnscope.engine.results import Results
from attnscope.inference import emergence_splits, holm
from attnscope.studies.attention_sinks.emergence import emergence

CHECKPOINTS, TEXTS, QUANTITIES = 16, 6, 8
STEPS = np.arange(CHECKPOINTS) * 10


def made(jump, seed=0, groups=("all",)):
    """A run of noise in eight quantities of two layers and two heads; the first jumps at checkpoint 8."""
    draw = np.random.default_rng(seed)
    keys = pd.MultiIndex.from_product(
        [STEPS, range(TEXTS), range(2), range(2)], names=["step", "sample", "layer", "head"]
    ).to_frame(index=False)
    keys = keys.assign(model="m", revision=keys["step"].astype(str), protocol="exact")
    # what all texts of a checkpoint share is noise too
    shared = draw.normal(size=(QUANTITIES, CHECKPOINTS))
    columns = {
        f"q{number}": own[keys["step"] // 10] + 0.1 * draw.normal(size=len(keys))
        for number, own in enumerate(shared)
    }
    columns["q0"] = columns["q0"] + jump * (keys["step"] >= 80)
    columns["design"] = 0.001 * keys["step"].astype(float)
    heads = pa.Table.from_pandas(keys.assign(**columns), preserve_index=False)
    place = heads.schema.get_field_index("design")
    heads = heads.set_column(
        place, heads.schema.field(place).with_metadata({b"kind": b"constant"}), heads.column(place)
    )
    order = ["model", "revision", "step", "sample"]
    about = {"name": "heads", "version": 1, "keys": [*order, "layer", "head", "protocol"]}
    heads = heads.replace_schema_metadata({b"attnscope_table": json.dumps(about).encode()})
    samples = keys[order].drop_duplicates()
    samples["group"] = [groups[sample % len(groups)] for sample in samples["sample"]]
    return Results({"heads": heads, "samples": samples})


def whole(rows):
    return {row["metric"]: row for row in rows if row["scope"] == "heads" and row["verdict"] is not None}


def test_a_planted_step_is_found_where_it_is_and_noise_beside_it_is_not():
    results = made(6.0)
    rows = emergence(results, 0)
    found = whole(rows)
    assert set(found) == {f"q{number}" for number in range(QUANTITIES)}
    assert found["q0"]["verdict"] == "step"
    assert found["q0"]["step"] == 80
    assert [found[f"q{number}"]["verdict"] for number in range(1, QUANTITIES)] == ["no change"] * 7
    assert all(found[f"q{number}"]["half_way"] is not None for number in range(1, QUANTITIES))


def test_the_family_is_that_of_the_run():
    found = whole(emergence(made(6.0), 0))
    names = sorted(found)
    corrected = holm([found[name]["p_value"] for name in names])
    assert [found[name]["p_holm"] for name in names] == pytest.approx(corrected.tolist())
    heads = made(6.0).table("heads")
    curve = heads.groupby(["step", "sample"])["q0"].mean().unstack("sample")
    alone = emergence_splits([(curve.index.to_numpy(), curve.to_numpy())])[0]
    assert alone["p_value"] <= found["q0"]["p_holm"]


def test_noise_steps_in_few_runs():
    """One family of eight in 12 runs: a step at all in about one run of twenty."""
    steps = sum(
        any(row["verdict"] == "step" for row in whole(emergence(made(0.0, seed), seed)).values())
        for seed in range(12)
    )
    assert steps <= 2


def test_layers_are_described_and_not_tested():
    rows = emergence(made(6.0), 0)
    layers = [row for row in rows if row["scope"] == "layer"]
    assert {(row["place"], row["layer"], row["head"]) for row in layers} == {("L0", 0, None), ("L1", 1, None)}
    assert all(row["verdict"] is None and np.isnan(row["p_value"]) for row in layers)
    assert "design" not in {row["metric"] for row in rows}


def test_groups_of_texts_are_tested_apart():
    rows = emergence(made(6.0, groups=("a", "b")), 0)
    judged = [row for row in rows if row["verdict"] is not None]
    assert {row["group"] for row in judged} == {"a", "b"}
    assert all(row["step"] == 80 for row in judged if row["metric"] == "q0")
