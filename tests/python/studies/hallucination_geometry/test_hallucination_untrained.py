# SPDX-License-Identifier: MIT
"""The study of knowing and saying on random weights of three architectures: nothing is learned there."""

import pytest

from attnscope.engine.run_study import run
from knowing_study import model_folder, questions, settings

pytestmark = pytest.mark.slow

OPTIONS = {
    "permutations": 199,
    "random_weights": 8,
    "null_draws": 1,
    "dimension_k": [10],
    "cloud_points": 20,
    "sensitivity": {"prompts": 4, "directions": 10, "refusal": ["u", "n"]},
    "answers": {"tokens": 2},
    "interventions": {
        "depths": [0.5],
        "prompts": 20,
        "controls": 5,
        "tokens": 2,
        "gains": [0, 5, 50],
        "alphas": [1],
        "relative_alphas": [0.1],
        "lambdas": [1],
    },
}
#: Claims of each contrast of which nothing is true without training; C9 is a property of any residual stream.
LEARNED = tuple(f"C{code}" for code in (1, 2, "2b", 3, 4, 5, 6, 7, 10, 13, 14, 15, 16, 17))


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt_neox"])
def test_a_model_with_random_weights_supports_no_claim_about_training(name, seed, tmp_path):
    folder = model_folder(tmp_path / "m", name, seed=seed)
    texts = questions(tmp_path / "q.csv", pairs=5, slots=5)
    claims = run(settings(folder, texts, tmp_path, seed=seed, **OPTIONS), progress=False).table("claims")
    codes = claims["claim"].str.partition(" ")[0]
    tested = claims[codes.isin(LEARNED) & (claims["verdict"] != "not testable here")]
    print(name, seed, len(tested), tested.set_index("claim")["verdict"].value_counts().to_dict())
    supported = tested[tested["verdict"] == "supported"]
    # some twenty verdicts of a level of .05 each
    assert len(tested) >= 10
    assert len(supported) <= 2, supported[["claim", "value", "low", "high", "reason"]].to_string()
