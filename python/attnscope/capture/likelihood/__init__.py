# SPDX-License-Identifier: MIT
"""Likelihoods of the tokens of a text under a model, and other tokens in their place.

A *word* is a span [a, b) of m tokens, its *pieces*. `words` finds spans, `tokens` and `chain` say how likely
tokens and words are, `replacements` puts other words of the same length in their place. All of them read a
model through `models.head.row_logits`.
"""
