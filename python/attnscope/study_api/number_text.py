# SPDX-License-Identifier: MIT
"""Numbers and intervals as a person writes them, the same in claims, figures and reports.

Example:
    >>> from attnscope.study_api.number_text import estimate_text, number
    >>> number(0.49123), estimate_text(0.5, 0.25, 1.5), estimate_text(0.5, float("nan"), float("nan"))
    ('0.491', '0.500 [0.250, 1.50]', '0.500')
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pandas as pd


def number(value: Any) -> str:
    """Return a number as a person writes it: two or three significant digits, an en dash for none.

    >>> number(0.49123), number(1234.5), number(float("nan")), number(2e-5), number(0.0), number(0.00149)
    ('0.491', '1,234', '–', '2.0e−5', '0', '0.0015')
    """
    value = float(value)
    if value != value:
        return "–"
    if value == 0:
        return "0"
    if value in (math.inf, -math.inf):
        return "∞" if value > 0 else "−∞"
    if abs(value) < 1e-3:
        digits, _, exponent = f"{value:.1e}".partition("e")
        return f"{digits}e{int(exponent)}".replace("-", "−")
    if abs(value) < 1e-2:
        return f"{value:.4f}".replace("-", "−")
    places = 3 if abs(value) < 1 else 2 if abs(value) < 10 else 1 if abs(value) < 1000 else 0
    return f"{value:,.{places}f}".replace("-", "−")


def rounded(value: Any, form: str = ".3g") -> str:
    """Return a number in a format of Python's, with the minus that a person writes; an en dash for none.

    >>> rounded(-0.25), rounded(-2e-5), rounded(-1.5, ".2f"), rounded(-0.001, ".2f"), rounded(float("nan"))
    ('−0.25', '−2e−5', '−1.50', '0.00', '–')
    """
    value = float(value)
    if value != value:
        return "–"
    text = f"{value:{form}}"
    # what rounds to 0 has no sign
    digits, exponential, exponent = text.removeprefix("-" if not float(text) else "").partition("e")
    return (f"{digits}e{int(exponent)}" if exponential else digits).replace("-", "−")


def two_places(value: Any) -> str:
    """Return a number with two places behind the point."""
    return rounded(value, ".2f")


def interval_text(low: Any, high: Any, form: Callable[[Any], str] | None = None) -> str:
    """Return an interval as a person writes it; an empty text without one.

    Args:
        low: end of the interval.
        high: likewise.
        form: writes an end; None takes `number`.

    >>> interval_text(0.25, 1.5), interval_text(float("nan"), float("nan"))
    ('[0.250, 1.50]', '')
    """
    form = form or number
    return "" if pd.isna(low) or pd.isna(high) else f"[{form(low)}, {form(high)}]"


def estimate_text(value: Any, low: Any, high: Any, form: Callable[[Any], str] | None = None) -> str:
    """Return a number followed by its interval; alone where it has none, so that no dash reads as a range.

    Args:
        value: an en dash where it is missing.
        low: end of the interval.
        high: likewise.
        form: writes a number; None takes `number`.

    >>> estimate_text(0.5, 0.25, 1.5), estimate_text(-2, -3, -1, two_places), estimate_text(math.nan, 0, 1)
    ('0.500 [0.250, 1.50]', '−2.00 [−3.00, −1.00]', '–')
    """
    form = form or number
    return form(value) if pd.isna(value) else f"{form(value)} {interval_text(low, high, form)}".rstrip()


def counted(count: Any, noun: str, nouns: str = "") -> str:
    """Return a number of things as a person writes it, an en dash for a missing number.

    Args:
        count: of the things.
        noun: what each of them is called.
        nouns: what several are called; "" takes an s.

    >>> counted(1, "pair"), counted(12.0, "pair"), counted(0, "matrix", "matrices")
    ('1 pair', '12 pairs', '0 matrices')
    """
    if pd.isna(count):
        return f"– {nouns or noun + 's'}"
    return f"{int(count)} {noun if count == 1 else nouns or noun + 's'}"


def p_text(value: float) -> str:
    """Return a p-value as it is written.

    >>> p_text(0.2), p_text(0.0123), p_text(1e-9), p_text(float("nan"))
    ('0.20', '0.012', '< 0.001', '–')
    """
    if value != value:
        return "–"
    if value < 0.001:
        return "< 0.001"
    return f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"
