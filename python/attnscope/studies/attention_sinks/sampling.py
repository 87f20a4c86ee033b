# SPDX-License-Identifier: MIT
"""The paper's rule by which sentences are chosen: the shortest of every focus word."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope._nearest import nearest
from attnscope.engine.texts.sources import Row, words

if TYPE_CHECKING:
    from attnscope.engine.config import TextSource


def by_focus_word(rows: Sequence[Row], source: TextSource, draw: np.random.Generator) -> list[int]:
    """Positions of the shortest sentence of every focus word, ascending.

    When more are wanted, the rest is drawn in equal parts from the short, middle and long third of the other
    sentences; when fewer are wanted, the same draw is made among the shortest ones.
    """
    from attnscope.engine.config import ConfigError

    count = len(rows) if source.samples is None else min(source.samples, len(rows))
    if source.focus not in rows[0][2]:
        raise ConfigError(
            f"{source.path}: the paper's sampling rule needs the column {source.focus!r}"
            f"{nearest(source.focus, rows[0][2])}"
        )
    lengths = [words(content) for _, content, _ in rows]
    shortest: dict[Any, int] = {}
    for index, (_, _, extra) in enumerate(rows):
        word = extra[source.focus]
        if word not in shortest or lengths[index] < lengths[shortest[word]]:
            shortest[word] = index
    first = sorted(shortest.values())
    if len(first) >= count:
        return sorted(_thirds(first, lengths, count, draw))
    others = sorted(set(range(len(rows))) - set(first))
    return sorted(first + _thirds(others, lengths, count - len(first), draw))


def _thirds(pool: list[int], lengths: list[int], count: int, draw: np.random.Generator) -> list[int]:
    """Draws `count` of the pool, evenly from its short, middle and long third."""
    order = sorted(pool, key=lambda index: (lengths[index], index))
    thirds = [draw.permutation(part).tolist() for part in np.array_split(np.asarray(order, dtype=int), 3)]
    taken: list[int] = []
    while len(taken) < count:
        for third in thirds:
            if third and len(taken) < count:
                taken.append(third.pop())
    return taken
