# SPDX-License-Identifier: MIT
"""Example sentences of WordNet with the word that each is an example of: the source `builtin:wordnet`.

The corpus is read where nltk finds it on disk and is never fetched.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from attnscope.errors import ConfigError

#: Name, part of speech, lemmas and example sentences of one set of synonyms.
Synset = tuple[str, str, Iterable[str], Iterable[str]]
Row = tuple[int, Any, dict[str, Any]]

#: Fewest words and marks of a sentence.
FEWEST = 5
_WORDS = re.compile(r"\w+|[^\w\s]")


def wordnet_rows() -> Iterator[Row]:
    """Return every example sentence of every English synset, once for each lemma that stands in it exactly
    once.
    """
    try:
        from nltk.corpus import wordnet  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError:
        raise ConfigError("texts: builtin:wordnet needs the package `nltk` of PyPI") from None
    try:
        synsets = list(wordnet.all_synsets(lang="eng"))
    except LookupError:
        raise ConfigError(
            "texts: builtin:wordnet: the corpus is not on disk; `python -m nltk.downloader wordnet` "
            "fetches it"
        ) from None
    return example_rows(
        (synset.name(), synset.pos(), synset.lemma_names(), synset.examples()) for synset in synsets
    )


def example_rows(synsets: Iterable[Synset], split: Callable[[str], list[str]] | None = None) -> Iterator[Row]:
    """Yield rows of a source: text, with its lemma, synset, part of speech and how it was split.

    Taken is, of each synset, each lemma of one word with each example that has five words and marks or more
    and holds the lemma, as it is written, exactly once.

    Args:
        synsets: in their order.
        split: a text's words and marks; None takes spaCy's rules for English where spaCy is installed, else
            runs of letters and digits, and single marks.

    >>> given = [("cat.n.01", "n", ["cat", "true_cat"], ["the cat sat on it", "a cat"])]
    >>> rows = example_rows(given, str.split)
    >>> [(text, more["lemma"], more["synset"]) for _, text, more in rows]
    [('the cat sat on it', 'cat', 'cat.n.01')]
    """
    rule = "given"
    if split is None:
        split, rule = splitter()
    number = 0
    for name, pos, lemmas, examples in synsets:
        texts = [(" ".join(text.split()), split(text)) for text in examples]
        for lemma in lemmas:
            if "_" in lemma:
                continue
            for text, words in texts:
                if len(words) >= FEWEST and words.count(lemma) == 1:
                    yield number, text, {"lemma": lemma, "synset": name, "pos": pos, "words_of": rule}
                    number += 1


def splitter() -> tuple[Callable[[str], list[str]], str]:
    """Return the function that splits a text into words and marks, and its name."""
    try:
        import spacy  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return _WORDS.findall, _WORDS.pattern
    english = spacy.blank("en")
    return lambda text: [token.text for token in english(text)], 'spacy.blank("en")'
