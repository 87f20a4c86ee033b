# SPDX-License-Identifier: MIT
"""What the demo model reads: Python's own documentation, and random strings written twice."""

from __future__ import annotations

import random
from functools import lru_cache

import torch

GROUPS = ("text", "copying")
"""The two input sets, in the order of their `group` names in the `samples` table."""

HALF = 63
"""Characters in a copying sequence before it repeats: with BOS, 127 tokens in all."""

WINDOW = 2 * HALF
"""Characters in a window of text: as many tokens as a copying sequence has."""

_HELD_OUT = 0.1
_SYMBOLS = [chr(code) for code in range(0x21, 0x7F)]


@lru_cache(maxsize=1)
def documentation() -> tuple[str, str]:
    """The language reference that `pydoc` carries, cut into a training part and the last tenth, held out."""
    from pydoc_data.topics import topics

    text = "\n".join(topics[name] for name in sorted(topics))
    cut = int(len(text) * (1 - _HELD_OUT))
    return text[:cut], text[cut:]


def text_windows(count: int, seed: int) -> list[str]:
    """Windows of the held-out documentation, one byte per character, at seeded random places.

    Passed over are windows that stand in the training part too (topics quote each other) and those that begin
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
    """Random printable ASCII strings, each written twice: the second half can be copied, the first cannot.

    >>> line = copying_sequences(1, seed=0)[0]
    >>> line[:63] == line[63:], len(line)
    (True, 126)
    """
    draw = random.Random(seed)
    return ["".join(draw.choices(_SYMBOLS, k=HALF)) * 2 for _ in range(count)]


@lru_cache(maxsize=1)
def _training_bytes() -> torch.Tensor:
    return torch.frombuffer(bytearray(documentation()[0].encode()), dtype=torch.uint8).long()


def training_batch(batch: int, seed: int, step: int) -> torch.Tensor:
    """The token ids of one training step: half windows of text, half copying sequences, BOS first.

    The batch depends on `seed` and `step` alone, so a resumed training sees what an uninterrupted one sees.
    """
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    corpus = _training_bytes()
    windows = batch // 2
    starts = torch.randint(0, len(corpus) - WINDOW, (windows, 1), generator=generator)
    text = corpus[starts + torch.arange(WINDOW)]
    half = torch.randint(0x21, 0x7F, (batch - windows, HALF), generator=generator)
    sequences = torch.cat([text, torch.cat([half, half], dim=1)]) + 1
    return torch.cat([torch.zeros(batch, 1, dtype=torch.int64), sequences], dim=1)
