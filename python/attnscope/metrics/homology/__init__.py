# SPDX-License-Identifier: MIT
"""Attention as a filtration of simplicial complexes: bars, Betti numbers."""
