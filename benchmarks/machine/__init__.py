# SPDX-License-Identifier: MIT
"""Measurements of the machine that a benchmark runs on: its rates, the load of others, a call's profile."""
