# SPDX-License-Identifier: MIT
"""Small tokenizers of three kinds: pieces of words, blanks as letters, bytes as letters."""

from __future__ import annotations

from typing import Any

LETTERS = "abcdefghijklmnopqrstuvwxyz"
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def word_pieces(*words: str) -> Any:
    """BERT's kind: ``##`` marks what goes on; letters are entries of both forms; ids 0 … 4 are special."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    entries = [*SPECIAL, *words, *LETTERS, *(f"##{letter}" for letter in LETTERS), "é", ".", "7"]
    vocabulary = {entry: number for number, entry in enumerate(dict.fromkeys(entries))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )


def blanks(*words: str, first: str = "<s>", letters: str = "") -> Any:
    """SentencePiece's kind: ``▁`` writes a blank, an unknown character falls back to its bytes."""
    from tokenizers import Tokenizer, models, normalizers, processors
    from transformers import PreTrainedTokenizerFast

    entries = ["<unk>", first, *(f"<0x{byte:02X}>" for byte in range(256)), "▁", ".", *LETTERS, *letters]
    merges = []
    for word in words:
        done = ""
        for letter in word:
            if done:
                merges.append((done, letter))
            done += letter
            entries.append(done)
    vocabulary = {entry: number for number, entry in enumerate(dict.fromkeys(entries))}
    tokenizer = Tokenizer(
        models.BPE(vocabulary, list(dict.fromkeys(merges)), unk_token="<unk>", byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first} $A", special_tokens=[(first, 1)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=first, unk_token="<unk>")


def byte_letters(*words: str) -> Any:
    """GPT-2's kind: each byte is a letter, ``Ġ`` the blank, merges make words; no BOS."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from attnscope._tokens import byte_characters

    entries = ["<|end|>", *byte_characters()]
    merges = []
    for word in words:
        letters = [byte_characters()[byte] for byte in word.encode()]
        done = letters[0]
        for letter in letters[1:]:
            merges.append((done, letter))
            done += letter
            entries.append(done)
    vocabulary = {entry: number for number, entry in enumerate(dict.fromkeys(entries))}
    tokenizer = Tokenizer(models.BPE(vocabulary, list(dict.fromkeys(merges))))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>")
