# SPDX-License-Identifier: MIT
"""Warnings that point at the line of whoever called the package, however deep the call went."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextvars import ContextVar, Token
from pathlib import Path

from attnscope.errors import CountedWarning, NonFiniteWarning, NotAttentionWarning, UndefinedWarning
from attnscope.untrusted.safe_text import escape_controls

# Frames of a `with` statement's machinery stand between a context manager and its user.
_INSIDE = (str(Path(__file__).parent), contextlib.__file__)

#: Counted warnings of several metrics that are to be grouped; None gives each warning at once.
_GROUPED: ContextVar[list[CountedWarning] | None] = ContextVar("warnings of one call", default=None)
#: Whether somebody further out collects the warnings of single metrics.
_COLLECTING: ContextVar[bool] = ContextVar("warnings are collected", default=False)
#: Metrics that a warning of several of them names.
_NAMED = 3


def warn(message: str | CountedWarning, category: type[Warning] = RuntimeWarning) -> None:
    """Warn at the first line outside of this package, in words that send nothing to a terminal."""
    if isinstance(message, str):
        message = escape_controls(message)
    elif (grouped := _GROUPED.get()) is not None:
        grouped.append(message)
        return
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_INSIDE):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def called_from_outside() -> bool:
    """Return True if the calling function was called by a line outside of this package."""
    return not sys._getframe(2).f_code.co_filename.startswith(_INSIDE)


@contextlib.contextmanager
def collect_warnings() -> Iterator[list[CountedWarning]]:
    """Collect the counted warnings of the block; other warnings pass unchanged."""
    collected: list[CountedWarning] = []
    grouped, collecting = _GROUPED.set(None), _COLLECTING.set(True)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield collected
    finally:
        _GROUPED.reset(grouped)
        _COLLECTING.reset(collecting)
    for warning in caught:
        if isinstance(warning.message, CountedWarning):
            collected.append(warning.message)
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


class GroupedWarnings:
    """A block in which all metrics of `function` that warn of the same give one warning."""

    __slots__ = ("_function", "_token")

    def __init__(self, function: str) -> None:
        self._function = function
        self._token: Token[list[CountedWarning] | None] | None = None

    def __enter__(self) -> None:
        self._token = None if _COLLECTING.get() else _GROUPED.set([])

    def __exit__(self, *error: object) -> None:
        if self._token is None:
            return
        grouped = _GROUPED.get() or []
        _GROUPED.reset(self._token)
        by_words: dict[tuple[type[CountedWarning], str], list[CountedWarning]] = {}
        for warning in grouped:
            words = str(warning).removeprefix(f"{warning.function}: ")
            by_words.setdefault((type(warning), words), []).append(warning)
        for (kind, words), alike in by_words.items():
            warn(kind(f"{self._subject(alike)}: {words}", alike[0].function, alike[0].count))

    def _subject(self, alike: Sequence[CountedWarning]) -> str:
        """Return the names of the metrics that warn, the first of many; those that are read together have no
        name but the function's.
        """
        names = list(dict.fromkeys(warning.function for warning in alike))
        metrics = [name for name in names if name != self._function]
        if len(names) > _NAMED or (metrics and metrics != names):
            return f"{self._function} ({', '.join(metrics[:_NAMED])} and others)"
        *others, last = names
        return f"{', '.join(others)} and {last}" if others else last


@contextlib.contextmanager
def aggregate_warnings(*, rows: bool = False) -> Iterator[None]:
    """Give one warning for all counted ones of a kind.

    Args:
        rows: whether rows that do not sum to 1 are worth a warning too; those of a model are a softmax.
    """
    with collect_warnings() as collected:
        yield
    summarize(collected, rows=rows)


def summarize(collected: Sequence[CountedWarning], *, rows: bool = False) -> None:
    """Give one warning for all counted ones of a kind; `rows` as in `aggregate_warnings`."""
    no_attention = [warning for warning in collected if isinstance(warning, NotAttentionWarning)]
    if rows and no_attention:
        warn(no_attention[0])
    kinds = {NonFiniteWarning: "met NaN or infinite entries in", UndefinedWarning: "is undefined for"}
    for kind, words in kinds.items():
        of_kind = (
            Counter({warning.function: warning.count}) for warning in collected if isinstance(warning, kind)
        )
        if counts := sum(of_kind, Counter()):
            first, *others = (f"{function} {words} {count} maps" for function, count in counts.items())
            by_function = ", ".join([first, *(other.replace(f" {words} ", " for ") for other in others)])
            warn(kind(f"{by_function}; their values are NaN", next(iter(counts)), counts.total()))
