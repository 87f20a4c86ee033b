# SPDX-License-Identifier: MIT
"""How attention is distributed: sinks, entropy, divergence of heads, sensitivity of the loss."""
