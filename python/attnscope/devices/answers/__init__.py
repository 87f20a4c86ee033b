# SPDX-License-Identifier: MIT
"""Measures of answers in torch operations."""
