# SPDX-License-Identifier: MIT
"""Wavelet-like heads and RoPE harmonics (Ruscio et al., arXiv 2410.18067)."""
