# SPDX-License-Identifier: MIT
"""What every metric of one-dimensional attention signals asks of its arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attnscope import _checks

SIGNALS = ("rows", "last", "mean", "offset")
#: Only "rows" gives a number per query.
BY_ROW = {"query": ("signal", "rows")}


def signal_arguments(
    function: str,
    attention: Any,
    lengths: _checks.Lengths,
    support: Any,
    validate: bool,
    *,
    signal: str,
    drop_first: bool,
    detrend: str,
    min_keys: int,
    choices: Sequence[str] = SIGNALS,
) -> tuple[_checks.Attention, dict[str, Any]]:
    """Checks the arguments that the functions of signals share, and gives them by the core's names."""
    checked = _checks.attention_argument(function, attention, lengths, validate=validate)
    _checks.choice_argument(function, "signal", signal, choices)
    _checks.choice_argument(function, "detrend", detrend, ("none", "mean"))
    keys = _checks.whole(function, "min_keys", min_keys)
    if isinstance(min_keys, bool) or keys < 2:
        raise ValueError(f"{function}: min_keys must be a whole number of at least 2, got {min_keys!r}")
    return checked, {
        "attention": checked.tensor,
        "lengths": checked.lengths,
        "support": _checks.support_argument(function, support, checked),
        "signal": signal,
        "drop_first": _checks.flag(function, "drop_first", drop_first),
        "detrend": detrend == "mean",
        "min_keys": keys,
    }
