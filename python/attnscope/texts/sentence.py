# SPDX-License-Identifier: MIT
"""A text of a study with the place that it comes from, and a row of its source."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Sentence:
    """A text, or token ids that are taken as they are, with its place in its source."""

    sample: int
    group: str
    text: str | None
    token_ids: tuple[int, ...] | None
    source: str
    source_row: int
    extra: dict[str, Any] = field(default_factory=dict)
    cut: bool = False


#: Position in the source, the text or its token ids, and the other columns.
Row = tuple[int, Any, dict[str, Any]]
