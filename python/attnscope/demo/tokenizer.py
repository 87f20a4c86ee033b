# SPDX-License-Identifier: MIT
"""A tokenizer without training: one token per UTF-8 byte, and BOS in front."""

from __future__ import annotations

from typing import Any

from attnscope._tokens import byte_characters

BOS = "<s>"
"""The beginning-of-sequence token, id 0; byte b has id b + 1."""

VOCABULARY_SIZE = 257


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
