# SPDX-License-Identifier: MIT
"""The identities of edits that the study tries on each checkpoint, on models of many kinds."""

import pytest
import torch

import models
from attnscope.studies.hallucination_geometry.checks import identities
from models import DATA

FAMILIES = ("llama", "gpt2", "gpt_neox", "gemma2", "cohere")
EIGHT = [
    "nothing_added",
    "state_moved",
    "earlier_states",
    "readout",
    "readout_moved",
    "other_state",
    "cached_step",
    "padding",
    "hidden_states",
    "last_hidden_state",
]


def prompts(vocabulary):
    draw = torch.Generator().manual_seed(1)
    return [torch.randint(3, vocabulary, (n,), generator=draw) for n in (9, 12)]


def small_model(name):
    if name != "cohere":
        return models.tiny(name, implementation="eager").double()
    from transformers import CohereConfig, CohereForCausalLM

    torch.manual_seed(0)
    config = CohereConfig(
        vocab_size=models.VOCABULARY,
        hidden_size=96,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        logit_scale=0.25,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        attn_implementation="eager",
    )
    return CohereForCausalLM(config).eval().double()


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_keeps_the_eight_identities(name):
    """In float64, where only softmax inside some models is narrower."""
    checks = {
        check.name: check for check in identities(small_model(name), prompts(models.VOCABULARY), 1e-5, 0)
    }
    assert list(checks) == EIGHT
    for check in checks.values():
        assert check.holds, check
        assert check.value is not None or check.reason
    assert checks["nothing_added"].value == checks["earlier_states"].value == 0
    assert checks["readout"].value is not None


@pytest.mark.parametrize("name", ["stories260K", "llama2xs"])
def test_trained_models_keep_them(name):
    from transformers import AutoModelForCausalLM

    folder = DATA / name / "hf"
    if not folder.exists():
        pytest.skip(f"no {folder}")
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    checks = list(identities(model, prompts(model.config.vocab_size), 1e-3, 0))
    assert [check.name for check in checks] == EIGHT
    assert all(check.holds for check in checks), checks


def test_a_model_that_looks_ahead_does_not_keep_them():
    """A block that mixes positions backwards: an edit of the last token changes earlier states."""
    model = models.tiny("llama", implementation="eager").double()

    def mixed(_, args, output):
        return output + 0.1 * output.mean(1, keepdim=True)

    model.model.layers[2].register_forward_hook(mixed)
    checks = {check.name: check for check in identities(model, prompts(models.VOCABULARY), 1e-5, 0)}
    assert not checks["earlier_states"].holds
    step = checks["cached_step"]  # its prompts run whole, which a gap of 0 would not show
    assert (step.value, "does not give the logits of the whole prompt" in step.reason) == (None, True)
