# SPDX-License-Identifier: MIT
"""A checked argument: a tokenizer."""

from __future__ import annotations

from typing import Any


def tokenizer_argument(
    function: str, tokenizer: Any, *, is_needed: bool = False, needs_vocabulary: bool = False
) -> Any:
    """Return a tokenizer, or None where none is needed.

    Args:
        function: whose name errors begin with.
        tokenizer: of transformers, or another function of a text that gives a mapping with input_ids.
        is_needed: False where inputs may be token ids.
        needs_vocabulary: True where names of tokens and special ids are read, which a function lacks.

    Raises:
        TypeError: for anything else, such as the name of a tokenizer.
    """
    knows = hasattr(tokenizer, "all_special_ids") and hasattr(tokenizer, "convert_ids_to_tokens")
    if callable(tokenizer) and (knows or not needs_vocabulary):
        return tokenizer
    if tokenizer is None and not is_needed and not needs_vocabulary:
        return None
    raise TypeError(f"{function}: tokenizer must be one of transformers, got {tokenizer!r:.60}")
