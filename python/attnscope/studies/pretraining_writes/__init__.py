# SPDX-License-Identifier: MIT
"""What training leaves in the matrices that read and in those that write (arXiv 2605.16600)."""

ALIASES = ("weights",)
