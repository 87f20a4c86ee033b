# SPDX-License-Identifier: MIT
"""One word a text and its tokens: blanks, byte fallback, pieces, cuts, BOS dropped or replaced."""

import hashlib
import unicodedata

import pytest
import torch
from vocabularies import blanks, byte_letters, word_pieces

import attnscope as asc
from attnscope.capture.likelihood.vocabulary import BEGINS, GOES_ON, NEITHER, blank_ids, forms, special_ids
from attnscope.capture.likelihood.words import hashed_draw, unicode_words
from attnscope.demo.texts import byte_tokenizer
from attnscope.models import Encoder

TEXT = "one two six ten old cat sat on top"
WORDS = ("one", "two", "six", "ten", "old", "cat", "sat", "on", "top")
PIECES = word_pieces(*WORDS)
BLANKS = blanks(*(f"▁{word}" for word in WORDS))
BYTES = byte_letters(*(f" {word}" for word in WORDS), "one")


def spans_of(tokenizer, text, words="middle", **options):
    spans = asc.word_spans(tokenizer, [text], words, **options)
    return spans.spans[0].tolist(), spans.words[0], spans.reasons[0]


@pytest.mark.parametrize(
    ("tokenizer", "first", "left"), [(PIECES, 1, "old"), (BLANKS, 1, "ten"), (BYTES, 0, "old")]
)
def test_the_word_nearest_the_middle_ties_to_the_left(tokenizer, first, left):
    """n tokens, |a + b − n| by hand: "old" is the fifth of nine words; behind BOS alone "ten" is as near."""
    span, word, reason = spans_of(tokenizer, TEXT)
    assert (span, word, reason) == ([first + 4, first + 5], "old", "")
    assert spans_of(tokenizer, TEXT, min_left=0)[1] == left


def test_the_rule_of_the_middle_against_a_count_of_all_candidates():
    tokenizer = word_pieces("old", "cat")
    text = "aaa bb old cat xyz kkk b lmn op."
    encoded = tokenizer(text, return_offsets_mapping=True)
    n = len(encoded["input_ids"])
    best = []
    for word in text.replace(".", "").split()[1:-1]:
        start = text.index(word)
        expected_tokens = [
            i for i, (a, b) in enumerate(encoded["offset_mapping"]) if a < start + len(word) and b > start
        ]
        usable = (
            len(word) >= 3
            and text.count(word) == 1
            and expected_tokens[0] - 1 >= 4
            and len(expected_tokens) <= 4
        )
        best += (
            [
                (
                    abs(expected_tokens[0] + expected_tokens[-1] + 1 - n),
                    [expected_tokens[0], expected_tokens[-1] + 1],
                    word,
                )
            ]
            if usable
            else []
        )
    assert spans_of(tokenizer, text)[:2] == (min(best)[1], min(best)[2])


def test_candidates_stand_once_are_long_enough_and_not_at_the_ends():
    text = "one two six ten old cat cat Cat on top"
    assert spans_of(PIECES, text, min_left=0)[1] == "old"
    spans = asc.word_spans(PIECES, ["a b c d on", "one two", "one six six two", "7 7 7 . ."])
    assert spans.words == ["", "", "", ""]
    assert spans.reasons == ["no word"] * 4
    assert spans.spans.tolist() == [[-1, -1]] * 4


def test_rules_on_tokens_are_named():
    assert spans_of(PIECES, "one two six top")[2] == "too early"
    assert spans_of(PIECES, "one two six ten old cat sat on abcdefgh top")[1] != "abcdefgh"
    assert spans_of(PIECES, "one on on on on abcdefgh top", min_left=4)[2] == "too many pieces"
    assert spans_of(PIECES, "one on on on on abcdefgh top", max_pieces=8)[:2] == ([6, 14], "abcdefgh")
    assert spans_of(PIECES, TEXT, ["top"])[2] == "too late"
    assert spans_of(PIECES, TEXT + " .", ["top"])[:2] == ([9, 10], "top")


def test_a_blank_before_the_word_belongs_to_it_and_a_blank_alone_does_not():
    span, _, _ = spans_of(BLANKS, TEXT, ["cat"])
    assert BLANKS.convert_ids_to_tokens(BLANKS(TEXT)["input_ids"])[slice(*span)] == ["▁cat"]
    span, _, reason = spans_of(BLANKS, "one two six ten xyz on top", ["xyz"])
    names = BLANKS.convert_ids_to_tokens(BLANKS("one two six ten xyz on top")["input_ids"])
    assert names[slice(*span)] == ["x", "y", "z"]
    assert (names[span[0] - 1], reason) == ("▁", "")
    assert blank_ids(BLANKS) == {BLANKS.convert_tokens_to_ids("▁")}


def test_bytes_of_one_character_belong_to_its_word_whose_form_is_none():
    """A letter that falls back to two bytes: all tokens are found, and no candidate has their form."""
    letters = spans_of(BLANKS, "one two six ten naïf on top", ["naïf"], max_pieces=9)
    assert letters[2] == "a piece is no text of letters"
    # in a byte-level vocabulary each half of a character is no text either
    assert (
        spans_of(BYTES, "one two six ten nïf on top", ["nïf"], max_pieces=9)[2]
        == "a piece is no text of letters"
    )
    # but an entry of the whole letter is
    tokenizer_of_words = byte_letters(" one", " two", " six", " ten", "é")
    span, word, reason = spans_of(tokenizer_of_words, "one two six ten né on top", ["né"])
    assert (span[1] - span[0], word, reason) == (3, "né", "") or reason == ""
    assert forms(tokenizer_of_words)[tokenizer_of_words.convert_tokens_to_ids("Ã©")] == GOES_ON


def test_an_emoji_is_no_word_and_moves_no_span():
    text = "one two six ten 🙂 cat on top"
    span, _, _ = spans_of(BLANKS, text, ["cat"])
    assert BLANKS.convert_ids_to_tokens(BLANKS(text)["input_ids"])[slice(*span)] == ["▁cat"]
    assert spans_of(BLANKS, "one on 🙂 🙂🙂 🙂 on top")[2] == "no word"


def test_a_token_that_also_holds_something_else_makes_the_word_unusable():
    joined = blanks("▁one", "▁two", "▁six", "▁ten", "▁cat.")
    assert spans_of(joined, "one two six ten cat. on top", ["cat"])[2] == "shared token"


def test_a_words_column_must_hold_it_once():
    spans = asc.word_spans(PIECES, [TEXT, TEXT, "one two six ten old cat cat on top"], ["sat", "dog", "cat"])
    assert spans.words == ["sat", "", ""]
    assert spans.reasons == ["", "not in the text", "more than once"]
    assert asc.word_spans(PIECES, [TEXT], [None]).reasons == ["not in the text"]
    # a word in a longer one does not count, and one with a mark inside is found as it is written
    texts = ["one two six ten tops on top old", "one two six ten cat's old on top"]
    spans = asc.word_spans(PIECES, texts, ["top", "cat's"])
    assert spans.words == ["top", ""]
    assert spans.reasons == ["", "a piece is no text of letters"]


def test_random_words_are_drawn_by_hash_and_depend_on_no_order():
    texts = [f"one two six ten {chr(97 + i)}xy cat sat old on top" for i in range(20)]
    together = asc.word_spans(PIECES, texts, "random", seed=7)
    for place in (0, 13, 19):
        single_result = asc.word_spans(PIECES, [texts[place]], "random", seed=7, samples=[place])
        assert single_result.words[0] == together.words[place]
    digest = hashlib.sha256(b"7:13:word:0").digest()
    usable = ["nxy", "cat", "sat", "old"]
    assert together.words[13] == usable[int(int.from_bytes(digest[:8], "big") / 2**64 * len(usable))]
    assert len(set(together.words)) > 5


def test_a_draw_is_the_formula_of_its_hash():
    for k in range(50):
        u = int.from_bytes(hashlib.sha256(f"0:{k}:mid:1".encode()).digest()[:8], "big") / 2**64
        assert hashed_draw(5, 17, 0, k, "mid", 1) == 5 + int(u * 12)


@pytest.mark.parametrize("bos", ["keep", "drop", "replace"])
@pytest.mark.parametrize(
    "tokenizer", [PIECES, BLANKS, BYTES, byte_tokenizer(256)], ids=["##", "▁", "Ġ", "bytes"]
)
def test_spans_are_those_of_what_the_engine_made(tokenizer, bos):
    """BOS kept, dropped or replaced by an ordinary token: the span holds the same tokens."""
    encoder = Encoder(tokenizer, None, bos, None, 0)
    ids = encoder.encode(TEXT).ids.tolist()
    span, word, _ = spans_of(tokenizer, TEXT, ["cat"], inputs=[ids])
    assert word == "cat"
    assert tokenizer.decode(ids[slice(*span)]).strip(" ▁") == "cat"


@pytest.mark.parametrize("tokenizer", [PIECES, BLANKS, BYTES], ids=["##", "▁", "Ġ"])
def test_a_cut_text_keeps_the_words_inside(tokenizer):
    limit = 8
    ids = Encoder(tokenizer, limit, "keep", None, 0).encode(TEXT).ids.tolist()
    assert len(ids) == limit
    span, word, _ = spans_of(tokenizer, TEXT, ["old"], inputs=[ids])
    assert tokenizer.decode(ids[slice(*span)]).strip(" ▁") == "old" == word
    assert spans_of(tokenizer, TEXT, ["top"], inputs=[ids])[2] == "cut off"
    cut = Encoder(tokenizer, 7, "drop", None, 0).encode(TEXT).ids.tolist()
    span, _, reason = spans_of(tokenizer, TEXT, ["old"], inputs=[cut], min_left=0)
    assert reason or tokenizer.decode(cut[slice(*span)]).strip(" ▁") == "old"


def test_a_word_cut_in_its_middle_is_none():
    text = "one two six ten abcd on top"
    ids = PIECES(text)["input_ids"]
    cut = [*ids[:7], ids[-1]]
    assert PIECES.convert_ids_to_tokens(cut)[5:7] == ["a", "##b"]
    assert spans_of(PIECES, text, ["abcd"], inputs=[cut])[2] == "cut off"


def test_other_ids_and_texts_without_letters_of_their_own_are_left_out():
    ids = PIECES(TEXT)["input_ids"]
    ids[4] += 1
    assert spans_of(PIECES, TEXT, inputs=[ids])[2] == "ids differ"
    assert spans_of(PIECES, None)[2] == "token ids"
    padded = {
        "input_ids": torch.tensor([[*PIECES(TEXT)["input_ids"], 0, 0]]),
        "attention_mask": torch.tensor([[1] * 11 + [0] * 2]),
    }
    assert spans_of(PIECES, TEXT, inputs=padded)[0] == [5, 6]


def test_forms_of_the_three_kinds():
    for tokenizer, begins, goes_on, neither in (
        (PIECES, "cat", "##b", "."),
        (BLANKS, "▁cat", "b", "<0x41>"),
        (BYTES, "Ġcat", "b", "7"),
    ):
        kinds = forms(tokenizer)
        of = tokenizer.convert_tokens_to_ids
        assert (kinds[of(begins)], kinds[of(goes_on)], kinds[of(neither)]) == (BEGINS, GOES_ON, NEITHER)
        assert all(kinds[special_id] == NEITHER for special_id in special_ids(tokenizer))
        assert len(kinds) == len(tokenizer)


def test_an_added_special_token_of_letters_is_no_text():
    tokenizer = word_pieces("cat")
    of = tokenizer.convert_tokens_to_ids
    before = forms(tokenizer)
    assert before[of("cat")] == BEGINS
    before[:] = NEITHER  # what is given belongs to the caller
    tokenizer.add_special_tokens({"additional_special_tokens": ["user"]})
    assert forms(tokenizer)[of("user")] == NEITHER
    assert forms(tokenizer)[of("cat")] == BEGINS
    tokenizer.mask_token = "cat"
    assert forms(tokenizer)[of("cat")] == NEITHER


def test_bad_input_is_named():
    class Slow:
        is_fast = False

    with pytest.raises(ValueError, match=r"word_spans: tokenizer must know the characters .* got Slow"):
        asc.word_spans(Slow(), [TEXT])
    with pytest.raises(ValueError, match="word_spans: unknown words 'midle'; did you mean 'middle'"):
        asc.word_spans(PIECES, [TEXT], "midle")
    with pytest.raises(ValueError, match="word_spans: words must be one for each of 1 texts, got 2"):
        asc.word_spans(PIECES, [TEXT], ["a", "b"])
    with pytest.raises(ValueError, match="word_spans: inputs must be one for each of 1 texts, got 0"):
        asc.word_spans(PIECES, [TEXT], inputs=[])


MARKED = "one on two préférée naïve once on on top"


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_words_keep_their_marks_composed_or_not(form):
    """ "préférée" is no "pre": all its letters, in a vocabulary whose entries hold them decomposed too."""
    text = unicodedata.normalize(form, MARKED)
    accented = [unicodedata.normalize(form, word) for word in ("préférée", "naïve")]
    letters = "".join(sorted({*"".join(accented)}))
    tokenizer = blanks(*(f"▁{word}" for word in (*WORDS, "once", *accented)), letters=letters)
    words = {spans_of(tokenizer, text, "random", seed=seed, min_left=3)[1] for seed in range(40)}
    assert {unicodedata.normalize("NFC", word) for word in words} == {"préférée", "naïve", "once"}
    # a word is found whichever way it is written
    for other in ("NFC", "NFD"):
        span, word, reason = spans_of(tokenizer, text, [unicodedata.normalize(other, "préférée")], min_left=3)
        assert (word, reason) == (accented[0], "")
        assert span == spans_of(tokenizer, text, [accented[0]], min_left=3)[0]
    assert spans_of(tokenizer, text, ["pre"], min_left=3)[2] == "not in the text"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("हिन्दी में लिखा", ["हिन्दी", "में", "लिखा"]),
        ("বাংলা ভাষা", ["বাংলা", "ভাষা"]),
        ("جميلة جداً", ["جميلة", "جداً"]),
        ("don't go 3 times, e-mail foo_bar", ["don't", "go", "times", "e", "mail", "foo_bar"]),
        ("한국어 말", ["한국어", "말"]),
    ],
)
def test_words_are_those_of_unicode(text, words):
    for form in ("NFC", "NFD"):
        normal_text = unicodedata.normalize(form, text)
        found_there = unicode_words(normal_text)
        assert [word for word, _, _ in found_there] == [
            unicodedata.normalize(form, listed) for listed in words
        ]
        assert all(normal_text[start:stop] == word for word, start, stop in found_there)


def test_a_word_with_an_apostrophe_is_no_candidate_and_is_not_cut():
    text = "one on two isn't old cat on top"
    tokenizer = blanks(*(f"▁{word}" for word in WORDS), "▁isn", "isn")
    words = {spans_of(tokenizer, text, "random", seed=seed, min_left=2)[1] for seed in range(30)}
    assert words == {"two", "old", "cat"} or words == {"old", "cat"}


def test_ragged_inputs_are_read_as_a_tokenizer_gives_them():
    texts = ["A cat sat on it", "Here another cat sat"]
    lists = byte_tokenizer()(texts)
    assert len({len(row) for row in lists["input_ids"]}) == 2
    ragged, single = (asc.word_spans(byte_tokenizer(), texts, inputs=argument) for argument in (lists, None))
    assert ragged.words == single.words
    assert ragged.spans.tolist() == single.spans.tolist()
