# SPDX-License-Identifier: MIT
"""The study's figures by name."""

from attnscope.studies.pretraining_writes.figures import courses, matrices
from attnscope.studies.pretraining_writes.figures.declared import FIGURES

__all__ = ["FIGURES", "courses", "matrices"]
