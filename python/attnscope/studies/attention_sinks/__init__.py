# SPDX-License-Identifier: MIT
"""The study of *What are you sinking? A geometric approach on attention sink* (arXiv 2508.02546)."""
