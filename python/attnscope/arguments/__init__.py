# SPDX-License-Identifier: MIT
"""Arguments of functions: maps and where their queries stand, numbers and words, and copies for the CPU."""
