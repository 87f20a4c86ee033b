# SPDX-License-Identifier: MIT
"""Tokens as a reader wants them: byte-level and sentence-piece vocabularies write marks instead of text."""

from __future__ import annotations

import functools
import re

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@functools.cache
def _byte_of() -> dict[str, int]:
    """Letters of byte-level vocabularies: a byte that prints is itself, the others stand from 256 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    letters = {chr(byte): byte for byte in plain}
    return letters | {chr(256 + at): byte for at, byte in enumerate(others)}


def readable(token: str) -> str:
    r"""The text of a token, its leading space included.

    Args:
        token: as the tokenizer's vocabulary writes it.

    >>> readable("\u0120the"), readable("\u2581the"), readable("\u010a"), readable("caf\u00c3\u00a9")
    (' the', ' the', '\n', 'café')
    """
    if found := _BYTE.fullmatch(token):
        byte = int(found[1], 16)
        return chr(byte) if byte < 128 else token
    letters = _byte_of()
    if not token.isascii() and all(letter in letters for letter in token):
        try:
            return bytes(letters[letter] for letter in token).decode("utf-8")
        except UnicodeDecodeError:  # part of a letter, or text that only looks like bytes
            return token.replace("\u0120", " ").replace("\u010a", "\n")
    return token.replace("\u2581", " ")
