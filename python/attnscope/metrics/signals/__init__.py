# SPDX-License-Identifier: MIT
"""Attention along the keys as a signal: Fourier and wavelet spectra, uncertainty, locality."""
