# SPDX-License-Identifier: MIT
"""Published protocols: the computations of a paper's code, quirks included, next to the exact definitions."""

from attnscope.protocols import ruscio2023, ruscio2025, ruscio2025once, ruscio2026

__all__ = ["ruscio2023", "ruscio2025", "ruscio2025once", "ruscio2026"]
