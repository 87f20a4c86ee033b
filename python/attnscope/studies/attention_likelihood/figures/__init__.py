# SPDX-License-Identifier: MIT
"""The figures of the likelihood study, each drawn from stored tables alone."""

from __future__ import annotations

from attnscope.studies.attention_likelihood.figures import layers, replacements
from attnscope.studies.attention_likelihood.figures.declared import FIGURES

__all__ = ["FIGURES", "layers", "replacements"]
