# SPDX-License-Identifier: MIT
"""Sensitivity of the loss to groups of parameters, as the Fisher notebook computes it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from torch import Tensor, nn

from attnscope.metrics import fisher as exact
from attnscope.metrics.fisher import differentiable, gradient_squares, trace_table

if TYPE_CHECKING:
    import pandas as pd

LONGEST_TEXT = 500
LONGEST_INPUT = 128
WINDOW = 3
# The first whose text occurs in a parameter's name wins.
SUBSTRINGS = (
    ("attention", ("attn", "attention")),
    ("mlp", ("mlp", "ffn", "feed_forward", "intermediate")),
    ("norm", ("norm", "ln_")),
    ("embedding", ("embed", "wte", "wpe")),
)
_NUMBER = re.compile(r"\.(\d+)\.")


class DepthTrend(NamedTuple):
    """Correlation of a number with depth, and its mean over a window of three layers."""

    pearson: float
    pearson_p: float
    spearman: float
    spearman_p: float
    smoothed: list[float]


def fisher_trace(
    model: nn.Module,
    texts: Sequence[str] | Sequence[Mapping[str, Tensor]],
    *,
    tokenizer: Any = None,
    per_sentence: bool = False,
) -> pd.DataFrame:
    """Squared gradient norms of the loss by group of parameters, the mean over sentences.

    Quirks: the labels are the input ids, padding included, and for masked-language models nothing is masked,
    so that the loss is that of copying the input; texts are cut to 500 characters and 128 tokens; a
    parameter's group is told by the first substring of its name that fits, so that
    `post_attention_layernorm` counts as attention, and what fits nowhere is "other".

    Args:
        model: with a language-model head, float32 or float64; left as it was.
        texts: sentences, or mappings with input_ids [1, n].
        tokenizer: for sentences.
        per_sentence: one row for each sentence and group instead of the mean.

    Returns:
        A DataFrame like that of the exact `fisher_trace`: layer (−1 for names without a number), group,
        parameters, trace, trace_per_parameter and n, or sample with `per_sentence`.

    Raises:
        ValueError: as the exact `fisher_trace`.

    Example:
        >>> import torch
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> from attnscope.protocols import ruscio2025
        >>> config = LlamaConfig(vocab_size=16, hidden_size=16, intermediate_size=8, num_hidden_layers=2,
        ...                      num_attention_heads=2)
        >>> inputs = [{"input_ids": torch.arange(6)[None]}]
        >>> found = ruscio2025.fisher_trace(LlamaForCausalLM(config), inputs)
        >>> sorted(set(found.group)), sorted(set(found.layer))
        (['attention', 'embedding', 'mlp', 'norm', 'other'], [-1, 0, 1])

    References:
        Ruscio et al., What are you sinking?, arXiv 2508.02546, Fisher notebook.
    """
    name = "ruscio2025.fisher_trace"
    exact.refuse_half_precision(name, model)
    places = group_parameters(model)
    rows: list[dict[str, Any]] = []
    with differentiable(model):
        for sample, text in enumerate(texts):
            cut = text[:LONGEST_TEXT] if isinstance(text, str) else text
            inputs = exact.model_inputs(name, cut, tokenizer, LONGEST_INPUT, next(model.parameters()).device)
            loss = _loss(model, inputs)
            if loss is None:
                continue
            squares = gradient_squares(loss, model, places)
            rows += [
                {"sample": sample, "layer": layer, "group": group, "trace": square}
                for (layer, group), square in squares.items()
            ]
    return trace_table(name, rows, model, places, per_sentence)


def group_parameters(model: nn.Module) -> dict[str, tuple[int, str]]:
    """Parameter name -> (layer, group), told by substrings of the name.

    Args:
        model: any module.

    Example:
        >>> from attnscope.protocols.ruscio2025.fisher import group_parameters
        >>> from torch import nn
        >>> norm = nn.ModuleDict({"post_attention_layernorm": nn.LayerNorm(2)})
        >>> group_parameters(nn.ModuleDict({"layers": nn.ModuleList([norm])})).popitem()[1]
        (0, 'attention')
    """
    places = {}
    for name, _ in model.named_parameters():
        low = name.lower()
        found = _NUMBER.search(f".{low}")
        group = next((group for group, texts in SUBSTRINGS if any(text in low for text in texts)), "other")
        places[name] = (int(found[1]) if found else -1, group)
    return places


def depth_trend(values: Sequence[float]) -> DepthTrend:
    """Pearson's and Spearman's correlation of a number per layer with depth, and its moving mean.

    Args:
        values: one number per layer, from the first.

    Returns:
        DepthTrend; correlations are NaN for fewer than three layers or without variance; `smoothed` has
        two entries fewer than `values`.

    Raises:
        ValueError: no value.

    Example:
        >>> from attnscope.protocols import ruscio2025
        >>> trend = ruscio2025.depth_trend([1.0, 2.0, 4.0, 8.0])
        >>> round(trend.pearson, 3), trend.spearman, [round(v, 3) for v in trend.smoothed]
        (0.959, 1.0, [2.333, 4.667])

    References:
        Ruscio et al., What are you sinking?, arXiv 2508.02546, Fisher notebook.
    """
    from scipy import stats

    given = np.asarray(values, dtype=np.float64)
    if given.ndim != 1 or given.size == 0:
        raise ValueError(f"ruscio2025.depth_trend: values must be a list of numbers, got shape {given.shape}")
    window = np.ones(WINDOW) / WINDOW
    smoothed = np.convolve(given, window, mode="valid").tolist() if given.size >= WINDOW else []
    if given.size < 3 or not np.isfinite(given).all() or np.ptp(given) == 0:
        return DepthTrend(np.nan, np.nan, np.nan, np.nan, smoothed)
    depth = np.arange(given.size)
    r, p = stats.pearsonr(depth, given)
    rho, q = stats.spearmanr(depth, given)
    return DepthTrend(float(r), float(p), float(rho), float(q), smoothed)


def _loss(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor | None:
    """Cross entropy against the input itself, every position counted."""
    ids = inputs["input_ids"]
    logits = model(**inputs).logits
    if "MaskedLM" not in type(model).__name__:
        if ids.shape[-1] < 2:
            return None
        logits, ids = logits[:, :-1], ids[:, 1:]
    return nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())
