# SPDX-License-Identifier: MIT
"""Tokens as a reader wants them: byte-level and sentence-piece vocabularies write marks instead of text."""

from __future__ import annotations

import functools
import re

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def byte_characters() -> list[str]:
    """Return the letters of byte-level vocabularies, in byte order: printable bytes are themselves, the
    others from 256 on.

    >>> byte_characters()[ord("A")], byte_characters()[0], len(set(byte_characters()))
    ('A', 'Ā', 256)
    """
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    moved = iter(range(256, 512))
    return [chr(byte if byte in plain else next(moved)) for byte in range(256)]


@functools.cache
def byte_of() -> dict[str, int]:
    """Return the byte of each letter of a byte-level vocabulary, by the convention of GPT-2."""
    return {letter: byte for byte, letter in enumerate(byte_characters())}


def readable(token: str) -> str:
    r"""Return the text of a token, its leading space included.

    >>> readable("\u0120the"), readable("\u2581the"), readable("\u010a"), readable("caf\u00c3\u00a9")
    (' the', ' the', '\n', 'café')
    """
    if match := _BYTE.fullmatch(token):
        byte = int(match[1], 16)
        return chr(byte) if byte < 128 else token
    letters = byte_of()
    if not token.isascii() and all(letter in letters for letter in token):
        try:
            return bytes(letters[letter] for letter in token).decode("utf-8")
        except UnicodeDecodeError:  # part of a letter, or text that only looks like bytes
            return token.replace("\u0120", " ").replace("\u010a", "\n")
    return token.replace("\u2581", " ")
