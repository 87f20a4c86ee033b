# SPDX-License-Identifier: MIT
"""Stored tables in other forms: of older schemas, as arrays with axes, controls row by row."""
