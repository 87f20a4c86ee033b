# SPDX-License-Identifier: MIT
"""The texts of a page as a model reads them: one, or several with a name each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from attnscope._warn import warn
from attnscope.models.inputs.context_length import context_length
from attnscope.models.inputs.forward_inputs import ForwardInputs, names_taken
from attnscope.models.inputs.text_inputs import Entry, encode_text, read_inputs

#: Letters of a text by which a reader chooses it.
_LETTERS = 60


class ReadText(NamedTuple):
    """A text as the arguments of a forward pass, with its name; empty where its tokens say it better."""

    label: str
    inputs: ForwardInputs


def label_of_text(words: str) -> str:
    r"""Return the beginning of a text on one line.

    >>> label_of_text("a cat\n  sat"), len(label_of_text("cat " * 100))
    ('a cat sat', 60)
    """
    line = " ".join(words.split())
    return line if len(line) <= _LETTERS else line[: _LETTERS - 1].rstrip() + "…"


def read_texts(model: Any, text: Any, tokenizer: Any) -> list[ReadText]:
    """Return what the forward pass takes for each text, none of them longer than the model reads.

    Raises:
        ValueError: inputs that are no texts, or that no single text can be taken from.
    """
    config = getattr(model, "config", None)
    limit = None if config is None else context_length(config, tokenizer, model)
    if getattr(config, "is_encoder_decoder", False):
        texts = _of_encoder_decoder(model, text, tokenizer, limit)
    else:
        texts = [
            read
            for entry in _entries(text)
            for read in _divided(entry, _inputs_of(model, entry, tokenizer, limit))
        ]
    return [read._replace(inputs=_cut(read.inputs.only(model), limit)) for read in texts]


def _cut(group: ForwardInputs, limit: int | None) -> ForwardInputs:
    """Return inputs that are no longer than the model reads, with a warning where they were."""
    if limit is None or group.n is None or group.n <= limit:
        return group
    warn(f"view: the text of {group.n} tokens is longer than {limit} and is cut")
    return group.cut(limit)


def _entries(text: Any) -> list[Entry]:
    """Return the texts of any kind of input; numbers alone are the token ids of one text."""
    is_list = isinstance(text, Sequence) and not isinstance(text, (str, bytes, bytearray))
    if is_list and not len(text):
        raise ValueError("view: a text needs at least one token, got none")
    if is_list and all(isinstance(token, (int, np.integer)) for token in text):
        text = [list(text)]
    entries = read_inputs("view", text, name="text")
    if any(isinstance(entry, list) and not entry for entry in entries):
        raise ValueError("view: a text needs at least one token, got none")
    return entries


def _divided(entry: Entry, inputs: ForwardInputs) -> list[ReadText]:
    """Return the texts of a batch one by one."""
    label = label_of_text(entry) if isinstance(entry, str) else ""
    if inputs.size == 1:
        return [ReadText(label, inputs)]
    if not inputs.is_divisible:
        shape = tuple(inputs.tensors[inputs.main].shape)
        raise ValueError(
            f"view: no single text can be taken from these inputs, {inputs.main} of shape {shape}"
        )
    return [ReadText(label, inputs.select([place])) for place in range(inputs.size)]


def _of_encoder_decoder(model: Any, text: Any, tokenizer: Any, limit: int | None) -> list[ReadText]:
    """Return pairs of texts for the encoder and the decoder, or what a mapping holds for both."""
    if isinstance(text, (tuple, list)) and len(text) == 2 and not all(map(_is_pair_of_texts, text)):
        return [_of_both(model, text, tokenizer, limit)]
    if isinstance(text, (tuple, list)) and text and all(map(_is_pair_of_texts, text)):
        return [_of_both(model, pair, tokenizer, limit) for pair in text]
    texts = [
        read
        for entry in _entries(text)
        for read in _divided(entry, _inputs_of(model, entry, tokenizer, limit))
    ]
    has_texts = "decoder_input_ids" in names_taken(model)
    names = texts[0].inputs.tensors
    if has_texts and not any(name.startswith("decoder_") for name in names):
        raise ValueError("view: an encoder-decoder needs two texts: (for the encoder, for the decoder)")
    return texts


def _is_pair_of_texts(value: Any) -> bool:
    """Return True for two texts, or the token ids of two."""
    return (
        isinstance(value, (tuple, list))
        and len(value) == 2
        and all(isinstance(part, (str, tuple, list)) for part in value)
    )


def _of_both(model: Any, pair: Sequence[Any], tokenizer: Any, limit: int | None) -> ReadText:
    """Return what the forward pass takes for the encoder's text and the decoder's."""
    parts = [_entries(part) for part in pair]
    for part in parts:
        if len(part) != 1:
            raise ValueError(f"view: a pair is of two texts, got {len(part)} in the place of one")
    first, second = (_inputs_of(model, part[0], tokenizer, limit) for part in parts)
    ids = second.tensors.get("input_ids")
    if ids is None:
        raise ValueError("view: the decoder's text must be a sentence or token ids")
    label = label_of_text(pair[0]) if isinstance(pair[0], str) else ""
    return ReadText(label, replace(first, tensors={**first.tensors, "decoder_input_ids": ids}))


def _inputs_of(model: Any, entry: Entry, tokenizer: Any, limit: int | None) -> ForwardInputs:
    """Return what the forward pass takes for a text, or for what a tokenizer made of several."""
    if isinstance(entry, Mapping):
        mapping = dict(entry)
    elif isinstance(entry, list):
        mapping = {"input_ids": [entry]}
    else:
        if tokenizer is None:
            raise ValueError("view: a sentence needs a tokenizer: view(model, text, tokenizer=tokenizer)")
        mapping = encode_text("view", entry, tokenizer, None)
        n = len(mapping["input_ids"][0])
        if limit is not None and n > limit:
            warn(f"view: the text of {n} tokens is longer than {limit} and is cut")
            mapping = encode_text("view", entry, tokenizer, limit)
        # segments that only some models take
        names = names_taken(model)
        mapping = {name: value for name, value in mapping.items() if name in (*names, "input_ids")}
    return ForwardInputs.of("view", mapping)
