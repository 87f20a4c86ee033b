# SPDX-License-Identifier: MIT
"""Capture of queries and keys while a model runs its own fast attention: no map is computed."""
