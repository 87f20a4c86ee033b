# SPDX-License-Identifier: MIT
"""A model along directions of its residual stream: what its next token does when a state moves."""
