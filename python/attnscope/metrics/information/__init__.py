# SPDX-License-Identifier: MIT
"""Measures of how attention is distributed: sinks, entropy, divergence of heads, sensitivity of the loss."""
