# SPDX-License-Identifier: MIT
"""The study of weight changes between initialisations: a change without preferred directions, really run."""

import json
import random

import pytest

from attnscope.config.run_config import RunConfig
from attnscope.engine.run_study import run
from weight_models import tiny

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unarranged")]

#: Claims of which nothing is true between initialisations. C2 is: such a change is isotropic.
LEARNED = ("C1", "C1b", "C1c", "C2b", "C3", "C4", "C5", "C6", "C7")
PAIRS = 3


def settings(home, seed, name):
    models = []
    for at in range(1 + PAIRS):
        tiny(name, seed=10 * seed + at, num_hidden_layers=3).save_pretrained(home / f"m{at}")
        models.append(str(home / f"m{at}"))
    draw = random.Random(seed)
    rows = [[draw.randrange(3, 97) for _ in range(24)] for _ in range(32)]
    (home / "texts.jsonl").write_text("\n".join(json.dumps({"token_ids": row}) for row in rows), "utf-8")
    return RunConfig(
        study="pretraining_writes",
        models=models,
        texts={"path": str(home / "texts.jsonl")},
        output=str(home),
        name="a",
        block=8,
        options={"random_weights": 2, "rank_one": False, "curve": 0, "gradients": False},
    )


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt_neox"])
def test_a_change_between_initialisations_supports_no_claim_about_training(name, seed, tmp_path):
    claims = run(settings(tmp_path, seed, name), progress=False).table("claims")
    counts = claims.groupby("claim")["verdict"].value_counts().unstack(fill_value=0)
    print(f"{name} {seed}\n{counts}")
    pairs = claims[claims["model"].str.startswith("m")]
    assert set(pairs[pairs["claim"] == "C1"]["verdict"]) <= {"contradicted", "undecided"}
    supported = claims[claims["claim"].isin(LEARNED) & (claims["verdict"] == "supported")]
    assert len(supported) == 0, supported[["model", "claim", "value", "low", "high", "reason"]].to_string()
