# SPDX-License-Identifier: MIT
"""The sink study's settings, and the paper's rule of choosing sentences."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import zip_longest
from typing import Annotated, Literal, get_args

import numpy as np
from pydantic import AfterValidator, BeforeValidator, Field

from attnscope._nearest import nearest
from attnscope.config.run_config import TextSource
from attnscope.errors import ConfigError
from attnscope.metrics.thresholds import THRESHOLDS
from attnscope.statistics.controls import FEWEST
from attnscope.studies.attention_sinks.layer_rows import metric_names
from attnscope.study_api.study import Options, one_of
from attnscope.texts.sentence import Row
from attnscope.texts.sources import words

Extra = Literal["fisher", "ablation", "random_weights", "row_permutation", "examples"]
EXTRA: tuple[Extra, ...] = get_args(Extra)


def _as_number(value: object) -> object:
    """Return a number that is a text, such as one in quotes, as a number."""
    is_number = isinstance(value, str) and re.fullmatch(r"\d*\.?\d+(e[+-]?\d+)?", value, re.I | re.A)
    return float(str(value)) if is_number else value


def _threshold(value: float | str) -> float | str:
    if isinstance(value, str) and not re.fullmatch(r"[1-9]\d*/n", value):
        raise ValueError(f"expected a number in (0, 1) or a text such as '2/n', got {value!r}")
    if isinstance(value, (int, float)) and not 0 < value < 1:
        raise ValueError(f"expected thresholds inside (0, 1), got {value!r}")
    return value


def _listed(value: object) -> object:
    return [value] if isinstance(value, (int, float, str)) else value


Threshold = Annotated[float | str, BeforeValidator(_as_number), AfterValidator(_threshold)]


class SinkOptions(Options):
    """The options of the study.

    Args:
        metrics: names of metrics; empty takes all.
        attention: "maps" computes every attention map. "lazy" measures rows and columns from queries and
            keys, in memory that does not grow with the square of a text; metrics that need the map are left
            out and named. "auto" computes maps where anything that is asked for needs them, and measures
            from queries and keys where nothing does; the notes of a run say which.
        thresholds: of the attention graphs: numbers in (0, 1), or "k/n" for multiples of uniform attention.
        bars: store every persistence bar.
        controls: random initialisations compared with the model under "random_weights"; fewer than eight
            are not tested.
        extra: further runs of the model or of the metrics: "fisher" (backward passes), "ablation" (the model
            without its sinks), "random_weights" (models of the same configuration, as controls),
            "row_permutation" (every row of every map shuffled, as a control), "examples" (two whole maps of
            each layer on the first sentence); "all" is all of them.

    >>> SinkOptions(extra="all").extra
    ('fisher', 'ablation', 'random_weights', 'row_permutation', 'examples')
    """

    metrics: Annotated[tuple[str, ...], one_of(metric_names())] = ()
    attention: Literal["auto", "maps", "lazy"] = "auto"
    thresholds: Annotated[tuple[Threshold, ...], BeforeValidator(_listed)] = THRESHOLDS
    bars: bool = False
    controls: Annotated[int, Field(ge=1)] = FEWEST
    extra: Annotated[tuple[Extra, ...], one_of(EXTRA)] = ()


def by_focus_word(rows: Sequence[Row], source: TextSource, draw: np.random.Generator) -> list[int]:
    """Return positions of the shortest sentence of every focus word, ascending.

    When more are wanted, the rest is drawn in equal parts from the short, middle and long third of the other
    sentences; when fewer are wanted, the same draw is made among the shortest ones.
    """
    count = len(rows) if source.samples is None else min(source.samples, len(rows))
    if source.focus not in rows[0][2]:
        raise ConfigError(
            f"{source.path}: the paper's sampling rule needs the column {source.focus!r}"
            f"{nearest(source.focus, rows[0][2])}"
        )
    lengths = [words(content) for _, content, _ in rows]
    # the last one of a word stays, of equal lengths the first
    longest_first = sorted(range(len(rows)), key=lambda index: (-lengths[index], -index))
    first = sorted({rows[index][2][source.focus]: index for index in longest_first}.values())
    if len(first) >= count:
        return sorted(_thirds(first, lengths, count, draw))
    others = sorted(set(range(len(rows))) - set(first))
    return sorted(first + _thirds(others, lengths, count - len(first), draw))


def _thirds(pool: list[int], lengths: list[int], count: int, draw: np.random.Generator) -> list[int]:
    """Draw `count` of the pool, evenly from its short, middle and long third."""
    order = sorted(pool, key=lambda index: (lengths[index], index))
    parts = np.array_split(np.asarray(order, dtype=int), 3)
    in_turn = zip_longest(*(draw.permutation(part)[::-1].tolist() for part in parts))
    return [index for three in in_turn for index in three if index is not None][:count]
