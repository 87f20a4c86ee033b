# SPDX-License-Identifier: MIT
"""Whether attention to a word follows how likely the word is (Ruscio et al., arXiv 2303.08288)."""

ALIASES = ("likelihood",)
