# SPDX-License-Identifier: MIT
"""Triton kernels that visit the tiles of a map, which they make of queries and keys."""
