# SPDX-License-Identifier: MIT
"""Graphs of maps on the device that holds them."""
