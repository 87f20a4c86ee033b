# SPDX-License-Identifier: MIT
"""The parts of the wavelet study: readings of maps, RoPE's harmonics, summaries over sentences."""
