# SPDX-License-Identifier: MIT
"""Residual states of a text as a cloud of points, and which of its directions matter."""
