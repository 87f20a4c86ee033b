# SPDX-License-Identifier: MIT
r"""The one rule for names that people give: of runs, models, groups of texts and tables.

The name is shown in tables, figures, pages, terminals and scripts, and some become the name of a file. So
it holds no control character, no line break and no control of the direction of writing, and it is short.

Example:
    >>> from attnscope.untrusted.names import name_fault
    >>> name_fault("Llama 3.2 1B"), name_fault("a\nb")
    ('', "holds the character U+000A, got 'a\\nb'")
"""

from __future__ import annotations

import unicodedata

from attnscope.untrusted.limits import MAX_FILE_NAME_BYTES, MAX_NAME_CHARACTERS

#: Characters that turn the direction of what is written after them.
BIDIRECTIONAL = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
#: Invisible characters that letters of some scripts, and emoji, need between them.
_JOINERS = frozenset("\u200c\u200d")
#: Controls, other invisible characters, halves of pairs, code points without a character, line breaks.
_UNPRINTABLE = frozenset({"Cc", "Cf", "Cs", "Cn", "Co", "Zl", "Zp"})


def name_fault(name: str) -> str:
    """Return the reason why a text cannot be a name, "" where it can."""
    for character in name:
        allowed = character in _JOINERS or unicodedata.category(character) not in _UNPRINTABLE
        if not allowed or character in BIDIRECTIONAL:
            return f"holds the character U+{ord(character):04X}, got {name!r:.80}"
    if len(name) > MAX_NAME_CHARACTERS:
        return f"has {len(name)} characters, at most {MAX_NAME_CHARACTERS} are allowed, got {name!r:.80}"
    return ""


def file_name_fault(name: str) -> str:
    """Return the reason why a text cannot be the name of a file or a folder, "" where it can.

    >>> file_name_fault("../up"), file_name_fault("heads")
    ("holds a '/', got '../up'", '')
    """
    for mark in "/\\":
        if mark in name:
            return f"holds a {mark!r}, got {name!r:.80}"
    if not name or name.startswith("."):
        return f"is empty or begins with a dot, got {name!r:.80}"
    size = len(name.encode("utf-8", "surrogatepass"))
    if size > MAX_FILE_NAME_BYTES:
        return f"has {size} bytes, at most {MAX_FILE_NAME_BYTES} are allowed, got {name!r:.80}"
    return name_fault(name)


def path_fault(path: str, errors: str = "surrogateescape") -> str:
    r"""Return the reason why a text can be no path, no address and no other word for the system.

    Names of files may have bytes that are no text; with "strict" errors nothing else may.

    >>> path_fault("a b/c"), path_fault("a\0b")
    ('', "holds the character U+0000, got 'a\\x00b'")
    """
    if "\0" in path:
        return f"holds the character U+0000, got {path!r:.80}"
    try:
        path.encode("utf-8", errors)
    except UnicodeEncodeError:
        return f"holds half of a surrogate pair, got {path!r:.80}"
    return ""
