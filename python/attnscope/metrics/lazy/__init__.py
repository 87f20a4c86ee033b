# SPDX-License-Identifier: MIT
"""Attention given by its queries and keys, measured without its map."""
