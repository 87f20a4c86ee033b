# SPDX-License-Identifier: MIT
"""The likelihood protocol's fixed ranks, probabilities of one pass, and what its numbers are functions of."""

import math

import numpy as np
import pytest
import torch
import transformers
from scipy import stats
from vocabularies import byte_letters, word_pieces

import attnscope as asc
from attnscope.errors import NonFiniteWarning
from attnscope.protocols import ruscio2023 as protocol
from attnscope.protocols.ruscio2023.likelihood import drawn_ranks
from models import tiny


@pytest.mark.parametrize(
    ("vocabulary", "low", "mid", "high"),
    [(30522, 1399, 16228, 21746), (50265, 2233, 23502, 35742), (250002, 60644, 124674, 227311)],
)
def test_every_word_of_one_token_gets_the_ranks_that_the_code_gave(vocabulary, low, mid, high):
    ranks = [drawn_ranks(vocabulary, mode, 1).item() for mode in protocol.MODES]
    assert ranks == [0, low, mid, high, vocabulary - 1]
    for mode, first in (("low", low), ("mid", mid), ("high", high)):
        longer = drawn_ranks(vocabulary, mode, 3).tolist()
        assert longer[0] == first
        assert len(set(longer)) == 3


def test_the_draw_leaves_the_global_generator_alone_and_is_that_of_a_seeded_one():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    result = drawn_ranks(1000, "mid", 4)
    assert torch.equal(torch.rand(3), expected)
    with torch.random.fork_rng():
        torch.manual_seed(42)
        assert torch.equal(result, torch.randint(333, 666, (4,)))


def logits_and_inputs(batch=3, n=8, vocabulary=40):
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(batch, n, vocabulary, generator=generator) * 3
    ids = torch.randint(0, vocabulary, (batch, n), generator=generator)
    mask = torch.arange(n) < torch.tensor([n, 5, n])[:, None]
    return logits, {"input_ids": ids, "attention_mask": mask.long()}


SPANS = torch.tensor([[2, 5], [1, 2], [-1, -1]])


def test_replacements_are_ids_of_those_ranks_at_their_own_position():
    logits, inputs = logits_and_inputs()
    result = protocol.replacements(logits, inputs, SPANS)
    assert result.shape == (3, 5, 8)
    for text, (start, stop) in enumerate(SPANS[:2].tolist()):
        for m, mode in enumerate(protocol.MODES):
            expected = inputs["input_ids"][text].clone()
            for k, rank in enumerate(drawn_ranks(40, mode, stop - start).tolist()):
                probability = logits[text, start + k].softmax(-1).numpy()
                expected[start + k] = int(np.lexsort((np.arange(40), probability))[rank])
            assert torch.equal(result[text, m], expected)
    assert torch.equal(result[2], inputs["input_ids"][2:].expand(5, -1))
    with pytest.raises(ValueError, match=r"ruscio2023.replacements: unknown mode 'hgh'; did you mean 'high'"):
        protocol.replacements(logits, inputs, SPANS, ["hgh"])


def test_probabilities_are_those_of_the_unmasked_pass():
    logits, inputs = logits_and_inputs()
    result = protocol.token_probability(logits, inputs, SPANS)
    p = logits.softmax(-1).gather(-1, inputs["input_ids"][..., None])[..., 0].numpy()
    assert result.probability.dtype == torch.float32
    np.testing.assert_allclose(result.probability[0], p[0], rtol=1e-6)
    assert result.probability[1].isnan().tolist() == [False] * 5 + [True] * 3
    assert result.inner_mean[0].item() == pytest.approx(p[0, 2:5].mean(), rel=1e-6)
    assert result.inner_std[0].item() == pytest.approx(p[0, 2:5].std(ddof=1), rel=1e-5)
    assert result.inner_product[0].item() == pytest.approx(p[0, 2:5].prod(), rel=1e-5)
    rest = np.delete(p[1, :5], 1)
    assert result.outer_mean[1].item() == pytest.approx(rest.mean(), rel=1e-6)
    assert result.outer_std[1].item() == pytest.approx(rest.std(ddof=1), rel=1e-5)
    assert result.inner_mean[1].item() == pytest.approx(p[1, 1], rel=1e-6)
    assert result.inner_std[1].isnan()  # of one token
    assert all(field[2].isnan() for field in result[1:])


def test_an_encoder_gives_its_logits_and_a_causal_model_is_refused_in_words():
    config = transformers.BertConfig(
        vocab_size=40, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    inputs = {"input_ids": torch.randint(0, 40, (2, 6)), "attention_mask": torch.ones(2, 6).long()}
    model = transformers.BertForMaskedLM(config).train()
    with torch.no_grad():
        expected = model.eval()(**inputs).logits
    assert torch.equal(protocol.unmasked_logits(model.train(), inputs), expected)
    assert model.training
    two = transformers.BertForPreTraining(config).eval()
    with torch.no_grad():
        assert torch.equal(protocol.unmasked_logits(two, inputs), two(**inputs).prediction_logits)
    words = "LlamaForCausalLM is no masked-language model; what a causal model says .* is the next token"
    with pytest.raises(NotImplementedError, match=words):
        protocol.unmasked_logits(tiny("llama"), inputs)
    config.is_decoder = True
    with pytest.raises(NotImplementedError, match="BertLMHeadModel is no masked"):
        protocol.unmasked_logits(transformers.BertLMHeadModel(config), inputs)


def maps(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).softmax(-1)


def test_outer_is_a_function_of_inner_and_the_mean_of_the_number_of_tokens():
    attention, spans = maps(4, 9, 9), torch.tensor([[2, 5], [0, 1], [3, 8], [8, 9]])
    result = protocol.span_attention(attention, spans)
    n, m = 9, spans[:, 1] - spans[:, 0]
    torch.testing.assert_close(result.mean, torch.full((4,), 1 / 9, dtype=torch.float64), atol=1e-15, rtol=0)
    inner = [float(a[s:e, s:e].mean()) for a, (s, e) in zip(attention, spans.tolist(), strict=True)]
    assert result.inner.tolist() == pytest.approx(inner, abs=1e-15)
    torch.testing.assert_close(result.outer, (n - m**2 * result.inner) / (n**2 - m**2), atol=1e-14, rtol=0)
    exact = asc.span_attention(attention, spans, support="full")
    torch.testing.assert_close(n * result.inner, exact.boost, atol=1e-13, rtol=0)
    torch.testing.assert_close(m * result.inner, exact.share, atol=1e-14, rtol=0)


def test_lengths_cut_maps_and_a_map_without_a_word_is_nan():
    attention = maps(2, 9, 9)
    attention[0, :6, :6] = maps(6, 6)
    result = protocol.span_attention(attention, [[2, 5], [-1, -1]], lengths=[6, 9])
    single_result = protocol.span_attention(attention[0, :6, :6], [2, 5])
    for field, expected in zip(result, single_result, strict=True):
        assert field[0].item() == pytest.approx(expected.item(), abs=1e-15)
        assert field[1].isnan()
    assert protocol.span_attention(attention[0], [0, 9]).outer.isnan()
    with pytest.raises(ValueError, match=r"spans of shape \(3, 2\) do not broadcast to \(2, 2\)"):
        protocol.span_attention(attention, [[1, 2]] * 3)


def test_padding_may_hold_anything_and_a_map_that_is_not_finite_is_nan():
    attention = maps(3, 9, 9)
    attention[0, 6:] = attention[0, :, 6:] = math.nan
    attention[1, 6:] = attention[1, :, 6:] = math.inf
    attention[2, 0, 8] = math.nan
    with pytest.warns(NonFiniteWarning, match="span_attention: 1 of 3 matrices"):
        result = protocol.span_attention(attention, [2, 5], lengths=[6, 6, 9])
    for place in range(2):
        single_result = protocol.span_attention(attention[place, :6, :6], [2, 5])
        for field, expected in zip(result, single_result, strict=True):
            assert field[place].item() == pytest.approx(expected.item(), abs=1e-15)
    assert all(field[2].isnan() for field in result)


def test_the_test_of_rows_is_scipys_on_the_keys_outside():
    real, replaced, (start, stop) = maps(11, 11, seed=1), maps(11, 11, seed=2), (3, 5)
    result = protocol.mann_whitney(real, replaced, (start, stop))
    first, other = (np.delete(m[start:stop].mean(0).numpy(), [3, 4]) for m in (real, replaced))
    expected = stats.mannwhitneyu(first, other, alternative="two-sided")
    assert (result.u_real, result.p_value) == (expected.statistic, expected.pvalue)
    assert result.u_real + result.u_replaced == 81
    assert result.difference_mean == pytest.approx(0, abs=1e-15)
    difference = (real[start:stop].mean(0) - replaced[start:stop].mean(0)).numpy()
    assert result.difference_std == pytest.approx(difference.std(ddof=1), abs=1e-14)
    with pytest.raises(
        ValueError, match=r"span must hold 0 <= start < stop <= 11 and leave a token, got \(0, 11\)"
    ):
        protocol.mann_whitney(real, replaced, (0, 11))
    with pytest.raises(ValueError, match=r"one shape \[n, n\], got \(11, 11\) and \(4, 4\)"):
        protocol.mann_whitney(real, maps(4, 4), (1, 2))


def test_correlation_is_spearmans_but_for_its_epsilon():
    rng = np.random.default_rng(0)
    x = np.round(rng.normal(size=200), 1)
    y = x + rng.normal(size=200)
    assert protocol.correlation(x, y) == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-6)
    assert (
        protocol.correlation([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]) == 0
    )  # what is undefined is 0 under the epsilon
    assert np.isnan(protocol.correlation([], []))
    with pytest.raises(ValueError, match="both must hold the same texts, got 2 and 3"):
        protocol.correlation([1, 2], [1, 2, 3])


def test_the_best_layer_is_chosen_among_modes_that_make_the_word_less_probable():
    rho = np.array([[0.1, 0.3, 0.9], [0.5, np.nan, 0.95]])
    result = protocol.best_layers(rho, [0.1, 0.2, 0.9], 0.8, ["lowest", "mid", "highest"])
    assert result == (1, "lowest", 0.5)
    assert protocol.best_layers(rho, [0.9] * 3, 0.8, ["a", "b", "c"]).layer == -1
    with pytest.raises(ValueError, match=r"must have shape \[L, 2\] of 2 modes, got \(2, 3\)"):
        protocol.best_layers(rho, [0.1, 0.2], 0.8, ["a", "b"])


def test_spans_are_the_ids_of_the_bare_lemma_and_only_then_of_the_others():
    tokenizer = word_pieces("cat", "sat", "the")
    ids = tokenizer("the cat sat")["input_ids"]
    assert protocol.find_span(tokenizer, ids, "cat") == (2, 3)
    assert protocol.find_span(tokenizer, tokenizer("the cat cat sat")["input_ids"], "cat") == (-1, -1)
    assert protocol.find_span(tokenizer, ids, "dog") == (-1, -1)
    marked = byte_letters(" cat", "cat", " cats", "-cat")
    assert protocol.find_span(marked, marked("a cat")["input_ids"], "cat") == (1, 2)  # behind a blank
    token_ids = marked("cat a cat")["input_ids"]
    assert protocol.find_span(marked, token_ids, "cat") == (0, 1)  # the bare one alone is looked for
    assert protocol.find_span(marked, marked("a cat a cat")["input_ids"], "cat") == (-1, -1)
