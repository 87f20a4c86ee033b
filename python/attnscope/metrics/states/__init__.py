# SPDX-License-Identifier: MIT
"""Attention compared with the token states that it moves."""
