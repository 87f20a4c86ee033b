# SPDX-License-Identifier: MIT
"""Spectra, wavelets and uncertainty of attention along the keys in torch operations."""
