# SPDX-License-Identifier: MIT
"""The figures of the study on absolute position, each drawn from stored tables alone."""

from __future__ import annotations

from attnscope.studies.absolute_position.figures import first_position, residuals
from attnscope.studies.absolute_position.figures.declared import FIGURES

__all__ = ["FIGURES", "first_position", "residuals"]
