# SPDX-License-Identifier: MIT
"""How likely a model finds tokens and words: its own loss, explicit masks, the chain rule."""

from pathlib import Path

import pytest
import torch
import transformers
from vocabularies import word_pieces

import attnscope as asc
from attnscope.capture.likelihood import tokens as token_module
from models import VOCABULARY, tiny

DATA = Path(__file__).resolve().parents[4] / "shared/data"
TOKENIZER = word_pieces("cat", "old", "sat", "dog")


def bert(**options):
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(TOKENIZER),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
        initializer_range=0.3,
        **options,
    )
    return transformers.BertForMaskedLM(config).eval()


def batch(vocabulary=VOCABULARY, n=13, batch=3, lengths=(13, 9, 2)):
    ids = torch.randint(5, vocabulary, (batch, n), generator=torch.Generator().manual_seed(1))
    mask = torch.arange(n) < torch.tensor(lengths)[:, None]
    return {"input_ids": torch.where(mask, ids, 0), "attention_mask": mask.long()}


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2"])
def test_the_mean_is_the_models_own_loss(name):
    model, inputs = tiny(name), batch()
    result = asc.token_likelihood(model, inputs)
    for row, length in enumerate((13, 9, 2)):
        ids = inputs["input_ids"][row : row + 1, :length]
        with torch.no_grad():
            loss = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids).loss.item()
        assert -result.log_likelihood[row, 1:length].mean().item() == pytest.approx(loss, abs=1e-5)
    undefined = inputs["attention_mask"] == 0
    undefined[:, 0] = True
    assert torch.equal(result.log_likelihood.isnan(), undefined)
    assert torch.equal(result.entropy.isnan(), undefined)
    assert torch.equal(result.rank == -1, undefined)


@pytest.mark.parametrize("folder", ["stories260K/hf", "llama2xs/hf"])
def test_the_loss_of_trained_models(folder):
    if not (DATA / folder).exists():
        pytest.skip(f"{folder} is not here")
    model = transformers.AutoModelForCausalLM.from_pretrained(DATA / folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(DATA / folder)
    ids = tokenizer("Once upon a time there was a little dog. He sat on a cat.", return_tensors="pt")[
        "input_ids"
    ]
    with torch.no_grad():
        loss = model(input_ids=ids, labels=ids).loss.item()
    result = asc.token_likelihood(model, {"input_ids": ids})
    assert -result.log_likelihood[0, 1:].mean().item() == pytest.approx(loss, abs=1e-5)


def test_entropy_and_rank_against_a_sort_of_full_logits():
    model, inputs = tiny("llama"), batch()
    result = asc.token_likelihood(model, inputs)
    with torch.no_grad():
        q = model(**inputs).logits.double().softmax(-1)
    assert torch.allclose(q.sum(-1), torch.ones(3, 13, dtype=torch.float64), atol=1e-12)
    expected = -(q * q.log()).sum(-1)[:, :-1]
    real = inputs["attention_mask"][:, 1:].bool()
    torch.testing.assert_close(result.entropy[:, 1:][real], expected[real], atol=1e-5, rtol=0)
    for row, column in real.nonzero().tolist():
        guesses = q[row, column].sort(descending=True).indices.tolist()
        assert guesses.index(inputs["input_ids"][row, column + 1]) == result.rank[row, column + 1]


def test_from_the_left_nothing_to_the_right_plays_a_part():
    model, inputs = tiny("gpt2"), batch(lengths=(13, 13, 13))
    result = asc.token_likelihood(model, inputs).log_likelihood
    inputs["input_ids"][:, 8:] = 7
    changed = asc.token_likelihood(model, inputs).log_likelihood
    assert torch.equal(result[:, 1:8], changed[:, 1:8])
    assert not torch.allclose(result[:, 8:], changed[:, 8:])


def test_blocks_of_rows_change_nothing(monkeypatch):
    model, inputs = tiny("llama"), batch()
    full_result = asc.token_likelihood(model, inputs)
    monkeypatch.setattr(token_module, "_LOGIT_BYTES", 1)
    monkeypatch.setattr(token_module, "_PASS_TOKENS", 1)
    for actual, other in zip(full_result, asc.token_likelihood(model, inputs), strict=True):
        torch.testing.assert_close(actual, other, atol=1e-5, rtol=0, equal_nan=True)


def test_a_masked_model_against_an_explicit_loop_of_masks():
    model, inputs = bert(), batch(len(TOKENIZER))
    result = asc.token_likelihood(model, inputs, tokenizer=TOKENIZER)
    for row, length in enumerate((13, 9, 2)):
        for place in range(length):
            ids = inputs["input_ids"][row : row + 1, :length].clone()
            token = int(ids[0, place])
            ids[0, place] = TOKENIZER.mask_token_id
            with torch.no_grad():
                log_q = model(input_ids=ids).logits[0, place].double().log_softmax(-1)
            assert result.log_likelihood[row, place].item() == pytest.approx(log_q[token].item(), abs=1e-5)
            assert result.rank[row, place] == (log_q > log_q[token]).sum()
            assert result.entropy[row, place].item() == pytest.approx(
                -(log_q.exp() * log_q).sum().item(), abs=1e-5
            )
    assert torch.equal(result.rank == -1, inputs["attention_mask"] == 0)


def test_own_is_the_unmasked_pass():
    model, inputs = bert(), batch(len(TOKENIZER))
    result = asc.token_likelihood(model, inputs, context="own")
    with torch.no_grad():
        log_q = model(**inputs).logits.double().log_softmax(-1)
    expected = log_q.gather(-1, inputs["input_ids"][..., None])[..., 0]
    real = inputs["attention_mask"].bool()
    torch.testing.assert_close(result.log_likelihood[real], expected[real], atol=1e-5, rtol=0)
    assert result.log_likelihood[~real].isnan().all()


SPANS = torch.tensor([[4, 7], [2, 3], [-1, -1]])


def test_words_of_a_causal_model_are_sums_of_their_tokens():
    model, inputs = tiny("llama"), batch()
    tokens = asc.token_likelihood(model, inputs).log_likelihood
    result = asc.word_likelihood(model, inputs, SPANS)
    expected = torch.stack([tokens[0, 4:7].sum(), tokens[1, 2]])
    torch.testing.assert_close(result.log_likelihood[:2], expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(result.per_piece[:2], expected / torch.tensor([3, 1]), atol=1e-5, rtol=0)
    torch.testing.assert_close(
        result.two_sided[:2], torch.stack([tokens[0, 4:].sum(), tokens[1, 2:9].sum()]), atol=1e-5, rtol=0
    )
    assert all(field[2].isnan() for field in result)
    first = asc.word_likelihood(model, inputs, [[0, 2], [0, 1], [1, 2]])
    assert first.log_likelihood.isnan().tolist() == [True, True, False]


def test_two_sided_differences_are_log_odds_given_both_sides():
    """All words of one piece: differences of their scores are those of the joint log-likelihood."""
    model = tiny("llama")
    ids = batch(lengths=(13, 13, 13))["input_ids"][:1].repeat(VOCABULARY, 1)
    ids[:, 6] = torch.arange(VOCABULARY)
    scores = asc.word_likelihood(model, {"input_ids": ids}, torch.tensor([[6, 7]] * VOCABULARY)).two_sided
    with torch.no_grad():
        log_q = model(input_ids=ids).logits.double().log_softmax(-1)
    joint = log_q[:, :-1].gather(-1, ids[:, 1:, None])[..., 0].sum(1)
    torch.testing.assert_close(scores - scores[5], joint - joint[5], atol=1e-4, rtol=0)


def test_the_chain_of_masks_against_a_loop():
    model, inputs = bert(), batch(len(TOKENIZER))
    result = asc.word_likelihood(model, inputs, SPANS, tokenizer=TOKENIZER)
    expected = []
    for row, length in ((0, 13), (1, 9)):
        start, stop = SPANS[row].tolist()
        total = 0.0
        for place in range(start, stop):
            ids = inputs["input_ids"][row : row + 1, :length].clone()
            token = int(ids[0, place])
            ids[0, place:stop] = TOKENIZER.mask_token_id
            with torch.no_grad():
                total += model(input_ids=ids).logits[0, place].double().log_softmax(-1)[token].item()
        expected.append(total)
    assert result.log_likelihood[:2].tolist() == pytest.approx(expected, abs=1e-5)
    assert result.per_piece[:2].tolist() == pytest.approx([expected[0] / 3, expected[1]], abs=1e-5)
    assert result.two_sided.isnan().all()
    assert result.log_likelihood[2].isnan()


def test_for_words_of_one_piece_masked_with_and_without_the_chain_are_equal():
    model, inputs = bert(), batch(len(TOKENIZER))
    word = asc.word_likelihood(model, inputs, [[5, 6], [2, 3], [1, 2]], tokenizer=TOKENIZER).log_likelihood
    token = asc.token_likelihood(model, inputs, tokenizer=TOKENIZER).log_likelihood
    torch.testing.assert_close(word, token[[0, 1, 2], [5, 2, 1]], atol=1e-5, rtol=0)


def test_own_words_are_sums_of_own_tokens():
    model, inputs = bert(), batch(len(TOKENIZER))
    word = asc.word_likelihood(model, inputs, SPANS, context="own").log_likelihood
    token = asc.token_likelihood(model, inputs, context="own").log_likelihood
    torch.testing.assert_close(word[:2], torch.stack([token[0, 4:7].sum(), token[1, 2]]), atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_runs_and_answers_in_float64(dtype):
    model, inputs = tiny("llama").to(dtype), batch()
    result = asc.token_likelihood(model, inputs)
    with torch.no_grad():
        log_q = model(**inputs).logits.double().log_softmax(-1)
    assert result.log_likelihood.dtype == torch.float64
    expected = log_q[0, :-1].gather(-1, inputs["input_ids"][0, 1:, None])[:, 0]
    torch.testing.assert_close(result.log_likelihood[0, 1:], expected, atol=0.05, rtol=0)


def test_a_model_in_training_mode_is_run_without_dropout_and_left_as_it_was():
    model = bert(hidden_dropout_prob=0.5).train()
    inputs = batch(len(TOKENIZER))
    first, other = (asc.token_likelihood(model, inputs, context="own").log_likelihood for _ in range(2))
    assert torch.equal(first.nan_to_num(), other.nan_to_num())
    assert model.training


def test_a_model_around_its_base_still_has_a_likelihood():
    """OPT's head is reached behind its decoder, with a note."""
    model, inputs = tiny("opt"), batch()
    with pytest.warns(RuntimeWarning, match="goes past its base_model"):
        result = asc.token_likelihood(model, inputs).log_likelihood
    with torch.no_grad():
        log_q = model(**inputs).logits.double().log_softmax(-1)
    expected = log_q[0, :-1].gather(-1, inputs["input_ids"][0, 1:, None])[:, 0]
    torch.testing.assert_close(result[0, 1:], expected, atol=1e-5, rtol=0)


CAUSAL, MASKED = tiny("llama"), bert()


BAD_INPUTS = (
    (
        CAUSAL,
        None,
        {"context": "masked"},
        "context must be 'left' for a causal model such as Llama.* 'masked'",
    ),
    (
        CAUSAL,
        None,
        {"context": "own"},
        "context must be 'left' for a causal model such as Llama.* got 'own'",
    ),
    (
        MASKED,
        None,
        {"context": "left"},
        "must be 'masked' or 'own' for a masked-language model .* got 'left'",
    ),
    (MASKED, None, {}, "context 'masked' needs a tokenizer with a mask token, got no tokenizer"),
    (CAUSAL, None, {"context": "lef"}, "unknown context 'lef'; did you mean 'left'"),
    (CAUSAL, {"input_ids": torch.ones(3, 4)}, {}, "input_ids must be integers, got torch.float32"),
    (
        CAUSAL,
        {"input_ids": torch.ones(3, 1, 4).long()},
        {},
        r"input_ids must have shape \[texts, tokens\], got \(3, 1, 4\)",
    ),
    (
        CAUSAL,
        {
            "input_ids": torch.ones(3, 4).long(),
            "attention_mask": torch.tensor([[1] * 4, [0, 1, 1, 1], [1] * 4]),
        },
        {},
        "texts must be padded on the right, got padding before a token in text 1",
    ),
    (
        CAUSAL,
        {"input_ids": torch.ones(3, 4).long(), "attention_mask": torch.ones(3, 3)},
        {},
        r"attention_mask must have shape \(3, 4\), or that of queries by keys, got \(3, 3\)",
    ),
    (
        CAUSAL,
        {
            "input_ids": torch.ones(3, 4).long(),
            "attention_mask": torch.tensor([[1] * 4, [1] * 4, [0] * 4]),
        },
        {},
        "text 2 has no token",
    ),
)


def likelihood_by(function, model, inputs, **options):
    """The likelihood of tokens, or of the words of the batch."""
    if function == "word_likelihood":
        return asc.word_likelihood(model, inputs, SPANS, **options)
    return asc.token_likelihood(model, inputs, **options)


@pytest.mark.parametrize("function", ["token_likelihood", "word_likelihood"])
@pytest.mark.parametrize(("model", "inputs", "options", "words"), BAD_INPUTS)
def test_bad_input_is_named(function, model, inputs, options, words):
    with pytest.raises(ValueError, match=f"{function}: .*{words}"):
        likelihood_by(function, model, batch() if inputs is None else inputs, **options)


@pytest.mark.parametrize("function", ["token_likelihood", "word_likelihood"])
def test_texts_that_cannot_be_encoded_are_named(function):
    with pytest.raises(
        ValueError, match=f"{function}: input 0 must be a sentence or a list of token ids, got 1"
    ):
        likelihood_by(function, CAUSAL, [1, 2])
    with pytest.raises(ValueError, match=f"{function}: input 1 is a text, which needs tokenizer="):
        likelihood_by(function, CAUSAL, [[1, 2], "a cat"])
    no_mask = word_pieces("cat")
    no_mask.mask_token = None
    with pytest.raises(ValueError, match="a mask token, got TokenizersBackend without one"):
        likelihood_by(function, MASKED, batch(len(TOKENIZER)), tokenizer=no_mask)
    with pytest.raises(NotImplementedError, match=r"BertModel has no vocabulary head; .*likelihood_from"):
        likelihood_by(function, tiny("bert"), batch(), context="own")


@pytest.mark.parametrize(
    ("spans", "words"),
    [
        (
            [[4, 4], [2, 3], [0, 1]],
            r"0 <= start < stop <= 13, the tokens of text 0, or \(-1, -1\), got \(4, 4\)",
        ),
        ([[4, 5], [2, 10], [0, 1]], r"0 <= start < stop <= 9, the tokens of text 1, .* got \(2, 10\)"),
        ([[4, 5], [-1, 3], [0, 1]], r"got \(-1, 3\)"),
        ([[4, 5]], r"spans must have shape \(3, 2\), got \(1, 2\)"),
        (torch.ones(3, 2), "spans must be integers, got torch.float32"),
    ],
)
def test_bad_spans_are_named(spans, words):
    with pytest.raises(ValueError, match=f"word_likelihood: .*{words}"):
        asc.word_likelihood(CAUSAL, batch(), spans)
