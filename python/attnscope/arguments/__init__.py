# SPDX-License-Identifier: MIT
"""Checked arguments of metrics, as the core takes them."""
