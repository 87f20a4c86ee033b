# SPDX-License-Identifier: MIT
"""Study of what training leaves in the matrices that read and in those that write (arXiv 2605.16600)."""
