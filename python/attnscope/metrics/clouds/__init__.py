# SPDX-License-Identifier: MIT
"""Clouds of points, such as one state per prompt: distances, dimension, spectrum, pieces, nulls."""
