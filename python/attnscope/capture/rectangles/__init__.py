# SPDX-License-Identifier: MIT
"""Layers that are not square, and the rows of a generation as one map."""
