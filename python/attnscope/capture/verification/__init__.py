# SPDX-License-Identifier: MIT
"""Checks of what is captured from a user's own model."""
