# SPDX-License-Identifier: MIT
"""Study of attention to a word and the word's likelihood (Ruscio et al., arXiv 2303.08288)."""
