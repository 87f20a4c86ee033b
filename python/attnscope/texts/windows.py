# SPDX-License-Identifier: MIT
"""Windows: the joined texts of a source cut into disjoint pieces of equal length, as one model reads them.

A sentence that starts where its text starts makes content depend on position: first words differ from
thirtieth ones. A window starts anywhere, so only the model can tell its positions apart.

Example:
    >>> import numpy as np
    >>> cut(range(10), 3, np.random.default_rng(0))
    [(2, 3, 4), (5, 6, 7)]
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attnscope.config.run_config import RunConfig
from attnscope.errors import ConfigError
from attnscope.models import Encoder
from attnscope.texts.sentence import Row, Sentence
from attnscope.texts.sources import choose


def windows(
    joined: Sequence[Sentence], settings: RunConfig, encoder: Encoder, model: str, notes: list[str]
) -> list[Sentence]:
    """Return the windows of all sources, numbered from 0; each holds its token ids.

    Where the first ones are wanted, no more of a long text is encoded than they need.

    Args:
        settings: seed, and how many windows of each source by which rule.
        notes: take sources that hold fewer windows than are asked for.
    """
    length = encoder.limit
    if settings.max_tokens is None or length is None:
        raise ConfigError("texts.per: windows need their length in tokens; set max_tokens")
    sentences: list[Sentence] = []
    for position, (text_of_source, source) in enumerate(zip(joined, settings.texts, strict=True)):
        draw = np.random.default_rng([settings.seed, position])
        samples = source.samples
        # the first window begins among the first `length` tokens
        most = (samples + 1) * length if samples is not None and source.sampling == "first" else None
        ids = encoder.bare(text_of_source.text, text_of_source.token_ids, most)
        pieces: list[Row] = [(place, list(piece), {}) for place, piece in enumerate(cut(ids, length, draw))]
        if not pieces:
            raise ConfigError(
                f"texts[{position}]: {source.path} has {len(ids)} tokens of {model}, too few for one window "
                f"of {length}"
            )
        if samples is not None and len(pieces) < samples:
            notes.append(
                f"{model}: {source.path} holds {len(pieces)} windows of {length} tokens, and up to {samples} "
                "are wanted"
            )
        for at in choose(pieces, source, draw):
            place, piece, _ = pieces[at]
            text = encoder.tokenizer.decode(piece) if encoder.tokenizer is not None else None
            number = len(sentences)
            sentences.append(Sentence(number, source.group, text, tuple(piece), text_of_source.source, place))
    return sentences


def cut(ids: Sequence[int], length: int, draw: np.random.Generator) -> list[tuple[int, ...]]:
    """Return disjoint pieces, the first beginning at one of the first `length` places that is drawn.

    Where the texts hold one window alone, it begins as early as it must.
    """
    phase = min(int(draw.integers(length)), max(len(ids) - length, 0))
    return [tuple(ids[at : at + length]) for at in range(phase, len(ids) - length + 1, length)]
