# SPDX-License-Identifier: MIT
"""The demo model's texts, byte by byte: Python's own documentation, and random strings written twice."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from attnscope._tokens import byte_characters
from attnscope.results.files import write_bytes

#: The beginning-of-sequence token, id 0; byte b has id b + 1.
BOS = "<s>"
VOCABULARY_SIZE = 257
#: The two input sets, in the order of their `group` names in the `samples` table.
GROUPS = ("text", "copying")
#: Characters in a copying sequence before it repeats: with BOS, 127 tokens in all.
HALF = 63
#: Characters in a window of text: as many tokens as a copying sequence has.
WINDOW = 2 * HALF
_HELD_OUT = 0.1
_SYMBOLS = [chr(code) for code in range(0x21, 0x7F)]


@lru_cache(maxsize=1)
def documentation() -> tuple[str, str]:
    """Return the language reference that `pydoc` carries, cut into a training part and the last tenth,
    held out.
    """
    from pydoc_data.topics import topics

    text = "\n".join(topics[name] for name in sorted(topics))
    cut = int(len(text) * (1 - _HELD_OUT))
    return text[:cut], text[cut:]


def text_windows(count: int, seed: int) -> list[str]:
    """Return windows of the held-out documentation, one byte per character, at seeded random places.

    Left out are windows that are in the training part too (topics quote each other) and those that begin
    or end with white space, which readers of sentence files strip.
    """
    learned, held_out = documentation()
    draw = random.Random(seed)
    windows: list[str] = []
    while len(windows) < count:
        start = draw.randrange(len(held_out) - WINDOW)
        window = held_out[start : start + WINDOW]
        if window.isascii() and window == window.strip() and window not in learned:
            windows.append(window)
    return windows


def copying_sequences(count: int, seed: int) -> list[str]:
    """Return random printable ASCII strings, each written twice: the second half can be copied, the first
    cannot.

    >>> line = copying_sequences(1, seed=0)[0]
    >>> line[:63] == line[63:], len(line)
    (True, 126)
    """
    draw = random.Random(seed)
    return ["".join(draw.choices(_SYMBOLS, k=HALF)) * 2 for _ in range(count)]


def inputs_by_group(count: int, seed: int) -> dict[str, list[str]]:
    """Return so many texts of each of the two input sets."""
    return dict(zip(GROUPS, (text_windows(count, seed), copying_sequences(count, seed)), strict=True))


def write_texts(path: Path, texts: Sequence[str], run: Path) -> None:
    """Write texts as a file that a study reads like anyone's; one that holds them is left as it is.

    Args:
        run: the folder of the study; FileExistsError where it was run on other texts of that file.
    """
    content = "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)
    stored = path.read_text(encoding="utf-8") if path.exists() else None
    if stored not in (None, content) and (run / "study.yaml").is_file():
        raise FileExistsError(
            f"{run} holds a study of other texts, {len(stored.splitlines())} in {path}, and {len(texts)} "
            "were asked for; take as many, or another directory"
        )
    if stored != content:
        write_bytes(path, content.encode())


@lru_cache(maxsize=1)
def training_bytes() -> torch.Tensor:
    """Return the training part of the documentation, a number for each byte."""
    return torch.frombuffer(bytearray(documentation()[0].encode()), dtype=torch.uint8).long()


def training_batch(batch: int, seed: int, step: int) -> torch.Tensor:
    """Return the token ids of one training step: half windows of text, half copying sequences, BOS first.

    The batch depends only on `seed` and `step`, so a resumed training sees what an uninterrupted one sees.
    """
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    corpus = training_bytes()
    windows = batch // 2
    starts = torch.randint(0, len(corpus) - WINDOW, (windows, 1), generator=generator, device="cpu")
    text = corpus[starts + torch.arange(WINDOW, device="cpu")]
    half = torch.randint(0x21, 0x7F, (batch - windows, HALF), generator=generator, device="cpu")
    sequences = torch.cat([text, torch.cat([half, half], dim=1)]) + 1
    return torch.cat([torch.zeros(batch, 1, dtype=torch.int64, device="cpu"), sequences], dim=1)


def byte_tokenizer(max_length: int = 128) -> Any:
    """Return a fast Hugging Face tokenizer over bytes, which puts BOS before every text.

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
