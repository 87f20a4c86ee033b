# SPDX-License-Identifier: MIT
"""`analyze` of what a model writes, and means over some queries only."""

import numpy as np
import pytest
import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
)

import attnscope as asc
from models import SMALL_DECODER, tiny

PROMPTS = [[5, 6, 7, 8, 9], [10, 11, 12]]
GREEDY = {"max_new_tokens": 4, "do_sample": False, "eos_token_id": None}


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SMALL_DECODER)).eval()


def answered(model, prompt):
    """Return a prompt with its answer, and the maps of all layers, by transformers alone."""
    ids = torch.tensor([prompt])
    tokens = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), pad_token_id=0, **GREEDY)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        maps = model(input_ids=tokens, output_attentions=True).attentions
    model.set_attn_implementation("sdpa")
    return tokens[0].tolist(), torch.stack(maps)[:, 0].double()


def heads(results, column, sample):
    table = results["heads"]
    rows = table[table["sample"] == sample].sort_values(["layer", "head"])
    return rows[column].to_numpy().reshape(2, 4)


def test_the_answer_is_written_and_measured_with_its_prompt(model):
    metrics = ["attention_entropy", "fiedler_value", "sink_share"]
    results = asc.analyze(model, PROMPTS, metrics, generate=GREEDY)
    samples = results["samples"].sort_values("sample")
    assert samples["answer_start"].tolist() == [5, 3]
    assert samples["n_tokens"].tolist() == [9, 7]
    for sample, prompt in enumerate(PROMPTS):
        tokens, maps = answered(model, prompt)
        assert samples["token_ids"][sample].tolist() == tokens
        np.testing.assert_allclose(
            heads(results, "fiedler_value", sample), asc.fiedler_value(maps), rtol=1e-4
        )
        expected = asc.attention_entropy(maps).mean(-1)
        np.testing.assert_allclose(heads(results, "entropy", sample), expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("queries", "chosen"),
    [
        ("answer", [range(5, 9), range(3, 7)]),
        ("prompt", [range(5), range(3)]),
        (slice(-2, None), [range(7, 9), range(5, 7)]),
        (torch.arange(9) % 2 == 1, [range(1, 9, 2), range(1, 7, 2)]),
        ([[True] * 9, [False] * 6 + [True]], [range(9), [6]]),
    ],
)
def test_means_over_rows_are_over_the_chosen_queries(model, queries, chosen):
    metrics = ["attention_entropy", "sink_share", "local_global_ratio", "head_divergence", "fiedler_value"]
    results = asc.analyze(model, PROMPTS, metrics, generate=GREEDY, queries=queries, window=1, vectors=True)
    unrestricted = asc.analyze(model, PROMPTS, metrics, generate=GREEDY, window=1, vectors=True)
    for sample, prompt in enumerate(PROMPTS):
        _, maps = answered(model, prompt)
        rows = list(chosen[sample])
        entropy = asc.attention_entropy(maps)[..., rows].mean(-1)
        np.testing.assert_allclose(heads(results, "entropy", sample), entropy, rtol=1e-5)
        share = maps[..., rows, 0].mean(-1)
        np.testing.assert_allclose(heads(results, "sink_share", sample), share, rtol=1e-5)
        mean = maps.mean(1, keepdim=True)
        divergence = torch.where(maps > 0, maps * (maps / mean).log(), 0.0).sum(-1)[..., rows].mean(-1)
        np.testing.assert_allclose(
            heads(results, "head_divergence", sample), divergence, rtol=1e-4, atol=1e-7
        )
        # a graph is that of all queries
        for other in ("fiedler_value",):
            np.testing.assert_array_equal(heads(results, other, sample), heads(unrestricted, other, sample))
    # numbers per query stay in their places
    vectors, all_vectors = results["vectors"]["entropy"], unrestricted["vectors"]["entropy"]
    np.testing.assert_array_equal(vectors, all_vectors)


def test_a_text_without_a_chosen_query_has_no_number_whatever_stands_beside_it(model):
    metrics = ["attention_entropy", "head_divergence", "sink_share"]
    texts = [list(range(3, 15)), list(range(3, 9))]
    for queries in (slice(8, 10), torch.arange(12) >= 8):
        of_two_texts = asc.analyze(model, texts, metrics, queries=queries)
        of_second_text = asc.analyze(model, texts[1:], metrics, queries=queries)
        for column in ("entropy", "head_divergence", "sink_share"):
            assert np.isfinite(heads(of_two_texts, column, 0)).all()
            assert np.isnan(heads(of_two_texts, column, 1)).all()
            assert np.isnan(heads(of_second_text, column, 0)).all()


@pytest.mark.parametrize(
    ("queries", "words"),
    [
        ([], r"must be 'answer', 'prompt', a slice or a mask, got \[\]"),
        (torch.ones(1, 5, dtype=torch.bool), r"must hold a row for each text, got 1 rows"),
        (torch.ones(2, dtype=torch.bool), r"must be booleans, one for each of the . tokens of text ."),
    ],
)
def test_queries_that_are_none_are_named(model, queries, words):
    with pytest.raises(ValueError, match=rf"^analyze: queries {words}"):
        asc.analyze(model, PROMPTS, "attention_entropy", queries=queries)


def test_a_number_of_last_queries_is_still_the_option_of_sink_share(model):
    results = asc.analyze(model, PROMPTS, "sink_share", queries=2)
    ids = torch.tensor([PROMPTS[0]])
    with asc.capture(model) as recording:
        layer = next(iter(recording.run(input_ids=ids)))
        expected = layer.measure("sink_share", queries=2)["sink_share"].share[0]
    np.testing.assert_allclose(heads(results, "sink_share", 0)[0], expected, rtol=1e-6)


def test_an_answer_ends_with_its_end_token(model):
    tokens, _ = answered(model, PROMPTS[0])
    end = tokens[6]
    results = asc.analyze(model, PROMPTS[:1], "top_mass", generate={**GREEDY, "eos_token_id": end})
    stop = tokens.index(end, 5) + 1
    assert results["samples"]["token_ids"][0].tolist() == tokens[:stop]


def test_several_sequences_of_a_prompt_are_further_samples(model):
    options = {**GREEDY, "num_beams": 3, "num_return_sequences": 2}
    results = asc.analyze(model, PROMPTS, "top_mass", generate=options)
    assert results["samples"]["answer_start"].tolist() == [5, 5, 3, 3]
    assert results["samples"]["sample"].tolist() == [0, 1, 2, 3]


def test_what_cannot_be_generated_or_chosen_is_refused(model):
    with pytest.raises(ValueError, match="queries='answer' needs generate="):
        asc.analyze(model, PROMPTS, "attention_entropy", queries="answer")
    with pytest.raises(ValueError, match="queries must be 'answer', 'prompt', a slice or a mask, got 'last'"):
        asc.analyze(model, PROMPTS, "attention_entropy", queries="last")
    with pytest.raises(
        ValueError, match=r"one for each of the 5 tokens of text [01], got torch.bool of shape"
    ):
        asc.analyze(model, PROMPTS, "attention_entropy", queries=torch.ones(4, dtype=torch.bool))
    with pytest.raises(ValueError, match="generate sets 'input_ids' itself"):
        asc.analyze(model, PROMPTS, "top_mass", generate={"input_ids": 3})
    width = {"d_model": 16, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "vocab_size": 64}
    bart = BartForConditionalGeneration(BartConfig(**width, encoder_layers=1, decoder_layers=1)).eval()
    with pytest.raises(ValueError, match="an encoder-decoder, is in its decoder; give inputs with decoder"):
        asc.analyze(bart, PROMPTS, "top_mass", generate=GREEDY)
    embeds = {"inputs_embeds": torch.zeros(1, 4, 32)}
    with pytest.raises(
        ValueError, match="generate takes texts or token ids, got inputs with inputs_embeds too"
    ):
        asc.analyze(model, embeds, "top_mass", generate=GREEDY)


def test_the_end_of_an_answer_is_that_of_the_models_configuration():
    """A configuration that is passed leaves it to the model's; what follows the end is padding."""
    model = LlamaForCausalLM(LlamaConfig(**SMALL_DECODER)).eval()
    torch.manual_seed(0)
    options = {"do_sample": True, "num_return_sequences": 8, "max_new_tokens": 12}
    passed = GenerationConfig(**options)
    model.generation_config.eos_token_id = [2, 3, 4, 5, 6, 7, 8]
    for settings in (options, {"generation_config": passed}):
        torch.manual_seed(0)
        samples = asc.analyze(model, [[9, 10, 11]], "top_mass", generate=settings)["samples"]
        torch.manual_seed(0)
        ids = torch.tensor([[9, 10, 11]])
        written = model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), pad_token_id=0, **options
        )
        ends = [next((i for i, t in enumerate(row) if 2 <= t <= 8), len(row) - 1) for row in written.tolist()]
        assert len(set(ends)) > 1
        assert samples["n_tokens"].tolist() == [end + 1 for end in ends]


def test_an_answer_of_a_model_that_returns_more_than_tokens():
    model = LlamaForCausalLM(LlamaConfig(**SMALL_DECODER)).eval()
    expected = asc.analyze(model, [[9, 10, 11]], "top_mass", generate=GREEDY)["samples"]["token_ids"]
    model.generation_config.return_dict_in_generate = True
    answers = asc.analyze(model, [[9, 10, 11]], "top_mass", generate=GREEDY)["samples"]["token_ids"]
    assert answers[0].tolist() == expected[0].tolist()


def entropies_of(maps):
    """Return the entropy of each row of maps [heads, q, k], by its definition."""
    return torch.special.entr(maps.double()).sum(-1)


@pytest.mark.parametrize(
    ("queries", "rows"),
    [("answer", slice(4, 6)), ("prompt", slice(0, 4)), (slice(1, 3), slice(1, 3)), ([False, True] * 4, None)],
)
def test_queries_behind_virtual_tokens_are_those_of_the_text(queries, rows):
    """They were counted from the first virtual token."""
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    settings = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    model = peft.get_peft_model(LlamaForCausalLM(LlamaConfig(**SMALL_DECODER)), settings).eval()
    tokens = list(range(5, 13))
    results = asc.analyze(model, [tokens], "attention_entropy", answer=[(4, 6)], queries=queries)
    model.set_attn_implementation("eager")
    ids = torch.tensor([tokens])
    with torch.no_grad():
        maps = model(input_ids=ids, attention_mask=torch.ones_like(ids), output_attentions=True).attentions
    places = torch.arange(8)[torch.tensor(queries) if rows is None else rows] + 3
    expected = torch.stack([entropies_of(layer[0])[:, places].mean(-1) for layer in maps])
    means = results["heads"].sort_values(["layer", "head"])["entropy"].to_numpy().reshape(2, 4)
    np.testing.assert_allclose(means, expected.numpy(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("tokens", [6, 8])
def test_a_decoder_as_long_as_its_encoder_has_other_tokens_and_no_answer(tokens):
    """Its rows were measured with the tokens and the answer of the encoder's text, which has eight."""
    shape = {"d_model": 32, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
    depth = {"encoder_layers": 1, "decoder_layers": 1}
    torch.manual_seed(0)
    model = BartForConditionalGeneration(BartConfig(vocab_size=64, **shape, **depth)).eval()
    inputs = {
        "input_ids": torch.tensor([[5, 6, 7, 8, 5, 6, 7, 8]]),
        "decoder_input_ids": torch.arange(10, 10 + tokens)[None],
    }
    metrics = ["pattern_share", "lookback", "attention_entropy"]
    results = asc.analyze(model, inputs, metrics, answer=[(5, 8)], queries="answer")
    rows = results["heads"].groupby("attention").count()
    for column in ("duplicate_share", "lookback", "entropy"):
        assert rows.loc["encoder", column] > 0
        assert rows.loc["decoder", column] == rows.loc["cross", column] == 0


def test_answers_of_a_model_in_training_mode_are_those_of_its_evaluation():
    """They were written with dropout, others in each call, and measured without it."""
    model = tiny("gpt2", attn_pdrop=0.5, resid_pdrop=0.5)
    options = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    expected = model.generate(torch.tensor([[5, 6, 7]]), **options)[0].tolist()
    model.train()
    results = asc.analyze(model, [[5, 6, 7]], "attention_entropy", generate=options)
    assert list(results["samples"]["token_ids"].iloc[0]) == expected
    assert all(module.training for module in model.modules())
