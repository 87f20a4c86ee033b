# SPDX-License-Identifier: MIT
"""Attention measured while a model is trained."""

from attnscope.training.attention_callback import AttentionCallback as AttentionCallback
