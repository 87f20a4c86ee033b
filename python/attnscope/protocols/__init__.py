# SPDX-License-Identifier: MIT
"""Published protocols: what a paper's own code computes, quirks included, beside the exact definitions."""

from attnscope.protocols import ruscio2023, ruscio2025, ruscio2025once, ruscio2026

__all__ = ["ruscio2023", "ruscio2025", "ruscio2025once", "ruscio2026"]
