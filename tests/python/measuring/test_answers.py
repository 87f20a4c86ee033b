# SPDX-License-Identifier: MIT
"""Answers of texts in analyze: spans of tokens and of characters reach the metrics that read them."""

import numpy as np
import pytest
import torch

import attnscope as asc
from attnscope.demo.texts import byte_tokenizer
from attnscope.models.inputs.answer_spans import answer_spans
from models import text, tiny

METRICS = ["lookback", "prompt_divergence", "pattern_share"]


@pytest.fixture(scope="module")
def llama():
    return tiny("llama", vocab_size=300)


def maps_of(model, ids):
    """Maps of each layer [h, n, n] of one text, without padding."""
    with asc.capture(model) as recording, torch.no_grad():
        return [layer.attention[0] for layer in recording.run(input_ids=ids[None])]


def test_columns_are_what_the_functions_give(llama):
    ids = [torch.arange(3, 15) % 7, torch.arange(4, 12) % 5]
    spans = [(4, 9), (2, 8)]
    heads = asc.analyze(llama, [row.tolist() for row in ids], METRICS, answer=spans).table("heads")
    for sample, (row, span) in enumerate(zip(ids, spans, strict=True)):
        for layer, maps in enumerate(maps_of(llama, row)):
            ours = heads[(heads["sample"] == sample) & (heads["layer"] == layer)].sort_values("head")
            expected = asc.lookback(maps, span).value
            np.testing.assert_allclose(ours["lookback"], expected, atol=1e-6)
            divergence = asc.prompt_divergence(maps, span)
            np.testing.assert_allclose(ours["prompt_divergence_total"], divergence.total, atol=1e-5)
            np.testing.assert_allclose(ours["prompt_divergence_star"], divergence.star, atol=1e-6)
            copies = asc.pattern_share(maps, "duplicate", tokens=row)
            np.testing.assert_allclose(ours["duplicate_share"], copies.share, atol=1e-6)


def test_a_text_without_an_answer_has_no_value(llama):
    heads = asc.analyze(llama, text(llama, batch=2, n=8)["input_ids"], METRICS, answer=[None, (3, 6)])[
        "heads"
    ]
    of_text = heads.groupby("sample")["lookback"]
    assert of_text.count().tolist() == [0, 12]


def test_characters_become_tokens_by_their_offsets(llama):
    tokenizer = byte_tokenizer()
    texts = ["Who sat? A cat.", "Où? Ici."]
    characters = [(9, 14), (4, 7)]
    # every byte is a token behind BOS, and ù is two
    tokens = [(10, 15), (6, 9)]
    options = {"tokenizer": tokenizer, "metrics": ["lookback"]}
    by_characters = asc.analyze(llama, texts, answer=characters, answer_unit="characters", **options)
    by_tokens = asc.analyze(llama, texts, answer=tokens, **options)
    assert by_characters["heads"].equals(by_tokens["heads"])


def test_all_columns_take_answers_where_there_are_some(llama):
    ids = text(llama, batch=2, n=12)["input_ids"]
    without = asc.analyze(llama, ids)
    assert "lookback" not in without["heads"]
    assert "previous_share" in without["heads"]
    assert "weighted_sink_share" in without["heads"]
    with_answers = asc.analyze(llama, ids, answer=torch.tensor([[4, 9], [5, 12]]))
    assert with_answers["heads"]["lookback"].notna().all()
    assert without["heads"]["weighted_sink_share"].between(0, 1).all()


@pytest.mark.parametrize(
    ("answer", "options", "words"),
    [
        ([(2, 4)], {}, "answer must be one span for each of 2 texts, got 1"),
        (
            [(2, 4), (5, 5)],
            {},
            r"answer of text 1 must hold 0 <= start < stop <= 8, its tokens, got \(5, 5\)",
        ),
        ([(2, 4), (6, 3)], {}, r".*got \(6, 3\)"),
        ([(2, 4), (6, 9)], {}, r".*got \(6, 9\)"),
        ([(2, 4), (2.5, 3)], {}, r"answer of text 1 must hold whole numbers, got \(2.5, 3\)"),
        ([(2, 4), 3], {}, "answer of text 1 must be start and stop, got 3"),
        (
            [(2, 4), (1, 3)],
            {"answer_unit": "words"},
            "answer_unit must be 'tokens' or 'characters', got 'words'",
        ),
        (
            [(2, 4), (1, 3)],
            {"answer_unit": "characters"},
            "text 0 came as token ids; its answer must be tokens",
        ),
    ],
)
def test_bad_answers_are_named(llama, answer, options, words):
    ids = text(llama, batch=2, n=8)["input_ids"]
    with pytest.raises(ValueError, match=f"analyze: {words}"):
        asc.analyze(llama, ids, METRICS, answer=answer, **options)


def test_metrics_of_answers_ask_for_them(llama):
    ids = text(llama, batch=1, n=8)["input_ids"]
    with pytest.raises(ValueError, match=r"analyze: lookback reads answers; answer=\[\(start, stop\)"):
        asc.analyze(llama, ids, ["fiedler_value", "lookback"])


def test_an_answer_behind_what_is_read_is_named():
    tokenizer, written = byte_tokenizer(), "a cat sat"
    ids = [tokenizer(written)["input_ids"][:4]]
    options = {"texts": [written], "tokenizer": tokenizer, "unit": "characters"}
    with pytest.raises(ValueError, match=r"answer of text 0, characters \(5, 9\), is outside the 4 tokens"):
        answer_spans("analyze", [(5, 9)], ids, **options)
    with pytest.raises(ValueError, match="text 0 is read in other tokens than its tokenizer gives"):
        answer_spans("analyze", [(0, 1)], [[1, 2, 3]], **options)
    with pytest.raises(ValueError, match=r"knows the characters of its tokens \(a fast one\), got NoneType"):
        answer_spans("analyze", [(0, 1)], ids, **{**options, "tokenizer": None})
