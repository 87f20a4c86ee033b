# SPDX-License-Identifier: MIT
"""What are you sinking? A geometric approach on attention sink (Ruscio et al., arXiv 2508.02546)."""
