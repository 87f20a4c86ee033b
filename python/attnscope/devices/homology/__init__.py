# SPDX-License-Identifier: MIT
"""Homology of maps on the device that holds them."""
