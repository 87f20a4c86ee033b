# SPDX-License-Identifier: MIT
"""All that a forward pass takes reaches the model from the likelihoods: against the model's own logits."""

import pytest
import torch
import transformers
from vocabularies import word_pieces

import attnscope as asc
from attnscope.models import LoadError

TOKENIZER = word_pieces("cat", "old", "sat", "dog", "one", "two", "six", "ten")
V = len(TOKENIZER)
SMALL = dict(vocab_size=V, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)


def build(kind, **changes):
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind.partition('For')[0]}Config")(**{**SMALL, **changes})
    model = getattr(transformers, kind)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4)
    return model


def log_softmax(model, **inputs):
    with torch.no_grad():
        return model(**inputs).logits.double().log_softmax(-1)


IDS = torch.randint(5, V, (3, 9), generator=torch.Generator().manual_seed(1))
MASK = (torch.arange(9) < torch.tensor([9, 6, 7])[:, None]).long()
SEGMENTS = torch.randint(0, 2, (3, 9), generator=torch.Generator().manual_seed(3))
POSITIONS = torch.tensor([[0, 1, 2, 3, 0, 1, 0, 1, 2]] * 3)


def test_segments_of_a_masked_model_go_with_their_texts():
    model = build("BertForMaskedLM")
    inputs = {"input_ids": IDS, "attention_mask": MASK, "token_type_ids": SEGMENTS}
    result = asc.token_likelihood(model, inputs, tokenizer=TOKENIZER)
    likelihood = asc.token_likelihood(model, inputs, context="own").log_likelihood
    right = log_softmax(model, **inputs).gather(-1, IDS[..., None])[..., 0]
    torch.testing.assert_close(likelihood[MASK.bool()], right[MASK.bool()])
    for text, column in MASK.nonzero().tolist():
        masked = IDS[text : text + 1].clone()
        masked[0, column] = TOKENIZER.mask_token_id
        rest = {name: tensor[text : text + 1] for name, tensor in inputs.items() if name != "input_ids"}
        want = log_softmax(model, input_ids=masked, **rest)[0, column, IDS[text, column]]
        assert abs(result.log_likelihood[text, column] - want) < 1e-5
    # a word of one piece has its token's likelihood, and a text without a word none
    words = asc.word_likelihood(model, inputs, [[-1, -1], [2, 3], [4, 5]], tokenizer=TOKENIZER)
    assert torch.isnan(words.log_likelihood[0])
    for text, column in ((1, 2), (2, 4)):
        assert abs(words.log_likelihood[text] - result.log_likelihood[text, column]) < 1e-5


def test_positions_of_packed_texts_reach_a_causal_model():
    model = build("LlamaForCausalLM")
    inputs = {"input_ids": IDS, "attention_mask": MASK, "position_ids": POSITIONS}
    result = asc.token_likelihood(model, inputs).log_likelihood
    right = log_softmax(model, **inputs)[:, :-1].gather(-1, IDS[:, 1:, None])[..., 0]
    real = MASK[:, 1:].bool()
    torch.testing.assert_close(result[:, 1:][real], right[real], rtol=1e-5, atol=1e-6)
    plain = asc.token_likelihood(model, {"input_ids": IDS, "attention_mask": MASK}).log_likelihood
    assert (result - plain)[0, 5:].abs().max() > 1e-3


def test_replacements_are_ranked_under_the_same_inputs():
    model = build("BertForMaskedLM")
    ids = TOKENIZER("one two cat old six", return_tensors="pt")["input_ids"]
    seen = torch.tensor([[0, 0, 0, 0, 1, 1, 1]])
    for segments in (torch.zeros_like(ids), seen):
        inputs = {"input_ids": ids, "token_type_ids": segments}
        result = asc.replacements(model, inputs, [[3, 4]], ["highest"], tokenizer=TOKENIZER)
        masked = ids.clone()
        masked[0, 3] = TOKENIZER.mask_token_id
        want = log_softmax(model, input_ids=masked, token_type_ids=segments)[0, 3]
        assert abs(result.log_likelihood[0, 0] - want[result.input_ids[0, 0, 3]]) < 1e-5


def test_texts_are_read_as_elsewhere():
    model = build("LlamaForCausalLM")
    texts = ["one two cat", "old six"]
    ragged = TOKENIZER(texts)
    result, lists = (
        asc.token_likelihood(model, inputs, tokenizer=TOKENIZER) for inputs in (texts, dict(ragged))
    )
    assert result.log_likelihood.shape == (2, 5)
    torch.testing.assert_close(result.log_likelihood, lists.log_likelihood, equal_nan=True)
    single_result = asc.token_likelihood(model, {"input_ids": torch.tensor([ragged["input_ids"][1]])})
    torch.testing.assert_close(result.log_likelihood[1, :4], single_result.log_likelihood[0], equal_nan=True)


@pytest.mark.parametrize(
    ("kind", "further_inputs", "words"),
    [
        ("LlamaForCausalLM", {"bbox": torch.zeros(3, 9, 4)}, "LlamaForCausalLM takes no bbox"),
        ("LlamaForCausalLM", {"token_type_ids": SEGMENTS}, "LlamaForCausalLM takes no token_type_ids"),
        ("GPT2LMHeadModel", {}, "texts of 9 tokens are longer than the 8 positions of GPT2LMHeadModel"),
    ],
)
def test_what_cannot_be_handed_on_is_refused(kind, further_inputs, words):
    if kind == "GPT2LMHeadModel":
        model = transformers.GPT2LMHeadModel(
            transformers.GPT2Config(vocab_size=V, n_positions=8, n_embd=16, n_layer=1, n_head=2)
        ).eval()
    else:
        model = build(kind)
    with pytest.raises(ValueError, match=f"token_likelihood: {words}"):
        asc.token_likelihood(model, {"input_ids": IDS, "attention_mask": MASK, **further_inputs})


def peft_model(kind):
    peft = pytest.importorskip("peft", reason="peft, whose prompt learning is tested, is not installed")
    settings = {
        "prefix": lambda: peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4),
        "prompt": lambda: peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4),
        "p-tuning": lambda: peft.PromptEncoderConfig(
            task_type="CAUSAL_LM", num_virtual_tokens=4, encoder_hidden_size=16
        ),
        "lora": lambda: peft.LoraConfig(
            task_type="CAUSAL_LM", target_modules=["q_proj"], init_lora_weights=False
        ),
    }
    model = build("LlamaForCausalLM")
    torch.manual_seed(1)
    return peft.get_peft_model(model, settings[kind]()).eval()


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("kind", ["prefix", "prompt", "p-tuning", "lora"])
def test_prompt_learning_is_part_of_the_model(kind):
    """Likelihoods are those of the tuned model's own logits, and maps those of its own forward pass."""
    model, ids = peft_model(kind), IDS[:1]
    logits = log_softmax(model, input_ids=ids)
    assert logits.shape[1] == (9 + 4 if kind in ("prompt", "p-tuning") else 9)
    right = logits[:, -9:][:, :-1].gather(-1, ids[:, 1:, None])[..., 0]
    result = asc.token_likelihood(model, {"input_ids": ids}).log_likelihood[:, 1:]
    torch.testing.assert_close(result, right, rtol=1e-5, atol=1e-6)
    bare = asc.token_likelihood(model.get_base_model(), {"input_ids": ids}).log_likelihood[:, 1:]
    assert kind == "lora" or (result - bare).abs().max() > 1e-4

    virtual = [f"<virtual {place}>" for place in range(4)]
    names = [str(token) for token in ids[0].tolist()]
    shown = asc.view(model, ids[0].tolist()).contents["maps"][0]
    if kind == "prefix":
        with pytest.raises(LoadError, match="4 virtual keys are before each text"):
            asc.analyze(model, ids, ["fiedler_value"])
        assert (shown["tokens"], shown["queries"]) == ([*virtual, *names], names)
        return
    results = asc.analyze(model, ids, ["fiedler_value"])
    with asc.capture(model) as recording, torch.no_grad():
        maps = [layer.attention for layer in recording.run(input_ids=ids)]
    want = asc.fiedler_value(maps[0][0])
    torch.testing.assert_close(torch.tensor(results["heads"]["fiedler_value"].to_numpy()), want)
    assert shown["tokens"] == ([*virtual, *names] if kind != "lora" else names)
