# SPDX-License-Identifier: MIT
"""The figures of the study on wavelet-like heads, each drawn from stored tables alone."""

from __future__ import annotations

from attnscope.studies.wavelet_heads.figures import scalograms, signals
from attnscope.studies.wavelet_heads.figures.scalograms import FIGURES

__all__ = ["FIGURES", "scalograms", "signals"]
