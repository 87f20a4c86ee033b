# SPDX-License-Identifier: MIT
"""The singular and eigenvalue spectrum of a map, and the laws of random maps."""
