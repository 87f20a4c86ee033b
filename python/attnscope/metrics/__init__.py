# SPDX-License-Identifier: MIT
"""Metrics, one concept a file: docstring, defaults and checks; the arithmetic is in the compiled core."""
