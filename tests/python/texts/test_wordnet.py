# SPDX-License-Identifier: MIT
"""Example sentences with their words, from a list of synsets written by hand; nothing is fetched."""

import sys
import types

import pytest

from attnscope.config.run_config import TextSource
from attnscope.errors import ConfigError
from attnscope.texts.sources import read_sentences
from attnscope.texts.wordnet import example_rows, splitter

SYNSETS = [
    ("cat.n.01", "n", ["cat", "true_cat"], ["the cat sat on it", "a cat", "Cat and cat and cat, all"]),
    ("run.v.01", "v", ["run", "go"], ["they run and go on", "  running  is not what they  run for."]),
    ("good.a.01", "a", ["good"], ["good, is it not", "the goods are goods to some"]),
]


def rows(**options):
    return [
        (text, extra["lemma"], extra["synset"], extra["pos"])
        for _, text, extra in example_rows(SYNSETS, **options)
    ]


def words(text):
    import re

    return re.findall(r"\w+|[^\w\s]", text)


def test_a_lemma_of_one_word_that_stands_once_in_five_words_or_more():
    assert rows(split=words) == [
        ("the cat sat on it", "cat", "cat.n.01", "n"),
        ("they run and go on", "run", "run.v.01", "v"),
        ("running is not what they run for.", "run", "run.v.01", "v"),
        ("they run and go on", "go", "run.v.01", "v"),
        ("good, is it not", "good", "good.a.01", "a"),
    ]
    assert [number for number, _, _ in example_rows(SYNSETS, words)] == [0, 1, 2, 3, 4]


def test_the_rule_that_split_texts_is_named_in_each_row(monkeypatch):
    monkeypatch.setitem(sys.modules, "spacy", None)
    split, name = splitter()
    assert (split("don't go."), name) == (["don", "'", "t", "go", "."], r"\w+|[^\w\s]")
    assert {extra["words_of"] for _, _, extra in example_rows(SYNSETS)} == {r"\w+|[^\w\s]"}
    english = types.SimpleNamespace(
        blank=lambda _: lambda text: [types.SimpleNamespace(text=word) for word in text.split()]
    )
    monkeypatch.setitem(sys.modules, "spacy", english)
    split, name = splitter()
    assert (split("don't go."), name) == (["don't", "go."], 'spacy.blank("en")')


def corpus_module(synsets=None, error=None):
    """A module that stands where nltk's reader of the corpus does."""

    def all_synsets(lang):
        assert lang == "eng"
        if error is not None:
            raise error
        return [
            types.SimpleNamespace(
                name=lambda s=s: s[0],
                pos=lambda s=s: s[1],
                lemma_names=lambda s=s: s[2],
                examples=lambda s=s: s[3],
            )
            for s in synsets
        ]

    return types.SimpleNamespace(wordnet=types.SimpleNamespace(all_synsets=all_synsets))


def test_it_is_a_source_whose_columns_go_along(monkeypatch):
    monkeypatch.setitem(sys.modules, "nltk", types.ModuleType("nltk"))
    monkeypatch.setitem(sys.modules, "nltk.corpus", corpus_module(SYNSETS))
    sentences = read_sentences([TextSource(path="builtin:wordnet", samples=2)])
    assert [sentence.text for sentence in sentences] == ["the cat sat on it", "they run and go on"]
    assert (sentences[1].extra["lemma"], sentences[1].source) == ("run", "builtin:wordnet")


def test_what_is_missing_is_named_with_the_command_that_fetches_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "nltk", None)
    monkeypatch.setitem(sys.modules, "nltk.corpus", None)
    with pytest.raises(ConfigError, match="texts: builtin:wordnet needs the package `nltk` of PyPI"):
        read_sentences([TextSource(path="builtin:wordnet")])
    monkeypatch.setitem(sys.modules, "nltk", types.ModuleType("nltk"))
    monkeypatch.setitem(sys.modules, "nltk.corpus", corpus_module(error=LookupError("corpora/wordnet")))
    with pytest.raises(ConfigError, match=r"not on disk; `python -m nltk\.downloader wordnet` fetches it"):
        read_sentences([TextSource(path="builtin:wordnet")])
    with pytest.raises(
        ConfigError, match=r"'builtin:wordnt' is not built in; did you mean 'builtin:wordnet'"
    ):
        read_sentences([TextSource(path="builtin:wordnt")])
