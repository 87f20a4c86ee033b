# SPDX-License-Identifier: MIT
"""The batches of a unit's texts: similar lengths together, and fewer texts the longer they are."""

from __future__ import annotations

from attnscope.study_api.units import Input, Unit

#: Attention of one layer that a batch may hold when `max_memory` says nothing. A constant, because the
#: composition of batches must not depend on the machine's state: it decides the last bits of the numbers.
LAYER_BYTES = 128 * 1024**2

#: Padded tokens in one forward pass.
BATCH_TOKENS = 2048


def batches(unit: Unit, heads: int, layer_bytes: int | None = None) -> list[list[Input]]:
    """Return sentences grouped by length, as many together as the attention of a layer has room for."""
    bound = layer_bytes or LAYER_BYTES
    groups: list[list[Input]] = []
    for text in sorted(unit.inputs, key=lambda text: (text.n_tokens, text.sentence.sample)):
        n = text.n_tokens
        group = groups[-1] if groups else []
        size = len(group) + 1
        fits = size * heads * n * n * 4 <= bound and size * n <= BATCH_TOKENS
        if group and fits and n <= 1.25 * group[0].n_tokens + 8:
            group.append(text)
        else:
            groups.append([text])
    return groups
