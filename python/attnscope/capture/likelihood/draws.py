# SPDX-License-Identifier: MIT
"""Draws that depend on names alone: the same in every order, batch and implementation."""

from __future__ import annotations

import hashlib


def hashed_draw(low: int, high: int, *key: object) -> int:
    """An integer of low … high − 1: low + ⌊u·(high − low)⌋, u the first 8 bytes of SHA-256 over 2⁶⁴ of
    the key, its parts joined by colons.

    >>> hashed_draw(0, 1, 7, "low", 0), 3 <= hashed_draw(3, 9, 0, 5, "mid", 0) < 9
    (0, True)
    """
    digest = hashlib.sha256(":".join(map(str, key)).encode()).digest()
    return low + (int.from_bytes(digest[:8], "big") * (high - low) >> 64)
