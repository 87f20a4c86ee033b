# SPDX-License-Identifier: MIT
"""Capture and measure in one call, in memory: a model and texts in, tables or features out."""
