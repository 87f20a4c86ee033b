# SPDX-License-Identifier: MIT
"""What every metric of one-dimensional attention signals asks of its arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from attnscope import _checks

SIGNALS = ("rows", "last", "mean", "offset")
#: Only "rows" gives a number per query.
BY_ROW = {"query": ("signal", "rows")}


@dataclass(frozen=True)
class Signals:
    """Checked arguments: the maps, who sees what, and which signals are read off."""

    checked: _checks.Attention
    support: Any
    signal: str
    drop_first: bool
    detrend: bool
    min_keys: int

    @property
    def arguments(self) -> dict[str, Any]:
        """What the functions of the core take by these names."""
        return {
            "attention": self.checked.tensor,
            "lengths": self.checked.lengths,
            "support": self.support,
            "signal": self.signal,
            "drop_first": self.drop_first,
            "detrend": self.detrend,
            "min_keys": self.min_keys,
        }


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
) -> Signals:
    """Checks the arguments that the functions of signals share."""
    checked = _checks.attention_argument(function, attention, lengths, validate=validate)
    _checks.choice_argument(function, "signal", signal, choices)
    _checks.choice_argument(function, "detrend", detrend, ("none", "mean"))
    keys = _checks.whole(function, "min_keys", min_keys)
    if isinstance(min_keys, bool) or keys < 2:
        raise ValueError(f"{function}: min_keys must be a whole number of at least 2, got {min_keys!r}")
    return Signals(
        checked,
        _checks.support_argument(function, support, checked),
        signal,
        _checks.flag(function, "drop_first", drop_first),
        detrend == "mean",
        keys,
    )
