# SPDX-License-Identifier: MIT
"""Words put in a word's place: the same length, the same kinds of pieces, ranks of the full logits."""

import hashlib
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from vocabularies import LETTERS, blanks, word_pieces

import attnscope as asc
from attnscope.capture.likelihood.vocabulary import forms, special_ids
from attnscope.demo.texts import byte_tokenizer
from models import tiny

DATA = Path(__file__).resolve().parents[4] / "shared/data"
NAMED = ["lowest", "low", "mid", "high", "highest"]
MODES = [*NAMED, "nats:3", "nats:6"]
WORDS = [letter + two + "x" for letter in LETTERS for two in "aeiou"]
PIECES = word_pieces(*WORDS)
BLANKS = blanks(*(f"▁{word}" for word in WORDS))
TEXTS = ["bax cex dix fox gux hax kexab zix", "dix gux kexo pax qex lix zux bax aex"]


def causal(vocabulary, seed=0, **options):
    return tiny("llama", seed=seed, vocab_size=vocabulary, **options)


def masked(seed=0):
    torch.manual_seed(seed)
    config = transformers.BertConfig(
        vocab_size=len(PIECES) + 3,  # rows of padding that stand for no token
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
        initializer_range=0.3,
    )
    return transformers.BertForMaskedLM(config).eval()


def encoded(tokenizer, texts=TEXTS):
    """Padded on the right by hand."""
    ids = [tokenizer(text)["input_ids"] for text in texts]
    n = max(map(len, ids))
    return {
        "input_ids": torch.tensor([[*token_ids, *[0] * (n - len(token_ids))] for token_ids in ids]),
        "attention_mask": torch.tensor(
            [[1] * len(token_ids) + [0] * (n - len(token_ids)) for token_ids in ids]
        ),
    }


def case(kind):
    if kind == "causal":
        tokenizer, model = BLANKS, causal(len(BLANKS) + 3)
    else:
        tokenizer, model = PIECES, masked()
    inputs = encoded(tokenizer)
    spans = asc.word_spans(tokenizer, TEXTS, ["kexab", "lix"], inputs=inputs, max_pieces=9).spans
    assert (spans[:, 1] - spans[:, 0]).tolist()[1] == 1
    assert (spans[0, 1] - spans[0, 0]) > 1
    return model, tokenizer, inputs, spans


def by_hand(model, tokenizer, inputs, spans, row, mode, seed=0, sample=None, same_form=True):
    """One word by full logits of one text, `numpy.lexsort` and float hashing."""
    ids = inputs["input_ids"][row][inputs["attention_mask"][row].bool()].tolist()
    start, stop = spans[row].tolist()
    kinds, special = forms(tokenizer), special_ids(tokenizer)
    outside = {*ids[:start], *ids[stop:]}
    total, place = 0.0, 0.0
    for k, column in enumerate(range(start, stop)):
        real = int(inputs["input_ids"][row, column])
        read = list(ids)
        if isinstance(model, transformers.BertForMaskedLM):
            read[column:stop] = [tokenizer.mask_token_id] * (stop - column)
            at = column
        else:
            at = column - 1
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([read])).logits[0, at].double()
        log_q = logits.log_softmax(-1).numpy()
        allowed = [
            index
            for index in range(len(tokenizer))
            if index not in outside
            and index not in special
            and (not same_form or kinds[index] == kinds[real])
        ]
        order = np.array(allowed)[np.lexsort((allowed, logits.numpy()[allowed]))]
        count = len(order)
        u = int.from_bytes(hashlib.sha256(f"{seed}:{sample}:{mode}:{k}".encode()).digest()[:8], "big") / 2**64
        low, high = {
            "lowest": (0, 1),
            "low": (1, count // 3),
            "mid": (count // 3, 2 * count // 3),
            "high": (2 * count // 3, count - 1),
            "highest": (count - 1, count),
        }.get(mode, (0, 1))
        rank = low + math.floor(u * (high - low))
        if mode.startswith("nats:"):
            rank = int(np.argmin(np.abs(-log_q[order] - float(mode[5:]))))
        ids[column] = int(order[rank])
        total += log_q[order[rank]]
        place += rank / (count - 1) / (stop - start)
    return ids, total, place


@pytest.mark.parametrize("kind", ["causal", "masked"])
@pytest.mark.parametrize("candidates", ["same_form", "all"])
def test_every_mode_against_a_sort_of_full_logits(kind, candidates):
    model, tokenizer, inputs, spans = case(kind)
    result = asc.replacements(
        model, inputs, spans, MODES, tokenizer=tokenizer, candidates=candidates, seed=5, samples=[31, 4]
    )
    assert result.modes == tuple(MODES)
    assert result.reasons == ("", "")
    for row, sample in enumerate((31, 4)):
        for m, mode in enumerate(MODES):
            ids, total, place = by_hand(
                model, tokenizer, inputs, spans, row, mode, 5, sample, candidates == "same_form"
            )
            assert result.input_ids[row, m, : len(ids)].tolist() == ids
            assert result.log_likelihood[row, m].item() == pytest.approx(total, abs=1e-4)
            assert result.place[row, m].item() == pytest.approx(place, abs=1e-12)


@pytest.mark.parametrize("kind", ["causal", "masked"])
def test_length_never_changes_and_only_the_span_differs(kind):
    model, tokenizer, inputs, spans = case(kind)
    result = asc.replacements(model, inputs, spans, MODES, tokenizer=tokenizer)
    before = inputs["input_ids"][:, None].expand_as(result.input_ids)
    columns = torch.arange(before.shape[-1])
    outside = (columns < spans[:, :1]) | (columns >= spans[:, 1:])
    assert result.input_ids.shape == (2, len(MODES), inputs["input_ids"].shape[1])
    assert torch.equal(
        result.input_ids[outside[:, None].expand_as(before)], before[outside[:, None].expand_as(before)]
    )
    kinds = forms(tokenizer)
    for row in range(2):
        inside = ~outside[row]
        new, old = result.input_ids[row][:, inside], inputs["input_ids"][row, inside]
        assert (new < len(tokenizer)).all()
        assert (kinds[new] == kinds[old]).all()
        assert not set(new.flatten().tolist()) & set(inputs["input_ids"][row, outside[row]].tolist())


def test_the_likelihood_is_that_of_the_variant():
    for kind in ("causal", "masked"):
        model, tokenizer, inputs, spans = case(kind)
        result = asc.replacements(model, inputs, spans, NAMED, tokenizer=tokenizer)
        for m in range(len(NAMED)):
            variant = {**inputs, "input_ids": result.input_ids[:, m]}
            again = asc.word_likelihood(model, variant, spans, tokenizer=tokenizer).log_likelihood
            torch.testing.assert_close(result.log_likelihood[:, m], again, atol=1e-4, rtol=0)
        single = result.log_likelihood[1]  # of one piece, so that the modes are in order
        assert (single.diff() >= 0).all()
        assert result.place[1, 0] == 0
        assert result.place[1, -1] == 1


def test_the_same_ids_whatever_the_batch_and_the_order():
    model, tokenizer, inputs, spans = case("causal")
    together = asc.replacements(model, inputs, spans, MODES, tokenizer=tokenizer, samples=[8, 9])
    turned = {name: tensor.flip(0) for name, tensor in inputs.items()}
    other = asc.replacements(model, turned, spans.flip(0), MODES, tokenizer=tokenizer, samples=[9, 8])
    assert torch.equal(together.input_ids, other.input_ids.flip(0))
    for row, sample in enumerate((8, 9)):
        row_inputs = {name: tensor[row : row + 1] for name, tensor in inputs.items()}
        single_result = asc.replacements(
            model, row_inputs, spans[row : row + 1], MODES[::-1], tokenizer=tokenizer, samples=[sample]
        )
        assert torch.equal(single_result.input_ids[0].flip(0), together.input_ids[row])
    drawn = {
        tuple(
            asc.replacements(model, inputs, spans, ["mid"], tokenizer=tokenizer, seed=seed)
            .input_ids[1, 0]
            .tolist()
        )
        for seed in range(6)
    }
    assert len(drawn) > 2


def test_ties_go_by_id_and_nats_to_the_less_likely():
    model = causal(len(BLANKS))
    model.lm_head.weight.data.zero_()
    inputs = encoded(BLANKS)
    spans = asc.word_spans(BLANKS, TEXTS, ["kexab", "lix"], inputs=inputs, max_pieces=9).spans
    result = asc.replacements(model, inputs, spans, ["lowest", "highest", "nats:3"], tokenizer=BLANKS)
    ids = set(inputs["input_ids"][1].tolist())
    begins = [token_id for token_id, kind in enumerate(forms(BLANKS)) if kind == 1 and token_id not in ids]
    column = int(spans[1, 0])
    real = int(inputs["input_ids"][1, column])
    allowed = sorted({*begins, real})
    assert result.input_ids[1, :, column].tolist() == [allowed[0], allowed[-1], allowed[0]]


def test_special_and_padded_rows_are_never_chosen_however_unlikely():
    """The rows past the tokenizer and the special ones are made the least and the most likely of all."""
    model = masked()
    with torch.no_grad():
        model.cls.predictions.bias[len(PIECES) :] = 50.0
        model.cls.predictions.bias[:5] = -50.0
    inputs = encoded(PIECES)
    spans = asc.word_spans(PIECES, TEXTS, ["kexab", "lix"], inputs=inputs).spans
    for candidates in ("same_form", "all"):
        result = asc.replacements(model, inputs, spans, NAMED, tokenizer=PIECES, candidates=candidates)
        for row in range(2):
            new = result.input_ids[row][:, spans[row, 0] : spans[row, 1]]
            assert ((new >= 5) & (new < len(PIECES))).all()


def test_a_text_without_candidates_is_left_out_with_its_reason_and_its_neighbour_is_not_touched():
    tokenizer = byte_tokenizer(256)
    model = causal(257)
    text = "abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ cat sat"
    inputs = encoded(tokenizer, [text, "a cat sat", "one"])
    spans = torch.tensor([[55, 58], [3, 6], [-1, -1]])
    result = asc.replacements(model, inputs, spans, MODES, tokenizer=tokenizer)
    assert result.reasons == ("few candidates", "", "no word")
    assert result.log_likelihood.isnan().all(1).tolist() == [True, False, True]
    assert result.place.isnan().all(1).tolist() == [True, False, True]
    assert torch.equal(result.input_ids[0], inputs["input_ids"][:1].expand(len(MODES), -1))
    single_result = asc.replacements(
        model,
        {name: tensor[1:2, :10] for name, tensor in inputs.items()},
        spans[1:2],
        MODES,
        tokenizer=tokenizer,
        samples=[1],
    )
    assert torch.equal(single_result.input_ids[0], result.input_ids[1, :, :10])


def test_a_piece_of_no_form_leaves_the_text_out():
    model, tokenizer, inputs, _ = case("masked")
    inputs["input_ids"][0, 4] = tokenizer.convert_tokens_to_ids(".")
    result = asc.replacements(model, inputs, [[4, 5], [4, 5]], ["mid"], tokenizer=tokenizer)
    assert result.reasons == ("a piece is no text of letters", "")
    free = asc.replacements(model, inputs, [[4, 5], [4, 5]], ["mid"], tokenizer=tokenizer, candidates="all")
    assert free.reasons == ("", "")


def test_a_causal_model_says_nothing_of_the_first_token():
    model, tokenizer, inputs, _ = case("causal")
    result = asc.replacements(model, inputs, [[0, 1], [4, 5]], ["mid"], tokenizer=tokenizer, candidates="all")
    assert result.reasons == ("nothing before the word", "")


def test_bad_input_is_named():
    model, tokenizer, inputs, spans = case("causal")
    for modes, words in (
        (["lowst"], "unknown mode 'lowst'; did you mean 'lowest'"),
        (["nats:"], "mode nats:X needs a positive number X, got 'nats:'"),
        (["nats:-1"], "mode nats:X needs a positive number X, got 'nats:-1'"),
        (["low", "low"], r"modes must be names, each once, got \['low', 'low'\]"),
        ([], r"modes must be names, each once, got \[\]"),
    ):
        with pytest.raises(ValueError, match=f"replacements: {words}"):
            asc.replacements(model, inputs, spans, modes, tokenizer=tokenizer)
    for options, words in (
        ({"candidates": "same"}, "unknown candidates 'same'; did you mean 'same_form'"),
        ({"context": "own"}, "context must be 'left' or 'masked', got 'own'"),
        ({"context": "masked"}, "context must be 'left' for a causal model"),
        ({"samples": [1]}, "samples must be 2 numbers, got 1"),
    ):
        with pytest.raises(ValueError, match=f"replacements: {words}"):
            asc.replacements(model, inputs, spans, ["low"], tokenizer=tokenizer, **options)
    with pytest.raises(ValueError, match="replacements: spans must hold 0 <= start < stop"):
        asc.replacements(model, inputs, [[4, 3], [4, 5]], ["low"], tokenizer=tokenizer)


@pytest.mark.parametrize("folder", ["stories260K/hf", "llama2xs/hf"])
def test_on_trained_models_likely_words_are_likelier(folder):
    if not (DATA / folder).exists():
        pytest.skip(f"{folder} is not here")
    model = transformers.AutoModelForCausalLM.from_pretrained(DATA / folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(DATA / folder)
    texts = [
        "Once upon a time there was a little dog who liked to play in the park.",
        "One day, Lily went to the big tree and saw a red bird in it.",
    ]
    inputs = encoded(tokenizer, texts)
    spans = asc.word_spans(tokenizer, texts, inputs=inputs)
    assert all(spans.words)
    result = asc.replacements(model, inputs, spans.spans, NAMED, tokenizer=tokenizer)
    assert (result.log_likelihood[:, 4] > result.log_likelihood[:, 0] + 5).all()
    for row in range(2):
        ids, total, _ = by_hand(model, tokenizer, inputs, spans.spans, row, "mid", 0, row)
        assert result.input_ids[row, 2, : len(ids)].tolist() == ids
        assert result.log_likelihood[row, 2].item() == pytest.approx(total, abs=1e-3)
