# SPDX-License-Identifier: MIT
"""Changes of weight matrices: their size, their rounding, and the directions in which they lie."""
