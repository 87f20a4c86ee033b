# SPDX-License-Identifier: MIT
"""The longest text that a model reads.

A table of learned positions bounds the length of a text, and some models do not use its first rows (RoBERTa
counts positions from behind the padding id, OPT from 2). The table and its offset are read off the model's
modules, so that no family is known by name.

Example:
    >>> from attnscope.models.inputs.context_length import rows_for_tokens
    >>> from torch import nn
    >>> rows_for_tokens(nn.Embedding(20, 4)), rows_for_tokens(nn.Embedding(20, 4, padding_idx=1))
    (20, 18)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.models.architecture import largest_setting, text_config

#: Names of modules that hold a position's vector, behind the last dot.
_TABLE = re.compile(
    r"((char|token|absolute)_)?"
    r"(wpe|positions?_embed\w*|embed_positions?|positional_embed\w*|pos_embed\w*|position_encod\w*)"
)
#: Parts of names under which no text is read.
_NO_TEXT = re.compile(r"vision|visual|image|video|audio|pixel|patch|speech|qformer|entity", re.IGNORECASE)


def context_length(config: Any, tokenizer: Any = None, model: nn.Module | None = None) -> int | None:
    """Return the most tokens that a model reads; None where nothing bounds them.

    Args:
        config: of the model.
        tokenizer: may know a smaller bound.
        model: whose position tables are read; None makes one of the configuration, without weights.
    """
    model = _skeleton(config) if model is None else model
    table = None if model is None else table_length(model)
    limits = [] if table is None else [table]
    positions = largest_setting(text_config(config), "max_position_embeddings")
    if positions is not None and positions > 0:
        limits.append(positions)
    longest = getattr(tokenizer, "model_max_length", None)
    if isinstance(longest, int) and 0 < longest < 10**9:
        limits.append(longest)
    return min(limits, default=None)


def rows_for_tokens(table: nn.Module) -> int | None:
    """Return the number of tokens that a table of positions has rows for; None where the module has no table.

    Rows up to the padding id, and those below a module's own `offset`, stand for no token.
    """
    weight = getattr(table, "weight", None)
    if not isinstance(weight, Tensor) or weight.ndim != 2:
        return None
    offset, padding = getattr(table, "offset", 0), getattr(table, "padding_idx", None)
    below = offset if isinstance(offset, int) else 0
    return int(weight.shape[0]) - max(below, 0 if padding is None else int(padding) + 1)


def table_length(model: nn.Module) -> int | None:
    """Return the most tokens that the position tables of a model have rows for; None without such a table.

    The tables of an encoder-decoder's encoder count.
    """
    return min(_tables(model), default=None)


def _tables(model: nn.Module) -> Iterator[int]:
    """Yield the tokens that each position table of the text model has rows for."""
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        encoder: Any = getattr(model, "get_encoder", None)
        model = model if encoder is None else encoder()
    for name, module in model.named_modules():
        parent, _, last = name.rpartition(".")
        if _TABLE.fullmatch(last) and not _NO_TEXT.search(parent):
            rows = rows_for_tokens(module)
            if rows is not None:
                yield rows


def _skeleton(config: Any) -> nn.Module | None:
    """Return the modules of a configuration without memory for weights; None for one that cannot be built."""
    import transformers

    if not isinstance(config, transformers.PretrainedConfig):
        return None
    try:
        with torch.device("meta"), torch.random.fork_rng(devices=[]):
            return transformers.AutoModel.from_config(config)
    except (
        ArithmeticError,
        AttributeError,
        ImportError,
        LookupError,
        OSError,
        RuntimeError,
        TypeError,
        ValueError,
    ):
        return None  # custom code, or a part that needs data: what the configuration says is left
