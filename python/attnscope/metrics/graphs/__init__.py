# SPDX-License-Identifier: MIT
"""Attention as a weighted graph: Laplacian spectra, connectivity, degrees."""
