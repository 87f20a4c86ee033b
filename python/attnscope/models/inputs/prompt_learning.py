# SPDX-License-Identifier: MIT
"""Virtual tokens that prompt learning (prefix, prompt and p-tuning of peft) puts before a text.

They are part of the model's forward pass and of no module inside it: a base model that is run alone is the
model without what it has learned.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class VirtualTokens(NamedTuple):
    """The virtual tokens before each text.

    Attributes:
        number: of them.
        are_queries: they are embeddings that attend themselves, so that maps stay square; keys of a prefix
            do not.
    """

    number: int
    are_queries: bool


def virtual_tokens(model: Any) -> VirtualTokens:
    """Return the virtual tokens of a model; none for models without prompt learning."""
    settings: Any = getattr(model, "active_peft_config", None) if hasattr(model, "peft_config") else None
    if not getattr(settings, "is_prompt_learning", False):
        return VirtualTokens(0, True)
    kind = str(getattr(settings.peft_type, "value", settings.peft_type))
    return VirtualTokens(int(settings.num_virtual_tokens), kind not in ("PREFIX_TUNING", "CARTRIDGE"))


def virtual_names(count: int) -> list[str]:
    """Return names of virtual tokens, as they stand before those of a text.

    >>> virtual_names(2)
    ['<virtual 0>', '<virtual 1>']
    """
    return [f"<virtual {place}>" for place in range(count)]
