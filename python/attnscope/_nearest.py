# SPDX-License-Identifier: MIT
"""Words that help after a wrong name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from attnscope.untrusted.safe_text import list_names

#: Likeness from which a name is taken for a slip of the pen; below it the suggestion would be another word.
_LIKENESS = 0.6
_MOST = 8  # names that are suggested at once
#: Letters of a list of right names: those of this package are shown whole, those of a file may be thousands.
_LETTERS = 2_000


def nearest(name: str, names: Iterable[str]) -> str:
    """Return ``; did you mean 'x'?``, names that begin with it, or else the list of right names.

    >>> nearest("fiedlr_value", ["fiedler_value", "entropy"]), nearest("nope", ["entropy"])
    ("; did you mean 'fiedler_value'?", '; there are: entropy')
    >>> nearest("sink", ["sink_share", "sink_test", "entropy"])
    "; did you mean 'sink_share' or 'sink_test'?"
    """
    right = list(dict.fromkeys(names))
    longer = [other for other in right if name and other.startswith(f"{name}_")]
    if 1 < len(longer) <= _MOST:
        return f"; did you mean {', '.join(map(repr, longer[:-1]))} or {longer[-1]!r}?"
    close = difflib.get_close_matches(name, right, n=1, cutoff=_LIKENESS) or longer[:1]
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; there are: {list_names(right, _LETTERS)}" if right else "; there are none"
