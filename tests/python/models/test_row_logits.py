# SPDX-License-Identifier: MIT
"""A model's own head on chosen rows of its last hidden state."""

import pytest
import torch
import transformers
from torch import nn

import attnscope as asc
from attnscope.models.head_rows import LastStates, head_plan
from models import VOCABULARY, tiny

_SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
#: Families that `models.tiny` has no vocabulary head of: configuration, model, options.
HEADS = {
    "cohere": ("CohereConfig", "CohereForCausalLM", {**_SMALL, "logit_scale": 0.3}),
    "granite": ("GraniteConfig", "GraniteForCausalLM", {**_SMALL, "logits_scaling": 3.0}),
    "bert": ("BertConfig", "BertForMaskedLM", _SMALL),
    "bert_two_heads": ("BertConfig", "BertForPreTraining", _SMALL),
    "roberta": ("RobertaConfig", "RobertaForMaskedLM", _SMALL),
    "xlm_roberta": ("XLMRobertaConfig", "XLMRobertaForMaskedLM", _SMALL),
    "distilbert": (
        "DistilBertConfig",
        "DistilBertForMaskedLM",
        {
            "vocab_size": VOCABULARY,
            "dim": 32,
            "n_layers": 2,
            "n_heads": 4,
            "hidden_dim": 48,
            "pad_token_id": 0,
        },
    ),
    "albert": ("AlbertConfig", "AlbertForMaskedLM", {**_SMALL, "embedding_size": 16}),
    "electra": ("ElectraConfig", "ElectraForMaskedLM", {**_SMALL, "embedding_size": 16}),
    "modernbert": (
        "ModernBertConfig",
        "ModernBertForMaskedLM",
        {**_SMALL, "cls_token_id": 1, "sep_token_id": 2},
    ),
    "deberta_v2": ("DebertaV2Config", "DebertaV2ForMaskedLM", _SMALL),
    "mpnet": ("MPNetConfig", "MPNetForMaskedLM", _SMALL),
    "xlm": (
        "XLMConfig",
        "XLMWithLMHeadModel",
        {
            "vocab_size": VOCABULARY,
            "emb_dim": 32,
            "n_layers": 2,
            "n_heads": 4,
            "n_langs": 1,
            "max_position_embeddings": 64,
            "pad_index": 0,
            "pad_token_id": 0,
        },
    ),
}
CAUSAL = (
    "llama",
    "gpt2",
    "gpt_neox",
    "gemma2",
    "phi",
    "qwen3",
    "bloom",
    "falcon",
    "gptj",
    "cohere",
    "granite",
)


def with_head(name, seed=0):
    """A random model with its vocabulary head, in evaluation mode."""
    if name not in HEADS:
        return tiny(name, seed=seed)
    config_name, model_name, options = HEADS[name]
    torch.manual_seed(seed)
    config = getattr(transformers, config_name)(**options)
    return getattr(transformers, model_name)._from_config(config).eval()


def ids_of(batch=2, n=11, seed=3):
    return torch.randint(5, VOCABULARY, (batch, n), generator=torch.Generator().manual_seed(seed))


def last_and_logits(model, ids):
    """The last hidden state as the body gives it, and the full logits."""
    captured = {}
    body = model.base_model

    def keep(_module, _args, output):
        captured["state"] = output.last_hidden_state

    handle = body.register_forward_hook(keep)
    with torch.no_grad():
        output = model(input_ids=ids, attention_mask=torch.ones_like(ids))
        logits = output.logits if hasattr(output, "logits") else output.prediction_logits
        if not captured:  # a head that goes past its body
            body(input_ids=ids, attention_mask=torch.ones_like(ids))
    handle.remove()
    return captured["state"], logits


@pytest.mark.parametrize("name", sorted({*CAUSAL, *HEADS}))
def test_all_rows_are_the_full_logits_bitwise_in_every_family(name):
    model = with_head(name)
    hidden, logits = last_and_logits(model, ids_of())
    with torch.no_grad():
        result = asc.row_logits(model, hidden, torch.arange(11))
        rows = asc.row_logits(model, hidden, torch.tensor([[10, 2], [4, 4]]))
    assert torch.equal(result, logits)
    expected = torch.stack([logits[0, [10, 2]], logits[1, [4, 4]]])
    assert (rows - expected).abs().max() <= 1e-5 * logits.abs().max()
    assert head_plan(model).causal == (name in CAUSAL)
    assert head_plan(model).vocabulary == VOCABULARY
    assert head_plan(model).note == ""


def test_a_head_that_goes_past_the_base_model_is_reached_behind_it_and_noted():
    model = with_head("opt")
    hidden, logits = last_and_logits(model, ids_of())
    note = "row_logits: OPTForCausalLM goes past its base_model; model.decoder stands for it"
    with pytest.warns(RuntimeWarning, match=note), torch.no_grad():
        result = asc.row_logits(model, hidden, torch.arange(11))
    assert torch.equal(result, logits)


class ReadsIds(transformers.LlamaForCausalLM):
    """A head that reads the token itself beside the last hidden state."""

    def forward(self, input_ids=None, **options):
        output = super().forward(input_ids=input_ids, **options)
        output.logits = output.logits + nn.functional.one_hot(input_ids, output.logits.shape[-1])
        return output


def test_a_head_that_reads_more_than_the_state_falls_back_to_full_logits_and_says_so():
    model = ReadsIds(tiny("llama").config).eval()
    ids = ids_of()
    with pytest.warns(RuntimeWarning, match="head of ReadsIds reads more .* full logits are computed"):
        states = LastStates(model, ids, torch.ones_like(ids).bool())
    with torch.no_grad():
        logits = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
        assert torch.equal(states.logits(torch.tensor([3, 0])), logits[:, [3, 0]])
        with pytest.raises(NotImplementedError, match="row_logits: the head of ReadsIds reads more"):
            asc.row_logits(model, torch.zeros(2, 11, 96), torch.arange(2))


def test_soft_caps_and_scales_come_along():
    """The head applied by hand misses the scale of the logits."""
    model = with_head("granite")
    hidden, logits = last_and_logits(model, ids_of())
    with torch.no_grad():
        assert torch.equal(asc.row_logits(model, hidden, torch.arange(11)), logits)
        assert torch.allclose(model.lm_head(hidden), 3 * logits, atol=1e-5)


def test_the_model_is_as_it_was_after_an_error_inside():
    model = with_head("llama")
    ids = ids_of()
    hidden, logits = last_and_logits(model, ids)
    with torch.no_grad():
        asc.row_logits(model, hidden, torch.arange(3))
        with pytest.raises(RuntimeError):
            asc.row_logits(model, torch.zeros(2, 4, 7), torch.arange(3))  # of another width
    assert "forward" not in model.base_model.__dict__
    assert torch.equal(last_and_logits(model, ids)[1], logits)


def test_a_forward_that_somebody_replaced_is_back_after_it():
    model = with_head("llama")
    hidden, logits = last_and_logits(model, ids_of())
    original = model.model.forward
    model.model.forward = lambda *args, **options: original(*args, **options)
    own_forward = model.model.forward
    with torch.no_grad():
        assert torch.equal(asc.row_logits(model, hidden, torch.arange(11)), logits)
    assert model.model.forward is own_forward


def test_what_it_cannot_do_is_refused_in_words():
    model, hidden = with_head("llama"), torch.zeros(2, 5, 96)
    with pytest.raises(
        ValueError, match=r"row_logits: gradients must be off \(torch.no_grad\), got grad mode"
    ):
        asc.row_logits(model, hidden, torch.arange(2))
    with torch.no_grad():
        with pytest.raises(
            ValueError, match="must be in evaluation mode, got LlamaForCausalLM in training mode"
        ):
            asc.row_logits(with_head("llama").train(), hidden, torch.arange(2))
        with pytest.raises(ValueError, match="rows must lie between 0 and n - 1 = 4, got 5"):
            asc.row_logits(model, hidden, torch.tensor([1, 5]))
        with pytest.raises(ValueError, match=r"rows must be integers .* got torch.float32"):
            asc.row_logits(model, hidden, torch.tensor([1.0]))
        with pytest.raises(ValueError, match=r"rows must be those of 2 texts, got shape \(3, 1\)"):
            asc.row_logits(model, hidden, torch.zeros(3, 1, dtype=torch.int64))
        with pytest.raises(ValueError, match=r"hidden must have shape \[B, n, D\], got \(5, 96\)"):
            asc.row_logits(model, hidden[0], torch.arange(2))
        with pytest.raises(NotImplementedError, match="T5ForConditionalGeneration is an encoder-decoder"):
            asc.row_logits(tiny("t5"), hidden, torch.arange(2))
        for name in ("bert", "electra"):  # a body alone, a discriminator
            model = tiny("bert") if name == "bert" else _discriminator()
            with pytest.raises(NotImplementedError, match=r"has no vocabulary head; .*likelihood_from"):
                asc.row_logits(model, hidden, torch.arange(2))


def _discriminator():
    config = transformers.ElectraConfig(**HEADS["electra"][2])
    return transformers.ElectraForPreTraining(config).eval()


@pytest.mark.parametrize("name", ["llama", "gemma2", "bert"])
def test_the_site_of_the_final_norm_is_what_it_reads(name):
    from attnscope.capture.forward import Forward, forward

    model, ids = with_head(name), ids_of()
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    with forward(model, inputs, Forward(sites=("final_norm", "logits"))) as run:
        hidden, logits = run.outputs.final_norm, run.outputs.logits
    with torch.no_grad():
        assert torch.equal(asc.row_logits(model, hidden, torch.arange(11)), logits)
