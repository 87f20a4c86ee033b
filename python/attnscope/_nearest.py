# SPDX-License-Identifier: MIT
"""Words that help after a wrong name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, names: Iterable[str]) -> str:
    """Return ``; did you mean 'x'?``, else the list of right names.

    >>> nearest("fiedlr_value", ["fiedler_value", "entropy"])
    "; did you mean 'fiedler_value'?"
    """
    right = list(names)
    close = difflib.get_close_matches(name, right, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; there are: {', '.join(right)}" if right else "; there are none"
