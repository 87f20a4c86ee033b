# SPDX-License-Identifier: MIT
"""Spectra, wavelets, uncertainty and reach of attention along the keys in torch operations."""
