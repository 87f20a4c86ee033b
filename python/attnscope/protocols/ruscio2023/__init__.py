# SPDX-License-Identifier: MIT
"""The computations of *Attention-likelihood relationship in transformers* (Ruscio et al. 2023, arXiv
2303.08288).

Its code (Flegyas/AttentionLikelihood) takes the probability of a word from the model's output at the word's
own position, with nothing masked, and correlates it over texts with the mean attention inside the word. Each
docstring names the differences from the exact definitions, which are in `attnscope.capture.likelihood` and
`attnscope.span_attention`. Masked-language models only.
"""

from attnscope.protocols.ruscio2023.association import BestLayer, best_layers, correlation
from attnscope.protocols.ruscio2023.likelihood import (
    MODES,
    TokenProbability,
    replacements,
    token_probability,
    unmasked_logits,
)
from attnscope.protocols.ruscio2023.mann_whitney import MannWhitney, mann_whitney
from attnscope.protocols.ruscio2023.span_attention import SpanAttention, span_attention
from attnscope.protocols.ruscio2023.words import find_span

__all__ = [
    "MODES",
    "BestLayer",
    "MannWhitney",
    "SpanAttention",
    "TokenProbability",
    "best_layers",
    "correlation",
    "find_span",
    "mann_whitney",
    "replacements",
    "span_attention",
    "token_probability",
    "unmasked_logits",
]
