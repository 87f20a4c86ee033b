# SPDX-License-Identifier: MIT
"""Attention beside the token states that it moves."""
