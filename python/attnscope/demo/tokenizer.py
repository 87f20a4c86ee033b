# SPDX-License-Identifier: MIT
"""A tokenizer without training: one token per UTF-8 byte, and BOS in front."""

from __future__ import annotations

from typing import Any

BOS = "<s>"
"""The beginning-of-sequence token, id 0; byte b has id b + 1."""

VOCABULARY_SIZE = 257


def byte_characters() -> list[str]:
    """The printable character by which byte-level tokenizers write each byte, in byte order.

    Bytes that are printable in Latin-1 stand for themselves, the other 68 are moved to U+0100 and above
    (the convention of GPT-2, which the `ByteLevel` pre-tokenizer applies).

    >>> byte_characters()[ord("A")], byte_characters()[0], len(set(byte_characters()))
    ('A', 'Ā', 256)
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    moved = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(moved)) for byte in range(256)]


def byte_tokenizer(max_length: int = 128) -> Any:
    """A fast Hugging Face tokenizer over bytes, which puts BOS before every text.

    A byte-pair encoding with no merges: each byte is its own token, so no text is out of vocabulary and
    positions in the attention map are positions in the text.

    >>> byte_tokenizer()("AB")["input_ids"]
    [0, 66, 67]
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {BOS: 0} | {character: byte + 1 for byte, character in enumerate(byte_characters())}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, 0)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
    )
